"""What clients and servers of the serving engine are made from: picklable, and the same for all.

Reads the engine's options and takes a task up; runs nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from slicewise.core.errors import TuningError, UsageError
from slicewise.core.measurement import Job, Measurement, Subject
from slicewise.core.measurement import Protocol as Sampling
from slicewise.core.notes import Note
from slicewise.core.plugins import did_you_mean
from slicewise.core.share import Share
from slicewise.core.tuning import TuneTask, Workload, workload_key
from slicewise.tune.backends.serving.accuracy import Samples, split_samples
from slicewise.tune.backends.serving.settings import AS_IS, ONNXRUNTIME, OPENVINO, Settings
from slicewise.tune.backends.serving.space import (
    INT8,
    Facts,
    all_settings,
    default_settings,
    has_branches,
    int8_kinds,
    score_outputs,
)

# Each option with its allowed values, the first where not given; () takes a text of its own.
OPTIONS: Mapping[str, Sequence[str]] = {
    "objective": ("latency", "throughput"),
    "engines": ("all", ONNXRUNTIME, OPENVINO),
    "int8": ("auto", "off"),
    "batches": (),  # '1,4,8': batches to choose from, for the throughput
    "tolerance": (),  # difference of outputs that counts as equal, relative to the largest
    "confirm": (),  # measurements of default and winner by turns, 0 to 20
}
_TOLERANCE = 1e-3
_CONFIRM = 3


@dataclass(frozen=True, slots=True)
class Options:
    """The engine's options, read."""

    is_throughput: bool = False
    engines: tuple[str, ...] = (ONNXRUNTIME, OPENVINO)
    is_int8: bool = True
    batches: tuple[int, ...] = ()
    tolerance: float = _TOLERANCE
    confirm: int = _CONFIRM


def read_options(given: Mapping[str, str]) -> Options:
    """Return the options; `UsageError` for one that is unknown or has no such value."""
    for name, value in given.items():
        if name not in OPTIONS:
            raise UsageError(
                f"engine serving has no option {name!r}; it has {', '.join(OPTIONS)}"
                f"{did_you_mean(name, OPTIONS)}"
            )
        if OPTIONS[name] and value not in OPTIONS[name]:
            raise UsageError(
                f"option {name}={value} of engine serving is unknown; it is one of"
                f" {', '.join(OPTIONS[name])}{did_you_mean(value, OPTIONS[name])}"
            )
    engines = given.get("engines", "all")
    made = Options(
        is_throughput=given.get("objective") == "throughput",
        engines=(ONNXRUNTIME, OPENVINO) if engines == "all" else (engines,),
        is_int8=given.get("int8") != "off",
        batches=_batches(given.get("batches", "")),
        tolerance=_number(given, "tolerance", _TOLERANCE, least=0.0, most=1.0),
        confirm=round(_number(given, "confirm", _CONFIRM, least=0, most=20)),
    )
    if made.batches and not made.is_throughput:
        raise UsageError(
            f"option batches={given['batches']} of engine serving chooses a batch for the"
            " throughput; give objective=throughput too, or --batch for the one batch to tune"
        )
    return made


def _batches(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.replace("+", ",").split(",")] if text else []
    if any(not part.isdecimal() or int(part) < 1 for part in parts):
        raise UsageError(
            f"option batches={text} of engine serving is no list of batches; give batches=1,4,8"
        )
    return tuple(dict.fromkeys(map(int, parts)))


def _number(
    given: Mapping[str, str], name: str, default: float, *, least: float, most: float
) -> float:
    text = given.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise UsageError(
            f"option {name}={text} of engine serving is none; give a number from {least:g} to"
            f" {most:g}"
        )
    return value


@dataclass(frozen=True, slots=True)
class Problem:
    """A model on a share, with the settings to try.

    `points` are those settings, the default first. `subjects` has the model at each batch, the
    task's own first. `refusal` says why no int8 can be made, whatever the kind; None where it
    may. `samples` are the real inputs that calibrate and judge it, by batch, `scores` the
    outputs that hold a score for each class.
    """

    workload: str
    folder: Path
    subjects: Mapping[int, Subject]
    points: tuple[str, ...]
    precision: str
    device: str
    device_name: str
    device_digest: str
    measure: Callable[[Job], Measurement]
    outputs: Callable[..., Sequence[object]] | None
    share: Share | None
    slice: str | None
    seed: int
    options: Options
    outputs_of_model: tuple[str, ...] = ()
    scores: frozenset[str] = frozenset()
    samples: Mapping[int, Samples] = field(default_factory=dict)
    least_agreement: float = 1.0
    refusal: Note | None = None

    @property
    def default(self) -> Settings:
        """What a user gets who sets nothing."""
        return Settings.parse(self.points[0])

    def settings_of(self, config: str) -> Settings:
        """Return the settings of a configuration; `TuningError` for none, or a batch that the
        problem does not have."""
        made = Settings.parse(config)
        if made.batch not in self.subjects:
            known = ", ".join(map(str, self.subjects))
            raise TuningError(
                f"configuration {config!r} is for batch {made.batch}; the model is tuned at"
                f" {known}; tune anew"
            )
        return made

    def source(self, batch: int) -> Path:
        """Return the file of the model at a batch, as it was given."""
        return Path(str(self.subjects[batch].open()))

    def job(
        self, settings: Settings, path: Path | None = None, *, sampling: Sampling | None = None
    ) -> Job:
        """Return the job that measures the model of `path` (None: as it was given) with these
        settings on the share."""
        subject = self.subjects[settings.batch]
        if path is not None:
            digest = workload_key(subject.digest, settings.numerics) if (
                settings.numerics != AS_IS
            ) else subject.digest  # fmt: skip
            subject = replace(
                subject, location=str(path), open=partial(str, str(path)), digest=digest
            )
        return Job(
            subject,
            settings.engine,
            settings.batch,
            precision=self.precision if settings.numerics == AS_IS else "int8",
            device=self.device,
            device_name=self.device_name,
            device_digest=self.device_digest,
            threads=settings.threads,
            share=self.share,
            slice=self.slice,
            options=settings.options,
            protocol=sampling or Sampling(),
            seed=self.seed,
        )

    def items(self, settings: Settings) -> int:
        """Return how many samples one run gives."""
        return settings.batch * settings.requests


def take_up(task: TuneTask) -> tuple[Problem, Workload, tuple[Note, ...]]:
    """Return the problem, the one workload, and notes; nothing is run.

    `UsageError` for options, a device, a form of model or accuracy data that cannot be.
    """
    options = read_options(task.options)
    if task.place != "cpu" or task.subject.form != "onnx":
        raise UsageError(
            f"engine serving tunes an ONNX file on the cpu, given {task.subject.form} on"
            f" {task.place}; export the model to ONNX, or use engine triton for a gpu"
        )
    subjects = _subjects(task, options)
    engines, notes = _engines(options)
    samples, refusal, kinds = _int8(task, options, subjects)
    facts = Facts(
        cores=task.threads,
        batches=tuple(subjects),
        engines=engines,
        numerics=(AS_IS, *kinds),
        has_branches=has_branches(task.graph),
        is_throughput=options.is_throughput,
    )
    settings = all_settings(facts)
    default = default_settings(facts)
    if ONNXRUNTIME not in engines:  # it is what everything is compared with all the same
        settings = (default, *settings)
    workload = _workload(task, options, default, tuple(subjects))
    if refusal is not None and kinds:
        # one trial says why, for all that would be refused alike
        first = next(each for each in settings if each.numerics != AS_IS)
        settings = tuple(each for each in settings if each.numerics == AS_IS or each is first)
        notes = (*notes, refusal)
    whole = task.device.parent or task.device
    workload = replace(workload, candidates=len(settings))
    problem = Problem(
        workload=workload.key,
        folder=task.folder,
        subjects=subjects,
        points=tuple(each.text for each in settings),
        precision=task.precision,
        device=task.place,
        device_name=whole.name,
        device_digest=whole.digest,
        measure=task.measure,
        outputs=task.outputs,
        share=task.share,
        slice=task.slice,
        seed=task.seed,
        options=options,
        outputs_of_model=task.graph.outputs,
        scores=score_outputs(task.graph),
        samples=samples,
        least_agreement=1.0 if task.accuracy is None else task.accuracy.least_agreement,
        refusal=refusal,
    )
    return problem, workload, notes


def _subjects(task: TuneTask, options: Options) -> Mapping[int, Subject]:
    """Return the model at each batch, the task's own first where none is asked for."""
    own = task.graph.batch_size
    if not options.batches or options.batches == (own,):
        return {own: task.subject}
    if task.subject_at is None:
        raise UsageError(
            f"option batches of engine serving: model {task.subject.name!r} cannot be had at"
            f" another batch than {own}; export it with a free batch, or leave batches out"
        )
    others = {b: task.subject_at(b) for b in options.batches if b != own}
    return {own: task.subject, **others}


def _engines(options: Options) -> tuple[tuple[str, ...], tuple[Note, ...]]:
    if OPENVINO not in options.engines or find_spec(OPENVINO) is not None:
        return options.engines, ()
    text = (
        "openvino is not installed, so onnxruntime alone is tried: pip install 'slicewise[tune]'"
    )
    if options.engines == (OPENVINO,):
        raise UsageError(f"option engines=openvino of engine serving: {text}")
    return (ONNXRUNTIME,), (Note("engine-missing", text),)


def _int8(
    task: TuneTask, options: Options, subjects: Mapping[int, Subject]
) -> tuple[Mapping[int, Samples], Note | None, tuple[str, ...]]:
    """Return the samples of each batch, why there is no int8 (None: there may be), and the kinds
    of it to try."""
    if not options.is_int8:
        return {}, None, ()
    own = task.subject
    data = task.accuracy
    samples = {} if data is None else {
        batch: split_samples(data, subject.inputs, seed=task.seed)
        for batch, subject in subjects.items()
    }  # fmt: skip
    notes = {note.code: note for note in (*own.notes, *task.graph.notes)}
    if task.precision != "fp32":
        text = f"int8 is made of a model in fp32, this one is in {task.precision}"
        return samples, Note("int8-refused", text), ()
    if "weights-random" in notes:
        text = (
            "int8 is refused: weights are random, so nothing tells whether answers stay the same"
        )
        return samples, Note("int8-refused", text), (INT8,)
    if not samples:
        text = "int8 is refused: there are no real inputs to calibrate and to judge it by"
        return samples, Note("no-accuracy-data", f"{text}; give --accuracy-data"), (INT8,)
    kinds = int8_kinds(task.graph, task.node_ms)
    if not kinds:
        text = "no operator of the model has weights that int8 would speed up"
        return samples, Note("int8-refused", text), ()
    return samples, None, kinds


def _workload(
    task: TuneTask, options: Options, default: Settings, batches: tuple[int, ...]
) -> Workload:
    graph = task.graph
    kinds = tuple(dict.fromkeys(node.op_type for node in graph.nodes))
    aim = "throughput" if options.is_throughput else "latency"
    told = (graph.digest, task.precision, batches, aim, task.threads)
    return Workload(
        key=workload_key("serving", *told),
        name=f"{graph.name}, batch {' or '.join(map(str, batches))}",
        op_types=kinds,
        weight_ms=sum(task.node_ms.values()),
        nodes=tuple(node.name for node in graph.nodes),
        kin=workload_key("serving", sorted(kinds), aim),
        default_config=default.text,
    )


def versions(engines: Sequence[str]) -> Mapping[str, str]:
    """Return the versions of the engines that are installed."""
    found: dict[str, str] = {}
    for name in engines:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            if find_spec(name) is not None:  # installed under another name, as for GPUs
                found[name] = "unknown"
    return found
