"""Choosing a pattern for each workload and layouts for the cards: one integer program of CP-SAT.

Exact over the patterns given; for a workload with too many patterns, over all of its ways at once
(numbers of slices). Some workloads may be fixed: then it is a large neighbourhood to search in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slicewise.slices.packing.firstfit import Choice, judged
from slicewise.slices.packing.material import SHARE, Material
from slicewise.slices.packing.patterns import Patterns, Pick
from slicewise.slices.solvers.engine import Engine, load_cp_model


@dataclass(frozen=True, slots=True)
class Chosen:
    """What came of a program: a better choice, a bound on the cost, and whether it ended itself.

    `bound` is None if nothing is proven; `is_closed`: nothing better than the choice, or without
    one nothing at all, exists among what was allowed.
    """

    choice: Choice | None
    bound: int | None
    is_closed: bool


@dataclass
class _Model:
    """The program and its variables."""

    material: Material
    program: Any = field(init=False)
    layouts: list[list[Any]] = field(default_factory=list)
    ways: dict[int, list[tuple[Pick, Any]]] = field(default_factory=dict)
    numbers: dict[int, list[Any]] = field(default_factory=dict)
    left: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.program = load_cp_model().CpModel()


def choose(
    material: Material,
    patterns: Patterns,
    *,
    allowed: Mapping[int, Sequence[Pick] | None],
    incumbent: Choice,
    floor: int,
    most: int | None = None,
    engine: Engine,
    limit_s: float,
    workers: int = 1,
    steady_limit: float | None = None,
) -> Chosen:
    """Return the best choice that is better than the incumbent.

    `allowed` has the patterns of each free workload (None: any number of each slice); the others
    keep theirs. `floor` is a known bound on the cost, `most` what a choice may cost (None: less
    than the incumbent). Workloads may be left over only as far as the incumbent leaves some.
    `MissingDependency` without ortools.
    """
    made = _Model(material)
    unit = material.unit
    demand: list[list[Any]] = [[] for _ in material.resources]
    fixed = np.zeros(len(material.resources), dtype=np.int64)
    costs: list[Any] = []
    fixed_cost = 0
    for w, options in enumerate(material.options):
        if w not in allowed:
            pick = incumbent.picks[w]
            if pick is not None:
                fixed += patterns.usage_of(w, pick)
                fixed_cost += _own(options, pick)
            continue
        may_leave = incumbent.left_over > 0
        listed = allowed[w]
        if listed is None:
            _by_numbers(made, w, demand, incumbent.picks[w])
        else:
            _by_patterns(made, patterns, w, listed, demand, costs, incumbent.picks[w], may_leave)
    supply = _supply(made, incumbent, costs, free_cards=_at_most(material, incumbent))
    for resource in range(len(material.resources)):
        if demand[resource] or fixed[resource]:
            made.program.add(sum(demand[resource]) + int(fixed[resource]) <= supply[resource])
    total = sum(costs)
    for_left = sum(made.left.values()) if made.left else 0
    if incumbent.left_over:
        # fewer left over first: one more card never outweighs that
        weight = _most_cost(material, incumbent) // unit + 1
        made.program.minimize(weight * for_left + total)
    else:
        least_gain = incumbent.cost - unit
        top = least_gain if most is None else min(most, least_gain)
        made.program.add(total <= (top - fixed_cost) // unit)
        if floor > fixed_cost:
            made.program.add(total >= (floor - fixed_cost) // unit)
        made.program.minimize(total)
    outcome = engine.solve(
        made.program, limit_s=limit_s, workers=workers, steady_limit=steady_limit
    )
    if outcome.status == "INFEASIBLE":
        return Chosen(None, None, True)
    bound = None
    if outcome.bound is not None and not incumbent.left_over:
        bound = outcome.bound * unit + fixed_cost
    if not outcome.has_values:
        return Chosen(None, bound, False)
    choice = _read(made, outcome.solver, incumbent, allowed)
    is_better = choice.rank < incumbent.rank
    return Chosen(choice if is_better else None, bound, outcome.status == "OPTIMAL")


def _own(options: Any, pick: Pick) -> int:
    from slicewise.slices.packing.patterns import cost_of

    return cost_of(options, pick)


def _by_patterns(
    made: _Model,
    patterns: Patterns,
    workload: int,
    listed: Sequence[Pick],
    demand: list[list[Any]],
    costs: list[Any],
    hint: Pick | None,
    may_leave: bool,
) -> None:
    """One of the patterns."""
    program, options = made.program, made.material.options[workload]
    ways = []
    for pick in listed:
        taken = program.new_bool_var("")
        ways.append((pick, taken))
        program.add_hint(taken, int(pick == hint))
        for resource, count in enumerate(patterns.usage_of(workload, pick).tolist()):
            if count:
                demand[resource].append(count * taken)
        own = _own(options, pick)
        if own:
            costs.append((own // made.material.unit) * taken)
    taken_ones = [taken for _, taken in ways]
    if may_leave:
        left = program.new_bool_var("")
        program.add_hint(left, int(hint is None))
        made.left[workload] = left
        taken_ones.append(left)
    program.add_exactly_one(taken_ones)
    made.ways[workload] = ways


def _by_numbers(made: _Model, workload: int, demand: list[list[Any]], hint: Pick | None) -> None:
    """Any number of each slice, as long as their shares cover the rate. Costs none of its own."""
    program, options = made.program, made.material.options[workload]
    hinted = dict(hint or ())
    numbers = []
    for i, option in enumerate(options):
        number = program.new_int_var(0, -(-SHARE // option.share), "")
        program.add_hint(number, hinted.get(i, 0))
        demand[option.resource].append(number)
        numbers.append(number)
    covered = sum(o.share * n for o, n in zip(options, numbers, strict=True))
    program.add(covered >= SHARE)
    made.numbers[workload] = numbers


def _at_most(material: Material, incumbent: Choice) -> list[int]:
    """Return how many cards of each kind a better answer may have."""
    most = max(_most_cost(material, incumbent), incumbent.cost)
    return [material.at_most(each, most) for each in material.cards]


def _most_cost(material: Material, incumbent: Choice) -> int:
    """Return what any answer that is worth looking at costs at most."""
    if not incumbent.left_over:
        return incumbent.cost
    whole = sum(each.cost * (each.count or 0) for each in material.cards)
    return max(whole, 2 * incumbent.cost) + sum(
        max(o.cost for o in options) for options in material.options
    )


def _supply(
    made: _Model, incumbent: Choice, costs: list[Any], *, free_cards: Sequence[int]
) -> list[Any]:
    """Add the layouts of all cards; return what they hold of each resource."""
    material, program = made.material, made.program
    used: dict[tuple[int, int], int] = {}
    for card in incumbent.cards:
        used[card] = used.get(card, 0) + 1
    held: list[list[Any]] = [[] for _ in material.resources]
    for k, cards in enumerate(material.cards):
        numbers = []
        for m, layout in enumerate(cards.layouts.tolist()):
            number = program.new_int_var(0, free_cards[k], "")
            program.add_hint(number, used.get((k, m), 0))
            numbers.append(number)
            for resource, count in enumerate(layout):
                if count:
                    held[resource].append(count * number)
        program.add(sum(numbers) <= free_cards[k])
        if cards.cost:
            costs.append((cards.cost // material.unit) * sum(numbers))
        made.layouts.append(numbers)
    return [sum(each) for each in held]


def _read(
    made: _Model,
    solver: Any,
    incumbent: Choice,
    allowed: Mapping[int, Sequence[Pick] | None],
) -> Choice:
    picks = list(incumbent.picks)
    for w in allowed:
        if w in made.numbers:
            counts = [solver.value(number) for number in made.numbers[w]]
            pick = tuple((i, count) for i, count in enumerate(counts) if count)
            picks[w] = _without_spare(made.material, w, pick)
        else:
            taken = [pick for pick, var in made.ways[w] if solver.value(var)]
            picks[w] = taken[0] if taken else None
    cards = [
        (k, m)
        for k, numbers in enumerate(made.layouts)
        for m, number in enumerate(numbers)
        for _ in range(solver.value(number))
    ]
    return judged(made.material, picks, cards)


def _without_spare(material: Material, workload: int, pick: Pick) -> Pick:
    """Return the pattern without slices that it does not need."""
    options = material.options[workload]
    counts = dict(pick)
    over = sum(n * options[i].share for i, n in pick) - SHARE
    for i in sorted(counts, key=lambda i: -options[i].share):
        spare = min(counts[i], max(0, over // options[i].share))
        counts[i] -= spare
        over -= spare * options[i].share
    return tuple((i, n) for i, n in sorted(counts.items()) if n)
