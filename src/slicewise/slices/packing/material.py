"""A packing problem as whole numbers: resources, cards by kind, and the ways of each workload.

A *resource* is a profile of a kind of card, or the whole card. *Cards* of one kind hold one of
some *layouts*: how many of each resource. A workload takes slices until their shares of its rate
sum to one. Nothing is searched for here; everything later is exact in these numbers.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from slicewise.core.device import Device
from slicewise.core.errors import UsageError
from slicewise.core.notes import Note
from slicewise.core.packing import (
    GpuStock,
    Offer,
    PackObjective,
    PackProblem,
    PackWorkload,
    PlacedGpu,
    PlacedSlice,
)
from slicewise.slices.layouts import Placement, free_profiles, multisets

# A share of a workload's rate in whole numbers, rounded up: far below the slack of `verify`.
SHARE = 10**12
_WATT = 10**8  # whole numbers in a watt
_ENDLESS = 10**6  # cards that cost nothing and have no end
_PARTS = 10**6  # costs of cards are told in millionths at the finest
_FINEST = 10**12  # whole numbers in the dearest card: thousands of it are far within 64 bits
_MOST_COST = 10**6  # of a card; and of the dearest in the cheapest
# Where some is left unserved: parts of a workload, and what even one counts that asks for far
# more than there is (its share of the rate would be nothing).
_LEAVE_PARTS, _LEAST_LEFT = 10**7, Fraction(1, 1000)

Ints = npt.NDArray[np.int64]
Resource = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Option:
    """One kind of slice for one workload: its share of the rate, the cost of serving all with it.

    `resource` -1 is not serving it (only where that is allowed).
    """

    resource: int
    share: int
    cost: int
    offer: Offer | None


@dataclass(frozen=True, slots=True)
class Cards:
    """Cards of one kind that are alike: `fixed` slices stand on them, `homes` says on which cards.

    `cost` is due for a card that gets a workload, 0 if it has one already. `layouts` has a row for
    each way to fill what is free, with the number of each resource.
    """

    device: str
    fixed: tuple[Placement, ...]
    homes: tuple[int, ...]
    count: int | None
    cost: int
    layouts: Ints


@dataclass(frozen=True, slots=True)
class Material:
    """The problem in whole numbers; `names` are the workloads that still need slices.

    An objective value is (`sunk` + costs) / `scale`; costs are multiples of `unit`. `smaller` has
    for each resource those that fit wherever one of it stands.
    """

    problem: PackProblem
    resources: tuple[Resource, ...]
    cards: tuple[Cards, ...]
    names: tuple[str, ...]
    options: tuple[tuple[Option, ...], ...]
    smaller: tuple[frozenset[int], ...]
    scale: int
    unit: int
    sunk: int
    notes: tuple[Note, ...]

    def value(self, cost: float) -> float:
        """Return the objective value of a cost."""
        return float(Fraction(cost) + self.sunk) / self.scale

    def round_up(self, cost: Fraction) -> int:
        """Return the least cost that is at least this one."""
        return math.ceil(cost / self.unit) * self.unit

    def at_most(self, cards: Cards, upper: int) -> int:
        """Return how many of these cards an answer that costs `upper` or less has at most."""
        known = [] if cards.count is None else [cards.count]
        if cards.cost > 0:
            known.append(max(0, upper) // cards.cost)
        return min(known, default=_ENDLESS)


def prepare(problem: PackProblem, *, may_leave: bool = False) -> Material:
    """Return the problem in numbers; `UsageError` for a `current` that the stock cannot hold.

    `may_leave`: the cost is the share of each workload that is left unserved, summed, and only
    then that of the cards. What the free cards could not carry of a workload even if all were its
    own is left out of its rate beforehand, so that no pattern is larger than the stock.
    """
    scale, card_costs = _scaled(problem, may_leave=may_leave)
    energy = _WATT if problem.objective is PackObjective.ENERGY and not may_leave else 0
    notes: list[Note] = []
    allowed = _allowed(problem.stock)
    wanted = [
        _kept_offers(each, allowed, notes, by_energy=energy > 0) for each in problem.workloads
    ]
    used = {(o.device, o.profile) for offers in wanted for o in offers}
    resources = tuple(each for each in allowed if each in used)
    index = {resource: i for i, resource in enumerate(resources)}
    smaller = _smaller(problem, resources)
    cards, sunk = _cards(problem, resources, card_costs)
    names, options = [], []
    for workload, offers in zip(problem.workloads, wanted, strict=True):
        left = _asked(problem, workload, offers, resources, cards, may_leave=may_leave)
        if left <= 0 or not offers:
            continue
        ways = [_option(o, index[o.device, o.profile], left, energy) for o in offers]
        kept = _undominated(ways, smaller)
        if may_leave:
            part = max(_LEAST_LEFT, Fraction(left) / Fraction(workload.rate_per_s))
            kept.append(Option(-1, SHARE, math.floor(scale * part), None))
        names.append(workload.name)
        options.append(tuple(kept))
    sunk += _in_use_cost(problem, energy)
    unit = math.gcd(*(each.cost for each in cards)) if not (energy or may_leave) else 1
    return Material(
        problem, resources, cards, tuple(names), tuple(options), smaller, scale, max(unit, 1),
        sunk, tuple(notes),
    )  # fmt: skip


def _asked(
    problem: PackProblem,
    workload: PackWorkload,
    offers: Sequence[Offer],
    resources: Sequence[Resource],
    cards: Sequence[Cards],
    *,
    may_leave: bool,
) -> float:
    """Return the rate that slices in use do not carry; of it what the free cards could carry."""
    left = workload.rate_per_s - carried_in_use(problem, workload)
    if left <= 1e-9 * workload.rate_per_s:
        return 0.0
    if may_leave:
        left = min(left, carried_alone(offers, resources, cards))
    return left


def carried_alone(
    offers: Sequence[Offer], resources: Sequence[Resource], cards: Sequence[Cards]
) -> float:
    """Return the rate of one workload that the cards could carry if all were its own."""
    capacity = dict.fromkeys(resources, 0.0)
    for each in offers:
        resource = (each.device, each.profile)
        if resource in capacity:
            capacity[resource] = max(capacity[resource], each.capacity_per_s)
    row = np.array([capacity[each] for each in resources])
    total = 0.0
    for kind in cards:
        best = float((kind.layouts @ row).max())
        if best > 0:
            total += math.inf if kind.count is None else best * kind.count
    return total


def beyond(material: Material) -> bool:
    """True if some workload asks for more than all free cards carry if all were its own."""
    problem = material.problem
    return any(
        workload.rate_per_s - carried_in_use(problem, workload)
        > carried_alone(workload.offers, material.resources, material.cards) * (1 + 1e-9)
        for workload in problem.workloads
        if workload.name in material.names
    )


def least_cards(problem: PackProblem) -> float:
    """Return a number of cards that are needed at least, or that there are if they are fewer.

    A card that serves one workload alone with its best layout serves most of it.
    """
    resources = _allowed(problem.stock)
    endless = tuple(replace(each, count=1) for each in problem.stock)
    free = replace(problem, stock=endless, current=())
    cards, _ = _cards(free, resources, dict.fromkeys([s.device.name for s in problem.stock], 1))
    needed = 0.0
    for workload in problem.workloads:
        left = workload.rate_per_s - carried_in_use(problem, workload)
        best = max(
            (carried_alone(workload.offers, resources, (kind,)) for kind in cards), default=0.0
        )
        if best > 0 and left > 0:
            needed += left / best
    there = [each.count for each in problem.stock]
    return min(needed, sum(math.inf if count is None else count for count in there))


def carried_in_use(problem: PackProblem, workload: PackWorkload) -> float:
    """Return the rate that slices in use carry for a workload, requests/s."""
    return math.fsum(
        offer.capacity_per_s
        for gpu in problem.current
        for each in gpu.slices
        if each.in_use and each.workload == workload.name
        for offer in [offer_in_use(workload, gpu.device, each)]
        if offer is not None
    )


def offer_in_use(workload: PackWorkload, device: str, placed: PlacedSlice) -> Offer | None:
    """Return what a slice in use runs: its own offer, else the best that it could be."""
    if placed.offer is not None:
        return placed.offer
    same = [o for o in workload.offers if (o.device, o.profile) == (device, placed.profile)]
    return max(same, key=lambda each: each.capacity_per_s, default=None)


def _in_use_cost(problem: PackProblem, energy: int) -> int:
    """Return what slices in use take beyond the idle cards: they are filled first, frugal ones
    before others."""
    total = Fraction(0)
    for workload in problem.workloads if energy else ():
        there = [
            offer
            for gpu in problem.current
            for each in gpu.slices
            if each.in_use and each.workload == workload.name
            for offer in [offer_in_use(workload, gpu.device, each)]
            if offer is not None
        ]
        rest = Fraction(workload.rate_per_s)
        for each in sorted(there, key=lambda offer: offer.serving.energy_j):
            taken = min(rest, Fraction(each.capacity_per_s))
            total += taken * Fraction(each.serving.energy_j)
            rest -= taken
    return math.floor(total * energy)


def full_options(material: Material) -> dict[str, list[Option]]:
    """Return for each workload its best option on every resource, needlessly large ones too."""
    index = {resource: i for i, resource in enumerate(material.resources)}
    found = {}
    for workload in material.problem.workloads:
        if workload.name in material.names:
            may_leave = any(
                option.resource < 0
                for option in material.options[material.names.index(workload.name)]
            )
            offers = _kept_offers(workload, material.resources, [], by_energy=False)
            left = _asked(
                material.problem, workload, offers, material.resources, material.cards,
                may_leave=may_leave,
            )  # fmt: skip
            found[workload.name] = [
                _option(offer, index[offer.device, offer.profile], left, 0) for offer in offers
            ]
    return found


def _scaled(problem: PackProblem, *, may_leave: bool) -> tuple[int, dict[str, int]]:
    """Return whole numbers in one of the objective, and what a card of each kind costs in them."""
    if problem.objective is PackObjective.ENERGY and not may_leave:
        return _WATT, {
            each.device.name: math.floor(each.device.idle_power_w * _WATT)
            for each in problem.stock
        }
    for each in problem.stock:
        if not 1 / _PARTS <= each.cost <= _MOST_COST:
            raise UsageError(
                f"cost {each.cost:g} of {each.device.name} must be from {1 / _PARTS:g} to"
                f" {_MOST_COST:,}; give 1 where all cost the same"
            )
    dear = max(problem.stock, key=lambda each: each.cost)
    cheap = min(problem.stock, key=lambda each: each.cost)
    if dear.cost > _MOST_COST * cheap.cost:
        raise UsageError(
            f"cost {dear.cost:g} of {dear.device.name} is more than {_MOST_COST:,} times cost"
            f" {cheap.cost:g} of {cheap.device.name}; leave the dearer card out"
        )
    costs = {
        each.device.name: Fraction(each.cost).limit_denominator(_PARTS) for each in problem.stock
    }
    # rounded down where no number of parts tells all of them exactly: a bound stays one
    exact = math.lcm(*(each.denominator for each in costs.values()))
    scale = min(exact, math.floor(_FINEST / max(1.0, dear.cost)))
    whole = {name: max(1, math.floor(cost * scale)) for name, cost in costs.items()}
    if not may_leave:
        return scale, whole
    most = sum(whole[each.device.name] * (each.count or 0) for each in problem.stock)
    if most > _PARTS:  # here they only decide among answers that serve as much
        whole = {name: max(1, cost * _PARTS // most) for name, cost in whole.items()}
        most = sum(whole[each.device.name] * (each.count or 0) for each in problem.stock)
    return _LEAVE_PARTS * (most + 1), whole


def _allowed(stock: Sequence[GpuStock]) -> tuple[Resource, ...]:
    """Return every resource of the stock, small before large."""
    found: list[Resource] = []
    for each in stock:
        device = each.device
        if device.profiles:
            there = {name for multiset in multisets(device) for name, _ in multiset}
            found += [(device.name, p.name) for p in device.profiles if p.name in there]
        found.append((device.name, None))
    return tuple(found)


def _kept_offers(
    workload: PackWorkload, allowed: Sequence[Resource], notes: list[Note], *, by_energy: bool
) -> list[Offer]:
    """Return the best offer of each resource, by energy too where that counts."""
    kept: dict[Resource, list[Offer]] = {}
    left_out = []
    for each in workload.offers:
        if (each.device, each.profile) not in allowed:
            left_out.append(f"{each.device}/{each.profile}" if each.profile else each.device)
        elif each.capacity_per_s > 0:
            kept.setdefault((each.device, each.profile), []).append(each)
    if left_out:
        names = ", ".join(dict.fromkeys(left_out))
        text = f"ways to serve {workload.name!r} on {names} were left out: not in the stock"
        notes.append(Note("offer-left-out", text))
    found: list[Offer] = []
    for offers in kept.values():
        offers.sort(
            key=lambda o: (-o.capacity_per_s, o.serving.energy_j, o.serving.service_ms.value)
        )
        least = math.inf
        for each in offers if by_energy else offers[:1]:
            if each.serving.energy_j < least:
                least = each.serving.energy_j
                found.append(each)
    return found


def _option(offer: Offer, resource: int, rate_per_s: float, energy: int) -> Option:
    share = Fraction(offer.capacity_per_s) / Fraction(rate_per_s) * SHARE
    cost = math.floor(Fraction(offer.serving.energy_j) * Fraction(rate_per_s) * energy)
    return Option(resource, min(SHARE, math.ceil(share)), cost, offer)


def _undominated(ways: Sequence[Option], smaller: Sequence[frozenset[int]]) -> list[Option]:
    """Return the options without those for which a smaller slice does as well."""
    return [
        one
        for one in ways
        if not any(
            other.resource in smaller[one.resource]
            and other.share >= one.share
            and other.cost <= one.cost
            for other in ways
        )
    ]


def _smaller(problem: PackProblem, resources: Sequence[Resource]) -> tuple[frozenset[int], ...]:
    """Return which resources fit wherever a larger one stands, whatever else is on the card."""
    found = []
    for name, profile_name in resources:
        device = problem.device(name)
        inside = set()
        for i, (other_name, other) in enumerate(resources):
            if other_name != name or other is None:
                continue
            if profile_name is None:
                inside.add(i)
            elif other != profile_name:
                large, small = device.profile_named(profile_name), device.profile_named(other)
                if small.size <= large.size and set(large.starts) <= set(small.starts):
                    # of two of equal size and starts the one with fewer units is the smaller
                    is_twin = small.size == large.size and small.starts == large.starts
                    if not is_twin or small.compute_units < large.compute_units:
                        inside.add(i)
        found.append(frozenset(inside))
    return tuple(found)


def _cards(
    problem: PackProblem, resources: Sequence[Resource], costs: Mapping[str, int]
) -> tuple[tuple[Cards, ...], int]:
    """Return the cards by kind and what stands on them, and the cost of those in use anyhow."""
    stock = {each.device.name: each for each in problem.stock}
    held: dict[tuple[str, tuple[Placement, ...], bool], list[int]] = {}
    taken: Counter[str] = Counter()
    sunk = 0
    for gpu in checked_current(problem):
        fixed = [each for each in gpu.slices if each.in_use]
        if not fixed:
            continue
        is_paid = any(each.workload is not None for each in fixed)
        sunk += costs[gpu.device] if is_paid else 0
        taken[gpu.device] += 1
        if any(each.profile is None for each in fixed):
            continue  # nothing fits beside a whole card
        places = tuple(sorted(Placement(each.profile or "", each.start) for each in fixed))
        held.setdefault((gpu.device, places, is_paid), []).append(gpu.index)
    found = []
    for (name, places, is_paid), homes in sorted(held.items()):
        rows = _layout_rows(stock[name].device, places, resources)
        if len(rows):
            cost = 0 if is_paid else costs[name]
            found.append(Cards(name, places, tuple(homes), len(homes), cost, rows))
    for name, each in stock.items():
        count = None if each.count is None else each.count - taken[name]
        rows = _layout_rows(each.device, (), resources)
        if len(rows) and count != 0:
            found.append(Cards(name, (), (), count, costs[name], rows))
    return tuple(found), sunk


def checked_current(problem: PackProblem) -> tuple[PlacedGpu, ...]:
    """Return what stands on the cards now; `UsageError` for cards that the stock does not have."""
    stock = {each.device.name: each.count for each in problem.stock}
    seen = set()
    for gpu in problem.current:
        if gpu.device not in stock:
            raise UsageError(
                f"the current layout has a {gpu.device}, which is not in the stock"
                f" ({', '.join(stock)}); add it with --device"
            )
        count = stock[gpu.device]
        if gpu.index < 0 or (count is not None and gpu.index >= count):
            raise UsageError(
                f"the current layout has {gpu.device} number {gpu.index}, the stock has {count}"
                " (numbers from 0); give a larger --count"
            )
        if (gpu.device, gpu.index) in seen:
            raise UsageError(
                f"the current layout has {gpu.device} number {gpu.index} twice; give each once"
            )
        seen.add((gpu.device, gpu.index))
    return problem.current


def _layout_rows(
    device: Device, fixed: tuple[Placement, ...], resources: Sequence[Resource]
) -> Ints:
    """Return the fillings beside `fixed` as rows of counts, without those that others contain."""
    index = {profile: i for i, (name, profile) in enumerate(resources) if name == device.name}
    rows: set[tuple[int, ...]] = set()
    for filling in _fillings(device, fixed):
        row = [0] * len(resources)
        for profile, count in filling.items():
            if profile in index:
                row[index[profile]] = count
        rows.add(tuple(row))
    rows.discard((0,) * len(resources))
    table = np.array(sorted(rows, reverse=True), dtype=np.int64).reshape(len(rows), len(resources))
    if not len(table):
        return table
    inside = np.asarray((table[:, None, :] <= table[None, :, :]).all(axis=2))
    inside &= ~np.eye(len(table), dtype=bool)
    return np.asarray(table[~inside.any(axis=1)])


def _fillings(device: Device, fixed: tuple[Placement, ...]) -> Iterator[Counter[str | None]]:
    if not fixed:
        yield Counter({None: 1})
        if device.profiles:
            for multiset in multisets(device):
                yield Counter(dict(multiset))
        return
    seen: set[frozenset[Placement]] = set()
    open_ones: list[frozenset[Placement]] = [frozenset()]
    while open_ones:
        added = open_ones.pop()
        more = free_profiles(device, [*fixed, *added])
        if not more:
            yield Counter(each.profile for each in added)
        for each in more:
            after = added | {each}
            if after not in seen:
                seen.add(after)
                open_ones.append(after)
