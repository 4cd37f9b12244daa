"""What is known of each runtime before anything is measured: launches, host part, memory.

Fusion is modelled in the mean only: a runtime that fuses leaves a part of the kernels of each
kind, and of their time. Which nodes it fuses is not told apart yet.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slicewise.core.cost import Kind
from slicewise.core.errors import UsageError
from slicewise.core.plugins import did_you_mean
from slicewise.core.units import MIB


@dataclass(frozen=True, slots=True)
class Runtime:
    """Figures of one runtime.

    `launch_factor` and `host_factor` multiply the device's own figures. `left`: part of the
    kernels of a kind that fusion leaves, and of their time. `gpu_bytes` and `cpu_bytes`: memory
    held before any model is loaded. `tf32_by_default`: what the runtime computes in TF32 of an
    fp32 model on a device that can, unless it is told otherwise.
    """

    name: str
    launch_factor: float
    host_factor: float
    gpu_bytes: int
    cpu_bytes: int
    left: Mapping[Kind, float] = field(default_factory=dict)
    tf32_by_default: str = "convolutions and products"
    nvidia_only: bool = False


# Launch: a device's own figure is that of a compiled program submitting kernels. An eager
# framework dispatches each operator from Python: three times as much on the open small-batch rows
# (DeBERTa on A100, T4 and V100, CNNs on Jetsons). That is 24 us on an A100, where the flat 12 ms
# of DenseNet-121 at small batches of the ParvaGPU profiles give 28 us a kernel; the floors of the
# NeuSight collection are 24 to 39 us. tensorrt and torch-compile: fitted together with `left`.
# onnxruntime: no open rows; as tensorrt and a little more, since it fuses less.
# TF32: documented defaults of cuDNN in PyTorch (allow_tf32), of onnxruntime's CUDA provider
# (use_tf32) and of TensorRT's builder.
# Memory: our estimate of CUDA context plus loaded libraries; not yet calibrated by measurement.
_COMPILED = {
    Kind.ELEMENTWISE: 0.36,
    Kind.NORM: 0.51,
    Kind.MOVEMENT: 0.21,
    Kind.SOFTMAX: 0.25,
}
_TENSORRT = {Kind.ELEMENTWISE: 0.45, Kind.NORM: 0.23, Kind.SOFTMAX: 0.46}
_ONNXRUNTIME = {Kind.ELEMENTWISE: 0.5, Kind.NORM: 0.6, Kind.SOFTMAX: 0.5}
RUNTIMES = {
    runtime.name: runtime
    for runtime in (
        Runtime("torch-eager", 3.0, 1.0, 480 * MIB, 220 * MIB, {}, "convolutions"),
        Runtime("torch-compile", 0.42, 1.0, 480 * MIB, 240 * MIB, _COMPILED, "convolutions"),
        Runtime("onnxruntime", 0.7, 1.0, 420 * MIB, 60 * MIB, _ONNXRUNTIME),
        Runtime("tensorrt", 0.65, 0.7, 380 * MIB, 60 * MIB, _TENSORRT, nvidia_only=True),
    )
}


def runtime_named(name: str) -> Runtime:
    """Return the runtime called `name`; `UsageError` lists the known ones."""
    if name not in RUNTIMES:
        raise UsageError(
            f"runtime {name!r} is unknown; known are {', '.join(RUNTIMES)}"
            f"{did_you_mean(name, RUNTIMES)}"
        )
    return RUNTIMES[name]
