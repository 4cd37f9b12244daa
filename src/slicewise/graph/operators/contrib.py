"""The rows of the operator table for com.microsoft, the contrib operators of ONNX Runtime.

Inputs are numbered as in ONNX Runtime 1.32, docs/ContribOperators.md. An operator that the domain
shares with ai.onnx (QuantizeLinear, Pad, GridSample ...) has its row in `standard.py`.
"""

from slicewise.core.cost import Kind
from slicewise.graph.operators import arithmetic as plus
from slicewise.graph.operators.attention import (
    attention,
    attention_other,
    cache_rows,
    decoder,
    group_query,
    linear_attention,
    linear_attention_other,
    longformer,
    multi_head,
    packed_multi_head,
    packed_projected,
    paged,
    projected,
)
from slicewise.graph.operators.contraction import (
    active_experts,
    conv,
    conv_transpose,
    depthwise,
    experts,
    linear,
    matmul,
    query_key_value,
    recurrent,
)
from slicewise.graph.operators.row import Elements, Operator, Seen, Slot, as_written, nothing
from slicewise.graph.operators.standard import data_slots

QFLOW, WEIGHT, QWEIGHT, PARAM, DATA = (
    Slot.QFLOW, Slot.WEIGHT, Slot.QWEIGHT, Slot.PARAM, Slot.DATA,
)  # fmt: skip
MS = "com.microsoft"


def _of_active_experts(slot: int) -> Elements:
    def elements(seen: Seen) -> int:
        count = seen.shape(2)[0]
        return seen.elements(slot) * active_experts(seen) // max(1, count)

    return elements


def _experts_read(slots: tuple[int, ...]) -> dict[int, Elements]:
    """Return, for each slot with a row for each expert, the elements of the experts in use."""
    return {slot: _of_active_experts(slot) for slot in slots}


_MHA, _DECODER_MHA, _MASKED = multi_head(6), multi_head(5), multi_head(5)
_SELF, _QUANTISED_SELF = projected(1, 4), projected(1, 8)

_PRODUCTS = (
    Operator("FusedConv", Kind.CONV, MS, conv(), plus.activated(given=(2, 3)),
             {1: WEIGHT, 2: PARAM}),
    Operator("NhwcFusedConv", Kind.CONV, MS, conv(), plus.activated(given=(2, 3)),
             {1: WEIGHT, 2: PARAM}),
    Operator("NhwcConv", Kind.CONV, MS, conv(), plus.each_output(0, given=(2,)),
             {1: WEIGHT, 2: PARAM}),
    Operator("ConvTransposeWithDynamicPads", Kind.CONV, MS, conv_transpose(),
             plus.each_output(0, given=(3,)), {1: WEIGHT, 2: DATA, 3: PARAM}),
    Operator("CausalConvWithState", Kind.CONV, MS, depthwise, plus.causal_conv,
             {1: WEIGHT, 2: PARAM, 3: DATA}),
    Operator("FusedMatMul", Kind.MATMUL, MS, matmul(), None, {0: WEIGHT, 1: WEIGHT}),
    Operator("TransposeMatMul", Kind.MATMUL, MS, matmul(), None, {0: WEIGHT, 1: WEIGHT}),
    Operator("FusedMatMulActivation", Kind.MATMUL, MS, matmul(), plus.activated(),
             {0: WEIGHT, 1: WEIGHT}),
    Operator("SparseToDenseMatMul", Kind.MATMUL, MS, matmul(), None, {0: WEIGHT, 1: WEIGHT}),
    Operator("FusedGemm", Kind.MATMUL, MS, matmul(), plus.activated(given=(2,)),
             {0: WEIGHT, 1: WEIGHT, 2: PARAM}),
    Operator("GemmFastGelu", Kind.MATMUL, MS, matmul(),
             plus.each_output(plus.FUNCTIONS["FastGelu"], given=(2,)), {1: WEIGHT, 2: PARAM}),
    Operator("GemmFloat8", Kind.MATMUL, MS, matmul(), plus.activated(given=(2,)),
             {0: WEIGHT, 1: WEIGHT, 2: PARAM, 3: DATA, 4: DATA, 5: DATA}),
    # a dequantised gate and up projection: silu (5) and a product for each output
    Operator("MatMulNBitsMlp", Kind.MATMUL, MS, linear(2), plus.each_output(6),
             {2: PARAM, 3: QWEIGHT, 4: DATA, 5: PARAM, 6: QWEIGHT, 7: DATA, 8: PARAM}),
    Operator("MatMulNBitsQkv", Kind.MATMUL, MS, query_key_value, plus.each_input(4),
             {2: PARAM, 3: QWEIGHT, 4: DATA, 5: PARAM, 6: QWEIGHT, 7: DATA, 8: PARAM,
              9: QWEIGHT, 10: DATA, 11: PARAM}),
    Operator("MatMulNBits", Kind.MATMUL, MS, linear(), plus.each_output(0, given=(5,)),
             {1: QWEIGHT, 2: DATA, 3: DATA, 4: DATA, 5: PARAM}),
    Operator("MatMulBnb4", Kind.MATMUL, MS, linear(), None, {1: QWEIGHT, 2: DATA}),
    Operator("MatMulFpQ4", Kind.MATMUL, MS, linear(), None, {1: QWEIGHT, 2: DATA}),
    Operator("MatMulPacked", Kind.MATMUL, MS, linear(), None, {1: QWEIGHT, 2: DATA}),
    Operator("MatMulBlockQuantizedFp8Weight", Kind.MATMUL, MS, linear(),
             plus.each_output(0, given=(4,)), {1: QWEIGHT, 2: DATA, 3: DATA, 4: PARAM}),
    Operator("MatMulBlockQuantizedFp4Weight", Kind.MATMUL, MS, linear(),
             plus.each_output(0, given=(5,)), {1: QWEIGHT, 2: DATA, 3: DATA, 4: DATA, 5: PARAM}),
    Operator("MatMulInteger16", Kind.MATMUL, MS, matmul(), None, {0: QWEIGHT, 1: QWEIGHT}),
    Operator("MatMulIntegerToFloat", Kind.MATMUL, MS, matmul(),
             plus.each_output(plus.DEQUANTIZE, given=(6,)),
             {0: QWEIGHT, 1: QWEIGHT, 2: DATA, 3: DATA, 6: PARAM}, is_integer=True),
    Operator("DynamicQuantizeMatMul", Kind.MATMUL, MS, matmul(),
             plus.each_output(plus.DEQUANTIZE, given=(4,)),
             {1: QWEIGHT, 2: DATA, 3: DATA, 4: PARAM}, is_integer=True),
    Operator("QGemm", Kind.MATMUL, MS, matmul(0, 3), plus.each_output(plus.QUANTIZE, given=(6,)),
             {0: QWEIGHT, 1: DATA, 2: DATA, 3: QWEIGHT, 4: DATA, 5: DATA, 6: QWEIGHT, 7: DATA},
             is_integer=True),
    Operator("QOrderedMatMul", Kind.MATMUL, MS, matmul(0, 2),
             plus.each_output(plus.QUANTIZE, given=(5, 6)),
             {1: DATA, 2: QWEIGHT, 3: DATA, 4: DATA, 5: PARAM, 6: QWEIGHT, 7: DATA},
             is_integer=True),
    Operator("MoE", Kind.MATMUL, MS, experts, plus.each_output(2),
             {2: WEIGHT, 3: PARAM, 4: WEIGHT, 5: PARAM, 6: WEIGHT, 7: PARAM},
             _experts_read((2, 3, 4, 5, 6, 7))),
    Operator("QMoE", Kind.MATMUL, MS, experts, plus.each_output(2),
             {2: QWEIGHT, 3: DATA, 4: PARAM, 5: QWEIGHT, 6: DATA, 7: PARAM, 8: QWEIGHT, 9: DATA,
              10: PARAM, **data_slots(11, 12, 13, 15, 16, 17, 18, 19, 20)},
             _experts_read((2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13))),
    Operator("DynamicQuantizeLSTM", Kind.RECURRENT, MS, recurrent(4), plus.cells(4, 18),
             {1: QWEIGHT, 2: QWEIGHT, 3: PARAM, 5: DATA, 6: DATA, 7: PARAM, 8: DATA, 10: DATA},
             is_integer=True),
)  # fmt: skip

_ATTENTION = (
    Operator("Attention", Kind.ATTENTION, MS, attention(_SELF),
             attention_other(_SELF, masks=(3, 5)),
             {1: WEIGHT, 2: PARAM, **data_slots(3, 4, 5)}),
    Operator("DecoderMaskedSelfAttention", Kind.ATTENTION, MS, attention(_SELF),
             attention_other(_SELF, masks=(3, 5)),
             {1: WEIGHT, 2: PARAM, **data_slots(3, 4, 5)}),
    Operator("QAttention", Kind.ATTENTION, MS, attention(_QUANTISED_SELF),
             attention_other(_QUANTISED_SELF, masks=(5,)),
             {1: QWEIGHT, 2: PARAM, **data_slots(3, 4, 5, 8)}, is_integer=True),
    Operator("PackedAttention", Kind.ATTENTION, MS, attention(packed_projected),
             attention_other(packed_projected, masks=(5,)), {1: WEIGHT, 2: PARAM, 5: DATA}),
    Operator("PackedMultiHeadAttention", Kind.ATTENTION, MS, attention(packed_multi_head),
             attention_other(packed_multi_head, masks=(6,)), {3: PARAM, 6: DATA}),
    Operator("MultiHeadAttention", Kind.ATTENTION, MS, attention(_MHA),
             attention_other(_MHA, masks=(4, 5)), {3: PARAM, **data_slots(4, 5, 6, 7)},
             writes={1: cache_rows(6, 1), 2: cache_rows(7, 2)}),
    Operator("DecoderMaskedMultiHeadAttention", Kind.ATTENTION, MS, attention(_DECODER_MHA),
             attention_other(_DECODER_MHA, masks=(3, 4)), {**data_slots(3, 4, 5, 6), 10: PARAM},
             writes={1: cache_rows(5, 1), 2: cache_rows(6, 2)}),
    Operator("GroupQueryAttention", Kind.ATTENTION, MS, attention(group_query),
             attention_other(group_query, masks=(10,)),
             {**data_slots(3, 4, 5, 6, 7, 8, 10, 12, 13), 11: PARAM, 14: PARAM, 15: PARAM},
             writes={1: cache_rows(3, 1), 2: cache_rows(4, 2)}),
    # a block-sparse mask known only from its values: counted dense, an upper bound
    Operator("SparseAttention", Kind.ATTENTION, MS, attention(group_query),
             attention_other(group_query), data_slots(3, 4, 5, 6, 9, 10),
             writes={1: cache_rows(3, 1), 2: cache_rows(4, 2)}),
    Operator("PagedAttention", Kind.ATTENTION, MS, attention(paged), attention_other(paged),
             {**data_slots(3, 4, 8, 9, 14, 15), 11: PARAM, 12: PARAM, 13: PARAM},
             writes={1: lambda seen: seen.elements(1), 2: lambda seen: seen.elements(2)}),
    Operator("LongformerAttention", Kind.ATTENTION, MS, attention(longformer),
             attention_other(longformer, masks=(3,)),
             {1: WEIGHT, 2: PARAM, 3: DATA, 4: WEIGHT, 5: PARAM}),
    Operator("DecoderAttention", Kind.ATTENTION, MS, attention(decoder),
             attention_other(decoder, masks=(5,)),
             {2: WEIGHT, 3: WEIGHT, 4: PARAM, **data_slots(5, 6, 7)}),
    Operator("LinearAttention", Kind.ATTENTION, MS, linear_attention, linear_attention_other,
             data_slots(3)),
)  # fmt: skip

_SKIP_NORM = plus.each_input(plus.NORMALIZE + 2, given=(3, 4))
_GROUP_NORM = plus.each_input(plus.NORMALIZE + 2)

_NORMS = (
    # the residual is added, then normalised and scaled
    Operator("SkipLayerNormalization", Kind.NORM, MS, None, _SKIP_NORM,
             {2: PARAM, 3: PARAM, 4: PARAM}),
    Operator("SkipSimplifiedLayerNormalization", Kind.NORM, MS, None,
             plus.each_input(5, given=(3,)), {2: PARAM, 3: PARAM}),
    # two or three rows of the tables are added for each token
    Operator("EmbedLayerNormalization", Kind.NORM, MS, None,
             plus.each_output(plus.NORMALIZE + 3, given=(4,)),
             {2: WEIGHT, 3: WEIGHT, 4: WEIGHT, 5: PARAM, 6: PARAM},
             {2: as_written, 3: as_written, 4: as_written}),
    Operator("QEmbedLayerNormalization", Kind.NORM, MS, None,
             plus.each_output(plus.NORMALIZE + 3 + 3 * plus.DEQUANTIZE, given=(4,)),
             {2: QWEIGHT, 3: QWEIGHT, 4: QWEIGHT, 5: QWEIGHT, 6: QWEIGHT,
              **data_slots(8, 9, 10, 11, 12)},
             {2: as_written, 3: as_written, 4: as_written}, is_integer=True),
    Operator("GroupNorm", Kind.NORM, MS, None, _GROUP_NORM, {1: PARAM, 2: PARAM}),
    Operator("SkipGroupNorm", Kind.NORM, MS, None,
             plus.each_input(plus.NORMALIZE + 3, given=(4,)), {1: PARAM, 2: PARAM, 4: PARAM}),
    Operator("GatedRMSNorm", Kind.NORM, MS, None, plus.each_input(9), {1: PARAM}),
    Operator("BranchwiseRMSNorm", Kind.NORM, MS, None, plus.each_input(4), {1: PARAM}),
    Operator("QOrderedLayerNormalization", Kind.NORM, MS, None,
             plus.each_input(plus.NORMALIZE + plus.QUANTIZE + plus.DEQUANTIZE, given=(2, 3)),
             {1: DATA, 2: PARAM, 3: PARAM, 4: DATA}, is_integer=True),
    Operator("BiasSoftmax", Kind.SOFTMAX, MS, None, plus.each_input(plus.SOFTMAX + 1),
             {1: DATA}),
    Operator("QLinearSoftmax", Kind.SOFTMAX, MS, None,
             plus.each_input(plus.SOFTMAX + plus.QUANTIZE + plus.DEQUANTIZE),
             data_slots(1, 3), is_integer=True),
)  # fmt: skip

_Q_UNARY = plus.QUANTIZE + plus.DEQUANTIZE
_Q_BINARY = plus.QUANTIZE + 2 * plus.DEQUANTIZE + 1
_BOTH = {0: QFLOW, 1: DATA, 3: QFLOW, 4: DATA, 6: DATA}

_ELEMENTWISE = (
    Operator("Gelu", Kind.ELEMENTWISE, MS, None, plus.each_output(plus.FUNCTIONS["Gelu"])),
    Operator("BiasGelu", Kind.ELEMENTWISE, MS, None,
             plus.each_output(plus.FUNCTIONS["Gelu"] + 1), {1: PARAM}),
    Operator("FastGelu", Kind.ELEMENTWISE, MS, None,
             plus.each_output(plus.FUNCTIONS["FastGelu"], given=(1,)), {1: PARAM}),
    Operator("QuickGelu", Kind.ELEMENTWISE, MS, None,
             plus.each_output(plus.FUNCTIONS["QuickGelu"])),
    # one half of the biased input times Gelu of the other
    Operator("BiasSplitGelu", Kind.ELEMENTWISE, MS, None,
             plus.each_output(plus.FUNCTIONS["Gelu"] + 3), {1: PARAM}),
    Operator("BiasAdd", Kind.ELEMENTWISE, MS, None, plus.each_output(2), {1: PARAM}),
    Operator("SwiGLU", Kind.ELEMENTWISE, MS, None, plus.each_output(7)),
    Operator("ScaledSiLU", Kind.ELEMENTWISE, MS, None, plus.each_output(6), {1: PARAM}),
    Operator("GatedAdd", Kind.ELEMENTWISE, MS, None, plus.each_output(2), {3: PARAM}),
    # dropout is the identity at inference: a bias and a residual are added
    Operator("BiasDropout", Kind.ELEMENTWISE, MS, None, plus.each_output(1, given=(2,)),
             {1: PARAM, 3: DATA}, writes={1: nothing}),
    Operator("BitmaskBiasDropout", Kind.ELEMENTWISE, MS, None, plus.each_output(1, given=(2,)),
             {1: PARAM, 3: DATA}, writes={1: nothing}),
    Operator("BitmaskDropout", Kind.VIEW, MS),
    Operator("RotaryEmbedding", Kind.ELEMENTWISE, MS, None, plus.each_output(plus.ROTATE),
             data_slots(2, 3)),
    Operator("MRotaryEmbedding", Kind.ELEMENTWISE, MS, None, plus.each_output(plus.ROTATE),
             data_slots(2, 3)),
    Operator("GemmaRotaryEmbedding", Kind.ELEMENTWISE, MS, None,
             plus.each_output(2 * plus.ROTATE)),
    Operator("ComplexMul", Kind.ELEMENTWISE, MS, None, plus.each_output(3)),
    Operator("ComplexMulConj", Kind.ELEMENTWISE, MS, None, plus.each_output(3)),
    Operator("MulInteger", Kind.ELEMENTWISE, MS, None, plus.each_output(3),
             {0: QFLOW, 1: DATA, 2: QFLOW, 3: DATA}, is_integer=True),
    Operator("IsAllFinite", Kind.REDUCTION, MS, None, plus.each_input(1)),
    Operator("QOrderedGelu", Kind.ELEMENTWISE, MS, None,
             plus.each_output(_Q_UNARY + plus.FUNCTIONS["Gelu"]), data_slots(1, 2),
             is_integer=True),
    Operator("QLinearAdd", Kind.ELEMENTWISE, MS, None, plus.each_output(_Q_BINARY), _BOTH,
             is_integer=True),
    Operator("QLinearMul", Kind.ELEMENTWISE, MS, None, plus.each_output(_Q_BINARY), _BOTH,
             is_integer=True),
    Operator("QLinearWhere", Kind.ELEMENTWISE, MS, None, plus.each_output(_Q_UNARY + 1),
             {1: QFLOW, 2: DATA, 4: QFLOW, 5: DATA, 7: DATA}, is_integer=True),
    *(Operator(name, Kind.ELEMENTWISE, MS, None, plus.each_output(_Q_UNARY + each),
               data_slots(1, 3), is_integer=True)
      for name, each in (("QLinearLeakyRelu", 2), ("QLinearSigmoid", 4))),
)  # fmt: skip

_REST = (
    Operator("NhwcMaxPool", Kind.POOL, MS, None, plus.window()),
    Operator("MaxpoolWithMask", Kind.POOL, MS, None, plus.window(2)),
    Operator("QLinearAveragePool", Kind.POOL, MS, None, plus.window(3), data_slots(1, 3),
             is_integer=True),
    Operator("QLinearGlobalAveragePool", Kind.POOL, MS, None, plus.each_input(3),
             data_slots(1, 3), is_integer=True),
    Operator("QLinearReduceMean", Kind.REDUCTION, MS, None, plus.each_input(3), data_slots(1, 3),
             is_integer=True),
    Operator("ReduceSumInteger", Kind.REDUCTION, MS, None, plus.each_input(1)),
    Operator("QLinearConcat", Kind.MOVEMENT, MS, None, plus.each_output(_Q_UNARY),
             {0: DATA, 1: DATA, 2: QFLOW, 3: DATA, 5: QFLOW, 6: DATA, 8: QFLOW, 9: DATA},
             is_integer=True),
    Operator("Inverse", Kind.REDUCTION, MS, None, plus.inverse),
    # squared distances: subtract, multiply, add for each coordinate of each pair
    Operator("CDist", Kind.REDUCTION, MS, None,
             lambda seen: 3 * seen.out_elements * seen.shape(0)[-1]),
    Operator("CropAndResize", Kind.MOVEMENT, MS, None, plus.each_output(4 * plus.INTERPOLATE),
             data_slots(1)),
    Operator("ExpandDims", Kind.VIEW, MS, other_slots=QFLOW),
    Operator("TorchEmbedding", Kind.MOVEMENT, MS, slots={0: WEIGHT}, reads={0: as_written}),
    Operator("GatherPacked", Kind.MOVEMENT, MS, slots={0: QWEIGHT}, reads={0: as_written}),
    Operator("GatherBlockQuantized", Kind.MOVEMENT, MS, None, plus.each_output(plus.DEQUANTIZE),
             {0: QWEIGHT, 2: DATA, 3: DATA}, {0: as_written, 2: as_written, 3: as_written}),
    Operator("UnfoldTensor", Kind.MOVEMENT, MS),
    Operator("RemovePadding", Kind.MOVEMENT, MS, reads={0: as_written}),
    Operator("RestorePadding", Kind.MOVEMENT, MS),
    *(Operator(name, Kind.QUANTIZE, MS, None, plus.each_output(each), data_slots(1))
      for name, each in (("QuantizeWithOrder", plus.QUANTIZE),
                         ("DequantizeWithOrder", plus.DEQUANTIZE))),
)  # fmt: skip

BYTES_ONLY = {
    MS: (
        "AttnLSTM BeamSearch BifurcationDetector ConvStateReplay DequantizeBFP"
        " DynamicSparseAttention DynamicTimeWarping EPContext EngramGate GatedDeltaNet"
        " GatedDeltaNetStateReplay GatedRelativePositionBias GreedySearch"
        " HyperConnectionLowRankMix HyperConnectionPostMix HyperConnectionPreMix Irfft"
        " LinearAttentionGate Mamba2Verify MatMulNBitsQLoRA MoEGroupRouter MoEPacked MurmurHash3"
        " NGramHashMapping NGramRepeatBlock PackedSparseAttentionIndexer"
        " PackedSparseAttentionIndexerMerge QOrderedAttention QOrderedLongformerAttention"
        " QuantizeBFP RelativePositionBias Rfft RMSNormRotary RouterGateUpProj SampleOp Sampling"
        " Snpe SparseAttentionIndexer SparsePagedAttention SpeculativePrefixCommit Tokenizer"
        " VarlenCausalConvWithState VarlenNGramHashMapping WhisperBeamSearch WordConvEmbedding"
    ),
}

# domains of graphs that ONNX Runtime has optimised for its own kernels
_LAYOUTS = (
    *(Operator(name, Kind.MOVEMENT, "com.microsoft.nchwc", other_slots=QFLOW)
      for name in ("ReorderInput", "ReorderOutput")),
    Operator("QLinearConvTranspose", Kind.CONV, "com.ms.internal.nhwc", conv_transpose(3),
             plus.each_output(plus.QUANTIZE, given=(8,)),
             {1: DATA, 3: QWEIGHT, 4: DATA, 6: DATA, 8: QWEIGHT}, is_integer=True),
)  # fmt: skip

ROWS = (*_PRODUCTS, *_ATTENTION, *_NORMS, *_ELEMENTWISE, *_REST, *_LAYOUTS)
