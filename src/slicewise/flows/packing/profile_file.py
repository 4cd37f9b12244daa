"""A profile: a CSV file of one model measured on slices, at batches, with processes beside it.

Reads and checks rows; which of them serve what is decided later. Every mistake names file and
line.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slicewise.core.device import Device
from slicewise.core.errors import DeviceError, UsageError
from slicewise.core.notes import Note
from slicewise.core.plugins import did_you_mean
from slicewise.core.units import format_number
from slicewise.flows.packing.workload import MOST_PROCESSES

COLUMNS = ("slice", "batch", "processes", "latency_ms", "throughput_per_s", "memory_bytes")
_OPTIONAL = ("processes", "throughput_per_s", "memory_bytes", "device")
_LARGEST_BYTES = 16 * 2**20
# How far the throughput of a row may be from processes x batch / latency without a remark: what
# waits between two batches makes it less, a window of measuring cut at its ends more.
_ODD_THROUGHPUT = 0.2
# Above so many times that rate a row contradicts itself: no window of measuring is cut so badly.
_MOST_THROUGHPUT = 2.0


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One row: `slice` None is the whole card, un-sliced; `throughput_per_s` is that of all
    `processes` together, `memory_bytes` what they take together, None where it is not told.
    `device` is '' where the file has no such column.
    """

    slice: str | None
    batch: int
    processes: int
    latency_ms: float
    throughput_per_s: float
    memory_bytes: float | None
    device: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Profile:
    """The rows of a file and what reading them had to note."""

    path: str
    rows: tuple[ProfileRow, ...]
    notes: tuple[Note, ...] = ()

    def on(self, device: Device, *, only: bool) -> tuple[ProfileRow, ...]:
        """Return the rows of a card, its slices under the card's own names for them.

        `only`: it is the only kind of card, so that rows without a device are of it. `UsageError`
        for such rows among several kinds, `DeviceError` for a slice that the card does not have.
        """
        if not only and any(not row.device for row in self.rows):
            raise UsageError(
                f"{self.path}, line {self.rows[0].line}: the profile does not say of which card it"
                " is, and several are given; add a column device"
            )
        own = [row for row in self.rows if row.device in ("", device.name)]
        return tuple(self._named(row, device) for row in own)

    def _named(self, row: ProfileRow, device: Device) -> ProfileRow:
        if row.slice is None:
            return row
        try:
            name = device.profile_named(row.slice).name
        except DeviceError as err:
            raise DeviceError(f"{self.path}, line {row.line}: {err}") from err
        return ProfileRow(
            name, row.batch, row.processes, row.latency_ms, row.throughput_per_s,
            row.memory_bytes, row.device, row.line,
        )  # fmt: skip


def read_profile(path: Path) -> Profile:
    """Return the rows of a profile; `UsageError` with file and line for a mistake in it.

    Columns `slice` (empty: the whole card), `batch`, `latency_ms`, and, where they are not as
    usual, `processes` (1), `throughput_per_s` (processes x batch / latency), `memory_bytes`
    (unknown) and `device`.
    """
    shown = str(path)
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise UsageError(f"profile {shown!r} is over 16 MiB; keep the rows of one model")
        content = path.read_text(encoding="utf-8-sig")
    except OSError as err:
        raise UsageError(
            f"profile {shown!r} cannot be read: {err.strerror or err}; give a CSV file with the"
            f" columns {','.join(COLUMNS)}"
        ) from err
    except UnicodeDecodeError as err:
        raise UsageError(f"profile {shown!r} is no UTF-8 text; give a CSV file") from err
    reader = csv.reader(content.splitlines(), skipinitialspace=True)
    rows: list[ProfileRow] = []
    seen: dict[tuple[str, str | None, int, int], int] = {}
    header: list[str] = []
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            where = f"{shown}, line {reader.line_num}: "
            if not header:
                header = _header(cells, where)
                continue
            row = _row(_by_column(header, cells, where), where, reader.line_num)
            key = (row.device, row.slice, row.batch, row.processes)
            if key in seen:
                raise UsageError(
                    f"{where}slice {row.slice or 'none'!r}, batch {row.batch}, {row.processes}"
                    f" processes stand in line {seen[key]} already; leave one out"
                )
            seen[key] = reader.line_num
            rows.append(row)
    except csv.Error as err:
        raise UsageError(f"{shown}, line {reader.line_num}: no CSV: {err}; mend the file") from err
    if not rows:
        raise UsageError(
            f"profile {shown!r} has no rows; write the columns {','.join(COLUMNS)} and a row for"
            " each slice, batch and number of processes measured"
        )
    return Profile(shown, tuple(rows), _odd(shown, rows))


def _header(cells: Sequence[str], where: str) -> list[str]:
    names = [cell.strip().lower() for cell in cells]
    known = (*COLUMNS, "device")
    for name in names:
        if name not in known:
            raise UsageError(
                f"{where}column {name!r} is unknown; known are {', '.join(known)}"
                f"{did_you_mean(name, known)}"
            )
        if names.count(name) > 1:
            raise UsageError(f"{where}column {name!r} stands twice; leave one out")
    for name in known:
        if name not in names and name not in _OPTIONAL:
            raise UsageError(f"{where}column {name!r} is missing; add it to {', '.join(names)}")
    return names


def _by_column(header: Sequence[str], cells: Sequence[str], where: str) -> dict[str, str]:
    if len(cells) > len(header) and any(cell.strip() for cell in cells[len(header) :]):
        raise UsageError(
            f"{where}{len(cells)} cells under {len(header)} columns; put texts with commas into"
            " quotes"
        )
    padded = [*cells, *[""] * (len(header) - len(cells))]
    return dict(zip(header, (cell.strip() for cell in padded), strict=False))


def _row(given: Mapping[str, str], where: str, line: int) -> ProfileRow:
    batch = _whole(given, "batch", where)
    processes = _whole(given, "processes", where, most=MOST_PROCESSES, usual=1)
    latency_ms = _number(given, "latency_ms", where)
    if latency_ms is None:
        raise UsageError(f"{where}latency_ms is empty; write the milliseconds of one batch")
    follows_per_s = processes * batch / latency_ms * 1e3
    throughput_per_s = _number(given, "throughput_per_s", where)
    if throughput_per_s is not None and throughput_per_s > _MOST_THROUGHPUT * follows_per_s:
        raise UsageError(
            f"{where}throughput_per_s {throughput_per_s:g} is more than twice what"
            f" {processes} x {batch} items in {latency_ms:g} ms can give, {follows_per_s:.4g};"
            " mend one of them, or leave throughput_per_s empty"
        )
    return ProfileRow(
        slice=given["slice"] or None,
        batch=batch,
        processes=processes,
        latency_ms=latency_ms,
        throughput_per_s=follows_per_s if throughput_per_s is None else throughput_per_s,
        memory_bytes=_number(given, "memory_bytes", where),
        device=given.get("device", "").lower(),
        line=line,
    )


def _whole(
    given: Mapping[str, str], name: str, where: str, *, most: int = 2**31 - 1, usual: int = 0
) -> int:
    text = given.get(name, "")
    if not text and usual:
        return usual
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and 0 < int(text) <= most):
        raise UsageError(
            f"{where}{name} {text!r} is no whole number from 1 to {most:,}; write 1, 2, ..."
        )
    return int(text)


def _number(given: Mapping[str, str], name: str, where: str) -> float | None:
    text = given.get(name, "")
    if not text:
        return None
    try:
        value = math.nan if "_" in text else float(text)  # Python's own 1_000
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise UsageError(f"{where}{name} {text!r} is no positive number; write one without a unit")
    return value


def _odd(path: str, rows: Sequence[ProfileRow]) -> tuple[Note, ...]:
    """Tell of throughputs that are not those of all processes of the slice together."""
    odd = [
        row
        for row in rows
        if abs(row.throughput_per_s * row.latency_ms / (row.processes * row.batch * 1e3) - 1)
        > _ODD_THROUGHPUT
    ]
    if not odd:
        return ()
    first = odd[0]
    follows = format_number(first.processes * first.batch / first.latency_ms * 1e3)
    text = (
        f"{path}: {len(odd)} of {len(rows)} rows have a throughput over 20 % from processes x"
        f" batch / latency (line {first.line}: {format_number(first.throughput_per_s)}, not"
        f" {follows} items/s); it is taken as that of all processes together"
    )
    return (Note("profile-throughput-odd", text),)
