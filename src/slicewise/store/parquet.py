"""Records as a parquet file, for tables and notebooks; needs pyarrow, imported when asked for.

Flat columns to ask by, the samples as a list, and `record`: the whole JSON line, which is what an
import reads.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from types import ModuleType
from typing import Any, BinaryIO, Unpack

from slicewise.core.errors import MissingDependency, StoreError
from slicewise.core.measurement import Measurement
from slicewise.store.keys import Conditions, shown_text
from slicewise.store.record_codec import CodecError
from slicewise.store.records import Record, RecordStore
from slicewise.store.transfer import Imported, import_lines, line_of

MAGIC = b"PAR1"
_ROWS = 5000  # in one group: what is held in memory at once

# Column -> type by pyarrow's name. Columns are added only.
COLUMNS: Mapping[str, str] = {
    "id": "int64", "added_at": "string", "campaign": "string", "model": "string",
    "location": "string", "digest": "string", "key": "string", "device": "string",
    "slice": "string", "mechanism": "string", "runtime": "string", "batch": "int64",
    "precision": "string", "threads": "int64", "outcome": "string", "error": "string",
    "latency_ms": "float64", "latency_low_ms": "float64", "latency_high_ms": "float64",
    "energy_j": "float64", "memory_bytes": "int64", "utilisation": "float64",
    "processor": "string", "environment": "string", "started_at": "string", "seconds": "float64",
    "runs_per_sample": "int64", "samples_ms": "list", "record": "string",
}  # fmt: skip


def export_parquet(store: RecordStore, file: BinaryIO, **asked: Unpack[Conditions]) -> int:
    """Write the records that meet the conditions as parquet; return how many.

    `MissingDependency` without pyarrow.
    """
    arrow, parquet = _pyarrow()
    types = {
        name: arrow.list_(arrow.float64()) if kind == "list" else getattr(arrow, kind)()
        for name, kind in COLUMNS.items()
    }
    schema = arrow.schema(list(types.items()))
    count = 0
    rows = _rows(store, asked)
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        while group := list(islice(rows, _ROWS)):
            table = arrow.Table.from_pylist(group, schema=schema)
            writer.write_table(table)
            count += len(group)
    return count


def import_parquet(store: RecordStore, file: BinaryIO) -> Imported:
    """Add the records of a parquet file that `export_parquet` wrote; rows count as lines."""
    arrow, parquet = _pyarrow()
    with _readable(arrow):
        table = parquet.ParquetFile(file)
        if "record" not in table.schema_arrow.names:
            raise StoreError(
                "the parquet file has no column 'record', which holds whole records; give one that"
                " `slicewise records export` wrote"
            )
    return import_lines(store, enumerate(_lines(arrow, table), 1))


def _lines(arrow: ModuleType, table: Any) -> Iterator[bytes]:
    with _readable(arrow):
        for batch in table.iter_batches(batch_size=_ROWS, columns=["record"]):
            for cell in batch.column(0).to_pylist():
                yield str(cell).encode()


@contextmanager
def _readable(arrow: ModuleType) -> Iterator[None]:
    try:
        yield
    except (arrow.ArrowException, OSError) as err:
        reason = str(err).partition("\n")[0]
        raise StoreError(
            f"the parquet file cannot be read: {reason}; give one that `slicewise records export`"
            " wrote"
        ) from err


def _rows(store: RecordStore, asked: Conditions) -> Iterator[dict[str, object]]:
    for raw in store.find_raw(**asked):
        record = store.decoded(raw)
        try:
            line = line_of(raw)
        except CodecError as err:
            raise store.damaged(raw, err) from err
        yield {**_flat(record), "record": line.decode().rstrip("\n")}


def _flat(record: Record) -> dict[str, object]:
    taken: Measurement = record.measurement
    latency, memory = taken.latency_ms, taken.memory
    row: dict[str, object] = {
        name: getattr(taken, name)
        for name in (
            "model", "location", "digest", "key", "device", "slice", "mechanism", "runtime",
            "batch", "precision", "threads", "error", "energy_j", "utilisation", "started_at",
            "seconds", "runs_per_sample",
        )
    }  # fmt: skip
    row |= {
        "id": record.id,
        "added_at": record.added_at,
        "campaign": record.campaign,
        "outcome": taken.outcome.value,
        "latency_ms": None if latency is None else latency.value,
        "latency_low_ms": None if latency is None else latency.low,
        "latency_high_ms": None if latency is None else latency.high,
        "memory_bytes": None if memory is None else memory.peak_bytes,
        "processor": taken.environment.processor,
        "environment": taken.environment.digest,
        "samples_ms": list(taken.samples_ms),
    }
    return {
        name: shown_text(cell) if isinstance(cell, str) else cell for name, cell in row.items()
    }


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as err:
        raise MissingDependency("parquet", package="pyarrow", extra="parquet") from err
    return pyarrow, pyarrow.parquet
