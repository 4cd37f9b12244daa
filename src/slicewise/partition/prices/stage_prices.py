"""A lower bound by prices of nodes: some stage is worth its share, and what is costs so much.

With any prices p >= 0 of the nodes, one of k stages is worth p(V) / k or more. So no cut is
faster than the cheapest set S with p(S) >= p(V) / k at cost f(S): its work, and once each tensor
with nodes inside of S and outside. A stage is such a set; that S need not be convex only makes the
bound lower (on NASNet by 0.2 %, in a quarter of the time). With p = work it is the bottleneck-
stage bound. The best prices are the dual of covering all nodes by the fewest sets with
f(S) < T: where that takes more than k, in parts of sets too, no cut is below T (the pricing of
column generation, Gilmore and Gomory 1961).

f is found by a dynamic program over an order of the nodes in which few tensors are alive at once
(`price_kernels`), in whole numbers, costs rounded down. Prices come by trial: those of the nodes
in a set that is worth too much fall, the others rise. Only the prices matter for the proof, so
that one run of the program proves the bound again.
"""

import base64
import binascii
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from slicewise.core.errors import Infeasible
from slicewise.core.pipeline import Bound, PipelineProblem, Trust
from slicewise.partition.compiled import is_compiled
from slicewise.partition.contract import contract
from slicewise.partition.prices.price_kernels import FAR, Ints, sweep
from slicewise.partition.solvers.rounding import (
    Rounded,
    explain_refusal,
    float_below,
    round_down,
)

METHOD = "stage-prices"
MAX_NODES = 8000
_MOST_ALIVE = 31  # tensors at once: two bits of a state each
_MOST_CELLS, _PLAIN_CELLS = 400_000_000, 4_000_000  # of one sweep: a second, 1 GB at most
_MOST_SHARE = 100_000  # prices a stage may be worth, where they are read from a bound
_LOOK = 64  # nodes that may come next, of which the best is taken
_CUTS = (200, 500)  # whole prices that a stage's share is cut into: to search, to end
_TOP = 1.3  # shares: worth that is told apart
_NOTED = 0.7  # shares: sets from which prices learn
_STEP = 1.05  # of the bound: what is tried for next
_RATE, _LEAST_RATE, _SLOWER = 0.3, 0.1, 0.7  # the power by which prices follow worths
_TRIAL = 24  # sweeps, after which the bound must be above what is known
_PATIENCE = 8  # sweeps without a better bound, before prices go back and change less
_UNSEEN = 0.9  # worth, in shares, that a node in no set is taken to have: its price rises

Floats = NDArray[np.float64]


def supports(problem: PipelineProblem) -> str:
    """Return '' or why the bound does not apply to a problem."""
    if problem.nodes > MAX_NODES:
        return f"{problem.nodes} nodes are more than {MAX_NODES}"
    if problem.overlaps:
        return "what a stage receives and sends is not added to its work"
    return explain_refusal(problem)


def price_bound(
    problem: PipelineProblem,
    *,
    incumbent: float,
    lower: float = 0.0,
    deadline: Callable[[], bool] = lambda: False,
    report: Callable[[Bound], None] = lambda _: None,
) -> Bound | None:
    """Return the best bound in ms that prices prove until `deadline`, at most `incumbent`.

    Gives up after some sweeps that prove less than `lower`, a bound known already. None where the
    order of the nodes leaves too many tensors alive. `report` is told of each better one.
    `problem` is best a contracted one; `detail` has the prices of its nodes.
    """
    if supports(problem) or not 0 < incumbent < math.inf:
        return None
    rounded = round_down(problem, load_ms=incumbent)
    line = _line_of(rounded)
    if line is None or not rounded.total:
        return None
    search = _Search(rounded, line, rounded.from_ms(incumbent), report)
    search.run(deadline, lower=rounded.from_ms(lower))
    return search.bound


def recheck(problem: PipelineProblem, bound: Bound) -> bool | None:
    """Return True if the bound is proven again by its prices; None where it is not."""
    text, unit = bound.detail.get("prices"), bound.detail.get("scale_ms")
    if supports(problem) or not isinstance(text, str) or not isinstance(unit, float):
        return None
    if not bound.value <= unit < math.inf:  # else whole numbers are not of the size they were
        return None
    try:
        smaller = contract(problem).problem
    except Infeasible:
        return True
    price = _unpacked(text)
    rounded = round_down(smaller, load_ms=unit)
    line = _line_of(rounded)
    if line is None or len(price) != smaller.nodes or not price.any():
        return None
    target = math.ceil(Fraction(bound.value) * rounded.scale)
    if target >= FAR or price.sum() > _MOST_SHARE * rounded.stages:
        return None
    found = _cheapest(line, price[line.order], rounded.stages, target)
    return True if found is not None and found >= target else None


@dataclass(frozen=True, slots=True)
class _Line:
    """Nodes in an order, and the tensors of each, as `sweep` takes them."""

    order: Ints
    work: Ints
    start: Ints
    slot: Ints
    cost: Ints
    place: Ints


@dataclass
class _Search:
    """The best bound so far, and the prices that prove it."""

    rounded: Rounded
    line: _Line
    incumbent: int
    report: Callable[[Bound], None]
    bound: Bound | None = None
    proven: int = 0

    def run(self, deadline: Callable[[], bool], *, lower: int) -> None:
        """Let prices follow what sets are worth; go back to the best where that does not help."""
        work = self.line.work.astype(np.float64)
        best = prices = _shared(work)
        tried = 0
        for cuts in _CUTS:
            rate, failed = _RATE, 0
            prices = best
            while rate > _LEAST_RATE and self.proven < self.incumbent and not deadline():
                worths = self.sweep(prices, cuts)
                tried += 1
                if worths is None or (tried >= _TRIAL and self.proven < lower):
                    return
                is_better, follow = worths
                if is_better:
                    best, failed = prices, 0
                else:
                    failed += 1
                if failed == _PATIENCE:
                    prices, rate, failed = best, rate * _SLOWER, 0
                    continue
                prices = _shared(prices * np.clip(follow, 0.5, 1.6) ** -rate)

    def sweep(self, prices: Floats, cuts: int) -> tuple[bool, Floats] | None:
        """Try prices: are they better, and the worth in shares of the dearest set of each node."""
        stages = self.rounded.stages
        price = np.round(prices * stages * cuts).astype(np.int64)
        share = -(-int(price.sum()) // stages)
        target = self.incumbent
        if self.proven:
            target = min(target, math.ceil(self.proven * _STEP))
        limit = np.full(int(_TOP * share) + 1, target - 1, np.int64)
        limit[:share] = np.minimum(
            target - 1,
            _limits(self.line.work, price, share, target) + int((1 - _NOTED) * target),
        )
        least, states, starts, members, worths = sweep(
            self.line.work, price, self.line.start, self.line.slot, self.line.cost,
            self.line.place, limit, share, int(_NOTED * share), _most_cells(), True,
        )  # fmt: skip
        if states < 0:
            return None
        value = min(int(least), target)
        is_better = value > self.proven
        if is_better:
            self.keep(value, price)
        seen = np.zeros(len(price))
        np.maximum.at(seen, members, np.repeat(worths / share, np.diff(starts)))
        return is_better, np.where(seen > 0, seen, _UNSEEN)

    def keep(self, value: int, price: Ints) -> None:
        """Record a bound and tell of it."""
        self.proven = value
        original = np.zeros(len(price), np.int64)
        original[self.line.order] = price
        detail = {
            "scale_ms": float(self.incumbent / self.rounded.scale),
            "rounding": "costs down",
            "prices": _packed(original),
        }
        ms = float_below(Fraction(value) / self.rounded.scale)
        self.bound = Bound(METHOD, ms, Trust.CHECKED, detail)
        self.report(self.bound)


def _shared(prices: Floats) -> Floats:
    """Return prices that sum to 1, none of them next to nothing: those could never rise again."""
    prices = np.maximum(prices, 1e-3 * prices.mean())
    return prices / float(prices.sum())


def _most_cells() -> int:
    return _MOST_CELLS if is_compiled() else _PLAIN_CELLS


def _cheapest(line: _Line, price: Ints, stages: int, target: int) -> int | None:
    """Return the least cost of a set worth its share, or `target` where none is below it."""
    share = -(-int(price.sum()) // stages)
    limit = np.minimum(target - 1, np.append(_limits(line.work, price, share, target), target))
    least, states, *_ = sweep(
        line.work, price, line.start, line.slot, line.cost, line.place, limit, share, share,
        _most_cells(), False,
    )  # fmt: skip
    return None if states < 0 else min(int(least), target)


def _limits(work: Ints, price: Ints, share: int, target: int) -> Ints:
    """Return for each worth below `share` the most a set of it may cost, to stay below `target`.

    The rest of the share costs work at least: the nodes with the least work for their price,
    parts of nodes too.
    """
    priced = price > 0
    order = np.argsort(work[priced] / price[priced], kind="stable")
    worth = np.concatenate(([0], np.cumsum(price[priced][order])))
    least = np.concatenate(([0], np.cumsum(work[priced][order])))
    rest = np.interp(share - np.arange(share), worth, least)
    return target - np.floor(rest * (1 - 1e-12)).astype(np.int64)


def _line_of(rounded: Rounded) -> _Line | None:
    """Return the nodes in the order with the fewest tensors alive; None: too many at once."""
    nodes = len(rounded.work)
    inputs: list[set[int]] = [set() for _ in range(nodes)]
    outputs: list[set[int]] = [set() for _ in range(nodes)]
    edges: list[list[int]] = [[] for _ in range(nodes)]
    sizes = []
    for index, tensor in enumerate(rounded.tensors):
        for node in tensor.consumers:
            inputs[node].add(tensor.producer)
            outputs[tensor.producer].add(node)
        ends = {tensor.producer, *tensor.consumers}
        sizes.append(len(ends))
        for node in ends:
            edges[node].append(index)
    orders = [
        list(range(nodes)),
        _narrow_order(inputs, outputs, edges, sizes),
        _narrow_order(outputs, inputs, edges, sizes),
    ]
    widths = [_alive(order, edges, sizes) for order in orders]
    best = min(range(len(orders)), key=lambda i: (sum(2.0**alive for alive in widths[i]), i))
    if max(widths[best], default=0) > _MOST_ALIVE:
        return None
    return _laid_out(rounded, orders[best], edges, sizes)


def _narrow_order(
    before: Sequence[set[int]], after: Sequence[set[int]], edges: Sequence[Sequence[int]],
    sizes: Sequence[int],
) -> list[int]:  # fmt: skip
    """Return a topological order by greed: the node that leaves the fewest tensors alive next."""
    waits = [len(nodes) for nodes in before]
    left, touched = list(sizes), [0] * len(before)
    ready = [node for node, count in enumerate(waits) if not count]
    order: list[int] = []

    def rank(node: int) -> tuple[int, int, int]:
        opened = sum(left[edge] == sizes[edge] for edge in edges[node])
        closed = sum(left[edge] == 1 for edge in edges[node])
        return opened - closed, -touched[node], node

    while ready:
        node = min(ready[-_LOOK:], key=rank)
        ready.remove(node)
        order.append(node)
        for edge in edges[node]:
            left[edge] -= 1
        for other in after[node]:
            waits[other] -= 1
            if not waits[other]:
                ready.append(other)
                touched[other] = len(order)
    return order


def _alive(
    order: Sequence[int], edges: Sequence[Sequence[int]], sizes: Sequence[int]
) -> list[int]:
    """Return how many tensors are alive at each node, its own included."""
    left = list(sizes)
    alive, counts = 0, []
    for node in order:
        alive += sum(left[edge] == sizes[edge] for edge in edges[node])
        counts.append(alive)
        for edge in edges[node]:
            left[edge] -= 1
        alive -= sum(left[edge] == 0 for edge in edges[node])
    return counts


def _laid_out(
    rounded: Rounded, order: Sequence[int], edges: Sequence[Sequence[int]], sizes: Sequence[int]
) -> _Line:
    """Give each tensor a slot while it is alive."""
    left, slot_of = list(sizes), [-1] * len(sizes)
    free = list(range(_MOST_ALIVE))[::-1]
    start, slot, cost, place = [0], [], [], []
    for node in order:
        for edge in edges[node]:
            is_first, is_last = left[edge] == sizes[edge], left[edge] == 1
            if is_first:
                slot_of[edge] = free.pop()
            slot.append(slot_of[edge])
            cost.append(rounded.tensors[edge].cost)
            place.append(int(is_first) + 2 * int(is_last))
        for edge in edges[node]:
            left[edge] -= 1
            if not left[edge]:
                free.append(slot_of[edge])
        start.append(len(slot))
    work = [rounded.work[node] for node in order]
    rows = (order, work, start, slot, cost, place)
    return _Line(*(np.array(row, dtype=np.int64) for row in rows))


def _packed(price: Ints) -> str:
    """Return prices as text: base64 of zlib of four little-endian bytes each."""
    return base64.b64encode(zlib.compress(price.astype("<u4").tobytes(), 9)).decode()


def _unpacked(text: str) -> Ints:
    """Return the prices of a text; none where it is not one."""
    try:
        raw = zlib.decompress(base64.b64decode(text, validate=True))
        return np.frombuffer(raw, dtype="<u4").astype(np.int64)
    except (binascii.Error, zlib.error, ValueError):
        return np.zeros(0, np.int64)


assert FAR < 2**31  # costs are 32 bits wide
