"""Pre-activation ResNets (He et al., arXiv 1603.05027), the BiT models made of them (Kolesnikov et
al., 1912.11370), and ConvMixer (Trockman & Kolter, 2201.09792).

Numbers as in timm. Standardised weights of BiT are taken as constants, as an exporter folds them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import onnx

from benchmarks.models.blocks import act, group_norm
from benchmarks.models.mobile import divisible
from benchmarks.models.net import Net, Value


@dataclass(frozen=True, slots=True)
class PreAct:
    """Numbers of one member. `stem` as the widths of a 3 x 3 stem, empty for 7 x 7."""

    depths: tuple[int, ...]
    basic: bool = False
    factor: int = 1
    groups: int = 0  # GroupNorm of so many groups; 0: batch normalisation
    stem: tuple[int, ...] = ()
    average_down: bool = False


def _norm_act(net: Net, x: Value, kind: PreAct) -> Value:
    y = group_norm(net, x, kind.groups) if kind.groups else net.batch_norm(x)
    return act(net, y, "relu")


def _block(net: Net, x: Value, out: int, stride: int, kind: PreAct, *, first: bool) -> Value:
    y = _norm_act(net, x, kind)
    skip = x
    if first and (not kind.basic or stride > 1 or x.channels != out):
        source = y
        if kind.average_down and stride > 1:
            source = net.avg_pool(source, 2, pad=0, ceil=True, count_include_pad=False)
        skip = net.conv(source, out, stride=1 if kind.average_down else stride)
    if kind.basic:
        y = net.conv(y, out, 3, stride=stride)
        return net.add(net.conv(_norm_act(net, y, kind), out, 3), skip)
    middle = divisible(out / 4)
    y = net.conv(y, middle)
    y = net.conv(_norm_act(net, y, kind), middle, 3, stride=stride)
    return net.add(net.conv(_norm_act(net, y, kind), out), skip)


def preact_resnet(kind: PreAct, size: int) -> onnx.ModelProto:
    """Return the network for images of `size` x `size`."""
    net = Net("preact_resnet")
    x = net.image(size)
    if kind.stem:
        for i, width in enumerate(kind.stem):
            x = _norm_act(net, x, kind) if i else x
            x = net.conv(x, width, 3, stride=1 if i else 2)
    else:
        x = net.conv(x, 64 * kind.factor, 7, stride=2)
    x = net.max_pool(x, 3, stride=2)
    for stage, depth in enumerate(kind.depths):
        out = (64 if kind.basic else 256) * kind.factor << stage
        for i in range(depth):
            stride = 2 if stage and not i else 1
            x = _block(net, x, out, stride, kind, first=i == 0)
    x = net.global_pool(_norm_act(net, x, kind))
    return net.model(net.flatten(net.conv(x, 1000, bias=True)))


_DEEP = (32, 32, 64)
_PREACT = {
    "resnet200_v2": PreAct((3, 24, 36, 3)),
    **{
        f"resnetv2_{depth}{stem}": PreAct(
            depths, basic=depth < 50, average_down=bool(stem),
            stem={"": (), "d": _DEEP, "t": (24, 32, 64)}[stem],
        )
        for depth, depths, stems in (
            (18, (2, 2, 2, 2), ("", "d")), (34, (3, 4, 6, 3), ("", "d")),
            (50, (3, 4, 6, 3), ("", "d", "t")), (101, (3, 4, 23, 3), ("", "d")),
            (152, (3, 8, 36, 3), ("", "d")),
        )
        for stem in stems
    },
    "resnetv2_50d_gn": PreAct((3, 4, 6, 3), stem=_DEEP, average_down=True, groups=32),
    **{
        f"resnetv2_{depth}x{factor}_bit": PreAct(depths, factor=factor, groups=32)
        for depth, factor, depths in (
            (50, 1, (3, 4, 6, 3)), (50, 3, (3, 4, 6, 3)), (101, 1, (3, 4, 23, 3)),
            (101, 3, (3, 4, 23, 3)), (152, 2, (3, 8, 36, 3)), (152, 4, (3, 8, 36, 3)),
        )
    },
}  # fmt: skip


def convmixer(
    width: int, depth: int, kernel: int, patch: int, activation: str, size: int
) -> onnx.ModelProto:
    """ConvMixer: large depthwise convolutions on patches."""
    net = Net("convmixer")

    def after(x: Value) -> Value:
        return net.batch_norm(act(net, x, activation))

    x = net.image(size)
    x = after(net.conv(x, width, patch, stride=patch, pads=(0, 0, 0, 0), bias=True))
    low = (kernel - 1) // 2
    pads = (low, low, kernel - 1 - low, kernel - 1 - low)
    for _ in range(depth):
        mixed = net.conv(x, width, kernel, groups=width, pads=pads, bias=True)
        x = net.add(after(mixed), x)
        x = after(net.conv(x, width, bias=True))
    return net.model(net.linear(net.flatten(net.global_pool(x)), 1000))


MODELS: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    **{name: partial(preact_resnet, kind) for name, kind in _PREACT.items()},
    "convmixer_1536_20": partial(convmixer, 1536, 20, 9, 7, "gelu"),
    "convmixer_768_32": partial(convmixer, 768, 32, 7, 7, "relu"),
    "convmixer_1024_20_ks9_p14": partial(convmixer, 1024, 20, 9, 14, "gelu"),
}
