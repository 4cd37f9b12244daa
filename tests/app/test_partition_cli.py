"""`slicewise partition`: documents, report, page and trace as agreed; every mistake one line."""

import io
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from slicewise.app.cli import run
from slicewise.app.documents import encode
from slicewise.app.partitioning.documents import curve_document, partition_document
from slicewise.app.partitioning.page import curve_page, partition_page
from slicewise.app.partitioning.report import curve_report, partition_report
from slicewise.app.partitioning.trace import encode_trace
from slicewise.app.partitioning.words import strip
from slicewise.core.pipeline import StageLoad
from slicewise.flows.partition import partition, partition_curve
from slicewise.flows.partitioning.options import PartitionOptions
from slicewise.flows.partitioning.result import PartitionResult
from tests import plain_solver

Golden = Callable[[str, str], None]
Light = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_solver.install(monkeypatch)


def _document() -> dict[str, Any]:
    rows = [
        ("in", 0.0, 0.5, 0), ("conv1", 4.0, 0.25, 700), ("conv2", 3.0, 0.25, 900),
        ("pool", 1.0, 0.125, 0), ("fc", 2.0, 0.0, 2000),
    ]  # fmt: skip
    nodes = [
        {"id": i, "name": name, "time_ms": {"accel": ms, "cpu": 10 * ms}, "comm_ms": cost,
         "memory_bytes": 1000 + weight, "param_bytes": weight, "output_bytes": 1e6 * cost,
         "colocate": None, "accel_ok": True, "energy_j": {"accel": ms / 8, "cpu": ms / 16}}
        for i, (name, ms, cost, weight) in enumerate(rows)
    ]  # fmt: skip
    edges = [[0, 1], [1, 2], [2, 3], [1, 3], [3, 4]]
    limits = {"accelerators": 3, "cpus": 1, "memory_bytes_per_accelerator": 5000.0}
    return {"schema": "pipeline-workload/1", "name": "tiny", "nodes": nodes, "edges": edges,
            "limits": limits}  # fmt: skip


@pytest.fixture
def problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of a problem file, relative to where the test runs."""
    (tmp_path / "tiny.json").write_text(json.dumps(_document()))
    monkeypatch.chdir(tmp_path)
    return "tiny.json"


def _text(made: RenderableType) -> str:
    file = io.StringIO()
    Console(file=file, width=130, highlight=False).print(made)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def test_one_number_of_stages_reads_as_agreed(golden: Golden, problem: str) -> None:
    made = partition(problem, stages=3)
    golden("partition.txt", _text(partition_report(made)))
    golden("partition.json", encode(partition_document(made)).decode())


def test_a_curve_reads_as_agreed(golden: Golden, problem: str) -> None:
    found = partition_curve(problem, stages=range(1, 5))
    golden("partition_curve.txt", _text(curve_report(found)))
    golden("partition_curve.json", encode(curve_document(found)).decode())


def test_an_energy_reads_as_agreed(golden: Golden, problem: str) -> None:
    options = PartitionOptions(objective="energy", limit_ms=60.0, devices=("accel", "cpu"))
    golden("partition_energy.txt", _text(partition_report(partition(problem, options=options))))


_CONTRACT = (
    "schema", "stages", "bottleneck_ms", "lower_bound_ms", "gap", "optimal", "method", "bounds",
    "stage_of", "seed", "seconds", "notes",
)  # fmt: skip
_STAGE = (
    "index", "device", "nodes", "work_ms", "receive_ms", "send_ms", "load_ms", "memory_bytes",
)  # fmt: skip


def test_the_document_holds_the_contract_and_nothing_else_is_printed(
    problem: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = tmp_path / "out.json"
    code = run(["partition", problem, "--stages", "2", "--json", "--output", str(output)])
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    made = json.loads(captured.out)
    assert output.read_text() == captured.out
    assert set(_CONTRACT) <= set(made)
    assert all(set(_STAGE) <= set(stage) for stage in made["stages"])
    assert made["schema"] == "slicewise.partition/1"
    assert [bound.keys() >= {"method", "bottleneck_ms", "trust"} for bound in made["bounds"]]
    for index, stage in enumerate(made["stage_of"]):
        assert _document()["nodes"][index]["name"] in made["stages"][stage]["nodes"]
    assert made["bottleneck_ms"] == max(stage["load_ms"] for stage in made["stages"])
    assert made["gap"] == pytest.approx(made["bottleneck_ms"] / made["lower_bound_ms"] - 1)


def test_a_curve_is_a_list_of_that_document(
    problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["partition", problem, "--stages", "1..3", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["schema"] == "slicewise.partition/1"
    assert [each["most_stages"] for each in made["curve"]] == [1, 2, 3]
    assert all(set(_CONTRACT) <= set(each) for each in made["curve"])


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("tiny.json --stages 0", 2, "stages 0 is not a positive whole number"),
        ("tiny.json", 2, "number of stages is missing"),
        ("tiny.json --stages 2 --time-limit 0", 2, "time limit 0 s"),
        ("tiny.json --stages 2 --device gpu", 4, "no times for device 'gpu'"),
        ("tiny.json --stages 2 --link 0GB/s", 2, "link '0GB/s'"),
        ("tiny.json --stages 2 --honour limit", 2, "honour 'limit' is unknown"),
        ("tiny.json --stages 2 --batch 3", 2, "leave batch out"),
        ("tiny.json --stages 2 --runtime tensorrt@8.4", 2, "runtime says how a model is"),
        ("tiny.json --stages 2 --memory-limit 1kB", 6, "a limit of"),
        ("tiny.json --stages 2 --memory-limit 0", 2, "memory limit 0"),
        ("tiny.json --stages 2 --objective energy", 2, "--limit-ms 20"),
        ("tiny.json --stages 2 --objective energy --limit-ms 1", 6, "a limit of 4.00 ms or more"),
        ("tiny.json --stages 2 --limit-ms 1", 2, "says nothing"),
        ("tiny.json --stages 1..3 --trace t.json", 2, "--trace is of one number"),
        ("tiny.json --stages 1..3 --split d", 2, "--split is of one number"),
        ("tiny.json --stages 2 --split d", 2, "holds numbers and no model"),
        ("tiny.json --stages 2 --check", 2, "give --split DIR too"),
        ("tiny.json --stages 2 --between-layers", 2, "no layers to cut between"),
        ("tiny.json --stages 2 --output tiny.json", 2, "is read as input"),
        ("tiny.json --stages 2 --constraints none.yaml", 2, "cannot be read"),
        ("tiny.json --stages 3 --devices accel,cpu", 2, "2 devices are named for 3 stages"),
        ("tiny.json --stages 2 --device accel --devices accel,cpu", 2, "not both"),
        ("tiny.json --stages 2 --devices", 2, "requires an argument"),
        ("none.json --stages 2", 6, "there is no problem file"),
        ("none.onnx --stages 2", 3, "there is no model file"),
    ],
)
def test_a_mistake_is_one_line_and_its_code(
    problem: str, capsys: pytest.CaptureFixture[str], words: str, code: int, told: str
) -> None:
    assert run(["partition", *words.split()]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert told in captured.err


def test_ctrl_c_shows_the_best_cut_until_then_and_says_so(
    problem: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_solver.install(monkeypatch, solver=plain_solver.interrupted)
    assert run(["partition", problem, "--stages", "2"]) == 0
    out = capsys.readouterr().out
    assert "nothing is proven (search ended early)" in out
    assert "search-interrupted" in out
    assert run(["partition", problem, "--stages", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["complete"] is False


def test_files_are_written_beside_the_report(
    problem: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["partition", problem, "--stages", "2", "--overlap", "--hops"]
    assert run([*words, "--html", "p.html", "--trace", "t.json"]) == 0
    page = (tmp_path / "p.html").read_text()
    command = "slicewise partition tiny.json --stages 2 --overlap --hops --html p.html --trace"
    assert command in page
    assert "traceEvents" in json.loads((tmp_path / "t.json").read_text())


def test_constraints_of_a_file_are_kept_and_mistakes_in_it_named(
    problem: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("together: [[conv1, conv2]]\npin: {fc: last}\n")
    words = ["partition", problem, "--stages", "3", "--constraints", "c.yaml"]
    assert run([*words, "--json"]) == 0
    stage_of = json.loads(capsys.readouterr().out)["stage_of"]
    assert (stage_of[1], stage_of[4]) == (stage_of[2], 2)
    path.write_text("overlap: true\npin: {fcc: last}\n")
    assert run(words) == 2
    assert "c.yaml, line 2: no node is called" in capsys.readouterr().err


def test_stages_are_written_and_checked_against_the_whole_model(
    light: Light, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "stages"
    words = ["partition", str(light("squeezenet")), "--stages", "2", "--device", "cpu@50%"]
    assert run([*words, "--split", str(folder), "--check", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["split"]["check"]["within_tolerance"]
    assert [(folder / name).exists() for name in made["split"]["files"]] == [True, True]
    assert run([*words, "--split", str(tmp_path / "other")]) == 0
    assert "2 stage files with stages.json" in capsys.readouterr().out


def _events(made: PartitionResult) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(encode_trace(made))["traceEvents"]
    return events


@pytest.mark.parametrize("overlaps", [False, True])
def test_no_two_events_of_a_lane_overlap(problem: str, overlaps: bool) -> None:
    made = partition(problem, stages=3, options=PartitionOptions(overlaps=overlaps))
    events = [event for event in _events(made) if event["ph"] == "X"]
    for lane in {event["tid"] for event in events}:
        its = [event for event in events if event["tid"] == lane]
        for before, after in pairwise(its):
            assert after["ts"] >= before["ts"] + before["dur"] - 1e-6
    named = {e["tid"] for e in _events(made) if e["ph"] == "M" and e["name"] == "thread_name"}
    assert {event["tid"] for event in events} <= named
    phases = [event["name"] for event in events if event["cat"] == "phase"]
    assert phases == ["filling", "steady", "draining"]


def test_names_from_a_file_cannot_reach_a_page_or_a_terminal_as_markup(tmp_path: Path) -> None:
    made = _document()
    evil = "<script>alert(1)</script>\x1b[31m"
    for index, node in enumerate(made["nodes"]):
        node["name"] = f"{evil}{index}"
    made["name"] = evil
    path = tmp_path / "p.json"
    path.write_text(json.dumps(made))
    result = partition(str(path), stages=2)
    curve = partition_curve(str(path), stages=[1, 2])
    for page in (
        partition_page(result, arguments=["partition", evil]),
        curve_page(curve, arguments=["partition"]),
    ):
        assert "<script>alert" not in page
        assert "\x1b" not in page
        assert page.count("<script") == 1
        assert not re.findall(r"(?:src|href)=[\"']?(?!#)", page)
    shown = _text(partition_report(result)) + _text(curve_report(curve))
    assert "\x1b[31m" not in shown


def test_a_page_shows_the_answer_each_stage_and_the_proof(problem: str) -> None:
    made = partition(problem, stages=3)
    page = partition_page(made, arguments=["partition", problem])
    for words in ("Schedule, item by item", "Load of a stage", "equal number of nodes",
                  "combinatorial", "stage 0, item 0: work"):  # fmt: skip
        assert words in page


@given(st.tuples(*[st.integers(0, 9)] * 3), st.integers(1, 3), st.booleans())
def test_a_strip_is_as_long_as_a_period(
    parts: tuple[int, int, int], replicas: int, overlaps: bool
) -> None:
    receive, work, send = parts
    whole = (max(parts) if overlaps else math.fsum(parts)) / replicas
    load = StageLoad((0,), 0, replicas, work, receive, send, whole, 0.0, 0.0)
    made = strip(load, whole or 1.0, width=40, overlaps=overlaps)
    assert len(made) == 40
    assert set(made) <= set("<#>.")
    assert "." not in made or whole == 0


def test_a_partition_without_bounds_says_that_nothing_is_proven(problem: str) -> None:
    made = partition(problem, stages=2)
    bare = replace(made, partition=replace(made.partition, bounds=()))
    assert "nothing is proven" in _text(partition_report(bare)).splitlines()[0]
    assert "nothing is proven" in partition_page(bare, arguments=[])
