"""Shape rules of operators that compute: elementwise, products, convolution, pooling, recurrence.

Each rule follows the operator's page in the ONNX operator specification (Operators.md).
"""

import math
from collections.abc import Mapping, Sequence

from slicewise.graph.shape.facts import (
    BOOL,
    FLOAT,
    INT32,
    INT64,
    UINT8,
    Contradiction,
    Fact,
    Op,
    Shape,
    axis_of,
    broadcast,
    show,
    words,
)
from slicewise.graph.shape.layout import Rule


def same(op: Op) -> list[Fact]:
    """Every output has the shape and type of input 0."""
    return [Fact(op.shape(), op.dtype())] * op.outputs


def same_as(dtype: int) -> Rule:
    """The shape of input 0 with a fixed element type."""
    return lambda op: [Fact(op.shape(), dtype)]


def elementwise(op: Op) -> list[Fact]:
    """All inputs broadcast together; type of input 0."""
    return [Fact(_joined(op), op.dtype())]


def _joined(op: Op) -> Shape:
    first = op.shape()
    if op.version < 7 and op.attribute("broadcast") is not None:
        return first  # opset 6 and older: the second operand is fitted into the first
    return broadcast(first, *(op.shape(k) for k in range(1, len(op.inputs)) if op.has(k)))


def _compare(op: Op) -> list[Fact]:
    return [Fact(_joined(op), BOOL)]


def _where(op: Op) -> list[Fact]:
    return [op.like(broadcast(op.shape(0), op.shape(1), op.shape(2)), 1)]


def _to_attribute(name: str, *, default_slot: int = 0) -> Rule:
    return lambda op: [Fact(op.shape(), op.integer(name, 0) or op.dtype(default_slot))]


def _cast_like(op: Op) -> list[Fact]:
    return [Fact(op.shape(), op.dtype(1))]


def _with_mask(op: Op) -> list[Fact]:
    """Dropout: an optional second output tells what was kept, of type bool since opset 10."""
    return [op.like(op.shape()), Fact(op.shape(), BOOL if op.version >= 10 else op.dtype())]


def _prelu(op: Op) -> list[Fact]:
    shape, slope = op.shape(), op.shape(1)
    if op.version >= 7 and math.prod(slope) != 1 and broadcast(shape, slope) != shape:
        raise Contradiction(f"slope {show(slope)} does not broadcast to {show(shape)}")
    return [op.like(shape)]


def multiply(a: Shape, b: Shape) -> Shape:
    """Return the shape of a matrix product (numpy.matmul rules).

    >>> multiply((8, 1, 4, 5), (3, 5, 6))
    (8, 3, 4, 6)
    """
    if not a or not b:
        raise Contradiction(f"a scalar in the product {show(a)} x {show(b)}")
    left = a if len(a) > 1 else (1, *a)
    right = b if len(b) > 1 else (*b, 1)
    if left[-1] != right[-2]:
        raise Contradiction(f"inner dimensions of {show(a)} x {show(b)} differ")
    lead = left[:-2] if left[:-2] == right[:-2] else broadcast(left[:-2], right[:-2])
    rows = (left[-2],) if len(a) > 1 else ()
    return (*lead, *rows, *((right[-1],) if len(b) > 1 else ()))


def _matmul(op: Op) -> list[Fact]:
    return [op.like(multiply(op.shape(0), op.shape(1)))]


def _matmul_integer(op: Op) -> list[Fact]:
    return [Fact(multiply(op.shape(0), op.shape(1)), INT32)]


def _qlinear_matmul(op: Op) -> list[Fact]:
    return [op.like(multiply(op.shape(0), op.shape(3)), 7)]


def gemm_shape(op: Op, a_slot: int = 0, b_slot: int = 1, c_slot: int = 2) -> Shape:
    """Return [m, n] of alpha A' B' + beta C, inner dimensions checked."""
    a, b = op.shape(a_slot), op.shape(b_slot)
    if len(a) != 2 or len(b) != 2:
        raise Contradiction(f"{show(a)} x {show(b)} are not two matrices")
    m, k = reversed(a) if op.integer("transA", 0) else a
    k_too, n = reversed(b) if op.integer("transB", 0) else b
    if k != k_too:
        raise Contradiction(f"inner dimensions of {show(a)} x {show(b)} differ: {k} and {k_too}")
    if op.has(c_slot) and op.fact(c_slot).shape is not None and op.version >= 7:
        bias = op.shape(c_slot)
        if broadcast((m, n), bias) != (m, n):
            raise Contradiction(f"bias {show(bias)} does not broadcast to [{m},{n}]")
    return (m, n)


def _gemm(op: Op) -> list[Fact]:
    return [op.like(gemm_shape(op))]


def einsum_shape(equation: str, shapes: Sequence[Shape]) -> Shape:
    """Return the shape of an Einsum, ellipsis and implicit output included.

    >>> einsum_shape("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)])
    (2, 3, 5)
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise Contradiction(f"equation {equation!r} for {len(shapes)} operands")
    size: dict[str, int] = {}
    leads: list[Shape] = []
    for term, shape in zip(terms, shapes, strict=True):
        before, dots, after = term.partition("...")
        if len(shape) < len(before) + len(after) or (
            not dots and len(shape) != len(before) + len(after)
        ):
            raise Contradiction(f"term {term!r} does not describe {show(shape)}")
        cut = len(shape) - len(after)
        if dots:
            leads.append(shape[len(before) : cut])
        for letter, dim in (
            *zip(before, shape, strict=False),
            *zip(after, shape[cut:], strict=True),
        ):
            if size.setdefault(letter, dim) == 1:
                size[letter] = dim
            elif dim not in (1, size[letter]):
                raise Contradiction(f"index {letter!r} is both {size[letter]} and {dim}")
    lead = broadcast(*leads) if leads else ()
    if not arrow:
        letters = left.replace(",", "").replace(".", "")
        right = ("..." if leads else "") + "".join(
            x for x in sorted(set(letters)) if letters.count(x) == 1
        )
    before, _, after = right.partition("...")
    if "..." not in right:
        lead = ()
    return (*(size[x] for x in before), *lead, *(size[x] for x in after))


def _einsum(op: Op) -> list[Fact]:
    shapes = [op.shape(k) for k in range(len(op.inputs))]
    return [op.like(einsum_shape(op.text("equation", ""), shapes))]


def reduced(shape: Shape, axes: Sequence[int] | None, *, keep: bool) -> Shape:
    """Return `shape` with `axes` (all when None) made 1, or dropped unless `keep`."""
    places = range(len(shape)) if axes is None else {axis_of(a, len(shape)) for a in axes}
    if keep:
        return tuple(1 if k in places else d for k, d in enumerate(shape))
    return tuple(d for k, d in enumerate(shape) if k not in places)


def _reduce(op: Op) -> list[Fact]:
    shape, keep = op.shape(), bool(op.integer("keepdims", 1))
    axes = op.ints_from("axes", 1) or None
    if axes is None and op.integer("noop_with_empty_axes", 0):
        return [op.like(shape)]
    return [op.like(reduced(shape, axes, keep=keep))]


def _arg(op: Op) -> list[Fact]:
    shape = reduced(op.shape(), [op.integer("axis", 0)], keep=bool(op.integer("keepdims", 1)))
    return [Fact(shape, INT64)]


def _batch_norm(op: Op) -> list[Fact]:
    shape = op.shape()
    channels = shape[1] if len(shape) > 1 else 1
    per_channel = op.fact(1).shape
    if per_channel is not None and per_channel != (channels,):
        raise Contradiction(f"scale {show(per_channel)} for data {show(shape)}")
    return [op.like(shape), *[Fact((channels,), op.dtype())] * max(0, op.outputs - 1)]


def _layer_norm(op: Op) -> list[Fact]:
    shape = op.shape()
    axis = axis_of(op.integer("axis", -1), len(shape))
    kept = (*shape[:axis], *[1] * (len(shape) - axis))
    return [op.like(shape), *[Fact(kept, op.integer("stash_type", FLOAT))] * (op.outputs - 1)]


_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def _recurrent(op: Op) -> list[Fact]:
    """[seq, directions, batch, hidden], then the last states; batch first under layout=1."""
    data, weight, state = op.shape(), op.shape(1), op.shape(2)
    if len(data) != 3 or len(weight) != 3 or weight[2] != data[2]:
        raise Contradiction(f"data {show(data)} does not fit weight {show(weight)}")
    batch_first = bool(op.integer("layout", 0))
    batch, steps = (data[0], data[1]) if batch_first else (data[1], data[0])
    ways = 2 if op.text("direction", "forward") == "bidirectional" else 1
    hidden = op.integer("hidden_size", state[-1])
    if weight[:2] != (ways, hidden * _GATES[op.type]):
        raise Contradiction(
            f"weight {show(weight)} for {ways} direction(s) of hidden size {hidden}"
        )
    last = (batch, ways, hidden) if batch_first else (ways, batch, hidden)
    for slot in (5, 6) if op.type == "LSTM" else (5,):
        if op.has(slot) and op.fact(slot).shape not in (None, last):
            raise Contradiction(f"initial state {show(op.shape(slot))} is not {show(last)}")
    if op.has(4) and op.fact(4).shape not in (None, (batch,)):
        raise Contradiction(f"sequence_lens {show(op.shape(4))} is not [{batch}]")
    whole = (batch, steps, ways, hidden) if batch_first else (steps, ways, batch, hidden)
    return [op.like(whole), op.like(last), op.like(last)]


def _quantize(op: Op) -> list[Fact]:
    return [Fact(op.shape(), op.dtype(2) or op.integer("output_dtype", 0) or UINT8)]


def _dequantize(op: Op) -> list[Fact]:
    return [Fact(op.shape(), op.integer("output_dtype", 0) or op.dtype(1))]


def _dynamic_quantize(op: Op) -> list[Fact]:
    return [Fact(op.shape(), UINT8), Fact((), FLOAT), Fact((), UINT8)]


def _attention(op: Op) -> list[Fact]:
    """Attention of opset 23: [B,H,S,D] or [B,S,H*D] with head counts as attributes."""
    q, v = op.shape(0), op.shape(2)
    keys = op.shape(1)[-2]
    out: Shape
    if len(q) == 4:
        batch, heads, queries, _ = q
        out, kv_heads = (batch, heads, queries, v[-1]), v[1]
        size = op.shape(1)[-1]
        v_size = v[-1]
    elif len(q) == 3:
        heads, kv_heads = op.integer("q_num_heads", 0), op.integer("kv_num_heads", 0)
        if heads < 1 or kv_heads < 1 or v[2] % kv_heads:
            raise Contradiction(f"query {show(q)} with q_num_heads={heads}")
        batch, queries = q[:2]
        size, v_size = op.shape(1)[2] // kv_heads, v[2] // kv_heads
        out = (batch, queries, heads * v_size)
    else:
        raise Contradiction(f"query {show(q)} is neither of rank 3 nor 4")
    total = keys + (op.shape(4)[2] if op.has(4) else 0)
    return [
        op.like(out),
        op.like((batch, kv_heads, total, size)),
        op.like((batch, kv_heads, total, v_size)),
        op.like((batch, heads, queries, total)),
    ]


def _loss(op: Op) -> list[Fact]:
    whole = op.text("reduction", "mean") == "none"
    return [op.like(op.shape(1) if whole else ()), op.like(op.shape())]


def _stft(op: Op) -> list[Fact]:
    """[batch, frames, bins, (real, imaginary)]; one-sided spectra keep half the bins and one.

    Own rule because onnx's inference forgets that `onesided` is on by default.
    """
    signal, step = op.shape(), op.values(1)[0]
    length = op.values(3)[0] if op.has(3) else op.shape(2)[0]
    if step < 1 or length > signal[1]:
        raise Contradiction(f"frames of {length} by {step} of a signal {show(signal)}")
    bins = length // 2 + 1 if op.integer("onesided", 1) else length
    return [op.like((signal[0], (signal[1] - length) // step + 1, bins, 2))]


def _string_normalizer(op: Op) -> list[Fact]:
    op.bounded("no string taken out")
    return [op.like(op.shape())]


def _string_split(op: Op) -> list[Fact]:
    """The pieces of a string are known only when it is read; their count has its shape."""
    return [Fact(None, op.dtype()), Fact(op.shape(), INT64)]


_UNARY = words("""Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Celu Clip Cos Cosh CumSum
CumProd Elu Erf Exp Floor Gelu GroupNormalization HardSigmoid HardSwish Hardmax
InstanceNormalization LRN LeakyRelu Log LogSoftmax LpNormalization MeanVarianceNormalization Mish
Neg Not RMSNormalization Reciprocal Relu ReverseSequence RotaryEmbedding Round Scatter
ScatterElements ScatterND Selu Shrink Sigmoid Sign Sin Sinh Softmax Softplus Softsign Sqrt Swish
Tan Tanh TensorScatter ThresholdedRelu Trilu""")
_BINARY = words("""Add Sub Mul Div Mod Pow Min Max Mean Sum And Or Xor BitShift BitwiseAnd
BitwiseOr BitwiseXor StringConcat""")
_COMPARE = words("Equal Greater GreaterOrEqual Less LessOrEqual")
_REDUCE = words("""ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
ReduceProd ReduceSum ReduceSumSquare""")

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_UNARY, same),
    **dict.fromkeys(_BINARY, elementwise),
    **dict.fromkeys(_COMPARE, _compare),
    **dict.fromkeys(_REDUCE, _reduce),
    **dict.fromkeys(("IsInf", "IsNaN", "RegexFullMatch"), same_as(BOOL)),
    **dict.fromkeys(_GATES, _recurrent),
    "Identity": lambda op: [op.fact(0)],
    "Where": _where,
    "PRelu": _prelu,
    "Cast": _to_attribute("to"),
    "BitCast": _to_attribute("to"),
    "CastLike": _cast_like,
    "Bernoulli": _to_attribute("dtype"),
    "RandomNormalLike": _to_attribute("dtype"),
    "RandomUniformLike": _to_attribute("dtype"),
    "Dropout": _with_mask,
    "MatMul": _matmul,
    "MatMulInteger": _matmul_integer,
    "QLinearMatMul": _qlinear_matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "ArgMax": _arg,
    "ArgMin": _arg,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "Attention": _attention,
    "STFT": _stft,
    "StringNormalizer": _string_normalizer,
    "StringSplit": _string_split,
    "NegativeLogLikelihoodLoss": _loss,
    "SoftmaxCrossEntropyLoss": _loss,
    "OptionalHasElement": lambda op: [Fact((), BOOL)],
}
