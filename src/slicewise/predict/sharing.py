"""Sharing a part of a device: equal processes in one part, and unlike neighbours on one card.

Arithmetic on predictions; nothing is measured here, and no slice is scaled (`predict/slice.py`
does that). How well it holds: `benchmarks/results/slice_rule.md`.

n equal processes under MPS in one part: the part works on all of them, while each launches and
copies for itself,

    T_n = (1 - x) H + [ T_1^q + (n (W + y t + x H))^q ]^(1/q)       at most n T_1

with H, t and W of `predict/slice.py` on that part: part-filled waves of one process are filled by
another (y), and copies of several share the link as far as x.
"""

import math
from dataclasses import replace

from slicewise.core.cost import Estimate, Prediction
from slicewise.core.errors import UsageError
from slicewise.core.units import snap_ms
from slicewise.predict.slice import Busy

# q, y and x: fitted to ParvaGPU (MIT), 1,082 rows of 2 to 5 processes in one slice.
CROWD_SHARPNESS = 5.0
CROWD_TAIL = 0.3
CROWD_HOST = 0.3
# 90 % of those rows lie within this factor of the rule.
CROWD_SPREAD = 1.3

MECHANISMS = ("mig", "mps", "time-slicing")
# Slow-down of neighbours on complementary MPS shares (sharing notes, section 6): models that the
# device's work binds (TensorRT on V100) 1.1 in the median, 1.2 as the 90 % bound; models that
# launches bind 1.35 and 1.8: two clients' launches share the host and the MPS server.
MPS_WORK, MPS_WORK_MOST = 0.10, 0.20
MPS_LAUNCH, MPS_LAUNCH_MOST = 0.35, 0.80
# Time-slicing: what a switch of contexts costs, and how long a slice of time lasts. General
# knowledge (the driver's default is some 2 ms); no open measurement, hence the wide interval.
SWITCH_SHARE = 0.05
TIME_SLICE_MS = 2.0


def crowded_ms(
    alone_ms: float, processes: int, *, host_ms: float, tail_ms: float, work_ms: float
) -> float:
    """Return the latency of a batch of one of `processes` equal processes in one part, in ms.

    `alone_ms` is that of the process by itself, the others H, t and W on that part. At least
    `alone_ms`, at most `processes` times it; more processes are never faster.

    >>> round(crowded_ms(10.0, 3, host_ms=0.0, tail_ms=0.0, work_ms=2.0), 1)
    10.2
    >>> crowded_ms(10.0, 3, host_ms=0.0, tail_ms=0.0, work_ms=10.0)
    30.0
    """
    if processes == 1:
        return alone_ms
    host_ms = min(host_ms, alone_ms)
    all_ms = processes * (work_ms + CROWD_TAIL * tail_ms + CROWD_HOST * host_ms)
    rest_ms = (1 - CROWD_HOST) * host_ms
    hidden = alone_ms - rest_ms
    hidden, all_ms = math.pow(hidden, CROWD_SHARPNESS), math.pow(all_ms, CROWD_SHARPNESS)
    made_ms = rest_ms + math.pow(hidden + all_ms, 1 / CROWD_SHARPNESS)
    return min(max(made_ms, alone_ms), processes * alone_ms)


def crowd(prediction: Prediction, processes: int) -> Prediction:
    """Return `prediction` for `processes` equal processes that share its part under MPS.

    `latency_ms` is that of one batch of one of them while all run, `throughput_per_s` the rate of
    all together, `memory_bytes` what all take, `energy_j` what one batch costs, `saturation` how
    full the part is with all. Nodes and host term still add up exactly. Laws: more processes are
    never faster, and never have a lower rate together. `UsageError` for under one process.
    """
    if processes < 1:
        raise UsageError(f"processes={processes} is impossible; give at least 1")
    if processes == 1:
        return prediction
    alone = prediction.latency_ms
    alone_ms, host_ms = alone.value, prediction.host_ms
    busy_ms = alone_ms - host_ms
    part = Busy.of(busy_ms, prediction.saturation)
    made_ms = crowded_ms(
        alone_ms, processes, host_ms=host_ms, tail_ms=part.tail_ms, work_ms=part.work_ms
    )
    ratio = (made_ms - host_ms) / busy_ms if busy_ms > 0 else 1.0
    nodes = tuple(
        replace(node, latency_ms=snap_ms(node.latency_ms * ratio)) for node in prediction.nodes
    )
    if nodes:
        host_ms = host_ms if busy_ms > 0 else snap_ms(made_ms)
        made_ms = host_ms + sum(node.latency_ms for node in nodes)
    log_crowd = math.log(CROWD_SPREAD)
    latency_ms = Estimate(
        made_ms,
        made_ms / math.exp(math.hypot(math.log(alone.value / alone.low), log_crowd)),
        made_ms * math.exp(math.hypot(math.log(alone.high / alone.value), log_crowd)),
        f"{alone.source}, {processes} processes",
    )
    memory = prediction.memory_bytes
    return replace(
        prediction,
        latency_ms=latency_ms,
        throughput_per_s=processes * prediction.batch / made_ms * 1e3,
        energy_j=_energy(prediction.energy_j, made_ms / (processes * alone_ms)),
        memory_bytes=replace(
            memory,
            value=memory.value * processes,
            low=memory.low * processes,
            high=memory.high * processes,
            weights=memory.weights * processes,
            activations=memory.activations * processes,
            runtime=memory.runtime * processes,
            workspace=memory.workspace * processes,
        ),
        compute_utilisation=min(
            1.0, prediction.compute_utilisation * processes * alone_ms / made_ms
        ),
        saturation=_saturation(part.work_ms * processes, made_ms - host_ms),
        host_ms=host_ms,
        nodes=nodes,
    )


def neighbours(a: Prediction, b: Prediction, mechanism: str) -> tuple[Estimate, Estimate]:
    """Return by how much `a` and `b` slow each other down, at least 1, with 90 % intervals.

    Each is predicted on its own part, and runs without pause. 'mig': each in its own slice, which
    the hardware isolates: 1. 'mps': each on its own share; memory, cache and host are common.
    'time-slicing': both on the same device, which works on one at a time. `UsageError` for another
    mechanism.
    """
    if mechanism not in MECHANISMS:
        raise UsageError(f"mechanism {mechanism!r} is unknown; choose {', '.join(MECHANISMS)}")
    if mechanism == "mig":
        alone = Estimate(1.0, 1.0, 1.0, "MIG isolates")
        return alone, alone
    slowed = _under_mps if mechanism == "mps" else _under_time_slicing
    return slowed(a, b), slowed(b, a)


def _under_mps(mine: Prediction, other: Prediction) -> Estimate:
    """Work is slowed as far as the other's fills its share, launches as far as they bind."""
    work, launch = mine.saturation, 1 - mine.saturation
    value = 1 + MPS_WORK * work * other.saturation + MPS_LAUNCH * launch
    high = 1 + MPS_WORK_MOST * work + MPS_LAUNCH_MOST * launch
    return Estimate(value, 1.0, max(value, high), "open MPS pairs")


def _under_time_slicing(mine: Prediction, other: Prediction) -> Estimate:
    """While mine needs the device, the other has it for as much of the time as it needs it.

    At most half of the time each, in slices: a short batch may wait for a whole slice of the
    other. Lower end: work that waves leave unfilled needs the device for its own time only.
    """
    needs, others = _device_part(mine), _device_part(other)
    value = 1 + needs * others * (1 + SWITCH_SHARE)
    low = 1 + needs * others * min(mine.saturation, other.saturation)
    wait = TIME_SLICE_MS / mine.latency_ms.value
    return Estimate(value, low, value + SWITCH_SHARE + min(1.0, wait), "busy times added")


def _device_part(prediction: Prediction) -> float:
    """Return the part of the latency in which kernels run: work, and waves that do not fill."""
    total_ms = prediction.latency_ms.value
    if total_ms <= 0:
        return 0.0
    busy = Busy.of(max(total_ms - prediction.host_ms, 0.0), prediction.saturation)
    return min(1.0, (busy.tail_ms + busy.work_ms) / total_ms)


def _energy(alone: Estimate, shorter: float) -> Estimate:
    """Dynamic energy stays that of the batch; the idle part is shared, by an unknown amount."""
    return replace(alone, low=alone.low * min(1.0, shorter))


def _saturation(full_ms: float, busy_ms: float) -> float:
    return min(1.0, full_ms / busy_ms) if busy_ms > 0 else 0.0
