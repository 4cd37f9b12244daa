"""Orders to slice: topological, with what must share a stage side by side."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.pipeline import PipelineProblem, StageDevice, Transfer
from slicewise.partition.slicegraph.arrays import Ints, arrays_of
from slicewise.partition.slicegraph.order import FIRST_READY, LAST_READY, Orders
from slicewise.testing.pipelines import problems


def assert_is_order(problem: PipelineProblem, order: Ints) -> None:
    assert sorted(order.tolist()) == list(range(problem.nodes))
    place = {int(node): index for index, node in enumerate(order)}
    for transfer in problem.transfers:
        for node in transfer.consumers:
            assert place[transfer.producer] < place[node]


def diamond() -> PipelineProblem:
    """0 -> 1 -> 2 -> 6 and 0 -> 3 -> 4 -> 6, and a weight 5 that 4 alone uses, out of place."""
    ends = {0: (1, 4), 1: (2,), 2: (6,), 3: (5,), 4: (5,), 5: (6,)}
    return PipelineProblem(
        name="diamond",
        names=tuple("abcdefg"),
        transfers=tuple(Transfer(u, e, 1.0) for u, e in ends.items()),
        kinds=(StageDevice("d", (1.0,) * 7),),
        places=(0, 0),
    )


@settings(max_examples=80, deadline=None)
@given(problems("together", max_nodes=9))
def test_every_start_is_topological_and_keeps_units_together(problem: PipelineProblem) -> None:
    orders = Orders(problem)
    for make in orders.starts():
        order = make()
        assert_is_order(problem, order)
        units = orders.arrays.unit[order]
        assert len(np.flatnonzero(np.diff(units))) + 1 == orders.units
        assert order.tolist() == make().tolist()


@settings(max_examples=80, deadline=None)
@given(problems("together", max_nodes=9))
def test_units_hold_groups_and_what_lies_between(problem: PipelineProblem) -> None:
    arrays = arrays_of(problem)
    for group in problem.together:
        assert len({int(arrays.unit[node]) for node in group}) == 1
    for transfer in problem.transfers:
        for node in transfer.consumers:
            assert arrays.unit[transfer.producer] <= arrays.unit[node]
    assert set(arrays.unit.tolist()) == set(range(arrays.units))


@settings(max_examples=80, deadline=None)
@given(problems("plain", max_nodes=9), st.lists(st.floats(0, 1), min_size=9, max_size=9))
def test_any_keys_make_an_order_both_ways(problem: PipelineProblem, keys: list[float]) -> None:
    orders = Orders(problem)
    key = np.array(keys[: problem.nodes])
    for backward in (False, True):
        for tie in (0, LAST_READY, FIRST_READY):
            order = orders.keyed(key, second=key[::-1].copy(), tie=tie, backward=backward)
            assert_is_order(problem, order)


@settings(max_examples=80, deadline=None)
@given(problems("plain", max_nodes=9), st.lists(st.floats(0, 1), min_size=9, max_size=9))
def test_keys_that_follow_an_order_give_that_order_back(
    problem: PipelineProblem, keys: list[float]
) -> None:
    orders = Orders(problem)
    order = orders.keyed(np.array(keys[: problem.nodes]))
    place = np.empty(problem.nodes)
    place[order] = np.arange(problem.nodes)
    assert orders.keyed(place).tolist() == order.tolist()
    assert orders.keyed(-place, backward=True).tolist() == order.tolist()


def test_depth_first_ends_a_branch_before_the_next() -> None:
    order = Orders(diamond()).keyed(np.zeros(7), tie=LAST_READY)
    place = {int(node): index for index, node in enumerate(order)}
    assert abs(place[1] - place[2]) == 1


def test_a_late_order_puts_a_weight_beside_its_use() -> None:
    order = Orders(diamond()).keyed(-np.arange(7.0), backward=True).tolist()
    assert order.index(5) - order.index(3) <= 2
    late = Orders(diamond()).keyed(np.zeros(7), tie=LAST_READY, backward=True).tolist()
    assert late.index(5) - late.index(3) <= 2


def test_the_frugal_order_opens_no_branch_before_it_must() -> None:
    order = Orders(diamond()).frugal().tolist()
    assert abs(order.index(1) - order.index(2)) == 1
