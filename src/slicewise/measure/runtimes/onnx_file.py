"""The element types of the weights in an ONNX file, told without reading the weights.

The protobuf wire format is walked field by field over a mapping of the file; bytes of weights
are stepped over, so that looking costs the measured process neither time nor memory.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path

from slicewise.core.errors import MeasureError

# onnx.proto: ModelProto.graph, GraphProto.initializer, TensorProto.dims and .data_type.
_GRAPH, _INITIALIZER, _DIMS, _DATA_TYPE = 7, 5, 1, 2
# TensorProto.DataType -> the precision that a model with such weights has.
_PRECISION_OF = {1: "fp32", 10: "fp16", 16: "bf16", 2: "int8", 3: "int8", 17: "fp8", 18: "fp8",
                 19: "fp8", 20: "fp8", 21: "int4", 22: "int4"}  # fmt: skip


def precisions_of(path: str) -> frozenset[str]:
    """Return the precisions that weights of two axes or more have; all weights' if none has two.

    `MeasureError` if the file is no ONNX model or cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as err:
        raise MeasureError(
            f"model file {path!r} cannot be read: {err}; give a file that can"
        ) from err
    with content:
        try:
            found = list(_weights(content))
        except IndexError as err:
            raise MeasureError(
                f"model file {path!r} is cut off or no ONNX model; export or download it again"
            ) from err
    widest = [kind for rank, kind in found if rank > 1] or [kind for _, kind in found]
    return frozenset(_PRECISION_OF[kind] for kind in widest if kind in _PRECISION_OF)


def _weights(content: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Yield rank and data type of every initialiser of the main graph."""
    for start, end in _messages(content, 0, len(content), _GRAPH):
        for tensor in _messages(content, start, end, _INITIALIZER):
            rank, kind = 0, 0
            for field, wire, at, stop in _fields(content, *tensor):
                if field == _DIMS:  # packed, or one number at a time
                    rank += _count(content, at, stop) if wire == 2 else 1
                elif field == _DATA_TYPE:
                    kind, _ = _varint(content, at)
            yield rank, kind


def _messages(content: mmap.mmap, start: int, end: int, number: int) -> Iterator[tuple[int, int]]:
    for field, wire, at, stop in _fields(content, start, end):
        if field == number and wire == 2:
            yield at, stop


def _fields(content: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (field number, wire type, first byte, end) of each field; `IndexError` if cut off."""
    at = start
    while at < end:
        key, at = _varint(content, at)
        wire = key & 7
        if wire == 2:
            size, at = _varint(content, at)
        elif wire == 0:
            size = _varint(content, at)[1] - at
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise IndexError(f"wire type {wire}")
        if at + size > end:
            raise IndexError(at + size)
        yield key >> 3, wire, at, at + size
        at += size


def _varint(content: mmap.mmap, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise IndexError(at)


def _count(content: mmap.mmap, at: int, stop: int) -> int:
    return sum(content[i] < 0x80 for i in range(at, stop))
