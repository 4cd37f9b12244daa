"""The cards that there are: kinds, how many of each, what one costs, and the parts they offer."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from slicewise.core.device import Device
from slicewise.core.errors import UsageError
from slicewise.core.notes import Note
from slicewise.core.packing import GpuStock
from slicewise.flows.predict import DeviceLike, target_named

_MOST_CARDS = 1_000_000
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Part:
    """Where a workload can run: a slice of a kind of card, or, with `profile` None, the card.

    `device` is that slice as a device of its own, or the card.
    """

    card: Device
    profile: str | None
    device: Device


def stock_of(
    devices: Sequence[DeviceLike | None],
    *,
    counts: Sequence[int | None] = (),
    costs: Sequence[float] = (),
) -> tuple[GpuStock, ...]:
    """Return the stock of each kind of card. One count, or cost, is that of every kind; none named
    means as many as needed, at a cost of 1 each.

    `UsageError` for parts of cards, kinds named twice, and lists that do not match.
    """
    if isinstance(devices, str) or not isinstance(devices, Sequence) or not devices:
        raise UsageError(f"devices {devices!r}: pack needs a list with at least one kind of card")
    cards = [target_named(device) for device in devices]
    for card in cards:
        if card.parent is not None:
            raise UsageError(
                f"{card.name} is a part of a card; pack cuts cards itself, so give"
                f" {card.whole.name}"
            )
    names = [card.name for card in cards]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"device {name} is named {names.count(name)} times; give one --count")
    each_count = _for_each("count", counts, names, usual=None)
    each_cost = _for_each("cost", costs, names, usual=1.0)
    for count in each_count:
        whole = isinstance(count, int) and not isinstance(count, bool)
        if count is not None and (not whole or not 0 <= count <= _MOST_CARDS):
            raise UsageError(
                f"count {count!r} is no whole number of cards from 0 to {_MOST_CARDS:,}; write"
                " --count 8"
            )
    for cost in each_cost:
        if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 < cost < math.inf:
            raise UsageError(f"cost {cost!r} is no positive number; write --cost 1,2")
    if not any(count is None or count > 0 for count in each_count):
        raise UsageError("no card is left: every --count is 0; give at least one card")
    return tuple(
        GpuStock(card, count, float(cost))
        for card, count, cost in zip(cards, each_count, each_cost, strict=True)
    )


def _for_each(what: str, given: Sequence[_T], names: Sequence[str], *, usual: _T) -> list[_T]:
    listed: object = given
    if isinstance(listed, str) or not isinstance(listed, Sequence):
        raise UsageError(
            f"{what}s {given!r} is no list with one value for each kind of card; give"
            f" [{given!r}], one for all"
        )
    values = list(given) or [usual]
    if len(values) == 1:
        return values * len(names)
    if len(values) != len(names):
        raise UsageError(
            f"{len(values)} values of {what} for {len(names)} kinds of card ({', '.join(names)});"
            f" give one for all, or one for each, in their order"
        )
    return values


def parts_of(card: Device, *, also: Collection[str] = ()) -> tuple[Part, ...]:
    """Return what a card can be cut into, the smallest first, and the whole card, un-sliced, last.

    Only profiles without attributes (`+me`) are cut anew; those in `also` count too, as they stand
    in a current layout.
    """
    names = [
        profile.name
        for profile in sorted(card.profiles, key=lambda each: (each.size, each.compute_units))
        if not profile.attributes or profile.name in also
    ]
    return (*(Part(card, name, card.slice(name)) for name in names), Part(card, None, card))


def fleet_notes(stock: Sequence[GpuStock]) -> tuple[Note, ...]:
    """Tell which cards cannot be sliced."""
    return tuple(
        Note(
            "card-not-sliced",
            f"{each.device.name} has no MIG profiles; a workload gets whole cards of it",
        )
        for each in stock
        if not each.device.profiles
    )
