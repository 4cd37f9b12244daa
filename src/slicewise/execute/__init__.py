"""Executors: where the work of a sweep is done."""
