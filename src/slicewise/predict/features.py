"""What a calibrated time is a sum over: the class of each kernel and its features on a device.

    time of a kernel = sum over features f of theta[class, f] * x[f](kernel, device)

Every feature is a time at the rates of the device (or the roofline's own answer), none falls as
the work grows, and no theta is negative: more work of a class is never faster. A class is read
off what a size does not change (the operator, whether a factor is constant, kernel 1x1 or not,
groups), so that a larger kernel stays in its class. Nothing is fitted or loaded here.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from slicewise.core.cost import Kind
from slicewise.core.device import Device
from slicewise.core.graph import Graph, Node
from slicewise.predict.kernels import Array, Indices, KernelTable, KernelTimes, Row, UnitCosts

# What a kernel is charged for. `roofline`: the uncalibrated answer. `matrix`: multiply-adds;
# `blocked`: these with the output channels padded to whole vectors; `vector`: other arithmetic;
# `activations`: their bytes, `beyond` and `spilled` those that the inner and the last cache cannot
# hold; `weights`, `evicted`: bytes of weights, and those that the next run finds no longer in the
# cache; `unrolled`: the left side of the product, a convolution's input as a matrix; `products`: a
# constant for each product of a batch, each head, each group; `launch`: a constant. Chosen by what
# single operators follow on an AMD EPYC (Zen 4). onnxruntime 1.32: convolutions within 3 to 7 % in
# the median, pointwise and movement within 25 %. PyTorch 2.13: convolutions and products within
# 14 %, depthwise 21 %; a convolution of many groups without a window takes 5 us a group.
FEATURES = (
    "roofline", "matrix", "blocked", "vector", "activations", "beyond", "spilled", "weights",
    "evicted", "unrolled", "products", "launch",
)  # fmt: skip
ROOFLINE = FEATURES.index("roofline")
LAUNCH = FEATURES.index("launch")
# A launch, or one product of a batch, is counted in these seconds, so that its theta is of the
# order of 1 like the others'.
LAUNCH_UNIT_S = 5e-6
# Floats in a vector of AVX-512, the block of channels in onnxruntime's and oneDNN's layouts.
VECTOR = 16
# Second-level cache of one core of a current server: 1 MiB on Zen 4, 1 to 2 MiB on Intel.
INNER_CACHE_BYTES = 2**20
_FLOAT_BYTES = 4

# Pointwise operators of which one element costs about the same.
_POINTWISE_CLASS = {
    name: of_class
    for of_class, names in (
        ("rectified", ("Relu", "LeakyRelu", "PRelu", "ThresholdedRelu")),
        ("clipped", ("Clip", "HardSwish", "HardSigmoid", "Min", "Max")),
        ("gelu", ("Gelu", "FastGelu", "BiasGelu", "Erf")),
        ("curved", (
            "Exp", "Log", "Sigmoid", "Tanh", "QuickGelu", "Swish", "Silu", "Softplus", "Mish",
            "Elu", "Selu", "Celu", "Sin", "Cos", "Pow",
        )),
    )
    for name in names
}  # fmt: skip
_COPIES = frozenset({"Concat", "Split", "Slice", "Pad", "Expand", "Tile", "Identity", "Reshape"})

# Kind -> the classes that it is refined into; the first is that of what tells nothing more.
CLASSES_OF: Mapping[Kind, tuple[str, ...]] = {
    Kind.CONV: ("dense", "pointwise", "strided", "depthwise", "grouped", "image", "transposed"),
    Kind.MATMUL: ("weights", "products"),
    Kind.NORM: ("rows", "batch", "groups"),
    Kind.ELEMENTWISE: ("plain", "rectified", "clipped", "gelu", "curved"),
    Kind.MOVEMENT: ("moved", "copied"),
    Kind.POOL: ("windows", "global"),
}
CLASSES: tuple[tuple[Kind, str], ...] = tuple(
    (kind, name) for kind in Kind for name in CLASSES_OF.get(kind, ("",))
)
CLASS_NAMES = tuple(f"{kind.value}/{name}" if name else kind.value for kind, name in CLASSES)
_INDEX = {pair: i for i, pair in enumerate(CLASSES)}
_FIRST = {kind: _INDEX[kind, CLASSES_OF.get(kind, ("",))[0]] for kind in Kind}
KIND_OF_CLASS: Indices = np.array([tuple(Kind).index(kind) for kind, _ in CLASSES])


def classify(graph: Graph, rows: Sequence[Row]) -> Indices:
    """Return the class of each kernel, an index into `CLASSES`.

    A kernel inside a body is of the first class of its kind: its node is not at hand.
    """
    return np.array([_class_of(graph, row) for row in rows], dtype=np.int64)


def _class_of(graph: Graph, row: Row) -> int:
    kind = row.kernel.kind
    if kind not in CLASSES_OF or row.number < 0:
        return _FIRST[kind]
    node = _anchor(graph, row)
    if node is None:
        return _FIRST[kind]
    return _INDEX[kind, _NAMES[kind](graph, node, row)]


def _anchor(graph: Graph, row: Row) -> Node | None:
    """Return the node that the others of the kernel are fused to."""
    if len(row.nodes) == 1:
        return graph.nodes[row.nodes[0]]
    its = (graph.nodes[i] for i in row.nodes)
    return next((node for node in its if node.name == row.kernel.name), None)


def _convolution(graph: Graph, node: Node, row: Row) -> str:
    shape = None
    if len(node.inputs) > 1 and node.inputs[1] in graph.tensors:
        shape = graph.tensors[node.inputs[1]].shape
    if "Transpose" in node.op_type:
        return "transposed"
    if shape is None or len(shape) < 3 or row.kernel.contraction is None:
        return "dense"
    if row.kernel.contraction.batch > 1:
        return "depthwise" if shape[1] == 1 == row.kernel.contraction.n else "grouped"
    if shape[1] <= 4:
        return "image"
    if any(side != 1 for side in shape[2:]):
        return "dense"
    strides = node.attrs.get("strides", ())
    is_strided = isinstance(strides, tuple) and any(step != 1 for step in strides)
    return "strided" if is_strided else "pointwise"


def _product(graph: Graph, node: Node, row: Row) -> str:
    return "weights" if any(name in graph.constants for name in node.inputs[:2]) else "products"


def _pointwise(graph: Graph, node: Node, row: Row) -> str:
    return _POINTWISE_CLASS.get(node.op_type, "plain")


def _norm(graph: Graph, node: Node, row: Row) -> str:
    if node.op_type == "BatchNormalization":
        return "batch"
    return "groups" if node.op_type.startswith(("Instance", "Group")) else "rows"


def _movement(graph: Graph, node: Node, row: Row) -> str:
    return "copied" if node.op_type in _COPIES else "moved"


def _pool(graph: Graph, node: Node, row: Row) -> str:
    return "global" if node.op_type.startswith("Global") else "windows"


_NAMES = {
    Kind.CONV: _convolution,
    Kind.MATMUL: _product,
    Kind.ELEMENTWISE: _pointwise,
    Kind.NORM: _norm,
    Kind.MOVEMENT: _movement,
    Kind.POOL: _pool,
}


def features(table: KernelTable, costs: UnitCosts, times: KernelTimes, device: Device) -> Array:
    """Return the features of each kernel on a whole device, in seconds: [kernels, features]."""
    bandwidth = device.memory_bandwidth_bytes_per_s
    unrolled, products = np.zeros(len(table.kind)), np.zeros(len(table.kind))
    blocked = costs.matrix_s.copy()
    if len(table.shapes):
        batch, m, n, k = table.shapes.T
        unrolled[table.shaped] = batch * m * k * _FLOAT_BYTES / bandwidth
        products[table.shaped] = LAUNCH_UNIT_S * batch
        blocked[table.shaped] *= np.ceil(n / VECTOR) * VECTOR / n
    # What the inner cache of the units cannot take, and what the last cannot.
    beyond = np.maximum(table.activation_bytes - INNER_CACHE_BYTES * device.compute_units, 0.0)
    spilled = np.maximum(table.activation_bytes - device.cache_bytes / 2, 0.0)
    # Weights that stay in the cache from one run to the next are not read from memory.
    total = float(np.sum(table.weight_bytes))
    evicted = max(0.0, 1.0 - device.cache_bytes / total) if total > 0 else 0.0
    return np.stack(
        [
            times.launched_s,
            costs.matrix_s,
            blocked,
            costs.vector_s,
            costs.activation_s,
            beyond / bandwidth,
            spilled / bandwidth,
            costs.weight_s,
            costs.weight_s * evicted,
            unrolled,
            products,
            LAUNCH_UNIT_S * costs.steps,
        ],
        axis=1,
    )
