"""ATen's element-wise functions, normalisations, reductions, pools and sorts."""

from slicewise.graph.frontends.torch.aten import attributes as make
from slicewise.graph.frontends.torch.aten.row import Call, Row, Storage, own_rows, rows


def _adaptive_average(call: Call) -> str:
    return _global("Average", call)


def _adaptive_max(call: Call) -> str:
    return _global("Max", call)


def _global(kind: str, call: Call) -> str:
    is_global = all(size == 1 for size in call.integers("output_size"))
    return f"Global{kind}Pool" if is_global else f"{kind}Pool"


def _reduce_or_max(call: Call) -> str:
    return "Max" if call.given("other") is not None else "ReduceMax"


def _reduce_or_min(call: Call) -> str:
    return "Min" if call.given("other") is not None else "ReduceMin"


_NORM = ("input", "weight", "bias")
_MASKED = ("mask", "self", "value")

ROWS = (
    *rows(
        "abs:Abs absolute:Abs neg:Neg negative:Neg sign:Sign sgn:Sign ceil:Ceil floor:Floor"
        " round:Round trunc:Floor fix:Floor frac:Floor reciprocal:Reciprocal sqrt:Sqrt exp:Exp"
        " log:Log erf:Erf erfc:Erf sin:Sin cos:Cos tan:Tan asin:Asin acos:Acos atan:Atan"
        " arctan:Atan sinh:Sinh cosh:Cosh tanh:Tanh asinh:Asinh acosh:Acosh atanh:Atanh"
        " isnan:IsNaN isinf:IsInf logical_not:Not bitwise_not:BitwiseNot relu:Relu"
        " leaky_relu:LeakyRelu rrelu:LeakyRelu threshold:ThresholdedRelu elu:Elu selu:Selu"
        " celu:Celu sigmoid:Sigmoid hardsigmoid:HardSigmoid hardswish:HardSwish softplus:Softplus"
        " mish:Mish silu:Swish clamp:Clip clip:Clip clamp_min:Clip clamp_max:Clip relu6:Clip"
        " hardtanh:Clip hardshrink:Shrink softshrink:Shrink"
    ),
    Row("gelu", "Gelu", None, make.gelu),
    Row("prelu", "PRelu", ("self", "weight")),
    Row("_prelu_kernel", "PRelu", ("self", "weight")),
    *rows(
        "add:Add sub:Sub subtract:Sub rsub:Sub mul:Mul multiply:Mul div:Div divide:Div"
        " true_divide:Div floor_divide:Div pow:Pow float_power:Pow remainder:Mod fmod:Mod"
        " square:Mul exp2:Pow special_exp2:Pow __lshift__:BitShift __rshift__:BitShift"
        " bitwise_left_shift:BitShift bitwise_right_shift:BitShift"
        " logical_and:And logical_or:Or logical_xor:Xor bitwise_and:BitwiseAnd"
        " bitwise_or:BitwiseOr bitwise_xor:BitwiseXor __and__:BitwiseAnd __or__:BitwiseOr"
        " __xor__:BitwiseXor eq:Equal ne:Equal not_equal:Equal gt:Greater ge:GreaterOrEqual"
        " greater:Greater greater_equal:GreaterOrEqual lt:Less le:LessOrEqual less:Less"
        " less_equal:LessOrEqual isclose:Equal maximum:Max minimum:Min fmax:Max fmin:Min"
        " outer:Mul diff:Sub"
    ),
    *rows("where:Where", inputs=("condition", "self", "other")),
    *rows("masked_fill:Where", inputs=_MASKED),
    *own_rows(
        "_weight_norm rsqrt log2 log10 log1p expm1 atan2 hypot log_sigmoid glu addcmul"
        " addcdiv lerp isfinite logaddexp polar erfinv special_erfcx lgamma digamma sinc"
        " nan_to_num heaviside complex angle"
    ),
    # normalisation
    Row("batch_norm", "BatchNormalization",
        ("input", "weight", "bias", "running_mean", "running_var"), make.epsilon),
    Row("instance_norm", "InstanceNormalization", _NORM, make.epsilon),
    Row("layer_norm", "LayerNormalization", _NORM, make.normalised),
    Row("group_norm", "GroupNormalization", _NORM, make.groups),
    Row("rms_norm", "RMSNormalization", ("input", "weight"), make.normalised),
    *rows("softmax:Softmax _softmax:Softmax log_softmax:LogSoftmax _log_softmax:LogSoftmax"
          " special_softmax:Softmax _safe_softmax:Softmax", attrs=make.axis()),
    # reductions
    *rows(
        "mean:ReduceMean sum:ReduceSum prod:ReduceProd amax:ReduceMax amin:ReduceMin"
        " nansum:ReduceSum nanmean:ReduceMean any:ReduceMax all:ReduceMin"
        " logsumexp:ReduceLogSumExp linalg_vector_norm:ReduceL2 norm:ReduceL2"
        " count_nonzero:ReduceSum median:ReduceMax aminmax:ReduceMax",
        inputs=("self",), attrs=make.reduced,
    ),
    Row("max", _reduce_or_max, ("self", "other"), make.reduced),
    Row("min", _reduce_or_min, ("self", "other"), make.reduced),
    *rows("argmax:ArgMax argmin:ArgMin", attrs=make.reduced),
    *own_rows("var std var_mean std_mean", attrs=make.reduced),
    *rows("cumsum:CumSum cumprod:CumProd cummax:CumSum cummin:CumSum logcumsumexp:CumSum",
          attrs=make.axis()),
    # pools
    *rows("max_pool1d:MaxPool max_pool2d:MaxPool max_pool3d:MaxPool"
          " max_pool2d_with_indices:MaxPool max_pool3d_with_indices:MaxPool"
          " max_pool1d_with_indices:MaxPool avg_pool1d:AveragePool avg_pool2d:AveragePool"
          " avg_pool3d:AveragePool", attrs=make.pool),
    *(Row(f"adaptive_avg_pool{n}d", _adaptive_average, ("self",), make.adaptive)
      for n in (1, 2, 3)),
    *(Row(f"adaptive_max_pool{n}d", _adaptive_max, ("self",), make.adaptive) for n in (1, 2, 3)),
    Row("torchvision::roi_align", "RoiAlign", ("input", "rois"), make.roi_align),
    Row("torchvision::nms", "NonMaxSuppression", ("dets", "scores")),
    # sorts
    *rows("topk:TopK sort:TopK msort:TopK argsort:TopK kthvalue:TopK",
          inputs=("self",), attrs=make.axis()),
    *rows("_unique:Unique _unique2:Unique unique_dim:Unique unique_consecutive:Unique"),
    *rows("nonzero:NonZero nonzero_numpy:NonZero"),
    *own_rows("bucketize searchsorted bincount histc multinomial"),
    # what evaluation leaves out
    *rows("dropout:Identity feature_dropout:Identity alpha_dropout:Identity"
          " native_dropout:Identity", inputs=("input",), storage=Storage.SAME),
)  # fmt: skip
