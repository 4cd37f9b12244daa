"""Outputs of a job come from a process of its own; what goes wrong there is one error."""

import functools
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slicewise.core.errors import MeasureError, UsageError
from slicewise.core.measurement import Job, Protocol
from slicewise.core.share import Mechanism, Share
from slicewise.flows.tuning.outputs import outputs_of
from slicewise.measure.quiet import bound_cores
from slicewise.testing import runtimes as suite


def job_of(folder: Path, runtime: str = "onnxruntime") -> Job:
    core = Share(Mechanism.CORES, cores=bound_cores()[:1])
    return Job(suite.small_onnx(folder, 2), runtime, 2, threads=1, share=core)


def test_given_inputs_are_run(tmp_path: Path) -> None:
    (values,) = suite.inputs(2)
    np.save(tmp_path / "x.npy", values)
    for runtime in ("onnxruntime", "openvino"):
        (found,) = outputs_of(job_of(tmp_path, runtime), {"x": tmp_path / "x.npy"})
        np.testing.assert_allclose(found, suite.expected(values), rtol=1e-3, atol=1e-4)
        assert found.dtype == np.float32


def test_made_up_inputs_are_those_of_the_seed(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    (first,), (again,), (other,) = (outputs_of(replace(job, seed=seed)) for seed in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_an_unknown_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no input 'z'; it has x"):
        outputs_of(job_of(tmp_path), {"z": tmp_path / "z.npy"})


def test_errors_of_the_process_are_raised_here(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    with pytest.raises(UsageError, match="no option 'sideways'"):
        outputs_of(replace(job, options={"sideways": "1"}))
    (tmp_path / "small.onnx").write_bytes(b"\x08")
    with pytest.raises(MeasureError):
        outputs_of(job)


def test_a_process_that_dies_or_hangs_is_told(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    dying = replace(job.subject, open=functools.partial(os.abort))
    with pytest.raises(MeasureError, match=f"killed by signal {int(signal.SIGABRT)}"):
        outputs_of(replace(job, subject=dying))
    stopped = functools.partial(os.kill, 0, signal.SIGSTOP)
    hanging = replace(job.subject, open=stopped)
    with pytest.raises(MeasureError, match="still running after 1 s"):
        outputs_of(replace(job, subject=hanging, protocol=Protocol(time_limit_s=1.0)))
