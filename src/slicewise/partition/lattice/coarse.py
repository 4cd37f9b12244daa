"""A lower bound where ideals are too many: light nodes are dropped, then the lattice is solved.

Dropping node v is a relaxation. Every consumer of a tensor O that v makes consumes instead, of the
tensors v consumes, the dearest one t that costs no more than O; what else v consumes remains as
precedence without cost. Proof, for any cut: where the maker of t sends it to such a consumer, it
sent t to v before, or v was beside it and sent O; where a stage receives t for such a consumer, v
was in it and received t, or was earlier and O was received. Each O stands for one t. So no load
gets greater; by induction that holds for any number of dropped nodes.

The work of v is not lost: it is given to an ancestor, its anchor. A stage then does more than
before by the work of those v that are beyond it while their anchor is in it. For a stage that ends
with ideal J these are v outside of J with the anchor in J; their work, at most `loss_ms` over all
J, is taken off the bound. That maximum is a heaviest closed set: anchors count what they were
given, dropped nodes what they gave away; what an anchor has is set off against dropped ancestors
of it, each once, which are in every J that has the anchor. What is left is no less than the
maximum (a feasible flow against a maximum cut).

A node v that reads one tensor t of many readers and makes one tensor O for one consumer x, no
cheaper than t and than its own work, is given to x instead (keys and values that each decoder
layer makes of one encoder output). A stage that has x without v did receive O; now it does v's
work and receives t, which it does but once for all such v: the gain is at most the work of one of
them for each t. Not with overlap, where what is received is not added to work.

Only for the bottleneck of like devices and links: elsewhere work depends on where it is done.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from slicewise.core.pipeline import (
    Bound,
    Objective,
    PipelineProblem,
    StageDevice,
    Transfer,
    Trust,
)
from slicewise.partition.contract import contract
from slicewise.partition.lattice.lattice_dp import exceeds, solve_lattice

METHOD = "coarse-lattice"
_DOWN = 1 - 1e-11  # sums of floats are off by less
_TRIES = 20
_CLOSE = 1e-6
_MANY = 8  # readers of a tensor, for which nodes are given to what follows them
_STEPS = 2_000  # nodes looked at to set off what one anchor was given


@dataclass(frozen=True, slots=True)
class Coarse:
    """A smaller problem: no cut of the original has a load below its optimum less `loss_ms`."""

    problem: PipelineProblem
    loss_ms: float


def supports(problem: PipelineProblem) -> str:
    """Return why there is no such bound of a problem, or ''."""
    if problem.objective is not Objective.BOTTLENECK:
        return "the coarse lattice bounds the bottleneck only"
    if len(set(problem.places)) > 1 or len(set(problem.links)) > 1:
        return "the coarse lattice needs like devices and links"
    if any(problem.kinds[place].fast_memory is not None for place in problem.places):
        return "the coarse lattice knows no fast memory"
    return ""


def coarse_bound(
    problem: PipelineProblem,
    *,
    incumbent: float = math.inf,
    deadline: Callable[[], bool] = lambda: False,
    max_ideals: int = 300_000,
) -> Bound | None:
    """Return the best bound of coarse problems, from few ideals to many; None where none is found.

    Ends when a bound is next to the incumbent. Coarse problems of more than `max_ideals` are left
    out. `problem` is best a contracted one; `detail` of the bound says which nodes are dropped.
    """
    if supports(problem):
        return None
    best: Bound | None = None
    for light_ms in _thresholds(problem)[::-1]:  # few ideals first
        if deadline():
            break
        coarse = coarsen(problem, light_ms)
        found = solve_lattice(
            coarse.problem, incumbent=incumbent + coarse.loss_ms, deadline=deadline,
            max_ideals=max_ideals,
        )  # fmt: skip
        if found.bound is None:  # too many ideals here may be few where less is dropped
            continue
        value = math.nextafter((found.bound.value - coarse.loss_ms) * _DOWN, 0.0)
        if value > (best.value if best else 0.0):
            detail = {"light_ms": light_ms, "loss_ms": coarse.loss_ms, "ideals": found.ideals}
            best = Bound(METHOD, value, Trust.CHECKED, detail)
            if value >= incumbent * (1 - _CLOSE):
                break
    return best


def recheck(problem: PipelineProblem, bound: Bound) -> bool | None:
    """Return True if the bound is proven again; None where it is not."""
    light_ms = bound.detail.get("light_ms")
    if not isinstance(light_ms, float) or supports(problem):
        return None
    coarse = coarsen(contract(problem).problem, light_ms)
    value = (bound.value + coarse.loss_ms) * (1 + 1e-12)
    return exceeds(coarse.problem, value, max_ideals=300_000, deadline=lambda: False) or None


def coarsen(problem: PipelineProblem, light_ms: float) -> Coarse:
    """Return the problem without the nodes of a work of `light_ms` at most, contracted."""
    problem = _without_latency(problem)
    device = problem.kinds[problem.places[0]]
    tied = {node for group in problem.together for node in group} | set(problem.pinned)
    light = [
        node
        for node in range(problem.nodes)
        if device.work_ms[node] <= light_ms and node not in tied
    ]
    if len(light) == problem.nodes:
        light.pop()
    graph = _Graph(problem)
    anchor = {node: graph.drop(node) for node in light}
    given = [0.0] * problem.nodes
    for node, other in anchor.items():
        if other >= 0:
            given[other] += device.work_ms[node]
    loss_ms = _most_given(problem, given, anchor, device.work_ms)
    dropped = set(light)
    if not problem.overlaps:
        loss_ms += _give_forth(problem, graph, dropped, given, tied)
    smaller = _without(problem, graph, dropped, given)
    return Coarse(contract(smaller).problem, loss_ms * (1 + 1e-11))


def _without_latency(problem: PipelineProblem) -> PipelineProblem:
    """Return the same problem with what its like links cost written into the tensors."""
    link = problem.link(0)
    transfers = tuple(
        replace(each, transfer_ms=link.latency_ms + link.scale * each.transfer_ms)
        for each in problem.transfers
    )
    return replace(problem, transfers=transfers, links=())


def _give_forth(
    problem: PipelineProblem, graph: "_Graph", dropped: set[int], given: list[float],
    tied: set[int],
) -> float:  # fmt: skip
    """Drop the readers of tensors with many that may go to their consumer; return the loss."""
    work_ms = problem.kinds[problem.places[0]].work_ms
    losses: dict[int, float] = {}
    for tensor in range(len(graph.producer)):
        if len(graph.uses[tensor]) < _MANY:
            continue
        for node in sorted(graph.uses[tensor]):
            made = [out for out in graph.made[node] if graph.uses[out]]
            work = work_ms[node] + given[node]
            if node in tied or len(graph.used[node]) != 1 or len(made) != 1:
                continue
            if (
                len(graph.uses[made[0]]) != 1
                or max(work, graph.cost[tensor]) > graph.cost[made[0]]
            ):
                continue
            (consumer,) = graph.uses[made[0]]
            graph.drop(node)
            dropped.add(node)
            given[consumer] += work
            losses[tensor] = max(losses.get(tensor, 0.0), work)
    return math.fsum(losses.values())


def _thresholds(problem: PipelineProblem) -> list[float]:
    """Return some works, from 0 up to a good share of what a stage does."""
    works = problem.kinds[problem.places[0]].work_ms
    finite = sorted({work for work in works if work < math.inf})
    most = math.fsum(work for work in works if work < math.inf) / problem.stages / 8
    steps = [most / 1.5**index for index in range(_TRIES)][::-1]
    chosen = [max((work for work in finite if work <= step), default=0.0) for step in steps]
    return sorted(set(chosen))


class _Graph:
    """Tensors while nodes are dropped, in topological order."""

    def __init__(self, problem: PipelineProblem) -> None:
        self.producer = [transfer.producer for transfer in problem.transfers]
        self.uses = [set(transfer.consumers) for transfer in problem.transfers]
        self.cost = [transfer.transfer_ms for transfer in problem.transfers]
        self.made: list[list[int]] = [[] for _ in range(problem.nodes)]
        self.used: list[set[int]] = [set() for _ in range(problem.nodes)]
        self.order: dict[int, int] = {}  # the tensor of a node that is precedence only
        for index, transfer in enumerate(problem.transfers):
            self.made[transfer.producer].append(index)
            for node in transfer.consumers:
                self.used[node].add(index)

    def drop(self, node: int) -> int:
        """Take a node out; return its anchor, or -1 for a source. Its makers stay for good."""
        used = sorted(self.used[node])
        makers = sorted({self.producer[tensor] for tensor in used})
        for tensor in used:
            self.uses[tensor].discard(node)
        for out in self.made[node]:
            for consumer in sorted(self.uses[out]):
                self.used[consumer].discard(out)
            cheap = [tensor for tensor in used if self.cost[tensor] <= self.cost[out]]
            chosen = max(cheap, key=lambda tensor: self.cost[tensor], default=-1)
            for consumer in sorted(self.uses[out]):
                if chosen >= 0:
                    self._use(chosen, consumer)
                for maker in makers:
                    self._precede(maker, consumer)
            self.uses[out] = set()
        self.used[node] = set()
        return makers[-1] if makers else -1

    def _use(self, tensor: int, node: int) -> None:
        self.uses[tensor].add(node)
        self.used[node].add(tensor)

    def _precede(self, maker: int, node: int) -> None:
        if any(self.producer[tensor] == maker for tensor in self.used[node]):
            return
        if maker not in self.order:
            self.order[maker] = len(self.producer)
            self.producer.append(maker)
            self.uses.append(set())
            self.cost.append(0.0)
            self.made[maker].append(self.order[maker])
        self._use(self.order[maker], node)


def _most_given(
    problem: PipelineProblem, given: Sequence[float], anchor: dict[int, int],
    work_ms: Sequence[float],
) -> float:  # fmt: skip
    """Return at least what is given to anchors inside of an ideal by nodes outside of it."""
    before: list[set[int]] = [set() for _ in range(problem.nodes)]
    for transfer in problem.transfers:
        for node in transfer.consumers:
            before[node].add(transfer.producer)
    gave = {node: work_ms[node] for node, other in anchor.items() if other >= 0}
    rest = []
    for node in range(problem.nodes):
        left = given[node]
        heap, seen, steps = [-node], {node}, 0
        while heap and left > 0 and steps < _STEPS:
            at = -heapq.heappop(heap)
            steps += 1
            if at != node and gave.get(at, 0.0) > 0:
                taken = min(left, gave[at])
                gave[at] -= taken
                left -= taken
            for other in before[at] - seen:
                seen.add(other)
                heapq.heappush(heap, -other)
        rest.append(left)
    return math.fsum(rest)


def _without(
    problem: PipelineProblem, graph: _Graph, dropped: set[int], given: Sequence[float]
) -> PipelineProblem:
    """Return the problem of the nodes that are left, with the work that they were given."""
    left = [node for node in range(problem.nodes) if node not in dropped]
    number = {node: index for index, node in enumerate(left)}
    transfers = tuple(
        Transfer(number[made], tuple(sorted(number[use] for use in uses)), cost)
        for made, uses, cost in zip(graph.producer, graph.uses, graph.cost, strict=True)
        if made in number and uses
    )
    place = problem.places[0]
    device = problem.kinds[place]
    kept = replace(
        device,
        work_ms=tuple(device.work_ms[node] + given[node] for node in left),
        energy_j=(),
    )
    idle = StageDevice("", (0.0,) * len(left))
    return replace(
        problem,
        names=tuple(problem.names[node] for node in left),
        transfers=transfers,
        kinds=tuple(kept if kind is device else idle for kind in problem.kinds),
        memory_bytes=tuple(problem.memory_bytes[node] for node in left)
        if problem.memory_bytes
        else (),
        weight_bytes=(),
        together=tuple(tuple(number[node] for node in group) for group in problem.together),
        pinned={number[node]: stage for node, stage in problem.pinned.items()},
    )
