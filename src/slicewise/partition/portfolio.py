"""One time limit, several methods: they share the best cut and the best bound, and any may end it.

Decides who works when, and keeps what they find; every cut is judged by `evaluate` on the problem
as it was given, whatever form of it a method saw.
"""

import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from slicewise.core.errors import (
    Infeasible,
    MissingDependency,
    PartitionError,
    UsageError,
)
from slicewise.core.notes import Note, unique_notes
from slicewise.core.pipeline import (
    OPTIMAL_GAP,
    Assignment,
    Bound,
    Objective,
    Partition,
    PipelineProblem,
)
from slicewise.core.plugins import did_you_mean
from slicewise.partition.bounds import combinatorial_bounds
from slicewise.partition.compiled import is_compiled
from slicewise.partition.contract import Contraction, contract
from slicewise.partition.evaluate import broken_limits, objective_of, stage_loads
from slicewise.partition.lattice import coarse
from slicewise.partition.lattice.lattice_dp import solve_lattice
from slicewise.partition.prices.stage_prices import price_bound
from slicewise.partition.slicegraph.brkga import PRESETS, evolve
from slicewise.partition.slicegraph.search import improve
from slicewise.partition.slicegraph.slice_dp import slice_order

METHODS = ("auto", "slicegraph", *PRESETS, "lattice", "cp-sat")
DEFAULT_TIME_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Progress:
    """The best value and bound so far, and who found it; inf and 0 where there is none yet."""

    value: float
    bound: float
    method: str
    seconds: float


def solve(
    problem: PipelineProblem,
    *,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    seed: int = 0,
    workers: int | None = None,
    method: str = "auto",
    report: Callable[[Progress], None] | None = None,
) -> Partition:
    """Return the best cut within the time limit, with the bounds that were found.

    `workers` are threads of the solver (None: all cores). Ctrl-C ends the search as the time limit
    does, once there is a cut. `Infeasible` where no cut keeps the limits, `PartitionError` where
    none was found, `UsageError` for a method or a time limit that cannot be.
    """
    if method not in METHODS:
        raise UsageError(
            f"method {method!r} is unknown; known are {', '.join(METHODS)}"
            f"{did_you_mean(method, METHODS)}"
        )
    if not time_limit_s >= 0 or time_limit_s == math.inf:
        raise UsageError(f"--time-limit {time_limit_s:g} is not a time; write --time-limit 60")
    run = _Run(problem, time.perf_counter(), time_limit_s, seed, workers, report)
    try:
        run.go(method)
    except KeyboardInterrupt:
        if run.best is None:
            raise
        run.is_complete = False
        text = "interrupted: the best cut and bound until then"
        run.notes.append(Note("search-interrupted", text))
    return run.answer()


@dataclass
class _Run:
    """The state of one search."""

    problem: PipelineProblem
    started: float
    time_limit_s: float
    seed: int
    workers: int | None
    report: Callable[[Progress], None] | None
    best: Assignment | None = None
    small_best: Assignment | None = None
    value: float = math.inf
    bounds: list[Bound] = field(default_factory=list)
    method: str = ""
    notes: list[Note] = field(default_factory=list)
    is_complete: bool = True
    is_infeasible: bool = False
    lattice_reason: str = ""
    is_solving: bool = False
    lock: "threading.RLock" = field(default_factory=threading.RLock)
    made: Contraction = field(init=False)

    def go(self, method: str) -> None:
        """Let the methods work until the gap is closed or the time is up."""
        self.made = contract(self.problem)
        self.notes.extend(self.made.notes)
        for bound in combinatorial_bounds(self.problem):
            self.take_bound(bound)
        if not is_compiled():
            text = "numba is not installed: the built-in methods run uncompiled, far slower"
            self.notes.append(Note("uncompiled", text))
        # whatever the time limit: one slicing, so that there is a cut to show
        self.take_cut(slice_order(self.small, range(self.small.nodes)), "slicegraph")
        if method in PRESETS:
            self.evolve(method)
            return
        if method == "slicegraph":
            self.search(self.left_s())
        else:
            self.search(_FIRST_SEARCH_S, max_rounds=_FIRST_ROUNDS)
        if method in ("auto", "lattice") and not self.is_done():
            self.lattice(_SMALL_LATTICE)
        if method in ("auto", "cp-sat") and not self.is_done():
            self.search(_SECOND_SEARCH_S)
        if method in ("auto", "lattice") and not self.is_done():
            self.lattice(_LARGE_LATTICE)
        if method == "auto" and not self.is_done():
            self.coarse()
        if method == "auto" and self.small.stages >= _MANY_STAGES and not self.is_done():
            self.prices()
        if method in ("auto", "cp-sat") and not self.is_done() and self.left_s() > 0:
            self.solver()
        self.is_complete = self.is_proven()

    # --- what the methods hand in

    def take_cut(self, cut: Assignment | None, method: str) -> None:
        """Keep a cut of the contracted problem if it is the best."""
        if cut is None:
            return
        whole = self.made.expand(cut)
        loads = stage_loads(self.problem, whole)
        if broken_limits(self.problem, loads):
            return
        value = objective_of(self.problem, loads)
        with self.lock:
            if value < self.value:
                self.best, self.value, self.method = whole, value, method
                self.small_best = cut
                self.tell(method)

    def take_bound(self, bound: Bound | None) -> None:
        """Keep a bound; one that is not the best of its method is dropped."""
        if bound is None:
            return
        with self.lock:
            self._keep(bound)

    def _keep(self, bound: Bound) -> None:
        others = [each for each in self.bounds if each.method == bound.method]
        if any(each.value >= bound.value for each in others):
            return
        before = self.bound
        self.bounds = [each for each in self.bounds if each.method != bound.method] + [bound]
        if bound.value > before:
            self.tell(bound.method)

    def tell(self, method: str) -> None:
        """Report the state."""
        if self.report is not None:
            self.report(Progress(self.value, self.bound, method, self.spent_s()))

    # --- the methods

    def search(self, limit_s: float, *, max_rounds: int | None = None) -> None:
        """Slicing of many orders, and the local search around the best."""
        end = min(self.time_limit_s, self.spent_s() + limit_s)
        cut = improve(
            self.made.problem,
            self.small_best,
            seed=self.seed,
            deadline=lambda: self.spent_s() >= end or self.is_proven(),
            report=lambda cut, _: self.take_cut(cut, "slicegraph"),
            max_rounds=max_rounds,
        )
        self.take_cut(cut, "slicegraph")

    def evolve(self, preset: str) -> None:
        """The genetic algorithm over orders."""
        cut = evolve(
            self.made.problem,
            preset,
            seed=self.seed,
            deadline=lambda: self.spent_s() >= self.time_limit_s or self.is_proven(),
            report=lambda cut, _: self.take_cut(cut, preset),
        )
        self.take_cut(cut, preset)

    def lattice(self, most_ideals: int) -> None:
        """The dynamic program over ideals."""
        end = self.spent_s() + _LATTICE_PART * self.left_s()
        found = solve_lattice(
            self.made.problem,
            incumbent=self.value,
            max_ideals=min(most_ideals, _MOST_BITS // self.small.nodes),
            deadline=lambda: self.spent_s() >= end,
            report=lambda cut, _: self.take_cut(cut, "lattice"),
        )
        self.take_cut(found.cut, "lattice")
        self.take_bound(found.bound)
        if found.is_complete and found.cut is None:
            self.tell_infeasible()
        self.lattice_reason = "" if found.is_complete else found.reason

    def coarse(self) -> None:
        """The same without the lightest nodes: a bound alone."""
        if coarse.supports(self.problem):
            return
        end = self.spent_s() + _COARSE_PART * self.left_s()
        bound = coarse.coarse_bound(
            self.made.problem, incumbent=self.value, deadline=lambda: self.spent_s() >= end
        )
        self.take_bound(bound)

    def prices(self) -> None:
        """What the cheapest stage costs that is worth its share: a bound alone."""
        end = self.spent_s() + _PRICES_PART * self.left_s()
        bound = price_bound(
            self.made.problem, incumbent=self.value, lower=self.bound,
            deadline=lambda: self.spent_s() >= end, report=self.take_bound,
        )  # fmt: skip
        self.take_bound(bound)

    def solver(self) -> None:
        """CP-SAT: the whole problem, and bounds by superblocks of stages."""
        from slicewise.partition.solvers.plan import run_solvers

        self.is_solving = True
        beside = threading.Thread(target=self.search_beside, daemon=True)
        beside.start()
        try:
            run_solvers(self)
        except MissingDependency as err:
            text = f"{err}; the built-in methods answered alone"
            self.notes.append(Note("solver-missing", text))
            beside.join()
        finally:
            self.is_solving = False
            beside.join()

    def search_beside(self) -> None:
        """Go on with the local search, with another seed, while the solver works."""
        improve(
            self.made.problem,
            self.small_best,
            seed=self.seed + 1,
            deadline=lambda: not self.is_solving or self.left_s() == 0 or self.is_proven(),
            report=lambda cut, _: self.take_cut(cut, "slicegraph"),
        )

    def tell_infeasible(self) -> None:
        """Keep that no cut keeps the limits."""
        self.is_infeasible = self.best is None

    # --- the state

    @property
    def small(self) -> PipelineProblem:
        """The contracted problem."""
        return self.made.problem

    @property
    def threads(self) -> int:
        """Threads that a solver may use."""
        return self.workers or os.cpu_count() or 1

    @property
    def bound(self) -> float:
        """The best bound."""
        return max((bound.value for bound in self.bounds), default=0.0)

    def spent_s(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self.started

    def left_s(self) -> float:
        """Seconds until the time limit."""
        return max(0.0, self.time_limit_s - self.spent_s())

    def is_proven(self) -> bool:
        """True if the gap is closed."""
        return self.best is not None and self.value <= self.bound * (1 + OPTIMAL_GAP)

    def is_done(self) -> bool:
        """True if nothing is left to do."""
        return self.is_infeasible or self.is_proven()

    def answer(self) -> Partition:
        """Return the partition, or raise what keeps from one."""
        if self.best is None:
            if self.is_infeasible:
                raise Infeasible(
                    f"no cut of {self.problem.name!r} into {self.problem.stages} stages keeps its"
                    f" limits; {least_limits(self.problem)}give more stages or memory, or fewer"
                    " constraints"
                )
            longer = "a longer --time-limit, " if self.left_s() == 0 else ""
            raise PartitionError(
                f"no cut of {self.problem.name!r} that keeps its limits was found in"
                f" {self.spent_s():.3g} s; give {longer}more stages or memory, or fewer"
                " constraints"
            )
        if self.lattice_reason and not self.is_proven():
            text = f"the exact method over ideals was given up: {self.lattice_reason}"
            self.notes.append(Note("lattice-incomplete", text))
        bounds = sorted(self.bounds, key=lambda bound: -bound.value)
        value = self.value
        kept = tuple(replace(bound, value=min(bound.value, value)) for bound in bounds)
        return Partition(
            self.best, stage_loads(self.problem, self.best), value, kept, self.method, self.seed,
            self.spent_s(), self.is_complete, unique_notes(self.notes),
        )  # fmt: skip


def least_limits(problem: PipelineProblem) -> str:
    """Return what limits would do, each alone, in words that end with '; ', or ''.

    The least limit of time is the optimum without the limit; that of memory, for like devices, the
    optimum of the problem whose work is memory.
    """
    told = []
    if problem.limit_ms < math.inf:
        free = replace(problem, objective=Objective.BOTTLENECK, limit_ms=math.inf)
        if (least := _least(free)) is not None:
            told.append(f"the slowest stage takes {least:.6g} ms at least")
    kind = problem.kinds[problem.places[0]]
    is_alike = len(set(problem.places)) == 1
    if is_alike and problem.memory_bytes and kind.memory_limit_bytes < math.inf:
        packed = replace(
            problem,
            kinds=tuple(
                replace(
                    each, work_ms=problem.memory_bytes, memory_limit_bytes=math.inf,
                    fast_memory=None,
                )
                for each in problem.kinds
            ),
            transfers=tuple(replace(each, transfer_ms=0.0) for each in problem.transfers),
            links=(),
            replicates=False,
            overlaps=False,
            objective=Objective.BOTTLENECK,
            limit_ms=math.inf,
        )  # fmt: skip
        if (least := _least(packed)) is not None:
            told.append(f"a stage needs {math.ceil(least + kind.reserve_bytes):,} bytes at least")
    return f"{', '.join(told)}; " if told else ""


def _least(problem: PipelineProblem) -> float | None:
    """Return the least value that a short search finds; None: no cut keeps the other limits."""
    try:
        return solve(problem, time_limit_s=_HINT_S).value
    except PartitionError:
        return None


_HINT_S = 1.0

# Most problems are solved by a short search and a small lattice.
_FIRST_SEARCH_S, _FIRST_ROUNDS = 0.5, 12
_SECOND_SEARCH_S = 3.0
_SMALL_LATTICE, _LARGE_LATTICE = 50_000, 300_000
_MOST_BITS = 1_500_000_000  # an ideal has one for each node
# Of the time that is left.
_LATTICE_PART = 0.5
_COARSE_PART = 0.2
_PRICES_PART = 0.25
_MANY_STAGES = 16  # with fewer, windows prove more, and need the time
