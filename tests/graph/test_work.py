"""Counting work: laws over random graphs, then each operator against figures done by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.cost import Contraction, GraphWork, Kind, NodeWork, Work
from slicewise.core.errors import ModelError
from slicewise.core.graph import AttrValue, Graph, Role
from slicewise.core.notes import Note
from slicewise.core.precision import DType
from slicewise.graph.ops import operators
from slicewise.graph.work import count_work
from slicewise.testing.graphs import (
    Recipe,
    Sketch,
    graphs,
    mlp,
    recipes,
    renamed,
    residual_cnn,
    single,
    transformer,
)

MS = "com.microsoft"
Shape = tuple[int, ...]
small = st.integers(1, 6)


def only(graph: Graph, compute: DType | None = None) -> NodeWork:
    """Return the work of the last node."""
    return count_work(graph, compute).nodes[-1]


# ---- laws


@given(graphs())
def test_the_total_is_the_sum_of_the_nodes(graph: Graph) -> None:
    work = count_work(graph)
    assert len(work.nodes) == len(graph.nodes)
    assert [node.name for node in work.nodes] == [node.name for node in graph.nodes]
    total = Work()
    for node in work.nodes:
        total = total + node.work
    assert work.total == total


@given(graphs())
def test_flops_hold_two_for_each_mac_and_bytes_are_never_negative(graph: Graph) -> None:
    for node in count_work(graph).nodes:
        assert node.work.flops >= 2 * node.work.macs >= 0
        assert node.work.read_bytes >= 0
        assert node.work.write_bytes >= 0
        assert node.work.weight_bytes >= 0


@given(recipes(), st.integers(1, 5))
def test_a_batch_scales_macs_flops_and_activations_and_leaves_weights(
    recipe: Recipe, batch: int
) -> None:
    one, many = count_work(recipe.graph(1)).total, count_work(recipe.graph(batch)).total
    assert many.macs == batch * one.macs
    assert many.flops == batch * one.flops
    assert many.read_bytes == batch * one.read_bytes
    assert many.write_bytes == batch * one.write_bytes
    assert many.weight_bytes == one.weight_bytes


@given(graphs())
def test_renaming_changes_no_figure(graph: Graph) -> None:
    def figures(work: GraphWork) -> list[NodeWork]:
        return [replace(node, name="") for node in work.nodes]

    assert figures(count_work(renamed(graph))) == figures(count_work(graph))


@given(graphs())
def test_a_contraction_multiplies_out_to_the_macs(graph: Graph) -> None:
    for node in count_work(graph).nodes:
        c = node.contraction
        assert node.work.macs == (0 if c is None else c.batch * c.m * c.n * c.k)


@given(graphs())
def test_every_constant_is_read_as_weight_and_no_view_of_it_as_activation(graph: Graph) -> None:
    read = {name for node in graph.nodes for name in node.inputs}
    stored = sum(c.stored_bytes for name, c in graph.constants.items() if name in read)
    assert count_work(graph).total.weight_bytes == stored


@given(small, st.integers(1, 4), small, small, st.sampled_from([1, 3]), st.integers(1, 3))
def test_a_grouped_convolution_is_the_sum_of_its_groups(
    batch: int, group: int, inputs: int, outputs: int, kernel: int, rank: int
) -> None:
    space = (5,) * rank

    def conv(groups: int, parts: int) -> NodeWork:
        channels, filters = inputs * parts, outputs * parts
        weight = (filters, channels // groups, *((kernel,) * rank))
        shapes = [(batch, channels, *space), weight]
        attrs: dict[str, AttrValue] = {"group": groups}
        return only(single("Conv", shapes, (batch, filters, *space), constants=[1], attrs=attrs))

    assert conv(group, group).work == conv(1, 1).work * group


@given(small, small, small, st.integers(1, 5))
def test_a_pointwise_convolution_is_a_matrix_product(
    batch: int, inputs: int, outputs: int, size: int
) -> None:
    image, kernel = (batch, inputs, size, size), (outputs, inputs, 1, 1)
    conv = only(single("Conv", [image, kernel], (batch, outputs, size, size), constants=[1]))
    rows = batch * size * size
    factors = [(rows, inputs), (inputs, outputs)]
    product = only(single("MatMul", factors, (rows, outputs), constants=[1]))
    assert conv.work == product.work
    assert conv.contraction == product.contraction


@given(small, small, small, small)
def test_einsum_gemm_and_matmul_agree(batch: int, m: int, k: int, n: int) -> None:
    a, b, y = (batch, m, k), (batch, k, n), (batch, m, n)
    product = only(single("MatMul", [a, b], y))
    attrs: dict[str, AttrValue] = {"equation": "bij,bjk->bik"}
    assert only(single("Einsum", [a, b], y, attrs=attrs)).work == product.work
    attrs = {"equation": "...ij,...jk"}
    assert only(single("Einsum", [a, b], y, attrs=attrs)).work == product.work
    flat = only(single("MatMul", [(m, k), (k, n)], (m, n)))
    for transposed in (0, 1):
        attrs = {"transA": transposed, "transB": transposed}
        shapes = [(k, m), (n, k)] if transposed else [(m, k), (k, n)]
        assert only(single("Gemm", shapes, (m, n), attrs=attrs)).work == flat.work
        fused = only(single("FusedMatMul", shapes, (m, n), attrs=attrs, domain=MS))
        assert fused.work == flat.work


@given(small, small, small, small, small)
def test_attention_in_three_and_four_axes_agree(
    batch: int, heads: int, queries: int, keys: int, size: int
) -> None:
    def at(length: int, *, flat: bool) -> Shape:
        if flat:
            return (batch, length, heads * size)
        return (batch, heads, length, size)

    def attention(flat: bool) -> NodeWork:
        attrs: dict[str, AttrValue] = {"q_num_heads": heads, "kv_num_heads": heads}
        shapes = [at(queries, flat=flat), at(keys, flat=flat), at(keys, flat=flat)]
        out = at(queries, flat=flat)
        return only(single("Attention", shapes, out, attrs=attrs if flat else {}))

    assert attention(True) == attention(False)
    assert attention(True).work.macs == 2 * batch * heads * queries * keys * size


@given(small, small, small, small)
def test_a_kv_cache_costs_what_the_whole_sequence_of_keys_costs(
    batch: int, past: int, new: int, size: int
) -> None:
    q, kv, old = (batch, 2, new, size), (batch, 2, new, size), (batch, 2, past, size)
    whole = (batch, 2, past + new, size)
    cached = only(single("Attention", [q, kv, kv, None, old, old], q, whole, whole))
    plain = only(single("Attention", [q, whole, whole], q))
    assert cached.work.macs == plain.work.macs


# ---- multiply-adds, by hand


CASES: list[tuple[str, str, list[Shape | None], list[Shape], dict[str, AttrValue], str, int]] = [
    # what, operator, inputs, outputs, attributes, domain, macs
    ("1-D", "Conv", [(2, 4, 10), (8, 4, 3)], [(2, 8, 8)], {}, "", 2 * 8 * 8 * 4 * 3),
    ("3-D", "Conv", [(1, 2, 4, 4, 4), (3, 2, 2, 2, 2)], [(1, 3, 3, 3, 3)], {}, "",
     3 * 27 * 2 * 8),
    ("depthwise", "Conv", [(1, 6, 8, 8), (6, 1, 3, 3)], [(1, 6, 8, 8)], {"group": 6}, "",
     6 * 64 * 9),
    ("transposed", "ConvTranspose", [(1, 4, 5, 5), (4, 6, 3, 3)], [(1, 6, 11, 11)], {}, "",
     25 * 4 * 6 * 9),
    ("transposed groups", "ConvTranspose", [(1, 4, 5, 5), (4, 3, 3, 3)], [(1, 6, 11, 11)],
     {"group": 2}, "", 25 * 4 * 3 * 9),
    ("deform", "DeformConv", [(1, 4, 8, 8), (6, 4, 3, 3), (1, 18, 6, 6)], [(1, 6, 6, 6)], {}, "",
     6 * 36 * 4 * 9),
    ("integer", "ConvInteger", [(1, 4, 8, 8), (6, 4, 3, 3)], [(1, 6, 6, 6)], {}, "",
     6 * 36 * 4 * 9),
    ("quantised", "QLinearConv",
     [(1, 4, 8, 8), (), (), (6, 4, 3, 3), (), (), (), ()], [(1, 6, 6, 6)], {}, "",
     6 * 36 * 4 * 9),
    ("channels last", "NhwcConv", [(1, 8, 8, 4), (6, 3, 3, 4)], [(1, 6, 6, 6)], {}, MS,
     6 * 36 * 4 * 9),
    ("blocked", "Conv", [(1, 16, 8, 8), (32, 16, 3, 3)], [(1, 32, 8, 8)], {},
     "com.microsoft.nchwc", 32 * 64 * 16 * 9),
    ("fused", "FusedConv", [(1, 4, 8, 8), (6, 4, 3, 3), (6,)], [(1, 6, 6, 6)],
     {"activation": "Relu"}, MS, 6 * 36 * 4 * 9),
    ("causal", "CausalConvWithState", [(2, 6, 10), (6, 1, 4)], [(2, 6, 10), (2, 6, 3)], {}, "",
     2 * 6 * 10 * 4),
    ("vector vector", "MatMul", [(5,), (5,)], [()], {}, "", 5),
    ("vector matrix", "MatMul", [(5,), (5, 3)], [(3,)], {}, "", 15),
    ("matrix vector", "MatMul", [(2, 5), (5,)], [(2,)], {}, "", 10),
    ("batch vector", "MatMul", [(7, 2, 5), (5,)], [(7, 2)], {}, "", 70),
    ("broadcast", "MatMul", [(4, 1, 2, 5), (3, 5, 6)], [(4, 3, 2, 6)], {}, "", 12 * 2 * 5 * 6),
    ("no rows", "MatMul", [(0, 5), (5, 3)], [(0, 3)], {}, "", 0),
    ("integer", "MatMulInteger", [(2, 5), (5, 3)], [(2, 3)], {}, "", 30),
    ("quantised", "QLinearMatMul", [(2, 5), (), (), (5, 3), (), (), (), ()], [(2, 3)], {}, "", 30),
    ("quantised", "QGemm", [(2, 5), (), (), (3, 5), (), ()], [(2, 3)], {"transB": 1}, MS, 30),
    ("dynamic", "DynamicQuantizeMatMul", [(2, 5), (5, 3), (1,)], [(2, 3)], {}, MS, 30),
    ("to float", "MatMulIntegerToFloat", [(2, 5), (5, 3), (), ()], [(2, 3)], {}, MS, 30),
    ("four bits", "MatMulNBits", [(1, 7, 64), (32, 2, 16), (64,)], [(1, 7, 32)],
     {"K": 64, "N": 32, "bits": 4}, MS, 7 * 64 * 32),
    ("four bits", "MatMulBnb4", [(7, 64), (1024,), (32,)], [(7, 32)], {"K": 64, "N": 32}, MS,
     7 * 64 * 32),
    ("transposed batches", "FusedMatMul", [(2, 9, 5), (9, 5, 3)], [(9, 2, 3)],
     {"transBatchA": 1}, MS, 9 * 2 * 5 * 3),
    ("gelu", "GemmFastGelu", [(2, 5), (5, 3), (3,)], [(2, 3)], {}, MS, 30),
    ("three terms", "Einsum", [(2, 3), (3, 4), (4, 5)], [(2, 5)], {"equation": "ab,bc,cd->ad"},
     "", 2 * 3 * 4 + 2 * 4 * 5),
    ("outer", "Einsum", [(2,), (3,)], [(2, 3)], {"equation": "i,j->ij"}, "", 0),
    ("inner", "Einsum", [(4,), (4,)], [()], {"equation": "i,i->"}, "", 4),
    ("transposed", "Einsum", [(2, 3)], [(3, 2)], {"equation": "ij->ji"}, "", 0),
    ("summed first", "Einsum", [(2, 7, 3), (3, 4)], [(2, 4)], {"equation": "axb,bc->ac"}, "",
     2 * 3 * 4),
    ("values", "Attention", [(2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6)], [(2, 4, 5, 6)], {}, "",
     2 * 4 * 5 * 7 * (8 + 6)),
    ("grouped", "Attention", [(2, 8, 5, 16), (2, 2, 5, 16), (2, 2, 5, 16)], [(2, 8, 5, 16)], {},
     "", 2 * 8 * 5 * 5 * 32),
    ("grouped, flat", "Attention", [(2, 5, 128), (2, 5, 32), (2, 5, 32)], [(2, 5, 128)],
     {"q_num_heads": 8, "kv_num_heads": 2}, "", 2 * 8 * 5 * 5 * 32),
    ("window", "Attention", [(1, 1, 100, 8), (1, 1, 100, 8), (1, 1, 100, 8)], [(1, 1, 100, 8)],
     {"left_window_size": 9, "is_causal": 1}, "", 100 * 10 * 16),
    ("flex", "FlexAttention", [(2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8)], [(2, 4, 5, 8)], {},
     "ai.onnx.preview", 2 * 4 * 5 * 7 * 16),
    ("linear", "LinearAttention", [(1, 10, 8), (1, 10, 8), (1, 10, 12)], [(1, 10, 12)],
     {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"}, "", 10 * (2 + 2) * 4 * 6),
    ("projected", "Attention", [(2, 5, 16), (16, 48), (48,)], [(2, 5, 16)], {"num_heads": 4}, MS,
     2 * 5 * 16 * 48 + 2 * 4 * 5 * 5 * 8),
    ("projected, past", "Attention", [(2, 1, 16), (16, 48), (48,), None, (2, 2, 4, 6, 4)],
     [(2, 1, 16), (2, 2, 4, 7, 4)], {"num_heads": 4}, MS, 2 * 16 * 48 + 2 * 4 * 7 * 8),
    ("quantised", "QAttention", [(2, 5, 16), (16, 48), (48,), (), ()], [(2, 5, 16)],
     {"num_heads": 4}, MS, 2 * 5 * 16 * 48 + 2 * 4 * 5 * 5 * 8),
    ("cross", "MultiHeadAttention", [(2, 5, 16), (2, 7, 16), (2, 7, 24)], [(2, 5, 24)],
     {"num_heads": 4}, MS, 2 * 4 * 5 * 7 * (4 + 6)),
    ("packed", "MultiHeadAttention", [(2, 5, 4, 3, 8)], [(2, 5, 32)], {"num_heads": 4}, MS,
     2 * 4 * 5 * 5 * 16),
    ("packed pair", "MultiHeadAttention", [(2, 5, 32), (2, 7, 4, 2, 8)], [(2, 5, 32)],
     {"num_heads": 4}, MS, 2 * 4 * 5 * 7 * 16),
    ("past", "MultiHeadAttention",
     [(2, 1, 16), (2, 1, 16), (2, 1, 16), None, None, None, (2, 4, 6, 4), (2, 4, 6, 4)],
     [(2, 1, 16), (2, 4, 7, 4), (2, 4, 7, 4)], {"num_heads": 4}, MS, 2 * 4 * 7 * 8),
    ("grouped", "GroupQueryAttention",
     [(1, 3, 64), (1, 3, 16), (1, 3, 16), (1, 2, 20, 8), (1, 2, 20, 8), (1,), ()],
     [(1, 3, 64), (1, 2, 23, 8), (1, 2, 23, 8)], {"num_heads": 8, "kv_num_heads": 2}, MS,
     8 * 3 * 23 * 16),
    ("grouped, packed", "GroupQueryAttention",
     [(1, 1, 96), None, None, (1, 2, 20, 8), (1, 2, 20, 8), (1,), ()],
     [(1, 1, 64), (1, 2, 20, 8), (1, 2, 20, 8)], {"num_heads": 8, "kv_num_heads": 2}, MS,
     8 * 20 * 16),
    ("grouped, window", "GroupQueryAttention",
     [(1, 1, 64), (1, 1, 16), (1, 1, 16), (1, 2, 20, 8), (1, 2, 20, 8), (1,), ()],
     [(1, 1, 64), (1, 2, 21, 8), (1, 2, 21, 8)],
     {"num_heads": 8, "kv_num_heads": 2, "local_window_size": 4}, MS, 8 * 4 * 16),
    ("packed", "PackedAttention", [(9, 16), (16, 48), (48,), (2, 5), (3,)], [(9, 16)],
     {"num_heads": 4}, MS, 9 * 16 * 48 + 4 * 9 * 5 * 8),
    ("masked", "DecoderMaskedMultiHeadAttention",
     [(2, 1, 16), (2, 1, 16), (2, 1, 16), None, None, (2, 4, 6, 4), (2, 4, 6, 4)],
     [(2, 1, 16), (2, 4, 7, 4), (2, 4, 7, 4)], {"num_heads": 4}, MS, 2 * 4 * 7 * 8),
    ("rnn", "RNN", [(7, 2, 3), (1, 5, 3), (1, 5, 5)], [(7, 1, 2, 5)], {"hidden_size": 5}, "",
     7 * 2 * 5 * (3 + 5)),
    ("gru, both ways", "GRU", [(7, 2, 3), (2, 15, 3), (2, 15, 5)], [(7, 2, 2, 5)], {}, "",
     2 * 7 * 2 * 15 * (3 + 5)),
    ("lstm", "LSTM", [(7, 2, 3), (1, 20, 3), (1, 20, 5)], [(7, 1, 2, 5)], {}, "",
     7 * 2 * 20 * (3 + 5)),
    ("lstm, batch first", "LSTM", [(2, 7, 3), (1, 20, 3), (1, 20, 5)], [(2, 7, 1, 5)],
     {"layout": 1}, "", 7 * 2 * 20 * (3 + 5)),
    ("dynamic lstm", "DynamicQuantizeLSTM", [(7, 2, 3), (1, 3, 20), (1, 5, 20)], [(7, 1, 2, 5)],
     {}, MS, 7 * 2 * 20 * (3 + 5)),
    ("experts", "MoE", [(6, 16), (6, 8), (8, 64, 16), None, (8, 16, 64)], [(6, 16)], {"k": 2}, MS,
     6 * 2 * 2 * 64 * 16),
    ("packed experts", "QMoE",
     [(6, 16), (6, 8), (8, 64, 8), None, None, (8, 16, 32), None, None], [(6, 16)],
     {"k": 2, "expert_weight_bits": 4}, MS, 6 * 2 * 2 * 64 * 16),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op_type", "inputs", "outputs", "attrs", "domain", "macs"),
    [pytest.param(*case[1:], id=f"{case[1]}, {case[0]}") for case in CASES],
)
def test_macs_of_a_contraction(
    op_type: str,
    inputs: list[Shape | None],
    outputs: list[Shape],
    attrs: dict[str, AttrValue],
    domain: str,
    macs: int,
) -> None:
    dtype = DType.UINT8 if op_type == "QMoE" else DType.FP32
    work = count_work(single(op_type, inputs, *outputs, attrs=attrs, domain=domain, dtype=dtype))
    assert work.total.macs == macs
    assert work.notes == ()
    c = work.nodes[0].contraction
    assert macs == 0 or c is not None


def test_attention_is_described_as_the_product_with_the_values() -> None:
    shapes: list[Shape | None] = [(2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6)]
    node = only(single("Attention", shapes, (2, 4, 5, 6)))
    assert node.contraction == Contraction(batch=8, m=5, n=6, k=7)


def test_a_recurrence_takes_as_many_steps_as_its_sequence_is_long() -> None:
    node = only(single("LSTM", [(7, 2, 3), (2, 20, 3), (2, 20, 5)], (7, 2, 2, 5), constants=[1]))
    assert node.steps == 7
    assert node.contraction == Contraction(batch=14, m=2, n=20, k=8)


# ---- other arithmetic, by hand


ARITHMETIC: list[tuple[str, list[Shape | None], Shape, dict[str, AttrValue], int]] = [
    ("Relu", [(3, 4)], (3, 4), {}, 12),
    ("Sigmoid", [(3, 4)], (3, 4), {}, 48),
    ("Gelu", [(3, 4)], (3, 4), {}, 60),
    ("Gelu", [(3, 4)], (3, 4), {"approximate": "tanh"}, 108),
    ("Clip", [(3, 4), (), ()], (3, 4), {}, 24),
    ("Add", [(3, 1), (1, 4)], (3, 4), {}, 12),
    ("Sum", [(3, 4), (3, 4), (3, 4)], (3, 4), {}, 24),
    ("Mean", [(3, 4), (3, 4)], (3, 4), {}, 24),
    ("Sum", [(3, 4)], (3, 4), {}, 0),
    ("BatchNormalization", [(2, 3, 4), (3,), (3,), (3,), (3,)], (2, 3, 4), {}, 48),
    ("BatchNormalization", [(2, 3, 4), (3,), (3,), (3,), (3,)], (2, 3, 4), {"training_mode": 1},
     7 * 24),
    ("LayerNormalization", [(2, 3), (3,), (3,)], (2, 3), {}, 42),
    ("LayerNormalization", [(2, 3), (3,)], (2, 3), {}, 36),
    ("RMSNormalization", [(2, 3), (3,)], (2, 3), {}, 24),
    ("Softmax", [(2, 3)], (2, 3), {}, 30),
    ("LRN", [(1, 5, 2, 2)], (1, 5, 2, 2), {"size": 5}, 200),
    ("MaxPool", [(1, 1, 4, 4)], (1, 1, 2, 2), {"kernel_shape": (2, 2)}, 16),
    ("AveragePool", [(1, 1, 4, 4)], (1, 1, 2, 2), {"kernel_shape": (3, 3)}, 36),
    ("GlobalAveragePool", [(1, 2, 4, 4)], (1, 2, 1, 1), {}, 32),
    ("ReduceMean", [(2, 8)], (2, 1), {}, 16),
    ("ReduceL2", [(2, 8)], (2, 1), {}, 32),
    ("ArgMax", [(2, 8)], (2, 1), {}, 16),
    ("TopK", [(2, 8), (1,)], (2, 3), {}, 32),
    ("CumSum", [(2, 8), ()], (2, 8), {}, 16),
    ("Resize", [(1, 1, 2, 2), None, (4,)], (1, 1, 4, 4), {}, 0),
    ("Resize", [(1, 1, 2, 2), None, (4,)], (1, 1, 4, 4), {"mode": "linear"}, 16 * 8),
    ("Resize", [(1, 1, 2, 4), None, (4,)], (1, 1, 4, 4), {"mode": "cubic"}, 16 * 8),
    ("Resize", [(1, 1, 2, 2), None, (4,)], (1, 1, 2, 2), {"mode": "linear"}, 0),
    ("GridSample", [(1, 3, 4, 4), (1, 2, 2, 2)], (1, 3, 2, 2), {}, 12 * 8),
    ("RoiAlign", [(1, 3, 8, 8), (2, 4), (2,)], (2, 3, 1, 1), {"sampling_ratio": 1}, 6 * 9),
    ("DFT", [(1, 8, 1)], (1, 8, 2), {"axis": 1}, 5 * 8 * 3 // 2),
    ("DFT", [(1, 8, 2)], (1, 8, 2), {"axis": 1}, 5 * 8 * 3),
    ("Det", [(3, 3)], (), {}, 18),
    ("QuantizeLinear", [(3, 4), ()], (3, 4), {}, 60),
    ("DequantizeLinear", [(3, 4), ()], (3, 4), {}, 24),
    ("Einsum", [(2, 3)], (2,), {"equation": "ij->i"}, 6),
    ("Einsum", [(2, 3), (2, 3)], (2, 3), {"equation": "ij,ij->ij"}, 6),
    ("Conv", [(1, 2, 4, 4), (3, 2, 1, 1), (3,)], (1, 3, 4, 4), {}, 2 * 96 + 48),
    ("Conv", [(1, 2, 4, 4), (3, 2, 1, 1)], (1, 3, 4, 4), {}, 2 * 96),
    ("Gemm", [(2, 3), (3, 4), (4,)], (2, 4), {}, 2 * 24 + 8),
    ("Attention", [(1, 1, 2, 4), (1, 1, 3, 4), (1, 1, 3, 4)], (1, 1, 2, 4), {}, 2 * 48 + 36),
    ("Attention", [(1, 1, 2, 4), (1, 1, 3, 4), (1, 1, 3, 4), (2, 3)], (1, 1, 2, 4),
     {"softcap": 5.0}, 2 * 48 + 60),
    ("LSTM", [(1, 1, 2), (1, 12, 2), (1, 12, 3)], (1, 1, 1, 3), {}, 2 * 60 + 3 * 22),
    ("Transpose", [(3, 4)], (4, 3), {}, 0),
    ("Gather", [(10, 4), (3,)], (3, 4), {}, 0),
]  # fmt: skip


@pytest.mark.parametrize(("op_type", "inputs", "output", "attrs", "flops"), ARITHMETIC)
def test_flops_of_an_operator(
    op_type: str,
    inputs: list[Shape | None],
    output: Shape,
    attrs: dict[str, AttrValue],
    flops: int,
) -> None:
    assert only(single(op_type, inputs, output, attrs=attrs)).work.flops == flops


# ---- bytes, by hand


def moved(node: NodeWork) -> tuple[int, int, int]:
    return node.work.read_bytes, node.work.write_bytes, node.work.weight_bytes


BYTES: list[tuple[str, list[Shape | None], list[int], Shape, tuple[int, int, int]]] = [
    # operator, inputs, which are constants, output, (read, written, weights)
    ("Conv", [(1, 3, 8, 8), (4, 3, 3, 3), (4,)], [1, 2], (1, 4, 6, 6), (768, 576, 432 + 16)),
    ("MatMul", [(2, 3), (3, 4)], [], (2, 4), (24 + 48, 32, 0)),
    ("Gather", [(1000, 4), (3,)], [0], (3, 4), (12, 48, 48)),
    ("Gather", [(2, 4), (30,)], [0], (30, 4), (120, 480, 32)),
    ("Slice", [(100, 4), (1,), (1,)], [], (10, 4), (168, 160, 0)),
    ("Concat", [(2, 4), (3, 4)], [], (5, 4), (80, 80, 0)),
    ("Expand", [(1, 4), (2,)], [], (8, 4), (24, 128, 0)),
    ("Tile", [(1, 4), (2,)], [], (8, 4), (24, 128, 0)),
    ("Pad", [(2, 2), (4,)], [], (4, 4), (32, 64, 0)),
    ("Transpose", [(2, 3)], [], (3, 2), (24, 24, 0)),
    ("Reshape", [(2, 3), (1,)], [], (6,), (0, 0, 0)),
    ("Flatten", [(2, 3)], [], (2, 3), (0, 0, 0)),
    ("Squeeze", [(1, 3)], [], (3,), (0, 0, 0)),
    ("Unsqueeze", [(3,), (1,)], [], (1, 3), (0, 0, 0)),
    ("Identity", [(3,)], [], (3,), (0, 0, 0)),
    ("Dropout", [(3,)], [], (3,), (0, 0, 0)),
    ("Cast", [(3,)], [], (3,), (0, 0, 0)),
    ("Shape", [(2, 3)], [], (2,), (0, 0, 0)),
    ("Size", [(2, 3)], [], (), (0, 0, 0)),
    ("ConstantOfShape", [(2,)], [], (5, 5), (8, 100, 0)),
    ("EyeLike", [(5, 5)], [], (5, 5), (0, 100, 0)),
    ("CastLike", [(4,), (9,)], [], (4,), (0, 0, 0)),
    ("Where", [(4,), (4,), (4,)], [], (4,), (48, 16, 0)),
    ("ScatterND", [(10, 4), (2, 1), (2, 4)], [], (10, 4), (160 + 8 + 32, 160, 0)),
    ("TensorScatter", [(1, 1, 100, 4), (1, 1, 2, 4)], [], (1, 1, 100, 4), (32, 32, 0)),
    ("Mul", [(2, 4), (4,)], [1], (2, 4), (32, 32, 16)),
]


@pytest.mark.parametrize(("op_type", "inputs", "constants", "output", "expected"), BYTES)
def test_bytes_of_an_operator(
    op_type: str,
    inputs: list[Shape | None],
    constants: list[int],
    output: Shape,
    expected: tuple[int, int, int],
) -> None:
    assert moved(only(single(op_type, inputs, output, constants=constants))) == expected


def test_split_reads_what_it_writes() -> None:
    assert moved(only(single("Split", [(6, 4)], (2, 4), (4, 4)))) == (96, 96, 0)
    # an output that nobody wants is not copied
    sketch = Sketch()
    x = sketch.input(6, 4)
    sketch.node("Split", (x,), (2, 4), (4, 4))
    node = replace(sketch.nodes[0], outputs=(sketch.nodes[0].outputs[0], ""))
    assert moved(only(replace(sketch.graph(), nodes=(node,)))) == (32, 32, 0)


def test_a_tensor_read_twice_by_a_node_is_read_once() -> None:
    sketch = Sketch()
    x = sketch.input(8)
    sketch.node("Mul", (x, x), (8,))
    assert moved(only(sketch.graph())) == (32, 32, 0)


def test_a_constant_counts_its_stored_bytes() -> None:
    sketch = Sketch()
    w = sketch.constant(8, 8, stored_bytes=36)
    sketch.node("MatMul", (sketch.input(2, 8), w), (2, 8))
    assert only(sketch.graph()).work.weight_bytes == 36
    sketch.node("Gather", (w, sketch.input(2, dtype=DType.INT64)), (2, 8))
    assert only(sketch.graph()).work.weight_bytes == 9


def test_a_view_of_a_constant_is_still_a_weight() -> None:
    sketch = Sketch()
    scale = sketch.node("Unsqueeze", (sketch.constant(4),), (4, 1))
    sketch.node("Mul", (sketch.input(2, 4, 3), scale), (2, 4, 3))
    assert moved(only(sketch.graph())) == (96, 96, 16)


def test_embeddings_read_the_rows_they_take() -> None:
    shapes: list[Shape | None] = [(2, 5), (2, 5), (1000, 8), (512, 8), (2, 8), (8,), (8,)]
    graph = single("EmbedLayerNormalization", shapes, (2, 5, 8), domain=MS, constants=range(2, 7))
    # ten rows of 32 bytes from two tables, the two rows of the third, scale and bias
    assert only(graph).work.weight_bytes == 2 * 320 + 64 + 2 * 32


def test_experts_that_no_row_is_routed_to_are_not_read() -> None:
    shapes: list[Shape | None] = [(1, 16), (1, 8), (8, 64, 16), None, (8, 16, 64)]
    graph = single("MoE", shapes, (1, 16), attrs={"k": 2}, domain=MS, constants=[2, 4])
    assert only(graph).work.weight_bytes == 2 * 2 * 64 * 16 * 4


def test_a_cache_that_shares_its_buffer_writes_the_new_rows_only() -> None:
    past, present = (1, 2, 20, 8), (1, 2, 20, 8)
    shapes: list[Shape | None] = [(1, 1, 64), (1, 1, 16), (1, 1, 16), past, past, (1,), ()]
    attrs: dict[str, AttrValue] = {"num_heads": 8, "kv_num_heads": 2}
    outputs: tuple[Shape, ...] = ((1, 1, 64), present, present)
    shared = only(single("GroupQueryAttention", shapes, *outputs, attrs=attrs, domain=MS))
    assert shared.work.write_bytes == 4 * (64 + 16 + 16)
    grown = ((1, 1, 64), (1, 2, 21, 8), (1, 2, 21, 8))
    appended = only(single("GroupQueryAttention", shapes, *grown, attrs=attrs, domain=MS))
    assert appended.work.write_bytes == 4 * (64 + 2 * 2 * 21 * 8)


# ---- the type of the arithmetic


def quantised_twin(kind: str) -> Graph:
    """Return Conv-Relu-MatMul in float, with QDQ, or with QLinear operators."""
    sketch = Sketch(kind)
    x = sketch.input(2, 8, 4, 4)
    scale = sketch.constant(1, role=Role.DATA)
    zero = sketch.constant(1, role=Role.DATA, dtype=DType.INT8)

    def quantised(y: str) -> str:
        small = sketch.node("QuantizeLinear", (y, scale, zero), sketch.shape(y), dtype=DType.INT8)
        if kind == "qlinear":
            return small
        return sketch.node("DequantizeLinear", (small, scale, zero), sketch.shape(y))

    image, flat = (2, 4, 4, 4), (2, 10)
    if kind == "float":
        y = sketch.node("Conv", (x, sketch.constant(4, 8, 3, 3), sketch.constant(4)), image)
        y = sketch.node("Reshape", (y, ""), (2, 64))
        sketch.node("MatMul", (y, sketch.constant(64, 10)), flat)
    elif kind == "qdq":
        packed = sketch.constant(4, 8, 3, 3, dtype=DType.INT8)
        w = sketch.node("DequantizeLinear", (packed, scale, zero), (4, 8, 3, 3))
        y = sketch.node("Conv", (quantised(x), w, sketch.constant(4)), image)
        y = quantised(sketch.node("Reshape", (y, ""), (2, 64)))
        sketch.node("MatMul", (y, sketch.constant(64, 10, stored_bytes=640 + 4)), flat)
    else:
        w = sketch.constant(4, 8, 3, 3, dtype=DType.INT8)
        bias = sketch.constant(4, dtype=DType.INT32)
        reads = (quantised(x), scale, zero, w, scale, zero, scale, zero, bias)
        y = sketch.node("QLinearConv", reads, image, dtype=DType.INT8)
        y = sketch.node("Reshape", (y, ""), (2, 64), dtype=DType.INT8)
        w = sketch.constant(64, 10, dtype=DType.INT8)
        operands = (y, scale, zero, w, scale, zero, scale, zero)
        sketch.node("QLinearMatMul", operands, flat, dtype=DType.INT8)
    return sketch.graph()


@pytest.mark.parametrize("kind", ["qdq", "qlinear"])
def test_a_quantised_graph_has_the_macs_of_its_float_twin_in_int8(kind: str) -> None:
    plain, quantised = count_work(quantised_twin("float")), count_work(quantised_twin(kind))
    assert quantised.total.macs == plain.total.macs == 2 * 16 * 4 * 8 * 9 + 2 * 64 * 10
    assert quantised_twin(kind).parameters == quantised_twin("float").parameters
    contractions = [node for node in quantised.nodes if node.contraction is not None]
    assert [node.dtype for node in contractions] == [DType.INT8, DType.INT8]
    assert quantised.total.weight_bytes < plain.total.weight_bytes / 2
    # asking for another arithmetic does not undo the quantisation
    again = count_work(quantised_twin(kind), DType.FP16)
    assert [n.dtype for n in again.nodes if n.contraction] == [DType.INT8, DType.INT8]


def test_a_weight_alone_in_8_bits_computes_in_the_activation_type() -> None:
    sketch = Sketch(dtype=DType.FP16)
    sketch.node("MatMul", (sketch.input(2, 8), sketch.constant(8, 8, stored_bytes=70)), (2, 8))
    assert only(sketch.graph()).dtype is DType.FP16


def test_four_bit_weights_compute_in_the_activation_type() -> None:
    sketch = Sketch(dtype=DType.BF16)
    b = sketch.constant(32, 64, dtype=DType.UINT4)
    sketch.node("MatMulNBits", (sketch.input(2, 64), b), (2, 32), domain=MS)
    node = only(sketch.graph())
    assert (node.dtype, node.work.weight_bytes) == (DType.BF16, 1024)


@pytest.mark.parametrize("compute", [DType.TF32, DType.FP16, DType.FP8, DType.FP4, DType.INT8])
def test_float_contractions_compute_as_asked_and_nothing_else_does(compute: DType) -> None:
    for node in count_work(transformer(layers=1), compute).nodes:
        expected = compute if node.contraction is not None else DType.FP32
        assert node.dtype is expected


def test_integer_products_keep_their_type() -> None:
    graph = single("MatMul", [(2, 3), (3, 4)], (2, 4), dtype=DType.INT64)
    assert only(graph, DType.FP16).dtype is DType.INT64


def test_the_type_of_a_selection_is_that_of_the_data_not_of_the_condition() -> None:
    sketch = Sketch()
    condition = sketch.input(4, dtype=DType.BOOL)
    sketch.node("Where", (condition, sketch.input(4), sketch.input(4)), (4,))
    sketch.node("ArgMax", (sketch.input(2, 4),), (2, 1), dtype=DType.INT64)
    work = count_work(sketch.graph())
    assert [node.dtype for node in work.nodes] == [DType.FP32, DType.FP32]


# ---- bodies


def branch_of(last: str) -> Graph:
    body = Sketch("branch")
    hidden = body.node("MatMul", (body.input(1, 4), body.constant(4, 8)), (1, 8))
    body.node(last, (hidden,), (1, 8))
    return body.graph()


def body_of(width: int) -> Graph:
    sketch = Sketch(f"body-{width}")
    sketch.matmul(sketch.input(1, 4), width)
    return sketch.graph()


@given(st.integers(0, 9))
def test_a_loop_costs_its_body_times_its_repeats(repeats: int) -> None:
    sketch = Sketch()
    x = sketch.input(1, 4)
    sketch.node("Loop", ("", "", x), (1, 8), bodies=(body_of(8),), repeats=repeats)
    node = only(sketch.graph())
    inner = count_work(body_of(8))
    assert node.kind is Kind.CONTROL
    assert node.body == inner.nodes
    assert (node.repeats, node.work) == (repeats, inner.total * repeats)


def test_nested_bodies_multiply() -> None:
    inner = Sketch("inner")
    inner.node("Loop", ("", "", inner.input(1, 4)), (1, 8), bodies=(body_of(8),), repeats=3)
    outer = Sketch("outer")
    outer.node("Scan", (outer.input(1, 4),), (1, 8), bodies=(inner.graph(),), repeats=5)
    assert count_work(outer.graph()).total.macs == 15 * 32


def test_an_if_costs_its_costlier_branch_and_says_so() -> None:
    sketch = Sketch()
    flag = sketch.input(dtype=DType.BOOL)
    sketch.node("If", (flag,), (1, 8), bodies=(body_of(8), body_of(16)))
    work = count_work(sketch.graph())
    assert work.total == count_work(body_of(16)).total
    assert [(note.code, note.node) for note in work.notes] == [("branch-unknown", "if_0")]


@pytest.mark.parametrize("costlier", [0, 1])
def test_the_branch_of_an_if_is_found_again_by_its_index(costlier: int) -> None:
    # both branches have two nodes, so that their number does not tell which one was kept
    branches = [branch_of("Identity"), branch_of("Identity")]
    branches[costlier] = branch_of("Relu")
    sketch = Sketch()
    flag = sketch.input(dtype=DType.BOOL)
    sketch.node("If", (flag,), (1, 8), bodies=tuple(branches))
    node = only(sketch.graph())
    assert node.body_index == costlier
    parts = node.by_body([2, 2])
    assert parts[costlier] == count_work(branches[costlier]).nodes
    assert parts[1 - costlier] is None


def test_an_operator_with_several_bodies_has_a_part_for_each() -> None:
    sketch = Sketch()
    bodies = (body_of(8), branch_of("Relu"), body_of(16))
    sketch.node("BeamSearch", (sketch.input(1, 4),), (1, 8), domain=MS, bodies=bodies)
    node = only(sketch.graph())
    assert node.body_index == 0
    assert node.by_body([len(body.nodes) for body in bodies]) == tuple(
        count_work(body).nodes for body in bodies
    )


@given(st.integers(1, 5))
def test_a_node_with_own_work_adds_that_of_its_repeated_body(repeats: int) -> None:
    def flex(bodies: tuple[Graph, ...]) -> NodeWork:
        sketch = Sketch()
        heads = [sketch.input(1, 2, 5, 4) for _ in range(3)]
        sketch.node(
            "FlexAttention", heads, (1, 2, 5, 4), domain="ai.onnx.preview", bodies=bodies,
            repeats=repeats if bodies else 1,
        )  # fmt: skip
        return only(sketch.graph())

    score = Sketch("score_mod")
    score.relu(score.input(1, 2, 5, 5))
    whole, own, body = flex((score.graph(),)), flex(()), count_work(score.graph())
    assert own.work.macs == 2 * 2 * 5 * 5 * 4
    assert whole.work == own.work + body.total * repeats
    assert (whole.kind, whole.contraction) == (own.kind, own.contraction)
    assert (whole.body, whole.repeats) == (body.nodes, repeats)


def test_an_if_with_branches_of_equal_cost_needs_no_note() -> None:
    sketch = Sketch()
    flag = sketch.input(dtype=DType.BOOL)
    sketch.node("If", (flag,), (1, 8), bodies=(body_of(8), body_of(8)))
    assert count_work(sketch.graph()).notes == ()


def test_a_body_reads_weights_from_outside_as_weights() -> None:
    outer = Sketch()
    w = outer.constant(4, 4)
    body = Sketch("body")
    body.node("MatMul", (body.input(1, 4), w), (1, 4))
    outer.node("Loop", ("", "", outer.input(1, 4)), (1, 4), bodies=(body.graph(),), repeats=2)
    assert moved(only(outer.graph())) == (32, 32, 128)


# ---- what cannot be counted


def test_operators_without_formula_leave_one_note_for_each_kind() -> None:
    sketch = Sketch()
    x = sketch.input(4)
    for op_type, domain in (
        ("RandomNormalLike", ""), ("RandomNormalLike", ""), ("Magic", "com.example"),
        ("LinearRegressor", "ai.onnx.ml"),
    ):  # fmt: skip
        sketch.node(op_type, (x,), (4,), domain=domain)
    work = count_work(sketch.graph())
    assert [(note.code, note.text) for note in work.notes] == [
        ("op-bytes-only", "operator RandomNormalLike (2 nodes) has no formula: its arithmetic is"
         " not counted, its bytes are"),
        ("op-bytes-only", "operator ai.onnx.ml.LinearRegressor (1 node) has no formula: its"
         " arithmetic is not counted, its bytes are"),
        ("op-unknown", "operator com.example.Magic (1 node) is in no table: its arithmetic is not"
         " counted; to have it counted, export it as a model function of standard operators; where"
         " its output shapes are unknown, declare them in the file's value_info"),
    ]  # fmt: skip
    assert [node.kind for node in work.nodes] == [Kind.OPAQUE] * 4
    assert work.total == Work(0, 0, 64, 64, 0)


def test_an_unknown_shape_counts_nothing_and_is_noted() -> None:
    sketch = Sketch()
    x = sketch.node("NonZero", (sketch.input(4, 4),), None, dtype=DType.INT64)
    sketch.node("MatMul", (x, sketch.constant(4, 4)), None)
    work = count_work(sketch.graph())
    assert [(note.code, note.node) for note in work.notes] == [
        ("work-incomplete", "nonzero_0"),
        ("work-incomplete", "matmul_1"),
    ]
    assert [node.work for node in work.nodes] == [Work(read_bytes=64), Work(weight_bytes=64)]


def test_the_notes_on_an_unknown_operator_of_unknown_shape_do_not_contradict() -> None:
    sketch = Sketch()
    x = sketch.node("Magic", (sketch.input(4, 4),), None, domain="com.example")
    sketch.node("MatMul", (x, sketch.constant(4, 4)), None)
    own, behind, unknown = count_work(sketch.graph()).notes
    assert own.text == (
        "of Magic only the bytes of tensors with known shapes are counted: the shape of"
        f" {x!r} is unknown"
    )
    assert behind.text == (
        "of MatMul no arithmetic and only the bytes of tensors with known shapes are counted: the"
        f" shape of {x!r} is unknown"
    )
    assert "value_info" in unknown.text


def test_a_contradiction_behind_a_guessed_shape_is_a_note_not_an_error() -> None:
    graph = single("MatMul", [(2, 3), (4, 5)], (2, 5))
    guessed = replace(graph, notes=(Note("shape-guessed", "a guess", "magic_0"),))
    work = count_work(guessed)
    assert [note.code for note in work.notes] == ["work-incomplete"]
    assert work.total == Work(read_bytes=4 * 26, write_bytes=40)


def test_a_tensor_that_the_graph_does_not_list_counts_as_unknown() -> None:
    graph = single("Relu", [(4,)], (4,))
    bare = replace(graph, tensors={})
    work = count_work(bare)
    assert [note.code for note in work.notes] == ["work-incomplete"]
    assert work.total == Work()


CONTRADICTIONS: list[tuple[str, list[Shape | None], Shape, dict[str, AttrValue], str]] = [
    ("MatMul", [(2, 3), (4, 5)], (2, 5), {}, "inner sizes 3 and 4 differ"),
    ("MatMul", [(2, 2, 3), (5, 3, 4)], (2, 2, 4), {}, "batch sizes 2 and 5 cannot be broadcast"),
    ("MatMul", [(), (4, 5)], (5,), {}, "factor A is a scalar"),
    ("Gemm", [(2, 3), (3, 5)], (2, 5), {"transB": 1}, "inner sizes 3 and 5 differ"),
    ("Conv", [(1, 4, 8, 8), (6, 2, 3, 3)], (1, 6, 6, 6), {"group": 4}, "group 4 does not divide"),
    ("Conv", [(1, 4, 8, 8), (6, 2, 3, 3)], (1, 6, 6, 6), {"group": 0}, "group 0 does not divide"),
    ("Conv", [(1, 4, 8, 8)], (1, 6, 6, 6), {}, "input 1 is missing"),
    ("Conv", [(1, 4, 8, 8), ()], (1, 6, 6, 6), {}, "too few axes"),
    ("Einsum", [(2, 3), (4, 5)], (2, 5), {"equation": "ij,jk->ik"}, "label 'j' is 3 and 4"),
    ("Einsum", [(2, 3)], (2, 5), {"equation": "ij,jk->ik"}, "2 terms for 1 inputs"),
    ("Einsum", [(2, 3)], (2,), {"equation": "ijk->i"}, "does not fit an input of rank 2"),
    ("Attention", [(1, 5, 30), (1, 5, 30), (1, 5, 30)], (1, 5, 30), {"q_num_heads": 4},
     "4 heads do not divide a width of 30"),
    ("LSTM", [(7,), (1, 20, 3), (1, 20, 5)], (7, 1, 2, 5), {}, "input 0 has 1 axes instead of 3"),
]  # fmt: skip


@pytest.mark.parametrize(("op_type", "inputs", "output", "attrs", "fault"), CONTRADICTIONS)
def test_a_contradiction_in_a_standard_node_is_one_clear_error(
    op_type: str,
    inputs: list[Shape | None],
    output: Shape,
    attrs: dict[str, AttrValue],
    fault: str,
) -> None:
    with pytest.raises(ModelError, match=fault) as caught:
        count_work(single(op_type, inputs, output, attrs=attrs))
    assert f"node '{op_type.lower()}_0' ({op_type})" in str(caught.value)
    assert "correct the model" in str(caught.value)


def test_a_contrib_node_of_another_version_is_counted_in_bytes_with_a_note() -> None:
    graph = single("Attention", [(2, 16), (16, 48)], (2, 16), attrs={"num_heads": 4}, domain=MS)
    work = count_work(graph)
    assert [note.code for note in work.notes] == ["work-incomplete"]
    assert work.total == Work(0, 0, 4 * (32 + 768), 128, 0)


@pytest.mark.parametrize(
    "shapes", [[], [()], [(0,)], [(2,)], [(2, 3)], [(2, 3, 4)], [(1,) * 4] * 3]
)
def test_no_operator_fails_other_than_by_a_model_error(shapes: list[Shape]) -> None:
    for row in operators():
        for outputs in ([], [()], [(2, 3)], [(1, 2, 3, 4)] * 3):
            graph = single(row.op_type, shapes, *outputs, domain=row.domain)
            try:
                total = count_work(graph).total
            except ModelError as error:
                assert row.op_type in str(error)
            else:
                assert total.flops >= 2 * total.macs >= 0
                assert min(total.read_bytes, total.write_bytes, total.weight_bytes) >= 0


# ---- whole networks


def test_an_mlp_is_the_sum_of_its_layers() -> None:
    work = count_work(mlp(3, widths=(16, 32, 10)))
    assert work.total.macs == 3 * (16 * 32 + 32 * 10)
    assert work.total.flops == 2 * work.total.macs + 3 * 32


def test_a_transformer_layer_is_what_the_formula_says() -> None:
    # 4 projections and a feed-forward net of 4 widths: 12 w^2 a token; attention 2 t w a token
    tokens, width = 16, 32
    work = count_work(transformer(2, tokens=tokens, width=width, layers=3))
    assert work.total.macs == 2 * 3 * tokens * (12 * width**2 + 2 * tokens * width)


def test_an_empty_graph_costs_nothing() -> None:
    assert count_work(Sketch().graph()) == GraphWork((), Work())


def test_a_residual_cnn_counts_each_node_by_name() -> None:
    graph = residual_cnn(2)
    work = count_work(graph)
    assert [node.op_type for node in work.nodes] == [node.op_type for node in graph.nodes]
    assert work.notes == ()
    assert work.total.macs == 2 * (64 * 8 * 27 + 4 * 64 * 8 * 72 + 80)
