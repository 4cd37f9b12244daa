"""The least objective of all cuts, by the dynamic program over ideals instead of prefixes.

For a threshold it settles by how few devices (or with what energy) each ideal can be reached by
stages below it, so each pair of ideals is looked at once for all numbers of stages; what the rest
must do at least prunes. The threshold starts at the incumbent, which mostly is the optimum; where
it is not, thresholds go up from the bound in growing steps. Costs are whole numbers, rounded down,
so every bound holds exactly. The recursion is that of the ideal-lattice program in
github.com/msr-fiddle/dnn-partitioning, here as the decision for a threshold.

Fast memory is refused: what a stage holds at once depends on more than two ideals.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from slicewise.core.errors import Infeasible
from slicewise.core.pipeline import Assignment, Bound, Objective, PipelineProblem, Trust
from slicewise.partition.compiled import is_compiled
from slicewise.partition.evaluate import objective_or_raise
from slicewise.partition.lattice.ideals import MOST_BITS, Costs, Ideals, costs_of, ideals_of
from slicewise.partition.lattice.lattice_kernels import (
    FAR,
    Ints,
    Shorts,
    settle_least,
    settle_states,
)

METHOD = "lattice"
_BUDGET = 3_000_000  # steps between two looks at the clock: less than half a second
_PLAIN_BUDGET = 3_000  # the same without a compiler
_PLAIN_IDEALS = 20_000  # what may be listed without one
_MOST_ENTRIES = 60_000_000  # (ideal, state) pairs, 16 bytes each

Deadline = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class LatticeResult:
    """The best cut below the incumbent if there is one, and what no cut can beat.

    `is_complete` says that the bound is the optimum or the incumbent, but for rounding; else
    `reason` says why not. Complete without cut and incumbent: no cut keeps the limits. `pairs`
    counts pairs of ideals that were looked at.
    """

    cut: Assignment | None
    bound: Bound | None
    is_complete: bool
    ideals: int
    pairs: int
    reason: str = ""


def supports(problem: PipelineProblem) -> str:
    """Return why this method cannot do a problem, or ''."""
    if any(problem.kinds[place].fast_memory is not None for place in problem.places):
        return "the lattice method knows no fast memory"
    return ""


def solve_lattice(
    problem: PipelineProblem,
    *,
    incumbent: float = math.inf,
    deadline: Deadline = lambda: False,
    max_ideals: int = 300_000,
    report: Callable[[Assignment, float], None] | None = None,
) -> LatticeResult:
    """Return the best cut with an objective below `incumbent`, with proof, or why there is none.

    `deadline` is asked now and then whether time is up; `report` gets each better cut and its
    objective. Best on a contracted problem.
    """
    if reason := supports(problem):
        return LatticeResult(None, None, False, 0, 0, reason)
    most = max_ideals if is_compiled() else min(max_ideals, _PLAIN_IDEALS)
    ideals = ideals_of(problem, most)
    if ideals is None:
        return LatticeResult(None, None, False, 0, 0, f"there are more than {most:,} ideals")
    search = _Search(problem, ideals, costs_of(problem, ideals), deadline, report)
    if ideals.count * search.costs.machine.states > _MOST_ENTRIES and not search.is_alike:
        reason = f"{ideals.count:,} ideals times {search.costs.machine.states} states are too many"
        return LatticeResult(None, None, False, ideals.count, 0, reason)
    if problem.objective is Objective.ENERGY:
        return search.least_energy(incumbent)
    return search.least_load(incumbent)


def exceeds(
    problem: PipelineProblem, value: float | Fraction, *, max_ideals: int, deadline: Deadline
) -> bool:
    """Return True if it is proven that no cut has an objective below `value`; False: not proven.

    In whole numbers rounded down, so True holds exactly; a value less than about 1e-12 below the
    optimum may be left unproven.
    """
    if supports(problem) or not value > 0:
        return value <= 0
    most = max_ideals if is_compiled() else min(max_ideals, _PLAIN_IDEALS)
    ideals = ideals_of(problem, most)
    if ideals is None or not value < math.inf:
        return False
    search = _Search(problem, ideals, costs_of(problem, ideals), deadline, None)
    costs = search.costs
    if problem.objective is Objective.ENERGY:
        most_j = math.ceil(Fraction(value) * costs.energy_unit) - 1
        return search.settle(search.limit(), most_j) is False
    return search.settle(math.ceil(Fraction(value) * costs.unit) - 1) is False


@dataclass
class _Search:
    """Tables of one problem while thresholds are tried on it."""

    problem: PipelineProblem
    ideals: Ideals
    costs: Costs
    deadline: Deadline
    report: Callable[[Assignment, float], None] | None
    pairs: int = 0
    best: Ints = field(init=False)
    parent: Shorts = field(init=False)
    parent_arc: Shorts = field(init=False)
    arcs: "_Arcs" = field(init=False)

    def __post_init__(self) -> None:
        self.arcs = _arcs_of(self.problem, self.costs)

    @property
    def is_alike(self) -> bool:
        """True if fewer devices are always better, and nothing else tells states apart."""
        problem = self.problem
        is_one_kind = len(set(problem.places)) == 1 and len(set(problem.links)) <= 1
        is_load = problem.objective is Objective.BOTTLENECK
        return is_load and is_one_kind and not problem.pinned

    # --- the two objectives

    def least_load(self, incumbent: float) -> LatticeResult:
        """Return the cut of least greatest load below the incumbent."""
        unit, slack = self.costs.unit, self.costs.slack
        low = self._trivial()
        high = self._most() + 1
        if incumbent < math.inf:
            high = min(high, self._below(incumbent))
        cut, tries, found_any = None, 0, incumbent < math.inf
        step = max(1, low >> _FIRST_STEP)
        while high > low:
            # low thresholds are cheap: go up from below, in growing steps
            target = min(high, low + step)
            if (found_any and tries < _STRAIGHT_TRIES) or high - low <= 4 * slack:
                target = high
            tries += 1
            answer = self.settle(target - 1)
            if answer is None:
                return self._result(cut, low, unit, "the time is up")
            if not answer:
                low, step = target, 2 * step
                continue
            step = max(1, (target - low) >> 2)
            better = self._cut()
            try:
                value = objective_or_raise(self.problem, better)
            except Infeasible:  # a limit that rounding down let pass
                return self._result(cut, low, unit, "a limit is kept within rounding only")
            found_any = True
            cut = better
            if self.report is not None:
                self.report(cut, value)
            high = min(target, self._below(value))
        return self._result(cut, low, unit, "", is_empty=not found_any)

    def least_energy(self, incumbent: float) -> LatticeResult:
        """Return the cut of least energy, below the incumbent's, with all loads in the limit."""
        unit = self.costs.energy_unit
        most = FAR - 1
        if incumbent < math.inf:
            most = min(most, math.floor(Fraction(incumbent) * unit * _INWARD) - self.costs.slack)
        answer = self.settle(self.limit(), most)
        if answer is None:
            return self._result(None, 0, unit, "the time is up")
        if not answer:
            return self._result(None, most + 1, unit, "", is_empty=incumbent == math.inf)
        cut = self._cut()
        least = int(self.best[-1].min())
        try:
            value = objective_or_raise(self.problem, cut)
        except Infeasible:
            return self._result(None, least, unit, "a limit is kept within rounding only")
        if self.report is not None:
            self.report(cut, value)
        return self._result(cut, least, unit, "")

    def limit(self) -> int:
        """Return the greatest load that the energy objective allows."""
        return min(math.floor(Fraction(self.problem.limit_ms) * self.costs.unit), self._most())

    def _most(self) -> int:
        """Return what no load is above."""
        return (1 << MOST_BITS) // self.problem.stages

    def _trivial(self) -> int:
        """Return a load that some stage has at least: its share of the work."""
        return int(self.costs.rest[0]) // self.problem.stages

    def _below(self, value: float) -> int:
        """Return the threshold under which a cut is truly better than `value`."""
        return max(0, math.floor(Fraction(value) * self.costs.unit * _INWARD) - self.costs.slack)

    def _result(
        self, cut: Assignment | None, low: int, unit: Fraction, reason: str, *,
        is_empty: bool = False,
    ) -> LatticeResult:  # fmt: skip
        bound = None
        safe = (
            Fraction(low - 2 * self.costs.slack) / unit * _INWARD
        )  # provable from other sums too
        if safe > 0 and not is_empty:
            value = math.nextafter(float(safe), 0.0)
            detail = {"ideals": self.ideals.count, "pairs": self.pairs, "nodes": self._nodes()}
            bound = Bound(METHOD, value, Trust.CHECKED, detail)
        is_complete = not reason
        return LatticeResult(cut, bound, is_complete, self.ideals.count, self.pairs, reason)

    def _nodes(self) -> int:
        return self.ideals.arrays.nodes

    # --- one threshold

    def settle(self, most: int, most_energy: int = FAR - 1) -> bool | None:
        """Return whether a cut exists with loads of `most` at most; None when time is up."""
        if most < 0 or most_energy < 0:
            return False
        return self._settle_alike(most) if self.is_alike else self._settle_any(most, most_energy)

    def _stages(self) -> int:
        if self.problem.replicates:
            return self.problem.stages
        return min(self.problem.stages, self._nodes())

    def _settle_alike(self, most: int) -> bool | None:
        count, costs = self.ideals.count, self.costs
        self.best = np.full(count, FAR, np.int64)
        self.best[0] = 0
        self.parent = np.zeros(count, np.int32)
        device = costs.machine.kinds[0].device
        at = 0
        while at < count - 1:
            at, taken = settle_least(
                at, self._budget(), self._stages(), most, self.problem.replicates, costs.rest,
                self.best, self.parent, int(costs.room[0]), *self._lattice(), self.ideals.good,
                costs.work[device], costs.bad[0], costs.memory, costs.alive[costs.after[0]],
                costs.alive[costs.before[0]], costs.link_cost[costs.before[0]],
                costs.link_cost[costs.after[0]], self.problem.overlaps, self.problem.hops,
            )  # fmt: skip
            self.pairs += int(taken)
            if at < count - 1 and self.deadline():
                return None
        return bool(self.best[-1] < FAR)

    def _settle_any(self, most: int, most_energy: int) -> bool | None:
        count, costs, arcs = self.ideals.count, self.costs, self.arcs
        states = costs.machine.states
        self.best = np.full((count, states), FAR, np.int64)
        self.best[0, 0] = 0
        self.parent = np.zeros((count, states), np.int32)
        self.parent_arc = np.zeros((count, states), np.int32)
        is_load = self.problem.objective is Objective.BOTTLENECK
        at = 0
        while at < count - 1:
            at, taken = settle_states(
                at, self._budget(), most, most_energy, self.best, self.parent, self.parent_arc,
                arcs.source, arcs.target, arcs.kind, arcs.start, arcs.devices_left,
                arcs.device, arcs.replicas, costs.before, costs.after, costs.room,
                costs.static, costs.joules_per_ms if not is_load else 0.0,
                costs.rest, self._energy(costs.rest_energy), self._energy(costs.energy),
                *self._lattice(), self.ideals.good, costs.work, costs.bad, costs.memory,
                costs.alive, costs.link_cost, self.problem.overlaps, self.problem.hops, is_load,
            )  # fmt: skip
            self.pairs += int(taken)
            if at < count - 1 and self.deadline():
                return None
        return bool(self.best[-1].min() < FAR)

    def _energy(self, values: Ints) -> Ints:
        return values if self.problem.objective is Objective.ENERGY else np.zeros_like(values)

    def _budget(self) -> int:
        return _BUDGET if is_compiled() else _PLAIN_BUDGET

    def _lattice(self) -> tuple[Ints, Ints, Shorts, Shorts, Ints, Ints, Ints, Ints, Ints]:
        made, of = self.ideals, self.ideals.arrays
        return (
            made.bits, made.up_start, made.up_node, made.up_ideal, of.used_start, of.used,
            of.producer, of.uses_start, of.uses,
        )  # fmt: skip

    # --- the cut

    def _cut(self) -> Assignment:
        """Return the cut that the tables hold."""
        stages = self._alike_stages() if self.is_alike else self._any_stages()
        is_line = not self.problem.replicates and (
            self.problem.is_placed or len(set(self.problem.places)) == 1
        )
        stage_of = [0] * self._nodes()
        for index, (place, _, _, nodes) in enumerate(stages):
            for node in nodes:
                stage_of[node] = place if is_line else index
        if is_line:
            kind_of, replicas = self.problem.places, (1,) * self.problem.stages
        else:
            kind_of = tuple(device for _, device, _, _ in stages)
            replicas = tuple(count for _, _, count, _ in stages)
        return Assignment(tuple(stage_of), kind_of, replicas)

    def _alike_stages(self) -> list[tuple[int, int, int, list[int]]]:
        """Return place, device, replicas and nodes of each stage, from the first to the last."""
        stages, at = [], self.ideals.count - 1
        device = self.costs.machine.kinds[0].device
        while at:
            low = int(self.parent[at])
            replicas = int(self.best[at] - self.best[low])
            stages.append((0, device, replicas, self.ideals.nodes_between(low, at)))
            at = low
        stages.reverse()
        return [(place, *stage[1:]) for place, stage in enumerate(stages)]

    def _any_stages(self) -> list[tuple[int, int, int, list[int]]]:
        stages, at = [], self.ideals.count - 1
        state = int(self.best[-1].argmin())
        while at:
            low, arc = int(self.parent[at, state]), int(self.parent_arc[at, state])
            if low != at:
                kind = self.costs.machine.kinds[int(self.arcs.kind[arc])]
                nodes = self.ideals.nodes_between(low, at)
                stages.append((int(self.arcs.source[arc]), kind.device, kind.replicas, nodes))
            at, state = low, int(self.arcs.source[arc])
        return stages[::-1]


_STRAIGHT_TRIES = 2  # thresholds just below the value, before going up from below
_FIRST_STEP = 4  # a sixteenth
_INWARD = 1 - Fraction(1, 2**48)  # covers what rounding took from costs, relative


@dataclass(frozen=True, slots=True)
class _Arcs:
    """Arcs by kind, then those of empty stages; what is left of the devices in each state."""

    source: Ints
    target: Ints
    kind: Ints
    start: Ints
    devices_left: Ints
    device: Ints
    replicas: Ints


def _arcs_of(problem: PipelineProblem, costs: Costs) -> _Arcs:
    machine = costs.machine
    full = sorted((arc for arc in machine.arcs if not arc.is_empty), key=lambda arc: arc.kind)
    arcs = [*full, *(arc for arc in machine.arcs if arc.is_empty)]
    kinds = len(machine.kinds)
    start = np.searchsorted([arc.kind for arc in full], np.arange(kinds + 1)).astype(np.int64)
    used = [0] * machine.states  # arcs are sorted by target, sources come first
    for arc in machine.arcs:
        used[arc.target] = used[arc.source] + machine.kinds[arc.kind].replicas
    return _Arcs(
        source=np.array([arc.source for arc in arcs], np.int64),
        target=np.array([arc.target for arc in arcs], np.int64),
        kind=np.array([arc.kind for arc in arcs], np.int64),
        start=start,
        devices_left=problem.stages - np.array(used, np.int64),
        device=np.array([kind.device for kind in machine.kinds], np.int64),
        replicas=np.array([kind.replicas for kind in machine.kinds], np.int64),
    )
