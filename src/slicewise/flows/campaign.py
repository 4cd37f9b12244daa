"""`campaign`: many models under many conditions, kept as they come, resumed where it stopped.

The points are carried by an `Executor`: one worker of this machine by default, since two
measurements at once would disturb each other; Ray carries the same function to other machines.
Only this process writes to the store.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from slicewise.core.errors import SlicewiseError, UsageError
from slicewise.core.executor import Done, Executor
from slicewise.core.measurement import Measurement, Outcome, Protocol
from slicewise.flows.campaign_spec import CampaignPoint, CampaignSpec, points_of
from slicewise.flows.measure import MeasureOptions, Target, jobs_of, run_job, target_here

if TYPE_CHECKING:
    from slicewise.store.records import RecordStore


@dataclass(frozen=True, slots=True)
class CampaignProgress:
    """How far a campaign is. `seconds_left` is None until a point of this run is done."""

    done: int
    points: int
    failed: int
    seconds_left: float | None
    last: str = ""


@dataclass(frozen=True, slots=True)
class CampaignResult:
    """What became of a campaign: points in all, done before this run, and outcomes of this run.

    `failures` are the model, the conditions and the reason of each point that has no latency.
    """

    name: str
    points: int
    done_before: int
    outcomes: Mapping[Outcome, int] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    seconds: float = 0.0


Progress = Callable[[CampaignProgress], None]


def run_campaign(
    spec: CampaignSpec,
    *,
    executor: Executor | None = None,
    store: Path | None = None,
    fresh: bool = False,
    retry: bool = False,
    limit: int | None = None,
    progress: Progress | None = None,
) -> CampaignResult:
    """Measure every point that is not in the store yet, and keep each as soon as it is known.

    A point is done when a record of it is there, whatever its outcome; `retry` measures those
    that failed again, `fresh` all of them. `limit` ends after so many points. A point that fails
    is a record with its reason. Ctrl-C and `kill -9` lose the point at hand at most.
    """
    from slicewise.store.records import RecordStore

    points = points_of(spec)
    if not points:
        raise UsageError(f"campaign {spec.name!r} has no points; name a model")
    _check_names(spec, is_here=executor is None)
    started = time.monotonic()
    with RecordStore(store) as records:
        known = _done(records, spec.name, fresh=fresh, retry=retry)
        waiting = [point for point in points if point.id not in known]
        done_before = len(points) - len(waiting)
        if limit is not None:
            waiting = waiting[:limit]
        outcomes: dict[Outcome, int] = {}
        failures: list[str] = []
        function = partial(
            measure_point, device=spec.device, protocol=spec.protocol, profile=spec.profile
        )
        # closed whatever happens here: its workers end before an error is told
        with closing(_carried(executor, function, waiting)) as carried:
            for count, done in enumerate(carried, 1):
                point = waiting[done.index]
                made = done.value
                if made is None:
                    made = failed(point, done.error, outcome=Outcome.CRASHED)
                records.add(made, campaign=spec.name, point=point.id)
                outcomes[made.outcome] = outcomes.get(made.outcome, 0) + 1
                if made.outcome is not Outcome.OK:
                    failures.append(f"{describe_point(point)}: {made.error}")
                if progress is not None:
                    left = (time.monotonic() - started) / count * (len(waiting) - count)
                    words = describe_point(point)
                    at = (done_before + count, len(points), len(failures))
                    progress(CampaignProgress(*at, left, words))
    return CampaignResult(
        spec.name,
        len(points),
        done_before,
        outcomes,
        tuple(failures),
        time.monotonic() - started,
    )


def _carried(
    executor: Executor | None,
    function: Callable[[CampaignPoint], Measurement],
    points: Sequence[CampaignPoint],
) -> Generator[Done[Measurement], None, None]:
    """Yield the outcome of each point; None is this process, one point after the other."""
    yield from _carrier(executor).as_completed(function, points)


def _done(records: "RecordStore", name: str, *, fresh: bool, retry: bool) -> set[str]:
    """Return the points that need not be measured."""
    if fresh:
        return set()
    return records.points_done(name, outcome=Outcome.OK if retry else None)


def _check_names(spec: CampaignSpec, *, is_here: bool) -> None:
    """Raise for a device, runtime or share that cannot be, before anything is read.

    What other machines have is not known here; the names must be right all the same.
    """
    from slicewise.measure.runtimes._base import available_runtime, load_runtime

    for runtime in spec.runtimes:
        if runtime is not None:
            (available_runtime if is_here else load_runtime)(runtime)
    for share in spec.shares if is_here else ():
        target_here(spec.device, share=share)


def prepare_campaign(
    spec: CampaignSpec, *, progress: Callable[[str, int, int], None] | None = None
) -> tuple[str, ...]:
    """Read and export every model of the campaign, so that measuring finds it ready.

    Nothing is timed, so the machine need not be quiet. Returns the reasons of those that fail.
    """
    unique = {
        (point.model.location, tuple(point.model.dims.items()), point.runtime, point.batch): point
        for point in points_of(spec)
    }
    failures: list[str] = []
    target = target_here(spec.device)
    for number, point in enumerate(sorted(unique.values(), key=_model_first), 1):
        if progress is not None:
            progress(describe_point(point), number, len(unique))
        try:
            for _ in jobs_of(
                point.model.location,
                target,
                [point.batch],
                options=_options(point, Protocol(), False),
            ):
                pass
        except SlicewiseError as err:
            failures.append(f"{describe_point(point)}: {err}")
    return tuple(failures)


def _model_first(point: CampaignPoint) -> tuple[str, str, int]:
    return (point.model.location, point.runtime or "", point.batch)


def measure_point(
    point: CampaignPoint, *, device: str | None, protocol: Protocol, profile: bool
) -> Measurement:
    """Return the measurement of one point; one that cannot be asked is refused, with its reason.

    Picklable, so that any executor carries it.
    """
    target: Target | None = None
    try:
        target = target_here(device, share=point.share)
        (job,) = jobs_of(
            point.model.location,
            target,
            [point.batch],
            options=_options(point, protocol, profile),
        )
        return run_job(job)
    except SlicewiseError as err:
        return failed(point, err, target=target)


def failed(
    point: CampaignPoint,
    error: Exception | None,
    *,
    target: Target | None = None,
    outcome: Outcome = Outcome.REFUSED,
) -> Measurement:
    """Return the record of a point that could not be measured; `target` as far as it is known."""
    return Measurement(
        model=point.model.location,
        location=point.model.location,
        digest="",
        device="" if target is None else target.device.name,
        slice=None if target is None else target.slice,
        runtime=point.runtime or "",
        batch=point.batch,
        precision=point.precision or "",
        threads=point.threads or 0,
        device_digest="" if target is None else target.device.digest,
        outcome=outcome,
        error=str(error) or type(error).__name__,
        started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def describe_point(point: CampaignPoint) -> str:
    """Return a point in a few words, as progress and failures call it."""
    words = [point.model.location, f"batch {point.batch}"]
    words += [text for text in (point.runtime, point.precision) if text]
    if point.threads is not None:
        words.append(f"{point.threads} thread{'s' if point.threads > 1 else ''}")
    if point.share is not None:
        words.append(f"share {point.share}")
    return ", ".join(words)


def _options(point: CampaignPoint, protocol: Protocol, profile: bool) -> MeasureOptions:
    return MeasureOptions(
        runtime=point.runtime,
        precision=point.precision,
        threads=point.threads,
        share=point.share,
        dims=point.model.dims,
        protocol=protocol,
        profile=profile,
    )


def _carrier(executor: Executor | None) -> Executor:
    from slicewise.execute._base import make_executor

    return make_executor("inline", workers=1) if executor is None else executor
