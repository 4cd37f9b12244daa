"""What one row of the ATen table is made of, and how it sees a call of an ATen operator.

Types only: the rows are in the other modules of the folder, `torch/convert.py` reads them. No
torch is imported; a call is looked at through the attributes that an FX node has.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from slicewise.core.graph import AttrValue


class Storage(Enum):
    """Who owns what an operator returns, where it does not work in place."""

    OWN = "the result is new"
    VIEW = "the result shares the storage of the first tensor"
    IF_STRIDED = "a view where the strides allow the new shape, else a copy"
    IF_DENSE = "the input itself where it is laid out as asked, else a copy"
    SAME = "the result is the first tensor; nothing runs"
    NOTHING = "no tensor comes back that anything is done for: a check, a hint"
    IF_CONVERTED = "the input itself where type and layout are as asked, else a copy"


class Values:
    """Shapes of FX values under one binding of the program's symbols.

    `symbols` gives each symbol its size; `found` replaces what the program itself says of a node,
    where it was worked out anew for another batch.
    """

    def __init__(self, symbols: Mapping[Any, int], found: Mapping[Any, Any] | None = None) -> None:
        self._symbols = dict(symbols)
        self._found = found or {}
        self._known: dict[Any, int | float] = {}

    def of(self, node: Any) -> Any:
        """Return the value that stands for a node's result: a fake tensor, a number, a tuple."""
        return self._found[node] if node in self._found else node.meta.get("val")

    def number(self, value: Any) -> int | float:
        """Return a size or scalar as a number: a plain one, a symbol, or a node that makes one."""
        if hasattr(value, "meta"):
            value = self.of(value)
        if isinstance(value, bool | int | float):
            return value
        expression = getattr(getattr(value, "node", None), "expr", None)
        if expression is None:
            raise TypeError(f"{value!r} is no number")
        return self.evaluate(expression)

    def evaluate(self, expression: Any) -> int | float:
        """Return the value of an expression of symbols; each is worked out once."""
        known = self._known.get(expression)
        if known is None:
            sizes = {s: _integer(self._symbols.get(s, 1)) for s in expression.free_symbols}
            bound = expression.xreplace(sizes)
            known = float(bound) if bound.is_integer is False else int(bound)
            self._known[expression] = known
        return known

    def unknown(self, value: Any) -> tuple[Any, ...]:
        """Return the symbols in the shape of a fake tensor, or in a size, that have no number."""
        sizes = value.shape if hasattr(value, "shape") else (value,)
        nodes = (getattr(size, "node", None) for size in sizes)
        expressions = (getattr(node, "expr", None) for node in nodes)
        symbols = (s for e in expressions if e is not None for s in e.free_symbols)
        return tuple(dict.fromkeys(s for s in symbols if s not in self._symbols))

    def bind(self, symbol: Any, size: int) -> None:
        """Give a symbol a number."""
        self._symbols[symbol] = size

    def shape(self, value: Any) -> tuple[int, ...]:
        """Return the shape of a fake tensor."""
        return tuple(d if type(d) is int else int(self.number(d)) for d in value.shape)

    def strides(self, value: Any) -> tuple[int, ...]:
        """Return the strides of a fake tensor, in elements."""
        return tuple(d if type(d) is int else int(self.number(d)) for d in value.stride())


def _integer(size: int) -> Any:
    import sympy

    return sympy.Integer(size)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an ATen operator: its arguments by the names of the schema."""

    node: Any
    arguments: Mapping[str, Any]
    values: Values

    def given(self, name: str) -> Any:
        """Return an argument as it stands in the program, None where absent."""
        return self.arguments.get(name)

    def integer(self, name: str, default: int = 0) -> int:
        """Return an argument as an integer."""
        value = self.arguments.get(name)
        return default if value is None else int(self.values.number(value))

    def number(self, name: str, default: float = 0.0) -> float:
        """Return an argument as a float."""
        value = self.arguments.get(name)
        return default if value is None else float(self.values.number(value))

    def integers(self, name: str) -> tuple[int, ...]:
        """Return an argument as integers; a single one gives one, None none."""
        value = self.arguments.get(name)
        if value is None:
            return ()
        entries = value if isinstance(value, list | tuple) else (value,)
        return tuple(int(self.values.number(entry)) for entry in entries)

    def tensor(self, name: str) -> Any:
        """Return the fake tensor behind an argument; of a list the first."""
        value = self.arguments[name]
        if isinstance(value, list | tuple):
            value = next(entry for entry in value if entry is not None)
        return self.values.of(value)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor argument."""
        return self.values.shape(self.tensor(name))

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Return the shape of the first result."""
        value = self.values.of(self.node)
        return self.values.shape(value[0] if isinstance(value, list | tuple) else value)


Attrs: TypeAlias = Mapping[str, AttrValue]
MakeAttrs: TypeAlias = Callable[[Call], Attrs]
MakeOp: TypeAlias = Callable[[Call], str]


@dataclass(frozen=True, slots=True)
class Row:
    """One row: what an ATen operator is in a Graph, whatever its overload.

    `op_type` is an ONNX operator where `domain` is '' (a function where that depends on the
    call). `inputs` are the arguments that become inputs, slot by slot; None: every tensor among
    the arguments, in order. `attrs` makes the attributes; none may depend on the batch. A name of
    an in-place twin ('relu_') needs no row of its own.
    """

    aten: str
    op_type: str | MakeOp
    inputs: tuple[str, ...] | None = None
    attrs: MakeAttrs | None = None
    storage: Storage = Storage.OWN
    domain: str = ""


def rows(pairs: str, **same: Any) -> Iterator[Row]:
    """Yield one row for each 'aten:OnnxName' of `pairs`, alike in all else."""
    for pair in pairs.split():
        aten, _, op_type = pair.partition(":")
        yield Row(aten, op_type, **same)


def own_rows(names: str, **same: Any) -> Iterator[Row]:
    """Yield one row for each operator that ONNX has no name for: it keeps ATen's."""
    for name in names.split():
        yield Row(name, name, domain=ATEN, **same)


ATEN = "torch.aten"
