"""QuantizeLinear and DequantizeLinear become part of the 8-bit kernels around them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.cost import GraphWork, Kind, Work
from slicewise.core.graph import Graph, Role
from slicewise.core.precision import DType
from slicewise.graph.work import count_work
from slicewise.testing.graphs import Sketch

SIZE = (1, 8, 6, 6)
ELEMENTS = 8 * 6 * 6


class QdqSketch(Sketch):
    """A sketch that writes the pairs of a quantised network."""

    def scale(self) -> str:
        """Add the scale of one tensor."""
        return self.constant(role=Role.DATA)

    def quantise(self, x: str, *, dtype: DType = DType.INT8) -> str:
        """Add a QuantizeLinear."""
        return self.node("QuantizeLinear", (x, self.scale()), self.shape(x), dtype=dtype)

    def dequantise(self, x: str) -> str:
        """Add a DequantizeLinear."""
        return self.node("DequantizeLinear", (x, self.scale()), self.shape(x))

    def packed(self, *shape: int) -> str:
        """Add a weight that was dequantised and folded."""
        elements = 1
        for extent in shape:
            elements *= extent
        return self.constant(*shape, stored_bytes=elements)

    def product(self, x: str, *, weight: str | None = None) -> str:
        """Add a convolution of 8 to 8 channels."""
        return self.node("Conv", (x, weight or self.packed(8, 8, 1, 1)), SIZE)


def kinds(graph: Graph) -> list[tuple[str, str]]:
    nodes = count_work(graph).nodes
    return [(node.op_type, node.kind.value) for node in nodes]


def chain(*, clamps: tuple[str, ...] = (), dtype: DType = DType.INT8) -> QdqSketch:
    """Quantised input, convolution, clamps, and the pair behind them."""
    sketch = QdqSketch()
    x = sketch.dequantise(sketch.input(*SIZE, dtype=dtype))
    y = sketch.product(x)
    for clamp in clamps:
        y = sketch.node(clamp, (y,), SIZE)
    sketch.quantise(y, dtype=dtype)
    return sketch


def codes(work: GraphWork) -> list[str]:
    return [note.code for note in work.notes]


@pytest.mark.parametrize("clamps", [(), ("Relu",), ("Clip",)])
def test_a_product_between_the_pairs_moves_8_bits_an_element(clamps: tuple[str, ...]) -> None:
    work = count_work(chain(clamps=clamps).graph())
    moving = [node for node in work.nodes if node.kind is not Kind.VIEW]
    assert [node.op_type for node in moving] == ["Conv"]
    assert moving[0].dtype is DType.INT8
    assert moving[0].work == Work(64 * 36, 2 * 64 * 36, ELEMENTS, ELEMENTS, 64)
    assert work.total == moving[0].work
    between = " (and 1 Relu or Clip between)" if clamps else ""
    assert [(note.code, note.text) for note in work.notes] == [
        (
            "qdq-fused",
            f"1 DequantizeLinear and 1 QuantizeLinear{between} are priced as part of the"
            " quantised kernels around them, as engines fuse them",
        )
    ]


@given(st.lists(st.sampled_from(["Relu", "Clip", "Sigmoid", "Identity"]), max_size=4))
def test_the_multiply_adds_and_the_weights_are_those_without_fusion(clamps: list[str]) -> None:
    work = count_work(chain(clamps=tuple(clamps)).graph())
    assert work.total.macs == 64 * 36
    assert work.total.weight_bytes - 64 in (0, 4)
    assert all(node.work == Work() for node in work.nodes if node.kind is Kind.VIEW)


@pytest.mark.parametrize("clamps", [("Sigmoid",), ("Relu", "Clip"), ("Identity",)])
def test_what_is_no_single_clamp_ends_the_kernel(clamps: tuple[str, ...]) -> None:
    work = count_work(chain(clamps=clamps).graph())
    by_type = {node.op_type: node for node in work.nodes}
    assert by_type["Conv"].work.read_bytes == ELEMENTS
    assert by_type["Conv"].work.write_bytes == 4 * ELEMENTS
    assert by_type["QuantizeLinear"].kind is Kind.QUANTIZE
    assert by_type["DequantizeLinear"].kind is Kind.VIEW


def test_the_pair_of_onnx_runtimes_own_domain_is_the_same_pair() -> None:
    graph = chain(clamps=("Relu",)).graph()
    pair = ("QuantizeLinear", "DequantizeLinear")
    nodes = tuple(
        replace(node, domain="com.microsoft") if node.op_type in pair else node
        for node in graph.nodes
    )
    assert count_work(replace(graph, nodes=nodes)).total == count_work(graph).total


def test_a_value_that_is_also_read_as_a_float_is_written_as_one() -> None:
    sketch = chain()
    y = sketch.nodes[1].outputs[0]
    sketch.relu(y)
    by_type = {node.op_type: node for node in count_work(sketch.graph()).nodes}
    assert by_type["Conv"].work.write_bytes == 4 * ELEMENTS
    assert by_type["QuantizeLinear"].work.moved_bytes == 5 * ELEMENTS + 4


def test_an_output_of_the_graph_stays_a_float() -> None:
    sketch = chain()
    graph = sketch.graph()
    wide = replace(graph, outputs=(*graph.outputs, sketch.nodes[1].outputs[0]))
    assert count_work(wide).nodes[1].work.write_bytes == 4 * ELEMENTS


def test_a_dequantised_value_that_others_read_too_is_made_and_products_read_8_bits() -> None:
    sketch = QdqSketch()
    x = sketch.dequantise(sketch.input(*SIZE, dtype=DType.UINT8))
    sketch.product(x)
    sketch.node("Softmax", (x,), SIZE)
    dequantise, product, softmax = count_work(sketch.graph()).nodes
    assert (dequantise.kind, dequantise.work.moved_bytes) == (Kind.QUANTIZE, 5 * ELEMENTS + 4)
    assert product.work.read_bytes == ELEMENTS
    assert softmax.work.read_bytes == 4 * ELEMENTS


def test_a_skip_connection_stays_in_8_bits() -> None:
    sketch = QdqSketch()
    x = sketch.input(*SIZE, dtype=DType.INT8)
    left, right = sketch.dequantise(x), sketch.dequantise(sketch.input(*SIZE, dtype=DType.INT8))
    sketch.quantise(sketch.relu(sketch.add(left, right)))
    work = count_work(sketch.graph())
    assert work.nodes[2].work == Work(0, ELEMENTS, 2 * ELEMENTS, ELEMENTS, 0)
    assert [node.kind for node in work.nodes if node.op_type != "Add"] == [Kind.VIEW] * 4


def test_an_operator_that_is_not_quantised_behind_computes_in_floats() -> None:
    sketch = QdqSketch()
    x = sketch.dequantise(sketch.input(*SIZE, dtype=DType.INT8))
    sketch.add(x, x)
    graph = sketch.graph()
    assert kinds(graph) == [("DequantizeLinear", "quantize"), ("Add", "elementwise")]
    assert codes(count_work(graph)) == []


def test_sixteen_bit_pairs_and_weight_only_quantisation_are_left_alone() -> None:
    assert codes(count_work(chain(dtype=DType.INT16).graph())) == []
    sketch = QdqSketch()
    x = sketch.input(*SIZE)
    sketch.product(x)
    work = count_work(sketch.graph())
    assert work.nodes[0].work == Work(64 * 36, 2 * 64 * 36, 4 * ELEMENTS, 4 * ELEMENTS, 64)
    assert work.nodes[0].dtype is DType.FP32
    assert codes(work) == []


def test_a_float_weight_keeps_the_product_in_floats() -> None:
    sketch = QdqSketch()
    x = sketch.dequantise(sketch.input(*SIZE, dtype=DType.INT8))
    sketch.product(x, weight=sketch.constant(8, 8, 1, 1))
    work = count_work(sketch.graph())
    assert [node.dtype for node in work.nodes] == [DType.FP32, DType.FP32]
    assert work.nodes[1].work.read_bytes == 4 * ELEMENTS


def test_what_a_body_captures_is_made_outside_and_read_as_8_bits_inside() -> None:
    outer = QdqSketch()
    x = outer.dequantise(outer.input(*SIZE, dtype=DType.INT8))
    body = QdqSketch("body")
    body.node("Conv", (x, body.packed(8, 8, 1, 1)), SIZE)
    outer.node("Loop", ("", "", outer.input(1)), SIZE, bodies=(body.graph(),), repeats=3)
    dequantise, loop = count_work(outer.graph()).nodes
    assert dequantise.kind is Kind.QUANTIZE
    assert loop.body[0].work.read_bytes == ELEMENTS
