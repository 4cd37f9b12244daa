"""Is the answer true? The cut's legality, its value and its checked bounds, in exact arithmetic.

Shares no code with the solvers or with `evaluate`: floats are read as the rationals that they are.
"""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

from slicewise.core.errors import PartitionError
from slicewise.core.notes import Note
from slicewise.core.pipeline import (
    Assignment,
    Bound,
    Objective,
    Partition,
    PipelineProblem,
    StageDevice,
    Trust,
)

# Sums of floats may be off by a few units in the last place; more is a wrong answer.
_RELATIVE_SLACK = Fraction(1, 10**9)

Recheck = Callable[[PipelineProblem, Bound], bool | None]


def verify(
    problem: PipelineProblem, partition: Partition, *, rechecks: Mapping[str, Recheck]
) -> tuple[Note, ...]:
    """Return notes on bounds that could not be computed again; raise for what is not true.

    `rechecks` maps the method of a checked bound to what proves it again: True, False, or None
    where that would take too long. `PartitionError` names what is wrong: a cut that is illegal or
    breaks a limit, a value that is not the cut's, a bound above the value or without proof.
    """
    value = exact_objective(problem, partition.assignment)
    if abs(value - Fraction(partition.value)) > _RELATIVE_SLACK * max(value, Fraction(1, 10**6)):
        raise PartitionError(
            f"the partition of {problem.name!r} says {partition.value:.12g}; exactly it is"
            f" {float(value):.12g}"
        )
    notes = []
    for bound in partition.bounds:
        if Fraction(bound.value) > value * (1 + _RELATIVE_SLACK):
            raise PartitionError(
                f"bound {bound.method} of {problem.name!r} is {bound.value:.12g}, above the value"
                f" {float(value):.12g} of a cut"
            )
        if bound.trust is Trust.SOLVER:
            continue
        proven = rechecks[bound.method](problem, bound)
        if proven is False:
            raise PartitionError(
                f"bound {bound.method} of {problem.name!r}, {bound.value:.12g}, has no proof"
            )
        if proven is None:
            text = f"bound {bound.method} was not computed again exactly: the problem is too large"
            notes.append(Note("bound-not-rechecked", text))
    return tuple(notes)


def exact_objective(problem: PipelineProblem, cut: Assignment) -> Fraction:
    """Return ms of the slowest stage, or J, exactly; `PartitionError` for what breaks a rule."""
    stages = len(cut.kind_of)
    of = cut.stage_of
    if (
        len(of) != problem.nodes
        or len(cut.replicas) != stages
        or not set(of) <= set(range(stages))
    ):
        raise PartitionError(f"the cut is not one of problem {problem.name!r}")
    for tensor in problem.transfers:
        if any(of[node] < of[tensor.producer] for node in tensor.consumers):
            raise PartitionError(f"a tensor of {problem.names[tensor.producer]!r} goes back")
    if any(len({of[node] for node in group}) > 1 for group in problem.together):
        raise PartitionError(f"the cut of {problem.name!r} tears a group apart")
    if any(of[node] != stage for node, stage in problem.pinned.items()):
        raise PartitionError(f"the cut of {problem.name!r} does not keep its pins")
    _check_stock(problem, cut)
    loads, joules = [], Fraction(0)
    for stage in range(stages):
        load, energy = _stage(problem, cut, stage)
        loads.append(load)
        joules += energy
    if problem.objective is Objective.ENERGY:
        if max(loads) > Fraction(problem.limit_ms):
            raise PartitionError(f"a stage of {problem.name!r} is slower than the limit")
        return joules
    return max(loads)


def _check_stock(problem: PipelineProblem, cut: Assignment) -> None:
    used = sorted(set(cut.stage_of))
    if any(cut.replicas[stage] != 1 for stage in used) and not problem.replicates:
        raise PartitionError(f"problem {problem.name!r} has no replicas")
    if any(cut.replicas[stage] < 1 for stage in used):
        raise PartitionError(f"a stage of {problem.name!r} has no device")
    is_line = problem.is_placed and not problem.replicates
    if is_line and any(cut.kind_of[stage] != problem.places[stage] for stage in used):
        raise PartitionError(f"a stage of {problem.name!r} is not on the device at its place")
    for kind in range(len(problem.kinds)):
        taken = sum(cut.replicas[stage] for stage in used if cut.kind_of[stage] == kind)
        if taken > problem.places.count(kind):
            raise PartitionError(
                f"problem {problem.name!r} has fewer {problem.kinds[kind].name!r}"
            )


def _stage(problem: PipelineProblem, cut: Assignment, stage: int) -> tuple[Fraction, Fraction]:
    """Return the load and the energy of a stage; `PartitionError` where it breaks a limit."""
    kind = problem.kinds[cut.kind_of[stage]]
    nodes = [node for node, at in enumerate(cut.stage_of) if at == stage]
    if any(math.isinf(kind.work_ms[node]) for node in nodes):
        raise PartitionError(f"stage {stage} has a node that {kind.name!r} cannot run")
    work = sum((Fraction(kind.work_ms[node]) for node in nodes), Fraction(0))
    received = _crossing_ms(problem, cut, stage, is_sent=False)
    sent = _crossing_ms(problem, cut, stage, is_sent=True)
    if nodes:
        _check_memory(problem, kind, nodes, stage)
        work += _spill_ms(problem, cut, kind, nodes, stage)
    parts = (work, received, sent)
    load = max(parts) if problem.overlaps else sum(parts, Fraction(0))
    energy = Fraction(problem.transfer_j_per_ms) * (received + sent)
    energy += sum((Fraction(kind.energy_j[node]) for node in nodes if kind.energy_j), Fraction(0))
    if nodes and problem.objective is Objective.ENERGY:
        power = Fraction(kind.static_w) * cut.replicas[stage]
        energy += power * Fraction(problem.limit_ms) / 1000
    return load / max(1, cut.replicas[stage]), energy


def _is_crossing(
    problem: PipelineProblem, cut: Assignment, tensor: int, stage: int, *, is_sent: bool
) -> bool:
    it = problem.transfers[tensor]
    made = cut.stage_of[it.producer]
    uses = {cut.stage_of[node] for node in it.consumers} - {made}
    if not uses:
        return False
    if problem.hops:
        return made <= stage < max(uses) if is_sent else made < stage <= max(uses)
    return made == stage if is_sent else stage in uses


def _crossing_ms(
    problem: PipelineProblem, cut: Assignment, stage: int, *, is_sent: bool
) -> Fraction:
    index = stage if is_sent else stage - 1
    link = problem.link(index)
    total = Fraction(0)
    for tensor, it in enumerate(problem.transfers):
        if _is_crossing(problem, cut, tensor, stage, is_sent=is_sent):
            total += Fraction(link.latency_ms) + Fraction(link.scale) * Fraction(it.transfer_ms)
    return total


def _check_memory(
    problem: PipelineProblem, kind: StageDevice, nodes: list[int], stage: int
) -> None:
    if math.isinf(kind.memory_limit_bytes) or not (problem.memory_bytes or kind.reserve_bytes):
        return
    held = Fraction(kind.reserve_bytes)
    held += sum(
        (Fraction(problem.memory_bytes[n]) for n in nodes if problem.memory_bytes), held * 0
    )
    if held > Fraction(kind.memory_limit_bytes):
        raise PartitionError(f"stage {stage} needs more memory than {kind.name!r} may give")


def _spill_ms(
    problem: PipelineProblem, cut: Assignment, kind: StageDevice, nodes: list[int], stage: int
) -> Fraction:
    """Return what reading weights again costs, by counting every tensor at every node."""
    fast = kind.fast_memory
    if fast is None:
        return Fraction(0)
    most = Fraction(0)
    for node in nodes:
        alive = Fraction(0)
        for tensor, it in enumerate(problem.transfers):
            if _is_alive(problem, cut, tensor, stage, node, nodes):
                alive += Fraction(it.size_bytes)
        most = max(most, alive)
    if most > Fraction(fast.capacity_bytes):
        raise PartitionError(f"stage {stage} has more alive at once than fast memory holds")
    weights = sum(
        (Fraction(problem.weight_bytes[n]) for n in nodes if problem.weight_bytes), most * 0
    )
    over = max(Fraction(0), weights + most - Fraction(fast.capacity_bytes))
    return min(over, weights) * Fraction(fast.slow_ms_per_byte)


def _is_alive(
    problem: PipelineProblem, cut: Assignment, tensor: int, stage: int, node: int, nodes: list[int]
) -> bool:
    """True if a tensor is in the stage's memory while `node` runs."""
    it = problem.transfers[tensor]
    made = cut.stage_of[it.producer]
    here = [use for use in it.consumers if cut.stage_of[use] == stage]
    is_sent = _is_crossing(problem, cut, tensor, stage, is_sent=True)
    if made == stage:
        if node < it.producer:
            return False
        return is_sent or node <= max(here, default=it.producer)
    if made > stage:
        return False
    if is_sent:
        return True  # hops on
    return bool(here) and node <= here[-1]
