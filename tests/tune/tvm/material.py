"""Small models and tasks for the tests of the tvm engine."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from slicewise.core.measurement import InputSpec, Job, Measurement, Subject
from slicewise.core.precision import DType
from slicewise.core.tuning import TuneTask
from slicewise.flows.load import load
from slicewise.flows.measure import target_here
from slicewise.measure.runtimes._base import Setup, load_runtime

needs_tvm = pytest.mark.skipif(not find_spec("tvm"), reason="apache-tvm is not installed")
Outputs = Sequence[NDArray[Any]]
ROWS, DEPTH, COLUMNS = 16, 32, 24


def values() -> NDArray[np.float32]:
    """Return an input for the small model."""
    return np.random.default_rng(3).standard_normal((ROWS, DEPTH)).astype(np.float32)


def weight() -> NDArray[np.float32]:
    """Return the weights of the small model."""
    return np.random.default_rng(5).standard_normal((DEPTH, COLUMNS)).astype(np.float32)


def matmul_model(path: Path, *, more: Sequence[Any] = (), output: str = "y") -> Path:
    """Write the small model, relu(x @ w), with nodes after it that end in `output`."""
    from onnx import helper, numpy_helper

    from slicewise.testing.onnx_models import model, save

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="product"),
        helper.make_node("Relu", ["a"], ["y"], name="relu"),
        *more,
    ]
    made = model(
        nodes,
        inputs={"x": [ROWS, DEPTH]},
        outputs={output: [ROWS, COLUMNS]},
        weights=[numpy_helper.from_array(weight(), "w")],
    )
    return Path(save(made, path))


def refuse_to_measure(job: Job) -> Measurement:
    """Take the place of a measurement that no test needs."""
    from slicewise.core.errors import MeasureError

    raise MeasureError(f"{job.runtime} is not measured in this test")


def task_of(path: Path, folder: Path, **changes: Any) -> TuneTask:
    """Return the task of tuning a model with the small model's input on one thread."""
    graph = load(str(path))
    spec = InputSpec("x", (ROWS, DEPTH), DType.FP32)
    location = str(path)
    subject = Subject(
        graph.name, location, graph.digest, (spec,), "onnx", functools.partial(str, location)
    )
    task = TuneTask(
        subject=subject,
        graph=graph,
        place="cpu",
        device=target_here("cpu").device,
        threads=1,
        folder=folder / "run",
        measure=refuse_to_measure,
        node_ms={node.name: 1.0 for node in graph.nodes},
    )
    return replace(task, **changes)


def small_task(folder: Path, **changes: Any) -> TuneTask:
    """Return the task of tuning the small model."""
    return task_of(matmul_model(folder / "small.onnx"), folder, **changes)


def run_here(job: Job) -> Outputs:
    """Return the outputs of a job's model in this process."""
    runtime = load_runtime(job.runtime)
    session = runtime.open(job.subject, (values(),), Setup(threads=1))
    try:
        return session.outputs()
    finally:
        session.close()
