"""A smaller problem with the same optimum: nodes that share a stage in some best cut become one.

Nothing is solved here. Every rule is an exchange argument: in any legal cut the moved node v can
join the other node's stage, and no load, memory or energy of any stage gets greater. Costs are
compared as exact integers, so rounding never decides.

Let w be the work of v, the greatest of all devices in use; E, O and I sets of tensors with their
costs and numbers; `E outweighs O by w` means: over every link, sending E costs at least w more
than sending O, and with overlap w = 0.

- Back: v consumes tensors of u alone, or such as u consumes too. E are the tensors of u for v
  alone, O those v makes. If E outweighs O by w, v joins u. Proof: with u in stage a and v in b,
  behind it, a gains w, sends O at most and no longer E; b receives O at most and no longer E, and
  loses w; with hops the stages between pass O, not E; later stages receive O as before. What v
  consumes else is in a already. (Sinks: O is empty.)
- Forth: c alone consumes what v makes (O). I is what v consumes and c does not. If O outweighs I
  by w, v joins c. Proof: with v in a and c in b > a, a sends at most I more and no longer O; b
  receives at most I more, no longer O, and gains w; a stage that makes some of I before a sent it
  already. With hops the stages between pass I, not O. (Sources: I is empty.)
- First use: v without inputs and work; c consumes all tensors of v, and every other consumer comes
  after c. Then v joins c. Proof: with v in a and c in b > a, b may send what it received before,
  over a like link (or, with hops, sent it anyway); a loses. Not with overlap or unlike links,
  where sending may cost more than receiving did, unless there are hops.

Where they do not hold they are off: a node with memory under a limit that could bind, one whose
energy depends on the device, one that is pinned, one some device cannot run, does not move. With
fast memory the peak depends on the order inside a stage, which a merged node loses: then the
problem stays as it is, groups included.
"""

import heapq
import math
from dataclasses import dataclass, field, replace
from fractions import Fraction

from slicewise.core.errors import Infeasible
from slicewise.core.notes import Note
from slicewise.core.pipeline import Assignment, PipelineProblem, StageDevice, Transfer
from slicewise.partition.slicegraph.arrays import arrays_of

_SWEEPS = 20  # each finds what the one before opened; more changed nothing on any workload
_FIRST_USE_STEPS = 400_000  # edges walked to see that one consumer comes before all others


@dataclass(frozen=True, slots=True)
class Contraction:
    """The smaller `problem`; its node i stands for the nodes `members[i]` of the original."""

    problem: PipelineProblem
    members: tuple[tuple[int, ...], ...]
    notes: tuple[Note, ...] = ()

    def expand(self, cut: Assignment) -> Assignment:
        """Return the cut of the original problem that a cut of the smaller one stands for."""
        stage_of = [0] * sum(len(nodes) for nodes in self.members)
        for nodes, stage in zip(self.members, cut.stage_of, strict=True):
            for node in nodes:
                stage_of[node] = stage
        return replace(cut, stage_of=tuple(stage_of))


def contract(problem: PipelineProblem) -> Contraction:
    """Return a smaller problem with the same least objective, and the way back.

    `Infeasible` where pins contradict each other or the order of the nodes. Time is about linear
    in nodes and tensors.
    """
    _check_pins(problem)
    if any(kind.fast_memory is not None for kind in _used_kinds(problem)):
        text = "fast memory depends on the order of nodes in a stage: none are joined beforehand"
        same = tuple((node,) for node in range(problem.nodes))
        return Contraction(problem, same, (Note("contraction-off", text),))
    graph = _graph_of(problem)
    _join_all(graph)
    return _built(problem, graph)


# --- what may move, and what a transfer is worth


@dataclass(frozen=True, slots=True)
class _Rules:
    """What the exchange arguments need of the problem; one unit is `unit` parts of a ms."""

    unit: int
    is_overlapped: bool
    has_hops: bool
    has_like_links: bool
    least_scale: Fraction
    least_latency: Fraction
    has_latency: bool

    def outweighs(self, more: tuple[int, int], less: tuple[int, int], work: int) -> bool:
        """Return True if sending `more` (cost, number) costs `work` more than `less`, at least."""
        cost, count = more[0] - less[0], more[1] - less[1]
        if cost < 0 or (self.has_latency and count < 0):
            return False
        if work == 0:
            return True
        if self.is_overlapped:
            return False
        saved = self.least_scale * cost
        if self.has_latency:
            saved += self.least_latency * count * self.unit
        return saved >= work


@dataclass(slots=True)
class _Graph:
    """The graph while nodes are joined; a node that joined another has no tensors any more."""

    rules: _Rules
    members: list[list[int]]
    work: list[int]
    is_fixed: list[bool]
    producer: list[int]
    uses: list[set[int]]
    cost: list[int]
    made: list[set[int]]
    used: list[set[int]]
    is_gone: list[bool] = field(default_factory=list)


def _used_kinds(problem: PipelineProblem) -> list[StageDevice]:
    return [problem.kinds[place] for place in sorted(set(problem.places))]


def _rules_of(problem: PipelineProblem, unit: int) -> _Rules:
    links = [problem.link(index) for index in range(max(1, problem.stages - 1))]
    return _Rules(
        unit=unit,
        is_overlapped=problem.overlaps,
        has_hops=problem.hops,
        has_like_links=len(set(links)) == 1,
        least_scale=Fraction(min(link.scale for link in links)),
        least_latency=Fraction(min(link.latency_ms for link in links)),
        has_latency=any(link.latency_ms > 0 for link in links),
    )


def _fixed_nodes(problem: PipelineProblem) -> list[bool]:
    """Return which nodes may not be moved, whatever their work."""
    kinds = _used_kinds(problem)
    total = math.fsum(problem.memory_bytes)
    is_limited = any(
        total + kind.reserve_bytes > kind.memory_limit_bytes * (1 - 1e-9) for kind in kinds
    )
    energies = [kind.energy_j for kind in kinds if kind.energy_j]
    fixed = [False] * problem.nodes
    for node in range(problem.nodes):
        is_held = is_limited and bool(problem.memory_bytes) and problem.memory_bytes[node] > 0
        joules = {energy[node] for energy in energies}
        if len(energies) < len(kinds):
            joules.add(0.0)
        fixed[node] = (
            is_held
            or len(joules) > 1
            or node in problem.pinned
            or any(math.isinf(kind.work_ms[node]) for kind in kinds)
        )
    return fixed


def _graph_of(problem: PipelineProblem) -> _Graph:
    """Return the graph of the units: what must be together is one node from the beginning."""
    grouped = replace(problem, together=(*problem.together, *_pinned_groups(problem)))
    arrays = arrays_of(grouped)
    unit_of = [int(unit) for unit in arrays.unit]
    count = arrays.units
    kinds = _used_kinds(problem)
    greatest = [
        max((kind.work_ms[node] for kind in kinds if kind.work_ms[node] < math.inf), default=0.0)
        for node in range(problem.nodes)
    ]
    ratios = [each.transfer_ms.as_integer_ratio() for each in problem.transfers]
    works = [float(value).as_integer_ratio() for value in greatest]
    unit = max((below for _, below in (*ratios, *works)), default=1)  # all are powers of 2
    members: list[list[int]] = [[] for _ in range(count)]
    work, fixed = [0] * count, [False] * count
    for node, is_fixed in enumerate(_fixed_nodes(problem)):
        members[unit_of[node]].append(node)
        work[unit_of[node]] += works[node][0] * (unit // works[node][1])
        fixed[unit_of[node]] |= is_fixed
    graph = _Graph(
        _rules_of(problem, unit), members, work, fixed, [], [], [],
        [set() for _ in range(count)], [set() for _ in range(count)], [False] * count,
    )  # fmt: skip
    for transfer, (above, below) in zip(problem.transfers, ratios, strict=True):
        made = unit_of[transfer.producer]
        uses = {unit_of[node] for node in transfer.consumers} - {made}
        if uses:
            _add_tensor(graph, made, uses, above * (unit // below))
    return graph


def _add_tensor(graph: _Graph, made: int, uses: set[int], cost: int) -> None:
    index = len(graph.producer)
    graph.producer.append(made)
    graph.uses.append(uses)
    graph.cost.append(cost)
    graph.made[made].add(index)
    for node in uses:
        graph.used[node].add(index)


# --- what must be


def _pinned_groups(problem: PipelineProblem) -> list[tuple[int, ...]]:
    """Return the nodes pinned to each stage: they, and what lies between them, are together."""
    groups: dict[int, list[int]] = {}
    for node, stage in sorted(problem.pinned.items()):
        groups.setdefault(stage, []).append(node)
    return [tuple(nodes) for nodes in groups.values() if len(nodes) > 1]


def _check_pins(problem: PipelineProblem) -> None:
    """Raise `Infeasible` where a unit has two pins or a pin comes before that of an ancestor."""
    if not problem.pinned:
        return
    arrays = arrays_of(problem)
    first = [0] * arrays.units
    pin_of: dict[int, int] = {}
    for node, stage in sorted(problem.pinned.items()):
        other = pin_of.setdefault(int(arrays.unit[node]), node)
        if problem.pinned[other] != stage:
            raise Infeasible(
                f"{problem.names[node]!r} is pinned to stage {stage} and {problem.names[other]!r},"
                f" which must share its stage, to {problem.pinned[other]}; pin both to one stage"
            )
    by_unit: list[list[int]] = [[] for _ in range(arrays.units)]
    for transfer in problem.transfers:
        by_unit[arrays.unit[transfer.producer]].extend(
            int(arrays.unit[node]) for node in transfer.consumers
        )
    for unit in range(arrays.units):  # units are in topological order
        if unit in pin_of:
            node = pin_of[unit]
            stage = problem.pinned[node]
            if stage < first[unit]:
                raise Infeasible(
                    f"{problem.names[node]!r} is pinned to stage {stage}, but a node it depends on"
                    f" is pinned to {first[unit]}; pin it to {first[unit]} or later"
                )
            first[unit] = stage
        for other in by_unit[unit]:
            first[other] = max(first[other], first[unit])


# --- the three rules


def _join_all(graph: _Graph) -> None:
    """Join until nothing changes, or `_SWEEPS` times."""
    count = len(graph.members)
    for _ in range(_SWEEPS):
        joined = sum(_join_back(graph, node) for node in range(count))
        joined += sum(_join_forth(graph, node) for node in reversed(range(count)))
        if not joined:
            joined = _join_first_uses(graph)
        if not joined:
            return


def _weight(graph: _Graph, tensors: list[int]) -> tuple[int, int]:
    return sum(graph.cost[tensor] for tensor in tensors), len(tensors)


def _join_back(graph: _Graph, node: int) -> bool:
    if graph.is_gone[node] or graph.is_fixed[node]:
        return False
    used = graph.used[node]
    makers = {graph.producer[tensor] for tensor in used}
    if not makers or len(makers) > _FEW:
        return False
    made = _weight(graph, list(graph.made[node]))
    for maker in sorted(makers):
        others = [tensor for tensor in used if graph.producer[tensor] != maker]
        if any(maker not in graph.uses[tensor] for tensor in others):
            continue
        own = [
            tensor
            for tensor in used
            if graph.producer[tensor] == maker and len(graph.uses[tensor]) == 1
        ]
        if graph.rules.outweighs(_weight(graph, own), made, graph.work[node]):
            _join(graph, node, maker)
            return True
    return False


_FEW = 8  # of a node with more producers, rarely one comes after all the others


def _join_forth(graph: _Graph, node: int) -> bool:
    if graph.is_gone[node] or graph.is_fixed[node] or not graph.made[node]:
        return False
    made = graph.made[node]
    first = graph.uses[next(iter(made))]
    if len(first) != 1 or any(graph.uses[tensor] != first for tensor in made):
        return False
    (consumer,) = first
    more = [tensor for tensor in graph.used[node] if consumer not in graph.uses[tensor]]
    if not graph.rules.outweighs(
        _weight(graph, list(made)), _weight(graph, more), graph.work[node]
    ):
        return False
    _join(graph, node, consumer)
    return True


def _join_first_uses(graph: _Graph) -> int:
    """Join sources without work to the consumer that comes before all others; return how many."""
    rules = graph.rules
    if not rules.has_hops and (rules.is_overlapped or not rules.has_like_links):
        return 0
    place = {node: index for index, node in enumerate(_order(graph))}
    joined, steps = 0, _FIRST_USE_STEPS
    for node in sorted(place, key=place.__getitem__):
        if graph.used[node] or graph.work[node] or graph.is_fixed[node] or not graph.made[node]:
            continue
        uses = set().union(*(graph.uses[tensor] for tensor in graph.made[node]))
        first = min(uses, key=place.__getitem__)
        if any(first not in graph.uses[tensor] for tensor in graph.made[node]):
            continue
        is_before, taken = _comes_before(graph, first, uses - {first}, place, steps)
        steps -= taken
        if is_before:
            _join(graph, node, first)
            joined += 1
        if steps <= 0:
            break
    return joined


def _comes_before(
    graph: _Graph, node: int, others: set[int], place: dict[int, int], steps: int
) -> tuple[bool, int]:
    """Return whether all `others` come after `node`, and the edges walked; False beyond `steps`.

    Nodes are walked in topological order, none behind the last of the others.
    """
    left = set(others)
    end = max((place[other] for other in others), default=-1)
    seen, heap, taken = {node}, [(place[node], node)], 0
    while heap and left and taken < steps:
        _, at = heapq.heappop(heap)
        for tensor in graph.made[at]:
            taken += len(graph.uses[tensor])
            for use in graph.uses[tensor]:
                if use not in seen and place[use] <= end:
                    seen.add(use)
                    left.discard(use)
                    heapq.heappush(heap, (place[use], use))
    return not left, taken


def _join(graph: _Graph, node: int, other: int) -> None:
    """Let `node` become a part of `other`; tensors between them vanish."""
    for tensor in graph.used[node]:
        uses = graph.uses[tensor]
        uses.discard(node)
        if graph.producer[tensor] != other:
            uses.add(other)
            graph.used[other].add(tensor)
        elif not uses:
            graph.made[other].discard(tensor)
    for tensor in graph.made[node]:
        graph.producer[tensor] = other
        uses = graph.uses[tensor]
        if other in uses:
            uses.discard(other)
            graph.used[other].discard(tensor)
        if uses:
            graph.made[other].add(tensor)
    graph.used[node], graph.made[node] = set(), set()
    graph.work[other] += graph.work[node]
    graph.members[other].extend(graph.members[node])
    graph.is_gone[node] = True


# --- the smaller problem


def _order(graph: _Graph) -> list[int]:
    """Return the nodes that are left in topological order, ties by the first member."""
    missing = {}
    for node, used in enumerate(graph.used):
        if not graph.is_gone[node]:
            missing[node] = len(used)
    key = {node: min(graph.members[node]) for node in missing}
    ready = [(key[node], node) for node, count in missing.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, node = heapq.heappop(ready)
        order.append(node)
        for tensor in graph.made[node]:
            for use in graph.uses[tensor]:
                missing[use] -= 1
                if not missing[use]:
                    heapq.heappush(ready, (key[use], use))
    assert len(order) == len(missing), "a contraction made a cycle"
    return order


def _built(problem: PipelineProblem, graph: _Graph) -> Contraction:
    order = _order(graph)
    members = tuple(tuple(sorted(graph.members[node])) for node in order)
    number = {node: index for index, node in enumerate(order)}
    pinned = {
        index: problem.pinned[node]
        for index, nodes in enumerate(members)
        for node in nodes
        if node in problem.pinned
    }
    smaller = replace(
        problem,
        names=tuple(problem.names[nodes[0]] for nodes in members),
        transfers=_transfers(graph, order, number),
        kinds=tuple(_kind(kind, members) for kind in problem.kinds),
        memory_bytes=_sums(problem.memory_bytes, members),
        weight_bytes=_sums(problem.weight_bytes, members),
        together=(),
        pinned=pinned,
    )
    return Contraction(smaller, members)


def _transfers(graph: _Graph, order: list[int], number: dict[int, int]) -> tuple[Transfer, ...]:
    """Return the tensors that are left; without latency those that travel alike are one."""
    costs: dict[tuple[int, tuple[int, ...], int], int] = {}
    for node in order:
        for tensor in sorted(graph.made[node]):
            uses = tuple(sorted(number[use] for use in graph.uses[tensor]))
            alone = tensor if graph.rules.has_latency else -1  # each pays the latency
            key = (number[node], uses, alone)
            costs[key] = costs.get(key, 0) + graph.cost[tensor]
    return tuple(
        Transfer(made, uses, float(Fraction(cost, graph.rules.unit)))
        for (made, uses, _), cost in costs.items()
    )


def _kind(kind: StageDevice, members: tuple[tuple[int, ...], ...]) -> StageDevice:
    return replace(
        kind, work_ms=_sums(kind.work_ms, members), energy_j=_sums(kind.energy_j, members)
    )


def _sums(values: tuple[float, ...], members: tuple[tuple[int, ...], ...]) -> tuple[float, ...]:
    if not values:
        return ()
    return tuple(math.fsum(values[node] for node in nodes) for nodes in members)
