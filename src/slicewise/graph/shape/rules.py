"""Finding the rule of an operator, and asking onnx about one node where we have none."""

from collections.abc import Mapping

import onnx

from slicewise.graph.shape import compute, contrib, dependent, layout, spatial
from slicewise.graph.shape.facts import (
    Contradiction,
    Fact,
    Op,
    Unknown,
    type_fact,
)
from slicewise.graph.shape.layout import Rule
from slicewise.graph.shape.values import constant_fact

# ONNX Runtime registers this one in the standard domain too.
_STANDARD_EXTRA = {"SimplifiedLayerNormalization": contrib.MICROSOFT["LayerNormalization"]}

RULES: Mapping[str, Mapping[str, Rule]] = {
    "": {
        **layout.RULES,
        **spatial.RULES,
        **dependent.RULES,
        **compute.RULES,
        **_STANDARD_EXTRA,
        "Constant": constant_fact,
    },
    "com.microsoft": contrib.MICROSOFT,
    "com.microsoft.nchwc": contrib.BLOCKED,
}


def rule_for(domain: str, op_type: str) -> Rule | None:
    """Return our own rule of an operator, None if we have none."""
    return RULES.get(domain, {}).get(op_type)


def ask_onnx(op: Op, *, domain: str) -> list[Fact]:
    """Return what onnx infers for one node alone, its inputs known; `Unknown` if nothing."""
    try:
        schema = onnx.defs.get_schema(op.type, op.version, domain)
    except onnx.defs.SchemaError as err:
        raise Unknown from err
    types = {}
    data = {}
    for name, fact in zip(op.node.input, op.inputs, strict=True):
        if fact is None:
            continue
        if fact.shape is None or not fact.dtype:
            raise Unknown
        types[name] = onnx.helper.make_tensor_type_proto(fact.dtype, fact.shape)
        if fact.value is not None:
            data[name] = onnx.numpy_helper.from_array(fact.value)
    try:
        found = onnx.shape_inference.infer_node_outputs(
            schema,
            op.node,
            types,
            data,
            opset_imports=[onnx.helper.make_opsetid(domain, op.version)],
        )
    except onnx.shape_inference.InferenceError as err:
        if "ShapeInferenceError" in str(err):
            raise Contradiction(_first_line(err)) from err
        raise Unknown from err
    except onnx.checker.ValidationError as err:
        raise Contradiction(_first_line(err)) from err
    return [type_fact(found[name]) if name in found else Fact() for name in op.node.output]


def _first_line(err: Exception) -> str:
    return str(err).strip().partition("\n")[0]
