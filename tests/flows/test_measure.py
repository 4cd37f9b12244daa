"""`measure`, `check` and `compare` on a real model of this machine's CPU."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from slicewise.app.cli import run
from slicewise.core.comparison import Verdict
from slicewise.core.cost import Estimate, Kind, NodeEstimate
from slicewise.core.errors import DeviceError, MeasureError, UsageError
from slicewise.core.measurement import Measurement, NodeTime, Outcome, Protocol
from slicewise.flows.check import OperatorDifference, _by_name, check, kind_of
from slicewise.flows.compare import Case, _between_runs, compare
from slicewise.flows.measure import MeasureOptions, measure, part_of, target_here
from slicewise.store.records import RecordStore
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


def test_threads_and_shares_are_parts_of_a_cpu() -> None:
    device = replace(target_here("cpu").device, compute_units=3)
    assert part_of(device, _measured(threads=3)).parent is None
    assert part_of(device, _measured(threads=2)).compute_units == 2
    assert part_of(device, _measured(threads=1)).compute_units == 1
    assert part_of(device, _measured(threads=3, slice="34%")).compute_units == 1
    assert part_of(device, _measured(threads=9)) == device


def test_a_check_explains_the_difference_by_operators(decoder: str) -> None:
    found = check(decoder, device="cpu", options=OPTIONS, keep=False)
    assert found.prediction.slice in (None, "50%") or found.prediction.slice.endswith("%")
    measured_ms = sum(row.measured_ms for row in found.kinds)
    assert found.measurement.latency_ms is not None
    assert measured_ms + found.outside_ms == pytest.approx(found.measurement.latency_ms.value)
    predicted_ms = sum(row.predicted_ms for row in found.kinds) + found.prediction.host_ms
    assert predicted_ms == pytest.approx(found.prediction.latency_ms.value)
    assert {row.kind for row in found.kinds} >= {Kind.MATMUL}


def test_kernels_that_keep_their_names_are_compared_one_by_one() -> None:
    def node(name: str, kernel: int, ms: float) -> NodeEstimate:
        return NodeEstimate(name, "Conv", Kind.CONV, ms, ms, 0.0, "compute", 1, 1, kernel)

    predicted = [node("conv1", 0, 2.0), node("relu1", 0, 0.5), node("conv2", 1, 1.0)]
    measured = [NodeTime("conv1", "FusedConv", 1.0), NodeTime("other", "Conv", 9.0)]
    assert _by_name(predicted, measured) == (OperatorDifference("conv1", "Conv", 2.5, 1.0),)


def test_a_model_that_cannot_run_cannot_be_checked(decoder: str) -> None:
    options = replace(OPTIONS, runtime="null", runtime_options={"refuse": "1"})
    with pytest.raises(MeasureError, match="could not be measured"):
        check(decoder, device="cpu", options=options, keep=False)


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
