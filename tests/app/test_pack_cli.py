"""`slicewise pack`: document, report, page and emitted files as agreed; every mistake one line."""

import io
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console, RenderableType

from slicewise.app.cli import run
from slicewise.app.documents import encode
from slicewise.app.slicing.emitted import check_new, write_files
from slicewise.app.slicing.pack_documents import pack_document
from slicewise.app.slicing.pack_page import pack_page
from slicewise.app.slicing.pack_report import pack_report
from slicewise.core.errors import UsageError
from slicewise.flows.pack import pack
from slicewise.flows.packing.options import PackOptions
from slicewise.slices.emit import FORMATS
from tests import plain_packer

Golden = Callable[[str, str], None]
A100, H100 = "a100-sxm4-80gb", "h100-sxm5-80gb"
ON = ["--device", A100]

WORKLOADS = """\
workloads:
  - name: search
    profile: net.csv
    rate_per_s: 900
    latency_ms: 50ms
  - name: ranking
    profile: net.csv
    rate_per_s: 120
    latency_ms: 100
    percentile: 95
    isolation: mig
"""
MORE = """\
workloads:
  - {name: extra, profile: net.csv, rate_per_s: 400, latency_ms: 60}
"""


def _profile(*, slices: tuple[str, ...] = ("1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb")) -> str:
    """What a model might be measured to: a batch of b takes 2 + 7 b / slices ms."""
    rows = ["slice,batch,processes,latency_ms,throughput_per_s,memory_bytes"]
    for name, batch, count in itertools.product(slices, (1, 2, 4, 8), (1, 2)):
        ms = count * (2 + 7 * batch / int(name[0]))
        rows.append(
            f"{name},{batch},{count},{ms!r},{count * batch / ms * 1e3!r},{count * 3 * 2**30}"
        )
    return "\n".join(rows) + "\n"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the tests, in which they run; a plain packer in place of ours."""
    plain_packer.install(monkeypatch)
    (tmp_path / "w.yaml").write_text(WORKLOADS)
    (tmp_path / "more.yaml").write_text(MORE)
    (tmp_path / "net.csv").write_text(_profile())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _text(made: RenderableType, *, width: int = 130) -> str:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(made)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def test_a_packing_reads_as_agreed(golden: Golden) -> None:
    made = pack("w.yaml", devices=[A100], counts=[2])
    golden("pack.txt", _text(pack_report(made, width=130)))
    golden("pack.json", encode(pack_document(made)).decode())


def test_a_narrow_terminal_gets_the_columns_that_matter(golden: Golden) -> None:
    made = pack("w.yaml", devices=[A100])
    golden("pack_narrow.txt", _text(pack_report(made, width=72), width=72))


def test_more_than_the_cards_carry_reads_as_agreed(golden: Golden, place: Path) -> None:
    (place / "w.yaml").write_text(WORKLOADS.replace("900", "9000"))
    made = pack("w.yaml", devices=[A100], counts=[1], options=PackOptions(what_if="more.yaml"))
    golden("pack_unserved.txt", _text(pack_report(made, width=130)))


_CONTRACT = (
    "schema", "gpus_used", "lower_bound_gpus", "optimal", "gpus", "unserved", "notes",
)  # fmt: skip
_SLICE = (
    "profile", "start", "workload", "batch", "processes", "service_ms", "throughput_per_s",
)  # fmt: skip


def test_the_document_holds_the_contract_and_nothing_else_is_printed(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    code = run(["pack", "w.yaml", *ON, "--count", "8", "--json", "--output", "o.json"])
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    assert (place / "o.json").read_text() == captured.out
    made = json.loads(captured.out)
    assert set(_CONTRACT) <= set(made)
    assert made["schema"] == "slicewise.pack/1"
    assert made["gpus_used"] == len(made["gpus"])
    assert all({"device", "index", "slices"} <= set(gpu) for gpu in made["gpus"])
    slices = [each for gpu in made["gpus"] for each in gpu["slices"]]
    assert all(set(_SLICE) <= set(each) for each in slices)
    for workload in made["workloads"]:
        its = [each for each in slices if each["workload"] == workload["name"]]
        assert sum(each["rate_per_s"] for each in its) == pytest.approx(workload["rate_per_s"])
        assert workload["slices"] == len(its)
    assert all(each["service_ms"] <= 0.45 * 100 for each in slices)


def test_requests_that_no_card_is_left_for_end_with_code_6_and_a_whole_document(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    (place / "w.yaml").write_text(WORKLOADS.replace("900", "9000"))
    assert run(["pack", "w.yaml", *ON, "--count", "1", "--json"]) == 6
    captured = capsys.readouterr()
    made = json.loads(captured.out)
    assert [each["workload"] for each in made["unserved"]] == ["search"]
    assert not made["optimal"]
    assert captured.err.count("\n") == 1
    assert (
        "1 workload is not served in full, search lacks 8,250 of 9,000 requests/s: "
        in captured.err
    )
    assert "1 more card would do" in captured.err
    assert run(["pack", "w.yaml", *ON, "--count", "1"]) == 6
    assert "not everything is served" in capsys.readouterr().out


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_emitted_stands_on_stdout_alone(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pack", "w.yaml", *ON, "--emit", name]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out
    if name in ("mig-parted", "json"):
        assert yaml.safe_load(captured.out)


def test_files_are_emitted_into_a_new_folder_beside_the_report(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    words = ["pack", "w.yaml", *ON, "--emit", "triton", "--emit-dir", "out"]
    assert run([*words, "--output", "o.json"]) == 0
    captured = capsys.readouterr()
    assert "2 workloads on" in captured.out
    assert "triton: " in captured.err
    made = json.loads((place / "o.json").read_text())
    slices = [each for gpu in made["gpus"] for each in gpu["slices"]]
    assert len(list((place / "out").rglob("config.pbtxt"))) == len(slices)
    assert run(words) == 2
    assert "holds files already" in capsys.readouterr().err
    assert not list(place.glob(".out.*"))


def test_files_are_written_all_or_none(place: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        write_files({"a.txt": "a", "a.txt/b.txt": "b"}, place / "new")
    assert not (place / "new").exists()
    assert not list(place.glob(".new.*"))
    write_files({"a/b.txt": "b\n"}, place / "new")
    assert (place / "new" / "a" / "b.txt").read_text() == "b\n"
    with pytest.raises(UsageError, match="is a file"):
        check_new(place / "w.yaml")
    with pytest.raises(UsageError, match="is no folder"):
        check_new(place / "none" / "out")


def test_a_document_is_a_current_layout_and_little_is_moved(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    assert run(["pack", "w.yaml", *ON, "--json", "--output", "now.json"]) == 0
    before = json.loads(capsys.readouterr().out)
    text = (place / "now.json").read_text().replace('"in_use": false', '"in_use": true')
    (place / "now.json").write_text(text)
    words = ["pack", "w.yaml", *ON, "--current", "now.json"]
    assert run([*words, "--json"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert after["moves"] == 0
    for one, other in zip(before["gpus"], after["gpus"], strict=True):
        assert [(each["profile"], each["start"], each["workload"]) for each in one["slices"]] == [
            (each["profile"], each["start"], each["workload"]) for each in other["slices"]
        ]
    assert run(words) == 0
    assert "Against the current layout: no slice made, removed" in capsys.readouterr().out


def test_what_if_tells_how_many_cards_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pack", "w.yaml", *ON, "--what-if", "more.yaml", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["what_if"]["workloads"] == ["extra"]
    assert made["what_if"]["gpus_used"] >= made["what_if"]["gpus_used_before"] > 0
    assert made["moves"] is None
    assert run(["pack", "w.yaml", *ON, "--what-if", "more.yaml"]) == 0
    assert "With extra: " in capsys.readouterr().out


def test_what_if_emits_the_way_from_what_stands_and_not_from_a_plan(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["pack", "w.yaml", *ON, "--what-if", "more.yaml", "--emit", "nvidia-smi"]) == 0
    made = pack("w.yaml", devices=[A100], options=PackOptions(what_if="more.yaml"))
    assert made.problem.current != ()
    assert made.to_apply.current == made.standing == ()
    slices = sum(len(gpu.slices) for gpu in made.packing.gpus)
    assert capsys.readouterr().out.count("@") >= slices


@pytest.mark.parametrize("model", ["service", "fill", "queue"])
def test_every_latency_model_is_told_and_played(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["pack", "w.yaml", *ON, "--latency-model", model, "--simulate"]
    assert run(words) == 0
    assert f"(--latency-model {model})" in capsys.readouterr().out
    assert run([*words, "--json"]) == 0
    for workload in json.loads(capsys.readouterr().out)["workloads"]:
        played = workload["simulated"]
        assert played["met"] == (played["latency_ms"] <= workload["latency_ms"])
        assert played["met"]


def test_ctrl_c_shows_the_best_packing_until_then_and_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_packer.install(monkeypatch, solver=plain_packer.interrupted)
    assert run(["pack", "w.yaml", *ON]) == 0
    out = capsys.readouterr().out
    assert "nothing is proven (search ended early)" in out
    assert "search-interrupted" in out


def test_the_page_shows_cards_targets_and_the_command(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    words = ["pack", "w.yaml", *ON, "--count", "4", "--simulate", "--html", "p.html"]
    assert run(words) == 0
    page = (place / "p.html").read_text()
    assert "slicewise pack w.yaml --device a100-sxm4-80gb --count 4 --simulate" in page
    for told in ("Times against the targets", "Every slice that serves", "search", "1g.10gb"):
        assert told in page


def test_names_cannot_reach_a_page_or_a_terminal_as_markup(place: Path) -> None:
    evil = "<script>alert(1)</script>\\e[31m"
    (place / "w.yaml").write_text(WORKLOADS.replace("name: search", f'name: "{evil}"'))
    made = pack("w.yaml", devices=[A100], counts=[1])
    page = pack_page(made, arguments=["pack", "<script>alert(2)</script>"])
    assert "<script>alert" not in page
    assert "\x1b" not in page
    assert "\x1b[31m" not in _text(pack_report(made, width=130))


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["none.yaml", *ON], 2, "cannot be read"),
        (["w.yaml", "--device", "t5"], 4, "t5"),
        (["w.yaml", "--device", f"{A100}/2g.20gb"], 2, "is a part of a card"),
        (["w.yaml", "--device", f"{A100},{A100}"], 2, "named 2 times"),
        (["w.yaml", *ON, "--count", "x"], 2, "--count 'x' is no whole number"),
        (["w.yaml", *ON, "--count", "8,4"], 2, "2 values of count for 1 kinds"),
        (["w.yaml", *ON, "--count", "0"], 2, "no card is left"),
        (["w.yaml", *ON, "--cost", "cheap"], 2, "--cost 'cheap' is no number"),
        (["w.yaml", *ON, "--objective", "power"], 2, "objective 'power' is unknown"),
        (["w.yaml", *ON, "--latency-model", "fil"], 2, "did you mean fill"),
        (["w.yaml", *ON, "--safety", "-1"], 2, "safety -1"),
        (["w.yaml", *ON, "--time-limit", "0"], 2, "time limit 0 s"),
        (["w.yaml", *ON, "--workers", "0"], 2, "workers 0"),
        (["w.yaml", *ON, "--emit", "helm"], 2, "--emit 'helm' is unknown"),
        (["w.yaml", *ON, "--emit-dir", "out"], 2, "give --emit k8s too"),
        (["w.yaml", *ON, "--emit", "k8s", "--json"], 2, "both print on stdout"),
        (["w.yaml", *ON, "--emit", "k8s", "--emit-dir", "net.csv"], 2, "is a file"),
        (["w.yaml", *ON, "--emit", "k8s", "--gpus-per-host", "0"], 2, "give 1 or more"),
        (["w.yaml", *ON, "--gpus-per-host", "-1"], 2, "-1 leaves no card in a machine"),
        (["w.yaml", *ON, "--time-limit", "0"], 2, "time limit 0 s leaves no time"),
        (["w.yaml", *ON, "--time-limit", "nan"], 2, "time limit nan s leaves no time"),
        (["w.yaml", *ON, "--output", "w.yaml"], 2, "is read as input"),
        (["w.yaml", *ON, "--current", "none.json"], 2, "cannot be read"),
        (["w.yaml", *ON, "--what-if", "net.csv"], 2, "net.csv"),
        (["w.yaml", "--device", "a30"], 4, "line 2: a30 has no slice profile '1g.10gb'"),
        (["w.yaml", "--device", f"{A100},{H100}"], 2, "add a column device"),
        (["fast.yaml", *ON], 6, "raise latency_ms to that, or add a faster card"),
        (["w.yaml", *ON, "--strict", "--objective", "energy"], 5, "profile-energy-assumed"),
    ],
)
def test_a_mistake_is_one_line_and_its_code(
    place: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, told: str
) -> None:
    (place / "fast.yaml").write_text(WORKLOADS.replace("50ms", "5ms"))
    assert run(["pack", *words]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert told in captured.err


def test_every_latency_of_the_document_is_kept_by_the_rule(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["pack", "w.yaml", *ON, "--safety", "0.2", "--json"]) == 0
    made: dict[str, Any] = json.loads(capsys.readouterr().out)
    targets = {each["name"]: each["latency_ms"] for each in made["workloads"]}
    for gpu in made["gpus"]:
        for each in gpu["slices"]:
            assert each["service_ms"] * 1.2 <= 0.45 * targets[each["workload"]] * (1 + 1e-9)
            assert each["rate_per_s"] <= each["capacity_per_s"] * (1 + 1e-9)
            assert each["memory_bytes"] <= each["memory_limit_bytes"]
            assert each["measured"]
