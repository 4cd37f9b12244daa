"""Finds the DequantizeLinear and QuantizeLinear nodes that engines run inside their kernels.

Engines take DequantizeLinear -> operator -> QuantizeLinear as one kernel that reads and writes
the quantised elements (ONNX Runtime documentation, Quantize ONNX models, on the QDQ format;
TensorRT developer guide, on processing of Q/DQ networks). Only wiring and kinds are looked at;
bytes are counted in `work.py`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from slicewise.core.cost import Kind
from slicewise.core.graph import Graph, Node, reads_of
from slicewise.core.notes import Note
from slicewise.core.precision import DType
from slicewise.graph.ops import operator

# Types of activations that matrix units take, with the arithmetic they are done in; other types
# (16 bits, int4) only save space.
NARROW_ARITHMETIC = {
    DType.INT8: DType.INT8,
    DType.UINT8: DType.INT8,
    DType.FP8: DType.FP8,
    DType.FP4: DType.FP4,
}
# Kinds with quantised kernels besides products; norms, softmax and sorts compute in floats.
_NARROW_KINDS = frozenset(
    {Kind.POOL, Kind.ELEMENTWISE, Kind.MOVEMENT, Kind.REDUCTION, Kind.VIEW}
)  # fmt: skip
# ONNX Runtime has the pair in its own domain as well (docs/ContribOperators.md).
_DOMAINS = frozenset({"", "com.microsoft"})
# What the saturation of a QuantizeLinear behind them does as well.
_CLAMPS = frozenset({"Relu", "Clip"})


@dataclass(frozen=True, slots=True)
class Fusion:
    """What becomes part of quantised kernels, by index of node.

    `inside`: nodes that are such kernels: they read `stored[name]` in place of a dequantised
    `name`, and write `written[name]` in place of a result `name`. `absorbed`: nodes that move
    nothing any more, DequantizeLinear, QuantizeLinear and the clamps between.
    """

    inside: frozenset[int] = frozenset()
    absorbed: frozenset[int] = frozenset()
    stored: Mapping[str, str] = field(default_factory=dict)
    written: Mapping[str, str] = field(default_factory=dict)

    def narrowed(self, node: Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the inputs and outputs of a node `inside` as its kernel reads and writes them."""
        return (
            tuple([self.stored.get(name, name) for name in node.inputs]),
            tuple([self.written.get(name, name) for name in node.outputs]),
        )


NO_FUSION = Fusion()


def fuse_quantised(
    graph: Graph,
    *,
    products: Collection[int],
    stored: Mapping[str, str],
    is_fixed: Callable[[str], bool],
) -> Fusion:
    """Return what engines fuse around the quantised values of one graph or body.

    `products`: indices of the contractions that compute in a narrow type. `stored`: dequantised
    values with what they were dequantised from, those of graphs around included. `is_fixed`: the
    value is a constant. A product reads narrow values whatever comes behind it; another operator
    is a quantised kernel only where its results are all quantised again. A result that is also
    read otherwise, or is an output, is kept as it is. Time O(nodes + edges).
    """
    wiring = _Wiring(graph)
    inside = set(products)
    written: dict[str, str] = {}
    absorbed: set[int] = set()
    for i, node in enumerate(graph.nodes):
        if i not in inside and not _is_narrow(node, stored, is_fixed):
            continue
        ends = [wiring.quantised(name) for name in node.outputs if name]
        if i not in inside and not (ends and all(ends)):
            continue
        inside.add(i)
        for end in filter(None, ends):
            written[end.value] = end.quantised
            absorbed.update(end.nodes)
    for i, node in enumerate(graph.nodes):
        if node.op_type == "DequantizeLinear" and node.outputs and node.outputs[0] in stored:
            readers = wiring.readers.get(node.outputs[0], ())
            if readers and inside.issuperset(readers) and node.outputs[0] not in wiring.outputs:
                absorbed.add(i)
    return Fusion(frozenset(inside), frozenset(absorbed), stored, written)


def fusion_notes(absorbed: Iterable[Node]) -> tuple[Note, ...]:
    """Return the Note on the nodes `absorbed` over a whole model, none where there are none."""
    names = [node.op_type for node in absorbed]
    read, write = names.count("DequantizeLinear"), names.count("QuantizeLinear")
    if not read and not write:
        return ()
    clamps = len(names) - read - write
    between = f" (and {clamps} Relu or Clip between)" if clamps else ""
    return (
        Note(
            "qdq-fused",
            f"{read} DequantizeLinear and {write} QuantizeLinear{between} are priced as part of"
            " the quantised kernels around them, as engines fuse them",
        ),
    )


def _is_narrow(node: Node, stored: Mapping[str, str], is_fixed: Callable[[str], bool]) -> bool:
    """True for an operator that has a quantised kernel and whose data are all dequantised."""
    row = operator(node.domain, node.op_type)
    if row is None or row.kind not in _NARROW_KINDS or row.is_bytes_only or node.bodies:
        return False
    given = [name for name in node.inputs if name]
    return bool(given) and given[0] in stored and all(n in stored or is_fixed(n) for n in given)


@dataclass(frozen=True, slots=True)
class _End:
    """A result, the quantised form in which it is kept, and the nodes that make that of it."""

    value: str
    quantised: str
    nodes: tuple[int, ...]


class _Wiring:
    """Who reads what in one graph; a node with bodies reads what they capture."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.outputs = frozenset(graph.outputs)
        self.readers: dict[str, list[int]] = {}
        for i, node in enumerate(graph.nodes):
            for name in dict.fromkeys(reads_of(node)):
                self.readers.setdefault(name, []).append(i)

    def quantised(self, value: str) -> _End | None:
        """Return what becomes of `value` if one QuantizeLinear to a narrow type alone reads it."""
        passed: list[int] = []
        name = value
        while True:
            readers = self.readers.get(name, ())
            if len(readers) != 1 or name in self.outputs:
                return None
            node = self.graph.nodes[readers[0]]
            if not node.inputs or node.inputs[0] != name or not node.outputs:
                return None
            passed.append(readers[0])
            name = node.outputs[0]
            if node.domain not in _DOMAINS:
                return None
            if node.op_type == "QuantizeLinear":
                tensor = self.graph.tensors.get(name)
                narrow = tensor is not None and tensor.dtype in NARROW_ARITHMETIC
                return _End(value, name, tuple(passed)) if narrow else None
            if node.op_type not in _CLAMPS or len(passed) > 1:
                return None
