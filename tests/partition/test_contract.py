"""The contracted problem has the same optimum in every variant; its cuts expand to legal ones."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.errors import Infeasible
from slicewise.core.pipeline import Assignment, PipelineProblem, StageDevice, StageLink, Transfer
from slicewise.partition.contract import contract
from slicewise.partition.evaluate import objective_or_raise
from slicewise.testing.pipelines import VARIANTS, cuts, optimum, problems


def _least(problem: PipelineProblem) -> float:
    try:
        smaller = contract(problem).problem
    except Infeasible:
        return math.inf
    return optimum(smaller, objective_or_raise)


@pytest.mark.parametrize("variant", [*VARIANTS, None])
def test_the_optimum_stays_in_every_variant(variant: str | None) -> None:
    @given(problems(variant, max_nodes=6))
    @settings(max_examples=60, deadline=None)
    def law(problem: PipelineProblem) -> None:
        assert _least(problem) == pytest.approx(optimum(problem, objective_or_raise), rel=1e-12)

    law()


@pytest.mark.parametrize("variant", [*VARIANTS, None])
def test_a_cut_of_the_smaller_problem_costs_the_same_in_the_original(variant: str | None) -> None:
    @given(problems(variant, max_nodes=6), st.integers(0, 10**6))
    @settings(max_examples=30, deadline=None)
    def law(problem: PipelineProblem, seed: int) -> None:
        try:
            made = contract(problem)
        except Infeasible:
            return
        every = [cut for cut, _ in zip(cuts(made.problem), range(200), strict=False)]
        if every:
            cut = random.Random(seed).choice(every)
            assert _cost(problem, made.expand(cut)) == pytest.approx(_cost(made.problem, cut))

    law()


def _cost(problem: PipelineProblem, cut: Assignment) -> float:
    try:
        return objective_or_raise(problem, cut)
    except Infeasible:
        return math.inf


@given(problems(max_nodes=8))
@settings(max_examples=100, deadline=None)
def test_the_smaller_problem_has_each_node_once_and_no_groups(problem: PipelineProblem) -> None:
    try:
        made = contract(problem)
    except Infeasible:
        return
    assert sorted(node for nodes in made.members for node in nodes) == list(range(problem.nodes))
    has_fast = any(problem.kinds[place].fast_memory for place in problem.places)
    assert bool(made.notes) == has_fast
    assert not made.problem.together or has_fast


def _problem(transfers: list[Transfer], works: list[float], **more: object) -> PipelineProblem:
    return PipelineProblem(
        name="small",
        names=tuple(f"n{node}" for node in range(len(works))),
        transfers=tuple(transfers),
        kinds=(StageDevice("d", tuple(works)),),
        places=(0, 0, 0),
        **more,  # type: ignore[arg-type]
    )


def test_weights_join_the_operator_that_reads_them() -> None:
    problem = _problem([Transfer(0, (2,), 9), Transfer(1, (2,), 1)], [0, 4, 4])
    assert contract(problem).members == ((1,), (0, 2))


def test_shared_weights_join_their_first_reader_when_all_others_come_after_it() -> None:
    transfers = [Transfer(0, (1, 3), 9), Transfer(1, (2,), 1), Transfer(2, (3,), 1)]
    works = [0.0, 4, 4, 4]
    assert contract(_problem(transfers, works)).members == ((0, 1), (2,), (3,))
    assert len(contract(_problem(transfers, works, overlaps=True)).members) == 4
    unlike = (StageLink(), StageLink(2.0))
    assert len(contract(_problem(transfers, works, links=unlike)).members) == 4
    assert len(contract(_problem(transfers, works, links=unlike, hops=True)).members) == 3


def test_a_view_joins_what_it_is_a_view_of_if_it_is_no_greater() -> None:
    works = [4.0, 0, 4]
    smaller = [Transfer(0, (1,), 2), Transfer(1, (2,), 1)]
    assert contract(_problem(smaller, works)).members == ((0, 1), (2,))
    greater = [Transfer(0, (1,), 1), Transfer(1, (2,), 2)]
    assert contract(_problem(greater, works)).members == ((0,), (1, 2))


def test_work_that_is_less_than_the_transfer_it_saves_is_no_reason_to_cut_before_it() -> None:
    transfers = [Transfer(0, (1,), 5), Transfer(1, (2,), 1)]
    assert contract(_problem(transfers, [9, 4, 9])).members == ((0, 1), (2,))
    assert len(contract(_problem(transfers, [9, 4.25, 9])).members) == 3
    assert len(contract(_problem(transfers, [9, 4, 9], overlaps=True)).members) == 3


def test_memory_that_can_bind_keeps_a_node_where_it_is() -> None:
    transfers = [Transfer(0, (1,), 5)]
    kinds = (StageDevice("d", (0.0, 4.0), memory_limit_bytes=10),)
    for memory, count in (((6.0, 6.0), 2), ((0.0, 10.0), 1), ((4.0, 4.0), 1)):
        problem = PipelineProblem("m", ("a", "b"), tuple(transfers), kinds, (0, 0), memory)
        assert len(contract(problem).members) == count


def test_what_lies_between_nodes_of_a_group_joins_it() -> None:
    transfers = [Transfer(0, (1,), 1), Transfer(1, (2,), 1), Transfer(2, (3,), 1)]
    problem = _problem(transfers, [5, 5, 5, 5], together=((0, 2),))
    assert contract(problem).members == ((0, 1, 2), (3,))


def test_tensors_that_travel_alike_are_one_unless_each_pays_a_latency() -> None:
    transfers = [Transfer(0, (1,), 1), Transfer(0, (1,), 2)]
    assert contract(_problem(transfers, [5, 5])).problem.transfers == (Transfer(0, (1,), 3.0),)
    late = (StageLink(1.0, 0.5),) * 2
    assert len(contract(_problem(transfers, [5, 5], links=late)).problem.transfers) == 2


def test_pins_that_contradict_each_other_are_named() -> None:
    transfers = [Transfer(0, (1,), 1)]
    with pytest.raises(Infeasible, match=r"'n1' is pinned to stage 1 and 'n0'.* to 0; pin both"):
        contract(_problem(transfers, [1, 1], together=((0, 1),), pinned={0: 0, 1: 1}))
    with pytest.raises(Infeasible, match=r"'n1' is pinned to stage 0, but .* pinned to 2; pin it"):
        contract(_problem(transfers, [1, 1], pinned={0: 2, 1: 0}))


def test_a_long_chain_of_views_and_weights_becomes_its_operators() -> None:
    transfers, works = [], []
    for layer in range(200):  # weight, operator, view
        base = 3 * layer
        works += [0.0, 2.0, 0.0]
        transfers += [Transfer(base, (base + 1,), 3), Transfer(base + 1, (base + 2,), 1)]
        if layer < 199:
            transfers.append(Transfer(base + 2, (base + 4,), 1))
    made = contract(_problem(transfers, works))
    assert [len(nodes) for nodes in made.members] == [3] * 200
