"""What of a card decides on layouts, as bits: slots taken, instances counted, media engines.

The inner workings of `layouts.py`; nothing here checks names or tells a user anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from slicewise.core.device import Device, SliceProfile
from slicewise.core.errors import DeviceError

# `attributes` of a profile with the media extension: OFA and, on some boards, the only JPEG
# engine. A card has one ("+me" profiles: one instance; MIG User Guide r580, Supported Profiles).
MEDIA = frozenset({"me", "me.all"})
# With every media engine in one slice, only profiles that take none can stand beside it.
ALL_MEDIA, NO_MEDIA = "me.all", "no media"


@dataclass(frozen=True, slots=True)
class Board:
    """The slots and profiles of a card. Cards of one die and memory share it."""

    slots: int
    profiles: tuple[SliceProfile, ...]


@dataclass(frozen=True, slots=True)
class Spot:
    """A profile (its place in the board's list) at one of its starts; a bit for each slot."""

    profile: int
    start: int
    mask: int


@dataclass(frozen=True, slots=True)
class State:
    """What stands on a card, as far as the next slice minds."""

    taken: int
    counts: tuple[int, ...]
    attributes: frozenset[str] = frozenset()


def board_of(device: Device) -> Board:
    """Return the board of a card; `DeviceError` if it has no MIG."""
    if not device.profiles:
        raise DeviceError(
            f"{device.name} has no MIG and cannot be sliced; use it whole or as a share, as in"
            f" {device.whole.name}@50%"
        )
    return Board(device.memory_slots, device.profiles)


@cache
def profiles_by_name(board: Board) -> dict[str, SliceProfile]:
    """Return the profiles by their own names."""
    return {profile.name: profile for profile in board.profiles}


@cache
def spots(board: Board) -> tuple[Spot, ...]:
    """Return every profile at every start, as listed."""
    return tuple(
        Spot(index, start, ((1 << profile.size) - 1) << start)
        for index, profile in enumerate(board.profiles)
        for start in profile.starts
    )


@cache
def spots_by_place(board: Board) -> dict[tuple[str, int], Spot]:
    """Return the spots by the name of the profile and the start."""
    return {(board.profiles[spot.profile].name, spot.start): spot for spot in spots(board)}


def empty(board: Board) -> State:
    """Return the state of a card without slices."""
    return State(0, (0,) * len(board.profiles))


def engines_suffice(attributes: Sequence[str]) -> bool:
    """True if slices with these attributes find the media engines that they need."""
    if sum(each in MEDIA for each in attributes) > 1:
        return False
    return ALL_MEDIA not in attributes or all(each in (ALL_MEDIA, NO_MEDIA) for each in attributes)


def fits(board: Board, state: State, spot: Spot) -> bool:
    """True if the slice can stand beside what stands there."""
    profile = board.profiles[spot.profile]
    if state.taken & spot.mask or state.counts[spot.profile] >= profile.max_instances:
        return False
    # a set of those that stand there is enough: one of MEDIA can be there only once
    return engines_suffice([*state.attributes, profile.attributes])


def with_spot(board: Board, state: State, spot: Spot) -> State:
    """Return the state with one more slice."""
    counts = list(state.counts)
    counts[spot.profile] += 1
    attributes = state.attributes | {board.profiles[spot.profile].attributes}
    return State(state.taken | spot.mask, tuple(counts), attributes)


def rank(profile: SliceProfile) -> tuple[int, int]:
    """Larger is the profile with more SM slices, then the one with more memory."""
    return profile.compute_slices, profile.memory_slices


def free_runs(board: Board, state: State) -> int:
    """Return the number of separate runs of free slots."""
    free = ~state.taken & ((1 << board.slots) - 1)
    return (free & ~(free << 1)).bit_count()
