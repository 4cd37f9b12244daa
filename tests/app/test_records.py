"""`slicewise records` as people and scripts meet it, word for word where that is agreed.

Golden files: change with --update-golden and read the change.
"""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from slicewise.app import documents, records_documents, records_report
from slicewise.app.cli import run as run_cli
from slicewise.core.measurement import Measurement, NodeTime, Outcome
from slicewise.core.notes import Note
from slicewise.flows.records import RecordList
from slicewise.store.records import Record, RecordStore
from slicewise.store.transfer import BadLine, Imported
from slicewise.testing.records import failed_measurement, measurements, tiny_measurement

Golden = Callable[[str, str], None]

FULL = replace(
    tiny_measurement(5, samples=40), model="resnet50", device="l4", slice="50%", mechanism="mps",
    energy_j=0.42, utilisation=0.875, options={"graph": "all"}, runs_per_sample=4,
    nodes=(NodeTime("conv1", "Conv", 1.25), NodeTime("fc", "Gemm", 0.25, 2.0)),
    notes=(Note("energy-absent", "no meter here"),),
)  # fmt: skip
RECORDS = (
    Record(1, tiny_measurement(0), "2026-11-30T08:00:00.000000Z"),
    Record(2, FULL, "2026-11-30T08:05:00.000000Z", "night", "resnet50/6"),
    Record(4, failed_measurement(3, Outcome.OUT_OF_MEMORY), "2026-11-30T09:00:00.000000Z"),
)
LIST = RecordList("/data/records.sqlite", RECORDS, {"ok": 12, "out of memory": 1})


def _text(made: RenderableType, width: int = 150) -> str:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False, markup=False, emoji=False).print(made)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def test_a_list_reads_as_agreed(golden: Golden) -> None:
    golden("records_list.txt", _text(records_report.records_report(LIST, width=150)))
    encoded = documents.encode(records_documents.records_document(LIST))
    golden("records_list.json", encoded.decode())


def test_a_narrow_terminal_keeps_what_identifies_a_record(golden: Golden) -> None:
    golden("records_narrow.txt", _text(records_report.records_report(LIST, width=60), 60))


def test_an_empty_list_says_what_adds_records() -> None:
    made = records_report.records_report(RecordList("s.sqlite", (), {}), width=80)
    assert _text(made) == "No record matches in s.sqlite. `slicewise measure` adds records.\n"


def test_one_record_reads_as_agreed(golden: Golden) -> None:
    golden("records_show.txt", _text(records_report.record_report(RECORDS[1])))
    encoded = documents.encode(records_documents.record_document(RECORDS[1]))
    golden("records_show.json", encoded.decode())


def test_a_failure_reads_as_agreed(golden: Golden) -> None:
    golden("records_failure.txt", _text(records_report.record_report(RECORDS[2])))


def test_an_import_names_its_bad_lines() -> None:
    bad = tuple(BadLine(n, "it is not JSON") for n in range(1, 13))
    made = records_report.import_report([(Path("a.jsonl"), Imported(2, 1, bad))], "s.sqlite")
    lines = _text(made).splitlines()
    assert lines[0] == "2 records added to s.sqlite; 1 known already."
    assert lines[1] == "  a.jsonl, line 1: it is not JSON"
    assert lines[-1] == "  a.jsonl: 2 more bad lines; --json has all"


@given(measurements())
@settings(deadline=None, max_examples=30)
def test_any_record_can_be_shown_and_told(made: Measurement) -> None:
    record = Record(1, made, "2026-11-30T08:00:00.000000Z", "\udc80\x1b", "\n")
    shown = _text(records_report.record_report(record))
    shown += _text(
        records_report.records_report(RecordList("s", (record,), {made.outcome: 1}), width=80)
    )
    assert "\x1b" not in shown
    json.loads(documents.encode(records_documents.record_document(record)))


@given(st.lists(st.floats(-1e9, 1e9), min_size=1))
def test_a_spark_line_has_a_block_for_the_least_and_the_greatest(samples: list[float]) -> None:
    line = records_report.spark_line(samples)
    assert line[0] != " "
    assert line[-1] != " "
    assert "█" in line


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "records.sqlite"
    with RecordStore(path) as made:
        made.add(tiny_measurement(0))
        made.add(FULL, campaign="night", point="p")
        made.add(failed_measurement(3, Outcome.TIMED_OUT))
    return path


def _run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = run_cli(["records", *(str(argument) for argument in arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ([], [1, 2, 3]),
        (["--model", "net*"], [1, 3]),
        (["--device", "l4@50%"], [2]),
        (["--device", "l4/1g.5gb"], []),
        (["--device", "l4"], [2]),
        (["--runtime", "onnxruntime", "--batch", "6"], [2]),
        (["--outcome", "timed-out"], [3]),
        (["--campaign", "night", "--precision", "fp32"], [2]),
        (["--since", "2001-01-01", "--latest", "--limit", "2"], [2, 3]),
        (["--since", "2990-01-01T10:00+02:00"], []),
    ],
)
def test_a_list_is_of_what_the_options_ask(
    capsys: pytest.CaptureFixture[str], store: Path, options: list[str], numbers: list[int]
) -> None:
    code, out, err = _run(capsys, "list", "--store", store, "--json", *options)
    document = json.loads(out)
    assert (code, err, document["schema"]) == (0, "", "slicewise.records/1")
    assert [entry["id"] for entry in document["measurements"]] == numbers


def test_the_first_line_of_a_list_is_the_answer(
    capsys: pytest.CaptureFixture[str], store: Path
) -> None:
    code, out, _ = _run(capsys, "list", "--store", store, "--limit", "1")
    assert code == 0
    assert out.splitlines()[0] == f"3 records in {store}: 2 ok, 1 timed out."
    assert "2 more are not shown" in out


def test_show_tells_all_of_one_record(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    code, out, _ = _run(capsys, "show", "2", "--store", store, "--json")
    [entry] = json.loads(out)["measurements"]
    assert code == 0
    assert entry["samples"] == list(FULL.samples_ms)
    assert [node["op_type"] for node in entry["nodes"]] == ["Conv", "Gemm"]
    code, out, _ = _run(capsys, "show", "2", "--store", store)
    assert code == 0
    assert out.startswith("resnet50 on l4@50%, batch 6, onnxruntime fp32: 2.08 ms (1.95 ms to")


def test_an_export_is_imported_elsewhere_once(
    capsys: pytest.CaptureFixture[str], store: Path, tmp_path: Path
) -> None:
    file, other = tmp_path / "out.jsonl", tmp_path / "other.sqlite"
    code, out, _ = _run(capsys, "export", file, "--store", store, "--outcome", "ok")
    assert (code, out) == (0, f"2 records written to {file}\n")
    code, out, _ = _run(capsys, "import", file, "--store", other)
    assert (code, out) == (0, f"2 records added to {other}.\n")
    code, out, _ = _run(capsys, "import", file, "--store", other, "--json")
    assert code == 0
    assert json.loads(out)["files"] == [{"file": str(file), "added": 0, "known": 2, "bad": []}]


def test_a_parquet_file_is_made_by_its_name(
    capsys: pytest.CaptureFixture[str], store: Path, tmp_path: Path
) -> None:
    assert _run(capsys, "export", tmp_path / "o.parquet", "--store", store)[0] == 0
    assert (tmp_path / "o.parquet").read_bytes().startswith(b"PAR1")
    assert _run(capsys, "export", tmp_path / "o", "--format", "parquet", "--store", store)[0] == 0
    assert (tmp_path / "o").read_bytes().startswith(b"PAR1")


def test_an_export_to_stdout_is_lines_and_nothing_else(store: Path) -> None:
    command = [sys.executable, "-m", "slicewise", "records", "export", "-", "--store", str(store)]
    done = subprocess.run(command, capture_output=True, check=True)
    lines = done.stdout.splitlines()
    assert [json.loads(line)["schema"] for line in lines] == ["slicewise.record/1"] * 3
    assert done.stderr == b"3 records written to stdout\n"


def test_what_one_store_writes_to_a_pipe_another_reads_from_it(store: Path) -> None:
    command = [sys.executable, "-m", "slicewise", "records"]
    lines = subprocess.run(
        [*command, "export", "-", "--store", str(store)], capture_output=True, check=True
    ).stdout
    other = store.with_name("other.sqlite")
    done = subprocess.run(
        [*command, "import", "-", "--store", str(other)],
        input=lines, capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout.decode() == f"3 records added to {other}.\n"


def test_bad_lines_are_an_error_that_keeps_the_good_ones(
    capsys: pytest.CaptureFixture[str], store: Path, tmp_path: Path
) -> None:
    file, other = tmp_path / "out.jsonl", tmp_path / "other.sqlite"
    _run(capsys, "export", file, "--store", store)
    with file.open("ab") as opened:
        opened.write(b"{}\n")
    code, out, err = _run(capsys, "import", file, "--store", other)
    assert code == 9
    assert out.startswith("3 records added to")
    assert "1 line is no record, the first is line 4 of" in err
    assert len(err.splitlines()) == 1


def test_records_are_removed_by_number(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    code, out, _ = _run(capsys, "remove", "1", "3", "1", "--store", store)
    assert (code, out) == (0, "2 records removed\n")
    code, _, err = _run(capsys, "remove", "1", "--store", store)
    assert code == 2
    assert "there is no record 1 in" in err


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["show", "99"], 2, "its numbers go from 1 to 3"),
        (["show", "0x1"], 2, "valid int"),
        (["list", "--outcome", "okay"], 2, "did you mean ok?"),
        (["list", "--since", "yesterday"], 2, "is no date"),
        (["list", "--model", ""], 2, "--model is empty"),
        (["list", "--limit", "0"], 2, "--limit"),
        (["export", "no/such/folder/x"], 2, "does not exist"),
        (["export", "x", "--format", "xml"], 2, "one of jsonl, parquet"),
        (["import", "none.jsonl"], 9, "cannot be read"),
        (["import", "."], 9, "cannot be read"),
    ],
)
def test_a_mistake_is_one_line_and_its_exit_code(
    capsys: pytest.CaptureFixture[str],
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    told: str,
) -> None:
    monkeypatch.chdir(store.parent)
    found, out, err = _run(capsys, *arguments, "--store", store)
    assert (found, out) == (code, "")
    assert told in err
    assert len(err.splitlines()) == 1
    assert [path.name for path in store.parent.iterdir()] == ["records.sqlite"]


def test_an_export_never_replaces_the_store(
    capsys: pytest.CaptureFixture[str], store: Path
) -> None:
    code, _, err = _run(capsys, "export", store, "--store", store)
    assert code == 2
    assert "is the record store itself" in err


def test_a_missing_store_that_is_named_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, _, err = _run(capsys, "list", "--store", tmp_path / "none.sqlite")
    assert code == 9
    assert "there is no record store" in err


def test_the_command_is_light_until_it_is_used() -> None:
    code = (
        "import sys, slicewise.app.records_command;"
        "print([m for m in ('sqlite3', 'msgspec', 'pyarrow', 'rich.table') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
