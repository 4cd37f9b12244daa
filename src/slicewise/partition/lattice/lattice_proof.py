"""Is a bound true? The dynamic program over ideals once more, plain and in exact rationals.

Shares no code with the fast one: ideals are Python integers, a stage is costed from its nodes by
the definition. For small lattices; larger ones are recomputed by the fast one, whose whole numbers
are rounded down and so prove as much.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction

from slicewise.core.errors import Infeasible
from slicewise.core.pipeline import Bound, Objective, PipelineProblem, StageLink
from slicewise.partition.contract import contract
from slicewise.partition.lattice.lattice_dp import exceeds, supports
from slicewise.partition.machine import Machine, StageKind, machine_of

_MOST_IDEALS = 20_000
_MOST_WORK = 3_000_000  # pairs of ideals times tensors: some seconds
_SUMS = 1 + Fraction(1, 2**52)  # sums of the contracted problem are rounded, once each


def recheck(problem: PipelineProblem, bound: Bound) -> bool | None:
    """Return whether no cut has an objective below the bound; None where that takes too long."""
    if not bound.value > 0:
        return True
    try:
        smaller = contract(problem).problem
    except Infeasible:
        return True
    proven = prove_in_fractions(smaller, Fraction(bound.value) * _SUMS)
    if proven is not None:
        return proven
    # there each cost is rounded down by more than a sum can have been rounded up
    return exceeds(smaller, bound.value, max_ideals=300_000, deadline=lambda: False) or None


def prove_in_fractions(problem: PipelineProblem, value: Fraction | float) -> bool | None:
    """Return whether no cut has an objective below `value`, exactly; None where that is too large.

    Too large: more than 20,000 ideals, or 3 million pairs of ideals times tensors.
    """
    if supports(problem):
        return None
    proof = _Proof(problem, machine_of(problem), Fraction(value))
    try:
        return not proof.has_cut_below()
    except _TooLargeError:
        return None


class _TooLargeError(Exception):
    """More than can be done plainly; never leaves this module."""


@dataclass
class _Proof:
    """The problem in rationals, and what was reached so far."""

    problem: PipelineProblem
    machine: Machine
    value: Fraction
    before: list[int] = field(init=False)
    work_left: int = _MOST_WORK

    def __post_init__(self) -> None:
        self.before = [0] * self.problem.nodes
        for transfer in self.problem.transfers:
            for node in transfer.consumers:
                self.before[node] |= 1 << transfer.producer

    @property
    def is_energy(self) -> bool:
        """True if the objective is energy."""
        return self.problem.objective is Objective.ENERGY

    def has_cut_below(self) -> bool:
        """Return True if a cut has an objective below `value`."""
        whole = (1 << self.problem.nodes) - 1
        least: dict[tuple[int, int], Fraction] = {(0, 0): Fraction(0)}
        for low in self._ideals():
            states = {s: least[low, s] for s in range(self.machine.states) if (low, s) in least}
            if not states:
                continue
            if low == whole:
                return not self.is_energy or min(states.values()) < self.value
            for arc in self.machine.arcs:  # sorted by target: empty stages come in a row
                if arc.is_empty and arc.source in states:
                    self._pass_on(low, arc.source, arc.target, arc.kind, states)
            for index, kind in enumerate(self.machine.kinds):
                arcs = [
                    (arc.source, arc.target)
                    for arc in self.machine.arcs
                    if arc.kind == index and not arc.is_empty and arc.source in states
                ]
                if not arcs:
                    continue
                for high, joules in self._stages_above(low, kind):
                    for source, target in arcs:
                        total = states[source] + joules
                        key = (high, target)
                        if key not in least or total < least[key]:
                            least[key] = total
        return False

    def _ideals(self) -> list[int]:
        """Return all ideals by rising size."""
        rows, level = [0], {0}
        while level:
            level = {
                ideal | 1 << node
                for ideal in level
                for node in range(self.problem.nodes)
                if not ideal >> node & 1 and self.before[node] & ~ideal == 0
            }
            rows.extend(sorted(level))
            if len(rows) > _MOST_IDEALS:
                raise _TooLargeError
        return rows

    def _pass_on(
        self, low: int, source: int, target: int, kind: int, states: dict[int, Fraction]
    ) -> None:
        """Let an empty stage follow, which with hops passes on what is alive."""
        cost = self._cost(low, low, self.machine.kinds[kind])
        if cost is not None:
            total = states[source] + cost
            states[target] = min(total, states.get(target, total))

    def _stages_above(self, low: int, kind: StageKind) -> list[tuple[int, Fraction]]:
        """Return the ideals that make an allowed stage with `low`, and its energy."""
        found, seen, stack = [], {low}, [low]
        groups = [sum(1 << node for node in set(group)) for group in self.problem.together]
        while stack:
            ideal = stack.pop()
            for node in range(self.problem.nodes):
                high = ideal | 1 << node
                if ideal >> node & 1 or self.before[node] & ~ideal or high in seen:
                    continue
                seen.add(high)
                if not self._may_grow(high & ~low, kind):
                    continue
                stack.append(high)
                if any(0 < (high & group) != group for group in groups):
                    continue
                joules = self._cost(low, high, kind)
                if joules is not None:
                    found.append((high, joules))
        return found

    def _may_grow(self, stage: int, kind: StageKind) -> bool:
        """Return False if no stage with these nodes, or more, is allowed."""
        problem, device = self.problem, self.problem.kinds[kind.device]
        nodes = [node for node in range(problem.nodes) if stage >> node & 1]
        if any(device.work_ms[node] == math.inf for node in nodes):
            return False
        if problem.pinned and any(problem.pinned.get(n, kind.place) != kind.place for n in nodes):
            return False
        work = sum((Fraction(device.work_ms[node]) for node in nodes), Fraction(0))
        if not self._is_allowed(work / kind.replicas):
            return False
        if device.memory_limit_bytes == math.inf:
            return True
        held = Fraction(device.reserve_bytes)
        if problem.memory_bytes:
            held += sum((Fraction(problem.memory_bytes[node]) for node in nodes), Fraction(0))
        return held <= Fraction(device.memory_limit_bytes)

    def _is_allowed(self, load: Fraction) -> bool:
        if self.is_energy:
            return load <= Fraction(self.problem.limit_ms)
        return load < self.value

    def _cost(self, low: int, high: int, kind: StageKind) -> Fraction | None:
        """Return the energy (0 if none is asked for) of a stage; None if it is not allowed."""
        problem, device = self.problem, self.problem.kinds[kind.device]
        self.work_left -= 1 + len(problem.transfers)
        if self.work_left < 0:
            raise _TooLargeError
        nodes = [node for node in range(problem.nodes) if (high & ~low) >> node & 1]
        received = sent = Fraction(0)
        for transfer in problem.transfers:
            uses = sum(1 << node for node in transfer.consumers)
            has, is_later = 1 << transfer.producer, bool(uses & ~high)
            if has & low and (uses & ~low if problem.hops else uses & high & ~low):
                received += _over(kind.before, transfer.transfer_ms)
            if is_later and has & (high if problem.hops else high & ~low):
                sent += _over(kind.after, transfer.transfer_ms)
        work = sum((Fraction(device.work_ms[node]) for node in nodes), Fraction(0))
        parts = (work, received, sent)
        load = (max(parts) if problem.overlaps else sum(parts)) / kind.replicas
        if not self._is_allowed(Fraction(load)):
            return None
        if not self.is_energy:
            return Fraction(0)
        joules = Fraction(problem.transfer_j_per_ms) * (received + sent)
        if any(device.energy_j[node] == math.inf for node in nodes):
            return None
        joules += sum((Fraction(device.energy_j[node]) for node in nodes), Fraction(0))
        power = Fraction(device.static_w) * kind.replicas if nodes else Fraction(0)
        return joules + power * Fraction(problem.limit_ms) / 1000


def _over(link: StageLink, cost_ms: float) -> Fraction:
    return Fraction(link.latency_ms) + Fraction(link.scale) * Fraction(cost_ms)
