"""CP-SAT on the whole problem: what it proves is the optimum, of every variant it takes."""

import math
import sys
import threading

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slicewise.core.errors import MissingDependency
from slicewise.core.pipeline import (
    FastMemory,
    PipelineProblem,
    StageDevice,
    Transfer,
    Trust,
)
from slicewise.partition.evaluate import like_devices, objective_or_raise
from slicewise.partition.solvers.cpsat import CpSatProgress, solve_cpsat, supports
from slicewise.testing.pipelines import VARIANTS, optimum, problems

_SOLVED = [variant for variant in VARIANTS if variant != "fast"]


def chain(*works: float, cost_ms: float = 1.0, stages: int = 2) -> PipelineProblem:
    """A chain of nodes, each tensor as costly as the others."""
    count = len(works)
    return PipelineProblem(
        "chain",
        tuple(f"n{node}" for node in range(count)),
        tuple(Transfer(n, (n + 1,), cost_ms) for n in range(count - 1)),
        (StageDevice("d", works),),
        (0,) * stages,
    )


@pytest.mark.parametrize("variant", _SOLVED)
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_what_is_solved_is_the_optimum(variant: str, data: st.DataObject) -> None:
    _check_solved(data.draw(problems(variant)))


@settings(max_examples=25, deadline=None)
@given(problems())
def test_mixed_variants_are_solved_too(problem: PipelineProblem) -> None:
    assume(not supports(problem))
    _check_solved(problem)


def _check_solved(problem: PipelineProblem) -> None:
    best = optimum(problem, objective_or_raise)
    found = solve_cpsat(problem, workers=1)
    assert found.is_complete
    if best == math.inf:
        assert found.is_infeasible and found.cut is None and found.bound is None
        return
    assert found.cut is not None and found.bound is not None
    assert objective_or_raise(problem, found.cut) == pytest.approx(best, rel=1e-6)
    assert best * (1 - 1e-5) <= found.bound.value <= best * (1 + 1e-12)
    assert found.bound.trust is Trust.SOLVER


@settings(max_examples=20, deadline=None)
@given(problems("plain", max_nodes=5))
def test_a_warm_start_and_a_known_bound_change_nothing(problem: PipelineProblem) -> None:
    best = optimum(problem, objective_or_raise)
    warm = like_devices(problem, (0,) * problem.nodes)
    found = solve_cpsat(problem, warm=warm, lower=best * 0.9, workers=1)
    value = objective_or_raise(problem, found.cut or warm)
    assert value == pytest.approx(best, rel=1e-6)
    assert found.bound is not None
    assert found.bound.value == pytest.approx(best, rel=1e-6)


def test_costs_that_are_not_binary_are_rounded_down() -> None:
    problem = chain(0.1, 0.2, 0.3, 0.1, cost_ms=1 / 3, stages=3)
    best = optimum(problem, objective_or_raise)
    found = solve_cpsat(problem, workers=1)
    assert found.cut is not None and found.bound is not None
    assert objective_or_raise(problem, found.cut) == best
    assert best * (1 - 1e-5) < found.bound.value <= best
    assert found.bound.detail["rounding"] == "costs down, bound down"


def test_fast_memory_is_refused() -> None:
    device = StageDevice("edge", (1.0,), fast_memory=FastMemory(8.0, 0.5))
    problem = PipelineProblem("p", ("a",), (), (device,), (0,))
    assert "fast memory" in supports(problem)
    assert supports(chain(1.0, 2.0)) == ""


def test_better_cuts_and_bounds_are_told() -> None:
    problem = chain(*[1.0 + index % 3 for index in range(24)], cost_ms=0.25, stages=4)
    warm = like_devices(problem, (0,) * 24)
    told: list[CpSatProgress] = []
    found = solve_cpsat(problem, warm=warm, report=told.append, workers=1)
    values = [news.value for news in told if news.cut is not None]
    assert values == sorted(values, reverse=True)
    assert found.cut is not None
    assert values[-1] == objective_or_raise(problem, found.cut)


def test_a_flag_ends_the_search() -> None:
    stop = threading.Event()
    stop.set()
    found = solve_cpsat(chain(1.0, 2.0, 3.0), stop=stop)
    assert not found.is_complete and found.cut is None and found.bound is None


def test_no_time_is_no_bound() -> None:
    found = solve_cpsat(chain(1.0, 2.0, 3.0), time_limit_s=0.0)
    assert (found.cut, found.bound, found.is_complete) == (None, None, False)


def test_a_missing_solver_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(MissingDependency, match=r"pip install 'slicewise\[solve\]'"):
        solve_cpsat(chain(1.0, 2.0))
