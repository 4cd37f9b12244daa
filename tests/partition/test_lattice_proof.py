"""The exact proof holds up to the optimum and not beyond it, in every variant."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings

from slicewise.core.pipeline import Bound, PipelineProblem, Trust
from slicewise.partition.evaluate import objective_or_raise
from slicewise.partition.lattice import lattice_proof
from slicewise.partition.lattice.lattice_dp import exceeds, solve_lattice, supports
from slicewise.partition.lattice.lattice_proof import prove_in_fractions, recheck
from slicewise.testing.pipelines import VARIANTS, optimum, problems


@pytest.mark.parametrize("variant", [*(v for v in VARIANTS if v != "fast"), None])
def test_the_optimum_is_proven_and_nothing_above_it(variant: str | None) -> None:
    @given(problems(variant, max_nodes=5))
    @settings(max_examples=40, deadline=None)
    def law(problem: PipelineProblem) -> None:
        if supports(problem):
            assert prove_in_fractions(problem, 1.0) is None
            return
        best = optimum(problem, objective_or_raise)
        if best == math.inf:
            assert prove_in_fractions(problem, 1e6) is True
            return
        near = Fraction(1, 10**15)  # a third of a load is no float
        assert prove_in_fractions(problem, Fraction(best) * (1 - near)) is True
        above = best * (1 + 1e-12) + 1e-12
        assert prove_in_fractions(problem, above) is False
        assert exceeds(problem, above, max_ideals=1000, deadline=lambda: False) is False
        if best > 0:
            below = best * (1 - 1e-9)
            assert exceeds(problem, below, max_ideals=1000, deadline=lambda: False) is True

    law()


@given(problems(max_nodes=6))
@settings(max_examples=60, deadline=None)
def test_every_bound_of_the_lattice_is_proven_again(problem: PipelineProblem) -> None:
    bound = solve_lattice(problem).bound
    if bound is not None:
        assert recheck(problem, bound) is True
        wrong = Bound(bound.method, bound.value * (1 + 1e-6), Trust.CHECKED)
        assert recheck(problem, wrong) is False


@given(problems("plain", max_nodes=6))
@settings(max_examples=20, deadline=None)
def test_what_is_too_large_for_rationals_is_proven_in_whole_numbers(
    problem: PipelineProblem,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lattice_proof, "_MOST_IDEALS", 1)
        assert prove_in_fractions(problem, Fraction(1)) is None
        bound = solve_lattice(problem).bound
        if bound is not None:
            assert recheck(problem, bound) is True
            wrong = Bound(bound.method, bound.value * (1 + 1e-6), Trust.CHECKED)
            assert recheck(problem, wrong) is None
