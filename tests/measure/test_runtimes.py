"""Runtimes keep the laws of the suite, and refuse in one clear line."""

import functools
import threading
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from slicewise.core.errors import MeasureError, MissingDependency, UsageError
from slicewise.core.measurement import InputSpec
from slicewise.core.precision import DType
from slicewise.measure.runtimes import onnxruntime, openvino, torch
from slicewise.measure.runtimes._base import Runtime, Setup, load_runtime
from slicewise.measure.runtimes.onnx_file import precisions_of
from slicewise.measure.runtimes.settings import gpu_index, read_options
from slicewise.testing import runtimes as suite
from slicewise.testing.onnx_models import model, save
from slicewise.testing.runtimes import RuntimeLaws
from tests.measure.small_torch import small_torch

needs_openvino = pytest.mark.skipif(not find_spec("openvino"), reason="openvino is not installed")


class TestOnnxRuntime(RuntimeLaws):
    runtime = onnxruntime.RUNTIME
    subject = staticmethod(suite.small_onnx)
    setup = Setup
    option = ("spinning", "0")


class TestTorchEager(RuntimeLaws):
    runtime = torch.EAGER
    subject = staticmethod(small_torch)
    setup = Setup
    option = ("channels_last", "1")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
class TestTorchCompile(RuntimeLaws):
    runtime = torch.COMPILED
    subject = staticmethod(small_torch)
    setup = Setup
    option = ("freezing", "1")


@needs_openvino
class TestOpenVino(RuntimeLaws):
    runtime = openvino.RUNTIME
    subject = staticmethod(suite.small_onnx)
    setup = Setup
    option = ("streams", "1")


@pytest.mark.skipif(find_spec("openvino") is not None, reason="openvino is installed")
def test_without_openvino_its_extra_is_named() -> None:
    with pytest.raises(MissingDependency, match=r"slicewise\[tune\]"):
        openvino.RUNTIME.load()


def test_what_runs_no_model_is_loaded_by_name_and_not_advertised() -> None:
    assert load_runtime("null").name == "null"
    with pytest.raises(UsageError, match="known are") as caught:
        load_runtime("nul")
    assert "null" not in str(caught.value)


def test_onnxruntime_keeps_to_the_precision_of_the_file(tmp_path: Path) -> None:
    subject = suite.small_onnx(tmp_path)
    with pytest.raises(UsageError, match="is in fp32, asked is fp16; convert the file"):
        onnxruntime.RUNTIME.open(subject, suite.inputs(2), Setup(precision="fp16"))


def test_onnxruntime_profiles_each_node_by_its_own_name_where_nothing_is_fused(
    tmp_path: Path,
) -> None:
    setup = Setup(options={"graph_level": "disable"})
    session = onnxruntime.RUNTIME.open(suite.small_onnx(tmp_path), suite.inputs(2), setup)
    found = [(node.origin, node.op_type, node.calls) for node in session.profile(3)]
    assert found == [
        ("conv", "Conv", 1), ("relu", "Relu", 1), ("flatten", "Flatten", 1), ("fc", "Gemm", 1)
    ]  # fmt: skip


def test_onnxruntime_says_which_input_has_no_value(tmp_path: Path) -> None:
    subject = suite.small_onnx(tmp_path)
    subject = replace(subject, inputs=(replace(subject.inputs[0], name="z"),))
    with pytest.raises(MeasureError, match="has an input 'x' for which there is no value"):
        onnxruntime.RUNTIME.open(subject, suite.inputs(2), Setup())


def test_onnxruntime_starts_one_thread_less_than_asked(tmp_path: Path) -> None:
    subject, tasks = suite.small_onnx(tmp_path), Path("/proc/self/task")
    onnxruntime.RUNTIME.open(subject, suite.inputs(2), Setup(threads=1)).close()
    before = len(list(tasks.iterdir()))
    session = onnxruntime.RUNTIME.open(subject, suite.inputs(2), Setup(threads=4))
    assert len(list(tasks.iterdir())) == before + 3  # the caller works too
    session.close()


def test_torch_works_with_the_threads_asked(tmp_path: Path) -> None:
    import torch as framework

    before = framework.get_num_threads()
    for threads in (2, 1):
        session = torch.EAGER.open(small_torch(tmp_path), suite.inputs(2), Setup(threads=threads))
        assert framework.get_num_threads() == threads
        session.close()
    framework.set_num_threads(before)


def test_torch_profiles_operators_under_the_modules_that_call_them(tmp_path: Path) -> None:
    session = torch.EAGER.open(small_torch(tmp_path), suite.inputs(2), Setup())
    found = [(node.origin, node.op_type, node.calls) for node in session.profile(3)]
    assert found == [("0", "conv2d", 1), ("1", "relu", 1), ("2", "flatten", 1), ("3", "linear", 1)]


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 0.05), ("amp", 0.05)])
def test_torch_runs_in_half_precision(tmp_path: Path, precision: str, tolerance: float) -> None:
    setup = Setup(precision=precision)
    session = torch.EAGER.open(small_torch(tmp_path), suite.inputs(2), setup)
    (found,) = session.outputs()
    far = np.abs(np.asarray(found, np.float64) - suite.expected(*suite.inputs(2)))
    assert far.max() < tolerance
    assert [note.code for note in session.notes] == (["amp-in-bf16"] if precision == "amp" else [])


def test_tf32_is_refused_on_the_cpu(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'tf32' is of NVIDIA GPUs"):
        torch.EAGER.open(small_torch(tmp_path), suite.inputs(2), Setup(precision="tf32"))


def test_precisions_are_told_from_the_file_alone(tmp_path: Path) -> None:
    assert precisions_of(suite.small_onnx(tmp_path).location) == {"fp32"}


@given(cut=st.integers(1, 400))
def test_a_file_cut_anywhere_is_told_or_refused(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    content = Path(suite.small_onnx(folder).location).read_bytes()
    path = folder / "cut.onnx"
    path.write_bytes(content[:-cut])
    try:
        assert precisions_of(str(path)) <= {"fp32"}
    except MeasureError as err:
        assert "cut off or no ONNX model" in str(err)


@given(device=st.text(max_size=8))
def test_a_device_is_the_cpu_a_numbered_gpu_or_refused(device: str) -> None:
    try:
        found = gpu_index(device)
    except UsageError as err:
        assert repr(device) in str(err)
        return
    assert (found is None) == (device == "cpu")
    assert found is None or found >= 0


@given(value=st.text(max_size=4))
def test_an_option_is_of_its_kind_or_refused(value: str) -> None:
    allowed: dict[str, tuple[str, ...]] = {"streams": (), "spinning": ("1", "0")}
    for name in allowed:
        try:
            found = read_options("mine", {name: value}, allowed=allowed)[name]
        except UsageError as err:
            assert name in str(err)
            continue
        assert found == value
        assert value in allowed[name] or int(value) > 0


@pytest.mark.parametrize(
    "runtime", [onnxruntime.RUNTIME, pytest.param(openvino.RUNTIME, marks=needs_openvino)]
)
def test_several_requests_run_at_once_and_each_gives_the_same(
    tmp_path: Path, runtime: Runtime
) -> None:
    setup = Setup(threads=3, options={"requests": "2"})
    values = suite.inputs(2)
    session = runtime.open(suite.small_onnx(tmp_path), values, setup)
    for _ in range(3):
        session.run()
    (found,) = session.outputs()
    wanted = suite.expected(values[0])
    assert np.abs(found.astype(np.float64) - wanted).max() < 1e-3
    assert [note.code for note in session.notes] == ["requests-at-once"]
    assert session.profile(1)
    session.close()
    session.close()
    with pytest.raises(UsageError, match=r"requests=4 of runtime .* is more than its 3 threads"):
        runtime.open(
            suite.small_onnx(tmp_path), values, Setup(threads=3, options={"requests": "4"})
        )


def test_requests_and_threads_inside_them_are_no_more_than_the_threads_asked(
    tmp_path: Path,
) -> None:
    setup = Setup(threads=4, options={"requests": "3"})
    session = onnxruntime.RUNTIME.open(suite.small_onnx(tmp_path), suite.inputs(2), setup)
    assert isinstance(session, onnxruntime.OnnxSession)
    session.run()
    asking = [each for each in threading.enumerate() if each.name.startswith("request")]
    # at most two beside the caller, who works in one of its session's two threads
    assert 1 <= len(asking) <= 2 and session._opened.threads == 2
    session.close()
    assert not any(each.is_alive() for each in asking)


@pytest.mark.parametrize("requests", ["1", "2"])
def test_onnxruntime_runs_a_file_that_declares_its_outputs_wrongly(
    tmp_path: Path, requests: str
) -> None:
    # which axes go is not known before it runs, so nothing corrects the declared rank
    made = model(
        [helper.make_node("Squeeze", ["x"], ["y"], name="squeeze")],
        inputs={"x": ["a", "b", "c"]},
        outputs={"y": ["n"]},
    )
    subject = replace(
        suite.small_onnx(tmp_path),
        inputs=(InputSpec("x", (1, 2, 3), DType.FP32),),
        open=functools.partial(str, save(made, tmp_path / "squeeze.onnx")),
    )
    values = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    setup = Setup(threads=2, options={"requests": requests})
    session = onnxruntime.RUNTIME.open(subject, (values,), setup)
    session.run()
    session.run()
    (found,) = session.outputs()
    assert found.tolist() == values[0].tolist()
    assert [node.op_type for node in session.profile(2)] == ["Squeeze"]
    session.close()
