"""Ways to serve one workload: multisets of slices whose shares cover its rate, and the cheapest.

A pattern is complete once its shares sum to one; a slice without which they still do is never
needed. Where a workload has few patterns all are listed; otherwise they are found as asked for.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from slicewise.slices.packing.material import SHARE, Ints, Material, Option

# (place in the list of options, how often), in order of places
Pick = tuple[tuple[int, int], ...]

_MOST_PATTERNS = 200_000  # listed for all workloads together
_MOST_PRICE = 2**58
_MOST_NODES = 4_000  # of a search for the cheapest pattern; then a bound on it is taken


def cost_of(options: Sequence[Option], pick: Pick) -> int:
    """Return the cost of a pattern: the cheapest slices are filled, the dearest takes the rest."""
    rest, cost = SHARE, 0
    for i, count in sorted(pick, key=lambda each: options[each[0]].cost):
        taken = min(rest, count * options[i].share)
        cost += options[i].cost * taken
        rest -= taken
    return cost // SHARE


def covers(options: Sequence[Option], pick: Pick) -> bool:
    """True if the pattern serves all of the rate."""
    return sum(count * options[i].share for i, count in pick) >= SHARE


def all_patterns(
    options: Sequence[Option], smaller: Sequence[frozenset[int]], *, limit: int
) -> list[Pick] | None:
    """Return every pattern that could be needed, None if they are over `limit`.

    Left out are patterns with a slice too many, and, where only cards count, those in which a
    smaller slice would do in the place of one.
    """
    order = sorted(range(len(options)), key=lambda i: (options[i].cost, -options[i].share))
    is_free = all(each.cost == 0 for each in options)
    swaps = [
        [
            options[i].share - other.share
            for other in options
            if options[i].resource >= 0 and other.resource in smaller[options[i].resource]
        ]
        for i in range(len(options))
    ]
    least_swap = [min(each, default=SHARE + 1) for each in swaps]
    found: list[Pick] = []
    steps = 0

    def extend(place: int, rest: int, chosen: tuple[tuple[int, int], ...]) -> bool:
        nonlocal steps
        i = order[place]
        share = options[i].share
        steps += 1
        enough = -(-rest // share)
        whole = (*chosen, (i, enough))
        over = enough * share - rest
        if not (is_free and any(least_swap[j] <= over for j, _ in whole)):
            found.append(tuple(sorted(whole)))
        if len(found) > limit or steps > 20 * limit:
            return False
        if place + 1 == len(order):
            return True
        for count in range(enough - 1, -1, -1):
            more = (*chosen, (i, count)) if count else chosen
            if not extend(place + 1, rest - count * share, more):
                return False
        return True

    return found if extend(0, SHARE, ()) else None


@dataclass(frozen=True, slots=True)
class _Priced:
    """The options of a workload at prices, in the order in which patterns are built from them.

    All costs are in parts of 1 / SHARE, so that everything stays whole: `rent` of a slice, and
    `full` with what it costs to fill it. `suffix` is the least cost of a share (cost, share) among
    the options from a place on. Of a pattern the last option in this order takes the rest: slices
    that cost least to fill come first.
    """

    options: Sequence[Option]
    factor: int
    order: tuple[int, ...]
    rent: tuple[int, ...]
    full: tuple[int, ...]
    suffix: tuple[tuple[int, int], ...]

    def bound(self, place: int, rest: int) -> int:
        """Return what serving the rest costs at least, with options from a place on."""
        cost, share = self.suffix[place]
        return rest * cost // share

    def counts(self, place: int, rest: int, spent: int, top: int) -> range:
        """Return how many of the option at a place a pattern may have that costs `top` or less.

        From the most on; only where others follow. The bound on the whole is linear in the number,
        but for rounding: it ends where it passes `top` at one end of the range.
        """
        i = self.order[place]
        share = self.options[i].share
        full = self.full[i]

        def is_near(count: int) -> bool:
            left = rest - count * share
            return spent + count * full + self.bound(place + 1, left) <= top

        most, least = -(-rest // share) - 1, 0
        cost_after, share_after = self.suffix[place + 1]
        if full * share_after > cost_after * share:  # the more of it, the dearer
            if not is_near(least):
                return range(0)
            most = _last(least, most, is_near)
        else:
            if not is_near(most):
                return range(0)
            least = -_last(-most, -least, lambda count: is_near(-count))
        return range(most, least - 1, -1)

    def closed(self, i: int, enough: int, rest: int, spent: int) -> int:
        """Return the cost of a pattern that ends with as many of one option as are needed."""
        option = self.options[i]
        partly = rest - (enough - 1) * option.share
        return (
            spent + (enough - 1) * self.full[i] + self.rent[i]
            + option.cost * self.factor * partly
        )  # fmt: skip


def _priced(options: Sequence[Option], prices: Sequence[int], factor: int) -> _Priced:
    rent = [prices[o.resource] * SHARE if o.resource >= 0 else 0 for o in options]
    full = [r + o.cost * factor * o.share for r, o in zip(rent, options, strict=True)]
    order = sorted(
        range(len(options)), key=lambda i: (options[i].cost, full[i] / options[i].share)
    )
    suffix: list[tuple[int, int]] = []
    for i in reversed(order):
        here = (full[i], options[i].share)
        after = suffix[-1] if suffix else here
        suffix.append(min(here, after, key=lambda each: Fraction(*each)))
    return _Priced(
        options, factor, tuple(order), tuple(rent), tuple(full), tuple(reversed(suffix))
    )


def _last(first: int, end: int, is_so: Callable[[int], bool]) -> int:
    """Return the last number up to `end` of which it is so; it is of the first, and then not."""
    while first < end:
        middle = (first + end + 1) // 2
        if is_so(middle):
            first = middle
        else:
            end = middle - 1
    return first


def cheapest(options: Sequence[Option], prices: Sequence[int], factor: int) -> tuple[int, Pick]:
    """Return a bound on the cost of every pattern, and a good one; the best if few are looked at.

    The cost of a pattern is that of its slices at `prices` and `factor` times its own.
    """
    at = _priced(options, prices, factor)
    best: list[tuple[int, Pick]] = []
    nodes, open_bound = 0, None

    def extend(place: int, rest: int, spent: int, chosen: Pick) -> None:
        nonlocal nodes, open_bound
        if nodes >= _MOST_NODES:
            least = spent + at.bound(place, rest)
            open_bound = least if open_bound is None else min(open_bound, least)
            return
        nodes += 1
        i = at.order[place]
        share = options[i].share
        enough = -(-rest // share)
        cost = at.closed(i, enough, rest, spent)
        if not best or cost < best[0][0]:
            best[:] = [(cost, (*chosen, (i, enough)))]
        if place + 1 == len(at.order):
            return
        for count in at.counts(place, rest, spent, best[0][0] - 1):
            after, left = spent + count * at.full[i], rest - count * share
            if nodes >= _MOST_NODES:  # the bound of all that is not looked at any more
                least = spent + at.bound(place, rest)
                open_bound = least if open_bound is None else min(open_bound, least)
                return
            if after + at.bound(place + 1, left) < best[0][0]:
                extend(place + 1, left, after, (*chosen, (i, count)) if count else chosen)

    extend(0, SHARE, 0, ())
    value, pick = best[0]
    if open_bound is not None:
        value = min(value, open_bound)
    return value // SHARE, tuple(sorted(pick))


def near(
    options: Sequence[Option], prices: Sequence[int], factor: int, *, most: int, limit: int
) -> list[Pick] | None:
    """Return every pattern that costs `most` or less at the prices, None if they are too many."""
    at = _priced(options, prices, factor)
    top = (most + 1) * SHARE
    found: list[Pick] = []
    steps = 0

    def extend(place: int, rest: int, spent: int, chosen: Pick) -> bool:
        nonlocal steps
        steps += 1
        i = at.order[place]
        share = options[i].share
        enough = -(-rest // share)
        if at.closed(i, enough, rest, spent) <= top:
            found.append(tuple(sorted((*chosen, (i, enough)))))
        if len(found) > limit or steps > 20 * limit:
            return False
        if place + 1 == len(at.order):
            return True
        for count in at.counts(place, rest, spent, top):
            after, left = spent + count * at.full[i], rest - count * share
            more = (*chosen, (i, count)) if count else chosen
            if not extend(place + 1, left, after, more):
                return False
        return True

    return found if extend(0, SHARE, 0, ()) else None


@dataclass
class Patterns:
    """The patterns known of each workload, as arrays for pricing all at once.

    `is_complete` says of which workloads all are known. `usage` has a row for each pattern with
    the number of each resource, `cost` its own cost, `first` where a workload's rows begin.
    """

    material: Material
    picks: list[list[Pick]] = field(default_factory=list)
    is_complete: list[bool] = field(default_factory=list)
    usage: Ints = field(init=False)
    cost: Ints = field(init=False)
    first: Ints = field(init=False)
    _known: list[set[Pick]] = field(default_factory=list)
    _has_grown: bool = False

    def __post_init__(self) -> None:
        limit = max(60, min(4000, _MOST_PATTERNS // max(1, len(self.material.options))))
        for options in self.material.options:
            found = all_patterns(options, self.material.smaller, limit=limit)
            self.is_complete.append(found is not None)
            if found is None:
                found = [((i, -(-SHARE // o.share)),) for i, o in enumerate(options)]
            self.picks.append(found)
            self._known.append(set(found))
        self._stack()

    def __len__(self) -> int:
        return len(self.cost)

    @property
    def incomplete(self) -> list[int]:
        """The workloads of which not all patterns are known."""
        return [w for w, is_complete in enumerate(self.is_complete) if not is_complete]

    def usage_of(self, workload: int, pick: Pick) -> Ints:
        """Return the number of each resource that a pattern takes."""
        row = np.zeros(len(self.material.resources), dtype=np.int64)
        for i, count in pick:
            resource = self.material.options[workload][i].resource
            if resource >= 0:
                row[resource] += count
        return row

    def add(self, workload: int, pick: Pick) -> bool:
        """Keep a pattern; False if it was known. `stack` afterwards."""
        if pick in self._known[workload]:
            return False
        self._known[workload].add(pick)
        self.picks[workload].append(pick)
        self._has_grown = True
        return True

    def stack(self) -> None:
        """Rebuild the arrays if patterns were added."""
        if self._has_grown:
            self._stack()

    def _stack(self) -> None:
        count = len(self.material.resources)
        rows = [
            (self.usage_of(w, pick), cost_of(options, pick))
            for w, options in enumerate(self.material.options)
            for pick in self.picks[w]
        ]
        self.usage = np.array([row for row, _ in rows], dtype=np.int64).reshape(-1, count)
        self.cost = np.array([cost for _, cost in rows], dtype=np.int64)
        sizes = [len(each) for each in self.picks]
        self.first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._has_grown = False

    def factor_at(self, prices: npt.NDArray[np.float64]) -> int:
        """Return a factor with which no pattern's cost at these prices leaves 64 bits."""
        dearest = float((self.usage @ prices + self.cost).max(initial=1.0))
        return factor_for(max(dearest, 16 * float(prices.max(initial=1.0))))

    def priced(self, prices: Ints, factor: int) -> Ints:
        """Return the cost of every pattern: its slices at the prices, `factor` times its own."""
        return np.asarray(self.usage @ prices + factor * self.cost)

    def least(self, priced: Ints) -> tuple[Ints, Ints]:
        """Return each workload's least cost among the patterns known, and which row has it."""
        starts = self.first[:-1]
        least = np.minimum.reduceat(priced, starts)
        sizes = np.diff(self.first)
        hits = np.flatnonzero(priced == np.repeat(least, sizes))
        owners = np.searchsorted(self.first, hits, side="right") - 1
        _, places = np.unique(owners, return_index=True)
        return least, hits[places]


def whole_prices(prices: Sequence[float], factor: int) -> Ints:
    """Return prices as whole numbers, `factor` to one, never below 0 nor over 2^58.

    Any prices prove a bound: a lower one too.
    """
    return np.array(
        [min(_MOST_PRICE, max(0, math.floor(each * factor))) for each in prices], dtype=np.int64
    )


def factor_for(peak: float) -> int:
    """Return a power of two for prices: fine, and `peak` times it stays far within 64 bits.

    >>> factor_for(300.0)
    16777216
    """
    room = 2**58 // max(1, math.ceil(peak))
    return int(1 << max(0, min(24, room.bit_length() - 1)))
