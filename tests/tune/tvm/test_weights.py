"""Nodes of a model are found in TVM's kernels, and no predicted time is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.graph import Constant, Graph, Node, Role, Tensor
from slicewise.core.precision import DType
from slicewise.flows.measure import target_here
from slicewise.tune.backends.tvm.relax import Kernel
from slicewise.tune.backends.tvm.search import training_size
from slicewise.tune.backends.tvm.timing import summarise
from slicewise.tune.backends.tvm.weights import operators_of, weigh

F32 = "float32"


def _graph() -> Graph:
    """Return two products of 4x8 by 8x8, one of 4x8 by 8x16, and an addition."""
    shapes = {
        "x": (4, 8), "w": (8, 8), "v": (8, 16), "a": (4, 8), "b": (4, 8), "c": (4, 16),
        "d": (4, 16),
    }  # fmt: skip
    return Graph(
        "g",
        (
            Node("one", "MatMul", ("x", "w"), ("a",)),
            Node("two", "MatMul", ("a", "w"), ("b",)),
            Node("wide", "MatMul", ("b", "v"), ("c",)),
            Node("sum", "Add", ("c", "c"), ("d",)),
        ),
        {name: Tensor(shape, DType.FP32) for name, shape in shapes.items()},
        ("x",),
        ("d",),
        {name: Constant(Role.PARAMETER, 4) for name in ("w", "v")},
    )


def _kernel(name: str, count: int, *shapes: tuple[int, ...]) -> Kernel:
    return Kernel(name, None, count, tuple((shape, F32) for shape in shapes))


SQUARE = _kernel("matmul", 2, (4, 8), (8, 8), (4, 8))
WIDE = _kernel("fused_matmul1_add", 1, (4, 8), (8, 16), (4, 16))
NODE_MS = {"one": 1.0, "two": 2.0, "wide": 4.0, "sum": 0.5}


def test_products_are_told_apart_by_their_weights() -> None:
    weights, notes = weigh([SQUARE, WIDE], _graph(), NODE_MS, target_here("cpu").device)
    assert [each.nodes for each in weights] == [("one", "two"), ("wide", "sum")]
    assert [each.weight_ms for each in weights] == [3.0, 4.5]
    assert weights[1].op_types == ("MatMul", "Add") and notes == ()


def test_a_transposed_weight_is_the_same() -> None:
    turned = _kernel("matmul1", 1, (4, 8), (16, 8), (4, 16))
    weights, _ = weigh([turned], _graph(), NODE_MS, target_here("cpu").device)
    assert weights[0].nodes == ("wide",)


@given(st.permutations([SQUARE, WIDE]), st.lists(st.floats(0.01, 10), min_size=4, max_size=4))
def test_a_node_is_in_one_kernel_at_most(kernels: list[Kernel], times: list[float]) -> None:
    node_ms = dict(zip(NODE_MS, times, strict=True))
    weights, _ = weigh(kernels, _graph(), node_ms, target_here("cpu").device)
    names = [name for each in weights for name in each.nodes]
    assert len(names) == len(set(names))
    assert sum(each.weight_ms for each in weights) == pytest.approx(sum(times))


@given(st.text("abcdefgh_0123456789", min_size=1, max_size=40))
def test_any_name_has_operators(name: str) -> None:
    assert all(isinstance(word, str) for word in operators_of(name))


@given(st.integers(0, 5000))
def test_a_model_is_trained_on_what_is_known_and_not_much_less(known: int) -> None:
    size = training_size(known)
    assert size <= known
    assert size == 0 or known < size * 1.2 + 1
    assert size <= training_size(known + 1)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=80))
def test_the_median_is_in_its_interval(samples: list[float]) -> None:
    made = summarise(samples)
    assert min(samples) <= made.low <= made.value <= made.high <= max(samples)
