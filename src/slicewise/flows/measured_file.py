"""`FULL.csv`: latencies of one model that someone measured on a card or on slices of it.

Reads and checks rows; what they tell about other slices is decided in `predict/measured.py`.
"""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slicewise.core.device import Device
from slicewise.core.errors import DeviceError, UsageError
from slicewise.core.notes import Note
from slicewise.core.plugins import did_you_mean
from slicewise.predict.measured import MeasuredRow

COLUMNS = ("batch", "latency_ms", "slice", "memory_bytes", "processes")
_NEEDED = ("batch", "latency_ms")
# What a profile for `pack` has beside: here it follows from batch, processes and latency.
_FOLLOWS = "throughput_per_s"
_EXAMPLE = "batch,latency_ms and perhaps slice,memory_bytes,processes"
_LARGEST_BYTES = 16 * 2**20
_MOST_BATCH = 2**31 - 1
_MOST_PROCESSES = 48  # clients of one MPS daemon (MPS guide, "Limitations")


@dataclass(frozen=True, slots=True)
class MeasuredFile:
    """The rows of a file as they stand there, the line of each, and what reading had to note."""

    path: str
    rows: tuple[MeasuredRow, ...]
    lines: tuple[int, ...]
    notes: tuple[Note, ...] = ()

    def on(self, device: Device) -> tuple[MeasuredRow, ...]:
        """Return the rows with the slices under the names that `device` has for them.

        `DeviceError` with file and line for a slice or share that it does not have.
        """
        return tuple(
            self._named(row, line, device) for row, line in zip(self.rows, self.lines, strict=True)
        )

    def _named(self, row: MeasuredRow, line: int, device: Device) -> MeasuredRow:
        if row.slice is None:
            return row
        try:
            if row.slice.endswith("%"):
                name = device.share(_percent(row.slice)).slice_name
            else:
                name = device.profile_named(row.slice).name
        except DeviceError as err:
            raise DeviceError(f"{self.path}, line {line}: {err}") from err
        return MeasuredRow(row.batch, row.latency_ms, name, row.memory_bytes, row.processes)


def read_measured(path: Path) -> MeasuredFile:
    """Return the rows of a CSV file; `UsageError` with file and line for a mistake in it.

    Columns `batch` and `latency_ms` (ms for the whole batch), and where they are not as usual
    `slice` (empty: the whole card, un-sliced; '40%' is a share), `memory_bytes` (of all
    processes together; unknown) and `processes` (1).
    """
    shown = str(path)
    rows: list[MeasuredRow] = []
    lines: list[int] = []
    seen: dict[tuple[str | None, int, int], int] = {}
    header: list[str] = []
    for line, cells in _lines(path):
        where = f"{shown}, line {line}: "
        if not header:
            header = _header(cells, where)
            continue
        row = _row(_by_column(header, cells, where), where)
        key = (row.slice, row.batch, row.processes)
        if key in seen:
            on = "the whole card" if row.slice is None else row.slice
            raise UsageError(
                f"{where}batch {row.batch} on {on} stands in line {seen[key]} already; keep one"
                " of them, as their median"
            )
        seen[key] = line
        rows.append(row)
        lines.append(line)
    if not rows:
        raise UsageError(
            f"measured file {shown!r} has no rows; write the columns {_EXAMPLE}, and a row for"
            " each batch"
        )
    notes: tuple[Note, ...] = ()
    if _FOLLOWS in header:
        text = f"{shown}: {_FOLLOWS} is not read; it follows from processes x batch / latency"
        notes = (Note("column-unused", text),)
    return MeasuredFile(shown, tuple(rows), tuple(lines), notes)


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines that hold something, with their numbers."""
    shown = str(path)
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise UsageError(f"measured file {shown!r} is over 16 MiB; keep the rows of one model")
        content = path.read_text(encoding="utf-8-sig")
    except OSError as err:
        raise UsageError(
            f"measured file {shown!r} cannot be read: {err.strerror or err}; give a CSV file with"
            f" the columns {_EXAMPLE}"
        ) from err
    except UnicodeDecodeError as err:
        raise UsageError(f"measured file {shown!r} is no UTF-8 text; give a CSV file") from err
    reader = csv.reader(content.splitlines(), skipinitialspace=True)
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield reader.line_num, [cell.strip() for cell in cells]
    except csv.Error as err:
        raise UsageError(f"{shown}, line {reader.line_num}: no CSV: {err}; mend the file") from err


def _header(cells: Sequence[str], where: str) -> list[str]:
    names = [cell.lower() for cell in cells]
    known = (*COLUMNS, _FOLLOWS)
    for name in names:
        if name not in known:
            raise UsageError(
                f"{where}column {name!r} is unknown; known are {', '.join(COLUMNS)}"
                f"{did_you_mean(name, COLUMNS)}"
            )
        if names.count(name) > 1:
            raise UsageError(f"{where}column {name!r} stands twice; leave one out")
    for name in _NEEDED:
        if name not in names:
            raise UsageError(f"{where}column {name!r} is missing; the first line is {_EXAMPLE}")
    return names


def _by_column(header: Sequence[str], cells: Sequence[str], where: str) -> dict[str, str]:
    if len(cells) > len(header):
        raise UsageError(
            f"{where}{len(cells)} cells under {len(header)} columns; put texts with commas into"
            " quotes"
        )
    return dict(zip(header, [*cells, *[""] * (len(header) - len(cells))], strict=True))


def _row(given: Mapping[str, str], where: str) -> MeasuredRow:
    text = given.get("slice", "").lower()
    if text.endswith("%"):
        percent = _percent(text)
        if not 0 < percent <= 100:
            raise UsageError(
                f"{where}slice {text!r} is no share; write a profile as 2g.20gb, or a percentage"
                " over 0 and at most 100, as 40%"
            )
    latency_ms = _number(given["latency_ms"], "latency_ms", where)
    memory = given.get("memory_bytes", "")
    return MeasuredRow(
        batch=_whole(given["batch"], "batch", where, most=_MOST_BATCH),
        latency_ms=latency_ms,
        slice=text or None,
        memory_bytes=_number(memory, "memory_bytes", where) if memory else None,
        processes=_whole(given.get("processes") or "1", "processes", where, most=_MOST_PROCESSES),
    )


def _percent(text: str) -> float:
    try:
        return math.nan if "_" in text else float(text.removesuffix("%"))
    except ValueError:
        return math.nan


def _whole(text: str, name: str, where: str, *, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and 0 < int(text) <= most):
        raise UsageError(
            f"{where}{name} {text!r} is no whole number from 1 to {most:,}; write 1, 2, ..."
        )
    return int(text)


def _number(text: str, name: str, where: str) -> float:
    try:
        value = math.nan if "_" in text else float(text)  # Python's own 1_000
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise UsageError(f"{where}{name} {text!r} is no positive number; write one without a unit")
    return value
