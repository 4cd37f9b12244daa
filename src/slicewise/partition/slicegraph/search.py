"""Local search over cuts: slice the best of several orders, then vary what was found.

Rounds of two kinds: order the nodes anew, inside or near the stages of the best cut, and slice
again; and, for the variants that `anneal` knows, anneal the cut under a falling target load. The
cut after each improvement is reported, so that the search may end at any time. No bound is given.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from slicewise.core.pipeline import Assignment, Objective, PipelineProblem
from slicewise.partition.compiled import is_compiled
from slicewise.partition.evaluate import objective_or_raise
from slicewise.partition.slicegraph import anneal
from slicewise.partition.slicegraph.arrays import Floats, Ints
from slicewise.partition.slicegraph.order import FIRST_ID, FIRST_READY, LAST_READY, Orders
from slicewise.partition.slicegraph.slice_dp import Deadline, Slicer, least_load

# Two values are the same if they differ by less than this, as a part; sums differ by rounding.
_SAME = 1e-12
# Proposals between two looks at the deadline: below 50 ms, and no more than 16 a node. Bursts of
# the first annealings; there are as many more after each turn through `_HEATS`.
_BURST_COMPILED, _BURST_PLAIN, _BURST_A_NODE = 20_000, 1_000, 16
_FIRST_BURSTS, _MOST_BURSTS = 10, 64
# A cut that is better by this part is evaluated between bursts; it takes as long as a burst.
_WORTH_TELLING = 0.002
_ORDERS_A_ROUND = 16


@dataclass(frozen=True, slots=True)
class Heat:
    """How an annealing goes: temperatures as parts of the value, and `Annealer.run`'s others."""

    hot: float
    cold: float
    most: int
    thrift: float


# Broad to narrow; found on graphs of 1,000 to 2,600 nodes at 4 to 64 stages.
_HEATS = (
    Heat(0.004, 0.0001, 3, 0.1),
    Heat(0.001, 0.00003, 2, 0.0),
    Heat(0.02, 0.0003, 3, 0.02),
    Heat(0.03, 0.0006, 2, 0.3),
    Heat(0.004, 0.0001, 4, 0.02),
    Heat(0.1, 0.001, 3, 0.1),
    Heat(0.01, 0.0002, 2, 0.03),
    Heat(0.0005, 0.00003, 3, 0.0),
)


def improve(
    problem: PipelineProblem, start: Assignment | None, *, seed: int, deadline: Deadline,
    report: Callable[[Assignment, float], None], max_rounds: int | None = None,
) -> Assignment | None:  # fmt: skip
    """Return the best cut found from `start` (None: from orders alone) until `deadline()`.

    None: no legal cut was found. `report` gets every better cut with its value (ms or J), first
    that of `start`. Ends by itself after `max_rounds` rounds, or where no better cut can be; with
    `max_rounds` as the only end the same seed gives the same cut.
    """
    search = Search(problem, seed=seed, deadline=deadline, report=report)
    if start is not None:
        search.offer(start, objective_or_raise(problem, start))
    search.begin()
    rounds = 0
    while not search.is_over() and (max_rounds is None or rounds < max_rounds):
        search.vary(rounds)
        rounds += 1
    return search.cut


class Search:
    """The running state of one search: the best cut, its value, and what the rounds need."""

    def __init__(
        self, problem: PipelineProblem, *, seed: int, deadline: Deadline,
        report: Callable[[Assignment, float], None],
    ) -> None:  # fmt: skip
        self.problem = problem
        self.cut: Assignment | None = None
        self.value = math.inf
        self.deadline = deadline
        self._report = report
        self._random = np.random.default_rng(seed)
        self._slicer = Slicer(problem)
        self._orders = Orders(problem, self._slicer.arrays)
        self._order: Ints | None = None
        self._stage: Floats | None = None
        is_known = not anneal.supports(problem) and problem.stages > 1
        self._annealer = anneal.Annealer(problem, self._slicer.arrays) if is_known else None
        self._annealed = 0
        least = least_load(problem, self._slicer.arrays)
        self._floor = least if problem.objective is Objective.BOTTLENECK else 0.0

    def offer(self, cut: Assignment, value: float) -> None:
        """Keep a legal cut if it is better than the best."""
        if value < self.value:
            self.cut, self.value = cut, value
            self._stage = np.array(cut.stage_of, np.float64)
            self._order = None
            self._report(cut, value)

    def is_over(self) -> bool:
        """Return True at the deadline, and where no cut can be better."""
        if self.deadline():
            return True
        is_single = self.problem.stages == 1 and self.cut is not None
        return (
            is_single
            or self.value <= 0
            or (self._floor > 0 and self.value <= self._floor * (1 + _SAME))
        )

    def begin(self) -> None:
        """Slice the orders to begin with."""
        for make in self._orders.starts():
            if self.is_over():
                return
            self._slice(make())

    def vary(self, number: int) -> None:
        """Run one round: anneal in every other one, where that is known, else order and slice."""
        if self._annealer is not None and self.cut is not None and number % 2 == 0:
            self._anneal(_HEATS[self._annealed % len(_HEATS)])
            self._annealed += 1
            return
        for _ in range(_ORDERS_A_ROUND):
            if self.is_over():
                return
            self._slice(self._reorder())

    def _slice(self, order: Ints) -> None:
        """Slice an order; of cuts as good as the best the new one is varied next."""
        limit = self.value * (1 + _SAME)
        found = self._slicer.slice(order, incumbent=limit, deadline=self.deadline)
        if found is None:
            return
        if found.value < self.value * (1 - _SAME) or math.isinf(self.value):
            better = self._slicer.best(
                order, incumbent=self.value, deadline=self.deadline, known=found
            )
            if better is not None:
                self.offer(better[1], better[0])
        else:
            cut = self._slicer.assignment(order, found)
            self._stage = np.array(cut.stage_of, np.float64)
        self._order = order

    def _reorder(self) -> Ints:
        """Return another order: of the stages, near them, or inside two of them."""
        orders, chance = self._orders, self._random
        noise = chance.random(orders.units)
        if self._stage is None:  # no cut yet: any order, more or less at random
            share = chance.choice([0.02, 0.1, 0.5, 1.0])
            base = np.arange(orders.units) / orders.units
            return orders.keyed(base + share * noise, backward=bool(chance.integers(2)))
        stage = orders.of_units(self._stage)
        tie = (FIRST_ID, LAST_READY, FIRST_READY)[chance.integers(3)]
        backward = bool(chance.integers(2))
        sign = -1.0 if backward else 1.0
        kind = chance.integers(5)
        if kind == 0:
            return orders.keyed(sign * stage, second=noise, tie=tie, backward=backward)
        if kind == 1:
            return orders.keyed(stage + noise)
        if kind == 2:
            spread = chance.choice([1.1, 1.5, 2.5])
            return orders.keyed(sign * (stage + spread * noise), backward=backward)
        base = stage if self._order is None else self._places(stage)
        if kind == 3:
            share = chance.choice([0.05, 0.2, 0.6])
            return orders.keyed(sign * (base + share * noise), backward=backward)
        first = chance.integers(max(1, self.problem.stages - 1))
        inside = (stage >= first) & (stage <= first + 1)
        key = np.where(inside, first + 2 * noise if chance.integers(2) else first, base)
        return orders.keyed(sign * key, tie=tie, backward=backward)

    def _places(self, stage: Floats) -> Floats:
        """Return keys that keep the present order: stage, plus the place in it as a part of 1."""
        assert self._order is not None
        place = np.empty(len(self._order))
        place[self._order] = np.arange(len(self._order)) / len(self._order)
        keys: Floats = stage + self._orders.of_units(place)
        return keys

    def _anneal(self, heat: Heat) -> None:
        """Anneal from the best cut, in bursts; slice what came of it."""
        assert self._annealer is not None and self.cut is not None
        cut, value, annealer = self.cut, self.value, self._annealer
        annealer.begin(np.array(cut.stage_of, np.int64), cut.kind_of, cut.replicas)
        bursts = min(_MOST_BURSTS, _FIRST_BURSTS * (1 + self._annealed // len(_HEATS)))
        most = _BURST_COMPILED if is_compiled() else _BURST_PLAIN
        burst = min(most, _BURST_A_NODE * self.problem.nodes)
        fall = (heat.cold / heat.hot) ** (1 / bursts)
        target = first = value * (1 - 1e-9)
        hot = heat.hot * value
        for _ in range(bursts):
            if self.is_over():
                break
            target = annealer.run(
                target, hot=hot, cold=hot * fall, steps=burst, most=heat.most,
                seed=int(self._random.integers(1 << 30)), thrift=heat.thrift,
            )  # fmt: skip
            hot *= fall
            if target < self.value * (1 - _WORTH_TELLING):
                self._take(annealer.best, cut)
        if target < first:
            self._take(annealer.best, cut)
        if target < first and not self.is_over():
            self._slice(self._orders.keyed(np.array(self.cut.stage_of, np.float64)))

    def _take(self, stage_of: Ints, like: Assignment) -> None:
        """Offer a cut with the devices of another."""
        cut = Assignment(tuple(stage_of.tolist()), like.kind_of, like.replicas)
        self.offer(cut, objective_or_raise(self.problem, cut))
