"""Swin transformers v1 and v2: attention in windows, shifted every second block, relative bias.

Liu et al., arXiv 2103.14030 and 2111.09883. The cyclic shift is Slice and Concat, as
exporters write torch.roll.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from benchmarks.models.blocks import attend, feed_forward, packed_heads
from benchmarks.models.net import BATCH, Net, Value


@dataclass(frozen=True, slots=True)
class Swin:
    """Numbers of one member."""

    width: int
    depths: tuple[int, ...]
    heads: int  # of the first stage; doubles with each
    window: int = 7
    second: bool = False  # v2: cosine attention, bias from a small network, norm after the branch


def _roll(net: Net, x: Value, axis: int, shift: int) -> Value:
    size = x.shape[axis]
    return net.concat([net.slice(x, axis, shift, size), net.slice(x, axis, 0, shift)], axis=axis)


def _windows(net: Net, x: Value, window: int) -> Value:
    """[N, H, W, C] -> [N windows, window^2, C]."""
    _, h, w, c = x.shape
    cut = net.reshape(x, BATCH, h // window, window, w // window, window, c)
    return net.reshape(net.transpose(cut, 0, 1, 3, 2, 4, 5), BATCH, window * window, c)


def _joined(net: Net, x: Value, window: int, h: int, w: int) -> Value:
    """The inverse of `_windows`."""
    c = x.width
    cut = net.reshape(x, BATCH, h // window, w // window, window, window, c)
    return net.reshape(net.transpose(cut, 0, 1, 3, 2, 4, 5), BATCH, h, w, c)


def _relative_bias(net: Net, window: int, heads: int) -> Value:
    """[1, heads, L, L] gathered from the table of relative positions."""
    length = window * window
    table = net.weight((2 * window - 1) ** 2, heads)
    index = net.weight(length * length, stem="buffer_index", dtype=TensorProto.INT64)
    rows = net.node("Gather", [table, index], (length * length, heads), axis=0)
    cube = net.transpose(net.reshape(rows, length, length, heads), 2, 0, 1)
    return net.node("Unsqueeze", [cube, net.ints(0)], (1, heads, length, length))


def _continuous_bias(net: Net, window: int, heads: int) -> Value:
    """[1, heads, L, L] from a two-layer network over relative coordinates (v2)."""
    length = window * window
    table = net.weight((2 * window - 1) ** 2, 2, stem="buffer")
    hidden = net.unary("Relu", net.linear(table, 512))
    values = net.linear(hidden, heads, bias=False)
    index = net.weight(length * length, stem="buffer_index", dtype=TensorProto.INT64)
    rows = net.node("Gather", [values, index], (length * length, heads), axis=0)
    cube = net.transpose(net.reshape(rows, length, length, heads), 2, 0, 1)
    scaled = net.mul(net.unary("Sigmoid", cube), net.scalar(16.0))
    return net.node("Unsqueeze", [scaled, net.ints(0)], (1, heads, length, length))


def _unit(net: Net, x: Value) -> Value:
    """Divide by the Euclidean norm over the last axis."""
    shape = (*x.shape[:-1], 1)
    norm = net.node("ReduceL2", [x, net.ints(-1)], shape, keepdims=1)
    floor = net.node("Clip", [norm, net.scalar(1e-12)], shape)
    return net.binary("Div", x, floor)


def _cosine_attention(net: Net, x: Value, heads: int, window: int, mask: Value | None) -> Value:
    length, width = window * window, x.width
    packed = net.linear(x, 3 * width, bias=False)
    zeros = net.weight(width, stem="buffer")
    offsets = net.concat(
        [net.weight(width, stem="bias"), zeros, net.weight(width, stem="bias")], 0
    )
    packed = net.reshape(net.add(packed, offsets), BATCH, length, 3, heads, width // heads)
    lead = net.transpose(packed, 2, 0, 3, 1, 4)
    q, k, v = (net.take(lead, 0, i) for i in range(3))
    scores = net.matmul(_unit(net, q), net.transpose(_unit(net, k), 0, 1, 3, 2))
    scale = net.node(
        "Clip", [net.weight(heads, 1, 1, stem="scale"), None, net.scalar(4.605)], (heads, 1, 1)
    )
    scores = net.mul(scores, net.unary("Exp", scale))
    scores = net.add(scores, _continuous_bias(net, window, heads))
    return _finish(net, scores, v, mask, width)


def _finish(net: Net, scores: Value, v: Value, mask: Value | None, width: int) -> Value:
    """Mask (which differs by window), softmax, mix, project."""
    heads, length = scores.shape[1], scores.shape[2]
    if mask is not None:
        grid = net.reshape(scores, BATCH, mask.shape[1], heads, length, length)
        scores = net.reshape(net.add(grid, mask), BATCH, heads, length, length)
    mixed = net.transpose(net.matmul(net.softmax(scores), v), 0, 2, 1, 3)
    return net.linear(net.reshape(mixed, BATCH, length, width), width)


def _window_attention(net: Net, x: Value, heads: int, window: int, mask: Value | None) -> Value:
    q, k, v = packed_heads(net, x, heads)
    bias = _relative_bias(net, window, heads)
    if mask is None:
        return net.linear(attend(net, q, k, v, bias=bias), x.width)
    q = net.mul(q, net.scalar(q.width**-0.5))
    scores = net.add(net.matmul(q, net.transpose(k, 0, 1, 3, 2)), bias)
    return _finish(net, scores, v, mask, x.width)


def _block(net: Net, x: Value, heads: int, window: int, *, shifted: bool, second: bool) -> Value:
    _, h, w, c = x.shape
    shift = window // 2 if shifted and h > window else 0
    attention = _cosine_attention if second else _window_attention
    y = x if second else net.layer_norm(x)
    mask = None
    if shift:
        y = _roll(net, _roll(net, y, 1, shift), 2, shift)
        length = window * window
        mask = net.weight(1, h // window * (w // window), 1, length, length, stem="buffer")
    y = attention(net, _windows(net, y, window), heads, window, mask)
    y = _joined(net, y, window, h, w)
    if shift:
        y = _roll(net, _roll(net, y, 1, h - shift), 2, w - shift)
    x = net.add(x, net.layer_norm(y) if second else y)
    flat = net.reshape(x, BATCH, h * w, c)
    if second:
        flat = net.add(flat, net.layer_norm(feed_forward(net, flat, 4 * c)))
    else:
        flat = net.add(flat, feed_forward(net, net.layer_norm(flat), 4 * c))
    return net.reshape(flat, BATCH, h, w, c)


def _merge(net: Net, x: Value, *, second: bool) -> Value:
    """Halve the image: 2 x 2 neighbours become channels, then linear to twice the width."""
    _, h, w, c = x.shape
    cut = net.reshape(x, BATCH, h // 2, 2, w // 2, 2, c)
    flat = net.reshape(net.transpose(cut, 0, 1, 3, 4, 2, 5), BATCH, h // 2, w // 2, 4 * c)
    if second:
        return net.layer_norm(net.linear(flat, 2 * c, bias=False))
    return net.linear(net.layer_norm(flat), 2 * c, bias=False)


def swin(kind: Swin, size: int) -> onnx.ModelProto:
    """Return the network for images of `size` x `size`, a multiple of 32 windows."""
    net = Net("swin")
    x = net.conv(net.image(size), kind.width, 4, stride=4, pads=(0, 0, 0, 0), bias=True)
    x = net.layer_norm(net.transpose(x, 0, 2, 3, 1))
    for stage, depth in enumerate(kind.depths):
        x = _merge(net, x, second=kind.second) if stage else x
        window = min(kind.window, x.shape[1])
        for i in range(depth):
            x = _block(net, x, kind.heads << stage, window, shifted=i % 2 == 1, second=kind.second)
    return net.model(net.linear(net.mean(net.layer_norm(x), 1, 2), 1000))


_SWIN = {
    "swin_tiny_patch4_window7": Swin(96, (2, 2, 6, 2), 3),
    "swin_small_patch4_window7": Swin(96, (2, 2, 18, 2), 3),
    "swin_base_patch4_window7": Swin(128, (2, 2, 18, 2), 4),
    "swin_base_patch4_window12": Swin(128, (2, 2, 18, 2), 4, window=12),
    "swin_large_patch4_window7": Swin(192, (2, 2, 18, 2), 6),
    "swin_large_patch4_window12": Swin(192, (2, 2, 18, 2), 6, window=12),
    **{
        f"swinv2_{name}_window{window}": Swin(width, depths, heads, window=window, second=True)
        for name, width, depths, heads, windows in (
            ("tiny", 96, (2, 2, 6, 2), 3, (8, 16)),
            ("small", 96, (2, 2, 18, 2), 3, (8, 16)),
            ("base", 128, (2, 2, 18, 2), 4, (8, 12, 16, 24)),
            ("large", 192, (2, 2, 18, 2), 6, (12, 16, 24)),
        )
        for window in windows
    },
}


def _builder(kind: Swin) -> Callable[[int], onnx.ModelProto]:
    return lambda size: swin(kind, size)


MODELS: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    name: _builder(kind) for name, kind in _SWIN.items()
}
