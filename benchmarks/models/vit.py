"""Plain vision transformers: ViT, DeiT, DeiT III, CLIP, SigLIP and DINOv2 towers, register tokens.

Dosovitskiy et al., arXiv 2010.11929; Touvron et al., 2012.12877 and 2204.07118; Radford et al.,
2103.00020; Zhai et al., 2303.15343; Oquab et al., 2304.07193; Darcet et al., 2309.16588. Numbers
as in timm.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import onnx

from benchmarks.models.blocks import act, attend, feed_forward, heads_first, packed_heads, tokens
from benchmarks.models.net import Net, Value


@dataclass(frozen=True, slots=True)
class ViT:
    """Numbers of one member."""

    width: int
    depth: int
    heads: int
    patch: int = 16
    ratio: float = 4.0
    class_tokens: int = 1  # 2: distilled, with two heads
    registers: int = 0
    pool: str = "token"  # token, mean (norm, then mean), mean_norm (mean, then norm), map
    embed_tokens: bool = True  # position embedding covers the extra tokens
    pre_norm: bool = False
    layer_scale: bool = False
    packed_bias: bool = True
    activation: str = "gelu"
    gated: bool = False  # SwiGLU of hidden width ratio x width / 2


def _scale(net: Net, x: Value, kind: ViT) -> Value:
    return net.mul(x, net.weight(kind.width, stem="scale")) if kind.layer_scale else x


def _embed(net: Net, x: Value, kind: ViT) -> Value:
    pads = (0, 0, 0, 0)
    x = tokens(
        net,
        net.conv(x, kind.width, kind.patch, stride=kind.patch, pads=pads, bias=not kind.pre_norm),
    )
    extra = [
        net.expand_batch(net.weight(1, count, kind.width), x)
        for count in (1,) * kind.class_tokens + ((kind.registers,) if kind.registers else ())
    ]
    length = x.shape[1]
    if kind.embed_tokens:
        x = net.concat([*extra, x]) if extra else x
        x = net.add(x, net.weight(1, x.shape[1], kind.width))
    else:
        x = net.add(x, net.weight(1, length, kind.width))
        x = net.concat([*extra, x]) if extra else x
    return net.layer_norm(x) if kind.pre_norm else x


def _block(net: Net, x: Value, kind: ViT) -> Value:
    y = net.layer_norm(x)
    q, k, v = packed_heads(net, y, kind.heads, bias=kind.packed_bias)
    y = net.linear(attend(net, q, k, v), kind.width)
    x = net.add(x, _scale(net, y, kind))
    hidden = int(kind.width * kind.ratio)
    y = net.layer_norm(x)
    if kind.gated:
        gate, up = net.split(net.linear(y, hidden), (hidden // 2,) * 2, axis=-1)
        y = net.linear(net.mul(act(net, gate, "silu"), up), kind.width)
    else:
        y = feed_forward(net, y, hidden, activation=kind.activation)
    return net.add(x, _scale(net, y, kind))


def _attention_pool(net: Net, x: Value, kind: ViT) -> Value:
    """One learned query attends over all tokens, then a feed-forward block."""
    length = x.shape[1]
    query = net.linear(net.expand_batch(net.weight(1, 1, kind.width), x), kind.width)
    packed = net.reshape(
        net.linear(x, 2 * kind.width), -1, length, 2, kind.heads, kind.width // kind.heads
    )
    lead = net.transpose(packed, 2, 0, 3, 1, 4)
    mixed = attend(
        net, heads_first(net, query, kind.heads), net.take(lead, 0, 0), net.take(lead, 0, 1)
    )
    y = net.linear(mixed, kind.width)
    hidden = int(kind.width * kind.ratio)
    y = net.add(y, feed_forward(net, net.layer_norm(y), hidden, activation=kind.activation))
    return net.take(y, 1, 0)


def _head(net: Net, x: Value, kind: ViT) -> Value:
    if kind.pool == "mean_norm":
        patches = net.slice(x, 1, kind.class_tokens + kind.registers, x.shape[1])
        return net.linear(net.layer_norm(net.mean(patches, 1)), 1000)
    x = net.layer_norm(x)
    if kind.pool == "map":
        return net.linear(_attention_pool(net, x, kind), 1000)
    if kind.pool == "mean":
        return net.linear(net.mean(x, 1), 1000)
    heads = [net.linear(net.take(x, 1, i), 1000) for i in range(kind.class_tokens)]
    if len(heads) == 1:
        return heads[0]
    return net.binary("Div", net.add(*heads), net.scalar(2.0))


def vit(kind: ViT, size: int) -> onnx.ModelProto:
    """Return the network for images of `size` x `size`."""
    net = Net("vit")
    x = _embed(net, net.image(size), kind)
    for _ in range(kind.depth):
        x = _block(net, x, kind)
    return net.model(_head(net, x, kind))


_SIZES = {
    "tiny": ViT(192, 12, 3),
    "xsmall": ViT(256, 10, 4),
    "small": ViT(384, 12, 6),
    "medium": ViT(512, 12, 8),
    "betwixt": ViT(640, 12, 10),
    "base": ViT(768, 12, 12),
    "base_plus": ViT(896, 12, 14),
    "large": ViT(1024, 24, 16),
    "so400m": ViT(1152, 27, 16, ratio=3.7362),
    "huge": ViT(1280, 32, 16),
    "giant": ViT(1408, 40, 16, ratio=48 / 11),
    "giantopt": ViT(1536, 40, 16),
    "gigantic": ViT(1664, 48, 16, ratio=64 / 13),
}


def _family(prefix: str, members: str, **changes: object) -> dict[str, ViT]:
    """One network for each 'size/patch' word of `members`; {size} and {patch} fill the prefix."""
    result = {}
    for word in members.split():
        size, patch = word.split("/")
        name = prefix.format(size=size.replace("_plus", ""), patch=patch)
        name = name.replace("patch" + patch, f"patch{patch}_plus") if "_plus" in size else name
        result[name] = replace(_SIZES[size], patch=int(patch), **changes)  # type: ignore[arg-type]
    return result


_MEAN = {"class_tokens": 0, "pool": "mean"}
_SIGLIP = {"class_tokens": 0, "activation": "gelu_tanh"}
_SIGLIP_SIZES = "base/16 base/32 large/16 so400m/14 so400m/16 giantopt/16"
_CLIP_SIZES = (
    "xsmall/16 medium/16 medium/32 betwixt/32 base/16 base/32 base_plus/16 large/14 huge/14"
    " giant/14 gigantic/14"
)
_DINO = {"layer_scale": True}
_DINO_GIANT = ViT(
    1536, 40, 24, patch=14, ratio=2.66667 * 2, layer_scale=True, gated=True, activation="silu"
)

_VIT: dict[str, ViT] = {
    **_family(
        "vit_{size}_patch{patch}",
        "tiny/16 small/32 small/16 small/8 base/32 base/16 base/8 large/32 large/16 large/14"
        " huge/14 giant/14 gigantic/14",
    ),
    **_family("vit_{size}_patch{patch}", "base_plus/32 base_plus/16", layer_scale=True),
    "vit_base_patch16_miil": replace(_SIZES["base"], packed_bias=False),
    # the first 'small' of the library: eight wide layers, feed-forward of three widths
    "vit_small_wide_patch16": ViT(768, 8, 8, ratio=3.0),
    "vit_small_patch16_36x1": replace(_SIZES["small"], depth=36, layer_scale=True),
    **_family(
        "vit_{size}_patch{patch}_gap",
        "medium/16 betwixt/16",
        packed_bias=False,
        layer_scale=True,
        **_MEAN,
    ),
    "vit_base_patch16_gap": replace(_SIZES["base"], heads=16, class_tokens=0, pool="mean"),
    **_family("vit_{size}_patch{patch}_gap", "huge/14 huge/16 giant/16", **_MEAN),
    **_family("vit_{size}_patch{patch}_clip", _CLIP_SIZES, pre_norm=True),
    **_family(
        "vit_{size}_patch{patch}_clip_quickgelu",
        "base/16 base/32 large/14 huge/14 gigantic/14",
        pre_norm=True,
        activation="quick_gelu",
    ),
    **_family("vit_{size}_patch{patch}_siglip", _SIGLIP_SIZES, pool="map", **_SIGLIP),
    **_family("vit_{size}_patch{patch}_siglip_gap", _SIGLIP_SIZES, pool="mean", **_SIGLIP),
    **_family("vit_{size}_patch{patch}_dinov2", "small/14 base/14 large/14", **_DINO),
    **_family(
        "vit_{size}_patch{patch}_reg4_dinov2",
        "small/14 base/14 large/14",
        registers=4,
        embed_tokens=False,
        **_DINO,
    ),
    "vit_giant_patch14_dinov2": _DINO_GIANT,
    "vit_giant_patch14_reg4_dinov2": replace(_DINO_GIANT, registers=4, embed_tokens=False),
    **_family("eva_{size}_patch{patch}", "large/14", pool="mean_norm"),
    **{
        f"flexivit_{size}": replace(_SIZES[size], embed_tokens=False)
        for size in ("small", "base", "large")
    },
    **_family("deit_{size}_patch{patch}", "tiny/16 small/16 base/16"),
    **_family("deit_{size}_distilled_patch{patch}", "tiny/16 small/16 base/16", class_tokens=2),
    **_family(
        "deit3_{size}_patch{patch}",
        "small/16 medium/16 base/16 large/16 huge/14",
        embed_tokens=False,
        layer_scale=True,
    ),
    **{
        f"vit_{size}_patch16_reg{count}_gap": replace(
            kind, class_tokens=0, registers=count, embed_tokens=False, pool="mean_norm",
            layer_scale=size not in ("base", "so150m"),
        )
        for size, count, kind in (
            ("wee", 1, ViT(256, 14, 4, ratio=5)),
            ("little", 1, ViT(320, 14, 5, ratio=5.6)),
            ("little", 4, ViT(320, 14, 5, ratio=5.6)),
            ("medium", 1, _SIZES["medium"]),
            ("medium", 4, _SIZES["medium"]),
            ("mediumd", 4, replace(_SIZES["medium"], depth=20)),
            ("betwixt", 1, _SIZES["betwixt"]),
            ("betwixt", 4, _SIZES["betwixt"]),
            ("base", 4, _SIZES["base"]),
            ("base", 8, _SIZES["base"]),
            ("so150m", 4, ViT(896, 18, 14, ratio=2.572)),
        )
    },
}  # fmt: skip


def _builder(kind: ViT) -> Callable[[int], onnx.ModelProto]:
    return lambda size: vit(kind, size)


MODELS: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    name: _builder(kind) for name, kind in _VIT.items()
}
