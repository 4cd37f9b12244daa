"""The file of records: older and newer schemas, files of others, damage, locks, full disks."""

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slicewise.core.errors import StoreError
from slicewise.core.measurement import Measurement
from slicewise.store.record_codec import encode
from slicewise.store.record_schema import APPLICATION_ID, MIGRATIONS
from slicewise.store.records import RecordStore
from slicewise.testing.records import failed_measurement, tiny_measurement

# The schema as version 1 had it: this text never changes.
_VERSION_1 = """
CREATE TABLE record (
    id INTEGER PRIMARY KEY AUTOINCREMENT, added_at TEXT NOT NULL, key TEXT NOT NULL,
    digest TEXT NOT NULL, model TEXT NOT NULL, device TEXT NOT NULL, slice TEXT,
    runtime TEXT NOT NULL, batch INTEGER NOT NULL, precision TEXT NOT NULL,
    threads INTEGER NOT NULL, outcome TEXT NOT NULL, latency_ms REAL, energy_j REAL,
    memory_bytes INTEGER, body TEXT NOT NULL, samples BLOB NOT NULL, nodes BLOB
);
CREATE INDEX record_key ON record (key, id);
PRAGMA user_version = 1;
"""


def _write_version_1(path: Path, made: list[Measurement]) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(f"PRAGMA application_id = {APPLICATION_ID};{_VERSION_1}")
    for taken in made:
        encoded = encode(taken)
        row = (
            "2026-01-01T00:00:00.000000Z", taken.key, taken.digest, taken.model, taken.device,
            taken.slice, taken.runtime, taken.batch, taken.precision, taken.threads,
            taken.outcome.value, encoded.body, encoded.samples, encoded.nodes,
        )  # fmt: skip
        connection.execute(
            "INSERT INTO record (added_at, key, digest, model, device, slice, runtime, batch,"
            " precision, threads, outcome, body, samples, nodes)"
            f" VALUES ({', '.join('?' * len(row))})",
            row,
        )
    connection.commit()
    connection.close()


OLD = [tiny_measurement(0), failed_measurement(1), tiny_measurement(2, samples=0)]


def _version(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])
    finally:
        connection.close()


def test_a_store_of_version_1_is_brought_up_with_all_its_records(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    _write_version_1(path, OLD)
    with RecordStore(path) as store:
        assert [record.measurement for record in store.find()] == OLD
        assert store.count(model="models/net1.onnx") == 1
        assert all(store.has_content(made) for made in OLD)
        assert store.add(tiny_measurement(3), campaign="c", point="p") == 4
        assert store.points_done("c") == {"p"}
    assert _version(path) == len(MIGRATIONS) == 2


def test_an_older_store_is_read_without_being_changed(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    _write_version_1(path, OLD)
    before = path.read_bytes()
    with RecordStore(path, read_only=True) as store:
        assert [record.measurement for record in store.find()] == OLD
    assert path.read_bytes() == before


def test_a_new_store_has_the_schema_of_one_that_was_brought_up(tmp_path: Path) -> None:
    new, old = tmp_path / "new.sqlite", tmp_path / "old.sqlite"
    _write_version_1(old, [])
    told = []
    for path in (new, old):
        RecordStore(path).close()
        connection = sqlite3.connect(path)
        rows = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        told.append(
            [(name, " ".join((sql or "").replace("( ", "(").split())) for name, sql in rows]
        )
        connection.close()
    assert [name for name, _ in told[0]] == [name for name, _ in told[1]]


def test_an_upgrade_that_meets_a_damaged_record_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    _write_version_1(path, OLD)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE record SET body = '{' WHERE id = 2")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="record 2 is damaged"):
        RecordStore(path)
    assert _version(path) == 1


def test_a_store_of_a_later_slicewise_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "new.sqlite"
    RecordStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 7")
    connection.close()
    before = path.read_bytes()
    for read_only in (True, False):
        with pytest.raises(StoreError, match=r"schema 7, .* up to 2; upgrade slicewise"):
            RecordStore(path, read_only=read_only)
    assert path.read_bytes() == before


@pytest.mark.parametrize("read_only", [True, False])
def test_a_file_of_something_else_is_refused_and_left_alone(
    tmp_path: Path, read_only: bool
) -> None:
    text, other = tmp_path / "notes.txt", tmp_path / "other.sqlite"
    text.write_text("not a database, but long enough to look like one? " * 50)
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE things (id INTEGER)")
    connection.close()
    before = text.read_bytes(), other.read_bytes()
    with pytest.raises(StoreError, match="is no SQLite file"):
        RecordStore(text, read_only=read_only)
    with pytest.raises(StoreError, match="no record store of slicewise"):
        RecordStore(other, read_only=read_only)
    assert (text.read_bytes(), other.read_bytes()) == before


def test_a_store_that_is_missing_is_told_when_it_is_to_be_read(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no record store .*; `slicewise measure`"):
        RecordStore(tmp_path / "none.sqlite", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_no_file_can_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"folder .* cannot be made"):
        RecordStore(tmp_path / "file" / "records.sqlite")
    for read_only in (False, True):
        with pytest.raises(StoreError, match="is a folder, not a file; give --store FILE"):
            RecordStore(tmp_path, read_only=read_only)


def test_a_damaged_store_is_told(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    with RecordStore(path) as store:
        store.add_all([tiny_measurement(i) for i in range(50)])
    content = bytearray(path.read_bytes())
    content[8192:] = b"\xff" * (len(content) - 8192)
    path.write_bytes(content)
    with RecordStore(path) as store, pytest.raises(StoreError, match="is damaged; move it away"):
        list(store.find())


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("body", '{"model": 3}'),
        ("body", '{"model": "\\udc80'),
        ("samples", b"abc"),
        ("nodes", b"no zlib"),
    ],
)
def test_a_damaged_record_is_named_and_can_be_removed(
    tmp_path: Path, column: str, value: object
) -> None:
    path = tmp_path / "records.sqlite"
    with RecordStore(path) as store:
        store.add_all([tiny_measurement(0), tiny_measurement(1)])
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE record SET {column} = ? WHERE id = 2", (value,))
    connection.commit()
    connection.close()
    with RecordStore(path) as store:
        with pytest.raises(StoreError, match=r"record 2 .* is damaged: .* records remove 2"):
            list(store.find())
        store.remove([2])
        assert store.count() == 1


def test_a_store_that_another_process_is_writing_is_told_and_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    with RecordStore(path, busy_s=0.01) as store:
        store.add(tiny_measurement())
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="is locked: another process is writing"):
            store.add(tiny_measurement())
        assert store.count() == 1
        other.execute("ROLLBACK")
        other.close()
        assert store.add(tiny_measurement(1)) == 2


def test_a_full_disk_is_told_and_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    with RecordStore(path) as store:
        store.add(tiny_measurement())
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="the disk is full; free some space"):
            store.add_all([tiny_measurement(i, samples=400) for i in range(50)])
        assert store.count() == 1
        store._connection.execute("PRAGMA max_page_count = 1000000")
        assert store.add(tiny_measurement(1)) == 2


@contextmanager
def _as_somebody_else(folder: Path) -> Iterator[None]:
    """Read-only rights to a folder, for root as well."""
    folder.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that other users can look into, which those of pytest are not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def test_a_read_only_home_is_read_and_not_written(shared: Path) -> None:
    path = shared / "records.sqlite"
    with RecordStore(path) as store:
        store.add(tiny_measurement())
    path.chmod(0o444)
    with _as_somebody_else(shared):
        with RecordStore(path, read_only=True) as store:
            assert [record.measurement for record in store.find()] == [tiny_measurement()]
        with pytest.raises(StoreError, match=r"is read-only|cannot be opened"):
            RecordStore(path).add(tiny_measurement())
        with pytest.raises(StoreError, match=r"cannot be opened|is read-only"):
            RecordStore(shared / "other.sqlite")


def test_records_that_stand_in_the_log_only_are_not_overlooked(shared: Path) -> None:
    path = shared / "records.sqlite"
    store = RecordStore(path)
    store.add(tiny_measurement())
    copy = shared / "copy"
    copy.mkdir()
    for name in ("records.sqlite", "records.sqlite-wal"):  # as a kill leaves them
        (copy / name).write_bytes((shared / name).read_bytes())
    store.close()
    with (
        _as_somebody_else(copy),
        pytest.raises(StoreError, match="in the midst of writing; copy it together with"),
    ):
        RecordStore(copy / "records.sqlite", read_only=True)
    with RecordStore(copy / "records.sqlite", read_only=True) as again:
        assert again.count() == 1


def test_a_reader_may_write_nothing(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    RecordStore(path).close()
    with (
        RecordStore(path, read_only=True) as store,
        pytest.raises(StoreError, match="is read-only"),
    ):
        store.add(tiny_measurement())
