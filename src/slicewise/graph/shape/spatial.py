"""Shape rules of operators over spatial axes: convolution, pooling, resizing, regions.

Each rule follows the operator's page in the ONNX operator specification (Operators.md).
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from slicewise.graph.shape.facts import (
    INT32,
    INT64,
    Contradiction,
    Fact,
    Op,
    Shape,
    Unknown,
    axis_of,
    show,
)
from slicewise.graph.shape.layout import Rule, of_rank


def window_positions(op: Op, sizes: Sequence[int], kernel: Sequence[int]) -> Shape:
    """Return the output length of each spatial axis of a convolution or pooling."""
    rank = len(sizes)
    if len(kernel) != rank:
        raise Contradiction(f"kernel {list(kernel)} for {rank} spatial axes")
    strides = op.ints("strides") or [1] * rank
    dilations = op.ints("dilations") or [1] * rank
    pads = op.ints("pads") or [0] * (2 * rank)
    if len(strides) != rank or len(dilations) != rank or len(pads) != 2 * rank:
        raise Contradiction(f"strides, dilations or pads do not fit {rank} spatial axes")
    if min(*strides, *dilations, 1) < 1:
        raise Contradiction("a stride or dilation below 1")
    auto = op.text("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        return tuple(-(-size // s) for size, s in zip(sizes, strides, strict=True))
    if auto == "VALID":
        pads = [0] * (2 * rank)
    up = bool(op.integer("ceil_mode", 0))
    out = []
    for k, size in enumerate(sizes):
        reach = dilations[k] * (kernel[k] - 1) + 1
        room = size + pads[k] + pads[k + rank] - reach
        if room < 0:
            raise Contradiction(f"window of {reach} on a padded axis of {room + reach}")
        count = room // strides[k] + 1
        if up and room % strides[k]:
            # one more position, unless it would start in the padding behind the data
            count += int(count * strides[k] < size + pads[k])
        out.append(count)
    return tuple(out)


def conv_shape(op: Op, data: Shape, weight: Shape) -> Shape:
    """Return [n, m, ...] of a convolution over NCHW data, channels x groups checked."""
    if len(data) < 3 or len(weight) != len(data):
        raise Contradiction(f"data {show(data)} and weight {show(weight)} differ in rank")
    groups = op.integer("group", 1)
    if data[1] != weight[1] * groups:
        raise Contradiction(
            f"data {show(data)} has {data[1]} channels, weight {show(weight)} with"
            f" group={groups} takes {weight[1] * groups}"
        )
    if groups < 1 or weight[0] % groups:
        raise Contradiction(f"{weight[0]} output channels in {groups} groups")
    kernel = op.ints("kernel_shape") or weight[2:]
    return (data[0], weight[0], *window_positions(op, data[2:], kernel))


def _conv(op: Op) -> list[Fact]:
    return [op.like(conv_shape(op, op.shape(), op.shape(1)))]


def _conv_integer(op: Op) -> list[Fact]:
    return [Fact(conv_shape(op, op.shape(), op.shape(1)), INT32)]


def _qlinear_conv(op: Op) -> list[Fact]:
    return [op.like(conv_shape(op, op.shape(), op.shape(3)), 7)]


def _conv_transpose(op: Op) -> list[Fact]:
    data, weight = op.shape(), op.shape(1)
    if len(data) < 3 or len(weight) != len(data) or data[1] != weight[0]:
        raise Contradiction(f"data {show(data)} does not fit weight {show(weight)}")
    rank = len(data) - 2
    lead = (data[0], weight[1] * op.integer("group", 1))
    fixed = op.ints("output_shape")
    if fixed:
        return [op.like((*lead, *fixed[-rank:]))]
    strides = op.ints("strides") or [1] * rank
    if op.text("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER"):
        return [op.like((*lead, *(d * s for d, s in zip(data[2:], strides, strict=True))))]
    dilations = op.ints("dilations") or [1] * rank
    extra = op.ints("output_padding") or [0] * rank
    pads = op.ints("pads") or [0] * (2 * rank)
    kernel = op.ints("kernel_shape") or weight[2:]
    if not len(strides) == len(dilations) == len(extra) == len(kernel) == len(pads) / 2 == rank:
        raise Contradiction(f"strides, dilations, pads or kernel do not fit {rank} spatial axes")
    out = [
        strides[k] * (data[2 + k] - 1)
        + extra[k]
        + dilations[k] * (kernel[k] - 1)
        + 1
        - pads[k]
        - pads[k + rank]
        for k in range(rank)
    ]
    if min(out) < 1:
        raise Contradiction(f"pads {pads} leave nothing of the output")
    return [op.like((*lead, *out))]


def pool_shape(op: Op, data: Shape) -> Shape:
    """Return the shape of a pooling over NCHW data."""
    kernel = op.ints("kernel_shape")
    if len(data) < 3 or kernel is None:
        raise Contradiction(f"{show(data)} has no spatial axis to pool, or no kernel_shape")
    return (*data[:2], *window_positions(op, data[2:], kernel))


def _pool(op: Op) -> list[Fact]:
    out = pool_shape(op, op.shape())
    return [op.like(out), Fact(out, INT64)]  # the indices of MaxPool


def _global_pool(op: Op) -> list[Fact]:
    shape = op.shape()
    return [op.like((*shape[:2], *[1] * (len(shape) - 2)))]


def _max_unpool(op: Op) -> list[Fact]:
    if op.has(2):
        return [op.like(op.values(2))]
    data, kernel = op.shape(), op.ints("kernel_shape") or []
    rank = len(kernel)
    strides, pads = op.ints("strides") or [1] * rank, op.ints("pads") or [0] * (2 * rank)
    spatial = [
        strides[k] * (data[2 + k] - 1) + kernel[k] - pads[k] - pads[k + rank] for k in range(rank)
    ]
    return [op.like((*data[:2], *spatial))]


def _roi_align(op: Op) -> list[Fact]:
    height, width = op.integer("output_height", 1), op.integer("output_width", 1)
    return [op.like((op.shape(1)[0], op.shape()[1], height, width))]


def _max_roi_pool(op: Op) -> list[Fact]:
    return [op.like((op.shape(1)[0], op.shape()[1], *(op.ints("pooled_shape") or ())))]


def _grid_sample(op: Op) -> list[Fact]:
    return [op.like((*op.shape()[:2], *op.shape(1)[1:-1]))]


def _scaled(op: Op, scales: Sequence[float], roi: Sequence[float] | None = None) -> Shape:
    shape = op.shape()
    if len(scales) != len(shape):
        raise Contradiction(f"{len(scales)} scales for a tensor {show(shape)}")
    # single precision as the runtimes multiply, so that 1.9999 and 2.0 fall on the same side
    spans = np.ones(len(shape), np.float32)
    if roi is not None:
        spans = np.asarray(roi[len(shape) :], np.float32) - np.asarray(
            roi[: len(shape)], np.float32
        )
    lengths = np.asarray(shape, np.float32) * spans * np.asarray(scales, np.float32)
    return tuple(int(x) for x in np.floor(lengths))


def _resize(op: Op) -> list[Fact]:
    shape = op.shape()
    named = op.ints("axes")
    axes = list(range(len(shape))) if named is None else [axis_of(a, len(shape)) for a in named]
    at_scales = 1 if op.version < 11 else 2
    if op.has(3) and op.fact(3).shape != (0,):
        return [op.like(_resized_to(op, shape, axes, op.values(3)))]
    given = [float(x) for x in op.value(at_scales).ravel()]
    if len(given) != len(axes):
        raise Contradiction(f"{len(given)} scales for {len(axes)} axes of {show(shape)}")
    scales = [1.0] * len(shape)
    for axis, scale in zip(axes, given, strict=True):
        scales[axis] = scale
    roi = None
    if op.text("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        box = [float(x) for x in op.value(1).ravel()]
        roi = [0.0] * len(shape) + [1.0] * len(shape)
        for k, axis in enumerate(axes):
            roi[axis], roi[axis + len(shape)] = box[k], box[k + len(axes)]
    return [op.like(_scaled(op, scales, roi))]


def _resized_to(op: Op, shape: Shape, axes: Sequence[int], sizes: Sequence[int]) -> Shape:
    if len(sizes) != len(axes):
        raise Contradiction(f"sizes {show(sizes)} for {len(axes)} axes of {show(shape)}")
    out = list(shape)
    policy = op.text("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        for axis, size in zip(axes, sizes, strict=True):
            out[axis] = size
        return tuple(out)
    pick = min if policy == "not_larger" else max
    scale = pick(size / shape[axis] for axis, size in zip(axes, sizes, strict=True))
    for axis in axes:
        out[axis] = math.floor(scale * shape[axis] + 0.5)
    return tuple(out)


def _upsample(op: Op) -> list[Fact]:
    if op.version < 7:
        height, width = op.number("height_scale", 1.0), op.number("width_scale", 1.0)
        return [op.like(_scaled(op, (1.0, 1.0, height, width)))]
    scales = op.floats("scales") if op.version < 9 else [float(x) for x in op.value(1).ravel()]
    if scales is None:
        raise Unknown
    return [op.like(_scaled(op, scales))]


def _blocks(op: Op, *, to_depth: bool) -> list[Fact]:
    n, c, h, w = of_rank(op.shape(), 4)
    block = op.integer("blocksize", 0)
    if block < 1:
        raise Contradiction(f"blocksize {block}")
    if to_depth:
        if h % block or w % block:
            raise Contradiction(f"{show(op.shape())} does not divide into blocks of {block}")
        return [op.like((n, c * block * block, h // block, w // block))]
    if c % (block * block):
        raise Contradiction(f"channels of {show(op.shape())} do not fill blocks of {block}")
    return [op.like((n, c // (block * block), h * block, w * block))]


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), _global_pool),
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), _pool),
    "Conv": _conv,
    "ConvInteger": _conv_integer,
    "QLinearConv": _qlinear_conv,
    "ConvTranspose": _conv_transpose,
    "MaxUnpool": _max_unpool,
    "RoiAlign": _roi_align,
    "MaxRoiPool": _max_roi_pool,
    "GridSample": _grid_sample,
    "Resize": _resize,
    "Upsample": _upsample,
    "DepthToSpace": lambda op: _blocks(op, to_depth=False),
    "SpaceToDepth": lambda op: _blocks(op, to_depth=True),
}
