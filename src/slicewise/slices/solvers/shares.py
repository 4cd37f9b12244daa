"""Serving as much as fits, where the cards do not suffice: one integer program of CP-SAT.

Counts of slices and layouts alone, no patterns: it is as small for a rate far beyond the cards as
for one just beyond them.
"""

from collections.abc import Sequence
from typing import Any

from slicewise.slices.packing.firstfit import Choice, judged
from slicewise.slices.packing.material import SHARE, Material, Option
from slicewise.slices.packing.patterns import Pick
from slicewise.slices.solvers.engine import Engine, load_cp_model

_ENDLESS = 10_000  # cards of a kind that has no end


def serve_most(
    material: Material,
    incumbent: Choice,
    *,
    engine: Engine,
    limit_s: float,
    steady_limit: float | None = None,
) -> Choice | None:
    """Return a choice that leaves less of the workloads than the incumbent; None if none is found.

    For a material in which every workload may be left (an option of resource -1) and no slice has
    a cost of its own. `MissingDependency` without ortools.
    """
    program = load_cp_model().CpModel()
    layouts, held = _layouts(material, program, incumbent)
    taken: list[list[Any]] = [[] for _ in material.resources]
    numbers: list[list[Any]] = []
    unserved: list[Any] = []
    for options, pick in zip(material.options, incumbent.picks, strict=True):
        now = dict(pick or ())
        leaving = next(each for each in options if each.resource < 0)
        left = program.new_int_var(0, leaving.cost, "")
        served: list[Any] = []
        mine: list[Any] = []
        for i, option in enumerate(options):
            most = 0 if option.resource < 0 else -(-SHARE // option.share)
            number = program.new_int_var(0, most, "")
            program.add_hint(number, now.get(i, 0) if most else 0)
            mine.append(number)
            if most:
                taken[option.resource].append(number)
                served.append(-(-option.share * leaving.cost // SHARE) * number)
        program.add(sum(served) + left >= leaving.cost)
        unserved.append(left)
        numbers.append(mine)
    for resource, there in enumerate(taken):
        if there:
            program.add(sum(there) <= sum(held[resource]))
    cards = [
        material.cards[kind].cost * number
        for (kind, _), number in layouts.items()
        if material.cards[kind].cost
    ]
    program.minimize(sum(unserved) + sum(cards))
    outcome = engine.solve(program, limit_s=limit_s, steady_limit=steady_limit)
    if not outcome.has_values:
        return None
    value = outcome.solver.value
    picks = [
        _pick(options, [value(number) for number in mine])
        for options, mine in zip(material.options, numbers, strict=True)
    ]
    chosen = [card for card, number in layouts.items() for _ in range(value(number))]
    made = judged(material, picks, chosen)
    return made if made.rank < incumbent.rank else None


def _layouts(
    material: Material, program: Any, incumbent: Choice
) -> tuple[dict[tuple[int, int], Any], list[list[Any]]]:
    """Add the layouts of all cards; return them, and what they hold of each resource."""
    held: list[list[Any]] = [[] for _ in material.resources]
    found = {}
    for kind, cards in enumerate(material.cards):
        most = _ENDLESS if cards.count is None else cards.count
        for row, layout in enumerate(cards.layouts.tolist()):
            number = program.new_int_var(0, most, "")
            program.add_hint(number, incumbent.cards.count((kind, row)))
            found[kind, row] = number
            for resource, count in enumerate(layout):
                if count:
                    held[resource].append(count * number)
        program.add(sum(found[kind, row] for row in range(len(cards.layouts))) <= most)
    return found, held


def _pick(options: Sequence[Option], counts: list[int]) -> Pick:
    """Return the pattern of as many slices as were chosen, without those too many."""
    rest = SHARE - sum(o.share * n for o, n in zip(options, counts, strict=True))
    for i in sorted(range(len(options)), key=lambda i: -options[i].share):
        spare = min(counts[i], max(0, -rest // options[i].share))
        counts[i] -= spare
        rest += spare * options[i].share
    leaving = next(i for i, each in enumerate(options) if each.resource < 0)
    counts[leaving] = int(rest > 0)
    return tuple((i, n) for i, n in enumerate(counts) if n)
