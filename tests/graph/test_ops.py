"""The operator table: complete, free of contradictions, and right about what constants are."""

import onnx.defs
import pytest

from slicewise.core.cost import Kind
from slicewise.core.graph import Role
from slicewise.core.precision import DType
from slicewise.graph.ops import operator, operators, role_of_slot

STANDARD = sorted(
    {(schema.domain, schema.name) for schema in onnx.defs.get_all_schemas_with_history()}
)


@pytest.mark.parametrize(("domain", "op_type"), STANDARD)
def test_every_operator_of_the_onnx_standard_is_in_the_table(domain: str, op_type: str) -> None:
    row = operator(domain, op_type)
    assert row is not None
    assert row.op_type == op_type


def test_every_operator_that_onnxruntime_registers_is_in_the_table() -> None:
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    registered = {(schema.domain, schema.name) for schema in state.get_all_operator_schema()}
    ours = {"", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"}
    missing = {key for key in registered if key[0] in ours and operator(*key) is None}
    assert missing == set()


def test_the_formula_free_operators_of_ai_onnx_are_exactly_these() -> None:
    known = {
        schema.name for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain
    }
    bytes_only = {row.op_type for row in operators() if row.is_bytes_only and not row.domain}
    assert bytes_only & known == {
        "Bernoulli", "ImageDecoder", "MaxRoiPool", "Multinomial", "RandomNormal",
        "RandomNormalLike", "RandomUniform", "RandomUniformLike", "RegexFullMatch", "StringConcat",
        "StringNormalizer", "StringSplit", "TfIdfVectorizer",
    }  # fmt: skip


def test_a_row_is_bytes_only_or_has_a_kind_with_a_meaning() -> None:
    for row in operators():
        assert row.is_bytes_only == (row.kind is Kind.OPAQUE), row.op_type


def test_only_contractions_count_multiply_adds() -> None:
    contractions = {Kind.CONV, Kind.MATMUL, Kind.ATTENTION, Kind.RECURRENT}
    for row in operators():
        assert (row.macs is not None) == (row.kind in contractions), row.op_type


def test_slots_lie_within_the_inputs_of_the_newest_schema() -> None:
    for schema in onnx.defs.get_all_schemas():
        row = operator(schema.domain, schema.name)
        assert row is not None
        if schema.max_input < 100 and row.domain == schema.domain:
            # later versions drop inputs: slots of functions shared by a line of the table go to 3
            limit = max(schema.max_input, 3)
            named = [*row.slots, *row.reads]
            assert all(slot <= limit for slot in named), schema.name


def test_a_domain_of_its_own_is_unknown() -> None:
    assert operator("com.example", "Conv") is None
    assert operator("", "NoSuchOperator") is None


def test_ai_onnx_spelled_out_is_the_standard_domain() -> None:
    assert operator("ai.onnx", "Gemm") is operator("", "Gemm")


def test_layout_domains_share_the_rows_of_the_operators_they_rewrite() -> None:
    assert operator("com.microsoft.nchwc", "Conv") is operator("", "Conv")
    assert operator("com.ms.internal.nhwc", "QLinearAveragePool") is operator(
        "com.microsoft", "QLinearAveragePool"
    )


P, B, D = Role.PARAMETER, Role.BUFFER, Role.DATA
F32, F16, I8, U8, I32, I64 = (
    DType.FP32, DType.FP16, DType.INT8, DType.UINT8, DType.INT32, DType.INT64,
)  # fmt: skip
ROLES = [
    # domain, operator, slot, type, elements, role
    ("", "Conv", 1, F32, 864, P),
    ("", "Conv", 2, F32, 1, P),
    ("", "Conv", 1, F16, 1, P),
    ("", "ConvTranspose", 1, F32, 864, P),
    ("", "DeformConv", 2, F32, 18, P),
    ("", "DeformConv", 3, F32, 1, P),
    ("", "MatMul", 0, F32, 64, P),
    ("", "MatMul", 1, F32, 64, P),
    ("", "MatMul", 1, I64, 64, D),
    ("", "Gemm", 1, F32, 64, P),
    ("", "Gemm", 2, F32, 1, P),
    ("", "Einsum", 1, F32, 64, P),
    ("", "BatchNormalization", 1, F32, 8, P),
    ("", "BatchNormalization", 2, F32, 8, P),
    ("", "BatchNormalization", 3, F32, 8, B),
    ("", "BatchNormalization", 4, F32, 1, B),
    ("", "LayerNormalization", 1, F32, 8, P),
    ("", "LayerNormalization", 2, F32, 8, P),
    ("", "RMSNormalization", 1, F16, 1, P),
    ("", "GroupNormalization", 2, F32, 8, P),
    ("", "InstanceNormalization", 1, F32, 8, P),
    ("", "SimplifiedLayerNormalization", 1, F32, 8, P),
    ("", "PRelu", 1, F32, 1, P),
    ("", "LSTM", 1, F32, 64, P),
    ("", "LSTM", 3, F32, 64, P),
    ("", "LSTM", 5, F32, 64, D),
    ("", "GRU", 2, F32, 64, P),
    ("", "Gather", 0, F32, 1000, P),
    ("", "Gather", 0, I64, 1000, D),
    ("", "Gather", 0, U8, 1000, P),
    ("", "Gather", 1, I64, 1000, D),
    ("", "Add", 1, F32, 768, P),
    ("", "Add", 1, F32, 1, D),
    ("", "Mul", 0, F32, 768, P),
    ("", "Pow", 1, F32, 1, D),
    ("", "Div", 1, F32, 2, P),
    ("", "Sub", 0, I64, 768, D),
    ("", "Unsqueeze", 0, F32, 64, P),
    ("", "Unsqueeze", 1, I64, 2, D),
    ("", "Reshape", 0, F32, 64, P),
    ("", "Reshape", 1, I64, 4, D),
    ("", "Transpose", 0, I8, 64, P),
    ("", "Cast", 0, F32, 64, P),
    ("", "Concat", 0, F32, 768, P),
    ("", "Expand", 0, F32, 768, P),
    ("", "Where", 0, DType.BOOL, 768, D),
    ("", "Where", 1, F32, 768, P),
    ("", "Where", 2, F32, 1, D),
    ("", "Clip", 1, F32, 1, D),
    ("", "Resize", 1, F32, 8, D),
    ("", "Resize", 2, F32, 4, D),
    ("", "Pad", 2, F32, 1, D),
    ("", "Greater", 1, F32, 9, D),
    ("", "OneHot", 2, F32, 2, D),
    ("", "Attention", 3, F32, 256, D),
    ("", "RotaryEmbedding", 1, F32, 256, D),
    ("", "QuantizeLinear", 1, F32, 64, D),
    ("", "DequantizeLinear", 0, I8, 64, P),
    ("", "DequantizeLinear", 0, I32, 64, P),
    ("", "DequantizeLinear", 0, DType.FP8, 64, P),
    ("", "DequantizeLinear", 1, F32, 64, D),
    ("", "DequantizeLinear", 2, I8, 64, D),
    ("", "QLinearConv", 3, I8, 864, P),
    ("", "QLinearConv", 3, DType.BOOL, 864, D),
    ("", "QLinearConv", 4, F32, 32, D),
    ("", "QLinearConv", 5, I8, 32, D),
    ("", "QLinearConv", 8, I32, 32, P),
    ("", "QLinearMatMul", 3, U8, 64, P),
    ("", "QLinearMatMul", 4, F32, 8, D),
    ("", "MatMulInteger", 1, U8, 64, P),
    ("", "MatMulInteger", 3, U8, 8, D),
    ("", "ConvInteger", 1, I8, 864, P),
    ("", "Loop", 2, F32, 64, D),
    ("ai.onnx", "Conv", 1, F32, 864, P),
    ("com.microsoft", "MatMulNBits", 1, U8, 2048, P),
    ("com.microsoft", "MatMulNBits", 2, F16, 64, D),
    ("com.microsoft", "MatMulNBits", 3, U8, 64, D),
    ("com.microsoft", "Attention", 1, F32, 768, P),
    ("com.microsoft", "Attention", 2, F32, 768, P),
    ("com.microsoft", "Attention", 5, F32, 768, D),
    ("com.microsoft", "QAttention", 1, I8, 768, P),
    ("com.microsoft", "QAttention", 3, F32, 1, D),
    ("com.microsoft", "EmbedLayerNormalization", 2, F32, 768, P),
    ("com.microsoft", "EmbedLayerNormalization", 6, F32, 768, P),
    ("com.microsoft", "SkipLayerNormalization", 2, F32, 768, P),
    ("com.microsoft", "BiasGelu", 1, F32, 1, P),
    ("com.microsoft", "FusedConv", 1, F32, 864, P),
    ("com.microsoft", "QLinearAdd", 3, U8, 768, P),
    ("com.microsoft", "QLinearAdd", 3, U8, 1, D),
    ("com.microsoft", "QLinearAdd", 4, F32, 1, D),
    ("com.microsoft", "GroupQueryAttention", 7, F32, 768, D),
    ("com.microsoft", "RotaryEmbedding", 2, F32, 768, D),
    ("com.example", "Anything", 0, F32, 768, P),
    ("com.example", "Anything", 0, F32, 1, D),
    ("com.example", "Anything", 0, I8, 768, D),
    ("", "Conv", 1, DType.UNKNOWN, 864, D),
]  # fmt: skip


@pytest.mark.parametrize(("domain", "op_type", "slot", "dtype", "elements", "role"), ROLES)
def test_role_of_a_constant_follows_from_its_slot(
    domain: str, op_type: str, slot: int, dtype: DType, elements: int, role: Role
) -> None:
    assert role_of_slot(domain, op_type, slot, dtype=dtype, elements=elements) is role


def test_booleans_and_strings_are_never_parameters() -> None:
    for row in operators():
        for slot in range(8):
            for dtype in (DType.BOOL, DType.STRING):
                role = role_of_slot(row.domain, row.op_type, slot, dtype=dtype, elements=100)
                assert role is Role.DATA, (row.op_type, slot)
