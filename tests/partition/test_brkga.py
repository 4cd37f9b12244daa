"""The genetic algorithm: legal, the same for a seed, its reports fall."""

import math

import pytest
from hypothesis import given, settings

from slicewise.core.errors import UsageError
from slicewise.core.pipeline import PipelineProblem
from slicewise.partition.evaluate import objective_or_raise
from slicewise.partition.slicegraph.brkga import PRESETS, evolve
from slicewise.partition.slicegraph.slice_dp import slice_order
from slicewise.testing.pipelines import optimum, problems


def never() -> bool:
    return False


@settings(max_examples=15, deadline=None)
@given(problems(max_nodes=5))
def test_the_best_cut_is_legal_and_never_below_the_optimum(problem: PipelineProblem) -> None:
    told: list[float] = []
    cut = evolve(problem, "brkga-100", seed=1, deadline=never, report=lambda _, v: told.append(v))
    best = optimum(problem, objective_or_raise)
    if cut is None:
        assert not told
        return
    assert told == sorted(told, reverse=True)
    assert objective_or_raise(problem, cut) == told[-1] >= best


@settings(max_examples=15, deadline=None)
@given(problems("plain", max_nodes=5))
def test_it_is_optimal_on_small_graphs(problem: PipelineProblem) -> None:
    cut = evolve(problem, "brkga-100", seed=1, deadline=never, report=lambda _c, _v: None)
    assert cut is not None
    best = optimum(problem, objective_or_raise)
    assert objective_or_raise(problem, cut) == pytest.approx(best, rel=1e-12)


@settings(max_examples=10, deadline=None)
@given(problems("plain"))
def test_the_same_seed_gives_the_same_cut_and_a_start_is_kept(problem: PipelineProblem) -> None:
    start = slice_order(problem, range(problem.nodes))
    assert start is not None
    made = [
        evolve(
            problem, "brkga-100", seed=4, deadline=never, report=lambda _c, _v: None, start=start
        )
        for _ in range(2)
    ]
    assert made[0] is not None
    assert made[0] == made[1]
    assert objective_or_raise(problem, made[0]) <= objective_or_raise(problem, start)


@settings(max_examples=5, deadline=None)
@given(problems("plain"))
def test_a_deadline_at_once_leaves_the_start(problem: PipelineProblem) -> None:
    start = slice_order(problem, range(problem.nodes))
    told: list[float] = [math.inf]
    cut = evolve(
        problem, "brkga-10000", seed=0, deadline=lambda: True,
        report=lambda _, v: told.append(v), start=start,
    )  # fmt: skip
    assert cut == start
    assert len(told) == 2


@settings(max_examples=1, deadline=None)
@given(problems("plain"))
def test_an_unknown_preset_is_refused_with_those_there_are(problem: PipelineProblem) -> None:
    assert [preset.population for preset in PRESETS.values()] == [10, 100]
    with pytest.raises(UsageError, match="brkga-100, brkga-10000"):
        evolve(problem, "brkga-7", seed=0, deadline=never, report=lambda _c, _v: None)
