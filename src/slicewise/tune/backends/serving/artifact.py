"""What serving leaves: a folder with the model, the settings, and code that serves it with them.

The winner is confirmed against the default, by turns, before it is written down.
"""

import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slicewise.core.cost import Estimate
from slicewise.core.errors import TuningError
from slicewise.core.measurement import Measurement
from slicewise.core.notes import Note
from slicewise.core.tuning import Artifact, Tuned, TuneTask
from slicewise.tune.backends._base import CAREFUL
from slicewise.tune.backends.serving import served
from slicewise.tune.backends.serving.gate import Passed, Refusal, served_file
from slicewise.tune.backends.serving.problem import Problem, versions
from slicewise.tune.backends.serving.settings import AS_IS, OPENVINO, Settings

NAME = "serving"
# Less gain than this is noise from one day to the next: then the default stays.
_LEAST_GAIN = 1.02
_COMPUTE = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The settings that are served. `gains` are default over winner, one for each turn."""

    settings: Settings
    passed: Passed
    gains: tuple[float, ...] = ()
    before_ms: Estimate | None = None
    after_ms: Estimate | None = None
    notes: tuple[Note, ...] = ()


def write_artifact(task: TuneTask, problem: Problem, best: Tuned | None) -> Artifact:
    """Return the artefact, written to the task's folder whole or not at all."""
    chosen = confirm(problem, best)
    path = _written(task, problem, chosen)
    settings = chosen.settings
    before = replace(problem.default, batch=settings.batch)
    is_int8 = settings.numerics != AS_IS
    agreement = chosen.passed.agreement
    return Artifact(
        path=path,
        before=problem.job(before),
        after=problem.job(settings, path / "model.onnx"),
        tolerance=problem.options.tolerance,
        how_to_run=f"python {path / 'run.py'}",
        notes=(*chosen.notes, *_notes(problem, settings, chosen.passed)),
        agreement=agreement.value if is_int8 and agreement is not None else None,
        before_items=problem.items(before),
        after_items=problem.items(settings),
    )


def confirm(problem: Problem, best: Tuned | None) -> Confirmed:
    """Return the best settings if they are faster than the default beyond noise, else these.

    Both are measured by turns, `confirm` times: every turn, and the median by 2 %, has to speak
    for the winner. Whatever else happened while the candidates were tried, slower than the
    default is then an accident of less than 1 in 2^turns.
    """
    default = problem.default
    plain = Confirmed(default, Passed(problem.source(default.batch)))
    if best is None or best.config == default.text:
        return plain
    try:
        settings = problem.settings_of(best.config)
        passed = served_file(problem, settings)
    except (Refusal, TuningError) as err:
        return replace(plain, notes=(Note("default-kept", f"the best cannot be served: {err}"),))
    if problem.options.confirm == 0:
        return Confirmed(settings, passed)
    turns = [_turn(problem, settings, passed) for _ in range(problem.options.confirm)]
    if all(before.latency_ms is None and after.latency_ms for before, after in turns):
        text = f"the default does not run: {turns[0][0].error}"
        return Confirmed(settings, passed, notes=(Note("default-fails", text),))
    failed = next((made for turn in turns for made in turn if made.latency_ms is None), None)
    if failed is not None:
        text = f"{failed.runtime} failed when it was measured again: {failed.error}"
        return replace(plain, notes=(Note("default-kept", text),))
    gains = tuple(
        problem.items(settings) / problem.items(default) * _ms(before) / _ms(after)
        for before, after in turns
    )
    before, after = turns[-1]
    if min(gains) <= 1.0 or statistics.median(gains) < _LEAST_GAIN:
        told = ", ".join(f"{gain:.3g}" for gain in gains)
        text = f"the best settings are not faster than the default beyond noise: {told} times"
        return replace(plain, notes=(Note("default-kept", text),))
    return Confirmed(settings, passed, gains, before.latency_ms, after.latency_ms)


def _turn(problem: Problem, settings: Settings, passed: Passed) -> tuple[Measurement, Measurement]:
    before = problem.measure(problem.job(problem.default, sampling=CAREFUL))
    return before, problem.measure(problem.job(settings, passed.path, sampling=CAREFUL))


def _ms(made: Measurement) -> float:
    assert made.latency_ms is not None
    return made.latency_ms.value


def _notes(problem: Problem, settings: Settings, passed: Passed) -> Iterator[Note]:
    agreement = passed.agreement
    if agreement is not None:
        yield Note("int8-chosen", f"served in {settings.numerics}: {agreement.text}")
        if agreement.is_coarse:
            text = f"only {agreement.samples} samples judged int8; a part of 1 % needs 100"
            yield Note("int8-few-samples", text)
    own = problem.default.batch
    if settings.batch != own:
        text = f"batch {settings.batch} was chosen; before is the default at that batch, not {own}"
        yield Note("batch-chosen", text)


# --- the folder


def _written(task: TuneTask, problem: Problem, chosen: Confirmed) -> Path:
    target = task.folder / NAME
    task.folder.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{NAME}-", dir=task.folder))
    try:
        _copy_model(chosen.passed.path, made)
        config = _config(task, problem, chosen)
        (made / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        shutil.copyfile(served.__file__, made / "run.py")
        (made / "README.md").write_text(_readme(task, config))
        made.chmod(0o755)  # a temporary folder is for its owner alone
        _exchange(made, target)
    except OSError as err:
        raise TuningError(
            f"the artefact cannot be written to {os.fspath(target)!r}: {err.strerror or err}; free"
            " space or make the folder writable, and tune again with --resume"
        ) from err
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return target


def _exchange(made: Path, target: Path) -> None:
    """Put `made` in place of `target`; at no moment is a half-written folder there."""
    if not target.exists():
        made.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{NAME}-old-", dir=target.parent))
    target.rename(old / NAME)
    made.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _copy_model(source: Path, folder: Path) -> None:
    """Copy the file, with the files beside it that hold its weights, if there are such."""
    import onnx

    shutil.copyfile(source, folder / "model.onnx")
    model = onnx.load(str(source), load_external_data=False)
    places = {
        entry.value
        for tensor in _tensors(model.graph)
        for entry in tensor.external_data
        if entry.key == "location"
    }
    for place in sorted(places):
        inside = (folder / place).resolve()
        if not inside.is_relative_to(folder.resolve()):
            raise TuningError(
                f"model {source.name!r} keeps weights in {place!r}, outside its own folder; save"
                " it with its weights beside it"
            )
        inside.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source.parent / place, inside)


def _tensors(graph: Any) -> Iterator[Any]:
    """Yield the tensors that a graph keeps, those of its bodies included."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (*attribute.tensors, attribute.t)
            for body in (*attribute.graphs, attribute.g):
                yield from _tensors(body)


def _config(task: TuneTask, problem: Problem, chosen: Confirmed) -> Mapping[str, Any]:
    settings = chosen.settings
    subject = problem.subjects[settings.batch]
    told: dict[str, Any] = json.loads(settings.text)
    if settings.engine == OPENVINO:
        told["compute"] = _COMPUTE.get(task.precision, "f32")
    share = problem.share
    cores: Sequence[int] = () if share is None else share.cores
    agreement = chosen.passed.agreement
    return {
        "schema": "slicewise.serving/1",
        "model": "model.onnx",
        "name": subject.name,
        "digest": subject.digest,
        "settings": told,
        "default": json.loads(problem.default.text),
        "inputs": [
            {
                "name": spec.name,
                "shape": list(spec.shape),
                "dtype": served_dtype(spec.dtype.value),
                "low": spec.low,
                "high": spec.high,
            }
            for spec in subject.inputs
        ],
        "outputs": list(problem.outputs_of_model),
        "share": {
            "device": problem.device_name,
            "slice": problem.slice,
            "mechanism": None if share is None else share.mechanism.value,
            "cores": list(cores),
        },
        "versions": dict(versions(("onnxruntime", "openvino"))),
        "before_ms": _figure(chosen.before_ms),
        "after_ms": _figure(chosen.after_ms),
        "gains": list(chosen.gains),
        "agreement": None if agreement is None else agreement.value,
        "agreement_text": None if agreement is None else agreement.text,
        "seed": problem.seed,
    }


def served_dtype(name: str) -> str:
    """Return numpy's name of an element type; types that it lacks travel as float32.

    >>> served_dtype("fp32"), served_dtype("int64")
    ('float32', 'int64')
    """
    floats = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "float32"}
    return floats.get(name, name)


def _figure(value: Estimate | None) -> Mapping[str, float] | None:
    return None if value is None else {"value": value.value, "low": value.low, "high": value.high}


def _readme(task: TuneTask, config: Mapping[str, Any]) -> str:
    told = ", ".join(f"{name} {value}" for name, value in config["settings"].items())
    gains = config["gains"]
    gain = f"{statistics.median(gains):.3g} times the default" if gains else "the default was best"
    share = config["share"]
    part = share["slice"] or "the whole device"
    agreement = config["agreement_text"] or "outputs are those of the model as it was given"
    return (
        f"# {task.graph.name}, ready to serve\n\n"
        f"Tuned for {share['device']}, {part} (cores {share['cores'] or 'all'}): {gain}.\n"
        f"Settings: {told}.\n"
        f"Numerics: {agreement}.\n\n"
        "    python run.py            # loads it, runs it on made-up inputs, tells the time\n\n"
        "In your own code: `from run import load`, `served = load()`,"
        " `served.run({name: array})`.\n"
        f"It needs numpy and {config['settings']['engine']}"
        f" {config['versions'].get(config['settings']['engine'], '')}; another version may have"
        " another best: tune again.\n"
    )
