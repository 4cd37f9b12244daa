"""The GPU check's plan, its tuners on fake clocks, its tables, and a whole run without a GPU."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import gpu_tune_tables, tables
from benchmarks.gpu_tune import __main__ as program
from benchmarks.gpu_tune import plan, shares
from benchmarks.gpu_tune.plan import Item
from benchmarks.gpu_tune.process import Lines, Peer, PeerLost
from benchmarks.gpu_tune.tuners import run_tuners
from slicewise.tune.backends.triton.plans import read_config
from slicewise.tune.backends.triton.spaces import Target, why_not

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers import the package `benchmarks` from the folder that they start in."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")


# --- the plan


def test_the_plan_is_what_the_check_is_for() -> None:
    found = plan.kernels(smoke=False)
    assert 8 <= len(found) <= 12 and len({each.op.text for each in found}) == len(found)
    assert {each.op.kind for each in found} == {"conv", "matmul", "attention", "norm", "softmax"}
    assert all(each.op.refusal == "" for each in found)
    assert 24 <= plan.CONFIGS <= 40 and len(plan.SMS) == 5
    assert max(tuners for tuners, _ in plan.TUNERS) * plan.LANE_SMS <= 132


@pytest.mark.parametrize("kernel", plan.kernels(smoke=False), ids=lambda each: each.name)
def test_configurations_are_many_different_and_may_run(kernel: plan.Kernel) -> None:
    chosen = plan.configs(kernel.op, plan.CONFIGS, capability=90, smallest_sms=16)
    assert 24 <= len(chosen) == len(set(chosen)) <= plan.CONFIGS
    for text in chosen:
        assert not why_not(kernel.op, read_config(kernel.op.kind, text), Target(90, 16))
    assert chosen == plan.configs(kernel.op, plan.CONFIGS, capability=90, smallest_sms=16)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 4))
def test_every_item_has_one_tuner_and_kernels_stay_together(
    counts: list[int], tuners: int
) -> None:
    items = plan.in_turn([[f"c{i}" for i in range(count)] for count in counts])
    assert len(items) == len(set(items)) == sum(counts)
    cost = {kernel: float(count) for kernel, count in enumerate(counts)}
    shards = plan.share_out(items, tuners, cost)
    assert len(shards) == tuners
    assert sorted(map(repr, items)) == sorted(repr(each) for shard in shards for each in shard)
    kernels = [{each.kernel for each in shard} for shard in shards]
    assert sum(map(len, kernels)) == len(set().union(*kernels))


def test_time_left_decides_how_much_is_tuned() -> None:
    assert plan.tuned_count(1e6, 12, 1.0) == plan.MOST_TUNED
    assert plan.tuned_count(1.0, 12, 1.0) == plan.LEAST_TUNED
    assert plan.LEAST_TUNED < plan.tuned_count(90.0, 12, 1.0) < plan.MOST_TUNED


# --- tuners


@given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=5),
    tuners=st.integers(1, 3),
    clients=st.integers(1, 2),
    bad=st.sets(st.integers(0, 4)),
)
@settings(deadline=None, max_examples=25)
def test_tuners_try_every_candidate_once(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], tuners: int, clients: int,
    bad: set[int],
) -> None:  # fmt: skip
    items = plan.in_turn([[f"c{i}" for i in range(count)] for count in counts])
    shards = plan.share_out(items, tuners, dict.fromkeys(range(len(counts)), 1.0))
    kept: list[tuple[int, Item]] = []
    lanes: dict[int, set[int]] = {}

    def compile_item(client: int, item: Item, cache: Path) -> Mapping[str, Any]:
        assert 0 <= client < tuners * clients
        return {"error": "no" if item.kernel in bad else "", "seconds": 0.5}

    def measure_item(lane: int, item: Item) -> Mapping[str, Any]:
        lanes.setdefault(lane, set()).add(threading.get_ident())
        return {"error": "", "samples_ms": [1.0], "wall_s": 0.25}

    run = run_tuners(
        shards, tuners * clients, tmp_path_factory.getbasetemp(), compile_item=compile_item,
        measure_item=measure_item, until=time.monotonic() + 60,
        keep=lambda lane, item, _: kept.append((lane, item)),
    )  # fmt: skip
    failed = [item for item in items if item.kernel in bad]
    assert run.is_whole and (run.done, run.failed) == (len(items) - len(failed), len(failed))
    assert {item for _, item in kept} == set(items) and len(kept) == len(items)
    assert run.compile_s == 0.5 * len(items) and sum(run.measure_s) == 0.25 * run.done
    assert set(run.samples) == set(items) - set(failed)
    assert all(len(threads) == 1 for threads in lanes.values())


def test_tuners_stop_when_time_is_up(tmp_path: Path) -> None:
    run = run_tuners(
        [[Item(0, "a"), Item(0, "b")]], 1, tmp_path,
        compile_item=lambda *_: {"error": "", "seconds": 0.0},
        measure_item=lambda *_: {"error": "", "samples_ms": [1.0]},
        until=time.monotonic() - 1, keep=lambda *_: None,
    )  # fmt: skip
    assert not run.is_whole and run.done == 0


# --- processes and shares


def test_a_lost_process_is_said_to_be_lost(tmp_path: Path) -> None:
    peer = Peer("benchmarks.gpu_tune.no_such_module", log=tmp_path / "log")
    with pytest.raises(PeerLost, match="ended"):
        peer.ready(60)
    with pytest.raises(PeerLost, match="ended"):
        peer.ask({"do": "facts"}, timeout_s=1)
    peer.kill()


def test_lines_are_whole_and_nothing_follows_a_close(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "rows.jsonl")
    lines.add({"a": 1})
    lines.close()
    lines.add({"a": 2})
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"a": 3')
    assert gpu_tune_tables.read_lines(tmp_path / "rows.jsonl") == [{"a": 1}]


class FakeDriver:
    """The calls of cuda.bindings.driver that sets of SMs are made with."""

    CUdevResourceType = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM=1)

    def cuDeviceGet(self, number: int) -> tuple[int, int]:  # noqa: N802
        return 0, number

    def cuDeviceGetDevResource(self, device: int, kind: int) -> tuple[int, Any]:  # noqa: N802
        return 0, SimpleNamespace(sm=SimpleNamespace(smCount=132))

    def cuDevSmResourceSplitByCount(  # noqa: N802
        self, groups: int, whole: Any, flags: int, least: int
    ) -> tuple[int, list[Any], int, Any]:
        made = min(groups, 132 // least) if least != 64 else 1
        sets = [SimpleNamespace(sm=SimpleNamespace(smCount=least)) for _ in range(groups)]
        return 0, sets, made, None


def test_sets_of_sms_are_those_that_the_driver_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "_driver", FakeDriver)
    green = shares.Shares("green-stream")
    assert (green.count(32), green.count(64), green.count(16)) == (4, 1, 8)
    assert green.seen == {32: 32, 64: 64, 16: 16}
    with pytest.raises(ValueError, match="1 sets of 64 SMs, not 2"):
        green._group(64, 1)
    assert shares.Shares("green-torch").count(32) is None


def test_an_error_of_the_driver_has_its_name() -> None:
    with pytest.raises(OSError, match="CUDA_ERROR_NOT_SUPPORTED"):
        shares._checked((_Status(801, "CUDA_ERROR_NOT_SUPPORTED"), None))


class _Status(int):
    name: str

    def __new__(cls, number: int, name: str) -> "_Status":
        made = super().__new__(cls, number)
        made.name = name
        return made


# --- tables


def swept(kernel: str, config: str, sms: int, ms: float) -> list[dict[str, Any]]:
    row = {"phase": "sweep", "kernel": kernel, "count": 2, "config": config, "sms": sms,
           "error": ""}  # fmt: skip
    return [row | {"visit": visit, "samples_ms": [ms, ms * 1.01] * 5} for visit in range(2)]


def judged(kernel: str, config: str, ms: float, *chosen_by: str) -> dict[str, Any]:
    return {"phase": "judge", "kernel": kernel, "config": config, "error": "",
            "samples_ms": [ms] * 4, "chosen_by": list(chosen_by)}  # fmt: skip


def write_files(folder: Path, sweep: Sequence[Any], tuners: Sequence[Any]) -> None:
    folder.mkdir(exist_ok=True)
    told = {"device": "NVIDIA H200", "sms": 132, "torch": "2.11", "triton": "3.6"}
    environment = {"device": told, "mechanism": "green-stream", "started_at": "2026-01-01",
                   "lane_sms": 32, "asked_device": "cuda"}  # fmt: skip
    (folder / "env.json").write_text(json.dumps(environment))
    for name, rows in (("sweep", sweep), ("tuners", tuners)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_tables_tell_penalties_knees_and_winners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "results")
    sweep = [
        *swept("k", "small", 16, 4.0), *swept("k", "large", 16, 8.0),
        *swept("k", "small", 128, 3.0), *swept("k", "large", 128, 1.5),
    ]  # fmt: skip
    runs = [
        {"phase": "run", "tuners": t, "clients": c, "wall_s": wall, "compile_s": 9.0,
         "measure_s": [1.0] * t, "done": 2, "failed": 0, "is_whole": True}
        for t, c, wall in ((1, 4, 100.0), (4, 16, 30.0))
    ]  # fmt: skip
    choice = [judged("k", "large", 1.5, "1/4"), judged("k", "small", 1.53, "4/16")]
    write_files(tmp_path / "found", sweep, [*runs, *choice])
    gpu_tune_tables.write(tmp_path / "found")
    page = (tmp_path / "results" / "gpu_tune.md").read_text()
    assert "| **16** | 1.000 (1.000 to 1.000) | 2.000" in page
    assert "| **128** | 2.000" in page
    assert "| k | 4.02 | 1.508 | 128 | 2 | 2 |" in page
    assert (
        "| 4 | 16 | 2 | 0 | 30.0 | 0.30 | 9.0 | 4.0 | 1.0 | 1.020 | 1.020 | 1 of 1 | yes |" in page
    )


def test_without_results_no_page_is_made(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"gpu_tune\.sh"):
        gpu_tune_tables.write(tmp_path)


# --- the whole


def test_the_whole_runs_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="the kernels need Triton")
    pytest.importorskip("torch", reason="inputs and references are made by torch")
    out = tmp_path / "out"
    done = subprocess.run(
        ["sh", str(ROOT / "benchmarks" / "gpu_tune.sh"), "--device", "cpu", "--smoke"],
        capture_output=True, text=True, check=False,
        env={**os.environ, "OUT": str(out), "PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(each.name for each in out.iterdir()) == [
        "env.json", "log.txt", "sweep.jsonl", "tuners.jsonl",
    ]  # fmt: skip
    environment = json.loads((out / "env.json").read_text())
    parts = environment["parts"]
    assert parts["compile"]["done"] == parts["compile"]["asked"] == 12
    assert parts["sweep"]["points"] == 12 * 5 * 2 and parts["sweep"]["failed"] == 0
    assert [run["done"] for run in parts["tuners"]["runs"]] == [9] * len(plan.TUNERS)
    assert parts["judge"]["points"] > 0
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "results")
    gpu_tune_tables.write(out)
    page = (tmp_path / "results" / "gpu_tune.md").read_text()
    assert "A run without a GPU" in page and "### tiny product" in page


def test_a_run_that_cannot_measure_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "COMPILERS", 1)

    def lost(self: object) -> None:
        raise PeerLost("its process ended")

    monkeypatch.setattr("benchmarks.gpu_tune.gpu.Gpu.open", lost)
    assert program.main(["--device", "cpu", "--out", str(tmp_path), "--seconds", "30"]) == 1
    assert "no process measures" in (tmp_path / "log.txt").read_text()
    assert json.loads((tmp_path / "env.json").read_text())["parts"] == {}


# Packages that the machine with the GPU may lack: nothing of the run may need them.
_ABSENT = ("msgspec", "typer", "rich", "yaml", "onnx", "onnxruntime", "hypothesis", "numba")


@pytest.mark.parametrize("module", ["__main__", "compiler", "bench", "gpu"])
def test_torch_triton_and_numpy_are_enough(module: str) -> None:
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({_ABSENT!r}))\n"
        f"import benchmarks.gpu_tune.{module}\n"
        "heavy = [m for m in ('torch', 'triton') if m in sys.modules]\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
