"""The gate that int8 has to pass: made once for a run, judged once for each engine, on real data.

Runs models in this process, a client's. What it makes lies in the run's folder, whole or not at
all, so that any process of the run finds it.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slicewise.core.errors import TuningError
from slicewise.core.notes import Note
from slicewise.tune.backends.serving.accuracy import (
    Agreement,
    Array,
    Comparing,
    OutputAgreement,
    Samples,
)
from slicewise.tune.backends.serving.problem import Problem, versions
from slicewise.tune.backends.serving.quantise import quantise
from slicewise.tune.backends.serving.served import Served, open_model
from slicewise.tune.backends.serving.settings import AS_IS, ONNXRUNTIME, Settings

# Judging goes on for so long, or for so many samples where these take longer.
_JUDGING_S = 45.0
_LEAST_JUDGED = 32


class Refusal(Exception):
    """Int8 of this kind is not served by this engine; `note` says why."""

    def __init__(self, note: Note) -> None:
        super().__init__(note.text)
        self.note = note


@dataclass(frozen=True, slots=True)
class Passed:
    """A file to serve. `agreement` is None for the model as it was given."""

    path: Path
    agreement: Agreement | None = None


def served_file(problem: Problem, settings: Settings) -> Passed:
    """Return the file that these settings serve, made and judged now if it was not before.

    `Refusal` where int8 cannot be made, or agrees less than the gate asks with the model as it
    was given: on the judging samples, run by the engine that would serve it.
    """
    if settings.numerics == AS_IS:
        return Passed(problem.source(settings.batch))
    if problem.refusal is not None:
        raise Refusal(problem.refusal)
    source, samples = problem.source(settings.batch), problem.samples[settings.batch]
    kind = settings.numerics.replace(" ", "-")
    folder = problem.folder / "int8"
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{kind}-{_digest(problem, source, samples)}.onnx"
    with _locked(folder / f"{kind}.lock"):
        _quantised(problem, settings, source, made)
        agreement = _judged(problem, settings, source, made)
    if agreement.value < problem.least_agreement:
        text = (
            f"{settings.numerics} on {settings.engine} is refused: {agreement.text};"
            f" {problem.least_agreement:g} is asked for"
        )
        raise Refusal(Note("int8-disagrees", text))
    return Passed(made, agreement)


def _digest(problem: Problem, source: Path, samples: Samples) -> str:
    """Return what tells one int8 file from another: the model, the samples and the quantiser."""
    files = [source, *samples.files.values()]
    stamps = [
        (path.name, stat.st_size, stat.st_mtime_ns) for path in files if (stat := path.stat())
    ]
    told = (
        next(iter(problem.subjects.values())).digest, samples.inputs, stamps, samples.calibrating,
        sorted(versions((ONNXRUNTIME,)).items()),
    )  # fmt: skip
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def _quantised(problem: Problem, settings: Settings, source: Path, made: Path) -> None:
    """Make the file if it is not there; what the quantiser once refused is refused again."""
    refused = made.with_suffix(".refused")
    if refused.exists():
        raise Refusal(Note("int8-refused", refused.read_text()))
    if made.exists():
        return
    samples = problem.samples[settings.batch]

    def judge(path: Path) -> Agreement:
        before = _opened(problem, settings, source, ONNXRUNTIME)
        after = _opened(problem, settings, path, ONNXRUNTIME)
        return _compared(problem, before, after, samples.runs(samples.calibrating))

    try:
        quantise(
            source,
            made,
            kind=settings.numerics,
            samples=samples,
            judge=judge,
            least=problem.least_agreement,
        )
    except TuningError as err:
        text = f"{settings.numerics} is refused: {err}"
        _write(refused, text)
        raise Refusal(Note("int8-refused", text)) from err


def _judged(problem: Problem, settings: Settings, source: Path, made: Path) -> Agreement:
    """Return the agreement of the int8 file, run by the engine of the settings, with the model as
    it was given, run by onnxruntime."""
    kept = made.with_suffix(f".{settings.engine}.json")
    if kept.exists():
        return _read(json.loads(kept.read_text()))
    samples = problem.samples[settings.batch]
    try:
        before = _opened(problem, settings, source, ONNXRUNTIME)
        after = _opened(problem, settings, made, settings.engine)
        agreement = _compared(problem, before, after, samples.runs(samples.judging))
    except Exception as err:
        # whatever an engine raises about a file that its own quantiser or another one made
        text = " ".join(str(err).split())[:300] or type(err).__name__
        note = Note("int8-refused", f"{settings.engine} does not run {settings.numerics}: {text}")
        raise Refusal(note) from err
    _write(kept, json.dumps(_told(agreement), indent=1))
    return agreement


def _opened(problem: Problem, settings: Settings, path: Path, engine: str) -> Served:
    """Return a file opened in this process, with a thread for each of its cores."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    told = json.loads(Settings(engine, threads=threads, spinning="0").text)
    shapes = {spec.name: spec.shape for spec in problem.subjects[settings.batch].inputs}
    return open_model(path, told, shapes, problem.outputs_of_model)


def _compared(
    problem: Problem, before: Served, after: Served, runs: Iterator[Mapping[str, Array]]
) -> Agreement:
    comparing = Comparing(before.output_names, scores=problem.scores)
    end = time.monotonic() + _JUDGING_S
    for count, inputs in enumerate(runs):
        if count >= _LEAST_JUDGED and time.monotonic() > end:
            break
        one, other = before.run(inputs), after.run(inputs)
        comparing.add(list(one.values()), list(other.values()))
    return comparing.agreement()


def _told(agreement: Agreement) -> dict[str, Any]:
    rows = [
        {"kind": each.kind, "same_choice": each.same_choice, "closeness": each.closeness}
        for each in agreement.outputs
    ]
    return {"samples": agreement.samples, "value": agreement.value, "outputs": rows}


def _read(told: dict[str, Any]) -> Agreement:
    return Agreement(
        tuple(OutputAgreement(**row) for row in told["outputs"]), int(told["samples"])
    )


def _write(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(text)
    os.replace(part, path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time make a file of one kind; the lock ends with the process."""
    with path.open("w") as file:
        with suppress(ImportError, OSError):  # no such locks here: work done twice is no error
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
