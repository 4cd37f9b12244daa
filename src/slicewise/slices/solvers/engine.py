"""Running CP-SAT models so that a deadline or Ctrl-C ends them at once. No packing in it."""

import threading
import time
from dataclasses import dataclass
from typing import Any

from slicewise.core.errors import MissingDependency

_POLL_S = 0.1


def load_cp_model() -> Any:
    """Return ortools' CP-SAT; `MissingDependency` names the extra."""
    try:
        from ortools.sat.python import cp_model
    except ImportError as err:
        raise MissingDependency("the 'cp-sat' solver", package="ortools", extra="solve") from err
    return cp_model


def load_linear_solver() -> Any:
    """Return ortools' linear solvers (GLOP); `MissingDependency` names the extra."""
    try:
        from ortools.linear_solver import pywraplp
    except ImportError as err:
        raise MissingDependency("the 'glop' solver", package="ortools", extra="solve") from err
    return pywraplp


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a solve ended. `bound` is that on the objective, None where nothing is proven."""

    status: str
    solver: Any
    bound: int | None

    @property
    def has_values(self) -> bool:
        """True if there is a solution to read from `solver`."""
        return self.status in ("OPTIMAL", "FEASIBLE")


@dataclass
class Engine:
    """Solves until `deadline` (of `time.monotonic`)."""

    deadline: float
    seed: int = 0

    def left_s(self) -> float:
        """Return the seconds left."""
        return max(0.0, self.deadline - time.monotonic())

    def solve(
        self,
        model: Any,
        *,
        limit_s: float,
        workers: int = 1,
        steady_limit: float | None = None,
        gap: float = 0.0,
    ) -> Outcome:
        """Return the outcome of a model within `limit_s` and the deadline.

        With one worker and `steady_limit`, a limit in the solver's own measure of work, the same
        model gives the same answer unless time ends it. Ctrl-C stops the solver and is raised.
        """
        solver = load_cp_model().CpSolver()
        limit_s = min(limit_s, self.left_s())
        if limit_s <= 0:
            return Outcome("UNKNOWN", solver, None)
        solver.parameters.max_time_in_seconds = limit_s
        solver.parameters.num_workers = max(1, workers)
        solver.parameters.random_seed = self.seed % 2**31
        solver.parameters.relative_gap_limit = gap
        solver.parameters.catch_sigint_signal = False
        # the search has neighbourhoods of its own, and CP-SAT's print where large numbers meet
        # their tolerances
        solver.parameters.use_lns = False
        if steady_limit is not None:
            solver.parameters.max_deterministic_time = steady_limit
        found: list[str] = []
        thread = threading.Thread(
            target=lambda: found.append(solver.status_name(solver.solve(model))), daemon=True
        )
        thread.start()
        try:
            while thread.is_alive():
                thread.join(_POLL_S)
        except BaseException:
            solver.stop_search()
            thread.join()
            raise
        status = found[0] if found else "UNKNOWN"
        proven = status in ("OPTIMAL", "FEASIBLE") and model.has_objective()
        bound = round(solver.best_objective_bound) if proven else None
        return Outcome(status, solver, bound)
