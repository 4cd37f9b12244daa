"""Writes an ONNX file anew for another batch than it was exported with, weights and all.

The front-end moves a baked batch in a model without weights (`graph/shape/batch.py`); here the
weights come back into what it made, so that a runtime can run it.
"""

import contextlib
import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx

from slicewise.core.errors import MeasureError, ModelError
from slicewise.core.graph import Graph
from slicewise.graph.bind import bind
from slicewise.graph.dimensions import tensor_type_of
from slicewise.graph.frontends.onnx import _shapes_of, _tidy_model
from slicewise.graph.frontends.onnx.wire import read_stripped

_FILE = "model.onnx"
_LARGEST_BYTES = 2**31 - 1  # of one protobuf message; more goes into a file beside it
_CONTENT = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data",
            "string_data")  # fmt: skip


def declares_other_shapes(path: str, graph: Graph) -> bool:
    """Return whether the file has numbers for dimensions of inputs that `graph` has others for."""
    model = onnx.ModelProto.FromString(read_stripped(Path(path)))
    for value in model.graph.input:
        tensor, known = tensor_type_of(value.type), graph.tensors.get(value.name)
        if value.name not in graph.inputs or tensor is None or known is None:
            continue
        for dim, size in zip(tensor.shape.dim, known.shape or (), strict=False):
            if dim.dim_value > 0 and dim.dim_value != size:
                return True
    return False


def rebatched_copy(path: str, graph: Graph, folder: Path) -> str:
    """Return the path of a file in `folder` that is the model at `path` as `graph` is bound.

    Made once, whole or not at all. `MeasureError` where weights cannot be put back or the folder
    cannot be written.
    """
    status = os.stat(path)
    told = (os.path.abspath(path), status.st_mtime_ns, status.st_size, graph.binding,
            graph.batch_size, graph.digest)  # fmt: skip
    place = folder / f"{hashlib.sha256(repr(told).encode()).hexdigest()[:32]}-b{graph.batch_size}"
    if (place / _FILE).exists():
        return str(place / _FILE)
    model = _rebatched(path, graph)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder, prefix=".", suffix=".tmp"))
        try:
            large = model.ByteSize() > _LARGEST_BYTES
            onnx.save(model, str(made / _FILE), save_as_external_data=large)
            with contextlib.suppress(OSError):  # another process was quicker
                os.rename(made, place)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as err:
        raise MeasureError(
            f"model {path!r} cannot be written for batch {graph.batch_size} to {str(folder)!r}:"
            f" {err.strerror}; free space or set SLICEWISE_HOME to a folder that can be written"
        ) from err
    return str(place / _FILE)


def _rebatched(path: str, graph: Graph) -> onnx.ModelProto:
    label = f"model {path!r}"
    bound = bind(_tidy_model(read_stripped(Path(path)), label).model, graph.binding, label=label)
    model = onnx.ModelProto()
    try:
        model.CopyFrom(_shapes_of(bound).model)
        whole = onnx.load(path)
    except (ModelError, OSError) as err:
        raise MeasureError(f"{label} cannot be written for another batch: {err}") from err
    weights = {tensor.name: tensor for tensor in _tensors(whole.graph)}
    missing = [
        tensor.name
        for tensor in _tensors(model.graph)
        if not _has_content(tensor) and not _fill(tensor, weights.get(tensor.name))
    ]
    if missing:
        raise MeasureError(
            f"{label} has its batch in constants such as {missing[0]!r}, which cannot be changed"
            f" to batch {graph.batch_size} with their values; export it with a dynamic batch"
        )
    for value in (*model.graph.output, *model.graph.value_info):
        tensor_type = tensor_type_of(value.type)
        if tensor_type is not None:
            tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    return model


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield every constant, those of bodies included; a Constant node's by its output."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                if node.op_type == "Constant":
                    attribute.t.name = node.output[0]
                yield attribute.t
            if attribute.HasField("g"):
                yield from _tensors(attribute.g)


def _has_content(tensor: onnx.TensorProto) -> bool:
    return any(len(getattr(tensor, name)) for name in _CONTENT) or not math.prod(tensor.dims)


def _fill(tensor: onnx.TensorProto, original: onnx.TensorProto | None) -> bool:
    """Give a tensor the content of the original; False if that is another tensor."""
    if original is None or original.dims != tensor.dims:
        return False
    if original.data_type != tensor.data_type or not _has_content(original):
        return False
    tensor.CopyFrom(original)
    return True
