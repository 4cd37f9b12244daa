"""The analytic predictor: a roofline for every kernel, summed, with energy, memory, intervals.

    latency = sum of kernels + host

Roofline: Williams, Waterman, Patterson, CACM 52(4), 2009. Wave quantisation as in NeuSight
(ASPLOS 2025), tiles chosen as a vendor library would: the fastest (`predict/kernels.py`). Whole
devices only; slices go through `predict/slice.py`.

The time of a kernel made of several nodes is split over them in proportion to what each still
takes inside it at efficiency 1: the greater of its arithmetic at the device's rates and, at the
device's bandwidth, the bytes that it exchanges with memory (results that stay inside the kernel
cost nobody anything). Equally where all take nothing. Views and nodes that launch nothing get
none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from slicewise.core.conditions import USUAL, Conditions
from slicewise.core.cost import Estimate, GraphWork, Kind, NodeEstimate, Prediction
from slicewise.core.device import Device
from slicewise.core.errors import DeviceError
from slicewise.core.graph import Graph
from slicewise.core.notes import Note, unique_notes
from slicewise.core.precision import Precision
from slicewise.core.units import GRID_PER_MS, snap_ms
from slicewise.predict import efficiency
from slicewise.predict.correction import (
    LEAST_PART,
    Card,
    Correction,
    absent_note,
    correct,
    outside,
    outside_note,
    stale_note,
)
from slicewise.predict.domain import calibrated_interval, latency_interval
from slicewise.predict.energy import ENERGY_NOTE, estimate_energy
from slicewise.predict.features import classify
from slicewise.predict.kernels import (
    Array,
    Indices,
    KernelTable,
    KernelTimes,
    Row,
    UnitCosts,
    kernel_times,
    kernels_of,
    tabulate,
    unit_costs,
)
from slicewise.predict.memory import (
    Footprint,
    estimate_memory,
    measure_footprint,
    memory_notes,
)
from slicewise.predict.remarks import ignored, may_be_nvidia, tf32_note
from slicewise.predict.runtimes import Runtime, runtime_named

if TYPE_CHECKING:
    from slicewise.predict.network import Learned

SOURCE = "roofline"
_NO_CARDS: Mapping[str, Card] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _Members:
    """Which node is in which kernel: one entry for each such pair.

    `kernel` and `node` are indices into the rows and the top-level nodes. `is_split`: the kernel
    has several nodes. `own` are the nodes of the split entries as columns and `own_bytes` what
    they move. `number` is the kernel that each top-level node is launched in, -1 where it launches
    none itself; `moved_bytes` what each moves, its body included; `kind` what sort of kernel it
    is: a view that has to copy is a movement.
    """

    kernel: Indices
    node: Indices
    is_split: NDArray[np.bool_]
    own: KernelTable
    own_bytes: Array
    number: list[int]
    moved_bytes: list[int]
    kind: list[Kind]


@dataclass(frozen=True, slots=True)
class _Case:
    """What does not depend on the device: the graph, its kernels, its memory by device kind.

    `classes` are those of the kernels, told only where there are `cards` (by device name).
    """

    graph: Graph
    work: GraphWork
    kernels: KernelTable
    members: _Members
    repeats: Array
    footprints: Mapping[str, Footprint]
    precision: Precision
    runtime: Runtime
    cards: Mapping[str, Card]
    classes: Indices
    conditions: Conditions
    rows: Sequence[Row]
    learned: "LearnedTimes | None"


def predict_roofline(
    graph: Graph, work: GraphWork, device: Device, *, precision: Precision, runtime: str
) -> Prediction:
    """Return the predicted cost of `graph` on one whole device; see `predict_roofline_on`."""
    (made,) = predict_roofline_on(graph, work, [device], precision=precision, runtime=runtime)
    return made


def predict_roofline_on(
    graph: Graph,
    work: GraphWork,
    devices: Sequence[Device],
    *,
    precision: Precision,
    runtime: str,
    cards: Mapping[str, Card] = _NO_CARDS,
    conditions: Conditions = USUAL,
) -> tuple[Prediction, ...]:
    """Return the predicted cost of `graph` on each of several whole devices.

    `predict_on` with nothing learned: one formula for every model, device and runtime. A device
    that `cards` has by name is predicted with the corrections of its card; where that
    lacks the runtime or precision, without, and a Note says so. `conditions` change nothing; a
    Note says so of those that are not the usual ones.
    `DeviceError` if a device is a part (scale from its parent), lacks the precision, or cannot run
    the runtime.
    """
    return predict_on(
        graph, work, devices, precision=precision, runtime=runtime, cards=cards,
        conditions=conditions, learned=None,
    )  # fmt: skip


class LearnedTimes(Protocol):
    """What times kernels in place of the roofline, or says in a Note why it does not."""

    def __call__(
        self, graph: Graph, rows: Sequence[Row], table: KernelTable, costs: UnitCosts,
        times: KernelTimes, *, device: Device, precision: str, runtime: str,
        conditions: Conditions = ...,
    ) -> "Learned | Note": ...  # fmt: skip


def predict_on(
    graph: Graph,
    work: GraphWork,
    devices: Sequence[Device],
    *,
    precision: Precision,
    runtime: str,
    cards: Mapping[str, Card],
    conditions: Conditions,
    learned: LearnedTimes | None,
) -> tuple[Prediction, ...]:
    """Return the predicted cost of `graph` on each device, kernels timed by `learned` where it
    can; see `predict_roofline_on`."""
    known = runtime_named(runtime)
    for device in devices:
        _check(device, precision, known)
    rows = list(kernels_of(work))
    case = _Case(
        graph,
        work,
        kernels=tabulate([row.kernel for row in rows]),
        members=_members(work, rows),
        repeats=np.array([row.repeats for row in rows]),
        footprints={
            kind: measure_footprint(graph, work, runtime=runtime, device_kind=kind)
            for kind in dict.fromkeys(device.kind for device in devices)
        },
        precision=precision,
        runtime=known,
        cards=cards,
        classes=classify(graph, rows) if cards else np.zeros(0, dtype=np.int64),
        conditions=conditions,
        rows=rows,
        learned=learned,
    )
    return tuple(_predict_case(case, device) for device in devices)


def _check(device: Device, precision: Precision, runtime: Runtime) -> None:
    if device.parent is not None:
        raise DeviceError(f"{device.name} is a part; predict on {device.parent.name} and scale")
    device.peak_for(precision)
    if runtime.nvidia_only and not may_be_nvidia(device):
        raise DeviceError(
            f"{runtime.name} runs on NVIDIA GPUs only, given {device.name}; choose another runtime"
        )


@dataclass(frozen=True, slots=True)
class _Timed:
    """Kernels and host timed on one device, with the card's correction where there is one."""

    times: KernelTimes
    host_ms: float
    notes: tuple[Note, ...]
    card: Card | None = None
    correction: Correction | None = None
    learned: "Learned | None" = None

    @property
    def source(self) -> str:
        base = SOURCE if self.learned is None else self.learned.source
        return base if self.correction is None else f"{base} + {self._card_name}"

    @property
    def _card_name(self) -> str:
        return "" if self.card is None else self.card.name


def _timed(case: _Case, device: Device) -> _Timed:
    costs, notes = unit_costs(case.kernels, device)
    times = kernel_times(costs, efficiency.RULES[device.kind], case.runtime, device)
    host_ms = device.host_s * case.runtime.host_factor * 1e3
    card = case.cards.get(device.name)
    correction = None
    if card is not None:
        correction = card.find(case.runtime.name, case.precision.name)
        if correction is None:
            notes = [*notes, absent_note(card, case.runtime.name, case.precision.name)]
    found = None
    if case.learned is not None:
        made = case.learned(
            case.graph, case.rows, case.kernels, costs, times,
            device=device, precision=case.precision.name, runtime=case.runtime.name,
            conditions=case.conditions,
        )  # fmt: skip
        if isinstance(made, Note):
            notes = [*notes, made]
        else:
            found, times, host_ms = made, made.times, made.host_s * 1e3
            notes = [*notes, *made.notes]
    base = SOURCE if found is None else found.source
    if card is not None and correction is not None and correction.base != base:
        notes = [*notes, stale_note(card, correction, base)]
        correction = None
    if card is None or correction is None:
        return _Timed(times, snap_ms(host_ms), tuple(notes), learned=found)
    times = correct(correction, case.kernels, costs, times, classes=case.classes, device=device)
    host_ms *= max(correction.host, LEAST_PART)
    return _Timed(times, snap_ms(host_ms), tuple(notes), card, correction, found)


def _latency(
    case: _Case, device: Device, timed: _Timed, *, latency_ms: float, saturation: float
) -> tuple[Estimate, tuple[Note, ...]]:
    """Return the latency with its interval, and what the interval rests on where that is weak."""
    notes: tuple[Note, ...] = ()
    if timed.learned is not None:
        low, high = timed.learned.low, timed.learned.high
        plain = Estimate(latency_ms, latency_ms * low, latency_ms * high, timed.source)
    else:
        plain, notes = latency_interval(
            latency_ms,
            device=device,
            runtime=case.runtime.name,
            saturation=saturation,
            source=timed.source,
        )
    if timed.card is None or timed.correction is None:
        return plain, notes
    reasons = outside(
        timed.correction,
        batch=case.graph.batch_size,
        latency_ms=latency_ms,
        classes=case.classes,
        kernel_s=timed.times.launched_s * case.repeats,
    )
    made = calibrated_interval(
        latency_ms, timed.correction, times_outside=len(reasons), source=timed.source
    )
    # However little was measured, a card knows no less than none at all.
    estimate = replace(made, low=max(made.low, plain.low), high=min(made.high, plain.high))
    return estimate, (outside_note(timed.card, reasons),) if reasons else ()


def _energy(
    nodes: Sequence[NodeEstimate], host_ms: float, latency_ms: Estimate, device: Device,
    correction: Correction | None,
) -> Estimate:  # fmt: skip
    made = estimate_energy(nodes, host_ms, latency_ms, device)
    if correction is None or correction.energy is None:
        return made
    value, band = made.value * correction.energy.factor, correction.energy.band
    return Estimate(value, value * band.low, value * band.high, f"{made.source}, measured factor")


def _predict_case(case: _Case, device: Device) -> Prediction:
    graph, work, known, precision = case.graph, case.work, case.runtime, case.precision
    timed = _timed(case, device)
    times, host_ms, correction = timed.times, timed.host_ms, timed.correction
    footprint = case.footprints[device.kind]
    nodes = _node_estimates(case, times, device, footprint.alive_bytes)
    latency_ms = host_ms + sum(node.latency_ms for node in nodes)
    saturated_ms = float(np.sum(times.saturated_s * case.repeats)) * 1e3
    saturation = min(1.0, saturated_ms / max(latency_ms - host_ms, 1e-12))
    estimate, interval_notes = _latency(
        case, device, timed, latency_ms=latency_ms, saturation=saturation
    )
    memory = estimate_memory(
        footprint, device, known, correction=None if correction is None else correction.memory
    )
    is_metered = correction is not None and correction.energy is not None
    return Prediction(
        model=graph.name,
        device=device.name,
        slice=None,
        batch=graph.batch_size,
        precision=precision.name,
        runtime=known.name,
        macs=work.total.macs,
        flops=work.total.flops,
        latency_ms=estimate,
        throughput_per_s=graph.batch_size / latency_ms * 1e3,
        energy_j=_energy(nodes, host_ms, estimate, device, correction),
        memory_bytes=memory,
        compute_utilisation=_utilisation(work, latency_ms, device.peak_for(precision)),
        saturation=saturation,
        source=timed.source,
        host_ms=host_ms,
        nodes=nodes,
        layout=case.conditions.layout,
        runtime_version=case.conditions.runtime_version,
        notes=unique_notes(
            (
                *graph.notes,
                *work.notes,
                *device.notes,
                *timed.notes,
                *interval_notes,
                *(ignored(case.conditions, known) if timed.learned is None else ()),
                *tf32_note(case.kernels, known, device),
                *memory_notes(memory, device),
                *(() if is_metered else (ENERGY_NOTE,)),
            )
        ),
    )


def _utilisation(work: GraphWork, latency_ms: float, peak_flop_per_s: float) -> float:
    """Return achieved over peak, capped at 1: the peak leaves out the vector units."""
    return min(1.0, work.total.flops / (latency_ms * 1e-3) / peak_flop_per_s)


def _members(work: GraphWork, rows: Sequence[Row]) -> _Members:
    """Return the pairs of kernel and node; a view in a kernel has its number but no time."""
    pairs: list[tuple[int, int]] = []
    split: list[bool] = []
    number = [-1] * len(work.nodes)
    moved = [node.work.moved_bytes if node.body else 0 for node in work.nodes]
    kinds = [node.kind for node in work.nodes]
    for k, row in enumerate(rows):
        if len(row.nodes) == 1:
            pairs.append((k, row.nodes[0]))
            split.append(False)
            if row.number >= 0 and kinds[row.nodes[0]] is Kind.VIEW:
                kinds[row.nodes[0]] = row.kernel.kind
        else:
            its = [i for i in row.nodes if work.nodes[i].kind is not Kind.VIEW]
            pairs += [(k, i) for i in its]
            split += [True] * len(its)
        if row.number >= 0:
            for i, size in zip(row.nodes, row.moved_bytes, strict=True):
                number[i] = row.number
                if not work.nodes[i].body:
                    moved[i] = size
    columns = np.array(pairs, dtype=np.int64).reshape(len(pairs), 2)
    is_split = np.array(split, dtype=bool)
    its = columns[is_split, 1].tolist()
    own_bytes = np.array([moved[i] for i in its], dtype=np.float64)
    own = tabulate([work.nodes[i] for i in its])
    return _Members(columns[:, 0], columns[:, 1], is_split, own, own_bytes, number, moved, kinds)


def _shares(members: _Members, device: Device, count: int) -> Array:
    """Return the part of its kernel's time that each pair of kernel and node gets; see above."""
    shares = np.ones(len(members.kernel))
    if not members.is_split.any():
        return shares
    costs, _ = unit_costs(members.own, device)
    bytes_s = members.own_bytes / device.memory_bandwidth_bytes_per_s
    alone = np.maximum(costs.matrix_s + costs.vector_s, bytes_s)
    kernel = members.kernel[members.is_split]
    total = np.bincount(kernel, weights=alone, minlength=count)[kernel]
    nodes = np.bincount(kernel, minlength=count)[kernel]
    shares[members.is_split] = np.where(
        total > 0, alone / np.where(total > 0, total, 1.0), 1.0 / nodes
    )
    return shares


def _node_estimates(
    case: _Case, times: KernelTimes, device: Device, alive_bytes: Sequence[int]
) -> tuple[NodeEstimate, ...]:
    """Split kernels over their nodes, sum up what nodes run in bodies, and name what binds."""
    members = case.members
    shares = _shares(members, device, len(case.repeats)) * case.repeats[members.kernel] * 1e3

    def per_node(seconds: Array) -> Array:
        parts = seconds[members.kernel] * shares
        count = len(case.work.nodes)
        return np.bincount(members.node, weights=parts, minlength=count).astype(np.float64)

    node_ms, padded_ms, compute_ms, memory_ms = (
        per_node(column)
        for column in (times.launched_s, times.padded_s, times.compute_s, times.memory_s)
    )
    columns = zip(
        case.work.nodes,
        snap_all_ms(node_ms).tolist(),
        compute_ms.tolist(),
        memory_ms.tolist(),
        _limits(node_ms, padded_ms, compute_ms, memory_ms),
        members.number,
        members.moved_bytes,
        members.kind,
        alive_bytes,
        strict=True,
    )
    return tuple(
        [
            NodeEstimate(
                node.name, node.op_type, kind, latency, compute, memory, limit,
                node.work.flops, moved, number, alive,
            )
            for node, latency, compute, memory, limit, number, moved, kind, alive in columns
        ]
    )  # fmt: skip


_LIMITS = ("none", "launch", "memory", "compute", "waves")


def _limits(node_ms: Array, padded_ms: Array, compute_ms: Array, memory_ms: Array) -> list[str]:
    """Name what binds: the launch where arithmetic and bytes fill under half of the time, waves
    where over half of the arithmetic's time is idle units and padding."""
    conditions = [
        node_ms == 0,
        np.maximum(padded_ms, memory_ms) < 0.5 * node_ms,
        memory_ms > padded_ms,
        compute_ms >= 0.5 * padded_ms,
    ]
    chosen = np.select(conditions, range(len(conditions)), default=len(conditions))
    return [_LIMITS[i] for i in chosen.tolist()]


def snap_all_ms(values_ms: Array) -> Array:
    """Return `snap_ms` of each: rounded to the grid on which sums of latencies are exact."""
    snapped: Array = np.rint(values_ms * GRID_PER_MS) / GRID_PER_MS
    return snapped
