"""Relaxations as plain linear and mixed-integer models, in the paper's order of strength.

    combinatorial     work over stages, or the largest node: no model
    bottleneck        some stage has W / k of the work: the cheapest such stage (LP or MIP)
    guess-bottleneck  stage b is that stage, what lies before and behind it are superblocks; the
                      least over all b (MIP)
    exact             every stage by itself (LP, or MIP to a time limit)

Solved by HiGHS (of the `dev` extra), which shares no code with CP-SAT: a second opinion in tests
and benchmarks, never on a user's way. Named after Archer et al., arXiv 2311.03703; rows are ours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from slicewise.core.errors import MissingDependency
from slicewise.core.pipeline import PipelineProblem
from slicewise.partition.bounds import combinatorial_bounds
from slicewise.partition.solvers.rounding import Rounded, explain_refusal, round_down

_TOLERANCE = 1e-6  # of HiGHS, for rows and whole numbers


class Relaxation(StrEnum):
    """The relaxations, weakest first."""

    COMBINATORIAL = "combinatorial"
    BOTTLENECK_LP = "bottleneck-lp"
    BOTTLENECK = "bottleneck-mip"
    GUESS = "guess-bottleneck-mip"
    EXACT_LP = "exact-lp"
    EXACT = "exact-mip"


@dataclass
class LinearModel:
    """Minimise the first column. Rows are (least, most, columns, factors)."""

    least: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)
    is_whole: list[bool] = field(default_factory=list)
    rows: list[tuple[float, float, list[int], list[float]]] = field(default_factory=list)

    def column(self, least: float, most: float, *, is_whole: bool) -> int:
        """Add a column and return its number."""
        self.least.append(least)
        self.most.append(most)
        self.is_whole.append(is_whole)
        return len(self.least) - 1

    def row(self, least: float, most: float, terms: Sequence[tuple[int, float]]) -> None:
        """Add a row; a column may occur in several terms."""
        sums: dict[int, float] = {}
        for column, factor in terms:
            sums[column] = sums.get(column, 0.0) + factor
        self.rows.append((least, most, list(sums), list(sums.values())))


def supports(problem: PipelineProblem) -> str:
    """Return '' or why the relaxations do not apply to a problem."""
    return explain_refusal(problem)


def relax(problem: PipelineProblem, kind: Relaxation, *, time_limit_s: float = 60.0) -> float:
    """Return a bound in ms by one relaxation; 0 where the time was too short for any.

    The loads are rounded down to whole units and HiGHS's tolerance is taken off.
    `MissingDependency` without highspy.
    """
    if kind is Relaxation.COMBINATORIAL:
        return max(bound.value for bound in combinatorial_bounds(problem))
    rounded = round_down(problem, load_ms=2 * sum_of_work(problem) / problem.stages)
    stages = rounded.stages
    if kind in (Relaxation.BOTTLENECK, Relaxation.BOTTLENECK_LP):
        models = [build([1], rounded, heavy=0, is_open=True)]
    elif kind is Relaxation.GUESS:
        models = []
        for stage in range(stages):
            sizes = [size for size in (stage, 1, stages - stage - 1) if size]
            models.append(build(sizes, rounded, heavy=int(stage > 0)))
    else:
        models = [build([1] * stages, rounded)]
    is_linear = kind in (Relaxation.BOTTLENECK_LP, Relaxation.EXACT_LP)
    each_s = time_limit_s / len(models)
    units = [solve_highs(model, is_linear=is_linear, time_limit_s=each_s) for model in models]
    return rounded.to_ms(max(0, min(units)))


def relax_shape(
    problem: PipelineProblem,
    shape: Sequence[int],
    *,
    load_ms: float,
    heavy: int | None = None,
    time_limit_s: float = 60.0,
) -> float:
    """Return the bound in ms of superblocks of a shape, as `superblocks` finds it by CP-SAT.

    `load_ms` sets the unit. `heavy`: the block that must have W / k of the work; with the shape
    (1,) that is the bottleneck stage.
    """
    rounded = round_down(problem, load_ms=load_ms)
    model = build(shape, rounded, heavy=heavy, is_open=tuple(shape) == (1,) and heavy == 0)
    return rounded.to_ms(max(0, solve_highs(model, is_linear=False, time_limit_s=time_limit_s)))


def sum_of_work(problem: PipelineProblem) -> float:
    """Return the work of all nodes, each on its fastest device, in ms."""
    kinds = [problem.kinds[kind] for kind in set(problem.places)]
    works = (min(kind.work_ms[node] for kind in kinds) for node in range(problem.nodes))
    return math.fsum(work for work in works if work < math.inf)


def build(
    sizes: Sequence[int],
    rounded: Rounded,
    *,
    heavy: int | None = None,
    is_open: bool = False,
) -> LinearModel:
    """Return the model of superblocks of `sizes` in a row; the first column is the load.

    `heavy` is the block that must have W / k of the work. `is_open`: the blocks need not begin
    with the first nor end with the last node.
    """
    model = LinearModel()
    load = model.column(0, math.inf, is_whole=False)
    count = len(rounded.work)
    levels = []
    for index in range(len(sizes) + 1):
        is_first, is_last = index == 0 and not is_open, index == len(sizes) and not is_open
        levels.append(
            [
                model.column(float(is_last), float(not is_first), is_whole=True)
                for _ in range(count)
            ]
        )
    for level in levels:
        _add_order(model, rounded, level)
    for index, size in enumerate(sizes):
        inner, outer = levels[index], levels[index + 1]
        for first, second in zip(inner, outer, strict=True):
            model.row(0, math.inf, [(second, 1), (first, -1)])
        work = [(x, float(w)) for w, x in zip(rounded.work, outer, strict=True)]
        work += [(x, -float(w)) for w, x in zip(rounded.work, inner, strict=True)]
        received = _charge(model, rounded, (inner, outer), is_sent=False)
        sent = _charge(model, rounded, (inner, outer), is_sent=True)
        parts = [work, received, sent] if rounded.overlaps else [work + received + sent]
        for part in parts:
            model.row(-math.inf, 0, [*part, (load, -float(size))])
        if rounded.memory_limit is not None:
            held = [(x, float(m)) for m, x in zip(rounded.memory, outer, strict=True)]
            held += [(x, -float(m)) for m, x in zip(rounded.memory, inner, strict=True)]
            model.row(-math.inf, float(size * rounded.memory_limit), held)
        if index == heavy:
            model.row(float(-(-rounded.total // rounded.stages)), math.inf, work)
    return model


def _add_order(model: LinearModel, rounded: Rounded, level: Sequence[int]) -> None:
    for tensor in rounded.tensors:
        for node in tensor.consumers:
            model.row(0, math.inf, [(level[tensor.producer], 1), (level[node], -1)])
    for group in rounded.together:
        for node in group[1:]:
            model.row(0, 0, [(level[group[0]], 1), (level[node], -1)])


def _charge(
    model: LinearModel,
    rounded: Rounded,
    ends: tuple[Sequence[int], Sequence[int]],
    *,
    is_sent: bool,
) -> list[tuple[int, float]]:
    """Add what a block receives or sends; return the terms of its cost.

    Received: in the inner ideal, with a consumer in the block. Sent: made in the block, with a
    consumer outside the outer ideal. With hops: crosses the border.
    """
    inner, outer = ends
    terms = []
    for tensor in rounded.tensors:
        if not tensor.cost:
            continue
        made = tensor.producer
        paid = model.column(0, 1, is_whole=False)  # whole where the ideals are
        terms.append((paid, float(tensor.cost)))
        for node in tensor.consumers:
            if rounded.hops:
                end = outer if is_sent else inner
                row = [(paid, 1.0), (end[made], -1.0), (end[node], 1.0)]
            elif is_sent:
                row = [(paid, 1.0), (outer[made], -1.0), (inner[made], 1.0), (outer[node], 1.0)]
            else:
                row = [(paid, 1.0), (outer[node], -1.0), (inner[node], 1.0), (inner[made], -1.0)]
            model.row(0.0 if rounded.hops or is_sent else -1.0, math.inf, row)
    return terms


def solve_highs(model: LinearModel, *, is_linear: bool, time_limit_s: float) -> int:
    """Return whole units that the model's load cannot be below, by HiGHS; 0 if it proved none."""
    try:
        import highspy
        import numpy as np
    except ImportError as err:
        raise MissingDependency("a relaxation", package="highspy", extra="dev") from err
    solver: Any = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("time_limit", time_limit_s)
    solver.setOptionValue("mip_rel_gap", 0.0)
    for column, (least, most) in enumerate(zip(model.least, model.most, strict=True)):
        solver.addVar(least, most)
        if model.is_whole[column] and not is_linear:
            solver.changeColIntegrality(column, highspy.HighsVarType.kInteger)
    solver.changeColCost(0, 1.0)
    for low, high, columns, factors in model.rows:
        indices = np.array(columns, dtype=np.int32)
        solver.addRow(low, high, len(columns), indices, np.array(factors, dtype=np.float64))
    solver.run()
    status = solver.getModelStatus()
    info = solver.getInfo()
    if is_linear:
        is_known = status == highspy.HighsModelStatus.kOptimal
        bound = info.objective_function_value if is_known else 0.0
    else:
        known = (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kTimeLimit)
        bound = info.mip_dual_bound if status in known else 0.0
    if not 0 < bound < math.inf:
        return 0
    return math.floor(bound * (1 - _TOLERANCE))
