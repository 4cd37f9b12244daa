"""Plain stacks for fast inference: RepVGG, GENet, DarkNet and its CSP versions, PP-HGNet, ReXNet.

Ding et al., arXiv 2101.03697; Lin et al., 2006.14090; Redmon & Farhadi, 1804.02767; Wang et al.,
1911.11929; Han et al., 2007.00992; PP-HGNet as in PaddleClas. Numbers as in timm.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import onnx

from benchmarks.models.blocks import act, classifier, conv_bn, squeeze_excite
from benchmarks.models.mobile import divisible
from benchmarks.models.net import Net, Value


@dataclass(frozen=True, slots=True)
class RepVgg:
    """Widths factors and depths; every second block of `groups` groups."""

    depths: tuple[int, ...]
    factors: tuple[float, ...]
    stem: int = 64
    groups: int = 1


def _rep_block(net: Net, x: Value, out: int, stride: int, groups: int, *, merged: bool) -> Value:
    """3 x 3, 1 x 1 and identity branches summed, or merged into one convolution with bias."""
    if merged:
        return act(net, net.conv(x, out, 3, stride=stride, groups=groups, bias=True), "relu")
    y = net.add(
        conv_bn(net, x, out, stride=stride, groups=groups, activation=""),
        conv_bn(net, x, out, 3, stride=stride, groups=groups, activation=""),
    )
    if stride == 1 and x.channels == out:
        y = net.add(y, net.batch_norm(x))
    return act(net, y, "relu")


def repvgg(kind: RepVgg, merged: bool, size: int) -> onnx.ModelProto:
    """RepVGG as trained, or `merged` as deployed."""
    net = Net("repvgg")
    x = _rep_block(net, net.image(size), kind.stem, 2, 1, merged=merged)
    for stage, (depth, factor) in enumerate(zip(kind.depths, kind.factors, strict=True)):
        out = int((64 << stage) * factor)
        for i in range(depth):
            groups = kind.groups if i % 2 else 1
            x = _rep_block(net, x, out, 1 if i else 2, groups, merged=merged)
    return net.model(classifier(net, x))


_A, _B = (2, 4, 14, 1), (4, 6, 16, 1)
_REPVGG = {
    "repvgg_a0": RepVgg(_A, (0.75, 0.75, 0.75, 2.5), 48),
    "repvgg_a1": RepVgg(_A, (1, 1, 1, 2.5)),
    "repvgg_a2": RepVgg(_A, (1.5, 1.5, 1.5, 2.75)),
    "repvgg_b0": RepVgg(_B, (1, 1, 1, 2.5)),
    "repvgg_b1": RepVgg(_B, (2, 2, 2, 4)),
    "repvgg_b1g2": RepVgg(_B, (2, 2, 2, 4), groups=2),
    "repvgg_b1g4": RepVgg(_B, (2, 2, 2, 4), groups=4),
    "repvgg_b2": RepVgg(_B, (2.5, 2.5, 2.5, 5)),
    "repvgg_b2g4": RepVgg(_B, (2.5, 2.5, 2.5, 5), groups=4),
    "repvgg_b3": RepVgg(_B, (3, 3, 3, 5)),
    "repvgg_b3g4": RepVgg(_B, (3, 3, 3, 5), groups=4),
}
# GENet: stem, head, then (blocks, width, stride, ratio, depthwise); ratio 0 = two 3 x 3
_GENET: Mapping[str, tuple[int, int, tuple[tuple[int, int, int, float, bool], ...]]] = {
    "gernet_s": (13, 1920, (
        (1, 48, 2, 0, False), (3, 48, 2, 0, False), (7, 384, 2, 0.25, False),
        (2, 560, 2, 3, True), (1, 256, 1, 3, True),
    )),
    "gernet_m": (32, 2560, (
        (1, 128, 2, 0, False), (2, 192, 2, 0, False), (6, 640, 2, 0.25, False),
        (4, 640, 2, 3, True), (1, 640, 1, 3, True),
    )),
    "gernet_l": (32, 2560, (
        (1, 128, 2, 0, False), (2, 192, 2, 0, False), (6, 640, 2, 0.25, False),
        (5, 640, 2, 3, True), (4, 640, 1, 3, True),
    )),
}  # fmt: skip


def _genet_block(
    net: Net, x: Value, out: int, stride: int, ratio: float, depthwise: bool
) -> Value:
    skip = x
    if stride > 1 or x.channels != out:
        skip = conv_bn(net, x, out, stride=stride, activation="")
    if not ratio:
        y = conv_bn(net, x, out, 3, stride=stride)
        y = conv_bn(net, y, out, 3, activation="")
    else:
        middle = divisible(out * ratio)
        y = conv_bn(net, x, middle)
        y = conv_bn(net, y, middle, 3, stride=stride, groups=middle if depthwise else 1)
        y = conv_bn(net, y, out, activation="")
    return act(net, net.add(y, skip), "relu")


def genet(name: str, size: int) -> onnx.ModelProto:
    """GPU-efficient network (called gernet in timm)."""
    net = Net("genet")
    stem, head, stages = _GENET[name]
    x = conv_bn(net, net.image(size), stem, 3, stride=2)
    for count, out, stride, ratio, depthwise in stages:
        for i in range(count):
            x = _genet_block(net, x, out, 1 if i else stride, ratio, depthwise)
    return net.model(classifier(net, conv_bn(net, x, head)))


def _dark_block(
    net: Net, x: Value, middle: int, activation: str, *,
    squeeze: float = 0.0, edge: bool = False,
) -> Value:  # fmt: skip
    """1 x 1 then 3 x 3 (or, `edge`, 3 x 3 then 1 x 1), added to its input."""
    out = x.channels
    y = conv_bn(net, x, middle, 3 if edge else 1, activation=activation)
    if squeeze:
        hidden = divisible(middle * squeeze, limit=0.0)
        y = squeeze_excite(net, y, hidden, activation=activation)
    return net.add(conv_bn(net, y, out, 1 if edge else 3, activation=activation), x)


_DARK = ((1, 64), (2, 128), (8, 256), (8, 512), (4, 1024))


def darknet(depths: Sequence[int], size: int) -> onnx.ModelProto:
    """The backbone of YOLOv3."""
    net = Net("darknet")
    x = conv_bn(net, net.image(size), 32, 3, activation="leaky")
    for depth, (_, out) in zip(depths, _DARK, strict=True):
        x = conv_bn(net, x, out, 3, stride=2, activation="leaky")
        for _ in range(depth):
            x = _dark_block(net, x, out // 2, "leaky")
    return net.model(classifier(net, x))


def cspdarknet53(size: int) -> onnx.ModelProto:
    """DarkNet-53 with each stage's blocks on half of the channels."""
    net = Net("cspdarknet53")
    x = conv_bn(net, net.image(size), 32, 3, activation="leaky")
    for stage, (depth, out) in enumerate(_DARK):
        x = conv_bn(net, x, out, 3, stride=2, activation="leaky")
        expanded = out if stage else 2 * out
        kept, y = net.split(conv_bn(net, x, expanded, activation="leaky"), (expanded // 2,) * 2)
        for _ in range(depth):
            y = _dark_block(net, y, y.channels if stage else y.channels // 2, "leaky")
        y = conv_bn(net, y, expanded // 2, activation="leaky")
        x = conv_bn(net, net.concat([kept, y]), out, activation="leaky")
    return net.model(classifier(net, x))


@dataclass(frozen=True, slots=True)
class CrossStage:
    """CSP stages with one transition (timm's cs3darknet), scaled in width and depth."""

    width: float = 1.0
    depth: float = 1.0
    focus: bool = False  # one 6 x 6 convolution as stem
    squeeze: float = 0.0
    ratio: float = 1.0
    edge: bool = False


def cs3darknet(kind: CrossStage, size: int) -> onnx.ModelProto:
    """DarkNet with CSP stages of three convolutions, SiLU."""
    net = Net("cs3darknet")
    x = net.image(size)
    if kind.focus:
        stem = divisible(64 * kind.width)
        x = conv_bn(net, x, stem, 6, stride=2, pads=(2, 2, 2, 2), activation="silu")
    else:
        for i, width in enumerate((32, 64)):
            out = divisible(width * kind.width)
            x = conv_bn(net, x, out, 3, stride=1 if i else 2, activation="silu")
    for base, depth in zip((128, 256, 512, 1024), (3, 6, 9, 3), strict=True):
        out = divisible(base * kind.width)
        x = conv_bn(net, x, x.channels, 3, stride=2, activation="silu")
        y, kept = net.split(conv_bn(net, x, out, activation="silu"), (out // 2,) * 2)
        for _ in range(int(depth * kind.depth)):
            middle = round(out // 2 * kind.ratio)
            y = _dark_block(net, y, middle, "silu", squeeze=kind.squeeze, edge=kind.edge)
        x = conv_bn(net, net.concat([y, kept]), out, activation="silu")
    return net.model(classifier(net, x))


_CS3 = {
    "cs3darknet_s": CrossStage(0.5, 0.5),
    "cs3darknet_m": CrossStage(0.75, 0.67),
    "cs3darknet_l": CrossStage(),
    "cs3darknet_x": CrossStage(1.25, 1.33),
    "cs3darknet_focus_s": CrossStage(0.5, 0.5, focus=True),
    "cs3darknet_focus_m": CrossStage(0.75, 0.67, focus=True),
    "cs3darknet_focus_l": CrossStage(focus=True),
    "cs3darknet_focus_x": CrossStage(1.25, 1.33, focus=True),
    "cs3sedarknet_l": CrossStage(squeeze=0.25),
    "cs3sedarknet_x": CrossStage(1.25, 1.33, squeeze=1 / 16),
    "cs3edgenet_x": CrossStage(1.25, 1.33, ratio=1.5, edge=True),
    "cs3se_edgenet_x": CrossStage(1.25, 1.33, squeeze=0.25, ratio=1.5, edge=True),
}

# PP-HGNet: stem; then per stage (inner, out, blocks, light, layers)
_HGNET: Mapping[str, tuple[tuple[int, ...], tuple[tuple[int, int, int, bool, int], ...]]] = {
    "hgnet_tiny": ((48, 48, 96), (
        (96, 224, 1, False, 5), (128, 448, 1, False, 5), (160, 512, 2, False, 5),
        (192, 768, 1, False, 5),
    )),
    "hgnet_small": ((64, 64, 128), (
        (128, 256, 1, False, 6), (160, 512, 1, False, 6), (192, 768, 2, False, 6),
        (224, 1024, 1, False, 6),
    )),
    "hgnet_base": ((96, 96, 160), (
        (192, 320, 1, False, 7), (224, 640, 2, False, 7), (256, 960, 3, False, 7),
        (288, 1280, 2, False, 7),
    )),
    "hgnetv2_b0": ((16, 16), (
        (16, 64, 1, False, 3), (32, 256, 1, False, 3), (64, 512, 2, True, 3),
        (128, 1024, 1, True, 3),
    )),
    "hgnetv2_b1": ((24, 32), (
        (32, 64, 1, False, 3), (48, 256, 1, False, 3), (96, 512, 2, True, 3),
        (192, 1024, 1, True, 3),
    )),
    "hgnetv2_b2": ((24, 32), (
        (32, 96, 1, False, 4), (64, 384, 1, False, 4), (128, 768, 3, True, 4),
        (256, 1536, 1, True, 4),
    )),
    "hgnetv2_b3": ((24, 32), (
        (32, 128, 1, False, 5), (64, 512, 1, False, 5), (128, 1024, 3, True, 5),
        (256, 2048, 1, True, 5),
    )),
    "hgnetv2_b4": ((32, 48), (
        (48, 128, 1, False, 6), (96, 512, 1, False, 6), (192, 1024, 3, True, 6),
        (384, 2048, 1, True, 6),
    )),
    "hgnetv2_b5": ((32, 64), (
        (64, 128, 1, False, 6), (128, 512, 2, False, 6), (256, 1024, 5, True, 6),
        (512, 2048, 2, True, 6),
    )),
    "hgnetv2_b6": ((48, 96), (
        (96, 192, 2, False, 6), (192, 512, 3, False, 6), (384, 1024, 6, True, 6),
        (768, 2048, 3, True, 6),
    )),
}  # fmt: skip


def _learned(net: Net, x: Value, *, affine: bool) -> Value:
    """One learned factor and offset for the whole tensor, after an activation."""
    if not affine:
        return x
    return net.add(net.mul(net.weight(1, stem="scale"), x), net.weight(1, stem="bias"))


def _hg_conv(
    net: Net, x: Value, out: int, kernel: int = 1, *, stride: int = 1,
    pads: tuple[int, int, int, int] | None = None, affine: bool,
) -> Value:  # fmt: skip
    return _learned(net, conv_bn(net, x, out, kernel, stride=stride, pads=pads), affine=affine)


def _hg_stem(net: Net, x: Value, widths: tuple[int, ...], *, affine: bool) -> Value:
    if len(widths) == 3:
        for i, width in enumerate(widths):
            x = conv_bn(net, x, width, 3, stride=1 if i else 2)
        return net.max_pool(x, 3, stride=2)
    middle, out = widths
    valid = (0, 0, 0, 0)
    x = net.pad(_hg_conv(net, x, middle, 3, stride=2, affine=affine), 0, 0, 1, 1)
    y = _hg_conv(net, x, middle // 2, 2, pads=valid, affine=affine)
    y = _hg_conv(net, net.pad(y, 0, 0, 1, 1), middle, 2, pads=valid, affine=affine)
    x = net.concat([net.max_pool(x, 2, stride=1, pad=0), y])
    x = _hg_conv(net, x, middle, 3, stride=2, affine=affine)
    return _hg_conv(net, x, out, affine=affine)


def _hg_block(
    net: Net, x: Value, row: tuple[int, int, int, bool, int], *,
    first: bool, second_version: bool, affine: bool,
) -> Value:  # fmt: skip
    """A chain of layers, all concatenated and squeezed back."""
    inner, out, _, light, layers = row
    done = [x]
    for _ in range(layers):
        y = done[-1]
        if light:
            y = conv_bn(net, y, inner, activation="")
            y = _learned(net, conv_bn(net, y, inner, 5, groups=inner), affine=affine)
        else:
            y = _hg_conv(net, y, inner, 3, affine=affine)
        done.append(y)
    y = net.concat(done)
    if second_version:
        y = _hg_conv(net, _hg_conv(net, y, out // 2, affine=affine), out, affine=affine)
    else:
        y = conv_bn(net, y, out)
        gate = net.conv(net.mean(y, 2, 3, keepdims=True), out, bias=True)
        y = net.mul(y, net.unary("Sigmoid", gate))
    return y if first else net.add(y, x)


def hgnet(name: str, size: int) -> onnx.ModelProto:
    """PP-HGNet, version 1 or 2."""
    net = Net("hgnet")
    widths, stages = _HGNET[name]
    second, affine = "v2" in name, name.endswith(("b0", "b1", "b2", "b3"))
    x = _hg_stem(net, net.image(size), widths, affine=affine)
    for stage, row in enumerate(stages):
        if stage:
            x = conv_bn(net, x, x.channels, 3, stride=2, groups=x.channels, activation="")
        for i in range(row[2]):
            x = _hg_block(net, x, row, first=i == 0, second_version=second, affine=affine)
    y = act(net, net.conv(net.global_pool(x), 2048), "relu")
    return net.model(net.linear(net.flatten(_learned(net, y, affine=affine)), 1000))


def _partly_add(net: Net, y: Value, x: Value) -> Value:
    """Add `x` to the first channels of `y`."""
    if x.channels == y.channels:
        return net.add(y, x)
    first, rest = net.split(y, (x.channels, y.channels - x.channels))
    return net.concat([net.add(first, x), rest])


def rexnet(factor: float, divisor: int, size: int) -> onnx.ModelProto:
    """ReXNet: widths grow with every block, not every stage."""
    net = Net("rexnet")

    def width(value: float) -> int:
        return divisible(value, divisor=divisor)

    counts, strides = (1, 2, 2, 3, 3, 5), (1, 2, 2, 2, 1, 2)
    total = sum(counts)
    x = conv_bn(net, net.image(size), width(round(32 * factor)), 3, stride=2, activation="silu")
    base, index = 16.0, 0
    for stage, (count, stage_stride) in enumerate(zip(counts, strides, strict=True)):
        for i in range(count):
            out = width(round(base * factor))
            base += 180 / total
            index += 1
            inner, y, stride = x.channels, x, stage_stride if i == 0 else 1
            if stage:
                inner = width(round(x.channels * 6))
                y = conv_bn(net, y, inner, activation="silu")
            y = conv_bn(net, y, inner, 3, stride=stride, groups=inner, activation="")
            if stage > 1:
                hidden = width(int(inner / 12))
                y = squeeze_excite(net, y, hidden, norm=True)
            y = conv_bn(net, act(net, y, "relu6"), out, activation="")
            keeps = stride == 1 and x.channels <= out
            x = _partly_add(net, y, x) if keeps else y
    x = conv_bn(net, x, width(1280 * factor), activation="silu")
    return net.model(classifier(net, x))


_REXNET = {
    f"rexnet{letter}_{round(100 * factor)}": (factor, divisor)
    for letter, divisors in (("", (1, 1, 1, 1, 1)), ("r", (8, 8, 8, 8, 16)))
    for factor, divisor in zip((1.0, 1.3, 1.5, 2.0, 3.0), divisors, strict=True)
}

MODELS: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    **{name: partial(repvgg, kind, False) for name, kind in _REPVGG.items()},
    **{f"{name}_deploy": partial(repvgg, kind, True) for name, kind in _REPVGG.items()},
    **{name: partial(genet, name) for name in _GENET},
    "darknet17": partial(darknet, (1, 1, 1, 1, 1)),
    "darknet21": partial(darknet, (1, 1, 1, 2, 2)),
    "darknet53": partial(darknet, (1, 2, 8, 8, 4)),
    "cspdarknet53": cspdarknet53,
    **{name: partial(cs3darknet, kind) for name, kind in _CS3.items()},
    **{name: partial(hgnet, name) for name in _HGNET},
    **{name: partial(rexnet, *numbers) for name, numbers in _REXNET.items()},
}
