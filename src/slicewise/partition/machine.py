"""In which order stages may follow each other: the states and arcs that every exact method walks.

A state says how many places, or which of the stock of devices, are used up; an arc adds a stage.
Pure bookkeeping: no cost is computed here.
"""

import itertools
from dataclasses import dataclass

from slicewise.core.pipeline import PipelineProblem, StageLink


@dataclass(frozen=True, slots=True)
class StageKind:
    """What the cost of a stage depends on besides its nodes. `place` is its number for pins, or
    -1 where no node is pinned."""

    device: int
    before: StageLink
    after: StageLink
    replicas: int = 1
    place: int = -1


@dataclass(frozen=True, slots=True)
class Arc:
    """A stage of the kind `kinds[kind]`, or an empty one, leads from `source` to `target`."""

    source: int
    target: int
    kind: int
    is_empty: bool = False


@dataclass(frozen=True, slots=True)
class Machine:
    """States 0 .. `states` - 1 in topological order, 0 the start; every state may be the last.

    `arcs` are sorted by target. Empty arcs exist where stages have places of their own: devices in
    an order, unlike links, pins. The cost of an empty stage is that of what passes it (0 without
    hops). Elsewhere fewer stages are a shorter walk, and none is empty.
    """

    kinds: tuple[StageKind, ...]
    states: int
    arcs: tuple[Arc, ...]


def machine_of(problem: PipelineProblem) -> Machine:
    """Return the machine of a problem."""
    is_alike = len(set(problem.places)) == 1
    if problem.replicates or not (problem.is_placed or is_alike):
        return _stock(problem)
    return _line(problem)


def _line(problem: PipelineProblem) -> Machine:
    """One stage after the other, each at its place."""
    kinds: dict[StageKind, int] = {}
    arcs = []
    for stage, device in enumerate(problem.places):
        place = stage if problem.pinned else -1
        made = StageKind(device, problem.link(stage - 1), problem.link(stage), place=place)
        if problem.is_uniform:  # the first and last link are never used at their outer end
            link = problem.link(0)
            made = StageKind(device, link, link)
        kind = kinds.setdefault(made, len(kinds))
        arcs.append(Arc(stage, stage + 1, kind))
        if not problem.is_uniform:
            arcs.append(Arc(stage, stage + 1, kind, is_empty=True))
    return Machine(tuple(kinds), problem.stages + 1, tuple(arcs))


def _stock(problem: PipelineProblem) -> Machine:
    """States count what is used of each device; an arc takes r of one."""
    devices = sorted(set(problem.places))
    have = [problem.places.count(device) for device in devices]
    states = sorted(itertools.product(*(range(count + 1) for count in have)), key=sum)
    number = {state: index for index, state in enumerate(states)}
    link = problem.link(0)
    kinds: dict[StageKind, int] = {}
    arcs = []
    for state in states:
        for index, device in enumerate(devices):
            most = have[index] - state[index]
            for replicas in range(1, (most if problem.replicates else min(most, 1)) + 1):
                made = StageKind(device, link, link, replicas)
                kind = kinds.setdefault(made, len(kinds))
                target = (*state[:index], state[index] + replicas, *state[index + 1 :])
                arcs.append(Arc(number[state], number[target], kind))
    arcs.sort(key=lambda arc: (arc.target, arc.source))
    return Machine(tuple(kinds), len(states), tuple(arcs))
