"""DIPPM's view of a model: its operators with weights in a row, 32 figures each.

From the description in `model_level/NOTES.md`, section 6 (Panner Selvam and Brorsson, DIPPM,
Euro-Par 2023): a node for each call that has a weight among its arguments, edges from each to the
next in program order, so that branches are lost and activations, pooling and sums are no nodes.
Figures: which of 16 operators, 12 attributes, 4 of the shape. Nothing is predicted here.
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from slicewise.core.graph import Graph, Node, Role

Floats = NDArray[np.float32]

OPERATORS: tuple[tuple[str, ...], ...] = (
    ("Conv",),
    ("ConvTranspose",),
    ("Gemm",),
    ("MatMul", "Einsum"),
    ("BatchNormalization",),
    ("LayerNormalization",),
    ("GroupNormalization", "InstanceNormalization"),
    ("RMSNormalization",),
    ("LSTM", "GRU", "RNN"),
    ("Add", "Sub"),
    ("Mul", "Div", "addcmul"),
    ("PRelu",),
    ("Concat",),
    ("Gather", "GatherND", "GatherElements"),
    ("Reshape", "Transpose", "Expand"),
    (),  # any other
)
"""Operators that share a place in the one-hot part."""
ATTRIBUTES = 12
SHAPE = 4
WIDTH = len(OPERATORS) + ATTRIBUTES + SHAPE
COUNTED = ("Conv", "Gemm", "Relu")
"""Operators whose number is told of the whole graph."""

_PLACE: Mapping[str, int] = {op: i for i, ops in enumerate(OPERATORS) for op in ops}
_OTHER = len(OPERATORS) - 1


def weighted_nodes(graph: Graph) -> list[Node]:
    """Return the nodes that have a weight among their inputs, in program order."""
    return [node for node in graph.nodes if _weights(graph, node)]


def chain_edges(nodes: int) -> list[tuple[int, int]]:
    """Return the edges between so many nodes: each to the next.

    >>> chain_edges(3)
    [(0, 1), (1, 2)]
    """
    return [(i, i + 1) for i in range(nodes - 1)]


def node_features(graph: Graph) -> Floats:
    """Return the features of the nodes with weights: [nodes, WIDTH], of one image.

    Sizes are logarithms to base 2: raw ones differ a million times.
    """
    nodes = weighted_nodes(graph)
    made = np.zeros((len(nodes), WIDTH), dtype=np.float32)
    for row, node in zip(made, nodes, strict=True):
        row[_PLACE.get(node.op_type, _OTHER)] = 1.0
        row[len(OPERATORS) :] = [*_attributes(graph, node), *_shape(graph, node)]
    return made


def operator_counts(graph: Graph) -> tuple[int, ...]:
    """Return how many of the `COUNTED` operators the graph has."""
    ops = [node.op_type for node in graph.nodes]
    return tuple(ops.count(op) for op in COUNTED)


def _weights(graph: Graph, node: Node) -> list[str]:
    return [
        name
        for name in node.inputs
        if name in graph.constants and graph.constants[name].role is not Role.DATA
    ]


def _attributes(graph: Graph, node: Node) -> list[float]:
    """Return kernel, stride, padding, dilation (two sides each), groups, channels read and
    written, elements of the weights."""
    weights = [graph.tensors[name] for name in _weights(graph, node)]
    shape = max((tensor.shape or () for tensor in weights), key=math.prod)
    is_turned = node.op_type == "Gemm" and not node.attrs.get("transB", 0)
    wide = shape[::-1] if is_turned else shape
    groups = node.attrs.get("group", node.attrs.get("num_groups", 1))
    return [
        *_pair(node, "kernel_shape", 1), *_pair(node, "strides", 1), *_pair(node, "pads", 0),
        *_pair(node, "dilations", 1), _log(groups if isinstance(groups, int) else 1),
        _log(wide[1] if len(wide) > 1 else 0), _log(wide[0] if wide else 0),
        _log(sum(tensor.elements for tensor in weights)),
    ]  # fmt: skip


def _pair(node: Node, name: str, usual: int) -> tuple[float, float]:
    value = node.attrs.get(name, ())
    sides = [int(each) for each in value] if isinstance(value, tuple) and value else [usual]
    return _log(sides[0]), _log(sides[1] if len(sides) > 1 else sides[0])


def _shape(graph: Graph, node: Node) -> list[float]:
    """Return the first four sizes of what a node writes, the batch left out of them."""
    tensor = graph.tensors.get(node.outputs[0])
    sizes = list(tensor.shape or ()) if tensor is not None else []
    if sizes:
        # axes may be joined to the batch: positions of all images as rows of a product
        sizes[0] = max(sizes[0] // max(graph.batch_size, 1), 1)
    sizes = sizes[:SHAPE]
    return [_log(size) for size in sizes] + [0.0] * (SHAPE - len(sizes))


def _log(size: float) -> float:
    return math.log2(1.0 + size) / 4.0
