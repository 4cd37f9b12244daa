"""The best configurations that tuning has found, by what they were found for.

A configuration is the best of a workload for one engine (and its version) on one device, or a
part of it. A later run takes it instead of searching again, and starts near those of its kin. What
was put is on the disk when `put` returns, all of it or, after an error or a kill, none. Runs
nothing and judges nothing but which of two latencies is less.
"""

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import EllipsisType, TracebackType
from typing import Any, Self

from slicewise.core.cost import Estimate
from slicewise.core.errors import StoreError
from slicewise.core.tuning import Tuned, Workload
from slicewise.store.home import home
from slicewise.store.keys import column_text, own_text
from slicewise.store.sqlite import FileKind, connect, refusal, transaction

FILE_NAME = "tuned.sqlite"
BUSY_S = 10.0  # another run holds the store for milliseconds
_PAGE = 500  # keys asked for at once: SQLite takes 32766 values in a statement, older ones 999

_PLACE = ("engine", "version", "device", "device_digest", "slice")
_COLUMNS = (
    *_PLACE, "key", "name", "op_types", "kin", "config", "latency_ms", "low_ms", "high_ms",
    "source", "trials", "default_ms", "added_at",
)  # fmt: skip
_HERE = " AND ".join(f"{column} = ?" for column in _PLACE)
_INSERT = (
    f"INSERT OR REPLACE INTO tuned ({', '.join(_COLUMNS)})"
    f" VALUES ({', '.join('?' for _ in _COLUMNS)})"
)
_WHOLE = (
    "key, name, op_types, kin, config, latency_ms, low_ms, high_ms, source, trials, default_ms"
)


def _first_schema(connection: sqlite3.Connection) -> None:
    """One row for each workload in each place; `slice` is '' for the whole device."""
    connection.execute(
        """
        CREATE TABLE tuned (
            engine TEXT NOT NULL,
            version TEXT NOT NULL,
            device TEXT NOT NULL,
            device_digest TEXT NOT NULL,
            slice TEXT NOT NULL,
            key TEXT NOT NULL,
            name TEXT NOT NULL,
            op_types TEXT NOT NULL,
            kin TEXT NOT NULL,
            config TEXT NOT NULL,
            latency_ms REAL NOT NULL,
            low_ms REAL NOT NULL,
            high_ms REAL NOT NULL,
            source TEXT NOT NULL,
            trials INTEGER NOT NULL,
            default_ms REAL,
            added_at TEXT NOT NULL,
            PRIMARY KEY (engine, version, device, device_digest, slice, key)
        )
        """
    )
    connection.execute(
        "CREATE INDEX tuned_kin ON tuned (engine, version, device, device_digest, slice, kin)"
    )


TUNED = FileKind(
    name="store of tuned configurations",
    application_id=0x736C6374,  # 'slct'
    migrations=(_first_schema,),
    elsewhere="set SLICEWISE_HOME to another folder",
    damaged="move it away; the next `slicewise tune` makes a new one",
    absent="`slicewise tune` makes one",
)


@dataclass(frozen=True, slots=True)
class TunedOn:
    """What configurations were found with and for: all of it must agree for one to be taken.

    `version` names engine and compiler; `slice` is the part of the device as a measurement names
    it, None for the whole.

    >>> TunedOn("serving", "1.2", "cpu").slice is None
    True
    """

    engine: str
    version: str
    device: str
    device_digest: str = ""
    slice: str | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """A configuration that is kept: where it is the best, and since when (UTC, ISO 8601)."""

    place: TunedOn
    tuned: Tuned
    added_at: str


@dataclass(frozen=True, slots=True)
class Forgetting:
    """Which configurations are to be forgotten: those that meet all that is given.

    `slice` None is the whole device, `...` whatever part.
    """

    engine: str | None = None
    version: str | None = None
    device: str | None = None
    slice: str | EllipsisType | None = field(default=...)
    keys: Sequence[str] | None = None


def default_path() -> Path:
    """Return where the store is by default; `StoreError` for a user without a home."""
    return home() / FILE_NAME


class TunedStore:
    """An open store. `StoreError`, one line, for whatever keeps it from being read or written,
    another run that holds it for longer than `busy_s` among that."""

    def __init__(
        self, path: Path | None = None, *, read_only: bool = False, busy_s: float = BUSY_S
    ) -> None:
        """Open the store at `path` (None: the default), made where it is absent.

        `read_only` makes nothing and needs no right to write.
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
        self._connection = connect(path, TUNED, read_only=read_only, busy_s=busy_s)

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

    def put(self, place: TunedOn, found: Iterable[Tuned]) -> int:
        """Keep the better ones, all or, after an error, none; return how many changed something.

        A workload that is kept with another configuration keeps the one with less latency, the old
        one where they tie; with the same configuration the new latency counts. Either way the
        greater number of trials stays, and the newest default that is known.
        """
        stored = [_as_stored(each) for each in found]
        changed = 0
        with self._writing():
            for each in stored:
                known = self.find(place, [each.workload.key]).get(each.workload.key)
                kept = _better(known, each)
                if kept != known:
                    self._connection.execute(_INSERT, _row(place, kept))
                    changed += 1
        return changed

    def find(self, place: TunedOn, keys: Iterable[str]) -> dict[str, Tuned]:
        """Return the best configuration of each workload of these keys that is known there.

        They are marked `is_from_store`; the workload has what does not depend on a model: no
        count but 1, no weight, no nodes.
        """
        asked = list(dict.fromkeys(keys))
        found: dict[str, Tuned] = {}
        for start in range(0, len(asked), _PAGE):
            page = asked[start : start + _PAGE]
            rows = self._ask(
                f"SELECT {_WHOLE} FROM tuned WHERE {_HERE} AND key IN ({_places(page)})",
                (*_values(place), *map(column_text, page)),
            )
            found.update((tuned.workload.key, tuned) for tuned in map(self._tuned, rows))
        return {key: found[key] for key in asked if key in found}

    def near(self, place: TunedOn, kin: str, *, limit: int | None = None) -> tuple[str, ...]:
        """Return the configurations of the workloads of this kin there, the best first.

        Best is what is the best of most workloads, then what gained most over the default, then
        what was found last. '' is nobody's kin.
        """
        if not kin:
            return ()
        rows = self._ask(
            f"""
            SELECT config FROM tuned WHERE {_HERE} AND kin = ? GROUP BY config
            ORDER BY count(*) DESC, max(coalesce(default_ms / latency_ms, 0)) DESC,
                max(added_at) DESC, config LIMIT ?
            """,
            (*_values(place), column_text(kin), -1 if limit is None else max(0, limit)),
        )
        return tuple(own_text(row[0]) for row in rows)

    def all(self) -> Iterator[Kept]:
        """Yield all that is kept, by place, then by name."""
        rows = self._ask(
            f"SELECT {', '.join(_PLACE)}, added_at, {_WHOLE} FROM tuned"
            f" ORDER BY {', '.join(_PLACE)}, name, key"
        )
        for row in rows:
            engine, version, device, digest, part = map(own_text, row[: len(_PLACE)])
            place = TunedOn(engine, version, device, digest, part or None)
            added_at = str(row[len(_PLACE)])
            yield Kept(place, self._tuned(row[len(_PLACE) + 1 :]), added_at)

    def forget(self, which: Forgetting) -> int:
        """Remove the configurations and return how many there were."""
        terms, values = ["1"], list[str]()
        for column in ("engine", "version", "device"):
            if (value := getattr(which, column)) is not None:
                terms.append(f"{column} = ?")
                values.append(column_text(value))
        if not isinstance(which.slice, EllipsisType):
            terms.append("slice = ?")
            values.append(column_text(which.slice or ""))
        statement = f"DELETE FROM tuned WHERE {' AND '.join(terms)}"
        with self._writing():
            if which.keys is None:
                return self._connection.execute(statement, values).rowcount
            return sum(
                self._connection.execute(
                    f"{statement} AND key = ?", (*values, column_text(key))
                ).rowcount
                for key in which.keys
            )

    def _ask(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(statement, tuple(values)).fetchall()
        except sqlite3.Error as err:
            raise refusal(TUNED, self._name, err) from err

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with transaction(self._connection):
                yield
        except sqlite3.Error as err:
            raise refusal(TUNED, self._name, err) from err

    def _tuned(self, row: tuple[Any, ...]) -> Tuned:
        key, name, op_types, kin, config, value, low, high, source, trials, default_ms = row
        try:
            kinds = tuple(map(str, json.loads(op_types)))
        except (ValueError, TypeError) as err:
            raise StoreError(
                f"a row of the {TUNED.name} {self._name!r} is damaged: {err}; {TUNED.damaged}"
            ) from err
        return Tuned(
            Workload(own_text(key), own_text(name), kinds, kin=own_text(kin)),
            own_text(config),
            Estimate(value, low=low, high=high, source=own_text(source)),
            trials=trials,
            default_ms=default_ms,
            is_from_store=True,
        )


def _better(known: Tuned | None, new: Tuned) -> Tuned:
    """Return what is kept of two for one workload in one place."""
    if known is None:
        return new
    is_taken = new.config == known.config or new.latency_ms.value < known.latency_ms.value
    return replace(
        new if is_taken else known,
        trials=max(known.trials, new.trials),
        default_ms=known.default_ms if new.default_ms is None else new.default_ms,
    )


def _as_stored(tuned: Tuned) -> Tuned:
    """Return what will be found again: nothing that depends on a model."""
    latency, default = tuned.latency_ms, tuned.default_ms
    figures = (latency.value, latency.low, latency.high, 0.0 if default is None else default)
    if not all(map(math.isfinite, figures)):
        raise StoreError(
            f"the configuration of {tuned.workload.name!r} cannot be kept: its latency is"
            f" {latency.value:g} ms; only finite figures are kept"
        )
    work = tuned.workload
    bare = Workload(work.key, work.name, tuple(work.op_types), kin=work.kin)
    return replace(tuned, workload=bare, is_from_store=True)


def _values(place: TunedOn) -> tuple[str, ...]:
    texts = (place.engine, place.version, place.device, place.device_digest, place.slice or "")
    return tuple(map(column_text, texts))


def _row(place: TunedOn, tuned: Tuned) -> tuple[object, ...]:
    """Return the values of the columns, in their order."""
    workload, latency = tuned.workload, tuned.latency_ms
    return (
        *_values(place), column_text(workload.key), column_text(workload.name),
        json.dumps(workload.op_types), column_text(workload.kin), column_text(tuned.config),
        latency.value, latency.low, latency.high, column_text(latency.source), tuned.trials,
        tuned.default_ms, _now(),
    )  # fmt: skip


def _places(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
