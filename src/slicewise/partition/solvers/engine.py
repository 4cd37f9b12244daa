"""Running CP-SAT models in threads under one deadline, so that Ctrl-C or a flag ends them at once.

Knows nothing of pipelines.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a solve ended. `bound` is None unless the status is one that proves it."""

    status: str
    solver: Any
    bound: int | None

    @property
    def has_values(self) -> bool:
        """True if there is a solution to read from `solver`."""
        return self.status in ("OPTIMAL", "FEASIBLE")


@dataclass
class Engine:
    """Solves until `deadline` (of `time.monotonic`), or until it is stopped."""

    deadline: float
    seed: int = 0
    stop_event: threading.Event = field(default_factory=threading.Event)
    _active: set[Any] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def left_s(self) -> float:
        """Return the seconds left; 0 where it was stopped."""
        return 0.0 if self.stop_event.is_set() else max(0.0, self.deadline - time.monotonic())

    def solve(
        self,
        model: Any,
        *,
        limit_s: float,
        workers: int = 1,
        cuts: bool = True,
        gap: int = 0,
        callback: Any = None,
        on_bound: Callable[[float], None] | None = None,
    ) -> Outcome:
        """Return the outcome of one model within `limit_s` and the deadline.

        Full linearization with one worker proves bounds on ideals ten times sooner than CP-SAT's
        default: their cuts are network matrices, which the linear relaxation solves. `gap`: it may
        end where value and bound are this near.
        """
        solver = load_cp_model().CpSolver()
        limit_s = min(limit_s, self.left_s())
        if limit_s <= 0:
            return Outcome("UNKNOWN", solver, None)
        solver.parameters.max_time_in_seconds = limit_s
        solver.parameters.num_workers = max(1, workers)
        solver.parameters.random_seed = self.seed % 2**31
        solver.parameters.linearization_level = 2
        solver.parameters.cut_level = int(cuts)
        solver.parameters.absolute_gap_limit = gap
        solver.parameters.catch_sigint_signal = False
        if on_bound is not None:
            solver.best_bound_callback = on_bound
        with self._lock:
            self._active.add(solver)
        try:
            status = solver.status_name(solver.solve(model, callback))
        finally:
            with self._lock:
                self._active.discard(solver)
        proven = status in ("OPTIMAL", "FEASIBLE") and model.has_objective()
        # whole numbers: the bound is one, apart from the float that carries it
        bound = round(solver.best_objective_bound) if proven else None
        return Outcome(status, solver, bound)

    def stop(self) -> None:
        """End all solves that are running; further ones do not begin."""
        self.stop_event.set()
        with self._lock:
            for solver in self._active:
                solver.stop_search()

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Run jobs in threads of their own to the end; Ctrl-C or an error stops them all."""
        with ThreadPoolExecutor(len(jobs)) as pool:
            futures = [pool.submit(job) for job in jobs]
            try:
                while wait(futures, timeout=_POLL_S, return_when=FIRST_EXCEPTION).not_done:
                    if self.stop_event.is_set() or any(
                        f.done() and f.exception() for f in futures
                    ):
                        self.stop()
            except BaseException:
                self.stop()
                raise
        for future in futures:
            future.result()
