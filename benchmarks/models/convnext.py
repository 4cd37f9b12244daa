"""ConvNeXt v1 and v2: depthwise 7 x 7, layer normalisation, inverted bottleneck.

Liu et al., arXiv 2201.03545; Woo et al., 2301.00808. Numbers as in timm. The big members work on
channels-last tensors between transposes, the small ones on 1 x 1 convolutions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import onnx

from benchmarks.models.blocks import act
from benchmarks.models.mobile import divisible
from benchmarks.models.net import Net, Value


@dataclass(frozen=True, slots=True)
class ConvNeXt:
    """Numbers of one member."""

    depths: tuple[int, ...]
    width: int
    convolutional: bool = False  # 1 x 1 convolutions instead of linear layers
    response_norm: bool = False  # v2: global response normalisation, no layer scale
    stem: str = "patch"  # or 'overlap', 'tiered'
    head_hidden: int = 0


def _norm_image(net: Net, x: Value) -> Value:
    """Layer normalisation over the channels of an image."""
    last = net.layer_norm(net.transpose(x, 0, 2, 3, 1))
    return net.transpose(last, 0, 3, 1, 2)


def _response_norm(net: Net, x: Value, *, first: bool) -> Value:
    """x + beta + gamma x |x|_spatial / mean over channels of the same (arXiv 2301.00808)."""
    axes, channel = ([2, 3], 1) if first else ([1, 2], 3)
    shape = tuple(1 if i in axes else d for i, d in enumerate(x.shape))
    norm = net.node("ReduceL2", [x, net.ints(*axes)], shape, keepdims=1)
    mean = net.add(net.mean(norm, channel, keepdims=True), net.scalar(1e-6))
    weights = (x.shape[1], 1, 1) if first else (x.shape[3],)
    scaled = net.mul(net.weight(*weights, stem="scale"), net.mul(x, net.binary("Div", norm, mean)))
    return net.add(x, net.add(net.weight(*weights, stem="bias"), scaled))


def _block(net: Net, x: Value, kind: ConvNeXt) -> Value:
    width = x.channels
    y = net.conv(x, width, 7, groups=width, bias=True)
    if kind.convolutional:
        y = act(net, net.conv(_norm_image(net, y), 4 * width, bias=True), "gelu")
        y = _response_norm(net, y, first=True) if kind.response_norm else y
        y = net.conv(y, width, bias=True)
    else:
        y = net.layer_norm(net.transpose(y, 0, 2, 3, 1))
        y = act(net, net.linear(y, 4 * width), "gelu")
        y = _response_norm(net, y, first=False) if kind.response_norm else y
        y = net.transpose(net.linear(y, width), 0, 3, 1, 2)
    if not kind.response_norm:
        y = net.mul(y, net.weight(1, width, 1, 1, stem="scale"))
    return net.add(y, x)


def _stem(net: Net, x: Value, kind: ConvNeXt) -> Value:
    if kind.stem == "patch":
        return net.conv(x, kind.width, 4, stride=4, pads=(0, 0, 0, 0), bias=True)
    middle = divisible(kind.width // 2) if kind.stem == "tiered" else kind.width
    return net.conv(
        net.conv(x, middle, 3, stride=2, bias=True), kind.width, 3, stride=2, bias=True
    )


def convnext(kind: ConvNeXt, size: int) -> onnx.ModelProto:
    """Return the network for images of `size` x `size`."""
    net = Net("convnext")
    x = _norm_image(net, _stem(net, net.image(size), kind))
    for stage, depth in enumerate(kind.depths):
        if stage:
            x = net.conv(
                _norm_image(net, x), kind.width << stage, 2, stride=2, pads=(0, 0, 0, 0), bias=True
            )
        for _ in range(depth):
            x = _block(net, x, kind)
    x = net.layer_norm(net.flatten(net.global_pool(x)))
    if kind.head_hidden:
        x = act(net, net.linear(x, kind.head_hidden), "gelu")
    return net.model(net.linear(x, 1000))


_V1 = {
    "atto": ConvNeXt((2, 2, 6, 2), 40, convolutional=True),
    "femto": ConvNeXt((2, 2, 6, 2), 48, convolutional=True),
    "pico": ConvNeXt((2, 2, 6, 2), 64, convolutional=True),
    "nano": ConvNeXt((2, 2, 8, 2), 80, convolutional=True),
    "tiny": ConvNeXt((3, 3, 9, 3), 96),
    "small": ConvNeXt((3, 3, 27, 3), 96),
    "base": ConvNeXt((3, 3, 27, 3), 128),
    "large": ConvNeXt((3, 3, 27, 3), 192),
    "xlarge": ConvNeXt((3, 3, 27, 3), 256),
    "xxlarge": ConvNeXt((3, 4, 30, 3), 384),
    "huge": ConvNeXt((3, 3, 27, 3), 352),
}
_V2_SIZES = ["atto", "femto", "pico", "nano", "tiny", "small", "base", "large", "huge"]
_CONVNEXT = {
    **{f"convnext_{name}": kind for name, kind in _V1.items() if name != "huge"},
    **{f"convnextv2_{name}": replace(_V1[name], response_norm=True) for name in _V2_SIZES},
    **{
        f"convnext_{name}_ols": replace(_V1[name], stem="tiered")
        for name in ("atto", "femto", "pico")
    },
    "convnext_nano_ols": replace(_V1["nano"], stem="overlap"),
    "convnext_tiny_hnf": replace(_V1["tiny"], convolutional=True),
    "convnext_large_mlp": replace(_V1["large"], head_hidden=1536),
}


def _builder(kind: ConvNeXt) -> Callable[[int], onnx.ModelProto]:
    return lambda size: convnext(kind, size)


MODELS: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    name: _builder(kind) for name, kind in _CONVNEXT.items()
}
