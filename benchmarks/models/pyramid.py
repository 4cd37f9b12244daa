"""Pyramids beyond the plain convolution: PVT v2, PoolFormer, ResNeSt.

Wang et al., arXiv 2106.13797; Yu et al., 2111.11418; Zhang et al., 2004.08955. Numbers as in timm.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import onnx

from benchmarks.models.blocks import (
    act,
    attend,
    classifier,
    conv_bn,
    group_norm,
    heads_first,
    tokens,
)
from benchmarks.models.mobile import divisible
from benchmarks.models.net import BATCH, Net, Value


def _image(net: Net, x: Value, side: int) -> Value:
    """[N, L, C] back to an image of `side` x `side`."""
    return net.reshape(net.transpose(x, 0, 2, 1), BATCH, x.width, side, side)


def _reduced_attention(net: Net, x: Value, heads: int, side: int, reduction: int) -> Value:
    """Attention whose keys and values come from an image shrunk by `reduction`."""
    width = x.width
    source = x
    if reduction > 1:
        small = net.conv(
            _image(net, x, side), width, reduction, stride=reduction, pads=(0, 0, 0, 0), bias=True
        )
        source = net.layer_norm(tokens(net, small))
    length = source.shape[1]
    q = heads_first(net, net.linear(x, width), heads)
    packed = net.reshape(net.linear(source, 2 * width), BATCH, length, 2, heads, width // heads)
    lead = net.transpose(packed, 2, 0, 3, 1, 4)
    return net.linear(attend(net, q, net.take(lead, 0, 0), net.take(lead, 0, 1)), width)


def _convolved_feed_forward(net: Net, x: Value, hidden: int, side: int) -> Value:
    """Linear, depthwise 3 x 3, GELU, linear."""
    y = _image(net, net.linear(x, hidden), side)
    y = tokens(net, net.conv(y, hidden, 3, groups=hidden, bias=True))
    return net.linear(act(net, y, "gelu"), x.width)


def pvt_v2(
    widths: Sequence[int], depths: Sequence[int], ratios: Sequence[int], size: int
) -> onnx.ModelProto:
    """Pyramid vision transformer, second version."""
    net = Net("pvt_v2")
    image = net.image(size)
    x = image
    for stage, (width, depth, ratio) in enumerate(zip(widths, depths, ratios, strict=True)):
        kernel, stride = (3, 2) if stage else (7, 4)
        image = net.conv(image, width, kernel, stride=stride, bias=True)
        side = image.shape[2]
        x = net.layer_norm(tokens(net, image))
        for _ in range(depth):
            y = _reduced_attention(net, net.layer_norm(x), (1, 2, 5, 8)[stage], side, 8 >> stage)
            x = net.add(x, y)
            y = _convolved_feed_forward(net, net.layer_norm(x), ratio * width, side)
            x = net.add(x, y)
        x = net.layer_norm(x)
        image = _image(net, x, side)
    return net.model(net.linear(net.mean(image, 2, 3), 1000))


_WIDE = (64, 128, 320, 512)
_PVT: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "b0": ((32, 64, 160, 256), (2, 2, 2, 2), (8, 8, 4, 4)),
    "b1": (_WIDE, (2, 2, 2, 2), (8, 8, 4, 4)),
    "b2": (_WIDE, (3, 4, 6, 3), (8, 8, 4, 4)),
    "b3": (_WIDE, (3, 4, 18, 3), (8, 8, 4, 4)),
    "b4": (_WIDE, (3, 8, 27, 3), (8, 8, 4, 4)),
    "b5": (_WIDE, (3, 6, 40, 3), (4, 4, 4, 4)),
}


def _scaled_add(net: Net, x: Value, y: Value) -> Value:
    return net.add(x, net.mul(y, net.weight(x.channels, 1, 1, stem="scale")))


def poolformer(widths: Sequence[int], depths: Sequence[int], size: int) -> onnx.ModelProto:
    """MetaFormer whose token mixer is a 3 x 3 mean minus the token itself."""
    net = Net("poolformer")
    x = net.conv(net.image(size), widths[0], 7, stride=4, pads=(2, 2, 2, 2), bias=True)
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        x = net.conv(x, width, 3, stride=2, bias=True) if stage else x
        for _ in range(depth):
            y = group_norm(net, x, 1)
            pooled = net.avg_pool(y, 3, stride=1, count_include_pad=False)
            x = _scaled_add(net, x, net.binary("Sub", pooled, y))
            y = net.conv(group_norm(net, x, 1), 4 * width, bias=True)
            x = _scaled_add(net, x, net.conv(act(net, y, "gelu"), width, bias=True))
    last = net.transpose(net.global_pool(x), 0, 2, 3, 1)
    return net.model(net.linear(net.flatten(net.layer_norm(last)), 1000))


_POOLFORMER = {
    "s12": (_WIDE, (2, 2, 6, 2)),
    "s24": (_WIDE, (4, 4, 12, 4)),
    "s36": (_WIDE, (6, 6, 18, 6)),
    "m36": ((96, 192, 384, 768), (6, 6, 18, 6)),
    "m48": ((96, 192, 384, 768), (8, 8, 24, 8)),
}


@dataclass(frozen=True, slots=True)
class ResNeSt:
    """Numbers of one member: `radix` splits, `groups` of `group_width` channels."""

    depths: tuple[int, ...]
    stem: int = 32
    radix: int = 2
    groups: int = 1
    group_width: int = 64
    pool_first: bool = False


def _sum_of_copies(net: Net, x: Value) -> Value:
    """[N, radix, C, H, W] summed over the copies."""
    return net.node("ReduceSum", [x, net.ints(1)], (BATCH, *x.shape[2:]), keepdims=0)


def _split_attention(net: Net, x: Value, out: int, stride: int, kind: ResNeSt) -> Value:
    """Convolve `radix` copies and weigh them by a softmax over the copies."""
    radix = kind.radix
    groups = kind.groups * radix
    y = conv_bn(net, x, out * radix, 3, stride=stride, groups=groups)
    _, _, h, w = y.shape
    split = net.reshape(y, BATCH, radix, out, h, w) if radix > 1 else y
    total = _sum_of_copies(net, split) if radix > 1 else y
    hidden = divisible(max(x.channels * radix * 0.25, 32), limit=0.0)
    gate = net.conv(net.mean(total, 2, 3, keepdims=True), hidden, groups=kind.groups, bias=True)
    gate = act(net, net.batch_norm(gate), "relu")
    gate = net.conv(gate, out * radix, groups=kind.groups, bias=True)
    if radix == 1:
        return net.mul(y, net.unary("Sigmoid", gate))
    cut = net.reshape(gate, BATCH, kind.groups, radix, out // kind.groups)
    weights = net.softmax(net.transpose(cut, 0, 2, 1, 3), axis=1)
    scaled = net.mul(split, net.reshape(weights, BATCH, radix, out, 1, 1))
    return _sum_of_copies(net, scaled)


def _resnest_block(
    net: Net, x: Value, planes: int, stride: int, kind: ResNeSt, *, first: bool
) -> Value:
    width = planes * kind.group_width // 64 * kind.groups
    skip = x
    if first:
        skip = net.avg_pool(x, 2, pad=0, ceil=True, count_include_pad=False) if stride > 1 else x
        skip = conv_bn(net, skip, 4 * planes, activation="")
    y = conv_bn(net, x, width)
    if first and kind.pool_first:
        y = net.avg_pool(y, 3, stride=stride)
    y = _split_attention(net, y, width, 1, kind)
    if first and not kind.pool_first:
        y = net.avg_pool(y, 3, stride=stride)
    return act(net, net.add(conv_bn(net, y, 4 * planes, activation=""), skip), "relu")


def resnest(kind: ResNeSt, size: int) -> onnx.ModelProto:
    """ResNet with split attention, mean pooling instead of strides."""
    net = Net("resnest")
    x = conv_bn(net, net.image(size), kind.stem, 3, stride=2)
    x = conv_bn(net, conv_bn(net, x, kind.stem, 3), 2 * kind.stem, 3)
    x = net.max_pool(x, 3, stride=2)
    for stage, depth in enumerate(kind.depths):
        for i in range(depth):
            stride = 2 if stage and not i else 1
            x = _resnest_block(net, x, 64 << stage, stride, kind, first=i == 0)
    return net.model(classifier(net, x))


_RESNEST = {
    "resnest14d": ResNeSt((1, 1, 1, 1)),
    "resnest26d": ResNeSt((2, 2, 2, 2)),
    "resnest50d": ResNeSt((3, 4, 6, 3)),
    "resnest101e": ResNeSt((3, 4, 23, 3), stem=64),
    "resnest200e": ResNeSt((3, 24, 36, 3), stem=64),
    "resnest269e": ResNeSt((3, 30, 48, 8), stem=64),
    "resnest50d_4s2x40d": ResNeSt(
        (3, 4, 6, 3), radix=4, groups=2, group_width=40, pool_first=True
    ),
    "resnest50d_1s4x24d": ResNeSt(
        (3, 4, 6, 3), radix=1, groups=4, group_width=24, pool_first=True
    ),
    "resnest50_fast_1s1x64d": ResNeSt((3, 4, 6, 3), radix=1, pool_first=True),
}

MODELS: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    **{f"pvt_v2_{name}": partial(pvt_v2, *numbers) for name, numbers in _PVT.items()},
    **{
        f"poolformer_{name}": partial(poolformer, *numbers)
        for name, numbers in _POOLFORMER.items()
    },
    **{name: partial(resnest, kind) for name, kind in _RESNEST.items()},
}
