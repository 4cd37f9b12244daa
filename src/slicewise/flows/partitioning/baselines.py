"""How people split models without a solver, judged by the same costs: what a cut is compared with.

Runs of the topological order: with an equal number of nodes (what equal layers come to), and with
the least greatest work, whatever the transfers cost (torchgpipe's rule). Both ignore every other
constraint, and may break them.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from slicewise.core.errors import SlicewiseError
from slicewise.core.pipeline import Assignment, PipelineProblem


@dataclass(frozen=True, slots=True)
class Baseline:
    """A split by a simple rule. `value` is its objective (ms or J), None where `broken` says what
    it does not keep; `value` is kept beside where it only breaks limits."""

    rule: str
    value: float | None
    broken: str = ""


def baselines(problem: PipelineProblem) -> tuple[Baseline, ...]:
    """Return the splits by equal number of nodes and by balanced work, each with its objective."""
    return (
        _judged(problem, "equal number of nodes", _equal_count(problem)),
        _judged(problem, "balanced work", _balanced_work(problem)),
    )


def _judged(problem: PipelineProblem, rule: str, stage_of: Sequence[int]) -> Baseline:
    from slicewise.partition.evaluate import (
        broken_limits,
        objective_of,
        stage_loads,
    )

    cut = Assignment(tuple(stage_of), problem.places, (1,) * problem.stages)
    try:
        loads = stage_loads(problem, cut)
    except SlicewiseError as err:
        return Baseline(rule, None, str(err))
    value = objective_of(problem, loads)
    broken = broken_limits(problem, loads)
    return Baseline(rule, value if value < math.inf else None, broken[0] if broken else "")


def _equal_count(problem: PipelineProblem) -> list[int]:
    """Return stages of equal size, the remainder to the first ones."""
    count, stages = problem.nodes, problem.stages
    size, more = divmod(count, stages)
    ends = list(accumulate(size + (stage < more) for stage in range(stages)))
    return [bisect_left(ends, node + 1) for node in range(count)]


def _balanced_work(problem: PipelineProblem) -> list[int]:
    """Return the runs whose greatest work is least, each on the device at its place.

    Filling stages greedily under a limit tells whether the limit can be kept; bisection finds the
    least one to 1e-9 of the whole work. Time O(stages x log nodes) for each of about 30 limits.
    """
    sums = {
        place: [0.0, *accumulate(problem.kinds[place].work_ms)] for place in set(problem.places)
    }
    high = max(table[-1] for table in sums.values())
    if not high < math.inf:
        finite = [table for table in sums.values() if table[-1] < math.inf]
        if not finite:
            return _equal_count(problem)
        high = max(table[-1] for table in finite)
    low = 0.0
    best = _filled(problem, sums, high)
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        ends = _filled(problem, sums, middle)
        if ends is None:
            low = middle
        else:
            best, high = ends, middle
    if best is None:
        return _equal_count(problem)
    return [bisect_left(best, node + 1) for node in range(problem.nodes)]


def _filled(
    problem: PipelineProblem, sums: dict[int, list[float]], most_ms: float
) -> list[int] | None:
    """Return the end of each stage if each takes what it can under a limit; None: not all fit."""
    ends = []
    start = 0
    for place in problem.places:
        table = sums[place]
        end = start
        if table[start] < math.inf:
            allowed = table[start] + most_ms * (1 + 1e-12)
            end = max(start, bisect_left(table, allowed) - 1)
            while end < problem.nodes and table[end + 1] <= allowed:
                end += 1
        ends.append(end)
        start = end
    return ends if start == problem.nodes else None
