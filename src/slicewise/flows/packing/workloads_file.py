"""WORKLOADS.yaml as a user writes it, to workload specifications.

Every mistake names file, line and the nearest known word. Models and profiles are looked for
beside the file first, then where the program runs; they are opened later.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from slicewise.core.graph import LARGEST_DIMENSION
from slicewise.flows.figures import is_number
from slicewise.flows.packing.workload import (
    MOST_PROCESSES,
    USUAL_PERCENTILE,
    Isolation,
    WorkloadSpec,
    refuse_duplicates,
    under_one,
)
from slicewise.flows.spec_file import Entry, read_entries

SCHEMA = "slicewise.workloads/1"
FIELDS = (
    "name", "model", "profile", "rate_per_s", "latency_ms", "percentile", "precision", "runtime",
    "layout", "batch", "processes", "isolation", "in_use", "dims", "input", "batch_axis",
    "scale_missing",
)  # fmt: skip
_FILE_FIELDS = ("schema", "workloads")
# What one of the unit written is in the unit of the field.
_MS = {"": 1.0, "ms": 1.0, "us": 1e-3, "s": 1e3}
_PER_S = {"": 1.0, "/s": 1.0, "/min": 1 / 60, "/h": 1 / 3600}
_WITH_UNIT = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(/?\s*[a-zA-Z]*)\s*")
_T = TypeVar("_T")


def read_workloads(path: Path) -> tuple[WorkloadSpec, ...]:
    """Return the workloads of a YAML file, in its order.

    `UsageError` with file and line for an unknown field or unit, for what is missing, twice there
    or no number.
    """
    file = read_entries(path, what="workloads")
    given = file.fields(_FILE_FIELDS, needed=("workloads",))
    if "schema" in given and given["schema"].text() != SCHEMA:
        raise given["schema"].mistake(
            f"schema is {given['schema'].text()!r}; this release reads {SCHEMA!r}"
        )
    listed = given["workloads"]
    if not isinstance(listed.value, list) or not listed.value:
        raise listed.mistake(
            "workloads is no list with at least one workload; write - {name: a, model: a.onnx,"
            " rate_per_s: 100, latency_ms: 20}"
        )
    specs = tuple(_workload(item, path.parent) for item in listed.value)
    refuse_duplicates(specs)
    return specs


def _workload(entry: Entry, folder: Path) -> WorkloadSpec:
    what = Entry(entry.path, entry.line, "a workload", entry.value)
    given = what.fields(FIELDS, needed=("name", "rate_per_s", "latency_ms"))
    name = given["name"].text()
    isolation = Isolation.ANY
    if "isolation" in given:
        isolation = Isolation(_word(given["isolation"], [each.value for each in Isolation]))
    return WorkloadSpec(
        name=name,
        rate_per_s=_quantity(given["rate_per_s"], _PER_S, "requests a second, as in 300 or 300/s"),
        latency_ms=_quantity(given["latency_ms"], _MS, "milliseconds, as in 20 or 20ms"),
        model=_located(given.get("model"), folder),
        profile=_located(given.get("profile"), folder),
        percentile=_percentile(given.get("percentile")),
        batches=_wholes(given.get("batch"), most=LARGEST_DIMENSION),
        processes=_wholes(given.get("processes"), most=MOST_PROCESSES),
        isolation=isolation,
        in_use=bool(_flag(given.get("in_use"))),
        precision=_text(given.get("precision")),
        runtime=_text(given.get("runtime")),
        layout=_text(given.get("layout")) or "nchw",
        dims=_by_name(given.get("dims"), lambda item: _one(item).whole(most=LARGEST_DIMENSION)),
        inputs=_by_name(given.get("input"), _shape, alone=True),
        batch_axes=_by_name(given.get("batch_axis"), _axis, alone=True),
        scales_missing=_flag(given.get("scale_missing")),
        where=f"{entry.path}, line {entry.line}: ",
    )


def _one(entry: Entry) -> Entry:
    """Return an entry that holds one value; a list or mapping in its place is a mistake."""
    if isinstance(entry.value, list | dict):
        kind = "a list" if isinstance(entry.value, list) else "a mapping"
        raise entry.mistake(f"{entry.what} is {kind}; write one value")
    return entry


def _quantity(entry: Entry, units: dict[str, float], example: str) -> float:
    """Return a positive number, converted where a known unit stands behind it."""
    if not isinstance(_one(entry).value, str):
        return entry.number()
    match = _WITH_UNIT.fullmatch(entry.value)
    factor = None if match is None else units.get(match[2].replace(" ", ""))
    if match is None or factor is None:
        known = ", ".join(filter(None, units))
        raise entry.mistake(
            f"{entry.what} {entry.value!r} is no number of a known unit ({known}); write {example}"
        )
    value = float(match[1]) * factor
    return Entry(entry.path, entry.line, entry.what, value).number()


def _percentile(entry: Entry | None) -> float:
    if entry is None:
        return USUAL_PERCENTILE
    value = _one(entry).value
    if is_number(value) and 0 < value < 1:
        raise entry.mistake(under_one(value))
    if not is_number(value) or not 1 <= value < 100:
        raise entry.mistake(f"percentile {value!r} is not from 1 to under 100; write 99")
    return float(value)


def _word(entry: Entry, known: Sequence[str]) -> str:
    if _one(entry).value not in known:
        from slicewise.core.plugins import did_you_mean

        raise entry.mistake(
            f"{entry.what} {entry.value!r} is unknown; known are {', '.join(known)}"
            f"{did_you_mean(str(entry.value), known)}"
        )
    return entry.text()


def _flag(entry: Entry | None) -> bool | None:
    if entry is None:
        return None
    if not isinstance(entry.value, bool):
        raise entry.mistake(f"{entry.what} is neither true nor false; write one")
    return entry.value


def _text(entry: Entry | None) -> str | None:
    return None if entry is None else entry.text()


def _located(entry: Entry | None, folder: Path) -> str | None:
    """Return a file beside the one that names it, or the name as it stands."""
    if entry is None:
        return None
    name = entry.text()
    beside = folder / name
    return str(beside) if beside.exists() else name


def _wholes(entry: Entry | None, *, most: int) -> tuple[int, ...]:
    if entry is None:
        return ()
    items = entry.items()
    if not items:
        raise entry.mistake(f"{entry.what} is an empty list; name one, or leave it out")
    return tuple(_one(item).whole(most=most) for item in items)


def _by_name(
    entry: Entry | None, read: Callable[[Entry], _T], *, alone: bool = False
) -> dict[str, _T]:
    """Return a mapping by name; `alone`: no mapping is that of the only input, ''."""
    if entry is None:
        return {}
    if isinstance(entry.value, dict):
        return {name: read(item) for name, item in entry.value.items()}
    if not alone:
        raise entry.mistake(f"{entry.what} is no mapping; write {{seq: 128}}")
    return {"": read(entry)}


def _shape(entry: Entry) -> tuple[int, ...]:
    """Return the sizes of '1x3x224x224' or [1, 3, 224, 224]."""
    if isinstance(entry.value, list):
        return tuple(_one(item).whole(most=LARGEST_DIMENSION) for item in entry.value)
    sizes = entry.text().lower().split("x")
    if not all(size.isascii() and size.isdigit() and size.strip("0") for size in sizes):
        raise entry.mistake(f"input {entry.value!r} is no shape; write 1x3x224x224")
    return tuple(map(int, sizes))


def _axis(entry: Entry) -> int | None:
    if _one(entry).value is None or entry.value == "none":
        return None
    if isinstance(entry.value, bool) or not isinstance(entry.value, int):
        raise entry.mistake(f"batch_axis {entry.value!r} is no axis; write 0, 1, -2 or none")
    return entry.value
