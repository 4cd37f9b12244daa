"""Of all answers that cost no more, the one that changes least of what stands: CP-SAT over places.

Each card that stands already has its slots as they are; further cards count by their layouts. Only
for the number of cards: where energy decides, the slices of each workload stay those chosen.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slicewise.core.packing import PackObjective, PlacedGpu
from slicewise.slices.layouts import free_profiles
from slicewise.slices.packing.firstfit import Choice
from slicewise.slices.packing.material import SHARE, Material, full_options
from slicewise.slices.packing.realise import Demand, Site, demand_of, settle_all, sites_of
from slicewise.slices.solvers.engine import Engine, load_cp_model

_MOST_VARIABLES = 60_000
_MOST_FRESH = 10_000  # cards of a kind that has no end


@dataclass
class _Places:
    """The variables of one card: what is used where, and which old slices stay."""

    used: dict[tuple[str | None, int], Any] = field(default_factory=dict)
    stays: dict[tuple[str | None, int], Any] = field(default_factory=dict)
    kept: dict[tuple[str | None, int], Any] = field(default_factory=dict)


def fewest_moves(
    material: Material,
    choice: Choice,
    *,
    hint: Sequence[PlacedGpu],
    most: tuple[int, int],
    engine: Engine,
    limit_s: float,
    steady_limit: float | None = None,
) -> tuple[dict[tuple[str, int], Site], Demand] | None:
    """Return cards with their slices, and what each workload takes; None if none was found.

    Costs no more than the choice does and has fewer moves than `most` (moves, cards on which
    nothing stands yet), or as many and fewer such cards. `hint` is a known answer to begin with.
    `MissingDependency` without ortools.
    """
    problem = material.problem
    demand = demand_of(material, choice)
    program = load_cp_model().CpModel()
    known = {
        (gpu.device, gpu.index, each.profile, each.start): each.workload
        for gpu in hint
        for each in gpu.slices
        if not each.in_use
    }
    counts = Counter(
        (name, device, profile)
        for (device, _, profile, _), name in known.items()
        if name is not None
    )
    numbers = _numbers(material, choice, demand, program, counts)
    sites = sites_of(problem)
    sizes = len(numbers) + 20 * len(sites)
    if sizes > _MOST_VARIABLES:
        return None
    held: dict[tuple[str, str | None], list[Any]] = {each: [] for each in material.resources}
    costs: list[Any] = []
    moves: list[Any] = []
    keeps: dict[tuple[str | None, str, str | None], list[Any]] = {}
    places = {
        key: _place(material, site, program, held, costs, moves, keeps, numbers, known)
        for key, site in sites.items()
    }
    layouts = _fresh(material, sites, program, held, costs)
    for resource in material.resources:
        taken = [number for (_, *there), number in numbers.items() if tuple(there) == resource]
        program.add(sum(taken) <= sum(held[resource]))
        # what is kept or was free counts as far as workloads take it
        stood = [kept for (_, *there), each in keeps.items() if tuple(there) == resource
                 for kept in each]  # fmt: skip
        program.add(sum(stood) <= sum(taken))
    for (workload, device, profile), kept in keeps.items():
        if workload is not None:
            program.add(sum(kept) <= numbers[workload, device, profile])
    own = choice.cost - sum(material.cards[k].cost for k, _ in choice.cards)
    program.add(sum(costs) <= choice.cost - own)
    all_kept = [each for kept in keeps.values() for each in kept]
    moved = sum(moves) + sum(numbers.values()) - sum(all_kept)
    # fewer moves first, then fewer cards on which nothing stands
    weight = 1 + sum(each.count or _MOST_FRESH for each in material.cards)
    total = weight * moved + sum(layouts.values())
    program.add(total <= weight * most[0] + most[1] - 1)
    program.minimize(total)
    outcome = engine.solve(program, limit_s=limit_s, steady_limit=steady_limit)
    if not outcome.has_values:
        return None
    solver = outcome.solver
    found: Demand = {}
    for (name, device, profile), number in numbers.items():
        if solver.value(number):
            found.setdefault((device, profile), Counter())[name] = solver.value(number)
    for where, site in sites.items():
        site.slices = [spot for spot, used in places[where].used.items() if solver.value(used)]
    needed = Counter({resource: sum(names.values()) for resource, names in found.items()})
    for (device, _), site in sites.items():
        for profile, _ in site.slices:
            needed[device, profile] -= 1
    chosen = [card for card, number in layouts.items() for _ in range(solver.value(number))]
    settle_all(material, chosen, +needed, sites)
    return sites, found


def _numbers(
    material: Material,
    choice: Choice,
    demand: Demand,
    program: Any,
    hint: Mapping[tuple[str, str, str | None], int],
) -> dict[tuple[str, str, str | None], Any]:
    """Return how many slices of each resource each workload takes: variables, or as chosen."""
    found: dict[tuple[str, str, str | None], Any] = {}
    is_fixed = material.problem.objective is PackObjective.ENERGY or any(
        option.resource < 0 for options in material.options for option in options
    )
    if is_fixed or choice.left_over:
        for (device, profile), names in demand.items():
            for name, count in names.items():
                found[name, device, profile] = program.new_int_var(count, count, "")
        return found
    for name, options in full_options(material).items():
        terms = []
        for option in options:
            device, profile = material.resources[option.resource]
            number = program.new_int_var(0, -(-SHARE // option.share), "")
            program.add_hint(number, hint.get((name, device, profile), 0))
            found[name, device, profile] = number
            terms.append(option.share * number)
        program.add(sum(terms) >= SHARE)
    return found


def _place(
    material: Material,
    site: Site,
    program: Any,
    held: Mapping[tuple[str, str | None], list[Any]],
    costs: list[Any],
    moves: list[Any],
    keeps: dict[tuple[str | None, str, str | None], list[Any]],
    numbers: Mapping[tuple[str, str, str | None], Any],
    known: Mapping[tuple[str, int, str | None, int], str | None],
) -> _Places:
    """Add the variables of a card that stands."""
    device = material.problem.device(site.device)
    made = _Places()
    slots: dict[int, list[Any]] = {}
    every = range(max(1, device.memory_slots))

    def slots_of(profile: str | None, start: int) -> range:
        if profile is None:
            return every
        return range(start, start + device.profile_named(profile).size)

    old = {(each.profile, each.start): each.workload for each in site.old}
    for spot, workload in old.items():
        stays = program.new_bool_var("")
        program.add_hint(stays, int((site.device, site.index, *spot) in known))
        made.stays[spot] = stays
        moves.append(1 - stays)
        for slot in slots_of(*spot):
            slots.setdefault(slot, []).append(stays)
        holder = known.get((site.device, site.index, *spot))
        is_free = workload is None and (site.device, spot[0]) in held
        if is_free or (workload or "", site.device, spot[0]) in numbers:
            key = (workload, site.device, spot[0])
            kept = program.new_bool_var("")
            program.add_hint(kept, int(holder is not None if is_free else holder == workload))
            made.kept[spot] = kept
            keeps.setdefault(key, []).append(kept)
    spots: list[tuple[str | None, int]] = []
    if not any(each.profile is None for each in site.fixed):
        if device.profiles:
            free = free_profiles(device, site.fixed_places())
            spots = [(each.profile, each.start) for each in free]
        if not site.fixed:
            spots.append((None, 0))
    is_used = program.new_bool_var("")
    for spot in spots:
        if (site.device, spot[0]) not in held:
            continue
        used = program.new_bool_var("")
        is_hinted = known.get((site.device, site.index, *spot)) is not None
        program.add_hint(used, int(is_hinted))
        made.used[spot] = used
        held[site.device, spot[0]].append(used)
        program.add_implication(used, is_used)
        if spot in made.stays:
            program.add_implication(used, made.stays[spot])
        else:
            for slot in slots_of(*spot):
                slots.setdefault(slot, []).append(used)
    for spot, kept in made.kept.items():
        if spot in made.used:
            program.add_implication(kept, made.used[spot])
        else:
            program.add(kept == 0)
    for there in slots.values():
        program.add_at_most_one(there)
    cost = _card_cost(material, site)
    if cost:
        costs.append(cost * is_used)
    return made


def _card_cost(material: Material, site: Site) -> int:
    """Return what it costs to use a card: nothing where a slice in use has a workload."""
    if any(each.workload is not None for each in site.fixed):
        return 0
    return max((each.cost for each in material.cards if each.device == site.device), default=0)


def _fresh(
    material: Material,
    sites: Mapping[tuple[str, int], Site],
    program: Any,
    held: Mapping[tuple[str, str | None], list[Any]],
    costs: list[Any],
) -> dict[tuple[int, int], Any]:
    """Add the layouts of cards on which nothing stands yet."""
    found = {}
    for kind, cards in enumerate(material.cards):
        if cards.fixed:
            continue
        standing = sum(
            device == cards.device and not site.fixed for (device, _), site in sites.items()
        )
        most = _MOST_FRESH if cards.count is None else max(0, cards.count - standing)
        numbers = []
        for row, layout in enumerate(cards.layouts.tolist()):
            number = program.new_int_var(0, most, "")
            found[kind, row] = number
            numbers.append(number)
            for resource, count in enumerate(layout):
                if count:
                    held[material.resources[resource]].append(count * number)
        program.add(sum(numbers) <= most)
        if cards.cost:
            costs.append(cards.cost * sum(numbers))
    return found
