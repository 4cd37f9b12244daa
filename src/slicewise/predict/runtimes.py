"""What is known of each runtime before anything is measured: launches, host part, memory.

Which nodes a runtime fuses is not told here but in `graph/fusion/`; what its kernels reach of
those of eager PyTorch is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slicewise.core.cost import Kind
from slicewise.core.errors import UsageError
from slicewise.core.plugins import did_you_mean
from slicewise.core.units import MIB

# Kinds that cuDNN and cuBLAS compute; PyTorch allows TF32 in those of cuDNN alone.
_CUDNN_KINDS = frozenset({Kind.CONV, Kind.RECURRENT})
_LIBRARY_KINDS = _CUDNN_KINDS | {Kind.MATMUL, Kind.ATTENTION}


@dataclass(frozen=True, slots=True)
class Runtime:
    """Figures of one runtime.

    `launch_factor` and `host_factor` multiply the device's own figures. `gpu_speed`: what kernels
    of a kind reach on a GPU over those of eager PyTorch, 1 if absent. `gpu_bytes` and `cpu_bytes`:
    memory held before any model is loaded. `tf32_by_default`: the kinds that the runtime computes
    in TF32 of an fp32 model on an NVIDIA GPU that can, unless it is told otherwise.
    """

    name: str
    launch_factor: float
    host_factor: float
    gpu_bytes: int
    cpu_bytes: int
    gpu_speed: Mapping[Kind, float] = field(default_factory=dict)
    tf32_by_default: frozenset[Kind] = _LIBRARY_KINDS
    nvidia_only: bool = False


# Launch: a device's own figure is that of a compiled program submitting kernels. An eager
# framework dispatches each operator from Python: three times as much on the open small-batch rows
# (DeBERTa on A100, T4 and V100, CNNs on Jetsons). That is 24 us on an A100, where the flat 12 ms
# of DenseNet-121 at small batches of the ParvaGPU profiles give 28 us a kernel; the floors of the
# NeuSight collection are 24 to 39 us. tensorrt and torch-compile: fitted together with the speeds.
# onnxruntime: no open rows; as tensorrt.
# Speed: fitted to open rows by `benchmarks/fit_efficiency.py`; on CPUs only one runtime has rows.
# Under autocast eager PyTorch casts what goes into products in kernels of its own, which compiled
# loops take in, and pools one window a thread: there the fit finds compiled kernels far ahead.
# The pointwise and reduction kernels of TensorRT come out slow because many of the open engines
# are older than its fusions.
# TF32: documented defaults of cuDNN in PyTorch (torch.backends.cudnn.allow_tf32), of onnxruntime's
# CUDA provider (use_tf32) and of TensorRT's builder.
# Memory: our estimate of CUDA context plus loaded libraries; not yet calibrated by measurement.
_COMPILED = {
    Kind.CONV: 0.97,
    Kind.MATMUL: 2.50,
    Kind.ATTENTION: 0.86,
    Kind.NORM: 0.66,
    Kind.SOFTMAX: 1.24,
    Kind.REDUCTION: 0.81,
    Kind.POOL: 2.50,
    Kind.ELEMENTWISE: 1.24,
    Kind.MOVEMENT: 1.05,
}
_TENSORRT = {
    Kind.CONV: 0.81,
    Kind.MATMUL: 0.91,
    Kind.ATTENTION: 0.40,
    Kind.NORM: 0.79,
    Kind.SOFTMAX: 1.43,
    Kind.REDUCTION: 0.40,
    Kind.POOL: 1.24,
    Kind.ELEMENTWISE: 0.40,
}
RUNTIMES = {
    runtime.name: runtime
    for runtime in (
        Runtime("torch-eager", 3.0, 1.0, 480 * MIB, 220 * MIB, {}, _CUDNN_KINDS),
        Runtime("torch-compile", 0.42, 1.0, 480 * MIB, 240 * MIB, _COMPILED, _CUDNN_KINDS),
        Runtime("onnxruntime", 1.1, 1.0, 420 * MIB, 60 * MIB),
        Runtime("tensorrt", 1.1, 0.7, 380 * MIB, 60 * MIB, _TENSORRT, nvidia_only=True),
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
