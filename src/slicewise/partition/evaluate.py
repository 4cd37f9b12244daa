"""What a cut costs, by the definition in `PipelineProblem`: the one that all solvers agree with.

In plain floats, for any legal cut and every variant; `verify` has the same in exact arithmetic.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from slicewise.core.errors import Infeasible, PartitionError
from slicewise.core.pipeline import (
    Assignment,
    Objective,
    PipelineProblem,
    StageLink,
    StageLoad,
)


@dataclass(slots=True)
class Crossing:
    """The tensors (numbers) that a stage receives, sends, and passes on without using them."""

    received: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    passed: list[int] = field(default_factory=list)


def like_devices(problem: PipelineProblem, stage_of: Sequence[int]) -> Assignment:
    """Return the assignment without replicas, each stage on the device at its place."""
    return Assignment(tuple(stage_of), problem.places, (1,) * problem.stages)


def stage_loads(problem: PipelineProblem, cut: Assignment) -> tuple[StageLoad, ...]:
    """Return the load of every stage, empty ones included.

    `PartitionError` where the cut is no cut: a tensor that goes back, a group torn apart, a pin
    or the stock of devices not kept. Limits are not looked at; see `broken_limits`.
    """
    _check_legal(problem, cut)
    members: list[list[int]] = [[] for _ in cut.kind_of]
    for node, stage in enumerate(cut.stage_of):
        members[stage].append(node)
    crossed = crossings(problem, cut.stage_of, len(members))
    return tuple(
        _load(problem, cut, stage, nodes=tuple(nodes), crossing=crossed[stage])
        for stage, nodes in enumerate(members)
    )


def objective_of(problem: PipelineProblem, loads: Sequence[StageLoad]) -> float:
    """Return ms of the slowest stage, or J of an item."""
    if problem.objective is Objective.ENERGY:
        return math.fsum(load.energy_j for load in loads)
    return max(load.load_ms for load in loads)


def broken_limits(problem: PipelineProblem, loads: Sequence[StageLoad]) -> list[str]:
    """Return one line for each limit that a stage does not keep; none: the cut may be used."""
    told = []
    for index, load in enumerate(loads):
        kind = problem.kinds[load.kind]
        if not load.nodes:
            continue
        if load.memory_bytes > kind.memory_limit_bytes:
            over = load.memory_bytes - kind.memory_limit_bytes
            told.append(f"stage {index} on {kind.name}: memory, {over:.6g} bytes too many")
        if kind.fast_memory is not None and load.fast_bytes > kind.fast_memory.capacity_bytes:
            over = load.fast_bytes - kind.fast_memory.capacity_bytes
            told.append(f"stage {index} on {kind.name}: fast memory, {over:.6g} bytes too many")
        if not load.work_ms < math.inf:
            told.append(f"stage {index}: {kind.name} cannot run one of its nodes")
        if problem.objective is Objective.ENERGY and load.load_ms > problem.limit_ms:
            over = load.load_ms - problem.limit_ms
            told.append(f"stage {index}: {over:.6g} ms above the limit")
    return told


def objective_or_raise(problem: PipelineProblem, cut: Assignment) -> float:
    """Return the objective of a cut; `Infeasible` names the limits it breaks."""
    loads = stage_loads(problem, cut)
    if told := broken_limits(problem, loads):
        raise Infeasible(f"the cut breaks limits of {problem.name!r}: {'; '.join(told)}")
    return objective_of(problem, loads)


def held_bytes(problem: PipelineProblem, nodes: Collection[int], later: Sequence[bool]) -> float:
    """Return the most bytes of activations alive at once in a stage that runs `nodes` in order.

    A received tensor is alive from the beginning to its last consumer in the stage, a sent one
    (`later[t]` of tensor t) from its producer, or the beginning, to the end, any other from its
    producer to its last
    consumer; one without consumers is alive while its producer runs. A tensor that no node here
    makes or uses is not counted: with hops the caller adds those that pass.
    """
    place = {node: index for index, node in enumerate(sorted(nodes))}
    steps = [0.0] * (len(place) + 1)
    for transfer, is_sent in zip(problem.transfers, later, strict=True):
        inside = [place[node] for node in transfer.consumers if node in place]
        if transfer.producer not in place and not inside:
            continue
        first = place.get(transfer.producer, 0)
        last = max(inside, default=first)
        if is_sent:
            last = len(place) - 1
        steps[first] += transfer.size_bytes
        steps[last + 1] -= transfer.size_bytes
    alive = most = 0.0
    for step in steps[:-1]:
        alive += step
        most = max(most, alive)
    return most


def transfer_ms(link: StageLink, cost_ms: float) -> float:
    """Return the time of one tensor over a link."""
    return link.latency_ms + link.scale * cost_ms


def _load(
    problem: PipelineProblem,
    cut: Assignment,
    stage: int,
    *,
    nodes: tuple[int, ...],
    crossing: Crossing,
) -> StageLoad:
    """Return the load of one stage by the definition."""
    kind = problem.kinds[cut.kind_of[stage]]
    received, sent = crossing.received, crossing.sent
    before, after = problem.link(stage - 1), problem.link(stage)
    receive_ms = math.fsum(transfer_ms(before, problem.transfers[t].transfer_ms) for t in received)
    send_ms = math.fsum(transfer_ms(after, problem.transfers[t].transfer_ms) for t in sent)
    work_ms = math.fsum(kind.work_ms[node] for node in nodes)
    fast_bytes = 0.0
    if kind.fast_memory is not None and nodes:
        outgoing = set(sent)
        later = [index in outgoing for index in range(len(problem.transfers))]
        fast_bytes = held_bytes(problem, nodes, later) + math.fsum(
            problem.transfers[t].size_bytes for t in crossing.passed
        )
        weights = math.fsum(problem.weight_bytes[n] for n in nodes) if problem.weight_bytes else 0
        spilt = max(0.0, weights + fast_bytes - kind.fast_memory.capacity_bytes)
        work_ms += min(spilt, weights) * kind.fast_memory.slow_ms_per_byte
    replicas = cut.replicas[stage]
    parts = (work_ms, receive_ms, send_ms)
    load_ms = (max(parts) if problem.overlaps else math.fsum(parts)) / replicas
    memory = math.fsum(problem.memory_bytes[n] for n in nodes) if problem.memory_bytes else 0.0
    energy_j = problem.transfer_j_per_ms * (receive_ms + send_ms)
    if kind.energy_j:
        energy_j += math.fsum(kind.energy_j[node] for node in nodes)
    if nodes and problem.objective is Objective.ENERGY:
        energy_j += kind.static_w * replicas * problem.limit_ms / 1e3
    return StageLoad(
        nodes, cut.kind_of[stage], replicas, work_ms, receive_ms, send_ms, load_ms,
        memory + kind.reserve_bytes if nodes else 0.0, energy_j, fast_bytes,
    )  # fmt: skip


def crossings(
    problem: PipelineProblem, stage_of: Sequence[int], stages: int
) -> tuple[Crossing, ...]:
    """Return what crosses the border of each stage."""
    made = tuple(Crossing() for _ in range(stages))
    for index, transfer in enumerate(problem.transfers):
        first = stage_of[transfer.producer]
        uses = {stage_of[node] for node in transfer.consumers} - {first}
        if not uses:
            continue
        last = max(uses)
        made[first].sent.append(index)
        for stage in range(first + 1, last + 1) if problem.hops else uses:
            made[stage].received.append(index)
            if problem.hops and stage < last:
                made[stage].sent.append(index)
                if stage not in uses:
                    made[stage].passed.append(index)
    return made


def _check_legal(problem: PipelineProblem, cut: Assignment) -> None:
    """Raise `PartitionError` for a cut that is none of this problem's."""
    stages = len(cut.kind_of)
    if len(cut.stage_of) != problem.nodes or len(cut.replicas) != stages:
        raise PartitionError(f"the cut has another size than problem {problem.name!r}")
    if any(not 0 <= stage < stages for stage in cut.stage_of):
        raise PartitionError(f"the cut has a stage that is not in 0 to {stages - 1}")
    for transfer in problem.transfers:
        made = cut.stage_of[transfer.producer]
        for node in transfer.consumers:
            if cut.stage_of[node] < made:
                raise PartitionError(
                    f"{problem.names[node]!r} is in stage {cut.stage_of[node]}, before its input"
                    f" {problem.names[transfer.producer]!r} in stage {made}"
                )
    for group in problem.together:
        if len({cut.stage_of[node] for node in group}) > 1:
            names = ", ".join(problem.names[node] for node in group[:4])
            raise PartitionError(f"nodes that belong together are in several stages: {names}")
    for node, stage in problem.pinned.items():
        if cut.stage_of[node] != stage:
            raise PartitionError(
                f"{problem.names[node]!r} is in stage {cut.stage_of[node]}, pinned to {stage}"
            )
    _check_devices(problem, cut)


def _check_devices(problem: PipelineProblem, cut: Assignment) -> None:
    used = sorted(set(cut.stage_of))
    if any(cut.replicas[stage] < 1 for stage in used):
        raise PartitionError("a stage has no device; replicas are 1 or more")
    if not problem.replicates and any(cut.replicas[stage] != 1 for stage in used):
        raise PartitionError(f"problem {problem.name!r} has no replicas; each stage has 1 device")
    if problem.is_placed and len(set(problem.places)) > 1:
        if any(cut.kind_of[stage] != problem.places[stage] for stage in used):
            raise PartitionError("a stage is on another device than the one at its place")
        return
    for kind, device in enumerate(problem.kinds):
        taken = sum(cut.replicas[stage] for stage in used if cut.kind_of[stage] == kind)
        if taken > problem.places.count(kind):
            raise PartitionError(
                f"the cut takes {taken} of device {device.name!r}; there are"
                f" {problem.places.count(kind)}"
            )
