"""`tune`: what makes a model fastest on the share of a device that it will be served on."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, SupportsIndex

from slicewise.core.errors import TuningError, UsageError
from slicewise.core.graph import Graph
from slicewise.core.notes import Note, unique_notes
from slicewise.core.tuning import Budget, Prepared, Trial, Tuned, TuneTask, TuningStopped, Workload
from slicewise.flows.load import ModelLike, load
from slicewise.flows.measure import Target, parts_of, target_here
from slicewise.flows.tuning.options import (
    AUTO,
    DEFAULT_SECONDS,
    EXHAUSTIVE,
    INLINE,
    TuneOptions,
    is_tuned_folder,
)
from slicewise.flows.tuning.result import ShareChoice, TuneResult
from slicewise.flows.tuning.task import Plan, make_plan, make_task, run_name

if TYPE_CHECKING:
    from slicewise.store.journal import Journal
    from slicewise.store.tuned import TunedOn
    from slicewise.tune.backends._base import Engine
    from slicewise.tune.run import RunResult, RunSettings, Seats

Progress = Callable[[str], None]
# Configurations of kin that a workload begins with.
_HINTS = 4
# Trials of a workload after which the store's best is taken: TVM's cost model is trained by then.
_SETTLED = 32


def tune(
    model: ModelLike,
    *,
    device: str | None = None,
    batch: SupportsIndex | None = None,
    options: TuneOptions | None = None,
    progress: Progress | None = None,
) -> TuneResult:
    """Return the model tuned for a share of this machine's CPU or GPU, with an artefact that runs.

    Every trial is kept as soon as it is known: Ctrl-C loses none, and the same call with
    `is_resumed` goes on. What the store knows of the same operators on the same share is not tuned
    again. The artefact goes to `options.artifact`, by default `MODEL.tuned` in the working folder.
    `UsageError`, `DeviceError`, `ModelError` for what cannot be asked, `TuningError` where the
    engine cannot be trusted here, nothing ran, or no worker is left; `TuningStopped` at Ctrl-C.

    The engine 'simulated' rehearses a run: latencies are made up, nothing is compiled or timed.

    >>> rehearsed = TuneOptions(engine="simulated", trials=400, executor="inline", artifact=folder)
    >>> made = tune(model, device="cpu", options=rehearsed)
    >>> sum(each.trials for each in made.workloads), made.after_ms.value < made.before_ms.value
    (400, True)
    """
    from slicewise.flows.tuning.finish import finish

    asked = options or TuneOptions()
    run = open_run(model, device, batch, asked, progress)
    with _journal(run, asked) as journal:
        try:
            found = _searched(run, asked, journal, progress)
        except KeyboardInterrupt:
            # what is on the disk counts, whatever this process was about to do
            with journal.path.open("rb") as lines:
                count = sum(1 for _ in lines) - 1
            raise TuningStopped(count, journal.path) from None
    return finish(run, asked, found, progress)


@dataclass(frozen=True, slots=True)
class Run:
    """A run that is ready to begin."""

    engine: "Engine"
    plan: Plan
    task: TuneTask
    prepared: Prepared
    choice: ShareChoice | None
    folder: Path
    artifact: Path
    notes: tuple[Note, ...]

    @property
    def place(self) -> "TunedOn":
        """What the store's rows of this engine, device and share are found by."""
        from slicewise.store.tuned import TunedOn

        target = self.plan.target
        return TunedOn(
            self.engine.name,
            self.prepared.version,
            target.device.name,
            target.device.digest,
            target.slice,
        )


@dataclass(frozen=True, slots=True)
class Found:
    """What a run found: the run itself, the best of each workload, and where its trials are."""

    run: "RunResult"
    best: Mapping[str, Tuned]
    journal: Path


def open_run(
    model: ModelLike,
    device: str | None,
    batch: SupportsIndex | None,
    options: TuneOptions,
    progress: Progress | None,
) -> Run:
    """Read the model, choose the share, and let the engine take the task up."""
    from slicewise.store.home import home
    from slicewise.tune.backends._base import load_engine

    engine = load_engine(options.engine)
    graph, whole = read_model(model, device, batch, options, engine=engine, progress=progress)
    artifact = artifact_folder(graph, options)
    notes = engine.check()
    choice = None
    target = whole
    if options.share == AUTO:
        from slicewise.flows.tuning.choice import choose_share, share_text

        choice = choose_share(graph, whole, options, progress=progress)
        if choice.chosen_percent < 100:
            target = target_here(whole.place, share=share_text(choice.chosen_percent))
    elif options.share is not None:
        target = target_here(whole.place, share=options.share)
    plan = make_plan(graph, target, options, progress=progress)
    folder = home() / "tune" / run_name(plan, options)
    folder.mkdir(parents=True, exist_ok=True)
    task = make_task(plan, options, folder=folder)
    say(progress, f"taking {graph.name} apart with {engine.name}")
    prepared = engine.prepare(task)
    if options.executor == INLINE and target.share is not None and not engine.is_apart:
        text = f"workers are part of this process, which is not bound to {target.share.text}"
        notes = (*notes, Note("share-unbound", text))
    every = (*notes, *plan.notes, *plan.job.subject.notes, *prepared.notes)
    return Run(engine, plan, task, prepared, choice, folder, artifact, unique_notes(every))


def read_model(
    model: ModelLike,
    device: str | None,
    batch: SupportsIndex | None,
    options: TuneOptions,
    *,
    engine: "Engine",
    progress: Progress | None,
) -> tuple[Graph, Target]:
    """Return the graph and the whole device; `UsageError` where the engine has no such device."""
    whole = target_here(device)
    kind = whole.place.partition(":")[0]
    if kind not in engine.places:
        raise UsageError(
            f"engine {engine.name} does not tune for a {kind}, given {whole.place}; it tunes for"
            f" {' and '.join(sorted(engine.places))}; choose another engine or device"
        )
    say(progress, f"reading {model if isinstance(model, str) else type(model).__name__}")
    graph = load(
        model,
        batch=batch,
        dims=options.dims,
        inputs=options.inputs,
        batch_axes=options.batch_axes,
    )
    return graph, whole


def say(progress: Progress | None, text: str) -> None:
    """Tell progress, where anybody listens."""
    if progress is not None:
        progress(text)


@contextmanager
def _journal(run: Run, options: TuneOptions) -> Iterator["Journal[Trial]"]:
    """Yield the journal of the run, with the trials that are in it already where it goes on."""
    from slicewise.store.trials import open_trials

    path = run.folder / "trials.jsonl"
    journal = open_trials(path, digest=_digest(run, options), fresh=not options.is_resumed)
    with closing(journal) as made:
        yield made


def _digest(run: Run, options: TuneOptions) -> str:
    """Return what tells the trials of one run from those of another: not its budget."""
    from slicewise.store.trials import digest_of_run

    target = run.plan.target
    return digest_of_run(
        engine=run.engine.name,
        version=run.prepared.version,
        keys=[workload.key for workload in run.prepared.workloads],
        share=None if target.share is None else target.share.text,
        device=f"{target.device.name} {target.device.digest}",
        seed=options.seed,
        options=options.engine_options,
    )


def _searched(
    run: Run, options: TuneOptions, journal: "Journal[Trial]", progress: Progress | None
) -> Found:
    """Search, measure, confirm; every trial goes to the journal first, the best to the store."""
    from slicewise.execute.crews._base import make_crew
    from slicewise.store.home import home
    from slicewise.store.turns import turn
    from slicewise.tune.run import run_tuning

    target = run.plan.target
    seats = _seats(run, options)
    stored, hints = _remembered(run, options)
    # what this run has begun with goes on, though the store knows its best by now
    begun = {trial.workload for trial in journal.entries}
    stored = {key: kept for key, kept in stored.items() if key not in begun}
    # and what a short run left is where a longer one begins, not where it ends
    open_keys = {each.key for each in run.prepared.workloads if not _is_settled(each, stored)}
    hints |= {
        key: (kept.config, *hints.get(key, ())) for key, kept in stored.items() if key in open_keys
    }
    stored = {key: kept for key, kept in stored.items() if key not in open_keys}
    known = (*journal.entries, *map(_as_trial, stored.values()))
    # An engine that measures apart takes its turn for each measurement by itself.
    parts = () if run.engine.is_apart else parts_of(target.place, target.share)
    with (
        turn(parts, folder=home() / "turns", waiting=partial(_waiting, progress)),
        closing(make_crew(options.executor)) as crew,
    ):
        found = run_tuning(
            crew,
            run.prepared.workloads,
            seats,
            settings=_settings(run, options),
            keep=journal.append,
            known=known,
            hints=hints,
            progress=progress,
        )
    best = {key: _with_default(each, stored.get(key)) for key, each in found.best.items()}
    if not best:
        raise TuningError(_nothing_ran(run, found))
    if options.use_store:
        _remember(run, best)
    return Found(found, best, journal.path)


def _seats(run: Run, options: TuneOptions) -> "Seats":
    """Return the makers of clients and servers, each with its cores or share."""
    from slicewise.core.seating import seat_tuners
    from slicewise.flows.tuning.workers import client_maker, server_maker
    from slicewise.measure.quiet import bound_cores
    from slicewise.tune.run import Seats

    target, problem = run.plan.target, run.prepared.problem
    free = bound_cores()
    count = len(free) if options.clients is None else options.clients
    if run.engine.is_apart and options.clients is None:
        count = 1  # it builds next to nothing
    made = seat_tuners(
        free, share=target.share, clients=count, servers=options.servers, place=target.place
    )
    name = run.engine.name
    # this process is not bound for the sake of workers that are part of it
    is_bound = options.executor != INLINE
    return Seats(
        clients=tuple(
            client_maker(name, problem, seat.share if is_bound else None) for seat in made.clients
        ),
        servers=tuple(
            server_maker(name, problem, target.place, seat.share if is_bound else None)
            for seat in made.servers
        ),
        holds=dict(enumerate(made.holds)),
        server_resources={"slice": 1.0} if options.executor == "ray" else None,
    )


def _settings(run: Run, options: TuneOptions) -> "RunSettings":
    """Return how the run goes; an engine that searches has an end even if nobody gave one."""
    from slicewise.tune.run import RunSettings

    seconds = options.seconds
    if seconds is None and options.trials is None and run.engine.name not in EXHAUSTIVE:
        seconds = DEFAULT_SECONDS
    return RunSettings(
        budget=Budget(options.trials, seconds),
        piece_size=run.engine.piece_size,
        seed=options.seed,
    )


def _remembered(
    run: Run, options: TuneOptions
) -> tuple[dict[str, Tuned], dict[str, tuple[str, ...]]]:
    """Return what the store knows of these workloads, and of their kin for the others."""
    if options.is_fresh or not options.use_store:
        return {}, {}
    from slicewise.store.tuned import TunedStore

    workloads = run.prepared.workloads
    with TunedStore() as store:
        found = store.find(run.place, [each.key for each in workloads])
        near = {
            each.key: store.near(run.place, each.kin, limit=_HINTS)
            for each in workloads
            if each.key not in found
        }
    return found, {key: configs for key, configs in near.items() if configs}


def _is_settled(workload: Workload, stored: Mapping[str, Tuned]) -> bool:
    """Return whether the store's best comes from as many trials as make another search vain: all
    the candidates that there are, or `_SETTLED`."""
    kept = stored.get(workload.key)
    enough = _SETTLED if workload.candidates is None else min(_SETTLED, workload.candidates)
    return kept is not None and kept.trials >= enough


def _remember(run: Run, best: Mapping[str, Tuned]) -> None:
    from slicewise.store.tuned import TunedStore

    with TunedStore() as store:
        store.put(run.place, [each for each in best.values() if not each.is_from_store])


def _as_trial(kept: Tuned) -> Trial:
    return Trial(kept.workload.key, kept.config, latency_ms=kept.latency_ms, is_warm=True)


def _with_default(found: Tuned, kept: Tuned | None) -> Tuned:
    """Return what was found with the default's latency that the store knows."""
    if found.default_ms is not None or kept is None:
        return found
    return replace(found, default_ms=kept.default_ms)


def _nothing_ran(run: Run, found: "RunResult") -> str:
    """Return why there is nothing to build an artefact from."""
    errors = Counter(trial.error or trial.outcome.value for trial in found.trials)
    told = "; ".join(f"{text} ({count} times)" for text, count in errors.most_common(2))
    advice = "give another engine" if told else "give a larger budget"
    return (
        f"no configuration of {run.plan.graph.name} ran with {run.engine.name}"
        f" ({len(found.trials)} tried): {told or 'none was proposed within the budget'}; {advice}"
    )


def _waiting(progress: Progress | None, part: str) -> None:
    say(progress, f"waiting for {part}, which another measurement has")


def artifact_folder(graph: Graph, options: TuneOptions) -> Path:
    """Return the folder that the artefact goes to, absolute; it is replaced as a whole.

    `UsageError` where there is something that tuning did not write.
    """
    name = Path(graph.name.replace("/", "-").replace(":", "-")).stem or "model"
    target = Path(options.artifact or f"{name}.tuned").absolute()
    if target.exists() and not target.is_dir():
        raise UsageError(f"artefact {str(target)!r} is a file; give a folder")
    if target.is_dir() and any(target.iterdir()) and not is_tuned_folder(target):
        raise UsageError(
            f"artefact folder {str(target)!r} holds files that are no tuned model, and would be"
            " replaced; give a new or empty folder"
        )
    return target
