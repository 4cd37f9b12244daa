"""The rows of the operator table for ai.onnx, opset 1 to 28, with ONNX Runtime's additions to it.

Read down: operator, formula of the multiply-adds, other arithmetic, and what constants in its
slots are. Inputs are numbered as in the ONNX operator specification (onnx 1.23). A slot that is
not named is FLOW: a float tensor of more than one element there is a parameter.
"""

from collections.abc import Iterable

from slicewise.core.cost import Kind
from slicewise.graph.operators import arithmetic as plus
from slicewise.graph.operators.attention import (
    attention,
    attention_other,
    linear_attention,
    linear_attention_other,
    onnx_attention,
)
from slicewise.graph.operators.contraction import (
    conv,
    conv_transpose,
    depthwise,
    einsum,
    matmul,
    recurrent,
)
from slicewise.graph.operators.row import (
    Flops,
    Operator,
    Slot,
    all_written,
    as_written,
    nothing,
    unless_in_place,
    updated,
)

QFLOW, WEIGHT, QWEIGHT, PARAM, BUFFER, DATA = (
    Slot.QFLOW, Slot.WEIGHT, Slot.QWEIGHT, Slot.PARAM, Slot.BUFFER, Slot.DATA,
)  # fmt: skip


def data_slots(*slots: int) -> dict[int, Slot]:
    """Return `slots` marked as never holding parameters."""
    return dict.fromkeys(slots, DATA)


def plain(names: str, kind: Kind, flops: Flops | None = None, *data: int) -> Iterable[Operator]:
    """Yield one row for each of `names`: no multiply-adds, all bytes moved once."""
    for name in names.split():
        yield Operator(name, kind, flops=flops, slots=data_slots(*data))


_CONTRACTIONS = (
    Operator("Conv", Kind.CONV, "", conv(), plus.each_output(0, given=(2,)),
             {1: WEIGHT, 2: PARAM}),
    Operator("ConvTranspose", Kind.CONV, "", conv_transpose(), plus.each_output(0, given=(2,)),
             {1: WEIGHT, 2: PARAM}),
    Operator("DeformConv", Kind.CONV, "", conv(), plus.deformed,
             {1: WEIGHT, 3: PARAM}),
    Operator("CausalConvWithState", Kind.CONV, "", depthwise, plus.causal_conv,
             {1: WEIGHT, 2: PARAM, 3: DATA}),
    Operator("ConvInteger", Kind.CONV, "", conv(), None,
             {1: QWEIGHT, 2: DATA, 3: DATA}, is_integer=True),
    Operator("QLinearConv", Kind.CONV, "", conv(3), plus.each_output(plus.QUANTIZE, given=(8,)),
             {1: DATA, 3: QWEIGHT, 4: DATA, 6: DATA, 8: QWEIGHT}, is_integer=True),
    Operator("MatMul", Kind.MATMUL, "", matmul(), None,
             {0: WEIGHT, 1: WEIGHT}),
    Operator("Gemm", Kind.MATMUL, "", matmul(), plus.each_output(0, given=(2,)),
             {0: WEIGHT, 1: WEIGHT, 2: PARAM}),
    Operator("MatMulInteger", Kind.MATMUL, "", matmul(), None,
             {0: QWEIGHT, 1: QWEIGHT, 2: DATA, 3: DATA}, is_integer=True),
    Operator("QLinearMatMul", Kind.MATMUL, "", matmul(0, 3), plus.each_output(plus.QUANTIZE),
             {0: QWEIGHT, 1: DATA, 2: DATA, 3: QWEIGHT, 4: DATA, 5: DATA, 6: DATA, 7: DATA},
             is_integer=True),
    Operator("Einsum", Kind.MATMUL, "", einsum, plus.einsum_other, other_slots=WEIGHT),
    Operator("Attention", Kind.ATTENTION, "", attention(onnx_attention),
             attention_other(onnx_attention, masks=(3,)), data_slots(3, 4, 5, 6)),
    Operator("FlexAttention", Kind.ATTENTION, "ai.onnx.preview", attention(onnx_attention),
             attention_other(onnx_attention)),
    Operator("LinearAttention", Kind.ATTENTION, "", linear_attention, linear_attention_other,
             data_slots(3)),
    Operator("RNN", Kind.RECURRENT, "", recurrent(1), plus.cells(1, 1),
             {1: WEIGHT, 2: WEIGHT, 3: PARAM, 4: DATA, 5: DATA}),
    # two sigmoids, a tanh, r h, (1 - z) n + z h
    Operator("GRU", Kind.RECURRENT, "", recurrent(3), plus.cells(3, 14),
             {1: WEIGHT, 2: WEIGHT, 3: PARAM, 4: DATA, 5: DATA}),
    # three sigmoids, two tanh, f c + i g, o tanh(c)
    Operator("LSTM", Kind.RECURRENT, "", recurrent(4), plus.cells(4, 18),
             {1: WEIGHT, 2: WEIGHT, 3: PARAM, 4: DATA, 5: DATA, 6: DATA, 7: PARAM}),
)  # fmt: skip

_NORMS = (
    Operator("BatchNormalization", Kind.NORM, "", None, plus.batch_normalization,
             {1: PARAM, 2: PARAM, 3: BUFFER, 4: BUFFER}),
    Operator("InstanceNormalization", Kind.NORM, "", None,
             plus.each_input(plus.NORMALIZE + 2), {1: PARAM, 2: PARAM}),
    Operator("LayerNormalization", Kind.NORM, "", None,
             plus.each_input(plus.NORMALIZE, given=(1, 2)), {1: PARAM, 2: PARAM}),
    Operator("GroupNormalization", Kind.NORM, "", None,
             plus.each_input(plus.NORMALIZE + 2), {1: PARAM, 2: PARAM}),
    # square, add, multiply by the inverse root, scale
    Operator("RMSNormalization", Kind.NORM, "", None, plus.each_input(4), {1: PARAM}),
    Operator("SimplifiedLayerNormalization", Kind.NORM, "", None, plus.each_input(4),
             {1: PARAM}),
    Operator("MeanVarianceNormalization", Kind.NORM, "", None, plus.each_input(plus.NORMALIZE)),
    # |x|^p, add, divide
    Operator("LpNormalization", Kind.NORM, "", None, plus.each_input(3)),
    Operator("LRN", Kind.NORM, "", None, plus.local_response),
    *plain("Softmax LogSoftmax", Kind.SOFTMAX, plus.each_input(plus.SOFTMAX)),
    *plain("Hardmax", Kind.SOFTMAX, plus.each_input(2)),
    *plain("SoftmaxCrossEntropyLoss", Kind.SOFTMAX, plus.each_input(plus.SOFTMAX), 2),
    *plain("NegativeLogLikelihoodLoss", Kind.REDUCTION, plus.each_input(2, slot=1), 2),
)  # fmt: skip

_POOLS_AND_REDUCTIONS = (
    *plain("AveragePool MaxPool", Kind.POOL, plus.window()),
    *plain("LpPool", Kind.POOL, plus.window(2)),
    *plain("GlobalAveragePool GlobalMaxPool", Kind.POOL, plus.each_input(1)),
    *plain("GlobalLpPool", Kind.POOL, plus.each_input(2)),
    *plain("MaxUnpool", Kind.MOVEMENT, None, 1),
    *plain("RoiAlign", Kind.POOL, plus.roi_align),
    *plain("ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceLogSum ArgMax ArgMin",
           Kind.REDUCTION, plus.each_input(1)),
    *plain("ReduceL1 ReduceL2 ReduceLogSumExp ReduceSumSquare",
           Kind.REDUCTION, plus.each_input(2)),
    *plain("CumSum CumProd", Kind.REDUCTION, plus.each_output(1)),
    *plain("Det", Kind.REDUCTION, plus.determinant),
    *plain("TopK", Kind.SORT, plus.top_k),
    *plain("Unique", Kind.SORT, plus.sort()),
    # the sort by score; how many boxes are compared depends on the data and is not counted
    *plain("NonMaxSuppression", Kind.SORT, plus.sort(1), 3, 4),
    *plain("NonZero", Kind.SORT, plus.each_input(1)),
    *plain("DFT", Kind.REDUCTION, plus.fourier),
    *plain("STFT", Kind.REDUCTION, plus.short_fourier, 2),
)  # fmt: skip

_ELEMENTWISE = (
    *(row for name, each in plus.FUNCTIONS.items() if name not in (
        "Gelu", "FastGelu", "QuickGelu")
      for row in plain(name, Kind.ELEMENTWISE, plus.each_output(each), 1, 2)),
    *plain("Gelu", Kind.ELEMENTWISE, plus.gelu),
    Operator("PRelu", Kind.ELEMENTWISE, "", None, plus.each_output(2), {1: PARAM}),
    *plain("SwiGLU", Kind.ELEMENTWISE, plus.each_output(7)),
    *plain("Add Sub Mul Div Pow", Kind.ELEMENTWISE, plus.each_output(1)),
    *plain("Mod BitShift And Or Xor BitwiseAnd BitwiseOr BitwiseXor Equal Greater GreaterOrEqual"
           " Less LessOrEqual", Kind.ELEMENTWISE, plus.each_output(1), 0, 1),
    *plain("Max Min Sum", Kind.ELEMENTWISE, plus.variadic()),
    *plain("Mean", Kind.ELEMENTWISE, plus.variadic(1)),
    *plain("Where", Kind.ELEMENTWISE, plus.each_output(1), 0),
    *plain("RotaryEmbedding", Kind.ELEMENTWISE, plus.each_output(plus.ROTATE), 1, 2, 3),
    *plain("GemmaRotaryEmbedding", Kind.ELEMENTWISE, plus.each_output(2 * plus.ROTATE)),
    # a row of the affine matrix times each position, in 2-D: (2 multiplies, 2 adds) x 2
    *plain("AffineGrid", Kind.ELEMENTWISE, plus.each_output(4)),
    *plain("HannWindow HammingWindow", Kind.ELEMENTWISE, plus.each_output(5), 0),
    *plain("BlackmanWindow", Kind.ELEMENTWISE, plus.each_output(9), 0),
    *plain("MelWeightMatrix", Kind.ELEMENTWISE, plus.each_output(6), 0, 1, 2, 3, 4),
    Operator("DequantizeLinear", Kind.QUANTIZE, "", None, plus.each_output(plus.DEQUANTIZE),
             {0: QWEIGHT, 1: DATA, 2: DATA}),
    *plain("QuantizeLinear", Kind.QUANTIZE, plus.each_output(plus.QUANTIZE), 1, 2),
    *plain("DynamicQuantizeLinear", Kind.QUANTIZE, plus.each_input(plus.QUANTIZE + 2)),
)  # fmt: skip

_COPIED = {0: as_written}  # of the first input only what is written is read

_MOVEMENT = (
    *(Operator(name, Kind.MOVEMENT, other_slots=QFLOW) for name in ("Transpose", "Concat")),
    *(Operator(name, Kind.MOVEMENT, reads=_COPIED, other_slots=QFLOW)
      for name in ("Gather", "GatherElements", "GatherND", "Slice", "DynamicSlice", "Compress",
                   "CenterCropPad", "Crop")),
    Operator("Split", Kind.MOVEMENT, reads={0: all_written}),
    *plain("Cast DepthToSpace SpaceToDepth Expand Tile Trilu ReverseSequence Col2Im MemcpyFromHost"
           " MemcpyToHost", Kind.MOVEMENT, None),
    Operator("CastLike", Kind.MOVEMENT, slots=data_slots(1), reads={1: nothing}),
    *plain("Pad", Kind.MOVEMENT, None, 2),
    *plain("OneHot", Kind.MOVEMENT, None, 1, 2),
    *(Operator(name, Kind.MOVEMENT, reads={0: unless_in_place}, writes={0: updated})
      for name in ("Scatter", "ScatterElements", "ScatterND")),
    # made for a cache that is updated in place: only the new rows move
    Operator("TensorScatter", Kind.MOVEMENT, slots=data_slots(0), reads={0: nothing},
             writes={0: lambda seen: seen.elements(1)}),
    *plain("Resize Upsample", Kind.MOVEMENT, plus.resize, 1, 2, 3),
    *plain("GridSample", Kind.MOVEMENT, plus.grid_sample, 1),
    Operator("ConstantOfShape", Kind.MOVEMENT, reads={0: unless_in_place}),
    *plain("GivenTensorFill", Kind.MOVEMENT),
    Operator("EyeLike", Kind.MOVEMENT, reads={0: nothing}),
    *plain("Range", Kind.MOVEMENT, plus.each_output(2), 0, 1, 2),
    Operator("ConcatFromSequence", Kind.MOVEMENT, reads=_COPIED),
)  # fmt: skip

# a sequence or an optional is a reference: nothing moves when it is made or looked at
_VIEWS = (
    *(Operator(name, Kind.VIEW, other_slots=QFLOW)
      for name in ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout",
                   "BitCast")),
    *plain("Shape Size Constant Optional OptionalGetElement OptionalHasElement SequenceAt"
           " SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength"
           " SplitToSequence", Kind.VIEW),
)  # fmt: skip

_CONTROL = tuple(
    Operator(name, Kind.CONTROL, other_slots=DATA)
    for name in ("If", "Loop", "Scan", "SequenceMap")
)

BYTES_ONLY = {
    "": (
        "Bernoulli ImageDecoder MaxRoiPool Multinomial RandomNormal RandomNormalLike"
        " RandomUniform RandomUniformLike RegexFullMatch StringConcat StringNormalizer StringSplit"
        " TfIdfVectorizer GRUUnit EfficientNMS_TRT MultilevelCropAndResize_TRT PyramidROIAlign_TRT"
        " DisentangledAttention_TRT"
    ),
    "ai.onnx.ml": (
        "ArrayFeatureExtractor Binarizer CastMap CategoryMapper DictVectorizer FeatureVectorizer"
        " Imputer LabelEncoder LinearClassifier LinearRegressor Normalizer OneHotEncoder"
        " SVMClassifier SVMRegressor Scaler TreeEnsemble TreeEnsembleClassifier"
        " TreeEnsembleRegressor ZipMap"
    ),
    "ai.onnx.preview.training": "Adagrad Adam Gradient Momentum",
}

ROWS = (
    *_CONTRACTIONS, *_NORMS, *_POOLS_AND_REDUCTIONS, *_ELEMENTWISE, *_MOVEMENT, *_VIEWS, *_CONTROL,
)  # fmt: skip
