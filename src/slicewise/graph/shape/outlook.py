"""What the readers of a value say about its axes: where the batch cannot be.

Items of a batch never mix, and a constant does not know how many there are. So an axis that is
summed over, normalised, convolved or cut apart, or that meets a constant of more than one
element, does not hold the batch. Values are followed through operators that keep their axes, at
the old batch, up to the next Reshape: there the batch may move. Changes nothing.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import onnx

from slicewise.graph.shape.facts import Contradiction, Fact, Op, Shape, Unknown, axis_of, words
from slicewise.graph.shape.layout import slice_parts
from slicewise.graph.shape.walk import Scope

# Values that one question follows at most: enough for an attention block and what surrounds it.
_FARTHEST = 64


@dataclass(frozen=True, slots=True)
class Passage:
    """What one reader says of the axes of its input: `barred` ones cannot hold the batch, the
    others go on as axes of its outputs where `onward` has them."""

    barred: frozenset[int] = frozenset()
    onward: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A reader at the old batch, the slot it reads a value at, and which slots are constant."""

    op: Op
    slot: int
    fixed: frozenset[int]

    @property
    def shape(self) -> Shape:
        return self.op.shape(self.slot)

    @property
    def rank(self) -> int:
        return len(self.shape)

    def axis(self, name: str, default: int) -> int:
        """An attribute that names an axis of the value."""
        return axis_of(self.op.integer(name, default), self.rank)

    def axes_but(self, barred: Iterable[int]) -> Passage:
        """A passage that keeps the axes where they are, those `barred` excepted."""
        out = frozenset(barred)
        return Passage(out, {k: k for k in range(self.rank) if k not in out})


Row = Callable[[_Reading], Passage]


class Outlook:
    """Answers, for the values of one graph, which axes cannot hold the batch."""

    def __init__(self, graph: onnx.GraphProto, before: Scope, opsets: Mapping[str, int]) -> None:
        self._before = before
        self._version = opsets.get("", 1)
        self._readers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        self._fixed = {tensor.name for tensor in graph.initializer}
        for node in graph.node:
            for slot, name in enumerate(node.input):
                if name:
                    self._readers.setdefault(name, []).append((node, slot))
            if self._fixed.issuperset(filter(None, node.input)):
                self._fixed.update(node.output)

    def barred(self, name: str, axes: Iterable[int]) -> frozenset[int]:
        """Return those of `axes` of the value `name` that cannot hold the batch."""
        asked = set(axes)
        found: set[int] = set()
        # a value, and which of the axes asked for each of its axes holds
        waiting = deque([(name, {axis: {axis} for axis in asked})])
        seen = {name}
        while waiting and found != asked and len(seen) < _FARTHEST:
            value, origin = waiting.popleft()
            for node, slot in self._readers.get(value, ()):
                passage = self._passage(node, slot, self._fixed)
                ahead: dict[int, set[int]] = {}
                for axis, held in origin.items():
                    if axis in passage.barred:
                        found |= held
                    if axis in passage.onward:
                        ahead.setdefault(passage.onward[axis], set()).update(held)
                for output in node.output if ahead else ():
                    if output and output not in seen:
                        seen.add(output)
                        waiting.append((output, ahead))
        return frozenset(found)

    def mixed(self, node: onnx.NodeProto, slot: int) -> frozenset[int]:
        """Return the axes of input `slot` whose elements `node` mixes."""
        if node.op_type not in _MIXING:
            return frozenset()
        return self._passage(node, slot, frozenset()).barred  # a constant mixes nothing

    def _passage(self, node: onnx.NodeProto, slot: int, fixed: Collection[str]) -> Passage:
        row = _ROWS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if row is None:
            return Passage()
        inputs: list[Fact | None] = [self._before.find(x) if x else None for x in node.input]
        constant = frozenset(k for k, x in enumerate(node.input) if x in fixed)
        try:
            return row(_Reading(Op(node, inputs, version=self._version), slot, constant))
        except (Unknown, Contradiction, IndexError):
            return Passage()  # nothing is known of this reader, so that it says nothing


def _elementwise(reading: _Reading) -> Passage:
    """Operands are aligned at their last axes; a constant bars the axes along which it varies."""
    op, rank = reading.op, reading.rank
    longest = max(len(op.shape(k)) for k in range(len(op.inputs)) if op.has(k))
    barred = {
        rank - back
        for k in reading.fixed
        for back, size in enumerate(reversed(op.shape(k)), 1)
        if size > 1 and back <= rank
    }
    return Passage(frozenset(barred), {k: k + longest - rank for k in range(rank)})


def _along(*names: tuple[str, int]) -> Row:
    """Mixes the axes that attributes name, and keeps all."""
    return lambda reading: reading.axes_but(reading.axis(*name) for name in names)


def _from(name: str, default: int) -> Row:
    """Mixes all axes from the one that an attribute names."""
    return lambda reading: reading.axes_but(range(reading.axis(name, default), reading.rank))


def _behind(first: int) -> Row:
    """Mixes all axes from `first` on (windows, channels)."""
    return lambda reading: reading.axes_but(range(first, reading.rank))


def _dropped(reading: _Reading, axes: Iterable[int], *, keep: bool) -> Passage:
    """Mixes some axes and leaves them out, unless `keep`."""
    out = frozenset(axes)
    rest = [k for k in range(reading.rank) if k not in out]
    return Passage(out, {k: k if keep else place for place, k in enumerate(rest)})


def _reduce(reading: _Reading) -> Passage:
    op, rank = reading.op, reading.rank
    axes = op.ints_from("axes", 1)
    if not axes and op.integer("noop_with_empty_axes", 0):
        return reading.axes_but(())
    places = [axis_of(axis, rank) for axis in axes or range(rank)]
    return _dropped(reading, places, keep=bool(op.integer("keepdims", 1)))


def _arg(reading: _Reading) -> Passage:
    keep = bool(reading.op.integer("keepdims", 1))
    return _dropped(reading, [reading.axis("axis", 0)], keep=keep)


def _matmul(reading: _Reading) -> Passage:
    rank, other = reading.rank, len(reading.op.shape(1 - reading.slot))
    summed = rank - 1 if reading.slot == 0 or rank == 1 else rank - 2
    if rank == 1 or other == 1:
        return reading.axes_but({summed}) if reading.slot == 0 else Passage(frozenset({summed}))
    lead = max(other - rank, 0)
    stacked = _elementwise(reading).barred & frozenset(range(rank - 2))
    return Passage(stacked | {summed}, {k: k + lead for k in range(rank) if k != summed})


def _gemm(reading: _Reading) -> Passage:
    if reading.slot > 1:
        return Passage()
    is_turned = bool(reading.op.integer("transB" if reading.slot else "transA", 0))
    summed = int(is_turned == bool(reading.slot))
    return Passage(frozenset({summed}), {1 - summed: reading.slot})


def _einsum(reading: _Reading) -> Passage:
    equation = reading.op.text("equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    term = left.split(",")[reading.slot]
    if not arrow or "." in equation:
        return Passage()
    summed = frozenset(k for k, letter in enumerate(term) if letter not in right)
    return Passage(
        summed, {k: right.index(letter) for k, letter in enumerate(term) if k not in summed}
    )


def _transpose(reading: _Reading) -> Passage:
    order = reading.op.ints("perm") or list(range(reading.rank))[::-1]
    return Passage(onward={axis: place for place, axis in enumerate(order)})


def _squeeze(reading: _Reading) -> Passage:
    axes = reading.op.ints_from("axes", 1)
    gone = (
        {k for k, size in enumerate(reading.shape) if size == 1}
        if axes is None
        else {axis_of(axis, reading.rank) for axis in axes}
    )
    rest = [k for k in range(reading.rank) if k not in gone]
    return Passage(onward={k: place for place, k in enumerate(rest)})


def _unsqueeze(reading: _Reading) -> Passage:
    axes = reading.op.ints_from("axes", 1) or []
    rank = reading.rank + len(axes)
    made = {axis_of(axis, rank) for axis in axes}
    return Passage(onward=dict(enumerate(k for k in range(rank) if k not in made)))


def _flatten(reading: _Reading) -> Passage:
    cut = reading.op.integer("axis", 1)
    cut += reading.rank if cut < 0 else 0
    return Passage(onward={k: int(k >= cut) for k in range(reading.rank)})


def _gather(reading: _Reading) -> Passage:
    table = len(reading.op.shape(0))
    axis = axis_of(reading.op.integer("axis", 0), table)
    if reading.slot == 1:
        return Passage(onward={k: k + axis for k in range(reading.rank)})
    picked = len(reading.op.shape(1))
    return Passage(
        frozenset({axis}),
        {k: k if k < axis else k + picked - 1 for k in range(table) if k != axis},
    )


def _slice(reading: _Reading) -> Passage:
    shape = reading.shape
    return reading.axes_but(
        axis
        for axis, start, end, step in slice_parts(reading.op)
        if start not in (0, -shape[axis]) or end is None or end < shape[axis] or step != 1
    )


def _softmax(reading: _Reading) -> Passage:
    if reading.op.version >= 13:
        return _along(("axis", -1))(reading)
    return _from("axis", 1)(reading)  # older ones took all that follows for one axis


def _cumulative(reading: _Reading) -> Passage:
    return reading.axes_but(axis_of(axis, reading.rank) for axis in reading.op.values(1))


def _recurrent(reading: _Reading) -> Passage:
    batch = 0 if reading.op.integer("layout", 0) else 1
    return Passage(frozenset({0, 1, 2} - {batch}))


def _attention(reading: _Reading) -> Passage:
    return reading.axes_but(range(1 if reading.rank == 3 else 2, reading.rank))


def _pad(reading: _Reading) -> Passage:
    pads = reading.op.ints_from("pads", 1) or []
    half = len(pads) // 2
    return reading.axes_but(k for k in range(half) if pads[k] or pads[k + half])


def _expand(reading: _Reading) -> Passage:
    lead = max(len(reading.op.values(1)) - reading.rank, 0)
    return Passage(onward={k: k + lead for k in range(reading.rank)})


def _first(row: Row) -> Row:
    """A row for the data input; the other inputs are of no account."""
    return lambda reading: row(reading) if reading.slot == 0 else Passage()


def _table(row: Row, names: str) -> dict[str, Row]:
    return dict.fromkeys(words(names), row)


# Operators that compute across the axes they bar; others cut them or meet a constant there.
_MIXING = frozenset(
    words("""MatMul Gemm Einsum Softmax LogSoftmax Hardmax TopK CumSum ArgMax ArgMin ReduceSum
    ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp
    ReduceSumSquare LayerNormalization RMSNormalization LpNormalization Conv ConvTranspose
    InstanceNormalization GroupNormalization LRN MaxPool AveragePool LpPool GlobalAveragePool
    GlobalMaxPool GlobalLpPool Attention RNN GRU LSTM""")
)

# Which axes an operator mixes follows from its page in the ONNX operator specification.
_ROWS: Mapping[str, Row] = {
    **_table(
        _elementwise,
        """Add Sub Mul Div Pow Mod Min Max Sum Mean Where And Or Xor Equal Greater GreaterOrEqual
        Less LessOrEqual PRelu""",
    ),
    **_table(
        _first(_along()),
        """Identity Cast Dropout Relu LeakyRelu Elu Selu Celu Gelu Sigmoid HardSigmoid HardSwish
        Swish Mish Tanh Erf Softplus Softsign Clip Neg Abs Exp Log Sqrt Reciprocal Sin Cos Floor
        Ceil Round Sign Not IsNaN QuantizeLinear DequantizeLinear""",
    ),
    **_table(_first(_softmax), "Softmax LogSoftmax Hardmax"),
    **_table(_first(_along(("axis", -1))), "TopK LpNormalization"),
    **_table(_first(_along(("axis", 0))), "Split"),
    **_table(_along(("axis", 0)), "Concat GatherElements"),
    **_table(
        _first(_reduce),
        """ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum
        ReduceLogSumExp ReduceSumSquare""",
    ),
    **_table(_first(_arg), "ArgMax ArgMin"),
    **_table(_first(_from("axis", -1)), "LayerNormalization RMSNormalization"),
    **_table(
        _first(_behind(1)),
        """Conv ConvTranspose ConvInteger QLinearConv BatchNormalization InstanceNormalization
        GroupNormalization LRN DepthToSpace SpaceToDepth""",
    ),
    **_table(
        _first(_behind(2)),
        """MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool GlobalLpPool GridSample
        Resize Upsample""",
    ),
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Transpose": _transpose,
    "Squeeze": _first(_squeeze),
    "Unsqueeze": _first(_unsqueeze),
    "Flatten": _flatten,
    "Gather": _gather,
    "Slice": _first(_slice),
    "Pad": _first(_pad),
    "Expand": _first(_expand),
    "CumSum": _first(_cumulative),
    "Attention": _attention,
    **_table(_first(_recurrent), "RNN GRU LSTM"),
}
