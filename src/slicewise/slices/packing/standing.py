"""Answers that change little of what stands: most of it is held fast, and the rest packed again.

Only answers whose value is no higher than the one found are taken; a solver may then save moves.
"""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from slicewise.core.errors import MissingDependency
from slicewise.core.notes import Note
from slicewise.core.packing import (
    Offer,
    PackObjective,
    PackProblem,
    PlacedGpu,
    PlacedSlice,
)
from slicewise.slices.packing.firstfit import Choice
from slicewise.slices.packing.material import Material, full_options, prepare
from slicewise.slices.packing.realise import (
    Demand,
    Site,
    assign,
    cards_of,
    demand_of,
    lay_out,
    moves_between,
    opened,
)
from slicewise.slices.packing.search import Search

_TRY_S = 5.0  # for the rest, at each number of cards let go
_STEADY = 5.0  # limit of a program in the solver's measure of work

Cards = tuple[PlacedGpu, ...]


def realised(material: Material, choice: Choice) -> Cards:
    """Return cards and places for a choice; old slices stay where that comes about."""
    return _made(material, choice, lay_out(material, choice), demand_of(material, choice))


def _made(
    material: Material, choice: Choice, sites: Mapping[tuple[str, int], Site], demand: Demand
) -> Cards:
    problem = material.problem
    holders = assign(problem, sites, demand)
    return cards_of(problem, sites, holders, _offers(material, choice, demand))


def _offers(
    material: Material, choice: Choice, demand: Demand
) -> dict[tuple[str, str, str | None], Sequence[Offer]]:
    """Return what runs in each workload's slices of a resource, one offer for each slice."""
    found: dict[tuple[str, str, str | None], list[Offer]] = {}
    for name, options, pick in zip(material.names, material.options, choice.picks, strict=True):
        for i, count in pick or ():
            one = options[i].offer
            if one is not None:
                found.setdefault((name, one.device, one.profile), []).extend([one] * count)
    best = {
        (name, option.offer.device, option.offer.profile): option.offer
        for name, options in full_options(material).items()
        for option in options
        if option.offer is not None
    }
    for (device, profile), names in demand.items():
        for name, count in names.items():
            there = found.setdefault((name, device, profile), [])
            there.extend([best[name, device, profile]] * (count - len(there)))
    return {key: tuple(each) for key, each in found.items()}


def fewer_moves(search: Search, gpus: Cards, *, limit_s: float) -> tuple[Cards, tuple[Note, ...]]:
    """Return the cards with the fewest moves that were found, at no higher value.

    Ctrl-C ends it with the best so far (Note).
    """
    material = search.material
    problem = material.problem
    best = gpus
    deadline = time.monotonic() + limit_s
    try:
        assert search.best is not None
        is_whole = search.best.left_over == 0 and all(
            option.resource >= 0 for options in material.options for option in options
        )
        if is_whole and problem.objective is PackObjective.GPUS:
            held = _held(search, deadline=deadline)
            best = _fewer(problem, best, held)
        moves, new_cards = _changes(problem, best)
        if moves > _least_moves(problem) or new_cards:
            best = _fewer(problem, best, _by_solver(search, best, deadline=deadline))
    except KeyboardInterrupt:
        text = "interrupted: further answers with fewer moves were not sought"
        return best, (Note("search-interrupted", text),)
    return best, ()


def _least_moves(problem: PackProblem) -> int:
    """Return the number of workloads that what stands cannot carry: each needs one slice more.

    Those that some slice that stands free could serve are left out: it may do.
    """
    free = {
        (gpu.device, each.profile)
        for gpu in problem.current
        for each in gpu.slices
        if each.workload is None and not each.in_use
    }
    carried: dict[str, float] = defaultdict(float)
    best = _best_offers(problem)
    for gpu in problem.current:
        for each in gpu.slices:
            offer = best.get((each.workload or "", gpu.device, each.profile))
            if each.in_use and each.offer is not None:
                offer = each.offer
            if offer is not None and each.workload is not None:
                carried[each.workload] += offer.capacity_per_s
    return sum(
        carried[each.name] < each.rate_per_s * (1 - 1e-9)
        for each in problem.workloads
        if each.offers and not any((o.device, o.profile) in free for o in each.offers)
    )


def _best_offers(problem: PackProblem) -> dict[tuple[str, str, str | None], Offer]:
    """Return what carries most, for each workload and resource."""
    best: dict[tuple[str, str, str | None], Offer] = {}
    for workload in problem.workloads:
        for each in workload.offers:
            key = (workload.name, each.device, each.profile)
            if key not in best or each.capacity_per_s > best[key].capacity_per_s:
                best[key] = each
    return best


def _fewer(problem: PackProblem, one: Cards, other: Cards | None) -> Cards:
    if other is None:
        return one
    return min((one, other), key=lambda cards: _changes(problem, cards))


def _changes(problem: PackProblem, cards: Cards) -> tuple[int, int]:
    """Return the moves, and then the cards on which nothing stood."""
    return moves_between(problem.current, cards), opened(problem.current, cards)


def _held(search: Search, *, deadline: float) -> Cards | None:
    """Return an answer in which all cards but the emptiest stay: 0 let go, then 1, 2, 4, ..."""
    problem = search.material.problem
    assert search.best is not None
    value = search.material.value(search.best.cost)
    order = sorted(problem.current, key=lambda gpu: (_filled(problem, gpu), gpu.device, gpu.index))
    count = 0
    while time.monotonic() < deadline:
        loose = {(gpu.device, gpu.index) for gpu in order[:count]}
        held = replace(problem, current=_with_held(problem, loose))
        part = Search(
            prepare(held),
            min(deadline, time.monotonic() + _TRY_S),
            search.seed,
            search.workers,
            enough=value,
        )
        part.run()
        if part.has_enough(value * (1 + 1e-9)) and part.best is not None:
            return _let_go(problem, realised(part.material, part.best))
        if count >= len(order) or part.is_interrupted:
            return None
        count = max(1, 2 * count)
    return None


def _filled(problem: PackProblem, gpu: PlacedGpu) -> int:
    """Return how much of a card is held by workloads that still are."""
    device = problem.device(gpu.device)
    names = {each.name for each in problem.workloads}
    total = 0
    for each in gpu.slices:
        if each.in_use or each.workload in names:
            whole = max(1, device.memory_slots)
            total += whole if each.profile is None else device.profile_named(each.profile).size
    return total


def _with_held(problem: PackProblem, loose: set[tuple[str, int]]) -> Cards:
    """Return what stands, with every slice that can go on serving held fast, except on some cards.

    What cannot is left out: it is as if it did not stand.
    """
    best = _best_offers(problem)
    found = []
    for gpu in problem.current:
        slices: list[PlacedSlice] = []
        for placed in gpu.slices:
            offer = best.get((placed.workload or "", gpu.device, placed.profile))
            if placed.in_use:
                slices.append(placed)
            elif (gpu.device, gpu.index) in loose:
                slices.append(replace(placed, in_use=False))
            elif offer is not None:
                slices.append(replace(placed, offer=offer, in_use=True))
            else:
                slices.append(placed)
        found.append(replace(gpu, slices=tuple(slices)))
    return tuple(found)


def _let_go(problem: PackProblem, gpus: Cards) -> Cards:
    """Return the cards with only those slices told as in use that are."""
    used = {
        (gpu.device, gpu.index, each.profile, each.start)
        for gpu in problem.current
        for each in gpu.slices
        if each.in_use
    }
    return tuple(
        replace(
            gpu,
            slices=tuple(
                replace(each, in_use=(gpu.device, gpu.index, each.profile, each.start) in used)
                for each in gpu.slices
            ),
        )
        for gpu in gpus
    )


def _by_solver(search: Search, best: Cards, *, deadline: float) -> Cards | None:
    """Return what the solver finds, told of the best so far; None without ortools."""
    try:
        from slicewise.slices.solvers.engine import Engine
        from slicewise.slices.solvers.fewest_moves import fewest_moves

        assert search.best is not None
        found = fewest_moves(
            search.material,
            search.best,
            hint=best,
            most=_changes(search.material.problem, best),
            engine=Engine(deadline, search.seed),
            limit_s=max(0.0, deadline - time.monotonic()),
            steady_limit=_STEADY,
        )
    except MissingDependency:
        return None  # told by the search
    return None if found is None else _made(search.material, search.best, *found)
