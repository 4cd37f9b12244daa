"""From a model and what was asked to the task that an engine takes up."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from slicewise.core.cost import Prediction
from slicewise.core.device import Device
from slicewise.core.errors import DeviceError, UsageError
from slicewise.core.graph import Graph
from slicewise.core.measurement import Job, Subject
from slicewise.core.notes import Note
from slicewise.core.tuning import AccuracyData, TuneTask
from slicewise.flows.load import load
from slicewise.flows.measure import MeasureOptions, Target, default_runtime, jobs_of, run_job
from slicewise.flows.tuning.options import TuneOptions

# The runtime whose form of the model an engine takes; any other takes the model's own.
_FORM_OF: Mapping[str, str] = {"serving": "onnxruntime", "tvm": "onnxruntime"}
# What is tuned in these is asked as options of the engine, not of the runtime.
_SAME_RUN = 16  # hexadecimal digits of a run's name


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is about: the graph, the part of the device, the job that a plain measurement
    of the model would be, and the prediction there (None where none could be made)."""

    graph: Graph
    target: Target
    job: Job
    prediction: Prediction | None
    notes: tuple[Note, ...] = ()

    @property
    def threads(self) -> int:
        """Threads that fit the share: those of the job, else one for each of its cores."""
        if self.job.threads is not None:
            return self.job.threads
        return len(cores_of(self.target))


def cores_of(target: Target) -> tuple[int, ...]:
    """Return the logical cores of a share of the CPU, all that may be used for anything else."""
    from slicewise.measure.quiet import bound_cores

    share = target.share
    return share.cores if share is not None and share.cores else bound_cores()


def make_plan(
    graph: Graph,
    target: Target,
    options: TuneOptions,
    *,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Return the plan of tuning `graph` on `target`.

    Errors are those of `measure` for the same model, device and precision.
    """
    runtime = _FORM_OF.get(options.engine, default_runtime(graph))
    asked = MeasureOptions(runtime=runtime, precision=options.precision, threads=options.threads)
    (job,) = jobs_of(graph, target, [graph.batch_size], options=asked, progress=progress)
    # the share of the run, and not the cores that a few threads would be pinned to
    job = replace(job, share=target.share, slice=target.slice)
    prediction, notes = _predicted(graph, target, job)
    return Plan(graph, target, job, prediction, notes)


def _predicted(
    graph: Graph, target: Target, job: Job
) -> tuple[Prediction | None, tuple[Note, ...]]:
    from slicewise.flows.predict import PredictOptions, predict_graph

    options = PredictOptions(
        precision=job.precision,
        runtime=job.runtime if job.runtime == "onnxruntime" else None,
    )
    try:
        (made,) = predict_graph(graph, [part_of(target)], options)
    except DeviceError as err:
        # weights of operators are a matter of order only: tuning goes on without them
        text = f"operators are weighted alike, since no latency was predicted: {err}"
        return None, (Note("tune-unweighted", text),)
    return made, ()


def part_of(target: Target) -> Device:
    """Return the part of the device that a target is, as a device."""
    from slicewise.core.share import Mechanism

    if target.slice is None:
        return target.device
    if target.share is not None and target.share.mechanism is Mechanism.MIG:
        return target.device.slice(target.slice)
    return target.device.share(float(target.slice.rstrip("%")))


def run_name(plan: Plan, options: TuneOptions) -> str:
    """Return what tells one run from another: all but its budget and its workers."""
    job, target = plan.job, plan.target
    told = (
        options.engine, plan.graph.digest, job.batch, job.precision, job.threads,
        target.place, target.device.name, target.device.digest,
        None if target.share is None else target.share.text,
        sorted(options.engine_options.items()), options.seed,
        str(options.accuracy_data or ""), options.least_agreement,
    )  # fmt: skip
    return hashlib.sha256(repr(told).encode()).hexdigest()[:_SAME_RUN]


def make_task(plan: Plan, options: TuneOptions, *, folder: Path) -> TuneTask:
    """Return the task of a plan, whose files go to `folder`."""
    from slicewise.flows.tuning.outputs import outputs_of

    made = plan.prediction
    node_ms = {} if made is None else {node.name: node.latency_ms for node in made.nodes}
    return TuneTask(
        subject=plan.job.subject,
        graph=plan.graph,
        place=plan.target.place,
        device=part_of(plan.target),
        threads=plan.threads,
        folder=folder,
        measure=run_job,
        outputs=outputs_of,
        share=plan.target.share,
        slice=plan.target.slice,
        node_ms=node_ms,
        accuracy=accuracy_data(plan.graph, options, folder=folder),
        options=dict(options.engine_options),
        seed=options.seed,
        precision=plan.job.precision,
        subject_at=partial(_subject_at, plan, options),
    )


def _subject_at(plan: Plan, options: TuneOptions, batch: int) -> Subject:
    """Return the model at another batch, as a process can open it."""
    asked = MeasureOptions(runtime=plan.job.runtime, precision=options.precision)
    (job,) = jobs_of(load(plan.graph, batch=batch), plan.target, [batch], options=asked)
    return job.subject


def accuracy_data(graph: Graph, options: TuneOptions, *, folder: Path) -> AccuracyData | None:
    """Return the real inputs that were given, one `.npy` file for each input of the model.

    `UsageError` where they cannot be read, one is missing, or they are not equally many.
    """
    given = options.accuracy_data
    if given is None:
        return None
    names = list(graph.inputs)
    files = _files(given, names, folder=folder)
    missing = [name for name in names if name not in files]
    if missing:
        raise UsageError(
            f"accuracy data {str(given)!r} has no array for input {', '.join(missing)}; it has"
            f" {', '.join(files) or 'none'}; give NAME.npy (or a key NAME of an .npz) for each"
            f" input: {', '.join(names)}"
        )
    counts = {name: _samples(files[name], name) for name in names}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise UsageError(
            f"accuracy data {str(given)!r} has unlike numbers of samples ({told}); the first axis"
            " of every array must be as long"
        )
    return AccuracyData(
        {name: files[name] for name in names},
        least_agreement=options.least_agreement,
        source=str(given),
    )


def _files(given: Path, names: list[str], *, folder: Path) -> dict[str, Path]:
    from slicewise.tune.arrays import unpacked

    if given.is_dir():
        return {path.stem: path for path in sorted(given.glob("*.npy"))}
    if not given.exists():
        raise UsageError(
            f"accuracy data {str(given)!r} is not there; give a folder of NAME.npy, or an .npz"
        )
    if given.suffix == ".npy" and len(names) == 1:
        return {names[0]: given}
    if given.suffix == ".npz":
        return unpacked(given, folder / "accuracy")
    raise UsageError(
        f"accuracy data {str(given)!r} is no folder of .npy files and no .npz file"
        + ("" if len(names) == 1 else f"; the model has {len(names)} inputs")
    )


def _samples(path: Path, name: str) -> int:
    from slicewise.tune.arrays import first_axis

    count = first_axis(path)
    if count < 2:
        raise UsageError(
            f"accuracy data for input {name!r} ({str(path)!r}) has {count} sample; at least 2 are"
            " needed, tens are better; stack them along the first axis"
        )
    return count
