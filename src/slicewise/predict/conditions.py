"""What a learned predictor is told of the runtime, and of a device hardly anything.

A device speaks through the costs of kernels on it (`basis.py`): with few devices to learn from,
a network that sees figures of the data sheet learns which device is which, and fails on the next
one. A device that is faster in everything has the same figures, so it is never predicted slower.
"""

from collections.abc import Sequence

from slicewise.core.device import Device

FIGURES = (
    "is cpu", "eager", "compiled", "tensorrt", "onnxruntime", "replayed", "library",
    "channels last", "torch version", "torch after 2.5", "tensorrt version",
)  # fmt: skip
"""Names of the figures; a weights folder is refused where its own differ."""

NEWEST = {"torch-eager": (2, 9), "torch-compile": (2, 9), "tensorrt": (8, 6)}
"""The newest version that rows are of; what is asked for when no version is."""


def figures_of(
    device: Device, *, runtime: str, layout: str, version: Sequence[int] = ()
) -> tuple[float, ...]:
    """Return the figures of one device under one runtime, in the order of `FIGURES`."""
    number = _number(version or NEWEST.get(runtime, ()))
    is_torch = runtime.startswith("torch")
    torch = number if is_torch and number else 2.3
    return (
        float(device.kind == "cpu"),
        float(runtime == "torch-eager"),
        float(runtime == "torch-compile"),
        float(runtime == "tensorrt"),
        float(runtime == "onnxruntime"),
        float(runtime == "replayed"),
        float(runtime == "library"),
        float(layout == "nhwc"),
        torch - 2.3,
        max(torch - 2.5, 0.0),
        (number or 8.4) - 8.4 if runtime == "tensorrt" else 0.0,
    )


def _number(version: Sequence[int]) -> float:
    """Return a version as a number: releases of PyTorch count on, 2.0 follows 1.13."""
    if not version:
        return 0.0
    major, minor = version[0], version[1] if len(version) > 1 else 0
    if major == 1:
        return 2.0 - (14 - min(minor, 14)) / 10
    return major + minor / 10
