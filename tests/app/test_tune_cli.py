"""`slicewise tune`: report, document, page and card as agreed; every mistake one line."""

import io
import json
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
from slicewise.app.options import parse_budget, parse_shares
from slicewise.app.tuning.card import matrix_card, tune_card
from slicewise.app.tuning.charts import client_work, server_work
from slicewise.app.tuning.command import Lines
from slicewise.app.tuning.documents import LONGEST_CONFIG, matrix_document, tune_document
from slicewise.app.tuning.matrix_page import matrix_page
from slicewise.app.tuning.matrix_report import matrix_report
from slicewise.app.tuning.page import tune_page
from slicewise.app.tuning.report import tune_report
from slicewise.app.tuning.words import (
    Standing,
    answer,
    best_trials,
    is_good,
    spark,
    standing,
    time_words,
)
from slicewise.core.cost import Estimate
from slicewise.core.errors import UsageError
from slicewise.core.notes import Note
from slicewise.core.tuning import Phases, Trial, TuningStopped
from slicewise.core.units import parse_seconds
from slicewise.flows import tune as tune_flow
from slicewise.flows import tune_matrix as matrix_flow
from slicewise.flows.tuning.options import TuneOptions
from slicewise.flows.tuning.result import SUMMED, CurvePoint, MatrixResult, TuneResult
from slicewise.measure import quiet
from tests.app.tune_results import around, matrix_result, operators, serving

Golden = Callable[[str, str], None]
Light = Callable[[str], Path]


def _text(made: RenderableType, *, width: int = 118) -> str:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(made)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _report(made: TuneResult, *, width: int = 118) -> str:
    return _text(tune_report(made, width=width), width=width)


# --- what people read


def test_a_tuning_of_settings_reads_as_agreed(golden: Golden) -> None:
    golden("tune.txt", _report(serving()))
    golden("tune.json", encode(tune_document(serving())).decode())


def test_a_tuning_of_operators_reads_as_agreed(golden: Golden) -> None:
    golden("tune_operators.txt", _report(operators()))
    golden("tune_narrow.txt", _report(operators(), width=60))


def test_a_matrix_reads_as_agreed(golden: Golden) -> None:
    golden("tune_matrix.txt", _text(matrix_report(matrix_result())))
    golden("tune_matrix.json", encode(matrix_document(matrix_result())).decode())


def _answer(made: TuneResult) -> str:
    return "".join(answer(made))


def test_the_answer_claims_a_gain_only_beyond_both_intervals() -> None:
    made = serving()
    assert _answer(made).startswith("2.10 times faster (2.02 to 2.18): 8.31 ms -> 3.96 ms,")
    same = replace(made, after_ms=around(8.2, 0.02))
    assert standing(same) is Standing.SAME
    assert _answer(same).startswith("no difference beyond noise: 8.31 ms -> 8.20 ms")
    slower = replace(made, after_ms=around(16.62, 0.02))
    assert _answer(slower).startswith("2.00 times slower (")


def test_what_was_kept_is_said_to_be_kept_whatever_the_noise() -> None:
    made = serving()
    kept = replace(made, after_options=made.before_options, after_ms=around(8.0, 0.001))
    assert standing(kept) is Standing.KEPT
    assert _answer(kept).startswith("No setting beats the defaults, 8.31 ms")
    assert "setting  " not in _report(kept)
    told = replace(made, notes=(Note("tune-no-gain", "the default is kept"),))
    assert standing(told) is Standing.KEPT
    assert "Nothing was changed" in tune_page(kept, arguments=["tune"])
    # kernels change where no option does
    kernels = replace(kept, engine="tvm", after_ms=around(4.0, 0.001))
    assert standing(kernels) is Standing.FASTER


def test_a_result_that_was_known_tells_no_times() -> None:
    known = replace(serving(), phases=Phases(0.0, 0.0, 0.0, 2e-4))
    told = _report(known)
    assert "Time: nothing was tried this time, as all was known; --fresh begins anew." in told
    assert "Curve:" not in told
    page = tune_page(known, arguments=["tune"])
    assert "Everything was known already" in page
    assert 'id="curve"' not in page


@pytest.mark.parametrize(
    ("equal", "difference", "told"),
    [
        (True, 2.1e-6, "outputs equal (within 2.1e-06 of the largest)"),
        (True, 0.0, "outputs equal (within 0 of the largest)"),
        (True, None, "outputs equal."),
        (False, 0.0312, "outputs differ by up to 3.12 % of the largest"),
        (None, None, "outputs not compared"),
    ],
)
def test_the_first_line_tells_what_became_of_the_outputs(
    equal: bool | None, difference: float | None, told: str
) -> None:
    made = replace(serving(), outputs_equal=equal, difference=difference)
    assert told in _answer(made)
    warned = "computes something else" in tune_page(made, arguments=["tune"])
    assert warned == (equal is False)


def test_int8_that_passed_its_gate_is_no_alarm() -> None:
    note = Note("int8-chosen", "served in int8: 99.5 % of 200 samples agree")
    made = replace(serving(), outputs_equal=False, difference=0.02, notes=(note,))
    assert "outputs differ by up to 2 % of the largest, in int8, whose agreement was judged" in (
        _answer(made)
    )
    assert is_good(made)
    gated = replace(made, outputs_equal=None)
    assert _answer(gated) == _answer(made)
    assert not is_good(replace(made, notes=()))
    assert "computes something else" not in tune_page(made, arguments=["tune"])


def test_operators_alone_are_added_up_over_their_counts() -> None:
    made = operators()
    total = sum(
        each.count * each.tuned.default_ms
        for each in made.workloads
        if each.tuned is not None and each.tuned.default_ms is not None
    )
    assert total == pytest.approx(15.76)
    assert "15.8 ms -> 9.75 ms, 4 of 5 operators in sum" in _answer(made)
    assert "not run as a whole" in _answer(made)
    summed = replace(
        made, before_ms=Estimate(15.76, 15.76, 15.76, SUMMED), after_ms=replace(around(9.75),
        source=SUMMED),
    )  # fmt: skip
    assert _answer(summed) == _answer(made)
    assert "Defaults in sum" in tune_page(summed, arguments=["tune"])
    none = replace(made, workloads=tuple(replace(w, tuned=None) for w in made.workloads))
    assert _answer(none).startswith("nothing ran: 0 of 5 operators")
    first = made.workloads[0]
    assert first.tuned is not None
    bare = replace(first, tuned=replace(first.tuned, default_ms=None))
    assert "their defaults were not measured" in _answer(replace(made, workloads=(bare,)))


def test_failed_candidates_are_counted_by_outcome_the_most_first() -> None:
    assert "33 of 120 candidates failed: 30 build failed, 3 timed out." in _report(
        operators(), width=200
    )


def test_a_matrix_names_the_dearest_pair_only_beyond_noise() -> None:
    told = _text(matrix_report(matrix_result()))
    assert told.startswith("resnet on cpu, batch 1: tuned at 25% costs 12 % (7.5 to 16 %) at 100%")
    plain = _text(matrix_report(matrix_result(has_effect=False, several=False)))
    assert plain.startswith("resnet on cpu, batch 1: no difference beyond noise")
    assert "3 configurations chosen over 3 shares." in plain
    assert "The dearest pair" not in plain


def test_a_diagonal_that_is_beaten_is_told() -> None:
    made = matrix_result(several=False)
    cells = list(made.total.cells)
    cells[1] = replace(cells[1], penalty=Estimate(0.9, 0.85, 0.95))
    beaten = replace(made, total=replace(made.total, cells=tuple(cells)))
    told = _text(matrix_report(beaten))
    assert "The diagonal is not best everywhere: tuned at 25% beats it at 50%, 0.900." in told
    assert 'class="gain beyond"' in matrix_page(beaten, arguments=["tune"])


def test_a_pair_that_could_not_be_measured_is_a_dash_and_no_crash() -> None:
    made = matrix_result()
    fewer = replace(made, total=replace(made.total, cells=made.total.cells[:-2]))
    assert re.search(r"^100% .* -  +-$", _text(matrix_report(fewer)), flags=re.MULTILINE)
    assert 'title="not measured"' in matrix_page(fewer, arguments=["tune"])
    assert "<td" in matrix_card(fewer)


@given(st.floats(0.001, 1e6))
def test_times_for_people_have_at_most_two_units(seconds: float) -> None:
    told = time_words(seconds).split()
    assert len(told) in (2, 4)
    assert {told[1], told[-1]} <= {"s", "min", "h"}


@given(
    st.lists(
        st.tuples(st.floats(0.0, 1e4), st.floats(1e-3, 1e3)), min_size=2, max_size=30,
        unique_by=lambda pair: pair[0],
    )
)  # fmt: skip
def test_a_small_curve_begins_and_ends_where_the_curve_does(
    values: list[tuple[float, float]],
) -> None:
    points = [CurvePoint(at, i, total) for i, (at, total) in enumerate(sorted(values))]
    drawn = spark(points)
    assert len(drawn) == 33
    blocks = "▁▂▃▄▅▆▇█"
    lowest, highest = min(p.total_ms for p in points), max(p.total_ms for p in points)
    if points[-1].total_ms == lowest:
        assert drawn[-1] == blocks[0]
    if points[0].total_ms == highest > lowest:
        assert drawn[0] == blocks[-1]


# --- who worked when


def _trials() -> st.SearchStrategy[list[Trial]]:
    one = st.builds(
        Trial,
        workload=st.sampled_from("ab"),
        config=st.text("xyz", max_size=3),
        piece=st.integers(0, 5),
        client=st.integers(-1, 2),
        server=st.integers(-1, 1),
        build_s=st.floats(0, 10),
        measure_s=st.floats(0, 10),
        at_s=st.floats(0, 100),
        is_alone=st.booleans(),
        is_warm=st.booleans(),
    )
    return st.lists(one, max_size=20)


@given(_trials())
def test_no_client_is_drawn_in_two_places_at_once(trials: list[Trial]) -> None:
    for works in client_work(trials).values():
        for before, after in pairwise(works):
            assert before.end_s <= after.begin_s + 1e-9
        assert all(0 <= work.begin_s <= work.end_s for work in works)


@given(_trials())
def test_servers_are_drawn_with_what_they_measured_in_this_run(trials: list[Trial]) -> None:
    drawn = server_work(trials)
    assert set(drawn) == {t.server for t in trials if t.server >= 0 and not t.is_warm}
    for works in drawn.values():
        assert all(0 <= work.begin_s <= work.end_s <= 100 for work in works)


def test_the_best_of_a_configuration_is_the_one_measured_alone() -> None:
    best = best_trials(serving())
    assert [trial.config for trial in best].count(best[0].config) == 1
    assert best[0].is_alone
    values = [t.latency_ms.value for t in best if t.latency_ms is not None]
    assert values == sorted(values)


# --- the page and the card


def test_the_page_has_every_section_once_and_in_order() -> None:
    page = tune_page(serving(), arguments=["tune", "resnet.onnx", "--share", "auto"])
    anchors = re.findall(r'<section id="([^"]+)"', page)
    assert anchors == [
        "settings", "workloads", "curve", "time", "share", "trials", "notes", "reproduce",
    ]  # fmt: skip
    for words in (
        "<strong>2.10 times faster</strong>", "resnet.tuned", "finalists, measured alone",
        "the knee", "no accuracy data", "slicewise tune resnet.onnx --share auto",
        "idle or starting", "an extrapolation of this run", "latencies were measured",
    ):  # fmt: skip
        assert words in page, words
    assert "nothing was run" not in page
    assert " -&gt; " not in page


def test_a_page_of_nothing_is_a_page() -> None:
    bare = replace(
        operators(), workloads=(), trials=(), curve=(), outlook=None, phases=Phases(),
        artifact=None, how_to_run="",
    )  # fmt: skip
    page = tune_page(bare, arguments=["tune"])
    assert re.findall(r'<section id="([^"]+)"', page) == ["time", "reproduce"]
    assert _report(bare).startswith("nothing ran")


def test_a_matrix_page_has_a_map_for_the_whole_and_each_workload() -> None:
    page = matrix_page(matrix_result(), arguments=["tune", "--matrix"])
    assert page.count('class="heat"') == 3
    assert page.count("tuned here") == 3 * 3 + 3
    assert "--heat:" in page
    alone = matrix_page(matrix_result(several=False), arguments=["tune"])
    assert alone.count('class="heat"') == 1


def test_names_from_a_file_cannot_reach_a_page_or_a_terminal_as_markup() -> None:
    evil = "<script>alert(1)</script>\x1b[31m"
    made = serving()
    worse = replace(
        made, model=replace(made.model, name=evil, source=evil), how_to_run=evil,
        artifact=Path(evil), before_options={evil: evil},
        workloads=tuple(replace(w, name=evil) for w in made.workloads),
        trials=tuple(replace(t, config=evil, error=evil) for t in made.trials),
    )  # fmt: skip
    matrix = matrix_result()
    bad = replace(
        matrix, model=worse.model,
        workloads=tuple(replace(each, name=evil) for each in matrix.workloads),
    )  # fmt: skip
    for page in (
        tune_page(worse, arguments=["tune", evil]),
        matrix_page(bad, arguments=["tune", evil]),
        tune_card(worse) + matrix_card(bad) + "<script>",
    ):
        assert "<script>alert" not in page
        assert "\x1b" not in page
        assert page.count("<script") == 1
        assert not re.findall(r"(?:src|href)=[\"']?(?!#)", page)
    assert "\x1b[31m" not in _report(worse) + _text(matrix_report(bad))


def test_a_notebook_shows_the_answer_and_every_workload() -> None:
    shown = tune_card(operators())
    assert "<strong>1.62 times faster</strong>" in shown
    assert shown.count("<tr") == 1 + len(operators().workloads)
    assert operators()._repr_html_() == shown
    assert matrix_result()._repr_html_() == matrix_card(matrix_result())


# --- the document


def test_a_long_configuration_is_left_out_of_trials_and_kept_for_the_best() -> None:
    made = serving()
    long = "x" * (LONGEST_CONFIG + 1)
    trials = tuple(replace(trial, config=long) for trial in made.trials)
    (workload,) = made.workloads
    assert workload.tuned is not None
    best = replace(workload, tuned=replace(workload.tuned, config=long))
    told: Any = tune_document(replace(made, trials=trials, workloads=(best,)))
    assert {trial["config"] for trial in told["trials"]} == {None}
    assert told["workloads"][0]["config"] == long


_CONTRACT = (
    "schema", "engine", "share", "before_ms", "after_ms", "outputs_equal", "artifact",
    "workloads", "phases", "notes",
)  # fmt: skip


def test_the_document_holds_the_contract() -> None:
    told: Any = tune_document(serving())
    assert set(_CONTRACT) <= set(told)
    assert told["schema"] == "slicewise.tune/1"
    assert (told["before_ms"], told["after_ms"]) == (8.31, 3.96)
    assert {"search_s", "build_s", "measure_s", "wall_s"} <= set(told["phases"])
    assert told["gain"] == pytest.approx(8.31 / 3.96)
    apart: Any = tune_document(operators())
    assert (apart["before_ms"], apart["gain"], apart["before_interval_ms"]) == (None, None, None)


# --- the command


class _Flow:
    """Stands in for the flow: keeps what it was asked, gives what it is told to."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.gives: TuneResult | MatrixResult | BaseException = serving()

    def __call__(self, model: str, **asked: Any) -> TuneResult | MatrixResult:
        self.asked = {"model": model, **asked}
        if isinstance(self.gives, BaseException):
            raise self.gives
        return self.gives

    @property
    def options(self) -> TuneOptions:
        found = self.asked["options"]
        assert isinstance(found, TuneOptions)
        return found


@pytest.fixture
def flow(monkeypatch: pytest.MonkeyPatch) -> _Flow:
    """The flow replaced by one that answers at once."""
    made = _Flow()
    monkeypatch.setattr(tune_flow, "tune", made)
    monkeypatch.setattr(matrix_flow, "tune_matrix", made)
    return made


def test_every_option_reaches_the_flow(
    flow: _Flow, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = (
        "tune m.onnx --device cpu --engine tvm --share auto --clients 2 --servers 3 --budget 1h30m"
        " --trials 64 --resume --no-store --least-agreement 0.9 --option a=1,2 --option b=x"
        " --batch 4 --precision fp32 --threads 1 --input 1x3x8x8 --dim seq=9 --batch-axis 0"
        f" --seed 7 --executor inline --accuracy-data {tmp_path} --artifact {tmp_path / 'out'}"
    )
    assert run(words.split()) == 0
    assert flow.asked["device"] == "cpu"
    assert flow.asked["batch"] == 4
    assert flow.options == TuneOptions(
        engine="tvm", share="auto", clients=2, servers=3, trials=64, seconds=5400.0, seed=7,
        is_resumed=True, precision="fp32", threads=1, engine_options={"a": "1,2", "b": "x"},
        dims={"seq": 9}, inputs={"": (1, 3, 8, 8)}, batch_axes={"": 0}, accuracy_data=tmp_path,
        least_agreement=0.9, artifact=tmp_path / "out", executor="inline", use_store=False,
    )  # fmt: skip
    assert capsys.readouterr().out.startswith("2.10 times faster")


def test_what_is_not_asked_is_the_flows_own_default(flow: _Flow) -> None:
    assert run(["tune", "m.onnx"]) == 0
    assert flow.options == TuneOptions()
    assert run(["tune", "m.onnx", "--fresh"]) == 0
    assert flow.options == TuneOptions(is_fresh=True)


def test_json_is_one_document_and_nothing_else(
    flow: _Flow, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output, page = tmp_path / "o.json", tmp_path / "o.html"
    words = ["tune", "m.onnx", "--json", "--output", str(output), "--html", str(page), "--resume"]
    assert run(words) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert output.read_text() == captured.out
    assert json.loads(captured.out)["schema"] == "slicewise.tune/1"
    assert f"slicewise tune m.onnx --resume --json --output {output}" in page.read_text()


def test_a_matrix_is_measured_over_the_shares_named(
    flow: _Flow, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flow.gives = matrix_result()
    page = tmp_path / "o.html"
    words = ["tune", "m.onnx", "--matrix", "--shares", "25,50,100", "--candidates", "8", "--json"]
    assert run([*words, "--html", str(page)]) == 0
    assert flow.asked["shares"] == ["25", "50", "100"]
    assert flow.options.candidates == 8
    assert json.loads(capsys.readouterr().out)["schema"] == "slicewise.tune-matrix/1"
    assert 'class="heat"' in page.read_text()
    assert run(["tune", "m.onnx", "--matrix", "--shares", "cores:0,cores:0-1"]) == 0
    assert flow.asked["shares"] == ["cores:0", "cores:0-1"]
    assert capsys.readouterr().out.startswith("resnet on cpu, batch 1: tuned at 25% costs 12 %")


@pytest.mark.parametrize(
    ("cores", "shares"), [(2, ["50", "100"]), (6, ["16.6667", "50", "100"]), (1, None)]
)
def test_shares_of_a_matrix_are_halves_of_the_cores_unless_named(
    flow: _Flow,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    shares: list[str] | None,
) -> None:
    flow.gives = matrix_result()
    monkeypatch.setattr(quiet, "bound_cores", lambda: tuple(range(cores)))
    code = run(["tune", "m.onnx", "--matrix", "--device", "cpu"])
    assert code == (0 if shares else 2)
    if shares:
        assert flow.asked["shares"] == shares
    else:
        assert "this process may use one" in capsys.readouterr().err


def test_ctrl_c_says_what_is_kept_and_how_to_go_on(
    flow: _Flow, capsys: pytest.CaptureFixture[str]
) -> None:
    flow.gives = TuningStopped(41, Path("tune/ab/trials.jsonl"))
    assert run(["tune", "m.onnx"]) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "stopped; 41 trials are kept in tune/ab/trials.jsonl; the same command with --resume goes"
        " on",
        "error: interrupted",
    ]
    flow.gives = KeyboardInterrupt()
    assert run(["tune", "m.onnx"]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("tune MODEL --engine tvn", 2, "did you mean tvm?"),
        ("tune MODEL --share 0 --device cpu", 2, "share '0' is impossible"),
        ("tune MODEL --share half --device cpu", 2, "share 'half' is none"),
        ("tune MODEL --device cpu --engine triton", 2, "does not tune for a cpu"),
        ("tune MODEL --device h100", 4, "a measurement runs on this machine"),
        ("tune none.onnx --device cpu", 3, "there is no model file"),
        ("tune MODEL --budget 3x", 2, "--budget: time '3x' is none; write 30m, 90s"),
        ("tune MODEL --budget 0", 2, "--budget 0 is not a positive time"),
        ("tune MODEL --trials 0", 2, "trials=0 is not a positive number"),
        ("tune MODEL --clients 0", 2, "clients=0 is not a positive number"),
        ("tune MODEL --option x", 2, "--option 'x' is not KEY=VALUE"),
        ("tune MODEL --least-agreement 2", 2, "least_agreement=2 is no part of a whole"),
        ("tune MODEL --shares 25,50", 2, "--shares is of --matrix"),
        ("tune MODEL --candidates 5", 2, "--candidates is of --matrix"),
        ("tune MODEL --matrix --resume", 2, "tunes nothing, so that --resume says nothing"),
        ("tune MODEL --matrix --fresh", 2, "tunes nothing, so that --fresh says nothing"),
        ("tune MODEL --matrix --share 50", 2, "name the shares with --shares 25,50,100"),
        ("tune MODEL --matrix --trials 9", 2, "--candidates 24 says how many"),
        ("tune MODEL --matrix --shares 50", 2, "is one share"),
        ("tune MODEL --matrix --shares 50,50%", 2, "names a share twice"),
        ("tune MODEL --matrix --shares 50,auto", 2, "--shares auto is no share of a matrix"),
        ("tune MODEL --device cpu --artifact file.txt", 2, "is a file; give a folder"),
        ("tune MODEL --artifact no/where", 2, "is not there; make it"),
        ("tune MODEL --device cpu --artifact full", 2, "holds files that are no tuned model"),
        ("tune MODEL --html MODEL", 2, "is read as input"),
        ("tune MODEL --html a.txt --output a.txt", 2, "is asked for twice"),
    ],
)
def test_a_mistake_is_one_line_and_its_code(
    light: Light,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: str,
    code: int,
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("x")
    model = str(light("squeezenet"))
    assert run([model if word == "MODEL" else word for word in words.split()]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert told in captured.err


def test_the_model_itself_is_never_replaced_by_what_is_made_of_it(
    flow: _Flow, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "m.tuned"
    folder.mkdir()
    model = folder / "model.onnx"
    model.write_bytes(b"")
    assert run(["tune", str(model), "--artifact", str(folder)]) == 2
    assert "would lose the model" in capsys.readouterr().err


# --- times and shares as people type them


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59))
def test_a_time_comes_back_as_written(hours: int, minutes: int, seconds: int) -> None:
    total = 3600.0 * hours + 60 * minutes + seconds
    assert parse_seconds(f"{hours}h{minutes}m{seconds}s") == total
    assert parse_seconds(f"{hours}h {minutes}min {seconds} s") == total
    assert parse_seconds(f"{total:g}" if total < 1e5 else f"{total:.0f}") == total


@pytest.mark.parametrize("text", ["", "x", "3x", "1h30", "m", "-1", "1:30", "1 2", "inf", "nan"])
def test_a_time_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="write 30m, 90s"):
        parse_budget(text)


@pytest.mark.parametrize("text", ["1e400", "0", "0s"])
def test_a_budget_has_an_end_and_a_beginning(text: str) -> None:
    with pytest.raises(UsageError, match=r"never ends|not a positive time"):
        parse_budget(text)


def test_shares_keep_the_cores_behind_their_name() -> None:
    assert parse_shares(["cores:0-1,3,50,mps:25"]) == ["cores:0-1,3,50", "mps:25"]
    assert parse_shares(["50", "cores:0", "100"]) == ["50", "cores:0", "100"]
    with pytest.raises(UsageError, match="--shares has an empty item"):
        parse_shares(["25,,50"])


def test_without_a_terminal_there_is_a_line_in_half_a_minute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = [0.0]
    lines = Lines(now=lambda: clock[0])
    for second in range(0, 100, 10):
        clock[0] = float(second)
        lines(f"at {second}")
    assert capsys.readouterr().err == "at 30\nat 60\nat 90\n"
