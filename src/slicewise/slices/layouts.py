"""Which MIG slices can stand on a card together, and where: a rule over memory slots.

A slice takes `size` memory slots from one of its profile's `starts`. Slices may stand together if
their slots do not overlap, no profile has more than `max_instances`, and the media engines suffice
(NVIDIA MIG User Guide r580, "Supported MIG Profiles" and "Getting Started with MIG"). This
alone also keeps the SM slices within what the card has. No speed is judged here.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from slicewise.core.device import Device, SliceProfile
from slicewise.core.errors import DeviceError
from slicewise.slices.board import (
    ALL_MEDIA,
    MEDIA,
    NO_MEDIA,
    Board,
    Spot,
    State,
    board_of,
    empty,
    engines_suffice,
    fits,
    free_runs,
    profiles_by_name,
    rank,
    spots,
    spots_by_place,
    with_spot,
)

# (profile, number of instances), by profile name
Multiset = tuple[tuple[str, int], ...]

# A board of eight slots takes at most 723; a user's file of 64 slots goes beyond counting.
_MOST_STEPS = 5_000
_MOST_ORDERS = 5040  # of seven slices


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """A slice at its place: the profile and the first memory slot.

    >>> print(Placement("3g.40gb", 4))
    3g.40gb@4
    """

    profile: str
    start: int

    def __str__(self) -> str:
        return f"{self.profile}@{self.start}"


def slots_of(device: Device, placement: Placement) -> range:
    """Return the memory slots that a placement takes; `DeviceError` for an unknown profile.

    >>> import slicewise
    >>> slots_of(slicewise.device("a100-sxm4-80gb"), Placement("3g.40gb", 4))
    range(4, 8)
    """
    return range(placement.start, placement.start + device.profile_named(placement.profile).size)


def why_illegal(device: Device, placements: Sequence[Placement]) -> str:
    """Return why these slices cannot stand on the card together, '' if they can.

    Names the two slices that overlap and their slots, an unknown profile or start, or the engine
    that is taken twice.

    >>> import slicewise
    >>> card = slicewise.device("a100-sxm4-80gb")
    >>> why_illegal(card, [Placement("3g.40gb", 4), Placement("2g.20gb", 4)])
    '3g.40gb@4 (slots 4 to 7) and 2g.20gb@4 (slots 4 to 5) overlap at slots 4 to 5'
    """
    try:
        placed = _resolved(device, placements)
    except DeviceError as err:
        return str(err)
    names = profiles_by_name(board_of(device))
    for each in placed:
        profile = names[each.profile]
        if each.start not in profile.starts:
            starts = ", ".join(map(str, profile.starts))
            return f"{each.profile} cannot start at slot {each.start}; it can at {starts}"
    for one, other in itertools.combinations(placed, 2):
        first, second = slots_of(device, one), slots_of(device, other)
        both = range(max(first.start, second.start), min(first.stop, second.stop))
        if both:
            return (
                f"{one} ({_slots(first)}) and {other} ({_slots(second)}) overlap at {_slots(both)}"
            )
    for name, count in Counter(each.profile for each in placed).items():
        if count > names[name].max_instances:
            return (
                f"{count} instances of {name} are more than the {names[name].max_instances} that"
                f" {device.name} can have"
            )
    return _why_engines([names[each.profile] for each in placed])


def _resolved(device: Device, placements: Sequence[Placement]) -> tuple[Placement, ...]:
    """Return the placements under the profiles' own names; `DeviceError` for unknown ones."""
    names = profiles_by_name(board_of(device))
    return tuple(
        each
        if each.profile in names
        else Placement(device.profile_named(each.profile).name, each.start)
        for each in placements
    )


def _why_engines(profiles: Sequence[SliceProfile]) -> str:
    if engines_suffice([each.attributes for each in profiles]):
        return ""
    media = [each.name for each in profiles if each.attributes in MEDIA]
    if len(media) > 1:
        return f"{media[0]} and {media[1]} both need the media extension, of which a card has one"
    needy = next(each.name for each in profiles if each.attributes not in (ALL_MEDIA, NO_MEDIA))
    return (
        f"{media[0]} takes every media engine and {needy} needs some; beside it only profiles"
        " without media (-me) can stand"
    )


def _slots(slots: range) -> str:
    if len(slots) == 1:
        return f"slot {slots.start}"
    return f"slots {slots.start} to {slots.stop - 1}"


def is_legal(device: Device, placements: Sequence[Placement]) -> bool:
    """True if these slices can stand on the card together.

    >>> import slicewise
    >>> card = slicewise.device("a100-sxm4-80gb")
    >>> is_legal(card, [Placement("4g.40gb", 0), Placement("3g.40gb", 4)])
    True
    """
    return not why_illegal(device, placements)


def checked(device: Device, placements: Sequence[Placement]) -> tuple[Placement, ...]:
    """Return the slices in order of slots, under the profiles' own names.

    `DeviceError` says why they cannot stand together.

    >>> import slicewise
    >>> card = slicewise.device("a100-sxm4-80gb")
    >>> print(*checked(card, [Placement("3g.39gb", 4), Placement("1g.10gb", 0)]))
    1g.10gb@0 3g.40gb@4
    """
    why = why_illegal(device, placements)
    if why:
        told = " ".join(map(str, placements))
        raise DeviceError(
            f"layout {told!r} of {device.name} cannot be: {why}; `slicewise devices {device.name}"
            " --layouts` shows what can"
        )
    return tuple(sorted(_resolved(device, placements), key=lambda each: each.start))


def maximal_layouts(device: Device) -> tuple[tuple[Placement, ...], ...]:
    """Return every layout of base profiles into which no further base profile fits.

    Variants (+me, +gfx, -me, +me.all) stand where their base profile does and are left out. Each
    layout is in order of slots; layouts with large slices come first. `DeviceError` if the card
    has no MIG, or a file of the user's own makes too many to search.

    >>> import slicewise
    >>> layouts = maximal_layouts(slicewise.device("a100-sxm4-80gb"))
    >>> len(layouts), " ".join(map(str, layouts[1]))
    (78, '4g.40gb@0 3g.40gb@4')
    """
    board = board_of(device)
    try:
        return _maximal(board)
    except OverflowError as err:
        raise _too_many(device) from err


def _too_many(device: Device) -> DeviceError:
    return DeviceError(
        f"{device.name} has too many layouts of its {device.memory_slots} memory slots to search;"
        " boards known have 8 slots and 78 layouts: correct the profiles of its file"
    )


def _count(steps: Iterator[int]) -> None:
    """Take one step of a search; `OverflowError` if it takes too many."""
    if next(steps) > _MOST_STEPS:
        raise OverflowError


@cache
def _maximal(board: Board) -> tuple[tuple[Placement, ...], ...]:
    """Return the layouts; `OverflowError` if the search goes beyond bounds."""
    steps = itertools.count()
    base = [spot for spot in spots(board) if not board.profiles[spot.profile].attributes]

    def extend(state: State, first: int) -> Iterator[tuple[Spot, ...]]:
        _count(steps)
        if not any(fits(board, state, spot) for spot in base):
            yield ()
            return
        for i in range(first, len(base)):
            if fits(board, state, base[i]):
                for rest in extend(with_spot(board, state, base[i]), i + 1):
                    yield (base[i], *rest)

    def large_first(layout: tuple[Spot, ...]) -> tuple[list[tuple[int, int]], list[int]]:
        ranked = [(rank(board.profiles[spot.profile]), spot.start) for spot in layout]
        falling = sorted((-compute, -memory, start) for (compute, memory), start in ranked)
        return [each[:2] for each in falling], [start for _, _, start in falling]

    found = sorted(extend(empty(board), 0), key=large_first)
    return tuple(_placements(board, layout) for layout in found)


def _placements(board: Board, chosen: Sequence[Spot]) -> tuple[Placement, ...]:
    """Return the spots as placements in order of slots."""
    ordered = sorted(chosen, key=lambda spot: spot.start)
    return tuple(Placement(board.profiles[spot.profile].name, spot.start) for spot in ordered)


def multiset_of(placements: Sequence[Placement]) -> Multiset:
    """Return how many of each profile there are, wherever they stand, by name.

    >>> multiset_of([Placement("1g.10gb", 3), Placement("1g.10gb", 0), Placement("3g.40gb", 4)])
    (('1g.10gb', 2), ('3g.40gb', 1))
    """
    return tuple(sorted(Counter(each.profile for each in placements).items()))


def multisets(device: Device) -> tuple[Multiset, ...]:
    """Return what the maximal layouts consist of, each once: (profile, count) by profile name.

    Those with large slices come first.

    >>> import slicewise
    >>> found = multisets(slicewise.device("a100-sxm4-80gb"))
    >>> len(found), found[1]
    (38, (('3g.40gb', 1), ('4g.40gb', 1)))
    """
    return tuple(dict.fromkeys(map(multiset_of, maximal_layouts(device))))


def dominated_multisets(device: Device) -> frozenset[Multiset]:
    """Return the multisets that a larger one contains: their layouts waste room by a bad start.

    >>> import slicewise
    >>> len(dominated_multisets(slicewise.device("a100-sxm4-80gb")))
    10
    """
    found = [Counter(dict(each)) for each in multisets(device)]
    return frozenset(
        tuple(sorted(each.items())) for each in found if any(each < other for other in found)
    )


def _state(device: Device, placements: Sequence[Placement]) -> State:
    """Return the state of a card on which these slices stand; `DeviceError` if they cannot."""
    board = board_of(device)
    places = spots_by_place(board)
    state = empty(board)
    for each in checked(device, placements):
        state = with_spot(board, state, places[each.profile, each.start])
    return state


def free_profiles(device: Device, placements: Sequence[Placement]) -> tuple[Placement, ...]:
    """Return every place where one more base profile fits beside the slices, large ones first.

    `DeviceError` if the slices themselves cannot stand together.

    >>> import slicewise
    >>> card = slicewise.device("a100-sxm4-80gb")
    >>> print(*free_profiles(card, [Placement("4g.40gb", 0)])[:2])
    3g.40gb@4 2g.20gb@4
    """
    return _free(board_of(device), _state(device, placements))


@lru_cache(maxsize=65_536)
def _free(board: Board, state: State) -> tuple[Placement, ...]:
    profiles = board.profiles
    found = [
        s for s in spots(board) if not profiles[s.profile].attributes and fits(board, state, s)
    ]
    found.sort(key=lambda spot: (*(-part for part in rank(profiles[spot.profile])), spot.start))
    return tuple(Placement(profiles[spot.profile].name, spot.start) for spot in found)


def largest_free(device: Device, placements: Sequence[Placement]) -> str | None:
    """Return the largest base profile that still fits beside the slices, None if none does.

    Larger is what has more SM slices, then more memory.

    >>> import slicewise
    >>> card = slicewise.device("a100-sxm4-80gb")
    >>> largest_free(card, [Placement("1g.10gb", 5)])
    '4g.40gb'
    """
    free = free_profiles(device, placements)
    return free[0].profile if free else None


def place(
    device: Device, counts: Mapping[str, int], *, fixed: Sequence[Placement] = ()
) -> tuple[Placement, ...] | None:
    """Return places for exactly these instances beside `fixed`, None if there are none.

    Of all ways the one that leaves the largest profile free; then the one with the fewest separate
    runs of free slots; then the one with the lowest starts, large slices before small. The answer
    is in order of slots and without `fixed`. `DeviceError` for an unknown profile, a negative
    count, or slices in `fixed` that cannot stand together.

    >>> import slicewise
    >>> card = slicewise.device("a100-sxm4-80gb")
    >>> print(*place(card, {"1g.10gb": 2, "2g.20gb": 1}))
    2g.20gb@0 1g.10gb@2 1g.10gb@3
    """
    board = board_of(device)
    wanted: Counter[str] = Counter()
    for name, count in counts.items():
        if count < 0:
            raise DeviceError(f"{count} instances of {name!r} cannot be placed; give 0 or more")
        wanted[device.profile_named(name).name] += count
    state = _state(device, fixed)
    try:
        return _place(board, tuple(wanted[profile.name] for profile in board.profiles), state)
    except OverflowError as err:
        raise _too_many(device) from err


@lru_cache(maxsize=65_536)
def _place(board: Board, counts: tuple[int, ...], state: State) -> tuple[Placement, ...] | None:
    profiles = board.profiles
    order = sorted(
        range(len(profiles)), key=lambda i: (-profiles[i].size, -profiles[i].compute_slices, i)
    )
    wanted = [i for i in order for _ in range(counts[i])]
    if sum(profiles[i].size for i in wanted) > board.slots - state.taken.bit_count():
        return None
    places = {i: [spot for spot in spots(board) if spot.profile == i] for i in set(wanted)}

    steps = itertools.count()

    def extend(now: State, k: int, after: int) -> Iterator[tuple[tuple[Spot, ...], State]]:
        _count(steps)
        if k == len(wanted):
            yield (), now
            return
        for spot in places[wanted[k]]:
            if spot.start > after and fits(board, now, spot):
                # equal slices are interchangeable: only in ascending order
                is_repeated = k + 1 < len(wanted) and wanted[k + 1] == wanted[k]
                least = spot.start if is_repeated else -1
                for rest, end in extend(with_spot(board, now, spot), k + 1, least):
                    yield (spot, *rest), end

    def badness(way: tuple[tuple[Spot, ...], State]) -> tuple[int, int, int, list[int]]:
        chosen, end = way
        free = _free(board, end)
        compute, memory = rank(profiles_by_name(board)[free[0].profile]) if free else (0, 0)
        return -compute, -memory, free_runs(board, end), [spot.start for spot in chosen]

    best = min(extend(state, 0, -1), key=badness, default=None)
    return None if best is None else _placements(board, best[0])


def driver_start(device: Device, placements: Sequence[Placement], profile_name: str) -> int | None:
    """Return where the driver puts a slice that is made without a start; None if it has no place.

    The upper half of the slots comes first, each half upwards. So `nvidia-smi mig -cgi` numbers
    and places instances in the listings of the MIG User Guide (the first 3g at 4, the second at
    0), and so the profiles 19,19,14,9 fail there and 9,19,14,19 work.

    >>> import slicewise
    >>> driver_start(slicewise.device("a100-sxm4-80gb"), [], "3g.40gb")
    4
    """
    profile = device.profile_named(profile_name).name
    return _driver_start(board_of(device), _state(device, placements), profile)


def _driver_start(board: Board, state: State, profile: str) -> int | None:
    starts = [
        spot.start
        for spot in spots(board)
        if board.profiles[spot.profile].name == profile and fits(board, state, spot)
    ]
    return min(starts, key=lambda start: _driver_order(board, start), default=None)


def _driver_order(board: Board, start: int) -> tuple[bool, int]:
    return start < board.slots // 2, start


def creation_order(device: Device, placements: Sequence[Placement]) -> tuple[Placement, ...]:
    """Return the slices in the order in which to make them: large ones first.

    With explicit starts any order works. Where the driver would choose the starts itself
    (`driver_start`), the order is one in which it finds room for all, if there is one, and of
    those of equal size one in which it chooses these very starts, if there is one. `DeviceError`
    if the slices cannot stand together.

    >>> import slicewise
    >>> card = slicewise.device("a100-sxm4-80gb")
    >>> layout = [Placement("1g.10gb", 1), Placement("2g.20gb", 2), Placement("3g.40gb", 4)]
    >>> print(*creation_order(card, layout))
    3g.40gb@4 2g.20gb@2 1g.10gb@1
    """
    return _creation_order(board_of(device), checked(device, placements))


@lru_cache(maxsize=4096)
def _creation_order(board: Board, placed: tuple[Placement, ...]) -> tuple[Placement, ...]:
    names = profiles_by_name(board)

    def large_first(each: Placement) -> tuple[int, int, str, tuple[bool, int]]:
        profile = names[each.profile]
        driven = _driver_order(board, each.start)
        return -profile.size, -profile.compute_slices, each.profile, driven

    usual = tuple(sorted(placed, key=large_first))
    works = None
    for order in itertools.islice(_orders(usual, names, is_descending=True), _MOST_ORDERS):
        chosen = _driven(board, order)
        if chosen is not None and sorted(chosen) == sorted(placed):
            return chosen
        if chosen is not None and works is None:
            works = order
    if works is None:
        others = itertools.islice(_orders(usual, names, is_descending=False), _MOST_ORDERS)
        works = next((order for order in others if _driven(board, order) is not None), usual)
    return works


def _orders(
    left: tuple[Placement, ...], names: Mapping[str, SliceProfile], *, is_descending: bool
) -> Iterator[tuple[Placement, ...]]:
    """Yield the orders that differ in their profiles; of falling sizes only if `is_descending`."""
    if not left:
        yield ()
    largest = max((names[each.profile].size for each in left), default=0)
    tried = set()
    for i, each in enumerate(left):
        is_next = not is_descending or names[each.profile].size == largest
        if is_next and each.profile not in tried:
            tried.add(each.profile)
            rest = left[:i] + left[i + 1 :]
            for order in _orders(rest, names, is_descending=is_descending):
                yield (each, *order)


def _driven(board: Board, order: Sequence[Placement]) -> tuple[Placement, ...] | None:
    """Return where the driver puts slices made in this order; None if one finds no room."""
    state = empty(board)
    made = []
    for each in order:
        start = _driver_start(board, state, each.profile)
        if start is None:
            return None
        made.append(Placement(each.profile, start))
        state = with_spot(board, state, spots_by_place(board)[each.profile, start])
    return tuple(made)
