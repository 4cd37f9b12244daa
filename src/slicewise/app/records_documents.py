"""Records for scripts: the JSON documents. Fields are added, never renamed."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from slicewise.app.documents import Json
from slicewise.core.measurement import Measurement
from slicewise.flows.records import RecordList

if TYPE_CHECKING:
    from slicewise.store.records import Record
    from slicewise.store.transfer import Imported

SCHEMA = "slicewise.records/1"


def records_document(found: RecordList) -> Json:
    """Return `slicewise.records/1` of a list."""
    return {
        "schema": SCHEMA,
        "store": found.store,
        "total": found.total,
        "outcomes": found.outcomes,
        "measurements": [record_entry(record) for record in found.records],
    }


def record_document(record: "Record") -> Json:
    """Return `slicewise.records/1` of one record with everything that is known of it."""
    taken = record.measurement
    entry = record_entry(record) | {
        "key": taken.key,
        "memory": msgspec.to_builtins(taken.memory),
        "nodes": msgspec.to_builtins(taken.nodes),
        "protocol": msgspec.to_builtins(taken.protocol),
        "binding": msgspec.to_builtins(taken.binding, order="deterministic"),
    }
    return {"schema": SCHEMA, "measurements": [entry]}


def record_entry(record: "Record") -> Json:
    """Return a record as an entry of the document."""
    return {
        "id": record.id,
        "added_at": record.added_at,
        "campaign": record.campaign,
        "point": record.point,
        **measurement_entry(record.measurement),
    }


def measurement_entry(taken: Measurement) -> Json:
    """Return a measurement as an entry of `slicewise.measure/1`."""
    return {
        "model": taken.model,
        "location": taken.location,
        "digest": taken.digest,
        "device": taken.device,
        "slice": taken.slice,
        "mechanism": taken.mechanism,
        "runtime": taken.runtime,
        "batch": taken.batch,
        "precision": taken.precision,
        "threads": taken.threads,
        "options": dict(taken.options),
        "outcome": taken.outcome.value,
        "error": taken.error,
        "latency_ms": _interval(taken),
        "energy_j": taken.energy_j,
        "memory_bytes": None if taken.memory is None else taken.memory.peak_bytes,
        "utilisation": taken.utilisation,
        "samples": list(taken.samples_ms),
        "runs_per_sample": taken.runs_per_sample,
        "started_at": taken.started_at,
        "seconds": taken.seconds,
        "environment": msgspec.to_builtins(taken.environment),
        "notes": msgspec.to_builtins(taken.notes),
    }


def _interval(taken: Measurement) -> Json | None:
    made = taken.latency_ms
    return None if made is None else {"value": made.value, "low": made.low, "high": made.high}


def import_document(done: "Sequence[tuple[Path, Imported]]") -> Json:
    """Return `slicewise.records-import/1`: what became of each file."""
    return {
        "schema": "slicewise.records-import/1",
        "files": [
            {
                "file": str(path),
                "added": made.added,
                "known": made.known,
                "bad": [{"line": bad.number, "reason": bad.reason} for bad in made.bad],
            }
            for path, made in done
        ],
    }
