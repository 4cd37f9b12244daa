"""Shape rules of operators that move, cut, join or make elements.

Each rule follows the operator's page in the ONNX operator specification (Operators.md, all opset
versions where forms differ). No arithmetic on contents here: that is `values`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from slicewise.graph.shape.facts import (
    FLOAT,
    INT64,
    Contradiction,
    Fact,
    Op,
    Shape,
    Unknown,
    axis_of,
    broadcast,
    show,
)

Rule: TypeAlias = Callable[[Op], Sequence[Fact]]


def resolve_reshape(shape: Shape, target: Sequence[int], *, allow_zero: bool) -> Shape:
    """Return the shape that Reshape gives; `Contradiction` if element counts differ.

    0 copies the input's dimension (unless `allow_zero`), one -1 takes what is left.

    >>> resolve_reshape((2, 3, 4), (0, -1), allow_zero=False)
    (2, 12)
    """
    out = list(target)
    clash = Contradiction(f"input {show(shape)} does not have the elements of {show(target)}")
    if not allow_zero:
        for k, wanted in enumerate(out):
            if wanted == 0:
                if k >= len(shape):
                    raise clash
                out[k] = shape[k]
    elements = math.prod(shape)
    if out.count(-1) > 1 or min(out, default=0) < -1:
        raise Contradiction(f"target {show(target)} has more than one free dimension")
    if -1 in out:
        free = out.index(-1)
        rest = math.prod(out[:free]) * math.prod(out[free + 1 :])
        if (rest == 0 and elements) or (rest and elements % rest):
            raise clash
        out[free] = elements // rest if rest else 0
    elif math.prod(out) != elements:
        raise clash
    return tuple(out)


def reshape_target(op: Op) -> list[int]:
    """Return the target of a Reshape, from input 1 or, in opset 1, from the attribute."""
    target = op.ints_from("shape", 1)
    if target is None:
        raise Unknown
    return target


def _reshape(op: Op) -> list[Fact]:
    shape = op.shape()
    if op.has(1) and op.fact(1).value is None and op.fact(1).shape == (1,):
        return [op.like((math.prod(shape),))]  # a target of one entry: everything in one axis
    allow_zero = bool(op.integer("allowzero", 0))
    return [op.like(resolve_reshape(shape, reshape_target(op), allow_zero=allow_zero))]


def _axes(op: Op, rank: int) -> list[int] | None:
    axes = op.ints_from("axes", 1)
    return None if axes is None else [axis_of(axis, rank) for axis in axes]


def _squeeze(op: Op) -> list[Fact]:
    shape = op.shape()
    axes = _axes(op, len(shape))
    if axes is None:
        return [op.like([d for d in shape if d != 1])]
    for axis in axes:
        if shape[axis] != 1:
            raise Contradiction(f"axis {axis} of {show(shape)} is not 1 and cannot be squeezed")
    return [op.like([d for k, d in enumerate(shape) if k not in axes])]


def _unsqueeze(op: Op) -> list[Fact]:
    shape = op.shape()
    axes = op.ints_from("axes", 1)
    if axes is None:
        raise Unknown
    rank = len(shape) + len(axes)
    places = {axis_of(axis, rank) for axis in axes}
    if len(places) != len(axes):
        raise Contradiction(f"axes {axes} name one place twice")
    rest = iter(shape)
    return [op.like([1 if k in places else next(rest) for k in range(rank)])]


def _flatten(op: Op) -> list[Fact]:
    shape = op.shape()
    axis = op.integer("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise Contradiction(f"axis {axis} is outside {show(shape)}")
    axis = axis + len(shape) if axis < 0 else axis
    return [op.like((math.prod(shape[:axis]), math.prod(shape[axis:])))]


def _transpose(op: Op) -> list[Fact]:
    shape = op.shape()
    order = op.ints("perm")
    if order is None:
        return [op.like(shape[::-1])]
    if sorted(order) != list(range(len(shape))):
        raise Contradiction(f"perm {order} does not permute {show(shape)}")
    return [op.like([shape[k] for k in order])]


def slice_parts(op: Op) -> list[tuple[int, int | None, int | None, int | None]]:
    """Return (axis, start, end, step) of a Slice; None where a number is not known."""
    rank = len(op.shape())
    if op.version < 10 and not op.has(1):
        starts, ends = op.ints("starts"), op.ints("ends")
        axes, steps = op.ints("axes"), None
    else:
        starts, ends, axes, steps = (_known(op, slot) for slot in (1, 2, 3, 4))
        if op.has(3) and axes is None:
            raise Unknown
    counts = [len(x) for x in (starts, ends, axes) if x is not None]
    if not counts:
        sizes = [op.fact(slot).shape for slot in (1, 2) if op.has(slot)]
        counts = [s[0] for s in sizes if s]
        if not counts:
            raise Unknown
    if axes is None:
        axes = list(range(counts[0]))
    steps = [1] * len(axes) if not op.has(4) else steps
    if any(x is not None and len(x) != len(axes) for x in (starts, ends, steps)):
        raise Contradiction("starts, ends, axes and steps differ in length")
    return [
        (
            axis_of(axis, rank),
            None if starts is None else starts[k],
            None if ends is None else ends[k],
            None if steps is None else steps[k],
        )
        for k, axis in enumerate(axes)
    ]


def _known(op: Op, slot: int) -> list[int] | None:
    if not op.has(slot) or op.fact(slot).value is None:
        return None
    return op.values(slot)


def _slice(op: Op) -> list[Fact]:
    out = list(op.shape())
    for axis, start, end, step in slice_parts(op):
        if start is None or end is None or step is None:
            op.bounded(f"axis {axis} kept whole ({out[axis]})")
        elif step == 0:
            raise Contradiction("a step of 0")
        else:
            out[axis] = len(range(*slice(start, end, step).indices(out[axis])))
    return [op.like(out)]


def split_sizes(op: Op, length: int) -> list[int]:
    """Return the sizes of a Split's parts along its axis of `length`."""
    sizes = op.ints_from("split", 1)
    if sizes is None:
        parts = op.integer("num_outputs", op.outputs)
        each = -(-length // parts)
        sizes = [max(0, min(each, length - each * k)) for k in range(parts)]
    if sum(sizes) != length or min(sizes, default=0) < 0:
        raise Contradiction(f"parts {sizes} do not add up to the axis of {length}")
    return sizes


def _split(op: Op) -> list[Fact]:
    shape = op.shape()
    axis = axis_of(op.integer("axis", 0), len(shape))
    try:
        sizes = split_sizes(op, shape[axis])
    except Unknown:
        op.bounded(f"each part taken as the whole axis {axis} ({shape[axis]})")
        sizes = [shape[axis]] * op.outputs
    return [op.like((*shape[:axis], size, *shape[axis + 1 :])) for size in sizes]


def join(shapes: Sequence[Shape], axis: int) -> Shape:
    """Return the shape of a concatenation; `Contradiction` where other axes differ."""
    first = shapes[0]
    axis = axis_of(axis, len(first))
    for shape in shapes[1:]:
        same = len(shape) == len(first) and all(
            a == b for k, (a, b) in enumerate(zip(shape, first, strict=True)) if k != axis
        )
        if not same:
            raise Contradiction(f"{show(first)} and {show(shape)} do not join along axis {axis}")
    return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])


def _concat(op: Op) -> list[Fact]:
    shapes = [op.shape(slot) for slot in range(len(op.inputs))]
    return [op.like(join(shapes, op.integer("axis", 1 if op.version < 4 else 0)))]


def _gather(op: Op) -> list[Fact]:
    shape, indices = op.shape(), op.shape(1)
    axis = axis_of(op.integer("axis", 0), len(shape))
    return [op.like((*shape[:axis], *indices, *shape[axis + 1 :]))]


def _gather_nd(op: Op) -> list[Fact]:
    shape, indices = op.shape(), op.shape(1)
    batch = op.integer("batch_dims", 0)
    if not indices or batch + indices[-1] > len(shape):
        raise Contradiction(f"indices {show(indices)} reach beyond {show(shape)}")
    return [op.like((*indices[:-1], *shape[batch + indices[-1] :]))]


def _pad(op: Op) -> list[Fact]:
    shape = op.shape()
    pads = op.ints("paddings") if op.version < 2 else op.ints_from("pads", 1)
    if pads is None:
        raise Unknown
    axes = [axis_of(a, len(shape)) for a in op.values(3)] if op.has(3) else range(len(shape))
    if len(pads) != 2 * len(axes):
        raise Contradiction(f"pads {pads} for {len(axes)} axes of {show(shape)}")
    out = list(shape)
    for k, axis in enumerate(axes):
        out[axis] += pads[k] + pads[k + len(axes)]
    if min(out, default=0) < 0:
        raise Contradiction(f"pads {pads} leave less than nothing of {show(shape)}")
    return [op.like(out)]


def _tile(op: Op) -> list[Fact]:
    shape = op.shape()
    if op.version < 6:
        out = list(shape)
        out[axis_of(op.values(2)[0], len(shape))] *= op.values(1)[0]
        return [op.like(out)]
    repeats = op.values(1)
    if len(repeats) != len(shape):
        raise Contradiction(f"repeats {repeats} for a tensor {show(shape)}")
    return [op.like([d * r for d, r in zip(shape, repeats, strict=True)])]


def _expand(op: Op) -> list[Fact]:
    return [op.like(broadcast(op.shape(), tuple(op.values(1))))]


def of_rank(shape: Shape, rank: int) -> Shape:
    if len(shape) != rank:
        raise Contradiction(f"{show(shape)} has not the rank {rank}")
    return shape


def _constant_of_shape(op: Op) -> list[Fact]:
    value = op.attribute("value")
    if op.has(0) and op.fact(0).shape == (0,):
        wanted: list[int] = []
    else:
        wanted = op.values(0)
    if min(wanted, default=0) < 0:
        raise Contradiction(f"shape {show(wanted)} has a negative dimension")
    return [Fact(tuple(wanted), FLOAT if value is None else value.t.data_type)]


def _from_attribute(op: Op) -> list[Fact]:
    """Random* and Constant-like makers: the shape is an attribute."""
    return [Fact(tuple(op.ints("shape") or ()), op.integer("dtype", FLOAT))]


def _eye_like(op: Op) -> list[Fact]:
    return [Fact(of_rank(op.shape(), 2), op.integer("dtype", op.dtype()))]


def _center_crop_pad(op: Op) -> list[Fact]:
    shape = list(op.shape())
    wanted = op.values(1)
    axes = op.ints("axes")
    for k, size in enumerate(wanted):
        shape[k if axes is None else axis_of(axes[k], len(shape))] = size
    return [op.like(shape)]


def _scalar(dtype: int) -> Rule:
    return lambda op: [Fact((), dtype)]


RULES: Mapping[str, Rule] = {
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Slice": _slice,
    "Split": _split,
    "Concat": _concat,
    "Gather": _gather,
    "GatherElements": lambda op: [op.like(op.shape(1))],
    "GatherND": _gather_nd,
    "Pad": _pad,
    "Tile": _tile,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "RandomNormal": _from_attribute,
    "RandomUniform": _from_attribute,
    "EyeLike": _eye_like,
    "CenterCropPad": _center_crop_pad,
    "Shape": lambda op: [Fact((len(op.shape()),), INT64)],
    "Size": _scalar(INT64),
}
