"""Doors to foreign solvers; each imports its library inside the function that needs it."""
