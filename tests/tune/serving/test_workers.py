"""Clients and servers with measurements that are made up: what becomes of each candidate."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slicewise.core.errors import MeasureError, UsageError
from slicewise.core.measurement import Job, Outcome, Protocol, Subject
from slicewise.core.notes import Note
from slicewise.core.tuning import (
    Building,
    Built,
    Piece,
    Prepared,
    SearchOrder,
    Trial,
    TrialOutcome,
    TuneTask,
)
from slicewise.tune.backends.serving import ENGINE
from slicewise.tune.backends.serving.problem import Problem, read_options
from slicewise.tune.backends.serving.settings import AS_IS, ONNXRUNTIME, OPENVINO, Settings
from slicewise.tune.backends.serving.space import INT8
from slicewise.tune.backends.serving.workers import ServingServer
from tests.tune.serving.material import (
    fake_measure,
    real_inputs,
    small_task,
    with_latency,
)

QUICK = Protocol(min_samples=3, budget_s=0.1)


def quiet(_: object) -> None:
    """Take what is told."""


def prepared(task: TuneTask) -> tuple[Prepared, Problem]:
    made = ENGINE.prepare(task)
    assert isinstance(made.problem, Problem)
    return made, made.problem


def tried(made: Prepared, configs: Sequence[str]) -> dict[str, Trial]:
    (workload,) = made.workloads
    built = [Built(workload.key, config) for config in configs]
    trials = ENGINE.server(made.problem).measure(built, QUICK, quiet)
    return {trial.config: trial for trial in trials}


def by_engine(latency_ms: dict[str, float | Outcome]) -> Callable[[Job], float | Outcome]:
    return lambda job: latency_ms[job.runtime]


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome.CRASHED, TrialOutcome.CRASHED),
        (Outcome.TIMED_OUT, TrialOutcome.TIMED_OUT),
        (Outcome.OUT_OF_MEMORY, TrialOutcome.REFUSED),
        (Outcome.REFUSED, TrialOutcome.REFUSED),
    ],
)
def test_what_becomes_of_a_run_becomes_of_the_trial(
    tmp_path: Path, outcome: Outcome, expected: TrialOutcome
) -> None:
    task = small_task(tmp_path)
    made, problem = prepared(with_latency(task, by_engine({ONNXRUNTIME: 2.0, OPENVINO: outcome})))
    trials = tried(made, problem.points)
    for config, trial in trials.items():
        if Settings.parse(config).engine == OPENVINO:
            assert trial.outcome is expected and trial.error and trial.latency_ms is None
        elif Settings.parse(config).numerics == AS_IS:
            assert trial.is_ok and trial.slowdown == 2.0


def test_another_answer_is_wrong_however_fast(tmp_path: Path) -> None:
    task = small_task(tmp_path)
    latency = by_engine({ONNXRUNTIME: 2.0, OPENVINO: 0.1})
    made, problem = prepared(with_latency(task, latency, wrong=OPENVINO))
    trials = tried(made, problem.points)
    wrong = [t for c, t in trials.items() if Settings.parse(c).engine == OPENVINO]
    assert wrong and all(t.outcome is TrialOutcome.WRONG for t in wrong)
    assert "differ from those of onnxruntime's defaults by 0.05 of" in wrong[0].error
    assert trials[problem.points[0]].is_ok
    loose = replace(task, options={"tolerance": "0.06"})
    made, problem = prepared(with_latency(loose, latency, wrong=OPENVINO))
    as_is = [c for c in problem.points if Settings.parse(c).numerics == AS_IS]
    assert all(trial.is_ok for trial in tried(made, as_is).values())


def test_outputs_are_asked_for_once_for_each_thing_that_is_computed(tmp_path: Path) -> None:
    asked: list[Job] = []

    def outputs(job: Job, inputs: object = None) -> tuple[Any, ...]:
        asked.append(job)
        return ()

    task = with_latency(small_task(tmp_path), lambda _: 1.0)
    made, problem = prepared(replace(task, outputs=outputs, options={"int8": "off"}))
    server = ServingServer(replace(problem, outputs=outputs))
    (workload,) = made.workloads
    built = [Built(workload.key, config) for config in problem.points]
    for _ in range(2):
        assert all(trial.is_ok for trial in server.measure(built, QUICK, quiet))
    levels = {(job.runtime, job.options.get("graph_level")) for job in asked}
    assert len(asked) == len(levels) == 4


def test_without_a_way_to_compare_a_note_says_so(tmp_path: Path) -> None:
    def fails(job: Job, inputs: object = None) -> tuple[Any, ...]:
        raise MeasureError("no outputs today")

    for outputs in (None, fails):
        task = replace(with_latency(small_task(tmp_path), lambda _: 1.0), outputs=outputs)
        made, problem = prepared(task)
        other = next(c for c in problem.points if Settings.parse(c).engine == OPENVINO)
        (trial,) = tried(made, [other]).values()
        assert trial.is_ok and [note.code for note in trial.notes] == ["outputs-uncompared"]


def test_others_on_the_cores_are_noted(tmp_path: Path) -> None:
    busy = Note("share-disturbed", "others had 40% of the time")
    other = Note("input-unused", "the file does not take x")

    def measure(job: Job) -> Any:
        return fake_measure(job, latency_ms=lambda _: 1.0, notes=[busy, other])

    made, problem = prepared(replace(small_task(tmp_path), measure=measure))
    (trial,) = tried(made, [problem.points[0]]).values()
    assert trial.notes == (busy,)


@pytest.mark.parametrize("reason", ["no data", "random weights"])
def test_int8_is_refused_once_and_not_tried_again(tmp_path: Path, reason: str) -> None:
    task = with_latency(small_task(tmp_path), lambda _: 1.0)
    if reason == "random weights":
        note = Note("weights-random", "weights are random")
        subject: Subject = replace(task.subject, notes=(note,))
        task = replace(task, subject=subject, accuracy=real_inputs(tmp_path))
    made, problem = prepared(task)
    code = "no-accuracy-data" if reason == "no data" else "int8-refused"
    assert [note.code for note in made.notes] == [code]
    (workload,) = made.workloads
    proposal = ENGINE.client(problem).propose(SearchOrder(Piece(0, workload.key, 0, 50, 0)), quiet)
    (failed,) = proposal.failed
    assert failed.outcome is TrialOutcome.REFUSED and "int8 is refused" in failed.error
    assert proposal.is_exhausted
    kinds = {Settings.parse(built.config).numerics for built in proposal.built}
    assert kinds == {AS_IS} and len(proposal.built) == len(problem.points) - 1


def test_int8_passes_the_gate_and_is_measured_with_its_own_file(tmp_path: Path) -> None:
    files: list[str] = []

    def measure(job: Job) -> Any:
        files.append(str(job.subject.open()))
        return fake_measure(job, latency_ms=lambda _: 1.0)

    task = replace(small_task(tmp_path), measure=measure, accuracy=real_inputs(tmp_path))
    made, problem = prepared(task)
    config = next(c for c in problem.points if Settings.parse(c).numerics == INT8)
    told: list[object] = []
    (workload,) = made.workloads
    order = SearchOrder(Piece(0, workload.key, 0, 1, 0), rebuild=(config,))
    proposal = ENGINE.client(problem).propose(order, told.append)
    assert told == [Building(workload.key, config)]
    (trial,) = ENGINE.server(problem).measure(proposal.built, QUICK, quiet)
    assert trial.is_ok
    assert Path(files[0]).is_relative_to(task.folder) and "int8" in Path(files[0]).name
    assert problem.job(Settings.parse(config)).precision == "int8"


def test_int8_that_disagrees_is_refused_for_all_settings_of_its_kind(tmp_path: Path) -> None:
    data = replace(real_inputs(tmp_path), least_agreement=1.0)
    task = replace(with_latency(small_task(tmp_path), lambda _: 1.0), accuracy=data)
    made, problem = prepared(task)
    (workload,) = made.workloads
    # judged by values, since a choice among five may well be the same
    client = ENGINE.client(replace(problem, scores=frozenset()))
    proposal = client.propose(SearchOrder(Piece(0, workload.key, 0, 50, 0)), quiet)
    kinds = [(s.numerics, s.engine) for s in (Settings.parse(t.config) for t in proposal.failed)]
    assert len(set(kinds)) == len(kinds) > 0
    assert all(trial.outcome is TrialOutcome.REFUSED for trial in proposal.failed)
    assert any("is asked for" in trial.error for trial in proposal.failed)
    assert {Settings.parse(b.config).numerics for b in proposal.built} == {AS_IS}
    known = proposal.failed
    again = client.propose(SearchOrder(Piece(1, workload.key, 1, 50, 1), known), quiet)
    assert not again.built and not again.failed and again.is_exhausted


def test_hints_come_right_after_the_default(tmp_path: Path) -> None:
    made, problem = prepared(with_latency(small_task(tmp_path), lambda _: 1.0))
    (workload,) = made.workloads
    hint = [c for c in problem.points if Settings.parse(c).numerics == AS_IS][-1]
    order = SearchOrder(Piece(0, workload.key, 0, 2, 0), hints=("no configuration", hint))
    proposal = ENGINE.client(problem).propose(order, quiet)
    assert [built.config for built in proposal.built] == [problem.points[0], hint]


def test_throughput_is_told_as_time_for_one_batch(tmp_path: Path) -> None:
    options = {"objective": "throughput", "int8": "off"}
    task = replace(with_latency(small_task(tmp_path), lambda _: 6.0), threads=3, options=options)
    made, problem = prepared(task)
    config = next(c for c in problem.points if Settings.parse(c).requests == 3)
    (trial,) = tried(made, [config]).values()
    assert trial.latency_ms is not None and trial.latency_ms.value == pytest.approx(2.0)
    assert trial.samples_ms == pytest.approx((2.0, 2.0, 2.0))
    assert problem.job(Settings.parse(config)).options["requests"] == "3"


def test_batches_to_choose_from_have_subjects_of_their_own(tmp_path: Path) -> None:
    options = {"objective": "throughput", "batches": "2,8", "int8": "off"}
    task = with_latency(small_task(tmp_path), lambda job: 1.0 + 0.1 * job.batch)
    with pytest.raises(UsageError, match="cannot be had at another batch than 2"):
        ENGINE.prepare(replace(task, options=options))

    def at(batch: int) -> Subject:
        spec = task.subject.inputs[0]
        return replace(task.subject, inputs=(replace(spec, shape=(batch, *spec.shape[1:])),))

    made, problem = prepared(replace(task, options=options, subject_at=at))
    config = next(c for c in problem.points if Settings.parse(c).batch == 8)
    (trial,) = tried(made, [config]).values()
    assert trial.latency_ms is not None and trial.latency_ms.value == pytest.approx(1.8 / 4)
    assert problem.job(Settings.parse(config)).subject.inputs[0].shape[0] == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objectiv": "latency"}, "did you mean objective"),
        ({"objective": "speed"}, "it is one of latency, throughput"),
        ({"batches": "1,2"}, "give objective=throughput too"),
        ({"batches": "1,x", "objective": "throughput"}, "no list of batches"),
        ({"tolerance": "much"}, "give a number from 0 to 1"),
        ({"confirm": "100"}, "give a number from 0 to 20"),
    ],
)
def test_options_are_refused_by_name_and_value(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_options(options)


def test_a_gpu_and_a_module_are_refused(tmp_path: Path) -> None:
    task = small_task(tmp_path)
    with pytest.raises(UsageError, match="an ONNX file on the cpu, given onnx on gpu:0"):
        ENGINE.prepare(replace(task, place="gpu:0"))
    torch = replace(task, subject=replace(task.subject, form="torch"))
    with pytest.raises(UsageError, match="given torch on cpu"):
        ENGINE.prepare(torch)


def test_without_openvino_onnxruntime_is_tuned_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slicewise.tune.backends.serving import problem as module

    monkeypatch.setattr(module, "find_spec", lambda name: None)
    task = with_latency(small_task(tmp_path), lambda _: 1.0)
    made, problem = prepared(replace(task, options={"int8": "off"}))
    assert [note.code for note in made.notes] == ["engine-missing"]
    assert {Settings.parse(c).engine for c in problem.points} == {ONNXRUNTIME}
    with pytest.raises(UsageError, match="openvino is not installed"):
        ENGINE.prepare(replace(task, options={"engines": "openvino"}))
