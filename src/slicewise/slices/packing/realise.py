"""From numbers to places: which card, which slots, which workload in which slice, at which rate.

Where cards stand already, slices that may stay do: the layouts chosen are put on the cards that
resemble them most. The choice itself is not changed here.
"""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slicewise.core.packing import (
    Offer,
    PackObjective,
    PackProblem,
    PlacedGpu,
    PlacedSlice,
)
from slicewise.slices.layouts import Placement, place
from slicewise.slices.packing.firstfit import Choice
from slicewise.slices.packing.material import Material, offer_in_use

Spot = tuple[str, int, str | None, int]  # device, number of the card, profile, start
Demand = dict[tuple[str, str | None], Counter[str]]


@dataclass
class Site:
    """A card being filled: `fixed` slices stay as they are, `old` may, `slices` are to be used."""

    device: str
    index: int
    fixed: tuple[PlacedSlice, ...] = ()
    old: tuple[PlacedSlice, ...] = ()
    slices: list[tuple[str | None, int]] = field(default_factory=list)

    def fixed_places(self) -> list[Placement]:
        """Return the slices that stay as places."""
        return [Placement(each.profile or "", each.start) for each in self.fixed]


def sites_of(problem: PackProblem) -> dict[tuple[str, int], Site]:
    """Return the cards on which something stands."""
    return {
        (gpu.device, gpu.index): Site(
            gpu.device,
            gpu.index,
            tuple(each for each in gpu.slices if each.in_use),
            tuple(each for each in gpu.slices if not each.in_use),
        )
        for gpu in problem.current
    }


def demand_of(material: Material, choice: Choice) -> Demand:
    """Return how many slices of each resource each workload takes."""
    found: Demand = {}
    for name, options, pick in zip(material.names, material.options, choice.picks, strict=True):
        for i, count in pick or ():
            if options[i].resource >= 0:
                resource = material.resources[options[i].resource]
                found.setdefault(resource, Counter())[name] += count
    return found


def lay_out(material: Material, choice: Choice) -> dict[tuple[str, int], Site]:
    """Return the cards with the slices to be used at their places."""
    sites = sites_of(material.problem)
    needed = Counter(
        {resource: sum(names.values()) for resource, names in demand_of(material, choice).items()}
    )
    settle_all(material, choice.cards, needed, sites, with_old=True)
    return sites


def settle_all(
    material: Material,
    chosen: Sequence[tuple[int, int]],
    needed: Counter[tuple[str, str | None]],
    sites: dict[tuple[str, int], Site],
    *,
    with_old: bool = False,
) -> None:
    """Put what is needed on cards with the layouts chosen (kind, row): new sites are added.

    `with_old`: on cards that stand already as well.
    """
    problem = material.problem
    contents = _contents(material, chosen, needed)
    for kind, cards in enumerate(material.cards):
        if cards.fixed:
            homes = [sites[cards.device, home] for home in cards.homes]
            for site, content in zip(homes, contents[kind], strict=False):
                _settle(problem, site, content)
    for stock in problem.stock:
        name = stock.device.name
        todo = [
            content
            for kind, cards in enumerate(material.cards)
            if cards.device == name and not cards.fixed
            for content in contents[kind]
        ]
        _match(problem, name, todo, sites, with_old=with_old)


def _contents(
    material: Material,
    chosen: Sequence[tuple[int, int]],
    needed: Counter[tuple[str, str | None]],
) -> list[list[Counter[str | None]]]:
    """Return what is used on each card; what is not needed is left off the emptiest cards."""
    left = Counter(needed)
    contents: list[list[Counter[str | None]]] = [[] for _ in material.cards]
    # full layouts first, so that what is spare gathers on few cards
    for kind, row in sorted(chosen, key=lambda card: not material.cards[card[0]].fixed):
        content: Counter[str | None] = Counter()
        for resource, count in enumerate(material.cards[kind].layouts[row].tolist()):
            taken = min(count, left[material.resources[resource]])
            if taken:
                content[material.resources[resource][1]] = taken
                left[material.resources[resource]] -= taken
        if content:
            contents[kind].append(content)
    return contents


def _settle(problem: PackProblem, site: Site, content: Counter[str | None]) -> None:
    """Find places for a content beside what is fixed, where old slices stand if possible."""
    if None in content:
        site.slices = [(None, 0)]
        return
    device = problem.device(site.device)
    wanted = {str(profile): count for profile, count in content.items()}
    fixed = site.fixed_places()
    # of the old slices those that the content has too, as many as leave room for the rest
    kept: list[Placement] = []
    rest = Counter(wanted)
    for each in sorted(site.old, key=lambda old: (old.workload is None, old.start)):
        if each.profile is None or rest[each.profile] <= 0:
            continue
        trial = Placement(each.profile, each.start)
        less = rest - Counter({each.profile: 1})
        if place(device, less, fixed=[*fixed, *kept, trial]) is not None:
            kept.append(trial)
            rest = less
    more = place(device, rest, fixed=[*fixed, *kept])
    assert more is not None, "every layout was made beside what is fixed"
    site.slices = [(each.profile, each.start) for each in (*kept, *more)]


def _match(
    problem: PackProblem,
    name: str,
    todo: Sequence[Counter[str | None]],
    sites: dict[tuple[str, int], Site],
    *,
    with_old: bool,
) -> None:
    """Put contents on cards of a kind: on those that stand already where they keep most."""
    free = [
        site
        for (device, _), site in sorted(sites.items())
        if with_old and device == name and not site.fixed
    ]
    open_ones = list(todo)
    # contents that are equal stand in one line: there may be thousands
    lines: dict[frozenset[tuple[str | None, int]], deque[int]] = {}
    for i, content in enumerate(open_ones):
        lines.setdefault(frozenset(content.items()), deque()).append(i)
    pairs = sorted(
        (-_alike(site, open_ones[line[0]]), site.index, line[0], key)
        for site in free
        for key, line in lines.items()
    )
    done: set[int] = set()
    filled: set[int] = set()
    for _, index, _, key in pairs:
        if lines[key] and index not in filled:
            i = lines[key].popleft()
            _settle(problem, sites[name, index], open_ones[i])
            done.add(i)
            filled.add(index)
    numbers = _fresh_numbers({index for device, index in sites if device == name})
    places: dict[frozenset[tuple[str | None, int]], list[tuple[str | None, int]]] = {}
    for i, content in enumerate(open_ones):
        if i not in done:
            index = next(numbers)
            sites[name, index] = Site(name, index)
            key = frozenset(content.items())
            if key in places:
                sites[name, index].slices = list(places[key])
            else:
                _settle(problem, sites[name, index], content)
                places[key] = sites[name, index].slices


def _alike(site: Site, content: Counter[str | None]) -> int:
    """Return how many slices of a content stand on a card, free ones too."""
    there = Counter(each.profile for each in site.old)
    return sum((there & content).values())


def _fresh_numbers(taken: set[int]) -> Iterator[int]:
    index = 0
    while True:
        if index not in taken:
            yield index
        index += 1


def assign(
    problem: PackProblem, sites: Mapping[tuple[str, int], Site], demand: Demand
) -> dict[Spot, str]:
    """Return which workload gets which slice: those that have it already first.

    Then come slices that stand free, then those of other workloads, and new ones last.
    """
    left = {resource: Counter(names) for resource, names in demand.items()}
    found: dict[Spot, str] = {}
    old = {
        (site.device, site.index, each.profile, each.start): each.workload
        for site in sites.values()
        for each in site.old
    }
    spots = [
        (site.device, site.index, profile, start)
        for _, site in sorted(sites.items())
        for profile, start in sorted(site.slices, key=lambda each: each[1])
    ]
    for spot in spots:
        holder = old.get(spot)
        names = left.get((spot[0], spot[2]), Counter())
        if holder is not None and names[holder] > 0:
            found[spot] = holder
            names[holder] -= 1
    order = {each.name: i for i, each in enumerate(problem.workloads)}
    moved = [spot for spot in spots if spot not in found]
    for spot in sorted(moved, key=lambda each: (each not in old, old.get(each) is not None)):
        names = +left.get((spot[0], spot[2]), Counter())
        if names:
            name = min(names, key=lambda each: order[each])
            found[spot] = name
            left[spot[0], spot[2]][name] -= 1
    return found


def cards_of(
    problem: PackProblem,
    sites: Mapping[tuple[str, int], Site],
    holders: Mapping[Spot, str],
    offers: Mapping[tuple[str, str, str | None], Sequence[Offer]],
) -> tuple[PlacedGpu, ...]:
    """Return the cards with offers and rates, cards without any slice left out.

    `offers` lists for (workload, device, profile) what its slices there run, one for each. Old
    slices that are not used stay, free, where nothing new is in their way.
    """
    left = {key: deque(each) for key, each in offers.items()}
    made = []
    for _, site in sorted(sites.items()):
        slices = list(site.fixed)
        for profile, start in site.slices:
            name = holders.get((site.device, site.index, profile, start))
            if name is not None:
                one = left[name, site.device, profile].popleft()
                slices.append(PlacedSlice(profile, start, name, one))
        slices += _kept_free(problem, site, slices)
        if slices:
            ordered = sorted(slices, key=lambda each: each.start)
            made.append(PlacedGpu(site.device, site.index, tuple(ordered)))
    return _with_rates(problem, made)


def _kept_free(
    problem: PackProblem, site: Site, slices: Sequence[PlacedSlice]
) -> list[PlacedSlice]:
    taken: set[int] = set()
    for each in slices:
        taken |= _slots(problem, site.device, each)
    kept = []
    for each in site.old:
        slots = _slots(problem, site.device, each)
        if not slots & taken:
            kept.append(PlacedSlice(each.profile, each.start))
            taken |= slots
    return kept


def _slots(problem: PackProblem, name: str, each: PlacedSlice) -> set[int]:
    device = problem.device(name)
    if each.profile is None:
        return set(range(max(1, device.memory_slots)))
    return set(range(each.start, each.start + device.profile_named(each.profile).size))


def _with_rates(problem: PackProblem, gpus: Sequence[PlacedGpu]) -> tuple[PlacedGpu, ...]:
    """Return the cards with each workload's rate split over its slices.

    By capacity, so that all are equally loaded; for energy slices in use are filled first, then
    those that take least.
    """
    rates: dict[tuple[str, int, int], float] = {}
    filled: dict[tuple[str, int, int], Offer | None] = {}
    there: dict[str | None, list[tuple[PlacedGpu, PlacedSlice]]] = defaultdict(list)
    for gpu in gpus:
        for each in gpu.slices:
            there[each.workload].append((gpu, each))
    for workload in problem.workloads:
        spots = []
        for gpu, each in there[workload.name]:
            one = offer_in_use(workload, gpu.device, each) if each.in_use else each.offer
            key = (gpu.device, gpu.index, each.start)
            filled[key] = one
            if one is not None:
                spots.append((key, one, each.in_use))
        capacity = math.fsum(one.capacity_per_s for _, one, _ in spots)
        if capacity <= 0:
            continue
        if problem.objective is PackObjective.ENERGY:
            rest = workload.rate_per_s
            spots.sort(key=lambda each: (not each[2], each[1].serving.energy_j, each[0]))
            for key, one, _ in spots:
                rates[key] = min(rest, one.capacity_per_s)
                rest -= rates[key]
        else:
            part = min(1.0, workload.rate_per_s / capacity)
            for key, one, _ in spots:
                rates[key] = one.capacity_per_s * part
    return tuple(
        replace(
            gpu,
            slices=tuple(
                replace(
                    each,
                    offer=filled.get((gpu.device, gpu.index, each.start), each.offer),
                    rate_per_s=rates.get((gpu.device, gpu.index, each.start), 0.0),
                )
                for each in gpu.slices
            ),
        )
        for gpu in gpus
    )


def moves_between(current: Sequence[PlacedGpu], made: Sequence[PlacedGpu]) -> int:
    """Return how many slices are made, removed, or taken from a workload for another.

    To give a workload a slice that stands free costs nothing, nor does leaving one free.
    """
    before = _by_spot(current)
    after = _by_spot(made)
    if not before:
        return 0
    changed = sum(
        spot not in before or (name is not None and before[spot] not in (name, None))
        for spot, name in after.items()
    )
    return changed + sum(spot not in after for spot in before)


def opened(current: Sequence[PlacedGpu], made: Sequence[PlacedGpu]) -> int:
    """Return how many cards are used on which nothing stood."""
    there = {(gpu.device, gpu.index) for gpu in current if gpu.slices}
    return sum(gpu.is_used and (gpu.device, gpu.index) not in there for gpu in made)


def _by_spot(gpus: Sequence[PlacedGpu]) -> dict[Spot, str | None]:
    return {
        (gpu.device, gpu.index, each.profile, each.start): each.workload
        for gpu in gpus
        for each in gpu.slices
    }
