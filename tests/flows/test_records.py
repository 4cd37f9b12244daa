"""The verb `records` as a function: which store is meant, and what cannot be."""

import io
from pathlib import Path

import pytest

from slicewise.core.errors import StoreError, UsageError
from slicewise.core.measurement import Outcome
from slicewise.flows.records import (
    default_store,
    export_records,
    import_records,
    list_records,
    remove_records,
    show_record,
)
from slicewise.store.records import RecordStore
from slicewise.testing.records import failed_measurement, tiny_measurement


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SLICEWISE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    path = tmp_path / "some.sqlite"
    with RecordStore(path) as store:
        store.add_all([tiny_measurement(0), failed_measurement(1), tiny_measurement(2)])
    return path


def test_the_default_store_that_is_not_there_yet_is_empty_and_not_made(home: Path) -> None:
    found = list_records(None, {})
    assert (found.records, found.total, found.store) == ((), 0, str(home / "records.sqlite"))
    assert export_records(None, io.BytesIO(), {}) == 0
    with pytest.raises(UsageError, match=r"there is no record 1 in .*; it is empty"):
        show_record(None, 1)
    assert not home.exists()
    assert default_store() == home / "records.sqlite"


def test_a_store_that_is_named_must_be_there_to_be_read(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no record store"):
        list_records(tmp_path / "none.sqlite", {})


def test_a_list_counts_all_that_meet_the_conditions(filled: Path) -> None:
    found = list_records(filled, {"limit": 1})
    assert [record.measurement.model for record in found.records] == ["net2"]
    assert found.outcomes == {"ok": 2, "crashed": 1}
    assert list_records(filled, {"outcome": Outcome.CRASHED}).total == 1


def test_records_go_from_one_store_to_another(filled: Path, home: Path, tmp_path: Path) -> None:
    for name, form in (("a.jsonl", "jsonl"), ("a.parquet", "parquet")):
        assert export_records(filled, tmp_path / name, {}, form=form) == 3
    done = import_records(None, [tmp_path / "a.jsonl", tmp_path / "a.parquet"])
    assert [(made.added, made.known) for _, made in done] == [(3, 0), (0, 3)]
    assert [record.measurement for record in list_records(None, {}).records] == [
        record.measurement for record in list_records(filled, {}).records
    ]


def test_nothing_is_imported_if_one_of_the_files_is_missing(
    filled: Path, home: Path, tmp_path: Path
) -> None:
    export_records(filled, tmp_path / "a.jsonl", {})
    with pytest.raises(StoreError, match=r"'.*none\.jsonl' cannot be read: No such file"):
        import_records(None, [tmp_path / "a.jsonl", tmp_path / "none.jsonl"])
    assert not home.exists()


def test_a_number_beyond_64_bits_is_no_record(filled: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no record 9{30} in"):
        show_record(filled, int("9" * 30))


def test_an_unknown_format_is_told(filled: Path) -> None:
    with pytest.raises(UsageError, match="format 'xml' is unknown; it is one of jsonl, parquet"):
        export_records(filled, io.BytesIO(), {}, form="xml")


def test_if_one_number_is_unknown_nothing_is_removed(filled: Path) -> None:
    with pytest.raises(UsageError, match=r"no record 7, 9 in .*; its numbers go from 1 to 3"):
        remove_records(filled, [1, 7, 9])
    assert list_records(filled, {}).total == 3
    assert remove_records(filled, [1, 3]) == 2
    assert show_record(filled, 2).measurement == failed_measurement(1)
