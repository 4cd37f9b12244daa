"""The record store: measurements added, found by their conditions, removed.

A record is on the disk when `add` returns, and a process killed at any moment leaves no half one.
Several processes may write and read at once. Judges no measurement and computes nothing from it.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from slicewise.core.errors import StoreError
from slicewise.core.measurement import Measurement, Outcome
from slicewise.store.home import home
from slicewise.store.keys import Conditions, column_text, condition, own_text, shown_text
from slicewise.store.record_codec import (
    CodecError,
    Encoded,
    check_names,
    content_digest,
    decode,
    encode,
)
from slicewise.store.record_schema import RECORDS
from slicewise.store.sqlite import connect, refusal, transaction

FILE_NAME = "records.sqlite"
BUSY_S = 10.0  # another writer holds the store for milliseconds, an import for a second
_PAGE = 500  # records read at once: no cursor stays open while the caller works

_COLUMNS = (
    "added_at", "key", "digest", "model", "location", "device", "slice", "runtime", "batch",
    "precision", "threads", "outcome", "latency_ms", "energy_j", "memory_bytes", "campaign",
    "point", "content", "body", "samples", "nodes",
)  # fmt: skip
_INSERT = f"INSERT INTO record ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' for _ in _COLUMNS)})"
# The body as bytes: text would be decoded and encoded again.
_WHOLE = "id, added_at, campaign, point, CAST(body AS BLOB), samples, nodes"


@dataclass(frozen=True, slots=True)
class Record:
    """A measurement that is kept: its number, never given twice, and when it was added (UTC, ISO
    8601). `campaign` and `point` say which part of which campaign it is, '' for neither."""

    id: int
    measurement: Measurement
    added_at: str
    campaign: str = ""
    point: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """A measurement to be added, with the campaign and the point that it belongs to.

    `encoded` is its encoding where whoever made the entry has it already.
    """

    measurement: Measurement
    campaign: str = ""
    point: str = ""
    encoded: Encoded | None = None


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A record as it is kept, not decoded: `body` and `nodes` are JSON but for the latter's
    compression."""

    id: int
    added_at: str
    campaign: str
    point: str
    body: bytes
    samples: bytes
    nodes: bytes | None


def default_path() -> Path:
    """Return where records are kept by default; `StoreError` for a user without a home."""
    return home() / FILE_NAME


class RecordStore:
    """An open store. `StoreError`, one line, for whatever keeps it from being read or written."""

    def __init__(
        self, path: Path | None = None, *, read_only: bool = False, busy_s: float = BUSY_S
    ) -> None:
        """Open the store at `path` (None: the default), made where it is absent.

        `read_only` makes nothing and needs no right to write. Other writers are waited for, at
        most `busy_s` seconds.
        """
        self._open(default_path() if path is None else path, read_only, busy_s)

    @classmethod
    def in_memory(cls) -> Self:
        """Return an empty store that is gone when it is closed."""
        made = cls.__new__(cls)
        made._open(None, False, BUSY_S)
        return made

    def _open(self, path: Path | None, read_only: bool, busy_s: float) -> None:
        self.path = path
        self._name = ":memory:" if path is None else str(path)
        self._connection = connect(path, RECORDS, read_only=read_only, busy_s=busy_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the store; a second call does nothing."""
        self._connection.close()

    def add(self, measurement: Measurement, *, campaign: str = "", point: str = "") -> int:
        """Keep a measurement and return its number; it is on the disk when this returns."""
        return self._insert([Entry(measurement, campaign, point)])[0]

    def add_all(self, measurements: Iterable[Measurement], *, campaign: str = "") -> list[int]:
        """Keep all of them or, after an error, none; return their numbers."""
        return self._insert([Entry(measurement, campaign) for measurement in measurements])

    def add_unknown(self, entries: Sequence[Entry]) -> int:
        """Keep those whose measurement is not here yet; return how many that were."""
        rows = [(entry, self._encoded(entry)) for entry in entries]
        added = 0
        with self._writing():
            for entry, encoded in rows:
                known = self._connection.execute(
                    "SELECT 1 FROM record WHERE content = ? LIMIT 1", (encoded.content,)
                ).fetchone()
                if known is None:
                    self._connection.execute(_INSERT, _row(entry, encoded, _now()))
                    added += 1
        return added

    def _insert(self, entries: Sequence[Entry]) -> list[int]:
        rows = [(entry, self._encoded(entry)) for entry in entries]
        numbers: list[int] = []
        with self._writing():
            for entry, encoded in rows:
                done = self._connection.execute(_INSERT, _row(entry, encoded, _now()))
                numbers.append(int(done.lastrowid or 0))
        return numbers

    def find(self, **asked: Unpack[Conditions]) -> Iterator[Record]:
        """Yield the records that meet the conditions, in the order in which they were added."""
        for raw in self.find_raw(**asked):
            yield self.decoded(raw)

    def find_raw(self, **asked: Unpack[Conditions]) -> Iterator[RawRecord]:
        """Yield what `find` does, not decoded; records that are removed meanwhile are left out."""
        numbers = self._numbers(asked)
        for start in range(0, len(numbers), _PAGE):
            page = numbers[start : start + _PAGE]
            places = ",".join("?" * len(page))
            rows = self._ask(f"SELECT {_WHOLE} FROM record WHERE id IN ({places})", page)
            yield from map(_raw, sorted(rows, key=lambda row: row[0]))

    def get(self, number: int) -> Record | None:
        """Return the record of that number, None if there is none."""
        rows = self._ask(f"SELECT {_WHOLE} FROM record WHERE id = ?", (number,))
        return self.decoded(_raw(rows[0])) if rows else None

    def latest(self, key: str) -> Record | None:
        """Return the record of a key that was added last, None if there is none.

        Found through an index. The order of adding counts, which clocks do not disturb.
        """
        rows = self._ask(
            f"SELECT {_WHOLE} FROM record WHERE key = ? ORDER BY id DESC LIMIT 1", (key,)
        )
        return self.decoded(_raw(rows[0])) if rows else None

    def has(self, key: str) -> bool:
        """True if a measurement under these conditions is kept, whatever its outcome."""
        return bool(self._ask("SELECT 1 FROM record WHERE key = ? LIMIT 1", (key,)))

    def has_content(self, measurement: Measurement) -> bool:
        """True if this very measurement is kept."""
        digest = content_digest(measurement)
        return bool(self._ask("SELECT 1 FROM record WHERE content = ? LIMIT 1", (digest,)))

    def count(self, **asked: Unpack[Conditions]) -> int:
        """Return how many records meet the conditions."""
        return len(self._numbers(asked))

    def count_outcomes(self, **asked: Unpack[Conditions]) -> dict[str, int]:
        """Return the number of records by outcome, the most frequent first; `limit` is ignored."""
        terms, values = _narrowed(asked)
        rows = self._ask(
            f"SELECT outcome, count(*) FROM record WHERE {terms} GROUP BY outcome"
            " ORDER BY count(*) DESC, outcome",
            values,
        )
        return dict(rows)

    def points_done(self, campaign: str, *, outcome: Outcome | None = None) -> set[str]:
        """Return the points of a campaign that have a record, of that outcome if one is given."""
        asked = "SELECT DISTINCT point FROM record WHERE campaign <> '' AND campaign = ?"
        values = [column_text(campaign)]
        if outcome is not None:
            asked, values = f"{asked} AND outcome = ?", [*values, outcome.value]
        rows = self._ask(asked, tuple(values))
        return {own_text(row[0]) for row in rows} - {""}

    def numbers(self) -> tuple[int, int] | None:
        """Return the least and the greatest number of a record, None for an empty store."""
        least, greatest = self._ask("SELECT min(id), max(id) FROM record")[0]
        return None if least is None else (least, greatest)

    def remove(self, numbers: Iterable[int]) -> int:
        """Remove the records of these numbers and return how many there were."""
        removed = 0
        with self._writing():
            for number in numbers:
                done = self._connection.execute("DELETE FROM record WHERE id = ?", (number,))
                removed += done.rowcount
        return removed

    def decoded(self, raw: RawRecord) -> Record:
        """Return the record; `StoreError` if its row is damaged."""
        try:
            measurement = decode(raw.body, raw.samples, raw.nodes)
        except CodecError as err:
            raise self.damaged(raw, err) from err
        return Record(raw.id, measurement, raw.added_at, raw.campaign, raw.point)

    def damaged(self, raw: RawRecord, err: CodecError) -> StoreError:
        """Return the error that tells of a damaged row."""
        return StoreError(
            f"record {raw.id} of {self._name!r} is damaged: {err}; remove it with `slicewise"
            f" records remove {raw.id}`"
        )

    def _numbers(self, asked: Conditions) -> list[int]:
        """Return the numbers of the records that meet the conditions, in order."""
        terms, values = _narrowed(asked)
        limit = asked.get("limit")
        most = -1 if limit is None else max(0, limit)  # SQLite: negative is no limit
        rows = self._ask(
            f"SELECT id FROM record WHERE {terms} ORDER BY id DESC LIMIT ?", (*values, most)
        )
        return [row[0] for row in reversed(rows)]

    def _ask(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(statement, tuple(values)).fetchall()
        except (sqlite3.Error, OverflowError) as err:
            raise self._refused(err) from err

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with transaction(self._connection):
                yield
        except (sqlite3.Error, OverflowError) as err:
            raise self._refused(err) from err

    def _refused(self, err: sqlite3.Error | OverflowError) -> StoreError:
        if isinstance(err, sqlite3.Error):
            return refusal(RECORDS, self._name, err)
        return StoreError(f"a number is over 64 bits, the most that {self._name!r} holds: {err}")

    def _encoded(self, entry: Entry) -> Encoded:
        measurement = entry.measurement
        try:
            check_names(entry.campaign, entry.point)
            return entry.encoded or encode(measurement)
        except CodecError as err:
            raise StoreError(
                f"the measurement of {shown_text(measurement.model)!r} cannot be kept: {err};"
                " records hold finite figures and plain values only"
            ) from err


def _narrowed(asked: Conditions) -> tuple[str, Sequence[object]]:
    """Return the SQL condition with what `latest` leaves."""
    terms, values = condition(asked)
    if asked.get("latest"):
        terms = f"id IN (SELECT max(id) FROM record WHERE {terms} GROUP BY key)"
    return terms, values


def _row(entry: Entry, encoded: Encoded, added_at: str) -> tuple[object, ...]:
    """Return the values of the columns, in their order."""
    taken = entry.measurement
    return (
        added_at, taken.key, shown_text(taken.digest), shown_text(taken.model),
        shown_text(taken.location), shown_text(taken.device),
        None if taken.slice is None else shown_text(taken.slice),
        shown_text(taken.runtime), taken.batch, shown_text(taken.precision), taken.threads,
        taken.outcome.value,
        None if taken.latency_ms is None else taken.latency_ms.value,
        taken.energy_j,
        None if taken.memory is None else taken.memory.peak_bytes,
        column_text(entry.campaign), column_text(entry.point),
        encoded.content, encoded.body, encoded.samples, encoded.nodes,
    )  # fmt: skip


def _raw(row: tuple[Any, ...]) -> RawRecord:
    number, added_at, campaign, point, body, samples, nodes = row
    return RawRecord(number, added_at, own_text(campaign), own_text(point), body, samples, nodes)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
