"""Shape rules where contents decide the size: selections, ranges, sequences of tensors.

Where the content is not known the greatest possible size is taken, with a Note. Each rule follows
the operator's page in the ONNX operator specification (Operators.md).
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from slicewise.graph.shape.facts import (
    FLOAT,
    INT64,
    Contradiction,
    Fact,
    Op,
    Shape,
    Unknown,
    axis_of,
    show,
)
from slicewise.graph.shape.layout import Rule, join, of_rank


def _range(op: Op) -> list[Fact]:
    start, limit, delta = (op.value(slot).item() for slot in (0, 1, 2))
    if delta == 0:
        raise Contradiction("a step of 0")
    return [op.like((max(0, math.ceil((limit - start) / delta)),))]


def _one_hot(op: Op) -> list[Fact]:
    shape = op.shape()
    depth = op.values(1)[0]
    axis = axis_of(op.integer("axis", -1), len(shape) + 1)
    return [op.like((*shape[:axis], depth, *shape[axis:]), 2)]


def _top_k(op: Op) -> list[Fact]:
    shape = op.shape()
    axis = axis_of(op.integer("axis", -1), len(shape))
    try:
        count = op.integer("k", 0) if op.version < 10 else op.values(1)[0]
    except Unknown:
        count = shape[axis]
        op.bounded(f"k taken as the whole axis {axis} ({count})")
    if count > shape[axis]:
        raise Contradiction(f"k={count} of an axis of {shape[axis]} in {show(shape)}")
    out = (*shape[:axis], count, *shape[axis + 1 :])
    return [op.like(out), Fact(out, INT64)]


def _non_zero(op: Op) -> list[Fact]:
    shape = op.shape()
    elements = math.prod(shape)
    op.bounded(f"all {elements} elements taken")
    # a scalar gives [0, 1]: one row for each axis (Operators.md, NonZero)
    return [Fact((len(shape), elements), INT64)]


def _unique(op: Op) -> list[Fact]:
    shape = op.shape()
    axis = op.attribute("axis")
    if axis is None:
        elements = math.prod(shape)
        op.bounded(f"all {elements} elements taken as distinct")
        return [op.like((elements,)), *[Fact((elements,), INT64)] * 3]
    length = shape[axis_of(axis.i, len(shape))]
    op.bounded(f"all {length} slices taken as distinct")
    return [op.like(shape), *[Fact((length,), INT64)] * 3]


def _compress(op: Op) -> list[Fact]:
    shape = op.shape()
    axis = op.attribute("axis")
    kept = math.prod(op.shape(1))
    if axis is None:
        kept = min(kept, math.prod(shape))
        op.bounded(f"{kept} elements kept")
        return [op.like((kept,))]
    place = axis_of(axis.i, len(shape))
    kept = min(kept, shape[place])
    op.bounded(f"{kept} of axis {place} kept")
    return [op.like((*shape[:place], kept, *shape[place + 1 :]))]


def _non_max_suppression(op: Op) -> list[Fact]:
    boxes, scores = of_rank(op.shape(), 3), of_rank(op.shape(1), 3)
    most = boxes[1]
    if op.has(2) and op.fact(2).value is not None:
        most = min(most, max(0, op.values(2)[0]))
    elif not op.has(2):
        most = 0  # max_output_boxes_per_class defaults to 0: no output
    kept = scores[0] * scores[1] * most
    op.bounded(f"{kept} boxes kept, {most} for each class")
    return [Fact((kept, 3), INT64)]


def _sequence_of(op: Op, parts: Sequence[Shape]) -> Fact:
    largest = max(parts, key=math.prod, default=None)
    return Fact(largest, op.dtype(), parts=tuple(parts))


def _sequence_construct(op: Op) -> list[Fact]:
    return [_sequence_of(op, [op.shape(slot) for slot in range(len(op.inputs))])]


def _sequence_empty(op: Op) -> list[Fact]:
    return [Fact(None, op.integer("dtype", FLOAT), parts=())]


def _sequence_insert(op: Op) -> list[Fact]:
    held, added = op.fact(0), op.shape(1)
    dtype = held.dtype or op.dtype(1)
    if held.parts is None:
        shape = added if held.shape is None else max(held.shape, added, key=math.prod)
        return [Fact(shape, dtype)]
    parts = (*held.parts, added)
    return [Fact(max(parts, key=math.prod), dtype, parts=parts)]


def _sequence_erase(op: Op) -> list[Fact]:
    held = op.fact(0)
    if not held.parts:
        return [held]
    place = op.fact(1).value if op.has(1) else np.int64(-1)
    if place is None:
        return [Fact(held.shape, held.dtype)]
    parts = list(held.parts)
    del parts[axis_of(int(place.item()), len(parts))]
    return [_sequence_of(op, parts)]


def _sequence_at(op: Op) -> list[Fact]:
    held = op.fact(0)
    place = op.fact(1).value
    if held.parts and place is not None:
        return [op.like(held.parts[axis_of(int(place.item()), len(held.parts))])]
    if held.parts is None or len(set(held.parts)) > 1:
        op.bounded(f"the largest element taken, {show(held.shape)}")
    return [op.like(op.shape())]


def _split_to_sequence(op: Op) -> list[Fact]:
    shape = op.shape()
    axis = axis_of(op.integer("axis", 0), len(shape))
    length = shape[axis]
    if not op.has(1):
        sizes = [1] * length
    elif op.fact(1).shape == ():
        each = op.values(1)[0]
        sizes = [min(each, length - at) for at in range(0, length, each)]
    else:
        sizes = op.values(1)
    drop = not op.has(1) and not op.integer("keepdims", 1)
    middle = [() if drop else (size,) for size in sizes]
    return [_sequence_of(op, [(*shape[:axis], *m, *shape[axis + 1 :]) for m in middle])]


def _concat_from_sequence(op: Op) -> list[Fact]:
    parts = op.fact(0).parts
    if not parts:
        raise Unknown
    axis = op.integer("axis", 0)
    if not op.integer("new_axis", 0):
        return [op.like(join(parts, axis))]
    place = axis_of(axis, len(parts[0]) + 1)
    return [op.like((*parts[0][:place], len(parts), *parts[0][place:]))]


RULES: Mapping[str, Rule] = {
    "Range": _range,
    "OneHot": _one_hot,
    "TopK": _top_k,
    "NonZero": _non_zero,
    "Unique": _unique,
    "Compress": _compress,
    "NonMaxSuppression": _non_max_suppression,
    "SequenceConstruct": _sequence_construct,
    "SequenceEmpty": _sequence_empty,
    "SequenceInsert": _sequence_insert,
    "SequenceErase": _sequence_erase,
    "SequenceAt": _sequence_at,
    "SequenceLength": lambda op: [Fact((), INT64)],
    "SplitToSequence": _split_to_sequence,
    "ConcatFromSequence": _concat_from_sequence,
    "Optional": lambda op: [op.fact(0)],
    "OptionalGetElement": lambda op: [op.fact(0)],
}
