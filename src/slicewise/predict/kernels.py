"""Seconds of single kernels on a whole device: tiles, waves, cache, launches, paths.

    kernel = max(padded arithmetic / rate, bytes / bandwidth) + fill
    node   = max(kernel, launch) x part that fusion leaves

Two steps, so that efficiencies can be fitted without counting anew: `unit_costs` at efficiency 1,
`row_times` under the rules of a class of devices. What a graph costs in all is the business of
`predict/roofline.py`; nothing here knows graphs, batches or intervals.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from slicewise.core.cost import Contraction, Kind, NodeWork, Work
from slicewise.core.device import Device
from slicewise.core.notes import Note
from slicewise.core.precision import DType
from slicewise.predict import efficiency
from slicewise.predict.power import sustained_fraction
from slicewise.predict.runtimes import Runtime

Array = NDArray[np.float64]

_MATRIX_KINDS = frozenset({Kind.CONV, Kind.MATMUL, Kind.ATTENTION, Kind.RECURRENT})
_FREE_KINDS = frozenset({Kind.VIEW, Kind.CONTROL})
_NEVER = efficiency.Efficiency(1e-9, 1e-9)  # a kind without direct kernels


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """Seconds of each row (a node, or a node of a body) on a device at efficiency 1.

    `matrix_s` is arithmetic of matrix units without padding, `tile_loss` what tiles and waves
    multiply it by, `vector_s` other arithmetic, `direct_s` all of it on the vector units,
    `activation_s` and `weight_s` the traffic, `cached_s` that of activations where the cache
    takes them. `passes`: how often a kernel on the vector units reads its operands, once for each
    row of a product.
    """

    kinds: tuple[Kind, ...]
    steps: Array
    matrix_s: Array
    tile_loss: Array
    vector_s: Array
    direct_s: Array
    activation_s: Array
    cached_s: Array
    weight_s: Array
    passes: Array


@dataclass(frozen=True, slots=True)
class RowTimes:
    """Seconds of each row: as launched; arithmetic padded to tiles and waves; arithmetic with
    every unit busy; traffic; and at a saturating batch, where weights and waves cost nothing and
    no cache helps."""

    node_s: Array
    padded_s: Array
    compute_s: Array
    memory_s: Array
    saturated_s: Array


@dataclass(frozen=True, slots=True)
class Row:
    """A kernel-making node, the index of the top-level node it belongs to, and how often it runs
    for one run of that node."""

    node: NodeWork
    owner: int
    repeats: float


def flatten(
    nodes: Sequence[NodeWork], *, owner: int | None = None, repeats: float = 1.0
) -> Iterator[Row]:
    """Yield every kernel-making node with the top-level node it belongs to."""
    for i, node in enumerate(nodes):
        top = i if owner is None else owner
        own = _own_work(node) if node.body else node.work
        if not node.body or own != Work():
            yield Row(replace(node, work=own, body=()) if node.body else node, top, repeats)
        yield from flatten(node.body, owner=top, repeats=repeats * node.repeats)


def _own_work(node: NodeWork) -> Work:
    """Return the work of a node without that of its body."""
    body = sum((inner.work for inner in node.body), Work()) * node.repeats
    return Work(
        node.work.macs - body.macs,
        node.work.flops - body.flops,
        node.work.read_bytes - body.read_bytes,
        node.work.write_bytes - body.write_bytes,
        node.work.weight_bytes - body.weight_bytes,
    )


def unit_costs(nodes: Sequence[NodeWork], device: Device) -> tuple[UnitCosts, list[Note]]:
    """Return what each row costs at efficiency 1, and what had to be assumed."""
    rates, notes = _rates(nodes, device)
    vector = _vector_rate(device)
    flops = np.array([node.work.flops for node in nodes], dtype=np.float64)
    macs = np.array([node.work.macs for node in nodes], dtype=np.float64)
    activation = np.array(
        [node.work.read_bytes + node.work.write_bytes for node in nodes], dtype=np.float64
    )
    weights = np.array([node.work.weight_bytes for node in nodes], dtype=np.float64)
    bandwidth = device.memory_bandwidth_bytes_per_s
    rules = efficiency.RULES[device.kind]
    # What fits into the cache moves faster, whatever the rest does: no cliff where it overflows.
    held = np.minimum(activation, device.cache_bytes * efficiency.CACHE_USABLE)
    from_memory = activation - held * (1 - 1 / rules.cache_speedup)
    return UnitCosts(
        kinds=tuple(node.kind for node in nodes),
        steps=np.array([node.steps for node in nodes], dtype=np.float64),
        matrix_s=2 * macs / rates,
        tile_loss=_tile_loss(nodes, device),
        vector_s=(flops - 2 * macs) / vector,
        direct_s=flops / np.minimum(rates, vector),
        activation_s=activation / bandwidth,
        cached_s=from_memory / bandwidth,
        weight_s=weights / bandwidth,
        passes=np.array([_passes(node) for node in nodes], dtype=np.float64),
    ), notes


def row_times(
    costs: UnitCosts, rules: efficiency.Rules, runtime: Runtime, device: Device
) -> RowTimes:
    """Return the time of each row under the efficiencies of one class of devices."""
    default = rules.by_kind[Kind.OPAQUE]
    rows = [rules.by_kind.get(kind, default) for kind in costs.kinds]
    together = rules.parallel_part(device.compute_units)
    compute_part = np.array([row.compute for row in rows]) * together
    memory_part = np.array([row.memory for row in rows]) * together
    compute = (costs.matrix_s + costs.vector_s) / compute_part
    padded = (costs.matrix_s * costs.tile_loss + costs.vector_s) / compute_part
    memory = (costs.cached_s + costs.weight_s) / memory_part
    saturated = np.maximum(compute, costs.activation_s / memory_part)

    # Depthwise convolutions and matrix x vector run on the vector units if that is faster.
    rows = [rules.direct.get(kind, _NEVER) for kind in costs.kinds]
    direct_compute = costs.direct_s / (np.array([row.compute for row in rows]) * together)
    direct_part = np.array([row.memory for row in rows]) * together
    direct_memory = (costs.cached_s + costs.weight_s) * costs.passes / direct_part
    direct = np.maximum(direct_compute, direct_memory) < np.maximum(padded, memory)
    convolution = np.array([kind is Kind.CONV for kind in costs.kinds], dtype=bool)
    padded = np.where(direct, direct_compute, padded)
    # What a full device would take: a depthwise convolution stays on its path; a product with few
    # rows takes the better of both, so that neither figure falls as rows are added.
    stays = direct & convolution
    floor_compute = np.where(convolution, compute, np.minimum(compute, direct_compute))
    floor_memory = np.where(convolution, memory, np.minimum(memory, direct_memory))
    compute = np.where(stays, direct_compute, floor_compute)
    busy_memory = np.where(direct, direct_memory, memory)
    memory = np.where(stays, direct_memory, floor_memory)
    saturated_direct = np.maximum(direct_compute, costs.activation_s / direct_part)
    saturated = np.where(convolution, np.minimum(saturated, saturated_direct), saturated)

    fill_s = rules.kernel_s + rules.kernel_per_unit_s * device.compute_units
    kernel = np.maximum(padded, busy_memory) + fill_s + (costs.steps - 1) * rules.step_s
    busy = np.array([_part_left(kind, runtime) for kind in costs.kinds])
    return RowTimes(
        node_s=busy * np.maximum(kernel, device.launch_s * runtime.launch_factor),
        padded_s=busy * padded,
        compute_s=busy * compute,
        memory_s=busy * memory,
        saturated_s=busy * saturated,
    )


def _passes(node: NodeWork) -> int:
    if node.kind is not Kind.MATMUL or node.contraction is None:
        return 1
    return -(-node.contraction.m // efficiency.ROWS_AT_ONCE)


def _part_left(kind: Kind, runtime: Runtime) -> float:
    return 0.0 if kind in _FREE_KINDS else runtime.left.get(kind, 1.0)


def _vector_rate(device: Device) -> float:
    return device.peak_flop_per_s.get(DType.FP32, max(device.peak_flop_per_s.values()))


def _rates(nodes: Sequence[NodeWork], device: Device) -> tuple[Array, list[Note]]:
    """Return the matrix rate for each row's type; a type that the device lacks runs as fp32."""
    missing: dict[DType, int] = {}
    rate_of: dict[DType, float] = {}
    for node in nodes:
        if device.matrix_flop_per_s(node.dtype) is None and node.kind in _MATRIX_KINDS:
            missing[node.dtype] = missing.get(node.dtype, 0) + 1
        if node.dtype not in rate_of:
            rate_of[node.dtype] = _sustained_rate(device, node.dtype)
    notes = [
        Note(
            "arithmetic-emulated",
            f"{device.name} has no {dtype} rate; {count} nodes of it are priced at the fp32 rate",
        )
        for dtype, count in missing.items()
    ]
    notes += [note for dtype, note in device.rate_notes.items() if dtype in rate_of]
    return np.array([rate_of[node.dtype] for node in nodes]), notes


def _sustained_rate(device: Device, dtype: DType) -> float:
    """Return the matrix rate that the power limit allows; that of fp32 where there is none."""
    rate = device.matrix_flop_per_s(dtype)
    if rate is None or dtype in (DType.FP32, DType.FP64):
        return rate or device.matrix_flop_per_s(DType.FP32) or _vector_rate(device)
    return rate * sustained_fraction(device)


def _tile_loss(nodes: Sequence[NodeWork], device: Device) -> Array:
    """Return time over ideal time of each contraction under its best tile and split, >= 1.

    waves = ceil(blocks / units); time = waves x tile arithmetic / rate of a unit. Output channels
    and contraction are padded to the rows that matrix units take.
    """
    loss = np.ones(len(nodes))
    index = [i for i, node in enumerate(nodes) if node.contraction is not None and node.work.macs]
    if not index:
        return loss
    shapes = [nodes[i].contraction for i in index]
    batch, m, n, k = _columns([shape for shape in shapes if shape is not None])
    ideal = batch * m * n * k
    n, k = (np.ceil(axis / efficiency.ROW) * efficiency.ROW for axis in (n, k))
    best = np.full(len(index), np.inf)
    for tile in efficiency.RULES[device.kind].tiles:
        blocks = batch * np.ceil(m / tile.m) * np.ceil(n / tile.n)
        for halvings, split in enumerate(efficiency.SPLITS):
            depth = np.ceil(k / split)
            if split > 1:
                depth = np.maximum(depth, efficiency.SPLIT_MIN_DEPTH)
            waves = np.ceil(blocks * split / device.compute_units)
            rate = tile.efficiency * efficiency.SPLIT_PENALTY**halvings
            time = waves * (tile.m * tile.n * depth) * device.compute_units / rate
            best = np.minimum(best, time)
    loss[index] = np.maximum(1.0, best / ideal)
    return loss


def _columns(shapes: Sequence[Contraction]) -> tuple[Array, Array, Array, Array]:
    table = np.array([(s.batch, s.m, s.n, s.k) for s in shapes], dtype=np.float64)
    table = np.maximum(table, 1.0)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3]
