"""`slicewise explore` as scripts and people meet it: files, first line, exit codes, going on."""

import contextlib
import csv
import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from slicewise.app import explore_command
from slicewise.app.cli import run
from slicewise.app.explore_documents import COLUMNS
from slicewise.core.exploration import Exploration
from slicewise.flows.explore import ExploreOptions
from slicewise.flows.explore import explore as sweep

Light = Callable[[str], Path]
CARD = "a100-sxm4-80gb"
SWEEP = (
    "--device", f"{CARD},mi300x,{CARD}/1g.10gb", "--batch", "1,8", "--precision", "fp32,fp16",
    "--runtime", "onnxruntime,tensorrt",
)  # fmt: skip


@pytest.fixture
def explore(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run_explore(*arguments: str | Path) -> tuple[int, str, str]:
        code = run(["explore", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_explore


Explore = Callable[..., tuple[int, str, str]]


def test_the_report_begins_with_the_answer_and_tells_why_points_are_impossible(
    explore: Explore, light: Light
) -> None:
    code, out, err = explore(light("squeezenet"), light("shufflenet"), *SWEEP, "--workers", "1")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].startswith("48 points, ")
    assert lines[0].endswith("on the front of latency, throughput, energy and memory")
    for i, words in enumerate(("lowest latency", "highest throughput", "least energy"), 1):
        assert lines[i].startswith(words)
    assert "8 of 48 points are impossible:" in lines
    assert any("8: tensorrt runs on NVIDIA GPUs only, given mi300x" in line for line in lines)
    assert sum("launch-estimated" in line for line in lines) == 1  # counted, not repeated


def test_files_and_document_tell_the_same_points(
    explore: Explore, light: Light, tmp_path: Path
) -> None:
    table, document, page = (tmp_path / name for name in ("a.csv", "a.json", "a.html"))
    code, out, err = explore(
        light("squeezenet"), *SWEEP, "--workers", "1",
        "--csv", table, "--output", document, "--html", page, "--json",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads(document.read_text())
    told = json.loads(out)
    assert told["schema"] == "slicewise.explore/1"
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == len(told["points"]) == 24
    for row, point in zip(rows, told["points"], strict=True):
        assert row["device"] == point["device"] and row["slice"] == (point["slice"] or "")
        assert row["on_front"] == json.dumps(point["on_front"])
        codes = dict.fromkeys(told["notes"][k]["code"] for k in point["notes"])
        assert row["notes"] == " ".join(codes)
        if point["error"] is None:
            assert float(row["latency_ms"]) == point["latency_ms"]["value"]
            assert int(row["memory_bytes"]) == point["memory_bytes"]["value"]
            assert float(row["energy_per_item_j"]) == point["energy_per_item_j"]
        else:
            assert row["latency_ms"] == "" and row["error"].startswith("DeviceError: tensorrt")
    assert told["front"] == [i for i, p in enumerate(told["points"]) if p["on_front"]]
    assert sum(note["points"] for note in told["notes"]) == sum(
        len(p["notes"]) for p in told["points"]
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.html", "a.json"]


class Words(HTMLParser):
    """Collects the text of a page and the names of its tags."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not {name for name, _ in attrs} & {"onload", "onerror"}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_shows_front_points_and_command_and_escapes_names(
    explore: Explore, light: Light, tmp_path: Path
) -> None:
    model = tmp_path / "<img src=x onerror=alert(1)>.onnx"
    model.write_bytes(light("squeezenet").read_bytes())
    page = tmp_path / "a.html"
    explore(model, tmp_path / "none.onnx", *SWEEP, "--workers", "1", "--html", page)
    words = Words()
    words.feed(page.read_text())
    assert "img" not in words.tags and "svg" in words.tags
    for told in ("Lowest latency", "Throughput over latency", "1g.10gb", "NVIDIA GPUs only",
                 "there is no model file", "slicewise explore"):  # fmt: skip
        assert told in words.text


def test_the_choice_of_objectives_and_limits_reaches_the_front(
    explore: Explore, light: Light
) -> None:
    sweep = (light("squeezenet"), *SWEEP, "--workers", "1", "--json")
    told = json.loads(explore(*sweep, "--pareto", "latency")[1])
    assert told["objectives"] == ["latency"]
    best = min(p["latency_ms"]["value"] for p in told["points"] if p["error"] is None)
    assert {told["points"][i]["latency_ms"]["value"] for i in told["front"]} == {best}
    limited = json.loads(explore(*sweep, "--latency-ms", "1.5", "--memory-limit", "600MiB")[1])
    for point in limited["points"]:
        if point["standing"] in ("front", "dominated"):
            assert point["latency_ms"]["value"] <= 1.5
            assert point["memory_bytes"]["value"] <= 600 * 2**20
    assert {p["standing"] for p in limited["points"]} >= {"front", "over-limit"}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nowhere.onnx", "--device", "t4"], 3, "there is no model file"),
        (["MODEL", "--device", "t5"], 4, "'t5' is unknown"),
        (["MODEL", "--device", ","], 2, "--device is empty"),
        (["MODEL", "--device", "t4,,l4"], 2, "--device has an empty item"),
        (["MODEL", "--device", "t4", "--pareto", "latency,"], 2, "--pareto has an empty item"),
        (["MODEL", "--device", "t4", "--precision", "fp31"], 2, "'fp31' is unknown"),
        (["MODEL", "--device", "t4", "--runtime", "trt"], 2, "'trt' is unknown"),
        (["MODEL", "--device", "t4", "--pareto", "speed"], 2, "'speed' is unknown"),
        (["MODEL", "--device", "t4", "--workers", "0"], 2, "--workers 0"),
        (["MODEL", "--device", "t4", "--latency-ms", "nan"], 2, "not a positive time"),
        (["MODEL", "--device", "t4", "--memory-limit", "20G"], 2, "not a number with a unit"),
        (["MODEL", "--device", "t4", "--latency-ms", "inf"], 2, "not a positive time"),
        (["MODEL", "--device", "t4", "--memory-limit", "0"], 2, "leaves nothing"),
        (["MODEL", "--device", "t4", "--memory-limit", "1e400"], 2, "more than 2^63 - 1 bytes"),
        (["MODEL", "--device", "t4", "--csv", "-"], 2, "is no file"),
        (["MODEL", "--device", "t4", "--csv", "MODEL"], 2, "is read as input"),
        (["MODEL", "--device", "t4", "--csv", "no/a.csv"], 2, "does not exist"),
        (["MODEL", "--device", "t4", "--precision", "nvfp4,fp8"], 4, "none of the 2 points"),
        (["MODEL", "--device", "t4", "--input", "z=1x3"], 2, "has no input 'z'"),
    ],
)
def test_a_mistake_that_concerns_all_is_one_line_and_an_exit_code(
    explore: Explore, light: Light, arguments: list[str], code: int, words: str
) -> None:
    given = [str(light("squeezenet")) if word == "MODEL" else word for word in arguments]
    got, out, err = explore(*given)
    assert got == code
    assert out == ""
    assert words in err and err.count("\n") == 1 and err.startswith("error: ")


def test_a_sweep_without_a_possible_point_is_written_all_the_same(
    explore: Explore, light: Light, tmp_path: Path
) -> None:
    table = tmp_path / "a.csv"
    code, out, _ = explore(
        light("squeezenet"), "--device", "t4", "--precision", "nvfp4", "--csv", table, "--json"
    )
    assert code == 4
    assert json.loads(out)["points"][0]["error"]["error"] == "DeviceError"
    assert "has no fp4 arithmetic" in table.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_the_same_command_goes_on_after_an_interruption(
    explore: Explore, light: Light, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "a.csv"
    words = (light("squeezenet"), light("shufflenet"), *SWEEP, "--workers", "1", "--csv", table)
    from slicewise.flows.explore import explore as true

    def interrupted(*args: object, **options: object) -> Exploration:
        tell = options["progress"]

        def stop(done: int, count: int) -> None:
            tell(done, count)  # type: ignore[operator]
            if done == 24:
                raise KeyboardInterrupt

        return true(*args, **{**options, "progress": stop})  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(explore_command, "explore", interrupted)
        code, out, err = explore(*words)
    assert code == 130 and out == ""
    assert f"24 of 48 points are kept in '{table}.partial'" in err
    assert "interrupted" in err
    assert not table.exists()
    code, _, err = explore(*words, "--batch", "16")
    assert code == 9 and "--fresh" in err
    code, _, err = explore(*words)
    assert code == 0 and err == "resumed: 24 of 48 points were done\n"
    whole = tmp_path / "b.csv"
    explore(*words[:-1], whole)
    assert table.read_bytes() == whole.read_bytes()
    assert not list(tmp_path.glob("*.partial"))


def test_fresh_begins_anew(explore: Explore, light: Light, tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    journal = tmp_path / "a.csv.partial"
    journal.write_text('{"schema":"slicewise.journal/1","digest":"another"}\n')
    words = (light("squeezenet"), "--device", "t4", "--csv", table)
    assert explore(*words)[0] == 9
    code, _, err = explore(*words, "--fresh")
    assert (code, err) == (0, "") and not journal.exists()


def test_a_sweep_killed_in_the_middle_goes_on_to_the_same_result(
    light: Light, tmp_path: Path
) -> None:
    """Two workers, the whole program killed as soon as its journal has some lines."""
    table, journal = tmp_path / "a.csv", tmp_path / "a.csv.partial"
    models = [str(light(name)) for name in ("squeezenet", "shufflenet")]
    words = [sys.executable, "-m", "slicewise", "explore", *models, *SWEEP[:2],
             "--batch", "1,2,4,8,16,32", "--workers", "2", "--csv"]  # fmt: skip
    with subprocess.Popen([*words, str(table)], stdout=subprocess.DEVNULL) as process:
        while not journal.exists() or journal.read_bytes().count(b"\n") < 4:
            with contextlib.suppress(subprocess.TimeoutExpired):  # leaves the cores to the sweep
                pytest.fail(f"it ended by itself: {process.wait(0.02)}")
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not table.exists() and journal.exists()
    again = subprocess.run([*words, str(table)], capture_output=True, text=True)
    assert again.returncode == 0
    assert again.stderr.startswith("resumed: ") and again.stderr.endswith(
        "of 36 points were done\n"
    )
    whole = tmp_path / "b.csv"
    subprocess.run([*words, str(whole)], check=True, stdout=subprocess.DEVNULL)
    assert table.read_bytes() == whole.read_bytes()
    assert not journal.exists()


def test_no_output_and_no_model_is_the_journal(
    explore: Explore, light: Light, tmp_path: Path
) -> None:
    table, journal = tmp_path / "a.csv", tmp_path / "a.csv.partial"
    code, _, err = explore(
        light("squeezenet"), "--device", "t4", "--csv", table, "--html", journal
    )
    assert code == 2 and "is where the sweep keeps what is done" in err
    code, _, err = explore(light("squeezenet"), journal, "--device", "t4", "--csv", table)
    assert code == 2 and "is where the sweep keeps what is done" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", ["explore", "predict"])
def test_brackets_in_a_name_are_no_markup(
    capsys: pytest.CaptureFixture[str], light: Light, tmp_path: Path, verb: str
) -> None:
    names = ("[red]a[", "[bold]b", ":smile:")
    for name in names:
        (tmp_path / f"{name}.onnx").write_bytes(light("squeezenet").read_bytes())
    code = run([verb, *(str(tmp_path / f"{name}.onnx") for name in names), "--device", "t4"])
    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    for name in names:
        assert any(line.startswith(f"{name} ") for line in lines)


def test_points_that_are_one_dot_make_no_plot(
    explore: Explore, light: Light, tmp_path: Path
) -> None:
    models = [tmp_path / f"{i}.onnx" for i in range(9)]
    for model in models:
        model.write_bytes(light("squeezenet").read_bytes())
    assert "9 points" in (out := explore(*models, "--device", "t4", "--workers", "1")[1])
    assert "items/s over latency" not in out


def test_a_page_of_a_sweep_without_a_front_says_so(
    explore: Explore, light: Light, tmp_path: Path
) -> None:
    page = tmp_path / "a.html"
    explore(light("squeezenet"), "--device", "t4", "--memory-limit", "1MiB", "--html", page)
    words = Words()
    words.feed(page.read_text())
    assert "No point may stand on the front" in words.text
    assert "The front, by" not in words.text and "1 rows" not in words.text


def test_a_command_that_is_shown_takes_a_name_with_a_dash_for_a_model(
    explore: Explore, light: Light, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-x.onnx").write_bytes(light("squeezenet").read_bytes())
    assert explore("--device", "t4", "--html", "a.html", "--", "-x.onnx")[0] == 0
    assert "explore ./-x.onnx" in Path("a.html").read_text()


def test_a_notebook_shows_the_front_of_a_sweep(light: Light) -> None:
    found = sweep([light("squeezenet")], devices=["t4", "l4"], batches=[1, 8])
    shown = Words()
    shown.feed(found._repr_html_())
    assert shown.text.startswith(f"4 points, {len(found.front)} on the front")
    for point in found.front:
        assert point.device in shown.text
    nothing = sweep(
        [light("squeezenet")], devices=["t4"], options=ExploreOptions(precisions=["nvfp4"])
    )
    assert "1 of 1 point is impossible" in nothing._repr_html_()
    assert shown.tags <= {"div", "b", "table", "thead", "tbody", "tr", "th", "td"}


def test_versions_and_layouts_are_columns_of_the_csv_and_told_in_every_view(
    explore: Explore, light: Light, tmp_path: Path
) -> None:
    table, page = tmp_path / "a.csv", tmp_path / "a.html"
    asked = (
        "--device", "t4", "--runtime", "onnxruntime@1.17,onnxruntime", "--layout", "nchw,nhwc",
        "--workers", "1", "--csv", table, "--html", page,
    )  # fmt: skip
    code, out, err = explore(light("squeezenet"), *asked, "--json")
    assert (code, err) == (0, "")
    told = [("1.17", "nchw"), ("1.17", "nhwc"), ("", "nchw"), ("", "nhwc")]
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [(row["runtime_version"], row["layout"]) for row in rows] == told
    assert {row["runtime"] for row in rows} == {"onnxruntime"}
    points = json.loads(out)["points"]
    assert [(point["runtime_version"] or "", point["layout"]) for point in points] == told
    words = Words()
    words.feed(page.read_text())
    assert "onnxruntime@1.17 in nhwc" in words.text
    assert "--layout nchw,nhwc" in words.text
    _, report, _ = explore(light("squeezenet"), *asked)
    for each in ("onnxruntime@1.17 ", "onnxruntime@1.17 in nhwc", "onnxruntime in nhwc"):
        assert each in report
