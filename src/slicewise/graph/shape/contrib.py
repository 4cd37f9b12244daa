"""Shape rules of ONNX Runtime's own operators: com.microsoft, its blocked and NHWC layouts.

Source of every rule: the operator's entry in ONNX Runtime's docs/ContribOperators.md, where input
and output shapes are described in words. Operators that share a form share a rule.
"""

from collections.abc import Mapping, Sequence

from slicewise.graph.shape import compute, dependent, layout, spatial
from slicewise.graph.shape.compute import elementwise, gemm_shape, multiply, same
from slicewise.graph.shape.facts import (
    BOOL,
    FLOAT,
    INT32,
    UINT8,
    UINT32,
    Contradiction,
    Fact,
    Op,
    Shape,
    Unknown,
    axis_of,
    broadcast,
    show,
    words,
)
from slicewise.graph.shape.layout import Rule, join


def _swapped(shape: Shape, *, last_two: bool, lead: bool) -> Shape:
    """Undo transBatch (first axis moved behind the other batch axes) and trans of an operand."""
    if lead and len(shape) > 2:
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if last_two and len(shape) > 1 else shape


def _fused_matmul(op: Op) -> list[Fact]:
    sides = [
        _swapped(
            op.shape(slot),
            last_two=bool(op.integer(f"trans{side}", 0)),
            lead=bool(op.integer(f"transBatch{side}", 0)),
        )
        for slot, side in enumerate("AB")
    ]
    return [op.like(multiply(*sides))]


def _gemm_float8(op: Op) -> list[Fact]:
    return [Fact(gemm_shape(op), op.integer("dtype", FLOAT))]


def _qgemm(op: Op) -> list[Fact]:
    shape = gemm_shape(op, 0, 3, 6)
    return [Fact(shape, op.dtype(8) if op.has(7) else FLOAT)]


def _matmul_packed(op: Op) -> list[Fact]:
    """Weights packed by blocks: K and N are attributes."""
    data = op.shape()
    k, n = op.integer("K", 0), op.integer("N", 0)
    if not data or data[-1] != k:
        raise Contradiction(f"data {show(data)} does not end in K={k}")
    return [op.like((*data[:-1], n))]


def _matmul_fpq4(op: Op) -> list[Fact]:
    return [op.like(multiply(op.shape(), tuple(op.values(2))))]


def _matmul_to(dtype: int) -> Rule:
    return lambda op: [Fact(multiply(op.shape(0), op.shape(1)), dtype)]


def _matmul_to_float(op: Op) -> list[Fact]:
    return [Fact(multiply(op.shape(0), op.shape(1)), op.dtype(2) or FLOAT)]


def _attention_state(op: Op, past_slot: int, keys: int) -> int:
    """Return past + new keys; the past has the form [2, batch, heads, past, size]."""
    if not op.has(past_slot) or op.fact(past_slot).shape is None:
        return keys
    past = op.shape(past_slot)
    return past[3] if op.integer("past_present_share_buffer", 0) else past[3] + keys


def _attention(past_slot: int, data_slot: int = 0) -> Rule:
    """Attention, QAttention: [B,S,D] x [D, q+k+v] -> [B,S,v] and the joined past."""

    def rule(op: Op) -> list[Fact]:
        batch, steps = op.shape(data_slot)[:2]
        heads = op.integer("num_heads", 1)
        sizes = op.ints("qkv_hidden_sizes")
        width = op.shape(1)[-1] // 3 if not sizes else sizes[2]
        dtype = op.dtype(3) if op.type == "QAttention" else op.dtype()
        total = _attention_state(op, past_slot, steps)
        state = (2, batch, heads, total, width // heads)
        return [Fact((batch, steps, width), dtype), Fact(state, dtype)]

    return rule


def _packed_attention(op: Op) -> list[Fact]:
    sizes = op.ints("qkv_hidden_sizes")
    return [op.like((op.shape()[0], sizes[2] if sizes else op.shape(1)[-1] // 3))]


def _packed_multi_head(op: Op) -> list[Fact]:
    query = op.shape()
    if len(query) == 4:  # [tokens, heads, 3, size]
        return [op.like((query[0], query[1] * query[3]))]
    return [op.like((query[0], op.shape(2)[-1]))]


def _multi_head(past_slot: int) -> Rule:
    """MultiHeadAttention: packed qkv [B,S,H,3,D], packed kv [B,L,H,2,D], or three tensors."""

    def rule(op: Op) -> list[Fact]:
        query = op.shape()
        heads = op.integer("num_heads", 1)
        batch, steps = query[:2]
        if len(query) == 5:
            size = v_size = query[4]
            keys = steps
        elif not op.has(1):
            raise Unknown
        elif len(key := op.shape(1)) == 5:
            keys, size, v_size = key[1], key[4], key[4]
        elif len(key) == 4:
            keys, size, v_size = key[2], key[3], op.shape(2)[3]
        else:
            keys, size, v_size = key[1], key[2] // heads, op.shape(2)[2] // heads
        if op.has(past_slot) and op.fact(past_slot).shape is not None:
            past = op.shape(past_slot)[2]
            keys = past if op.integer("past_present_share_buffer", 0) else keys + past
        state = (batch, heads, keys)
        return [
            op.like((batch, steps, heads * v_size)),
            op.like((*state, size)),
            op.like((*state, v_size)),
            op.like((batch, heads, steps, keys)),
        ]

    return rule


def _grouped_query(total_slot: int) -> Rule:
    """GroupQueryAttention, SparseAttention: query [B,S,H*D], or all three packed in it."""

    def rule(op: Op) -> list[Fact]:
        batch, steps, width = op.shape()
        heads, groups = op.integer("num_heads", 1), op.integer("kv_num_heads", 1)
        packed = not op.has(1)
        size = width // (heads + 2 * groups) if packed else width // heads
        total = steps
        if op.has(3) and op.fact(3).shape is not None:
            # past and present may share one buffer, sized for the longest sequence
            past = op.shape(3)[2]
            known = op.has(total_slot) and op.fact(total_slot).value is not None
            total = max(past, op.values(total_slot)[0]) if known else past + steps
        state = op.like((batch, groups, total, size))
        return [op.like((batch, steps, heads * size)), state, state]

    return rule


def _skip_layer_norm(op: Op) -> list[Fact]:
    shape = op.shape()
    mean = Fact((*shape[:-1], 1), FLOAT)
    return [op.like(shape), mean, mean, op.like(shape)]


def _simplified_norm(op: Op) -> Sequence[Fact]:
    return compute.RULES["LayerNormalization"](op)


def _embed_layer_norm(word_slot: int, dtype_slot: int) -> Rule:
    def rule(op: Op) -> list[Fact]:
        batch, steps = op.shape()
        whole = Fact((batch, steps, op.shape(word_slot)[1]), op.dtype(dtype_slot))
        return [whole, Fact((batch,), INT32), whole]

    return rule


def _bias_split_gelu(op: Op) -> list[Fact]:
    shape = op.shape()
    return [op.like((*shape[:-1], shape[-1] // 2))]


def _nhwc(rule: Rule, *, weight: bool) -> Rule:
    """A convolution or pooling whose data has the channels last (weights: those too)."""

    def wrapped(op: Op) -> list[Fact]:
        moved = [_channels_second(op.fact(0))]
        if weight:
            kernel = op.shape(1)
            last = kernel[-1] * op.integer("group", 1) == op.shape()[-1]
            moved.append(_channels_second(op.fact(1)) if last else op.fact(1))
        inner = Op(op.node, [*moved, *op.inputs[len(moved) :]], version=op.version)
        return [_channels_last(fact) for fact in rule(inner)]

    return wrapped


def _channels_second(fact: Fact) -> Fact:
    if fact.shape is None:
        raise Unknown
    return Fact((fact.shape[0], fact.shape[-1], *fact.shape[1:-1]), fact.dtype)


def _channels_last(fact: Fact) -> Fact:
    shape = fact.shape or ()
    return Fact((shape[0], *shape[2:], shape[1]), fact.dtype)


def _maybe_nhwc(rule: Rule) -> Rule:
    """The attribute channels_last chooses the layout."""
    last = _nhwc(rule, weight=False)
    return lambda op: last(op) if op.integer("channels_last", 0) else rule(op)


def _qlinear_conv(op: Op) -> Sequence[Fact]:
    if not op.integer("channels_last", 0):
        return spatial.RULES["QLinearConv"](op)
    data, weight = op.shape(), op.shape(3)
    out = spatial.conv_shape(op, (data[0], data[-1], *data[1:-1]), weight)
    return [Fact((out[0], *out[2:], out[1]), op.dtype(7))]


def _qlinear_binary(op: Op) -> list[Fact]:
    return [op.like(broadcast(op.shape(0), op.shape(3)))]


def _qlinear_where(op: Op) -> list[Fact]:
    return [op.like(broadcast(op.shape(0), op.shape(1), op.shape(4)), 1)]


def _qlinear_concat(op: Op) -> list[Fact]:
    parts = [op.shape(slot) for slot in range(2, len(op.inputs), 3)]
    return [op.like(join(parts, op.integer("axis", 0)), 2)]


def _qlinear_reduce(op: Op) -> list[Fact]:
    axes, keep = op.ints("axes"), bool(op.integer("keepdims", 1))
    return [op.like(compute.reduced(op.shape(), axes, keep=keep))]


def _crop_and_resize(op: Op) -> list[Fact]:
    return [op.like((op.shape(1)[0], op.shape()[1], *op.values(3)))]


def _remove_padding(op: Op) -> list[Fact]:
    batch, steps, width = op.shape()
    op.bounded(f"all {batch * steps} tokens kept")
    return [
        op.like((batch * steps, width)),
        Fact((batch, steps), INT32),
        Fact((batch + 1,), INT32),
        Fact((1,), INT32),
    ]


def _restore_padding(op: Op) -> list[Fact]:
    return [op.like((*op.shape(1), op.shape()[1]))]


def _relative_position_bias(op: Op) -> list[Fact]:
    return [op.like((1, op.shape()[1], op.values(1)[0], op.values(2)[0]))]


def _gated_position_bias(op: Op) -> list[Fact]:
    batch, steps = op.shape(6) if op.has(6) else op.shape()[:2]
    return [op.like((batch, op.integer("num_heads", 1), steps, steps))]


def _gather_blocks(op: Op) -> list[Fact]:
    data, indices = list(op.shape()), op.shape(1)
    axis = axis_of(op.integer("gather_axis", 0), len(data))
    if op.dtype() == UINT8:  # sub-byte weights packed along the quantised axis
        packed = axis_of(op.integer("quantize_axis", len(data) - 1), len(data))
        data[packed] *= 8 // op.integer("bits", 4)
    return [op.like((*data[:axis], *indices, *data[axis + 1 :]), 2)]


def _gemma_rotary(op: Op) -> list[Fact]:
    return [op.like(op.shape(slot), slot) for slot in (1, 3)]


def _cdist(op: Op) -> list[Fact]:
    return [op.like((op.shape()[0], op.shape(1)[0]))]


def _torch_embedding(op: Op) -> list[Fact]:
    return [op.like((*op.shape(1), op.shape()[-1]))]


def _expand_dims(op: Op) -> list[Fact]:
    shape = op.shape()
    axis = axis_of(op.values(1)[0], len(shape) + 1)
    return [op.like((*shape[:axis], 1, *shape[axis:]))]


def _search(length_slot: int, beams_slot: int) -> Rule:
    """Whole generation loops: [batch, returned, longest] token ids."""

    def rule(op: Op) -> list[Fact]:
        batch = op.shape()[0]
        longest = op.values(length_slot)[0]
        op.bounded(f"sequences of the longest length {longest}")
        if not beams_slot:
            return [Fact((batch, longest), INT32)]
        returned = op.values(beams_slot)[0]
        return [Fact((batch, returned, longest), INT32), Fact((batch, returned), FLOAT)]

    return rule


def _reorder_output(op: Op) -> list[Fact]:
    shape = op.shape()
    channels = op.integer("channels", 0)
    if op.integer("channels_last", 0):
        return [op.like((shape[0], *shape[2:], channels))]
    return [op.like((shape[0], channels, *shape[2:]))]


def _reorder_input(op: Op) -> list[Fact]:
    shape = op.shape()
    if op.integer("channels_last", 0):
        shape = (shape[0], shape[-1], *shape[1:-1])
    return [op.like(shape)]


def _bias_dropout(op: Op) -> Sequence[Fact]:
    return compute.RULES["Dropout"](op)


def _unfold(op: Op) -> list[Fact]:
    shape = op.shape()
    axis = axis_of(op.integer("dim", -1), len(shape))
    size, step = op.integer("size", 1), op.integer("step", 1)
    count = (shape[axis] - size) // step + 1
    return [op.like((*shape[:axis], count, *shape[axis + 1 :], size))]


def _fft(op: Op) -> list[Fact]:
    """Rfft adds a last axis (real, imaginary); Irfft takes it away."""
    shape, dims = op.shape(), op.integer("signal_ndim", 1)
    if op.type == "Rfft":
        return [op.like((*shape[:-1], shape[-1] // 2 + 1, 2))]
    if len(shape) < dims + 1 or shape[-1] != 2:
        raise Contradiction(f"{show(shape)} does not end in (real, imaginary)")
    return [op.like((*shape[:-2], 2 * (shape[-2] - 1)))]


def _dynamic_lstm(op: Op) -> list[Fact]:
    """An LSTM whose weights are stored transposed: [directions, input, 4 x hidden]."""
    steps, batch, _ = op.shape()
    ways, _, gates = op.shape(1)
    hidden = op.integer("hidden_size", gates // 4)
    last = op.like((ways, batch, hidden))
    return [op.like((steps, ways, batch, hidden)), last, last]


def _murmur(op: Op) -> list[Fact]:
    return [Fact(op.shape(), UINT32 if op.integer("positive", 1) else INT32)]


_SAME: Sequence[str] = words("""BiasAdd BiasGelu BiasSoftmax FastGelu Gelu GroupNorm Inverse
LongformerAttention MoE NGramRepeatBlock QLinearLeakyRelu QLinearSigmoid QLinearSoftmax QMoE
QuickGelu RotaryEmbedding SampleOp Trilu""")

MICROSOFT: Mapping[str, Rule] = {
    **dict.fromkeys(_SAME, same),
    **dict.fromkeys(("ComplexMul", "ComplexMulConj"), elementwise),
    **dict.fromkeys(("FusedConv",), spatial.RULES["Conv"]),
    **dict.fromkeys(("FusedMatMul", "FusedMatMulActivation", "TransposeMatMul"), _fused_matmul),
    **dict.fromkeys(("MatMulNBits", "MatMulBnb4"), _matmul_packed),
    **dict.fromkeys(("NhwcConv", "NhwcFusedConv"), _nhwc(spatial.RULES["Conv"], weight=True)),
    **dict.fromkeys(
        ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _skip_layer_norm
    ),
    **dict.fromkeys(("LayerNormalization", "SimplifiedLayerNormalization"), _simplified_norm),
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), _qlinear_binary),
    **dict.fromkeys(("Rfft", "Irfft"), _fft),
    **{name: layout.RULES[name] for name in ("GatherND", "Pad")},
    **{name: dependent.RULES[name] for name in ("Range", "Unique")},
    **{name: compute.RULES[name] for name in ("QuantizeLinear", "DequantizeLinear")},
    "GridSample": spatial.RULES["GridSample"],
    "FusedGemm": compute.RULES["Gemm"],
    "GemmFloat8": _gemm_float8,
    "QGemm": _qgemm,
    "MatMulFpQ4": _matmul_fpq4,
    "MatMulInteger16": _matmul_to(INT32),
    "MatMulIntegerToFloat": _matmul_to_float,
    "DynamicQuantizeMatMul": _matmul_to(FLOAT),
    "DynamicQuantizeLSTM": _dynamic_lstm,
    "Attention": _attention(4),
    "DecoderMaskedSelfAttention": _attention(4),
    "QAttention": _attention(8),
    "PackedAttention": _packed_attention,
    "PackedMultiHeadAttention": _packed_multi_head,
    "MultiHeadAttention": _multi_head(6),
    "DecoderMaskedMultiHeadAttention": _multi_head(5),
    "GroupQueryAttention": _grouped_query(6),
    "SparseAttention": _grouped_query(7),
    "EmbedLayerNormalization": _embed_layer_norm(2, 2),
    "QEmbedLayerNormalization": _embed_layer_norm(2, 8),
    "SkipGroupNorm": same,
    "BiasSplitGelu": _bias_split_gelu,
    "BiasDropout": _bias_dropout,
    "NhwcMaxPool": _nhwc(spatial.RULES["MaxPool"], weight=False),
    "MaxpoolWithMask": spatial.RULES["MaxPool"],
    "QLinearConv": _qlinear_conv,
    "QLinearAveragePool": _maybe_nhwc(spatial.RULES["AveragePool"]),
    "QLinearGlobalAveragePool": _maybe_nhwc(spatial.RULES["GlobalAveragePool"]),
    "QLinearWhere": _qlinear_where,
    "QLinearConcat": _qlinear_concat,
    "QLinearReduceMean": _qlinear_reduce,
    "CropAndResize": _crop_and_resize,
    "RemovePadding": _remove_padding,
    "RestorePadding": _restore_padding,
    "RelativePositionBias": _relative_position_bias,
    "GatedRelativePositionBias": _gated_position_bias,
    "GatherBlockQuantized": _gather_blocks,
    "GemmaRotaryEmbedding": _gemma_rotary,
    "CDist": _cdist,
    "TorchEmbedding": _torch_embedding,
    "ExpandDims": _expand_dims,
    "MurmurHash3": _murmur,
    "BeamSearch": _search(1, 4),
    "GreedySearch": _search(1, 0),
    "UnfoldTensor": _unfold,
    "IsAllFinite": lambda op: [Fact((), BOOL)],
}

# The blocked NCHWc layout keeps the logical NCHW shape; only the two Reorder operators change it.
BLOCKED: Mapping[str, Rule] = {
    **{
        name: spatial.RULES[name]
        for name in ("Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
    },
    "Upsample": spatial.RULES["Upsample"],
    "ReorderInput": _reorder_input,
    "ReorderOutput": _reorder_output,
}
