"""What a user names becomes what a process of its own can open, in the form of the runtime."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import slicewise
from slicewise.core.errors import MeasureError, UsageError
from slicewise.core.graph import Graph
from slicewise.core.measurement import Subject
from slicewise.flows.subject import subject_of
from slicewise.measure.inputs import make_values
from slicewise.measure.runtimes._base import Setup, load_runtime
from slicewise.testing import runtimes as suite
from slicewise.testing.onnx_models import integers, model, save
from tests.measure.small_torch import torch_module

torch: Any = pytest.importorskip("torch")
TINY = "num_hidden_layers=1&hidden_size=64&num_attention_heads=4&intermediate_size=128"


def _subject(graph: Graph, form: str, exports: Path, precision: str = "fp32") -> Subject:
    made = subject_of(graph, form=form, precision=precision, exports=exports)
    sent: Subject = pickle.loads(pickle.dumps(made))
    return sent


def _outputs(subject: Subject, runtime: str) -> tuple[Any, ...]:
    values = make_values(subject.inputs, seed=0)
    session = load_runtime(runtime).open(subject, values, Setup())
    found = session.outputs()
    session.close()
    return found


@pytest.fixture
def file(tmp_path: Path) -> str:
    return suite.small_onnx(tmp_path).location


@pytest.fixture
def baked(tmp_path: Path) -> str:
    """The small model with batch 1 as its input and in its Reshape, as exporters write it."""
    nodes = [
        helper.make_node("Conv", ["x", "conv.w", "conv.b"], ["a"], name="conv"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Reshape", ["b", "flat"], ["c"], name="flatten"),
        helper.make_node("Gemm", ["c", "fc.w", "fc.b"], ["y"], name="fc", transB=1),
    ]
    tensors = [numpy_helper.from_array(value, name) for name, value in suite.weights().items()]
    made = model(
        nodes,
        inputs={"x": [1, 3, 8, 8]},
        outputs={"y": [1, 5]},
        weights=[*tensors, integers("flat", [1, 256])],
    )
    return save(made, tmp_path / "baked.onnx")


def test_an_onnx_file_is_given_as_it_is(file: str, tmp_path: Path) -> None:
    graph = slicewise.load(file, batch=3)
    subject = _subject(graph, "onnx", tmp_path / "exports")
    assert subject.open() == file and subject.digest == graph.digest
    assert subject.inputs[0].shape == (3, 3, 8, 8)
    assert not (tmp_path / "exports").exists()
    (found,) = _outputs(subject, "onnxruntime")
    (values,) = make_values(subject.inputs, seed=0)
    np.testing.assert_allclose(found, suite.expected(values), rtol=1e-3, atol=1e-4)


def test_a_baked_batch_is_moved_in_a_copy_with_the_weights(baked: str, tmp_path: Path) -> None:
    before = Path(baked).read_bytes()
    subject = _subject(slicewise.load(baked, batch=3), "onnx", tmp_path / "exports")
    assert [note.code for note in subject.notes] == ["file-rebatched"]
    (found,) = _outputs(subject, "onnxruntime")
    (values,) = make_values(subject.inputs, seed=0)
    np.testing.assert_allclose(found, suite.expected(values), rtol=1e-3, atol=1e-4)
    assert Path(baked).read_bytes() == before
    again = _subject(slicewise.load(baked, batch=3), "onnx", tmp_path / "exports")
    assert again.open() == subject.open()
    assert _subject(slicewise.load(baked), "onnx", tmp_path / "exports").open() == baked


def test_weights_beside_the_file_come_into_the_copy(baked: str, tmp_path: Path) -> None:
    path = tmp_path / "apart" / "model.onnx"
    path.parent.mkdir()
    onnx.save(
        onnx.load(baked), path, save_as_external_data=True, location="w.bin", size_threshold=0
    )
    subject = _subject(slicewise.load(path, batch=2), "onnx", tmp_path / "exports")
    (found,) = _outputs(subject, "onnxruntime")
    (values,) = make_values(subject.inputs, seed=0)
    np.testing.assert_allclose(found, suite.expected(values), rtol=1e-3, atol=1e-4)


def test_a_copy_that_cannot_be_written_is_one_clear_line(baked: str, tmp_path: Path) -> None:
    (tmp_path / "exports").write_text("a file")
    with pytest.raises(MeasureError, match=r"cannot be written for batch 2 .*SLICEWISE_HOME"):
        _subject(slicewise.load(baked, batch=2), "onnx", tmp_path / "exports")


def test_an_onnx_file_is_no_torch_module(file: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is an ONNX file, which onnxruntime and openvino run"):
        _subject(slicewise.load(file), "torch", tmp_path)


def test_an_onnx_file_has_one_precision(file: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is an ONNX file in fp32.*asked is fp16"):
        _subject(slicewise.load(file), "onnx", tmp_path, "fp16")


def test_a_graph_without_a_source_is_refused(file: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no source to run"):
        _subject(replace(slicewise.load(file), source=None), "onnx", tmp_path)


def test_a_module_in_memory_is_refused(tmp_path: Path) -> None:
    graph = slicewise.load(torch_module(), example_inputs=torch.zeros(1, 3, 8, 8))
    with pytest.raises(UsageError, match=r"save it with torch\.export\.save"):
        _subject(graph, "torch", tmp_path)


def test_a_zoo_name_becomes_a_module_with_random_weights(tmp_path: Path) -> None:
    graph = slicewise.load(f"transformers:bert?{TINY}&vocab_size=50", batch=2, dims={"seq": 8})
    subject = _subject(graph, "torch", tmp_path)
    assert subject.by_name and subject.inputs[0].high == 50
    assert [note.code for note in subject.notes] == ["weights-random"]
    hidden, pooled = _outputs(subject, "torch-eager")
    assert hidden.shape == (2, 8, 64) and pooled.shape == (2, 64)
    assert np.isfinite(hidden).all() and np.isfinite(pooled).all()


def _program(path: Path, *, is_dynamic: bool) -> str:
    shapes = ({0: torch.export.Dim("batch")},) if is_dynamic else None
    program = torch.export.export(
        torch_module(), (torch.zeros(2, 3, 8, 8),), dynamic_shapes=shapes
    )
    torch.export.save(program, path)
    return str(path)


def test_a_program_runs_with_its_weights_in_both_forms_at_every_batch(tmp_path: Path) -> None:
    path = _program(tmp_path / "m.pt2", is_dynamic=True)
    exports = tmp_path / "exports"
    for batch in (3, 1):
        graph = slicewise.load(path, batch=batch)
        for form, runtime in (("torch", "torch-eager"), ("onnx", "onnxruntime")):
            subject = _subject(graph, form, exports)
            (found,) = _outputs(subject, runtime)
            (values,) = make_values(subject.inputs, seed=0)
            np.testing.assert_allclose(found, suite.expected(values), rtol=1e-3, atol=1e-4)
    (kept,) = exports.iterdir()
    assert {"model.onnx", "told.json"} <= {each.name for each in kept.iterdir()}


def test_a_program_of_one_batch_says_so_at_another(tmp_path: Path) -> None:
    graph = slicewise.load(_program(tmp_path / "m.pt2", is_dynamic=False), batch=3)
    subject = _subject(graph, "torch", tmp_path)
    with pytest.raises(MeasureError, match=r"was exported for \w+ of shape 2x3x8x8"):
        _outputs(subject, "torch-eager")


def test_a_program_with_named_inputs_is_given_them_in_order(tmp_path: Path) -> None:
    class Named(torch.nn.Module):  # type: ignore[misc]  # torch is not typed
        def forward(self, x: Any, *, scale: Any) -> Any:
            return x * scale

    ones = torch.ones(2, 3)
    program = torch.export.export(Named(), (ones,), {"scale": torch.ones(2, 3)})
    torch.export.save(program, tmp_path / "m.pt2")
    subject = _subject(slicewise.load(tmp_path / "m.pt2"), "torch", tmp_path)
    (found,) = _outputs(subject, "torch-eager")
    one, other = make_values(subject.inputs, seed=0)
    np.testing.assert_allclose(found, np.asarray(one) * np.asarray(other), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "location",
    [
        "timm:resnet10t",
        f"transformers:bert?{TINY}&vocab_size=50&seq=8",
        "transformers:gpt2?n_layer=1&n_embd=64&n_head=4&vocab_size=50&seq=8",
    ],
)
def test_a_zoo_model_gives_the_same_in_both_forms(location: str, tmp_path: Path) -> None:
    graph = slicewise.load(location, batch=3)
    by_file = _outputs(_subject(graph, "onnx", tmp_path), "onnxruntime")
    by_module = _outputs(_subject(graph, "torch", tmp_path), "torch-eager")
    for one, other in zip(by_file, by_module, strict=False):
        np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-2 * np.abs(other).max())


@pytest.mark.slow
def test_what_no_exporter_takes_is_one_clear_line(tmp_path: Path) -> None:
    from slicewise.graph.frontends.torch.to_onnx import Export, to_onnx

    graph = slicewise.load(_program(tmp_path / "m.pt2", is_dynamic=True))
    subject = _subject(graph, "torch", tmp_path)
    export = Export("model 'm'", suite.broken, subject.inputs, False, 1, {}, "fp32", ("m",))
    with pytest.raises(MeasureError, match=r"cannot be exported to ONNX: .*torch-eager") as told:
        to_onnx(export, tmp_path / "exports")
    # what was refused is not tried again: that takes minutes with a large model
    (kept,) = (tmp_path / "exports").iterdir()
    assert kept.name.endswith(".refused")
    with pytest.raises(MeasureError) as again:
        to_onnx(export, tmp_path / "exports")
    assert str(again.value) == str(told.value)
