"""Slicing an order: the best of all cuts that keep it, for every variant."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.errors import Infeasible, ModelError
from slicewise.core.pipeline import (
    Assignment,
    Objective,
    PipelineProblem,
    StageDevice,
    Transfer,
)
from slicewise.partition.evaluate import objective_or_raise
from slicewise.partition.slicegraph import arrays, slice_dp, slice_kernels
from slicewise.partition.slicegraph.slice_dp import Slicer, slice_order
from slicewise.testing.pipelines import VARIANTS, cuts, problems


def kept_optimum(problem: PipelineProblem, order: list[int]) -> float:
    """Return the least value of the cuts whose stages are runs of the order, by brute force."""
    best = math.inf
    for cut in cuts(problem):
        stages = [cut.stage_of[node] for node in order]
        if stages == sorted(stages):
            try:
                best = min(best, objective_or_raise(problem, cut))
            except Infeasible:
                continue
    return best


def some_order(problem: PipelineProblem, keys: list[float]) -> list[int]:
    """Return the topological order that takes the ready node of least key first."""
    waits = [0] * problem.nodes
    for transfer in problem.transfers:
        for node in transfer.consumers:
            waits[node] += 1
    order: list[int] = []
    while len(order) < problem.nodes:
        ready = [v for v in range(problem.nodes) if waits[v] == 0 and v not in order]
        order.append(min(ready, key=lambda v: (keys[v], v)))
        for transfer in problem.transfers:
            if transfer.producer == order[-1]:
                for node in transfer.consumers:
                    waits[node] -= 1
    return order


def chain(works: list[float], cost: float, stages: int) -> PipelineProblem:
    return PipelineProblem(
        name="chain",
        names=tuple(f"n{v}" for v in range(len(works))),
        transfers=tuple(Transfer(v, (v + 1,), cost, 1.0) for v in range(len(works) - 1)),
        kinds=(StageDevice("d", tuple(works)),),
        places=(0,) * stages,
    )


@pytest.mark.parametrize("variant", [*VARIANTS, None])
def test_the_slicing_is_the_best_cut_that_keeps_the_order(variant: str | None) -> None:
    @settings(max_examples=60, deadline=None)
    @given(problems(variant), st.lists(st.floats(0, 1), min_size=6, max_size=6))
    def check(problem: PipelineProblem, keys: list[float]) -> None:
        order = some_order(problem, keys)
        cut = slice_order(problem, order)
        best = kept_optimum(problem, order)
        if cut is None:
            assert best == math.inf
            return
        value = objective_or_raise(problem, cut)
        assert value == pytest.approx(best, rel=1e-12)
        assert slice_order(problem, order, incumbent=value) is None
        again = slice_order(problem, order, incumbent=value * (1 + 1e-9) + 1e-9)
        assert again is not None
        assert objective_or_raise(problem, again) == value

    check()


@settings(max_examples=60, deadline=None)
@given(problems())
def test_the_value_of_the_table_is_that_of_the_definition(problem: PipelineProblem) -> None:
    slicer = Slicer(problem)
    order = np.arange(problem.nodes)
    found = slicer.slice(order)
    if found is not None:
        value = objective_or_raise(problem, slicer.assignment(order, found))
        assert found.value == pytest.approx(value, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("variant", ["plain", "fast", "hops", "links", "energy"])
def test_without_numba_the_answers_are_the_same(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[PipelineProblem, Assignment | None]] = []

    @settings(max_examples=10, deadline=None)
    @given(problems(variant))
    def draw(problem: PipelineProblem) -> None:
        drawn.append((problem, slice_order(problem, range(problem.nodes))))

    draw()
    for name in ("prepare", "_add", "_hold", "_clear", "fill"):
        kernel = getattr(slice_kernels, name)
        monkeypatch.setattr(kernel, "_made", kernel.function)
    monkeypatch.setattr(slice_dp, "is_compiled", lambda: False)
    monkeypatch.setattr(arrays, "is_compiled", lambda: False)
    for problem, cut in drawn:
        assert slice_order(problem, range(problem.nodes)) == cut


def test_costs_that_are_no_binary_fractions_agree_to_1e_12() -> None:
    chance = np.random.default_rng(3)
    for count in (50, 300):
        works = chance.random(count) * 3.7
        problem = replace(
            chain(works.tolist(), 0.0, 5),
            transfers=tuple(
                Transfer(v, tuple(sorted({v + 1, *chance.integers(v + 1, count, 2).tolist()})), c)
                for v, c in enumerate(chance.random(count - 1) * 1e3 / 3)
            ),
        )
        slicer = Slicer(problem)
        found = slicer.slice(np.arange(count))
        assert found is not None
        value = objective_or_raise(problem, slicer.assignment(range(count), found))
        assert found.value == pytest.approx(value, rel=1e-12)


def test_a_limit_that_rounding_alone_breaks_is_still_kept() -> None:
    works = [0.1, 0.2, 0.3, 0.1, 0.2, 0.3]
    for limit in (0.6, 0.3 + 0.1 + 0.2, 0.7):
        problem = replace(
            chain(works, 0.0, 3),
            kinds=(StageDevice("d", tuple(works), energy_j=(1.0,) * 6, static_w=1.0),),
            objective=Objective.ENERGY,
            limit_ms=limit,
        )
        cut = slice_order(problem, range(6))
        assert cut is not None
        objective_or_raise(problem, cut)


def test_an_order_that_is_none_is_refused() -> None:
    problem = chain([1.0, 1.0, 1.0], 1.0, 2)
    with pytest.raises(ModelError, match="before its input"):
        slice_order(problem, [1, 0, 2])
    with pytest.raises(ModelError, match="each of the 3 nodes once"):
        slice_order(problem, [0, 0, 2])
    with pytest.raises(ModelError, match="each of the 3 nodes once"):
        slice_order(problem, [0, 1])


def test_a_deadline_ends_the_slicing_without_a_cut() -> None:
    problem = chain([1.0] * 20, 1.0, 4)
    assert Slicer(problem).slice(np.arange(20), deadline=lambda: True) is None


def test_work_follows_the_nodes_of_a_stage_not_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the nodes walked, by the tensors that are looked at; it never is a matter of time."""
    count, stages = 600, 30
    problem = chain([1.0] * count, 0.0, stages)
    for name in ("prepare", "_add", "_hold", "_clear", "fill"):
        kernel = getattr(slice_kernels, name)
        monkeypatch.setattr(kernel, "_made", kernel.function)
    monkeypatch.setattr(slice_dp, "is_compiled", lambda: False)
    monkeypatch.setattr(arrays, "is_compiled", lambda: False)
    slicer = Slicer(problem)
    seen = [0]

    class Counting(list[int]):
        def __getitem__(self, index: object) -> int:  # type: ignore[override]
            seen[0] += 1
            return super().__getitem__(index)  # type: ignore[call-overload, no-any-return]

    slicer._graph = slicer._graph._replace(used=Counting(slicer._graph.used))  # type: ignore[arg-type]
    found = slicer.slice(np.arange(count))
    assert found is not None
    assert found.value == count / stages
    assert seen[0] < 2 * count * count / stages
