"""The ideals of a problem, and its costs as whole numbers on them: what the lattice DP works on.

An ideal is a set of nodes that holds all their ancestors; a stage is what one ideal has more than
another. Costs are multiplied by a power of two and rounded down: a sum of them is exact and never
above the true one, so that what is proven with them holds for the true costs. No search here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from slicewise.core.pipeline import Objective, PipelineProblem, StageLink
from slicewise.partition.lattice.lattice_kernels import (
    FAR,
    Ints,
    Shorts,
    enumerate_ideals,
    sum_over_alive,
    sum_over_nodes,
    whole_groups,
)
from slicewise.partition.machine import Machine, machine_of
from slicewise.partition.slicegraph.arrays import Floats, ProblemArrays, arrays_of, rows

MOST_BITS = 60  # of any sum of costs
_ROUNDED = 1 - 2.0**-50  # of a cost computed with two roundings, as little below the true one


@dataclass(frozen=True, slots=True)
class Ideals:
    """All ideals by rising size: their nodes as bits, and the edges to those with one more.

    The edges of ideal i are `up_start[i]` to `up_start[i + 1]`; edge `found_by[i]` leads to i from
    `origin[i]`. `good` is 1 for those that hold each group whole or not at all.
    """

    arrays: ProblemArrays
    bits: Ints
    up_start: Ints
    up_node: Shorts
    up_ideal: Shorts
    found_by: Shorts
    origin: Shorts
    good: Shorts

    @property
    def count(self) -> int:
        """Number of ideals."""
        return len(self.bits)

    def nodes_between(self, low: int, high: int) -> list[int]:
        """Return the nodes of ideal `high` that `low` has not."""
        more = self.bits[high] & ~self.bits[low]
        return [n for n in range(self.arrays.nodes) if more[n >> 6] >> np.int64(n & 63) & 1]


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs on ideals: one ms is `unit` parts, one joule `energy_unit`, rounded down.

    Rows of `work` and `energy` are devices, of `bad` (nodes that may not be there) stage kinds,
    of `alive` and `link_cost` links; `before[q]`, `after[q]` are the links of stage kind q.
    `rest[i]` is what all stages above ideal i must do together at least; `slack` what rounding can
    have taken from a load. `room[q]` is the memory a stage may have, -1 where none.
    """

    machine: Machine
    unit: Fraction
    energy_unit: Fraction
    slack: int
    work: Ints
    energy: Ints
    bad: Ints
    memory: Ints
    room: Ints
    static: Ints
    joules_per_ms: float
    before: Ints
    after: Ints
    link_cost: Ints
    alive: Ints
    rest: Ints
    rest_energy: Ints


def ideals_of(problem: PipelineProblem, most: int) -> Ideals | None:
    """Return the ideals of a problem; None if there are more than `most`."""
    arrays = arrays_of(problem)
    after: list[set[int]] = [set() for _ in range(arrays.nodes)]
    before: list[set[int]] = [set() for _ in range(arrays.nodes)]
    for transfer in problem.transfers:
        after[transfer.producer].update(transfer.consumers)
        for node in transfer.consumers:
            before[node].add(transfer.producer)
    keys = np.random.default_rng(0).integers(1, 1 << 62, size=arrays.nodes, dtype=np.int64)
    count, bits, up_start, up_node, up_ideal, found_by = enumerate_ideals(
        *rows([sorted(each) for each in before]), *rows([sorted(each) for each in after]), keys,
        most,
    )  # fmt: skip
    if count < 0:
        return None
    found_by = found_by[:count]
    origin = np.searchsorted(up_start, found_by, side="right").astype(np.int32) - np.int32(1)
    groups = [group for group in problem.together if len(group) > 1]
    good = whole_groups(bits, *rows(groups))
    return Ideals(arrays, bits, up_start, up_node, up_ideal, found_by, origin, good)


def costs_of(problem: PipelineProblem, ideals: Ideals) -> Costs:
    """Return the costs of a problem on its ideals."""
    machine = machine_of(problem)
    arrays = ideals.arrays
    links = list(dict.fromkeys(e for kind in machine.kinds for e in (kind.before, kind.after)))
    sent_ms = np.array([_sent_ms(problem, link) for link in links]).reshape(len(links), -1)
    worst_ms = _finite(arrays.work).max(axis=0).sum() + 2 * sent_ms.max(axis=0).sum()
    unit = _unit(worst_ms * problem.stages)
    statics = [
        problem.kinds[kind.device].static_w * kind.replicas * problem.limit_ms / 1e3
        if problem.objective is Objective.ENERGY
        else 0.0
        for kind in machine.kinds
    ]
    worst_j = _finite(arrays.energy).max(axis=0).sum() + problem.stages * (
        max(statics) + problem.transfer_j_per_ms * worst_ms
    )
    energy_unit = _unit(worst_j)
    work, energy = _whole(arrays.work, unit), _whole(arrays.energy, energy_unit)
    used = sorted(set(problem.places))
    link_cost = _whole(sent_ms, unit)
    least_link = link_cost.min(axis=0, keepdims=True)
    alive = _alive(ideals, np.concatenate([link_cost, least_link]))
    memory_unit = _unit(arrays.memory.sum())
    least_work = _prefix(ideals, _least(work, arrays.work, used))
    least_energy = _prefix(ideals, energy[used].min(axis=0))
    rest = least_work[-1] - least_work
    rest = np.maximum(rest, alive[-1]) if problem.overlaps else rest + alive[-1]
    number = {link: index for index, link in enumerate(links)}
    return Costs(
        machine=machine,
        unit=unit,
        energy_unit=energy_unit,
        slack=2 * (arrays.nodes + 2 * arrays.tensors) + 4,
        work=np.array([_prefix(ideals, row) for row in work]),
        energy=np.array([_prefix(ideals, row) for row in energy]),
        bad=np.array([_prefix(ideals, row) for row in _bad(problem, arrays, machine)]),
        memory=_prefix(ideals, _whole(arrays.memory, memory_unit)),
        room=np.array([_room(problem, kind.device, memory_unit) for kind in machine.kinds]),
        static=_whole(np.array(statics), energy_unit),
        joules_per_ms=_down(float(Fraction(problem.transfer_j_per_ms) * energy_unit / unit)),
        before=np.array([number[kind.before] for kind in machine.kinds], np.int64),
        after=np.array([number[kind.after] for kind in machine.kinds], np.int64),
        link_cost=link_cost,
        alive=alive[:-1],
        rest=rest,
        rest_energy=least_energy[-1] - least_energy,
    )


def _sent_ms(problem: PipelineProblem, link: StageLink) -> list[float]:
    return [
        link.latency_ms + link.scale * each.transfer_ms if each.consumers else 0.0
        for each in problem.transfers
    ]


def _down(value: float) -> float:
    return value * _ROUNDED


def _unit(most: float) -> Fraction:
    """Return the power of two that brings `most` just below 2^`MOST_BITS`."""
    if most <= 0:
        return Fraction(1)
    exponent = MOST_BITS - math.frexp(float(most) * (1 + 1e-9))[1]
    return Fraction(2) ** max(-1000, min(exponent, 1000))


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, 0.0)


def _whole(values: Floats, unit: Fraction) -> Ints:
    """Return the values times `unit`, rounded down; 0 for inf, which `bad` marks."""
    return np.floor(_finite(values) * _ROUNDED * float(unit)).astype(np.int64)


def _least(work: Ints, given: Floats, used: Sequence[int]) -> Ints:
    """Return the least work of each node on a device that can run it."""
    able = np.where(np.isfinite(given[list(used)]), work[list(used)], FAR).min(axis=0)
    return np.where(able == FAR, 0, able)


def _prefix(ideals: Ideals, value: Ints) -> Ints:
    return sum_over_nodes(ideals.found_by, ideals.origin, ideals.up_node, value)


def _alive(ideals: Ideals, cost: Ints) -> Ints:
    of = ideals.arrays
    return sum_over_alive(
        ideals.bits, ideals.found_by, ideals.origin, ideals.up_node, of.made_start, of.made,
        of.used_start, of.used, of.uses_start, of.uses, cost,
    )  # fmt: skip


def _bad(problem: PipelineProblem, arrays: ProblemArrays, machine: Machine) -> list[Ints]:
    """Return 1 for each node a stage kind may not have: no cost on it, or pinned elsewhere."""
    is_energy = problem.objective is Objective.ENERGY
    return [
        (
            ~np.isfinite(arrays.work[kind.device])
            | (~np.isfinite(arrays.energy[kind.device]) & is_energy)
            | ((arrays.pin >= 0) & (arrays.pin != kind.place) & bool(problem.pinned))
        ).astype(np.int64)
        for kind in machine.kinds
    ]


def _room(problem: PipelineProblem, device: int, unit: Fraction) -> int:
    """Return the memory that the nodes of a stage may have, in parts; -1 where none may be."""
    kind = problem.kinds[device]
    if kind.memory_limit_bytes == math.inf:
        return FAR
    left = math.floor((Fraction(kind.memory_limit_bytes) - Fraction(kind.reserve_bytes)) * unit)
    return max(-1, min(left, FAR))
