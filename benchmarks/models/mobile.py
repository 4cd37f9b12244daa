"""Networks of depthwise-separable blocks, from tables of stages: MobileNet v1 and v2, MNASNet,
FBNet, EfficientNet v1, v2, Lite and EdgeTPU, TinyNet, LCNet.

Howard et al., arXiv 1704.04861; Sandler et al., 1801.04381; Tan et al., 1807.11626; Wu et al.,
1812.03443; Tan & Le, 1905.11946 and 2104.00298; Han et al., 2010.14819; Cui et al., 2109.15099;
Dai et al., 2006.02049. Stage tables as in timm.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import onnx

from benchmarks.models.blocks import act, classifier, conv_bn, same_pad, squeeze_excite
from benchmarks.models.net import Net, Value


@dataclass(frozen=True, slots=True)
class Block:
    """One row of a stage table: `count` blocks, the stride on the first.

    `kind`: cn (convolution), ds (depthwise separable), er (fused expansion), ir (inverted
    residual). `squeeze` is the squeeze-and-excitation ratio to the block's input, 0 for none.
    """

    kind: str
    count: int
    kernel: int
    stride: int
    expansion: float
    out: int
    squeeze: float = 0.0
    skip: bool = True
    last_activation: bool = False
    group_width: int = 0  # er only; 0 = dense
    activation: str = ""  # '' = the network's
    force_in: int = 0  # er only: channels that the expansion is counted from


Stages: TypeAlias = Sequence[Sequence[Block]]


@dataclass(frozen=True, slots=True)
class Mobile:
    """Numbers of one network."""

    stages: Stages
    stem: int = 32
    head: int = 1280
    width: float = 1.0
    depth: float | tuple[float, ...] = 1.0  # one for all stages, or one each
    activation: str = "relu"
    gate: str = "sigmoid"
    squeeze_activation: str = ""  # '' = the block's
    fixed_stem: bool = False
    fixed_ends: bool = False
    scaled_head: bool = True
    depth_rule: str = "ceil"
    same: bool = False  # TensorFlow padding
    pooled_head: bool = False  # mean before the last 1 x 1 convolution, no normalisation
    head_bias: bool = True
    round_limit: float = 0.9
    squeeze_divisor: bool = False  # squeezed widths are rounded like the others
    stem_kernel: int = 3


def divisible(value: float, *, divisor: int = 8, limit: float = 0.9) -> int:
    """Round to a multiple of `divisor`, never below `limit` of the value (MobileNet v2)."""
    rounded = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < limit * value else rounded


def _scaled_counts(stage: Sequence[Block], depth: float, rule: str) -> list[int]:
    """Scale a stage's blocks by `depth`, later rows first (EfficientNet's compound scaling)."""
    left = sum(block.count for block in stage)
    goal = max(1, round(left * depth)) if rule == "round" else math.ceil(left * depth)
    counts: list[int] = []
    for block in reversed(stage):
        count = max(1, round(block.count / left * goal))
        counts.append(count)
        left, goal = left - block.count, goal - count
    return counts[::-1]


def _conv(net: Net, x: Value, out: int, block: Block, groups: int, same: bool) -> Value:
    if not same:
        return net.conv(x, out, block.kernel, stride=block.stride, groups=groups)
    padded = same_pad(net, x, block.kernel, block.stride) if block.stride > 1 else x
    pads = (0, 0, 0, 0) if block.stride > 1 else None
    return net.conv(padded, out, block.kernel, stride=block.stride, groups=groups, pads=pads)


def _squeeze(net: Net, x: Value, inner: int, block: Block, kind: Mobile) -> Value:
    if not block.squeeze:
        return x
    hidden = inner * block.squeeze
    width = divisible(hidden, limit=kind.round_limit) if kind.squeeze_divisor else round(hidden)
    activation = kind.squeeze_activation or block.activation or kind.activation
    return squeeze_excite(net, x, width, activation=activation, gate=kind.gate)


def _block(net: Net, x: Value, out: int, block: Block, kind: Mobile) -> Value:
    activation = block.activation or kind.activation
    skips = block.skip and block.stride == 1 and x.channels == out
    if block.kind == "cn":
        y = act(net, net.batch_norm(_conv(net, x, out, block, 1, kind.same)), activation)
        return net.add(y, x) if skips and block.last_activation else y
    y, inner = x, x.channels
    if block.kind == "er":
        source = divisible(block.force_in * kind.width) if block.force_in else x.channels
        inner = divisible(source * block.expansion)
        groups = inner // block.group_width if block.group_width else 1
        y = act(net, net.batch_norm(_conv(net, y, inner, block, groups, kind.same)), activation)
    else:
        if block.kind == "ir":
            inner = divisible(x.channels * block.expansion)
            y = conv_bn(net, y, inner, activation=activation)
        y = act(net, net.batch_norm(_conv(net, y, inner, block, inner, kind.same)), activation)
    y = _squeeze(net, y, x.channels, block, kind)
    y = conv_bn(net, y, out, activation=activation if block.last_activation else "")
    return net.add(y, x) if skips else y


def _head(net: Net, x: Value, width: int, kind: Mobile) -> Value:
    if not width:
        return classifier(net, x)
    if kind.pooled_head:
        x = net.conv(net.global_pool(x), width, bias=kind.head_bias)
        return net.linear(net.flatten(act(net, x, kind.activation)), 1000)
    return classifier(net, conv_bn(net, x, width, activation=kind.activation))


def mobile(kind: Mobile, size: int) -> onnx.ModelProto:
    """Return the network for images of `size` x `size`."""
    net = Net("mobile")

    def width(channels: int) -> int:
        return divisible(channels * kind.width, limit=kind.round_limit)

    stem = Block(
        "cn", 1, kind.stem_kernel, 2, 1, kind.stem if kind.fixed_stem else width(kind.stem)
    )
    x = _block(net, net.image(size), stem.out, stem, kind)
    for i, stage in enumerate(kind.stages):
        is_end = i in (0, len(kind.stages) - 1)
        depth = kind.depth[i] if isinstance(kind.depth, tuple) else kind.depth
        depth = 1.0 if kind.fixed_ends and is_end else depth
        for block, count in zip(stage, _scaled_counts(stage, depth, kind.depth_rule), strict=True):
            for repeat in range(count):
                # within a stage only the very first block of a row may stride
                step = block if not repeat else replace(block, stride=1)
                x = _block(net, x, width(block.out), step, kind)
    head = width(kind.head) if kind.head and kind.scaled_head else kind.head
    return net.model(_head(net, x, head, kind))


def _rows(kind: str, *rows: tuple[float, ...]) -> tuple[tuple[Block, ...], ...]:
    """Stages of one row each: (count, kernel, stride, expansion, out[, squeeze])."""
    return tuple((Block(kind, *row),) for row in rows)  # type: ignore[arg-type]


_B = (
    *_rows("ds", (1, 3, 1, 1, 16, 0.25)),
    *_rows(
        "ir", (2, 3, 2, 6, 24, 0.25), (2, 5, 2, 6, 40, 0.25), (3, 3, 2, 6, 80, 0.25),
        (3, 5, 1, 6, 112, 0.25), (4, 5, 2, 6, 192, 0.25), (1, 3, 1, 6, 320, 0.25),
    ),
)  # fmt: skip
_LITE = tuple(tuple(replace(block, squeeze=0.0) for block in stage) for stage in _B)
_EDGE = (
    (Block("er", 1, 3, 1, 4, 24, skip=False, force_in=24),),
    *_rows("er", (2, 3, 2, 8, 32), (4, 3, 2, 8, 48)),
    *_rows("ir", (5, 5, 2, 8, 96), (4, 5, 1, 8, 144), (2, 5, 2, 8, 192)),
)
_V1 = tuple(
    (Block("ds", count, 3, stride, 1, out, last_activation=True, skip=False),)
    for count, stride, out in ((1, 1, 64), (2, 2, 128), (2, 2, 256), (6, 2, 512), (2, 2, 1024))
)
_V1_SKIP = tuple(tuple(replace(block, skip=True) for block in stage) for stage in _V1)
_V2 = (
    *_rows("ds", (1, 3, 1, 1, 16)),
    *_rows(
        "ir", (2, 3, 2, 6, 24), (3, 3, 2, 6, 32), (4, 3, 2, 6, 64), (3, 3, 1, 6, 96),
        (3, 3, 2, 6, 160), (1, 3, 1, 6, 320),
    ),
)  # fmt: skip
_MNAS_A1 = (
    (Block("ds", 1, 3, 1, 1, 16, skip=False),),
    *_rows(
        "ir", (2, 3, 2, 6, 24), (3, 5, 2, 3, 40, 0.25), (4, 3, 2, 6, 80), (2, 3, 1, 6, 112, 0.25),
        (3, 5, 2, 6, 160, 0.25), (1, 3, 1, 6, 320),
    ),
)  # fmt: skip
_MNAS_B1 = (
    (Block("ds", 1, 3, 1, 1, 16, skip=False),),
    *_rows(
        "ir", (3, 3, 2, 3, 24), (3, 5, 2, 3, 40), (3, 5, 2, 6, 80), (2, 3, 1, 6, 96),
        (4, 5, 2, 6, 192),
    ),
    (Block("ir", 1, 3, 1, 6, 320, skip=False),),
)  # fmt: skip


def _stage(kind: str, *rows: tuple[float, ...]) -> tuple[Block, ...]:
    """One stage of several rows."""
    return tuple(Block(kind, *row) for row in rows)  # type: ignore[arg-type]


_FBNET_C = (
    _stage("ir", (1, 3, 1, 1, 16)),
    _stage("ir", (1, 3, 2, 6, 24), (2, 3, 1, 1, 24)),
    _stage("ir", (1, 5, 2, 6, 32), (1, 5, 1, 3, 32), (1, 5, 1, 6, 32), (1, 3, 1, 6, 32)),
    _stage("ir", (1, 5, 2, 6, 64), (1, 5, 1, 3, 64), (2, 5, 1, 6, 64)),
    _stage("ir", (3, 5, 1, 6, 112), (1, 5, 1, 3, 112)),
    _stage("ir", (4, 5, 2, 6, 184)),
    _stage("ir", (1, 3, 1, 6, 352)),
)
_SPNAS = (
    (Block("ds", 1, 3, 1, 1, 16, skip=False),),
    _stage("ir", (3, 3, 2, 3, 24)),
    _stage("ir", (1, 5, 2, 6, 40), (3, 3, 1, 3, 40)),
    _stage("ir", (1, 5, 2, 6, 80), (3, 3, 1, 3, 80)),
    _stage("ir", (1, 5, 1, 6, 96), (3, 5, 1, 3, 96)),
    _stage("ir", (4, 5, 2, 6, 192)),
    (Block("ir", 1, 3, 1, 6, 320, skip=False),),
)
_LCNET = tuple(
    tuple(replace(block, last_activation=True) for block in stage)
    for stage in (
        _stage("ds", (1, 3, 1, 1, 32)),
        _stage("ds", (2, 3, 2, 1, 64)),
        _stage("ds", (2, 3, 2, 1, 128)),
        _stage("ds", (1, 3, 2, 1, 256), (1, 5, 1, 1, 256)),
        _stage("ds", (4, 5, 1, 1, 256)),
        _stage("ds", (2, 5, 2, 1, 512, 0.25)),
    )
)


def _v2(
    first: tuple[int, int], fused: Sequence[tuple[int, int]], *rest: tuple[int, ...]
) -> Stages:
    """EfficientNetV2: plain, fused, squeezed stages; (count, out) or (count, stride, e, out)."""
    return (
        (Block("cn", first[0], 3, 1, 1, first[1], last_activation=True),),
        *((Block("er", count, 3, 2, 4, out),) for count, out in fused),
        *((Block("ir", n, 3, s, e, out, 0.25),) for n, s, e, out in rest),
    )


_V2_BASE = _v2((1, 16), ((2, 32), (2, 48)), (3, 2, 4, 96), (5, 1, 6, 112), (8, 2, 6, 192))
_V2_S = _v2((2, 24), ((4, 48), (4, 64)), (6, 2, 4, 128), (9, 1, 6, 160), (15, 2, 6, 256))
_V2_RW = (
    (Block("er", 2, 3, 1, 1, 24),),
    *_V2_S[1:-1],
    (Block("ir", 15, 3, 2, 6, 272, 0.25),),
)
_V2_M = _v2(
    (3, 24), ((5, 48), (5, 80)), (7, 2, 4, 160), (14, 1, 6, 176), (18, 2, 6, 304), (5, 1, 6, 512)
)
_V2_L = _v2(
    (4, 32), ((7, 64), (7, 96)), (10, 2, 4, 192), (19, 1, 6, 224), (25, 2, 6, 384), (7, 1, 6, 640)
)
_V2_XL = _v2(
    (4, 32), ((8, 64), (8, 96)), (16, 2, 4, 192), (24, 1, 6, 256), (32, 2, 6, 512), (8, 1, 6, 640)
)
_EDGETPU_100 = (
    _stage("cn", (1, 1, 1, 1, 16)),
    _stage("er", (1, 3, 2, 8, 32), (3, 3, 1, 4, 32)),
    _stage("er", (1, 3, 2, 8, 48), (3, 3, 1, 4, 48)),
    _stage("ir", (1, 3, 2, 8, 96), (3, 3, 1, 4, 96)),
    (Block("ir", 1, 3, 1, 8, 96, skip=False), Block("ir", 3, 3, 1, 4, 96)),
    _stage("ir", (1, 5, 2, 8, 160), (3, 5, 1, 4, 160)),
    _stage("ir", (1, 3, 1, 8, 192)),
)


def _edgetpu_v2(*out: int, group_width: int = 64) -> Stages:
    """MobileNet-EdgeTPU v2 by its seven widths."""
    second = Block("er", 1, 3, 1, 4, out[1], group_width=group_width)
    third = Block("er", 1, 3, 1, 4, out[2], group_width=group_width)
    return (
        _stage("cn", (1, 1, 1, 1, out[0])),
        (Block("er", 1, 3, 2, 8, out[1]), second),
        (Block("er", 1, 3, 2, 8, out[2]), third, Block("er", 1, 3, 1, 4, out[2]), third),
        _stage("er", (1, 3, 2, 8, out[3])) + _stage("ir", (3, 3, 1, 4, out[3])),
        _stage("ir", (1, 3, 1, 8, out[4]), (3, 3, 1, 4, out[4])),
        _stage("ir", (1, 3, 2, 8, out[5]), (3, 3, 1, 4, out[5])),
        _stage("ir", (1, 3, 1, 8, out[6])),
    )


_FBNET_V3: Mapping[str, tuple[int, Stages]] = {
    "b": (16, (
        _stage("ds", (2, 3, 1, 1, 16)),
        _stage("ir", (1, 5, 2, 4, 24), (3, 5, 1, 2, 24)),
        _stage("ir", (1, 5, 2, 5, 40, 0.25), (4, 5, 1, 3, 40, 0.25)),
        _stage("ir", (1, 5, 2, 5, 72), (4, 3, 1, 3, 72)),
        _stage("ir", (1, 3, 1, 5, 120, 0.25), (5, 5, 1, 3, 120, 0.25)),
        _stage("ir", (1, 3, 2, 6, 184, 0.25), (5, 5, 1, 4, 184, 0.25), (1, 5, 1, 6, 224, 0.25)),
        _stage("cn", (1, 1, 1, 1, 1344)),
    )),
    "d": (24, (
        _stage("ds", (2, 3, 1, 1, 16)),
        _stage("ir", (1, 3, 2, 5, 24), (5, 3, 1, 2, 24)),
        _stage("ir", (1, 5, 2, 4, 40, 0.25), (4, 3, 1, 3, 40, 0.25)),
        _stage("ir", (1, 3, 2, 5, 72), (4, 3, 1, 3, 72)),
        _stage("ir", (1, 3, 1, 5, 128, 0.25), (6, 5, 1, 3, 128, 0.25)),
        _stage("ir", (1, 3, 2, 6, 208, 0.25), (5, 5, 1, 5, 208, 0.25), (1, 5, 1, 6, 240, 0.25)),
        _stage("cn", (1, 1, 1, 1, 1440)),
    )),
    "g": (32, (
        _stage("ds", (3, 3, 1, 1, 24)),
        _stage("ir", (1, 5, 2, 4, 40), (4, 5, 1, 2, 40)),
        _stage("ir", (1, 5, 2, 4, 56, 0.25), (4, 5, 1, 3, 56, 0.25)),
        _stage("ir", (1, 5, 2, 5, 104), (4, 3, 1, 3, 104)),
        _stage("ir", (1, 3, 1, 5, 160, 0.25), (8, 5, 1, 3, 160, 0.25)),
        _stage("ir", (1, 3, 2, 6, 264, 0.25), (6, 5, 1, 5, 264, 0.25), (2, 5, 1, 6, 288, 0.25)),
        _stage("cn", (1, 1, 1, 1, 1728)),
    )),
}  # fmt: skip
# name -> (width, depth): compound scaling, arXiv 1905.11946 and its reference code
_COMPOUND = {
    "b0": (1.0, 1.0), "b1": (1.0, 1.1), "b2": (1.1, 1.2), "b3": (1.2, 1.4), "b4": (1.4, 1.8),
    "b5": (1.6, 2.2), "b6": (1.8, 2.6), "b7": (2.0, 3.1), "b8": (2.2, 3.6), "l2": (4.3, 5.3),
}  # fmt: skip
_EDGE_SCALE = {"es": (1.0, 1.0), "em": (1.0, 1.1), "el": (1.2, 1.4)}


def _both(name: str, kind: Mobile) -> dict[str, Mobile]:
    """The network with symmetric padding, and with TensorFlow's under the prefix tf_."""
    return {name: kind, f"tf_{name}": replace(kind, same=True)}


_EFFICIENT: dict[str, Mobile] = {}
for _name, (_width, _depth) in _COMPOUND.items():
    _EFFICIENT |= _both(
        f"efficientnet_{_name}", Mobile(_B, width=_width, depth=_depth, activation="silu")
    )
for _i in range(5):
    _EFFICIENT |= _both(
        f"efficientnet_lite{_i}",
        Mobile(
            _LITE, width=_COMPOUND[f"b{_i}"][0], depth=_COMPOUND[f"b{_i}"][1], activation="relu6",
            fixed_stem=True, fixed_ends=True, scaled_head=False,
        ),
    )  # fmt: skip
for _name, (_width, _depth) in _EDGE_SCALE.items():
    _EFFICIENT |= _both(f"efficientnet_{_name}", Mobile(_EDGE, width=_width, depth=_depth))
for _name, (_width, _depth) in tuple(_COMPOUND.items())[:4]:
    _EFFICIENT |= _both(
        f"efficientnetv2_{_name}",
        Mobile(_V2_BASE, width=_width, depth=_depth, activation="silu", round_limit=0.0),
    )
for _name, _stages, _stem in (
    ("s", _V2_S, 24), ("m", _V2_M, 24), ("l", _V2_L, 32), ("xl", _V2_XL, 32)
):  # fmt: skip
    _EFFICIENT |= _both(f"efficientnetv2_{_name}", Mobile(_stages, stem=_stem, activation="silu"))

_RW = Mobile(_V2_RW, stem=24, head=1792, activation="silu")
_MOBILE: dict[str, Mobile] = {
    **_EFFICIENT,
    "efficientnetv2_rw_t": Mobile(_V2_S, stem=24, width=0.8, depth=0.9, activation="silu"),
    "efficientnetv2_rw_s": _RW,
    "efficientnetv2_rw_m": replace(_RW, width=1.2, depth=(1.2,) * 4 + (1.6,) * 2),
    "mobilenetv1_100": Mobile(_V1_SKIP, head=0, activation="relu6"),
    "mobilenetv1_100h": Mobile(_V1_SKIP, head=1024, activation="relu6"),
    "mobilenetv1_125": Mobile(_V1_SKIP, head=0, width=1.25, activation="relu6"),
    **{
        f"mobilenetv2_{round(100 * width):03}": Mobile(
            _V2, width=width, head=1280 if width < 1 else divisible(1280 * width),
            scaled_head=False, activation="relu6",
        )
        for width in (0.25, 0.35, 0.5, 0.75, 1.0, 1.4, 1.5, 2.0)
    },
    **{
        f"mobilenetv1_paddle_{round(100 * width):03}": Mobile(_V1, head=0, width=width)
        for width in (0.25, 0.5, 0.75, 1.0)
    },
    "efficientnet_b0_small": Mobile(_LITE, activation="silu", same=True),
    "mobilenetv2_110d": Mobile(
        _V2, width=1.1, depth=1.2, activation="relu6", fixed_stem=True, fixed_ends=True,
        scaled_head=False,
    ),
    "mobilenetv2_120d": Mobile(
        _V2, width=1.2, depth=1.4, activation="relu6", fixed_stem=True, fixed_ends=True,
        scaled_head=False,
    ),
    **{
        f"semnasnet_{round(100 * width):03}": Mobile(_MNAS_A1, width=width, scaled_head=False)
        for width in (0.5, 0.75, 1.0, 1.4)
    },
    **{
        f"mnasnet_{round(100 * width):03}": Mobile(_MNAS_B1, width=width, scaled_head=False)
        for width in (0.5, 0.75, 1.0, 1.4)
    },
    "fbnetc_100": Mobile(_FBNET_C, stem=16, head=1984),
    "spnasnet_100": Mobile(_SPNAS),
    **{
        f"tinynet_{name}": Mobile(
            _B, width=width, depth=depth, activation="silu", fixed_stem=True, depth_rule="round",
            head=1280, scaled_head=False,
        )
        for name, width, depth in (
            ("a", 1.0, 1.2), ("b", 0.75, 1.1), ("c", 0.54, 0.85), ("d", 0.54, 0.695),
            ("e", 0.51, 0.6),
        )
    },
    "mobilenet_edgetpu_100": Mobile(_EDGETPU_100),
    "mobilenet_edgetpu_v2_xs": Mobile(_edgetpu_v2(16, 32, 48, 96, 144, 160, 192)),
    "mobilenet_edgetpu_v2_s": Mobile(
        _edgetpu_v2(24, 48, 64, 128, 160, 192, 256), stem=64, stem_kernel=5
    ),
    "mobilenet_edgetpu_v2_m": Mobile(
        _edgetpu_v2(32, 64, 80, 160, 192, 240, 320), stem=64, head=1344, stem_kernel=5,
    ),
    "mobilenet_edgetpu_v2_l": Mobile(
        _edgetpu_v2(32, 64, 96, 192, 240, 256, 384, group_width=128), stem=64, head=1408,
        stem_kernel=7,
    ),
    **{
        f"lcnet_{round(100 * width):03}": Mobile(
            _LCNET, stem=16, width=width, activation="hswish", gate="hsigmoid",
            squeeze_activation="relu", pooled_head=True, scaled_head=False,
        )
        for width in (0.25, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5)
    },
    **{
        f"fbnetv3_{name}": Mobile(
            stages, stem=stem, head=1984, scaled_head=False, activation="hswish", gate="hsigmoid",
            pooled_head=True, head_bias=False, round_limit=0.95, squeeze_divisor=True,
        )
        for name, (stem, stages) in _FBNET_V3.items()
    },
}  # fmt: skip


def _builder(kind: Mobile) -> Callable[[int], onnx.ModelProto]:
    return lambda size: mobile(kind, size)


MODELS: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    name: _builder(kind) for name, kind in _MOBILE.items()
}
