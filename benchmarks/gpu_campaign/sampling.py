"""How one thing is timed: warm-up, samples, then a window of back-to-back runs for the power.

Knows clocks and meters by protocol only; what is run is a callable. Nothing is recorded here.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol


class Timer(Protocol):
    """The clock of a device. A stamp is a point in the device's stream of work."""

    def now(self) -> float:
        """Return seconds of the host's clock."""

    def stamp(self) -> Any:
        """Put a stamp behind the work submitted so far."""

    def elapsed_ms(self, first: Any, last: Any) -> float:
        """Return the time between two stamps that were passed."""

    def is_passed(self, stamp: Any) -> bool:
        """True if the device has done all work before the stamp."""

    def rest(self) -> None:
        """Let a little time pass while the device works."""

    def sync(self) -> None:
        """Return when all work is done."""


class Meter(Protocol):
    """A reader of energy. `source` names it, 'none' where there is none."""

    source: str

    def joules(self) -> float | None:
        """Return the energy used so far, None where there is no such counter."""

    def watts(self) -> float | None:
        """Return the power just now, None where it cannot be read."""


@dataclass(frozen=True, slots=True)
class Rules:
    """When to stop. Sampling ends once the 90 % interval of the median is within `relative_width`
    after `calm_s`, or at `samples` after `budget_s`, or at `limit_s` (then at least 3)."""

    warmup_s: float = 0.06
    warmup_limit_s: float = 0.6
    calm_s: float = 0.12
    budget_s: float = 0.25
    limit_s: float = 1.0
    samples: int = 20
    most_samples: int = 200
    relative_width: float = 0.02
    window_s: float = 0.35
    chunk_ms: float = 4.0


KERNEL = Rules(warmup_s=0.03, warmup_limit_s=0.2, calm_s=0.04, limit_s=0.4, window_s=0.26)
SMOKE = Rules(0.0, 0.05, 0.01, 0.02, 0.05, window_s=0.02)


@dataclass(frozen=True, slots=True)
class Samples:
    """Times in ms. `wall` is one run and the wait for it; `event` the device's own time between
    stamps around it; `stream_ms` a run among others submitted back to back. `power_w` is the mean
    of the window, None without a meter or where the window was too short for it."""

    wall_ms: tuple[float, ...]
    event_ms: tuple[float, ...]
    stream_ms: float
    power_w: float | None
    power_source: str
    warmup_runs: int
    window_runs: int

    @property
    def energy_j(self) -> float | None:
        """Energy of one run in the window: mean power times the time of a run."""
        return None if self.power_w is None else self.power_w * self.stream_ms * 1e-3


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 90 % interval of the median by order statistics (binomial, normal limit)."""
    ordered, n = sorted(values), len(values)
    reach = 1.645 * math.sqrt(n) / 2
    low = max(0, math.floor((n - 1) / 2 - reach))
    high = min(n - 1, math.ceil((n - 1) / 2 + reach))
    return ordered[low], ordered[high]


def quantile(values: Sequence[float], fraction: float) -> float:
    """Return the nearest-rank quantile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(fraction * len(ordered)) - 1))]


def take(run: Callable[[], object], timer: Timer, *, meter: Meter, rules: Rules) -> Samples:
    """Return the samples of `run`: warmed up, one by one, then back to back."""
    warmup_runs = _warm_up(run, timer, rules)
    wall_ms, event_ms = _one_by_one(run, timer, rules)
    stream_ms, power_w, source, runs = _back_to_back(
        run, timer, meter, rules=rules, expected_ms=median(wall_ms)
    )
    return Samples(tuple(wall_ms), tuple(event_ms), stream_ms, power_w, source, warmup_runs, runs)


def _warm_up(run: Callable[[], object], timer: Timer, rules: Rules) -> int:
    """Run until the latest third is no faster than 3 % below the third before it."""
    begin, times = timer.now(), list[float]()
    while True:
        start = timer.now()
        run()
        timer.sync()
        end = timer.now()
        times.append(end - start)
        third = len(times) // 3
        is_steady = third > 0 and median(times[-third:]) >= 0.97 * median(
            times[-2 * third : -third]
        )
        spent = end - begin
        if (is_steady and spent >= rules.warmup_s) or (
            spent >= rules.warmup_limit_s and len(times) >= 2
        ):
            return len(times)


def _one_by_one(
    run: Callable[[], object], timer: Timer, rules: Rules
) -> tuple[list[float], list[float]]:
    begin = timer.now()
    wall_ms, event_ms = list[float](), list[float]()
    while True:
        start, first = timer.now(), timer.stamp()
        run()
        last = timer.stamp()
        timer.sync()
        end = timer.now()
        wall_ms.append((end - start) * 1e3)
        event_ms.append(timer.elapsed_ms(first, last))
        n, spent = len(wall_ms), end - begin
        if n >= rules.most_samples or (n >= 3 and spent >= rules.limit_s):
            return wall_ms, event_ms
        if n >= rules.samples and spent >= rules.budget_s:
            return wall_ms, event_ms
        if n >= 5 and spent >= rules.calm_s:
            low, high = interval(wall_ms)
            if high - low <= rules.relative_width * median(wall_ms):
                return wall_ms, event_ms


def _back_to_back(
    run: Callable[[], object], timer: Timer, meter: Meter, *, rules: Rules, expected_ms: float
) -> tuple[float, float | None, str, int]:
    """Return ms of a run, mean watts, where they are from, and the number of runs.

    One chunk of runs is always queued behind the one at work, so that the device never waits
    for the host more than the model makes it.
    """
    per_chunk = max(1, round(rules.chunk_ms / max(expected_ms, 1e-4)))
    readings = _Readings(meter)
    timer.sync()
    begin, first, runs = timer.now(), timer.stamp(), 0
    previous = None
    while True:
        for _ in range(per_chunk):
            run()
        runs += per_chunk
        last = timer.stamp()
        while previous is not None and not timer.is_passed(previous):
            readings.read(timer.now())
            timer.rest()
        readings.read(timer.now())
        previous, spent = last, timer.now() - begin
        is_long = spent >= rules.window_s and runs >= 2 * per_chunk
        if is_long and (readings.are_enough or spent >= 2 * rules.window_s):
            break
    timer.sync()
    total_ms = timer.elapsed_ms(first, last)
    power_w, source = readings.mean_watts()
    return total_ms / runs, power_w, source, runs


class _Readings:
    """Readings of a meter during the window.

    A counter of energy is renewed every 20 to 100 ms: the mean power is taken between the first
    and the last renewal seen. Without a counter: the mean of the readings of power.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._last: float | None = None
        self._edges: list[tuple[float, float]] = []
        self._watts: list[float] = []
        self._read_at = -math.inf
        self._gap_s = 2e-3

    @property
    def are_enough(self) -> bool:
        return self._meter.source == "none" or len(self._edges) >= 3 or len(self._watts) >= 5

    def read(self, now: float) -> None:
        if self._meter.source == "none" or now - self._read_at < self._gap_s:
            return
        self._read_at, before = now, time.perf_counter()
        joules = self._meter.joules()
        # reading must not slow a host-bound model by more than a twentieth
        self._gap_s = max(2e-3, 20 * (time.perf_counter() - before))
        if joules is None:
            watts = self._meter.watts()
            if watts is not None:
                self._watts.append(watts)
            return
        if self._last is not None and joules != self._last:
            self._edges.append((now, joules))
        self._last = joules

    def mean_watts(self) -> tuple[float | None, str]:
        if len(self._edges) >= 2:
            (t0, e0), (t1, e1) = self._edges[0], self._edges[-1]
            if t1 > t0 and e1 > e0:
                return (e1 - e0) / (t1 - t0), f"{self._meter.source}-energy"
        if self._watts:
            return sum(self._watts) / len(self._watts), f"{self._meter.source}-power"
        watts = self._meter.watts()
        return watts, "none" if watts is None else f"{self._meter.source}-power-once"


class HostTimer:
    """The CPU: a run is over when it returns."""

    def now(self) -> float:
        return time.perf_counter()

    def stamp(self) -> Any:
        return time.perf_counter()

    def elapsed_ms(self, first: Any, last: Any) -> float:
        return float(last - first) * 1e3

    def is_passed(self, stamp: Any) -> bool:
        return True

    def rest(self) -> None:
        return None

    def sync(self) -> None:
        return None


class CudaTimer(HostTimer):
    """A CUDA device: stamps are events in the current stream."""

    def stamp(self) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def elapsed_ms(self, first: Any, last: Any) -> float:
        return float(first.elapsed_time(last))

    def is_passed(self, stamp: Any) -> bool:
        return bool(stamp.query())

    def rest(self) -> None:
        time.sleep(2e-4)

    def sync(self) -> None:
        import torch

        torch.cuda.synchronize()


class NullTimer(HostTimer):
    """A clock that only a null run advances, for tests without a device."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def stamp(self) -> Any:
        return self.seconds

    def work(self, ms: float) -> None:
        """Let `ms` pass."""
        self.seconds += ms * 1e-3
