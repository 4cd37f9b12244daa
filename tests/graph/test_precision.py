"""Casting a graph: laws over random graphs, then the rules of each precision."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.cost import Kind
from slicewise.core.graph import Graph, Role
from slicewise.core.precision import PRECISIONS, DType, Precision
from slicewise.graph.precision import cast, own_precision
from slicewise.graph.work import count_work
from slicewise.testing.graphs import Sketch, graphs, mlp, residual_cnn, transformer

ALL = sorted(PRECISIONS)
FLOATS = {"fp32": DType.FP32, "fp16": DType.FP16, "bf16": DType.BF16}


@given(st.sampled_from(sorted(FLOATS)), st.data())
def test_casting_a_float_graph_to_its_own_precision_is_the_identity(
    name: str, data: st.DataObject
) -> None:
    graph = data.draw(graphs(dtype=FLOATS[name]))
    assert own_precision(graph).name == name
    assert cast(graph, own_precision(graph)) is graph


@given(graphs(), st.sampled_from(ALL))
def test_casting_twice_is_casting_once(graph: Graph, name: str) -> None:
    once = cast(graph, PRECISIONS[name])
    assert cast(once, PRECISIONS[name]) == once


@given(graphs(), st.sampled_from(ALL))
def test_casting_keeps_macs_parameters_and_shapes(graph: Graph, name: str) -> None:
    other = cast(graph, PRECISIONS[name])
    assert count_work(other).total.macs == count_work(graph).total.macs
    assert other.parameters == graph.parameters
    assert other.buffers == graph.buffers
    shapes = {name: tensor.shape for name, tensor in graph.tensors.items()}
    assert {name: tensor.shape for name, tensor in other.tensors.items()} == shapes


@given(graphs())
def test_fp16_halves_every_byte_of_an_fp32_graph(graph: Graph) -> None:
    full, half = count_work(graph).total, count_work(cast(graph, PRECISIONS["fp16"])).total
    assert 2 * half.read_bytes == full.read_bytes
    assert 2 * half.write_bytes == full.write_bytes
    assert 2 * half.weight_bytes == full.weight_bytes


@given(graphs())
def test_going_to_fp16_and_back_restores_the_graph(graph: Graph) -> None:
    assert cast(cast(graph, PRECISIONS["fp16"]), PRECISIONS["fp32"]) == graph


@given(graphs())
def test_smaller_precisions_never_store_more_weights(graph: Graph) -> None:
    def weights(name: str) -> int:
        return sum(c.stored_bytes for c in cast(graph, PRECISIONS[name]).constants.values())

    assert weights("fp8") <= weights("fp16") <= weights("fp32")
    # a single 4-bit value and its scale take 2 bytes
    assert weights("nvfp4") <= weights("fp8") + len(graph.constants)
    assert weights("amp") == weights("fp32") == weights("tf32")


def test_amp_keeps_weights_in_fp32_and_halves_what_products_make() -> None:
    graph = residual_cnn()
    other, full = cast(graph, PRECISIONS["amp"]), count_work(graph)
    work = count_work(other, PRECISIONS["amp"].compute)
    assert work.total.weight_bytes == full.total.weight_bytes
    products = [i for i, node in enumerate(work.nodes) if node.kind in (Kind.CONV, Kind.MATMUL)]
    assert products
    for i in products:
        assert work.nodes[i].dtype is DType.FP16
        assert 2 * work.nodes[i].work.write_bytes == full.nodes[i].work.write_bytes
    assert work.total.moved_bytes < full.total.moved_bytes


def test_tf32_changes_only_the_arithmetic_of_contractions() -> None:
    graph = residual_cnn()
    assert cast(graph, PRECISIONS["tf32"]) is graph
    for node in count_work(graph, DType.TF32).nodes:
        is_contraction = node.kind in (Kind.CONV, Kind.MATMUL)
        assert node.dtype is (DType.TF32 if is_contraction else DType.FP32)


@pytest.mark.parametrize(
    ("name", "compute", "weight_bytes"),
    # 16 x 32 and 32 x 10 weights: nvfp4 adds one scale byte to each 16 values of 4 bits
    [("int8", DType.INT8, 832), ("fp8", DType.FP8, 832), ("nvfp4", DType.FP4, 416 + 52),
     ("fp16", DType.FP16, 1664), ("fp32", DType.FP32, 3328)],
)  # fmt: skip
def test_weights_of_contractions_take_the_weight_type(
    name: str, compute: DType, weight_bytes: int
) -> None:
    work = count_work(cast(mlp(), PRECISIONS[name]), PRECISIONS[name].compute)
    assert work.total.weight_bytes == weight_bytes
    assert {node.dtype for node in work.nodes if node.kind is Kind.MATMUL} == {compute}


@pytest.mark.parametrize(("name", "expected"), [("fp8", DType.BF16), ("nvfp4", DType.BF16)])
def test_small_float_precisions_keep_activations_norms_and_biases_in_bf16(
    name: str, expected: DType
) -> None:
    graph = transformer(layers=1)
    other = cast(graph, PRECISIONS[name])
    gain = next(node for node in other.nodes if node.op_type == "LayerNormalization").inputs[1]
    assert other.tensors[gain].dtype is expected
    assert {other.tensors[node.outputs[0]].dtype for node in other.nodes} == {expected}


def test_int8_has_8_bit_activations_and_fp32_norm_scales() -> None:
    graph = transformer(layers=1)
    other = cast(graph, PRECISIONS["int8"])
    gain = next(node for node in other.nodes if node.op_type == "LayerNormalization").inputs[1]
    assert other.tensors[gain].dtype is DType.FP32
    assert {other.tensors[node.outputs[0]].dtype for node in other.nodes} == {DType.INT8}
    assert own_precision(other).name == "int8"


def embedding(*, tied: bool) -> Graph:
    sketch = Sketch()
    ids = sketch.input(1, 4, dtype=DType.INT64)
    table = sketch.constant(100, 16)
    x = sketch.node("Gather", (table, ids), (1, 4, 16))
    if tied:
        turned = sketch.node("Transpose", (table,), (16, 100), attrs={"perm": (1, 0)})
        sketch.node("MatMul", (x, turned), (1, 4, 100))
    return sketch.graph()


@pytest.mark.parametrize(
    ("name", "tied", "expected"),
    [("int8", False, DType.INT8), ("fp8", False, DType.BF16), ("nvfp4", False, DType.BF16),
     ("fp16", False, DType.FP16), ("amp", False, DType.FP32), ("fp8", True, DType.FP8)],
)  # fmt: skip
def test_embedding_tables_shrink_in_int8_only_unless_tied_to_a_product(
    name: str, tied: bool, expected: DType
) -> None:
    graph = cast(embedding(tied=tied), PRECISIONS[name])
    (table,) = graph.constants
    assert graph.tensors[table].dtype is expected
    assert {graph.tensors[name].dtype for name in graph.inputs} == {DType.INT64}


def test_a_weight_behind_a_transpose_is_still_a_weight() -> None:
    graph = cast(embedding(tied=True), PRECISIONS["fp8"])
    turned = next(node for node in graph.nodes if node.op_type == "Transpose").outputs[0]
    assert graph.tensors[turned].dtype is DType.FP8


def test_data_and_integers_and_booleans_stay() -> None:
    sketch = Sketch()
    x = sketch.input(4)
    table = sketch.constant(4, role=Role.DATA)
    flags = sketch.constant(4, role=Role.DATA, dtype=DType.BOOL)
    order = sketch.constant(4, role=Role.DATA, dtype=DType.INT64)
    sketch.node("Where", (flags, x, table), (4,))
    sketch.node("Gather", (x, order), (4,))
    graph = sketch.graph()
    other = cast(graph, PRECISIONS["fp16"])
    assert other.constants == graph.constants
    assert {other.tensors[name].dtype for name in (table, flags, order)} == {
        DType.FP32, DType.BOOL, DType.INT64,
    }  # fmt: skip


def test_a_compressed_weight_stays_compressed_unless_it_can_be_smaller() -> None:
    sketch = Sketch()
    x = sketch.input(2, 32)
    w = sketch.constant(32, 32, stored_bytes=600)
    sketch.node("MatMul", (x, w), (2, 32))
    graph = sketch.graph()
    stored = {
        name: cast(graph, precision).constants[w].stored_bytes
        for name, precision in PRECISIONS.items()
    }
    assert stored == {
        "fp32": 600, "tf32": 600, "fp16": 600, "bf16": 600, "amp": 600, "int8": 600, "fp8": 600,
        "nvfp4": 512 + 64,
    }  # fmt: skip


def test_a_cast_between_types_that_end_up_equal_becomes_a_view() -> None:
    sketch = Sketch()
    x = sketch.relu(sketch.input(8))
    sketch.node("Cast", (x,), (8,), dtype=DType.FP16, attrs={"to": 10})
    graph = sketch.graph()
    before = count_work(graph).nodes[1]
    after = count_work(cast(graph, PRECISIONS["fp16"])).nodes[1]
    assert (before.kind, before.work.moved_bytes) == (Kind.MOVEMENT, 48)
    assert (after.kind, after.work.moved_bytes) == (Kind.VIEW, 0)


def qdq_conv(*, folded: bool, activations: DType | None = DType.INT8) -> Graph:
    """Return Quantize -> Dequantize -> Conv with a weight in 8 bits."""
    sketch = Sketch()
    x = sketch.input(1, 8, 4, 4)
    scale = sketch.constant(1, role=Role.DATA)
    if activations is not None:
        x = sketch.node("QuantizeLinear", (x, scale), (1, 8, 4, 4), dtype=activations)
        x = sketch.node("DequantizeLinear", (x, scale), (1, 8, 4, 4))
    if folded:
        w = sketch.constant(8, 8, 3, 3, stored_bytes=576 + 4)
    else:
        packed = sketch.constant(8, 8, 3, 3, dtype=activations or DType.INT8)
        w = sketch.node("DequantizeLinear", (packed, scale), (8, 8, 3, 3))
    sketch.node("Conv", (x, w, sketch.constant(8)), (1, 8, 4, 4))
    return sketch.graph()


@pytest.mark.parametrize("folded", [True, False])
def test_a_qdq_graph_is_in_int8(folded: bool) -> None:
    graph = qdq_conv(folded=folded)
    assert own_precision(graph).name == "int8"
    assert cast(graph, PRECISIONS["int8"]) is graph


def test_a_qdq_graph_of_float8_is_in_fp8() -> None:
    assert own_precision(qdq_conv(folded=True, activations=DType.FP8)).name == "fp8"


@pytest.mark.parametrize("folded", [True, False])
def test_weight_only_quantisation_runs_in_the_type_of_the_activations(folded: bool) -> None:
    assert own_precision(qdq_conv(folded=folded, activations=None)).name == "fp32"


def test_a_model_with_four_bit_weights_runs_in_the_type_of_its_activations() -> None:
    sketch = Sketch(dtype=DType.FP16)
    b = sketch.constant(64, 32, dtype=DType.UINT4)
    sketch.node("MatMulNBits", (sketch.input(1, 32), b), (1, 64), domain="com.microsoft")
    assert own_precision(sketch.graph()).name == "fp16"


def test_an_integer_model_is_in_int8() -> None:
    sketch = Sketch(dtype=DType.UINT8)
    b = sketch.constant(32, 64, dtype=DType.INT8)
    sketch.node("MatMulInteger", (sketch.input(1, 32), b), (1, 64), dtype=DType.INT32)
    assert own_precision(sketch.graph()).name == "int8"


def block(dtype: DType) -> Graph:
    """Return a product in `dtype` between two norms that its author left in fp32."""
    sketch = Sketch()
    rows = (4, 64)
    x = sketch.input(*rows)
    for _ in range(2):
        gain = sketch.constant(64)
        x = sketch.node("LayerNormalization", (x, gain), rows)
        x = sketch.node("Cast", (x,), rows, dtype=dtype)
        w = sketch.constant(64, 64, dtype=dtype)
        x = sketch.node("MatMul", (x, w), rows, dtype=dtype)
        x = sketch.node("Cast", (x,), rows)
    return sketch.graph()


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16])
def test_norms_left_in_fp32_do_not_change_what_a_model_is_in(dtype: DType) -> None:
    graph = block(dtype)
    assert own_precision(graph).name == dtype.value
    # as its author made it: products in 16 bits, norms in 32
    for node in count_work(graph).nodes:
        if node.kind in (Kind.NORM, Kind.MATMUL):
            assert node.dtype is (DType.FP32 if node.kind is Kind.NORM else dtype)
    # asked for by name, everything is stored in 16 bits and the conversions are gone
    stored = cast(graph, own_precision(graph))
    kinds = [node.kind for node in count_work(stored).nodes if node.op_type == "Cast"]
    assert kinds == [Kind.VIEW] * 4
    assert count_work(stored).total.macs == count_work(graph).total.macs


@pytest.mark.parametrize(
    ("stored", "name"),
    [(DType.INT8, "int8"), (DType.UINT8, "int8"), (DType.FP8, "fp8"), (DType.FP4, "nvfp4")],
)
@pytest.mark.parametrize("around", [DType.FP32, DType.FP16])
def test_pairs_around_a_product_name_the_type_it_computes_in(
    stored: DType, name: str, around: DType
) -> None:
    sketch = Sketch(dtype=around)
    scale = sketch.constant(role=Role.DATA)
    x = sketch.node("QuantizeLinear", (sketch.input(4, 64), scale), (4, 64), dtype=stored)
    x = sketch.node("DequantizeLinear", (x, scale), (4, 64))
    weight = sketch.constant(64, 64, stored_bytes=64 * 64 * stored.bits // 8)
    sketch.node("MatMul", (x, weight), (4, 64))
    graph = sketch.graph()
    assert own_precision(graph) == PRECISIONS[name]
    product = count_work(graph).nodes[-1]
    assert product.dtype is PRECISIONS[name].compute
    assert product.work.read_bytes == 4 * 64 * stored.bits // 8
    assert product.work.write_bytes == 4 * 64 * around.bits // 8


@pytest.mark.parametrize("around", [DType.FP32, DType.FP16, DType.BF16])
def test_four_bit_weights_are_read_packed_and_multiplied_in_the_type_around(
    around: DType,
) -> None:
    sketch = Sketch(dtype=around)
    b = sketch.constant(64, 32, dtype=DType.UINT4)
    sketch.node("MatMulNBits", (sketch.input(1, 32), b), (1, 64), domain="com.microsoft")
    graph = sketch.graph()
    assert own_precision(graph).name == around.value
    (product,) = count_work(graph).nodes
    assert product.dtype is around
    assert product.work.weight_bytes == 64 * 32 // 2


def test_a_graph_of_integers_computes_in_them_and_stays_as_it_is() -> None:
    sketch = Sketch(dtype=DType.INT64)
    sketch.node("Add", (sketch.input(8), sketch.constant(8, role=Role.DATA)), (8,))
    graph = sketch.graph()
    assert own_precision(graph).name == "fp32"
    assert count_work(graph).nodes[0].dtype is DType.INT64
    assert all(cast(graph, precision) is graph for precision in PRECISIONS.values())


def test_an_operator_form_int8_model_with_a_float_head_is_in_int8() -> None:
    sketch = Sketch()
    scale, zero = sketch.constant(role=Role.DATA), sketch.constant(role=Role.DATA)
    x = sketch.node("QuantizeLinear", (sketch.input(4, 64), scale), (4, 64), dtype=DType.UINT8)
    w = sketch.constant(64, 64, dtype=DType.INT8)
    x = sketch.node(
        "QLinearMatMul", (x, scale, zero, w, scale, zero, scale, zero), (4, 64), dtype=DType.UINT8
    )
    sketch.matmul(sketch.node("DequantizeLinear", (x, scale), (4, 64)), 10)
    graph = sketch.graph()
    assert own_precision(graph).name == "int8"
    products = [node.dtype for node in count_work(graph).nodes if node.contraction]
    assert products == [DType.INT8, DType.FP32]


def test_few_quantised_parameters_do_not_make_a_graph_int8() -> None:
    graph = qdq_conv(folded=True)
    sketch = Sketch(tensors=dict(graph.tensors), constants=dict(graph.constants))
    sketch.constant(1000)
    extended = replace(graph, tensors=sketch.tensors, constants=sketch.constants)
    assert own_precision(extended).name == "fp32"


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(DType.FP16, "fp16"), (DType.BF16, "bf16"), (DType.FP64, "fp64"), (DType.INT64, "fp32")],
)
def test_without_parameters_the_inputs_decide(dtype: DType, name: str) -> None:
    sketch = Sketch(dtype=dtype)
    sketch.node("Add", (sketch.input(3), sketch.input(3)), (3,))
    assert own_precision(sketch.graph()).name == name


def test_an_empty_graph_is_in_fp32() -> None:
    assert own_precision(Sketch().graph()) == PRECISIONS["fp32"]


def test_a_double_precision_graph_is_named_and_can_be_cast() -> None:
    sketch = Sketch(dtype=DType.FP64)
    sketch.matmul(sketch.input(1, 4), 4)
    graph = sketch.graph()
    assert own_precision(graph) == Precision("fp64", DType.FP64, DType.FP64, DType.FP64)
    assert cast(graph, own_precision(graph)) is graph
    assert {t.dtype for t in cast(graph, PRECISIONS["fp16"]).tensors.values()} == {DType.FP16}


def looped(inner_weight: bool) -> Graph:
    """Return a Loop whose body multiplies by a weight of its own, or by one from outside."""
    outer = Sketch("outer")
    x = outer.input(1, 8)
    w = outer.constant(8, 8)
    body = Sketch("body")
    y = body.input(1, 8)
    if inner_weight:
        factor = body.constant(8, 8)
    else:
        factor = w
        body.tensors[w] = outer.tensors[w]
    body.node("MatMul", (y, factor), (1, 8))
    outer.node("Loop", ("", "", x), (1, 8), bodies=(body.graph(),), repeats=3)
    return outer.graph()


@pytest.mark.parametrize("inner_weight", [True, False])
def test_weights_read_in_a_body_are_cast_wherever_they_live(inner_weight: bool) -> None:
    graph = cast(looped(inner_weight), PRECISIONS["fp8"])
    work = count_work(graph, DType.FP8)
    assert work.nodes[0].body[0].dtype is DType.FP8
    assert work.nodes[0].body[0].work.weight_bytes == 64
    (body,) = graph.nodes[0].bodies
    assert {t.dtype for n, t in body.tensors.items() if n.startswith("w")} == {DType.FP8}


def test_casting_bodies_to_their_own_precision_is_the_identity() -> None:
    graph = looped(True)
    assert cast(graph, PRECISIONS["fp32"]) is graph
