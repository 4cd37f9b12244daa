"""Tiny ONNX models for tests, made with the onnx API; weights have shapes but no bytes.

Every function returns a ModelProto; `save` writes one to a file.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import onnx
from onnx import TensorProto, helper

Dim: TypeAlias = int | str | None
Shape: TypeAlias = Sequence[Dim] | None

FLOAT = TensorProto.FLOAT
OPSET = 20


def weight(name: str, *shape: int, dtype: int = FLOAT) -> onnx.TensorProto:
    """Return an initialiser with a shape and no content."""
    return onnx.TensorProto(name=name, data_type=dtype, dims=shape)


def integers(name: str, values: Sequence[int], shape: Sequence[int] | None = None) -> Any:
    """Return an int64 initialiser with its content."""
    return helper.make_tensor(
        name, TensorProto.INT64, [len(values)] if shape is None else shape, list(values)
    )


def model(
    nodes: Sequence[onnx.NodeProto],
    *,
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape] | Sequence[str] = ("y",),
    weights: Sequence[onnx.TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
    opset: int = OPSET,
    dtypes: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """Return a model of `nodes`; a dimension is a number, a symbol, or None (free, unnamed).

    Inputs are float32 unless `dtypes` says otherwise. Outputs given as names have no shape.
    """
    types = dtypes or {}
    shapes: Mapping[str, Shape] = (
        outputs if isinstance(outputs, Mapping) else dict.fromkeys(outputs)
    )
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [value(name, shape, types.get(name, FLOAT)) for name, shape in inputs.items()],
        [value(name, shape, types.get(name, FLOAT)) for name, shape in shapes.items()],
        initializer=list(weights),
    )
    domains = {node.domain for node in nodes} | {f.domain for f in functions}
    imports = [helper.make_opsetid(domain, 1) for domain in sorted(domains - {"", "ai.onnx"})]
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", opset), *imports],
        functions=list(functions),
        ir_version=8,
    )


def value(name: str, shape: Shape, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    """Return the declaration of a tensor value."""
    return helper.make_tensor_value_info(name, dtype, None if shape is None else list(shape))


def save(model_proto: onnx.ModelProto, path: Path) -> str:
    """Write `model_proto` to `path` and return it as text."""
    path.write_bytes(model_proto.SerializeToString())
    return str(path)


def filled(model_proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with numbers in its weights, so that a runtime can run it."""
    import numpy as np

    random = np.random.default_rng(0)
    for tensor in model_proto.graph.initializer:
        if tensor.data_type == FLOAT and not tensor.raw_data and not tensor.float_data:
            values = random.standard_normal(tuple(tensor.dims), dtype=np.float32)
            tensor.raw_data = (0.1 * values).tobytes()
    return model_proto


def small_cnn(*, batch: Dim = "batch", opset: int = OPSET) -> onnx.ModelProto:
    """Return Conv 3x3 (3 -> 8, stride 2), BatchNormalization, Relu, pool, Gemm (8 -> 10).

    On [1, 3, 32, 32]: 216 x 256 + 80 MACs, 306 + 16 parameters, 16 buffers.
    """
    nodes = [
        helper.make_node(
            "Conv", ["x", "conv.w"], ["a"], name="conv", pads=[1, 1, 1, 1], strides=[2, 2]
        ),
        helper.make_node(
            "BatchNormalization", ["a", "bn.s", "bn.b", "bn.m", "bn.v"], ["b"], name="bn"
        ),
        helper.make_node("Relu", ["b"], ["c"], name="relu"),
        helper.make_node("GlobalAveragePool", ["c"], ["d"], name="pool"),
        helper.make_node("Flatten", ["d"], ["e"], name="flatten"),
        helper.make_node("Gemm", ["e", "fc.w", "fc.b"], ["y"], name="fc", transB=1),
    ]
    weights = [
        weight("conv.w", 8, 3, 3, 3),
        *(weight(f"bn.{part}", 8) for part in "sbmv"),
        weight("fc.w", 10, 8),
        weight("fc.b", 10),
    ]
    return model(nodes, inputs={"x": [batch, 3, 32, 32]}, weights=weights, opset=opset)


def small_decoder(*, layers: int = 1, past: bool = False) -> onnx.ModelProto:
    """Return a decoder of width 16 and 2 heads with symbols batch, seq and, if asked, past.

    Names and axes as exporters write them: input_ids [batch, seq] and, for each layer,
    past_key_values.i.key and .value [batch, 2, past, 8]. The embedding is tied to the head.
    """
    inputs: dict[str, Shape] = {"input_ids": ["batch", "seq"]}
    nodes = [helper.make_node("Gather", ["embed", "input_ids"], ["h0"])]
    weights = [weight("embed", 100, 16), integers("heads", [0, 0, 2, 8])]
    weights.append(integers("joined", [0, 0, 16]))
    for i in range(layers):
        nodes += _decoder_layer(i, past=past)
        weights += [weight(f"{part}.{i}", 16, 16) for part in ("q", "k", "v", "o")]
        if past:
            for side in ("key", "value"):
                inputs[f"past_key_values.{i}.{side}"] = ["batch", 2, "past", 8]
    nodes += [
        helper.make_node("Transpose", ["embed"], ["head"], perm=[1, 0]),
        helper.make_node("MatMul", [f"h{layers}", "head"], ["logits"]),
    ]
    return model(
        nodes,
        inputs=inputs,
        outputs=["logits"],
        weights=weights,
        dtypes={"input_ids": TensorProto.INT64},
    )


def _decoder_layer(i: int, *, past: bool) -> list[onnx.NodeProto]:
    nodes: list[onnx.NodeProto] = []
    for part in "qkv":
        nodes += [
            helper.make_node("MatMul", [f"h{i}", f"{part}.{i}"], [f"{part}m{i}"]),
            helper.make_node("Reshape", [f"{part}m{i}", "heads"], [f"{part}r{i}"]),
            helper.make_node("Transpose", [f"{part}r{i}"], [f"{part}t{i}"], perm=[0, 2, 1, 3]),
        ]
    keys, values = f"kt{i}", f"vt{i}"
    if past:
        for side, new in (("key", keys), ("value", values)):
            old = f"past_key_values.{i}.{side}"
            nodes.append(helper.make_node("Concat", [old, new], [f"all.{side}{i}"], axis=2))
        keys, values = f"all.key{i}", f"all.value{i}"
    return [
        *nodes,
        helper.make_node("Transpose", [keys], [f"kT{i}"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", [f"qt{i}", f"kT{i}"], [f"s{i}"]),
        helper.make_node("Softmax", [f"s{i}"], [f"p{i}"]),
        helper.make_node("MatMul", [f"p{i}", values], [f"c{i}"]),
        helper.make_node("Transpose", [f"c{i}"], [f"ct{i}"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", [f"ct{i}", "joined"], [f"cj{i}"]),
        helper.make_node("MatMul", [f"cj{i}", f"o.{i}"], [f"om{i}"]),
        helper.make_node("Add", [f"om{i}", f"h{i}"], [f"h{i + 1}"]),
    ]
