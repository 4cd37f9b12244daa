"""Constraints of a partition as a user writes them (`slicewise.constraints/1`), to `Wishes`.

Every mistake names file, line and the nearest known word. Which node a name means is looked up
later, when the model is there.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from slicewise.core.device import Link
from slicewise.core.errors import UsageError
from slicewise.core.pipeline import FastMemory, Objective
from slicewise.core.units import parse_bytes, parse_bytes_per_s
from slicewise.flows.partitioning.wishes import (
    LAST,
    MemoryWish,
    Selector,
    Wishes,
    parse_link,
    parse_seconds,
)
from slicewise.flows.spec_file import Entry, read_entries

SCHEMA = "slicewise.constraints/1"
FIELDS = (
    "schema", "devices", "order", "links", "memory", "fast_memory", "overlap", "hops",
    "replicate", "together", "pin", "forbid_cuts", "objective", "limit_ms", "link_w",
)  # fmt: skip
_MOST_STAGES = 65_536
_T = TypeVar("_T")


def read_constraints(path: Path) -> Wishes:
    """Return the wishes of a YAML file; `UsageError` with file and line for a mistake."""
    given = read_entries(path, what="constraints").fields(FIELDS)
    if "schema" in given and given["schema"].text() != SCHEMA:
        raise given["schema"].mistake(
            f"schema is {given['schema'].text()!r}; this release reads {SCHEMA!r}"
        )
    memory = _memory(given["memory"]) if "memory" in given else Wishes()
    fast, device_fast = _fast_memory(given.get("fast_memory"))
    return Wishes(
        devices=_each(given.get("devices"), lambda item: item.text()),
        any_order=_any_order(given.get("order")),
        links=_each(given.get("links"), _link),
        memory=memory.memory,
        stage_memory=memory.stage_memory,
        device_memory=memory.device_memory,
        node_bytes=memory.node_bytes,
        fast_memory=fast,
        device_fast_memory=device_fast,
        overlaps=_flag(given.get("overlap")),
        hops=_flag(given.get("hops")),
        replicates=_flag(given.get("replicate")),
        together=_each(given.get("together"), _group),
        forbidden=_each(given.get("forbid_cuts"), _edge),
        pins=_pins(given.get("pin")),
        objective=_objective(given.get("objective")),
        limit_ms=_number(given.get("limit_ms")),
        link_w=_number(given.get("link_w")),
    )


def _each(entry: Entry | None, read: Callable[[Entry], _T]) -> tuple[_T, ...]:
    if entry is None:
        return ()
    items = entry.items()
    if not items:
        raise entry.mistake(f"{entry.what} is an empty list; name one, or leave it out")
    return tuple(read(item) for item in items)


def _number(entry: Entry | None) -> float | None:
    return None if entry is None else entry.number()


def _flag(entry: Entry | None) -> bool | None:
    if entry is None:
        return None
    if not isinstance(entry.value, bool):
        raise entry.mistake(f"{entry.what} is neither true nor false; write one")
    return entry.value


def _word(entry: Entry, known: Sequence[str]) -> str:
    if entry.value not in known:
        raise entry.mistake(
            f"{entry.what} {entry.value!r} is unknown; known are {', '.join(known)}"
        )
    return entry.text()


def _any_order(entry: Entry | None) -> bool | None:
    return None if entry is None else _word(entry, ("given", "any")) == "any"


def _objective(entry: Entry | None) -> Objective | None:
    return None if entry is None else Objective(_word(entry, [each.value for each in Objective]))


def _said(entry: Entry, read: Callable[[str], _T]) -> _T:
    """Return what a text means; a mistake in it is told with its line."""
    text = entry.text()
    try:
        return read(text)
    except UsageError as err:
        raise entry.mistake(str(err)) from err


def _bytes(entry: Entry) -> float:
    return float(_said(entry, parse_bytes))


def _link(entry: Entry) -> Link:
    if not isinstance(entry.value, dict):
        return _said(entry, parse_link)
    given = entry.fields(("bandwidth", "latency"), needed=("bandwidth",))
    bandwidth = _said(given["bandwidth"], parse_bytes_per_s)
    latency = 0.0
    if "latency" in given:
        latency = _said(given["latency"], lambda text: parse_seconds(text, what="latency"))
    return Link(given["bandwidth"].text(), bandwidth, latency)


def _memory_wish(entry: Entry, *, others: Sequence[str] = ()) -> MemoryWish:
    given = entry.fields(("limit", "reserve", *others))
    return MemoryWish(*(_bytes(given[key]) if key in given else None
                        for key in ("limit", "reserve")))  # fmt: skip


def _memory(entry: Entry) -> Wishes:
    others = ("stages", "devices", "nodes")
    given = entry.fields(("limit", "reserve", *others))
    by_stage = {
        _stage(name, item): _memory_wish(item)
        for name, item in _mapping(given.get("stages")).items()
    }
    by_device = {name: _memory_wish(item) for name, item in _mapping(given.get("devices")).items()}
    nodes = tuple(
        (Selector(name, _where(item)), _bytes(item))
        for name, item in _mapping(given.get("nodes")).items()
    )
    return Wishes(
        memory=_memory_wish(entry, others=others),
        stage_memory=by_stage,
        device_memory=by_device,
        node_bytes=nodes,
    )


def _fast_memory(entry: Entry | None) -> tuple[FastMemory | None, dict[str, FastMemory]]:
    if entry is None:
        return None, {}
    given = entry.fields(("capacity", "bandwidth", "devices"))
    by_device = {name: _fast(item) for name, item in _mapping(given.get("devices")).items()}
    own = _fast(entry, others=("devices",)) if "capacity" in given or not by_device else None
    return own, by_device


def _fast(entry: Entry, *, others: Sequence[str] = ()) -> FastMemory:
    needed = ("capacity", "bandwidth")
    given = entry.fields((*needed, *others), needed=needed)
    bandwidth = _said(given["bandwidth"], parse_bytes_per_s)
    return FastMemory(_bytes(given["capacity"]), 1e3 / bandwidth)


def _mapping(entry: Entry | None) -> dict[str, Entry]:
    if entry is None:
        return {}
    if not isinstance(entry.value, dict):
        raise entry.mistake(f"{entry.what} is no mapping; write NAME: VALUE")
    return dict(entry.value)


def _where(entry: Entry) -> str:
    return f"{entry.path}, line {entry.line}: "


def _selector(entry: Entry) -> Selector:
    return Selector(entry.text(), _where(entry))


def _group(entry: Entry) -> tuple[Selector, ...]:
    return tuple(_selector(item) for item in entry.items())


def _edge(entry: Entry) -> tuple[Selector, Selector | None]:
    ends = entry.items()
    if not 1 <= len(ends) <= 2:
        raise entry.mistake(
            "forbid_cuts holds pairs [PRODUCER, CONSUMER], or a producer alone: no cut behind it"
        )
    return _selector(ends[0]), _selector(ends[1]) if len(ends) == 2 else None


def _pins(entry: Entry | None) -> tuple[tuple[Selector, int], ...]:
    made = []
    for name, item in _mapping(entry).items():
        stage = LAST if item.value == "last" else _stage(str(item.value), item)
        made.append((Selector(name, _where(item)), stage))
    return tuple(made)


def _stage(text: str, entry: Entry) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 6 or int(text) >= _MOST_STAGES:
        raise entry.mistake(f"{text!r} is no stage; write 0 for the first, 1, 2, ... or last")
    return int(text)
