"""`compare`: two cases side by side, as a ratio with its interval, or "no difference shown"."""

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from slicewise.core.comparison import Comparison
from slicewise.core.errors import MeasureError, UsageError
from slicewise.core.measurement import Job, Measurement
from slicewise.flows.load import ModelLike
from slicewise.flows.measure import (
    MeasureOptions,
    is_usable,
    jobs_of,
    run_job,
    target_here,
)


@dataclass(frozen=True, slots=True)
class Case:
    """One side of a comparison: a model under conditions, or a record by its number."""

    model: ModelLike | None = None
    record: int | None = None
    device: str | None = None
    batch: int | None = None
    options: MeasureOptions = field(default_factory=MeasureOptions)


def compare(
    a: Case,
    b: Case,
    *,
    rounds: int = 3,
    keep: bool = True,
    store: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Return how many times as long `b` takes as `a`, with a 90 % interval.

    Models are measured now, in turn, `rounds` times each, so that a machine that drifts does so
    for both; records are taken as they are. `MeasureError` where a side has no latency.
    """
    from slicewise.measure.compare import compare as compare_measurements

    if rounds < 1:
        raise UsageError(f"rounds {rounds} is not a positive number; give 3")
    sides = [_kept(case, store) for case in (a, b)]
    taken = _in_turn((a, b), sides, rounds=rounds, keep=keep, store=store, progress=progress)
    first, second = (
        _together(runs) if known is None else known
        for known, runs in zip(sides, taken, strict=True)
    )
    return compare_measurements(first, second, between_runs=_between_runs(taken))


def _in_turn(
    cases: Sequence[Case],
    sides: Sequence[Measurement | None],
    *,
    rounds: int,
    keep: bool,
    store: Path | None,
    progress: Callable[[str], None] | None,
) -> list[list[Measurement]]:
    """Return the measurements of the sides that are no records, taken in turn."""
    from slicewise.store.records import RecordStore

    taken: list[list[Measurement]] = [[], []]
    jobs = {side: _job(cases[side]) for side, known in enumerate(sides) if known is None}
    order = list(jobs)
    with ExitStack() as opened:
        # before anything runs, so that a store that cannot be written costs no measurement
        records = opened.enter_context(RecordStore(store)) if keep and jobs else None
        for turn in range(rounds):
            for side in order if turn % 2 == 0 else reversed(order):
                if progress is not None:
                    progress(f"round {turn + 1} of {rounds}, {'AB'[side]}")
                made = run_job(jobs[side])
                if records is not None:
                    records.add(made)
                taken[side].append(_usable(made))
    return taken


# Student's t, two-sided 90 %, by the number of rounds; that of 10 rounds for more.
_STUDENT = {2: 6.31, 3: 2.92, 4: 2.35, 5: 2.13, 6: 2.02, 7: 1.94, 8: 1.89, 9: 1.86, 10: 1.83}
_LEAST_BETWEEN = 0.005  # three rounds that agree by chance do not make two processes equal


def _between_runs(taken: Sequence[Sequence[Measurement]]) -> float:
    """Return by how much the ratio of a round differs from that of another, relatively.

    Half the 90 % interval of the mean of the rounds' log ratios; where a side was not measured
    anew, what two processes usually differ by.
    """
    from slicewise.measure.compare import BETWEEN_RUNS

    rounds = [
        math.log(b.latency_ms.value / a.latency_ms.value)
        for a, b in zip(*taken, strict=False)
        if a.latency_ms is not None and b.latency_ms is not None
    ]
    if len(rounds) < 2:
        return BETWEEN_RUNS
    student = _STUDENT.get(len(rounds), _STUDENT[10])
    half = student * statistics.stdev(rounds) / math.sqrt(len(rounds))
    return max(math.expm1(half), _LEAST_BETWEEN)


def _kept(case: Case, store: Path | None) -> Measurement | None:
    """Return the record that a side names, None for a model."""
    if case.record is None:
        return None
    from slicewise.flows.records import show_record

    measurement = show_record(store, case.record).measurement
    if not is_usable(measurement):
        raise MeasureError(
            f"record {case.record} has no latency: {measurement.outcome}: {measurement.error}"
        )
    return measurement


def _job(case: Case) -> Job:
    """Return what it is to measure a side."""
    assert case.model is not None
    target = target_here(case.device, share=case.options.share)
    (job,) = jobs_of(case.model, target, [case.batch], options=case.options)
    return job


def _usable(made: Measurement) -> Measurement:
    """Return the measurement; `MeasureError` where it has no latency."""
    if not is_usable(made):
        raise MeasureError(f"{made.model} could not be measured: {made.outcome}: {made.error}")
    return made


def _together(runs: list[Measurement]) -> Measurement:
    """Return the first of several runs of a case with the samples of all of them."""
    from slicewise.measure.statistics import summarise

    samples = tuple(sample for run in runs for sample in run.samples_ms)
    return replace(runs[0], samples_ms=samples, latency_ms=summarise(samples))
