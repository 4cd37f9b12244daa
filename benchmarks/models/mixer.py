"""Networks of linear layers over tokens: MLP-Mixer, gMixer, ResMLP, gMLP.

Tolstikhin et al., arXiv 2105.01601; Touvron et al., 2105.03404; Liu et al., 2105.08050. Numbers as
in timm. The linear layer over tokens stands between two transposes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx

from benchmarks.models.blocks import act, feed_forward, tokens
from benchmarks.models.net import Net, Value


@dataclass(frozen=True, slots=True)
class Mixer:
    """Numbers of one member; `style` is mixer, gated_mixer, res or gate."""

    patch: int
    depth: int
    width: int
    style: str = "mixer"


def _across(net: Net, x: Value, apply: Callable[[Value], Value]) -> Value:
    """Apply a layer along the tokens instead of the channels."""
    return net.transpose(apply(net.transpose(x, 0, 2, 1)), 0, 2, 1)


def _gated_feed_forward(net: Net, x: Value, hidden: int) -> Value:
    """fc1, halves a silu(b), fc2."""
    left, right = net.split(net.linear(x, hidden), (hidden // 2,) * 2, axis=-1)
    return net.linear(net.mul(left, act(net, right, "silu")), x.width)


def _mixer_block(net: Net, x: Value, kind: Mixer) -> Value:
    gated = kind.style == "gated_mixer"
    feed = _gated_feed_forward if gated else feed_forward
    across = kind.width if gated else kind.width // 2
    y = _across(net, net.layer_norm(x), lambda t: feed(net, t, across))
    x = net.add(x, y)
    return net.add(x, feed(net, net.layer_norm(x), 4 * kind.width))


def _affine(net: Net, x: Value) -> Value:
    scaled = net.mul(net.weight(1, 1, x.width, stem="scale"), x)
    return net.add(net.weight(1, 1, x.width, stem="bias"), scaled)


def _res_block(net: Net, x: Value, kind: Mixer) -> Value:
    y = _across(net, _affine(net, x), lambda t: net.linear(t, t.width))
    x = net.add(x, net.mul(net.weight(kind.width, stem="scale"), y))
    y = feed_forward(net, _affine(net, x), 4 * kind.width)
    return net.add(x, net.mul(net.weight(kind.width, stem="scale"), y))


def _gate_block(net: Net, x: Value, kind: Mixer) -> Value:
    """Spatial gating: one half of the hidden channels, mixed over tokens, gates the other."""
    hidden = act(net, net.linear(net.layer_norm(x), 6 * kind.width), "gelu")
    left, right = net.split(hidden, (3 * kind.width,) * 2, axis=-1)
    gate = _across(net, net.layer_norm(right), lambda t: net.linear(t, t.width))
    return net.add(x, net.linear(net.mul(left, gate), kind.width))


_BLOCKS = {
    "mixer": _mixer_block,
    "gated_mixer": _mixer_block,
    "res": _res_block,
    "gate": _gate_block,
}


def mixer(kind: Mixer, size: int) -> onnx.ModelProto:
    """Return the network for images of `size` x `size`."""
    net = Net("mixer")
    pads = (0, 0, 0, 0)
    x = tokens(
        net,
        net.conv(net.image(size), kind.width, kind.patch, stride=kind.patch, pads=pads, bias=True),
    )
    for _ in range(kind.depth):
        x = _BLOCKS[kind.style](net, x, kind)
    x = _affine(net, x) if kind.style == "res" else net.layer_norm(x)
    return net.model(net.linear(net.mean(x, 1), 1000))


_MIXER = {
    "mixer_s32": Mixer(32, 8, 512),
    "mixer_s16": Mixer(16, 8, 512),
    "mixer_b32": Mixer(32, 12, 768),
    "mixer_b16": Mixer(16, 12, 768),
    "mixer_l32": Mixer(32, 24, 1024),
    "mixer_l16": Mixer(16, 24, 1024),
    "gmixer_12": Mixer(16, 12, 384, "gated_mixer"),
    "gmixer_24": Mixer(16, 24, 384, "gated_mixer"),
    "resmlp_12": Mixer(16, 12, 384, "res"),
    "resmlp_24": Mixer(16, 24, 384, "res"),
    "resmlp_36": Mixer(16, 36, 384, "res"),
    "resmlp_big_24": Mixer(8, 24, 768, "res"),
    "gmlp_ti16": Mixer(16, 30, 128, "gate"),
    "gmlp_s16": Mixer(16, 30, 256, "gate"),
    "gmlp_b16": Mixer(16, 30, 512, "gate"),
}


def _builder(kind: Mixer) -> Callable[[int], onnx.ModelProto]:
    return lambda size: mixer(kind, size)


MODELS: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    name: _builder(kind) for name, kind in _MIXER.items()
}
