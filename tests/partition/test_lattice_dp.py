"""The DP over ideals finds the optimum of every variant, and its bounds hold exactly."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.pipeline import PipelineProblem, StageDevice, Transfer, Trust
from slicewise.partition.evaluate import objective_or_raise
from slicewise.partition.lattice import lattice_dp
from slicewise.partition.lattice.ideals import ideals_of
from slicewise.partition.lattice.lattice_dp import solve_lattice, supports
from slicewise.testing.pipelines import VARIANTS, optimum, problems

_DONE = tuple(variant for variant in VARIANTS if variant != "fast")


@pytest.mark.parametrize("variant", [*_DONE, None])
def test_the_value_is_the_optimum_and_the_bound_closes_the_gap(variant: str | None) -> None:
    @given(problems(variant, max_nodes=6))
    @settings(max_examples=40, deadline=None)
    def law(problem: PipelineProblem) -> None:
        if supports(problem):
            return
        best = optimum(problem, objective_or_raise)
        found = solve_lattice(problem)
        assert found.is_complete and not found.reason
        if best == math.inf:
            assert found.cut is None and found.bound is None
            return
        assert found.cut is not None
        assert objective_or_raise(problem, found.cut) == pytest.approx(best, rel=1e-12)
        if best > 0:
            assert found.bound is not None and found.bound.trust is Trust.CHECKED
            assert best * (1 - 1e-9) <= found.bound.value <= best
        else:
            assert found.bound is None

    law()


@pytest.mark.parametrize("variant", [*_DONE, None])
def test_with_an_incumbent_only_better_cuts_are_returned(variant: str | None) -> None:
    @given(problems(variant, max_nodes=6), st.sampled_from([0.5, 0.75, 1.0, 1.25, 2.0]))
    @settings(max_examples=40, deadline=None)
    def law(problem: PipelineProblem, factor: float) -> None:
        best = optimum(problem, objective_or_raise)
        if supports(problem) or not 0 < best < math.inf:
            return
        incumbent = best * factor
        found = solve_lattice(problem, incumbent=incumbent)
        assert found.is_complete
        assert (found.cut is not None) == (best < incumbent)
        assert found.bound is not None
        assert min(best, incumbent) * (1 - 1e-9) <= found.bound.value <= best
        if found.cut is not None:
            assert objective_or_raise(problem, found.cut) == pytest.approx(best, rel=1e-12)

    law()


def test_fast_memory_is_refused_with_the_reason() -> None:
    @given(problems("fast"))
    @settings(max_examples=5, deadline=None)
    def law(problem: PipelineProblem) -> None:
        found = solve_lattice(problem)
        assert not found.is_complete and found.cut is None and found.bound is None
        assert found.reason == "the lattice method knows no fast memory"

    law()


@given(problems(max_nodes=6))
@settings(max_examples=40, deadline=None)
def test_every_set_with_its_ancestors_is_listed_once(problem: PipelineProblem) -> None:
    ideals = ideals_of(problem, 1000)
    assert ideals is not None
    listed = [int(row[0]) for row in ideals.bits]
    edges = [(t.producer, use) for t in problem.transfers for use in t.consumers]
    closed = {
        mask
        for mask in range(1 << problem.nodes)
        if all(mask >> u & 1 or not mask >> v & 1 for u, v in edges)
    }
    assert len(listed) == len(set(listed)) and set(listed) == closed
    assert [mask.bit_count() for mask in listed] == sorted(mask.bit_count() for mask in closed)


def _grid(width: int, length: int, stages: int) -> PipelineProblem:
    """Return `width` chains of `length` nodes, side by side."""
    transfers = tuple(
        Transfer(node, (node + width,) if node + width < width * length else (), 0.1)
        for node in range(width * length)
    )
    works = tuple(float(1 + node % 7) for node in range(width * length))
    names = tuple(map(str, range(width * length)))
    return PipelineProblem("grid", names, transfers, (StageDevice("d", works),), (0,) * stages)


def test_too_many_ideals_are_said_with_the_number_allowed() -> None:
    found = solve_lattice(_grid(4, 6, 3), max_ideals=100)
    assert found.reason == "there are more than 100 ideals" and not found.is_complete
    assert solve_lattice(_grid(2, 6, 3), max_ideals=49).is_complete


def _after(looks: int) -> Callable[[], bool]:
    left = iter(range(looks))
    return lambda: next(left, None) is None


def test_when_time_is_up_what_is_proven_so_far_is_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lattice_dp, "_BUDGET", 10)
    problem = _grid(3, 6, 4)
    whole = solve_lattice(problem)
    assert whole.is_complete and whole.cut is not None
    best = objective_or_raise(problem, whole.cut)
    for looks in (0, 5, 40, 160):
        found = solve_lattice(problem, deadline=_after(looks))
        assert found.reason == "the time is up" and not found.is_complete
        assert found.bound is None or found.bound.value <= best
        assert found.cut is None or objective_or_raise(problem, found.cut) >= best


def test_each_better_cut_is_reported() -> None:
    problem = _grid(3, 5, 4)
    told: list[float] = []
    found = solve_lattice(problem, report=lambda cut, value: told.append(value))
    assert found.cut is not None
    assert told and told == sorted(told, reverse=True)
    assert told[-1] == objective_or_raise(problem, found.cut)


def test_plain_code_does_the_same_as_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    from slicewise.partition.compiled import Kernel
    from slicewise.partition.lattice import ideals as lattice
    from slicewise.partition.lattice import lattice_kernels

    problem = _grid(3, 4, 3)
    expected = solve_lattice(problem)
    for module in (lattice_kernels, lattice, lattice_dp):
        for name, value in list(vars(module).items()):
            if isinstance(value, Kernel):
                monkeypatch.setattr(module, name, value.function)
    assert solve_lattice(problem) == expected


@given(st.floats(1e-9, 1e9), problems("plain", max_nodes=6))
@settings(max_examples=40, deadline=None)
def test_another_unit_of_time_changes_nothing(factor: float, problem: PipelineProblem) -> None:
    scaled = PipelineProblem(
        problem.name,
        problem.names,
        tuple(
            Transfer(t.producer, t.consumers, t.transfer_ms * factor) for t in problem.transfers
        ),
        (StageDevice("d", tuple(w * factor for w in problem.kinds[0].work_ms)),),
        problem.places,
    )
    best = optimum(scaled, objective_or_raise)
    found = solve_lattice(scaled)
    assert found.cut is not None
    assert objective_or_raise(scaled, found.cut) == pytest.approx(best, rel=1e-12)
    assert found.bound is None or best * (1 - 1e-9) <= found.bound.value <= best
