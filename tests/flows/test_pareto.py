"""The front: exactly the points that no other dominates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.ties import places
from slicewise.flows.pareto import front_of

Row = tuple[float, ...]


def _rows(columns: int) -> st.SearchStrategy[list[Row]]:
    # few values, so that ties and repeated rows are common
    value = st.integers(-3, 3).map(float) | st.floats(allow_nan=False, allow_infinity=False)
    return st.lists(st.tuples(*[value] * columns), max_size=40)


def _dominates(one: Row, other: Row) -> bool:
    pairs = list(zip(one, other, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


rows = st.integers(1, 4).flatmap(_rows)


@given(rows)
def test_the_front_is_what_brute_force_finds(costs: list[Row]) -> None:
    ranks = list(zip(*map(places, zip(*costs, strict=True)), strict=True))
    expected = [i for i, row in enumerate(ranks) if not any(_dominates(o, row) for o in ranks)]
    assert front_of(costs) == expected


def test_a_difference_of_rounding_keeps_nothing_on_the_front() -> None:
    # the same latency at batches 1 and 5 but for rounding, more throughput at 5
    assert front_of([(0.0548, -100.0), (0.0548 * (1 + 2e-12), -500.0)]) == [1]


@given(rows, st.randoms())
def test_the_front_does_not_depend_on_the_order(costs: list[Row], random: st.DrawFn) -> None:
    order = list(range(len(costs)))
    random.shuffle(order)  # type: ignore[attr-defined]
    shuffled = front_of([costs[i] for i in order])
    assert sorted(order[i] for i in shuffled) == front_of(costs)


@given(rows)
def test_equal_rows_stand_or_fall_together(costs: list[Row]) -> None:
    once = {costs[i] for i in front_of(costs)}
    assert [i for i, row in enumerate([*costs, *costs]) if row in once] == front_of(costs * 2)


@pytest.mark.parametrize("columns", [2, 3, 4])
def test_fronts_of_many_blocks_agree_with_brute_force(columns: int) -> None:
    drawn = np.random.default_rng(columns).integers(0, 40, (2000, columns)).astype(float)
    drawn[:, 0] = 40 - drawn[:, 1]  # most of them trade, so that the front is large
    expected = [
        i
        for i, row in enumerate(drawn)
        if not ((drawn <= row).all(axis=1) & (drawn < row).any(axis=1)).any()
    ]
    assert front_of(drawn.tolist()) == expected


def test_no_rows_have_no_front() -> None:
    assert front_of([]) == []
