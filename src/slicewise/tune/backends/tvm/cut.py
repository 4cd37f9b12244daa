"""An ONNX model without some of its nodes: what these made becomes an input of what is left."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slicewise.core.graph import Graph


@dataclass(frozen=True, slots=True)
class Skipped:
    """A node that was left out, and why."""

    name: str
    op_type: str
    reason: str


def without(
    model: Any,
    lacking: Mapping[int, str],
    *,
    graph: Graph,
    shapes: Mapping[str, list[int]],
) -> tuple[Any, tuple[Skipped, ...]]:
    """Return `model` without the nodes at the places of `lacking`, and what was left out.

    A node that reads what a missing one made, of a shape that nobody knows, goes with it. The
    model itself is returned where nothing is lacking.
    """
    if not lacking:
        return model, ()
    import onnx

    known = _values(model, shapes, graph)
    reasons = dict(lacking)
    inputs: dict[str, Any] = {}
    unknown: set[str] = set()
    for place, node in enumerate(model.graph.node):
        if place not in reasons:
            unread = [name for name in node.input if name in unknown]
            if not unread:
                continue
            reasons[place] = f"the shape of its input {unread[0]!r} is not known"
        for name in node.output:
            if name in known:
                inputs[name] = known[name]
            elif name:
                unknown.add(name)
    kept = [node for place, node in enumerate(model.graph.node) if place not in reasons]
    gone = [node for place, node in enumerate(model.graph.node) if place in reasons]
    read = {name for node in kept for name in node.input}
    made = {name for node in kept for name in node.output if name}
    # what only a missing node reads would otherwise be dead, and go as well
    ends = {name for node in gone for name in node.input} & made
    ends |= {value.name for value in model.graph.output} & made
    ends |= {name for name in made if name not in read}
    outputs = [known[name] for name in sorted(ends) if name in known]
    cut = onnx.helper.make_graph(
        kept,
        model.graph.name,
        [*model.graph.input, *(value for name, value in inputs.items() if name in read)],
        outputs,
        initializer=list(model.graph.initializer),
    )
    left = onnx.helper.make_model(cut, opset_imports=list(model.opset_import))
    left.ir_version = model.ir_version
    skipped = tuple(
        Skipped(node.name or (node.output[0] if node.output else str(place)), node.op_type, reason)
        for place, reason in sorted(reasons.items())
        for node in [model.graph.node[place]]
    )
    return left, skipped


def _values(model: Any, shapes: Mapping[str, list[int]], graph: Graph) -> dict[str, Any]:
    """Return shape and type of each tensor that is known, as ONNX writes them."""
    import onnx

    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    for value in bound.graph.input:
        if value.name in shapes:
            kind = value.type.tensor_type.elem_type
            value.CopyFrom(
                onnx.helper.make_tensor_value_info(value.name, kind, shapes[value.name])
            )
    inferred = onnx.shape_inference.infer_shapes(bound, data_prop=True)
    found = {}
    for value in (*inferred.graph.value_info, *inferred.graph.output):
        tensor = value.type.tensor_type
        dims = tensor.shape.dim
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in dims):
            found[value.name] = value
    for name, own in graph.tensors.items():
        kind = _ONNX_TYPES.get(own.dtype.value)
        if name not in found and own.shape is not None and kind is not None:
            found[name] = onnx.helper.make_tensor_value_info(name, kind, own.shape)
    return found


# Types of onnx.TensorProto by our names.
_ONNX_TYPES = {
    "fp32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "fp16": 10, "fp64": 11,
    "bf16": 16,
}  # fmt: skip
