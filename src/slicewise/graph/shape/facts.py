"""What shape inference knows of a value, and how a rule sees a node.

Shared by the rule tables (`layout`, `spatial`, `compute`, ...) and the walk that applies them.
Decides nothing itself: no rule lives here.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from slicewise.core.notes import Note
from slicewise.core.precision import DType

Shape: TypeAlias = tuple[int, ...]
Array: TypeAlias = NDArray[Any]

# Only small tensors are worth knowing by value: shapes, axes, pads, sizes, scales, ranges.
VALUE_LIMIT = 4096

FLOAT: int = onnx.TensorProto.FLOAT
INT64: int = onnx.TensorProto.INT64
INT32: int = onnx.TensorProto.INT32
UINT8: int = onnx.TensorProto.UINT8
UINT32: int = onnx.TensorProto.UINT32
BOOL: int = onnx.TensorProto.BOOL


class Unknown(Exception):
    """A rule lacks a shape or a value to go on. Never leaves the shape modules."""


class Contradiction(Exception):
    """The inputs of a node cannot go together; the text says which. The walk makes it a
    `ModelError` that names the node, or mends a baked batch. `wanted`: the shape that an input
    would have to have instead, by slot, where the rule can tell."""

    def __init__(self, text: str, wanted: "Mapping[int, Shape] | None" = None) -> None:
        super().__init__(text)
        self.wanted = wanted or {}


class Fact:
    """What is known of one value: shape, ONNX element type (0 unknown), content if small.

    A sequence has the shape of its largest element; `parts` lists every element's shape where
    they are known. Compared by identity: a value that did not change keeps its very fact. Treat
    as frozen; `source` gives the content when it is first asked for, `depth` is the number of
    such sources that one question may set off in a row.
    """

    __slots__ = ("_source", "_value", "depth", "dtype", "parts", "shape")

    def __init__(
        self,
        shape: Shape | None = None,
        dtype: int = 0,
        value: Array | None = None,
        parts: tuple[Shape, ...] | None = None,
        *,
        source: Callable[[], Array | None] | None = None,
        depth: int = 0,
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.parts = parts
        self.depth = depth
        self._value = value
        self._source = source

    @property
    def value(self) -> Array | None:
        """The content, None where it is not known or not small."""
        if self._source is not None:
            self._value, self._source, self.depth = self._source(), None, 0
        return self._value

    @property
    def is_unknown(self) -> bool:
        """True if neither the shape nor, for a sequence, its elements' shapes are known."""
        return self.shape is None and self.parts is None

    def __repr__(self) -> str:
        return f"Fact({show(self.shape)}, {self.dtype}, {self.value}, {self.parts})"


NOTHING = Fact()


class Op:
    """One node as a rule sees it: facts of its inputs, typed attributes, room for notes.

    An absent optional input is None. Reading a shape or value that is not known raises `Unknown`.
    """

    __slots__ = ("_attributes", "inputs", "node", "notes", "type", "version")

    def __init__(
        self,
        node: onnx.NodeProto,
        inputs: Sequence[Fact | None],
        *,
        version: int,
    ) -> None:
        self.node = node
        self.type: str = node.op_type
        self.inputs = inputs
        self.version = version
        self.notes: list[Note] = []
        self._attributes: dict[str, onnx.AttributeProto] | None = None

    @property
    def label(self) -> str:
        """What to call the node in a message: its name, else its first output."""
        return label_of(self.node)

    def has(self, slot: int) -> bool:
        """True if input `slot` is given."""
        return slot < len(self.inputs) and self.inputs[slot] is not None

    def fact(self, slot: int) -> Fact:
        """What is known of input `slot`; `Unknown` if it is absent."""
        found = self.inputs[slot] if slot < len(self.inputs) else None
        if found is None:
            raise Unknown
        return found

    def shape(self, slot: int = 0) -> Shape:
        """Shape of input `slot`."""
        shape = self.fact(slot).shape
        if shape is None:
            raise Unknown
        return shape

    def dtype(self, slot: int = 0) -> int:
        """ONNX element type of input `slot`, 0 where unknown or absent."""
        return self.fact(slot).dtype if self.has(slot) else 0

    def value(self, slot: int) -> Array:
        """Content of input `slot`."""
        value = self.fact(slot).value
        if value is None:
            raise Unknown
        return value

    def values(self, slot: int) -> list[int]:
        """Content of input `slot` as a flat list of integers."""
        return [int(x) for x in self.value(slot).ravel()]

    def like(self, shape: Sequence[int], slot: int = 0) -> Fact:
        """A fact of this shape with the element type of input `slot`."""
        return Fact(tuple(shape), self.dtype(slot))

    @property
    def outputs(self) -> int:
        """Number of output slots, unused ones between used ones included."""
        return len(self.node.output)

    def attribute(self, name: str) -> onnx.AttributeProto | None:
        """The attribute called `name`, None if the node leaves it out."""
        if self._attributes is None:
            self._attributes = {a.name: a for a in self.node.attribute}
        return self._attributes.get(name)

    def integer(self, name: str, default: int) -> int:
        """Integer attribute."""
        found = self.attribute(name)
        return default if found is None else int(found.i)

    def number(self, name: str, default: float) -> float:
        """Float attribute."""
        found = self.attribute(name)
        return default if found is None else float(found.f)

    def text(self, name: str, default: str) -> str:
        """String attribute."""
        found = self.attribute(name)
        return default if found is None else bytes(found.s).decode("utf-8", "replace")

    def ints(self, name: str) -> list[int] | None:
        """Integer-list attribute, None if absent."""
        found = self.attribute(name)
        return None if found is None else list(found.ints)

    def floats(self, name: str) -> list[float] | None:
        """Float-list attribute, None if absent."""
        found = self.attribute(name)
        return None if found is None else list(found.floats)

    def ints_from(self, name: str, slot: int) -> list[int] | None:
        """Integer list given as input `slot` (newer opsets) or as attribute `name`."""
        return self.values(slot) if self.has(slot) else self.ints(name)

    def bounded(self, what: str) -> None:
        """Leave the note that an output's size depends on data and `what` is its upper bound."""
        self.notes.append(
            Note("shape-upper-bound", f"{self.type}: size depends on data; {what}", self.label)
        )


def label_of(node: onnx.NodeProto) -> str:
    """Return what to call a node in a message: its name, else its first output."""
    return str(node.name or next(filter(None, node.output), node.op_type))


def words(text: str) -> list[str]:
    """Return the words of a table that is written as a paragraph."""
    return text.split()


def axis_of(axis: int, rank: int) -> int:
    """Return `axis` counted from the front; `Contradiction` if outside [-rank, rank)."""
    if not -rank <= axis < rank:
        raise Contradiction(f"axis {axis} is outside a tensor of rank {rank}")
    return axis + rank if axis < 0 else axis


def broadcast(*shapes: Shape) -> Shape:
    """Return the shape that all `shapes` broadcast to (numpy rules, ONNX Broadcasting).

    >>> broadcast((8, 1, 3), (4, 1))
    (8, 4, 3)
    """
    result = shapes[0]
    for shape in shapes[1:]:
        if shape != result:
            result = _broadcast_pair(result, shape)
    return result


def _broadcast_pair(a: Shape, b: Shape) -> Shape:
    if len(a) < len(b):
        a, b = b, a
    front = len(a) - len(b)
    joined = list(a)
    for i, y in enumerate(b, front):
        x = a[i]
        if x != y:
            if x == 1:
                joined[i] = y
            elif y != 1:
                raise Contradiction(f"{show(a)} and {show(b)} do not broadcast")
    return tuple(joined)


def show(shape: Sequence[int] | None) -> str:
    """Return a shape as people write it: `[1,3,224,224]`."""
    return "[?]" if shape is None else f"[{','.join(map(str, shape))}]"


def constant_value(tensor: onnx.TensorProto) -> Array | None:
    """Return the content of a small constant, None if it is large or its bytes are not here."""
    elements = math.prod(tensor.dims)
    if elements > VALUE_LIMIT or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None
    if tensor.data_type in _UNREADABLE:
        return None
    plain = _PLAIN.get(tensor.data_type)
    raw = tensor.raw_data
    if plain is not None and len(raw) == elements * plain.itemsize > 0:
        return np.frombuffer(raw, plain).reshape(tuple(tensor.dims))
    try:
        return np.asarray(onnx.numpy_helper.to_array(tensor))
    except (ValueError, TypeError, IndexError, KeyError, AttributeError):
        # dims without bytes: a model whose weights were taken out
        return None


# The types that shapes, axes and scales come in, little-endian (onnx.proto, TensorProto).
_PLAIN: Mapping[int, np.dtype[Any]] = {
    INT64: np.dtype("<i8"),
    INT32: np.dtype("<i4"),
    FLOAT: np.dtype("<f4"),
}
_UNREADABLE = frozenset({onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING})


def tensor_fact(tensor: onnx.TensorProto) -> Fact:
    """Return what a constant tensor tells: shape, type, content where small."""
    return Fact(tuple(tensor.dims), tensor.data_type, source=partial(constant_value, tensor))


def type_fact(proto: onnx.TypeProto) -> Fact:
    """Return what a type says; shape None unless every dimension is a number."""
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        return Fact(_concrete(proto.tensor_type), proto.tensor_type.elem_type)
    if kind == "sparse_tensor_type":
        sparse = proto.sparse_tensor_type
        return Fact(_concrete(sparse), sparse.elem_type)
    if kind in ("sequence_type", "optional_type"):
        return type_fact(getattr(proto, kind).elem_type)
    return NOTHING


def _concrete(tensor: onnx.TypeProto.Tensor) -> Shape | None:
    if not tensor.HasField("shape"):
        return None
    dims = tensor.shape.dim
    shape = tuple([dim.dim_value for dim in dims])
    if (
        shape
        and min(shape) < 1
        and any(d.dim_value < 0 or not d.HasField("dim_value") for d in dims)
    ):
        return None  # a free dimension reads as 0 too; a true 0 is legal
    return shape


def _core_dtype(name: str) -> DType:
    word = name.lower()
    if word in _WORDS:
        return _WORDS[word]
    if word.startswith(("float8", "float6")):
        # NOTE: six-bit floats are kept in a byte each by every runtime that has them
        return DType.FP8
    if word.startswith("float4"):
        return DType.FP4
    return _BY_VALUE.get(word, DType.UNKNOWN)


_BY_VALUE = {dtype.value: dtype for dtype in DType}
_WORDS: Mapping[str, DType] = {
    "float": DType.FP32,
    "double": DType.FP64,
    "float16": DType.FP16,
    "bfloat16": DType.BF16,
    "undefined": DType.UNKNOWN,
}

# Derived from the enumeration of the installed onnx, so that older and newer ones both work.
CORE_DTYPES: Mapping[int, DType] = {
    number: _core_dtype(name) for name, number in onnx.TensorProto.DataType.items()
}


def core_dtype(elem_type: int) -> DType:
    """Return the core type of an ONNX element type; `UNKNOWN` for one this onnx lacks."""
    return CORE_DTYPES.get(elem_type, DType.UNKNOWN)
