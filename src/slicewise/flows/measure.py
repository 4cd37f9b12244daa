"""`measure`: a model x batches, run on this machine, each in a process of its own, and kept."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, SupportsIndex

from slicewise.core.device import Device
from slicewise.core.errors import DeviceError, UsageError
from slicewise.core.graph import Graph
from slicewise.core.measurement import Job, Measurement, Outcome, Protocol, Subject
from slicewise.core.notes import Note
from slicewise.core.precision import Precision
from slicewise.core.share import Mechanism, Share
from slicewise.flows.load import ModelLike, load, positive

if TYPE_CHECKING:
    from slicewise.measure.runtimes._base import Runtime


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """How models are run. None: the model's own runtime and precision, a thread for each core.

    `share` is '50' (percent), 'cores:0-1', 'mps:25', 'green:25' or 'mig:MIG-UUID'.
    `runtime_options` are settings of the runtime. `profile` also times single operators.

    >>> MeasureOptions(runtime="onnxruntime", threads=1).protocol.relative_width
    0.02
    """

    runtime: str | None = None
    precision: str | None = None
    threads: int | None = None
    share: str | None = None
    runtime_options: Mapping[str, str] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, Sequence[int]] = field(default_factory=dict)
    batch_axes: Mapping[str, int | None] = field(default_factory=dict)
    protocol: Protocol = field(default_factory=Protocol)
    profile: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """Where a measurement runs: 'cpu' or 'gpu:N', the device that this is, and the part of it."""

    place: str
    device: Device
    share: Share | None = None
    slice: str | None = None


def measure(
    model: ModelLike,
    *,
    device: str | None = None,
    batches: Sequence[SupportsIndex | None] = (None,),
    options: MeasureOptions | None = None,
    keep: bool = True,
    store: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[Measurement, ...]:
    """Return one measurement of the model for each batch, run on this machine.

    `device` is 'cpu' or 'gpu:N'; None is the first GPU, or the CPU. Each runs in a process of its
    own: a crash or lack of memory is a measurement with that outcome. All are kept in the record
    store (`store`, default `$SLICEWISE_HOME/records.sqlite`) unless `keep` is false.
    `UsageError`, `DeviceError`, `ModelError` for what cannot be asked.

    >>> from slicewise.core.measurement import Protocol
    >>> quick = MeasureOptions(threads=1, protocol=Protocol(min_samples=3, budget_s=0.1))
    >>> (made,) = measure(model, device="cpu", batches=[1], options=quick, keep=False)
    >>> made.runtime, made.latency_ms.low <= made.latency_ms.value <= made.latency_ms.high
    ('onnxruntime', True)
    """
    from slicewise.store.records import RecordStore

    asked = options or MeasureOptions()
    if not batches:
        raise UsageError("measure needs at least one batch; give batches=[1]")
    target = target_here(device, share=asked.share)
    # all jobs, then the store, then the first run: no measurement is lost to what can be told now
    jobs = list(jobs_of(model, target, batches, options=asked, progress=progress))
    made: list[Measurement] = []
    with ExitStack() as opened:
        records = opened.enter_context(RecordStore(store)) if keep else None
        for job in jobs:
            if progress is not None:
                progress(f"{job.subject.name}, batch {job.batch}")
            measurement = run_job(job, progress=progress)
            if records is not None:
                records.add(measurement)
            made.append(measurement)
    return tuple(made)


def target_here(device: str | None, *, share: str | None = None) -> Target:
    """Return this machine's CPU or GPU and the part of it that a share names.

    `DeviceError` for a device that is not here: measuring runs where one is.
    """
    from slicewise.hardware.probe import probe_cpu, probe_gpu, probe_gpus
    from slicewise.measure.quiet import bound_cores
    from slicewise.measure.shares._base import resolve_share

    text = "" if device is None else device.strip().lower()
    if device is not None and not text:
        raise UsageError(
            "device is empty (an unset shell variable?); give cpu or gpu:0, or leave it out"
        )
    if device is None:
        text = "gpu:0" if probe_gpus() else "cpu"
    if text == "cpu":
        found = probe_cpu()
    elif re.fullmatch(r"gpu:[0-9]{1,4}", text):
        found = probe_gpu(int(text[4:]))
    else:
        raise DeviceError(
            f"device {device!r} cannot be measured: a measurement runs on this machine; give cpu"
            " or gpu:0, with --share 50 for a part of it; predict answers for other devices"
        )
    if share is None:
        return Target(text, found)
    its, part = resolve_share(share, device=text, cores=bound_cores())
    return Target(text, found, its, part)


def jobs_of(
    model: ModelLike,
    target: Target,
    batches: Sequence[SupportsIndex | None],
    *,
    options: MeasureOptions,
    progress: Callable[[str], None] | None = None,
) -> Iterator[Job]:
    """Yield the job of each batch: the graph is read, the model made ready to be opened."""
    from slicewise.graph.precision import own_precision
    from slicewise.measure.runtimes._base import available_runtime

    if options.precision is not None:
        Precision.named(options.precision)
    threads = None if options.threads is None else positive("threads", options.threads)
    # before the model is read, so that a wrong name costs no seconds
    named = None if options.runtime is None else available_runtime(options.runtime)
    graph: Graph | None = None
    for batch in batches:
        if progress is not None:
            progress(f"reading {model if isinstance(model, str) else type(model).__name__}")
        if graph is None:
            graph = load(
                model,
                batch=batch,
                dims=options.dims,
                inputs=options.inputs,
                batch_axes=options.batch_axes,
            )
        else:
            graph = load(graph, batch=batch)
        runtime = named or available_runtime(default_runtime(graph))
        _refuse_place(runtime, target)
        share = target.share or _pinned(target, threads)
        precision = options.precision or own_precision(graph).name
        subject = _subject(graph, sorted(runtime.forms), precision=precision)
        yield Job(
            replace(subject, notes=(*subject.notes, *_crowded(target, threads))),
            runtime.name,
            graph.batch_size,
            precision=precision,
            device=target.place,
            device_name=target.device.name,
            device_digest=target.device.digest,
            threads=threads,
            share=share,
            slice=target.slice,
            options=dict(options.runtime_options),
            protocol=options.protocol,
            profile=options.profile,
        )


def _pinned(target: Target, threads: int | None) -> Share | None:
    """Return as many cores as there are threads, whole physical ones first.

    A thread that wanders over the cores finds its cache cold. None where each core has a thread
    anyway, on a GPU, and on systems that cannot bind.
    """
    from slicewise.measure.quiet import bound_cores
    from slicewise.measure.shares._base import load_binder

    cores = bound_cores()
    binder = load_binder(Mechanism.CORES)
    if target.place != "cpu" or threads is None or threads >= len(cores) or binder.is_available():
        return None
    return binder.part_of_percent(100 * threads / len(cores), cores)


def _crowded(target: Target, threads: int | None) -> tuple[Note, ...]:
    """Return the Note that there are more threads than cores: they wait for one another."""
    from slicewise.measure.quiet import bound_cores

    cores = len(bound_cores() if target.share is None else target.share.cores)
    if target.place != "cpu" or threads is None or threads <= cores:
        return ()
    return (Note("threads-crowded", f"{threads} threads on {cores} cores wait for one another"),)


# A green context holds what torch launches in it; other runtimes set the device anew, which leaves
# it for the whole device (CUDA Runtime API, cudaSetDevice makes the primary context current).
_IN_GREEN_CONTEXTS = frozenset({"torch-eager", "torch-compile", "null"})


def _refuse_place(runtime: "Runtime", target: Target) -> None:
    """Raise `UsageError` where the runtime does not run, or would leave its share in silence."""
    kind = "cpu" if target.place == "cpu" else "gpu"
    if kind not in runtime.devices:
        raise UsageError(
            f"runtime {runtime.name} does not run on a {kind}, given {target.place}; it runs on"
            f" {', '.join(sorted(runtime.devices))}"
        )
    share = target.share
    if share is None or share.mechanism is not Mechanism.GREEN:
        return
    if runtime.name not in _IN_GREEN_CONTEXTS:
        raise UsageError(
            f"share {share.text} holds what torch runs, and runtime {runtime.name} would leave it;"
            " give mps:25 or mig:UUID, or runtime torch-eager"
        )


def default_runtime(graph: Graph) -> str:
    """Return the runtime that a model of this source runs on unless told otherwise."""
    return "onnxruntime" if graph.source is None else graph.source.runtime


def _subject(graph: Graph, forms: Sequence[str], *, precision: str) -> Subject:
    from slicewise.flows.subject import subject_of
    from slicewise.store.home import home

    # A PyTorch model stays what it is where the runtime takes it.
    own = "onnx" if graph.source is None or graph.source.runtime == "onnxruntime" else "torch"
    form = own if own in forms else forms[0]
    return subject_of(graph, form=form, precision=precision, exports=home() / "exports")


def run_job(job: Job, *, progress: Callable[[str], None] | None = None) -> Measurement:
    """Return the measurement of one job, taken in a child process that is bound to its share.

    It waits for its turn: measurements of any process on the same cores, or the same GPU, run one
    after the other, since they would measure each other.
    """
    from slicewise.measure.child import measure_apart
    from slicewise.store.home import home
    from slicewise.store.turns import turn

    def waiting(part: str) -> None:
        if progress is not None:
            progress(f"waiting for {part}, which another measurement has")

    with turn(parts_of(job.device, job.share), folder=home() / "turns", waiting=waiting):
        return measure_apart(job)


def parts_of(place: str, share: Share | None) -> list[str]:
    """Return what a measurement on a share of `place` has to itself, as locks are called."""
    from slicewise.measure.quiet import bound_cores

    if share is not None and share.mechanism is Mechanism.MIG:
        return [f"mig-{share.uuid}"]
    if place != "cpu":
        return [place.replace(":", "-")]
    cores = bound_cores() if share is None else share.cores
    return [f"core-{core}" for core in cores]


def part_of(device: Device, measurement: Measurement) -> Device:
    """Return the part of the device that a measurement ran on as `predict` takes it: with its
    parent, so that the rule for slices scales. The whole device where it ran on all of it."""
    if measurement.mechanism == Mechanism.MIG and measurement.slice is not None:
        return device.slice(measurement.slice)
    percent = 100.0
    if measurement.slice is not None:
        percent = float(measurement.slice.rstrip("%"))
    if device.kind == "cpu":
        # a hair more, so that 2 of 3 cores stay 2 when the share is cut to whole ones
        threads = 100.0 * measurement.threads / device.compute_units + 1e-9
        percent = min(percent, threads)
    return device if percent >= 100 else device.share(percent)


def is_usable(measurement: Measurement) -> bool:
    """True for a measurement that has a latency."""
    return measurement.outcome is Outcome.OK and measurement.latency_ms is not None
