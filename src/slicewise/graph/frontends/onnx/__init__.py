"""The ONNX door: a file becomes a Graph.

read without weights -> repair -> bind -> infer shapes -> fold and convert. Each step lives in a
module of its own; here they meet. Nothing but the one file is opened.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from slicewise.core.errors import ModelError
from slicewise.core.graph import Binding, Graph
from slicewise.graph.bind import Bound, bind
from slicewise.graph.check import Tidy, tidy
from slicewise.graph.dimensions import tensor_type_of
from slicewise.graph.frontends.onnx.convert import convert
from slicewise.graph.frontends.onnx.wire import read_stripped
from slicewise.graph.shapes import Shapes, infer


@dataclass(frozen=True, slots=True)
class OnnxSource:
    """An ONNX file as a source of graphs; holds the path alone, so that it can be pickled."""

    location: str
    runtime: str = "onnxruntime"

    def bind(self, binding: Binding) -> Graph:
        """Return the graph with every dimension bound; `ModelError` if some stay free."""
        return read_graph(self.location, binding)


def read_graph(path: str, binding: Binding) -> Graph:
    """Return the ONNX model at `path` with every dimension bound.

    `ModelError` if the file is not a usable model or dimensions stay free; `UsageError` if the
    binding names what the model does not have. Time and memory do not depend on weight bytes.
    """
    label = f"model {path!r}"
    model = _tidy_model(read_stripped(Path(path)), label)
    bound = bind(model.model, binding, label=label)
    try:
        shapes = _shapes_of(bound)
    except ModelError as err:
        raise ModelError(f"{label}: {err}") from err
    return convert(
        shapes, bound, source=OnnxSource(path), binding=bound.binding, notes=model.notes
    )


def _shapes_of(bound: Bound) -> Shapes:
    """Return the shapes of a bound model; the batch is moved in front where it stands behind.

    `infer` follows a batch that is the leading axis. One on another axis is put in front of its
    input, a Transpose takes it back, and what that added is taken out again afterwards.
    """
    behind = {} if bound.batch_change is None else {n: k for n, k in bound.batch_axes.items() if k}
    model = _with_batch_in_front(bound.model, behind) if behind else bound.model
    found = infer(
        model,
        batch_change=bound.batch_change,
        batch_inputs=[_in_front(name) if name in behind else name for name in bound.batch_axes],
        is_tidy=True,
    )
    if not behind:
        return found
    _put_back(found.model.graph, bound.model.graph, behind)
    added = {_in_front(name) for name in behind}
    main = {name: tensor for name, tensor in found.main.items() if name not in added}
    return replace(found, main=main)


def _in_front(name: str) -> str:
    return f"{name}::batch-first"


def _with_batch_in_front(model: onnx.ModelProto, behind: Mapping[str, int]) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in copy.graph.input:
        k = behind.get(value.name)
        tensor = tensor_type_of(value.type)
        if k is None or tensor is None:
            continue
        sizes = [dim.dim_value for dim in tensor.shape.dim]
        back = [*range(1, k + 1), 0, *range(k + 1, len(sizes))]
        front = _in_front(value.name)
        node = onnx.helper.make_node("Transpose", [front], [value.name], name=front, perm=back)
        copy.graph.node.insert(0, node)
        value.name = front
        for dim, size in zip(tensor.shape.dim, (sizes.pop(k), *sizes), strict=True):
            dim.dim_value = size
    return copy


def _put_back(
    graph: onnx.GraphProto, original: onnx.GraphProto, behind: Mapping[str, int]
) -> None:
    """Take the Transposes out again and give the inputs the names and shapes they had."""
    added = {_in_front(name): name for name in behind}
    for i in reversed(range(len(graph.node))):
        if graph.node[i].name in added:
            del graph.node[i]
    declared = {value.name: value for value in original.input}
    for value in graph.input:
        if value.name in added:
            value.CopyFrom(declared[added[value.name]])


@functools.lru_cache(maxsize=2)
def _tidy_model(stripped: bytes, label: str) -> Tidy:
    """Return the parsed and repaired model; the last are kept for the next batch size."""
    try:
        model = onnx.ModelProto.FromString(stripped)
    except DecodeError as err:
        raise ModelError(
            f"{label} is not an ONNX model or is damaged: {err}; an ONNX model is a serialised"
            " ModelProto; export or download it again"
        ) from err
    return tidy(model, label=label)
