"""Which nodes of the model a kernel of TVM computes, and what it is predicted to take.

TVM fuses and renames; a kernel's name holds its operators ('fused_matmul_add2_gelu'). A node
belongs to a kernel where its kind is among these and the shapes of its operands and its result
fit, axes in any order. The time of nodes that fit nowhere goes to kernels that got none, by the
bytes that these move.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slicewise.core.device import Device
from slicewise.core.graph import Graph, Node
from slicewise.core.notes import Note
from slicewise.core.precision import DType
from slicewise.tune.backends.tvm.relax import Kernel

# TVM's operator, as kernels are named after it -> ONNX operators that become it.
_OPERATORS: Mapping[str, tuple[str, ...]] = {
    "matmul": ("MatMul", "Gemm", "Attention", "MatMulInteger"),
    "conv1d": ("Conv",), "conv2d": ("Conv",), "conv3d": ("Conv",),
    "group_conv2d": ("Conv",), "depthwise_conv2d": ("Conv",),
    "conv1d_transpose": ("ConvTranspose",), "conv2d_transpose": ("ConvTranspose",),
    "layer_norm": ("LayerNormalization",), "rms_norm": ("RMSNormalization",),
    "group_norm": ("GroupNormalization",), "instance_norm": ("InstanceNormalization",),
    "batch_norm": ("BatchNormalization",),
    "softmax": ("Softmax", "Attention"), "log_softmax": ("LogSoftmax",),
    "max_pool2d": ("MaxPool",), "avg_pool2d": ("AveragePool", "GlobalAveragePool"),
    "adaptive_avg_pool2d": ("GlobalAveragePool",),
    "add": ("Add",), "subtract": ("Sub",), "multiply": ("Mul",), "divide": ("Div",),
    "power": ("Pow",), "sqrt": ("Sqrt",), "exp": ("Exp",), "log": ("Log",), "erf": ("Erf",),
    "relu": ("Relu",), "leaky_relu": ("LeakyRelu",), "sigmoid": ("Sigmoid",), "tanh": ("Tanh",),
    "gelu": ("Gelu",), "gelu_tanh": ("Gelu",), "silu": ("Swish",), "clip": ("Clip",),
    "maximum": ("Max",), "minimum": ("Min",), "negative": ("Neg",), "abs": ("Abs",),
    "mean": ("ReduceMean",), "sum": ("ReduceSum",), "max": ("ReduceMax",), "min": ("ReduceMin",),
    "transpose": ("Transpose",), "reshape": ("Reshape", "Flatten"), "concatenate": ("Concat",),
    "strided_slice": ("Slice",), "split": ("Split",), "take": ("Gather",), "pad": ("Pad",),
    "where": ("Where",), "cast": ("Cast",), "resize2d": ("Resize",), "cumsum": ("CumSum",),
    "tir_isnan": ("IsNaN",), "expand_dims": ("Unsqueeze",), "squeeze": ("Squeeze",),
    "broadcast_to": ("Expand",), "topk": ("TopK",), "argmax": ("ArgMax",),
}  # fmt: skip
_LONGEST = max(name.count("_") for name in _OPERATORS) + 1
# Kinds whose cost is that of their arithmetic: a kernel that holds one is weighed by it first.
_HEAVY = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Attention"})
_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4}
_Axes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Weight:
    """What is known of a kernel: the model's nodes in it, their kinds, and predicted ms of all of
    its occurrences together."""

    nodes: tuple[str, ...]
    op_types: tuple[str, ...]
    weight_ms: float


def operators_of(kernel_name: str) -> tuple[str, ...]:
    """Return TVM's operators in the name of a kernel; what is not known stays as it is written.

    >>> operators_of("fused_layer_norm1_matmul2_add")
    ('layer_norm', 'matmul', 'add')
    """
    words = kernel_name.removeprefix("fused_").split("_")
    found = []
    place = 0
    while place < len(words):
        for length in range(min(_LONGEST, len(words) - place), 0, -1):
            joined = "_".join(words[place : place + length])
            plain = joined if joined in _OPERATORS else re.sub(r"\d+$", "", joined)
            if plain in _OPERATORS or length == 1:
                found.append(plain or joined)
                place += length
                break
    return tuple(found)


def weigh(
    kernels: Sequence[Kernel], graph: Graph, node_ms: Mapping[str, float], device: Device
) -> tuple[tuple[Weight, ...], tuple[Note, ...]]:
    """Return the weight of each kernel, in order, and a note where some could only be estimated.

    The weights add up to the sum of `node_ms` unless every kernel has nodes of its own and some
    time is left; without predictions each is a roofline of its arguments' bytes.
    """
    owned = _owned(kernels, graph)
    weights = [sum(node_ms.get(node.name, 0.0) for node in nodes) for nodes in owned]
    bare = [place for place, weight in enumerate(weights) if weight <= 0]
    taken = {node.name for nodes in owned for node in nodes}
    left_ms = sum(ms for name, ms in node_ms.items() if name not in taken)
    moved_s = {place: _seconds(kernels[place], device) for place in bare}
    total_s = sum(moved_s.values())
    for place in bare:
        roofline_ms = moved_s[place] * 1e3
        if left_ms > 0 and total_s > 0:
            weights[place] = left_ms * moved_s[place] / total_s
        else:
            weights[place] = roofline_ms
    notes: tuple[Note, ...] = ()
    if bare:
        named = ", ".join(kernels[place].name for place in bare[:3])
        more = f" and {len(bare) - 3} more" if len(bare) > 3 else ""
        text = (
            f"{len(bare)} of {len(kernels)} operators are weighed by the bytes they move, since"
            f" no node of the model was found for them: {named}{more}"
        )
        notes = (Note("tune-weight-estimated", text),)
    made = tuple(
        Weight(tuple(node.name for node in nodes), _kinds(kernel, nodes), weight)
        for kernel, nodes, weight in zip(kernels, owned, weights, strict=True)
    )
    return made, notes


def _owned(kernels: Sequence[Kernel], graph: Graph) -> list[list[Node]]:
    """Return the nodes of each kernel; a node is in one at most.

    Heavy kinds first, then others; strictly fitting ones before those of which only the constants
    fit (their other operands come out of nodes that are fused into the kernel).
    """
    owned: list[list[Node]] = [[] for _ in kernels]
    free = {node.name: node for node in graph.nodes}
    for is_heavy in (True, False):
        for is_strict in (True, False):
            for place, kernel in enumerate(kernels):
                wanted = _wanted(kernel, owned[place], is_heavy=is_heavy)
                fits = _Fit(kernel, graph, is_strict=is_strict)
                for node in list(free.values()):
                    if wanted.get(node.op_type, 0) > 0 and fits(node):
                        _spend(wanted, node.op_type, kernel)
                        owned[place].append(free.pop(node.name))
    return owned


def _wanted(kernel: Kernel, has: Sequence[Node], *, is_heavy: bool) -> Counter[str]:
    """Return how many more nodes of each kind a kernel can have."""
    wanted: Counter[str] = Counter()
    for operator in operators_of(kernel.name):
        for kind in _OPERATORS.get(operator, ()):
            if (kind in _HEAVY) == is_heavy:
                wanted[kind] += kernel.count
    for node in has:
        if wanted.get(node.op_type, 0) > 0:
            _spend(wanted, node.op_type, kernel)
    return wanted


def _spend(wanted: Counter[str], kind: str, kernel: Kernel) -> None:
    """Take one occurrence away, from `kind` and from the others that its operator stands for."""
    for operator in operators_of(kernel.name):
        kinds = _OPERATORS.get(operator, ())
        if kind in kinds:
            for each in kinds:
                if each in wanted:
                    wanted[each] -= 1
            return


@dataclass(slots=True)
class _Fit:
    """Whether a node's shapes are those of a kernel's arguments."""

    kernel: Kernel
    graph: Graph
    is_strict: bool

    def __call__(self, node: Node) -> bool:
        arguments = {_axes(shape) for shape, _ in self.kernel.arguments}
        result = self._shape(node.outputs[0]) if node.outputs else None
        if result is None:
            return False
        out = math.prod(self.kernel.arguments[-1][0])
        if math.prod(result) != out and (self.is_strict or _axes(result) not in arguments):
            return False
        for name in node.inputs:
            shape = self._shape(name) if name else None
            is_weight = name in self.graph.constants
            if shape is None or math.prod(shape) <= 1 or not (self.is_strict or is_weight):
                continue
            if _axes(shape) not in arguments:
                return False
        return True

    def _shape(self, name: str) -> tuple[int, ...] | None:
        tensor = self.graph.tensors.get(name)
        return None if tensor is None else tensor.shape


def _axes(shape: Sequence[int]) -> _Axes:
    """Return the axes of a shape in order of size, without those of one."""
    return tuple(sorted(size for size in shape if size != 1))


def _kinds(kernel: Kernel, nodes: Sequence[Node]) -> tuple[str, ...]:
    if nodes:
        return tuple(dict.fromkeys(node.op_type for node in nodes))
    operators = operators_of(kernel.name)
    return tuple(dict.fromkeys(_OPERATORS.get(name, (name,))[0] for name in operators))


def _seconds(kernel: Kernel, device: Device) -> float:
    """Return the roofline time of all occurrences: bytes of arguments over bandwidth, or FLOPs
    over the peak where that is more."""
    from tvm.s_tir.analysis import estimate_tir_flops

    moved = sum(math.prod(shape) * _BYTES.get(kind, 1) for shape, kind in kernel.arguments)
    seconds = moved / device.memory_bandwidth_bytes_per_s
    peak = device.matrix_flop_per_s(DType.FP32)
    if peak:
        seconds = max(seconds, float(estimate_tir_flops(kernel.module)) / peak)
    return seconds * kernel.count
