"""From work and a device to time, energy and memory."""
