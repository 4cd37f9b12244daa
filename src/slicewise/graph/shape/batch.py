"""Where an exporter baked the batch into a model: find the place, move it to the new batch.

`rebatch_target` decides a Reshape by following the batch through the row-major order of the
elements. The other rows of `MENDS` mend operators whose constants name the old batch, and
`_stretch` widens an operand that was made for the old batch (a class token, an initial state).
Everything mended leaves a Note; where nothing fits, the walk refuses the model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from slicewise.core.notes import Note
from slicewise.graph.shape.facts import (
    Array,
    Contradiction,
    Fact,
    Op,
    Shape,
    Unknown,
    axis_of,
    show,
    words,
)
from slicewise.graph.shape.layout import slice_parts, split_sizes
from slicewise.graph.shape.outlook import Outlook
from slicewise.graph.shape.reshape import Batch, rebatch_target, resolved
from slicewise.graph.shape.search import Choices, Mixed
from slicewise.graph.shape.walk import Place, Scope, Walk


class Mender:
    """Mends nodes on the walk at the new batch; edits the working copy of the model.

    `choices` decides where several ways to mend are open. `is_wary`: `Mixed` is raised where
    items of the batch get mixed after such a choice. `passed` counts the nodes seen.
    """

    def __init__(self, batch: Batch, choices: Choices, *, is_wary: bool) -> None:
        self.batch = batch
        self.choices = choices
        self.is_wary = is_wary
        self.passed = 0
        self.notes: list[Note] = []
        self._names = 0
        self._outlooks: dict[str, Outlook] = {}

    def outlook(self, walk: Walk, before: Scope, place: Place) -> Outlook:
        """What the readers of values say, in the graph of `place`."""
        found = self._outlooks.get(place.key)
        if found is None:
            found = self._outlooks[place.key] = Outlook(place.graph, before, walk.opsets)
        return found

    def __call__(
        self,
        walk: Walk,
        op: Op,
        scope: Scope,
        before: Scope,
        place: Place,
        clash: Contradiction | None,
    ) -> Op | None:
        """Return the op to go on with; None to go on as it is, or if `clash` cannot be mended."""
        self.passed += clash is None
        if clash is None and walk.inner:
            _pass_on(walk, op.node)
        if clash is None and self.is_wary and self.choices.are_open:
            self._watch(walk, op, before, place)
        mend = MENDS.get(op.type) if op.node.domain in ("", "ai.onnx") else None
        if clash is None and mend is None:
            return None
        patient = _Patient(walk, op, scope, before, place, self)
        try:
            if clash is None:
                changed = mend is not None and mend(patient)
            elif clash.wanted:
                changed = _suit(patient, clash.wanted)
            else:
                changed = _stretch(patient)
        except Unknown:
            return None  # what would have to be mended is computed from data
        return patient.renewed() if changed else None

    def _watch(self, walk: Walk, op: Op, before: Scope, place: Place) -> None:
        """Raise `Mixed` if the node sums over the batch, or pairs items with one another."""
        places: list[set[int]] = []
        outlook = self.outlook(walk, before, place)
        for slot, name in enumerate(op.node.input):
            old, new = before.find(name) if name else None, op.inputs[slot]
            if old is None or new is None or old is new:
                continue
            grown = grown_axes(old.shape, new.shape)
            if grown and not outlook.mixed(op.node, slot).isdisjoint(grown):
                raise Mixed
            places.append({axis - len(new.shape or ()) for axis in grown})
        met = set().union(*places)
        # rows against columns may be meant: similarities of all with all
        pairs = op.type in _BROADCASTING or (op.type == "MatMul" and min(met, default=0) < -2)
        if pairs and len(met) > max(map(len, places)):
            raise Mixed

    def fresh_name(self, label: str) -> str:
        """Return a value name that no model has."""
        self._names += 1
        return f"{label}::batch{self.batch.new}.{self._names}"


def grown_axes(old: Shape | None, new: Shape | None) -> list[int]:
    """Return the axes in which two shapes of one rank differ."""
    if old is None or new is None or len(old) != len(new):
        return []
    return [k for k, (x, y) in enumerate(zip(old, new, strict=True)) if x != y]


def _pass_on(walk: Walk, node: onnx.NodeProto) -> None:
    """What stands in front of the batch in a merged axis does so up to the next Reshape."""
    if node.op_type == "Reshape" or walk.inner.keys().isdisjoint(node.input):
        return
    inner = next(walk.inner[name] for name in node.input if name in walk.inner)
    walk.inner.update(dict.fromkeys(filter(None, node.output), inner))


@dataclass(frozen=True, slots=True)
class _Patient:
    """A node under treatment, with its facts at both batches."""

    walk: Walk
    op: Op
    scope: Scope
    before: Scope
    place: Place
    mender: Mender

    @property
    def batch(self) -> Batch:
        return self.mender.batch

    @property
    def outlook(self) -> Outlook:
        return self.mender.outlook(self.walk, self.before, self.place)

    def old(self, slot: int) -> Fact | None:
        """The fact of input `slot` at the old batch."""
        name = self.op.node.input[slot] if slot < len(self.op.node.input) else ""
        return self.before.find(name) if name else None

    def old_shape(self, slot: int) -> Shape | None:
        fact = self.old(slot)
        return None if fact is None else fact.shape

    def old_result(self) -> Shape | None:
        """The shape of output 0 at the old batch."""
        fact = self.before.facts.get(self.op.node.output[0])
        return None if fact is None else fact.shape

    def is_fixed(self, slot: int) -> bool:
        """True if input `slot` has the same shape and content at both batches."""
        return self.op.has(slot) and self.op.inputs[slot] is self.old(slot)

    def grown_axes(self, slot: int) -> list[int]:
        """The axes of input `slot` that differ between the batches."""
        fact = self.op.inputs[slot]
        return grown_axes(self.old_shape(slot), None if fact is None else fact.shape)

    def note(self, code: str, text: str) -> None:
        self.mender.notes.append(Note(code, text, self.op.label))

    def replace_input(self, slot: int, value: Array) -> None:
        """Read a new constant at input `slot`."""
        name = self.constant(value)
        self.op.node.input[slot] = name

    def constant(self, value: Array) -> str:
        """Put a Constant node in front of this one; return its output."""
        name = self.mender.fresh_name(self.op.label)
        tensor = onnx.numpy_helper.from_array(value, name)
        self.insert(onnx.helper.make_node("Constant", [], [name], value=tensor))
        self.know(name, Fact(value.shape, tensor.data_type, value))
        return name

    def know(self, name: str, fact: Fact) -> None:
        """Record what is known of a value made by mending."""
        self.scope.facts[name] = fact
        self.walk.made.setdefault(self.place.key, {})[name] = fact

    def insert(self, node: onnx.NodeProto) -> None:
        """Put `node` in front of this one when the walk is over."""
        node.name = node.output[0]
        self.walk.insertions.append((self.place, node))

    def renewed(self) -> Op:
        """The node seen anew, after its inputs or attributes were edited."""
        node = self.op.node
        inputs = [self.scope.find(name) if name else None for name in node.input]
        return Op(node, inputs, version=self.op.version)


def _mend_reshape(patient: _Patient) -> bool:
    op = patient.op
    before, result = patient.old_shape(0), patient.old_result()
    target = op.ints_from("shape", 1) if _has_value(op, 1) else None
    if before is None or result is None or target is None or op.fact(0).shape is None:
        return False
    after = op.shape()
    allow_zero = bool(op.integer("allowzero", 0))
    if op.has(1) and not patient.is_fixed(1) and resolved(after, target, allow_zero=allow_zero):
        return False  # computed from the batch: the model knows what it does
    name = op.node.output[0]
    case = (tuple(target), before, after, result, patient.walk.inner.get(op.node.input[0]))
    ways = rebatch_target(
        target,
        before=before,
        after=after,
        result=result,
        batch=patient.batch,
        allow_zero=allow_zero,
        inner=case[-1],
        bar=lambda axes: patient.outlook.barred(name, axes),
    )
    way = ways[patient.mender.choices.pick(case, len(ways))]
    wanted = way.target
    if way.inner is not None:
        patient.walk.inner[name] = way.inner
    if wanted == tuple(target):
        return False
    if op.has(1):
        patient.replace_input(1, np.array(wanted, np.int64))
    else:
        _set_ints(op, "shape", wanted)
    patient.note(
        "reshape-rewritten",
        f"the target {show(target)} has the batch {patient.batch.old} baked in;"
        f" {show(wanted)} is used at batch {patient.batch.new}",
    )
    return True


def _has_value(op: Op, slot: int) -> bool:
    return not op.has(slot) or op.fact(slot).value is not None


def _set_ints(op: Op, name: str, values: Sequence[int]) -> None:
    attribute = op.attribute(name)
    assert attribute is not None
    del attribute.ints[:]
    attribute.ints.extend(values)


def _mend_entries(patient: _Patient, slot: int, name: str, entries: Mapping[int, int]) -> bool:
    """Replace some entries of a list that is input `slot` or attribute `name`."""
    op = patient.op
    listed = op.ints_from(name, slot) or []
    mended = [entries.get(k, x) for k, x in enumerate(listed)]
    if mended == listed:
        return False
    if op.has(slot):
        patient.replace_input(slot, np.array(mended, op.value(slot).dtype))
    else:
        _set_ints(op, name, mended)
    patient.note(
        "batch-rewritten",
        f"{op.type}: {name} {show(listed)} has the batch {patient.batch.old} baked in;"
        f" {show(mended)} is used at batch {patient.batch.new}",
    )
    return True


def _mend_slice(patient: _Patient) -> bool:
    """x[0:1] of a batch of 1 takes the whole batch; it has to at the new one."""
    op, old = patient.op, patient.old_shape(0)
    grown = patient.grown_axes(0)
    if not grown or old is None or not all(patient.is_fixed(k) for k in (1, 2) if op.has(k)):
        return False
    entries = {}
    for k, (axis, start, end, step) in enumerate(slice_parts(op)):
        if axis in grown and start in (0, -old[axis]) and end == old[axis] and step == 1:
            entries[k] = op.shape()[axis]
    if entries and _only_squeezed(patient.place.graph, op.node.output[0]):
        return False  # x[0] written as Slice and Squeeze: one item is meant
    return _mend_entries(patient, 2, "ends", entries)


def _only_squeezed(graph: onnx.GraphProto, name: str) -> bool:
    readers = {node.op_type for node in graph.node if name in node.input}
    return readers == {"Squeeze"}


def _mend_gather(patient: _Patient) -> bool:
    """Indices that list the whole old batch list the whole new one."""
    op, old = patient.op, patient.old_shape(0)
    if old is None or not patient.is_fixed(1) or not _has_value(op, 1):
        return False
    indices = op.value(1)
    axis = axis_of(op.integer("axis", 0), len(old))
    if axis not in patient.grown_axes(0) or indices.ndim != 1:
        return False
    if indices.tolist() != list(range(old[axis])):
        return False
    entries = np.arange(op.shape()[axis], dtype=indices.dtype)
    patient.replace_input(1, entries)
    text = f"Gather: its indices list a batch of {old[axis]}; they list {entries.size} now"
    patient.note("batch-rewritten", text)
    return True


def _mend_split(patient: _Patient) -> bool:
    op, old = patient.op, patient.old_shape(0)
    if old is None or not _has_value(op, 1):
        return False
    axis = axis_of(op.integer("axis", 0), len(old))
    if axis not in patient.grown_axes(0) or op.ints_from("split", 1) is None:
        return False
    if op.has(1) and not patient.is_fixed(1):
        return False
    length = op.shape()[axis]
    sizes = split_sizes(Op(op.node, [_plain(old), *op.inputs[1:]], version=op.version), old[axis])
    if any(size * length % old[axis] for size in sizes):
        return False
    entries = {k: size * length // old[axis] for k, size in enumerate(sizes)}
    return _mend_entries(patient, 1, "split", entries)


def _plain(shape: Shape) -> Fact:
    return Fact(shape, 0)


def _mend_sizes(patient: _Patient) -> bool:
    """Resize to fixed sizes, the batch among them."""
    op = patient.op
    if not op.has(3) or not patient.is_fixed(3) or op.ints("axes") is not None:
        return False
    old, sizes = patient.old_shape(0), op.values(3)
    if old is None or len(sizes) != len(old):
        return False
    grown = [k for k in patient.grown_axes(0) if sizes[k] == old[k]]
    return _mend_entries(patient, 3, "sizes", {k: op.shape()[k] for k in grown})


def _mend_expand(patient: _Patient) -> bool:
    op, old = patient.op, patient.old_shape(0)
    if old is None or not patient.is_fixed(1) or not _has_value(op, 1):
        return False
    target = op.values(1)
    lead = len(target) - len(old)
    entries = {
        k + lead: op.shape()[k]
        for k in patient.grown_axes(0)
        if k + lead >= 0 and target[k + lead] == old[k] != 1
    }
    return _mend_entries(patient, 1, "shape", entries)


def _mend_concat(patient: _Patient) -> bool:
    """Batches joined along their own axis: which of them comes in front of the batch."""
    op = patient.op
    shape, old = op.shape(), patient.old_shape(0) or ()
    along = axis_of(op.integer("axis", 0), len(shape))
    slots = range(len(op.inputs))
    if len(slots) > 1 and all(along in patient.grown_axes(k) for k in slots):
        patient.walk.inner.setdefault(op.node.output[0], old[along] // patient.batch.old)
    return False


def _check_weight(patient: _Patient) -> bool:
    """A weight made from the batch: its items need a group each, which no shape tells."""
    if patient.grown_axes(1):
        raise Contradiction(f"the batch is in its weight {show(patient.op.shape(1))}")
    return False


Mend = Callable[[_Patient], bool]

MENDS: Mapping[str, Mend] = {
    "Reshape": _mend_reshape,
    "Slice": _mend_slice,
    "Gather": _mend_gather,
    "Split": _mend_split,
    "Resize": _mend_sizes,
    "Expand": _mend_expand,
    "Concat": _mend_concat,
    "Conv": _check_weight,
    "ConvTranspose": _check_weight,
}

# Sets of (input, axis) that must have one size. Axes count from the end in `aligned` rules.
Meeting = list[tuple[int, int]]


def _aligned(slots: Sequence[int], *, skip: int = 0) -> Callable[[Op], list[Meeting]]:
    def meetings(op: Op) -> list[Meeting]:
        used = [k for k in slots or range(len(op.inputs)) if op.has(k)]
        longest = max(len(op.shape(k)) for k in used)
        return [
            [(k, len(op.shape(k)) - back) for k in used if len(op.shape(k)) >= back]
            for back in range(skip + 1, longest + 1)
        ]

    return meetings


def _joined_axes(op: Op) -> list[Meeting]:
    rank = len(op.shape())
    along = axis_of(op.integer("axis", 0), rank)
    slots = range(len(op.inputs))
    return [[(k, axis) for k in slots] for axis in range(rank) if axis != along]


def _recurrent_axes(op: Op) -> list[Meeting]:
    batch_first = bool(op.integer("layout", 0))
    state = 0 if batch_first else 1
    listed = [(0, 0 if batch_first else 1), (4, 0), (5, state), (6, state)]
    return [[(slot, axis) for slot, axis in listed if op.has(slot)]]


# Operators where an operand made for the old batch can be widened to the new one. `strict`: a size
# of 1 does not broadcast, so it is widened too.
_BROADCASTING = words("""Add Sub Mul Div Pow Mod Min Max Sum Mean Where And Or Xor Equal Greater
GreaterOrEqual Less LessOrEqual PRelu""")
MEETINGS: Mapping[str, tuple[Callable[[Op], list[Meeting]], bool]] = {
    **dict.fromkeys(_BROADCASTING, (_aligned(()), False)),
    "MatMul": (_aligned((0, 1), skip=2), False),
    "Concat": (_joined_axes, True),
    **dict.fromkeys(("RNN", "GRU", "LSTM"), (_recurrent_axes, True)),
}


def _stretch(patient: _Patient) -> bool:
    """Widen the operands that kept the size of the old batch where another one grew."""
    row = MEETINGS.get(patient.op.type)
    if row is None:
        return False
    op, (meetings, strict) = patient.op, row
    wanted: dict[int, dict[int, int]] = {}
    for meeting in meetings(op):
        sizes = {(k, axis): op.shape(k)[axis] for k, axis in meeting if axis < len(op.shape(k))}
        grown = {sizes[k, a] for k, a in sizes if a in patient.grown_axes(k)}
        if len(grown) != 1:
            continue
        (size,) = grown
        for (k, axis), own in sizes.items():
            if own != size and (own != 1 or strict) and not patient.grown_axes(k):
                wanted.setdefault(k, {})[axis] = size
    for slot, axes in wanted.items():
        _widen(patient, slot, axes)
    return bool(wanted)


def _suit(patient: _Patient, wanted: Mapping[int, Shape]) -> bool:
    """Widen inputs to the very shapes that a body asks for."""
    for slot, shape in wanted.items():
        own = patient.op.shape(slot)
        axes = {k: new for k, (old, new) in enumerate(zip(own, shape, strict=True)) if old != new}
        if any(new != patient.batch.scaled(own[k]) for k, new in axes.items()):
            return False
        _widen(patient, slot, axes)
    return True


def _widen(patient: _Patient, slot: int, axes: Mapping[int, int]) -> None:
    """Insert an Expand (or a Gather that repeats, for an old batch over 1) before an input."""
    op = patient.op
    for axis, size in axes.items():
        fact = patient.scope.find(op.node.input[slot]) or op.fact(slot)
        shape = fact.shape or ()
        wide = (*shape[:axis], size, *shape[axis + 1 :])
        name = patient.mender.fresh_name(op.label)
        if shape[axis] == 1:
            target = patient.constant(np.array(wide, np.int64))
            node = onnx.helper.make_node("Expand", [op.node.input[slot], target], [name])
        else:
            picks = patient.constant(np.arange(size, dtype=np.int64) % shape[axis])
            node = onnx.helper.make_node("Gather", [op.node.input[slot], picks], [name], axis=axis)
        patient.insert(node)
        patient.know(name, Fact(wide, fact.dtype))
        patient.note(
            "batch-rewritten",
            f"{op.type}: operand {op.node.input[slot]!r} {show(shape)} was made for batch"
            f" {patient.batch.old}; it is widened to {show(wide)}",
        )
        op.node.input[slot] = name


def apply_insertions(walk: Walk) -> None:
    """Put the nodes that mending made into their graphs, each before the node that reads it."""
    by_key: dict[str, tuple[onnx.GraphProto, dict[int, list[onnx.NodeProto]]]] = {}
    for place, node in walk.insertions:
        _, rows = by_key.setdefault(place.key, (place.graph, {}))
        rows.setdefault(place.index, []).append(node)
    # inner graphs, whose keys are longer, first: rebuilding a list of nodes copies their bodies
    for _, (graph, rows) in sorted(by_key.items(), key=lambda item: -len(item[0])):
        nodes: list[onnx.NodeProto] = []
        for index, node in enumerate(graph.node):
            nodes += rows.get(index, [])
            nodes.append(node)
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)
