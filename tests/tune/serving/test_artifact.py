"""The folder that is left: confirmed against the default, whole, and able to serve."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from slicewise.core.cost import Estimate
from slicewise.core.errors import TuningError
from slicewise.core.measurement import Job, Outcome
from slicewise.core.tuning import Artifact, Tuned, TuneTask
from slicewise.testing import runtimes as suite
from slicewise.tune.backends.serving import ENGINE
from slicewise.tune.backends.serving.artifact import _copy_model
from slicewise.tune.backends.serving.problem import Problem
from slicewise.tune.backends.serving.served import load
from slicewise.tune.backends.serving.settings import OPENVINO, Settings
from slicewise.tune.backends.serving.space import INT8
from tests.tune.serving.material import real_inputs, small_task, with_latency

Latency = Callable[[Job], float | Outcome]


def finished(task: TuneTask, choose: Callable[[Settings], bool]) -> tuple[Artifact, Problem]:
    """Return the artefact where the first setting that is chosen won the search."""
    prepared = ENGINE.prepare(task)
    problem = prepared.problem
    assert isinstance(problem, Problem)
    (workload,) = prepared.workloads
    config = next(c for c in problem.points if choose(Settings.parse(c)))
    best = Tuned(workload, config, Estimate(1.0, low=1.0, high=1.0, source="made"))
    return ENGINE.finish(task, prepared, {workload.key: best}), problem


def is_openvino(settings: Settings) -> bool:
    return settings.engine == OPENVINO and settings.numerics == "as is"


def on_openvino(gain: float) -> Latency:
    return lambda job: 2.0 / gain if job.runtime == OPENVINO else 2.0


def config_of(artifact: Artifact) -> dict[str, object]:
    told: dict[str, object] = json.loads((artifact.path / "config.json").read_text())
    return told


def test_a_winner_is_confirmed_by_turns_and_written_down(tmp_path: Path) -> None:
    task = with_latency(small_task(tmp_path, options={"confirm": "3"}), on_openvino(1.5))
    artifact, problem = finished(task, is_openvino)
    told = config_of(artifact)
    assert told["settings"]["engine"] == OPENVINO  # type: ignore[index]
    assert told["gains"] == pytest.approx([1.5] * 3)
    assert artifact.after is not None and artifact.after.runtime == OPENVINO
    assert artifact.after.subject.open() == str(artifact.path / "model.onnx")
    assert artifact.before == problem.job(problem.default)
    names = {path.name for path in artifact.path.iterdir()}
    assert names == {"model.onnx", "config.json", "run.py", "README.md"}
    assert not artifact.notes and artifact.agreement is None


@pytest.mark.parametrize("gain", [0.9, 1.0, 1.01])
def test_what_is_not_faster_beyond_noise_leaves_the_default(tmp_path: Path, gain: float) -> None:
    task = with_latency(small_task(tmp_path, options={"confirm": "3"}), on_openvino(gain))
    artifact, problem = finished(task, is_openvino)
    assert config_of(artifact)["settings"] == json.loads(problem.default.text)
    assert [note.code for note in artifact.notes] == ["default-kept"]


def test_a_winner_that_is_slower_once_is_no_winner(tmp_path: Path) -> None:
    times = iter([1.0, 3.0, 1.0])

    def latency_ms(job: Job) -> float:
        return next(times) if job.runtime == OPENVINO else 2.0

    task = with_latency(small_task(tmp_path, options={"confirm": "3"}), latency_ms)
    artifact, _ = finished(task, is_openvino)
    assert [note.code for note in artifact.notes] == ["default-kept"]


def test_a_winner_that_fails_in_the_end_is_no_winner(tmp_path: Path) -> None:
    def latency_ms(job: Job) -> float | Outcome:
        return Outcome.CRASHED if job.runtime == OPENVINO else 2.0

    artifact, _ = finished(with_latency(small_task(tmp_path), latency_ms), is_openvino)
    (note,) = artifact.notes
    assert note.code == "default-kept" and "as the test wants" in note.text


def test_a_default_that_does_not_run_gives_way(tmp_path: Path) -> None:
    def latency_ms(job: Job) -> float | Outcome:
        return 2.0 if job.runtime == OPENVINO else Outcome.REFUSED

    artifact, _ = finished(with_latency(small_task(tmp_path), latency_ms), is_openvino)
    assert [note.code for note in artifact.notes] == ["default-fails"]
    assert artifact.after is not None and artifact.after.runtime == OPENVINO


def test_a_configuration_of_another_batch_is_not_served(tmp_path: Path) -> None:
    task = with_latency(small_task(tmp_path), on_openvino(1.5))
    prepared = ENGINE.prepare(task)
    (workload,) = prepared.workloads
    other = workload.default_config.replace('"batch":2', '"batch":3')
    best = Tuned(workload, other, Estimate(1.0, low=1.0, high=1.0, source="made"))
    artifact = ENGINE.finish(task, prepared, {workload.key: best})
    (note,) = artifact.notes
    assert note.code == "default-kept" and "is for batch 3" in note.text


def test_the_artefact_is_exchanged_whole(tmp_path: Path) -> None:
    task = with_latency(small_task(tmp_path), on_openvino(1.5))
    first, _ = finished(task, is_openvino)
    (first.path / "left.txt").write_text("of the run before")
    second, _ = finished(task, lambda settings: settings.graph_level == "basic")
    assert first.path == second.path and not (second.path / "left.txt").exists()
    assert [path.name for path in task.folder.iterdir()] == ["serving"]


def test_int8_is_served_from_its_own_file_with_its_agreement(tmp_path: Path) -> None:
    def latency_ms(job: Job) -> float:
        return 1.0 if job.precision == "int8" else 2.0

    task = with_latency(small_task(tmp_path, accuracy=real_inputs(tmp_path)), latency_ms)
    artifact, _ = finished(task, lambda settings: settings.numerics == INT8)
    assert artifact.agreement is not None and artifact.agreement >= 0.9
    assert [note.code for note in artifact.notes] == ["int8-chosen", "int8-few-samples"]
    kinds = {node.op_type for node in onnx.load(artifact.path / "model.onnx").graph.node}
    assert "QuantizeLinear" in kinds
    assert artifact.after is not None and artifact.before is not None
    assert artifact.after.subject.digest != artifact.before.subject.digest


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_the_folder_serves_the_model_by_itself(tmp_path: Path, engine: str) -> None:
    gain = 1.5 if engine == OPENVINO else 0.5
    artifact, _ = finished(with_latency(small_task(tmp_path), on_openvino(gain)), is_openvino)
    served = load(artifact.path, pin=False)
    (values,) = suite.inputs(2)
    (found,) = served.run({"x": values}).values()
    np.testing.assert_allclose(found, suite.expected(values), rtol=1e-3, atol=1e-4)
    assert served.output_names == ("y",)
    environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, str(artifact.path / "run.py")],
        capture_output=True, text=True, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "ms (median of 30; 1 at once)" in ran.stdout


def test_several_requests_are_served_at_once(tmp_path: Path) -> None:
    options = {"objective": "throughput", "confirm": "0"}
    for engine in ("onnxruntime", "openvino"):
        task = small_task(tmp_path, threads=2, options=options)
        artifact, _ = finished(
            with_latency(task, lambda _: 1.0),
            lambda s, engine=engine: s.requests == 2 and s.engine == engine,  # type: ignore[misc]
        )
        assert (artifact.before_items, artifact.after_items) == (2, 4)
        served = load(artifact.path, pin=False)
        assert served.requests == 2
        many = [{"x": suite.inputs(2)[0] * factor} for factor in (1, 2, 3)]
        for inputs, outputs in zip(many, served.run_many(many), strict=True):
            wanted = suite.expected(inputs["x"])
            np.testing.assert_allclose(outputs["y"], wanted, rtol=1e-3, atol=1e-3)
        served.close()


def test_weights_beside_the_file_come_along(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    model = onnx.load(str(suite.small_onnx(tmp_path).open()))
    onnx.save(
        model, source / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    target = tmp_path / "target"
    target.mkdir()
    _copy_model(source / "m.onnx", target)
    assert {path.name for path in target.iterdir()} == {"model.onnx", "w.bin"}
    onnx.load(str(target / "model.onnx"))
    stray = onnx.load(str(source / "m.onnx"), load_external_data=False)
    for tensor in stray.graph.initializer:
        tensor.external_data[0].value = "../w.bin"
    onnx.save(stray, source / "stray.onnx")
    with pytest.raises(TuningError, match="outside its own folder"):
        _copy_model(source / "stray.onnx", target)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    task = with_latency(small_task(tmp_path), on_openvino(1.5))
    task.folder.mkdir(parents=True)
    (task.folder / "serving").write_text("a file in the way")
    artifact_of = functools.partial(finished, replace(task), is_openvino)
    artifact, _ = artifact_of()  # what lay there gives way
    assert artifact.path.is_dir()
