"""Choosing between several ways to mend: first the most likely ones, others where those fail.

Depth first over the choices in the order they come up. Cases that look alike are decided alike,
so that a model of many equal layers has few choices. Knows nothing of graphs.
"""

from collections.abc import Hashable, Mapping
from typing import Self


class Mixed(Exception):
    """Items of the batch are mixed, so that an earlier choice was wrong, or the model means it.

    Never leaves the shape modules.
    """


class Choices:
    """Which way is taken in each case that has several.

    >>> choices = Choices()
    >>> choices.pick("a", 2), choices.pick("b", 2), choices.pick("a", 2)
    (0, 0, 0)
    >>> second = choices.next()
    >>> second.pick("a", 2), second.pick("b", 2), second.next().pick("a", 2)
    (0, 1, 1)
    """

    def __init__(self, fixed: Mapping[Hashable, int] | None = None) -> None:
        self._fixed = fixed or {}
        self._made: dict[Hashable, tuple[int, int]] = {}

    def pick(self, case: Hashable, count: int) -> int:
        """Return which of `count` ways to take."""
        if count == 1:
            return 0
        way, _ = self._made.setdefault(case, (self._fixed.get(case, 0), count))
        return min(way, count - 1)

    @property
    def are_open(self) -> bool:
        """True if there was a choice so far."""
        return bool(self._made)

    def again(self) -> Self:
        """Return choices that decide what came up as these did."""
        return type(self)({case: way for case, (way, _) in self._made.items()})

    def next(self) -> Self | None:
        """Return the choices to try after these, None if all were tried."""
        made = list(self._made.items())
        while made:
            case, (way, count) = made.pop()
            if way + 1 < count:
                fixed = {case: way for case, (way, _) in made}
                return type(self)({**fixed, case: way + 1})
        return None
