"""The tvm engine keeps the laws of the suite; what it cannot take is named."""

import json
import pickle
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest

from slicewise.core.cost import Estimate
from slicewise.core.errors import MissingDependency, TuningError, UsageError
from slicewise.core.measurement import Job
from slicewise.core.tuning import (
    Artifact,
    Built,
    Piece,
    SearchOrder,
    Trial,
    TrialOutcome,
    TuneTask,
)
from slicewise.testing.engines import EngineLaws, Taken, as_best, first_order, next_order, silent
from slicewise.tune.backends._base import QUICK
from slicewise.tune.backends.tvm import ENGINE, imports
from slicewise.tune.backends.tvm.problem import TvmProblem
from slicewise.tune.backends.tvm.search import WARM_UP, WorkloadSearch
from slicewise.tune.backends.tvm.trace import DEFAULT_CONFIG
from tests.tune.tvm.material import (
    COLUMNS,
    ROWS,
    Outputs,
    matmul_model,
    needs_tvm,
    run_here,
    small_task,
    task_of,
    values,
    weight,
)

pytestmark = needs_tvm


class TestTvm(EngineLaws):
    engine = ENGINE
    size = 3

    def task(self, folder: Path) -> TuneTask:
        return small_task(folder)

    def outputs(self, task: TuneTask, artifact: Artifact) -> tuple[Outputs, Outputs]:
        assert artifact.before is not None and artifact.after is not None
        after = run_here(artifact.after)
        np.testing.assert_allclose(after[0], np.maximum(values() @ weight(), 0), rtol=1e-4)
        return run_here(artifact.before), after

    def broken_config(self, taken: Taken) -> str | None:
        good = next(t.config for t in taken.trials if t.config != DEFAULT_CONFIG)
        instructions, _ = json.loads(good)
        return json.dumps([instructions[1:], []], separators=(",", ":"))

    def test_the_same_piece_gives_the_same_candidates(self, taken: Taken) -> None:
        again = self.propose(taken.prepared, taken.order)
        assert [b.config for b in again.built] == [b.config for b in taken.proposal.built]

    def test_a_client_that_remembers_proposes_what_a_new_one_does(self, taken: Taken) -> None:
        order = next_order(taken.order, taken.trials)
        client = ENGINE.client(taken.prepared.problem)
        client.propose(taken.order, silent)
        old = client.propose(order, silent)
        new = self.propose(taken.prepared, order)
        assert [b.config for b in old.built] == [b.config for b in new.built]

    def test_a_configuration_is_enough_to_measure(self, taken: Taken) -> None:
        bare = [replace(built, artifact=b"") for built in taken.proposal.built]
        assert all(trial.is_ok for trial in self.measure(taken.prepared, bare))

    def test_what_computes_something_else_is_wrong(self, taken: Taken, tmp_path: Path) -> None:
        twice = ENGINE.prepare(_doubled(tmp_path))
        (other,) = twice.workloads
        _, built = self.propose(twice, first_order(other, size=2)).built
        (trial,) = self.measure(taken.prepared, [replace(built, workload=taken.workload.key)])
        assert trial.outcome is TrialOutcome.WRONG and "differs" in trial.error

    def test_what_is_no_library_is_refused(self, taken: Taken) -> None:
        built = Built(taken.workload.key, "[[],[ ]]", artifact=b"no library")
        (trial,) = self.measure(taken.prepared, [built])
        assert trial.outcome is TrialOutcome.REFUSED and trial.error

    def test_weights_are_in_no_problem(self, taken: Taken) -> None:
        text = pickle.dumps(taken.prepared.problem)
        assert weight().tobytes()[:64] not in text

    def test_a_workload_is_the_same_in_another_model(self, taken: Taken, tmp_path: Path) -> None:
        from onnx import helper

        more = [helper.make_node("Softmax", ["y"], ["z"], name="softmax")]
        path = matmul_model(tmp_path / "more.onnx", more=more, output="z")
        prepared = ENGINE.prepare(task_of(path, tmp_path))
        assert taken.workload.key in {each.key for each in prepared.workloads}

    def test_the_whole_time_is_on_the_workloads(self, taken: Taken) -> None:
        total = sum(each.weight_ms for each in taken.prepared.workloads)
        assert total == pytest.approx(sum(taken.task.node_ms.values()))
        assert {"product", "relu"} == {n for each in taken.prepared.workloads for n in each.nodes}

    def test_the_tuned_schedule_is_in_the_artefact(self, taken: Taken) -> None:
        tuned = [trial for trial in taken.trials if trial.config != DEFAULT_CONFIG]
        best = as_best(taken.workload, tuned)
        artifact = ENGINE.finish(taken.task, taken.prepared, best)
        records = (artifact.path / "database_tuning_record.json").read_text().splitlines()
        assert len(records) == 1
        assert artifact.before is not None and artifact.after is not None
        libraries = [Path(job.subject.location) for job in (artifact.before, artifact.after)]
        assert libraries[0].read_bytes() != libraries[1].read_bytes()
        assert {path.name for path in artifact.path.iterdir()} == {
            "README.md", "run.py", "model.so", "database_workload.json",
            "database_tuning_record.json",
        }  # fmt: skip
        assert [note.code for note in artifact.notes] == ["tune-uncompared"]

    @pytest.mark.parametrize("is_lean", [True, False])
    def test_the_search_goes_on_over_rounds(self, taken: Taken, is_lean: bool) -> None:
        """Past the warm-up a cost model ranks; nothing is proposed twice."""
        key = taken.workload.key
        problem = taken.prepared.problem
        assert isinstance(problem, TvmProblem)
        module, target = problem.load_module(key), problem.make_target()
        search = WorkloadSearch(module, target, is_lean, population=96)
        known: tuple[Trial, ...] = ()
        size = WARM_UP + 2 if is_lean else 4
        for round_ in range(2):
            order = SearchOrder(Piece(round_, key, round_, size, seed=round_), known)
            found, is_exhausted = search.candidates(order)
            configs = [each.config for each in found]
            assert len(set(configs)) == len(configs) == size and not is_exhausted
            assert not set(configs) & {trial.config for trial in known}
            known += tuple(
                Trial(key, config, latency_ms=_latency(place))
                for place, config in enumerate(configs)
            )
        assert (search.training > 0) == is_lean


def _latency(place: int) -> Estimate:
    return Estimate(1.0 + place, low=1.0 + place, high=1.0 + place, source="made up")


def _doubled(folder: Path) -> TuneTask:
    """Return the task of a model of the same shapes: 2 relu(x @ w)."""
    from onnx import helper

    more = [helper.make_node("Add", ["y", "y"], ["z"], name="twice")]
    return task_of(matmul_model(folder / "twice.onnx", more=more, output="z"), folder)


def test_an_operator_that_is_not_known_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    from onnx import helper

    more = [
        helper.make_node("Celu", ["y"], ["d"], name="strange"),
        helper.make_node("Add", ["y", "d"], ["z"], name="sum"),
    ]
    path = matmul_model(tmp_path / "strange.onnx", more=more, output="z")
    task = task_of(path, tmp_path)
    prepared = ENGINE.prepare(task)
    (note,) = [note for note in prepared.notes if note.code == "tune-operator-skipped"]
    assert note.node == "strange" and "Celu" in note.text
    assert "MatMul" in {kind for each in prepared.workloads for kind in each.op_types}
    artifact = ENGINE.finish(task, prepared, {})
    assert artifact.before is None and artifact.after is None
    assert "database" in artifact.how_to_run and (artifact.path / "README.md").exists()


def test_an_operator_whose_import_stops_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tvm.relax.frontend.onnx import onnx_frontend

    def stop(*_: object) -> None:
        raise ValueError("no such thing")

    class Stopping:
        @staticmethod
        def get_converter(_: int) -> object:
            return stop

    known = {**onnx_frontend._get_convert_map(), "Relu": Stopping}
    monkeypatch.setattr(onnx_frontend, "_get_convert_map", lambda: known)
    prepared = ENGINE.prepare(small_task(tmp_path))
    (note,) = [note for note in prepared.notes if note.code == "tune-operator-skipped"]
    assert note.node == "relu" and "no such thing" in note.text
    assert [each.op_types for each in prepared.workloads] == [("MatMul",)]


def test_a_model_of_nothing_that_is_known_is_refused(tmp_path: Path) -> None:
    from onnx import helper

    from slicewise.testing.onnx_models import model, save

    made = model(
        [helper.make_node("Det", ["x"], ["y"], name="strange")],
        inputs={"x": [ROWS, ROWS]},
        outputs={"y": []},
    )
    task = small_task(tmp_path)
    path = save(made, tmp_path / "none.onnx")
    subject = replace(task.subject, location=str(path), open=Path(path).as_posix)
    with pytest.raises(TuningError, match="Det"):
        ENGINE.prepare(replace(task, subject=subject))


def test_an_unknown_form_is_refused(tmp_path: Path) -> None:
    task = small_task(tmp_path)
    subject = replace(task.subject, form="jax")
    with pytest.raises(TuningError, match="'jax'"):
        ENGINE.prepare(replace(task, subject=subject))


@pytest.mark.parametrize(
    ("options", "told"), [({"search": "wide"}, "wide"), ({"target": "z80"}, "z80")]
)
def test_an_unknown_value_is_refused(tmp_path: Path, options: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        ENGINE.prepare(small_task(tmp_path, options=options))


def test_a_torch_module_is_taken_too(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def opened() -> object:
        layer = torch.nn.Linear(32, COLUMNS)
        return torch.nn.Sequential(layer, torch.nn.ReLU()).eval()

    task = small_task(tmp_path)
    subject = replace(task.subject, form="torch", open=opened)
    prepared = ENGINE.prepare(replace(task, subject=subject))
    assert any("MatMul" in each.op_types for each in prepared.workloads)


@pytest.mark.parametrize(
    ("versions", "told"),
    [
        ({"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.15.post2"}, "0.1.15"),
        ({"apache-tvm": "0.28.0", "apache-tvm-ffi": "0.1.14"}, "0.28.0"),
    ],
)
def test_versions_that_crash_are_refused(versions: dict[str, str], told: str) -> None:
    with pytest.raises(TuningError, match=told) as caught:
        imports.refuse_versions(versions)
    assert "slicewise[tvm]" in str(caught.value)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(imports, "version", absent)
    with pytest.raises(MissingDependency, match=r"slicewise\[tvm\]"):
        ENGINE.check()


def test_outputs_unlike_onnxruntimes_are_told(tmp_path: Path) -> None:
    def outputs(job: Job) -> Outputs:
        return (np.full(3, 1.0 if job.runtime == "tvm" else 2.0, np.float32),)

    from slicewise.core.measurement import Measurement

    def measure(job: Job) -> Measurement:
        return Measurement(
            "m", "m.onnx", "0" * 64, "cpu", None, job.runtime, 1, "fp32", 1,
            latency_ms=_latency(1),
        )  # fmt: skip

    task = small_task(tmp_path, measure=measure, outputs=outputs)
    artifact = ENGINE.finish(task, ENGINE.prepare(task), {})
    told = {note.code: note.text for note in artifact.notes}
    assert set(told) == {"tune-other-runtime", "tune-import-differs"}
    assert "2 ms" in told["tune-other-runtime"] and "0.5" in told["tune-import-differs"]


def test_a_quick_sampling_has_an_interval(tmp_path: Path) -> None:
    prepared = ENGINE.prepare(small_task(tmp_path))
    (workload,) = prepared.workloads
    built = Built(workload.key, DEFAULT_CONFIG)
    (trial,) = ENGINE.server(prepared.problem).measure((built,), QUICK, silent)
    assert trial.latency_ms is not None and len(trial.samples_ms) >= QUICK.min_samples
    assert trial.latency_ms.low <= trial.latency_ms.value <= trial.latency_ms.high
