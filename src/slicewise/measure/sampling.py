"""Taking samples of something that runs: warm-up, then samples until the protocol is content.

Only the clock that is given is read; nothing is known here of models, meters or processes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slicewise.core.measurement import Protocol
from slicewise.core.notes import Note
from slicewise.measure.statistics import find_drift, is_narrow_enough, is_steady, summarise

Clock = Callable[[], float]  # seconds; perf_counter

# Reading a clock twice costs 0.1 to 0.2 us: a sample of 1 ms keeps that under 0.1 % of it.
SAMPLE_S = 1e-3
_GROUP_LIMIT = 1 << 14  # runs of a sample; something that takes 60 ns still fills 1 ms
_STUCK_LIMIT = 20  # attempts in a row in which the clock did not advance
_BUDGET_MIN_SAMPLES = 3


@dataclass(slots=True)
class Samples:
    """Samples and how they came about. `samples_ms` are means of `runs_per_sample` runs,
    `seconds` the sum over them; `runs` counts those too that could not be timed."""

    samples_ms: list[float] = field(default_factory=list)
    runs_per_sample: int = 1
    runs: int = 0
    seconds: float = 0.0
    notes: list[Note] = field(default_factory=list)


class Stopwatch:
    """Times groups of runs; counts how often the clock did not advance over one."""

    def __init__(self, run: Callable[[], None], clock: Clock) -> None:
        """Run nothing yet."""
        self._run, self._clock = run, clock
        self.backward = 0
        self._in_a_row = 0

    @property
    def is_stuck(self) -> bool:
        """True once the clock has not advanced many times in a row."""
        return self._in_a_row >= _STUCK_LIMIT

    def time(self, runs: int) -> float | None:
        """Return the seconds of `runs` runs; None where the clock stood still or went back."""
        run = self._run
        begin = self._clock()
        for _ in range(runs):
            run()
        seconds = self._clock() - begin
        if not 0 < seconds < math.inf:
            self.backward += 1
            self._in_a_row += 1
            return None
        self._in_a_row = 0
        return seconds


def warm_up(watch: Stopwatch, protocol: Protocol, *, has_time: Callable[[], bool]) -> Samples:
    """Run until the latest runs are no faster than those before; return what was seen.

    Ends no later than the protocol's `budget_s` of running (after `warmup_runs` runs at least),
    with a Note if times still fell; the first run, in which a runtime may compile, does not count
    in this. `runs_per_sample` is what a sample needs to last 1 ms.
    """
    made = Samples()
    group, next_check = 1, 3
    longest = max(protocol.budget_s, protocol.warmup_s)
    while not watch.is_stuck and has_time():
        seconds = watch.time(group)
        made.runs += group
        if seconds is None:
            continue
        made.seconds += seconds
        made.samples_ms.append(1e3 * seconds / group)
        if seconds < SAMPLE_S and group < _GROUP_LIMIT:
            group *= 2
        if made.runs < protocol.warmup_runs or made.seconds < protocol.warmup_s:
            continue
        count = len(made.samples_ms)
        if count >= next_check:
            if is_steady(made.samples_ms):
                break
            next_check = count + max(1, count // 8)
        if made.seconds - made.samples_ms[0] / 1e3 >= longest:
            text = f"runs still became faster after {made.seconds:.1f} s of warm-up"
            made.notes.append(Note("warm-up-unsteady", text))
            break
    made.runs_per_sample = _runs_per_sample(made.samples_ms)
    return made


def _runs_per_sample(times_ms: Sequence[float]) -> int:
    if not times_ms:
        return 1
    latest = sorted(times_ms[-(len(times_ms) // 3 or 1) :])
    typical_s = latest[len(latest) // 2] / 1e3
    return min(_GROUP_LIMIT, max(1, math.ceil(SAMPLE_S / typical_s)))


def take_samples(
    watch: Stopwatch, protocol: Protocol, *, runs_per_sample: int, has_time: Callable[[], bool]
) -> Samples:
    """Return the samples that `protocol` asks for; fewer, with Notes, where time ran out."""
    made = Samples(runs_per_sample=runs_per_sample)
    next_check = max(1, protocol.min_samples)
    is_narrow = False
    while len(made.samples_ms) < max(1, protocol.max_samples) and not watch.is_stuck:
        seconds = watch.time(runs_per_sample)
        made.runs += runs_per_sample
        if seconds is not None:
            made.seconds += seconds
            made.samples_ms.append(1e3 * seconds / runs_per_sample)
        count = len(made.samples_ms)
        if count >= next_check:
            # Seldom, so that the arithmetic does not cool the caches before each sample.
            next_check = count + max(1, count // 8)
            estimate = summarise(made.samples_ms)
            is_narrow = is_narrow_enough(estimate, relative_width=protocol.relative_width)
            if is_narrow:
                break
        is_spent = made.seconds >= protocol.budget_s and count >= _BUDGET_MIN_SAMPLES
        if is_spent or not has_time():
            break
    made.notes.extend(_notes_about(made, protocol, dropped=watch.backward))
    return made


def _notes_about(made: Samples, protocol: Protocol, *, dropped: int) -> list[Note]:
    notes = []
    count = len(made.samples_ms)
    if dropped:
        text = f"the clock went back or stood still {dropped} times: those runs do not count"
        notes.append(Note("clock-backwards", text))
    if not count:
        return notes
    if count < min(protocol.min_samples, protocol.max_samples):
        text = f"{count} samples were taken where {protocol.min_samples} were asked for"
        notes.append(Note("samples-few", text))
    estimate = summarise(made.samples_ms)
    if not is_narrow_enough(estimate, relative_width=protocol.relative_width):
        width = (estimate.high - estimate.low) / estimate.value
        text = (
            f"the interval is {100 * width:.3g} % wide after {count} samples, "
            f"{100 * protocol.relative_width:.3g} % was asked for"
        )
        notes.append(Note("interval-wide", text))
    if drift := find_drift(made.samples_ms):
        word = "slower" if drift > 0 else "faster"
        text = f"the second half of the samples is {100 * abs(drift):.3g} % {word} than the first"
        notes.append(Note("latency-drifted", text))
    return notes
