"""What one row of the operator table is made of, and how its formulas see a node.

Types only. The rows are in `standard.py` and `contrib.py`, the formulas in
`contraction.py` and `arithmetic.py`; `ops.py` looks rows up. No weight value is read.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from slicewise.core.cost import Contraction, Kind
from slicewise.core.graph import Node, Tensor


class Slot(Enum):
    """What a constant read in an input slot is to the model (`role_of_slot` in `ops.py`)."""

    FLOW = "a float tensor of more than one element is a parameter"
    QFLOW = "as FLOW, and so is an integer tensor of at most 8 bits an element"
    WEIGHT = "a factor of a product, or a table: a float tensor of any size is a parameter"
    QWEIGHT = "as WEIGHT, and so is an integer tensor"
    PARAM = "a bias, scale or slope: a float tensor of any size is a parameter"
    BUFFER = "a float tensor is a running statistic"
    DATA = "never a parameter: scales, zero points, masks, limits, tables of sines"


@dataclass(frozen=True, slots=True)
class Seen:
    """A node with the tensors that it reads and writes; None stands for an omitted one."""

    node: Node
    reads: tuple[Tensor | None, ...]
    writes: tuple[Tensor | None, ...]

    def has(self, slot: int) -> bool:
        """True when the input `slot` is given."""
        return slot < len(self.reads) and self.reads[slot] is not None

    def has_output(self, slot: int) -> bool:
        """True when the output `slot` is wanted."""
        return slot < len(self.writes) and self.writes[slot] is not None

    def tensor(self, slot: int) -> Tensor:
        """Return the input `slot`; `ValueError` if it is not given."""
        tensor = self.reads[slot] if slot < len(self.reads) else None
        if tensor is None:
            raise ValueError(f"input {slot} is missing")
        return tensor

    def shape(self, slot: int, *, rank: int | None = None) -> tuple[int, ...]:
        """Return the shape of the input `slot`; `ValueError` if absent or not of that `rank`."""
        shape = self.tensor(slot).shape
        if shape is None:
            raise ValueError(f"input {slot} has no shape")
        if rank is not None and len(shape) != rank:
            raise ValueError(f"input {slot} has {len(shape)} axes instead of {rank}")
        return shape

    def elements(self, slot: int) -> int:
        """Return the number of elements of the input `slot`, 0 if it is not given."""
        return self.tensor(slot).elements if self.has(slot) else 0

    def out_shape(self, slot: int = 0) -> tuple[int, ...]:
        """Return the shape of the output `slot`; `ValueError` if it is not wanted."""
        tensor = self.writes[slot] if slot < len(self.writes) else None
        if tensor is None or tensor.shape is None:
            raise ValueError(f"output {slot} is missing or has no shape")
        return tensor.shape

    @property
    def out_elements(self) -> int:
        """Number of elements of the first wanted output, 0 if there is none."""
        return next((tensor.elements for tensor in self.writes if tensor is not None), 0)

    def integer(self, name: str, default: int) -> int:
        """Return the attribute `name` as an integer."""
        value = self.node.attrs.get(name, default)
        if not isinstance(value, int):
            raise ValueError(f"attribute {name} is {value!r}, not an integer")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """Return the attribute `name` as a tuple of integers, empty if absent."""
        value = self.node.attrs.get(name, ())
        if not isinstance(value, tuple):
            raise ValueError(f"attribute {name} is {value!r}, not a list of integers")
        return tuple(int(entry) for entry in value)

    def text(self, name: str, default: str) -> str:
        """Return the attribute `name` as text."""
        return str(self.node.attrs.get(name, default))

    def number(self, name: str, default: float) -> float:
        """Return the attribute `name` as a number."""
        value = self.node.attrs.get(name, default)
        if not isinstance(value, int | float):
            raise ValueError(f"attribute {name} is {value!r}, not a number")
        return value


@dataclass(frozen=True, slots=True)
class Product:
    """The multiply-adds of a node, its main product as a `Contraction`, its dependent steps."""

    macs: int
    contraction: Contraction | None
    steps: int = 1

    @staticmethod
    def of(batch: int, m: int, n: int, k: int, *, steps: int = 1) -> "Product":
        """Return `batch` matrix products [m, k] x [k, n]."""
        return Product(batch * m * n * k, Contraction(batch, m, n, k), steps)


Macs: TypeAlias = Callable[[Seen], Product]
Flops: TypeAlias = Callable[[Seen], int]
Elements: TypeAlias = Callable[[Seen], int]


@dataclass(frozen=True, slots=True)
class Operator:
    """One row: what an operator computes and moves.

    `macs` gives its multiply-adds, `flops` its other arithmetic (2 x macs not included). `slots`
    tells what constants are in an input slot, `other_slots` what they are in all others. `reads`
    and `writes` give, by input or output slot, the number of elements moved where that is fewer
    than all. `is_integer`: the arithmetic is 8-bit integer. `is_bytes_only`: no arithmetic is
    counted, which leaves a Note.
    """

    op_type: str
    kind: Kind
    domain: str = ""
    macs: Macs | None = None
    flops: Flops | None = None
    slots: Mapping[int, Slot] = field(default_factory=dict)
    reads: Mapping[int, Elements] = field(default_factory=dict)
    writes: Mapping[int, Elements] = field(default_factory=dict)
    other_slots: Slot = Slot.FLOW
    is_integer: bool = False
    is_bytes_only: bool = False


def nothing(seen: Seen) -> int:
    """Return 0: the slot is looked at for its shape or type only."""
    return 0


def unless_in_place(seen: Seen) -> int:
    """Return the elements of the first input, 0 where the result is written into its storage."""
    return 0 if seen.node.storage_of else seen.elements(0)


def updated(seen: Seen) -> int:
    """Return the elements that a scatter writes: in place no more than its updates have."""
    if not seen.node.storage_of:
        return seen.out_elements
    given = [tensor.elements for tensor in seen.reads[1:] if tensor is not None]
    return min(seen.out_elements, max(given, default=seen.out_elements))


def as_written(seen: Seen) -> int:
    """Return the elements of the first output: one is read for each that is written."""
    return seen.out_elements


def all_written(seen: Seen) -> int:
    """Return the elements of all outputs."""
    return sum(tensor.elements for tensor in seen.writes if tensor is not None)


def product(shape: tuple[int, ...]) -> int:
    """Return the number of elements of `shape`."""
    return math.prod(shape)
