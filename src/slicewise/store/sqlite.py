"""The file of records: opened, brought to the present schema, and every error of SQLite as one
line. Knows tables and versions, nothing of what a measurement means.

Write-ahead log, so that readers never wait; `synchronous=FULL`, so that what was committed is on
the disk even if the power fails: a commit takes a millisecond, a measurement seconds.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from slicewise.core.errors import StoreError
from slicewise.store.keys import shown_text
from slicewise.store.record_codec import CodecError, content_digest, decode

APPLICATION_ID = 0x736C6377  # 'slcw': an SQLite file that is a store of ours says so
_PAGE_BYTES = 8192  # a row takes 2 to 3 kB; the usual 4096 would waste a third of each page
_ELSEWHERE = "give --store FILE, or set SLICEWISE_HOME to another folder"

# Beginning of SQLite's name of an error -> what is told and what to do. First match counts.
_REFUSALS: Mapping[str, str] = {
    "SQLITE_BUSY": "is locked: another process is writing to it; try again when that is done",
    "SQLITE_LOCKED": "is locked: another process is writing to it; try again when that is done",
    "SQLITE_FULL": f"cannot grow: the disk is full; free some space, or {_ELSEWHERE}",
    "SQLITE_READONLY": f"is read-only: the file, or its folder; {_ELSEWHERE}",
    "SQLITE_CANTOPEN": f"cannot be opened: no such folder, or no right to it; {_ELSEWHERE}",
    "SQLITE_PERM": f"cannot be opened: no right to it; {_ELSEWHERE}",
    "SQLITE_NOTADB": f"is no SQLite file; move it away, or {_ELSEWHERE}",
    "SQLITE_CORRUPT": "is damaged; move it away, and import what was exported of it",
    "SQLITE_IOERR": f"cannot be read or written: the disk fails or is full; {_ELSEWHERE}",
}  # fmt: skip


def refusal(path: str, err: sqlite3.Error) -> StoreError:
    """Return the one line that tells an error of SQLite about the store at `path`."""
    code = getattr(err, "sqlite_errorname", None) or ""
    for beginning, words in _REFUSALS.items():
        if code.startswith(beginning):
            return StoreError(f"the record store {path!r} {words}")
    return StoreError(f"the record store {path!r} cannot be used: {err}; {_ELSEWHERE}")


def connect(path: Path | None, *, read_only: bool, busy_s: float) -> sqlite3.Connection:
    """Return a connection to the store at `path`, made if it is absent; None is one in memory.

    It waits `busy_s` for other writers. Read-only, an absent file is a `StoreError`, and one of an
    older schema is read as a copy in memory that is brought up. `StoreError` for a file that is
    none of ours, is damaged, has a newer schema or cannot be opened.
    """
    if path is None:
        connection = sqlite3.connect(":memory:", isolation_level=None)
        _upgrade(connection, ":memory:")
        return connection
    name = str(path)
    if path.is_dir():
        raise StoreError(f"the record store {name!r} is a folder, not a file; {_ELSEWHERE}")
    try:
        connection = _reading(path, busy_s) if read_only else _writing(path, busy_s)
    except sqlite3.Error as err:
        raise refusal(name, err) from err
    try:
        _check(connection, name)
        if not read_only:
            _use_log(connection, busy_s)
            connection.execute("PRAGMA synchronous=FULL")
            _upgrade(connection, name)
        elif _version(connection) < len(MIGRATIONS):
            connection = _copy_in_memory(connection, name)
    except sqlite3.Error as err:
        connection.close()
        raise refusal(name, err) from err
    except BaseException:
        connection.close()
        raise
    return connection


def _writing(path: Path, busy_s: float) -> sqlite3.Connection:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise StoreError(
            f"the folder {str(path.parent)!r} of the record store cannot be made:"
            f" {err.strerror or err}; {_ELSEWHERE}"
        ) from err
    connection = _open(path, "mode=rwc", busy_s)
    connection.execute(f"PRAGMA page_size={_PAGE_BYTES}")
    return connection


def _reading(path: Path, busy_s: float) -> sqlite3.Connection:
    if not path.exists():
        raise StoreError(
            f"there is no record store {str(path)!r}; `slicewise measure` makes one, or give"
            " --store FILE of one that is there"
        )
    # not mode=ro: the last one to close a store tidies up the log, which a reader could not
    connection = _open(path, "mode=rw", busy_s)
    try:
        connection.execute("PRAGMA query_only=ON")
        connection.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.OperationalError as err:
        connection.close()
        # in a folder that nobody here can write to, the log's index cannot be made
        if not (err.sqlite_errorname or "").startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
            raise
        _refuse_pending_log(path)
        return _open(path, "immutable=1", busy_s)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _open(path: Path, mode: str, busy_s: float) -> sqlite3.Connection:
    address = f"{path.absolute().as_uri()}?{mode}"
    return sqlite3.connect(address, timeout=busy_s, isolation_level=None, uri=True)


def _refuse_pending_log(path: Path) -> None:
    """Raise if records stand in the log only: reading the file alone would not see them."""
    log = path.with_name(f"{path.name}-wal")
    try:
        pending = log.exists() and log.stat().st_size > 0
    except OSError:
        pending = False
    if pending:
        raise StoreError(
            f"the record store {str(path)!r} lies in a read-only folder and was left in the midst"
            f" of writing; copy it together with {log.name!r} to a folder that you can write to,"
            " and give --store FILE"
        )


def _use_log(connection: sqlite3.Connection, busy_s: float) -> None:
    """Switch to the write-ahead log; where the file system has none, the usual journal stays."""
    if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
        return
    until = time.monotonic() + busy_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as err:
            busy = (err.sqlite_errorname or "").startswith("SQLITE_BUSY")
            if not busy or time.monotonic() > until:
                raise
        # the switch itself does not wait for another process that makes the store; this does
        with transaction(connection):
            pass


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Keep all that is written inside, or nothing of it; waits for other writers at its start."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # SQLite itself has rolled back after some errors, such as a full disk
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _check(connection: sqlite3.Connection, name: str) -> None:
    """Raise if the file is of something else, or of a slicewise that knows more."""
    version = _version(connection)
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    ours = connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    if not ours and (tables or version):
        raise StoreError(
            f"{name!r} is an SQLite file, but no record store of slicewise; {_ELSEWHERE}"
        )
    if version > len(MIGRATIONS):
        raise StoreError(
            f"the record store {name!r} has schema {version}, and this slicewise knows up to"
            f" {len(MIGRATIONS)}; upgrade slicewise, or {_ELSEWHERE}"
        )


def _upgrade(connection: sqlite3.Connection, name: str) -> None:
    """Bring the schema to the present version, in one transaction."""
    if _version(connection) == len(MIGRATIONS):
        return
    with transaction(connection):
        _check(connection, name)  # another process may have been faster, with a newer slicewise
        for version in range(_version(connection), len(MIGRATIONS)):
            MIGRATIONS[version](connection)
            connection.execute(f"PRAGMA user_version={version + 1}")


def _copy_in_memory(connection: sqlite3.Connection, name: str) -> sqlite3.Connection:
    """Return a copy that is brought to the present schema; the file itself may not be written."""
    copy = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.backup(copy)
        _upgrade(copy, name)
    except BaseException:
        copy.close()
        raise
    connection.close()
    return copy


def _first_schema(connection: sqlite3.Connection) -> None:
    """Records with what they are asked by, and an index of keys."""
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(
        """
        CREATE TABLE record (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            added_at TEXT NOT NULL,
            key TEXT NOT NULL,
            digest TEXT NOT NULL,
            model TEXT NOT NULL,
            device TEXT NOT NULL,
            slice TEXT,
            runtime TEXT NOT NULL,
            batch INTEGER NOT NULL,
            precision TEXT NOT NULL,
            threads INTEGER NOT NULL,
            outcome TEXT NOT NULL,
            latency_ms REAL,
            energy_j REAL,
            memory_bytes INTEGER,
            body TEXT NOT NULL,
            samples BLOB NOT NULL,
            nodes BLOB
        )
        """
    )
    connection.execute("CREATE INDEX record_key ON record (key, id)")


def _campaigns_and_content(connection: sqlite3.Connection) -> None:
    """The campaign and point of a record, where its model was read from, its content digest."""
    for column in ("location", "campaign", "point", "content"):
        connection.execute(f"ALTER TABLE record ADD COLUMN {column} TEXT NOT NULL DEFAULT ''")
    numbers = [row[0] for row in connection.execute("SELECT id FROM record")]
    for number in numbers:
        row = connection.execute(
            "SELECT CAST(body AS BLOB), samples, nodes FROM record WHERE id = ?", (number,)
        ).fetchone()
        try:
            measurement = decode(*row)
        except CodecError as err:
            raise StoreError(
                f"record {number} is damaged, so the record store cannot be brought to schema 2:"
                f" {err}; move the file away, or {_ELSEWHERE}"
            ) from err
        connection.execute(
            "UPDATE record SET location = ?, content = ? WHERE id = ?",
            (shown_text(measurement.location), content_digest(measurement), number),
        )
    connection.execute("CREATE INDEX record_content ON record (content)")
    connection.execute(
        "CREATE INDEX record_point ON record (campaign, point) WHERE campaign <> ''"
    )


# The n-th brings a store from version n to n + 1; one that is published is never changed.
MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (
    _first_schema,
    _campaigns_and_content,
)
