"""The campaign's plan, its sampling on a clock of our own, and a whole run on the null device."""

import csv
import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import gpu_campaign_error
from benchmarks.gpu_campaign import plan, sampling
from benchmarks.gpu_campaign.__main__ import TABLES, main
from benchmarks.gpu_campaign.energy import NoMeter, NullMeter, find_meter
from benchmarks.gpu_campaign.process import Table, Worker, WorkerLost
from benchmarks.gpu_campaign.shares import sms_of
from slicewise.core.precision import Precision
from slicewise.hardware.catalogue import find_device

ROOT = Path(__file__).parents[2]


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers import the package `benchmarks` from the folder that they start in."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")


# --- the plan


def test_the_plan_has_the_points_that_the_campaign_is_for() -> None:
    eager = plan.eager_points(smoke=False)
    compiled = [each for group in plan.compiled_points(smoke=False) for each in group]
    assert len(set(eager)) >= 150
    assert {each.batch for each in eager} >= {1, 8, 32, 128}
    assert len({each.family for each in eager}) >= 10
    assert {each.runtime for each in compiled} == {"torch-compile"}
    for name in {each.precision for each in (*eager, *compiled)}:
        Precision.named(name)
    shares = plan.share_points(smoke=False)
    assert len({each.location for each in shares}) == 12
    assert {each.share_percent for each in shares} == {12, 25, 50, 75, 100}


def test_a_model_is_never_cast_back_to_a_wider_type() -> None:
    for conditions in plan.CONDITIONS:
        narrow = [precision in ("fp16", "bf16") for precision, _ in conditions]
        assert narrow == sorted(narrow)


def test_every_prefix_of_the_kernels_is_balanced() -> None:
    points = plan.kernel_points(smoke=False)
    whole = Counter(each.kind for each in points)
    for n in (20, 50, 100):
        part = Counter(each.kind for each in points[:n])
        for kind, count in whole.items():
            assert abs(part[kind] - count * n / len(points)) <= 2


def test_kernels_are_the_same_for_one_seed_and_within_limits() -> None:
    points = plan.kernel_points(smoke=False)
    assert points == plan.kernel_points(smoke=False)
    assert len(points) == 200
    for point in points:
        flops, moved = plan.work_of(point)
        assert flops <= plan.MOST_FLOPS
        assert 0 < moved <= plan.MOST_BYTES


def test_work_of_a_product_and_a_convolution_is_that_of_the_formula() -> None:
    product = plan.KernelPoint("gemm", "linear", {"b": 1, "m": 2, "n": 3, "k": 4})
    assert plan.work_of(product) == (48, 2 * (8 + 12 + 6))
    sizes = {"n": 1, "c": 4, "out": 4, "hw": 5, "kernel": 3, "stride": 2, "groups": 4}
    depthwise = plan.KernelPoint("conv", "depthwise", sizes)
    assert plan.work_of(depthwise) == (2 * 9 * 36, 2 * (4 * 25 + 4 * 9 + 36))


def test_shares_are_whole_groups_of_eight_sms() -> None:
    assert [sms_of(p, 132) for p in (12, 25, 50, 75, 100)] == [16, 32, 64, 96, 132]
    assert sms_of(1, 132) == 8


# --- sampling


def test_a_steady_run_gives_its_time_and_the_power_of_the_meter() -> None:
    timer = sampling.NullTimer()
    taken = sampling.take(
        lambda: timer.work(2.0), timer, meter=NullMeter(timer.now), rules=sampling.Rules()
    )
    assert {round(ms, 6) for ms in taken.wall_ms} == {2.0}
    assert taken.stream_ms == pytest.approx(2.0)
    assert taken.power_w == pytest.approx(300.0, rel=0.05)
    assert taken.energy_j == pytest.approx(0.6, rel=0.05)
    assert taken.power_source == "null-energy"


def test_a_slow_run_is_sampled_at_least_three_times() -> None:
    timer = sampling.NullTimer()
    taken = sampling.take(
        lambda: timer.work(3000.0), timer, meter=NoMeter(), rules=sampling.Rules()
    )
    assert len(taken.wall_ms) >= 3
    assert taken.energy_j is None


def test_warm_up_goes_on_while_runs_get_faster() -> None:
    timer, runs = sampling.NullTimer(), [0]

    def run() -> None:
        runs[0] += 1
        timer.work(max(10.0, 60.0 - 5 * runs[0]))

    taken = sampling.take(run, timer, meter=NoMeter(), rules=sampling.Rules())
    assert taken.warmup_runs >= 10


def test_the_interval_of_the_median_holds_it() -> None:
    low, high = sampling.interval([float(n) for n in range(101)])
    assert low <= 50 <= high
    assert sampling.interval([7.0]) == (7.0, 7.0)


def test_a_machine_without_a_gpu_has_no_energy_and_says_why() -> None:
    meter, note = find_meter("cpu")
    assert meter.joules() is None
    assert "cpu" in note


# --- the whole


def test_a_run_on_the_null_device_fills_every_table(tmp_path: Path) -> None:
    assert main(["--device", "null", "--smoke", "--out", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "env.json", "kernels.csv", "log.txt", "models.csv", "shares.csv",
    ]  # fmt: skip
    models = _rows(tmp_path / "models.csv")
    assert {row["runtime"] for row in models} == {"torch-eager", "torch-compile"}
    failed = [row for row in models if row["outcome"] == "failed"]
    assert {row["location"] for row in failed} == {"timm:no_such_model"}
    assert all("no such model" in row["error"] for row in failed)
    for row in (*models, *_rows(tmp_path / "shares.csv"), *_rows(tmp_path / "kernels.csv")):
        if row["outcome"] == "ok":
            assert float(row["latency_ms"]) > 0
            assert float(row["energy_j"]) > 0
    document = json.loads((tmp_path / "env.json").read_text())
    assert document["parts"]["eager"] == document["parts"]["eager"] | {
        "measured": 4, "failed": 2, "not_reached": 0,
    }  # fmt: skip


def test_a_campaign_that_is_out_of_time_tells_what_it_did_not_reach(tmp_path: Path) -> None:
    main(["--device", "null", "--smoke", "--seconds", "0.01", "--out", str(tmp_path)])
    document = json.loads((tmp_path / "env.json").read_text())
    assert document["parts"]["eager"]["not_reached"] == 6
    assert _rows(tmp_path / "models.csv") == []


def test_every_column_of_the_tables_is_explained() -> None:
    page = (ROOT / "benchmarks" / "gpu_campaign" / "README.md").read_text()
    missing = {column for columns in TABLES.values() for column in columns if column not in page}
    assert missing == set()


def test_a_row_is_on_the_disk_before_the_next_is_measured(tmp_path: Path) -> None:
    table = Table(tmp_path / "t.csv", ("a", "b"))
    table.add({"a": 1.23456789, "c": "not a column"})
    assert (tmp_path / "t.csv").read_text() == "a,b\n1.23457,\n"
    table.close()


def test_a_worker_that_cannot_go_on_is_lost_in_words(tmp_path: Path) -> None:
    worker = Worker("null", smoke=True, log=tmp_path / "log", environment={})
    worker.ready(30.0)
    assert worker.ask({"do": "facts"}, timeout_s=30.0)["row"]["meter"] == "null"
    worker.kill()
    with pytest.raises(WorkerLost, match="gone"):
        worker.ask({"do": "facts"}, timeout_s=1.0)


def test_the_campaign_needs_no_msgspec_no_onnxruntime_no_yaml() -> None:
    code = (
        "import sys\n"
        "for name in ('msgspec', 'onnxruntime', 'yaml'): sys.modules[name] = None\n"
        "import benchmarks.gpu_campaign.__main__, benchmarks.gpu_campaign.worker\n"
        "from slicewise.graph.frontends import zoo\n"
        "import slicewise.graph.frontends.zoo.timm, slicewise.graph.frontends.zoo.transformers\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=dict(os.environ))


# --- the error report


def test_without_tables_the_report_says_so_and_ends_with_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_campaign_error, "GPU", tmp_path)
    assert gpu_campaign_error.main([]) == 0
    assert "absent" in capsys.readouterr().err


def test_a_torn_last_line_and_failed_rows_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "models.csv"
    path.write_text("outcome,latency_ms,x\nok,1.0,2\nfailed,,\nok,3.")
    assert [row["x"] for row in gpu_campaign_error.read_rows(path)] == ["2"]


def test_a_share_is_predicted_on_the_very_sms_it_was_measured_on() -> None:
    card = find_device("h200-sxm-141gb")
    for percent in (12, 25, 50, 75):
        row = {"sms": str(sms_of(percent, 132)), "share_percent": str(percent)}
        part = card.share(percent=gpu_campaign_error._percent(row, card.compute_units))
        assert part.compute_units == int(row["sms"])


@pytest.mark.slow
def test_a_run_on_the_cpu_measures_models_of_the_zoo(tmp_path: Path) -> None:
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    assert main(["--device", "cpu", "--smoke", "--out", str(tmp_path)]) == 0
    ok = [row for row in _rows(tmp_path / "models.csv") if row["outcome"] == "ok"]
    assert {row["location"].partition(":")[0] for row in ok} == {"timm", "transformers"}
    assert all(row["energy_j"] == "" for row in ok)
