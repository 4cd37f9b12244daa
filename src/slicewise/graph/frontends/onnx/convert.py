"""Turns a folded ONNX graph into the frozen Graph of the house."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath

import onnx

from slicewise.core.graph import AttrValue, Binding, Graph, Node, Source, Tensor, reads_of
from slicewise.core.notes import Note, unique_notes
from slicewise.core.precision import DType
from slicewise.graph.bind import Bound
from slicewise.graph.frontends.onnx.fold import Scope, body_key, fold, named_bodies
from slicewise.graph.frontends.onnx.roles import Judged, declared_roles, judge_constants
from slicewise.graph.shapes import Shapes

_UNKNOWN = Tensor(None, DType.UNKNOWN)


def convert(
    shapes: Shapes,
    bound: Bound,
    *,
    source: Source,
    binding: Binding,
    notes: tuple[Note, ...],
) -> Graph:
    """Return the Graph of a model whose shapes are known.

    Constant nodes and all that follows from constants alone are in `constants`, not in `nodes`.
    A body has its captured values in its own `tensors`, so that every name that one of its nodes
    reads is found there; captured constants are in the outer graph's `constants` only.
    """
    scope = fold(shapes.model.graph, shapes)
    judged = judge_constants(scope, declared_roles(bound.model.graph))
    graph = _graph(scope, shapes, judged, name=PurePath(source.location).stem)
    return Graph(
        name=graph.name,
        nodes=graph.nodes,
        tensors=graph.tensors,
        inputs=graph.inputs,
        outputs=graph.outputs,
        constants=graph.constants,
        batch_size=bound.batch_size,
        batch_axes=bound.batch_axes,
        notes=unique_notes((*notes, *bound.notes, *shapes.notes, *scope.notes, *_empty(scope))),
        source=source,
        binding=binding,
    )


def _empty(scope: Scope) -> tuple[Note, ...]:
    text = "every output is known before the run: nothing is left to compute"
    return () if scope.nodes else (Note("all-constant", text),)


def _graph(scope: Scope, shapes: Shapes, judged: Mapping[str, Judged], *, name: str) -> Graph:
    constants = {value: judged[k.key] for value, k in scope.known.items() if k.key in judged}
    inputs = tuple(v.name for v in scope.graph.input if v.name not in scope.known)
    outputs = tuple(value.name for value in scope.graph.output)
    names = _unique_names(scope.nodes)
    nodes = tuple(
        _node(node, names[i], scope, bodies, shapes, judged)
        for i, (node, bodies) in enumerate(zip(scope.nodes, scope.bodies, strict=True))
    )
    seen = (
        *inputs,
        *constants,
        *(value for node in nodes for value in (*reads_of(node), *node.outputs)),
        *outputs,
    )
    tensors = {value: _tensor(value, scope, judged) for value in dict.fromkeys(seen) if value}
    return Graph(
        name=name,
        nodes=nodes,
        tensors=tensors,
        inputs=inputs,
        outputs=outputs,
        constants={value: item.constant for value, item in constants.items()},
    )


def _tensor(value: str, scope: Scope, judged: Mapping[str, Judged]) -> Tensor:
    known = scope.find(value)
    if known is not None and known.key in judged:
        return judged[known.key].tensor
    return scope.tensors.get(value, _UNKNOWN)


def _node(
    node: onnx.NodeProto,
    name: str,
    scope: Scope,
    bodies: tuple[Scope, ...],
    shapes: Shapes,
    judged: Mapping[str, Judged],
) -> Node:
    return Node(
        name=name,
        op_type=node.op_type,
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        attrs=dict(_attributes(node)),
        domain=node.domain,
        bodies=tuple(_bodies(node, name, scope, bodies, shapes, judged)) if bodies else (),
        repeats=shapes.repeats.get(body_key(node, "", scope.path), 1) if bodies else 1,
        origin=node.name,
    )


def _bodies(
    node: onnx.NodeProto,
    name: str,
    scope: Scope,
    bodies: tuple[Scope, ...],
    shapes: Shapes,
    judged: Mapping[str, Judged],
) -> Iterator[Graph]:
    branches = named_bodies(node, shapes.taken, scope.path)
    for (branch, _), body in zip(branches, bodies, strict=True):
        yield _graph(body, shapes, judged, name=f"{name}/{branch}")


def _unique_names(nodes: tuple[onnx.NodeProto, ...]) -> list[str]:
    """Return each node's own name where it is the first with it, else kind and output."""
    taken: set[str] = {node.name for node in nodes}
    used: set[str] = set()
    names: list[str] = []
    for node in nodes:
        name = node.name
        if not name or name in used:
            stem = f"{node.op_type}_{next((value for value in node.output if value), '')}"
            name, again = stem, 1
            while name in taken or name in used:
                again += 1
                name = f"{stem}_{again}"
        used.add(name)
        names.append(name)
    return names


# --- attributes


def _attributes(node: onnx.NodeProto) -> Iterator[tuple[str, AttrValue]]:
    """Yield the attributes that are numbers, text or lists of them; tensors and types are left."""
    for attribute in node.attribute:
        kind = int(attribute.type) or _guessed_type(attribute)
        read = _READERS.get(kind)
        if read is not None:
            yield attribute.name, read(attribute)


def _guessed_type(attribute: onnx.AttributeProto) -> int:
    """Return the type of an attribute of a model older than IR version 2, which has no field."""
    for kind, field in _FIELDS.items():
        is_list = field in ("floats", "ints", "strings")
        if getattr(attribute, field) if is_list else attribute.HasField(field):
            return int(kind)
    return 0


def _text(value: bytes) -> str:
    return value.decode("utf-8", errors="replace")


_FIELDS = {
    onnx.AttributeProto.FLOAT: "f",
    onnx.AttributeProto.INT: "i",
    onnx.AttributeProto.STRING: "s",
    onnx.AttributeProto.FLOATS: "floats",
    onnx.AttributeProto.INTS: "ints",
    onnx.AttributeProto.STRINGS: "strings",
}
_READERS: Mapping[int, Callable[[onnx.AttributeProto], AttrValue]] = {
    onnx.AttributeProto.FLOAT: lambda attribute: float(attribute.f),
    onnx.AttributeProto.INT: lambda attribute: int(attribute.i),
    onnx.AttributeProto.STRING: lambda attribute: _text(attribute.s),
    onnx.AttributeProto.FLOATS: lambda attribute: tuple(map(float, attribute.floats)),
    onnx.AttributeProto.INTS: lambda attribute: tuple(map(int, attribute.ints)),
    onnx.AttributeProto.STRINGS: lambda attribute: tuple(map(_text, attribute.strings)),
}
