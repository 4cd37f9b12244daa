"""A file of SQLite: opened, brought to the present schema, and every error as one line.

Knows of kinds of file and their versions, nothing of what stands in a table.

Write-ahead log, so that readers never wait; `synchronous=FULL`, so that what was committed is on
the disk even if the power fails: a commit takes a millisecond, a measurement seconds.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slicewise.core.errors import StoreError

_PAGE_BYTES = 8192  # a row takes 2 to 3 kB; the usual 4096 would waste a third of each page

# Beginning of SQLite's name of an error -> what is told and what to do. First match counts.
_REFUSALS: Mapping[str, str] = {
    "SQLITE_BUSY": "is locked: another process is writing to it; try again when that is done",
    "SQLITE_LOCKED": "is locked: another process is writing to it; try again when that is done",
    "SQLITE_FULL": "cannot grow: the disk is full; free some space, or {elsewhere}",
    "SQLITE_READONLY": "is read-only: the file, or its folder; {elsewhere}",
    "SQLITE_CANTOPEN": "cannot be opened: no such folder, or no right to it; {elsewhere}",
    "SQLITE_PERM": "cannot be opened: no right to it; {elsewhere}",
    "SQLITE_NOTADB": "is no SQLite file; move it away, or {elsewhere}",
    "SQLITE_CORRUPT": "is damaged; {damaged}",
    "SQLITE_IOERR": "cannot be read or written: the disk fails or is full; {elsewhere}",
}  # fmt: skip

Migration = Callable[[sqlite3.Connection], None]


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file. The n-th migration brings one from version n to n + 1.

    `elsewhere` tells the user how to use another file, `damaged` what to do with a damaged one,
    `absent` how there comes to be one.
    """

    name: str
    application_id: int
    migrations: Sequence[Migration]
    elsewhere: str
    damaged: str
    absent: str


def refusal(kind: FileKind, path: str, err: sqlite3.Error) -> StoreError:
    """Return the one line that tells an error of SQLite about the file at `path`."""
    code = getattr(err, "sqlite_errorname", None) or ""
    for beginning, words in _REFUSALS.items():
        if code.startswith(beginning):
            words = words.format(elsewhere=kind.elsewhere, damaged=kind.damaged)
            return StoreError(f"the {kind.name} {path!r} {words}")
    return StoreError(f"the {kind.name} {path!r} cannot be used: {err}; {kind.elsewhere}")


def connect(
    path: Path | None, kind: FileKind, *, read_only: bool, busy_s: float
) -> sqlite3.Connection:
    """Return a connection to the file at `path`, made if it is absent; None is one in memory.

    It waits `busy_s` for other writers. Read-only, an absent file is a `StoreError`, and one of an
    older schema is read as a copy in memory that is brought up. `StoreError` for a file that is
    none of ours, is damaged, has a newer schema or cannot be opened.
    """
    if path is None:
        connection = sqlite3.connect(":memory:", isolation_level=None)
        _upgrade(connection, kind, ":memory:")
        return connection
    name = str(path)
    if path.is_dir():
        raise StoreError(f"the {kind.name} {name!r} is a folder, not a file; {kind.elsewhere}")
    try:
        connection = (_reading if read_only else _writing)(path, kind, busy_s)
    except sqlite3.Error as err:
        raise refusal(kind, name, err) from err
    try:
        _check(connection, kind, name)
        if not read_only:
            _use_log(connection, busy_s)
            connection.execute("PRAGMA synchronous=FULL")
            _upgrade(connection, kind, name)
        elif _version(connection) < len(kind.migrations):
            connection = _copy_in_memory(connection, kind, name)
    except sqlite3.Error as err:
        connection.close()
        raise refusal(kind, name, err) from err
    except BaseException:
        connection.close()
        raise
    return connection


def _writing(path: Path, kind: FileKind, busy_s: float) -> sqlite3.Connection:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise StoreError(
            f"the folder {str(path.parent)!r} of the {kind.name} cannot be made:"
            f" {err.strerror or err}; {kind.elsewhere}"
        ) from err
    connection = _open(path, "mode=rwc", busy_s)
    connection.execute(f"PRAGMA page_size={_PAGE_BYTES}")
    return connection


def _reading(path: Path, kind: FileKind, busy_s: float) -> sqlite3.Connection:
    if not path.exists():
        raise StoreError(f"there is no {kind.name} {str(path)!r}; {kind.absent}")
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
        _refuse_pending_log(path, kind)
        return _open(path, "immutable=1", busy_s)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _open(path: Path, mode: str, busy_s: float) -> sqlite3.Connection:
    address = f"{path.absolute().as_uri()}?{mode}"
    return sqlite3.connect(address, timeout=busy_s, isolation_level=None, uri=True)


def _refuse_pending_log(path: Path, kind: FileKind) -> None:
    """Raise if records stand in the log only: reading the file alone would not see them."""
    log = path.with_name(f"{path.name}-wal")
    try:
        pending = log.exists() and log.stat().st_size > 0
    except OSError:
        pending = False
    if pending:
        raise StoreError(
            f"the {kind.name} {str(path)!r} lies in a read-only folder and was left in the midst"
            f" of writing; copy it together with {log.name!r} to a folder that you can write to,"
            f" and {kind.elsewhere}"
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


def _check(connection: sqlite3.Connection, kind: FileKind, name: str) -> None:
    """Raise if the file is of something else, or of a slicewise that knows more."""
    version = _version(connection)
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    ours = connection.execute("PRAGMA application_id").fetchone()[0] == kind.application_id
    if not ours and (tables or version):
        raise StoreError(
            f"{name!r} is an SQLite file, but no {kind.name} of slicewise; {kind.elsewhere}"
        )
    if version > len(kind.migrations):
        raise StoreError(
            f"the {kind.name} {name!r} has schema {version}, and this slicewise knows up to"
            f" {len(kind.migrations)}; upgrade slicewise, or {kind.elsewhere}"
        )


def _upgrade(connection: sqlite3.Connection, kind: FileKind, name: str) -> None:
    """Bring the schema to the present version, in one transaction."""
    if _version(connection) == len(kind.migrations):
        return
    with transaction(connection):
        _check(
            connection, kind, name
        )  # another process may have been faster, with a newer slicewise
        for version in range(_version(connection), len(kind.migrations)):
            kind.migrations[version](connection)
            connection.execute(f"PRAGMA user_version={version + 1}")
        connection.execute(f"PRAGMA application_id={kind.application_id}")


def _copy_in_memory(
    connection: sqlite3.Connection, kind: FileKind, name: str
) -> sqlite3.Connection:
    """Return a copy that is brought to the present schema; the file itself may not be written."""
    copy = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.backup(copy)
        _upgrade(copy, kind, name)
    except BaseException:
        copy.close()
        raise
    connection.close()
    return copy
