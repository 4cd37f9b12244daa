"""What more of the same tuning would bring, by extrapolating the schedule's own model of gain.

The power law of `schedule.py` is taken to hold up to four times the trials that showed it; beyond,
each doubling saves half of what the last one did, so that no forecast falls without end. On
simulated runs that holds (table "Forecasts" of `benchmarks/results/tune_scaling.md`). An estimate:
it knows nothing of a limit that the hardware sets.
"""

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from slicewise.core.tuning import Trial, Workload
from slicewise.tune.schedule import Progress, exponent

_DRAWS = 32
# How many times the trials that showed it the law is taken to hold; for the upper end of the
# interval it fades at once.
_HOLDS = 4.0
_FADES = 1.0
# Each end of the interval is moved out by so much: the law itself is off, however well its
# exponent is known. Chosen so that nine of ten simulated runs end inside.
_WIDER = 1.06


@dataclass(frozen=True, slots=True)
class Forecast:
    """What `seconds` more would bring: so many trials, and the latency of all workloads in ms.

    `low` and `high` bound the 90 % interval; `high` is no more than what is reached already.
    """

    seconds: float
    trials: int
    value: float
    low: float
    high: float


def outlook(
    workloads: Sequence[Workload],
    trials: Sequence[Trial],
    *,
    seconds: float,
    rate_per_s: float,
    seed: int = 0,
) -> Forecast:
    """Return what `seconds` more at `rate_per_s` trials a second would bring.

    Trials are given to the workload with the greatest expected gain, as the schedule does, and
    each falls by its own law. The interval comes from drawing the order of the trials anew (had
    they come in another order, another law would have been seen), and from how long the law may
    hold. Some 10 ms a workload.
    """
    more = max(0, math.floor(seconds * rate_per_s))
    values = {work.key: _values(work, trials) for work in workloads}
    warm = {work.key: _warm_ms(work, trials) for work in workloads}
    seen = [_progress(work, values[work.key], warm[work.key]) for work in workloads]
    now = sum(each.workload.count * each.expected_ms for each in seen)
    value = _extended(seen, more, _HOLDS)
    if more == 0:
        return Forecast(seconds, more, value, value, value)
    draw = random.Random(seed)
    lows, highs = [], []
    for _ in range(_DRAWS):
        mixed = [
            _progress(w, draw.sample(values[w.key], len(values[w.key])), warm[w.key])
            for w in workloads
        ]
        lows.append(_extended(mixed, more, _HOLDS))
        highs.append(_extended(mixed, more, _FADES))
    low = min(value, sorted(lows)[int(0.05 * _DRAWS)]) / _WIDER
    high = max(value, sorted(highs)[int(0.95 * _DRAWS)]) * _WIDER
    return Forecast(seconds, more, value, low, min(high, now))


def _values(workload: Workload, trials: Sequence[Trial]) -> list[float]:
    return [
        trial.latency_ms.value if trial.is_ok and trial.latency_ms else math.inf
        for trial in trials
        if trial.workload == workload.key and not trial.is_alone and not trial.is_warm
    ]


def _warm_ms(workload: Workload, trials: Sequence[Trial]) -> float:
    return min(
        (
            trial.latency_ms.value
            for trial in trials
            if trial.workload == workload.key and trial.is_warm and trial.latency_ms
        ),
        default=math.inf,
    )


def _progress(workload: Workload, values: Sequence[float], start_ms: float) -> Progress:
    bests: list[float] = []
    for value in values:
        bests.append(min(value, bests[-1] if bests else start_ms))
    return Progress(workload, bests_ms=tuple(bests), start_ms=start_ms)


def _extended(standings: Sequence[Progress], more: int, holds: float) -> float:
    """Return the sum of the latencies after `more` trials, given where they gain most.

    Chunks grow with the trials and do not depend on `more`, so that more is never worse.
    """
    laws = [_Law(each, holds) for each in standings]
    queue = [(-law.gain_per_trial(law.chunk), i) for i, law in enumerate(laws)]
    heapq.heapify(queue)
    left = more
    while left > 0 and queue:
        _, i = heapq.heappop(queue)
        step = min(left, laws[i].chunk)
        laws[i].advance(step)
        left -= step
        heapq.heappush(queue, (-laws[i].gain_per_trial(laws[i].chunk), i))
    return sum(law.value_ms for law in laws)


class _Law:
    """The power law of one workload: b(n') = b(n) exp(-s integral from n to n' of f(m) dm / m).

    f is 1 up to `holds` times the trials that showed the law, and falls as 1 / m beyond.
    """

    def __init__(self, standing: Progress, holds: float) -> None:
        """Begin where the workload stands."""
        self._exponent = exponent(standing)
        self._counted = max(1, standing.trials)
        self._until = holds * self._counted
        self.value_ms = standing.workload.count * standing.expected_ms

    @property
    def chunk(self) -> int:
        """Trials that are given at once."""
        return max(1, self._counted // 8)

    def gain_per_trial(self, step: int) -> float:
        """Return what each of the next `step` trials saves in ms."""
        return self.value_ms * (1.0 - self._left(step)) / step

    def advance(self, step: int) -> None:
        """Go on by `step` trials."""
        self.value_ms *= self._left(step)
        self._counted += step

    def _left(self, step: int) -> float:
        """Return the part of the latency that is left after `step` trials."""
        now, then, until = self._counted, self._counted + step, self._until
        whole = math.log(min(then, until) / now) if now < until else 0.0
        fading = until * (1.0 / max(now, until) - 1.0 / then) if then > until else 0.0
        return math.exp(-self._exponent * (whole + fading))
