"""What the slow-down of a kernel may depend on besides its size: one row of numbers each.

Nothing here changes with the batch or the device, so that what a network makes of it scales a
kernel's costs (`basis.py`) and never bends them: twice the images are never faster. Widths of
channels and rows enter, and how well they are aligned. The last columns are those of the kernels
before it (not behind: adding a node must not make a model faster), a graph convolution of one hop
over the true edges, views seen through (Wu et al.,
"Simplifying Graph Convolutional Networks", ICML 2019; Frasca et al., "SIGN", 2020).
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slicewise.core.cost import Kind, NodeWork
from slicewise.core.graph import Graph, Node, Tensor
from slicewise.core.precision import DType
from slicewise.predict.kernels import Array, Row

_MATRIX = frozenset({Kind.CONV, Kind.MATMUL, Kind.ATTENTION, Kind.RECURRENT})
_KINDS = tuple(Kind)
_OPERATORS: Mapping[str, tuple[str, ...]] = {
    "rectified": ("Relu", "LeakyRelu", "PRelu", "ThresholdedRelu", "Clip", "Min", "Max", "Abs"),
    "hard": ("HardSwish", "HardSigmoid", "hard_swish"),
    "gelu": ("Gelu", "FastGelu", "BiasGelu", "Erf", "gelu"),
    "sigmoid": ("Sigmoid", "Tanh", "Swish", "Silu", "silu", "QuickGelu", "Softplus", "Mish", "Elu",
                "Selu", "Celu"),
    "power": ("Exp", "Log", "Pow", "Sqrt", "Sin", "Cos", "Reciprocal", "Softsign"),
    "sum": ("Add", "Sub", "Sum"),
    "product": ("Mul", "Div", "addcmul"),
    "batch norm": ("BatchNormalization",),
    "group norm": ("GroupNormalization", "InstanceNormalization", "group_norm"),
    "concat": ("Concat",),
    "turned": ("Transpose",),
    "sliced": ("Slice", "Split"),
    "gathered": ("Gather", "GatherND", "GatherElements", "ScatterND", "GridSample", "Scatter"),
    "padded": ("Pad",),
    "rolled": ("roll",),
    "copied": ("Reshape", "Identity", "Expand", "Tile", "Flatten"),
    "resized": ("Resize", "Upsample"),
    "cast": ("Cast",),
    "mean": ("ReduceMean",),
    "norm of rows": ("ReduceL2", "ReduceL1"),
    "global pool": ("GlobalAveragePool", "GlobalMaxPool"),
    "average pool": ("AveragePool",),
    "transposed conv": ("ConvTranspose",),
    "einsum": ("Einsum",),
}  # fmt: skip
_OPERATOR_INDEX = {op: i for i, ops in enumerate(_OPERATORS.values()) for op in ops}
_SHAPE = (
    "product of weights", "depthwise", "grouped", "image", "1x1", "kernel area", "large depthwise",
    "long and thin", "stride", "dilation", "log n", "log k", "small n", "small k", "log m",
    "n aligned", "k aligned", "m aligned", "n odd", "k odd", "log group width",
    "masked attention", "attention of five axes", "causal", "winograd waste 2", "winograd waste 4",
    "is matrix fp16", "is matrix fp32", "is matrix tf32", "is matrix 8 bit", "log steps",
)  # fmt: skip
_DATA = (
    "read bytes an element", "written bytes an element", "turned reads", "channels last",
    "sliced reads", "expanded reads", "casts of activations", "row length", "short rows",
    "rows aligned", "log positions", "positions aligned",
    "reads over writes", "inputs", "outputs", "constant inputs", "window area",
)  # fmt: skip
_FUSED = (
    "members", "pointwise members", "curved members", "norm members", "reduction members",
    "softmax members", "movement members", "gather members",
)  # fmt: skip
_AROUND = (*(kind.value for kind in _KINDS), "batch norm", "depthwise", "fp32", "turned reads",
           "log channels")  # fmt: skip

CONTEXT: tuple[str, ...] = (
    *(f"kind {kind.value}" for kind in _KINDS),
    *(f"operator {name}" for name in _OPERATORS),
    *_SHAPE,
    *_DATA,
    *_FUSED,
    *(f"before: {name}" for name in _AROUND),
    "is first",
)  # fmt: skip
"""Names of the columns; a weights folder is refused where its own differ."""

_OWN = len(CONTEXT) - len(_AROUND) - 1
_CURVED = frozenset(op for name in ("gelu", "sigmoid", "power", "hard") for op in _OPERATORS[name])
_SIMPLE = frozenset(
    op for name in ("rectified", "sum", "product", "batch norm") for op in _OPERATORS[name]
)
_NORMS = frozenset({"LayerNormalization", "GroupNormalization", "InstanceNormalization"})
_REDUCTIONS = frozenset({"ReduceMean", "ReduceSum", "ReduceL2", "ReduceMax", "GlobalAveragePool"})
_KIND_INDEX = {kind: i for i, kind in enumerate(_KINDS)}
# What a kernel tells those behind it.
_TOLD = [
    CONTEXT.index(name)
    for name in (
        *(f"kind {kind.value}" for kind in _KINDS), "operator batch norm", "depthwise",
        "written bytes an element", "turned reads", "log n",
    )
]  # fmt: skip


SLICED, EXPANDED = 1, 2  # how a view shows its tensor
Order = tuple[int, ...]
"""The axes of a tensor from the outermost in memory to the innermost; empty: as they are told."""


def context_of(graph: Graph, rows: Sequence[Row], *, layout: str = "nchw") -> Array:
    """Return the context of each kernel: [kernels, len(CONTEXT)].

    `layout` is the memory format of the images that come in. Time O(nodes + edges).
    """
    made = np.zeros((len(rows), len(CONTEXT)))
    if not rows:
        return made
    views = _see(graph, rows, layout)
    edges: list[tuple[int, int]] = []
    for k, row in enumerate(rows):
        reads = _reads(graph, row, k, views)
        made[k, :_OWN] = _own(graph, row, reads)
        edges += [(k, read.maker) for read in reads if read.maker >= 0 and read.maker != k]
    told = made[:, _TOLD]
    at, before = np.array(edges, dtype=np.int64).reshape(len(edges), 2).T
    number = np.bincount(at, minlength=len(rows))
    sums = np.zeros((len(rows), len(_AROUND)))
    np.add.at(sums, at, told[before])
    made[:, _OWN:-1] = sums / np.maximum(number, 1)[:, None]
    made[:, -1] = number == 0
    return made


def bare_context(kernels: Sequence[NodeWork]) -> Array:
    """Return the context of kernels that were measured alone, with no graph around them."""
    made = np.zeros((len(kernels), len(CONTEXT)))
    for k, kernel in enumerate(kernels):
        made[k, :_OWN] = _columns(kernel, None, None, (), constants=kernel.work.weight_bytes > 0)
    made[:, -1] = 1.0
    return made


@dataclass(frozen=True, slots=True)
class _Read:
    """An activation that a kernel reads: its tensor, how a view shows it, the order of its axes in
    memory, and the kernel that makes it, -1 for none."""

    tensor: Tensor
    shown: int
    order: Order
    maker: int

    @property
    def is_turned(self) -> bool:
        """True where the last axis is not the innermost in memory."""
        return bool(self.order) and self.order[-1] != len(self.order) - 1


@dataclass(slots=True)
class _Views:
    """By name of tensor: the kernel that makes it, how a view shows it, its order in memory."""

    maker: dict[str, int]
    shown: dict[str, int]
    order: dict[str, Order]


def _see(graph: Graph, rows: Sequence[Row], layout: str) -> _Views:
    """Return who makes what, views seen through; those of bodies are not looked into."""
    kernel_of: dict[int, int] = {}
    for k, row in enumerate(rows):
        if row.number >= 0:
            for i in row.nodes:
                kernel_of.setdefault(i, k)
    views = _Views({}, {}, {})
    is_last = layout == "nhwc"
    if is_last:
        for name in graph.inputs:
            tensor = graph.tensors.get(name)
            if tensor is not None and tensor.shape is not None and len(tensor.shape) == 4:
                views.order[name] = CHANNELS_LAST
    for i, node in enumerate(graph.nodes):
        k = kernel_of.get(i, -1)
        source = node.inputs[0] if node.inputs else ""
        is_view = k < 0 and source not in graph.constants
        shown = views.shown.get(source, 0) | _shows(node) if is_view else 0
        order = _order(graph, node, views, is_view=is_view or node.op_type == "Transpose",
                       channels_last=is_last)  # fmt: skip
        for name in node.outputs:
            views.maker[name] = views.maker.get(source, -1) if is_view else k
            if shown:
                views.shown[name] = shown
            if order:
                views.order[name] = order
    return views


CHANNELS_LAST: Order = (0, 2, 3, 1)
# They give what they make in the order of what they read.
_KEEPERS = (
    frozenset(
        {"BatchNormalization", "Concat", "Slice", "Pad", "Cast", "Identity", "Resize", "Dropout"}
    )
    | {
        op
        for name in ("rectified", "hard", "gelu", "sigmoid", "power", "sum", "product")
        for op in _OPERATORS[name]
    }
    | {"GlobalAveragePool", "AveragePool", "MaxPool", "addcmul"}
)


def _order(
    graph: Graph, node: Node, views: _Views, *, is_view: bool, channels_last: bool
) -> Order:
    """Return the order in memory of what a node makes: PyTorch's rules for strides.

    A view keeps the bytes where they are; convolutions give channels last where input or weights
    have them last; what runs element by element follows its first operand of full rank; norms,
    softmax and products give plain order (PyTorch documentation, "Channels Last Memory Format").
    """
    made = graph.tensors.get(node.outputs[0]) if node.outputs else None
    if made is None or made.shape is None or not node.inputs:
        return ()
    rank = len(made.shape)
    source = views.order.get(node.inputs[0], ())
    if node.op_type == "Transpose" and is_view:
        perm = _integers(node, "perm")
        if len(perm) != rank:
            return ()
        source = source or tuple(range(rank))
        place = {axis: new for new, axis in enumerate(perm)}
        order = tuple(place[axis] for axis in source)
        return () if order == tuple(range(rank)) else order
    if node.op_type == "Conv":
        # a part of the channels is neither order: it is copied to the plain one
        is_last = source == CHANNELS_LAST and not views.shown.get(node.inputs[0], 0) & SLICED
        return CHANNELS_LAST if rank == 4 and (channels_last or is_last) else ()
    if is_view:
        return _reshaped(graph, node, source) if source else ()
    if node.op_type not in _KEEPERS:
        return ()
    for name in node.inputs:
        tensor = graph.tensors.get(name)
        if name in graph.constants or tensor is None or tensor.shape is None:
            continue
        if len(tensor.shape) == rank:
            return views.order.get(name, ())
    return ()


def _reshaped(graph: Graph, node: Node, source: Order) -> Order:
    """Return the order of a view that has other axes: known where only trailing axes are joined,
    as images to rows of positions, or where none change."""
    before, after = graph.tensors.get(node.inputs[0]), graph.tensors.get(node.outputs[0])
    if before is None or after is None or before.shape is None or after.shape is None:
        return ()
    if len(before.shape) == len(after.shape):
        return source
    if source == CHANNELS_LAST and len(after.shape) == 3 and before.shape[:2] == after.shape[:2]:
        return (0, 2, 1)
    return ()


def _shows(node: Node) -> int:
    if node.op_type in ("Slice", "Split"):
        return SLICED
    return EXPANDED if node.op_type == "Expand" else 0


def _reads(graph: Graph, row: Row, k: int, views: _Views) -> list[_Read]:
    found: dict[str, _Read] = {}
    if row.number < 0:
        return []
    for i in row.nodes:
        for name in graph.nodes[i].inputs:
            tensor = graph.tensors.get(name)
            if name and tensor is not None and name not in graph.constants:
                maker = views.maker.get(name, -1)
                if maker != k:
                    order = views.order.get(name, ())
                    found[name] = _Read(tensor, views.shown.get(name, 0), order, maker)
    return list(found.values())


def _own(graph: Graph, row: Row, reads: Sequence[_Read]) -> list[float]:
    its = [graph.nodes[i] for i in row.nodes] if row.number >= 0 else []
    anchor = next((node for node in its if node.name == row.kernel.name), its[0] if its else None)
    constants = row.kernel.work.weight_bytes > 0
    return _columns(row.kernel, graph, anchor, its, constants=constants, reads=reads)


def _columns(
    kernel: NodeWork, graph: Graph | None, anchor: Node | None, its: Sequence[Node], *,
    constants: bool, reads: Sequence[_Read] = (),
) -> list[float]:  # fmt: skip
    kinds = [0.0] * len(_KINDS)
    kinds[_KIND_INDEX[kernel.kind]] = 1.0
    operators = [0.0] * len(_OPERATORS)
    for op in {node.op_type for node in its} | {kernel.op_type}:
        if op in _OPERATOR_INDEX:
            operators[_OPERATOR_INDEX[op]] = 1.0
    return [
        *kinds,
        *operators,
        *_shape(kernel, graph, anchor, constants=constants),
        *_data(kernel, graph, anchor, its, reads),
        *_fused(its),
    ]


def _log(value: float) -> float:
    return min(math.log2(max(value, 1.0)) / 12.0, 1.5)


def _aligned(size: int) -> float:
    return math.log2(math.gcd(int(size), 64)) / 6.0 if size > 0 else 1.0


def _shape(
    kernel: NodeWork, graph: Graph | None, anchor: Node | None, *, constants: bool
) -> list[float]:
    seen = kernel.contraction
    arithmetic = [
        float(kernel.dtype in (DType.FP16, DType.BF16)), float(kernel.dtype is DType.FP32),
        float(kernel.dtype is DType.TF32), float(kernel.dtype.bits == 8), _log(kernel.steps),
    ]  # fmt: skip
    if seen is None or kernel.kind not in _MATRIX:
        return [0.0] * (len(_SHAPE) - 5) + [0.0] * 4 + arithmetic[-1:]
    area, longest, shortest = 1, 1, 1
    stride = dilation = 1
    group_width = 0
    if kernel.kind is Kind.CONV and anchor is not None:
        sides = _integers(anchor, "kernel_shape")
        area, longest, shortest = math.prod(sides), max(sides, default=1), min(sides, default=1)
        stride = max(_integers(anchor, "strides"), default=1)
        dilation = max(_integers(anchor, "dilations"), default=1)
    channels = seen.k / max(area, 1)
    grouped = kernel.kind is Kind.CONV and seen.batch > 1
    depthwise = grouped and seen.n == 1 and channels <= 1
    if grouped:
        group_width = seen.n
    # rows of a product of activations do not follow the batch, those of a layer's do
    m = seen.m if kernel.kind is Kind.ATTENTION or (
        kernel.kind is Kind.MATMUL and not constants) else 0  # fmt: skip
    width = seen.batch if depthwise else seen.n
    depth = seen.batch if depthwise else seen.k
    return [
        float(constants), float(depthwise), float(grouped and not depthwise),
        float(kernel.kind is Kind.CONV and not grouped and channels <= 4),
        float(kernel.kind is Kind.CONV and area == 1), math.log2(area) / 6.0,
        float(depthwise and area >= 25), float(longest != shortest), math.log2(stride) / 2.0,
        float(dilation > 1), _log(width), _log(depth), max(0.0, 1 - width / 64),
        max(0.0, 1 - depth / 64), _log(m), _aligned(width),
        _aligned(depth if area == 1 else int(channels)), _aligned(m) if m else 1.0,
        float(width % 8 != 0), float(depth % 8 != 0), _log(group_width) if grouped else 0.0,
        *_attention(kernel, graph, anchor), *_winograd_waste(kernel, graph, anchor), *arithmetic,
    ]  # fmt: skip


def _attention(
    kernel: NodeWork, graph: Graph | None, anchor: Node | None
) -> tuple[float, float, float]:
    """Return whether attention has a mask or bias, whether heads lie in more than one axis, and
    whether only earlier positions are seen: fused kernels take neither all masks nor more than
    four axes, and skip what is never seen."""
    if kernel.kind is not Kind.ATTENTION or graph is None or anchor is None:
        return 0.0, 0.0, 0.0
    tensor = graph.tensors.get(anchor.inputs[0])
    rank = 0 if tensor is None or tensor.shape is None else len(tensor.shape)
    is_masked = len(anchor.inputs) > 3 and bool(anchor.inputs[3])
    return float(is_masked), float(rank > 4), float(bool(anchor.attrs.get("is_causal", 0)))


def _winograd_waste(
    kernel: NodeWork, graph: Graph | None, anchor: Node | None
) -> tuple[float, float]:
    """Return what padding of an image to tiles of 2 and of 4 adds to a convolution that Winograd's
    algorithm can take: 3x3, stride 1 (Lavin and Gray, arXiv 1509.09308); 0 where it cannot."""
    if kernel.op_type != "Conv" or graph is None or anchor is None:
        return 0.0, 0.0
    steps = (*_integers(anchor, "strides"), *_integers(anchor, "dilations"))
    made = graph.tensors.get(anchor.outputs[0])
    if (
        _integers(anchor, "kernel_shape") != (3, 3) or any(step != 1 for step in steps)
        or made is None or made.shape is None or len(made.shape) != 4
    ):  # fmt: skip
        return 0.0, 0.0
    height, width = (max(side, 1) for side in made.shape[2:])
    two, four = (
        math.ceil(height / tile) * math.ceil(width / tile) * tile**2 / (height * width) - 1
        for tile in (2, 4)
    )
    return min(two, 3.0), min(four, 3.0)


def _integers(node: Node, name: str) -> tuple[int, ...]:
    value = node.attrs.get(name, ())
    return tuple(int(each) for each in value) if isinstance(value, tuple) else ()


def _data(
    kernel: NodeWork, graph: Graph | None, anchor: Node | None, its: Sequence[Node],
    reads: Sequence[_Read],
) -> list[float]:  # fmt: skip
    if graph is None or anchor is None:
        element = kernel.dtype.bits / 32
        return [element, element, 0, 0, 0, 0, 0, 0.5, 0, 1, 0, 1, 0.5, 0.25, 0.25, 0, 0]
    sizes = [read.tensor.size_bytes for read in reads]
    total = max(sum(sizes), 1)
    elements = max(sum(read.tensor.elements for read in reads), 1)

    def part(shows: Callable[[_Read], object]) -> float:
        return sum(s for s, read in zip(sizes, reads, strict=True) if shows(read)) / total

    made = graph.tensors.get(its[-1].outputs[0]) if its[-1].outputs else None
    row = _row_length(graph, anchor)
    positions = math.prod(made.shape[2:]) if made and made.shape and len(made.shape) == 4 else 1
    written = kernel.work.write_bytes
    fixed = sum(1 for node in its for name in node.inputs if name in graph.constants)
    return [
        total / elements / 4, made.dtype.bits / 32 if made is not None else 1.0,
        part(lambda read: read.is_turned), part(lambda read: read.order == CHANNELS_LAST),
        part(lambda read: read.shown & SLICED), part(lambda read: read.shown & EXPANDED),
        cast_bytes(kernel, reads, made) / total,
        _log(row), max(0.0, 1 - row / 256), _aligned(row), _log(positions), _aligned(positions),
        kernel.work.read_bytes / max(kernel.work.read_bytes + written, 1),
        len(reads) / 4, sum(len(node.outputs) for node in its[-1:]) / 4, min(fixed, 8) / 4,
        math.log2(max(math.prod(_integers(anchor, "kernel_shape")), 1)) / 6.0
        if kernel.kind is Kind.POOL else 0.0,
    ]  # fmt: skip


def cast_bytes(kernel: NodeWork, reads: Sequence[_Read], made: Tensor | None) -> float:
    """Return the bytes that casts of what a kernel reads move where types are mixed: a product
    that computes in 16 bits of fp32 inputs, an operator in fp32 of 16-bit ones."""
    if kernel.kind in _MATRIX:
        wanted = kernel.dtype.bits
        if wanted != 16:
            return 0.0
    elif kernel.kind in (Kind.NORM, Kind.SOFTMAX, Kind.REDUCTION) and made is not None:
        wanted = made.dtype.bits
    else:
        return 0.0
    floats = [read.tensor for read in reads if read.tensor.dtype.is_float]
    if wanted == 32 and any(tensor.dtype.bits == 32 for tensor in floats):
        return 0.0
    return sum(t.elements * (t.dtype.bits + wanted) / 8 for t in floats if t.dtype.bits != wanted)


def _row_length(graph: Graph, anchor: Node) -> int:
    """Return the length of the last axis of what a kernel reads."""
    tensor = graph.tensors.get(anchor.inputs[0]) if anchor.inputs else None
    if tensor is None or not tensor.shape or len(tensor.shape) < 2:
        return 1
    return tensor.shape[-1]


def _fused(its: Sequence[Node]) -> list[float]:
    ops = [node.op_type for node in its]

    def count(names: Collection[str]) -> float:
        return min(sum(op in names for op in ops), 16) / 4

    return [
        math.log2(max(len(ops), 1)) / 4, count(_SIMPLE), count(_CURVED), count(_NORMS),
        count(_REDUCTIONS), count(("Softmax", "LogSoftmax")),
        count(("Transpose", "Reshape", "Slice", "Split", "Concat", "Expand")),
        count(("Gather", "GatherND", "Pad", "roll", "Resize")),
    ]  # fmt: skip
