"""Measured rows that cannot well be true: more memory than there is, larger slices far slower."""

from collections.abc import Sequence
from itertools import groupby

from slicewise.core.device import Device
from slicewise.core.notes import Note
from slicewise.core.units import format_capacity, format_ms
from slicewise.predict.measured import MeasuredRow
from slicewise.predict.slice import fractions_of

# Runs on one card differ by a few percent from day to day; a part with more of the card that is
# slower by more than this is a slip in the file, or something else ran beside it.
_MUCH_SLOWER = 1.2


def odd_notes(
    path: str, rows: Sequence[MeasuredRow], lines: Sequence[int], device: Device
) -> tuple[Note, ...]:
    """Return a note for each of both kinds, with the first of its lines; `rows` have the names
    that `device` has for its parts."""
    placed = [(row, line, _part(row, device)) for row, line in zip(rows, lines, strict=True)]
    return (*_over_memory(path, placed), *_slower(path, placed, device))


_Placed = tuple[MeasuredRow, int, Device]


def _part(row: MeasuredRow, device: Device) -> Device:
    if row.slice is None:
        return device
    if row.slice.endswith("%"):
        return device.share(float(row.slice[:-1]))
    return device.slice(row.slice)


def _over_memory(path: str, placed: Sequence[_Placed]) -> tuple[Note, ...]:
    found = [
        (row, line, part)
        for row, line, part in placed
        if row.memory_bytes is not None and row.memory_bytes > part.memory_bytes
    ]
    if not found:
        return ()
    row, line, part = found[0]
    assert row.memory_bytes is not None
    text = (
        f"{path}: {len(found)} of {len(placed)} rows took more memory than their part has (line"
        f" {line}: {format_capacity(row.memory_bytes)} on {part.name}, which has"
        f" {format_capacity(part.memory_bytes)} usable); check unit and device"
    )
    return (Note("measured-odd", text),)


def _slower(path: str, placed: Sequence[_Placed], device: Device) -> tuple[Note, ...]:
    def key(each: _Placed) -> tuple[int, int]:
        return each[0].batch, each[0].processes

    found: list[tuple[_Placed, _Placed]] = []
    for _, group in groupby(sorted(placed, key=key), key=key):
        quickest: list[_Placed] = []
        for each in sorted(group, key=lambda one: fractions_of(one[2])):
            smaller = [one for one in quickest if _is_larger(each[2], one[2])]
            least = min(smaller, key=lambda one: one[0].latency_ms, default=None)
            if least is not None and each[0].latency_ms > _MUCH_SLOWER * least[0].latency_ms:
                found.append((each, least))
            quickest.append(each)
    if not found:
        return ()
    (large, line, on), (small, small_line, small_on) = min(found, key=lambda pair: pair[0][1])
    text = (
        f"{path}: {len(found)} of {len(placed)} rows are over 20 % slower than those of a smaller"
        f" part (line {line}: batch {large.batch} takes {format_ms(large.latency_ms)} on"
        f" {on.slice_name or device.name}, line {small_line}: {format_ms(small.latency_ms)} on"
        f" {small_on.slice_name}); check which is which"
    )
    return (Note("measured-odd", text),)


def _is_larger(one: Device, other: Device) -> bool:
    """Return True if a part has more of the card than another and nothing less."""
    pairs = list(zip(fractions_of(one), fractions_of(other), strict=True))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)
