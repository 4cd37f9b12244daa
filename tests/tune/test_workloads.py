from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.graph import Graph, Node, Role, Tensor
from slicewise.core.precision import DType
from slicewise.testing.graphs import Sketch, graphs, mlp, renamed, residual_cnn, transformer
from slicewise.tune.workloads import distinct_operators, operator_kin

VIEWS = {"Flatten", "Reshape", "Shape", "Identity", "Squeeze", "Unsqueeze"}


def times(graph: Graph) -> dict[str, float]:
    return {node.name: 0.25 * (1 + i % 7) for i, node in enumerate(graph.nodes)}


@settings(max_examples=60, deadline=None)
@given(graph=graphs())
def test_weights_and_counts_add_up_to_the_nodes_that_work(graph: Graph) -> None:
    made = distinct_operators(graph, times(graph))
    names = [name for each in made for name in each.nodes]
    assert len(set(names)) == len(names)
    left_out = {node.name for node in graph.nodes} - set(names)
    by_name = {node.name: node for node in graph.nodes}
    assert all(by_name[name].op_type in VIEWS for name in left_out)
    told = times(graph)
    assert sum(each.weight_ms for each in made) == pytest.approx(sum(told[n] for n in names))
    assert sum(each.count for each in made) == len(names)
    weights = [each.weight_ms for each in made]
    assert weights == sorted(weights, reverse=True)


@settings(max_examples=60, deadline=None)
@given(graph=graphs())
def test_names_play_no_part(graph: Graph) -> None:
    other = renamed(graph)
    told = dict(zip((n.name for n in other.nodes), times(graph).values(), strict=True))
    one, two = distinct_operators(graph, times(graph)), distinct_operators(other, told)
    assert [replace(each, nodes=()) for each in one] == [replace(each, nodes=()) for each in two]


@settings(max_examples=40, deadline=None)
@given(graph=graphs())
def test_keys_differ_where_kind_or_shapes_do(graph: Graph) -> None:
    made = distinct_operators(graph, {})
    assert len({each.key for each in made}) == len(made)
    shapes = {
        node.name: (node.op_type, *(graph.tensors[name].shape for name in node.outputs))
        for node in graph.nodes
    }
    for each in made:
        assert len({shapes[name] for name in each.nodes}) == 1


def test_equal_operators_of_two_models_have_equal_keys() -> None:
    one = {each.key for each in distinct_operators(mlp(4, widths=(16, 32, 32)), {})}
    two = {each.key for each in distinct_operators(mlp(4, widths=(32, 32, 10)), {})}
    assert one & two and one - two and two - one


def test_kin_is_shared_across_sizes_and_not_across_kinds() -> None:
    small = residual_cnn(1, channels=8, size=8)
    large = residual_cnn(2, channels=16, size=32)
    kin = [{(w.op_types, w.kin) for w in distinct_operators(g, {})} for g in (small, large)]
    assert kin[0] == kin[1]
    every = {w.kin: w.op_types for w in distinct_operators(small, {})}
    assert len(every) == len(set(every.values()))
    assert {w.kin for w in distinct_operators(transformer(), {})} - set(every)


def conv(group: int, epsilon: float = 1e-5, op: str = "Conv") -> tuple[Graph, Node]:
    sketch = Sketch()
    x = sketch.input(1, 8, 4, 4)
    sketch.conv(x, 8, 3, group=group)
    graph = sketch.graph()
    node = graph.nodes[0]
    return graph, replace(node, op_type=op, attrs={**node.attrs, "epsilon": epsilon})


def key(graph: Graph, node: Node) -> str:
    (made,) = distinct_operators(replace(graph, nodes=(node,)), {})
    return made.key


def test_attributes_that_change_the_work_enter_and_numbers_do_not() -> None:
    assert key(*conv(1)) == key(*conv(1, epsilon=0.5))
    assert key(*conv(1)) != key(*conv(8))
    assert operator_kin(*conv(1)) != operator_kin(*conv(8))
    assert operator_kin(*conv(2)) == operator_kin(*conv(4))


def test_types_and_constants_enter() -> None:
    graph, node = conv(1)
    half = {name: Tensor(t.shape, DType.FP16) for name, t in graph.tensors.items()}
    assert key(replace(graph, tensors=half), node) != key(graph, node)
    assert key(replace(graph, constants={}), node) != key(graph, node)


def test_a_tensor_read_twice_is_another_operator() -> None:
    def product(same: bool) -> Graph:
        sketch = Sketch()
        x, y = sketch.input(4, 4), sketch.input(4, 4)
        sketch.node("Mul", [x, x if same else y], (4, 4))
        return sketch.graph()

    keys = [distinct_operators(product(same), {})[0].key for same in (True, False)]
    assert keys[0] != keys[1]


def test_what_is_known_before_the_run_is_left_out() -> None:
    sketch = Sketch()
    x = sketch.input(4, 4)
    w = sketch.constant(4, 4)
    folded = sketch.node("Transpose", [w], (4, 4))
    sketch.node("MatMul", [x, folded], (4, 4))
    graph = sketch.graph()
    constants = {**graph.constants, folded: replace(graph.constants[w], role=Role.DATA)}
    made = distinct_operators(replace(graph, constants=constants), {})
    assert [each.op_types for each in made] == [("MatMul",)]


def test_names_are_for_people() -> None:
    graph, node = conv(8)
    (made,) = distinct_operators(replace(graph, nodes=(node,)), {})
    assert made.name == "Conv 1x8x4x4 8x1x3x3 group=8"
    (one, *_) = distinct_operators(mlp(4, widths=(16, 32)), {})
    assert one.name.startswith(("MatMul 4x16 16x32", "Gemm 4x16"))


@settings(max_examples=30, deadline=None)
@given(graph=graphs(), factor=st.floats(0.1, 10))
def test_keys_do_not_depend_on_times(graph: Graph, factor: float) -> None:
    scaled = {name: ms * factor for name, ms in times(graph).items()}
    one = distinct_operators(graph, times(graph))
    two = distinct_operators(graph, scaled)
    assert {(w.key, w.nodes) for w in one} == {(w.key, w.nodes) for w in two}
