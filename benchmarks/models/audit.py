"""Count parameters and multiply-adds of an ONNX model, apart from the code under test.

Shapes come from `onnx.shape_inference` on the model bound to batch 1, so that an error in `Net`'s
own shapes shows as well. Model tables made with fvcore's flop counter add normalisation to their
"GMACs"; `norm_ops` says how much, so that a count can be compared with such a table.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import onnx

_NORM_OPS = {"BatchNormalization": 2, "LayerNormalization": 5, "InstanceNormalization": 5}


@dataclass(frozen=True, slots=True)
class Audit:
    """What a model holds and does.

    `product_macs`: products of two activations, attention included (part of `macs`). `norm_ops`:
    what fvcore adds for normalisation, 2 an element for batch, 5 for layer and group
    normalisation. `features`: what the last linear layer reads, so that another number of classes
    can be recognised.
    """

    parameters: int
    macs: int
    product_macs: int
    norm_ops: int
    features: int
    output_shapes: tuple[tuple[int, ...], ...]


def audit(model: onnx.ModelProto, *, batch_size: int = 1) -> Audit:
    """Return the counts of `model` with its free axes named 'batch' set to `batch_size`."""
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    for value in (*bound.graph.input, *bound.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = batch_size
    inferred = onnx.shape_inference.infer_shapes(bound, strict_mode=True, data_prop=True)
    constants = {tensor.name: tuple(tensor.dims) for tensor in inferred.graph.initializer}
    shapes = dict(constants)
    for value in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output):
        shapes[value.name] = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
    macs, products, norm_ops = 0, 0, 0
    for node in inferred.graph.node:
        count = _macs(node, shapes)
        macs += count
        is_product = node.op_type == "Attention" or (
            node.op_type == "MatMul" and not any(name in constants for name in node.input)
        )
        products += count if is_product else 0
        if node.op_type in _NORM_OPS:
            norm_ops += _NORM_OPS[node.op_type] * math.prod(shapes[node.input[0]])
    return Audit(
        sum(math.prod(t.dims) for t in inferred.graph.initializer if _is_parameter(t)),
        macs,
        products,
        norm_ops,
        _last_width(inferred.graph, shapes),
        tuple(shapes[value.name] for value in inferred.graph.output),
    )


def _last_width(graph: onnx.GraphProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    linear = [node for node in graph.node if node.op_type in ("Gemm", "MatMul", "Conv")]
    return shapes[linear[-1].input[0]][1] if linear else 0


def _is_parameter(tensor: onnx.TensorProto) -> bool:
    return str(tensor.name).startswith(("weight", "scale", "bias"))


def _macs(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    if node.op_type in ("Conv", "ConvTranspose"):
        reads_filters = node.op_type == "Conv"
        positions = math.prod(shapes[node.output[0] if reads_filters else node.input[0]])
        weight = shapes[node.input[1]]
        return positions * math.prod(weight[1:])
    if node.op_type == "Gemm":
        return math.prod(shapes[node.input[0]]) * shapes[node.output[0]][-1]
    if node.op_type == "Attention":
        queries, keys, values = (shapes[name] for name in node.input[:3])
        return math.prod(queries) * keys[2] + math.prod(queries[:3]) * keys[2] * values[3]
    if node.op_type == "MatMul":
        return math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]
    return 0
