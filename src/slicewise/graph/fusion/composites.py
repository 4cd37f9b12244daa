"""Operators that exporters write out as several nodes: rows that the tables of runtimes share.

Forms: torch.onnx (gelu as x / sqrt 2 -> Erf, layer_norm as ReduceMean .. Div below opset 17, SiLU
as x Sigmoid x, scaled_dot_product_attention with the root of the scale on both operands), tf2onnx
and Keras, and the written-out RMS norm of the Llama family; each was looked up in exported files.
Larger trees stand before the smaller ones that they contain.
"""

from slicewise.core.cost import Kind
from slicewise.graph.fusion.pattern import Expression

_N, _E = Kind.NORM, Kind.ELEMENTWISE

LAYER_NORM = (
    Expression(
        "layer_norm", _N,
        "Add(Mul(Div(d=Sub(x, ReduceMean(x)), Sqrt(Add(ReduceMean(Pow|Mul(d)), c))), w), w)"),
    Expression(
        "layer_norm", _N,
        "Add(Mul(Mul(d=Sub(x, ReduceMean(x)), Reciprocal(Sqrt(Add(ReduceMean(Pow|Mul(d)), c)))),"
        " w), w)"),
    Expression(
        "layer_norm", _N,
        "Div(d=Sub(x, ReduceMean(x)), Sqrt(Add(ReduceMean(Pow|Mul(d)), c)))"),
)  # fmt: skip
RMS_NORM = (
    Expression("rms_norm", _N, "Mul(Cast?(Div(x, Sqrt(Add(ReduceMean(Pow|Mul(x)), c)))), w)"),
    Expression(
        "rms_norm", _N,
        "Mul(Cast?(Mul(x, Reciprocal|Div(Sqrt(Add(ReduceMean(Pow|Mul(x)), c))))), w)"),
    Expression(
        "rms_norm", _N,
        "Mul(Cast?(Mul(x, Div(c, Sqrt(Add(ReduceMean(Pow|Mul(x)), c))))), w)"),
)  # fmt: skip
# below opset 18 exporters write GroupNormalization as InstanceNormalization of merged channels
GROUP_NORM = (Expression("group_norm", _N, "Add(Mul(InstanceNormalization(x), w), w)"),)
GELU = (
    Expression("gelu", _E, "Mul(Mul(x, Add(Erf(Div|Mul(x, c)), c)), c)"),
    Expression("gelu", _E, "Mul(x, Mul(Add(Erf(Div|Mul(x, c)), c), c))"),
    Expression("gelu", _E, "Mul(Mul(x, c), Add(Erf(Div|Mul(x, c)), c))"),
    Expression(
        "gelu", _E,
        "Mul(Mul(x, c), Add(Tanh(Mul(Add(x, Mul(Pow|Mul(x), c)), c)), c))"),
    Expression(
        "gelu", _E,
        "Mul(Mul(x, Add(Tanh(Mul(Add(x, Mul(Pow|Mul(x), c)), c)), c)), c)"),
)  # fmt: skip
QUICK_GELU = (Expression("quick_gelu", _E, "Mul(x, Sigmoid(Mul(x, c)))"),)
SILU = (Expression("silu", _E, "Mul(x, Sigmoid(x))"),)
HARD_SWISH = (
    Expression("hard_swish", _E, "Mul(x, HardSigmoid(x))"),
    Expression("hard_swish", _E, "Mul(x, Div|Mul(Clip(Add(x, c)), c))"),
    Expression("hard_swish", _E, "Div|Mul(Mul(x, Clip(Add(x, c))), c)"),
    Expression("hard_sigmoid", _E, "Div|Mul(Clip(Add(x, c)), c)"),
)
MISH = (Expression("mish", _E, "Mul(x, Tanh(Softplus(x)))"),)

ONE_OPERATOR = (*LAYER_NORM, *GROUP_NORM, *GELU, *SILU, *HARD_SWISH, *MISH)
"""What PyTorch has one operator for."""

_SCORES = "Add?(Mul|Div?(MatMul(Mul?(q, c), Mul?(Transpose?(k), c)), c), m)"
ATTENTION = (
    Expression("attention", Kind.ATTENTION, f"MatMul(Softmax({_SCORES}), v)"),
    # torch.onnx guards against rows that are masked out wholly
    Expression("attention", Kind.ATTENTION,
               f"MatMul(Where(IsNaN(s=Softmax({_SCORES})), c, s), v)"),
)  # fmt: skip
_SCALED = "MatMul(q, Transpose?(k))"
MATCHED_ATTENTION = (
    Expression("attention", Kind.ATTENTION,
               f"MatMul(Softmax(Add?(Mul|Div({_SCALED}, c), m)), v)"),
)  # fmt: skip
"""Of written-out attention what inductor knows: the scale on the scores, then a mask."""
_SCALED = "MatMul(Mul(q, c), Mul(Transpose?(k), c))"
EXPORTED_ATTENTION = (
    Expression("attention", Kind.ATTENTION, f"MatMul(Softmax(Add?({_SCALED}, m)), v)"),
    Expression("attention", Kind.ATTENTION,
               f"MatMul(Where(IsNaN(s=Softmax(Add?({_SCALED}, m))), c, s), v)"),
)  # fmt: skip
"""scaled_dot_product_attention as torch.onnx writes it: half of the scale on either operand."""
