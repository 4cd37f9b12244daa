"""The conformance suite of runtimes: inherit it, name the runtime and its form, and run pytest.

class TestMine(RuntimeLaws):
    runtime = MyRuntime()
    subject = staticmethod(small_onnx)

`small_onnx` makes a model of `weights`, and `expected` says what it gives; a runtime of another
form makes the same model in that form (`small_subject` wraps it), so that the outputs of all
runtimes are compared with those of numpy.
"""

import functools
import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from slicewise.core.errors import MeasureError, UsageError
from slicewise.core.measurement import InputSpec, Subject
from slicewise.core.precision import DType

_CHANNELS, _SIZE, _FILTERS, _CLASSES = 3, 8, 4, 5
Array = NDArray[Any]


def weights() -> Mapping[str, Array]:
    """Return the weights of the small model: a convolution of 1x1 and a matrix."""
    random = np.random.default_rng(7)
    shapes = {
        "conv.w": (_FILTERS, _CHANNELS, 1, 1),
        "conv.b": (_FILTERS,),
        "fc.w": (_CLASSES, _FILTERS * _SIZE * _SIZE),
        "fc.b": (_CLASSES,),
    }
    return {
        name: (random.standard_normal(shape) * 0.1).astype(np.float32)
        for name, shape in shapes.items()
    }


def inputs(batch: int) -> tuple[Array, ...]:
    """Return an input for the small model."""
    random = np.random.default_rng(batch)
    return (random.standard_normal((batch, _CHANNELS, _SIZE, _SIZE)).astype(np.float32),)


def expected(values: Array) -> Array:
    """Return what the small model gives, worked out by numpy in float64."""
    made = {name: value.astype(np.float64) for name, value in weights().items()}
    mixed = np.einsum("bchw,fc->bfhw", values.astype(np.float64), made["conv.w"][:, :, 0, 0])
    mixed = np.maximum(mixed + made["conv.b"][None, :, None, None], 0)
    result: Array = mixed.reshape(len(values), -1) @ made["fc.w"].T + made["fc.b"]
    return result


def small_onnx(folder: Path, batch: int = 2) -> Subject:
    """Return the small model as an ONNX file in `folder`: Conv, Relu, Flatten, Gemm."""
    import onnx
    from onnx import helper, numpy_helper

    from slicewise.testing.onnx_models import Shape, model, save

    nodes = [
        helper.make_node("Conv", ["x", "conv.w", "conv.b"], ["a"], name="conv"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Flatten", ["b"], ["c"], name="flatten"),
        helper.make_node("Gemm", ["c", "fc.w", "fc.b"], ["y"], name="fc", transB=1),
    ]
    tensors = [numpy_helper.from_array(value, name) for name, value in weights().items()]
    shape: Shape = ["batch", _CHANNELS, _SIZE, _SIZE]
    made = model(nodes, inputs={"x": shape}, outputs={"y": ["batch", _CLASSES]}, weights=tensors)
    onnx.checker.check_model(made)
    path = save(made, folder / "small.onnx")
    return small_subject(path, batch, "onnx", functools.partial(str, path))


def broken() -> object:
    """Return what no runtime can open as a model."""
    return "/nowhere/model.onnx"


def small_subject(location: str, batch: int, form: str, opener: Callable[[], object]) -> Subject:
    """Return the small model that `opener` opens, at a batch."""
    spec = InputSpec("x", (batch, _CHANNELS, _SIZE, _SIZE), DType.FP32)
    return Subject("small", location, "0" * 64, (spec,), form, opener)


class RuntimeLaws:
    """What holds for every runtime.

    Set `runtime`, `subject` (a function of a folder and a batch), an `option` that it has as
    `(name, value)`, and `has_profile` False where it has no profiler. `kernels` is how many
    operators a profile of the small model has at least. `Setup` is that of the measuring room.
    """

    runtime: ClassVar[Any]
    subject: ClassVar[Callable[..., Subject]]
    setup: ClassVar[Callable[..., Any]]
    option: ClassVar[tuple[str, str] | None] = None
    has_profile: ClassVar[bool] = True
    kernels: ClassVar[int] = 2

    def opened(self, folder: Path, *, batch: int = 2, **setup: Any) -> Any:
        """Return a session on the small model."""
        subject = type(self).subject(folder, batch)
        return self.runtime.open(subject, inputs(batch), type(self).setup(**setup))

    def test_it_names_its_versions(self) -> None:
        versions = self.runtime.load()
        assert all(isinstance(text, str) and text for text in versions.values())

    @pytest.mark.parametrize("batch", [1, 3])
    def test_outputs_are_those_of_numpy_at_every_batch(self, tmp_path: Path, batch: int) -> None:
        session = self.opened(tmp_path, batch=batch)
        (found,) = session.outputs()
        assert found.dtype == np.float32 and found.shape == (batch, _CLASSES)
        np.testing.assert_allclose(found, expected(*inputs(batch)), rtol=1e-3, atol=1e-4)
        session.close()

    def test_runs_change_nothing(self, tmp_path: Path) -> None:
        session = self.opened(tmp_path)
        first = session.outputs()
        for _ in range(3):
            assert session.run() is None
        second = session.outputs()
        session.close()
        for one, other in zip(first, second, strict=True):
            np.testing.assert_array_equal(one, other)

    def test_it_starts_no_more_threads_than_asked(self, tmp_path: Path) -> None:
        session = self.opened(tmp_path, threads=1)
        session.run()
        before = len(os.listdir("/proc/self/task"))
        for _ in range(3):
            session.run()
        assert len(os.listdir("/proc/self/task")) <= before
        session.close()

    def test_the_session_can_be_closed_twice(self, tmp_path: Path) -> None:
        session = self.opened(tmp_path)
        session.close()
        session.close()

    def test_notes_are_told(self, tmp_path: Path) -> None:
        session = self.opened(tmp_path)
        assert isinstance(session.notes, tuple)
        session.close()

    def test_a_profile_has_positive_times_of_operators(self, tmp_path: Path) -> None:
        session = self.opened(tmp_path)
        if not self.has_profile:
            with pytest.raises(MeasureError):
                session.profile(2)
            return
        nodes = session.profile(2)
        session.close()
        assert len(nodes) >= self.kernels
        assert all(node.latency_ms > 0 and node.calls > 0 and node.op_type for node in nodes)
        assert len({(node.origin, node.op_type) for node in nodes}) == len(nodes)

    def test_an_unknown_option_is_refused_with_the_nearest(self, tmp_path: Path) -> None:
        name = "x" if self.option is None else f"{self.option[0]}s"
        hint = "" if self.option is None else f"did you mean {self.option[0]}"
        with pytest.raises(UsageError, match=hint) as caught:
            self.opened(tmp_path, options={name: "1"})
        assert repr(name) in str(caught.value)

    def test_a_known_option_is_taken(self, tmp_path: Path) -> None:
        options = {} if self.option is None else dict([self.option])
        session = self.opened(tmp_path, options=options)
        (found,) = session.outputs()
        np.testing.assert_allclose(found, expected(*inputs(2)), rtol=1e-3, atol=1e-4)
        session.close()

    def test_an_unknown_value_of_an_option_is_refused(self, tmp_path: Path) -> None:
        if self.option is not None:
            with pytest.raises(UsageError, match=self.option[0]):
                self.opened(tmp_path, options={self.option[0]: "sideways"})

    def test_an_unknown_precision_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="fp17"):
            self.opened(tmp_path, precision="fp17")

    def test_an_unknown_device_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="tpu"):
            self.opened(tmp_path, device="tpu")

    def test_what_is_no_model_is_a_measure_error(self, tmp_path: Path) -> None:
        subject = replace(type(self).subject(tmp_path, 2), open=broken)
        with pytest.raises(MeasureError):
            self.runtime.open(subject, inputs(2), type(self).setup())

    def test_the_subject_can_be_sent_to_another_process(self, tmp_path: Path) -> None:
        subject = type(self).subject(tmp_path, 2)
        again = pickle.loads(pickle.dumps(subject))
        assert again.inputs == subject.inputs
        session = self.runtime.open(again, inputs(2), type(self).setup())
        (found,) = session.outputs()
        np.testing.assert_allclose(found, expected(*inputs(2)), rtol=1e-3, atol=1e-4)
        session.close()
