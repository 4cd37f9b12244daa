"""The portfolio: proven values are optimal, bounds hold, and whatever ends it leaves an answer."""

import math
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.errors import Infeasible, PartitionError, UsageError
from slicewise.core.pipeline import (
    FastMemory,
    Objective,
    PipelineProblem,
    StageDevice,
    Transfer,
)
from slicewise.partition import portfolio
from slicewise.partition.evaluate import objective_or_raise
from slicewise.partition.lattice import coarse
from slicewise.partition.portfolio import METHODS, Progress, solve
from slicewise.partition.rechecks import RECHECKS
from slicewise.partition.verify import verify
from slicewise.testing.pipelines import VARIANTS, optimum, problems


def chain(count: int, *, stages: int) -> PipelineProblem:
    """A chain whose nodes get heavier and lighter in turn."""
    works = tuple(float(1 + node % 5) for node in range(count))
    return PipelineProblem(
        "chain",
        tuple(f"n{node}" for node in range(count)),
        tuple(Transfer(node, (node + 1,), 0.5 + node % 3) for node in range(count - 1)),
        (StageDevice("d", works),),
        (0,) * stages,
    )


@pytest.mark.parametrize("variant", VARIANTS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_what_is_proven_is_the_optimum_and_every_bound_holds(
    variant: str, data: st.DataObject
) -> None:
    problem = data.draw(problems(variant))
    least = optimum(problem, objective_or_raise)
    try:
        # fast memory has no proof, and takes all the time it gets
        made = solve(problem, time_limit_s=0.3 if variant == "fast" else 20.0)
    except PartitionError:  # `Infeasible`, or nothing found
        assert least == math.inf
        return
    assert made.bound <= least <= made.value * (1 + 1e-12)
    if made.is_optimal:
        assert made.value == pytest.approx(least, rel=1.01e-4)
    if variant != "fast":
        assert made.is_optimal
    verify(problem, made, rechecks=RECHECKS)


@pytest.mark.parametrize("method", METHODS)
def test_each_method_answers_and_says_its_name(method: str) -> None:
    made = solve(chain(12, stages=3), time_limit_s=1.0, method=method)
    assert made.value == solve(chain(12, stages=3), time_limit_s=1.0).value
    assert made.bounds and made.seed == 0


def test_the_same_seed_gives_the_same_cut() -> None:
    problem = chain(40, stages=6)
    assert solve(problem, seed=3).assignment == solve(problem, seed=3).assignment


def test_no_time_is_enough_for_a_legal_cut_and_a_bound() -> None:
    made = solve(chain(200, stages=8), time_limit_s=0.0)
    assert 0 < made.bound <= made.value
    assert made.is_complete == made.is_optimal


def test_progress_falls_and_its_bound_rises() -> None:
    told: list[Progress] = []
    made = solve(chain(60, stages=7), report=told.append)
    assert [each.value for each in told] == sorted((each.value for each in told), reverse=True)
    assert [each.bound for each in told] == sorted(each.bound for each in told)
    assert told[-1].value == made.value and told[-1].bound >= made.bound


def test_ctrl_c_leaves_the_best_cut_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(portfolio, "solve_lattice", interrupt)
    made = solve(chain(60, stages=7))
    assert not made.is_complete and made.value < math.inf
    assert [note.code for note in made.notes] == ["search-interrupted"]
    monkeypatch.setattr(portfolio, "slice_order", interrupt)
    with pytest.raises(KeyboardInterrupt):  # nothing to show yet
        solve(chain(60, stages=7))


def test_without_the_solver_the_built_in_methods_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools", None)
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    monkeypatch.setattr(portfolio, "_SMALL_LATTICE", 1)
    monkeypatch.setattr(portfolio, "_LARGE_LATTICE", 1)
    monkeypatch.setattr(portfolio, "_SECOND_SEARCH_S", 0.1)
    monkeypatch.setattr(coarse, "coarse_bound", lambda *_, **__: None)
    made = solve(chain(40, stages=6), time_limit_s=2.0)
    codes = {note.code for note in made.notes}
    assert codes == {"solver-missing", "lattice-incomplete"}
    assert "slicewise[solve]" in next(n.text for n in made.notes if n.code == "solver-missing")


def test_what_cannot_be_names_the_limit() -> None:
    problem = replace(
        chain(4, stages=2),
        memory_bytes=(1.0, 9.0, 1.0, 1.0),
        kinds=(StageDevice("small", (1.0,) * 4, memory_limit_bytes=8.0),),
    )
    with pytest.raises(Infeasible, match="n1"):
        solve(problem)
    tight = replace(problem, memory_bytes=(6.0, 2.0, 6.0, 2.0))
    assert solve(tight).value > 0
    # 16 bytes fit two devices of 8, but no cut of a chain of 5, 5, 3 and 3 does
    with pytest.raises(Infeasible, match="a stage needs 10 bytes at least"):
        solve(replace(tight, memory_bytes=(5.0, 5.0, 3.0, 3.0)))


@pytest.mark.parametrize("limit_s", [-1.0, math.nan, math.inf])
def test_a_time_limit_that_is_none_is_refused(limit_s: float) -> None:
    with pytest.raises(UsageError, match="is not a time"):
        solve(chain(4, stages=2), time_limit_s=limit_s)


def test_an_unknown_method_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean lattice"):
        solve(chain(4, stages=2), method="latice")


def test_a_limit_that_no_cut_keeps_is_told_with_the_least_that_would_do() -> None:
    problem = replace(
        chain(4, stages=2),
        kinds=(StageDevice("d", (1.0, 2.0, 3.0, 4.0), energy_j=(1.0,) * 4),),
        objective=Objective.ENERGY,
        limit_ms=8.0,
    )
    least = solve(replace(problem, objective=Objective.BOTTLENECK, limit_ms=math.inf)).value
    assert least > 8.0
    with pytest.raises(Infeasible, match=f"takes {least:g} ms at least"):
        solve(problem)


def test_a_node_that_fast_memory_cannot_hold_is_named() -> None:
    problem = chain(4, stages=2)
    small = StageDevice("edge", (1.0,) * 4, fast_memory=FastMemory(5.0, 0.1))
    sized = replace(
        problem,
        kinds=(small,),
        transfers=tuple(replace(t, size_bytes=3.0) for t in problem.transfers),
    )
    with pytest.raises(Infeasible, match=r"'n1'.* makes 6 bytes, .* holds 5: 1 too many"):
        solve(sized)
