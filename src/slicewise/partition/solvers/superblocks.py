"""Bounds by superblocks: groups of neighbouring stages merged, each as large as its stages' loads.

A group of s stages does its work, receives what it uses from outside once at least, and sends what
it makes: no more than s times the slowest stage. True for every choice of sizes; the finer, the
stronger and the slower. Also the bottleneck stage: some stage has W / k of the work or more.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from slicewise.core.pipeline import Bound, PipelineProblem, Trust
from slicewise.partition.solvers.engine import Engine, Outcome, load_cp_model
from slicewise.partition.solvers.ideals import (
    NOTHING,
    Closure,
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

METHOD = "superblock"
STAGE_METHOD = "bottleneck-stage"
MAX_NODES = 8000
_SHARE = 0.25  # of the time left, for one shape


def supports(problem: PipelineProblem) -> str:
    """Return '' or why the bounds do not apply to a problem."""
    if problem.nodes > MAX_NODES:
        return f"{problem.nodes} nodes are more than {MAX_NODES}"
    return explain_refusal(problem)


def superblock_bounds(
    problem: PipelineProblem,
    *,
    incumbent_ms: float,
    time_limit_s: float = 20.0,
    workers: int = 1,
    seed: int = 0,
    report: Callable[[Bound], None] | None = None,
) -> tuple[Bound, ...]:
    """Return the best bound of each kind within the time: `superblock`, `bottleneck-stage`.

    `incumbent_ms` is the value of a cut: only whether there are better ones is asked. Ask
    `supports` first. `MissingDependency` without ortools.
    """
    load_cp_model()
    rounded = round_down(problem, load_ms=incumbent_ms)
    engine = Engine(time.monotonic() + time_limit_s, seed)
    most = rounded.from_ms(incumbent_ms)
    search = _Search(rounded, close(rounded), engine, workers, most, report)
    engine.run([search.run])
    return tuple(search.best.values())


def shapes(stages: int) -> Iterator[tuple[int, ...]]:
    """Yield sizes of superblocks that sum to `stages`, the quick ones first, without repeats.

    >>> list(shapes(4))
    [(2, 2), (1, 3), (3, 1), (1, 1, 2), (2, 1, 1), (1, 1, 1, 1)]
    """
    seen: set[tuple[int, ...]] = set()
    half = stages // 2
    rows: list[tuple[int, ...]] = [(stages - half, half), (1, stages - 1), (stages - 1, 1)]
    middle = sorted(range(stages), key=lambda b: abs(2 * b + 1 - stages))
    for width in (1, 2, 3):
        rows += [(b, *[1] * width, stages - b - width) for b in middle if b + width <= stages]
    for row in rows:
        shape = tuple(size for size in row if size > 0)
        if sum(shape) == stages and shape not in seen and len(shape) > 1:
            seen.add(shape)
            yield shape


@dataclass
class _Search:
    """The bounds so far."""

    rounded: Rounded
    closure: Closure
    engine: Engine
    workers: int
    most: int
    report: Callable[[Bound], None] | None
    best: dict[str, Bound] = field(default_factory=dict)
    proven: int = 0

    def run(self) -> None:
        """Try the bottleneck stage, then shape after shape until the time or the gap is gone."""
        stages = self.rounded.stages
        self.proven = -(-self.rounded.total // stages)
        self.bottleneck_stage()
        for shape in shapes(stages):
            if self.engine.left_s() <= 0 or self.proven >= self.most:
                return
            borders = [sum(shape[:index]) for index in range(len(shape) + 1)]
            self.solve([self.window(border) for border in borders], shape, METHOD)

    def window(self, border: int) -> Window:
        """Return what the first `border` stages hold in any cut as good as the incumbent."""
        if border in (0, self.rounded.stages):
            return NOTHING if border == 0 else everything(self.rounded)
        total, behind = self.rounded.total, self.rounded.stages - border
        return Window(max(0, total - behind * self.most), min(total, border * self.most))

    def bottleneck_stage(self) -> None:
        """Bound the stage with the most work by the cheapest of all that have W / k."""
        total = self.rounded.total
        self.solve([Window(0, total), Window(0, total)], (1,), STAGE_METHOD)

    def solve(self, windows: Sequence[Window], shape: tuple[int, ...], method: str) -> None:
        """Minimise the load of superblocks; keep what is proven."""
        loads: list[Any] = []

        def load(model: Any) -> Any:
            loads.append(model.new_int_var(self.proven, self.most, "load"))
            return loads[0]

        chain = build_chain(self.rounded, self.closure, windows, sizes=shape, load=load)
        if chain is None:
            self.keep(self.most, shape, method, "INFEASIBLE")
            return
        if method == STAGE_METHOD:
            share = -(-self.rounded.total // self.rounded.stages)
            chain.model.add(chain.works[1] - chain.works[0] >= share)
        chain.model.minimize(loads[0])
        limit_s = max(0.5, _SHARE * self.engine.left_s())
        outcome: Outcome = self.engine.solve(chain.model, limit_s=limit_s, workers=self.workers)
        if outcome.status == "INFEASIBLE":
            self.keep(self.most, shape, method, outcome.status)
        elif outcome.bound is not None:
            self.keep(outcome.bound, shape, method, outcome.status)

    def keep(self, units: int, shape: tuple[int, ...], method: str, status: str) -> None:
        """Record a bound, if it is better than all before: else the model knew it already."""
        if units <= self.proven:
            return
        value = float_below(Fraction(units) / self.rounded.scale)
        detail = {
            "status": status,
            "shape": list(shape),
            "scale": str(self.rounded.scale),
            "rounding": "costs down, bound down",
        }
        self.best[method] = Bound(method, value, Trust.SOLVER, detail)
        self.proven = units
        if self.report is not None:
            self.report(self.best[method])
