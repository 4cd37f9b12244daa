"""Many workloads on few GPUs: slices, places and rates, with a bound that no answer can beat.

A search chooses patterns of slices and layouts of cards (`packing/`, `solvers/`), then cards and
places are found for them. Latency is judged before (`latency.py`), truth after (`verify.py`).
"""

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from slicewise.core.errors import UsageError
from slicewise.core.notes import unique_notes
from slicewise.core.packing import (
    PackBound,
    Packing,
    PackObjective,
    PackProblem,
    PackWorkload,
    PlacedGpu,
    Unserved,
)
from slicewise.slices.packing.material import beyond, carried_in_use, least_cards, prepare
from slicewise.slices.packing.realise import moves_between
from slicewise.slices.packing.search import Search
from slicewise.slices.packing.standing import fewer_moves, realised

DEFAULT_TIME_LIMIT_S = 60.0
_MOVES_PART = 0.25  # of the time, where cards stand already
_TRY_PART = 0.4  # of the time, until it is taken that the cards do not suffice
_MOST_CARDS = 10_000  # planned card by card
_HINT_S, _HINT_PART = 10.0, 0.25  # for how many cards would do


def pack(
    problem: PackProblem,
    *,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    seed: int = 0,
    workers: int | None = None,
    told: Callable[[str], None] | None = None,
) -> Packing:
    """Return the best answer within the time limit (s), with proven bounds on the objective.

    What the cards cannot serve is told as `unserved`, with how many cards would do; then as large
    a share of each workload's rate as possible is served, on average, and there is no bound.
    Slices in use stay as they are. Of answers with the same objective the one with fewest moves
    is sought. `workers` are threads of the solver (None: all cores); `told` gets a line of news
    now and then. The same problem and seed give the same answer where the search ends before the
    limit. Ctrl-C ends it as the limit does, once there is an answer. Without ortools the built-in
    methods answer (Note). `UsageError` for a time limit, a stock or names that cannot be, and
    where more than 10,000 cards would be planned.

    >>> import slicewise
    >>> from slicewise.core.cost import Estimate
    >>> from slicewise.core.packing import GpuStock, Offer, Serving
    >>> serving = Serving(1, 1, Estimate(5.0, low=5.0, high=5.0), 200.0, memory_bytes=1e9)
    >>> offer = Offer("a30", "1g.6gb", serving, capacity_per_s=200.0)
    >>> work = PackWorkload("detect", 900.0, 20.0, 99.0, (offer,))
    >>> found = pack(PackProblem((work,), (GpuStock(slicewise.device("a30")),)))
    >>> found.gpus_used, found.is_optimal
    (2, True)
    """
    _check(problem, time_limit_s)
    started = time.monotonic()
    deadline = started + time_limit_s
    threads = workers or os.cpu_count() or 1
    stands = any(not each.in_use for gpu in problem.current for each in gpu.slices)
    material = prepare(problem)
    reserve = _MOVES_PART * time_limit_s if stands else 0.0
    is_limited = any(each.count is not None for each in problem.stock)
    search = Search(material, deadline - reserve, seed, threads, told)
    notes = [*material.notes]
    is_partial = beyond(material)
    if not is_partial:
        search.run()
        assert search.best is not None
        notes += search.notes
        is_partial = bool(search.best.left_over) and is_limited
    if is_partial:
        partial = Search(
            prepare(problem, may_leave=True), deadline - reserve, seed, threads, _left(told)
        )
        # the limit may be gone by now: half as long again, so that the answer is a good one
        partial.deadline = max(partial.deadline, time.monotonic() + 0.5 * time_limit_s)
        partial.run()
        notes += partial.notes
        search, material = partial, partial.material
    assert search.best is not None
    gpus = realised(material, search.best)
    if stands and not search.is_interrupted:
        limit_s = max(1.0, deadline - time.monotonic())
        gpus, told_of_moves = fewer_moves(search, gpus, limit_s=limit_s)
        notes += told_of_moves
    unserved = _unserved(problem, gpus, time_limit_s=time_limit_s, seed=seed)
    value = _value(problem, gpus)
    return Packing(
        gpus,
        value,
        () if unserved else _bounds(search, value),
        unserved,
        search.method,
        time.monotonic() - started,
        seed,
        moves_between(problem.current, gpus),
        unique_notes([*notes, *(note for each in problem.workloads for note in each.notes)]),
    )


def _left(told: Callable[[str], None] | None) -> Callable[[str], None] | None:
    """Return what tells news of what is left over: workloads, counted by the share of the rate."""
    if told is None:
        return None
    return lambda line: told(f"too few cards; workloads unserved by {line}")


def _check(problem: PackProblem, time_limit_s: float) -> None:
    if not 0 <= time_limit_s < math.inf:
        raise UsageError(f"--time-limit {time_limit_s:g} is not a time; write --time-limit 60")
    if not problem.stock:
        raise UsageError("no cards are given; name at least one kind with --device")
    for kind, names in (
        ("workload", [each.name for each in problem.workloads]),
        ("kind of card", [each.device.name for each in problem.stock]),
    ):
        twice = [name for name, times in Counter(names).items() if times > 1]
        if twice:
            raise UsageError(f"{kind} {twice[0]!r} is there twice; give each a name of its own")
    for each in problem.workloads:
        if not 0 < each.rate_per_s < math.inf:
            raise UsageError(
                f"rate_per_s={each.rate_per_s:g} of {each.name!r} must be over 0; leave the"
                " workload out if nothing is asked of it"
            )
    for stock in problem.stock:
        if stock.count is not None and stock.count < 0:
            raise UsageError(
                f"count {stock.count} of {stock.device.name} must be 0 or more; leave it out for"
                " as many as needed"
            )
    needed = least_cards(problem)
    if needed > _MOST_CARDS:
        raise UsageError(
            f"at least {_number(needed)} cards would be needed, which is beyond what is planned"
            f" card by card (at most {_MOST_CARDS:,}); ask for a lower rate, or split the fleet"
        )


def _number(cards: float) -> str:
    cards = math.ceil(cards * (1 - 1e-9)) if cards < 1e9 else cards
    return f"{cards:,}" if isinstance(cards, int) else f"{cards:.3g}"


def _value(problem: PackProblem, gpus: Sequence[PlacedGpu]) -> float:
    """Return the objective: cards by their cost, or W."""
    costs = {each.device.name: each for each in problem.stock}
    used = [costs[gpu.device] for gpu in gpus if gpu.is_used]
    if problem.objective is PackObjective.GPUS:
        return math.fsum(each.cost for each in used)
    return math.fsum(
        [
            *(each.device.idle_power_w for each in used),
            *(
                each.rate_per_s * each.offer.serving.energy_j
                for gpu in gpus
                for each in gpu.slices
                if each.offer is not None
            ),
        ]
    )


def _bounds(search: Search, value: float) -> tuple[PackBound, ...]:
    """Return what was proven; costs are rounded down to whole numbers, so a bound may fall short
    of the value by the rounding alone: then it is the value."""
    material = search.material
    found = []
    if search.proof is not None:
        exact = material.value(material.round_up(max(search.proof.cost, search.proof.cost * 0)))
        found.append(PackBound(_met(exact, value), "columns", is_exact=True))
    if search.solver_bound is not None:
        told = _met(material.value(search.solver_bound), value)
        if not found or told > found[0].value:
            found.append(PackBound(told, "cp-sat"))
    return tuple(sorted(found, key=lambda each: -each.value))


def _met(bound: float, value: float) -> float:
    return value if bound >= value * (1 - 1e-9) else max(0.0, bound)


def _unserved(
    problem: PackProblem, gpus: Sequence[PlacedGpu], *, time_limit_s: float, seed: int
) -> tuple[Unserved, ...]:
    """Return what is left unserved, and what would serve it."""
    found = []
    enough: str | None = None
    for workload in problem.workloads:
        served = math.fsum(
            each.rate_per_s
            for gpu in gpus
            for each in gpu.slices
            if each.workload == workload.name
        )
        left = workload.rate_per_s - served
        if left <= 1e-9 * workload.rate_per_s:
            continue
        if not any(each.capacity_per_s > 0 for each in workload.offers):
            reason = _no_way(workload)
        else:
            if enough is None:
                hint_s = min(_HINT_S, _HINT_PART * time_limit_s)
                enough = _enough(problem, time_limit_s=hint_s, seed=seed)
            reason = f"no card is left; {enough}"
        found.append(Unserved(workload.name, left, reason))
    return tuple(found)


def _no_way(workload: PackWorkload) -> str:
    told = "; ".join(note.text for note in workload.notes)
    why = f" ({told})" if told else ""
    return (
        f"no slice or card of the stock answers it within {workload.latency_ms:g} ms{why}; allow"
        " more time or give a faster card"
    )


def _enough(problem: PackProblem, *, time_limit_s: float, seed: int) -> str:
    """Return how many cards would serve everything that any card can serve."""
    able = tuple(
        each for each in problem.workloads
        if each.offers or carried_in_use(problem, each) >= each.rate_per_s
    )  # fmt: skip
    free = replace(
        problem,
        workloads=able,
        stock=tuple(replace(each, count=None) for each in problem.stock),
        objective=PackObjective.GPUS,
    )
    needed = least_cards(free)
    if needed > _MOST_CARDS:
        return f"at least {_number(needed)} cards would serve all"
    found = pack(free, time_limit_s=time_limit_s, seed=seed)
    counts = Counter(gpu.device for gpu in found.gpus if gpu.is_used)
    there = {each.device.name: each.count for each in problem.stock}
    told = ", ".join(
        f"{name} x {count} (there are {there[name]})" for name, count in sorted(counts.items())
    )
    return f"{sum(counts.values())} cards would serve all: {told}"
