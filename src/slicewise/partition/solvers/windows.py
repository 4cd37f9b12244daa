"""Bounds by windows of work: how much of the model may the first b stages hold, if no stage takes
longer than T? Where a window is empty, every cut is slower than T.

One small model per border, of the stage before it (or behind it) and the windows of its ends; each
window that shrinks makes its neighbours' models smaller. Sharpens the prefix bound F_b(T) = max
w(J), I in J, f(J - I) <= T from both ends at once, with the superblocks of all the stages outside.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from slicewise.core.errors import SlicewiseError
from slicewise.core.pipeline import Assignment, Bound, PipelineProblem, Trust
from slicewise.partition.evaluate import like_devices, objective_or_raise
from slicewise.partition.solvers.engine import Engine, Outcome, load_cp_model
from slicewise.partition.solvers.ideals import (
    NOTHING,
    Closure,
    IdealChain,
    Window,
    build_chain,
    close,
    everything,
)
from slicewise.partition.solvers.rounding import (
    Rounded,
    explain_refusal,
    float_below,
    round_down,
)

METHOD = "prefix-windows"
MAX_NODES = 8000  # two n x n bit tables and models of all nodes
_LEAST_STEP_S = 0.3
_STEP_GAP = 200  # a window need not be exact: half a percent of a load
_SHARE = 0.4  # of the time left, for one attempt
_REFUTE_SHARE = 0.6  # of an attempt, for its windows
_MOST_SPAN = 2  # stages in one model
_LITTLE_SLACK = 1  # loads that all stages together have above the work
_QUICK = 0.3  # of its time: an attempt after which the next dares more
_FAR = 1.05  # of all work: what both ends will hold where an attempt is given up
_NARROW = 0.4  # of a load: mean width of the windows within which the whole problem is tried


def supports(problem: PipelineProblem) -> str:
    """Return '' or why the bound does not apply to a problem."""
    if problem.nodes > MAX_NODES:
        return f"{problem.nodes} nodes are more than {MAX_NODES}"
    return explain_refusal(problem)


@dataclass(frozen=True, slots=True)
class WindowResult:
    """The best bound, and a better cut where the search came upon one."""

    bound: Bound | None
    cut: Assignment | None
    is_complete: bool


@dataclass
class _State:
    """Windows that hold for every cut with loads of at most `load`; refuted: there is none."""

    load: int
    windows: list[Window]
    is_refuted: bool = False
    solved: set[tuple[object, ...]] = field(default_factory=set)
    reached: dict[bool, list[int]] = field(default_factory=dict)
    is_hopeless: bool = False

    def reach(self, work: int, *, stages: int, total: int, is_forward: bool) -> None:
        """Note the most work of one more stage from an end; hopeless: at this rate both ends will
        hold more than all work, so that no window becomes empty."""
        self.reached.setdefault(is_forward, []).append(work)
        ends = [self.reached.get(end, []) for end in (True, False)]
        if stages * self.load - total <= _LITTLE_SLACK * self.load or min(map(len, ends)) < 3:
            return
        rates = [(end[-1] - end[0]) / (len(end) - 1) for end in ends]
        left = max(0, stages - sum(map(len, ends)))
        foreseen = sum(end[-1] for end in ends) + left * sum(rates) / 2
        self.is_hopeless = left > 0 and foreseen > _FAR * total

    def shrink(self, border: int, *, least: int = 0, most: int | None = None) -> None:
        """Cut a window down; none is left: refuted."""
        old = self.windows[border]
        new = Window(max(old.least, least), old.most if most is None else min(old.most, most))
        self.windows[border] = new
        self.is_refuted = self.is_refuted or new.least > new.most


def window_bound(
    problem: PipelineProblem,
    *,
    incumbent_ms: float,
    lower_ms: float = 0.0,
    time_limit_s: float = 20.0,
    workers: int = 2,
    seed: int = 0,
    report: Callable[[Bound], None] | None = None,
    report_cut: Callable[[Assignment], None] | None = None,
    stop: threading.Event | None = None,
) -> WindowResult:
    """Return the best bound below `incumbent_ms` that windows prove within the time.

    Bisects between `lower_ms` and it, after asking, where there is little slack, whether there is
    anything better at all; where the windows are narrow, the whole problem is solved within them,
    which also finds cuts. `report` is told of each better bound, `report_cut` of cuts; `stop`
    ends it. Ask `supports` first. `MissingDependency` without ortools.
    """
    rounded = round_down(problem, load_ms=incumbent_ms)
    load_cp_model()
    engine = Engine(time.monotonic() + time_limit_s, seed, stop or threading.Event())
    tell = (report or _ignore, report_cut or _ignore)
    search = _Search(problem, rounded, close(rounded), engine, workers, *tell)
    return search.run(rounded.from_ms(incumbent_ms), rounded.from_ms(lower_ms))


def _ignore(_: object) -> None:
    """Nobody listens."""


@dataclass
class _Search:
    """The state of one bisection."""

    problem: PipelineProblem
    rounded: Rounded
    closure: Closure
    engine: Engine
    workers: int
    report: Callable[[Bound], None]
    report_cut: Callable[[Assignment], None]
    best: Bound | None = None
    cut: Assignment | None = None
    value: int | None = None

    def run(self, incumbent: int, lower: int) -> WindowResult:
        """Bisect. `proven`: no cut is below it; `open_`: could not be refuted in its time."""
        total, stages = self.rounded.total, self.rounded.stages
        proven = max(lower, -(-total // stages))
        inner = [Window(0, total)] * (stages - 1)
        whole = [NOTHING, *inner, everything(self.rounded)]
        open_, tried = incumbent, (proven + incumbent) // 2
        if stages * incumbent - total <= _LITTLE_SLACK * incumbent:
            tried = incumbent - 1  # windows will be narrow: ask for the optimum at once
        while proven < open_ and tried >= proven and self.engine.left_s() > 0:
            state = _State(tried, list(whole))
            limit_s = max(1.0, _SHARE * self.engine.left_s())
            began = time.monotonic()
            found = self.attempt(state, proven, limit_s=limit_s)
            if found > proven:
                proven = found
                self.keep(proven, is_whole=state.is_refuted)
            if not state.is_refuted:
                open_ = tried if self.value is None else min(tried, self.value)
                whole = state.windows  # they hold for every lower load too
            if open_ - proven < incumbent // 20000:
                break
            is_quick = time.monotonic() - began < _QUICK * limit_s
            tried = proven + (open_ - proven) // (2 if is_quick else 3)
        best = incumbent if self.value is None else min(incumbent, self.value)
        return WindowResult(self.best, self.cut, proven >= best)

    def attempt(self, state: _State, proven: int, *, limit_s: float) -> int:
        """Return what no cut is below, after asking whether any is at most `state.load`."""
        began = time.monotonic()
        self.refute(state, limit_s=_REFUTE_SHARE * limit_s)
        widths = [window.most - window.least for window in state.windows]
        is_narrow = sum(widths) <= _NARROW * state.load * len(widths)
        left_s = limit_s - (time.monotonic() - began)
        if not state.is_refuted and is_narrow and left_s > 0:
            found = self.finish(state, proven, limit_s=left_s)
            if found is not None:
                state.is_refuted = found > state.load
                return min(found, state.load + 1)
        return state.load + 1 if state.is_refuted else proven

    def finish(self, state: _State, lower: int, *, limit_s: float) -> int | None:
        """Solve the whole problem within the windows; return the least load they leave, or a bound
        on it, or None. A cut that is found is kept."""
        sizes = [1] * self.rounded.stages
        variables: list[Any] = []

        def load(model: Any) -> Any:
            variables.append(model.new_int_var(lower, state.load, "load"))
            return variables[0]

        chain = build_chain(self.rounded, self.closure, state.windows, sizes=sizes, load=load)
        if chain is None:
            return state.load + 1
        chain.model.minimize(variables[0])
        outcomes: list[Outcome] = []
        self.engine.run([lambda: outcomes.append(self.engine.solve(chain.model, limit_s=limit_s))])
        (outcome,) = outcomes
        if outcome.has_values:
            self.value = round(outcome.solver.objective_value)
            self.take(chain, outcome.solver)
        return state.load + 1 if outcome.status == "INFEASIBLE" else outcome.bound

    def take(self, chain: IdealChain, solver: Any) -> None:
        """Keep the cut of a solution."""
        levels = [
            [bool(x if isinstance(x, int) else solver.value(x)) for x in level]
            for level in chain.levels
        ]
        cut = cut_of_levels(self.problem, levels)
        try:
            objective_or_raise(self.problem, cut)
        except SlicewiseError:  # legal for like devices only, or by rounding
            return
        self.cut = cut
        self.report_cut(cut)

    def keep(self, load: int, *, is_whole: bool) -> None:
        """Record that no cut is below `load` units; `is_whole`: all that is less was refuted."""
        value = float_below(Fraction(load) / self.rounded.scale)
        detail = {
            "status": "INFEASIBLE" if is_whole else "BOUND",
            "shape": [1] * self.rounded.stages,
            "scale": str(self.rounded.scale),
            "rounding": "costs down, bound down",
        }
        self.best = Bound(METHOD, value, Trust.SOLVER, detail)
        self.report(self.best)

    def refute(self, state: _State, *, limit_s: float) -> None:
        """Shrink the windows from both ends until one is empty, none moves, or time is up."""
        stages, total = self.rounded.stages, self.rounded.total
        ends = time.monotonic() + limit_s
        state.is_refuted = total > stages * state.load
        for border in range(1, stages):
            state.shrink(
                border,
                least=total - (stages - border) * state.load,
                most=border * state.load,
            )
        span = 1
        while not state.is_refuted and time.monotonic() < ends and self.engine.left_s() > 0:
            before = list(state.windows)
            state.reached.clear()
            self.sweep_both(state, ends, span=span)
            if state.is_hopeless:
                break
            if state.windows != before and span == 1:
                continue
            span += 1  # nothing moves: models of more stages see more
            if span >= min(stages, _MOST_SPAN + 1):
                break

    def sweep_both(self, state: _State, ends: float, *, span: int) -> None:
        """Sweep from both ends, at once where there are two workers."""
        jobs = [
            lambda: self.sweep(state, ends, span=span, is_forward=True),
            lambda: self.sweep(state, ends, span=span, is_forward=False),
        ]
        if self.workers > 1:
            self.engine.run(jobs)
            return
        for job in jobs:
            self.engine.run([job])

    def sweep(self, state: _State, ends: float, *, span: int, is_forward: bool) -> None:
        """Tighten one end of the window of every border, one after the other."""
        stages = self.rounded.stages
        borders = range(1, stages) if is_forward else range(stages - 1, 0, -1)
        for done, border in enumerate(borders):
            left_s = ends - time.monotonic()
            if state.is_refuted or state.is_hopeless or left_s <= 0 or self.engine.left_s() <= 0:
                return
            step_s = max(_LEAST_STEP_S, 2.5 * left_s / (stages - 1 - done))
            limit = min(step_s, left_s)
            self.step(state, border, span=span, is_forward=is_forward, limit_s=limit)
            window, total = state.windows[border], self.rounded.total
            work = window.most if is_forward else total - window.least
            state.reach(work, stages=stages, total=total, is_forward=is_forward)

    def step(
        self, state: _State, border: int, *, span: int, is_forward: bool, limit_s: float
    ) -> None:
        """Tighten one end of one window: the most work in front of it, or the least."""
        stages = self.rounded.stages
        first = max(0, border - span) if is_forward else border
        last = border if is_forward else min(stages, border + span)
        windows = state.windows[first : last + 1]
        key = (first, is_forward, *windows)
        if key in state.solved:
            return
        sizes = [1] * (last - first)
        target = last - first if is_forward else 0
        if first > 0:  # all stages before it are one block, all behind it another
            windows, sizes, target = [NOTHING, *windows], [first, *sizes], target + 1
        if last < stages:
            windows, sizes = [*windows, everything(self.rounded)], [*sizes, stages - last]
        chain = build_chain(self.rounded, self.closure, windows, sizes=sizes, load=state.load)
        if chain is None:
            state.is_refuted = True
            return
        work = chain.works[target]
        if isinstance(work, int):
            return
        (chain.model.maximize if is_forward else chain.model.minimize)(work)
        gap = state.load // _STEP_GAP
        outcome = self.engine.solve(chain.model, limit_s=limit_s, cuts=False, gap=gap)
        if outcome.status == "INFEASIBLE":
            state.is_refuted = True
        if outcome.status == "OPTIMAL":
            state.solved.add(key)
        if outcome.bound is not None:
            if is_forward:
                state.shrink(border, most=outcome.bound)
            else:
                state.shrink(border, least=outcome.bound)


def cut_of_levels(problem: PipelineProblem, levels: Sequence[Sequence[bool]]) -> Assignment:
    """Return the cut whose stage b is what ideal b + 1 has and ideal b has not."""
    stage_of = [
        next(index for index, level in enumerate(levels[1:]) if level[node])
        for node in range(problem.nodes)
    ]
    return like_devices(problem, stage_of)
