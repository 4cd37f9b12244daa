"""The dimensions of a model's inputs as the file declares them, and what types it leaves open.

Reads a ModelProto and gives values; it must not choose sizes (that is `bind.py`).
"""

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx

from slicewise.core.errors import ModelError
from slicewise.core.notes import Note
from slicewise.graph.check import bodies_of, initialiser_names, listed

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of an input: a number, or a name by which the user can bind it.

    `written` is what the file has instead of a number above zero.
    """

    value: int | None
    symbol: str = ""
    written: str = ""

    def __str__(self) -> str:
        return self.symbol if self.value is None else str(self.value)


@dataclass(frozen=True, slots=True)
class Input:
    """A real input; `axes` is None where the model does not even give a rank.

    `given` says that the axes are the user's, not the model's.
    """

    name: str
    axes: tuple[Axis, ...] | None
    given: bool = False

    def __str__(self) -> str:
        if self.axes is None:
            return "of any shape"
        cross = " x " if any(axis.value is None for axis in self.axes) else "x"
        return cross.join(map(str, self.axes)) or "scalar"


def declared_inputs(model: onnx.ModelProto, *, label: str) -> tuple[Input, ...]:
    """Return the inputs that are not initialisers; `ModelError` if some are not tensors."""
    constant = initialiser_names(model.graph)
    inputs: list[Input] = []
    unusable: list[str] = []
    for value in model.graph.input:
        if value.name in constant:
            continue
        tensor = tensor_type_of(value.type)
        if tensor is None:
            unusable.append(f"{value.name!r} ({_kind_of_type(value.type)})")
            continue
        axes = None
        if tensor.HasField("shape"):
            axes = tuple(_axis(value.name, i, dim) for i, dim in enumerate(tensor.shape.dim))
        inputs.append(Input(value.name, axes))
    if unusable:
        raise ModelError(
            f"{label} takes inputs that are not tensors: {', '.join(unusable)}; only tensors can"
            " be bound to a shape; export it with tensor inputs"
        )
    return tuple(inputs)


def tensor_type_of(kind: onnx.TypeProto) -> "onnx.TypeProto.Tensor | None":
    """Return the tensor type of a value, looking through optional(tensor); None otherwise."""
    if kind.HasField("optional_type"):
        kind = kind.optional_type.elem_type
    return kind.tensor_type if kind.HasField("tensor_type") else None


def _kind_of_type(kind: onnx.TypeProto) -> str:
    which = kind.WhichOneof("value")
    return "of no type" if which is None else str(which).removesuffix("_type").replace("_", " ")


def _axis(input_name: str, i: int, dim: onnx.TensorShapeProto.Dimension) -> Axis:
    if dim.HasField("dim_value") and dim.dim_value > 0:
        return Axis(dim.dim_value)
    symbol = dim.dim_param.strip()
    # exporters write an unnamed free dimension as '?', -1, 0 or nothing at all
    if symbol in ("", "?", "None", "none") or re.fullmatch(r"-?\d+", symbol):
        symbol = f"{input_name}.{i}"
    return Axis(None, symbol, str(dim.dim_value) if dim.HasField("dim_value") else "")


def free_symbols(inputs: Sequence[Input]) -> tuple[str, ...]:
    """Return the names of free dimensions of the inputs, in order of appearance."""
    axes = (axis for each in inputs for axis in each.axes or ())
    return tuple(dict.fromkeys(axis.symbol for axis in axes if axis.value is None))


def inner_symbols(model: onnx.ModelProto) -> Iterator[str]:
    """Yield symbols of outputs and inner values: data-dependent ones appear only there."""
    for value in (*model.graph.output, *model.graph.value_info):
        tensor = tensor_type_of(value.type)
        if tensor is not None:
            yield from (dim.dim_param for dim in tensor.shape.dim if dim.dim_param)


# --- element types


def type_notes(model: onnx.ModelProto) -> tuple[Note, ...]:
    """Return a note that names inputs and weights whose element type nothing here knows."""
    unknown: dict[str, int] = {}
    for value in model.graph.input:
        tensor = tensor_type_of(value.type)
        if tensor is not None and not _is_type(tensor.elem_type):
            unknown[value.name] = tensor.elem_type
    for weight in _weights_of(model.graph):
        if not _is_type(weight.data_type):
            unknown[weight.name] = weight.data_type
    if not unknown:
        return ()
    undefined = listed(name for name, number in unknown.items() if not number)
    other = listed(name for name, number in unknown.items() if number)
    parts = [f"{undefined} of no element type"] if undefined else []
    if other:
        numbers = ", ".join(str(number) for number in sorted({*unknown.values()} - {0}))
        parts.append(f"{other} of element type {numbers}, which the installed onnx does not know")
    text = f"4 bytes are counted for each element of {' and '.join(parts)}"
    return (Note("type-unknown", text),)


def _is_type(number: int) -> bool:
    return number != onnx.TensorProto.UNDEFINED and number in onnx.TensorProto.DataType.values()


def _weights_of(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the initialisers of a graph and of the bodies within."""
    yield from graph.initializer
    yield from (sparse.values for sparse in graph.sparse_initializer)
    for node in graph.node:
        for body in bodies_of(node):
            yield from _weights_of(body)


# --- arithmetic: exporters write derived dimensions as 'past_length + 1', '2*s0', 's0//2'

_OPERATORS: Mapping[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
}


def parts_of(symbol: str, free: Sequence[str]) -> tuple[str, ...]:
    """Return the symbols that `symbol` is arithmetic on; () where it is a plain name.

    'encoder-length' is read as a name unless one of its parts is itself a free dimension.
    """
    if re.fullmatch(r"\w+", symbol):
        return ()
    tree = _parse(symbol)
    names = tuple(n.id for n in ast.walk(tree) if isinstance(n, ast.Name)) if tree else ()
    return names if any(name in free for name in names) else ()


def value_of(symbol: str, values: Mapping[str, int], free: Sequence[str]) -> int | None:
    """Return what `symbol` is bound to, by itself or through its parts; None if it is not."""
    if symbol in values or not parts_of(symbol, free):
        return values.get(symbol)
    tree = _parse(symbol)
    value = None if tree is None else _evaluate(tree, values)
    return value if value is not None and value > 0 else None


def _parse(symbol: str) -> ast.expr | None:
    if len(symbol) > 200:
        return None
    try:
        tree = ast.parse(symbol, mode="eval").body
    except (SyntaxError, ValueError):
        return None
    legal = (ast.BinOp, ast.Name, ast.Constant, ast.operator, ast.expr_context)
    return tree if all(isinstance(node, legal) for node in ast.walk(tree)) else None


def _evaluate(tree: ast.expr, values: Mapping[str, int]) -> int | None:
    """Return the value of arithmetic on bound symbols; None where it has none."""
    if isinstance(tree, ast.Constant):
        return tree.value if isinstance(tree.value, int) else None
    if isinstance(tree, ast.Name):
        return values.get(tree.id)
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
        left, right = _evaluate(tree.left, values), _evaluate(tree.right, values)
        divides = isinstance(tree.op, ast.FloorDiv | ast.Div)
        if left is None or right is None or (divides and right == 0):
            return None
        return _OPERATORS[type(tree.op)](left, right)
    return None
