"""Fusion: what holds of the kernels of every graph and runtime, then what each runtime joins."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.cost import GraphWork, Kernel, Kind, Work
from slicewise.core.errors import UsageError
from slicewise.core.graph import Graph, Node
from slicewise.flows.load import load
from slicewise.graph.fusion.pattern import Call, chain, expression
from slicewise.graph.fusion.tables import MODULES, table_of
from slicewise.graph.launch import kernel_of, launch
from slicewise.graph.work import count_work
from slicewise.predict.runtimes import RUNTIMES
from slicewise.testing.graphs import Sketch, graphs, renamed, residual_cnn, transformer

RUNTIME = st.sampled_from(sorted(MODULES))
DRAWN = graphs(max_nodes=16)


def launched(graph: Graph, runtime: str) -> tuple[GraphWork, tuple[Kernel, ...]]:
    """Return the counted work and its kernels."""
    work = launch(graph, count_work(graph), runtime=runtime)
    assert work.kernels is not None
    return work, work.kernels


def groups(graph: Graph, runtime: str) -> list[list[str]]:
    """Return the operators of each kernel."""
    _, kernels = launched(graph, runtime)
    return [[graph.nodes[i].op_type for i in kernel.nodes] for kernel in kernels]


# --- laws


@given(DRAWN, RUNTIME)
@settings(deadline=None)
def test_every_node_that_launches_is_in_one_kernel(graph: Graph, runtime: str) -> None:
    work, kernels = launched(graph, runtime)
    members = [i for kernel in kernels for i in kernel.nodes]
    assert len(members) == len(set(members))
    is_view = {i for i, node in enumerate(graph.nodes) if node.op_type == "Transpose"}
    needed = {i for i, node in enumerate(work.nodes) if node.kind is not Kind.VIEW}
    if runtime.startswith("torch"):
        needed -= is_view  # PyTorch turns axes without moving anything
    assert needed <= set(members)


@given(DRAWN, RUNTIME)
@settings(deadline=None)
def test_work_of_the_kernels_adds_up_to_that_of_the_graph(graph: Graph, runtime: str) -> None:
    work, kernels = launched(graph, runtime)
    assert sum(kernel.work.work.macs for kernel in kernels) == work.total.macs
    assert sum(kernel.work.work.flops for kernel in kernels) == work.total.flops
    assert work.total == count_work(graph).total


@given(DRAWN, RUNTIME)
@settings(deadline=None)
def test_no_path_leaves_a_kernel_and_comes_back_and_kernels_are_in_order(
    graph: Graph, runtime: str
) -> None:
    _, kernels = launched(graph, runtime)
    place = {i: k for k, kernel in enumerate(kernels) for i in kernel.nodes}
    # what each node comes behind, views passed through: a kernel not later than any reader's
    latest: dict[int, int] = {}
    for i, _ in enumerate(graph.nodes):
        behind = max((latest[u] for u, v, _ in graph.edges if v == i), default=-1)
        assert behind <= place.get(i, len(kernels)), "a kernel stands before what it reads"
        latest[i] = place.get(i, behind)


@given(DRAWN, RUNTIME)
@settings(deadline=None)
def test_names_do_not_matter(graph: Graph, runtime: str) -> None:
    first, second = (launched(g, runtime)[1] for g in (graph, renamed(graph)))
    assert [kernel.nodes for kernel in first] == [kernel.nodes for kernel in second]
    assert [kernel.work.work for kernel in first] == [kernel.work.work for kernel in second]


@given(DRAWN, RUNTIME)
@settings(deadline=None)
def test_a_kernel_moves_no_more_than_its_nodes_alone(graph: Graph, runtime: str) -> None:
    work, kernels = launched(graph, runtime)
    for kernel in kernels:
        alone = sum((work.nodes[i].work for i in kernel.nodes), Work())
        assert kernel.work.work.read_bytes <= alone.read_bytes
        assert kernel.work.work.write_bytes <= alone.write_bytes
        assert kernel.work.work.weight_bytes <= alone.weight_bytes


@given(DRAWN, RUNTIME)
@settings(deadline=None)
def test_the_bytes_of_its_nodes_add_up_to_those_of_a_kernel(graph: Graph, runtime: str) -> None:
    _, kernels = launched(graph, runtime)
    for kernel in kernels:
        if len(kernel.nodes) > 1:
            assert sum(kernel.moved_bytes) == kernel.work.work.moved_bytes
            assert len(kernel.moved_bytes) == len(kernel.nodes) and min(kernel.moved_bytes) >= 0


@given(DRAWN, RUNTIME)
@settings(deadline=None)
def test_a_kernel_reads_and_writes_what_crosses_its_border(graph: Graph, runtime: str) -> None:
    work, kernels = launched(graph, runtime)
    for kernel in kernels:
        if len(kernel.nodes) > 1:
            again = kernel_of(graph, work, kernel.nodes, runtime=runtime)
            assert again.work.work == kernel.work.work
            for part in kernel.nodes:
                if graph.nodes[part].op_type == "Transpose":
                    continue  # a view between the nodes of the kernel
                alone = kernel_of(graph, work, [part], runtime=runtime).work.work
                assert alone == work.nodes[part].work


# --- the language


def test_every_row_of_every_table_can_be_read() -> None:
    for runtime in MODULES:
        table = table_of(runtime)
        texts = [row.text for row in table.expressions] + [row.text for row in table.free]
        assert all(isinstance(expression(text), Call) for text in texts)
        assert all(len(chain(text)) > 1 for text in table.chains)


def test_every_runtime_has_a_table() -> None:
    assert set(MODULES) == set(RUNTIMES)


def test_a_runtime_without_a_table_is_refused_with_the_nearest_name() -> None:
    graph = residual_cnn()
    with pytest.raises(UsageError, match=r"'tensorrtt' is unknown.*did you mean"):
        launch(graph, count_work(graph), runtime="tensorrtt")


@pytest.mark.parametrize("text", ["Mul(x", "x", "a=b", "Mul(x) y", "Mul(#)"])
def test_an_expression_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expression"):
        expression(text)


# --- what runtimes join


def convolution() -> Graph:
    sketch = Sketch("conv")
    x = sketch.input(2, 8, 16, 16)
    y = sketch.conv(x, 8, 3)
    statistics = [sketch.constant(8) for _ in range(4)]
    y = sketch.node("BatchNormalization", (y, *statistics), sketch.shape(y))
    sketch.relu(sketch.add(y, x))
    return sketch.graph()


def gelu() -> Graph:
    sketch = Sketch("gelu")
    x = sketch.matmul(sketch.input(2, 8, 16), 32)
    shape = sketch.shape(x)
    x = sketch.node("Add", (x, sketch.constant(32)), shape)
    y = sketch.node("Div", (x, sketch.constant()), shape)
    y = sketch.node("Erf", (y,), shape)
    y = sketch.node("Add", (sketch.constant(), y), shape)
    y = sketch.node("Mul", (x, y), shape)
    sketch.node("Mul", (y, sketch.constant()), shape)
    return sketch.graph()


def silu() -> Graph:
    sketch = Sketch("silu")
    x = sketch.conv(sketch.input(2, 8, 16, 16), 8)
    sketch.node("Mul", (x, sketch.node("Sigmoid", (x,), sketch.shape(x))), sketch.shape(x))
    return sketch.graph()


def layer_norm() -> Graph:
    sketch = Sketch("layer-norm")
    x = sketch.input(2, 8, 16)
    shape, rows = sketch.shape(x), (2, 8, 1)
    d = sketch.node("Sub", (x, sketch.node("ReduceMean", (x,), rows)), shape)
    square = sketch.node("Pow", (d, sketch.constant()), shape)
    mean = sketch.node("ReduceMean", (square,), rows)
    root = sketch.node("Sqrt", (sketch.node("Add", (mean, sketch.constant()), rows),), rows)
    y = sketch.node("Div", (d, root), shape)
    y = sketch.node("Mul", (y, sketch.constant(16)), shape)
    sketch.node("Add", (y, sketch.constant(16)), shape)
    return sketch.graph()


def attention() -> Graph:
    sketch = Sketch("attention")
    q, k, v = (sketch.input(2, 4, 8, 16) for _ in range(3))
    turned = sketch.node("Transpose", (k,), (2, 4, 16, 8), attrs={"perm": (0, 1, 3, 2)})
    scores = sketch.node("MatMul", (q, turned), (2, 4, 8, 8))
    scores = sketch.node("Div", (scores, sketch.constant()), (2, 4, 8, 8))
    weights = sketch.node("Softmax", (scores,), (2, 4, 8, 8), attrs={"axis": -1})
    sketch.node("MatMul", (weights, v), (2, 4, 8, 16))
    return sketch.graph()


# number of kernels in torch-eager, torch-compile, onnxruntime, tensorrt
JOINED = [
    (convolution, (4, 2, 1, 1)),
    (gelu, (2, 2, 2, 1)),
    (silu, (2, 2, 2, 1)),
    (layer_norm, (1, 1, 1, 1)),
    (attention, (5, 1, 4, 1)),
]


@pytest.mark.parametrize(("build", "counts"), JOINED)
def test_written_out_operators_become_the_kernels_of_each_runtime(
    build: Callable[[], Graph], counts: tuple[int, ...]
) -> None:
    found = tuple(
        len(launched(build(), runtime)[1])
        for runtime in ("torch-eager", "torch-compile", "onnxruntime", "tensorrt")
    )
    assert found == counts


@pytest.mark.parametrize("runtime", ["onnxruntime", "tensorrt"])
def test_a_residual_sum_of_two_is_taken_in_like_an_add(
    runtime: str, light: Callable[[str], Path]
) -> None:
    """The ResNet-50 of the onnx package says Sum. onnxruntime 1.32 saves 53 Conv, 2 pools, Gemm
    and Softmax for it, beside a view and the reordering behind its blocked convolutions."""
    _, kernels = launched(load(light("resnet50")), runtime)
    assert Counter(kernel.work.op_type for kernel in kernels) == {
        "Conv": 53, "MaxPool": 1, "AveragePool": 1, "Gemm": 1, "Softmax": 1,
    }  # fmt: skip


def test_eager_joins_nothing_that_the_program_wrote_out_itself() -> None:
    graph = silu()
    told = replace(graph, nodes=tuple(replace(n, storage_of="") for n in graph.nodes))
    assert len(launched(told, "torch-eager")[1]) == 3
    assert len(launched(told, "tensorrt")[1]) == 1


def test_a_result_that_is_an_output_is_not_lost_in_a_kernel() -> None:
    graph = convolution()
    kept = replace(graph, outputs=(graph.nodes[0].outputs[0], *graph.outputs))
    assert groups(kept, "tensorrt")[0] == ["Conv"]


def test_bytes_inside_a_kernel_do_not_move() -> None:
    graph = convolution()
    _, (kernel,) = launched(graph, "tensorrt")
    size = 2 * 8 * 16 * 16 * 4
    assert kernel.work.work.read_bytes == size  # the image, also as the residual, once
    assert kernel.work.work.write_bytes == size
    assert kernel.work.kind is Kind.CONV
    assert kernel.work.op_type == "Conv"


def test_attention_keeps_its_contraction_and_both_products() -> None:
    work, (kernel,) = launched(attention(), "tensorrt")
    assert kernel.work.kind is Kind.ATTENTION
    assert kernel.work.work.macs == work.total.macs
    assert kernel.work.contraction is not None
    assert kernel.work.contraction.k == 8


def test_loops_over_the_same_elements_become_one_kernel_in_inductor() -> None:
    graph = transformer(layers=1)
    kernels = groups(graph, "torch-compile")
    assert ["Add"] in kernels  # ends the layer
    assert kernels.count(["MatMul"]) == 6


def test_a_gate_computed_early_runs_where_it_is_used() -> None:
    sketch = Sketch("gate")
    x = sketch.input(2, 8, 16, 16)
    gate = sketch.node("Sigmoid", (sketch.conv(sketch.pool(x), 8),), (2, 8, 1, 1))
    sketch.node("Mul", (sketch.conv(x, 8, 3), gate), (2, 8, 16, 16))
    assert ["Sigmoid", "Mul"] in groups(sketch.graph(), "torch-compile")


def test_views_of_pytorch_launch_nothing_and_copies_do() -> None:
    sketch = Sketch("views")
    x = sketch.relu(sketch.input(2, 4, 6))
    turned = sketch.node("Transpose", (x,), (2, 6, 4), attrs={"perm": (0, 2, 1)})
    flat = sketch.node("Reshape", (turned, sketch.constant(2)), (2, 24))
    sketch.relu(flat)
    graph = sketch.graph()
    told = replace(
        graph,
        nodes=tuple(
            replace(node, storage_of=node.inputs[0] if node.op_type == "Transpose" else "")
            for node in graph.nodes
        ),
    )
    work, kernels = launched(told, "torch-eager")
    assert [graph.nodes[k.nodes[0]].op_type for k in kernels] == ["Relu", "Reshape", "Relu"]
    copy = kernels[1].work
    assert copy.kind is Kind.MOVEMENT
    assert copy.work == Work(read_bytes=2 * 24 * 4, write_bytes=2 * 24 * 4)
    assert groups(graph, "torch-eager") == [["Relu"], ["Transpose"], ["Relu"]]
    assert work.total == count_work(told).total


def test_a_view_between_two_nodes_of_a_kernel_is_in_it() -> None:
    sketch = Sketch("between")
    x = sketch.conv(sketch.input(1, 8, 4, 4), 8)
    flat = sketch.node("Reshape", (x, sketch.constant(2)), (1, 128))
    sketch.relu(flat)
    assert groups(sketch.graph(), "tensorrt") == [["Conv", "Reshape", "Relu"]]


def test_bodies_have_kernels_of_their_own() -> None:
    body = replace(silu(), inputs=())
    sketch = Sketch("loop")
    x = sketch.input(2, 8, 16, 16)
    inner = replace(body, tensors={**body.tensors}, name="body")
    sketch.node("Loop", (x,), (2, 8, 16, 16), bodies=(inner,), repeats=3)
    work, kernels = launched(sketch.graph(), "tensorrt")
    assert kernels == ()
    assert work.nodes[0].kernels is not None
    assert [len(kernel.nodes) for kernel in work.nodes[0].kernels] == [3]
    assert sum(k.work.work.flops for k in work.nodes[0].kernels) * 3 == work.total.flops


def test_a_cut_through_a_kernel_writes_what_the_other_side_reads() -> None:
    graph = convolution()
    work, (whole,) = launched(graph, "tensorrt")
    front = kernel_of(graph, work, [0, 1], runtime="tensorrt").work.work
    back = kernel_of(graph, work, [2, 3], runtime="tensorrt").work.work
    size = 2 * 8 * 16 * 16 * 4
    assert front.write_bytes == size
    assert back.read_bytes == 2 * size
    assert front.flops + back.flops == whole.work.work.flops


def test_an_operator_of_a_foreign_domain_is_not_taken_for_its_namesake() -> None:
    graph = silu()
    nodes: list[Node] = [replace(node, domain="com.example") for node in graph.nodes]
    foreign = replace(graph, nodes=(graph.nodes[0], *nodes[1:]))
    assert len(launched(foreign, "tensorrt")[1]) == 3


def test_what_launches_nothing_and_reads_nothing_stands_in_nobodys_way() -> None:
    sketch = Sketch("sequence")
    empty = sketch.node("SequenceEmpty", (), None)
    x = sketch.relu(sketch.input(2, 4))
    grown = sketch.node("SequenceInsert", (empty, x), None)
    sketch.relu(sketch.node("SequenceAt", (grown, sketch.constant()), (2, 4)))
    for runtime in MODULES:
        assert groups(sketch.graph(), runtime) == [["Relu"], ["Relu"]]
