"""`FULL.csv`: every mistake names its line, every reading the card's own names."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slicewise
from slicewise.core.errors import DeviceError, UsageError
from slicewise.flows.measured_file import read_measured
from slicewise.predict.measured import MeasuredRow

A100 = slicewise.device("a100-sxm4-80gb")


@pytest.fixture
def csv_file(tmp_path: Path) -> Path:
    return tmp_path / "full.csv"


def test_columns_come_in_any_order_and_most_may_be_left_out(csv_file: Path) -> None:
    csv_file.write_text("latency_ms, Batch\n10.5, 8\n\n20,16\n")
    read = read_measured(csv_file)
    assert read.rows == (MeasuredRow(8, 10.5), MeasuredRow(16, 20.0))
    assert read.lines == (2, 4)
    assert not read.notes


def test_slices_come_under_the_names_of_the_card(csv_file: Path) -> None:
    csv_file.write_text("batch,latency_ms,slice,memory_bytes,processes\n8,5,3g.39gb,2e9,2\n8,9,,,\n"
                        "8,7,40%,,\n")  # fmt: skip
    assert read_measured(csv_file).on(A100) == (
        MeasuredRow(8, 5.0, "3g.40gb", 2e9, 2), MeasuredRow(8, 9.0), MeasuredRow(8, 7.0, "40%"),
    )  # fmt: skip


def test_a_column_that_follows_from_others_is_noted(csv_file: Path) -> None:
    csv_file.write_text("batch,latency_ms,throughput_per_s\n8,5,1600\n")
    (note,) = read_measured(csv_file).notes
    assert note.code == "column-unused"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no rows"),
        ("batch,latency_ms\n", "has no rows"),
        ("batch\n8\n", "line 1: column 'latency_ms' is missing"),
        ("batch,latency\n8,5\n", "line 1: column 'latency' is unknown; known are .*did you mean"),
        ("batch,latency_ms,batch\n8,5,8\n", "line 1: column 'batch' stands twice"),
        ("batch,latency_ms\n8,5\n0,5\n", "line 3: batch '0' is no whole number"),
        ("batch,latency_ms\n8.5,5\n", "line 2: batch '8.5' is no whole number"),
        ("batch,latency_ms\n8,1_0\n", "line 2: latency_ms '1_0' is no positive number"),
        ("batch,latency_ms,slice\n8,1,1_0%\n", "line 2: slice '1_0%' is no share"),
        ("batch,latency_ms\n8,5 ms\n", "line 2: latency_ms '5 ms' is no positive number"),
        ("batch,latency_ms\n8,nan\n", "line 2: latency_ms 'nan'"),
        ("batch,latency_ms\n8,\n", "line 2: latency_ms ''"),
        ("batch,latency_ms\n8,-1\n", "line 2: latency_ms '-1'"),
        ("batch,latency_ms\n8,1,2\n", "line 2: 3 cells under 2 columns"),
        ("batch,latency_ms,slice\n8,5,120%\n", "line 2: slice '120%' is no share"),
        ("batch,latency_ms,slice\n8,5,x%\n", "line 2: slice 'x%' is no share"),
        ("batch,latency_ms,processes\n8,5,99\n", "line 2: processes '99' is no whole number"),
        ("batch,latency_ms,memory_bytes\n8,5,2GB\n", "line 2: memory_bytes '2GB'"),
        ("batch,latency_ms\n8,5\n4,3\n8,6\n", "line 4: batch 8 on the whole card .* line 2"),
    ],
)
def test_a_mistake_names_its_line(csv_file: Path, text: str, told: str) -> None:
    csv_file.write_text(text)
    with pytest.raises(UsageError, match=told):
        read_measured(csv_file)


def test_a_file_that_is_no_text_or_not_there_is_refused(csv_file: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_measured(csv_file)
    csv_file.write_bytes(b"\xff\xfe\x00b")
    with pytest.raises(UsageError, match="is no UTF-8 text"):
        read_measured(csv_file)


def test_a_slice_that_the_card_lacks_names_its_line(csv_file: Path) -> None:
    csv_file.write_text("batch,latency_ms,slice\n8,5,\n8,5,5g.40gb\n")
    with pytest.raises(
        DeviceError, match=r"line 3: a100-sxm4-80gb has no slice profile '5g.40gb'"
    ):
        read_measured(csv_file).on(A100)


_ROWS = st.builds(
    MeasuredRow,
    batch=st.integers(1, 1024),
    latency_ms=st.floats(1e-3, 1e6),
    slice=st.sampled_from([None, "1g.10gb", "7g.80gb", "40%"]),
    memory_bytes=st.none() | st.floats(1.0, 1e12),
    processes=st.integers(1, 48),
)


@given(st.lists(_ROWS, min_size=1, unique_by=lambda row: (row.batch, row.slice, row.processes)))
def test_what_is_written_is_read(rows: list[MeasuredRow]) -> None:
    import tempfile

    lines = ["slice,batch,processes,latency_ms,memory_bytes"]
    for row in rows:
        cells = (row.slice or "", row.batch, row.processes, row.latency_ms, row.memory_bytes or "")
        lines.append(",".join(map(str, cells)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "full.csv"
        path.write_text("\n".join(lines))
        assert read_measured(path).on(A100) == tuple(rows)
