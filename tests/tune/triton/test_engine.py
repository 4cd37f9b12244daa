"""The engine `triton` under the laws of all engines, without a GPU."""

import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from slicewise.core.errors import TuningError, UsageError
from slicewise.core.measurement import Job, Measurement, Subject
from slicewise.core.tuning import Artifact, Budget, Building, Built, TrialOutcome, TuneTask
from slicewise.execute.crews.inline import InlineCrew
from slicewise.hardware.catalogue import find_device
from slicewise.testing.engines import (
    SAMPLING,
    EngineLaws,
    Outputs,
    Taken,
    first_order,
    silent,
)
from slicewise.testing.graphs import Sketch
from slicewise.tune.backends._base import load_engine
from slicewise.tune.records import RunSettings, Seats
from slicewise.tune.run import run_tuning
from slicewise.tune.workers import client_handler, server_handler

pytest.importorskip("triton", reason="the kernels need Triton")
torch = pytest.importorskip("torch", reason="inputs and references are made by torch")

from slicewise.tune.backends.triton import ENGINE, TritonEngine  # noqa: E402
from slicewise.tune.backends.triton.engine import TritonProblem  # noqa: E402


def _never(job: Job) -> Measurement:
    raise AssertionError(f"operators are tuned, no model is measured: {job}")


def a_task(folder: Path, **options: str) -> TuneTask:
    """Return a task of a small graph: products with epilogues, norm, softmax, convolution."""
    sketch = Sketch("small")
    x = sketch.conv(sketch.input(1, 3, 6, 6), 8, 3)
    x = sketch.node("Transpose", (x,), (1, 6, 6, 8))
    x = sketch.node("LayerNormalization", (x, sketch.constant(8)), (1, 6, 6, 8))
    x = sketch.relu(sketch.matmul(x, 24))
    sketch.node("Softmax", (sketch.matmul(x, 20),), (1, 6, 6, 20))
    graph = sketch.graph()
    return TuneTask(
        subject=Subject("small", "small", graph.digest, (), "onnx", open=str),
        graph=graph,
        place="gpu:0",
        device=find_device("h200-sxm-141gb").share(percent=25),
        threads=1,
        folder=folder,
        measure=_never,
        slice="25%",
        node_ms={node.name: 1.0 + i for i, node in enumerate(graph.nodes)},
        options=options,
        seed=3,
    )


class TestTriton(EngineLaws):
    engine: ClassVar[Any] = TritonEngine(is_interpreted=True)

    def task(self, folder: Path) -> TuneTask:
        return a_task(folder)

    def outputs(self, task: TuneTask, artifact: Artifact) -> tuple[Outputs, Outputs]:
        """Return what torch and what the kernels of the artefact compute, in its own process."""
        done = subprocess.run(
            [sys.executable, "-c", _RUN_ALL, str(artifact.path)], capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        pairs = pickle.loads(done.stdout)
        return [expected for expected, _ in pairs], [found for _, found in pairs]

    def broken_config(self, taken: Taken) -> str | None:
        return '{"block_m":48}'


# the package is out of reach there: an artefact needs torch and Triton only
_RUN_ALL = """
import json, pathlib, pickle, sys
sys.modules["slicewise"] = None
folder = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(folder))
import run
rows = json.loads((folder / "configs.json").read_text())["workloads"]
pairs = [tuple(x.float().numpy() for x in run.run(row)[:2]) for row in rows]
sys.stdout.buffer.write(pickle.dumps(pairs))
"""


def test_the_engine_of_that_name_is_this_one() -> None:
    found: object = load_engine("triton")
    assert found is ENGINE
    assert not ENGINE.is_interpreted and ENGINE.places == {"gpu"}


def test_a_run_finds_what_is_faster_than_the_default(tmp_path: Path) -> None:
    engine = TritonEngine(is_interpreted=True)
    task = a_task(tmp_path, precision="bf16")
    prepared = engine.prepare(task)
    problem = prepared.problem
    with InlineCrew() as crew:
        seats = Seats(
            clients=(lambda: client_handler(engine.client(problem)),) * 2,
            servers=(lambda: server_handler(engine.server(problem)),),
        )
        found = run_tuning(
            crew, prepared.workloads, seats,
            settings=RunSettings(Budget(trials=60), piece_size=6), keep=lambda trial: None,
        )  # fmt: skip
    assert set(found.best) == {each.key for each in prepared.workloads}
    gains = []
    for tuned in found.best.values():
        assert tuned.default_ms is not None
        gains.append(tuned.default_ms / tuned.latency_ms.value)
    assert min(gains) > 0.98 and max(gains) > 1.02


def test_what_runs_the_artefact_says_that_it_is_right(tmp_path: Path) -> None:
    engine = TritonEngine(is_interpreted=True)
    task = a_task(tmp_path, precision="fp16")
    path = engine.finish(task, engine.prepare(task), {}).path
    done = subprocess.run(
        [sys.executable, path / "run.py", "0", "2"], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("interpreted, equal") == 2
    rows = json.loads((path / "configs.json").read_text())["workloads"]
    assert [row["is_tuned"] for row in rows] == [False] * len(rows) and len(rows) == 5


def test_a_second_artefact_takes_the_place_of_the_first(tmp_path: Path) -> None:
    engine = TritonEngine(is_interpreted=True)
    task = a_task(tmp_path)
    prepared = engine.prepare(task)
    first = engine.finish(task, prepared, {}).path
    (first / "left-over").write_text("")
    assert engine.finish(task, prepared, {}).path == first
    assert not (first / "left-over").exists()
    assert [each.name for each in tmp_path.iterdir()] == [first.name]


def test_candidates_are_compiled_for_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    task = a_task(tmp_path, capability="9.0", precision="bf16")
    prepared = ENGINE.prepare(task)
    assert prepared.version.endswith("sm_90")
    workload = prepared.workloads[0]
    told: list[object] = []
    proposal = ENGINE.client(prepared.problem).propose(first_order(workload, size=3), told.append)
    assert len(proposal.built) == 3 and not proposal.failed
    assert told == [Building(workload.key, each.config) for each in proposal.built]
    assert proposal.built[0].config == workload.default_config
    assert len(list(tmp_path.rglob("*.cubin"))) == 3
    assert proposal.build_s > 0 and proposal.search_s > 0


def test_what_needs_too_much_shared_memory_is_refused(tmp_path: Path) -> None:
    task = a_task(tmp_path, capability="86", precision="bf16")
    sketch = Sketch("wide")
    sketch.matmul(sketch.input(512, 512), 512)
    task = replace(task, graph=sketch.graph())
    prepared = ENGINE.prepare(task)
    config = '{"block_k":128,"block_m":128,"block_n":256,"group":8,"stages":4,"warps":8}'
    order = first_order(prepared.workloads[0], size=1)
    order = replace(order, rebuild=(config,))
    proposal = ENGINE.client(prepared.problem).propose(order, silent)
    (failed,) = proposal.failed
    assert failed.outcome in (TrialOutcome.REFUSED, TrialOutcome.BUILD_FAILED)
    assert "shared memory" in failed.error and not proposal.built


def test_a_kernel_that_is_wrong_is_no_winner(tmp_path: Path, monkeypatch: Any) -> None:
    from slicewise.tune.backends.triton import launch

    engine = TritonEngine(is_interpreted=True)
    prepared = engine.prepare(a_task(tmp_path))
    workload = prepared.workloads[0]
    monkeypatch.setattr(launch, "reference", lambda op, tensors: tensors["out"] * 0 + 1)
    built = Built(workload.key, workload.default_config)
    (trial,) = engine.server(prepared.problem).measure([built], SAMPLING, silent)
    assert trial.outcome is TrialOutcome.WRONG and trial.latency_ms is None
    assert "off by" in trial.error


def test_a_lost_context_ends_the_process(tmp_path: Path, monkeypatch: Any) -> None:
    from slicewise.tune.backends.triton import launch

    def lose(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    engine = TritonEngine(is_interpreted=True)
    prepared = engine.prepare(a_task(tmp_path))
    monkeypatch.setattr(launch, "bind_interpreted", lose)
    workload = prepared.workloads[0]
    with pytest.raises(SystemExit, match="illegal memory access"):
        engine.server(prepared.problem).measure(
            [Built(workload.key, workload.default_config)], SAMPLING, silent
        )


@pytest.mark.parametrize(
    ("options", "why"),
    [({"precison": "fp16"}, "did you mean precision"),
     ({"precision": "int4"}, "in precision 'int4'; it has fp32"),
     ({"capability": "6.1"}, "7.5"), ({"capability": "hopper"}, "7.5")],
)  # fmt: skip
def test_options_that_cannot_be_are_refused(
    options: dict[str, str], why: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=why):
        ENGINE.prepare(a_task(tmp_path, **options))


def test_a_model_without_kernels_is_refused(tmp_path: Path) -> None:
    sketch = Sketch("plain")
    sketch.relu(sketch.input(1, 8))
    task = a_task(tmp_path, capability="90")
    task = replace(task, graph=sketch.graph())
    with pytest.raises(TuningError, match="no operator"):
        ENGINE.prepare(task)


@pytest.mark.parametrize(
    ("asked", "used"), [("fp32", "fp32"), ("amp", "fp16"), ("tf32", "tf32"), ("bf16", "bf16")]
)
def test_kernels_are_tuned_in_the_precision_of_the_task(
    asked: str, used: str, tmp_path: Path
) -> None:
    task = replace(a_task(tmp_path, capability="90"), precision=asked)
    assert {each.name.split()[-1] for each in ENGINE.prepare(task).workloads} == {used}


def test_a_cpu_is_no_place_for_it(tmp_path: Path) -> None:
    task = a_task(tmp_path, capability="90")
    task = replace(task, place="cpu")
    with pytest.raises(UsageError, match="gpu:0"):
        ENGINE.prepare(task)


def test_an_unknown_workload_is_refused(tmp_path: Path) -> None:
    problem = TritonProblem({}, 90, 16, 0, tmp_path, 0)
    with pytest.raises(TuningError, match="prepare it anew"):
        problem.operation("0f")
