"""A pipeline problem as flat numpy arrays, for loops that are compiled.

Only another form of `PipelineProblem` and `Machine`: nothing is costed or changed here. Lists of
lists are rows end to end: row v of `x` is `x[x_start[v]:x_start[v + 1]]`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slicewise.core.pipeline import Objective, PipelineProblem
from slicewise.partition.compiled import is_compiled
from slicewise.partition.machine import Machine, machine_of

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ProblemArrays:
    """The numbers of nodes v, tensors t and devices d; times in ms, sizes in bytes.

    `made` and `used` are the tensors that a node makes and consumes, `uses` the consumers of a
    tensor in rising order. `work[d, v]` may be inf; what is not given is 0, a limit not given inf.
    `pin[v]` is the stage of a pinned node, else -1. `unit[v]` numbers sets of nodes that must
    share a stage (groups, and what lies between their nodes), in a topological order.
    """

    nodes: int
    tensors: int
    producer: Ints
    uses_start: Ints
    uses: Ints
    made_start: Ints
    made: Ints
    used_start: Ints
    used: Ints
    cost: Floats
    size: Floats
    work: Floats
    energy: Floats
    memory: Floats
    weight: Floats
    pin: Ints
    unit: Ints
    units: int


@dataclass(frozen=True, slots=True)
class MachineArrays:
    """States, kinds of stages q and arcs a as `Machine` has them; `kind[q]` rows of numbers.

    Columns of `kind`: scale and latency (ms) of the link before, of the link after, replicas,
    memory limit, reserve (bytes), static energy (J an item), fast memory (bytes), its ms per byte.
    `kind_device`, `kind_place` as in `StageKind`; `has_fast[q]` is 1 with a fast memory.
    """

    states: int
    kind: Floats
    kind_device: Ints
    kind_place: Ints
    has_fast: Ints
    arc_source: Ints
    arc_target: Ints
    arc_kind: Ints
    arc_empty: Ints


BEFORE_SCALE, BEFORE_LATENCY, AFTER_SCALE, AFTER_LATENCY, REPLICAS = range(5)
MEMORY_LIMIT, RESERVE, STATIC, FAST, SLOW = range(5, 10)
KIND_COLUMNS = 10


def arrays_of(problem: PipelineProblem) -> ProblemArrays:
    """Return the arrays of a problem."""
    count = problem.nodes
    made: list[list[int]] = [[] for _ in range(count)]
    used: list[list[int]] = [[] for _ in range(count)]
    for index, transfer in enumerate(problem.transfers):
        made[transfer.producer].append(index)
        for node in transfer.consumers:
            used[node].append(index)
    uses_start, uses = rows([transfer.consumers for transfer in problem.transfers])
    made_start, made_flat = rows(made)
    used_start, used_flat = rows(used)
    pin = np.full(count, -1, np.int64)
    for node, stage in problem.pinned.items():
        pin[node] = stage
    unit, units = _units(problem)
    zeros = (0.0,) * count
    return ProblemArrays(
        nodes=count,
        tensors=len(problem.transfers),
        producer=np.array([transfer.producer for transfer in problem.transfers], np.int64),
        uses_start=uses_start,
        uses=uses,
        made_start=made_start,
        made=made_flat,
        used_start=used_start,
        used=used_flat,
        cost=np.array([transfer.transfer_ms for transfer in problem.transfers], np.float64),
        size=np.array([transfer.size_bytes for transfer in problem.transfers], np.float64),
        work=np.array([kind.work_ms for kind in problem.kinds], np.float64),
        energy=np.array([kind.energy_j or zeros for kind in problem.kinds], np.float64),
        memory=np.array(problem.memory_bytes or zeros, np.float64),
        weight=np.array(problem.weight_bytes or zeros, np.float64),
        pin=pin,
        unit=unit,
        units=units,
    )


def machine_arrays(problem: PipelineProblem, machine: Machine | None = None) -> MachineArrays:
    """Return the arrays of a problem's machine."""
    made = machine_of(problem) if machine is None else machine
    rows_of_kinds = []
    for kind in made.kinds:
        device = problem.kinds[kind.device]
        is_energy = problem.objective is Objective.ENERGY
        static_j = device.static_w * kind.replicas * problem.limit_ms / 1e3 if is_energy else 0.0
        fast = device.fast_memory
        rows_of_kinds.append(
            (
                kind.before.scale, kind.before.latency_ms, kind.after.scale,
                kind.after.latency_ms, kind.replicas, device.memory_limit_bytes,
                device.reserve_bytes, static_j, fast.capacity_bytes if fast else math.inf,
                fast.slow_ms_per_byte if fast else 0.0,
            )
        )  # fmt: skip
    return MachineArrays(
        states=made.states,
        kind=np.array(rows_of_kinds, np.float64),
        kind_device=np.array([kind.device for kind in made.kinds], np.int64),
        kind_place=np.array([kind.place for kind in made.kinds], np.int64),
        has_fast=np.array(
            [problem.kinds[kind.device].fast_memory is not None for kind in made.kinds], np.int64
        ),
        arc_source=np.array([arc.source for arc in made.arcs], np.int64),
        arc_target=np.array([arc.target for arc in made.arcs], np.int64),
        arc_kind=np.array([arc.kind for arc in made.arcs], np.int64),
        arc_empty=np.array([arc.is_empty for arc in made.arcs], np.int64),
    )


def boxed(array: Any) -> Any:
    """Return an array flat, for compiled loops; as a list, which plain loops read faster."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat if is_compiled() else flat.tolist()


def rows(lists: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Return the starts of rows (one more than rows) and the rows end to end."""
    start = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(row) for row in lists], out=start[1:])
    return start, np.array([item for row in lists for item in row], np.int64)


def _units(problem: PipelineProblem) -> tuple[Ints, int]:
    """Return the unit of each node: strong components of the graph with groups as rings.

    A node between two of a group is of its unit, as no tensor may go back. Units are numbered so
    that tensors go to the same or a later one; without groups each node is a unit.
    """
    count = problem.nodes
    if not problem.together:
        return np.arange(count, dtype=np.int64), count
    after: list[list[int]] = [[] for _ in range(count)]
    for transfer in problem.transfers:
        after[transfer.producer].extend(transfer.consumers)
    for group in problem.together:
        for index, node in enumerate(group):
            after[node].append(group[index - 1])
    unit = np.array(_components(after), np.int64)
    return unit, int(unit.max()) + 1


def _components(after: Sequence[Sequence[int]]) -> list[int]:
    """Return the number of each node's strong component, in a topological order (Tarjan 1972)."""
    count = len(after)
    index, low, component = [-1] * count, [0] * count, [-1] * count
    stack: list[int] = []
    seen = found = 0
    for root in range(count):
        if index[root] >= 0:
            continue
        walk = [(root, 0)]
        while walk:
            node, at = walk.pop()
            if at == 0:
                index[node] = low[node] = seen
                seen += 1
                stack.append(node)
            elif component[other := after[node][at - 1]] < 0:
                low[node] = min(low[node], low[other])
            while at < len(after[node]) and index[after[node][at]] >= 0:
                if component[after[node][at]] < 0:
                    low[node] = min(low[node], index[after[node][at]])
                at += 1
            if at < len(after[node]):
                walk.append((node, at + 1))
                walk.append((after[node][at], 0))
            elif low[node] == index[node]:
                while component[node] < 0:
                    component[stack.pop()] = found
                found += 1
    return [found - 1 - number for number in component]
