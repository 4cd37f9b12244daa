"""Peak memory from tensor lifetimes."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.cost import Kind, NodeWork, Work
from slicewise.core.graph import Constant, Graph, Node, Role, Tensor
from slicewise.core.precision import DType
from slicewise.predict.memory import peak_activation_bytes, weight_bytes

KIB = 1024


def _tensor(kib: int) -> Tensor:
    return Tensor((kib * KIB // 4,), DType.FP32)


def _graph(edges: list[tuple[str, str]], sizes: dict[str, int], outputs: tuple[str, ...]) -> Graph:
    """Build a graph of one-output nodes 'inputs>output' over tensors of these KiB."""
    return Graph(
        name="lifetimes",
        nodes=tuple(Node(out, "Add", tuple(ins.split("+")), (out,)) for ins, out in edges),
        tensors={name: _tensor(kib) for name, kib in sizes.items()},
        inputs=("x",),
        outputs=outputs,
        constants={},
    )


def _work(graph: Graph, kinds: dict[str, Kind] | None = None) -> tuple[NodeWork, ...]:
    named = kinds or {}
    return tuple(
        NodeWork(n.name, n.op_type, named.get(n.name, Kind.ELEMENTWISE), DType.FP32, Work())
        for n in graph.nodes
    )


def test_a_chain_holds_two_tensors_at_a_time() -> None:
    graph = _graph(
        [("x", "a"), ("a", "b"), ("b", "y")], {"x": 1, "a": 10, "b": 20, "y": 5}, ("y",)
    )
    assert peak_activation_bytes(graph, _work(graph)) == 30 * KIB


def test_a_skip_connection_keeps_its_tensor_alive() -> None:
    sizes = {"x": 1, "a": 10, "b": 20, "c": 20, "y": 5}
    chain = _graph([("x", "a"), ("a", "b"), ("b", "c"), ("c", "y")], sizes, ("y",))
    skip = _graph([("x", "a"), ("a", "b"), ("b", "c"), ("c+a", "y")], sizes, ("y",))
    assert peak_activation_bytes(chain, _work(chain)) == 40 * KIB
    assert peak_activation_bytes(skip, _work(skip)) == 50 * KIB


def test_a_view_owns_no_bytes_and_keeps_its_owner_alive() -> None:
    graph = _graph(
        [("x", "a"), ("a", "v"), ("v", "y")], {"x": 1, "a": 10, "v": 10, "y": 10}, ("y",)
    )
    assert peak_activation_bytes(graph, _work(graph, {"v": Kind.VIEW})) == 20 * KIB
    held = replace(graph, outputs=("v",))
    assert peak_activation_bytes(held, _work(held, {"v": Kind.VIEW})) == 20 * KIB


def test_an_output_lives_to_the_end() -> None:
    graph = _graph(
        [("x", "a"), ("x", "b"), ("b", "y")], {"x": 1, "a": 50, "b": 10, "y": 10}, ("a", "y")
    )
    assert peak_activation_bytes(graph, _work(graph)) == 70 * KIB


def test_a_result_that_nobody_reads_dies_at_once() -> None:
    graph = _graph([("x", "unused"), ("x", "y")], {"x": 1, "unused": 50, "y": 60}, ("y",))
    assert peak_activation_bytes(graph, _work(graph)) == 61 * KIB


def test_a_body_adds_its_own_peak() -> None:
    body = _graph([("x", "a"), ("a", "y")], {"x": 5, "a": 30, "y": 5}, ("y",))
    outer = _graph([("x", "l"), ("l", "y")], {"x": 5, "l": 5, "y": 5}, ("y",))
    loop = replace(outer.nodes[0], op_type="Loop", bodies=(body,), repeats=4)
    graph = replace(outer, nodes=(loop, outer.nodes[1]))
    work = list(_work(graph))
    work[0] = replace(work[0], kind=Kind.CONTROL, body=_work(body), repeats=4)
    assert peak_activation_bytes(graph, work) == 10 * KIB + 35 * KIB


def _branch(wide: int, op_type: str = "Add") -> Graph:
    """Build a branch of two nodes that makes `wide` KiB, and 5 KiB of it."""
    graph = _graph([("x", "a"), ("a", "y")], {"x": 5, "a": wide, "y": 5}, ("y",))
    first, last = graph.nodes
    return replace(graph, inputs=(), nodes=(first, replace(last, op_type=op_type)))


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("widths", [(30, 80), (80, 30)])
def test_the_peak_of_an_if_is_that_of_its_larger_branch_whichever_is_priced(
    kept: int, widths: tuple[int, int]
) -> None:
    branches = (_branch(widths[0]), _branch(widths[1]))
    outer = _graph([("x", "c"), ("c", "y")], {"x": 5, "c": 5, "y": 5}, ("y",))
    choice = replace(outer.nodes[0], op_type="If", bodies=branches)
    graph = replace(outer, nodes=(choice, outer.nodes[1]))
    work = list(_work(graph))
    work[0] = replace(work[0], kind=Kind.CONTROL, body=_work(branches[kept]), body_index=kept)
    assert peak_activation_bytes(graph, work) == (10 + 80 + 5) * KIB


def test_in_a_branch_that_is_not_priced_no_node_is_taken_for_a_view() -> None:
    branch = _branch(30, "Identity")
    as_view = _work(branch, {"y": Kind.VIEW})
    assert peak_activation_bytes(branch, as_view) == 30 * KIB
    assert peak_activation_bytes(branch, None) == 35 * KIB


def test_what_an_int8_kernel_writes_is_held_in_int8() -> None:
    # conv writes what the QuantizeLinear behind it gives: a float tensor of 40 KiB never exists
    graph = _graph(
        [("x", "conv"), ("conv", "q"), ("q", "dq"), ("dq", "y")],
        {"x": 1, "conv": 40, "q": 40, "dq": 40, "y": 40},
        ("y",),
    )
    tensors = {**graph.tensors, "q": replace(graph.tensors["q"], dtype=DType.INT8)}
    graph = replace(graph, tensors=tensors)
    fused = _work(graph, {"q": Kind.VIEW, "dq": Kind.VIEW})
    assert peak_activation_bytes(graph, fused) == (10 + 40) * KIB
    assert peak_activation_bytes(graph, _work(graph)) == 80 * KIB


@given(st.lists(st.integers(1, 50), min_size=2, max_size=12), st.integers(2, 9))
@settings(deadline=None)
def test_the_peak_grows_with_every_tensor_and_lies_between_one_and_all(
    sizes: list[int], factor: int
) -> None:
    names = ["x", *(f"t{i}" for i in range(1, len(sizes)))]
    edges = [(names[i - 1], names[i]) for i in range(1, len(names))]
    named = dict(zip(names, sizes, strict=True))
    graph = _graph(edges, named, (names[-1],))
    peak = peak_activation_bytes(graph, _work(graph))
    assert max(sizes) * KIB <= peak <= sum(sizes) * KIB
    grown = _graph(edges, {name: kib * factor for name, kib in named.items()}, (names[-1],))
    assert peak_activation_bytes(grown, _work(grown)) == factor * peak


def test_weights_count_as_stored_those_of_bodies_included() -> None:
    body = replace(
        _graph([("x", "y")], {"x": 1, "y": 1}, ("y",)),
        constants={"w": Constant(Role.PARAMETER, 100)},
    )
    outer = _graph([("x", "y")], {"x": 1, "y": 1}, ("y",))
    looped = replace(outer.nodes[0], bodies=(body,))
    graph = replace(outer, nodes=(looped,), constants={"v": Constant(Role.DATA, 7)})
    assert weight_bytes(graph) == pytest.approx(107)
