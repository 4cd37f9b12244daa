"""A cut becomes files that run, or split points; and the files are checked against the model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from slicewise.app.documents import encode
from slicewise.app.partitioning.splitting import (
    check_split,
    refuse_difference,
    split_document,
    split_report,
    split_result,
)
from slicewise.app.report import console
from slicewise.core.errors import MeasureError, ModelError, PartitionError, UsageError
from slicewise.flows.load import load
from slicewise.flows.partitioning.pipeline_material import Case, Material
from slicewise.flows.partitioning.pipeline_model import model_material
from slicewise.flows.partitioning.result import PartitionResult
from slicewise.flows.partitioning.stage_files import (
    WrittenStages,
    between_layers,
    check_stages,
    inputs_of,
    onnx_file,
    points_of,
    stage_specs,
    write_stages,
)
from slicewise.flows.predict import PredictOptions
from slicewise.partition.split.manifest import StageFiles, read_manifest
from slicewise.testing import onnx_models
from tests.flows.cut_models import cut, material_of, save_cnn


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLICEWISE_HOME", str(tmp_path / "home"))


def files_of(written: WrittenStages) -> StageFiles:
    assert written.files is not None
    return written.files


def shown(written: WrittenStages, result: object = None) -> str:
    out = console()
    with out.capture() as captured:
        out.print(split_report(written, result))  # type: ignore[arg-type]
    return captured.get()


def test_a_cut_is_written_with_its_forecast_and_checked(tmp_path: Path) -> None:
    result = cut(material_of(save_cnn(tmp_path), batch=2), 0.5)
    written, check = split_result(result, tmp_path / "s", check=True)
    files = files_of(written)
    assert check is not None and check.is_within and [o.name for o in check.outputs] == ["y"]
    refuse_difference(check)
    for stage, told in zip(files.stages, result.partition.loads, strict=True):
        assert stage.predicted is not None
        assert stage.predicted.load_ms == told.load_ms
        assert stage.predicted.device == "t4"
    assert files.whole_ms == pytest.approx(sum(result.case.problem.kinds[0].work_ms))
    assert read_manifest(tmp_path / "s") == files
    text = shown(written, check)
    assert "2 stage files" in text and "stage-1.onnx" in text
    said = json.loads(encode(split_document(written, check)))
    assert said["files"] == ["stage-0.onnx", "stage-1.onnx"]
    assert said["check"]["within_tolerance"] is True


def test_stages_that_give_something_else_are_told(tmp_path: Path) -> None:
    files = files_of(write_stages(cut(material_of(save_cnn(tmp_path)), 0.5), tmp_path / "s"))
    last = files.directory / files.stages[-1].file
    model = onnx.load(str(last))
    for tensor in model.graph.initializer:
        if tensor.name == "fc.b":
            tensor.raw_data = np.full(10, 0.5, np.float32).tobytes()
    last.write_bytes(model.SerializeToString())
    check = check_stages(files)
    assert not check.is_within and not check.is_equal
    with pytest.raises(MeasureError, match=r"output 'y' of the stages differs .* by 0\."):
        refuse_difference(check)
    assert "differ from the whole model in 1 output" in shown(WrittenStages(files), check)


def test_outputs_without_a_number_are_told(tmp_path: Path) -> None:
    path = onnx_models.save(onnx_models.filled(onnx_models.small_cnn()), tmp_path / "nan.onnx")
    written, check = split_result(cut(material_of(path), 0.5), tmp_path / "s", check=True)
    assert check is not None and check.is_within
    assert [(note.code, note.node) for note in check.notes] == [("check-blind", "y")]
    assert "no finite number" in shown(written, check)


def test_the_same_seed_gives_the_same_inputs_and_ids_stay_in_their_table(tmp_path: Path) -> None:
    path = onnx_models.save(
        onnx_models.filled(onnx_models.small_decoder(layers=2)), tmp_path / "decoder.onnx"
    )
    graph = load(path, batch=2, dims={"seq": 5})
    material = model_material(graph, devices=["t4"], options=PredictOptions())
    files = files_of(write_stages(cut(material, 0.3, 0.6), tmp_path / "s"))
    first, again = (inputs_of(files, seed=7, items=2) for _ in range(2))
    assert [each["input_ids"].tolist() for each in first] == [
        each["input_ids"].tolist() for each in again
    ]
    assert first[0]["input_ids"].shape == (2, 5)
    assert first[0]["input_ids"].min() >= 0 and first[0]["input_ids"].max() < 100
    assert check_stages(files, source=Path(path), items=2).is_within


def test_a_file_fixed_to_another_batch_is_split_as_it_is_bound(tmp_path: Path) -> None:
    model = onnx_models.filled(onnx_models.small_cnn(batch=1))
    path = onnx_models.save(model, tmp_path / "fixed.onnx")
    result = cut(material_of(path, batch=3), 0.5)
    assert result.case.graph is not None
    assert onnx_file(result.case.graph) != Path(path)
    written, check = split_result(result, tmp_path / "s", check=True)
    assert check is not None and check.outputs[0].shape == (3, 10)
    assert files_of(written).tensors["x"].shape == (3, 3, 32, 32)
    same = material_of(path).graph
    assert same is not None and onnx_file(same) == Path(path)


def test_a_problem_file_has_nothing_to_split(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds numbers and no model"):
        check_split(tmp_path / "s", "problem.JSON")
    result = cut(material_of(save_cnn(tmp_path)), 0.5)
    material = replace(result.case.material, graph=None)
    bare = PartitionResult(Case(result.case.problem, material, ("t4", "t4")), result.partition)
    for use in (lambda: write_stages(bare, tmp_path / "s"), lambda: between_layers(material)):
        with pytest.raises(UsageError, match="a problem file holds numbers"):
            use()


def test_a_taken_folder_is_told_before_a_cut_is_sought(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(UsageError, match=r"holds 'mine.txt'"):
        check_split(tmp_path, "model.onnx")
    check_split(tmp_path / "new", "model.onnx")


def test_a_model_that_is_gone_is_told(tmp_path: Path) -> None:
    path = save_cnn(tmp_path)
    result = cut(material_of(path), 0.5)
    Path(path).unlink()
    with pytest.raises(ModelError, match="cannot read model"):
        write_stages(result, tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_tensor_that_no_queue_holds_is_refused(tmp_path: Path) -> None:
    nodes = [
        onnx.helper.make_node("SplitToSequence", ["x", "two"], ["parts"], name="a", axis=1),
        onnx.helper.make_node("ConcatFromSequence", ["parts"], ["y"], name="b", axis=0),
    ]
    model = onnx_models.model(
        nodes, inputs={"x": [1, 4]}, weights=[onnx_models.integers("two", [2], [])]
    )
    path = onnx_models.save(model, tmp_path / "sequence.onnx")
    files = files_of(write_stages(cut(material_of(path), 0.5), tmp_path / "s"))
    assert check_stages(files).is_equal
    with pytest.raises(UsageError, match="'parts' is a sequence"):
        stage_specs(files, ((), ()), threads=1)


def layered(folder: Path) -> str:
    """Save four layers of a MatMul and a Tanh, with a first and a last node outside of them."""
    nodes = [onnx.helper.make_node("Relu", ["x"], ["h0"], name="/embed/Relu")]
    for i in range(4):
        for kind, reads, gives in (
            ("MatMul", [f"h{i}", "w"], f"m{i}"),
            ("Tanh", [f"m{i}"], f"h{i + 1}"),
        ):
            name = f"/model/layers.{i}/{kind}"
            nodes.append(onnx.helper.make_node(kind, reads, [gives], name=name))
    nodes.append(onnx.helper.make_node("Sigmoid", ["h4"], ["y"], name="/head/Sigmoid"))
    weight = onnx_models.weight("w", 8, 8)
    model = onnx_models.model(nodes, inputs={"x": [1, 8]}, weights=[weight])
    return onnx_models.save(onnx_models.filled(model), folder / "layered.onnx")


def test_cuts_between_layers_are_forced_by_groups(tmp_path: Path) -> None:
    material = between_layers(material_of(layered(tmp_path)))
    nodes = sorted(node for group in material.together for node in group)
    assert nodes == list(range(len(material.groups)))
    assert len(material.together) == 4
    result = cut(material, 0.5)
    points = points_of(result)
    assert points.counts == (2, 2) and points.vllm == "2,2"
    assert points.begins == ("model.layers.2",)
    with pytest.raises(PartitionError, match="belong together"):
        cut(material, 0.4)


def torch_layers(*, between: bool) -> Material:
    """Return a module of six layers, exported, as material."""
    torch = pytest.importorskip("torch")

    class Block(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.fc = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return x + self.fc(self.norm(x))

    class Model(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
            self.blocks = torch.nn.ModuleList(Block() for _ in range(6))

        def forward(self, x: Any) -> Any:
            x = self.embed(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    graph = load(Model().eval(), example_inputs=torch.zeros(2, 8))
    material = model_material(graph, devices=["t4"], options=PredictOptions())
    return between_layers(material) if between else material


def test_a_torch_model_gets_split_points(tmp_path: Path) -> None:
    material = torch_layers(between=True)
    assert len(material.together) == 6
    last = material.together[2][-1]
    result = cut(material, (last + 1) / len(material.groups))
    written, check = split_result(result, tmp_path / "s", check=True)
    assert written.files is None and check is None
    assert written.file is not None and written.points is not None
    assert written.points.begins == ("blocks.3",) and written.points.vllm == "3,3"
    text = written.file.read_text()
    assert "'blocks.3': SplitPoint.BEGINNING" in text
    compile(text, "split_points.py", "exec")
    assert 'VLLM_PP_LAYER_PARTITION="3,3"' in shown(written)
    said = json.loads(encode(split_document(written, None)))
    assert said["pipelining"] == {"blocks.3": "beginning"} and said["vllm"] == "3,3"
    write_stages(result, tmp_path / "s")  # over its own
    through = cut(torch_layers(between=False), (last + 2) / len(material.groups))
    with pytest.raises(PartitionError, match="split points cannot say its cut: layer"):
        write_stages(through, tmp_path / "s")
