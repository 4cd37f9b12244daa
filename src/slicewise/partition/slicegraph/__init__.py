"""Cuts from orders of the nodes: slicing, orders, local search, a genetic algorithm."""
