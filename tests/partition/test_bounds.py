"""Combinatorial bounds: never above the optimum of any variant, and exact when computed again."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.errors import Infeasible
from slicewise.core.pipeline import (
    Bound,
    Objective,
    PipelineProblem,
    StageDevice,
    Transfer,
    Trust,
)
from slicewise.partition.bounds import METHODS, combinatorial_bounds, recheck, recompute
from slicewise.partition.evaluate import objective_or_raise
from slicewise.testing.pipelines import VARIANTS, optimum, problems


def chain(*works: float, cost_ms: float = 1.0, stages: int = 2) -> PipelineProblem:
    """A chain of nodes, each tensor as costly as the others."""
    count = len(works)
    return PipelineProblem(
        "chain",
        tuple("abcdefghij"[:count]),
        tuple(Transfer(n, (n + 1,), cost_ms) for n in range(count - 1)),
        (StageDevice("d", works),),
        (0,) * stages,
    )


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_bound_is_above_the_optimum(variant: str, data: st.DataObject) -> None:
    _check_bounds(data.draw(problems(variant)))


@settings(max_examples=100, deadline=None)
@given(problems())
def test_no_bound_is_above_the_optimum_of_mixed_variants(problem: PipelineProblem) -> None:
    _check_bounds(problem)


def _check_bounds(problem: PipelineProblem) -> None:
    best = optimum(problem, objective_or_raise)
    try:
        bounds = combinatorial_bounds(problem)
    except Infeasible:
        assert best == math.inf
        return
    assert bounds and bounds[0].value == max(bound.value for bound in bounds)
    for bound in bounds:
        assert bound.trust is Trust.CHECKED
        assert bound.value <= best * (1 + 1e-12)
        exact = recompute(problem, bound)
        assert Fraction(bound.value) <= exact
        assert float(exact) == pytest.approx(bound.value, rel=1e-12)
        assert recheck(problem, bound)
        assert not recheck(problem, replace(bound, value=bound.value * 1.001 + 0.001))


def test_work_is_shared_by_the_speeds_of_unlike_devices() -> None:
    problem = replace(
        chain(3.0, 3.0, 3.0, cost_ms=0.0),
        kinds=(StageDevice("fast", (3.0,) * 3), StageDevice("slow", (6.0,) * 3)),
        places=(0, 1),
    )
    values = {bound.method: bound.value for bound in combinatorial_bounds(problem)}
    assert values == {"work": 6.0, "node": 3.0}
    assert optimum(problem, objective_or_raise) == 6.0


def test_a_node_pays_for_the_cheapest_place_to_break_off() -> None:
    problem = chain(5.0, 1.0, 9.0, 2.0, 2.0, cost_ms=3.0, stages=4)
    values = {bound.method: bound.value for bound in combinatorial_bounds(problem)}
    assert values["node"] == 9.0 + 3.0 + 3.0
    assert optimum(problem, objective_or_raise) == 15.0


def test_energy_counts_each_node_and_the_devices_that_must_run() -> None:
    problem = replace(
        chain(6.0, 6.0),
        kinds=(StageDevice("d", (6.0, 6.0), energy_j=(1.0, 2.0), static_w=100.0),),
        objective=Objective.ENERGY,
        limit_ms=10.0,
    )
    (bound,) = combinatorial_bounds(problem)
    assert (bound.method, bound.value) == ("energy", 5.0)
    assert not recheck(problem, Bound("work", 1.0, Trust.CHECKED))
    with pytest.raises(Infeasible, match=r"takes 7 ms at least \(node bound\), the limit is 6.5"):
        combinatorial_bounds(replace(problem, limit_ms=6.5))


def _limited(*held: float, limit: float, reserve: float = 0.0) -> PipelineProblem:
    device = StageDevice("d", (1.0,) * len(held), memory_limit_bytes=limit, reserve_bytes=reserve)
    return replace(chain(*held), kinds=(device,), memory_bytes=held)


def test_a_node_larger_than_every_limit_is_named() -> None:
    told = r"node 'b' of 'chain' needs 9 bytes .* limit of 'd' is 8: 1 too many; use a larger"
    with pytest.raises(Infeasible, match=told):
        combinatorial_bounds(_limited(1.0, 8.0, limit=8.0, reserve=1.0))


def test_more_memory_than_all_stages_have_says_how_many_would_do() -> None:
    told = r"holds 21 bytes, its 2 stages 16 .*: 5 too many; use at least 3 stages"
    with pytest.raises(Infeasible, match=told):
        combinatorial_bounds(_limited(7.0, 7.0, 7.0, limit=8.0))


def test_a_node_that_no_device_runs_is_named() -> None:
    with pytest.raises(Infeasible, match=r"node 'b' .* can run on none of its devices \(d\)"):
        combinatorial_bounds(chain(1.0, math.inf))


def test_a_method_of_another_module_is_not_computed_again_here() -> None:
    assert set(METHODS) == {"work", "node", "energy"}
    with pytest.raises(KeyError):
        recompute(chain(1.0), Bound("cp-sat", 1.0, Trust.SOLVER))
