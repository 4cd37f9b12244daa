"""BERT-like encoders: BERT, DistilBERT, MiniLM and the sentence encoders made of them.

Devlin et al., arXiv 1810.04805; Sanh et al., 1910.01108; Wang et al., 2002.10957; Reimers &
Gurevych, 2004.09813. The size argument is the sequence length.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
    positions: int = 512
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
    mean = net.mean(x, 1)
    if kind.dense:
        mean = net.unary("Tanh", net.linear(mean, kind.dense))
    if not kind.pooler:
        return net.model(mean)
    pooled = net.unary("Tanh", net.linear(net.take(x, 1, 0), kind.width))
    return net.model(x, pooled) if kind.head == "pooled" else net.model(mean, pooled)


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
    name: _builder(kind) for name, kind in _ENCODERS.items()
}
