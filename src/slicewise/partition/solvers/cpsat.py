"""The whole problem as one CP-SAT model: is the cut the best, and if not, which is?

Order encoding: y[b][v] holds if node v is in stage b or before it, so that stages have no names to
permute. Every variant but fast memory, whose cost depends on the order in which a stage runs.
Costs are whole numbers, rounded down: the solver's bound is valid; a cut is judged as given.
"""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slicewise.core.errors import Infeasible
from slicewise.core.pipeline import Assignment, Bound, PipelineProblem
from slicewise.partition.evaluate import objective_or_raise
from slicewise.partition.solvers.engine import Engine, Outcome, load_cp_model
from slicewise.partition.solvers.exact_model import ExactModel, build_exact

METHOD = "cp-sat"
MAX_NODES = 8000  # a table of n x n, and k times all nodes and tensors in one model


def supports(problem: PipelineProblem) -> str:
    """Return '' or why the model cannot say what a problem asks."""
    if any(problem.kinds[kind].fast_memory is not None for kind in problem.places):
        return "fast memory costs what the order of a stage's nodes makes it cost"
    if problem.nodes > MAX_NODES:
        return f"{problem.nodes} nodes are more than {MAX_NODES}"
    return ""


@dataclass(frozen=True, slots=True)
class CpSatResult:
    """The best cut found, if better than the warm start or without one, and the bound.

    `is_complete`: the solver came to an end by itself. `is_infeasible`: no cut keeps the limits.
    """

    cut: Assignment | None
    bound: Bound | None
    is_complete: bool
    is_infeasible: bool = False


@dataclass(frozen=True, slots=True)
class CpSatProgress:
    """News of a running solve: a better cut with its value (ms or J), or a better bound."""

    cut: Assignment | None = None
    value: float = math.inf
    bound: Bound | None = None


Report = Callable[[CpSatProgress], None]


def solve_cpsat(
    problem: PipelineProblem,
    *,
    warm: Assignment | None = None,
    lower: float = 0.0,
    time_limit_s: float = 60.0,
    workers: int = 2,
    seed: int = 0,
    report: Report | None = None,
    stop: threading.Event | None = None,
) -> CpSatResult:
    """Return the best cut within the time, and what the solver proves.

    `warm` is where the search starts and its cut-off; `lower` (ms or J) a bound known already, at
    which it may end. `stop` set by another thread ends it, as Ctrl-C does, which is raised again
    after `report` got the best so far. `MissingDependency` without ortools.
    """
    upper = math.inf
    if warm is not None:
        upper = objective_or_raise(problem, warm)
    made = build_exact(problem, upper=upper, lower=lower)
    if made is None:
        return CpSatResult(None, None, is_complete=True, is_infeasible=warm is None)
    if warm is not None:
        made.hint(warm)
    engine = Engine(
        time.monotonic() + time_limit_s, seed, stop if stop is not None else threading.Event()
    )
    found = _Found(problem, made, upper, report)
    outcomes: list[Outcome] = []

    def job() -> None:
        outcomes.append(
            engine.solve(
                made.model,
                limit_s=time_limit_s,
                workers=workers,
                callback=_callback(found),
                on_bound=found.take_bound if report is not None else None,
            )
        )

    engine.run([job])
    (outcome,) = outcomes
    bound = made.bound_of(outcome.bound, outcome.status) if outcome.bound is not None else None
    if outcome.status == "INFEASIBLE" and warm is not None:  # cannot be but by rounding: no claim
        return CpSatResult(None, None, is_complete=False)
    return CpSatResult(
        found.cut,
        bound,
        is_complete=outcome.status in ("OPTIMAL", "INFEASIBLE"),
        is_infeasible=outcome.status == "INFEASIBLE",
    )


@dataclass
class _Found:
    """What a solve has come upon so far."""

    problem: PipelineProblem
    made: ExactModel
    value: float
    report: Report | None
    cut: Assignment | None = None
    bound: float = 0.0

    def take(self, read: Callable[[Any], int]) -> None:
        """Judge the solver's cut as the problem was given; keep it if it is better."""
        cut = self.made.read(read)
        try:
            value = objective_or_raise(self.problem, cut)
        except Infeasible:  # rounding let it pass
            return
        if value < self.value:
            self.cut, self.value = cut, value
            if self.report is not None:
                self.report(CpSatProgress(cut, value))

    def take_bound(self, bound: float) -> None:
        """Tell a better bound; ortools gives it as a float that holds a whole number."""
        told = self.made.bound_of(math.floor(bound), "SEARCHING")
        if self.report is not None and told.value > self.bound:
            self.bound = told.value
            self.report(CpSatProgress(bound=told))


def _callback(found: _Found) -> Any:
    base = load_cp_model().CpSolverSolutionCallback

    class Callback(base):  # type: ignore[misc, valid-type]
        """Hands each solution on."""

        def on_solution_callback(self) -> None:
            found.take(self.value)

    return Callback()
