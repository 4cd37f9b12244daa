"""Seconds of single kernels on a whole device: tiles, waves, cache, launches, paths.

    busy   = max(padded arithmetic / rate, bytes / bandwidth) + fill
    kernel = max(busy, launch)

Three steps, so that what does not depend on the device is done once, and efficiencies can be
fitted without counting anew: `tabulate` kernels, `unit_costs` at efficiency 1, `kernel_times`
under the rules of a class of devices and a runtime. What a graph costs in all is the business of
`predict/roofline.py`; nothing here knows graphs, batches or intervals.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from slicewise.core.cost import GraphWork, Kernel, Kind, NodeWork, Work
from slicewise.core.device import Device
from slicewise.core.notes import Note
from slicewise.core.precision import DType
from slicewise.predict import efficiency
from slicewise.predict.power import sustained_fraction
from slicewise.predict.runtimes import Runtime

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

KINDS = tuple(Kind)
_KIND_INDEX = {kind: i for i, kind in enumerate(KINDS)}
_MATRIX = np.isin(
    np.arange(len(KINDS)),
    [_KIND_INDEX[k] for k in (Kind.CONV, Kind.MATMUL, Kind.ATTENTION, Kind.RECURRENT)],
)
_FREE_KINDS = frozenset({Kind.VIEW, Kind.CONTROL})
_NEVER = efficiency.Efficiency(1e-9, 1e-9)  # a kind without direct kernels
_NOTHING = Work()


@dataclass(frozen=True, slots=True)
class Row:
    """A kernel, the top-level nodes that it is made of, how often it runs for one run of these,
    its number at top level, -1 inside a body, and the bytes that each of the nodes moves."""

    kernel: NodeWork
    nodes: tuple[int, ...]
    repeats: float = 1.0
    number: int = -1
    moved_bytes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelTable:
    """Kernels as columns, the same for every device.

    `kind` and `dtype` are indices into `KINDS` and `dtypes`. `shaped` are the kernels that
    `shapes` has the rows (batch, m, n, k) of. `passes`: how often a kernel on the vector units
    reads its operands, once for each row of a product. `write_bytes` are part of the activations.
    """

    kind: Indices
    dtype: Indices
    dtypes: tuple[DType, ...]
    steps: Array
    macs: Array
    flops: Array
    activation_bytes: Array
    weight_bytes: Array
    write_bytes: Array
    shaped: Indices
    shapes: Array
    passes: Array


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """Seconds of each kernel on a device at efficiency 1.

    `matrix_s` is arithmetic of matrix units without padding, `tile_loss` what tiles and waves
    multiply it by, `vector_s` other arithmetic, `direct_s` all of it on the vector units,
    `activation_s` and `weight_s` the traffic, `cached_s` that of activations where the cache
    takes them. `kind`, `steps` and `passes` are those of the table.
    """

    kind: Indices
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
class KernelTimes:
    """Seconds of each kernel: as launched; arithmetic padded to tiles and waves; arithmetic with
    every unit busy; traffic; and at a saturating batch, where weights and waves cost nothing and
    no cache helps."""

    launched_s: Array
    padded_s: Array
    compute_s: Array
    memory_s: Array
    saturated_s: Array


def kernels_of(work: GraphWork) -> Iterator[Row]:
    """Yield every kernel of a graph, those of bodies with the top-level node they belong to.

    Where no runtime was chosen, every node is a kernel of its own; a view and a node whose work
    is all in its body are none.
    """
    kernels = work.kernels
    if kernels is None:
        kernels = tuple(_one_by_one(work.nodes))
    for number, kernel in enumerate(kernels):
        yield Row(kernel.work, kernel.nodes, 1.0, number, _moved_bytes(kernel, work.nodes))
    for i, node in enumerate(work.nodes):
        if node.body:
            yield from _inside(node, i, 1.0)


def _moved_bytes(kernel: Kernel, nodes: Sequence[NodeWork]) -> tuple[int, ...]:
    """Return the bytes that each node of a kernel moves; where it is not told, in proportion to
    what they would move alone."""
    total = kernel.work.work.moved_bytes
    if kernel.moved_bytes or len(kernel.nodes) == 1:
        return kernel.moved_bytes or (total,)
    alone = [nodes[i].work.moved_bytes for i in kernel.nodes]
    ends = [total * sum(alone[: k + 1]) // max(sum(alone), 1) for k in range(len(alone))]
    return tuple(end - start for start, end in zip([0, *ends], ends, strict=False))


def _inside(node: NodeWork, owner: int, repeats: float) -> Iterator[Row]:
    """Yield the kernels of a node's body."""
    kernels = tuple(_one_by_one(node.body)) if node.kernels is None else node.kernels
    repeats *= node.repeats
    for kernel in kernels:
        yield Row(kernel.work, (owner,), repeats)
    for inner in node.body:
        if inner.body:
            yield from _inside(inner, owner, repeats)


def _one_by_one(nodes: Sequence[NodeWork]) -> Iterator[Kernel]:
    for i, node in enumerate(nodes):
        own = node.own_work
        if node.kind not in _FREE_KINDS or own != _NOTHING:
            yield Kernel((i,), replace(node, work=own, body=()) if node.body else node)


def tabulate(kernels: Sequence[NodeWork]) -> KernelTable:
    """Return kernels as columns."""
    dtypes = tuple(dict.fromkeys(kernel.dtype for kernel in kernels))
    dtype_index = {dtype: i for i, dtype in enumerate(dtypes)}
    numbers = np.array(
        [
            (
                _KIND_INDEX[kernel.kind], dtype_index[kernel.dtype], kernel.steps, work.macs,
                work.flops, work.read_bytes + work.write_bytes, work.weight_bytes,
                work.write_bytes,
            )
            for kernel in kernels
            for work in (kernel.work,)
        ],
        dtype=np.float64,
    ).reshape(len(kernels), 8)  # fmt: skip
    shaped = [i for i, each in enumerate(kernels) if each.contraction is not None]
    shapes = [kernels[i].contraction for i in shaped]
    table = np.array([(s.batch, s.m, s.n, s.k) for s in shapes if s is not None], dtype=np.float64)
    table = np.maximum(table.reshape(len(shaped), 4), 1.0)
    index = np.array(shaped, dtype=np.int64)
    kind = numbers[:, 0].astype(np.int64)
    passes = np.ones(len(kernels))
    product = kind[index] == _KIND_INDEX[Kind.MATMUL]
    passes[index[product]] = np.ceil(table[product, 1] / efficiency.ROWS_AT_ONCE)
    return KernelTable(
        kind,
        numbers[:, 1].astype(np.int64),
        dtypes,
        steps=numbers[:, 2],
        macs=numbers[:, 3],
        flops=numbers[:, 4],
        activation_bytes=numbers[:, 5],
        weight_bytes=numbers[:, 6],
        write_bytes=numbers[:, 7],
        shaped=index,
        shapes=table,
        passes=passes,
    )


def kinds_computed_in(table: KernelTable, dtype: DType) -> frozenset[Kind]:
    """Return the kinds of the kernels that have multiply-adds in `dtype`."""
    if dtype not in table.dtypes:
        return frozenset()
    its = (table.dtype == table.dtypes.index(dtype)) & (table.macs > 0)
    return frozenset(KINDS[i] for i in np.unique(table.kind[its]).tolist())


def unit_costs(table: KernelTable, device: Device) -> tuple[UnitCosts, list[Note]]:
    """Return what each kernel costs at efficiency 1, and what had to be assumed."""
    rates, notes = _rates(table, device)
    vector = _vector_rate(device)
    bandwidth = device.memory_bandwidth_bytes_per_s
    rules = efficiency.RULES[device.kind]
    # What fits into the cache moves faster, whatever the rest does: no cliff where it overflows.
    held = np.minimum(table.activation_bytes, device.cache_bytes * efficiency.CACHE_USABLE)
    from_memory = table.activation_bytes - held * (1 - 1 / rules.cache_speedup)
    return UnitCosts(
        kind=table.kind,
        steps=table.steps,
        matrix_s=2 * table.macs / rates,
        tile_loss=_tile_loss(table, device),
        vector_s=(table.flops - 2 * table.macs) / vector,
        direct_s=table.flops / np.minimum(rates, vector),
        activation_s=table.activation_bytes / bandwidth,
        cached_s=from_memory / bandwidth,
        weight_s=table.weight_bytes / bandwidth,
        passes=table.passes,
    ), notes


def kernel_times(
    costs: UnitCosts, rules: efficiency.Rules, runtime: Runtime, device: Device
) -> KernelTimes:
    """Return the time of each kernel under the efficiencies of one class of devices."""
    together = rules.parallel_part(device.compute_units)
    speed = runtime.gpu_speed if device.kind == "gpu" else {}
    compute_part, memory_part = _parts(costs.kind, rules.by_kind, speed, together)
    compute = (costs.matrix_s + costs.vector_s) / compute_part
    padded = (costs.matrix_s * costs.tile_loss + costs.vector_s) / compute_part
    memory = (costs.cached_s + costs.weight_s) / memory_part
    saturated = np.maximum(compute, costs.activation_s / memory_part)

    # Depthwise convolutions and matrix x vector run on the vector units if that is faster.
    direct_part, direct_memory_part = _parts(costs.kind, rules.direct, {}, together)
    direct_compute = costs.direct_s / direct_part
    direct_memory = (costs.cached_s + costs.weight_s) * costs.passes / direct_memory_part
    direct = np.maximum(direct_compute, direct_memory) < np.maximum(padded, memory)
    convolution = costs.kind == _KIND_INDEX[Kind.CONV]
    padded = np.where(direct, direct_compute, padded)
    # What a full device would take: a depthwise convolution stays on its path; a product with few
    # rows takes the better of both, so that neither figure falls as rows are added.
    stays = direct & convolution
    floor_compute = np.where(convolution, compute, np.minimum(compute, direct_compute))
    floor_memory = np.where(convolution, memory, np.minimum(memory, direct_memory))
    compute = np.where(stays, direct_compute, floor_compute)
    busy_memory = np.where(direct, direct_memory, memory)
    memory = np.where(stays, direct_memory, floor_memory)
    saturated_direct = np.maximum(direct_compute, costs.activation_s / direct_memory_part)
    saturated = np.where(convolution, np.minimum(saturated, saturated_direct), saturated)

    fill_s = rules.kernel_s + rules.kernel_per_unit_s * device.compute_units
    busy = np.maximum(padded, busy_memory) + fill_s + (costs.steps - 1) * rules.step_s
    launched = np.maximum(busy, device.launch_s * runtime.launch_factor)
    return KernelTimes(launched, padded, compute, memory, saturated)


def kernels_ms(kernels: Sequence[NodeWork], device: Device, runtime: Runtime) -> tuple[float, ...]:
    """Return the time of each of some kernels on a whole device.

    What a cut through a kernel costs is the sum of its parts as kernels of their own
    (`graph/launch.py: kernel_of`) less the kernel itself.
    """
    costs, _ = unit_costs(tabulate(kernels), device)
    times = kernel_times(costs, efficiency.RULES[device.kind], runtime, device)
    return tuple((times.launched_s * 1e3).tolist())


def _parts(
    kind: Indices,
    table: Mapping[Kind, efficiency.Efficiency],
    speed: Mapping[Kind, float],
    together: float,
) -> tuple[Array, Array]:
    """Return the parts of the arithmetic peak and of the bandwidth that each kernel reaches."""
    rows = [table.get(each, table.get(Kind.OPAQUE, _NEVER)) for each in KINDS]
    factor = np.array([speed.get(each, 1.0) for each in KINDS])
    compute = np.minimum(np.array([row.compute for row in rows]) * factor, 1.0)
    memory = np.minimum(np.array([row.memory for row in rows]) * factor, efficiency.MOST_MEMORY)
    return (compute * together)[kind], (memory * together)[kind]


def _vector_rate(device: Device) -> float:
    return device.peak_flop_per_s.get(DType.FP32, max(device.peak_flop_per_s.values()))


def _rates(table: KernelTable, device: Device) -> tuple[Array, list[Note]]:
    """Return the matrix rate for each kernel's type; a type that the device lacks runs as fp32."""
    rate_of = np.array([_sustained_rate(device, dtype) for dtype in table.dtypes])
    matrix = _MATRIX[table.kind]
    notes = []
    for i, dtype in enumerate(table.dtypes):
        count = int(np.count_nonzero(matrix & (table.dtype == i)))
        if count and device.matrix_flop_per_s(dtype) is None:
            text = (
                f"{device.name} has no {dtype} rate; {count} kernels of it are priced at the"
                " fp32 rate"
            )
            notes.append(Note("arithmetic-emulated", text))
    notes += [note for dtype, note in device.rate_notes.items() if dtype in table.dtypes]
    return rate_of[table.dtype] if len(table.dtypes) else np.ones(0), notes


def _sustained_rate(device: Device, dtype: DType) -> float:
    """Return the matrix rate that the power limit allows; that of fp32 where there is none."""
    rate = device.matrix_flop_per_s(dtype)
    if rate is None or dtype in (DType.FP32, DType.FP64):
        return rate or device.matrix_flop_per_s(DType.FP32) or _vector_rate(device)
    return rate * sustained_fraction(device)


def _tile_loss(table: KernelTable, device: Device) -> Array:
    """Return time over ideal time of each contraction under its best tile and split, >= 1.

    waves = ceil(blocks / units); time = waves x tile arithmetic / rate of a unit. Output channels
    and contraction are padded to the rows that matrix units take.
    """
    loss = np.ones(len(table.kind))
    counted = table.macs[table.shaped] > 0
    index, shapes = table.shaped[counted], table.shapes[counted]
    if not len(index):
        return loss
    # many kernels of a model have the same shape
    shapes, place = np.unique(shapes, axis=0, return_inverse=True)
    batch, m, n, k = shapes.T
    ideal = batch * m * n * k
    n, k = (np.ceil(axis / efficiency.ROW) * efficiency.ROW for axis in (n, k))
    best = np.full(len(shapes), np.inf)
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
    loss[index] = np.maximum(1.0, best / ideal)[place.reshape(-1)]
    return loss
