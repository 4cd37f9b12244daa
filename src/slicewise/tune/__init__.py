"""Tuning operators on a share of a device: workloads, scheduling, engines."""
