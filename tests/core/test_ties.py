"""Ties: figures that differ by rounding alone share a place."""

from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.ties import TIE, least, places

values = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30)


@given(values)
def test_a_smaller_value_never_has_a_later_place(figures: list[float]) -> None:
    found = places(figures)
    for one, its in zip(figures, found, strict=True):
        for other, place in zip(figures, found, strict=True):
            assert its <= place or one > other


@given(values, st.floats(-TIE / 3, TIE / 3))
def test_rounding_changes_no_place(figures: list[float], error: float) -> None:
    apart = [
        round(figure, 3) + 0.001 for figure in figures
    ]  # differ by 1e-9 of each, or not at all
    shaken = [figure * (1 + error * (i % 2)) for i, figure in enumerate(apart)]
    told = places([*apart, *shaken])
    assert told[: len(apart)] == told[len(apart) :]
    assert max(told) + 1 == len(set(apart))


def test_of_a_tie_the_first_is_the_least() -> None:
    assert least([(1, 5.0 + 1e-10), (5, 5.0), (9, 6.0)], lambda each: each[1])[0] == 1


def test_values_around_nothing_are_told_apart() -> None:
    assert places([0.0, -1e-30, 1e-30, 0.0]) == [1, 0, 2, 1]
