"""Which nodes become which kernel, with what epilogue, and what is left out by name."""

from collections.abc import Callable, Mapping

import pytest

from slicewise.core.graph import AttrValue, Graph
from slicewise.core.precision import DType
from slicewise.testing.graphs import Sketch
from slicewise.tune.backends.triton.operations import Operation
from slicewise.tune.backends.triton.reading import read_operations

Attrs = Mapping[str, AttrValue]


def read(graph: Graph, precision: str | None = None) -> dict[str, Operation]:
    """Return the operations by the name of their workload, all of latency 1 ms a node."""
    reading = read_operations(graph, {node.name: 1.0 for node in graph.nodes}, precision)
    return {each.name: reading.operations[each.key] for each in reading.workloads}


def only(graph: Graph, precision: str | None = None) -> str:
    (op,) = read(graph, precision).values()
    return op.text


def one(op_type: str, *shapes: tuple[int, ...], out: tuple[int, ...], attrs: Attrs | None = None,
        constants: int = 1) -> Graph:  # fmt: skip
    """Return a graph of one node whose last `constants` inputs are constants."""
    sketch = Sketch()
    inputs = [sketch.input(*shape) for shape in shapes[: len(shapes) - constants]]
    inputs += [sketch.constant(*shape) for shape in shapes[len(shapes) - constants :]]
    sketch.node(op_type, inputs, out, attrs=attrs)
    return sketch.graph()


@pytest.mark.parametrize(
    ("graph", "text"),
    [
        (one("MatMul", (2, 5, 8), (8, 3), out=(2, 5, 3)), "matmul fp32 batch=1 m=10 n=3 k=8"),
        (one("MatMul", (2, 5, 8), (2, 8, 3), out=(2, 5, 3), constants=0),
         "matmul fp32 batch=2 m=5 n=3 k=8 a_batched=1 b_batched=1"),
        (one("MatMul", (5, 8), (4, 8, 3), out=(4, 5, 3), constants=0),
         "matmul fp32 batch=4 m=5 n=3 k=8 b_batched=1"),
        (one("MatMul", (8,), (8, 3), out=(3,)), "matmul fp32 batch=1 m=1 n=3 k=8"),
        (one("Gemm", (4, 8), (3, 8), (3,), out=(4, 3), attrs={"transB": 1}, constants=2),
         "matmul fp32 batch=1 m=4 n=3 k=8 trans_b=1 bias=1"),
        (one("Gemm", (8, 4), (8, 3), (4, 3), out=(4, 3), attrs={"transA": 1}),
         "matmul fp32 batch=1 m=4 n=3 k=8 trans_a=1 residual=1"),
        (one("Softmax", (2, 3, 8), out=(2, 3, 8), attrs={"axis": 2}, constants=0),
         "softmax fp32 rows=6 columns=8"),
        (one("LayerNormalization", (2, 3, 8), (8,), (8,), out=(2, 3, 8),
             attrs={"axis": -1, "epsilon": 1e-6}, constants=2),
         "norm fp32 rows=6 columns=8 scale=1 bias=1 number=1e-06"),
        (one("RMSNormalization", (2, 8), (8,), out=(2, 8)),
         "norm fp32 rows=2 columns=8 rms=1 scale=1 number=1e-05"),
        (one("Conv", (1, 3, 9), (4, 3, 3), out=(1, 4, 5), attrs={"strides": (2,), "pads": (1, 1)}),
         "conv fp32 n=1 c=3 h=1 w=9 o=4 kh=1 kw=3 stride_h=1 stride_w=2 pad_w=1 out_h=1 out_w=5"
         " dilation_h=1 dilation_w=1"),
        (one("Attention", (2, 4, 6, 8), (2, 2, 5, 8), (2, 2, 5, 8), (6, 5), out=(2, 4, 6, 8),
             attrs={"is_causal": 1}),
         "attention fp32 batch=2 heads=4 kv_heads=2 q=6 kv=5 depth=8 causal=1 mask=2 mask_rows=1"
         f" number={8**-0.5!r}"),
    ],
)  # fmt: skip
def test_an_operator_becomes_a_kernel(graph: Graph, text: str) -> None:
    assert only(graph) == text
    assert only(graph, "bf16") == text.replace("fp32", "bf16")


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (one("Conv", (1, 4, 5, 5), (4, 1, 3, 3), out=(1, 4, 3, 3), attrs={"group": 4}), "groups"),
        (one("Conv", (1, 4, 5, 5, 5), (4, 4, 1, 1, 1), out=(1, 4, 5, 5, 5)), "3 spatial axes"),
        (one("Conv", (1, 4, 5, 5), (4, 4, 3, 3), out=(1, 4, 5, 5),
             attrs={"auto_pad": "SAME_UPPER"}), "rule"),
        (one("Gemm", (4, 8), (8, 3), out=(4, 3), attrs={"alpha": 0.5}), "alpha"),
        (one("MatMul", (2, 1, 5, 8), (1, 3, 8, 4), out=(2, 3, 5, 4), constants=0), "repeated"),
        (one("Softmax", (2, 3, 8), out=(2, 3, 8), attrs={"axis": 1}, constants=0), "last axis"),
        (one("Attention", (2, 6, 8), (2, 5, 8), (2, 5, 8), out=(2, 6, 8), constants=0), "heads"),
        (one("Attention", (1, 2, 6, 8), (1, 2, 5, 8), (1, 2, 5, 4), out=(1, 2, 6, 4),
             constants=0), "differ"),
        (one("Attention", (1, 2, 6, 8), (1, 2, 5, 8), (1, 2, 5, 8), (7, 5), out=(1, 2, 6, 8)),
         "mask"),
        (one("Attention", (1, 2, 6, 8), (1, 2, 5, 8), (1, 2, 5, 8), out=(1, 2, 6, 8),
             attrs={"softcap": 30.0}, constants=0), "caps"),
        (one("Attention", (1, 2, 6, 512), (1, 2, 5, 512), (1, 2, 5, 512), out=(1, 2, 6, 512),
             constants=0), "256"),
        (one("MaxPool", (1, 4, 5, 5), out=(1, 4, 4, 4), constants=0), "no Triton kernel"),
        (one("MatMul", (0, 8), (8, 3), out=(0, 3)), "empty"),
    ],
)  # fmt: skip
def test_what_no_kernel_takes_is_named(graph: Graph, why: str) -> None:
    reading = read_operations(graph, {}, None)
    assert reading.workloads == ()
    (note,) = reading.notes
    assert note.code == "operator-not-tuned" and note.node == graph.nodes[0].name
    assert graph.nodes[0].op_type in note.text and why in note.text


def test_integers_are_left_out_by_name() -> None:
    sketch = Sketch(dtype=DType.INT8)
    sketch.matmul(sketch.input(4, 8), 3)
    (note,) = read_operations(sketch.graph(), {}, None).notes
    assert "int8" in note.text


def epilogue(build: Callable[[Sketch, str], object]) -> Graph:
    sketch = Sketch()
    build(sketch, sketch.matmul(sketch.input(4, 8), 6))
    return sketch.graph()


def _bias_then_gelu(sketch: Sketch, y: str) -> None:
    y = sketch.add(y, sketch.constant(6))
    sketch.node("Gelu", (y,), (4, 6), attrs={"approximate": "tanh"})


def _residual_then_relu(sketch: Sketch, y: str) -> None:
    sketch.relu(sketch.add(y, sketch.input(4, 6)))


def _read_twice(sketch: Sketch, y: str) -> None:
    sketch.add(sketch.relu(y), y)


def _twice_itself(sketch: Sketch, y: str) -> None:
    sketch.add(y, y)


def _two_residuals(sketch: Sketch, y: str) -> None:
    sketch.add(sketch.add(y, sketch.input(4, 6)), sketch.input(4, 6))


def _grows(sketch: Sketch, y: str) -> None:
    sketch.node("Add", (y, sketch.input(3, 4, 6)), (3, 4, 6))


@pytest.mark.parametrize(
    ("build", "tail"),
    [
        (_bias_then_gelu, " bias=1 activation=3"),
        (_residual_then_relu, " residual=1 activation=1"),
        (_read_twice, ""),
        (_twice_itself, ""),
        (_two_residuals, " residual=1"),
        (_grows, ""),
    ],
)
def test_an_epilogue_takes_what_follows_and_nobody_else_reads(
    build: Callable[[Sketch, str], object], tail: str
) -> None:
    assert only(epilogue(build)) == "matmul fp32 batch=1 m=4 n=6 k=8" + tail


def test_a_result_of_the_model_is_not_swallowed() -> None:
    sketch = Sketch()
    y = sketch.matmul(sketch.input(4, 8), 6)
    z = sketch.relu(y)
    assert only(sketch.graph(y, z)) == "matmul fp32 batch=1 m=4 n=6 k=8"


def test_a_convolution_takes_batch_norm_residual_and_relu() -> None:
    sketch = Sketch()
    x = sketch.input(1, 4, 5, 5)
    y = sketch.node("Conv", (x, sketch.constant(4, 4, 1, 1)), (1, 4, 5, 5))
    y = sketch.node("BatchNormalization", (y, *(sketch.constant(4) for _ in range(4))),
                    (1, 4, 5, 5))  # fmt: skip
    sketch.relu(sketch.add(x, y))
    assert only(sketch.graph()).endswith(" bias=1 residual=1 activation=1")


def test_equal_kernels_are_counted_and_weights_add_up() -> None:
    sketch = Sketch()
    x = sketch.input(4, 8)
    for _ in range(3):
        x = sketch.relu(sketch.matmul(x, 8))
    graph = sketch.graph()
    times = {node.name: float(i + 1) for i, node in enumerate(graph.nodes)}
    reading = read_operations(graph, times, None)
    (workload,) = reading.workloads
    assert (workload.count, workload.weight_ms) == (3, sum(times.values()))
    assert workload.op_types == ("MatMul", "Relu") and len(workload.nodes) == 6
    assert workload.name == "MatMul+Relu 4x8 8x8 fp32" and workload.kin == "triton matmul fp32"


def test_heavier_workloads_come_first() -> None:
    sketch = Sketch()
    sketch.matmul(sketch.matmul(sketch.input(4, 8), 6), 2)
    first, second = sketch.graph().nodes
    reading = read_operations(sketch.graph(), {first.name: 1.0, second.name: 2.0}, None)
    assert [each.weight_ms for each in reading.workloads] == [2.0, 1.0]
