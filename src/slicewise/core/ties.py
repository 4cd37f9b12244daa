"""Ranking of computed figures: what differs by rounding alone is a tie."""

from collections.abc import Callable, Sequence
from typing import TypeVar

_Thing = TypeVar("_Thing")

# Sums of the same terms in another order, times on a grid: far below what a prediction can tell.
TIE = 1e-9


def places(values: Sequence[float]) -> list[int]:
    """Return the place of each value in ascending order, from 0; values that differ by a part in
    10^9 at most share one.

    >>> places([2.0, 1.0, 1.0 + 1e-12, 3.0])
    [1, 0, 0, 2]
    """
    found = [0] * len(values)
    order = sorted(range(len(values)), key=values.__getitem__)
    place, before = 0, None
    for i in order:
        value = values[i]
        if before is not None and value - before > TIE * max(abs(value), abs(before)):
            place += 1
        found[i], before = place, value
    return found


def least(things: Sequence[_Thing], cost: Callable[[_Thing], float]) -> _Thing:
    """Return the first of the things that cost least; there must be one.

    >>> least([3.0, 1.0 + 1e-12, 1.0], float)
    1.000000000001
    """
    return things[places([cost(thing) for thing in things]).index(0)]
