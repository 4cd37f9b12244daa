"""`measure`, `check` and `compare` on a real model of this machine's CPU."""

import json
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from slicewise.app.cli import run
from slicewise.app.measuring.judging import _name
from slicewise.core.comparison import Verdict
from slicewise.core.cost import Estimate, Kind
from slicewise.core.errors import DeviceError, MeasureError, StoreError, UsageError
from slicewise.core.measurement import Job, Measurement, Outcome, Protocol
from slicewise.core.share import Mechanism, Share
from slicewise.flows import compare as compare_flow
from slicewise.flows import measure as measure_flow
from slicewise.flows.check import check
from slicewise.flows.compare import Case, _between_runs, compare
from slicewise.flows.devices import device
from slicewise.flows.measure import (
    MeasureOptions,
    Target,
    jobs_of,
    measure,
    part_of,
    run_job,
    target_here,
)
from slicewise.flows.operators import kind_of
from slicewise.measure.quiet import bound_cores
from slicewise.store.records import RecordStore
from slicewise.store.turns import turn
from slicewise.testing import onnx_models

QUICK = Protocol(warmup_runs=1, warmup_s=0.0, min_samples=3, max_samples=6, budget_s=0.3)
OPTIONS = MeasureOptions(threads=1, dims={"seq": 4}, protocol=QUICK)


@pytest.fixture
def decoder(tmp_path: Path) -> str:
    path = tmp_path / "decoder.onnx"
    onnx_models.save(onnx_models.filled(onnx_models.small_decoder()), path)
    return str(path)


def test_a_measurement_is_kept_under_its_conditions(decoder: str, tmp_path: Path) -> None:
    store = tmp_path / "r.sqlite"
    made = measure(decoder, device="cpu", batches=[1, 3], options=OPTIONS, store=store)
    assert [each.batch for each in made] == [1, 3]
    assert all(each.outcome is Outcome.OK for each in made)
    with RecordStore(store, read_only=True) as records:
        kept = [record.measurement for record in records.find()]
    assert kept == list(made)
    first = made[0]
    assert first.latency_ms is not None and first.memory is not None
    assert first.latency_ms.low <= first.latency_ms.value <= first.latency_ms.high
    assert first.memory.peak_bytes >= first.memory.runtime_bytes > 0
    assert first.threads == 1 and "onnxruntime" in first.environment.packages
    assert first.binding.dims == {"seq": 4}
    assert len({each.key for each in made}) == 2


@pytest.mark.parametrize(
    ("device", "options", "error", "message"),
    [
        ("l4", OPTIONS, DeviceError, "cannot be measured: a measurement runs on this machine"),
        ("gpu:7", OPTIONS, DeviceError, "gpu:7 is not there"),
        ("gpu:²", OPTIONS, DeviceError, "cannot be measured"),
        (" ", OPTIONS, UsageError, "device is empty"),
        ("cpu", replace(OPTIONS, runtime="onxruntime"), UsageError, "did you mean onnxruntime"),
        ("cpu", replace(OPTIONS, precision="fp17"), UsageError, "precision 'fp17' is unknown"),
        ("cpu", replace(OPTIONS, threads=0), UsageError, "threads 0 is not a positive"),
        ("cpu", replace(OPTIONS, share="150"), UsageError, "150"),
        ("cpu", replace(OPTIONS, share="mps:25"), UsageError, "divides a gpu"),
        ("cpu", replace(OPTIONS, runtime="torch-eager"), UsageError, "is an ONNX file"),
        (
            "cpu",
            replace(OPTIONS, runtime_options={"spining": "0"}),
            UsageError,
            r"spining.*did you mean spinning\?",
        ),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    decoder: str, device: str, options: MeasureOptions, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        measure(decoder, device=device, options=options, keep=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--samples", "0"], "--samples 0 gives nothing to take a median of"),
        (["--budget", "0"], "--budget 0 is not a positive time"),
        (["--time-limit", "nan"], "--time-limit nan is not a positive time"),
        (["--memory-limit", "0"], "--memory-limit 0 leaves no room"),
        (["--option", "spinning"], "is not KEY=VALUE"),
        (["--option", "a=1", "--option", "a=2"], "gives 'a' twice"),
    ],
)
def test_a_protocol_that_cannot_be_is_one_line(
    words: list[str], message: str, decoder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["measure", decoder, "--device", "cpu", "--no-keep", *words]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and not captured.out


@pytest.mark.skipif(find_spec("openvino") is not None, reason="openvino is installed")
def test_a_runtime_that_is_not_installed_names_its_extra(decoder: str) -> None:
    options = replace(OPTIONS, runtime="openvino")
    with pytest.raises(UsageError, match=r"needs openvino: pip install 'slicewise\[tune\]'"):
        measure(decoder, device="cpu", options=options, keep=False)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs that would have run."""
    jobs: list[Job] = []
    monkeypatch.setattr(measure_flow, "run_job", jobs.append)
    monkeypatch.setattr(compare_flow, "run_job", jobs.append)
    return jobs


def test_a_store_that_cannot_be_written_is_told_before_anything_runs(
    decoder: str, tmp_path: Path, ran: list[Job]
) -> None:
    store = tmp_path / "r.sqlite"
    store.write_bytes(b"no store at all " * 100)
    with pytest.raises(StoreError, match="is no SQLite file"):
        measure(decoder, device="cpu", options=OPTIONS, store=store)
    case = Case(decoder, None, "cpu", 1, OPTIONS)
    with pytest.raises(StoreError, match="is no SQLite file"):
        compare(case, case, store=store)
    assert ran == []


def test_a_batch_that_cannot_be_is_told_before_another_runs(decoder: str, ran: list[Job]) -> None:
    with pytest.raises(UsageError, match="batch 0"):
        measure(decoder, device="cpu", batches=[1, 0], options=OPTIONS, keep=False)
    assert ran == []


def test_a_green_context_is_refused_for_what_would_leave_it(decoder: str) -> None:
    target = Target("gpu:0", device("l4"), Share(Mechanism.GREEN, percent=25), "25%")
    options = replace(OPTIONS, runtime="onnxruntime")
    with pytest.raises(UsageError, match=r"green:25% holds what torch runs.*onnxruntime"):
        next(jobs_of(decoder, target, [1], options=options))
    assert next(jobs_of(decoder, target, [1], options=replace(OPTIONS, runtime="null")))


def test_a_crash_is_a_record_and_exit_code_7(
    decoder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "r.sqlite"
    words = ["measure", decoder, "--device", "cpu", "--runtime", "null", "--dim", "seq=4"]
    code = run([*words, "--option", "crash=1", "--store", str(store), "--json"])
    captured = capsys.readouterr()
    assert code == 7 and "crashed" in captured.err
    (entry,) = json.loads(captured.out)["measurements"]
    assert (entry["outcome"], entry["latency_ms"]) == ("crashed", None)
    with RecordStore(store, read_only=True) as records:
        assert records.count(outcome=Outcome.CRASHED) == 1


def _measured(**changes: object) -> Measurement:
    made = Measurement("m", "m.onnx", "0" * 64, "cpu", None, "onnxruntime", 1, "fp32", 2)
    return replace(made, **changes)  # type: ignore[arg-type]


def _job(decoder: str, **changes: object) -> Job:
    target = target_here("cpu")
    (job,) = jobs_of(decoder, target, [1], options=replace(OPTIONS, **changes))  # type: ignore[arg-type]
    return job


@pytest.mark.skipif(len(bound_cores()) < 2, reason="one core leaves nothing to choose")
def test_fewer_threads_than_cores_are_pinned_to_as_many(decoder: str) -> None:
    job = _job(decoder, threads=1)
    assert job.share is not None and len(job.share.cores) == 1 and job.slice is None
    assert set(job.share.cores) < set(bound_cores())
    assert _job(decoder, threads=len(bound_cores())).share is None
    assert _job(decoder, threads=None).share is None


def test_more_threads_than_cores_are_noted(decoder: str) -> None:
    codes = {note.code for note in _job(decoder, threads=99).subject.notes}
    assert "threads-crowded" in codes
    assert "threads-crowded" not in {note.code for note in _job(decoder).subject.notes}


def test_a_measurement_waits_for_its_turn(
    decoder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import multiprocessing

    monkeypatch.setenv("SLICEWISE_HOME", str(tmp_path))
    job = _job(decoder)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    parts = [f"core-{core}" for core in bound_cores()]
    other = context.Process(target=_hold, args=(tmp_path / "turns", parts, theirs), daemon=True)
    other.start()
    assert ours.recv() == "held"
    told: list[str] = []

    def let_go(words: str) -> None:
        told.append(words)
        ours.send("done")

    made = run_job(job, progress=let_go)
    other.join()
    assert made.outcome is Outcome.OK
    assert len(told) == 1 and "which another measurement has" in told[0]


def _hold(folder: Path, parts: list[str], pipe: "Connection[Any, Any]") -> None:
    with turn(parts, folder=folder):
        pipe.send("held")
        pipe.recv()


def test_threads_and_shares_are_parts_of_a_cpu() -> None:
    device = replace(target_here("cpu").device, compute_units=3)
    assert part_of(device, _measured(threads=3)).parent is None
    assert part_of(device, _measured(threads=2)).compute_units == 2
    assert part_of(device, _measured(threads=1)).compute_units == 1
    assert part_of(device, _measured(threads=3, slice="34%")).compute_units == 1
    assert part_of(device, _measured(threads=9)) == device
    few = part_of(device, _measured(threads=1, slice="67%"))
    assert (few.compute_units, few.parent) == (1, device)


def test_a_check_explains_the_difference_by_operators(decoder: str) -> None:
    found = check(decoder, device="cpu", options=OPTIONS, keep=False)
    assert found.prediction.slice in (None, "50%") or found.prediction.slice.endswith("%")
    measured_ms = sum(row.measured_ms for row in found.kinds)
    assert found.measurement.latency_ms is not None
    assert measured_ms + found.outside_ms == pytest.approx(found.measurement.latency_ms.value)
    predicted_ms = sum(row.predicted_ms for row in found.kinds) + found.prediction.host_ms
    assert predicted_ms == pytest.approx(found.prediction.latency_ms.value)
    assert {row.kind for row in found.kinds} >= {Kind.MATMUL}


@pytest.mark.parametrize("runtime", ["onnxruntime", "torch-eager"])
def test_operators_of_a_zoo_model_are_compared_one_by_one(runtime: str) -> None:
    options = MeasureOptions(runtime=runtime, threads=1, protocol=QUICK)
    found = check("timm:test_resnet", device="cpu", options=options, keep=False)
    names = {row.name for row in found.operators}
    assert len(names) == len(found.operators) > 10
    matched_ms = sum(row.measured_ms for row in found.operators)
    told_ms = sum(row.measured_ms for row in found.kinds)
    assert matched_ms > 0.5 * told_ms


def test_a_model_that_cannot_run_cannot_be_checked(decoder: str) -> None:
    options = replace(OPTIONS, protocol=replace(QUICK, time_limit_s=1e-6))
    with pytest.raises(MeasureError, match="could not be measured: timed out"):
        check(decoder, device="cpu", options=options, keep=False)


def test_a_runtime_that_is_not_predicted_is_refused_before_anything_runs(
    decoder: str, ran: list[Job]
) -> None:
    with pytest.raises(UsageError, match="runtime null is not predicted"):
        check(decoder, device="cpu", options=replace(OPTIONS, runtime="null"), keep=False)
    assert ran == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Conv", Kind.CONV), ("FusedConv", Kind.CONV), ("aten::mkldnn_convolution", Kind.CONV),
        ("MatMul", Kind.MATMUL), ("aten::addmm", Kind.MATMUL), ("Gemm", Kind.MATMUL),
        ("aten::relu_", Kind.ELEMENTWISE), ("aten::add", Kind.ELEMENTWISE),
        ("aten::native_layer_norm", Kind.NORM), ("SkipLayerNormalization", Kind.NORM),
        ("aten::_softmax", Kind.SOFTMAX), ("ReorderInput", Kind.MOVEMENT),
        ("aten::cat", Kind.MOVEMENT), ("aten::nobody_knows", None),
    ],
)  # fmt: skip
def test_names_that_profilers_use_have_a_kind(name: str, kind: Kind | None) -> None:
    assert kind_of(name) is kind


def test_the_same_model_twice_shows_no_difference(decoder: str) -> None:
    options = replace(OPTIONS, runtime="null")
    case = Case(decoder, None, "cpu", 1, options)
    found = compare(case, case, rounds=2, keep=False)
    assert found.ratio.low <= found.ratio.value <= found.ratio.high


def test_records_are_compared_by_number(tmp_path: Path) -> None:
    store = tmp_path / "r.sqlite"
    samples = tuple(10.0 + 0.01 * i for i in range(30))
    slow = tuple(2 * sample for sample in samples)
    with RecordStore(store) as records:
        for its in (samples, slow):
            latency = Estimate(its[15], low=its[10], high=its[20], source="measured")
            records.add(_measured(samples_ms=its, latency_ms=latency))
        records.add(_measured(outcome=Outcome.CRASHED, error="died"))
    found = compare(Case(record=1), Case(record=2), store=store)
    assert found.verdict is Verdict.SLOWER and found.ratio.value == pytest.approx(2.0)
    with pytest.raises(MeasureError, match="record 3 has no latency: crashed: died"):
        compare(Case(record=1), Case(record=3), store=store)


def test_rounds_that_disagree_widen_the_interval() -> None:
    def run_of(ms: float) -> Measurement:
        return _measured(latency_ms=Estimate(ms, ms, ms), samples_ms=(ms,) * 9)

    calm = _between_runs([[run_of(1.0)] * 3, [run_of(1.1)] * 3])
    wild = _between_runs([[run_of(1.0)] * 3, [run_of(ms) for ms in (0.8, 1.1, 1.6)]])
    assert calm < 0.01 < 0.3 < wild


def test_settings_of_the_two_sides_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "a.onnx", "b.onnx", "--batch", "1,2,3"]) == 2
    assert "--batch '1,2,3' has 3 values" in capsys.readouterr().err
    assert run(["compare", "a.onnx", "b.onnx", "--threads", "x"]) == 2
    assert "--threads 'x' is not a positive whole number" in capsys.readouterr().err


def test_options_about_measuring_are_refused_for_records(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["compare", "1", "2", "--batch", "8"]) == 2
    assert "--batch says how a model is measured" in capsys.readouterr().err
    assert run(["compare", "²", "a.onnx", "--device", "cpu", "--no-keep"]) == 3
    assert "there is no model file" in capsys.readouterr().err


def test_sides_are_called_by_what_they_differ_in() -> None:
    told = [("1", "8"), (None, None), ("50", "100"), ("spinning=1", "spinning=1")]
    assert _name("m.onnx", 0, told) == "m.onnx, 1, 50"
    assert _name("m.onnx", 1, told) == "m.onnx, 8, 100"
    assert _name("12", 0, told) == "record 12"
