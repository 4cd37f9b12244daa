"""The analytic predictor: a roofline for every operator, summed, with energy, memory, intervals.

    latency = sum of nodes + host

Roofline: Williams, Waterman, Patterson, CACM 52(4), 2009. Wave quantisation as in NeuSight
(ASPLOS 2025), tiles chosen as a vendor library would: the fastest (`predict/kernels.py`). Whole
devices only; slices go through `predict/slice.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slicewise.core.cost import GraphWork, NodeEstimate, NodeWork, Prediction
from slicewise.core.device import Device
from slicewise.core.errors import DeviceError
from slicewise.core.graph import Graph
from slicewise.core.notes import Note, unique_notes
from slicewise.core.precision import DType, Precision
from slicewise.core.units import snap_ms
from slicewise.predict import efficiency
from slicewise.predict.domain import latency_interval
from slicewise.predict.energy import ENERGY_NOTE, estimate_energy
from slicewise.predict.kernels import Array, RowTimes, flatten, row_times, unit_costs
from slicewise.predict.memory import (
    Footprint,
    estimate_memory,
    measure_footprint,
    memory_notes,
)
from slicewise.predict.runtimes import Runtime, runtime_named

SOURCE = "roofline"


@dataclass(frozen=True, slots=True)
class _Case:
    """What does not depend on the device: the graph, its kernels and its memory."""

    graph: Graph
    work: GraphWork
    kernels: list[NodeWork]
    owners: NDArray[np.int64]
    repeats: Array
    footprint: Footprint
    precision: Precision
    runtime: Runtime


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
) -> tuple[Prediction, ...]:
    """Return the predicted cost of `graph` on each of several whole devices.

    `DeviceError` if a device is a part (scale from its parent), lacks the precision, or cannot run
    the runtime.
    """
    known = runtime_named(runtime)
    for device in devices:
        _check(device, precision, known)
    rows = list(flatten(work.nodes))
    case = _Case(
        graph,
        work,
        kernels=[row.node for row in rows],
        owners=np.array([row.owner for row in rows], dtype=np.int64),
        repeats=np.array([row.repeats for row in rows]),
        footprint=measure_footprint(graph, work),
        precision=precision,
        runtime=known,
    )
    return tuple(_predict_case(case, device) for device in devices)


def _check(device: Device, precision: Precision, runtime: Runtime) -> None:
    if device.parent is not None:
        raise DeviceError(f"{device.name} is a part; predict on {device.parent.name} and scale")
    device.peak_for(precision)
    is_other = device.kind != "gpu" or device.vendor not in ("NVIDIA", "")
    if runtime.nvidia_only and is_other:
        raise DeviceError(
            f"{runtime.name} runs on NVIDIA GPUs only, given {device.name}; choose another runtime"
        )


def _predict_case(case: _Case, device: Device) -> Prediction:
    graph, work, known, precision = case.graph, case.work, case.runtime, case.precision
    costs, notes = unit_costs(case.kernels, device)
    times = row_times(costs, efficiency.RULES[device.kind], known, device)
    nodes = _node_estimates(work, times, case.repeats, case.owners)
    host_ms = snap_ms(device.host_s * known.host_factor * 1e3)
    latency_ms = host_ms + sum(node.latency_ms for node in nodes)
    saturated_ms = float(np.sum(times.saturated_s * case.repeats)) * 1e3
    saturation = min(1.0, saturated_ms / max(latency_ms - host_ms, 1e-12))
    estimate, interval_notes = latency_interval(
        latency_ms, device=device, runtime=known.name, saturation=saturation, source=SOURCE
    )
    memory = estimate_memory(case.footprint, device, known)
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
        energy_j=estimate_energy(nodes, host_ms, estimate, device),
        memory_bytes=memory,
        compute_utilisation=_utilisation(work, latency_ms, device.peak_for(precision)),
        saturation=saturation,
        source=SOURCE,
        host_ms=host_ms,
        nodes=nodes,
        notes=unique_notes(
            (
                *graph.notes,
                *work.notes,
                *device.notes,
                *notes,
                *interval_notes,
                *_tf32_note(precision, device, known),
                *memory_notes(memory, device),
                ENERGY_NOTE,
            )
        ),
    )


def _tf32_note(precision: Precision, device: Device, runtime: Runtime) -> tuple[Note, ...]:
    """Tell that fp32 was taken at its word where the runtime would not."""
    if precision.compute is not DType.FP32 or DType.TF32 not in device.peak_flop_per_s:
        return ()
    text = (
        f"{runtime.name} runs fp32 {runtime.tf32_by_default} in TF32 on {device.name} unless told"
        " otherwise; predicted in full fp32, ask for tf32 to see the other"
    )
    return (Note("tf32-default", text),)


def _utilisation(work: GraphWork, latency_ms: float, peak_flop_per_s: float) -> float:
    """Return achieved over peak, capped at 1: the peak leaves out the vector units."""
    return min(1.0, work.total.flops / (latency_ms * 1e-3) / peak_flop_per_s)


def _node_estimates(
    work: GraphWork, times: RowTimes, repeats: Array, owners: NDArray[np.int64]
) -> tuple[NodeEstimate, ...]:
    """Sum rows into their top-level nodes and name what binds each."""
    count = len(work.nodes)

    def per_node(seconds: Array) -> list[float]:
        total = np.bincount(owners, weights=seconds * repeats, minlength=count)
        column: list[float] = (total * 1e3).tolist()
        return column

    node_ms, padded_ms, compute_ms, memory_ms = (
        per_node(column)
        for column in (times.node_s, times.padded_s, times.compute_s, times.memory_s)
    )
    return tuple(
        NodeEstimate(
            name=node.name,
            op_type=node.op_type,
            kind=node.kind,
            latency_ms=snap_ms(node_ms[i]),
            compute_ms=compute_ms[i],
            memory_ms=memory_ms[i],
            limit=_limit(node_ms[i], padded_ms[i], compute_ms[i], memory_ms[i]),
            flops=node.work.flops,
            moved_bytes=node.work.moved_bytes,
        )
        for i, node in enumerate(work.nodes)
    )


def _limit(node_ms: float, padded_ms: float, compute_ms: float, memory_ms: float) -> str:
    """Name what binds: the launch where arithmetic and bytes fill under half of the time, waves
    where over half of the arithmetic's time is idle units and padding."""
    if node_ms == 0:
        return "none"
    if max(padded_ms, memory_ms) < 0.5 * node_ms:
        return "launch"
    if memory_ms > padded_ms:
        return "memory"
    return "compute" if compute_ms >= 0.5 * padded_ms else "waves"
