"""Simulated annealing of a cut under a target load: nodes go to the next stage or the one before,
with all that must go with them.

For stages with places of their own, loads that add up or overlap, memory limits and pins;
`supports` says which variants are not known. The energy is what loads lie above the target; where
nothing does, the target is lowered. Which cut to begin with, and how long to go on, is decided in
`search`.
"""

import math
from typing import NamedTuple

import numpy as np

from slicewise.core.pipeline import Objective, PipelineProblem
from slicewise.partition.compiled import compiled
from slicewise.partition.slicegraph.arrays import Floats, Ints, ProblemArrays, boxed

_SEEDS = 2147483647  # of the minimal standard generator (Park and Miller 1988)


class Nodes(NamedTuple):
    """The graph, flat; `work[b * n + v]` is by stage b."""

    producer: Ints
    uses_start: Ints
    uses: Ints
    made_start: Ints
    made: Ints
    used_start: Ints
    used: Ints
    cost: Floats
    work: Floats
    memory: Floats
    fixed: Ints


class Rooms(NamedTuple):
    """The stages: links on both sides, replicas, and the most memory of nodes."""

    before_scale: Floats
    before_latency: Floats
    after_scale: Floats
    after_latency: Floats
    replicas: Floats
    memory_limit: Floats


class State(NamedTuple):
    """A cut and what follows from it: `inside[t * k + b]` consumers of tensor t in stage b.

    `before[v]` counts the tensors that v uses from its own stage, `after[v]` the uses of its own
    there. `loose` lists the nodes with one of them 0, each at `place[v]` (-1: not there).
    """

    stage: Ints
    inside: Ints
    before: Ints
    after: Ints
    loose: Ints
    place: Ints
    loose_size: Ints
    work: Floats
    receive: Floats
    send: Floats
    memory: Floats
    group: Ints
    mark: Ints
    best: Ints


@compiled
def _list(state: State, v: int) -> None:
    """Put a node into the list of loose ones, or take it out."""
    is_loose = state.before[v] == 0 or state.after[v] == 0
    at = state.place[v]
    if is_loose and at < 0:
        state.loose[state.loose_size[0]] = v
        state.place[v] = state.loose_size[0]
        state.loose_size[0] += 1
    elif not is_loose and at >= 0:
        state.loose_size[0] -= 1
        last = state.loose[state.loose_size[0]]
        state.loose[at] = last
        state.place[last] = at
        state.place[v] = -1


@compiled
def _move(nodes: Nodes, rooms: Rooms, state: State, stages: int, v: int, to: int) -> None:
    """Move a node to another stage: loads, counts and the list follow."""
    a = state.stage[v]
    n = len(state.stage)
    state.work[a] -= nodes.work[a * n + v]
    state.work[to] += nodes.work[to * n + v]
    state.memory[a] -= nodes.memory[v]
    state.memory[to] += nodes.memory[v]
    before = 0
    for e in range(nodes.used_start[v], nodes.used_start[v + 1]):
        t = nodes.used[e]
        u = nodes.producer[t]
        made = state.stage[u]
        total = nodes.uses_start[t + 1] - nodes.uses_start[t]
        here, there = t * stages + a, t * stages + to
        if made == a:
            if state.inside[here] == total:
                state.send[a] += rooms.after_latency[a] + rooms.after_scale[a] * nodes.cost[t]
            state.after[u] -= 1
            _list(state, u)
        elif state.inside[here] == 1:
            state.receive[a] -= rooms.before_latency[a] + rooms.before_scale[a] * nodes.cost[t]
        state.inside[here] -= 1
        if made == to:
            before += 1
            if state.inside[there] == total - 1:
                state.send[to] -= rooms.after_latency[to] + rooms.after_scale[to] * nodes.cost[t]
            state.after[u] += 1
            _list(state, u)
        elif state.inside[there] == 0:
            state.receive[to] += rooms.before_latency[to] + rooms.before_scale[to] * nodes.cost[t]
        state.inside[there] += 1
    after = 0
    for e in range(nodes.made_start[v], nodes.made_start[v + 1]):
        t = nodes.made[e]
        total = nodes.uses_start[t + 1] - nodes.uses_start[t]
        here, there = state.inside[t * stages + a], state.inside[t * stages + to]
        if here < total:
            state.send[a] -= rooms.after_latency[a] + rooms.after_scale[a] * nodes.cost[t]
        if here > 0:
            state.receive[a] += rooms.before_latency[a] + rooms.before_scale[a] * nodes.cost[t]
        if there < total:
            state.send[to] += rooms.after_latency[to] + rooms.after_scale[to] * nodes.cost[t]
        if there > 0:
            state.receive[to] -= rooms.before_latency[to] + rooms.before_scale[to] * nodes.cost[t]
        after += there
        if here > 0 or there > 0:
            for e2 in range(nodes.uses_start[t], nodes.uses_start[t + 1]):
                w = nodes.uses[e2]
                if state.stage[w] == a:
                    state.before[w] -= 1
                    _list(state, w)
                elif state.stage[w] == to:
                    state.before[w] += 1
                    _list(state, w)
    state.stage[v] = to
    state.before[v] = before
    state.after[v] = after
    _list(state, v)


@compiled
def _load(rooms: Rooms, state: State, overlaps: bool, b: int) -> float:
    if overlaps:
        load = float(max(state.work[b], state.receive[b], state.send[b]))
    else:
        load = float(state.work[b] + state.receive[b] + state.send[b])
    return load / float(rooms.replicas[b])


@compiled
def _step(nodes: Nodes, state: State, v: int, ahead: bool, chance: int) -> int:
    """Return a neighbour of v in its stage, against the direction of the move; -1: none there."""
    a = state.stage[v]
    if ahead:
        count = nodes.used_start[v + 1] - nodes.used_start[v]
        for index in range(count):
            u = nodes.producer[nodes.used[nodes.used_start[v] + (chance + index) % count]]
            if state.stage[u] == a:
                return int(u)
        return -1
    count = nodes.made_start[v + 1] - nodes.made_start[v]
    for index in range(count):
        t = nodes.made[nodes.made_start[v] + (chance + index) % count]
        ends = nodes.uses_start[t + 1] - nodes.uses_start[t]
        for index2 in range(ends):
            u = nodes.uses[nodes.uses_start[t] + (chance + index2) % ends]
            if state.stage[u] == a:
                return int(u)
    return -1


@compiled
def _gather(nodes: Nodes, state: State, v: int, ahead: bool, most: int, stamp: int) -> int:
    """Write v and all of its stage that must move with it into `group`; return how many, or 0.

    Ahead: what consumes from it, and so on; else what it consumes from. 0: more than `most`, or
    one of them is fixed.
    """
    a = state.stage[v]
    state.group[0] = v
    state.mark[v] = stamp
    size, done = 1, 0
    while done < size:
        u = state.group[done]
        done += 1
        if nodes.fixed[u] == 1:
            return 0
        if ahead:
            for e in range(nodes.made_start[u], nodes.made_start[u + 1]):
                t = nodes.made[e]
                for e2 in range(nodes.uses_start[t], nodes.uses_start[t + 1]):
                    w = nodes.uses[e2]
                    if state.stage[w] == a and state.mark[w] != stamp:
                        if size == most:
                            return 0
                        state.mark[w] = stamp
                        state.group[size] = w
                        size += 1
        else:
            for e in range(nodes.used_start[u], nodes.used_start[u + 1]):
                w = nodes.producer[nodes.used[e]]
                if state.stage[w] == a and state.mark[w] != stamp:
                    if size == most:
                        return 0
                    state.mark[w] = stamp
                    state.group[size] = w
                    size += 1
    return size


@compiled
def _settle(nodes: Nodes, rooms: Rooms, state: State, stages: int) -> None:
    """Compute everything from `stage` anew."""
    n = len(state.stage)
    for b in range(stages):
        state.work[b] = state.receive[b] = state.send[b] = state.memory[b] = 0.0
    for index in range(len(state.inside)):
        state.inside[index] = 0
    state.loose_size[0] = 0
    for v in range(n):
        b = state.stage[v]
        state.work[b] += nodes.work[b * n + v]
        state.memory[b] += nodes.memory[v]
        state.before[v] = state.after[v] = 0
        state.place[v] = -1
        state.mark[v] = 0
    for t in range(len(nodes.producer)):
        u = nodes.producer[t]
        a = state.stage[u]
        outside = False
        for e in range(nodes.uses_start[t], nodes.uses_start[t + 1]):
            w = nodes.uses[e]
            b = state.stage[w]
            if b == a:
                state.before[w] += 1
                state.after[u] += 1
            else:
                outside = True
                if state.inside[t * stages + b] == 0:
                    state.receive[b] += (
                        rooms.before_latency[b] + rooms.before_scale[b] * nodes.cost[t]
                    )
            state.inside[t * stages + b] += 1
        if outside:
            state.send[a] += rooms.after_latency[a] + rooms.after_scale[a] * nodes.cost[t]
    for v in range(n):
        _list(state, v)


@compiled
def _anneal(
    nodes: Nodes, rooms: Rooms, state: State, overlaps: bool, target: float, hot: float,
    cold: float, steps: int, most: int, seed: int, shrink: float, thrift: float,
) -> float:  # fmt: skip
    """Run `steps` proposals from `stage`; return the last target reached, its cut in `best`.

    The temperature falls from `hot` to `cold` by a constant factor. The target unchanged: no cut
    was found. `thrift` is what a ms of any load weighs beside one above the target.
    """
    stages, n = len(rooms.replicas), len(state.stage)
    _settle(nodes, rooms, state, stages)
    chance = seed
    heat = hot
    fall = (cold / hot) ** (1.0 / max(1, steps))
    over = 0.0
    for b in range(stages):
        over += max(0.0, _load(rooms, state, overlaps, b) - target)
    for step in range(steps):
        heat *= fall
        if state.loose_size[0] == 0:
            break
        chance = chance * 48271 % 2147483647
        v = state.loose[chance % state.loose_size[0]]
        chance = chance * 48271 % 2147483647
        ahead = state.after[v] == 0 and (state.before[v] > 0 or chance % 2 == 0)
        a = state.stage[v]
        to = a + 1 if ahead else a - 1
        if to < 0 or to >= stages or nodes.fixed[v] == 1:
            continue
        chance = chance * 48271 % 2147483647
        away = chance % (most + 1)
        size = 1
        if away > 0:  # a node `1 .. 2^away` steps inside the stage, and all that must go with it
            chance = chance * 48271 % 2147483647
            far = 1 + chance % (1 << away)
            for _ in range(far):
                chance = chance * 48271 % 2147483647
                u = _step(nodes, state, v, ahead, chance)
                if u < 0:
                    break
                v = u
            size = _gather(nodes, state, v, ahead, 2 << away, step + 1)
        else:
            state.group[0] = v
        if size == 0:
            continue
        gain = work = 0.0
        for index in range(size):
            gain += nodes.memory[state.group[index]]
            work += nodes.work[to * n + state.group[index]]
        if state.memory[to] + gain > rooms.memory_limit[to] or work == math.inf:
            continue
        from_load, to_load = _load(rooms, state, overlaps, a), _load(rooms, state, overlaps, to)
        for index in range(size):
            _move(nodes, rooms, state, stages, state.group[index], to)
        new_from, new_to = _load(rooms, state, overlaps, a), _load(rooms, state, overlaps, to)
        above = (
            max(0.0, new_from - target) + max(0.0, new_to - target)
            - max(0.0, from_load - target) - max(0.0, to_load - target)
        )  # fmt: skip
        change = above + thrift * (new_from + new_to - from_load - to_load)
        if change > 0.0:
            chance = chance * 48271 % 2147483647
            if chance / 2147483647.0 >= math.exp(-change / heat):
                for index in range(size - 1, -1, -1):
                    _move(nodes, rooms, state, stages, state.group[index], a)
                continue
        over += above
        if over <= 1e-9 * target:
            top = 0.0
            for b in range(stages):
                top = max(top, _load(rooms, state, overlaps, b))
            if top <= target * (1.0 + 1e-9):
                for u in range(n):
                    state.best[u] = state.stage[u]
                target = min(top, target) * (1.0 - shrink)
            over = 0.0
            for b in range(stages):
                over += max(0.0, _load(rooms, state, overlaps, b) - target)
    return target


def supports(problem: PipelineProblem) -> str:
    """Return '' for a problem whose cuts can be annealed, or the reason."""
    if problem.hops:
        return "tensors that hop through every stage"
    if problem.together:
        return "nodes that share a stage"
    if problem.objective is Objective.ENERGY:
        return "the energy objective"
    if any(kind.fast_memory is not None for kind in problem.kinds):
        return "fast memory"
    return ""


class Annealer:
    """Anneals cuts of one problem that `supports` knows."""

    def __init__(self, problem: PipelineProblem, arrays: ProblemArrays) -> None:
        self.problem = problem
        self.arrays = arrays

    def begin(self, stage_of: Ints, kind_of: tuple[int, ...], replicas: tuple[int, ...]) -> None:
        """Take a cut to anneal; devices and replicas of its stages stay as they are."""
        problem, arrays, stages = self.problem, self.arrays, len(kind_of)
        devices = [problem.kinds[kind] for kind in kind_of]
        befores = [problem.link(stage - 1) for stage in range(stages)]
        afters = [problem.link(stage) for stage in range(stages)]
        whole = {name: boxed(getattr(arrays, name)) for name in Nodes._fields if name != "fixed"}
        whole["work"] = boxed(arrays.work[list(kind_of)])
        self._nodes = Nodes(**whole, fixed=boxed((arrays.pin >= 0).astype(np.int64)))
        limits = [device.memory_limit_bytes - device.reserve_bytes for device in devices]
        rooms = (
            [link.scale for link in befores], [link.latency_ms for link in befores],
            [link.scale for link in afters], [link.latency_ms for link in afters],
            [max(1, r) for r in replicas], limits,
        )  # fmt: skip
        self._rooms = Rooms(*(boxed(np.array(values, np.float64)) for values in rooms))
        count = arrays.nodes
        sizes = {"inside": arrays.tensors * stages, "loose_size": 1, "group": count + 1}
        loads = ("work", "receive", "send", "memory")
        self._state = State(
            stage=boxed(np.array(stage_of, np.int64)),
            **{name: boxed(np.zeros(stages)) for name in loads},
            **{
                name: boxed(np.zeros(sizes.get(name, count), np.int64))
                for name in State._fields
                if name not in ("stage", *loads)
            },
        )

    def run(
        self, target: float, *, hot: float, cold: float, steps: int, most: int, seed: int,
        shrink: float = 1e-6, thrift: float = 0.0,
    ) -> float:  # fmt: skip
        """Go on from the cut that is there; return the target that is left (see `_anneal`)."""
        return float(
            _anneal(
                self._nodes, self._rooms, self._state, self.problem.overlaps, target, hot, cold,
                steps, most, 1 + seed % (_SEEDS - 1), shrink, thrift,
            )
        )  # fmt: skip

    @property
    def best(self) -> Ints:
        """The stages of the last cut that reached its target."""
        return np.array(self._state.best, np.int64)

    @property
    def current(self) -> Ints:
        """The stages of the cut where the annealing is."""
        return np.array(self._state.stage, np.int64)

    def loads(self) -> list[float]:
        """Return the loads (ms) as the annealing keeps them, of the cut where it is."""
        return [
            float(_load(self._rooms, self._state, self.problem.overlaps, stage))
            for stage in range(len(self._rooms.replicas))
        ]
