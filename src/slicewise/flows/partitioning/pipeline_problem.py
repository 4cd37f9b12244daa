"""Material and wishes put together: the pipeline problem of k stages, as numbers.

Nothing is solved here. What no cut could keep is told before a solver sees it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from slicewise.core.device import Link
from slicewise.core.errors import Infeasible, PartitionError, UsageError
from slicewise.core.notes import Note
from slicewise.core.pipeline import (
    Objective,
    PipelineProblem,
    StageDevice,
    StageLink,
    Transfer,
)
from slicewise.core.plugins import did_you_mean
from slicewise.core.units import format_capacity, format_ms, format_number
from slicewise.flows.partitioning.pipeline_material import Case, CutTensor, Material
from slicewise.flows.partitioning.wishes import LAST, MemoryWish, Selector, Wishes


def assemble(material: Material, wishes: Wishes, *, stages: int) -> Case:
    """Return the problem of at most `stages` stages.

    `UsageError` for wishes that cannot be (with the place in the file), `Infeasible` for a node
    that no stage can hold, `PartitionError` for variants that do not go together.
    """
    notes: list[Note] = []
    if material.most_stages is not None and stages > material.most_stages:
        text = f"{stages} stages were asked for; the file has {material.most_stages} accelerators"
        notes.append(Note("stages-limited", text))
        stages = material.most_stages
    places = _places(material, wishes, stages)
    is_placed = not wishes.any_order
    kinds, numbers = _kinds(material, wishes, places, is_placed=is_placed)
    way = _way(material, wishes, places, is_placed=is_placed)
    energy = wishes.objective is Objective.ENERGY
    problem = PipelineProblem(
        name=material.name,
        names=material.names,
        transfers=tuple(_transfer(tensor, way, material) for tensor in material.tensors),
        kinds=kinds,
        places=numbers,
        memory_bytes=_memory(material, wishes),
        weight_bytes=material.weight_bytes,
        links=way.links,
        is_placed=is_placed,
        overlaps=bool(wishes.overlaps),
        hops=bool(wishes.hops),
        replicates=bool(wishes.replicates),
        together=_together(material, wishes),
        pinned=_pins(material, wishes, stages),
        objective=wishes.objective or Objective.BOTTLENECK,
        limit_ms=_limit_ms(wishes),
        transfer_j_per_ms=(wishes.link_w or 0.0) * 1e-3,
    )
    if energy and wishes.link_w is None:
        text = "links are taken to draw nothing while they send; link_w in a constraints file says"
        notes.append(Note("link-energy-unknown", text))
    check_fits(problem)
    return Case(problem, material, places, (*way.notes, *notes))


def _limit_ms(wishes: Wishes) -> float:
    if wishes.objective is Objective.ENERGY:
        if wishes.limit_ms is None:
            raise UsageError(
                "objective energy needs a limit of the time between two items; give --limit-ms 20"
            )
        return wishes.limit_ms
    if wishes.limit_ms is not None:
        raise UsageError(
            f"limit-ms {wishes.limit_ms:g} says nothing where the bottleneck is made least; leave"
            " it out, or ask for --objective energy"
        )
    return math.inf


def _places(material: Material, wishes: Wishes, stages: int) -> tuple[str, ...]:
    """Return the device of each stage, or the stock."""
    named = wishes.devices
    if len(named) > 1 and len(named) != stages:
        raise UsageError(
            f"{len(named)} devices are named for {stages} stages; name one for each stage, or one"
            " for all"
        )
    if wishes.any_order and len(set(named)) < 2:
        raise UsageError(
            "any order of one kind of device says nothing; name unlike devices, or leave it out"
        )
    if wishes.replicates and len(set(named)) > 1 and not wishes.any_order:
        raise UsageError(
            "replicas on unlike devices need them in any order; add --any-order, or name like"
            " devices"
        )
    for stage in wishes.stage_memory:
        if stage >= stages:
            raise UsageError(
                f"memory is limited for stage {stage}, of {stages} stages from 0; leave it out"
            )
    if wishes.stage_memory and (wishes.any_order or wishes.replicates):
        raise UsageError(
            "memory by stage needs stages in a given order, without replicas; limit it by device"
        )
    for name in (*wishes.device_memory, *wishes.device_fast_memory):
        if name not in material.devices:
            raise UsageError(
                f"memory is given for device {name!r}; devices here are"
                f" {', '.join(material.devices)}{did_you_mean(name, material.devices)}"
            )
    only = named[0] if named else next(iter(material.devices))
    return named if len(named) > 1 else (only,) * stages


def _kinds(
    material: Material, wishes: Wishes, places: Sequence[str], *, is_placed: bool
) -> tuple[tuple[StageDevice, ...], tuple[int, ...]]:
    """Return the kinds of devices, each with its limits, and that of each place."""
    kinds: list[StageDevice] = []
    known: dict[tuple[object, ...], int] = {}
    numbers = []
    for stage, name in enumerate(places):
        own = material.devices[name]
        asked = wishes.stage_memory.get(stage, MemoryWish()) if is_placed else MemoryWish()
        asked = asked.over(wishes.device_memory.get(name, MemoryWish())).over(wishes.memory)
        limit = own.memory_limit_bytes if asked.limit_bytes is None else asked.limit_bytes
        # what a user sets aside comes on top of what the model itself takes in each stage
        reserve = own.reserve_bytes + (asked.reserve_bytes or 0.0)
        fast = wishes.device_fast_memory.get(name, wishes.fast_memory)
        key = (name, limit, reserve, fast)
        if key not in known:
            known[key] = len(kinds)
            kinds.append(
                replace(own, memory_limit_bytes=limit, reserve_bytes=reserve, fast_memory=fast)
            )
        numbers.append(known[key])
    return tuple(kinds), tuple(numbers)


def _memory(material: Material, wishes: Wishes) -> tuple[float, ...]:
    made = list(material.memory_bytes)
    home = _home(material)
    for selector, size in wishes.node_bytes:
        for index in selector.pick(material.labels):
            made[home[index]] += size
    return tuple(made)


@dataclass(frozen=True, slots=True)
class _Way:
    """How tensors go: the bandwidth that transfer times are for (None: the source's own times),
    and the links as multiples of it."""

    bandwidth_bytes_per_s: float | None
    links: tuple[StageLink, ...]
    notes: tuple[Note, ...] = ()


def _way(material: Material, wishes: Wishes, places: Sequence[str], *, is_placed: bool) -> _Way:
    gaps = len(places) - 1
    asked = wishes.links
    if len(asked) > 1 and len(asked) != gaps:
        raise UsageError(
            f"{len(asked)} links are given for {len(places)} stages; give one for all, or"
            f" {gaps}, one fewer than stages"
        )
    notes: list[Note] = []
    if asked:
        chosen = list(asked) if len(asked) > 1 else list(asked) * gaps
        reference = asked[0].bandwidth_bytes_per_s
    elif not material.links:
        return _Way(None, ())
    elif not gaps:
        return _Way(1e9, ())  # nothing is sent; any rate will do
    else:
        own = _own_links(material, wishes, places, is_placed=is_placed)
        chosen, notes = own
        reference = chosen[0].bandwidth_bytes_per_s if chosen else 1e9
    made = tuple(
        StageLink(reference / link.bandwidth_bytes_per_s, link.latency_s * 1e3) for link in chosen
    )
    return _Way(reference, () if set(made) <= {StageLink()} else made, tuple(notes))


def _own_links(
    material: Material, wishes: Wishes, places: Sequence[str], *, is_placed: bool
) -> tuple[list[Link], list[Note]]:
    """Return the devices' own links, between two unlike devices the slower of both."""
    notes: list[Note] = []
    own: dict[str, Link] = {}
    for name in dict.fromkeys(places):
        link = material.links.get(name)
        if link is None:
            raise UsageError(
                f"device {name} has no link of its own to the next stage; give one, as in --link"
                " 25GB/s or --link 25GB/s:5us"
            )
        own[name] = link
    if is_placed and not wishes.replicates:
        pairs = pairwise(places)
        return [_slower(own[a], own[b]) for a, b in pairs], notes
    slowest = next(iter(own.values()))
    for link in own.values():
        slowest = _slower(slowest, link)
    if len(set(own.values())) > 1:
        text = (
            f"devices of a stock have unlike links; the slowest, {slowest.name}, is taken for all"
        )
        notes.append(Note("link-slowest", text))
    return [slowest] * (len(places) - 1), notes


def _slower(a: Link, b: Link) -> Link:
    if a == b:
        return a
    slow = min(a, b, key=lambda link: link.bandwidth_bytes_per_s)
    return Link(slow.name, slow.bandwidth_bytes_per_s, max(a.latency_s, b.latency_s))


def _transfer(tensor: CutTensor, way: _Way, material: Material) -> Transfer:
    size = tensor.size_bytes
    if way.bandwidth_bytes_per_s is None:
        cost_ms = tensor.transfer_ms
    else:
        cost_ms = None if size is None else size / way.bandwidth_bytes_per_s * 1e3
    if cost_ms is None:
        if tensor.consumers:
            raise PartitionError(
                f"the size of tensor {tensor.name!r} of {material.name!r} is unknown, so that no"
                " link tells its time; leave --link out, or give the size"
            )
        cost_ms = 0.0
    return Transfer(tensor.producer, tensor.consumers, cost_ms, size or 0.0)


def _home(material: Material) -> dict[int, int]:
    return {index: node for node, group in enumerate(material.groups) for index in group}


def _together(material: Material, wishes: Wishes) -> tuple[tuple[int, ...], ...]:
    """Return the groups of the source, of wishes, and of edges that must not be cut."""
    home = _home(material)
    made = list(material.together)
    for selectors in wishes.together:
        if len(selectors) == 1:
            picked = selectors[0].groups(material.labels)
        else:
            picked = [[i for selector in selectors for i in selector.pick(material.labels)]]
        made += [tuple(sorted({home[i] for i in group})) for group in picked]
    for producer, consumer in wishes.forbidden:
        made += _uncut(material, home, producer, consumer)
    return tuple(dict.fromkeys(group for group in made if len(group) > 1))


def _uncut(
    material: Material, home: Mapping[int, int], producer: Selector, consumer: Selector | None
) -> list[tuple[int, ...]]:
    """Return pairs of nodes that an edge joins which must not be cut; one at least is there."""
    sources = {home[i] for i in producer.pick(material.labels)}
    targets = None if consumer is None else {home[i] for i in consumer.pick(material.labels)}
    made: list[tuple[int, ...]] = [
        (tensor.producer, node)
        for tensor in material.tensors
        if tensor.producer in sources
        for node in tensor.consumers
        if targets is None or node in targets
    ]
    inside = targets is not None and bool(sources & targets)
    if not made and not inside and consumer is not None:
        raise UsageError(
            f"{producer.where}no tensor goes from {producer.text!r} to {consumer.text!r}; name the"
            " two ends of one"
        )
    return made


def _pins(material: Material, wishes: Wishes, stages: int) -> dict[int, int]:
    home = _home(material)
    made: dict[int, int] = {}
    for selector, stage in wishes.pins:
        wanted = stages - 1 if stage == LAST else stage
        if wanted >= stages:
            raise UsageError(
                f"{selector.where}{selector.text!r} is pinned to stage {stage}, of {stages} stages"
                f" from 0; give 0 to {stages - 1}, or last"
            )
        for index in selector.pick(material.labels):
            node = home[index]
            if made.setdefault(node, wanted) != wanted:
                raise UsageError(
                    f"{selector.where}{material.labels[index]!r} is pinned to stage {wanted}, and"
                    f" a node of the same kernel to {made[node]}; pin it once"
                )
    return made


def check_fits(problem: PipelineProblem) -> None:
    """Raise `Infeasible` for what no stage can hold, alone or all together."""
    clusters = _clusters(problem)
    kinds = [problem.kinds[index] for index in sorted(set(problem.places))]
    memory = problem.memory_bytes or (0.0,) * problem.nodes
    for cluster in clusters:
        _check_cluster(problem, kinds, memory, cluster)
    room = math.fsum(
        max(0.0, problem.kinds[place].memory_limit_bytes - problem.kinds[place].reserve_bytes)
        for place in problem.places
    )
    if problem.replicates:
        return  # replicas hold copies; a solver tells
    needed = math.fsum(memory)
    if needed > room:
        raise Infeasible(
            f"{problem.stages} stages of {problem.name!r} need {format_capacity(needed)} for nodes"
            f" alone; their devices have {format_capacity(room)} beside reserves,"
            f" {format_capacity(needed - room)} too little; use more stages or more memory"
        )


def _clusters(problem: PipelineProblem) -> list[list[int]]:
    """Return the nodes that share a stage whatever the cut."""
    root = list(range(problem.nodes))

    def find(node: int) -> int:
        while root[node] != node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    for group in problem.together:
        for node in group[1:]:
            root[find(node)] = find(group[0])
    made: dict[int, list[int]] = {}
    for node in range(problem.nodes):
        made.setdefault(find(node), []).append(node)
    return list(made.values())


def _enough(held_bytes: float) -> str:
    """Return a size that holds so many bytes, rounded up, as --memory-limit takes it."""
    mib = math.ceil(held_bytes / 2**20)
    return f"{mib:,} MiB" if held_bytes >= 2**20 else format_capacity(math.ceil(held_bytes))


def _check_cluster(
    problem: PipelineProblem,
    kinds: Sequence[StageDevice],
    memory: Sequence[float],
    cluster: Sequence[int],
) -> None:
    needed = math.fsum(memory[node] for node in cluster)
    shown = f"node {problem.names[cluster[0]]!r}"
    if len(cluster) > 1:
        shown += f" and the {len(cluster) - 1} that share its stage"
    roomiest = max(kinds, key=lambda kind: kind.memory_limit_bytes - kind.reserve_bytes)
    over = needed + roomiest.reserve_bytes - roomiest.memory_limit_bytes
    if over > 0:
        reserve = roomiest.reserve_bytes
        beside = f" and {format_capacity(reserve)} reserved in each stage" if reserve else ""
        raise Infeasible(
            f"{shown} of {problem.name!r} needs {format_capacity(needed)}{beside}; the limit of"
            f" {roomiest.name} is {format_capacity(roomiest.memory_limit_bytes)},"
            f" {format_capacity(over)} too little; a limit of"
            f" {_enough(needed + reserve)} would fit"
        )
    quickest_ms = min(math.fsum(kind.work_ms[node] for node in cluster) for kind in kinds)
    if quickest_ms == math.inf:
        raise Infeasible(
            f"{shown} of {problem.name!r} can run on none of the devices"
            f" {', '.join(kind.name for kind in kinds)}; name one with --devices that can"
        )
    most_ms = problem.limit_ms * (problem.stages if problem.replicates else 1)
    if quickest_ms > most_ms:
        raise Infeasible(
            f"{shown} of {problem.name!r} takes {format_ms(quickest_ms)} alone; the limit is"
            f" {format_ms(most_ms)}, {format_ms(quickest_ms - most_ms)} too little; a limit of"
            f" {format_number(quickest_ms * 1.001)} ms or more would fit"
        )
