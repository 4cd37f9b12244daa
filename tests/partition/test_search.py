"""The local search: legal, never worse than its start, the same for a seed, optimal if small."""

import math

import numpy as np
import pytest
from hypothesis import given, settings

from slicewise.core.errors import Infeasible
from slicewise.core.pipeline import Assignment, PipelineProblem, StageDevice, Transfer
from slicewise.partition.evaluate import like_devices, objective_or_raise, stage_loads
from slicewise.partition.slicegraph import anneal, arrays
from slicewise.partition.slicegraph.arrays import arrays_of
from slicewise.partition.slicegraph.search import improve
from slicewise.partition.slicegraph.slice_dp import slice_order
from slicewise.testing.pipelines import VARIANTS, optimum, problems


def never() -> bool:
    return False


def ladder(count: int, stages: int, *, seed: int) -> PipelineProblem:
    """Return a graph of two strands with rungs, of costs by chance."""
    chance = np.random.default_rng(seed)
    ends: list[tuple[int, ...]] = [
        tuple(sorted({w for w in (v + 2, v + 3 * (v % 2)) if v < w < count})) for v in range(count)
    ]
    costs = chance.random(count)
    return PipelineProblem(
        name="ladder",
        names=tuple(f"n{v}" for v in range(count)),
        transfers=tuple(Transfer(v, e, float(costs[v])) for v, e in enumerate(ends) if e),
        kinds=(StageDevice("d", tuple(chance.random(count).tolist())),),
        places=(0,) * stages,
    )


@pytest.mark.parametrize("variant", [*VARIANTS, None])
def test_reports_fall_are_true_and_never_below_the_optimum(variant: str | None) -> None:
    @settings(max_examples=25, deadline=None)
    @given(problems(variant))
    def check(problem: PipelineProblem) -> None:
        told: list[tuple[Assignment, float]] = []
        cut = improve(
            problem, None, seed=1, deadline=never, max_rounds=12,
            report=lambda cut, value: told.append((cut, value)),
        )  # fmt: skip
        best = optimum(problem, objective_or_raise)
        if cut is None:
            assert not told
            if not problem.memory_bytes:
                assert best == math.inf
            return
        assert told[-1][0] == cut
        values = [value for _, value in told]
        assert values == sorted(values, reverse=True)
        for other, value in told:
            assert objective_or_raise(problem, other) == value
        assert values[-1] >= best  # a search promises no more

    check()


def test_it_is_never_worse_than_its_start_and_starts_from_it() -> None:
    problem = ladder(60, 4, seed=1)
    start = slice_order(problem, range(60))
    assert start is not None
    told: list[float] = []
    cut = improve(
        problem, start, seed=0, deadline=never, max_rounds=6, report=lambda _, v: told.append(v)
    )
    assert cut is not None
    assert told[0] == objective_or_raise(problem, start)
    assert objective_or_raise(problem, cut) <= told[0]


def test_the_same_seed_gives_the_same_cut() -> None:
    problem = ladder(80, 5, seed=2)
    made = [
        improve(problem, None, seed=7, deadline=never, max_rounds=5, report=lambda _c, _v: None)
        for _ in range(2)
    ]
    assert made[0] == made[1]


def test_a_deadline_at_once_leaves_the_start() -> None:
    problem = ladder(40, 3, seed=3)
    start = slice_order(problem, range(40))
    cut = improve(problem, start, seed=0, deadline=lambda: True, report=lambda _c, _v: None)
    assert cut == start
    assert (
        improve(problem, None, seed=0, deadline=lambda: True, report=lambda _c, _v: None) is None
    )


def test_the_deadline_is_looked_at_inside_a_round() -> None:
    problem = ladder(80, 5, seed=2)
    looks = [0]

    def after_thirty() -> bool:
        looks[0] += 1
        return looks[0] > 30

    assert (
        improve(problem, None, seed=0, deadline=after_thirty, report=lambda _c, _v: None)
        is not None
    )
    assert looks[0] < 60


def test_it_ends_by_itself_where_no_cut_can_be_better() -> None:
    even = PipelineProblem(
        name="even",
        names=("a", "b"),
        transfers=(),
        kinds=(StageDevice("d", (1.0, 1.0)),),
        places=(0, 0),
    )
    cut = improve(even, None, seed=0, deadline=never, report=lambda _c, _v: None)
    assert cut is not None
    assert objective_or_raise(even, cut) == 1.0


def test_a_start_that_breaks_a_limit_is_refused() -> None:
    problem = PipelineProblem(
        name="full",
        names=("a", "b"),
        transfers=(),
        kinds=(StageDevice("d", (1.0, 1.0), memory_limit_bytes=1.0),),
        places=(0, 0),
        memory_bytes=(1.0, 1.0),
    )
    with pytest.raises(Infeasible, match="memory"):
        improve(
            problem, like_devices(problem, (0, 0)), seed=0, deadline=never,
            report=lambda _c, _v: None,
        )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(problems(max_nodes=9))
def test_annealed_loads_are_those_of_the_definition(problem: PipelineProblem) -> None:
    if anneal.supports(problem):
        return
    start = improve(
        problem, None, seed=0, deadline=never, max_rounds=0, report=lambda _c, _v: None
    )
    if start is None:
        return
    annealer = anneal.Annealer(problem, arrays_of(problem))
    annealer.begin(np.array(start.stage_of), start.kind_of, start.replicas)
    value = objective_or_raise(problem, start)
    annealer.run(value * 0.9, hot=1.0, cold=0.1, steps=200, most=2, seed=3)
    cut = Assignment(tuple(annealer.current.tolist()), start.kind_of, start.replicas)
    loads = [load.load_ms for load in stage_loads(problem, cut)]
    assert annealer.loads() == pytest.approx(loads, rel=1e-9, abs=1e-9)


def test_without_numba_annealing_goes_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = ladder(30, 3, seed=5)
    start = slice_order(problem, range(30))
    assert start is not None
    value = objective_or_raise(problem, start)
    made = []
    for is_plain in (False, True):
        if is_plain:
            monkeypatch.setattr(arrays, "is_compiled", lambda: False)
            for name in ("_list", "_move", "_load", "_step", "_gather", "_settle", "_anneal"):
                kernel = getattr(anneal, name)
                monkeypatch.setattr(kernel, "_made", kernel.function)
        annealer = anneal.Annealer(problem, arrays_of(problem))
        annealer.begin(np.array(start.stage_of), start.kind_of, start.replicas)
        left = annealer.run(value, hot=0.5, cold=0.01, steps=2000, most=2, seed=9)
        made.append((left, annealer.current.tolist(), annealer.best.tolist()))
    assert made[0] == made[1]


def test_what_cannot_be_annealed_is_named() -> None:
    problem = ladder(10, 2, seed=0)
    assert anneal.supports(problem) == ""
    hopping = PipelineProblem(
        problem.name, problem.names, problem.transfers, problem.kinds, problem.places, hops=True
    )
    assert "hop" in anneal.supports(hopping)
