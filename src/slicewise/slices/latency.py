"""Which rate a slice carries within a latency target: service, filling of batches, and queueing.

Pure arithmetic on one serving; `simulate.py` checks it by discrete events. No model is predicted
and no slice chosen here. All three ways hold for a batcher that starts a batch on a free process
once it is full or its first request has waited `max_delay_ms`, whichever is first, and that goes
on filling it while every process is busy.
"""

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from slicewise.core.errors import UsageError
from slicewise.core.packing import LatencyModel, Offer, Serving

# ParvaGPU (SC'24): a batch takes less than this part of the latency target, since a request may
# wait for the batch before its own; the rest is kept to spare.
SERVICE_PART = 0.45

# Steps of the dimensionless numbers below; each is rounded to the safe side.
_SLACK_STEP = 1.005
_MOST_SLACK = 60.0  # the capacity is within 1 % of the throughput long before
_DELAYS = tuple(0.004 * 1.12**step for step in range(85))  # of the time of one batch
_TIMES = 24  # steps of a bisection
_AT_ONCE_SLACK = 4.0  # beyond, waiting to fill a batch is as good
# Nearer to saturation busy spells last so long that a percentile holds over hours only, and the
# least excess of load or time breaks it.
_MOST_LOAD = 0.95
_PHASES = 32  # steps of an integral over the time since the last batch was started


def offer(
    serving: Serving,
    *,
    device: str,
    profile: str | None,
    rate_per_s: float,
    latency_ms: float,
    percentile: float,
    model: LatencyModel,
    safety: float,
) -> Offer | None:
    """Return what a serving carries under a target (requests/s, ms); None if no rate meets it.

    `rate_per_s` is the whole rate of the workload, `percentile` (0 to 100) counts under QUEUE
    alone. Times are taken (1 + safety) times as long as they are expected, rates as much lower.
    The capacity never falls as `latency_ms` grows. `UsageError` for a number that cannot be.

    >>> from slicewise.core.cost import Estimate
    >>> serving = Serving(8, 1, Estimate(20.0, low=19.0, high=21.0), 400.0, memory_bytes=2e9)
    >>> found = offer(
    ...     serving, device="a30", profile="1g.6gb", rate_per_s=100.0, latency_ms=50.0,
    ...     percentile=99.0, model=LatencyModel.SERVICE, safety=0.1,
    ... )
    >>> round(found.capacity_per_s, 1), round(found.max_delay_ms, 1)
    (363.6, 6.0)
    """
    _check(rate_per_s, latency_ms, percentile, safety)
    service_ms = serving.service_ms.value * (1 + safety)
    per_s = serving.throughput_per_s / (1 + safety)
    if not (service_ms > 0 and per_s > 0):
        return None
    # how often a batch can be started; at most 1 / service, where processes pause in between
    cycle_ms = 1e3 * serving.processes * serving.batch / per_s
    spare_ms = latency_ms - service_ms
    if model is LatencyModel.SERVICE:
        found = _service(service_ms, latency_ms)
    elif model is LatencyModel.FILL:
        found = _fill(spare_ms, cycle_ms, serving.batch, serving.processes)
    else:
        found = _queue(spare_ms, cycle_ms, serving.batch, serving.processes, percentile)
    load, delay_ms = found
    if load <= 0:
        return None
    # a batch of one item is full at once
    wait_ms = delay_ms if serving.batch > 1 else 0.0
    return Offer(device, profile, serving, load * per_s, wait_ms)


def _check(rate_per_s: float, latency_ms: float, percentile: float, safety: float) -> None:
    for name, value in (("rate_per_s", rate_per_s), ("latency_ms", latency_ms)):
        if not 0 < value < math.inf:
            raise UsageError(f"{name}={value:g} must be over 0; give the one that is asked for")
    if not 0 < percentile < 100:
        raise UsageError(
            f"{percentile=:g} must be over 0 and under 100; give 99 for the usual one"
        )
    if not 0 <= safety < math.inf:
        raise UsageError(f"{safety=:g} must be 0 or more; give 0.1 for 10 %")


def _service(service_ms: float, latency_ms: float) -> tuple[float, float]:
    """Return the load (1: all of the throughput) and the delay of the published rule.

    Requests that come evenly wait for at most one batch before theirs, and for it to fill: then a
    delay of target - 2 x service keeps the target at any rate.
    """
    if service_ms > SERVICE_PART * latency_ms:
        return 0.0, 0.0
    return 1.0, latency_ms - 2 * service_ms


def _fill(spare_ms: float, cycle_ms: float, batch: int, processes: int) -> tuple[float, float]:
    """Return load and delay for requests that come evenly: filling of a batch, and the batch.

    A batch is started every cycle / processes at most, so that its first request waits for no
    longer than that or the delay. Where the spare time is shorter, each request must find a free
    process, and batches stay at one.
    """
    if spare_ms < 0:
        return 0.0, 0.0
    if batch == 1:
        return 1.0, 0.0
    if spare_ms >= cycle_ms / processes:
        return 1.0, spare_ms
    return 1.0 / batch, 0.0


def _queue(
    spare_ms: float, cycle_ms: float, batch: int, processes: int, percentile: float
) -> tuple[float, float]:
    """Return load and delay for requests that come at random (Poisson), at the percentile."""
    slack = spare_ms / cycle_ms
    if slack <= 0:
        return 0.0, 0.0
    step = math.floor(math.log(min(slack, _MOST_SLACK)) / math.log(_SLACK_STEP))
    load, delay = _queue_load(_SLACK_STEP**step, batch, processes, percentile)
    return load, delay * cycle_ms


@lru_cache(maxsize=65_536)
def _queue_load(
    slack: float, batch: int, processes: int, percentile: float
) -> tuple[float, float]:
    """Return the highest load that keeps the percentile, and its delay, in times of one batch.

    `slack` is what a request may wait, in times of one batch. The better of two ways to run.
    """
    filled = _filled_load(slack, batch, processes, percentile)
    is_asked = processes == 1 and batch > 1 and 1 <= slack < _AT_ONCE_SLACK
    at_once = _at_once_load(slack, batch, percentile) if is_asked else 0.0
    return (at_once, 0.0) if at_once > filled[0] else filled


def _filled_load(
    slack: float, batch: int, processes: int, percentile: float
) -> tuple[float, float]:
    """Return the highest load of a batcher that waits to fill, a bound, and its delay.

    A request waits for its batch, D at most, and its batch for a process. Batches follow each
    other by A = E + min(D, G), with E the time until a first request and G that of batch - 1 more,
    and go to the processes in turn, so that Kingman's bound (1964; GI/G/1) holds for their wait W:
    P(W > x) <= exp(-t x) if exp(t) E[exp(-t A)]^processes <= 1. So the percentile is kept if this
    is so at t = -ln(1 - percentile) / (slack - D). A grows as the rate falls: any lower rate keeps
    it as well.
    """
    least = -math.log1p(-percentile / 100)
    delays = np.array([0.0, *(each for each in _DELAYS if each < slack)])
    exponent = least / (slack - delays)
    low = np.zeros_like(delays)
    high = np.full_like(delays, _MOST_LOAD)
    for _ in range(_TIMES):
        load = (low + high) / 2
        rate = load * batch * processes
        kept = exponent + processes * _log_gap(rate, exponent, delays, batch) <= 0
        low = np.where(kept, load, low)
        high = np.where(kept, high, load)
    best = int(np.argmax(low))  # the shortest delay of equal ones
    return float(low[best]), float(delays[best]) if batch > 1 else 0.0


Row = npt.NDArray[np.float64]


def _log_gap(rate: Row, exponent: Row, delays: Row, batch: int) -> Row:
    """Return ln E[exp(-t A)] of the time A from batch to batch (see `_filled_load`).

    E[exp(-t min(D, G))] with G the time of batch - 1 requests is (r / (r + t))^(batch - 1) times
    P(N >= batch - 1), plus exp(-t D) P(N' < batch - 1); N and N' are numbers of requests in D at
    the rates r + t and r.
    """
    first = np.log(rate / (rate + exponent))
    if batch == 1:
        return first
    all_come = np.log1p(-np.minimum(_fewer((rate + exponent) * delays, batch - 1), 1 - 1e-16))
    some_come = np.log(np.maximum(_fewer(rate * delays, batch - 1), 1e-300))
    full = (batch - 1) * first + all_come
    return np.asarray(first + np.logaddexp(full, some_come - exponent * delays))


def _fewer(mean: Row, count: int) -> Row:
    """Return P(N < count) of Poisson numbers."""
    numbers = np.arange(count)
    logs = np.array([math.lgamma(number + 1) for number in range(count)])
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = numbers * np.log(mean)[:, None] - mean[:, None] - logs
    terms = np.where((mean == 0)[:, None] & (numbers == 0), 0.0, terms)
    return np.asarray(np.minimum(np.exp(np.nan_to_num(terms, nan=-np.inf)).sum(axis=1), 1.0))


def _at_once_load(slack: float, batch: int, percentile: float) -> float:
    """Return the highest load of one process that starts whatever there is when it is free.

    A request that finds u of a batch's time gone waits 1 - u and one batch more for each full one
    before it. u is taken to be even; the number before it is over j x batch only if, for some
    i >= 0, more than (i + j) x batch came in the time i + u before (busy since then). The sum over
    i bounds that probability: more than it is at a low load. `slack` is 1 or more: a request that
    comes just after a start waits for nearly one batch.
    """
    phases = (np.arange(_PHASES) + 0.5) / _PHASES
    whole = math.floor(slack)
    ahead = whole + (phases >= 1 - (slack - whole)).astype(float)
    allowed = 1 - percentile / 100
    low, high = 0.0, _MOST_LOAD
    for _ in range(_TIMES):
        load = (low + high) / 2
        # later terms are under exp(-i batch (1 - load)^2 / 2)
        back = np.arange(4 + math.ceil(40 / (batch * (1 - load) ** 2)))[:, None]
        mean = np.asarray(load * batch * (phases + back), dtype=np.float64)
        count = np.asarray((ahead + back) * batch, dtype=np.float64)
        late = _at_least(mean, count).sum(axis=0)
        if float(np.minimum(late, 1).mean()) <= allowed:
            low = load
        else:
            high = load
    return low


_FACTORIALS: list[float] = [0.0]


def _at_least(mean: Row, count: Row) -> Row:
    """Return a bound on P(N >= count) of Poisson numbers, 1 where the mean is not less.

    pmf(count) (count + 1) / (count + 1 - mean): the terms fall at least as fast as a power row.
    """
    most = int(count.max())
    while len(_FACTORIALS) <= most:
        _FACTORIALS.append(math.lgamma(len(_FACTORIALS) + 1))
    logs = np.array(_FACTORIALS)[count.astype(int)]
    density = np.exp(count * np.log(mean) - mean - logs)
    found = density * (count + 1) / np.maximum(count + 1 - mean, 1e-9)
    return np.where(mean < count, np.minimum(found, 1.0), 1.0)
