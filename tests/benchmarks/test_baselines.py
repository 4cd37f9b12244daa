"""Baselines see what their descriptions say, and nothing of what is held out."""

import numpy as np
import pytest

from benchmarks.baselines.chain import (
    OPERATORS,
    WIDTH,
    chain_edges,
    node_features,
    operator_counts,
    weighted_nodes,
)
from slicewise.core.graph import Constant, Graph, Node, Role, Tensor
from slicewise.core.precision import DType


def _graph(batch: int) -> Graph:
    """Return a convolution and a product with weights among operators that have none."""
    shapes: dict[str, tuple[int, ...]] = {
        "image": (batch, 3, 8, 8), "weight": (16, 3, 3, 3), "bias": (16,), "half": (1,),
        "made": (batch, 16, 4, 4), "positive": (batch, 16, 4, 4), "moved": (batch, 16, 4, 4),
        "scale": (16, 1, 1), "scaled": (batch, 16, 4, 4), "sum": (batch, 16, 4, 4),
    }  # fmt: skip
    roles = {"weight": Role.PARAMETER, "bias": Role.PARAMETER, "half": Role.DATA,
             "scale": Role.PARAMETER}  # fmt: skip
    tensors = {name: Tensor(shape, DType.FP32) for name, shape in shapes.items()}
    return Graph(
        "small",
        (
            Node("a", "Conv", ("image", "weight", "bias"), ("made",),
                 {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
            Node("b", "Relu", ("made",), ("positive",)),
            Node("c", "Add", ("positive", "half"), ("moved",)),
            Node("d", "Mul", ("moved", "scale"), ("scaled",)),
            Node("e", "Add", ("scaled", "made"), ("sum",)),
        ),
        tensors,
        ("image",),
        ("sum",),
        {name: Constant(role, tensors[name].size_bytes) for name, role in roles.items()},
        batch_size=batch,
    )  # fmt: skip


def test_operators_without_weights_are_no_nodes_of_the_chain() -> None:
    graph = _graph(2)
    assert [node.name for node in weighted_nodes(graph)] == ["a", "d"]
    assert node_features(graph).shape == (2, WIDTH)
    assert operator_counts(graph) == (1, 0, 1)


def test_a_chain_joins_each_node_to_the_next() -> None:
    assert chain_edges(4) == [(0, 1), (1, 2), (2, 3)]
    assert chain_edges(1) == []


def test_node_features_are_those_of_one_image() -> None:
    assert np.array_equal(node_features(_graph(2)), node_features(_graph(4)))


def test_an_operator_has_one_place_and_the_width_is_that_of_dippm() -> None:
    named = [op for ops in OPERATORS for op in ops]
    assert len(named) == len(set(named))
    assert (len(OPERATORS), WIDTH) == (16, 32)
    hot = node_features(_graph(2))[:, : len(OPERATORS)]
    assert np.array_equal(hot.sum(axis=1), [1, 1])


def test_the_mean_over_neighbours_is_a_shift_inside_each_graph() -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.baselines.sage import shifted

    nodes, owner = torch.randn(5, 3), torch.tensor([0, 0, 0, 1, 1])
    mean = torch.zeros_like(nodes)
    for first, length in ((0, 3), (3, 2)):
        for i, j in chain_edges(length):
            mean[first + j] += nodes[first + i]
    assert torch.equal(shifted(nodes, owner), mean)
