"""Triton kernels of a model's operators, tuned for a share of a GPU."""

from slicewise.tune.backends.triton.engine import ENGINE, TritonEngine

__all__ = ["ENGINE", "TritonEngine"]
