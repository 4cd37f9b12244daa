"""Records out of a store and into another: JSON lines, and parquet with the extra.

A line holds all of a record, so that importing what was exported gives the same measurement. What
is imported is judged line by line; a bad one costs no other. The order is that of adding.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Unpack

import msgspec

from slicewise.core.errors import StoreError
from slicewise.core.measurement import Measurement
from slicewise.store.keys import Conditions
from slicewise.store.record_codec import (
    CodecError,
    as_json,
    check_names,
    decode_samples,
    encode,
    from_json,
    unpack,
)
from slicewise.store.records import Entry, RawRecord, RecordStore

SCHEMA = "slicewise.record/1"
_BATCH = 500  # lines added in one transaction: other writers wait for a fraction of a second
_LONGEST_LINE = 64 * 2**20  # more is no record; it is read past and never held whole
_NUMBER_LIMIT = 2**63


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line, counted from 1, that is no record, and why."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did: records added, records that were here already, lines that are none."""

    added: int
    known: int
    bad: tuple[BadLine, ...] = ()


class _Line(msgspec.Struct, tag=SCHEMA, tag_field="schema"):
    """One line. Fields that this version does not know are left out, as the contract has it."""

    measurement: Measurement
    added_at: str = ""
    campaign: str = ""
    point: str = ""


def export_jsonl(store: RecordStore, file: BinaryIO, **asked: Unpack[Conditions]) -> int:
    """Write the records that meet the conditions as JSON lines; return how many."""
    count = 0
    for raw in store.find_raw(**asked):
        try:
            file.write(line_of(raw))
        except CodecError as err:
            raise store.damaged(raw, err) from err
        count += 1
    return count


def line_of(raw: RawRecord) -> bytes:
    """Return the line of a record: its body is passed through, samples and times are put in."""
    head = as_json(
        {
            "schema": SCHEMA,
            "added_at": raw.added_at,
            "campaign": raw.campaign,
            "point": raw.point,
        }
    )
    samples = msgspec.json.encode(decode_samples(raw.samples))
    return b"".join(
        (
            head[:-1], b',"measurement":', raw.body[:-1], b',"samples_ms":', samples,
            b',"nodes":', unpack(raw.nodes), b"}}\n",
        )
    )  # fmt: skip


@dataclass(slots=True)
class _Tally:
    """What was found so far."""

    added: int = 0
    known: int = 0
    bad: list[BadLine] = field(default_factory=list)


def import_jsonl(store: RecordStore, file: BinaryIO) -> Imported:
    """Add the records of JSON lines that are not in the store yet.

    Lines are added some hundred at a time: an import that was killed is done by doing it again.
    Blank lines are nothing. `StoreError` if the store cannot be written.
    """
    return import_lines(store, enumerate(_lines(file), 1))


def import_lines(store: RecordStore, lines: Iterable[tuple[int, bytes | None]]) -> Imported:
    """Add the records of numbered lines; None stands for a line that is too long."""
    tally = _Tally()
    told = iter(lines)
    while batch := list(islice(told, _BATCH)):
        entries = [entry for number, line in batch if (entry := _entry(number, line, tally))]
        added = store.add_unknown(entries)
        tally.added += added
        tally.known += len(entries) - added
    return Imported(tally.added, tally.known, tuple(tally.bad))


def _lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Yield the lines, None for one that is longer than any record."""
    while line := file.readline(_LONGEST_LINE):
        rest = line
        while len(rest) == _LONGEST_LINE and not rest.endswith(b"\n"):
            rest = file.readline(_LONGEST_LINE)
        yield line if rest is line else None


def _entry(number: int, line: bytes | None, tally: _Tally) -> Entry | None:
    """Return what a line holds; a bad one is noted."""
    if line is not None and not line.strip():
        return None
    try:
        if line is None:
            raise CodecError(f"longer than {_LONGEST_LINE:,} bytes, which no record is")
        made: _Line = from_json(line, _Line)
        _check(made.measurement)
        check_names(made.campaign, made.point)
        encoded = encode(made.measurement)
    except CodecError as err:
        tally.bad.append(BadLine(number, str(err)))
        return None
    return Entry(made.measurement, made.campaign, made.point, encoded)


def _check(measurement: Measurement) -> None:
    """Raise `CodecError` for numbers that the columns of a store cannot hold."""
    memory = measurement.memory
    peak_bytes = 0 if memory is None else memory.peak_bytes
    for name, number in (
        ("batch", measurement.batch), ("threads", measurement.threads),
        ("peak_bytes", peak_bytes),
    ):  # fmt: skip
        if not 0 <= number < _NUMBER_LIMIT:
            raise CodecError(f"{name} is {number}, not from 0 to 2^63 - 1")


@contextmanager
def open_import(path: Path) -> Iterator[BufferedReader]:
    """Yield the open file to import, stdin for '-'; `StoreError` if it cannot be read."""
    try:
        if str(path) == "-":
            with open(sys.stdin.fileno(), "rb", closefd=False) as file:
                yield file
            return
        with path.open("rb") as file:
            yield file
    except OSError as err:
        raise StoreError(
            f"{str(path)!r} cannot be read: {err.strerror or err}; give a file that `slicewise"
            " records export` wrote"
        ) from err
