"""Multiply-adds of attention: of ONNX (opset 23 on), and of ONNX Runtime's contrib operators.

All count Q K^T and A V: heads x queries x keys x (head size + value head size) for each image. A
causal mask is not subtracted; a window is: a query then meets at most as many keys as the window
holds. Keys are those of the past plus the new ones. Projections inside an operator are added.
Sources: ONNX operator specification, Attention (opset 25); ONNX Runtime 1.32, ContribOperators.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from slicewise.core.cost import Contraction
from slicewise.graph.operators.row import Elements, Flops, Macs, Product, Seen, product


@dataclass(frozen=True, slots=True)
class Heads:
    """The scores of an attention node: `batch` images x `heads`, `queries` x `keys` each.

    `projection` is [rows, in, out] of a projection done inside the operator.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    size: int
    value_size: int
    projection: tuple[int, int, int] = (0, 0, 0)

    @property
    def scores(self) -> int:
        """Number of query-key pairs."""
        return self.batch * self.heads * self.queries * self.keys

    @property
    def product(self) -> Product:
        """All multiply-adds; the larger of projection and attention as the main product."""
        inner = self.scores * (self.size + self.value_size)
        outer = product(self.projection)
        rows, k, n = self.projection
        main = Contraction(1, rows, n, k)
        if inner >= outer:
            main = Contraction(self.batch * self.heads, self.queries, self.value_size, self.keys)
        return Product(inner + outer, main)


Reading: TypeAlias = Callable[[Seen], Heads]


def attention(reading: Reading) -> Macs:
    """Return the multiply-adds of the attention that `reading` finds in a node."""
    return lambda seen: reading(seen).product


def attention_other(reading: Reading, *, masks: tuple[int, ...] = ()) -> Flops:
    """Return the other arithmetic: 1 (scale) + 5 (softmax) for a score, + 1 for each mask given.

    A soft cap adds 3 (divide, tanh, multiply); rotation of Q and K 3 an element
    (`arithmetic.py` states the convention).
    """

    def count(seen: Seen) -> int:
        heads = reading(seen)
        each = 6 + sum(seen.has(slot) for slot in masks) + 3 * (seen.number("softcap", 0.0) > 0)
        rotated = 0
        if seen.integer("do_rotary", 0):
            rotated = 2 * heads.batch * heads.heads * heads.queries * heads.size
        return heads.scores * each + 3 * rotated

    return count


def _windowed(keys: int, seen: Seen) -> int:
    left = seen.integer("left_window_size", -1)
    right = 0 if seen.integer("is_causal", 0) else seen.integer("right_window_size", -1)
    if left >= 0 and right >= 0:
        return min(keys, left + 1 + right)
    local = seen.integer("local_window_size", -1)
    return min(keys, local) if local > 0 else keys


def _split(width: int, heads: int) -> int:
    if heads < 1 or width % heads:
        raise ValueError(f"{heads} heads do not divide a width of {width}")
    return width // heads


def onnx_attention(seen: Seen) -> Heads:
    """Read ai.onnx Attention and FlexAttention: 4-D [B, H, S, D], or 3-D [B, S, H D].

    PyTorch's has more axes in front, [B, windows, H, S, D], or none but [S, D].
    """
    query, key, value = seen.shape(0), seen.shape(1), seen.shape(2)
    if len(query) > 4:
        query, key, value = _folded(query), _folded(key), _folded(value)
    heads = query[1] if len(query) == 4 else seen.integer("q_num_heads", 0)
    kv_heads = key[1] if len(key) == 4 else seen.integer("kv_num_heads", heads)
    past = seen.shape(4)[2] if seen.has(4) else 0
    return Heads(
        batch=query[0] if len(query) > 2 else 1,
        heads=heads,
        queries=query[-2],
        keys=_windowed(key[-2] + past, seen),
        size=query[-1] if len(query) == 4 else _split(query[-1], heads),
        value_size=value[-1] if len(value) == 4 else _split(value[-1], kv_heads),
    )


def _folded(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return four axes: all in front of heads, rows and size are the batch."""
    return (product(shape[:-3]), *shape[-3:])


def projected(weight: int, past: int) -> Reading:
    """Return the reading of contrib Attention: input [B, S, in], weights [in, q + k + v].

    `past` is the slot of [2, B, H, P, D] (the state of self-attention).
    """

    def read(seen: Seen) -> Heads:
        batch, queries, width = seen.shape(0, rank=3)
        wide = seen.shape(weight)[-1]
        q_width, _, v_width = seen.integers("qkv_hidden_sizes") or (wide // 3,) * 3
        heads = seen.integer("num_heads", 0)
        before = seen.shape(past)[3] if seen.has(past) else 0
        if seen.has_output(1) and len(seen.out_shape(1)) == 5:
            # a state as long as its buffer: past and present share it
            before = max(before, seen.out_shape(1)[3] - queries)
        if seen.has(past) and seen.integer("past_present_share_buffer", 0):
            before = max(0, seen.shape(past)[3] - queries)
        return Heads(
            batch,
            heads,
            queries,
            before + queries,
            _split(q_width, heads),
            _split(v_width, heads),
            (batch * queries, width, wide),
        )

    return read


def packed_projected(seen: Seen) -> Heads:
    """Read PackedAttention: input [tokens, in] without padding, token_offset [B, S]."""
    tokens, width = seen.shape(0, rank=2)
    wide = seen.shape(1)[-1]
    q_width, _, v_width = seen.integers("qkv_hidden_sizes") or (wide // 3,) * 3
    heads = seen.integer("num_heads", 0)
    return Heads(
        1,
        heads,
        tokens,
        seen.shape(3)[-1],
        _split(q_width, heads),
        _split(v_width, heads),
        (tokens, width, wide),
    )


def packed_multi_head(seen: Seen) -> Heads:
    """Read PackedMultiHeadAttention: query [tokens, H D] or packed [tokens, H, 3, D]."""
    query = seen.shape(0)
    heads = seen.integer("num_heads", 0)
    size = query[-1] if len(query) == 4 else _split(query[-1], heads)
    value_size = _split(seen.shape(2)[-1], heads) if seen.has(2) else size
    return Heads(1, heads, query[0], seen.shape(4)[-1], size, value_size)


def multi_head(past: int, present: int = 1) -> Reading:
    """Return the reading of MultiHeadAttention and its decoder twin.

    Query [B, S, H D] or packed [B, S, H, 3, D]; key [B, L, H D], [B, H, L, D], packed with the
    value [B, L, H, 2, D], or absent; `past` is the slot of [B, H, P, D].
    """

    def read(seen: Seen) -> Heads:
        query = seen.shape(0)
        heads = seen.integer("num_heads", 0)
        size = query[-1] if len(query) == 5 else _split(query[-1], heads)
        keys, value_size = query[1], size
        if seen.has(1):
            key = seen.shape(1)
            keys = key[2] if len(key) == 4 else key[1]
        if seen.has(2):
            value = seen.shape(2)
            value_size = value[3] if len(value) == 4 else _split(value[2], heads)
        if seen.has(past):
            keys += seen.shape(past)[2]
        if seen.has_output(present):
            # the state written is what is attended to; it may share its buffer with the past
            keys = seen.out_shape(present)[2]
        return Heads(query[0], heads, query[1], keys, size, value_size)

    return read


def group_query(seen: Seen) -> Heads:
    """Read GroupQueryAttention: query [B, S, H D], or Q, K and V packed in its last axis."""
    batch, queries, width = seen.shape(0, rank=3)
    heads = seen.integer("num_heads", 0)
    kv_heads = seen.integer("kv_num_heads", heads)
    size = _split(width, heads if seen.has(1) else heads + 2 * kv_heads)
    keys = queries + (seen.shape(3)[2] if seen.has(3) else 0)
    if seen.has_output(1):
        keys = seen.out_shape(1)[2]
    return Heads(batch, heads, queries, _windowed(keys, seen), size, size)


def paged(seen: Seen) -> Heads:
    """Read PagedAttention: query [tokens, H D], cache [blocks, block, kv heads, D], block table.

    Every block of the table counts as full, an upper bound.
    """
    tokens, width = seen.shape(0, rank=2)
    heads = seen.integer("num_heads", 0)
    kv_heads = seen.integer("kv_num_heads", heads)
    size = _split(width, heads if seen.has(1) else heads + 2 * kv_heads)
    keys = seen.shape(7)[-1] * seen.shape(3)[1]
    return Heads(1, heads, tokens, _windowed(keys, seen), size, size)


def longformer(seen: Seen) -> Heads:
    """Read LongformerAttention: each query meets a window of keys on either side."""
    batch, queries, width = seen.shape(0, rank=3)
    heads = seen.integer("num_heads", 0)
    wide = seen.shape(1)[-1]
    size = _split(width, heads)
    keys = min(queries, 2 * seen.integer("window", queries) + 1)
    return Heads(batch, heads, queries, keys, size, size, (batch * queries, width, wide))


def decoder(seen: Seen) -> Heads:
    """Read DecoderAttention: query [S, B, H], key [L, B, H], weights [H, H] and [H, 2 H]."""
    queries, batch, width = seen.shape(0, rank=3)
    keys = seen.shape(1)[0] + (seen.shape(6)[2] if seen.has(6) else 0)
    heads = seen.integer("num_heads", 0)
    size = _split(width, heads)
    rows = batch * queries
    return Heads(batch, heads, queries, keys, size, size, (rows, width, 3 * width))


def linear_attention(seen: Seen) -> Product:
    """Count LinearAttention: a state [d_k, d_v] of each kv head is updated and read per token.

    Products of d_k d_v: the update k v^T, the read q^T S of each query head, and S^T k under a
    delta rule. Steps: chunks of the sequence, which depend on one another.
    """
    batch, tokens, width = seen.shape(0, rank=3)
    heads = seen.integer("q_num_heads", 0)
    kv_heads = seen.integer("kv_num_heads", heads)
    size = _split(width, heads)
    value_size = _split(seen.shape(2)[-1], kv_heads)
    delta = "delta" in seen.text("update_rule", "gated_delta")
    each = heads + kv_heads * (2 if delta else 1)
    chunk = max(1, seen.integer("chunk_size", 64))
    return Product(
        batch * tokens * each * size * value_size,
        Contraction(batch * heads, tokens, value_size, size),
        max(1, -(-tokens // chunk)),
    )


def linear_attention_other(seen: Seen) -> int:
    """Count the decay of the state: 1 an element and token under a gated rule, + exp of it."""
    if "gated" not in seen.text("update_rule", "gated_delta"):
        return seen.out_elements
    batch, tokens, width = seen.shape(0, rank=3)
    heads = seen.integer("q_num_heads", 0)
    kv_heads = seen.integer("kv_num_heads", heads)
    size = _split(width, heads)
    state = kv_heads * size * _split(seen.shape(2)[-1], kv_heads)
    return batch * tokens * state + seen.elements(4) + seen.out_elements


def cache_rows(past: int, output: int) -> Elements:
    """Return the elements of a present state [B, H, L, D] that are written.

    Only those of the new tokens where it is the buffer of `past` (same shape), all otherwise.
    """

    def count(seen: Seen) -> int:
        if not seen.has_output(output):
            return 0
        batch, heads, length, size = seen.out_shape(output)
        is_shared = seen.has(past) and seen.shape(past) == (batch, heads, length, size)
        return batch * heads * size * (seen.shape(0)[1] if is_shared else length)

    return count
