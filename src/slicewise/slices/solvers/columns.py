"""Column generation: the linear program over patterns and layouts, solved by GLOP.

Its duals are the prices of slices; a round adds each workload's cheapest pattern at them. What the
prices prove is computed by `packing/prices.py`; nothing here is taken for a bound.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slicewise.slices.packing.material import Material
from slicewise.slices.packing.patterns import (
    Patterns,
    Pick,
    cheapest,
    cost_of,
    factor_for,
    whole_prices,
)
from slicewise.slices.packing.prices import Floats, Proof, proven
from slicewise.slices.solvers.engine import load_linear_solver

_MOST_ROUNDS = 200
_EPSILON = 1e-7


@dataclass(frozen=True, slots=True)
class Relaxed:
    """The optimum of the linear program: the part of each pattern (row), and of left workloads.

    `is_converged`: no pattern at all would lower `cost`.
    """

    parts: dict[int, list[tuple[Pick, float]]]
    left: tuple[int, ...]
    cost: float
    proof: Proof
    is_converged: bool


@dataclass
class _Program:
    """The linear program with the columns so far."""

    material: Material
    patterns: Patterns
    penalty: float
    solver: Any = field(init=False)
    rows: list[Any] = field(default_factory=list)
    slices: list[Any] = field(default_factory=list)
    columns: dict[tuple[int, Pick], Any] = field(default_factory=dict)
    left: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        linear = load_linear_solver()
        self.solver = linear.Solver("columns", linear.Solver.GLOP_LINEAR_PROGRAMMING)
        infinity = self.solver.infinity()
        objective = self.solver.Objective()
        objective.SetMinimization()
        self.slices = [self.solver.Constraint(0, infinity) for _ in self.material.resources]
        for cards in self.material.cards:
            most = infinity if cards.count is None else cards.count
            stock = self.solver.Constraint(0, most)
            for layout in cards.layouts.tolist():
                column = self.solver.NumVar(0, infinity, "")
                objective.SetCoefficient(column, cards.cost / self.material.scale)
                stock.SetCoefficient(column, 1)
                for resource, count in enumerate(layout):
                    if count:
                        self.slices[resource].SetCoefficient(column, count)
        for _ in self.material.options:
            row = self.solver.Constraint(1, infinity)
            column = self.solver.NumVar(0, infinity, "")
            objective.SetCoefficient(column, self.penalty)
            row.SetCoefficient(column, 1)
            self.rows.append(row)
            self.left.append(column)

    def add(self, workload: int, pick: Pick, cost: int) -> bool:
        """Add the column of a pattern; False if it is there."""
        if (workload, pick) in self.columns:
            return False
        column = self.solver.NumVar(0, self.solver.infinity(), "")
        self.solver.Objective().SetCoefficient(column, cost / self.material.scale)
        self.rows[workload].SetCoefficient(column, 1)
        for resource, count in enumerate(self.patterns.usage_of(workload, pick).tolist()):
            if count:
                self.slices[resource].SetCoefficient(column, -count)
        self.columns[workload, pick] = column
        return True

    def solve(self) -> bool:
        """Return True if the optimum was found."""
        linear = load_linear_solver()
        return bool(self.solver.Solve() == linear.Solver.OPTIMAL)


def relax(
    material: Material,
    patterns: Patterns,
    start: Floats,
    *,
    upper: int,
    is_over: Callable[[], bool],
    report: Callable[[Proof], None],
) -> Relaxed | None:
    """Return the linear optimum over all patterns; None if time ends before the first.

    `upper` is what some answer costs at most; every round's prices are reported with what they
    prove if that is more than before.
    """
    penalty = 40.0 * max(1.0, *(c.cost / material.scale for c in material.cards))
    program = _Program(material, patterns, penalty)
    _add_cheapest(program, start, rivals=3)
    best: Proof | None = None
    found: Relaxed | None = None
    for _ in range(_MOST_ROUNDS):
        if is_over() or not program.solve():
            break
        # all is read before a column is added: that makes GLOP forget its solution
        cost = program.solver.Objective().Value() * material.scale
        prices = np.array([max(0.0, row.dual_value()) for row in program.slices])
        duals = [row.dual_value() * material.scale for row in program.rows]
        left = tuple(w for w, v in enumerate(program.left) if v.solution_value() > _EPSILON)
        parts: dict[int, list[tuple[Pick, float]]] = {}
        for (w, pick), column in program.columns.items():
            if column.solution_value() > _EPSILON:
                parts.setdefault(w, []).append((pick, column.solution_value()))
        proof = proven(material, patterns, prices * material.scale, upper=upper)
        patterns.stack()
        if best is None or proof.cost > best.cost:
            best = proof
            report(proof)
        has_grown = _add_cheapest(program, prices * material.scale, duals)
        if left and not has_grown and penalty < 1e7:
            penalty *= 100  # a dear workload is left out for its price, not for want of cards
            for column in program.left:
                program.solver.Objective().SetCoefficient(column, penalty)
            continue
        found = Relaxed(parts, left, cost, best, not has_grown)
        if not has_grown:
            break
    return found


def _add_cheapest(
    program: _Program, prices: Floats, duals: Sequence[float] | None = None, *, rivals: int = 1
) -> bool:
    """Add each workload's cheapest patterns at the prices; True if any is new and of use.

    `duals` is what a pattern must cost less than; without it any is of use.
    """
    material, patterns = program.material, program.patterns
    priced = patterns.usage @ prices + patterns.cost
    has_grown = False
    for w, options in enumerate(material.options):
        most = math.inf if duals is None else duals[w] - _EPSILON * material.scale
        if patterns.is_complete[w] or duals is None:
            rows = priced[patterns.first[w] : patterns.first[w + 1]]
            for i in np.argsort(rows, kind="stable")[:rivals].tolist():
                if rows[i] < most:
                    cost = int(patterns.cost[patterns.first[w] + i])
                    has_grown |= program.add(w, patterns.picks[w][i], cost)
            continue
        pick = _cheapest_of(patterns, w, prices)
        own = cost_of(options, pick)
        if float(patterns.usage_of(w, pick) @ prices) + own < most:
            has_grown |= program.add(w, pick, own)
    patterns.stack()
    return has_grown


def _cheapest_of(patterns: Patterns, workload: int, prices: Floats) -> Pick:
    factor = factor_for(int(prices.max() * 1000) + 1)
    whole = whole_prices(prices.tolist(), factor).tolist()
    _, pick = cheapest(patterns.material.options[workload], whole, factor)
    patterns.add(workload, pick)
    return pick
