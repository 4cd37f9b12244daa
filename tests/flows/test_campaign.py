"""Campaigns: every point kept as it comes, resumed where it stopped, failures kept as records."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from slicewise.core.errors import MissingDependency, SlicewiseError, StoreError, UsageError
from slicewise.core.executor import Done, Item, Result
from slicewise.core.measurement import Job, Measurement, Outcome, Protocol
from slicewise.execute.inline import InlineExecutor
from slicewise.flows import campaign as flow
from slicewise.flows.campaign import CampaignProgress, prepare_campaign, run_campaign
from slicewise.flows.campaign_spec import CampaignModel, CampaignSpec
from slicewise.store.records import RecordStore
from slicewise.testing import onnx_models

QUICK = Protocol(warmup_runs=1, warmup_s=0.0, min_samples=3, max_samples=3, budget_s=0.2)


@pytest.fixture
def models(tmp_path: Path) -> tuple[CampaignModel, ...]:
    found = []
    for layers in (1, 2):
        path = tmp_path / f"decoder{layers}.onnx"
        onnx_models.save(onnx_models.small_decoder(layers=layers), path)
        found.append(CampaignModel(str(path), dims={"seq": 4}))
    return tuple(found)


@pytest.fixture
def spec(models: tuple[CampaignModel, ...]) -> CampaignSpec:
    return CampaignSpec("law", models, (1, 2), ("null",), (1, 2), device="cpu", protocol=QUICK)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Measure in this process, so that a test of the order costs no interpreters."""
    from slicewise.measure.harness import measure_here

    jobs: list[Job] = []

    def run(job: Job) -> Measurement:
        jobs.append(job)
        return measure_here(replace(job, threads=job.threads or 1, share=None))

    monkeypatch.setattr(flow, "run_job", run)
    return jobs


def test_every_point_is_a_record_and_is_measured_once(
    spec: CampaignSpec, tmp_path: Path, in_process: list[Job]
) -> None:
    store = tmp_path / "r.sqlite"
    told: list[CampaignProgress] = []
    result = run_campaign(spec, store=store, progress=told.append)
    assert (result.points, dict(result.outcomes)) == (8, {Outcome.OK: 8})
    assert [each.done for each in told] == list(range(1, 9))
    assert told[-1].seconds_left == 0
    with RecordStore(store, read_only=True) as records:
        assert records.count(campaign="law") == 8
    again = run_campaign(spec, store=store)
    assert (again.done_before, dict(again.outcomes)) == (8, {})
    assert len(in_process) == 8


def test_a_stopped_campaign_goes_on_and_loses_nothing(
    spec: CampaignSpec, tmp_path: Path, in_process: list[Job]
) -> None:
    store = tmp_path / "r.sqlite"

    class Interrupted(InlineExecutor):
        def as_completed(
            self, function: Callable[[Item], Result], items: Sequence[Item]
        ) -> Iterator[Done[Result]]:
            for done in super().as_completed(function, items):
                if done.index == 3:
                    raise KeyboardInterrupt
                yield done

    with pytest.raises(KeyboardInterrupt):
        run_campaign(spec, store=store, executor=Interrupted())
    result = run_campaign(spec, store=store)
    assert (result.done_before, sum(result.outcomes.values())) == (3, 5)
    with RecordStore(store, read_only=True) as records:
        found = list(records.find(campaign="law"))
    assert len({record.point for record in found}) == len(found) == 8


def test_a_limit_leaves_the_rest_open(
    spec: CampaignSpec, tmp_path: Path, in_process: list[Job]
) -> None:
    result = run_campaign(spec, store=tmp_path / "r.sqlite", limit=3)
    assert sum(result.outcomes.values()) == 3
    models = {job.subject.location for job in in_process}
    assert len(models) == 2  # the first round holds every model


def test_fresh_measures_all_anew(
    spec: CampaignSpec, tmp_path: Path, in_process: list[Job]
) -> None:
    run_campaign(spec, store=tmp_path / "r.sqlite")
    result = run_campaign(spec, store=tmp_path / "r.sqlite", fresh=True)
    assert (result.done_before, sum(result.outcomes.values())) == (0, 8)


def test_a_point_that_cannot_be_is_a_record_with_its_reason(
    spec: CampaignSpec, tmp_path: Path, in_process: list[Job]
) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    asked = replace(spec, models=(*spec.models, CampaignModel(str(broken))), batches=(1,))
    result = run_campaign(asked, store=tmp_path / "r.sqlite")
    assert dict(result.outcomes) == {Outcome.OK: 4, Outcome.REFUSED: 2}
    assert all("broken.onnx" in failure for failure in result.failures)
    with RecordStore(tmp_path / "r.sqlite", read_only=True) as records:
        (first, _) = records.find(outcome=Outcome.REFUSED)
    assert first.measurement.error and first.measurement.latency_ms is None
    assert first.measurement.device == "cpu" and first.measurement.device_digest


class _Losing(InlineExecutor):
    """Loses every second item, as a pool whose worker dies on it."""

    def as_completed(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[Done[Result]]:
        for done in super().as_completed(function, items):
            lost: Done[Result] = Done(done.index, error=SlicewiseError("a worker process died"))
            yield lost if done.index % 2 else done


def test_a_lost_worker_costs_its_point_only(
    spec: CampaignSpec, tmp_path: Path, in_process: list[Job]
) -> None:
    result = run_campaign(spec, store=tmp_path / "r.sqlite", executor=_Losing())
    assert dict(result.outcomes) == {Outcome.OK: 4, Outcome.CRASHED: 4}


def test_retry_measures_what_failed_and_nothing_else(
    spec: CampaignSpec, tmp_path: Path, in_process: list[Job]
) -> None:
    store = tmp_path / "r.sqlite"
    run_campaign(spec, store=store, executor=_Losing())
    assert run_campaign(spec, store=store).outcomes == {}
    result = run_campaign(spec, store=store, retry=True)
    assert (result.done_before, dict(result.outcomes)) == (4, {Outcome.OK: 4})
    assert run_campaign(spec, store=store, retry=True).outcomes == {}


def test_a_file_that_changed_is_another_model(
    spec: CampaignSpec, tmp_path: Path, in_process: list[Job]
) -> None:
    store = tmp_path / "r.sqlite"
    run_campaign(spec, store=store)
    changed = Path(spec.models[0].location)
    onnx_models.save(onnx_models.filled(onnx_models.small_decoder(layers=3)), changed)
    result = run_campaign(spec, store=store)
    assert (result.done_before, dict(result.outcomes)) == (4, {Outcome.OK: 4})


def test_a_framework_that_is_absent_is_told_once(
    spec: CampaignSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slicewise.measure.runtimes import _base

    monkeypatch.setattr(_base, "find_spec", lambda name: None)
    asked = replace(spec, runtimes=("openvino",))
    with pytest.raises(MissingDependency, match=r"pip install 'slicewise\[tune\]'"):
        run_campaign(asked, store=tmp_path / "r.sqlite")
    assert not (tmp_path / "r.sqlite").exists()


def test_an_unknown_runtime_is_told_before_anything_is_read(
    spec: CampaignSpec, tmp_path: Path
) -> None:
    asked = replace(spec, runtimes=("onxruntime",))
    with pytest.raises(UsageError, match=r"onxruntime.*did you mean onnxruntime\?"):
        run_campaign(asked, store=tmp_path / "r.sqlite")


def test_preparing_measures_nothing_and_tells_what_cannot_be(
    spec: CampaignSpec, tmp_path: Path, in_process: list[Job]
) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    asked = replace(spec, models=(*spec.models, CampaignModel(str(broken))))
    failures = prepare_campaign(asked)
    assert len(failures) == 2 and all("broken.onnx" in failure for failure in failures)
    assert in_process == []


@pytest.mark.slow
def test_ray_carries_the_same_points(spec: CampaignSpec, tmp_path: Path) -> None:
    from slicewise.execute._base import make_executor

    store = tmp_path / "r.sqlite"
    result = run_campaign(spec, store=store, executor=make_executor("ray", workers=2))
    assert dict(result.outcomes) == {Outcome.OK: 8}
    with RecordStore(store, read_only=True) as records:
        assert {record.campaign for record in records.find()} == {"law"}
        assert records.count() == 8


def test_a_killed_campaign_goes_on_where_it_was(
    models: tuple[CampaignModel, ...], tmp_path: Path
) -> None:
    path, store = tmp_path / "zoo.yaml", tmp_path / "r.sqlite"
    listed = ", ".join(f"{{model: {model.location}, dims: {{seq: 4}}}}" for model in models)
    path.write_text(
        f"models: [{listed}]\nruntime: 'null'\nthreads: 1\nbatch: [1, 2, 3]\ndevice: cpu\n"
        "protocol: {warmup_s: 0.001, min_samples: 3, max_samples: 3}\n"
    )
    command = [sys.executable, "-m", "slicewise", "campaign", str(path), "--store", str(store)]
    kept = 0
    for after in (1, 2):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while _count(store) < kept + after and process.poll() is None:
            pass
        process.kill()
        process.wait()
        kept = _count(store)
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    assert document["done_before"] == kept
    assert document["done_before"] + document["outcomes"].get("ok", 0) == 6
    with RecordStore(store, read_only=True) as records:
        found = list(records.find())
    assert len(found) == len({record.point for record in found}) == 6
    assert all(len(record.measurement.samples_ms) == 3 for record in found)


def _count(store: Path) -> int:
    if not store.exists():
        return 0
    try:
        with RecordStore(store, read_only=True) as records:
            return records.count()
    except StoreError:  # being made
        return 0


def test_the_command_measures_in_processes_and_goes_on(
    models: tuple[CampaignModel, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from slicewise.app.cli import run

    path = tmp_path / "zoo.yaml"
    path.write_text(
        f"models: [{{model: {models[0].location}, dims: {{seq: 4}}}}]\nruntime: 'null'\n"
        "threads: 1\nbatch: [1, 2]\ndevice: cpu\n"
        "protocol: {warmup_s: 0.001, min_samples: 3, max_samples: 3}\n"
    )
    words = ["campaign", str(path), "--store", str(tmp_path / "r.sqlite"), "--json"]
    assert run([*words, "--limit", "1"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["points"], first["outcomes"]) == (2, {"ok": 1})
    assert run(words) == 0
    second = json.loads(capsys.readouterr().out)
    assert (second["done_before"], second["outcomes"]) == (1, {"ok": 1})


def test_options_that_would_say_nothing_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from slicewise.app.cli import run

    path = tmp_path / "zoo.yaml"
    path.write_text("models: [none.onnx]\ndevice: cpu\n")
    for words in (["--prepare", "--limit", "3"], ["--workers", "0"], ["--workers", "2"]):
        assert run(["campaign", str(path), *words]) == 2
        assert words[-2] in capsys.readouterr().err


def test_preparing_in_vain_is_exit_code_7(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from slicewise.app.cli import run

    path = tmp_path / "zoo.yaml"
    path.write_text(f"models: [{tmp_path / 'none.onnx'}]\ndevice: cpu\n")
    assert run(["campaign", str(path), "--prepare", "--json"]) == 7
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "slicewise.campaign-preparation/1"
    assert (document["prepared"], len(document["failures"])) == (0, 1)
