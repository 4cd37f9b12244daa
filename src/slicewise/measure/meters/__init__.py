"""Meters: memory, energy and utilisation of a running process. A door for drivers."""
