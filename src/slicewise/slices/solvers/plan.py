"""How the time goes: prices by column generation, rounding, then neighbourhoods or all at once.

Hands everything on to the search that asked; needs ortools.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Protocol

import numpy as np

from slicewise.slices.packing.firstfit import Choice
from slicewise.slices.packing.material import Material
from slicewise.slices.packing.patterns import Patterns, Pick, cheapest, near, whole_prices
from slicewise.slices.packing.prices import Proof
from slicewise.slices.solvers.choose import Chosen, choose
from slicewise.slices.solvers.columns import Relaxed, relax
from slicewise.slices.solvers.engine import Engine
from slicewise.slices.solvers.shares import serve_most

_SMALL = 6_000  # patterns: one program for all
_LARGE = 60_000  # too many for one program
_MOST_NEAR = 3_000  # of one workload
_RIVALS = 25  # patterns of a workload in a neighbourhood
_STEADY = 4.0  # limit of a neighbourhood in the solver's measure of work
_STEADY_ALL = 12.0  # that of a program for all
_LEVELS = (0.0, 1 / 64, 1 / 16, 1 / 4, 1.0)  # parts of the gap
_LEAST_S = 0.05
_PATIENCE = 60  # neighbourhoods without a better answer; then all at once


class Asker(Protocol):
    """The search that asks: what it knows, and what takes what is found."""

    material: Material
    patterns: Patterns
    best: Choice | None
    proof: Proof | None
    seed: int
    workers: int
    deadline: float

    @property
    def upper(self) -> int:
        """What the answer costs at most."""

    @property
    def bound(self) -> int:
        """The best bound on the cost."""

    def left_s(self) -> float:
        """Seconds until the deadline."""

    def is_done(self) -> bool:
        """True if nothing is left to find."""

    def take(self, choice: Choice | None, method: str) -> None:
        """Keep a choice if it is the best."""

    def take_proof(self, proof: Proof) -> None:
        """Keep a proof if it is the best."""

    def take_solver_bound(self, bound: int | None) -> None:
        """Keep a bound of CP-SAT."""


def run_solvers(asker: Asker) -> None:
    """Spend the time that is left; `MissingDependency` without ortools."""
    assert asker.proof is not None and asker.best is not None
    if all(any(o.resource < 0 for o in options) for options in asker.material.options):
        most = serve_most(
            asker.material, asker.best, engine=_engine(asker), limit_s=0.4 * asker.left_s(),
            steady_limit=_STEADY_ALL,
        )  # fmt: skip
        asker.take(most, "cp-sat")
        if _is_over(asker):
            return
    relaxed = relax(
        asker.material,
        asker.patterns,
        asker.proof.prices,
        upper=asker.upper,
        is_over=lambda: asker.left_s() < _LEAST_S,
        report=asker.take_proof,
    )
    if asker.is_done():
        return
    if relaxed is not None:
        _round(asker, relaxed)
    if _is_over(asker):
        return
    _by_levels(asker, workers=1, steady_limit=_STEADY_ALL, most_patterns=_SMALL)
    if not _is_over(asker) and len(asker.material.options) > 1:
        _neighbourhoods(asker)
    _by_levels(asker, workers=max(2, asker.workers), steady_limit=None, most_patterns=_LARGE)


def _is_over(asker: Asker) -> bool:
    return asker.is_done() or asker.left_s() < _LEAST_S


def _engine(asker: Asker, salt: int = 0) -> Engine:
    return Engine(asker.deadline, asker.seed + salt)


def _regrets(asker: Asker) -> tuple[list[np.ndarray], int]:
    """Return what each pattern costs over its workload's cheapest at the prices; the factor."""
    assert asker.proof is not None
    patterns = asker.patterns
    patterns.stack()
    factor = patterns.factor_at(asker.proof.prices)
    priced = patterns.priced(whole_prices(asker.proof.prices.tolist(), factor), factor)
    least, _ = patterns.least(priced)
    over = priced - np.repeat(least, np.diff(patterns.first))
    return np.split(over, patterns.first[1:-1]), factor


def _promising(asker: Asker, most: int) -> tuple[dict[int, Sequence[Pick] | None], bool]:
    """Return the patterns that an answer of cost `most` can have; and if these are really all.

    An answer with a pattern costs at least the bound and what the pattern costs over the cheapest.
    """
    assert asker.proof is not None and asker.best is not None
    material, patterns = asker.material, asker.patterns
    regrets, factor = _regrets(asker)
    room = Fraction(most) - asker.proof.cost
    limit = int(room * factor) + len(patterns.picks) + 1
    is_exact = asker.best.left_over == 0
    has_costs = any(o.cost for options in material.options for o in options)
    whole = whole_prices(asker.proof.prices.tolist(), factor).tolist()
    allowed: dict[int, Sequence[Pick] | None] = {}
    for w, over in enumerate(regrets):
        options = material.options[w]
        allowed[w] = [patterns.picks[w][i] for i in np.flatnonzero(over <= limit)]
        if patterns.is_complete[w]:
            continue
        least, _ = cheapest(options, whole, factor)
        found = near(options, whole, factor, most=least + limit, limit=_MOST_NEAR)
        if found is not None:
            allowed[w] = found
        elif has_costs or asker.best.left_over:
            is_exact = False
        else:
            allowed[w] = None
    return allowed, is_exact


def _round(asker: Asker, relaxed: Relaxed) -> None:
    """Keep the patterns that the linear program has whole, and choose the others anew."""
    assert asker.best is not None
    material = asker.material
    regrets, _ = _regrets(asker)
    picks: list[Pick | None] = list(asker.best.picks)
    free: dict[int, Sequence[Pick] | None] = {}
    for w in range(len(material.options)):
        parts = relaxed.parts.get(w, [])
        if parts:
            picks[w] = max(parts, key=lambda each: each[1])[0]
        if len(parts) != 1 or w in relaxed.left:
            free[w] = _rivals(asker.patterns, w, regrets[w], [pick for pick, _ in parts])
    if any(each is None for each in picks):
        return
    base = Choice(tuple(picks), asker.best.cards, asker.upper + material.unit)
    found = _choose(asker, free, base, limit_s=0.4 * asker.left_s(), steady_limit=5 * _STEADY)
    asker.take(found.choice, "columns")


def _rivals(
    patterns: Patterns, workload: int, over: np.ndarray, also: Sequence[Pick]
) -> list[Pick]:
    near = [patterns.picks[workload][i] for i in np.argsort(over, kind="stable")[:_RIVALS]]
    return list(dict.fromkeys([*also, *near]))


def _neighbourhoods(asker: Asker) -> None:
    """Choose a part of the workloads anew, again and again; parts grow when nothing is found."""
    assert asker.best is not None
    count = len(asker.material.options)
    generator = np.random.default_rng(asker.seed)
    size, barren = min(count, 40), 0
    while not _is_over(asker) and barren < _PATIENCE:
        regrets, factor = _regrets(asker)
        weights = np.array(
            [
                1.0 + _regret_of(asker.patterns, w, regrets[w], asker.best.picks[w]) / factor
                / max(1, asker.material.unit)
                for w in range(count)
            ]
        )  # fmt: skip
        chosen = generator.choice(count, size, replace=False, p=weights / weights.sum())
        free: dict[int, Sequence[Pick] | None] = {}
        for w in sorted(int(each) for each in chosen):
            now = asker.best.picks[w]
            free[w] = _rivals(asker.patterns, w, regrets[w], [] if now is None else [now])
        for w, pick in enumerate(asker.best.picks):
            if pick is None and w not in free:
                free[w] = _rivals(asker.patterns, w, regrets[w], [])
        before = asker.best.rank
        found = _choose(asker, free, asker.best, limit_s=4.0, steady_limit=_STEADY)
        asker.take(found.choice, "neighbourhoods")
        if asker.best.rank < before:
            barren = 0
            continue
        barren += 1
        if found.is_closed:
            if size == count:
                return
            size = min(count, size + max(5, size // 4))


def _regret_of(patterns: Patterns, workload: int, over: np.ndarray, pick: Pick | None) -> float:
    if pick is None or pick not in patterns.picks[workload]:
        return 1.0
    return float(over[patterns.picks[workload].index(pick)])


def _by_levels(
    asker: Asker, *, workers: int, steady_limit: float | None, most_patterns: int
) -> None:
    """Ask for an answer of at most some cost, the bound at first, then more and more.

    Few patterns can be in an answer that costs little more than the bound, so that each program is
    small; one that has no answer raises the bound.
    """
    assert asker.best is not None
    material = asker.material
    for part in _LEVELS:
        if _is_over(asker):
            return
        if asker.best.left_over:
            most = asker.upper
        else:
            gap = (asker.best.cost - asker.bound) // material.unit - 1
            most = asker.bound + max(0, int(gap * part)) * material.unit
        allowed, is_exact = _promising(asker, most)
        if sum(len(each) for each in allowed.values() if each is not None) > most_patterns:
            return
        found = _choose(
            asker, allowed, asker.best, most=most, limit_s=asker.left_s(), workers=workers,
            steady_limit=steady_limit,
        )  # fmt: skip
        asker.take(found.choice, "cp-sat")
        if is_exact and found.is_closed:
            least = most + material.unit if found.choice is None else found.choice.cost
            asker.take_solver_bound(least)
        elif is_exact:
            asker.take_solver_bound(found.bound)
        if not found.is_closed or asker.best.left_over:
            return


def _choose(
    asker: Asker,
    allowed: Mapping[int, Sequence[Pick] | None],
    incumbent: Choice,
    *,
    limit_s: float,
    most: int | None = None,
    workers: int = 1,
    steady_limit: float | None = None,
) -> Chosen:
    floor = asker.bound if not incumbent.left_over else 0
    return choose(
        asker.material, asker.patterns, allowed=allowed, incumbent=replace(incumbent),
        floor=floor, most=most, engine=_engine(asker), limit_s=limit_s, workers=workers,
        steady_limit=steady_limit,
    )  # fmt: skip
