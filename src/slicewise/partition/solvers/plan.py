"""How the time that is left goes to the solver: bounds by windows, then the whole problem.

Hands everything on to the search that asked; no cut or bound is made here.
"""

import math
from typing import Protocol

from slicewise.core.pipeline import Assignment, Bound, PipelineProblem
from slicewise.partition.solvers import cpsat, windows
from slicewise.partition.solvers.cpsat import CpSatProgress

# Above this many (node, stage) pairs the whole problem is seldom solved, and bounds come first.
_SMALL_MODEL = 6_000
_FIRST_PART, _LAST_PART = 0.35, 0.15  # of the time left
_LEAST_S = 0.2


class Asker(Protocol):
    """The search that asks: what it knows, and what takes what is found."""

    @property
    def small(self) -> PipelineProblem:
        """The contracted problem."""

    @property
    def small_best(self) -> Assignment | None:
        """The best cut of it, if one is known."""

    @property
    def value(self) -> float:
        """The best value, inf where there is none."""

    @property
    def bound(self) -> float:
        """The best bound."""

    @property
    def seed(self) -> int:
        """The seed of everything random."""

    @property
    def threads(self) -> int:
        """Threads that the solver may use."""

    def take_cut(self, cut: Assignment | None, method: str) -> None:
        """Keep a cut of the contracted problem if it is the best."""

    def take_bound(self, bound: Bound | None) -> None:
        """Keep a bound."""

    def tell_infeasible(self) -> None:
        """Keep that there is no cut at all."""

    def left_s(self) -> float:
        """Seconds that are left."""

    def is_done(self) -> bool:
        """True if nothing is left to do."""


def run_solvers(asker: Asker) -> None:
    """Spend the time that is left; `MissingDependency` without ortools."""
    problem = asker.small
    if windows.supports(problem) or asker.value == math.inf:
        _whole(asker, asker.left_s())
        return
    if problem.nodes * problem.stages <= _SMALL_MODEL:
        _whole(asker, _FIRST_PART * asker.left_s())
    known = (math.inf, 0.0)
    # again as long as the other side, a better cut from the search beside it, gives it more to do
    while not _is_over(asker) and known != (asker.value, asker.bound):
        known = (asker.value, asker.bound)
        _windows(asker, (1 - _LAST_PART) * asker.left_s())
    if not _is_over(asker):
        _whole(asker, asker.left_s())


def _is_over(asker: Asker) -> bool:
    return asker.is_done() or asker.left_s() < _LEAST_S


def _whole(asker: Asker, time_limit_s: float) -> None:
    if cpsat.supports(asker.small):
        return

    def news(told: CpSatProgress) -> None:
        asker.take_cut(told.cut, cpsat.METHOD)
        _take(asker, told.bound)

    found = cpsat.solve_cpsat(
        asker.small, warm=asker.small_best, lower=asker.bound, time_limit_s=time_limit_s,
        workers=asker.threads, seed=asker.seed, report=news,
    )  # fmt: skip
    asker.take_cut(found.cut, cpsat.METHOD)
    _take(asker, found.bound)
    if found.is_infeasible:
        asker.tell_infeasible()


def _take(asker: Asker, bound: Bound | None) -> None:
    """Keep the solver's bound if it is more than what it was given to begin with."""
    if bound is not None and bound.value > asker.bound:
        asker.take_bound(bound)


def _windows(asker: Asker, time_limit_s: float) -> None:
    found = windows.window_bound(
        asker.small, incumbent_ms=asker.value, lower_ms=asker.bound, time_limit_s=time_limit_s,
        workers=asker.threads, seed=asker.seed, report=asker.take_bound,
        report_cut=lambda cut: asker.take_cut(cut, windows.METHOD),
    )  # fmt: skip
    asker.take_cut(found.cut, windows.METHOD)
    asker.take_bound(found.bound)
