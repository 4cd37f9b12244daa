"""Relaxations by HiGHS: valid, in the paper's order of strength, and one opinion with CP-SAT."""

import math
import sys

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slicewise.core.errors import Infeasible, MissingDependency
from slicewise.core.pipeline import PipelineProblem, StageDevice, Transfer
from slicewise.partition.evaluate import objective_or_raise
from slicewise.partition.solvers.cpsat import solve_cpsat
from slicewise.partition.solvers.relaxations import Relaxation, relax, relax_shape, supports
from slicewise.partition.solvers.superblocks import superblock_bounds
from slicewise.partition.solvers.windows import window_bound
from slicewise.testing.pipelines import optimum, problems

pytest.importorskip("highspy", reason="HiGHS is the second opinion; it is not installed")

_CLOSE = 2e-5  # units of 2^-24 of a load, and HiGHS's tolerance of 1e-6


@settings(max_examples=12, deadline=None)
@given(problems(max_nodes=5))
def test_no_relaxation_is_above_the_optimum(problem: PipelineProblem) -> None:
    assume(not supports(problem))
    best = optimum(problem, objective_or_raise)
    assume(best < math.inf)
    for kind in Relaxation:
        try:
            assert relax(problem, kind) <= best * (1 + 1e-12)
        except Infeasible:
            pytest.fail("a problem with a cut is not infeasible")


@settings(max_examples=12, deadline=None)
@given(problems("plain", max_nodes=5))
def test_each_relaxation_is_as_strong_as_the_one_it_refines(problem: PipelineProblem) -> None:
    best = optimum(problem, objective_or_raise)
    values = {kind: relax(problem, kind) for kind in Relaxation}
    slack = best * _CLOSE
    assert values[Relaxation.BOTTLENECK_LP] <= values[Relaxation.BOTTLENECK] + slack
    assert values[Relaxation.BOTTLENECK] <= values[Relaxation.GUESS] + slack
    assert values[Relaxation.GUESS] <= values[Relaxation.EXACT] + slack
    assert values[Relaxation.EXACT_LP] <= values[Relaxation.EXACT] + slack
    assert values[Relaxation.EXACT] == pytest.approx(best, rel=_CLOSE)


def diamonds(count: int, *, stages: int) -> PipelineProblem:
    """A row of diamonds, unlike in their works and costs."""
    transfers = []
    for index in range(count):
        first = 3 * index
        cost_ms = 0.3 + index % 3 / 7
        transfers.append(Transfer(first, (first + 1, first + 2), cost_ms))
        transfers.append(Transfer(first + 1, (first + 3,), 0.2 + cost_ms))
        transfers.append(Transfer(first + 2, (first + 3,), 0.4))
    works = tuple(1.0 + node * 5 % 7 / 3 for node in range(3 * count + 1))
    names = tuple(f"n{node}" for node in range(3 * count + 1))
    return PipelineProblem(
        "diamonds", names, tuple(transfers), (StageDevice("d", works),), (0,) * stages
    )


def test_highs_solves_the_solvers_bounds_to_the_same_values() -> None:
    problem = diamonds(4, stages=3)
    best = optimum(problem, objective_or_raise)
    exact = relax(problem, Relaxation.EXACT)
    solved = solve_cpsat(problem, workers=1)
    assert solved.bound is not None
    assert solved.bound.value == pytest.approx(exact, rel=_CLOSE)
    assert exact == pytest.approx(best, rel=_CLOSE)
    proven = window_bound(problem, incumbent_ms=best, workers=1)
    assert proven.bound is not None and proven.bound.value <= exact * (1 + _CLOSE)
    for bound in superblock_bounds(problem, incumbent_ms=best * 1.2):
        shape = bound.detail["shape"]
        assert isinstance(shape, list)
        heavy = 0 if bound.method == "bottleneck-stage" else None
        again = relax_shape(problem, shape, load_ms=best * 1.2, heavy=heavy)
        assert again == pytest.approx(bound.value, rel=_CLOSE)


@settings(max_examples=10, deadline=None)
@given(problems("plain", max_nodes=6), st.integers(0, 2))
def test_superblocks_by_highs_are_valid_for_every_shape(
    problem: PipelineProblem, before: int
) -> None:
    best = optimum(problem, objective_or_raise)
    before = min(before, problem.stages - 1)
    shape = [size for size in (before, 1, problem.stages - before - 1) if size]
    assert relax_shape(problem, shape, load_ms=max(best, 1.0)) <= best * (1 + 1e-12)


def test_a_missing_solver_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(MissingDependency, match=r"pip install 'slicewise\[dev\]'"):
        relax(diamonds(2, stages=2), Relaxation.EXACT)
