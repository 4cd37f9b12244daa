"""`tune` from a model to an artefact: simulated kernels, and real settings of runtimes."""

import os
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from slicewise.core.cost import Estimate
from slicewise.core.errors import DeviceError, TuningError, UsageError
from slicewise.core.measurement import Job, Measurement
from slicewise.core.tuning import TrialOutcome, TuningStopped
from slicewise.flows.tune import tune
from slicewise.flows.tune_matrix import tune_matrix
from slicewise.flows.tuning.judge import judge
from slicewise.flows.tuning.options import TuneOptions
from slicewise.measure.quiet import bound_cores
from slicewise.store.home import home
from slicewise.testing import onnx_models

_TWO = len(bound_cores()) >= 2
needs_two_cores = pytest.mark.skipif(not _TWO, reason="this process may use one core only")


@pytest.fixture
def decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SLICEWISE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "decoder.onnx"
    onnx_models.save(onnx_models.filled(onnx_models.small_decoder()), path)
    return str(path)


def _options(**given: object) -> TuneOptions:
    made = TuneOptions(
        engine="simulated", executor="inline", clients=1, trials=24, dims={"seq": 4}
    )
    return replace(made, **given)  # type: ignore[arg-type]


def test_a_run_ends_with_the_best_of_each_workload_and_an_artefact(decoder: str) -> None:
    made = tune(decoder, device="cpu", options=_options())
    searched = [trial for trial in made.trials if not trial.is_alone]
    assert len(searched) == 24
    assert made.artifact is not None and made.artifact.is_dir() and any(made.artifact.iterdir())
    assert made.artifact.parent == Path.cwd()
    assert made.before_ms is not None and made.after_ms is not None
    assert made.after_ms.value <= made.before_ms.value
    for each in made.workloads:
        assert each.tuned is not None
        alone = [t for t in made.trials if t.workload == each.key and t.is_alone and t.is_ok]
        values = [t.latency_ms.value for t in alone if t.latency_ms is not None]
        assert each.tuned.latency_ms.value == min(values)
    assert sum(each.trials for each in made.workloads) == 24
    assert made.outlook is not None and made.outlook.total_ms.value <= made.curve[-1].total_ms
    assert [note.code for note in made.notes].count("simulated") == 1


def test_weights_are_the_predicted_latencies_of_the_operators(decoder: str) -> None:
    made = tune(decoder, device="cpu", options=_options())
    assert all(each.weight_ms > 0 for each in made.workloads)
    heaviest = sorted(made.workloads, key=lambda each: -each.weight_ms)
    assert [each.key for each in heaviest] == [each.key for each in made.workloads]


def test_what_a_short_run_left_in_the_store_is_where_the_next_one_begins(decoder: str) -> None:
    first = tune(decoder, device="cpu", options=_options())
    again = tune(decoder, device="cpu", options=_options(seed=1))
    searched = [trial for trial in again.trials if not trial.is_alone]
    assert len(searched) == 24
    for old in first.workloads:
        assert old.tuned is not None
        own = [trial.config for trial in searched if trial.workload == old.key]
        assert old.tuned.config in own[:3]


def test_what_the_store_knows_is_not_tuned_again(
    decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slicewise.flows.tune._SETTLED", 1)
    first = tune(decoder, device="cpu", options=_options())
    again = tune(decoder, device="cpu", options=_options())
    assert all(each.tuned is not None and each.tuned.is_from_store for each in again.workloads)
    assert not [trial for trial in again.trials if not trial.is_warm]
    for old, new in zip(first.workloads, again.workloads, strict=True):
        assert old.tuned is not None and new.tuned is not None
        assert (new.tuned.config, new.tuned.latency_ms.value) == (
            old.tuned.config,
            old.tuned.latency_ms.value,
        )
        assert new.tuned.default_ms == old.tuned.default_ms
    anew = tune(decoder, device="cpu", options=_options(is_fresh=True))
    assert len([t for t in anew.trials if not t.is_alone]) == 24
    alone = tune(decoder, device="cpu", options=_options(use_store=False))
    assert not [trial for trial in alone.trials if trial.is_warm]


def test_a_stopped_run_keeps_its_trials_and_goes_on(
    decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slicewise.store.journal import Journal

    told = 0
    append = Journal.append

    def stopping(self: Journal, entry: object) -> None:  # type: ignore[type-arg]
        nonlocal told
        append(self, entry)
        told += 1
        if told == 11:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "append", stopping)
    with pytest.raises(TuningStopped) as stopped:
        tune(decoder, device="cpu", options=_options(use_store=False))
    assert stopped.value.trials == 11
    assert stopped.value.journal.is_file() and home() in stopped.value.journal.parents
    monkeypatch.setattr(Journal, "append", append)
    made = tune(decoder, device="cpu", options=_options(use_store=False, is_resumed=True))
    searched = [trial for trial in made.trials if not trial.is_alone]
    assert len(searched) == 24
    assert len({(trial.workload, trial.config) for trial in searched}) == 24
    # what the store knows by then does not end it
    for use_store, trials in ((False, 30), (True, 36), (True, 42)):
        longer = _options(use_store=use_store, is_resumed=True, trials=trials)
        made = tune(decoder, options=longer)
        assert len([t for t in made.trials if not t.is_alone and not t.is_warm]) == trials


def test_real_processes_tune_as_one_process_does(decoder: str) -> None:
    made = tune(decoder, device="cpu", options=_options(executor="local"))
    assert len([trial for trial in made.trials if not trial.is_alone]) == 24
    assert all(trial.outcome is TrialOutcome.OK for trial in made.trials)
    assert made.phases.wall_s > 0 and made.phases.servers == made.phases.clients == 1


@needs_two_cores
def test_a_matrix_costs_nothing_on_its_diagonal(decoder: str) -> None:
    made = tune_matrix(
        decoder, shares=["100", "50"], device="cpu", options=_options(candidates=6), rounds=2
    )
    assert made.shares[-1] == "100%" and len(made.shares) == 2
    for matrix in (made.total, *made.workloads):
        for cell in matrix.cells:
            if cell.tuned_at == cell.run_at:
                assert cell.penalty.value == 1.0
    assert made.candidates == 6 * len(made.workloads)
    # what is simulated has another best at each share
    off = [c for m in made.workloads for c in m.cells if c.tuned_at != c.run_at]
    assert max(cell.penalty.value for cell in off) > 1.0


@needs_two_cores
def test_auto_tunes_on_the_share_that_measures_best(
    decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slicewise.flows.tuning import choice

    count = len(bound_cores())

    def flat(job: Job) -> Measurement:
        assert job.share is None or len(job.share.cores) <= count
        made = Measurement("m", "m", "0" * 64, "cpu", job.slice, job.runtime, 1, "fp32", 1)
        return replace(
            made,
            latency_ms=Estimate(5.0, low=4.9, high=5.1, source="measured"),
            samples_ms=(5.0,),
        )

    monkeypatch.setattr(choice, "run_job", flat)
    made = tune(decoder, device="cpu", options=_options(share="auto"))
    assert made.choice is not None
    assert made.choice.chosen_percent == pytest.approx(100 / count)
    assert made.share == f"{made.choice.chosen_percent:g}%"
    measured = [point for point in made.choice.points if point.measured_ms is not None]
    assert 2 <= len(measured) <= len(made.choice.points)


def test_serving_settings_end_with_a_model_that_computes_the_same(decoder: str) -> None:
    options = replace(
        _options(engine="serving", executor="local", trials=3),
        engine_options={"engines": "onnxruntime", "confirm": "1"},
    )
    made = tune(decoder, device="cpu", options=options)
    assert made.outputs_equal is True and made.difference is not None
    assert made.artifact is not None and (made.artifact / "run.py").is_file()
    assert str(made.artifact) in made.how_to_run
    assert made.before_options["runtime"] == "onnxruntime"
    assert made.before_ms is not None and made.after_ms is not None
    assert made.after_ms.value <= made.before_ms.value
    assert "no-accuracy-data" in {note.code for note in made.notes}


def test_an_artefact_that_is_slower_gives_way_to_the_default(
    decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slicewise.flows.tuning import finish

    def slower(artifact, *, progress):  # type: ignore[no-untyped-def]
        made = judge(artifact, rounds=1)
        return replace(
            made, after_ms=Estimate(1e9, low=1e9, high=1e9, source=made.after_ms.source)
        )

    monkeypatch.setattr(finish, "judge", slower)
    options = replace(
        _options(engine="serving", executor="local", trials=2),
        engine_options={"engines": "onnxruntime", "confirm": "0"},
    )
    made = tune(decoder, device="cpu", options=options)
    assert "tune-no-gain" in {note.code for note in made.notes}
    assert made.gain == 1.0


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"engine": "servin"}, UsageError, r"'servin' is unknown; known are serving, tvm, triton"),
        ({"engine": "triton"}, UsageError, r"does not tune for a cpu"),
        ({"share": "150"}, UsageError, r"share '150' is impossible"),
        ({"share": "gpu"}, UsageError, r"share 'gpu' is none"),
        ({"share": "mps:25"}, UsageError, r"divides a gpu"),
        ({"clients": 4096}, UsageError, r"clients=4096 need a core each.*give --clients 1"),
        ({"servers": 4096, "share": "cores:0"}, UsageError, r"servers=4096"),
        ({"engine_options": {"nosuch": "1"}}, UsageError, r"nosuch"),
        ({"accuracy_data": Path("absent.npz")}, UsageError, r"'absent.npz' is not there"),
        ({"seed": -1}, UsageError, r"seed=-1 is below 0"),
        ({"executor": "kubernetes"}, UsageError, r"executor 'kubernetes' is unknown"),
    ],
)
def test_a_mistake_is_one_clear_line(
    decoder: str, given: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        tune(decoder, device="cpu", options=_options(**given))


def test_a_device_that_is_not_here_is_refused(decoder: str) -> None:
    with pytest.raises(DeviceError, match="a measurement runs on this machine"):
        tune(decoder, device="a100-sxm4-80gb", options=_options())


def test_a_folder_with_other_files_is_not_replaced(decoder: str, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("a cat")
    with pytest.raises(UsageError, match="holds files that are no tuned model"):
        tune(decoder, options=_options(artifact=tmp_path / "photos"))
    assert (tmp_path / "photos" / "cat.jpg").read_text() == "a cat"


def test_a_run_of_another_process_is_named(decoder: str) -> None:
    from slicewise.core.errors import StoreError
    from slicewise.store.trials import open_trials

    made = tune(decoder, device="cpu", options=_options())
    assert made.journal is not None
    digest = made.journal.read_text().splitlines()[0].split('"digest":"')[1][:64]
    holder = open_trials(made.journal, digest=digest, fresh=False)
    try:
        with pytest.raises(StoreError, match="another run"):
            tune(decoder, device="cpu", options=_options(is_fresh=True))
    finally:
        holder.close()


def test_nothing_that_runs_is_an_error_with_the_reason(
    decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slicewise.tune.backends import simulated

    monkeypatch.setattr(simulated, "_fate", lambda *_: "refuse")  # the defaults among them
    with pytest.raises(TuningError, match=r"no configuration of .* ran with simulated \(24 tried"):
        tune(decoder, device="cpu", options=_options())


def test_a_real_model_is_read_once_and_named_as_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLICEWISE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    folder = Path(onnx.__file__).parent / "backend/test/data/light"
    made = tune(os.fspath(folder / "light_resnet50.onnx"), options=_options(trials=60, dims={}))
    assert made.artifact == tmp_path / "light_resnet50.tuned"
    counts = {each.name: each.count for each in made.workloads}
    assert sum(counts.values()) > len(counts)


def test_settings_that_give_several_samples_at_once_are_judged_by_the_sample() -> None:
    from slicewise.core.measurement import InputSpec, Subject
    from slicewise.core.precision import DType
    from slicewise.core.tuning import Artifact

    subject = Subject("m", "m", "0" * 64, (InputSpec("x", (1,), DType.FP32),), "onnx", str)
    before, after = (Job(subject, name, 1) for name in ("before", "after"))

    def run(job: Job) -> Measurement:
        ms = {"before": 4.0, "after": 10.0}[job.runtime]
        made = Measurement("m", "m", "0" * 64, "cpu", None, job.runtime, 1, "fp32", 1)
        return replace(
            made,
            latency_ms=Estimate(ms, low=ms, high=ms, source="measured"),
            samples_ms=(ms,) * 8,
        )

    made = Artifact(Path(), before, after, before_items=1, after_items=4)
    judged = judge(made, run=run, outputs=lambda _: ())
    assert (judged.before_ms.value, judged.after_ms.value) == (4.0, 2.5)
    assert not judged.is_slower
    assert "times-per-sample" in {note.code for note in judged.notes}
