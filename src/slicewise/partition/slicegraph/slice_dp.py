"""The best cut of a topological order: stages are consecutive runs of it.

Dynamic programming over prefixes (SliceGraph, Archer et al., arXiv 2311.03703), for every variant:
D[j][s] is the least objective of the first j nodes of the order that leads to state s of
`Machine`. The costs of all runs that end at j come from walking their beginning down; the walk
ends where no kind of stage can be below the value to beat, so time and memory follow the nodes of
a stage, not n x n. Optimal for the order, not over orders; which order to take is decided
elsewhere.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from slicewise.core.errors import Infeasible, ModelError
from slicewise.core.pipeline import Assignment, Objective, PipelineProblem
from slicewise.partition.compiled import is_compiled
from slicewise.partition.evaluate import objective_or_raise
from slicewise.partition.machine import machine_of
from slicewise.partition.slicegraph.arrays import (
    REPLICAS,
    Floats,
    Ints,
    MachineArrays,
    ProblemArrays,
    arrays_of,
    boxed,
    machine_arrays,
)
from slicewise.partition.slicegraph.slice_kernels import Graph, Rules, Stages, Table, fill, prepare

Deadline: TypeAlias = Callable[[], bool]
Order: TypeAlias = Sequence[int] | Ints

# Steps of the inner loops between two looks at the deadline: 10 to 50 ms.
_STEPS_COMPILED, _STEPS_PLAIN = 4_000_000, 20_000
# A cut by floats may break a limit by their rounding alone; it is sought again below the limit.
_ROUNDING = (0.0, 1e-12, 1e-9)


@dataclass(frozen=True, slots=True)
class Slicing:
    """A cut of an order: `ends` of its stages' runs, and the arc that each is."""

    value: float
    begins: tuple[int, ...]
    arcs: tuple[int, ...]


class Slicer:
    """Slices many orders of one problem; keeps the arrays and the table between calls."""

    def __init__(self, problem: PipelineProblem) -> None:
        self.problem = problem
        self.arrays = arrays_of(problem)
        self.machine = machine_of(problem)
        self.is_stock = problem.replicates or not (
            problem.is_placed or len(set(problem.places)) == 1
        )
        self._graph = _graph(self.arrays)
        self._stages = _stages(machine_arrays(problem, self.machine), problem.stages)
        self._rules = _rules(problem, self.machine.states)
        self._table = _table(self.arrays, self.machine.states)
        self._least = least_load(problem, self.arrays)
        self._least_work = least_work(problem, self.arrays)

    def best(
        self, order: Order, *, incumbent: float = math.inf, deadline: Deadline | None = None,
        known: Slicing | None = None,
    ) -> tuple[float, Assignment] | None:  # fmt: skip
        """Return the value by `evaluate` and the cut, below `incumbent`; None as in `slice`.

        `known` is what `slice` gave for this order already.
        """
        for slack in _ROUNDING:
            found = known
            if slack or found is None:
                found = self.slice(order, incumbent=incumbent, slack=slack, deadline=deadline)
            if found is None:
                return None
            cut = self.assignment(order, found)
            try:
                value = objective_or_raise(self.problem, cut)
            except Infeasible:
                continue
            return (value, cut) if value < incumbent else None
        return None

    def slice(
        self, order: Order, *, incumbent: float = math.inf, slack: float = 0.0,
        deadline: Deadline | None = None,
    ) -> Slicing | None:  # fmt: skip
        """Return the best slicing below `incumbent`; None: there is none, or `deadline` came.

        `order` must be topological, `ModelError` otherwise. Limits count as `slack` smaller.
        """
        nodes = boxed(np.asarray(order, np.int64))
        self._set(nodes)
        for cutoff in self._cutoffs(incumbent):
            if not self._run(nodes, cutoff, slack, deadline):
                return None
            if (found := self._read()) is not None:
                return found
        return None

    def assignment(self, order: Order, slicing: Slicing) -> Assignment:
        """Return the cut that a slicing of the order is."""
        arcs = [self.machine.arcs[index] for index in slicing.arcs]
        stage_of = [0] * len(order)
        ends = (*slicing.begins[1:], len(order))
        for index, (arc, begin, end) in enumerate(zip(arcs, slicing.begins, ends, strict=True)):
            for position in range(begin, end):
                stage_of[order[position]] = index if self.is_stock else arc.source
        if not self.is_stock:
            return Assignment(tuple(stage_of), self.problem.places, (1,) * self.problem.stages)
        kinds = [self.machine.kinds[arc.kind] for arc in arcs]
        return Assignment(
            tuple(stage_of),
            tuple(kind.device for kind in kinds),
            tuple(kind.replicas for kind in kinds),
        )

    def _set(self, order: Ints) -> None:
        """Prepare for an order; `ModelError` where it is none."""
        told = f"the order for problem {self.problem.name!r}"
        if sorted(order) != list(range(self.arrays.nodes)):
            raise ModelError(
                f"{told} has {len(order)} entries; it must have each of the"
                f" {self.arrays.nodes} nodes once"
            )
        if not prepare(order, self._graph, self._table):
            raise ModelError(f"{told} has a node before its input; give a topological order")
        rest = np.zeros(len(order) + 1)
        rest[:-1] = np.cumsum(self._least_work[np.asarray(order)][::-1])[::-1]
        self._table.rest[:] = boxed(rest)
        if self.problem.together:
            self._table.allowed[:] = boxed(_uncut(self.problem, order))

    def _cutoffs(self, incumbent: float) -> list[float]:
        """Return values to beat in turn: a low one first makes the walks short.

        Nothing is lost: the first that is beaten gives the optimum, as only runs whose cost is
        not below it were left out.
        """
        cutoffs = []
        if self.problem.objective is Objective.BOTTLENECK and math.isinf(incumbent):
            cutoff = 1.08 * self._least
            while 0 < cutoff < 2 * self._least * self.problem.stages:
                cutoffs.append(cutoff)
                cutoff *= 1.35 if len(cutoffs) == 1 else 2
        return [*cutoffs, incumbent]

    def _run(self, order: Ints, cutoff: float, slack: float, deadline: Deadline | None) -> bool:
        """Fill the table; False: the deadline came first."""
        begin = 0
        steps = _STEPS_COMPILED if is_compiled() else _STEPS_PLAIN
        while begin <= self.arrays.nodes:
            if deadline is not None and deadline():
                return False
            begin = fill(
                order, self._graph, self._stages, self._rules, self._table, begin, cutoff, slack,
                steps,
            )  # fmt: skip
        return True

    def _read(self) -> Slicing | None:
        """Return the best slicing that the table has."""
        states, table = self.machine.states, self._table
        position = self.arrays.nodes
        state = min(range(states), key=lambda s: table.best[position * states + s])
        value = float(table.best[position * states + state])
        if not value < math.inf:
            return None
        begins, arcs = [], []
        while position or state:
            cell = position * states + state
            arcs.append(int(table.from_arc[cell]))
            position = int(table.from_position[cell])
            state = self.machine.arcs[arcs[-1]].source
            begins.append(position)
        return Slicing(value, tuple(begins[::-1]), tuple(arcs[::-1]))


def slice_order(
    problem: PipelineProblem, order: Sequence[int], *, incumbent: float = math.inf
) -> Assignment | None:
    """Return the best cut below `incumbent` whose stages are runs of `order`; None: there is none.

    Optimal for the order, not over orders. Time O(n (nodes of a stage) (k + degree)), memory
    O(k n). `order` must be topological; `ModelError` otherwise.
    Method: dynamic programming over prefixes (Archer et al., arXiv 2311.03703, Algorithm 1).
    """
    found = Slicer(problem).best(np.array(order, np.int64), incumbent=incumbent)
    return None if found is None else found[1]


def least_work(problem: PipelineProblem, arrays: ProblemArrays) -> Floats:
    """Return the work (ms) of each node on the device that is fastest for it."""
    least: Floats = arrays.work[sorted(set(problem.places))].min(axis=0)
    return least


def least_load(problem: PipelineProblem, arrays: ProblemArrays) -> float:
    """Return a value (ms) that no cut is below: W / k, or the greatest node.

    0 where a node's work is inf on all devices. Not rounded: a guess, not a bound.
    """
    least = least_work(problem, arrays)
    if not np.isfinite(least).all():
        return 0.0
    most = problem.stages if problem.replicates else 1
    return float(max(least.sum() / problem.stages, least.max() / most))


def _uncut(problem: PipelineProblem, order: Ints) -> Ints:
    """Return 1 for each position at which a cut parts no group of `together`."""
    position = {int(node): index for index, node in enumerate(order)}
    inside = np.zeros(len(order) + 2, np.int64)
    for group in problem.together:
        places = [position[node] for node in group]
        if places:
            inside[min(places) + 1] += 1
            inside[max(places) + 1] -= 1
    uncut: Ints = np.equal(np.cumsum(inside)[: len(order) + 1], 0).astype(np.int64)
    return uncut


def _graph(arrays: ProblemArrays) -> Graph:
    return Graph(*(boxed(getattr(arrays, name)) for name in Graph._fields))


def _stages(machine: MachineArrays, places: int) -> Stages:
    """Return the machine for the kernels; arcs are in topological order of their targets."""
    arcs = np.flatnonzero(machine.arc_empty == 0)
    arcs = arcs[np.lexsort((machine.arc_source[arcs], machine.arc_kind[arcs]))]
    place = machine.arc_kind[arcs] * (machine.states + 1) + machine.arc_source[arcs]
    size = len(machine.kind_device) * (machine.states + 1)
    taken = np.zeros(machine.states, np.int64)
    for arc in range(len(machine.arc_kind)):
        replicas = int(machine.kind[machine.arc_kind[arc], REPLICAS])
        taken[machine.arc_target[arc]] = taken[machine.arc_source[arc]] + replicas
    return Stages(
        kind=boxed(machine.kind),
        device=boxed(machine.kind_device),
        place=boxed(machine.kind_place),
        has_fast=boxed(machine.has_fast),
        first=boxed(np.searchsorted(place, np.arange(size))),
        left=boxed(places - taken),
        arc=boxed(arcs),
        source=boxed(machine.arc_source),
        target=boxed(machine.arc_target),
        empty=boxed(machine.arc_empty),
        arc_kind=boxed(machine.arc_kind),
    )


def _rules(problem: PipelineProblem, states: int) -> Rules:
    return Rules(
        nodes=problem.nodes,
        states=states,
        devices=len(problem.kinds),
        overlaps=problem.overlaps,
        hops=problem.hops,
        is_energy=problem.objective is Objective.ENERGY,
        any_fast=any(kind.fast_memory is not None for kind in problem.kinds),
        transfer_j=float(problem.transfer_j_per_ms),
        load_limit=float(problem.limit_ms),
        places=problem.stages,
    )


def _table(arrays: ProblemArrays, states: int) -> Table:
    count, tensors = arrays.nodes, arrays.tensors
    cells = (count + 1) * states
    leaves = 1 << (count + 1).bit_length()
    floats = {
        "rest": count + 1, "best": cells, "cross_ms": count + 2, "cross_bytes": count + 2,
        "device_work": len(arrays.work), "device_energy": len(arrays.work),
        "tree_sum": 2 * leaves, "tree_max": 2 * leaves,
    }  # fmt: skip
    whole = {
        "low": count + 1, "high": count + 1,
        "from_position": cells, "from_arc": cells, "cross_count": count + 2, "last": tensors,
        "counted": tensors, "last_id": tensors, "touched": len(arrays.uses) + 2 * tensors + 1,
    }  # fmt: skip
    made = {name: boxed(np.zeros(size, np.float64)) for name, size in floats.items()}
    made |= {name: boxed(np.zeros(size, np.int64)) for name, size in whole.items()}
    return Table(allowed=boxed(np.ones(count + 1, np.int64)), **made)
