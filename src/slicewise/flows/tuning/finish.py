"""The end of `tune`: the artefact, whether it is worth having, and the result."""

import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from slicewise.core.cost import Estimate
from slicewise.core.errors import UsageError
from slicewise.core.notes import Note, unique_notes
from slicewise.core.tuning import Artifact, Trial, TrialOutcome, Tuned, Workload
from slicewise.core.whole_file import copy_folder
from slicewise.flows.predict import describe
from slicewise.flows.tuning.judge import Judgement, judge
from slicewise.flows.tuning.options import EXHAUSTIVE, TuneOptions
from slicewise.flows.tuning.result import SUMMED, CurvePoint, Outlook, TunedWorkload, TuneResult

if TYPE_CHECKING:
    from slicewise.flows.tune import Found, Run

Progress = Callable[[str], None]
_OUTLOOK_S = 3600.0


def finish(
    run: "Run", options: TuneOptions, found: "Found", progress: Progress | None
) -> TuneResult:
    """Write the artefact, measure it against what was before, and return the result.

    Where the artefact is not faster, the engine's default is written instead, with a Note.
    """
    _say(progress, "writing the artefact")
    made = run.engine.finish(run.task, run.prepared, found.best)
    judgement: Judgement | None = None
    notes: tuple[Note, ...] = ()
    if made.before is not None and made.after is not None:
        judgement = judge(made, progress=progress)
        if told := _only_default(found):
            notes = (Note("default-kept", told),)
            judgement = replace(judgement, after_ms=judgement.before_ms)
        elif judgement.is_slower:
            text = (
                f"no configuration was faster than the default beside it"
                f" ({judgement.after_ms.value:.3g} against {judgement.before_ms.value:.3g} ms);"
                " the default is kept"
            )
            notes = (Note("tune-no-gain", text),)
            made = run.engine.finish(run.task, run.prepared, {})
            judgement = replace(judgement, after_ms=judgement.before_ms)
    return _result(run, options, found, _placed(made, run), judgement, notes)


def _only_default(found: "Found") -> str:
    """Return why the artefact is the default, '' where it is not."""
    best = found.best.values()
    if not all(each.config == each.workload.default_config for each in best):
        return ""
    tried = {(trial.workload, trial.config) for trial in found.run.trials}
    if len(tried) <= len(found.best):
        return "only the default was tried; give more --trials or a larger --budget"
    return f"the default is the best of the {len(tried)} candidates tried"


def _placed(made: Artifact, run: "Run") -> Artifact:
    """Put the artefact where it was asked for, whole; what is there is replaced only then."""
    target = run.artifact
    try:
        if made.path.is_dir():
            copy_folder(made.path, target)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy2(made.path, target / made.path.name)
    except OSError as err:
        raise UsageError(
            f"artefact folder {str(target)!r} cannot be written: {err.strerror or err}; it lies at"
            f" {str(made.path)!r}; give another place"
        ) from err
    there = made.how_to_run.replace(str(made.path), str(target))
    return replace(made, path=target, how_to_run=there)


def _result(
    run: "Run",
    options: TuneOptions,
    found: "Found",
    made: Artifact,
    judgement: Judgement | None,
    notes: tuple[Note, ...],
) -> TuneResult:
    target, job = run.plan.target, run.plan.job
    before, after = _latencies(found.best, judgement)
    every = (
        *notes, *run.notes, *found.run.notes, *made.notes,
        *(() if judgement is None else judgement.notes),
    )  # fmt: skip
    equal = None if judgement is None else judgement.is_equal
    if made.agreement is not None:
        # numerics were changed on purpose, behind a gate of its own
        equal = equal or None
    return TuneResult(
        model=describe(run.plan.graph),
        engine=run.engine.name,
        engine_version=run.prepared.version,
        device=target.device.name,
        share=target.slice,
        mechanism=None if target.share is None else target.share.mechanism.value,
        threads=run.plan.threads,
        batch=job.batch,
        precision=job.precision,
        artifact=made.path,
        how_to_run=made.how_to_run,
        before_ms=before,
        after_ms=after,
        before_options=_options(made, "before"),
        after_options=_options(made, "after"),
        outputs_equal=equal,
        difference=None if judgement is None else judgement.difference,
        workloads=tuple(
            _workload(each, found.best.get(each.key), found.run.trials)
            for each in run.prepared.workloads
        ),
        trials=found.run.trials,
        phases=found.run.phases,
        curve=tuple(
            CurvePoint(point.at_s, point.trials, point.total_ms, point.is_alone)
            for point in found.run.curve
        ),
        outlook=_outlook(run, options, found),
        choice=run.choice,
        journal=found.journal,
        seed=options.seed,
        notes=unique_notes(every),
    )


def _latencies(
    best: Mapping[str, Tuned], judgement: Judgement | None
) -> tuple[Estimate | None, Estimate | None]:
    """Return before and after: measured, else summed over workloads whose default is known."""
    if judgement is not None:
        return judgement.before_ms, judgement.after_ms
    known = [each for each in best.values() if each.default_ms is not None]
    if len(known) < len(best) or not known:
        return None, None
    before = sum(each.workload.count * (each.default_ms or 0.0) for each in known)
    parts = [(each.workload.count, each.latency_ms) for each in known]
    after = sum(count * ms.value for count, ms in parts)
    low, high = (sum(count * getattr(ms, end) for count, ms in parts) for end in ("low", "high"))
    return (
        Estimate(before, low=before, high=before, source=SUMMED),
        Estimate(after, low=low, high=high, source=SUMMED),
    )


def _options(made: Artifact, which: str) -> dict[str, str]:
    """Return how the model is run before or after, in words of the runtime."""
    job = made.before if which == "before" else made.after
    if job is None:
        return {}
    told = {"runtime": job.runtime, "precision": job.precision}
    if job.threads is not None:
        told["threads"] = str(job.threads)
    return told | dict(job.options)


def _workload(workload: Workload, tuned: Tuned | None, trials: tuple[Trial, ...]) -> TunedWorkload:
    own = [trial for trial in trials if trial.workload == workload.key and not trial.is_warm]
    searched = [trial for trial in own if not trial.is_alone]
    outcomes: Counter[TrialOutcome] = Counter(trial.outcome for trial in own)
    del outcomes[TrialOutcome.OK]
    return TunedWorkload(
        tuned=tuned,
        name=workload.name,
        key=workload.key,
        op_types=workload.op_types,
        count=workload.count,
        weight_ms=workload.weight_ms,
        trials=len(searched),
        failures=dict(outcomes),
    )


def _outlook(run: "Run", options: TuneOptions, found: "Found") -> Outlook | None:
    """Return what a further hour would bring; None where all there is was tried, or nothing."""
    from slicewise.tune.run import outlook

    searched = [trial for trial in found.run.trials if not (trial.is_warm or trial.is_alone)]
    phases = found.run.phases
    if run.engine.name in EXHAUSTIVE or not searched or phases.wall_s <= 0:
        return None
    made = outlook(
        run.prepared.workloads,
        found.run.trials,
        seconds=_OUTLOOK_S,
        rate_per_s=len(searched) / max(phases.wall_s, searched[-1].at_s),
        seed=options.seed,
    )
    total = Estimate(made.value, low=made.low, high=made.high, source="extrapolated")
    return Outlook(made.seconds, made.trials, total)


def _say(progress: Progress | None, text: str) -> None:
    if progress is not None:
        progress(text)
