"""Networks built on grouped convolutions: ShuffleNetV2, RegNet, DPN, Xception.

Ma et al., arXiv 1807.11164; Radosavovic et al., 2003.13678; Chen et al., 1707.01629; Chollet,
1610.02357. Numbers as in torchvision (ShuffleNetV2) and timm.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import onnx

from benchmarks.models.blocks import act, classifier, conv_bn, squeeze_excite
from benchmarks.models.mobile import divisible
from benchmarks.models.net import BATCH, Net, Value


def _shuffle(net: Net, x: Value) -> Value:
    """Interleave the two halves of the channels."""
    _, c, h, w = x.shape
    cut = net.transpose(net.reshape(x, BATCH, 2, c // 2, h, w), 0, 2, 1, 3, 4)
    return net.reshape(cut, BATCH, c, h, w)


def _shuffle_branch(net: Net, x: Value, width: int, stride: int, activation: str) -> Value:
    x = conv_bn(net, x, width, activation=activation)
    x = conv_bn(net, x, width, 3, stride=stride, groups=width, activation="")
    return conv_bn(net, x, width, activation=activation)


def shufflenet_v2(
    stem: int, widths: Sequence[int], head: int, activation: str, size: int
) -> onnx.ModelProto:
    """ShuffleNetV2 by the widths of its stages."""
    net = Net("shufflenet_v2")
    x = conv_bn(net, net.image(size), stem, 3, stride=2, activation=activation)
    x = net.max_pool(x, 3, stride=2)
    for out, depth in zip(widths, (4, 8, 4), strict=True):
        half = out // 2
        for i in range(depth):
            if i:
                kept, changed = net.split(x, (half, half))
                step = 1
            else:
                kept = conv_bn(net, x, x.channels, 3, stride=2, groups=x.channels, activation="")
                kept, changed, step = conv_bn(net, kept, half, activation=activation), x, 2
            changed = _shuffle_branch(net, changed, half, step, activation)
            x = _shuffle(net, net.concat([kept, changed]))
    x = conv_bn(net, x, head, activation=activation)
    return net.model(net.linear(net.mean(x, 2, 3), 1000))


# name -> stem, stage widths, head; the second table is PaddleClas's
_SHUFFLE = {
    "x0_5": (24, (48, 96, 192), 1024),
    "x1_0": (24, (116, 232, 464), 1024),
    "x1_5": (24, (176, 352, 704), 1024),
    "x2_0": (24, (244, 488, 976), 2048),
}
_SHUFFLE_PADDLE = {
    "x0_25": (24, (24, 48, 96), 512),
    "x0_33": (24, (32, 64, 128), 512),
    "x0_5": (24, (48, 96, 192), 1024),
    "x1_0": (24, (116, 232, 464), 1024),
    "x1_5": (24, (176, 352, 704), 1024),
    "x2_0": (24, (224, 488, 976), 2048),
}


@dataclass(frozen=True, slots=True)
class RegNet:
    """The line that widths are quantised from (arXiv 2003.13678, section 3.3), and the block."""

    first_width: int
    slope: float
    step: float
    depth: int
    group_width: int
    squeeze: float = 0.0
    bottleneck: float = 1.0
    activation: str = "relu"
    linear_out: bool = False  # no activation after the residual sum
    shortcut: bool = True  # a convolution where the shape changes
    head: int = 0
    group_min_ratio: float = 0.0

    def stages(self) -> list[tuple[int, int]]:
        """(width, depth) of each stage."""
        steps = [
            round(math.log(1 + self.slope * i / self.first_width) / math.log(self.step))
            for i in range(self.depth)
        ]
        widths = [round(self.first_width * self.step**j / 8) * 8 for j in steps]
        stages = []
        for width in dict.fromkeys(widths):
            inner = int(width * self.bottleneck)
            group = min(self.group_width, inner)
            quantised = round(inner / group) * group
            if self.group_min_ratio:
                quantised = divisible(inner, divisor=group, limit=self.group_min_ratio)
            stages.append((int(quantised / self.bottleneck), widths.count(width)))
        return stages


def _regnet_block(net: Net, x: Value, out: int, stride: int, kind: RegNet) -> Value:
    inner = round(out * kind.bottleneck)
    groups = inner // min(kind.group_width, inner)
    y = conv_bn(net, x, inner, activation=kind.activation)
    y = conv_bn(net, y, inner, 3, stride=stride, groups=groups, activation=kind.activation)
    if kind.squeeze:
        y = squeeze_excite(net, y, round(x.channels * kind.squeeze), activation=kind.activation)
    y = conv_bn(net, y, out, activation="")
    changes = stride > 1 or x.channels != out
    if changes and kind.shortcut:
        x = conv_bn(net, x, out, stride=stride, activation="")
    y = y if changes and not kind.shortcut else net.add(y, x)
    return y if kind.linear_out else act(net, y, kind.activation)


def regnet(kind: RegNet, size: int) -> onnx.ModelProto:
    """RegNet X (no squeeze), Y (squeeze) or Z (inverted bottleneck, linear)."""
    net = Net("regnet")
    x = conv_bn(net, net.image(size), 32, 3, stride=2, activation=kind.activation)
    for out, depth in kind.stages():
        for i in range(depth):
            x = _regnet_block(net, x, out, 1 if i else 2, kind)
    if kind.head:
        x = conv_bn(net, x, kind.head, activation=kind.activation)
    elif kind.linear_out:
        x = act(net, x, kind.activation)
    return net.model(classifier(net, x))


_REGNET = {
    "regnetx_002": RegNet(24, 36.44, 2.49, 13, 8),
    "regnetx_004": RegNet(24, 24.48, 2.54, 22, 16),
    "regnetx_004_tv": RegNet(24, 24.48, 2.54, 22, 16, group_min_ratio=0.9),
    "regnetx_006": RegNet(48, 36.97, 2.24, 16, 24),
    "regnetx_008": RegNet(56, 35.73, 2.28, 16, 16),
    "regnetx_016": RegNet(80, 34.01, 2.25, 18, 24),
    "regnetx_032": RegNet(88, 26.31, 2.25, 25, 48),
    "regnetx_040": RegNet(96, 38.65, 2.43, 23, 40),
    "regnetx_064": RegNet(184, 60.83, 2.07, 17, 56),
    "regnetx_080": RegNet(80, 49.56, 2.88, 23, 120),
    "regnetx_120": RegNet(168, 73.36, 2.37, 19, 112),
    "regnetx_160": RegNet(216, 55.59, 2.1, 22, 128),
    "regnetx_320": RegNet(320, 69.86, 2.0, 23, 168),
    "regnety_032": RegNet(80, 42.63, 2.66, 21, 24, squeeze=0.25),
    "regnety_160": RegNet(200, 106.23, 2.48, 18, 112, squeeze=0.25),
    "regnetz_005": RegNet(
        16, 10.7, 2.51, 21, 4, 0.25, 4.0, "silu", linear_out=True, shortcut=False, head=1024
    ),
    "regnetz_040": RegNet(
        48, 14.5, 2.226, 28, 8, 0.25, 4.0, "silu", linear_out=True, shortcut=False
    ),
    "regnetz_040_h": RegNet(
        48, 14.5, 2.226, 28, 8, 0.25, 4.0, "silu", linear_out=True, shortcut=False, head=1536
    ),
}


@dataclass(frozen=True, slots=True)
class DualPath:
    """Numbers of a DPN: residual and dense path side by side. `apart`: two last convolutions."""

    stem: int
    inner: int
    groups: int
    depths: tuple[int, ...]
    growths: tuple[int, ...]
    small: bool = False
    apart: bool = False
    activation: str = "relu"


def _bn_act_conv(
    net: Net, x: Value, out: int, kernel: int, kind: DualPath, stride: int = 1, groups: int = 1
) -> Value:
    x = act(net, net.batch_norm(x), kind.activation)
    return net.conv(x, out, kernel, stride=stride, groups=groups)


def _dual_block(
    net: Net, paths: tuple[Value, ...], stage: int, stride: int, kind: DualPath
) -> tuple[Value, Value]:
    """One block; the first of a stage reads one value and projects it."""
    residual_width = (64 << stage) * (1 if kind.small else 4)
    growth, inner = kind.growths[stage], kind.inner << stage
    x = net.concat(paths) if len(paths) > 1 else paths[0]
    if stride:
        both = _bn_act_conv(net, x, residual_width + 2 * growth, 1, kind, stride)
        residual, dense = net.split(both, (residual_width, 2 * growth))
    else:
        residual, dense = paths
    y = _bn_act_conv(net, x, inner, 1, kind)
    y = _bn_act_conv(net, y, inner, 3, kind, stride or 1, kind.groups)
    if kind.apart:
        y = act(net, net.batch_norm(y), kind.activation)
        new, grown = net.conv(y, residual_width), net.conv(y, growth)
    else:
        y = _bn_act_conv(net, y, residual_width + growth, 1, kind)
        new, grown = net.split(y, (residual_width, growth))
    return net.add(residual, new), net.concat([dense, grown])


def dpn(kind: DualPath, size: int) -> onnx.ModelProto:
    """Dual path network."""
    net = Net("dpn")
    x = conv_bn(
        net,
        net.image(size),
        kind.stem,
        3 if kind.small else 7,
        stride=2,
        activation=kind.activation,
    )
    paths: tuple[Value, ...] = (net.max_pool(x, 3, stride=2),)
    for stage, depth in enumerate(kind.depths):
        for i in range(depth):
            stride = 0 if i else 1 if stage == 0 else 2
            if stride:
                paths = (net.concat(paths) if len(paths) > 1 else paths[0],)
            paths = _dual_block(net, paths, stage, stride, kind)
    x = act(net, net.batch_norm(net.concat(paths)), kind.activation)
    return net.model(net.flatten(net.conv(net.global_pool(x), 1000, bias=True)))


_DPN = {
    "dpn48b": DualPath(
        10, 128, 32, (3, 4, 6, 3), (16, 32, 32, 64), small=True, apart=True, activation="silu"
    ),
    "dpn68": DualPath(10, 128, 32, (3, 4, 12, 3), (16, 32, 32, 64), small=True),
    "dpn68b": DualPath(10, 128, 32, (3, 4, 12, 3), (16, 32, 32, 64), small=True, apart=True),
    "dpn92": DualPath(64, 96, 32, (3, 4, 20, 3), (16, 32, 24, 128)),
    "dpn98": DualPath(96, 160, 40, (3, 6, 20, 3), (16, 32, 32, 128)),
    "dpn107": DualPath(128, 200, 50, (4, 8, 20, 3), (20, 64, 64, 128)),
    "dpn131": DualPath(128, 160, 40, (4, 8, 28, 3), (16, 32, 32, 128)),
}


def _separable(net: Net, x: Value, out: int, stride: int = 1, *, inner_act: bool = False) -> Value:
    """Depthwise 3 x 3 and pointwise convolution, both normalised (aligned Xception)."""
    activation = "relu" if inner_act else ""
    x = conv_bn(net, x, x.channels, 3, stride=stride, groups=x.channels, activation=activation)
    return conv_bn(net, x, out, activation=activation)


def _aligned_block(
    net: Net, x: Value, widths: Sequence[int], stride: int, *, residual: bool, acts_first: bool
) -> Value:
    skip = x
    if residual and (stride > 1 or x.channels != widths[-1]):
        skip = conv_bn(net, x, widths[-1], stride=stride, activation="")
    y = x
    for i, width in enumerate(widths):
        y = act(net, y, "relu") if acts_first else y
        y = _separable(net, y, width, stride if i == 2 else 1, inner_act=not acts_first)
    return net.add(y, skip) if residual else y


def aligned_xception(middle: int, entry: int, size: int) -> onnx.ModelProto:
    """Xception of DeepLab v3+ (arXiv 1802.02611): strided separable convolutions, no pooling."""
    net = Net("xception")
    x = conv_bn(net, conv_bn(net, net.image(size), 32, 3, stride=2), 64, 3)
    entries = [(128, 2), (256, 2), (728, 2)] if entry == 3 else [
        (128, 2), (256, 1), (256, 2), (728, 1), (728, 2)
    ]  # fmt: skip
    for width, stride in entries:
        x = _aligned_block(net, x, (width,) * 3, stride, residual=True, acts_first=True)
    for _ in range(middle):
        x = _aligned_block(net, x, (728,) * 3, 1, residual=True, acts_first=True)
    x = _aligned_block(net, x, (728, 1024, 1024), 2, residual=True, acts_first=True)
    x = _aligned_block(net, x, (1536, 1536, 2048), 1, residual=False, acts_first=False)
    return net.model(classifier(net, x))


def _plain_separable(net: Net, x: Value, out: int) -> Value:
    y = net.conv(x, x.channels, 3, groups=x.channels)
    return net.batch_norm(net.conv(y, out))


def _plain_block(
    net: Net, x: Value, widths: Sequence[int], stride: int, *, first_act: bool = True
) -> Value:
    skip = x
    if stride > 1 or x.channels != widths[-1]:
        skip = conv_bn(net, x, widths[-1], stride=stride, activation="")
    y = x
    for i, width in enumerate(widths):
        y = act(net, y, "relu") if i or first_act else y
        y = _plain_separable(net, y, width)
    y = net.max_pool(y, 3, stride=stride) if stride > 1 else y
    return net.add(y, skip)


def xception(size: int) -> onnx.ModelProto:
    """The original Xception (no padding in the stem)."""
    net = Net("xception")
    pads = (0, 0, 0, 0)
    x = conv_bn(net, net.image(size), 32, 3, stride=2, pads=pads)
    x = conv_bn(net, x, 64, 3, pads=pads)
    for i, width in enumerate((128, 256, 728)):
        x = _plain_block(net, x, (width, width), 2, first_act=i > 0)
    for _ in range(8):
        x = _plain_block(net, x, (728,) * 3, 1)
    x = _plain_block(net, x, (728, 1024), 2)
    for width in (1536, 2048):
        x = act(net, _plain_separable(net, x, width), "relu")
    return net.model(classifier(net, x))


MODELS: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    **{
        f"shufflenet_v2_{name}": partial(shufflenet_v2, *numbers, "relu")
        for name, numbers in _SHUFFLE.items()
    },
    **{
        f"shufflenet_v2_paddle_{name}": partial(shufflenet_v2, *numbers, "relu")
        for name, numbers in _SHUFFLE_PADDLE.items()
    },
    "shufflenet_v2_paddle_x1_0_swish": partial(shufflenet_v2, *_SHUFFLE_PADDLE["x1_0"], "silu"),
    **{name: partial(regnet, kind) for name, kind in _REGNET.items()},
    **{name: partial(dpn, kind) for name, kind in _DPN.items()},
    "xception": xception,
    "xception41": partial(aligned_xception, 8, 3),
    "xception65": partial(aligned_xception, 16, 3),
    "xception71": partial(aligned_xception, 16, 5),
}
