"""A solver for tests of what stands before and behind one: the best runs of the given order.

Quick, plain, always the same answer, the same seconds: what it finds is written into golden files.
"""

import itertools
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from slicewise.core.errors import Infeasible, SlicewiseError
from slicewise.core.notes import Note
from slicewise.core.pipeline import Assignment, Bound, Objective, Partition, PipelineProblem, Trust
from slicewise.flows.partitioning.baselines import _balanced_work
from slicewise.partition.evaluate import objective_or_raise, stage_loads

_MOST_CUTS = 3000


@dataclass(frozen=True)
class Progress:
    """As that of the portfolio."""

    value: float
    bound: float
    method: str
    seconds: float


def solve(
    problem: PipelineProblem,
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    workers: int | None = None,
    method: str = "auto",
    report: Callable[[Progress], None] | None = None,
) -> Partition:
    """Return the best cut into runs; without replicas, on the places as they stand."""
    best: tuple[float, Assignment] | None = None
    for stage_of in _rows(problem):
        cut = Assignment(tuple(stage_of), problem.places, (1,) * problem.stages)
        try:
            value = objective_or_raise(problem, cut)
        except SlicewiseError:
            continue
        if best is None or value < best[0]:
            best = value, cut
    if best is None:
        raise Infeasible(f"no cut of {problem.name!r} keeps the limits; loosen them")
    value, cut = best
    loads = stage_loads(problem, cut)
    works = [min(kind.work_ms[i] for kind in problem.kinds) for i in range(problem.nodes)]
    least = max(sum(works) / problem.stages, *works, 0.0)
    bound = Bound("combinatorial", least, Trust.CHECKED)
    if problem.objective is Objective.ENERGY:
        bound = Bound("combinatorial", 0.0, Trust.CHECKED)
    if report is not None:
        report(Progress(value, bound.value, "runs", 0.1))
    return Partition(cut, loads, value, (bound,), "runs", seed, 0.25)


def _rows(problem: PipelineProblem) -> list[list[int]]:
    count, stages = problem.nodes, min(problem.stages, problem.nodes)
    made = [_balanced_work(problem)]
    ends = itertools.combinations_with_replacement(range(count + 1), stages - 1)
    for _, row in zip(range(_MOST_CUTS), ends, strict=False):
        made.append([sum(end <= node for end in row) for node in range(count)])
    return made


def interrupted(problem: PipelineProblem, **asked: object) -> Partition:
    """Return what Ctrl-C leaves: a cut, marked."""
    from dataclasses import replace

    note = Note("search-interrupted", "interrupted: the best cut and bound until then")
    found = solve(problem)
    return replace(found, is_complete=False, notes=(note,), bounds=())


def install(monkeypatch: pytest.MonkeyPatch, *, solver: object = solve) -> None:
    """Put a solver in the place of the portfolio."""
    module = types.ModuleType("slicewise.partition.portfolio")
    module.__dict__.update(Progress=Progress, solve=solver)
    monkeypatch.setitem(sys.modules, "slicewise.partition.portfolio", module)
