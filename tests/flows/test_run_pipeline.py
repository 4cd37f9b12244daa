"""Stages of a split model run as pinned processes, and what was measured beside predicted."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from slicewise.app.documents import encode
from slicewise.app.partitioning.run_command import run_pipeline as command
from slicewise.app.partitioning.running import run_pipeline_document, run_pipeline_report
from slicewise.app.report import console
from slicewise.core.errors import MeasureError, ModelError, UsageError
from slicewise.flows.partitioning.stage_files import write_stages
from slicewise.flows.run_pipeline import (
    PipelineComparison,
    RunOptions,
    place_stages,
    predicted_speedup,
    run_pipeline,
)
from slicewise.partition.split.manifest import MANIFEST, StageFiles, write_manifest
from slicewise.testing import onnx_models
from tests.flows.cut_models import cut, material_of, save_cnn

SHORT = RunOptions(items=4, warmup=1)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLICEWISE_HOME", str(tmp_path / "home"))


def split_cnn(folder: Path, *places: float) -> StageFiles:
    files = write_stages(cut(material_of(save_cnn(folder)), *places), folder / "stages").files
    assert files is not None
    return files


def codes(made: PipelineComparison) -> set[str]:
    """Return the codes of the notes that do not hang on how fast this machine is."""
    return {note.code for note in made.notes} - {"feeder-limits"}


def test_stages_run_and_are_compared_with_what_was_predicted(tmp_path: Path) -> None:
    files = split_cnn(tmp_path, 0.5)
    made = run_pipeline(files.directory, options=SHORT)
    assert [stage.index for stage in made.stages] == [0, 1]
    assert all(each.is_within for each in made.outputs)
    assert made.speedup == pytest.approx(
        made.pipeline.throughput_per_s.value / made.whole.throughput_per_s.value
    )
    loads = [stage.predicted.load_ms for stage in files.stages if stage.predicted]
    assert files.whole_ms is not None
    assert made.predicted_speedup == pytest.approx(files.whole_ms / max(loads))
    assert made.relative_error == pytest.approx(files.whole_ms / max(loads) / made.speedup - 1)
    assert max(stage.measured_share for stage in made.stages) == 1
    assert max(stage.predicted_share or 0 for stage in made.stages) == 1
    assert codes(made) >= {"predicted-elsewhere"}
    said = json.loads(encode(run_pipeline_document(made)))
    assert said["schema"] == "slicewise.run-pipeline/1"
    assert [stage["index"] for stage in said["stages"]] == [0, 1]
    assert said["speedup"] == made.speedup
    out = console()
    with out.capture() as captured:
        out.print(run_pipeline_report(made))
    assert "cnn in 2 stages:" in captured.get() and "predicted" in captured.get()


def test_the_command_prints_one_document_or_a_report(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files = split_cnn(tmp_path, 0.5)
    out = tmp_path / "run.json"
    command(files.directory, items=3, warmup=1, as_json=True, output=out)
    printed = json.loads(capfd.readouterr().out)
    assert printed == json.loads(out.read_text())
    assert printed["items"] == 3 and len(printed["stages"]) == 2
    command(files.directory, items=3, warmup=0)
    assert "times that of one stage" in capfd.readouterr().out
    last = files.directory / "stage-1.onnx"
    model = onnx.load(str(last))
    for tensor in model.graph.initializer:
        if tensor.name == "fc.b":
            tensor.raw_data = b"\0" * len(tensor.raw_data)
    last.write_bytes(model.SerializeToString())
    with pytest.raises(MeasureError, match="output 'y' of the pipeline differs"):
        command(files.directory, items=3, warmup=1)


def test_a_folder_without_predictions_tells_what_was_measured(tmp_path: Path) -> None:
    files = split_cnn(tmp_path, 0.5)
    bare = replace(
        files, whole_ms=None, stages=tuple(replace(each, predicted=None) for each in files.stages)
    )
    write_manifest(bare, files.directory)
    made = run_pipeline(files.directory, options=SHORT)
    assert made.predicted_speedup is None and made.relative_error is None
    assert "nothing-predicted" in codes(made)
    assert json.loads(encode(run_pipeline_document(made)))["predicted_speedup"] is None


def test_more_stages_than_cores_share_them_with_a_note() -> None:
    cores = sorted(os.sched_getaffinity(0))
    places, notes = place_stages(2 * len(cores) + 1, 1)
    assert len(places) == 2 * len(cores) + 1
    assert {core for own in places for core in own} == set(cores)
    assert [note.code for note in notes] == ["cores-few"]
    places, notes = place_stages(len(cores), 1)
    assert len(set(places)) == len(cores) and not notes
    with pytest.raises(UsageError, match=f"more than the {len(cores)} cores"):
        place_stages(1, len(cores) + 1)


def test_replicas_do_not_run_and_that_is_told(tmp_path: Path) -> None:
    files = split_cnn(tmp_path, 0.5)
    first, second = files.stages
    assert first.predicted is not None
    twice = replace(first, predicted=replace(first.predicted, replicas=2))
    write_manifest(replace(files, stages=(twice, second)), files.directory)
    assert "replicas-not-run" in codes(run_pipeline(files.directory, options=SHORT))


def test_empty_predictions_give_no_speedup(tmp_path: Path) -> None:
    files = split_cnn(tmp_path, 0.5)
    assert predicted_speedup(files) is not None
    assert predicted_speedup(replace(files, whole_ms=None)) is None


def test_inputs_that_no_stage_reads_and_outputs_that_are_inputs_are_left_out(
    tmp_path: Path,
) -> None:
    nodes = [
        onnx.helper.make_node("Relu", ["x"], ["a"], name="a"),
        onnx.helper.make_node("Tanh", ["a"], ["y"], name="y"),
    ]
    model = onnx_models.model(
        nodes,
        inputs={"x": [1, 4], "idle": [1, 4], "z": [1, 4]},
        outputs={"y": [1, 4], "a": [1, 4], "z": [1, 4]},
    )
    path = onnx_models.save(model, tmp_path / "model.onnx")
    files = write_stages(cut(material_of(path), 0.5), tmp_path / "stages").files
    assert files is not None and files.passed == ("z",)
    made = run_pipeline(files.directory, options=SHORT)
    assert [each.name for each in made.outputs] == ["y", "a"]
    assert all(each.is_equal for each in made.outputs)


def test_what_cannot_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no readable stages.json"):
        run_pipeline(tmp_path)
    files = split_cnn(tmp_path, 0.5)
    with pytest.raises(UsageError, match="threads"):
        run_pipeline(files.directory, options=replace(SHORT, threads=0))
    with pytest.raises(UsageError, match="cannot run 0 items"):
        run_pipeline(files.directory, options=replace(SHORT, items=0))
    (files.directory / "stage-1.onnx").write_bytes(b"\xff\xff")
    with pytest.raises(MeasureError, match="stage 1"):
        run_pipeline(files.directory, options=SHORT)
    (files.directory / MANIFEST).write_text("[]")
    with pytest.raises(ModelError, match="damaged or not ours"):
        run_pipeline(files.directory, options=SHORT)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (RunOptions(time_limit_s=0.0), "time limit 0 s leaves no time"),
        (RunOptions(time_limit_s=math.nan), "time limit nan s"),
        (RunOptions(seed=-1), "seed -1 is not between"),
    ],
)
def test_what_cannot_be_asked_is_told_before_anything_runs(
    asked: RunOptions, words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        run_pipeline(tmp_path, options=asked)
