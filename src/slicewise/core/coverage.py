"""What is known about the operators of a model: the answer of `support`."""

from dataclasses import dataclass
from enum import StrEnum

from slicewise.core.cost import Kind
from slicewise.core.document import ModelInfo
from slicewise.core.notes import Note


class Coverage(StrEnum):
    """How well an operator is priced."""

    FORMULA = "formula"  # arithmetic and bytes
    BYTES_ONLY = "bytes-only"  # in the table, its arithmetic is not modelled
    UNKNOWN = "unknown"  # in no table: bytes only


@dataclass(frozen=True, slots=True)
class OperatorSupport:
    """One operator of a model: how often it occurs and how it is priced."""

    op_type: str
    domain: str
    kind: Kind
    count: int
    coverage: Coverage


@dataclass(frozen=True, slots=True)
class Support:
    """Operators of a model, most frequent first. `covered` is true when all have a formula.

    >>> import slicewise
    >>> [row.op_type for row in slicewise.support(model).operators[:2]]
    ['Conv', 'BatchNormalization']
    """

    model: ModelInfo
    operators: tuple[OperatorSupport, ...]
    covered: bool
    notes: tuple[Note, ...]
