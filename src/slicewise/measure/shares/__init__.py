"""Shares: binding a process to a part of a device, and telling whether it took."""
