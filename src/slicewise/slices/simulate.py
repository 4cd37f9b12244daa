"""What a request really waits: slices that serve batches, simulated event by event.

Shares no formula with `latency.py`; its batcher is the one described there. Nothing is chosen.
"""

import bisect
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from slicewise.core.errors import UsageError
from slicewise.core.packing import LatencyModel, Offer

_WARM_UP = 0.05  # of the requests come before those counted


class Arrivals(StrEnum):
    """How requests come: at random (Poisson), or evenly."""

    POISSON = "poisson"
    EVEN = "even"


@dataclass(frozen=True, slots=True)
class Simulated:
    """Latency of requests (ms) as simulated: `percentiles_ms` in the order asked.

    `batch` is the mean number of requests in a batch, `load` the part of the time in which a
    process worked, weighted by requests.
    """

    percentiles_ms: tuple[float, ...]
    mean_ms: float
    requests: int
    batch: float
    load: float


def arrivals_of(model: LatencyModel) -> Arrivals:
    """Return how requests come where a latency model holds: only QUEUE knows of chance.

    >>> print(arrivals_of(LatencyModel.QUEUE))
    poisson
    """
    return Arrivals.POISSON if model is LatencyModel.QUEUE else Arrivals.EVEN


def simulate(
    parts: Sequence[tuple[Offer, float]],
    *,
    percentiles: Sequence[float] = (50.0, 95.0, 99.0),
    requests: int = 100_000,
    seed: int = 0,
    arrivals: Arrivals = Arrivals.POISSON,
    safety: float = 0.0,
) -> Simulated:
    """Return the latency of a workload's requests over its slices, each (offer, rate per s).

    Each slice gets its part of the requests at random (so it is Poisson again), keeps them in one
    line and starts a batch on a free process once it is full or `max_delay_ms` have passed since
    its first request. A batch takes `service_ms` x (1 + safety), whatever is in it. Deterministic
    for a seed; 100,000 requests take well under a second. `UsageError` without any rate.

    >>> from slicewise.core.cost import Estimate
    >>> from slicewise.core.packing import Serving
    >>> serving = Serving(1, 1, Estimate(10.0, low=10.0, high=10.0), 100.0, memory_bytes=1e9)
    >>> found = simulate([(Offer("a30", None, serving, 50.0), 50.0)], requests=50_000)
    >>> 14.5 < found.mean_ms < 15.5  # M/D/1 at half load: 10 + 10 x 0.5 / (2 x 0.5)
    True
    """
    whole = sum(rate for _, rate in parts)
    if not 0 < whole < math.inf or any(rate < 0 for _, rate in parts):
        raise UsageError(
            f"the rates of the slices sum to {whole:g}; give each 0 or more, one over 0"
        )
    generator = np.random.default_rng(seed)
    waits, batches, loads = [], 0, 0.0
    for part, rate in parts:
        count = round(requests * rate / whole)
        if count == 0:
            continue
        times = _times(count, rate, generator, arrivals)
        latency, started, busy = _serve(part, times, safety)
        waits.append(latency[math.floor(_WARM_UP * count) :])
        batches += started
        loads += busy * count
    all_waits = np.concatenate(waits)
    total = sum(round(requests * rate / whole) for _, rate in parts)
    return Simulated(
        tuple(float(each) for each in np.percentile(all_waits, list(percentiles))),
        float(all_waits.mean()), len(all_waits), total / batches, loads / total,
    )  # fmt: skip


def _times(
    count: int, rate_per_s: float, generator: np.random.Generator, arrivals: Arrivals
) -> npt.NDArray[np.float64]:
    """Return when requests come, ms."""
    if arrivals is Arrivals.EVEN:
        return np.asarray(np.arange(count) * (1e3 / rate_per_s), dtype=np.float64)
    return np.asarray(np.cumsum(generator.exponential(1e3 / rate_per_s, count)))


def _serve(
    part: Offer, times: npt.NDArray[np.float64], safety: float
) -> tuple[npt.NDArray[np.float64], int, float]:
    """Return each request's latency (ms), the batches started, and how busy the processes were."""
    serving = part.serving
    batch, count = serving.batch, len(times)
    service_ms = serving.service_ms.value * (1 + safety)
    # a process may pause between batches: then its throughput is less than batch / service
    cycle_ms = 1e3 * serving.processes * batch / serving.throughput_per_s * (1 + safety)
    free = [0.0] * serving.processes
    line = times.tolist()
    starts: list[float] = []
    ends: list[int] = []
    first = 0
    while first < count:
        full = line[first + batch - 1] if first + batch <= count else math.inf
        start = max(free[0], min(full, line[first] + part.max_delay_ms))
        end = bisect.bisect_right(line, start, first, min(first + batch, count))
        heapq.heapreplace(free, start + cycle_ms)
        starts.append(start)
        ends.append(end)
        first = end
    sizes = np.diff(np.array([0, *ends]))
    latency = np.repeat(np.array(starts), sizes) - times + service_ms
    span = max(starts[-1] + cycle_ms - line[0], cycle_ms)
    return latency, len(starts), len(starts) * cycle_ms / (serving.processes * span)
