"""Reads the slice profiles of a board: `devices/mig/*.toml`, or `[[profile]]` of a user's file.

One board file serves every device with the same die and memory. Placement rules are data
(`starts`, `size`); nothing is laid out here.
"""

import re
from dataclasses import dataclass

from slicewise.core.device import SliceProfile
from slicewise.core.notes import Note
from slicewise.core.units import format_capacity
from slicewise.hardware.figures import CACHE_FRACTION, FIGURES, Section, count, shown

PROFILE_KEYS = (
    "name",
    "compute_units",
    "memory_bytes",
    "compute_slices",
    "memory_slices",
    "starts",
    "size",
    "max_instances",
    "profile_id",
    "cache_fraction",
    "attributes",
    "aliases",
    "estimated",
    "reason",
)
_BOARD_KEYS = ("board", "memory_slots", "sources", "profile")
_SLOTS = count("memory_slots", low=1, high=64)
_PROFILE_NAME = re.compile(r"(\d{1,2})g\.\d+gb([+-][a-z.]+)?")


@dataclass(frozen=True, slots=True)
class Slicing:
    """How a card can be cut: its memory slots, and profiles from small to large."""

    memory_slots: int = 0
    profiles: tuple[SliceProfile, ...] = ()


def read_board(board: Section) -> Slicing:
    """Return the profiles of a board file."""
    board.refuse_unknown(_BOARD_KEYS)
    return read_slicing(board)


def read_slicing(section: Section) -> Slicing:
    """Return what `memory_slots` and `[[profile]]` of a file say; empty without them."""
    tables = section.sections("profile")
    slots = section.number(_SLOTS)
    if slots is None and tables:
        raise section.missing("memory_slots", "how many memory slots the profiles share", "8")
    if slots is None:
        return Slicing()
    profiles = tuple(_read_profile(table, slots=int(slots)) for table in tables)
    names = [name for profile in profiles for name in (profile.name, *profile.aliases)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise section.error(f"profile name {twice[0]!r} is given twice; names and aliases differ")
    return Slicing(int(slots), tuple(sorted(profiles, key=_small_to_large)))


def refuse_larger_than_card(
    section: Section, slicing: Slicing, *, compute_units: int, memory_bytes: int
) -> None:
    """`DeviceError` if a profile exceeds the card."""
    for profile in slicing.profiles:
        if profile.compute_units > compute_units:
            raise section.error(
                f"profile {profile.name} has compute_units={profile.compute_units}, more than the"
                f" card's {compute_units}; correct one of them"
            )
        if profile.memory_bytes > memory_bytes:
            raise section.error(
                f"profile {profile.name} has {format_capacity(profile.memory_bytes)} of memory,"
                f" more than the card's memory_bytes={memory_bytes}"
                f" ({format_capacity(memory_bytes)}); correct one of them"
            )


def _small_to_large(profile: SliceProfile) -> tuple[int, int, bool]:
    return profile.compute_slices, profile.memory_slices, bool(profile.attributes)


def _read_profile(table: Section, *, slots: int) -> SliceProfile:
    table.refuse_unknown(PROFILE_KEYS)
    name = table.text("name").lower()
    parsed = _PROFILE_NAME.fullmatch(name)
    if parsed is None:
        raise table.error(f"profile name {name!r} is not of the form 2g.10gb or 1g.5gb+me")
    starts = _read_starts(table, slots=slots)
    size = table.number(count("size", low=1, high=slots))
    memory_slices = table.number(count("memory_slices", low=1, high=slots)) or size
    size = int(size or memory_slices or 1)
    if max(starts) + size > slots:
        raise table.error(
            f"profile {name} from slot {max(starts)} with size={size} ends beyond"
            f" memory_slots={slots}; lower starts or size"
        )
    instances = table.number(count("max_instances", low=1, high=len(starts)))
    profile_id = table.number(count("profile_id", high=10_000))
    return SliceProfile(
        name=name,
        compute_units=int(table.required(FIGURES["compute_units"])),
        memory_bytes=int(table.required(FIGURES["memory_bytes"])),
        compute_slices=int(table.number(count("compute_slices", low=1, high=64)) or parsed[1]),
        memory_slices=int(memory_slices or size),
        starts=starts,
        size=size,
        max_instances=int(instances or len(starts)),
        profile_id=None if profile_id is None else int(profile_id),
        cache_fraction=table.number(CACHE_FRACTION),
        attributes=table.text("attributes", default=""),
        aliases=tuple(alias.lower() for alias in table.strings("aliases")),
        notes=_notes(table, name),
    )


def _read_starts(table: Section, *, slots: int) -> tuple[int, ...]:
    value = table.table.get("starts")
    if value is None:
        raise table.missing("starts", "legal first memory slots", "[0, 2, 4]")
    if (
        not isinstance(value, list)
        or not value
        or not all(type(start) is int and 0 <= start < slots for start in value)
        or len(set(value)) < len(value)
    ):
        raise table.error(
            f"{table.prefix}starts={shown(value)} must be a list of different slots between 0 and"
            f" {slots - 1}"
        )
    return tuple(sorted(value))


def _notes(table: Section, name: str) -> tuple[Note, ...]:
    """Say which figures of the profile are estimated, and why."""
    estimated = table.strings("estimated")
    if not estimated:
        return ()
    unknown = [key for key in estimated if key not in PROFILE_KEYS]
    if unknown:
        raise table.error(f"{table.prefix}estimated names no figure: {', '.join(unknown)}")
    code = _estimate_code(set(estimated))
    reason = table.text("reason", default="no reason is given")
    return (Note(code, f"{name}: {', '.join(estimated)} estimated: {reason}"),)


def _estimate_code(estimated: set[str]) -> str:
    """Only an estimated SM count makes the speed of a slice uncertain enough to widen it."""
    if estimated == {"cache_fraction"}:
        return "slice-cache-uncertain"
    if estimated == {"memory_bytes"}:
        return "slice-memory-estimated"
    return "slice-estimated"
