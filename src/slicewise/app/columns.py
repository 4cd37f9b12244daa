"""Columns of a table, of which the least wanted give way on a narrow terminal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

_GAP = 2  # between two columns


class Ranked(Protocol):
    """A column: the last in rank gives way first, rank 0 never."""

    @property
    def rank(self) -> int:
        """Its place in the order of giving way."""


_Ranked = TypeVar("_Ranked", bound=Ranked)
_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[_Row]):
    """One column of a table whose rows are things of one type."""

    head: str
    rank: int
    cell: Callable[[_Row], str]
    numeric: bool = True


def columns_for(
    columns: Sequence[Column[_Row]], rows: Sequence[_Row], *, room: int
) -> list[Column[_Row]]:
    """Return the columns that fit into `room` characters with what they show of `rows`."""
    return columns_that_fit(
        columns,
        lambda column: _GAP + max(len(column.head), *(len(column.cell(row)) for row in rows)),
        room=room,
    )


def columns_that_fit(
    columns: Sequence[_Ranked], width: Callable[[_Ranked], int], *, room: int
) -> list[_Ranked]:
    """Return the columns that fit into `room`, those of the highest rank left out first."""
    left = list(columns)
    while sum(map(width, left)) > room and max(column.rank for column in left) > 0:
        left.remove(max(left, key=lambda column: column.rank))
    return left
