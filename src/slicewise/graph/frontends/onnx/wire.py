"""Reads an .onnx file without its weights: memory and time do not depend on weight bytes.

The protobuf wire format is walked field by field; tensor contents over a small limit are skipped
with a seek, everything else is copied. Which fields lead to tensor contents is asked from onnx's
own message descriptors, so there is no table of field numbers here to go stale. Only the one file
is ever opened: external data stays where it is, present or not.

Wire format: https://protobuf.dev/programming-guides/encoding. It must not interpret the model.
"""

import functools
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from slicewise.core.errors import ModelError
from slicewise.core.units import format_capacity

# Constants up to this size keep their values: shapes, axes and paddings fit, weights do not.
KEPT_BYTES = 4096
# Attribute lists and strings (tree ensembles, embedded engine blobs) keep this much.
ATTRIBUTE_BYTES = 2**20
# No name, type or description is longer than this in a real model.
TEXT_BYTES = 64 * 2**20
# protobuf's own parsers refuse deeper nesting.
MAX_DEPTH = 100
# Read ahead this much; a skip inside it costs no system call.
_BUFFER_BYTES = 2**16

_TENSOR_CONTENT = frozenset(
    {"raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data",
     "string_data"}
)  # fmt: skip
_ATTRIBUTE_CONTENT = frozenset({"s", "floats", "ints", "strings"})
_PROSE = frozenset({"doc_string", "metadata_props"})

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_WIDTH_BYTES = {_FIXED64: 8, _FIXED32: 4}
# Wire type by protobuf field type (FieldDescriptor.TYPE_*): double and the 64-bit fixed ones,
# float and the 32-bit fixed ones, string, message and bytes; all the rest are varints.
_WIRE_OF_TYPE = {
    1: _FIXED64, 6: _FIXED64, 16: _FIXED64,
    2: _FIXED32, 7: _FIXED32, 15: _FIXED32,
    9: _LENGTH, 11: _LENGTH, 12: _LENGTH,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Field:
    """How one field of a message is treated.

    `message` is the nested message to descend into; `limit_bytes` is set where the content is
    dropped once it is longer in total.
    """

    name: str
    wire: int
    message: str | None = None
    limit_bytes: int | None = None


class _Malformed(Exception):
    """The bytes are not a ModelProto; the text says why. Never leaves this module."""


@dataclass(slots=True)
class _Cursor:
    """A position in an open file; counts by itself because `tell` is a system call."""

    file: BinaryIO
    size: int
    position: int = 0

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes; `_Malformed` if the file has fewer."""
        data = self.file.read(count)
        self.position += len(data)
        if len(data) != count:
            raise _Malformed("the file ends in the middle of a field")
        return data

    def skip(self, count: int) -> None:
        """Go on behind the next `count` bytes without reading them."""
        self.file.seek(count, os.SEEK_CUR)
        self.position += count

    def varint(self) -> int:
        """Return the next number in base 128; `_Malformed` if it is cut off or over 64 bits."""
        read = self.file.read
        value = shift = 0
        while True:
            byte = read(1)
            self.position += 1
            if not byte:
                raise _Malformed("the file ends in the middle of a number")
            value |= (byte[0] & 0x7F) << shift
            if byte[0] < 0x80:
                return value & 0xFFFF_FFFF_FFFF_FFFF
            shift += 7
            if shift > 63:
                raise _Malformed("a number is longer than 64 bits")


def read_stripped(path: Path) -> bytes:
    """Return the ModelProto in `path` serialised without tensor contents over `KEPT_BYTES`.

    Shapes, types, names, external-data references and small constants stay. `ModelError` if the
    file cannot be read or is not an ONNX model. Remembers the last files by path, time and size.
    """
    try:
        status = path.stat()
    except (OSError, ValueError) as err:
        raise ModelError(f"cannot read model {str(path)!r}: {_reason(err)}; {_REMEDY}") from err
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(
            f"model {str(path)!r} is not a regular file; give the path of an .onnx file"
        )
    return _read_cached(path, status.st_mtime_ns, status.st_size, status.st_ino)


def looks_like_onnx(path: Path) -> bool:
    """Return True if the file at `path` is an ONNX model by content, whatever its name."""
    try:
        read_stripped(path)
    except ModelError:
        return False
    return True


_REMEDY = "give the path of an .onnx file that can be read"


def _reason(err: Exception) -> str:
    return (err.strerror or str(err)) if isinstance(err, OSError) else str(err)


@functools.lru_cache(maxsize=4)
def _read_cached(path: Path, _mtime_ns: int, size: int, _inode: int) -> bytes:
    try:
        with path.open("rb", buffering=_BUFFER_BYTES) as file:
            head = file.read(64)
            if kind := _known_kind(head):
                raise ModelError(
                    f"model {str(path)!r} is {kind}, not an ONNX model; export it to .onnx first,"
                    " for example with torch.onnx.export"
                )
            file.seek(0)
            stripped = _strip(_Cursor(file, size))
    except OSError as err:
        raise ModelError(f"cannot read model {str(path)!r}: {_reason(err)}; {_REMEDY}") from err
    except _Malformed as err:
        _refuse(path, size, err)
    return stripped


def _refuse(path: Path, size: int, err: _Malformed) -> NoReturn:
    raise ModelError(
        f"model {str(path)!r} ({format_capacity(size)}) is not an ONNX model or is damaged: {err};"
        " an ONNX model is a serialised ModelProto; export or download it again"
    ) from err


# (offset, first bytes, what such a file is). Sources: the formats' own documentation.
_MAGICS = (
    (0, b"\x1f\x8b", "a gzip archive (unpack it)"),
    (0, b"PK\x03\x04", "a zip archive (a PyTorch .pt, .pth or .pt2, a .keras or .npz file)"),
    (0, b"\x80\x02", "a Python pickle (an old PyTorch .pt or .pth file)"),
    (0, b"\x80\x03", "a Python pickle"),
    (0, b"\x80\x04", "a Python pickle"),
    (0, b"\x80\x05", "a Python pickle"),
    (0, b"\x89HDF", "an HDF5 file (Keras weights)"),
    (0, b"BZh", "a bzip2 archive (unpack it)"),
    (0, b"\xfd7zXZ", "an xz archive (unpack it)"),
    (0, b"\x28\xb5\x2f\xfd", "a zstd archive (unpack it)"),
    (0, b"7z\xbc\xaf", "a 7z archive (unpack it)"),
    (0, b"GGUF", "a GGUF file"),
    (0, b"\x93NUMPY", "a NumPy array"),
    (0, b"\x89PNG", "a PNG picture"),
    (0, b"\xff\xd8\xff", "a JPEG picture"),
    (0, b"%PDF", "a PDF document"),
    (0, b"\x7fELF", "a program"),
    (0, b"version https://git-lfs", "a git-lfs pointer (fetch the file with git lfs pull)"),
    (3, b"\0TFL3", "a TensorFlow Lite model"),
    (3, b"\0ORTM", "an ONNX Runtime .ort model (give the .onnx file that it was made from)"),
    (8, b'{"', "a safetensors file (weights alone)"),
)  # fmt: skip


def _known_kind(head: bytes) -> str | None:
    if not head:
        return "an empty file"
    for offset, magic, kind in _MAGICS:
        if head[offset : offset + len(magic)] == magic:
            return kind
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return "a web page or XML file (a failed download?)"
    if text.startswith((b"{", b"[")) and all(
        32 <= byte < 127 or byte in b"\r\n\t" for byte in head
    ):
        return "a JSON file"
    return None


def _strip(cursor: _Cursor) -> bytes:
    rules = _rules()
    chunks = _copy(cursor, cursor.size, "ModelProto", rules, depth=0)
    number = next(n for n, field in rules["ModelProto"].items() if field.name == "graph")
    tag = _encode_varint(number << 3 | _LENGTH)
    if not any(chunk.startswith(tag) for chunk in chunks):
        raise _Malformed("it holds no graph")
    return b"".join(chunks)


def _copy(
    cursor: _Cursor,
    end: int,
    message: str,
    rules: Mapping[str, Mapping[int, _Field]],
    *,
    depth: int,
) -> list[bytes]:
    """Return the fields of one message that starts at the cursor, long contents left out.

    Every element is one whole field (tag, length, body). Limited fields come last: the order of
    different fields in a message has no meaning.
    """
    if depth > MAX_DEPTH:
        raise _Malformed(f"messages are nested more than {MAX_DEPTH} deep")
    fields = rules[message]
    kept: list[bytes] = []
    limited: dict[int, list[bytes]] = {}
    sizes: dict[int, int] = {}
    while cursor.position < end:
        key = cursor.varint()
        number, wire = key >> 3, key & 7
        field = fields.get(number)
        where = f"field {number} of {message}" if field is None else f"{message}.{field.name}"
        _check_wire(number, wire, field, where)
        tag = _encode_varint(key)
        if wire != _LENGTH:
            scalar = _scalar(cursor, wire)
            if field is not None and field.limit_bytes is not None:
                _gather(limited, sizes, number, tag + scalar, field.limit_bytes)
            else:
                kept.append(tag + scalar)
            continue
        length = cursor.varint()
        if cursor.position + length > end:
            raise _Malformed(
                f"{where} should be {length} bytes long, but {end - cursor.position} are left"
                " (truncated?)"
            )
        if field is not None and field.message is not None and length > KEPT_BYTES:
            parts = _copy(cursor, cursor.position + length, field.message, rules, depth=depth + 1)
            body = b"".join(parts)
            kept.append(tag + _encode_varint(len(body)) + body)
        elif _is_left_out(field, length):
            cursor.skip(length)
            if field is not None:
                limited[number], sizes[number] = [], 2 * length
        elif length > TEXT_BYTES:
            raise _Malformed(f"{where} is {format_capacity(length)} long")
        else:
            chunk = tag + _encode_varint(length) + cursor.take(length)
            if field is not None and field.limit_bytes is not None:
                _gather(limited, sizes, number, chunk, field.limit_bytes)
            else:
                kept.append(chunk)
    if cursor.position != end:
        raise _Malformed(f"a field of {message} runs past its end")
    for chunks in limited.values():
        kept.extend(chunks)
    return kept


def _check_wire(number: int, wire: int, field: _Field | None, where: str) -> None:
    if number == 0 or wire not in (_VARINT, _FIXED64, _LENGTH, _FIXED32):
        raise _Malformed(f"{where} has the impossible wire type {wire}")
    # a repeated number may also come packed, as one field of a length
    if field is not None and wire not in (field.wire, _LENGTH):
        raise _Malformed(f"{where} has wire type {wire}, not {field.wire}")


def _is_left_out(field: _Field | None, length: int) -> bool:
    limit = KEPT_BYTES if field is None else field.limit_bytes
    return limit is not None and length > limit


def _gather(
    limited: dict[int, list[bytes]], sizes: dict[int, int], number: int, chunk: bytes, limit: int
) -> None:
    """Keep `chunk` of a repeated field, or drop the whole field once it is over its limit."""
    sizes[number] = sizes.get(number, 0) + len(chunk)
    # tag and length of a single chunk do not count towards the limit
    if sizes[number] > limit + 16:
        limited[number] = []
    else:
        limited.setdefault(number, []).append(chunk)


def _scalar(cursor: _Cursor, wire: int) -> bytes:
    return _encode_varint(cursor.varint()) if wire == _VARINT else cursor.take(_WIDTH_BYTES[wire])


@functools.cache
def _one_byte(value: int) -> bytes:
    return bytes((value,))


def _encode_varint(value: int) -> bytes:
    if value < 0x80:
        return _one_byte(value)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@functools.cache
def _rules() -> Mapping[str, Mapping[int, _Field]]:
    """Return, for each message on the way from ModelProto to tensor contents, its fields."""
    import onnx

    rules: dict[str, dict[int, _Field]] = {}
    _describe(onnx.ModelProto.DESCRIPTOR, rules)
    return rules


def _describe(descriptor: Any, rules: dict[str, dict[int, _Field]]) -> None:
    if descriptor.name in rules:
        return
    fields = rules[descriptor.name] = {}
    for field in descriptor.fields:
        nested = field.message_type
        if nested is not None and field.name not in _PROSE and _leads_to_content(nested):
            _describe(nested, rules)
            fields[field.number] = _Field(field.name, _LENGTH, message=nested.name)
        else:
            wire = _WIRE_OF_TYPE.get(field.type, _VARINT)
            limit = _limit_bytes(descriptor.name, field.name)
            fields[field.number] = _Field(field.name, wire, limit_bytes=limit)


def _limit_bytes(message: str, field: str) -> int | None:
    if field in _PROSE or (message == "TensorProto" and field in _TENSOR_CONTENT):
        return KEPT_BYTES
    return ATTRIBUTE_BYTES if message == "AttributeProto" and field in _ATTRIBUTE_CONTENT else None


def _leads_to_content(descriptor: Any) -> bool:
    """True if a message of this kind can hold a TensorProto at any depth."""
    seen: set[str] = set()
    open_ends = [descriptor]
    while open_ends:
        here = open_ends.pop()
        if here.name == "TensorProto":
            return True
        if here.name not in seen:
            seen.add(here.name)
            open_ends += [f.message_type for f in here.fields if f.message_type is not None]
    return False
