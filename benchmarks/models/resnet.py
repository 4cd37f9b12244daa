"""ResNet and what grew from it: ResNeXt, Wide-ResNet, SE, ECA, RS, the 'bag of tricks' C/D/S/T
stems, anti-aliased and blur-pooled versions.

Stride in the 3 x 3 convolution ('v1.5', torchvision). He et al., arXiv 1512.03385; Xie et al.,
1611.05431; Zagoruyko & Komodakis, 1605.07146; He et al., 1812.01187; Bello et al., 2103.07579;
Hu et al., 1709.01507; Wang et al., 1910.03151; Zhang, 1904.11486. Depths and widths as in timm.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import onnx

from benchmarks.models.blocks import (
    act,
    channel_gate,
    classifier,
    conv_bn,
    group_norm,
    squeeze_excite,
)
from benchmarks.models.net import Net, Value


@dataclass(frozen=True, slots=True)
class ResNet:
    """Numbers of one member. `stem` is '' (7 x 7) or the widths of a 3 x 3 stem."""

    depths: tuple[int, ...]
    basic: bool = False
    groups: int = 1
    group_width: int = 64
    stem: tuple[int, ...] = ()
    average_down: bool = False
    gate: str = ""  # 'se', 'eca'
    gate_ratio: float = 1 / 16
    alias: str = ""  # 'average' or 'blur' before a stride
    stem_pool: bool = True  # False: a strided convolution instead
    first_reduction: int = 1
    down_kernel: int = 1
    norm_groups: int = 0  # GroupNorm with so many groups instead of BatchNorm


def _conv_norm(net: Net, x: Value, out: int, kernel: int, kind: ResNet, **how: int) -> Value:
    if kind.norm_groups:
        return group_norm(net, net.conv(x, out, kernel, **how), kind.norm_groups)  # type: ignore[arg-type]
    return conv_bn(net, x, out, kernel, activation="", **how)  # type: ignore[arg-type]


def _soften(net: Net, x: Value, kind: str) -> Value:
    """Halve an image without aliasing: mean of 2 x 2, or a fixed 3 x 3 binomial filter."""
    if kind == "average":
        return net.avg_pool(x, 2)
    n, c, h, w = x.shape
    padded = net.pad(x, 1, 1, 1, 1)
    filters = net.weight(c, 1, 3, 3, stem="buffer")
    shape = (n, c, (h + 1) // 2, (w + 1) // 2)
    return net.node("Conv", [padded, filters], shape, group=c, strides=[2, 2], kernel_shape=[3, 3])


def _stem(net: Net, x: Value, kind: ResNet) -> Value:
    if not kind.stem:
        x = _conv_norm(net, x, 64, 7, kind, stride=2)
    else:
        for i, width in enumerate(kind.stem):
            x = act(net, x, "relu") if i else x
            x = _conv_norm(net, x, width, 3, kind, stride=1 if i else 2)
    x = act(net, x, "relu")
    if not kind.stem_pool:
        return act(net, _conv_norm(net, x, x.channels, 3, kind, stride=2), "relu")
    if kind.alias == "average":
        return net.max_pool(x, 2)
    if kind.alias == "blur":
        return _soften(net, net.max_pool(x, 3, stride=1), "blur")
    return net.max_pool(x, 3, stride=2)


def _shortcut(net: Net, x: Value, out: int, stride: int, kind: ResNet) -> Value:
    if stride == 1 and x.channels == out:
        return x
    if not kind.average_down:
        return _conv_norm(net, x, out, kind.down_kernel if stride > 1 else 1, kind, stride=stride)
    if stride > 1:
        x = net.avg_pool(x, 2, pad=0, ceil=True, count_include_pad=False)
    return _conv_norm(net, x, out, 1, kind)


def _gated(net: Net, x: Value, kind: ResNet) -> Value:
    if kind.gate == "se":
        hidden = max(8, -(-int(x.channels * kind.gate_ratio) // 8) * 8)
        return squeeze_excite(net, x, hidden)
    return channel_gate(net, x) if kind.gate == "eca" else x


def _block(net: Net, x: Value, planes: int, stride: int, kind: ResNet) -> Value:
    out = planes if kind.basic else 4 * planes
    soften = kind.alias if stride > 1 else ""
    step = 1 if soften else stride
    if kind.basic:
        y = act(net, _conv_norm(net, x, planes, 3, kind, stride=step), "relu")
        y = _soften(net, y, soften) if soften else y
        y = _conv_norm(net, y, out, 3, kind)
    else:
        width = planes * kind.group_width // 64 * kind.groups
        y = act(net, _conv_norm(net, x, width // kind.first_reduction, 1, kind), "relu")
        y = _conv_norm(net, y, width, 3, kind, stride=step, groups=kind.groups)
        y = act(net, y, "relu")
        y = _soften(net, y, soften) if soften else y
        y = _conv_norm(net, y, out, 1, kind)
    return act(net, net.add(_gated(net, y, kind), _shortcut(net, x, out, stride, kind)), "relu")


def resnet(kind: ResNet, size: int) -> onnx.ModelProto:
    """Return the network for images of `size` x `size`."""
    net = Net("resnet")
    x = _stem(net, net.image(size), kind)
    for stage, depth in enumerate(kind.depths):
        for i in range(depth):
            x = _block(net, x, 64 << stage, 2 if stage and not i else 1, kind)
    return net.model(classifier(net, x))


_DEPTHS = {
    10: (1, 1, 1, 1), 14: (1, 1, 1, 1), 18: (2, 2, 2, 2), 26: (2, 2, 2, 2), 34: (3, 4, 6, 3),
    50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3),
    201: (3, 24, 36, 4), 269: (3, 30, 48, 8),
}  # fmt: skip
_STEMS: Mapping[str, tuple[tuple[int, ...], bool]] = {
    "": ((), False),
    "c": ((32, 32, 64), False),
    "d": ((32, 32, 64), True),
    "s": ((64, 64, 128), False),
    "t": ((24, 32, 64), True),
}


def _member(depth: int, stem: str = "", **changes: object) -> ResNet:
    widths, average_down = _STEMS[stem]
    basic = depth in (10, 18, 34)
    plain = ResNet(_DEPTHS[depth], basic=basic, stem=widths, average_down=average_down)
    return replace(plain, **changes)  # type: ignore[arg-type]


def _resnext(depth: int, groups: int, width: int, stem: str = "", **changes: object) -> ResNet:
    return _member(depth, stem, groups=groups, group_width=width, **changes)


_PLAIN = {
    f"resnet{depth}{stem}": _member(depth, stem)
    for depth, stem in (
        (10, "t"), (14, "t"), (18, ""), (18, "d"), (26, ""), (26, "d"), (26, "t"), (34, ""),
        (34, "d"), (50, ""), (50, "c"), (50, "d"), (50, "s"), (50, "t"), (101, ""), (101, "c"),
        (101, "d"), (101, "s"), (152, ""), (152, "c"), (152, "d"), (152, "s"), (200, ""),
        (200, "d"),
    )
}  # fmt: skip
_NEXT = {
    f"resnext{depth}{stem}_{groups}x{width}d": _resnext(depth, groups, width, stem)
    for depth, stem, groups, width in (
        (50, "", 32, 4), (50, "d", 32, 4), (50, "", 64, 4), (50, "d", 64, 4), (101, "", 32, 4),
        (101, "", 32, 8), (101, "", 32, 16), (101, "", 32, 32), (101, "", 32, 48),
        (101, "", 64, 4), (101, "d", 32, 4), (101, "d", 64, 4), (152, "", 32, 4),
        (152, "", 64, 4), (152, "d", 32, 4), (152, "d", 64, 4),
    )
}  # fmt: skip
_GATED = {
    f"{gate}resnet{depth}{stem}": _member(depth, stem, gate=gate)
    for gate, depth, stem in (
        ("se", 18, ""), ("se", 34, ""), ("se", 50, ""), ("se", 50, "t"), ("se", 101, ""),
        ("se", 152, ""), ("se", 152, "d"), ("se", 200, "d"), ("se", 269, "d"), ("se", 18, "d"),
        ("se", 34, "d"), ("se", 50, "d"),
        ("eca", 26, "t"), ("eca", 50, "d"), ("eca", 50, "t"), ("eca", 101, "d"),
        ("eca", 200, "d"), ("eca", 269, "d"),
    )
} | {
    f"{gate}resnext{depth}{stem}_{groups}x{width}d": _resnext(
        depth, groups, width, stem, gate=gate
    )
    for gate, depth, stem, groups, width in (
        ("se", 26, "d", 32, 4), ("se", 26, "t", 32, 4), ("se", 50, "", 32, 4),
        ("se", 50, "d", 32, 4), ("se", 101, "", 32, 4), ("se", 101, "", 32, 8),
        ("se", 101, "d", 32, 8), ("se", 101, "", 64, 4), ("eca", 26, "t", 32, 4),
    )
}  # fmt: skip
_RS_DEPTHS = {
    50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3),
    270: (4, 29, 53, 4), 350: (4, 36, 72, 4), 420: (4, 44, 87, 4),
}  # fmt: skip
_OTHERS = {
    "wide_resnet50_2": _member(50, group_width=128),
    "wide_resnet101_2": _member(101, group_width=128),
    "resnet50_gn": _member(50, norm_groups=32),
    "ecaresnetlight": ResNet((1, 1, 11, 3), average_down=True, gate="eca"),
    "seresnext26tn_32x4d": _resnext(26, 32, 4, "t", gate="se"),
    "senet154": _resnext(
        152, 64, 4, "s", gate="se", first_reduction=2, down_kernel=3
    ),
    "resnetaa34d": _member(34, "d", alias="average"),
    "resnetaa50": _member(50, alias="average"),
    "resnetaa50d": _member(50, "d", alias="average"),
    "resnetaa101d": _member(101, "d", alias="average"),
    "seresnetaa50d": _member(50, "d", alias="average", gate="se"),
    "seresnextaa101d_32x8d": _resnext(101, 32, 8, "d", alias="average", gate="se"),
    "seresnextaa201d_32x8d": replace(
        _resnext(201, 32, 8, "s", alias="average", gate="se"), average_down=True
    ),
    "resnetblur18": _member(18, alias="blur"),
    "resnetblur50": _member(50, alias="blur"),
    "resnetblur50d": _member(50, "d", alias="blur"),
    "resnetblur101d": _member(101, "d", alias="blur"),
    **{
        f"resnetrs{depth}": ResNet(
            depths, stem=(32, 32, 64), average_down=True, gate="se", gate_ratio=0.25,
            stem_pool=False,
        )
        for depth, depths in _RS_DEPTHS.items()
    },
}  # fmt: skip


def _builder(kind: ResNet) -> Callable[[int], onnx.ModelProto]:
    return lambda size: resnet(kind, size)


MODELS: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    name: _builder(kind) for name, kind in (_PLAIN | _NEXT | _GATED | _OTHERS).items()
}
