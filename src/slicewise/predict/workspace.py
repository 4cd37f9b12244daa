"""What runtimes take beside tensors: scratch memory of kernels, library buffers, segments.

Tables only, a source in each row. Figures that could not be measured where this was written are
marked `uncertain`; `memory.py` widens the interval by them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slicewise.core.cost import Kind, NodeWork, Work
from slicewise.core.graph import Node, Tensor
from slicewise.core.precision import DType
from slicewise.core.units import KIB, MIB
from slicewise.predict.lifetimes import Beside, Habits

_TORCH = frozenset({"torch-eager", "torch-compile"})


def _log_sum_exp(node: Node, work: NodeWork, tensors: Mapping[str, Tensor]) -> int:
    """A float for each query of each head: what flash kernels return beside the output."""
    product = work.contraction
    return 0 if product is None else 4 * product.batch * product.m


def _pool_indices(node: Node, work: NodeWork, tensors: Mapping[str, Tensor]) -> int:
    """The place of each maximum, in 64 bits: `max_pool2d` drops them, but makes them."""
    return 8 * tensors[node.outputs[0]].elements if len(node.outputs) == 1 else 0


def _layers_within(node: Node, work: NodeWork, tensors: Mapping[str, Tensor]) -> int:
    """Results inside a stack of recurrent layers: those of the layer before, those of both
    directions apart, and the input with the sequence first."""
    result = tensors[node.outputs[0]].size_bytes if node.outputs[0] else 0
    stacked = node.attrs.get("num_layers", 1) != 1
    both = node.attrs.get("direction") == "bidirectional"
    turned = tensors[node.inputs[0]].size_bytes if node.attrs.get("layout") == 1 else 0
    return result * (stacked + both) + turned


# What ATen's kernels make beside the tensor that the program asked for. Seen with a dispatch
# hook on PyTorch 2.13 (benchmarks/activation_peak.py). Attention is taken to run flash or
# memory-efficient kernels in every type and on every device: also on CPUs, where
# `_scaled_dot_product_flash_attention_for_cpu` takes fp32; a source that spells attention out has
# its scores in the graph.
_ATEN_RESULTS: Mapping[str, Beside] = {
    "Attention": _log_sum_exp,
    "MaxPool": _pool_indices,
    "LSTM": _layers_within,
    "GRU": _layers_within,
    "RNN": _layers_within,
}
HABITS: Mapping[str, Habits] = {
    # Reference counts: a tensor is freed when the last name in the running program goes.
    "torch-eager": Habits(trusts_source=True, holds_arguments=True, beside=_ATEN_RESULTS),
    # torch/_inductor/config.py: inplace_buffers, allow_buffer_reuse are on.
    "torch-compile": Habits(trusts_source=True, writes_into_inputs=True, beside={}),
    # onnxruntime's allocation planner: MayInplace and Alias of kernel definitions, reuse of freed
    # buffers (onnxruntime/core/framework/allocation_planner.cc).
    "onnxruntime": Habits(writes_into_inputs=True),
    # TensorRT developer guide: the caller binds outputs; one activation region is shared by
    # tensors whose lifetimes do not overlap.
    "tensorrt": Habits(writes_into_inputs=True, binds_outputs=True),
}

# Sizes that allocators round a tensor up to, by runtime and kind of device; 1 = as it is.
# PyTorch on CUDA: c10/core/AllocatorConfig.h, kMinBlockSize. onnxruntime: BFC arena, 256 B blocks
# (core/framework/bfc_arena.h, kMinAllocationSize), both kinds of device. TensorRT: our reading of
# its aligned activation region, uncertain.
BLOCK_BYTES: Mapping[tuple[str, str], int] = {
    ("torch-eager", "gpu"): 512,
    ("torch-compile", "gpu"): 512,
    ("onnxruntime", "gpu"): 256,
    ("onnxruntime", "cpu"): 256,
    ("tensorrt", "gpu"): 512,
}
# What allocators take from the device at a time: PyTorch's large blocks come in multiples of
# 2 MiB (c10/core/AllocatorConfig.h, kRoundLarge).
SEGMENT_BYTES: Mapping[tuple[str, str], int] = {
    ("torch-eager", "gpu"): 2 * MIB,
    ("torch-compile", "gpu"): 2 * MIB,
}
# At most so much of the last segments stays empty: one of the small pool (kSmallBuffer) and one
# of 20 MiB for blocks of 1 to 10 MiB (kLargeBuffer).
SEGMENT_SLACK_BYTES: Mapping[tuple[str, str], int] = {
    ("torch-eager", "gpu"): 22 * MIB,
    ("torch-compile", "gpu"): 22 * MIB,
}


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that kernels of one kind take while they run: `taken` of the kernel's work.

    `types`: only kernels that compute in these, all where empty.
    """

    device_kind: str
    runtimes: frozenset[str]
    kind: Kind
    taken: Callable[[Work], int]
    source: str
    types: frozenset[DType] = frozenset()
    uncertain: bool = False


_MATRIX_UNITS = frozenset({DType.FP16, DType.BF16, DType.TF32})
SCRATCH: Sequence[Scratch] = (
    Scratch(
        "cpu",
        frozenset({"torch-eager"}),
        Kind.CONV,
        lambda work: max(work.weight_bytes + work.read_bytes, work.write_bytes),
        "oneDNN brings weights and input of a convolution into blocked layouts at each call, then"
        " the result back: allocator events, benchmarks/allocations.py",
    ),
    Scratch(
        "gpu",
        frozenset({"torch-eager", "onnxruntime"}),
        Kind.CONV,
        lambda work: work.moved_bytes,
        "cuDNN developer guide: tensor-core convolutions of NCHW tensors convert to NHWC and back",
        types=_MATRIX_UNITS,
        uncertain=True,
    ),
)


def scratch_bytes(kernel: NodeWork, *, runtime: str, device_kind: str) -> int:
    """Return what one kernel takes beside its tensors while it runs."""
    return sum(
        row.taken(kernel.work)
        for row in SCRATCH
        if row.kind is kernel.kind
        and row.device_kind == device_kind
        and runtime in row.runtimes
        and (not row.types or kernel.dtype in row.types)
    )


@dataclass(frozen=True, slots=True)
class LibraryBuffer:
    """What a library holds from the first product on, by the generation of the device."""

    runtimes: frozenset[str]
    generations: tuple[str, ...]  # beginnings of `Device.architecture`; the first row that fits
    held_bytes: int
    source: str


# Products only: cuDNN's convolutions and attention kernels do not go through cuBLAS.
LIBRARY_BUFFERS: Sequence[LibraryBuffer] = (
    LibraryBuffer(
        _TORCH, ("Hopper", "Blackwell"), 32 * MIB,
        "PyTorch, CUDA semantics, cuBLAS workspaces: 32 MiB from Hopper on",
    ),
    LibraryBuffer(
        _TORCH, ("",), 2 * 4096 * KIB + 8 * 16 * KIB,
        "PyTorch, CUDA semantics, cuBLAS workspaces: CUBLAS_WORKSPACE_CONFIG :4096:2:16:8",
    ),
    LibraryBuffer(
        frozenset({"onnxruntime"}), ("Hopper", "Blackwell"), 32 * MIB,
        "cuBLAS documentation, cublasSetWorkspace: 32 MiB for Hopper and Blackwell",
    ),
    LibraryBuffer(
        frozenset({"onnxruntime"}), ("",), 4 * MIB,
        "cuBLAS documentation, cublasSetWorkspace: 4 MiB for other architectures",
    ),
)  # fmt: skip
USES_PRODUCTS = frozenset({Kind.MATMUL, Kind.RECURRENT})


def library_bytes(runtime: str, architecture: str) -> int:
    """Return what cuBLAS holds under `runtime` on a GPU of `architecture`, 0 for no row."""
    for row in LIBRARY_BUFFERS:
        if runtime in row.runtimes and architecture.startswith(row.generations):
            return row.held_bytes
    return 0


@dataclass(frozen=True, slots=True)
class Spread:
    """Factors on a part of the estimate between which 90 % of models should lie."""

    low: float
    high: float


# Activations, by runtime. torch-eager with a graph that tells views and what is held: see
# ACTIVATIONS_TOLD. The others were not measured: our estimate. onnxruntime: its arena extends by
# powers of two (arena_extend_strategy kNextPowerOfTwo, the default) and so may hold twice as much
# as it needs. Without the source's word on views and held tensors (ONNX), eager is looser too.
ACTIVATIONS: Mapping[str, Spread] = {
    "torch-eager": Spread(0.75, 1.6),
    "torch-compile": Spread(0.7, 1.4),
    "onnxruntime": Spread(0.7, 2.0),
    "tensorrt": Spread(0.5, 1.5),
}
# Quantiles of benchmarks/results/activation_peak.md, widened for allocator fragmentation on GPUs.
ACTIVATIONS_TOLD: Mapping[str, Spread] = {"cpu": Spread(0.9, 1.1), "gpu": Spread(0.9, 1.3)}
# Weights as stored. onnxruntime on CPUs packs constant factors of products anew and frees the
# originals where every reader has packed them: both at once while it does. TensorRT keeps weights
# in the formats of its tactics, some transformed (Winograd), some dropped. Our estimate.
WEIGHTS: Mapping[tuple[str, str], Spread] = {
    ("onnxruntime", "cpu"): Spread(1.0, 2.0),
    ("onnxruntime", "gpu"): Spread(1.0, 1.15),
    ("tensorrt", "gpu"): Spread(0.9, 1.4),
}
WEIGHTS_OTHERS = Spread(1.0, 1.05)
# Runtime constants are our estimate too (predict/runtimes.py).
RUNTIME = Spread(0.6, 1.8)
