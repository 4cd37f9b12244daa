"""The folder of stages: the annotated model, external weights, nothing half written."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.helper import make_node

import slicewise
from slicewise.core.errors import ModelError, UsageError
from slicewise.partition.split import files as split_module
from slicewise.partition.split import weights as split_weights
from slicewise.partition.split.annotation import read_annotation
from slicewise.partition.split.files import Forecast, split_model
from slicewise.partition.split.manifest import (
    MANIFEST,
    PredictedLoad,
    StageFiles,
    read_manifest,
    stages_document,
)
from slicewise.testing import onnx_models
from tests.partition.split_models import (
    FLOAT,
    assert_same,
    chain,
    cut_at,
    function_model,
    run,
    save,
    split,
    x_of,
)

# --- the whole model annotated


def test_the_annotated_model_carries_the_standard_fields(tmp_path: Path) -> None:
    path = chain(tmp_path)
    graph = slicewise.load(str(path))
    forecast = Forecast({0: PredictedLoad(1, 0, 1, 2, device="gpu-a")}, 5.0)
    files = split_model(
        path, graph, stage_of=cut_at(graph, 2), directory=tmp_path / "s", forecast=forecast
    )
    model = onnx.load(str(files.directory / files.whole))
    assert model.ir_version >= 11
    (configuration,) = model.configuration
    assert configuration.num_devices == 2 and list(configuration.device) == ["gpu-a", "stage-1"]
    stages = [node.device_configurations[0].pipeline_stage for node in model.graph.node]
    assert stages == [0, 0, 1, 1]
    assert {p.key: p.value for p in model.graph.node[2].metadata_props}["slicewise.stage"] == "1"
    said = read_annotation(files.directory / files.whole)
    assert said.stage_of == {"t0": 0, "t1": 0, "t2": 1, "y": 1}
    assert said.source_sha256 == files.digest
    again = slicewise.load(str(files.directory / files.whole))  # a cut model is cut again
    assert split_model(
        files.directory / files.whole, again, stage_of=cut_at(again, 1), directory=tmp_path / "t"
    ).stages[0].outputs == ("t0",)
    with pytest.raises(ModelError, match="has no pipeline stages"):
        read_annotation(path)
    with pytest.raises(ModelError, match="cannot be read"):
        read_annotation(tmp_path / "none.onnx")


def test_the_same_cut_gives_the_same_bytes(tmp_path: Path) -> None:
    path = save(function_model(), tmp_path)
    first = {p.name: p.read_bytes() for p in split(path, 2, 4).directory.iterdir()}
    second = {p.name: p.read_bytes() for p in split(path, 2, 4).directory.iterdir()}
    assert first == second


# --- external data


def external(folder: Path, *, location: str = "weights.bin", count: int = 3) -> Path:
    """Save a chain whose weights are in a file of their own; the third has no length."""
    path = chain(folder, count)
    model = onnx.load(str(path))
    blob = b""
    for i, tensor in enumerate(model.graph.initializer):
        content = tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
        tensor.external_data.add(key="offset", value=str(len(blob)))
        if i < count - 1:
            tensor.external_data.add(key="length", value=str(len(content)))
        blob += content
    path.write_bytes(model.SerializeToString())
    (folder / "weights.bin").write_bytes(blob)
    return path


def test_external_weights_stay_external_each_with_its_stage(tmp_path: Path) -> None:
    path = external(tmp_path)
    files = split(path, 1)
    assert [stage.data for stage in files.stages] == ["stage-0.onnx.data", "stage-1.onnx.data"]
    sizes = [(files.directory / stage.data).stat().st_size for stage in files.stages]
    assert sizes == [256, 4096 + 256]  # the second at a page of its own
    assert_same(path, files, {"x": x_of(2, 8)})
    locations = {
        entry.value
        for name in sorted(p.name for p in files.directory.glob("*.onnx"))
        for tensor in onnx.load(
            str(files.directory / name), load_external_data=False
        ).graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    assert locations == {"stage-0.onnx.data", "stage-1.onnx.data"}
    moved = files.directory.rename(tmp_path / "elsewhere")
    (tmp_path / "weights.bin").unlink()
    run(read_manifest(moved), {"x": x_of(2, 8)})


def test_embedded_weights_near_the_limit_of_a_file_go_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_weights, "EMBEDDED_LIMIT", 1000)
    monkeypatch.setattr(split_weights, "_SMALL_BYTES", 100)
    path = chain(tmp_path, 5)
    files = split(path, 2)
    assert all(stage.data for stage in files.stages)
    assert_same(path, files, {"x": x_of(1, 8)})


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("../weights.bin", "only names inside"),
        ("/etc/passwd", "only names inside"),
        ("C:\\weights.bin", "only names inside"),
        ("a\\..\\..\\weights.bin", "only names inside"),
        ("", "only names inside"),
        ("none.bin", "not there"),
        (".", "no regular file"),
        ("link.bin", "leads out"),
    ],
)
def test_external_weights_outside_the_models_folder_are_refused(
    tmp_path: Path, location: str, why: str
) -> None:
    inner = tmp_path / "model"
    inner.mkdir()
    (tmp_path / "weights.bin").write_bytes(bytes(10_000))
    (inner / "link.bin").symlink_to(tmp_path / "weights.bin")
    path = external(inner, location=location)
    with pytest.raises(ModelError, match=why):
        split(path, 1)
    assert not (inner / "stages").exists()
    assert not list(inner.glob(".*"))


def test_a_download_cache_with_links_is_read(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    external(blobs)
    for name in ("model.onnx", "weights.bin"):
        (snapshot / name).symlink_to(Path("..") / "blobs" / name)
    files = split(snapshot / "model.onnx", 1)
    run(files, {"x": x_of(1, 8)})


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [("offset", "-4", "numbers from 0 up"), ("offset", "many", "numbers from 0 up"),
     ("length", "99999", "cut off")],
)  # fmt: skip
def test_external_weights_that_are_not_where_they_should_be_are_refused(
    tmp_path: Path, key: str, value: str, why: str
) -> None:
    path = external(tmp_path)
    model = onnx.load(str(path), load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == key:
            entry.value = value
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=why):
        split(path, 1)


@pytest.mark.slow
def test_more_than_two_gib_pass_through_little_memory(tmp_path: Path) -> None:
    import resource

    rows = 2**27 + 2**20  # 4 columns of fp32: 2 GiB and some
    nodes = [
        make_node("Gather", ["big", "x"], ["a"], name="a"),
        make_node("ReduceMean", ["a"], ["y"], name="y", keepdims=0),
    ]
    tensor = TensorProto(name="big", data_type=FLOAT, dims=[rows, 4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "big.bin"), ("offset", 0), ("length", rows * 16)):
        tensor.external_data.add(key=key, value=str(value))
    model = onnx_models.model(
        nodes, inputs={"x": [2]}, weights=[tensor], dtypes={"x": TensorProto.INT64}
    )
    path = save(model, tmp_path)
    with (tmp_path / "big.bin").open("wb") as file:
        file.truncate(rows * 16)
        file.seek((rows - 1) * 16)
        file.write(np.ones(4, np.float32).tobytes())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    files = split(path, 1)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200_000  # KiB
    data = files.directory / files.stages[0].data
    assert data.stat().st_size == rows * 16
    assert data.stat().st_blocks * 512 < 2**26  # zeros are holes
    with data.open("rb") as file:
        file.seek(-16, os.SEEK_END)
        assert np.frombuffer(file.read(), np.float32).tolist() == [1.0] * 4


# --- the folder


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    path = chain(tmp_path)
    stages = tmp_path / "stages"
    stages.mkdir()
    split(path, 1)  # an empty one is taken
    split(path, 2)  # and our own again
    (stages / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds 'notes.txt', which is not of stages"):
        split(path, 1)
    assert (stages / "notes.txt").read_text() == "mine"
    assert len(read_manifest(stages).stages) == 2
    (stages / MANIFEST).unlink()
    with pytest.raises(UsageError, match="give a new or empty folder"):
        split(path, 1)
    graph = slicewise.load(str(path))
    for directory, why in ((path, "is a file"), (tmp_path / "a" / "b", "is no folder")):
        with pytest.raises(UsageError, match=why):
            split_model(path, graph, stage_of=cut_at(graph, 1), directory=directory)


def test_what_fails_half_way_leaves_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = chain(tmp_path)
    files = split(path, 1)

    def fail(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(split_module, "write_manifest", fail)
    with pytest.raises(KeyboardInterrupt):
        split(path, 2)
    assert read_manifest(files.directory) == files
    assert sorted(os.listdir(tmp_path)) == ["model.onnx", "stages"]


def test_a_file_that_is_not_the_graphs_is_refused(tmp_path: Path) -> None:
    graph = slicewise.load(str(chain(tmp_path)))
    (tmp_path / "other").mkdir()
    other = chain(tmp_path / "other", 2)
    with pytest.raises(ModelError, match="has no 't1', which the graph that was cut has"):
        split_model(other, graph, stage_of=cut_at(graph, 1), directory=tmp_path / "s")
    other.write_bytes(b"\xff\xff")
    with pytest.raises(ModelError, match="cannot be read"):
        split_model(other, graph, stage_of=cut_at(graph, 1), directory=tmp_path / "s")


# --- stages.json


def document(files: StageFiles) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((files.directory / MANIFEST).read_text())
    return loaded


def test_stages_json_says_all_of_the_files(tmp_path: Path) -> None:
    files = split(chain(tmp_path), 1)
    said = document(files)
    assert said["schema"] == "slicewise.stages/1"
    assert said == json.loads(json.dumps(stages_document(files)))
    assert len(said["digest"]) == 64
    assert said["tensors"]["x"] == {
        "dtype": "fp32",
        "dims": ["batch", 8],
        "shape": [1, 8],
        "kind": "tensor",
    }
    assert set(said["versions"]) == {"slicewise", "onnx"}
    assert read_manifest(files.directory) == files


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"schema": "slicewise.stages/2"}, "its schema is"),
        ({"whole": "../model.onnx"}, "no plain name"),
        ({"whole": "sub\\model.onnx"}, "no plain name"),
        ({"whole": "gone.onnx"}, "not in the folder"),
        ({"stages": []}, "no stages"),
        ({"stages": 3}, "TypeError"),
        ({"inputs": []}, "reads 'x', which nothing gives"),
        ({"outputs": ["q"]}, "does not describe 'q'"),
    ],
)
def test_a_damaged_stages_json_is_refused(
    tmp_path: Path, change: Mapping[str, Any], why: str
) -> None:
    files = split(chain(tmp_path), 1)
    (files.directory / MANIFEST).write_text(json.dumps({**document(files), **change}))
    with pytest.raises(ModelError, match=why):
        read_manifest(files.directory)


def test_a_folder_without_stages_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no readable stages.json"):
        read_manifest(tmp_path)
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(ModelError, match="it is no JSON"):
        read_manifest(tmp_path)
