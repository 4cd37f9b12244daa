"""Finds what an ONNX graph knows before it runs, and which nodes are left to run.

A cheap operator whose inputs are all constant is constant, and so are the shapes of tensors, once
all dimensions have numbers: engines fold these when they load a model. No value is computed here;
only shapes, and from which weights a constant was made, are followed. Nodes that nothing needs are
left out with a Note.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx

from slicewise.core.cost import Kind
from slicewise.core.graph import Tensor
from slicewise.core.notes import Note
from slicewise.core.precision import DType
from slicewise.graph.check import bodies_of, listed, title_of
from slicewise.graph.ops import operator
from slicewise.graph.shape.facts import core_dtype
from slicewise.graph.shapes import Shapes


@dataclass(frozen=True, slots=True)
class Known:
    """A constant: an initialiser, a Constant node's tensor, or what a folded node gives.

    `key` is unique in the model (names are unique in one graph only). `roots` are the keys of the
    weights it was made from, itself included; empty where only shapes went in. `stored_bytes` is
    less than the tensor's size where it was dequantised.
    """

    key: str
    tensor: Tensor
    stored_bytes: int
    roots: frozenset[str]
    is_shape_made: bool = False


@dataclass(frozen=True, slots=True)
class Scope:
    """One graph after folding: its constants, the nodes left to run and their bodies.

    `known` are the constants of this graph alone, `outer` those of the graphs around it.
    `tensors` has every value that its nodes can see.
    """

    path: str
    graph: onnx.GraphProto
    tensors: Mapping[str, Tensor]
    known: Mapping[str, Known]
    outer: Mapping[str, Known]
    nodes: tuple[onnx.NodeProto, ...]
    bodies: tuple[tuple["Scope", ...], ...]
    notes: tuple[Note, ...]

    def find(self, name: str) -> Known | None:
        """Return the constant called `name`, of this graph or one around it."""
        return self.known.get(name) or self.outer.get(name)


def fold(graph: onnx.GraphProto, shapes: Shapes) -> Scope:
    """Return the main graph of a model folded, its bodies within."""
    return _fold(graph, shapes, path="", tensors=dict(shapes.main), outer={})


def body_key(node: onnx.NodeProto, branch: str, path: str) -> str:
    """Return the key of a body in `Shapes.bodies`; `branch` is the attribute that holds it."""
    own = next((name for name in node.output if name), "")
    suffix = _BRANCHES.get(branch, "")
    return f"{path}/{own}{suffix}" if path else f"{own}{suffix}"


_BRANCHES = {"then_branch": "#then", "else_branch": "#else"}
# The branch that is usually run comes first, whatever the order in the file.
_BRANCH_ORDER = {"then_branch": 0, "else_branch": 1}


def named_bodies(
    node: onnx.NodeProto, taken: Mapping[str, str], path: str
) -> list[tuple[str, onnx.GraphProto]]:
    """Return (attribute name, sub-graph) of a node, then before else.

    Of an If whose condition is constant only the branch that runs (`Shapes.taken`): engines fold
    it when they load the model.
    """
    pairs: list[tuple[str, onnx.GraphProto]] = []
    for attribute in node.attribute:
        if attribute.HasField("g"):
            pairs.append((attribute.name, attribute.g))
        pairs += [(attribute.name, graph) for graph in attribute.graphs]
    if not pairs:
        return pairs
    runs = taken.get(body_key(node, "", path))
    pairs = [pair for pair in pairs if runs is None or pair[0] == runs]
    return sorted(pairs, key=lambda pair: _BRANCH_ORDER.get(pair[0], 2))


# --- what can be folded

_CHEAP = frozenset(
    {Kind.NORM, Kind.SOFTMAX, Kind.REDUCTION, Kind.ELEMENTWISE, Kind.MOVEMENT, Kind.SORT,
     Kind.QUANTIZE, Kind.VIEW}
)  # fmt: skip
# Their result is another one in every run (ONNX operator specification).
_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli",
     "Multinomial"}
)  # fmt: skip
_SHAPE_READERS = frozenset({"Shape", "Size"})
# Slots that weights pass through; the others hold indices, scales and limits. An operator that is
# not named lets them through all its slots.
_CARRYING_SLOTS = {
    "DequantizeLinear": (0,), "QuantizeLinear": (0,), "Expand": (0,), "Tile": (0,), "Pad": (0,),
    "Resize": (0,), "Upsample": (0,), "Clip": (0,), "CastLike": (0,), "OneHot": (), "Range": (),
    "EyeLike": (),
}  # fmt: skip
# 8-bit and smaller signed integers become weights by a plain Cast as well (unrolled
# dequantisation); unsigned ones are as often masks.
_PACKED = frozenset({DType.INT8, DType.INT4, DType.UINT4, DType.INT2, DType.UINT2})


def _is_cheap(node: onnx.NodeProto) -> bool:
    row = operator(node.domain, node.op_type)
    return row is not None and row.kind in _CHEAP and node.op_type not in _RANDOM


def _made_by(
    node: onnx.NodeProto, reads: Sequence[Known | None], tensors: Mapping[str, Tensor], path: str
) -> Iterator[tuple[str, Known]]:
    """Yield the outputs of a folded node as constants."""
    is_shape_made = any(known is not None and known.is_shape_made for known in reads)
    slots = _CARRYING_SLOTS.get(node.op_type, range(len(reads)))
    carried = [known for slot in slots if slot < len(reads) and (known := reads[slot])]
    for name in node.output:
        if not name:
            continue
        key = f"{path}:{name}"
        tensor = tensors.get(name, Tensor(None, DType.UNKNOWN))
        if node.op_type == "Constant" or (node.op_type == "ConstantOfShape" and not is_shape_made):
            roots = frozenset({key})
        else:
            roots = frozenset().union(
                *(k.roots for k in carried if _passes(k.tensor.dtype, tensor.dtype, node.op_type))
            )
        stored = _stored_bytes(node, reads, carried, tensor)
        yield name, Known(key, tensor, stored, roots, is_shape_made)


def _passes(source: DType, target: DType, op_type: str) -> bool:
    """True if a weight of type `source` is still one after an operator gives type `target`."""
    return (
        source.is_float
        or not target.is_float
        or source in _PACKED
        or op_type.startswith("Dequantize")
    )


def _stored_bytes(
    node: onnx.NodeProto, reads: Sequence[Known | None], carried: Sequence[Known], tensor: Tensor
) -> int:
    """Return the bytes a constant is kept in: those before dequantisation where there was one.

    Moving keeps the ratio: half of a dequantised weight is half of the stored bytes.
    """
    if node.op_type.startswith("Dequantize"):
        return sum(known.stored_bytes for known in reads if known is not None)
    row = operator(node.domain, node.op_type)
    elements = sum(known.tensor.elements for known in carried)
    is_packed = any(known.stored_bytes != known.tensor.size_bytes for known in carried)
    if row is not None and row.kind in (Kind.VIEW, Kind.MOVEMENT) and is_packed and elements:
        return sum(known.stored_bytes for known in carried) * tensor.elements // elements
    return tensor.size_bytes


# --- the walk


def _fold(
    graph: onnx.GraphProto,
    shapes: Shapes,
    *,
    path: str,
    tensors: Mapping[str, Tensor],
    outer: Mapping[str, Known],
) -> Scope:
    known = dict(_initialisers(graph, tensors, path))
    visible = {**outer, **known}
    for value in graph.input:
        # an input of a body hides a constant of the same name outside
        if value.name not in known:
            visible.pop(value.name, None)
    left: list[onnx.NodeProto] = []
    bodies: list[tuple[Scope, ...]] = []
    for node in graph.node:
        reads = [visible.get(name) if name else None for name in node.input]
        if _is_constant(node, reads, tensors):
            made = dict(_made_by(node, _with_shapes(node, reads), tensors, path))
            known.update(made)
            visible.update(made)
            continue
        for name in node.output:
            visible.pop(name, None)
        left.append(node)
        held = named_bodies(node, shapes.taken, path)
        bodies.append(
            tuple(_fold_bodies(node, held, shapes, path, tensors, visible)) if held else ()
        )
    live = _live(graph, left, bodies)
    notes = (
        *_dead_nodes(node for i, node in enumerate(left) if i not in live),
        *(note for i in sorted(live) for body in bodies[i] for note in body.notes),
    )
    return Scope(
        path=path,
        graph=graph,
        tensors=tensors,
        known=known,
        outer={name: value for name, value in visible.items() if name not in known},
        nodes=tuple(left[i] for i in sorted(live)),
        bodies=tuple(bodies[i] for i in sorted(live)),
        notes=notes,
    )


def _fold_bodies(
    node: onnx.NodeProto,
    held: Sequence[tuple[str, onnx.GraphProto]],
    shapes: Shapes,
    path: str,
    tensors: Mapping[str, Tensor],
    visible: Mapping[str, Known],
) -> Iterator[Scope]:
    for branch, body in held:
        key = body_key(node, branch, path)
        inner = {**tensors, **shapes.bodies.get(key, {})}
        yield _fold(body, shapes, path=key, tensors=inner, outer=visible)


def _is_constant(
    node: onnx.NodeProto, reads: Sequence[Known | None], tensors: Mapping[str, Tensor]
) -> bool:
    if node.op_type == "Constant":
        return True
    if node.op_type in _SHAPE_READERS and node.domain == "" and node.input:
        shape = tensors.get(node.input[0])
        return shape is not None and shape.shape is not None
    given = [known for name, known in zip(node.input, reads, strict=True) if name]
    return bool(given) and None not in given and _is_cheap(node) and not bodies_of(node)


def _with_shapes(node: onnx.NodeProto, reads: Sequence[Known | None]) -> Sequence[Known | None]:
    """Return the constants a node reads; a shape reader reads no weight, only a shape."""
    if node.op_type not in _SHAPE_READERS:
        return reads
    return [Known("", Tensor(None, DType.INT64), 0, frozenset(), is_shape_made=True)]


def _initialisers(
    graph: onnx.GraphProto, tensors: Mapping[str, Tensor], path: str
) -> Iterator[tuple[str, Known]]:
    for dense in graph.initializer:
        tensor = Tensor(tuple(dense.dims), core_dtype(dense.data_type))
        key = f"{path}:{dense.name}"
        yield dense.name, Known(key, tensor, tensor.size_bytes, frozenset({key}))
    for sparse in graph.sparse_initializer:
        name = sparse.values.name
        tensor = Tensor(tuple(sparse.dims), core_dtype(sparse.values.data_type))
        key = f"{path}:{name}"
        values = Tensor(tuple(sparse.values.dims), tensor.dtype).size_bytes
        indices = Tensor(tuple(sparse.indices.dims), DType.INT64).size_bytes
        yield name, Known(key, tensor, values + indices, frozenset({key}))


def _live(
    graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto], bodies: Sequence[Sequence[Scope]]
) -> frozenset[int]:
    """Return the nodes that the outputs need."""
    needed = {value.name for value in graph.output}
    live: set[int] = set()
    for i in range(len(nodes) - 1, -1, -1):
        if not needed.isdisjoint(filter(None, nodes[i].output)):
            live.add(i)
            needed.update(nodes[i].input)
            for body in bodies[i]:
                needed.update(_captures(body))
    return frozenset(live)


def _captures(scope: Scope) -> Iterator[str]:
    """Yield the values that a body still reads from outside."""
    own = {value.name for value in scope.graph.input} | set(scope.known)
    own.update(name for node in scope.nodes for name in node.output)
    for node, bodies in zip(scope.nodes, scope.bodies, strict=True):
        yield from (name for name in node.input if name and name not in own)
        yield from (name for body in bodies for name in _captures(body) if name not in own)
    yield from (v.name for v in scope.graph.output if v.name and v.name not in own)


# --- notes


def _dead_nodes(dead: Iterator[onnx.NodeProto]) -> Iterator[Note]:
    titles = [title_of(node) for node in dead if not _is_view(node)]
    if titles:
        yield Note("unused-node", f"no output needs these nodes, left out: {listed(titles)}")


def _is_view(node: onnx.NodeProto) -> bool:
    row = operator(node.domain, node.op_type)
    return row is not None and row.kind is Kind.VIEW
