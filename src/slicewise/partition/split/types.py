"""Finds the types of tensors that cross between the files of stages: symbols kept where known.

What the file declares, what onnx infers from it, and what a bound graph knows are joined; where
a declared number contradicts the graph (a file fixed to another batch) the dimension is left
free. Weights are left out before onnx infers, so that their bytes cost nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from slicewise.core.graph import Graph
from slicewise.core.notes import Note
from slicewise.core.precision import DType
from slicewise.partition.split.manifest import Dims, StageTensor

if TYPE_CHECKING:
    import onnx

# Constants up to this size keep their values: shapes and axes, which shapes are inferred from.
_KEPT_BYTES = 4096
# onnx.TensorProto.DataType -> element type, and back for tensors that only a graph knows.
_DTYPES: Mapping[int, DType] = {
    1: DType.FP32, 2: DType.UINT8, 3: DType.INT8, 4: DType.UINT16, 5: DType.INT16, 6: DType.INT32,
    7: DType.INT64, 9: DType.BOOL, 10: DType.FP16, 11: DType.FP64, 12: DType.UINT32,
    13: DType.UINT64, 14: DType.COMPLEX64, 15: DType.COMPLEX128, 16: DType.BF16,
    17: DType.FP8, 18: DType.FP8, 19: DType.FP8, 20: DType.FP8, 21: DType.UINT4, 22: DType.INT4,
    23: DType.FP4,
}  # fmt: skip
_NUMBERS = {dtype: number for number, dtype in _DTYPES.items() if dtype is not DType.FP8}
_KINDS = {
    "sequence_type": "sequence", "optional_type": "optional", "sparse_tensor_type": "sparse",
    "map_type": "map",
}  # fmt: skip


class Types:
    """The types of values of one model, by name; `notes` what could not be found the usual way."""

    def __init__(self, model: "onnx.ModelProto", graph: Graph) -> None:
        self._graph = graph
        self.notes: tuple[Note, ...] = ()
        declared = {value.name: value for value in _declared(model.graph)}
        inferred, failed = _infer(model)
        if failed:
            text = f"onnx cannot infer shapes ({failed}); types are those of the graph"
            self.notes = (Note("split-types-guessed", text),)
        self._values = {**declared, **inferred}
        self._sizes = _sizes(model.graph, graph)

    def value(self, name: str) -> "onnx.ValueInfoProto | None":
        """Return the declaration of a tensor; None where no one knows even its element type."""
        import onnx

        value = onnx.ValueInfoProto(name=name)
        known = self._values.get(name)
        if known is not None:
            value.type.CopyFrom(known.type)
        kind = value.type.WhichOneof("value")
        if kind in _KINDS:
            return value
        tensor = value.type.tensor_type
        bound = self._graph.tensors.get(name)
        if not tensor.elem_type:
            if bound is None or bound.dtype not in _NUMBERS:
                return None
            tensor.elem_type = _NUMBERS[bound.dtype]
        shape = None if bound is None else bound.shape
        if shape is not None and (
            not tensor.HasField("shape") or len(tensor.shape.dim) != len(shape)
        ):
            tensor.shape.Clear()
            tensor.shape.SetInParent()
            for _ in shape:
                tensor.shape.dim.add()
        for dim, size in zip(tensor.shape.dim, shape or (), strict=False):
            if dim.HasField("dim_value") and dim.dim_value != size:
                dim.Clear()
        return value

    def declared(self, name: str) -> "onnx.ValueInfoProto | None":
        """Return the declaration of a tensor that the file or onnx knows, None else."""
        return self.value(name) if name in self._values else None

    def describe(self, name: str) -> StageTensor:
        """Return dimensions and bound shape of a tensor."""
        value = self.value(name)
        if value is None:
            return StageTensor("?")
        kind = value.type.WhichOneof("value")
        if kind in _KINDS:
            return StageTensor("?", kind=_KINDS[kind])
        tensor = value.type.tensor_type
        dims: Dims | None = None
        if tensor.HasField("shape"):
            dims = tuple(_dim(each) for each in tensor.shape.dim)
        bound = self._graph.tensors.get(name)
        shape = None if bound is None else bound.shape
        if shape is None and dims is not None:
            shape = self._bind(dims)
        dtype = _DTYPES.get(tensor.elem_type, DType.UNKNOWN)
        return StageTensor(str(dtype), dims, shape)

    def _bind(self, dims: Dims) -> tuple[int, ...] | None:
        sizes = [dim if isinstance(dim, int) else self._sizes.get(dim or "") for dim in dims]
        return None if None in sizes else tuple(size for size in sizes if size is not None)


def _dim(each: "onnx.TensorShapeProto.Dimension") -> int | str | None:
    if each.HasField("dim_value"):
        return int(each.dim_value)
    return each.dim_param or None


def _declared(graph: "onnx.GraphProto") -> "Iterator[onnx.ValueInfoProto]":
    yield from graph.value_info
    yield from graph.output
    yield from graph.input


def _sizes(file: "onnx.GraphProto", graph: Graph) -> dict[str, int]:
    """Return what the symbols of the inputs are bound to."""
    sizes: dict[str, int] = {}
    for value in file.input:
        bound = graph.tensors.get(value.name)
        dims = value.type.tensor_type.shape.dim
        for dim, size in zip(dims, (bound and bound.shape) or (), strict=False):
            if dim.dim_param:
                sizes.setdefault(dim.dim_param, size)
    return sizes


def _infer(model: "onnx.ModelProto") -> "tuple[dict[str, onnx.ValueInfoProto], str]":
    """Return what onnx infers, by name, or nothing and why."""
    import onnx.shape_inference

    light = without_weights(model, model.graph.node)
    try:
        found = onnx.shape_inference.infer_shapes(light, data_prop=True)
    # onnx's own errors share no root; a model that it cannot infer still runs elsewhere.
    except Exception as err:
        lines = str(err).strip().splitlines()
        return {}, (lines[0] if lines else type(err).__name__)[:200]
    values = {value.name: value for value in (*found.graph.value_info, *found.graph.output)}
    return {name: value for name, value in values.items() if _is_typed(value)}, ""


def _is_typed(value: "onnx.ValueInfoProto") -> bool:
    kind = value.type.WhichOneof("value")
    return kind is not None and (kind != "tensor_type" or value.type.tensor_type.elem_type > 0)


def without_weights(
    model: "onnx.ModelProto", nodes: "Sequence[onnx.NodeProto]"
) -> "onnx.ModelProto":
    """Return the model with `nodes`, its large initialisers without their content."""
    import onnx

    light = onnx.ModelProto(ir_version=model.ir_version)
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    graph = light.graph
    graph.name = model.graph.name or "graph"
    graph.node.extend(nodes)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    graph.sparse_initializer.extend(model.graph.sparse_initializer)
    for tensor in model.graph.initializer:
        if tensor.ByteSize() <= _KEPT_BYTES:
            graph.initializer.append(tensor)
        else:
            graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    return light
