"""A graph as bytes and back, exactly: msgpack of its fields, compressed, with a checksum.

Driven by the fields of the types themselves, so that a new plain field is carried without a
change here. Every sequence of a graph is a tuple, every mapping has names as keys.
"""

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any

import msgspec

from slicewise.core.graph import Binding, Constant, Graph, Node, Role, Tensor
from slicewise.core.notes import Note
from slicewise.core.precision import DType

_MAGIC = b"slicewise.graph/1\n"
_CHECK_BYTES = 16
# A graph is text that repeats itself: level 3 is half the size of none and takes milliseconds.
_LEVEL = 3

# Types inside a field, which plain values do not tell: of itself, its elements or its values.
_INSIDE: Mapping[tuple[type, str], type] = {
    (Graph, "nodes"): Node,
    (Graph, "tensors"): Tensor,
    (Graph, "constants"): Constant,
    (Graph, "notes"): Note,
    (Graph, "binding"): Binding,
    (Node, "bodies"): Graph,
    (Tensor, "dtype"): DType,
    (Constant, "role"): Role,
}
_FIELDS: Mapping[type, tuple[str, ...]] = {
    cls: tuple(each.name for each in fields(cls) if each.name != "source")
    for cls in (Graph, Node, Tensor, Constant, Note, Binding)
}  # the source is given anew by whoever reads


class DecodeError(ValueError):
    """The bytes are no graph, or a damaged one."""


def encode_graph(graph: Graph, runtime: str) -> bytes:
    """Return the graph and the runtime of its source as bytes; `OverflowError` over 64 bits."""
    packed = zlib.compress(msgspec.msgpack.encode([runtime, _plain(graph)]), _LEVEL)
    return _MAGIC + hashlib.sha256(packed).digest()[:_CHECK_BYTES] + packed


def plain_graph(graph: Graph) -> list[Any]:
    """Return the graph as lists, mappings, texts and numbers, without its source."""
    plain: list[Any] = _plain(graph)
    return plain


def graph_of(plain: list[Any]) -> Graph:
    """Return the graph that `plain_graph` gave."""
    graph: Graph = _typed(plain, Graph)
    return graph


def decode_graph(content: bytes) -> tuple[Graph, str]:
    """Return the graph without a source, and its runtime; `DecodeError` for anything else."""
    start = len(_MAGIC) + _CHECK_BYTES
    packed = content[start:]
    check = hashlib.sha256(packed).digest()[:_CHECK_BYTES]
    if not content.startswith(_MAGIC) or content[len(_MAGIC) : start] != check:
        raise DecodeError("no graph, or a damaged one")
    try:
        runtime, plain = msgspec.msgpack.decode(zlib.decompress(packed))
        return _typed(plain, Graph), runtime
    except (zlib.error, msgspec.DecodeError, ValueError, TypeError) as err:
        raise DecodeError(f"written by another version: {err}") from err


def _plain(value: Any) -> Any:
    """Return lists, dicts and plain values; a type of ours becomes the list of its fields."""
    if isinstance(value, StrEnum):
        return value.value
    if type(value) in _FIELDS:
        return [_plain(getattr(value, name)) for name in _FIELDS[type(value)]]
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple | frozenset):
        return [_plain(each) for each in value]
    return value


def _typed(plain: list[Any], cls: Any) -> Any:
    names = _FIELDS[cls]
    given = {
        name: _value(value, _INSIDE.get((cls, name)))
        for name, value in zip(names, plain, strict=True)
    }
    if cls is Binding:
        given["optional_dims"] = frozenset(given["optional_dims"])
    return cls(**given)


def _value(plain: Any, cls: Any) -> Any:
    if cls is Binding:
        return _typed(plain, cls)
    if isinstance(plain, dict):
        return {key: _element(each, cls) for key, each in plain.items()}
    if isinstance(plain, list):
        return tuple(_element(each, cls) for each in plain)
    return plain if cls is None else cls(plain)


def _element(plain: Any, cls: Any) -> Any:
    if cls is not None:
        return _typed(plain, cls)
    return tuple(plain) if isinstance(plain, list) else plain
