"""Slices of a GPU: legal layouts, which profile fits one model, how many models share few GPUs.

Receives predictions and speeds as values; predicts nothing and reads no file.
"""
