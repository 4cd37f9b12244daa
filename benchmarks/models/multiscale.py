"""Networks that join several resolutions or depths: HRNet, DLA, Res2Net blocks inside DLA.

Wang et al., arXiv 1908.07919; Yu et al., 1707.06484; Gao et al., 1904.01169. Numbers as in timm.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import onnx

from benchmarks.models.blocks import act, classifier, conv_bn
from benchmarks.models.net import Net, Value


@dataclass(frozen=True, slots=True)
class HighResolution:
    """Numbers of an HRNet: width of the finest branch, modules of stages 2 to 4."""

    width: int
    modules: tuple[int, int, int] = (1, 4, 3)
    blocks: int = 4
    first_blocks: int = 4
    first_width: int = 64
    head_bias: bool = True


def _basic(net: Net, x: Value, width: int) -> Value:
    y = conv_bn(net, conv_bn(net, x, width, 3), width, 3, activation="")
    return act(net, net.add(y, x), "relu")


def _bottleneck(net: Net, x: Value, width: int) -> Value:
    y = conv_bn(net, conv_bn(net, x, width), width, 3)
    y = conv_bn(net, y, 4 * width, activation="")
    x = x if x.channels == 4 * width else conv_bn(net, x, 4 * width, activation="")
    return act(net, net.add(y, x), "relu")


def _to_scale(net: Net, x: Value, source: int, target: int, width: int) -> Value:
    """Bring branch `source` to the resolution and width of branch `target`."""
    if source > target:
        return net.resize(conv_bn(net, x, width, activation=""), 1 << (source - target))
    for step in range(target - source):
        is_last = step == target - source - 1
        out = width if is_last else x.channels
        x = conv_bn(net, x, out, 3, stride=2, activation="" if is_last else "relu")
    return x


def _fuse(net: Net, branches: Sequence[Value]) -> list[Value]:
    """Each branch becomes the sum of all, brought to its scale."""
    fused = []
    for i, target in enumerate(branches):
        total: Value | None = None
        for j, source in enumerate(branches):
            part = source if i == j else _to_scale(net, source, j, i, target.channels)
            total = part if total is None else net.add(total, part)
        assert total is not None
        fused.append(act(net, total, "relu"))
    return fused


def _transition(net: Net, branches: list[Value], widths: Sequence[int]) -> list[Value]:
    """Give each branch its width and add one of half the resolution."""
    changed = [
        x if x.channels == width else conv_bn(net, x, width, 3)
        for x, width in zip(branches, widths, strict=False)
    ]
    return [*changed, conv_bn(net, branches[-1], widths[-1], 3, stride=2)]


def _classification_head(net: Net, branches: Sequence[Value], kind: HighResolution) -> Value:
    widened = [
        _bottleneck(net, x, width) for x, width in zip(branches, (32, 64, 128, 256), strict=True)
    ]
    y = widened[0]
    for finer in widened[1:]:
        down = net.conv(y, finer.channels, 3, stride=2, bias=kind.head_bias)
        y = net.add(finer, act(net, net.batch_norm(down), "relu"))
    y = act(net, net.batch_norm(net.conv(y, 2048, bias=kind.head_bias)), "relu")
    return classifier(net, y)


def hrnet(kind: HighResolution, size: int) -> onnx.ModelProto:
    """High-resolution network for classification."""
    net = Net("hrnet")
    x = conv_bn(net, conv_bn(net, net.image(size), 64, 3, stride=2), 64, 3, stride=2)
    for _ in range(kind.first_blocks):
        x = _bottleneck(net, x, kind.first_width)
    branches = [x]
    for stage, modules in enumerate(kind.modules, start=2):
        widths = [kind.width << i for i in range(stage)]
        branches = _transition(net, branches, widths)
        for _ in range(modules):
            for i, branch in enumerate(branches):
                for _ in range(kind.blocks):
                    branch = _basic(net, branch, widths[i])
                branches[i] = branch
            branches = _fuse(net, branches)
    return net.model(_classification_head(net, branches, kind))


_HRNET = {
    **{f"hrnet_w{width}": HighResolution(width) for width in (18, 30, 32, 40, 44, 48, 64)},
    "hrnet_w18_ssld": HighResolution(18, head_bias=False),
    "hrnet_w48_ssld": HighResolution(48, head_bias=False),
    "hrnet_w18_small": HighResolution(16, (1, 1, 1), 2, 1, 32),
    "hrnet_w18_small_v2": HighResolution(18, (1, 3, 2), 2, 2, 64),
}


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Numbers of a DLA; `parts` of a Res2Net block, 1 for a plain bottleneck."""

    levels: tuple[int, ...]
    widths: tuple[int, ...]
    basic: bool = False
    groups: int = 1
    group_width: int = 64
    root_shortcut: bool = False
    parts: int = 1


def _res2_convolutions(net: Net, x: Value, stride: int, kind: Aggregation) -> Value:
    """Convolve part after part of the channels, each with the one before added."""
    width = x.channels // kind.parts
    pieces = net.split(x, (width,) * kind.parts)
    done: list[Value] = []
    for i, piece in enumerate(pieces[:-1]):
        y = piece if i == 0 or stride > 1 else net.add(done[-1], piece)
        done.append(conv_bn(net, y, width, 3, stride=stride, groups=kind.groups))
    last = pieces[-1]
    done.append(net.avg_pool(last, 3, stride=stride) if stride > 1 else last)
    return net.concat(done)


def _dla_block(
    net: Net, x: Value, out: int, stride: int, shortcut: Value, kind: Aggregation
) -> Value:
    if kind.basic:
        y = conv_bn(net, conv_bn(net, x, out, 3, stride=stride), out, 3, activation="")
        return act(net, net.add(y, shortcut), "relu")
    middle = int(out * (kind.group_width / 64)) * kind.groups // 2
    if kind.parts > 1:
        middle = int(out * (kind.group_width / 64)) * kind.groups // 2
        y = conv_bn(net, x, middle * kind.parts)
        y = _res2_convolutions(net, y, stride, kind)
    else:
        y = conv_bn(net, x, middle)
        y = conv_bn(net, y, middle, 3, stride=stride, groups=kind.groups)
    y = conv_bn(net, y, out, activation="")
    return act(net, net.add(y, shortcut), "relu")


def _tree(
    net: Net, x: Value, depth: int, out: int, stride: int, children: list[Value], *,
    level_root: bool, kind: Aggregation,
) -> Value:  # fmt: skip
    """Hierarchical aggregation: a binary tree of blocks whose leaves all reach its root."""
    needs_bottom = level_root or depth == 1
    bottom = net.max_pool(x, stride, pad=0) if stride > 1 and needs_bottom else x
    children = [*children, bottom] if level_root else children
    if depth > 1:
        first = _tree(net, x, depth - 1, out, stride, [], level_root=False, kind=kind)
        inner = [*children, first]
        return _tree(net, first, depth - 1, out, 1, inner, level_root=False, kind=kind)
    shortcut = bottom if bottom.channels == out else conv_bn(net, bottom, out, activation="")
    first = _dla_block(net, x, out, stride, shortcut, kind)
    second = _dla_block(net, first, out, 1, first, kind)
    y = conv_bn(net, net.concat([second, first, *children]), out, activation="")
    return act(net, net.add(y, second) if kind.root_shortcut else y, "relu")


def dla(kind: Aggregation, size: int) -> onnx.ModelProto:
    """Deep layer aggregation."""
    net = Net("dla")
    x = conv_bn(net, net.image(size), kind.widths[0], 7)
    for level in (0, 1):
        for i in range(kind.levels[level]):
            x = conv_bn(net, x, kind.widths[level], 3, stride=2 if level and not i else 1)
    for level in range(2, 6):
        depth, out = kind.levels[level], kind.widths[level]
        x = _tree(net, x, depth, out, 2, [], level_root=level > 2, kind=kind)
    return net.model(net.flatten(net.conv(net.global_pool(x), 1000, bias=True)))


_WIDE = (16, 32, 128, 256, 512, 1024)
_COMPACT = (16, 32, 64, 64, 128, 256)

_DLA = {
    "dla34": Aggregation((1, 1, 1, 2, 2, 1), (16, 32, 64, 128, 256, 512), basic=True),
    "dla46_c": Aggregation((1, 1, 1, 2, 2, 1), _COMPACT),
    "dla46x_c": Aggregation((1, 1, 1, 2, 2, 1), _COMPACT, groups=32, group_width=4),
    "dla60": Aggregation((1, 1, 1, 2, 3, 1), _WIDE),
    "dla60x": Aggregation((1, 1, 1, 2, 3, 1), _WIDE, groups=32, group_width=4),
    "dla60x_c": Aggregation((1, 1, 1, 2, 3, 1), _COMPACT, groups=32, group_width=4),
    "dla102": Aggregation((1, 1, 1, 3, 4, 1), _WIDE, root_shortcut=True),
    "dla102x": Aggregation(
        (1, 1, 1, 3, 4, 1), _WIDE, groups=32, group_width=4, root_shortcut=True
    ),
    "dla102x2": Aggregation(
        (1, 1, 1, 3, 4, 1), _WIDE, groups=64, group_width=4, root_shortcut=True
    ),
    "dla169": Aggregation((1, 1, 2, 3, 5, 1), _WIDE, root_shortcut=True),
    "dla60_res2net": Aggregation((1, 1, 1, 2, 3, 1), _WIDE, group_width=28, parts=4),
    "dla60_res2next": Aggregation((1, 1, 1, 2, 3, 1), _WIDE, groups=8, group_width=4, parts=4),
}

MODELS: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    **{name: partial(hrnet, kind) for name, kind in _HRNET.items()},
    **{name: partial(dla, kind) for name, kind in _DLA.items()},
}
