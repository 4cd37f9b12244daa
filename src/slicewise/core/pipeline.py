"""A partition into pipeline stages: the problem as numbers only, the answer, and its bounds.

Nothing is solved, evaluated or checked here beyond what keeps the numbers meaningful.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

from slicewise.core.errors import PartitionError
from slicewise.core.notes import Note


class Objective(StrEnum):
    """What is made least: the load of the slowest stage, or energy under a limit of that load."""

    BOTTLENECK = "bottleneck"
    ENERGY = "energy"


class Trust(StrEnum):
    """Whether `verify` recomputes a bound exactly, or a solver's word is taken for it."""

    CHECKED = "checked"
    SOLVER = "solver"


@dataclass(frozen=True, slots=True)
class Transfer:
    """A tensor: one producer, its consumers in rising order, and what sending it once costs.

    `transfer_ms` is on a link of scale 1 and latency 0; `size_bytes` counts towards the fast
    memory. A tensor without consumers is an output of the model and costs nothing.
    """

    producer: int
    consumers: tuple[int, ...]
    transfer_ms: float
    size_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class FastMemory:
    """On-chip memory of `capacity_bytes`. Activations alive at once in a stage must fit into it.

    Weights take what the greatest of these moments leaves; those that do not fit are read again
    for each item from the slower tier behind it, which adds `slow_ms_per_byte` each to the work.
    """

    capacity_bytes: float
    slow_ms_per_byte: float


@dataclass(frozen=True, slots=True)
class StageDevice:
    """A kind of device: the time (ms) and the energy (J) of each node on it; inf where it cannot.

    The memory of a stage is the sum of its nodes' and `reserve_bytes`, at most
    `memory_limit_bytes`. `static_w` is drawn by a device that has a stage, whatever it does.
    """

    name: str
    work_ms: tuple[float, ...]
    energy_j: tuple[float, ...] = ()
    memory_limit_bytes: float = math.inf
    reserve_bytes: float = 0.0
    static_w: float = 0.0
    fast_memory: FastMemory | None = None


@dataclass(frozen=True, slots=True)
class StageLink:
    """The link from one stage to the next: a tensor takes latency + scale x `transfer_ms`."""

    scale: float = 1.0
    latency_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class PipelineProblem:
    """Nodes in topological order are given to stages 0 .. k-1, k = `len(places)`.

    Every tensor goes to its own or a later stage. Stage b runs on a device of the kind
    `kinds[places[b]]`; with `is_placed` False the places are a stock, of which each stage takes
    one, in any order. Stages may be empty, on devices that then stay unused.

    Stage b receives over `links[b - 1]` each tensor that a node of it consumes and that an earlier
    stage made, once, and sends over `links[b]` each tensor of its own that a later stage consumes,
    once. With `hops` a tensor goes through every stage between: stage b receives what is alive at
    its beginning and sends what is alive at its end; an empty stage between others passes it on.
    No links: all are `StageLink()`. Links unlike each other need `is_placed` or like devices.

    The load of a stage is work + receive + send, or the greatest of the three with `overlaps`.
    With `replicates` a stage may take r devices of its kind: its load is divided by r, its static
    power is drawn r times, and the sum of all r is at most k; like devices, or a stock, and no
    unlike links. Nodes of a group in `together` share a stage; `pinned` maps a node to its stage
    (of a placed problem or like devices without replicas; -1 the last that is not empty is not
    among them: pin to k-1).

    The objective is the greatest load, or the energy of an item: that of the nodes, `transfer_j`
    per ms of transfer sent and received, and the static power over `limit_ms`; every load must
    then be at most `limit_ms`, the time between two items.
    """

    name: str
    names: tuple[str, ...]
    transfers: tuple[Transfer, ...]
    kinds: tuple[StageDevice, ...]
    places: tuple[int, ...]
    memory_bytes: tuple[float, ...] = ()
    weight_bytes: tuple[float, ...] = ()
    links: tuple[StageLink, ...] = ()
    is_placed: bool = True
    overlaps: bool = False
    hops: bool = False
    replicates: bool = False
    together: tuple[tuple[int, ...], ...] = ()
    pinned: Mapping[int, int] = field(default_factory=dict)
    objective: Objective = Objective.BOTTLENECK
    limit_ms: float = math.inf
    transfer_j_per_ms: float = 0.0

    def __post_init__(self) -> None:
        _check(self)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.names)

    @property
    def stages(self) -> int:
        """The most stages, k."""
        return len(self.places)

    @property
    def is_uniform(self) -> bool:
        """True if all places are of one kind and all links alike: stages differ by nothing."""
        return len(set(self.places)) == 1 and len(set(self.links)) <= 1 and not self.pinned

    def link(self, index: int) -> StageLink:
        """Return the link from stage `index` to the next."""
        return self.links[index] if 0 <= index < len(self.links) else StageLink()

    def with_stages(self, stages: int) -> Self:
        """Return the same problem with another k; of like devices and links only."""
        if len(set(self.places)) > 1 or len(set(self.links)) > 1:
            raise PartitionError(
                f"problem {self.name!r} has unlike devices or links; its number of stages is"
                f" {self.stages}, not {stages}"
            )
        links = (self.links[0],) * (stages - 1) if self.links else ()
        return replace(self, places=(self.places[0],) * stages, links=links)


@dataclass(frozen=True, slots=True)
class StageLoad:
    """What one stage costs per item; `load_ms` is per replica already, the parts are not."""

    nodes: tuple[int, ...]
    kind: int
    replicas: int
    work_ms: float
    receive_ms: float
    send_ms: float
    load_ms: float
    memory_bytes: float
    energy_j: float
    fast_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Assignment:
    """A cut as solvers hand it on: the stage of each node, the kind and replicas of each stage."""

    stage_of: tuple[int, ...]
    kind_of: tuple[int, ...]
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """No partition has a lower objective (ms, or J for energy) than `value`; rounded down.

    `detail` says how to compute it again: the sizes of superblocks, the solver's status.
    """

    method: str
    value: float
    trust: Trust
    detail: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Partition:
    """A legal cut, its loads, and the best bound beside it.

    `value` is the objective: ms of the slowest stage, or J. `is_complete` is False where the time
    limit or Ctrl-C ended the search before it was done.
    """

    assignment: Assignment
    loads: tuple[StageLoad, ...]
    value: float
    bounds: tuple[Bound, ...]
    method: str
    seed: int
    seconds: float
    is_complete: bool = True
    notes: tuple[Note, ...] = ()

    @property
    def bottleneck_ms(self) -> float:
        """The load of the slowest stage."""
        return max((load.load_ms for load in self.loads), default=0.0)

    @property
    def energy_j(self) -> float:
        """The energy of an item."""
        return math.fsum(load.energy_j for load in self.loads)

    @property
    def bound(self) -> float:
        """The best bound; 0 where there is none."""
        return max((bound.value for bound in self.bounds), default=0.0)

    @property
    def gap(self) -> float:
        """How far the value can be above the least possible one: value / best bound - 1."""
        if self.value <= self.bound:
            return 0.0
        return self.value / self.bound - 1 if self.bound > 0 else math.inf

    @property
    def is_optimal(self) -> bool:
        """True if the gap is at most 1e-4."""
        return self.gap <= OPTIMAL_GAP


OPTIMAL_GAP = 1e-4


def _check(problem: PipelineProblem) -> None:
    """Raise `PartitionError` for numbers that mean nothing."""
    count = len(problem.names)
    if not problem.places:
        raise PartitionError(f"problem {problem.name!r} has 0 stages; give 1 or more")
    if not count:
        raise PartitionError(f"problem {problem.name!r} has no nodes; give one at least")
    for index, transfer in enumerate(problem.transfers):
        ends = transfer.consumers
        if not 0 <= transfer.producer < count or any(not 0 <= c < count for c in ends):
            raise PartitionError(
                f"tensor {index} of {problem.name!r} has a node that is not there"
            )
        if (ends and ends[0] <= transfer.producer) or tuple(sorted(set(ends))) != ends:
            name = problem.names[transfer.producer]
            raise PartitionError(
                f"tensor {index} of {problem.name!r}, made by {name!r}, has consumers {ends}; they"
                " must come after it, in rising order, each once"
            )
        _check_costs(problem, f"tensor {index}", (transfer.transfer_ms, transfer.size_bytes))
    for kind in problem.kinds:
        _check_length(problem, f"work_ms of {kind.name!r}", kind.work_ms, optional=False)
        _check_length(problem, f"energy_j of {kind.name!r}", kind.energy_j)
        _check_costs(problem, kind.name, (*kind.work_ms, *kind.energy_j), infinite=True)
        _check_costs(problem, kind.name, (kind.reserve_bytes, kind.static_w))
        _check_costs(problem, kind.name, (kind.memory_limit_bytes,), infinite=True)
        if kind.fast_memory is not None:
            fast = kind.fast_memory
            _check_costs(problem, kind.name, (fast.capacity_bytes, fast.slow_ms_per_byte))
    _check_length(problem, "memory_bytes", problem.memory_bytes)
    _check_length(problem, "weight_bytes", problem.weight_bytes)
    _check_costs(problem, "memory", (*problem.memory_bytes, *problem.weight_bytes))
    _check_costs(problem, "a link", [x for e in problem.links for x in (e.scale, e.latency_ms)])
    _check_costs(problem, "limit_ms", (problem.limit_ms,), infinite=True)
    _check_stages(problem)


def _check_stages(problem: PipelineProblem) -> None:
    told = f"problem {problem.name!r}"
    if any(not 0 <= place < len(problem.kinds) for place in problem.places):
        raise PartitionError(f"{told} has a place of a kind of device that is not there")
    if problem.links and len(problem.links) != problem.stages - 1:
        raise PartitionError(
            f"{told} has {len(problem.links)} links for {problem.stages} stages; give one fewer"
            " than stages, or none"
        )
    is_alike = len(set(problem.places)) == 1
    fixed = problem.is_placed or is_alike
    if len(set(problem.links)) > 1 and (not fixed or problem.replicates):
        raise PartitionError(
            f"{told} has unlike links; they need an order of devices, no replicas"
        )
    if problem.pinned and (not fixed or problem.replicates):
        raise PartitionError(f"{told} pins nodes; that needs an order of devices, no replicas")
    if problem.replicates and problem.is_placed and not is_alike:
        raise PartitionError(f"{told} replicates on an order of unlike devices; give a stock")
    if problem.hops and not fixed and problem.replicates:
        raise PartitionError(f"{told} hops over replicas of unlike devices; drop one of the three")
    for node, stage in problem.pinned.items():
        if not 0 <= node < problem.nodes or not 0 <= stage < problem.stages:
            raise PartitionError(
                f"{told} pins node {node} to stage {stage}; nodes are 0 to {problem.nodes - 1},"
                f" stages 0 to {problem.stages - 1}"
            )
    if any(not 0 <= node < problem.nodes for group in problem.together for node in group):
        raise PartitionError(f"{told} holds a node together that is not there")
    if problem.objective is Objective.ENERGY:
        lacking = [kind.name for kind in problem.kinds if not kind.energy_j]
        if lacking or not problem.limit_ms < math.inf:
            raise PartitionError(
                f"{told} asks for least energy; give the energy of each node and a limit in ms"
            )


def _check_length(
    problem: PipelineProblem, what: str, values: tuple[float, ...], *, optional: bool = True
) -> None:
    if len(values) != problem.nodes and (values or not optional):
        raise PartitionError(
            f"{what} of problem {problem.name!r} has {len(values)} values, not {problem.nodes}"
        )


def _check_costs(
    problem: PipelineProblem, what: str, values: "tuple[float, ...] | list[float]", *,
    infinite: bool = False,
) -> None:  # fmt: skip
    for value in values:
        if not value >= 0 or (value == math.inf and not infinite):
            raise PartitionError(
                f"{what} of problem {problem.name!r} has the cost {value}; costs are 0 or more"
            )
