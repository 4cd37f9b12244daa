"""Composites that families share: activations, convolution + normalisation + activation,
squeeze-and-excitation, attention, feed-forward, classifier heads.

Only graph building on top of `Net`; no family's numbers.
"""

import math
from collections.abc import Callable, Mapping

from benchmarks.models.net import BATCH, Net, Value


def _silu(net: Net, x: Value) -> Value:
    return net.mul(x, net.unary("Sigmoid", x))


def _gelu(net: Net, x: Value) -> Value:
    return net.unary("Gelu", x)


def _gelu_tanh(net: Net, x: Value) -> Value:
    return net.unary("Gelu", x, approximate="tanh")


def _quick_gelu(net: Net, x: Value) -> Value:
    # x sigmoid(1.702 x): arXiv 1606.08415, section 2
    return net.mul(x, net.unary("Sigmoid", net.mul(x, net.scalar(1.702))))


def _mish(net: Net, x: Value) -> Value:
    # x tanh(softplus x): arXiv 1908.08681
    return net.mul(x, net.unary("Tanh", net.unary("Softplus", x)))


def _clip(net: Net, x: Value) -> Value:
    return net.node("Clip", [x, net.scalar(0.0), net.scalar(6.0)], x.shape)


ACTIVATIONS: Mapping[str, Callable[[Net, Value], Value]] = {
    "": lambda net, x: x,
    "relu": lambda net, x: net.unary("Relu", x),
    "relu6": _clip,
    "leaky": lambda net, x: net.unary("LeakyRelu", x, alpha=0.01),
    "sigmoid": lambda net, x: net.unary("Sigmoid", x),
    "hsigmoid": lambda net, x: net.unary("HardSigmoid", x, alpha=1 / 6, beta=0.5),
    "hswish": lambda net, x: net.unary("HardSwish", x),
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": _quick_gelu,
    "mish": _mish,
    "tanh": lambda net, x: net.unary("Tanh", x),
}


def act(net: Net, x: Value, kind: str) -> Value:
    """Apply the activation called `kind`."""
    return ACTIVATIONS[kind](net, x)


def conv_bn(
    net: Net,
    x: Value,
    out: int,
    kernel: int | tuple[int, int] = 1,
    *,
    stride: int = 1,
    groups: int = 1,
    dilation: int = 1,
    pads: tuple[int, int, int, int] | None = None,
    activation: str = "relu",
) -> Value:
    """Convolution without bias, batch normalisation, activation."""
    y = net.conv(x, out, kernel, stride=stride, groups=groups, dilation=dilation, pads=pads)
    return act(net, net.batch_norm(y), activation)


def group_norm(net: Net, x: Value, groups: int) -> Value:
    """Group normalisation, written as InstanceNormalization of merged channels.

    That is how exporters write it below opset 21, where GroupNormalization became complete.
    """
    n, c, h, w = x.shape
    flat = net.reshape(x, BATCH, groups, c // groups * h * w)
    ones = [net.weight(groups, stem="buffer"), net.weight(groups, stem="buffer")]
    y = net.node("InstanceNormalization", [flat, *ones], flat.shape)
    y = net.mul(net.reshape(y, n, c, h, w), net.weight(c, 1, 1, stem="scale"))
    return net.add(y, net.weight(c, 1, 1, stem="bias"))


def same_pad(net: Net, x: Value, kernel: int, stride: int) -> Value:
    """Pad as TensorFlow's SAME does: to ceil(size / stride) outputs, the odd pixel at the end."""

    def ends(size: int) -> tuple[int, int]:
        need = max(0, (-(-size // stride) - 1) * stride + kernel - size)
        return need // 2, need - need // 2

    (top, bottom), (left, right) = ends(x.shape[2]), ends(x.shape[3])
    return net.pad(x, top, left, bottom, right) if top + bottom + left + right else x


def squeeze_excite(
    net: Net,
    x: Value,
    hidden: int,
    *,
    activation: str = "relu",
    gate: str = "sigmoid",
    norm: bool = False,
    bias: bool = True,
) -> Value:
    """Scale channels by a gate of their means (Hu et al., arXiv 1709.01507), as 1 x 1 convs."""
    mean = net.mean(x, 2, 3, keepdims=True)
    inner = net.conv(mean, hidden, bias=bias)
    inner = act(net, net.batch_norm(inner) if norm else inner, activation)
    return net.mul(x, act(net, net.conv(inner, x.channels, bias=bias), gate))


def channel_gate(net: Net, x: Value) -> Value:
    """Efficient channel attention: a 1-D convolution over the channel means (arXiv 1910.03151)."""
    # kernel |log2(C)/2 + 1/2| made odd (section 4.2 of the paper)
    span = int(abs(math.log2(x.channels) + 1) / 2)
    kernel = max(span if span % 2 else span + 1, 3)
    mean = net.reshape(net.mean(x, 2, 3), -1, 1, x.channels)
    weights = net.weight(1, 1, kernel)
    half = kernel // 2
    y = net.node("Conv", [mean, weights], mean.shape, kernel_shape=[kernel], pads=[half, half])
    return net.mul(x, net.unary("Sigmoid", net.reshape(y, -1, x.channels, 1, 1)))


def classifier(net: Net, x: Value, classes: int = 1000) -> Value:
    """Mean over the image, then a linear layer."""
    return net.linear(net.flatten(net.global_pool(x)), classes)


def feed_forward(
    net: Net, x: Value, hidden: int, *, activation: str = "gelu", out: int | None = None
) -> Value:
    """Linear, activation, linear."""
    inner = act(net, net.linear(x, hidden), activation)
    return net.linear(inner, x.width if out is None else out)


def heads_first(net: Net, x: Value, heads: int) -> Value:
    """[N, L, C] -> [N, heads, L, C / heads]."""
    lead, length, width = x.shape
    return net.transpose(net.reshape(x, lead, length, heads, width // heads), 0, 2, 1, 3)


def attend(
    net: Net, q: Value, k: Value, v: Value, *, bias: Value | None = None, scale: bool = True
) -> Value:
    """softmax(q k^T / sqrt d + bias) v of [N, heads, L, d], back to [N, L, heads d]."""
    attributes = {} if scale else {"scale": 1.0}
    mixed = net.node("Attention", [q, k, v, bias], (*q.shape[:3], v.width), **attributes)
    mixed = net.transpose(mixed, 0, 2, 1, 3)
    _, length, heads, size = mixed.shape
    return net.reshape(mixed, -1, length, heads * size)


def packed_heads(net: Net, x: Value, heads: int, *, bias: bool = True) -> tuple[Value, ...]:
    """q, k, v as [N, heads, L, d] from one linear layer of three times the width."""
    _, length, width = x.shape
    packed = net.reshape(net.linear(x, 3 * width, bias=bias), -1, length, 3, heads, width // heads)
    lead = net.transpose(packed, 2, 0, 3, 1, 4)
    return tuple(net.take(lead, 0, i) for i in range(3))


def tokens(net: Net, x: Value) -> Value:
    """[N, C, H, W] -> [N, H W, C]."""
    _, c, h, w = x.shape
    return net.transpose(net.reshape(x, -1, c, h * w), 0, 2, 1)
