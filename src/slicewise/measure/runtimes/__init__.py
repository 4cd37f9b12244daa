"""Runtimes: what opens a model and runs it. A door for frameworks."""
