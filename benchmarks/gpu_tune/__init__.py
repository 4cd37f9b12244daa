"""Triton kernels on parts of a GPU: the tuned-at, run-at matrix, and several tuners at once."""
