"""Moves the weights of a model into the files of its stages; external ones stay external.

Bytes are copied from file to file in blocks, so that weights of any size pass through little
memory; runs of zeros become holes where the file system has them. What a model says of other
files is not trusted: only regular files in the model's own folder are read. No weights are
changed.
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, BinaryIO

from slicewise.core.errors import ModelError
from slicewise.partition.split.plan import bodies_of

if TYPE_CHECKING:
    import onnx

# Of one protobuf message are 2 GiB possible; what comes near goes into a file beside it.
EMBEDDED_LIMIT = 2**30
# ONNX asks for offsets at pages, so that files can be mapped (ExternalData.md, onnx repository).
_PAGE = 4096
# Smaller ones stay in the ONNX file, where shape inference can see them.
_SMALL_BYTES = 1024
_BLOCK = 2**22


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a file: a name in the folder that the model lies in, where from, and how many."""

    location: str
    offset: int
    length: int


@dataclass(slots=True)
class Weights:
    """The weights of one source file. `moved` says where each went that is external now."""

    source: Path
    is_external: bool
    moved: dict[str, tuple[Span, ...]] = field(default_factory=dict)

    def relocate(self, model: "onnx.ModelProto", folder: Path, name: str) -> int:
        """Write the weights of a stage's model that are external into the file `name`.

        The model then says where they are there. Returns the bytes written; 0: no such file.
        `ModelError` for content that is not where the source says, or outside its folder.
        """
        moving = [each for each in _all_tensors(model) if self._moves(each)]
        if not moving:
            return 0
        with (folder / name).open("wb") as target:
            for tensor in moving:
                at = -(-target.tell() // _PAGE) * _PAGE
                target.seek(at)
                length = self._copy(tensor, target)
                key = self._key(tensor)
                _refer(tensor, Span(name, at, length))
                self.moved.setdefault(key, (Span(name, at, length),))
            target.truncate(target.tell())
            return target.tell()

    def point(self, model: "onnx.ModelProto") -> None:
        """Make the whole model's weights point to where the stages have them."""
        for tensor in _all_tensors(model):
            if self._moves(tensor):
                _refer(tensor, self.moved[self._key(tensor)][0])

    def size_of(self, tensor: "onnx.TensorProto") -> int:
        """Return the bytes of a tensor's content."""
        if _is_external(tensor):
            return self._span(tensor).length
        return len(tensor.raw_data) or int(tensor.ByteSize())

    def _moves(self, tensor: "onnx.TensorProto") -> bool:
        if _is_external(tensor):
            return True
        return self.is_external and len(tensor.raw_data) >= _SMALL_BYTES

    def _key(self, tensor: "onnx.TensorProto") -> str:
        if _is_external(tensor):
            span = self._span(tensor)
            return f"{span.location}\0{span.offset}\0{span.length}"
        # Names are unique for initialisers of one graph only; content tells bodies' ones apart.
        return f"{tensor.name}\0{len(tensor.raw_data)}\0{hash(tensor.raw_data)}"

    def _copy(self, tensor: "onnx.TensorProto", target: BinaryIO) -> int:
        if not _is_external(tensor):
            target.write(tensor.raw_data)
            return len(tensor.raw_data)
        span = self._span(tensor)
        path = _inside(self.source, span.location, tensor.name)
        size = path.stat().st_size
        if span.offset + span.length > size:
            raise ModelError(
                f"weight {tensor.name!r} of model {str(self.source)!r} is said to end at byte"
                f" {span.offset + span.length} of {span.location!r}, which has {size}; the file"
                " is cut off; download it again"
            )
        try:
            with path.open("rb") as file:
                file.seek(span.offset)
                _copy_bytes(file, target, span.length)
        except OSError as err:
            raise ModelError(f"cannot copy {span.location!r}: {err.strerror}; free space") from err
        return span.length

    def _span(self, tensor: "onnx.TensorProto") -> Span:
        said = {entry.key: entry.value for entry in tensor.external_data}
        location = said.get("location", "")
        try:
            offset = int(said.get("offset") or 0)
            length = int(said["length"]) if said.get("length") else -1
        except ValueError:
            offset = -1
        if offset < 0:
            raise ModelError(
                f"weight {tensor.name!r} of model {str(self.source)!r} has the offset"
                f" {said.get('offset')!r} and length {said.get('length')!r} in {location!r};"
                " numbers from 0 up are allowed; export the model again"
            )
        if length < 0:
            path = _inside(self.source, location, tensor.name)
            length = max(0, path.stat().st_size - offset)
        return Span(location, offset, length)


def keeps_external(model: "onnx.ModelProto") -> bool:
    """Return whether embedded weights too have to leave the file: it comes near what one holds."""
    return int(model.ByteSize()) > EMBEDDED_LIMIT


def tensors_of(graph: "onnx.GraphProto") -> "Iterator[onnx.TensorProto]":
    """Yield every constant tensor, those in attributes and bodies included."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        yield from _tensors_of_node(node)


def _all_tensors(model: "onnx.ModelProto") -> "Iterator[onnx.TensorProto]":
    yield from tensors_of(model.graph)
    for function in model.functions:
        for node in function.node:
            yield from _tensors_of_node(node)


def _tensors_of_node(node: "onnx.NodeProto") -> "Iterator[onnx.TensorProto]":
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
    for body in bodies_of(node):
        yield from tensors_of(body)


def _is_external(tensor: "onnx.TensorProto") -> bool:
    return bool(tensor.data_location == 1)  # onnx.TensorProto.EXTERNAL


def _refer(tensor: "onnx.TensorProto", span: Span) -> None:
    tensor.ClearField("raw_data")
    del tensor.external_data[:]
    tensor.data_location = 1  # onnx.TensorProto.EXTERNAL
    for key in ("location", "offset", "length"):
        tensor.external_data.add(key=key, value=str(getattr(span, key)))


def _inside(source: Path, location: str, tensor: str) -> Path:
    """Return the file of external data; `ModelError` unless it lies in the model's own folder.

    Links are followed: a download cache keeps model and weights beside each other behind links,
    so that the folder of the linked model is its own too.
    """
    parts = {*PurePosixPath(location).parts, *PureWindowsPath(location).parts}
    is_absolute = PurePosixPath(location).is_absolute() or PureWindowsPath(location).anchor
    why = ""
    path = source.parent / location if location and "\0" not in location else source
    if not location or "\0" in location or is_absolute or ".." in parts:
        why = "only names inside the model's folder are allowed"
    else:
        real = Path(os.path.realpath(path))
        roots = {Path(os.path.realpath(source.parent)), Path(os.path.realpath(source)).parent}
        if not any(real.is_relative_to(root) for root in roots):
            why = "which leads out of the model's folder by a link"
        elif not real.exists():
            why = "which is not there; put it beside the model"
        elif not stat.S_ISREG(real.stat().st_mode):
            why = "which is no regular file"
    if why:
        raise ModelError(f"weight {tensor!r} of model {str(source)!r} is in {location!r}: {why}")
    return path


def _copy_bytes(source: BinaryIO, target: BinaryIO, length: int) -> None:
    """Copy in blocks; a block of zeros is stepped over, which leaves a hole."""
    left = length
    while left:
        block = source.read(min(_BLOCK, left))
        if not block:
            raise ModelError("a file of weights became shorter while it was copied; try again")
        if block.count(0) == len(block):
            target.seek(len(block), os.SEEK_CUR)
        else:
            target.write(block)
        left -= len(block)
