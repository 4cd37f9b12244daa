"""A coarse problem never claims more than the optimum, whatever it drops."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.errors import Infeasible
from slicewise.core.pipeline import PipelineProblem, StageDevice, StageLink, Transfer
from slicewise.partition.evaluate import objective_or_raise
from slicewise.partition.lattice import coarse
from slicewise.partition.lattice.coarse import coarse_bound, coarsen, recheck, supports
from slicewise.partition.lattice.lattice_dp import solve_lattice
from slicewise.testing.pipelines import VARIANTS, optimum, problems

_LIGHT = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0])


@pytest.mark.parametrize("many", [1, 2, 8])
@pytest.mark.parametrize("variant", [*VARIANTS, None])
def test_no_cut_has_a_load_below_the_coarse_optimum_less_the_loss(
    variant: str | None, many: int
) -> None:
    @given(problems(variant, max_nodes=6), _LIGHT)
    @settings(max_examples=20, deadline=None)
    def law(problem: PipelineProblem, light_ms: float) -> None:
        if supports(problem) or problem.together:
            return
        best = optimum(problem, objective_or_raise)
        try:
            made = coarsen(problem, light_ms)
        except Infeasible:  # pins that contradict each other
            assert best == math.inf
            return
        found = solve_lattice(made.problem)
        if found.cut is None:
            assert best == math.inf
            return
        least = objective_or_raise(made.problem, found.cut)
        assert least - made.loss_ms <= best + 1e-9

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coarse, "_MANY", many)
        law()


@given(problems("plain", max_nodes=6), st.sampled_from([0.0, 0.25]), st.booleans())
@settings(max_examples=80, deadline=None)
def test_the_bound_is_below_the_optimum_and_proven_again(
    problem: PipelineProblem, latency_ms: float, knows: bool
) -> None:
    links = (StageLink(2.0, latency_ms),) * (problem.stages - 1)
    problem = PipelineProblem(
        problem.name, problem.names, problem.transfers, problem.kinds, problem.places, links=links
    )
    best = optimum(problem, objective_or_raise)
    bound = coarse_bound(problem, incumbent=best if knows else math.inf)
    if bound is not None:
        assert bound.value <= best
        assert recheck(problem, bound) is True


def _layers(count: int, stages: int) -> PipelineProblem:
    """Return layers of a heavy node and two light chains of three beside each other."""
    transfers, works = [], [8.0]
    end = 0
    for _ in range(count):
        first = len(works)
        works += [0.0625] * 6 + [8.0]
        transfers.append(Transfer(end, (first, first + 1), 1.0))
        for chain in range(2):
            a = first + chain
            transfers += [Transfer(a, (a + 2,), 1.0), Transfer(a + 2, (a + 4,), 1.0)]
            transfers.append(Transfer(a + 4, (first + 6,), 1.0))
        end = first + 6
    names = tuple(map(str, range(len(works))))
    device = StageDevice("d", tuple(works))
    return PipelineProblem("layers", names, tuple(transfers), (device,), (0,) * stages)


def test_what_is_lost_is_what_lies_at_one_boundary_not_all_that_is_light() -> None:
    problem = _layers(12, 4)
    made = coarsen(problem, 0.0625)
    assert made.problem.nodes == 13
    assert math.fsum(made.problem.kinds[0].work_ms) == math.fsum(problem.kinds[0].work_ms)
    assert made.loss_ms == pytest.approx(6 * 0.0625)


def test_keys_and_values_of_one_source_cost_one_of_them() -> None:
    count = 10  # decoder layers that each read the projection of one tensor
    works, transfers = [4.0], [Transfer(0, tuple(range(1, count + 1)), 1.0)]
    works += [0.75] * count + [4.0] * count
    for layer in range(count):
        transfers.append(Transfer(1 + layer, (1 + count + layer,), 1.0))
        if layer:
            transfers.append(Transfer(count + layer, (1 + count + layer,), 1.0))
    names = tuple(map(str, range(len(works))))
    device = StageDevice("d", tuple(works))
    made = coarsen(PipelineProblem("t", names, tuple(transfers), (device,), (0, 0, 0)), 0.0)
    assert made.problem.nodes == count + 1
    assert made.loss_ms == pytest.approx(0.75)


def test_unlike_devices_and_energy_are_refused_with_the_reason() -> None:
    base = _layers(2, 2)
    slow = StageDevice("slow", tuple(2 * work for work in base.kinds[0].work_ms))
    unlike = PipelineProblem(
        "unlike", base.names, base.transfers, (*base.kinds, slow), (0, 1), is_placed=True
    )
    assert supports(unlike) == "the coarse lattice needs like devices and links"
    assert coarse_bound(unlike) is None
