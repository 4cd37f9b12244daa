"""Which values the inputs of a graph may have, so that no look-up leaves its table.

Every whole-number input is followed through the operators that hand its values on, up to where
they index something. Shapes and wiring are all it reads: a graph holds no values. Nothing is run.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from slicewise.core.graph import Graph, Node
from slicewise.core.measurement import InputSpec
from slicewise.core.precision import DType


class _Way(IntEnum):
    """How the values of an input reach a tensor."""

    AS_THEY_ARE = 0
    COMPUTED = 1  # moved by arithmetic with numbers that the graph does not hold


# Operators whose output holds values of some of their inputs, and which inputs those are
# (None: all). Reductions and comparisons are in neither table: what they give is bounded by the
# shape, or is no index at all.
_HANDED_ON: Mapping[str, tuple[int, ...] | None] = {
    **dict.fromkeys(
        ("Cast", "CastLike", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Slice", "Transpose",
         "Expand", "Flatten", "Tile", "Split", "Pad", "Gather", "GatherElements", "GatherND",
         "Abs", "DepthToSpace", "SpaceToDepth", "ReverseSequence", "Trilu", "Compress"),
        (0,),
    ),
    **dict.fromkeys(("Concat", "Max", "Min", "Clip", "SequenceConstruct"), None),
    "Where": (1, 2),
    "ScatterElements": (0, 2),
    "ScatterND": None,
    "ReduceMax": (0,),
    "ReduceMin": (0,),
}  # fmt: skip
_ARITHMETIC = frozenset(
    {"Add", "Sub", "Mul", "Div", "Neg", "Sum", "Pow", "CumSum", "ReduceSum", "BitShift", "Floor",
     "Ceil", "Round", "Sign", "BitwiseXor", "BitwiseOr", "BitwiseNot"}
)  # fmt: skip
# Places of quantised values: pixels and activations of 8 bits, of which every value is valid.
_QUANTISED = frozenset(
    {"DequantizeLinear", "ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"}
)
_INTEGERS = frozenset(
    {DType.INT64, DType.INT32, DType.INT16, DType.INT8, DType.UINT64, DType.UINT32, DType.UINT16,
     DType.UINT8}
)  # fmt: skip
_EIGHT_BITS = {DType.UINT8: (0, 256), DType.INT8: (-128, 128)}
# From here on a small whole number is a picture and not a mask or a list of ids.
_PICTURE_RANK = 4


@dataclass(slots=True)
class _Findings:
    """What was met on the way of the inputs: rows of tables, by input and way; single values."""

    rows: dict[str, dict[_Way, int]] = field(default_factory=dict)
    exact: dict[str, int] = field(default_factory=dict)
    quantised: set[str] = field(default_factory=set)

    def index(self, origins: Mapping[str, _Way], rows: int) -> None:
        for name, way in origins.items():
            found = self.rows.setdefault(name, {})
            found[way] = min(rows, found.get(way, rows))


_Origins = dict[str, dict[str, _Way]]  # tensor -> inputs whose values it holds


def input_specs(graph: Graph) -> tuple[InputSpec, ...]:
    """Return the valid values of every input of `graph`, in order.

    Ids are in [0, rows) of the smallest table that they index unchanged. Where they also index
    something after arithmetic (a position made by sums, a difference of coordinates) they are all
    1, which sums and differences of a mask of ones keep valid. Lengths of recurrent and attention
    operators are the whole length. Any other whole number is 1, as in a mask; 8-bit pictures and
    quantised activations have their full range. Time O(nodes x inputs).
    """
    origins: _Origins = {
        name: {name: _Way.AS_THEY_ARE}
        for name in graph.inputs
        if graph.tensors[name].dtype in _INTEGERS
    }
    found = _Findings()
    if origins:
        _follow(graph, origins, found)
    return tuple(_spec(graph, name, found) for name in graph.inputs)


def _spec(graph: Graph, name: str, found: _Findings) -> InputSpec:
    tensor = graph.tensors[name]
    shape = tensor.shape or ()
    if tensor.dtype not in _INTEGERS:
        return InputSpec(name, shape, tensor.dtype)
    low, high = _range(name, len(shape), tensor.dtype, found)
    return InputSpec(name, shape, tensor.dtype, low, high)


def _range(name: str, rank: int, dtype: DType, found: _Findings) -> tuple[int, int]:
    if name in found.exact:
        return found.exact[name], found.exact[name] + 1
    rows = found.rows.get(name, {})
    if _Way.COMPUTED in rows:
        return (1, 2) if min(rows.values()) > 1 else (0, 1)
    if _Way.AS_THEY_ARE in rows:
        return 0, max(1, min(rows[_Way.AS_THEY_ARE], _largest(dtype)))
    if dtype in _EIGHT_BITS and (name in found.quantised or rank >= _PICTURE_RANK):
        return _EIGHT_BITS[dtype]
    return 1, 2


def _largest(dtype: DType) -> int:
    """Return how many whole numbers from 0 up a type holds, sign aside."""
    return int(2 ** (dtype.bits - (0 if dtype.value.startswith("u") else 1)))


def _follow(graph: Graph, origins: _Origins, found: _Findings) -> None:
    """Add to `origins` where the values go in this graph, and to `found` what they index."""
    for node in graph.nodes:
        for body in node.bodies:
            inner = {**origins, **_entering(node, body, origins)}
            _follow(body, inner, found)
            for name, own in zip(reversed(node.outputs), reversed(body.outputs), strict=False):
                _join(origins, name, inner.get(own, {}))
        held = {i: origins[name] for i, name in enumerate(node.inputs) if origins.get(name)}
        if not held:
            continue
        for i, rows in _indexed(graph, node):
            found.index(held.get(i, {}), rows)
        for i, value in _lengths(graph, node):
            for name, way in held.get(i, {}).items():
                if way is _Way.AS_THEY_ARE:
                    found.exact.setdefault(name, value)
        if node.op_type in _QUANTISED:
            found.quantised.update(held.get(0, {}))
        _hand_on(node, held, origins)


def _hand_on(node: Node, held: Mapping[int, dict[str, _Way]], origins: _Origins) -> None:
    if node.op_type in _ARITHMETIC:
        moved = {name: _Way.COMPUTED for each in held.values() for name in each}
    elif node.op_type in _HANDED_ON:
        places = _HANDED_ON[node.op_type]
        moved = {}
        for i, each in held.items():
            if places is None or i in places:
                for name, way in each.items():
                    moved[name] = max(way, moved.get(name, way))
    else:
        return
    for output in node.outputs:
        _join(origins, output, moved)


def _join(origins: _Origins, tensor: str, more: Mapping[str, _Way]) -> None:
    if not tensor or not more:
        return
    known = origins.setdefault(tensor, {})
    for name, way in more.items():
        known[name] = max(way, known.get(name, way))


def _entering(node: Node, body: Graph, origins: _Origins) -> _Origins:
    """Return the origins of a body's own inputs; those of Loop and Scan stand in the same order
    as the node's (counter and condition of a Loop in front)."""
    pairs = zip(body.inputs, node.inputs, strict=False) if node.op_type != "If" else ()
    return {own: dict(origins[name]) for own, name in pairs if origins.get(name)}


# --- tables of what is indexed


def _indexed(graph: Graph, node: Node) -> Iterator[tuple[int, int]]:
    """Yield (place of the indices among the inputs, number of rows that they choose from)."""
    for place, table, axis in _TABLES.get(node.op_type, ()):
        yield place, _rows(graph, node, table, axis if axis is not None else _axis(node, 0))
    if node.op_type == "OneHot":
        yield 0, _rows_of(graph, node.outputs[0], _axis(node, -1))
    elif node.op_type == "GatherND" or (node.op_type == "ScatterND" and len(node.inputs) > 2):
        # torch gives one tensor of indices for each axis and does not tell which axis; with two
        # inputs its ScatterND copies into a place that no value tells
        for place in range(1, len(node.inputs)):
            yield place, _smallest(graph, node)


# Operator -> (place of the indices, place of the table, axis of its rows; None: the attribute).
_TABLES: Mapping[str, tuple[tuple[int, int, int | None], ...]] = {
    "Gather": ((1, 0, None),),
    "GatherElements": ((1, 0, None),),
    "ScatterElements": ((1, 0, None),),
    "embedding_bag": ((1, 0, 0),),  # torch.aten
    "EmbedLayerNormalization": ((0, 2, 0), (1, 4, 0)),  # com.microsoft: words, segments
}


def _lengths(graph: Graph, node: Node) -> Iterator[tuple[int, int]]:
    """Yield (place among the inputs, value) where an operator takes a length: all of it."""
    if node.op_type in ("LSTM", "GRU", "RNN") and len(node.inputs) > 4:
        yield 4, _rows(graph, node, 0, 1 if node.attrs.get("layout") else 0)
    elif node.op_type == "ReverseSequence":
        yield 1, _rows(graph, node, 0, _axis(node, 0, key="time_axis"))
    elif node.op_type == "GroupQueryAttention" and len(node.inputs) > 6:
        # com.microsoft: input 5 is the total length less one, 6 the total length; the cache of
        # keys, input 3, is [batch, heads, past, size]
        new = _rows(graph, node, 0, 1)
        past = _rows(graph, node, 3, 2) if node.inputs[3] else 0
        yield 5, past + new - 1
        yield 6, past + new


def _axis(node: Node, default: int, *, key: str = "axis") -> int:
    value = node.attrs.get(key, default)
    return value if isinstance(value, int) else default


def _rows(graph: Graph, node: Node, place: int, axis: int) -> int:
    return _rows_of(graph, node.inputs[place] if place < len(node.inputs) else "", axis)


def _rows_of(graph: Graph, tensor: str, axis: int) -> int:
    """Return the size of an axis; 1 where it is not known, since 0 is always a row."""
    known = graph.tensors.get(tensor)
    shape = known.shape if known is not None else None
    if not shape or not -len(shape) <= axis < len(shape):
        return 1
    return shape[axis]


def _smallest(graph: Graph, node: Node) -> int:
    known = graph.tensors.get(node.inputs[0])
    return min(known.shape) if known is not None and known.shape else 1
