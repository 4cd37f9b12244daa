"""The verb `records`: list, show, export, import and remove what was measured.

Opens the store and closes it again; judges and renders nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from slicewise.core.errors import UsageError
from slicewise.core.whole_file import output_file

if TYPE_CHECKING:
    from slicewise.store.keys import Conditions
    from slicewise.store.records import Record, RecordStore
    from slicewise.store.transfer import Imported

FORMATS = ("jsonl", "parquet")


@dataclass(frozen=True, slots=True)
class RecordList:
    """Records that were asked for, in the order of adding. `outcomes` counts all that meet the
    conditions, of which `records` may be the last."""

    store: str
    records: "tuple[Record, ...]"
    outcomes: dict[str, int]

    @property
    def total(self) -> int:
        """How many records meet the conditions."""
        return sum(self.outcomes.values())


def list_records(store: Path | None, conditions: "Conditions") -> RecordList:
    """Return the records of `store` (None: the default one) that meet the conditions.

    A default store that is not there yet is an empty one. `StoreError` if it cannot be read.
    """
    with _reading(store) as records:
        return RecordList(
            str(_place(store)),
            tuple(records.find(**conditions)),
            records.count_outcomes(**conditions),
        )


def show_record(store: Path | None, number: int) -> "Record":
    """Return one record; `UsageError` tells which there are if it is none of them."""
    with _reading(store) as records:
        found = records.get(number) if number < 2**63 else None  # SQLite counts in 64 bits
        if found is None:
            raise _unknown([number], records, _place(store))
        return found


def export_records(
    store: Path | None,
    file: BinaryIO | Path,
    conditions: "Conditions",
    *,
    form: str = "jsonl",
) -> int:
    """Write the records that meet the conditions and return how many; a path appears whole.

    `form` is 'jsonl' or 'parquet', which needs the extra. `UsageError` if the file cannot be
    written.
    """
    from slicewise.store.transfer import export_jsonl

    if form == "parquet":
        from slicewise.store.parquet import export_parquet as export
    elif form == "jsonl":
        export = export_jsonl
    else:
        raise UsageError(f"format {form!r} is unknown; it is one of {', '.join(FORMATS)}")
    with _reading(store) as records:
        if not isinstance(file, Path):
            return export(records, file, **conditions)
        with output_file(file) as opened:
            return export(records, opened, **conditions)


def import_records(store: Path | None, paths: Sequence[Path]) -> "list[tuple[Path, Imported]]":
    """Add the records of exported files that are not in the store yet; say what became of each.

    Every file is opened before the first is imported. `StoreError` for one that cannot be read.
    """
    from slicewise.store.parquet import MAGIC, import_parquet
    from slicewise.store.records import RecordStore
    from slicewise.store.transfer import import_jsonl, open_import

    done = []
    with ExitStack() as opened:
        # all of them first, and once only: a pipe cannot be opened again
        files = [(path, opened.enter_context(open_import(path))) for path in paths]
        with RecordStore(store) as records:
            for path, file in files:
                is_parquet = file.peek(len(MAGIC)).startswith(MAGIC)
                made = (import_parquet if is_parquet else import_jsonl)(records, file)
                done.append((path, made))
    return done


def remove_records(store: Path | None, numbers: Sequence[int]) -> int:
    """Remove records and return how many; `UsageError`, and none is removed, if one is unknown."""
    from slicewise.store.records import RecordStore

    with _reading(store) as records:
        missing = [number for number in numbers if records.get(number) is None]
        if missing:
            raise _unknown(missing, records, _place(store))
    with RecordStore(store) as records:
        return records.remove(numbers)


def _unknown(numbers: Sequence[int], records: "RecordStore", place: Path) -> UsageError:
    known = records.numbers()
    there = (
        "it is empty, `slicewise measure` adds records"
        if known is None
        else f"its numbers go from {known[0]} to {known[1]}, `slicewise records list` shows them"
    )
    missing = ", ".join(map(str, numbers))
    return UsageError(f"there is no record {missing} in {str(place)!r}; {there}")


def default_store() -> Path:
    """Return the file of the default store; `StoreError` for a user without a home."""
    from slicewise.store.records import default_path

    return default_path()


def _place(store: Path | None) -> Path:
    return default_store() if store is None else store


@contextmanager
def _reading(store: Path | None) -> "Iterator[RecordStore]":
    """Yield the store, open for reading; the default one may be missing, and is empty then."""
    from slicewise.store.records import RecordStore

    place = _place(store)
    if store is None and not place.exists():
        with RecordStore.in_memory() as records:
            yield records
        return
    with RecordStore(place, read_only=True) as records:
        yield records
