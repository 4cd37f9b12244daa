"""A model made into `Material`: predicted times of its kernels, bytes of its tensors and weights.

    times    predict's per-node latencies; the host's part spread over them in proportion
    tensors  what one kernel makes and another reads; constants and model inputs are none
    memory   weights by the kernel that reads them, the rest of a model's peak in each stage

Kernels that the runtime launches at once are one node here: a cut through one would un-fuse it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slicewise.core.cost import Estimate, GraphWork, Kernel, NodeEstimate, Prediction
from slicewise.core.device import Device, Link
from slicewise.core.graph import Graph, Node, reads_of
from slicewise.core.notes import Note, unique_notes
from slicewise.core.pipeline import StageDevice
from slicewise.core.precision import Precision
from slicewise.flows.partitioning.pipeline_material import CutTensor, Material
from slicewise.flows.partitioning.topological import parts, topological
from slicewise.flows.predict import PredictOptions, predict_graph, ready_graph, target_named

# The whole model may lie over several devices, and its own interval is none of a stage's.
_SMALL_BYTES = 1024  # shapes and scalars are shared by many nodes and weigh nothing
_NOT_OF_STAGES = frozenset({"memory-exceeded"})


def model_material(
    graph: Graph, *, devices: Sequence[str | Device | None], options: PredictOptions
) -> Material:
    """Return a bound graph as material for the devices named; nothing is run.

    With one stage, work is the predicted latency and memory the predicted peak. `DeviceError`,
    `ModelError` as `predict` has them.
    """
    targets = {_name(device): target_named(device) for device in devices}
    made = dict(zip(targets, predict_graph(graph, list(targets.values()), options), strict=True))
    first = next(iter(made.values()))
    ready, work = ready_graph(graph, Precision.named(first.precision), runtime=first.runtime)
    cut = _group(ready, work.kernels or ())
    weights, is_shared = _weights(ready, cut)
    notes = unique_notes(
        note
        for prediction in made.values()
        for note in prediction.notes
        if note.code not in _NOT_OF_STAGES
    )
    return Material(
        name=graph.name,
        source=graph.name if graph.source is None else graph.source.location,
        labels=tuple(node.name or f"node {i}" for i, node in enumerate(ready.nodes)),
        groups=cut.groups,
        names=tuple(_group_name(ready, work, group) for group in cut.groups),
        tensors=cut.tensors,
        devices={
            name: _stage_device(name, targets[name], prediction, cut)
            for name, prediction in made.items()
        },
        memory_bytes=weights,
        weight_bytes=weights,
        links={name: _link(target) for name, target in targets.items()},
        batch=graph.batch_size,
        digest=graph.digest,
        runtime=first.runtime,
        precision=first.precision,
        graph=graph,
        notes=(
            *notes,
            *_device_notes(targets.values()),
            *_notes(ready, cut, made, is_shared=is_shared),
        ),
    )


def _name(device: str | Device | None) -> str:
    if isinstance(device, str):
        return device
    return target_named(device).name


def _link(device: Device) -> Link | None:
    """Return the way from a device to the next: its own, or of a processor a copy in memory."""
    if device.whole.link is not None or device.kind != "cpu":
        return device.whole.link
    # a copy reads and writes each byte
    return Link("a copy in memory", device.whole.memory_bandwidth_bytes_per_s / 2, 0.0)


def _device_notes(devices: Iterable[Device]) -> list[Note]:
    notes = []
    for device in devices:
        if device.kind != "cpu":
            continue
        if device.whole.link is None:
            text = (
                f"{device.name} has no link; stages are taken to hand tensors on by a copy in"
                " memory, at half its bandwidth; give --link for another way"
            )
            notes.append(Note("link-assumed", text))
        if device.parent is None:
            text = (
                f"each stage is taken to have a whole {device.name} of its own; for stages on one"
                f" machine name its share, as in {device.name}@50% for two"
            )
            notes.append(Note("device-for-each-stage", text))
    return notes


@dataclass(frozen=True, slots=True)
class _Cut:
    """Groups of nodes in topological order, the tensors between, and what was decided."""

    groups: tuple[tuple[int, ...], ...]
    tensors: tuple[CutTensor, ...]
    fused: int
    copied: int
    pieces: int


def _group(graph: Graph, kernels: Sequence[Kernel]) -> _Cut:
    """Return the nodes of a graph in groups: a kernel each, alone what is in none."""
    home = list(range(len(graph.nodes)))
    for kernel in kernels:
        for i in kernel.nodes:
            home[i] = min(kernel.nodes)
    constant = [_is_constant(graph, node) for node in graph.nodes]
    copied = _join_constants(graph, home, constant)
    edges = {
        (home[u], home[v])
        for u, v, name in graph.edges
        if home[u] != home[v] and not constant[u] and name not in graph.constants
    }
    members: dict[int, list[int]] = {}
    for i, head in enumerate(home):
        members.setdefault(head, []).append(i)
    heads = sorted(members)
    number = {head: index for index, head in enumerate(heads)}
    pairs = [(number[u], number[v]) for u, v in sorted(edges)]
    order = topological(
        len(heads),
        pairs,
        describe=lambda loop: (
            f"kernels of {graph.name!r} wait for one another, as that of"
            f" {graph.nodes[heads[loop[0]]].name!r}; name another runtime"
        ),
    )
    groups = tuple(tuple(members[heads[index]]) for index in order)
    rank = {heads[index]: place for place, index in enumerate(order)}
    fused = sum(len(kernel.nodes) > 1 for kernel in kernels)
    return _Cut(
        groups, _tensors(graph, home, rank, constant), fused, copied, parts(len(heads), pairs)
    )


def _is_constant(graph: Graph, node: Node) -> bool:
    """True where all that a node makes is known before the run."""
    made = [name for name in node.outputs if name]
    return bool(made) and all(name in graph.constants for name in made)


def _join_constants(graph: Graph, home: list[int], constant: Sequence[bool]) -> int:
    """Let each node that makes constants be where its first reader is; return how many more
    readers in other groups will need a copy."""
    readers: dict[int, list[int]] = {}
    for u, v, _ in graph.edges:
        readers.setdefault(u, []).append(v)
    copied = 0
    for u in range(len(graph.nodes) - 1, -1, -1):
        if constant[u] and u in readers:
            heads = {home[v] for v in readers[u]}
            home[u] = home[min(readers[u])]
            copied += len(heads) > 1
    return copied


def _tensors(
    graph: Graph, home: Sequence[int], rank: dict[int, int], constant: Sequence[bool]
) -> tuple[CutTensor, ...]:
    readers: dict[str, set[int]] = {}
    for u, v, name in graph.edges:
        if home[u] != home[v] and not constant[u]:
            readers.setdefault(name, set()).add(rank[home[v]])
    return tuple(
        CutTensor(
            name,
            rank[home[i]],
            tuple(sorted(readers.get(name, ()))),
            float(graph.tensors[name].size_bytes) if name in graph.tensors else None,
        )
        for i, node in enumerate(graph.nodes)
        for name in node.outputs
        if name and name not in graph.constants and (name in readers or name in graph.outputs)
    )


def _group_name(graph: Graph, work: GraphWork, group: Sequence[int]) -> str:
    """Return the name of the group's heaviest node, by arithmetic and then by bytes."""

    def weight(i: int) -> tuple[int, int]:
        return work.nodes[i].work.flops, work.nodes[i].work.moved_bytes

    best = max(group, key=weight)
    return graph.nodes[best].name or f"node {best}"


def _weights(graph: Graph, cut: _Cut) -> tuple[tuple[float, ...], bool]:
    """Return the bytes of constants that each group reads, and whether groups share some."""
    made = []
    seen: set[str] = set()
    is_shared = False
    for group in cut.groups:
        its: dict[str, int] = {}
        inside = 0
        for i in group:
            node = graph.nodes[i]
            names = [*reads_of(node), *node.outputs]
            its.update(
                (name, graph.constants[name].stored_bytes)
                for name in names
                if name in graph.constants
            )
            inside += sum(map(_constant_bytes, node.bodies))
        is_shared = is_shared or any(
            name in seen and size > _SMALL_BYTES for name, size in its.items()
        )
        seen.update(its)
        made.append(float(sum(its.values()) + inside))
    return tuple(made), is_shared


def _constant_bytes(body: Graph) -> int:
    own = sum(constant.stored_bytes for constant in body.constants.values())
    return own + sum(_constant_bytes(inner) for node in body.nodes for inner in node.bodies)


def _stage_device(name: str, device: Device, made: Prediction, cut: _Cut) -> StageDevice:
    """Return the device with the times of all groups; they add up to the predicted latency."""
    total_ms = math.fsum(node.latency_ms for node in made.nodes)
    scale = made.latency_ms.value / total_ms if total_ms > 0 else 1.0
    work = [math.fsum(made.nodes[i].latency_ms for i in group) * scale for group in cut.groups]
    if total_ms == 0:  # views alone: only the host has something to do
        work = [made.latency_ms.value / len(cut.groups)] * len(cut.groups)
    dynamic = [_dynamic_j(node, device) for node in made.nodes]
    alone_j = device.idle_power_w * made.latency_ms.value * 1e-3 + math.fsum(dynamic)
    factor = made.energy_j.value / alone_j if alone_j > 0 else 1.0  # of a device card
    memory = made.memory_bytes
    return StageDevice(
        name,
        tuple(work),
        energy_j=tuple(factor * math.fsum(dynamic[i] for i in group) for group in cut.groups),
        memory_limit_bytes=float(device.memory_bytes),
        reserve_bytes=float(memory.activations + memory.workspace + memory.runtime),
        static_w=factor * device.idle_power_w,
    )


def _dynamic_j(node: NodeEstimate, device: Device) -> float:
    """Return what a node draws over the floor of the board, by predict's own rule."""
    from slicewise.predict.energy import estimate_energy

    ms = node.latency_ms
    if ms <= 0:
        return 0.0
    whole = estimate_energy([node], 0.0, Estimate(ms, ms, ms), device).value
    return max(0.0, whole - device.idle_power_w * ms * 1e-3)


def _notes(graph: Graph, cut: _Cut, made: dict[str, Prediction], *, is_shared: bool) -> list[Note]:
    shown = next(iter(made.values()))
    share = shown.host_ms / shown.latency_ms.value if shown.latency_ms.value else 0.0
    told = f"{100 * share:.0f} %" if share >= 0.01 else "under 1 %"
    notes = [
        Note(
            "host-spread",
            f"the host's part of an inference ({told} on {shown.device}) is spread over the"
            " nodes in proportion to their time; every stage has a host of its own, so that short"
            " stages pay more than this",
        ),
        Note(
            "activations-reserved",
            "each stage is charged the activations, workspace and runtime of the whole model"
            " beside its own weights; few stages hold that many at once",
        ),
    ]
    if cut.fused:
        notes.append(
            Note(
                "kernels-kept",
                f"{cut.fused} kernels that {shown.runtime} makes of several nodes are not cut:"
                " their parts would run unfused",
            )
        )
    late = _late_inputs(graph, cut)
    if late:
        notes.append(
            Note(
                "inputs-free",
                f"the model inputs {', '.join(late[:4])} are read by several nodes and are given"
                " to each stage that reads them at no cost",
            )
        )
    if is_shared:
        notes.append(
            Note("weights-shared", "a weight that several nodes read counts at each of them")
        )
    if cut.copied:
        notes.append(
            Note(
                "constants-copied",
                f"{cut.copied} nodes that compute constants are repeated in each stage that reads"
                " them",
            )
        )
    if cut.pieces > 1:
        notes.append(
            Note(
                "graph-disconnected",
                f"the graph falls into {cut.pieces} parts that no tensor joins",
            )
        )
    return notes


def _late_inputs(graph: Graph, cut: _Cut) -> list[str]:
    readers: dict[str, int] = {}
    for group in cut.groups:
        for name in {name for i in group for name in reads_of(graph.nodes[i])}:
            if name in graph.inputs:
                readers[name] = readers.get(name, 0) + 1
    return sorted(name for name, count in readers.items() if count > 1)
