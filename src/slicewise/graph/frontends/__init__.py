"""Doors: one module for each framework or file format a model can come from."""
