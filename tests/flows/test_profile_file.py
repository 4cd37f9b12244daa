"""Profiles: rows of measurements read and checked, with file and line for every mistake."""

from pathlib import Path

import pytest

import slicewise
from slicewise.core.errors import DeviceError, UsageError
from slicewise.flows.packing.profile_file import COLUMNS, ProfileRow, read_profile

HEAD = ",".join(COLUMNS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "p.csv"


def test_every_column_is_read(path: Path) -> None:
    path.write_text(f"{HEAD},device\n1g.10gb,8,2,40,400,2e9,\n\n,4,1,5.5,,,t4\n")
    made = read_profile(path)
    assert made.rows == (
        ProfileRow("1g.10gb", 8, 2, 40.0, 400.0, 2e9, "", 2),
        ProfileRow(None, 4, 1, 5.5, pytest.approx(4 / 5.5e-3), None, "t4", 4),  # type: ignore[arg-type]
    )
    assert made.notes == ()


def test_columns_may_stand_in_any_order_and_usual_ones_may_lack(path: Path) -> None:
    path.write_text("\N{ZERO WIDTH NO-BREAK SPACE}batch, Latency_ms ,slice\n1,10,2g.20gb\n")
    (row,) = read_profile(path).rows
    assert (row.slice, row.processes, row.throughput_per_s) == ("2g.20gb", 1, 100.0)


def test_a_throughput_of_one_process_is_told(path: Path) -> None:
    path.write_text(f"{HEAD}\n1g.10gb,8,2,40,200,1\n1g.10gb,8,1,40,200,1\n")
    (note,) = read_profile(path).notes
    assert note.code == "profile-throughput-odd"
    assert "1 of 2 rows" in note.text
    assert "line 2: 200, not 400 items/s" in note.text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no rows"),
        (HEAD, "has no rows"),
        (
            "slice,batch,latency\n",
            "line 1: column 'latency' is unknown; .* did you mean latency_ms",
        ),
        ("slice,batch\n", "line 1: column 'latency_ms' is missing"),
        ("slice,batch,batch,latency_ms\n", "line 1: column 'batch' stands twice"),
        (f"{HEAD}\na,b,1,1,1,1\n", "line 2: batch 'b' is no whole number"),
        (f"{HEAD}\na,0,1,1,1,1\n", "line 2: batch '0'"),
        (f"{HEAD}\na,1,49,1,1,1\n", "line 2: processes '49' is no whole number from 1 to 48"),
        (f"{HEAD}\na,1,1,,1,1\n", "line 2: latency_ms is empty"),
        (f"{HEAD}\na,1,1,3ms,1,1\n", "line 2: latency_ms '3ms' .* without a unit"),
        (f"{HEAD}\na,8,2,40,801,1\n", "line 2: throughput_per_s 801 is more than twice .*, 400"),
        (f"{HEAD}\na,1,1,1_0,1,1\n", "line 2: latency_ms '1_0' is no positive number"),
        (f"{HEAD}\na,1,1,1,-1,1\n", "line 2: throughput_per_s '-1'"),
        (f"{HEAD}\na,1,1,1,1,nan\n", "line 2: memory_bytes 'nan'"),
        (f"{HEAD}\na,1,1,1,1,1,9\n", "line 2: 7 cells under 6 columns"),
        (f"{HEAD}\na,1,1,1,1,1\n\na,1,1,2,1,1\n", "line 4: .* stand in line 2 already"),
    ],
)
def test_a_mistake_is_told_with_its_line(path: Path, text: str, told: str) -> None:
    path.write_text(text)
    with pytest.raises(UsageError, match=told) as caught:
        read_profile(path)
    assert str(path) in str(caught.value)


def test_what_is_no_text_and_what_is_not_there_are_mistakes(path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_profile(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="no UTF-8 text"):
        read_profile(path)


def test_rows_are_taken_under_the_names_that_the_card_has(path: Path) -> None:
    path.write_text(f"{HEAD}\n3g.39gb,1,1,1,1,1\n,1,1,1,1,1\n")
    card = slicewise.device("a100-sxm4-80gb")
    assert [row.slice for row in read_profile(path).on(card, only=True)] == ["3g.40gb", None]


def test_a_slice_that_the_card_lacks_is_told_with_its_line(path: Path) -> None:
    path.write_text(f"{HEAD}\n1g.10gb,1,1,1,1,1\n1g.5gb,1,1,1,1,1\n")
    card = slicewise.device("a100-sxm4-80gb")
    with pytest.raises(DeviceError, match=r"line 3: a100-.* has no slice profile '1g\.5gb'"):
        read_profile(path).on(card, only=True)


def test_rows_of_no_card_among_several_kinds_are_refused(path: Path) -> None:
    path.write_text(f"{HEAD}\n1g.10gb,1,1,1,1,1\n")
    card = slicewise.device("a100-sxm4-80gb")
    with pytest.raises(UsageError, match="add a column device"):
        read_profile(path).on(card, only=False)
    path.write_text(f"{HEAD},device\n1g.10gb,1,1,1,1,1,h100-sxm5-80gb\n")
    assert read_profile(path).on(card, only=False) == ()
