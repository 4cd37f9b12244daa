"""The runtime tvm keeps the laws of the suite, on a library compiled from the suite's model."""

import functools
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from slicewise.core.errors import MissingDependency, UsageError
from slicewise.core.measurement import Subject
from slicewise.measure.runtimes import tvm as door
from slicewise.measure.runtimes._base import Setup, available_runtime
from slicewise.testing import runtimes as suite
from slicewise.testing.runtimes import RuntimeLaws

needs_tvm = pytest.mark.skipif(not find_spec("tvm"), reason="apache-tvm is not installed")


@functools.cache
def _compiled(batch: int, folder: Path) -> Any:
    """Return the suite's model as TVM compiles it untuned."""
    import onnx

    from slicewise.tune.backends.tvm.imports import import_tvm

    tvm = import_tvm()
    from tvm.relax.frontend.onnx import from_onnx
    from tvm.s_tir import meta_schedule as ms

    subject = suite.small_onnx(folder, batch)
    shapes = {spec.name: list(spec.shape) for spec in subject.inputs}
    module = from_onnx(onnx.load(subject.location), shape_dict=shapes)
    target = tvm.target.Target({"kind": "llvm", "num-cores": 1})
    database = ms.database.MemoryDatabase()
    return ms.relax_integration.compile_relax(database, module, target, None)


def small_tvm(folder: Path, batch: int) -> Subject:
    """Return the suite's model as a library in `folder`."""
    path = folder / f"small{batch}.so"
    _compiled(batch, folder).export_library(str(path))
    return suite.small_subject(str(path), batch, "tvm", functools.partial(str, str(path)))


@needs_tvm
class TestTvm(RuntimeLaws):
    runtime = door.RUNTIME
    subject = staticmethod(small_tvm)
    setup = Setup
    option = ("pinning", "0")

    def test_a_gpu_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="cpu"):
            self.opened(tmp_path, device="gpu:0")


@pytest.mark.skipif(find_spec("tvm") is not None, reason="apache-tvm is installed")
def test_without_tvm_its_extra_is_named() -> None:
    with pytest.raises(MissingDependency, match=r"slicewise\[tvm\]"):
        available_runtime("tvm")
