"""A sweep for scripts: CSV with one row a point, and the JSON document. Columns are added only."""

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from slicewise.app.documents import Json
from slicewise.core.conditions import version_text
from slicewise.core.cost import Prediction
from slicewise.core.exploration import Exploration, ExploredPoint
from slicewise.core.notes import Note

Cell = str | int | float | None
_NUMBER = Callable[[Prediction], Cell]

# Of what is predicted; an impossible point has none of it.
_FIGURES: Mapping[str, _NUMBER] = {
    "latency_ms": lambda made: made.latency_ms.value,
    "latency_low_ms": lambda made: made.latency_ms.low,
    "latency_high_ms": lambda made: made.latency_ms.high,
    "throughput_per_s": lambda made: made.throughput_per_s,
    "energy_j": lambda made: made.energy_j.value,
    "energy_low_j": lambda made: made.energy_j.low,
    "energy_high_j": lambda made: made.energy_j.high,
    "energy_per_item_j": lambda made: made.energy_j.value / made.batch,
    "memory_bytes": lambda made: made.memory_bytes.value,
    "memory_low_bytes": lambda made: made.memory_bytes.low,
    "memory_high_bytes": lambda made: made.memory_bytes.high,
    "macs": lambda made: made.macs,
    "flops": lambda made: made.flops,
    "compute_utilisation": lambda made: made.compute_utilisation,
    "saturation": lambda made: made.saturation,
}
_WHO: Mapping[str, Callable[[ExploredPoint], Cell]] = {
    "model": lambda point: point.model,
    "source": lambda point: point.source,
    "device": lambda point: point.device,
    "slice": lambda point: point.slice,
    "batch": lambda point: point.batch,
    "precision": lambda point: point.precision,
    "runtime": lambda point: point.runtime,
    "runtime_version": lambda point: version_text(point.runtime_version),
    "layout": lambda point: point.layout,
}
COLUMNS = (*_WHO, *_FIGURES, "on_front", "standing", "notes", "error")


def explore_csv(result: Exploration) -> bytes:
    """Return the points as CSV (RFC 4180, but with plain newlines), UTF-8.

    Numbers are written in full: they read back as the same numbers. `notes` are codes with a
    blank between, `error` is the class and the reason of an impossible point; what is not there is
    empty.
    """
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    for point in result.points:
        rows.writerow(_row(point))
    return text.getvalue().encode("utf-8", "surrogateescape").decode("utf-8", "replace").encode()


def _row(point: ExploredPoint) -> list[Cell]:
    made, failure = point.prediction, point.failure
    return [
        *(tell(point) for tell in _WHO.values()),
        *(None if made is None else figure(made) for figure in _FIGURES.values()),
        "true" if point.on_front else "false",
        point.standing.value,
        "" if made is None else " ".join(dict.fromkeys(note.code for note in made.notes)),
        None if failure is None else f"{failure.error}: {' '.join(failure.reason.split())}",
    ]


@dataclass(slots=True)
class _Notes:
    """Every note of a sweep once, with the number of points that have it."""

    numbers: dict[Note, int]
    counts: list[int]

    def number(self, note: Note) -> int:
        """Return the place of a note in the list, and count it."""
        place = self.numbers.setdefault(note, len(self.numbers))
        if place == len(self.counts):
            self.counts.append(0)
        self.counts[place] += 1
        return place


def explore_document(result: Exploration) -> Json:
    """Return `slicewise.explore/1`.

    `notes` of a point are places in the list `notes` of the document, from 0: a thousand points
    share a few texts. `front` are places in `points`.
    """
    notes = _Notes({}, [])
    points = [_point(point, notes) for point in result.points]
    return {
        "schema": "slicewise.explore/1",
        "models": [msgspec.to_builtins(model) for model in result.models],
        "objectives": [objective.value for objective in result.objectives],
        "latency_limit_ms": result.latency_limit_ms,
        "memory_limit_bytes": result.memory_limit_bytes,
        "per_model": result.per_model,
        "front": [i for i, point in enumerate(result.points) if point.on_front],
        "points": points,
        "notes": [
            {**msgspec.to_builtins(note), "points": count}
            for note, count in zip(notes.numbers, notes.counts, strict=True)
        ],
        "sweep_notes": [msgspec.to_builtins(note) for note in result.notes],
    }


def _point(point: ExploredPoint, notes: _Notes) -> Json:
    made, failure = point.prediction, point.failure
    document: Json = {name: tell(point) for name, tell in _WHO.items()}
    document |= {"on_front": point.on_front, "standing": point.standing.value}
    if made is not None:
        document |= {
            "macs": made.macs,
            "flops": made.flops,
            "latency_ms": msgspec.to_builtins(made.latency_ms),
            "throughput_per_s": made.throughput_per_s,
            "energy_j": msgspec.to_builtins(made.energy_j),
            "energy_per_item_j": point.energy_per_item_j,
            "memory_bytes": msgspec.to_builtins(made.memory_bytes),
            "compute_utilisation": made.compute_utilisation,
            "saturation": made.saturation,
            "predictor": made.source,
        }
    document["notes"] = [] if made is None else [notes.number(note) for note in made.notes]
    document["error"] = None if failure is None else msgspec.to_builtins(failure)
    return document
