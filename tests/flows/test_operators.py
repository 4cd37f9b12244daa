"""Entries of a profile and kernels: matched by name, module or kind, and none counted twice."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.cost import GraphWork, Kernel, Kind, NodeWork, Work
from slicewise.core.graph import Graph, Node, Tensor
from slicewise.core.measurement import NodeTime
from slicewise.core.precision import DType
from slicewise.flows.operators import operator_times
from slicewise.graph.frontends.torch.aten import all_rows

_KINDS = {
    "Conv": Kind.CONV, "Gemm": Kind.MATMUL, "Relu": Kind.ELEMENTWISE, "Add": Kind.ELEMENTWISE,
    "Attention": Kind.ATTENTION, "Transpose": Kind.MOVEMENT, "Concat": Kind.MOVEMENT,
}  # fmt: skip


def _model(
    nodes: Sequence[tuple[str, str]], kernels: Sequence[tuple[int, ...]] | None = None
) -> tuple[Graph, GraphWork]:
    """Return a chain of operators, each told with its module, and the kernels they form."""
    graph = Graph(
        name="m",
        nodes=tuple(
            Node(f"n{i}", op, (f"t{i}",), (f"t{i + 1}",), origin=origin)
            for i, (op, origin) in enumerate(nodes)
        ),
        tensors={f"t{i}": Tensor((1, 8), DType.FP32) for i in range(len(nodes) + 1)},
        inputs=("t0",),
        outputs=(f"t{len(nodes)}",),
        constants={},
        batch_size=1,
        batch_axes={"t0": 0},
    )
    works = tuple(
        NodeWork(f"n{i}", op, _KINDS[op], DType.FP32, Work(0, 8, 32, 32, 0))
        for i, (op, _) in enumerate(nodes)
    )
    total = sum((work.work for work in works), Work())
    made = kernels or [(i,) for i in range(len(nodes))]
    return graph, GraphWork(works, total, (), tuple(Kernel(its, works[its[0]]) for its in made))


def _rows(
    model: tuple[Graph, GraphWork], *entries: tuple[str, str, float]
) -> list[tuple[tuple[int, ...], float]]:
    found = operator_times(*model, [NodeTime(*entry) for entry in entries])
    return sorted((row.kernels, row.latency_ms) for row in found)


def test_the_module_tells_operators_of_torch_apart() -> None:
    model = _model([("Conv", "a.conv"), ("Relu", "a.act"), ("Conv", "b.conv"), ("Add", "b")])
    assert _rows(
        model, ("b.conv", "conv2d", 3.0), ("a.conv", "conv2d", 1.0), ("b", "add_", 4.0),
        ("a.act", "relu_", 2.0),
    ) == [((0,), 1.0), ((1,), 2.0), ((2,), 3.0), ((3,), 4.0)]  # fmt: skip


def test_names_of_exported_files_lead_to_the_module() -> None:
    model = _model(
        [("Conv", "layer1.0.conv1"), ("Relu", "layer1.0.act"), ("Gemm", "fc")], [(0, 1), (2,)]
    )
    assert _rows(
        model, ("/inner/layer1/layer1.0/act/Relu_output_0_nchwc", "Conv", 1.0),
        ("/fc/Gemm", "Gemm", 2.0),
    ) == [((0,), 1.0), ((1,), 2.0)]  # fmt: skip


def test_nodes_of_a_file_go_by_their_names_and_results() -> None:
    model = _model([("Conv", "/x/Conv"), ("Conv", "/y/Conv"), ("Relu", "/y/Relu")])
    assert _rows(
        model, ("n0", "FusedConv", 1.0), ("t2_nchwc", "Conv", 2.0), ("n2", "Relu", 3.0)
    ) == [((0,), 1.0), ((1,), 2.0), ((2,), 3.0)]


def test_what_one_side_fuses_and_the_other_does_not_is_one_row() -> None:
    fused = _model([("Gemm", "fc"), ("Relu", "act")], [(0, 1)])
    entries = (("/fc/MatMul", "MatMul", 1.0), ("/fc/Add", "Add", 0.25), ("/act/Relu", "Relu", 0.5))
    assert _rows(fused, *entries) == [((0,), 1.75)]


def test_an_attention_taken_apart_is_found_by_its_module() -> None:
    model = _model([("Attention", "attn"), ("Transpose", "attn"), ("Gemm", "attn.proj")])
    assert _rows(
        model, ("/attn/MatMul", "MatMul", 1.0), ("/attn/Softmax", "Softmax", 2.0),
        ("/attn/Transpose", "Transpose", 8.0), ("/attn/MatMul_1", "MatMul", 4.0),
        ("/attn/proj/Gemm", "Gemm", 16.0),
    ) == [((0,), 7.0), ((1,), 8.0), ((2,), 16.0)]  # fmt: skip


def test_two_of_a_kind_in_one_module_are_one_row() -> None:
    model = _model([("Add", "block"), ("Add", "block")])
    assert _rows(model, ("block", "add", 3.0)) == [((0, 1), 3.0)]


def test_without_names_a_kind_is_compared_as_a_whole() -> None:
    model = _model([("Conv", "a"), ("Conv", "b"), ("Relu", "c")])
    entries = (("x", "Conv", 1.0), ("y", "Conv", 2.0), ("z", "Relu", 4.0))
    assert _rows(model, *entries) == [((0, 1), 3.0), ((2,), 4.0)]


def test_a_kind_with_many_more_entries_than_kernels_is_not_compared() -> None:
    model = _model([("Concat", "a")])
    entries = [(f"x{i}", "Concat", 1.0) for i in range(3)]
    assert _rows(model, *entries) == [((), 1.0)] * 3


@pytest.mark.parametrize("op_type", ["ReorderOutput", "view", "NeverHeardOf"])
def test_what_is_of_no_kernel_stays_by_itself(op_type: str) -> None:
    model = _model([("Transpose", "a"), ("Conv", "b")])
    assert _rows(model, ("a", op_type, 1.0)) == [((), 1.0)]


_MODULES = st.sampled_from(["", "a", "a.b", "a.b.0", "/a/b/Conv", "/inner/a/Add_1", "n1", "t2"])
_OURS = st.lists(st.tuples(st.sampled_from(sorted(_KINDS)), _MODULES), min_size=1, max_size=9)
_THEIRS = st.lists(
    st.tuples(_MODULES, st.sampled_from([*sorted(_KINDS), "view", "odd"]), st.floats(0, 9)),
    max_size=12,
)


@given(_OURS, _THEIRS, st.randoms(use_true_random=False))
def test_every_entry_counts_once_and_no_kernel_twice(
    ours: list[tuple[str, str]], theirs: list[tuple[str, str, float]], rng: random.Random
) -> None:
    model = _model(ours)
    found = operator_times(*model, [NodeTime(*entry) for entry in theirs])
    assert sum(row.latency_ms for row in found) == pytest.approx(sum(ms for *_, ms in theirs))
    assert sum(row.calls for row in found) == len(theirs)
    kernels = [k for row in found for k in row.kernels]
    assert len(kernels) == len(set(kernels))
    assert all(0 <= k < len(ours) for k in kernels)
    shuffled = list(theirs)
    rng.shuffle(shuffled)
    again = operator_times(*model, [NodeTime(*entry) for entry in shuffled])

    def told(rows: Sequence[object]) -> list[tuple[tuple[int, ...], float]]:
        its = ((row.kernels, round(row.latency_ms, 6)) for row in rows)  # type: ignore[attr-defined]
        return sorted(its)

    assert told(again) == told(found)


def test_a_graph_without_profile_has_no_rows() -> None:
    assert operator_times(*_model([("Conv", "a")]), []) == ()


def test_every_operator_of_torch_that_depends_on_the_call_has_a_kind() -> None:
    for row in all_rows():
        if not isinstance(row.op_type, str):
            assert operator_times(*_model([("Conv", "a")]), [NodeTime("", row.aten, 1.0)])
