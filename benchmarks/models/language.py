"""BERT-like encoders: BERT, DistilBERT, MiniLM, sentence encoders made of them, DeBERTa v3.

Devlin et al., arXiv 1810.04805; Sanh et al., 1910.01108; Wang et al., 2002.10957; Reimers &
Gurevych, 2004.09813; He et al., 2006.03654 and 2111.09543. The size argument is the sequence
length.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import onnx
from onnx import TensorProto

from benchmarks.models.blocks import attend, feed_forward, heads_first
from benchmarks.models.net import BATCH, Net, Value


@dataclass(frozen=True, slots=True)
class Encoder:
    """Numbers of one member. `head`: span (two logits a token), pooled, or mean[+dense width]."""

    width: int
    depth: int
    heads: int
    vocabulary: int
    segments: int = 2  # 0: no token types
    positions: int = 512  # 0: none are added
    head: str = "span"
    dense: int = 0  # after the mean
    pooler: bool = True


def _embedding(net: Net, ids: Value, rows: int, width: int) -> Value:
    table = net.weight(rows, width)
    return net.node("Gather", [table, ids], (*ids.shape, width), axis=0)


def _inputs(net: Net, kind: Encoder, length: int) -> tuple[Value, Value]:
    """The embedded tokens and the additive attention mask [N, 1, 1, L]."""
    shape: tuple[int | str, ...] = ("batch", length)
    x = _embedding(
        net, net.input("input_ids", shape, TensorProto.INT64), kind.vocabulary, kind.width
    )
    mask = net.input("attention_mask", shape, TensorProto.INT64)
    if kind.segments:
        types = net.input("token_type_ids", shape, TensorProto.INT64)
        x = net.add(x, _embedding(net, types, kind.segments, kind.width))
    if kind.positions:
        table = net.weight(kind.positions, kind.width)
        x = net.add(x, net.slice(table, 0, 0, length))
    wide = net.node("Unsqueeze", [mask, net.ints(1, 2)], (BATCH, 1, 1, length))
    wide = net.node("Cast", [wide], wide.shape, to=TensorProto.FLOAT)
    hidden = net.binary("Sub", net.scalar(1.0), wide)
    return net.layer_norm(x), net.mul(hidden, net.scalar(-10000.0))


def _block(net: Net, x: Value, mask: Value, kind: Encoder) -> Value:
    q, k, v = (heads_first(net, net.linear(x, kind.width), kind.heads) for _ in range(3))
    x = net.layer_norm(net.add(x, net.linear(attend(net, q, k, v, bias=mask), kind.width)))
    return net.layer_norm(net.add(x, feed_forward(net, x, 4 * kind.width)))


def encoder(kind: Encoder, length: int) -> onnx.ModelProto:
    """Return the network for sequences of `length` tokens."""
    net = Net("encoder")
    x, mask = _inputs(net, kind, length)
    for _ in range(kind.depth):
        x = _block(net, x, mask, kind)
    if kind.head == "span":
        return net.model(net.linear(x, 2))
    first = [x] if kind.head == "pooled" else [_mean_of_tokens(net, x, kind)]
    if kind.pooler:
        first.append(net.unary("Tanh", net.linear(net.take(x, 1, 0), kind.width)))
    return net.model(*first)


def _mean_of_tokens(net: Net, x: Value, kind: Encoder) -> Value:
    mean = net.mean(x, 1)
    return net.unary("Tanh", net.linear(mean, kind.dense)) if kind.dense else mean


@dataclass(frozen=True, slots=True)
class Disentangled:
    """Numbers of a DeBERTa: content and relative position attend apart. `buckets` a side."""

    width: int
    depth: int
    heads: int
    vocabulary: int = 128100
    buckets: int = 256


Layer: TypeAlias = tuple[Value, Value]
"""Weight and bias of one linear layer, used more than once."""


def _layer(net: Net, width: int) -> Layer:
    return net.weight(width, width), net.weight(width, stem="bias")


def _project(net: Net, x: Value, layer: Layer, heads: int) -> Value:
    """The linear layer, split into heads: [N, heads, L, d]."""
    return heads_first(net, net.add(layer[1], net.matmul(x, layer[0])), heads)


def _gathered(net: Net, content: Value, positions: Value, index: Value) -> Value:
    """Scores of content against positions, gathered by distance: [N, heads, L, L]."""
    wide = net.matmul(content, net.transpose(positions, 0, 1, 3, 2))
    return net.node("GatherElements", [wide, index], index.shape, axis=3)


def _disentangled_block(
    net: Net, x: Value, mask: Value, table: Value, index: Value, kind: Disentangled
) -> Value:
    queries, keys, values = (_layer(net, kind.width) for _ in range(3))
    q, k, v = (_project(net, x, layer, kind.heads) for layer in (queries, keys, values))
    scale = net.scalar(math.sqrt(3 * q.width))
    scores = net.matmul(q, net.binary("Div", net.transpose(k, 0, 1, 3, 2), scale))
    toward = _gathered(net, q, _project(net, table, keys, kind.heads), index)
    back = _gathered(net, k, _project(net, table, queries, kind.heads), index)
    bias = net.binary("Div", net.add(toward, net.transpose(back, 0, 1, 3, 2)), scale)
    weights = net.softmax(net.add(net.add(scores, bias), mask))
    mixed = net.transpose(net.matmul(weights, v), 0, 2, 1, 3)
    mixed = net.reshape(mixed, BATCH, mixed.shape[1], kind.width)
    x = net.layer_norm(net.add(x, net.linear(mixed, kind.width)))
    return net.layer_norm(net.add(x, feed_forward(net, x, 4 * kind.width)))


def deberta(kind: Disentangled, length: int) -> onnx.ModelProto:
    """DeBERTa v3 without its masked-language head; positions share the content's projections."""
    net = Net("deberta")
    plain = Encoder(kind.width, kind.depth, kind.heads, kind.vocabulary, segments=0, positions=0)
    x, mask = _inputs(net, plain, length)
    table = net.layer_norm(net.weight(1, 2 * kind.buckets, kind.width))
    distances = net.weight(
        1, kind.heads, length, length, stem="buffer_index", dtype=TensorProto.INT64
    )
    index = net.expand_batch(distances, x)
    for _ in range(kind.depth):
        x = _disentangled_block(net, x, mask, table, index, kind)
    return net.model(x)


_ENCODERS = {
    "bert_base": Encoder(768, 12, 12, 30522),
    "bert_large": Encoder(1024, 24, 16, 30522),
    "bert_base_multilingual": Encoder(768, 12, 12, 119547, head="pooled"),
    "distiluse_multilingual": Encoder(
        768, 6, 12, 119547, segments=0, head="mean", dense=512, pooler=False
    ),
    "minilm_l12_multilingual": Encoder(384, 12, 12, 250037, head="mean"),
}


def _builder(kind: Encoder) -> Callable[[int], onnx.ModelProto]:
    return lambda length: encoder(kind, length)


MODELS: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    **{name: _builder(kind) for name, kind in _ENCODERS.items()},
    "deberta_v3_xsmall": partial(deberta, Disentangled(384, 12, 6)),
    "deberta_v3_large": partial(deberta, Disentangled(1024, 24, 16)),
}
