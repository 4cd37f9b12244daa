"""Comparing measurements: laws, and how often chance alone is taken for a difference."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.comparison import Verdict
from slicewise.core.errors import UsageError
from slicewise.core.measurement import Environment
from slicewise.measure.compare import compare
from tests.measure.jobs import make_measurement

SAMPLES = st.lists(st.floats(0.01, 1e4), min_size=1, max_size=40)
TURNED = {
    Verdict.FASTER: Verdict.SLOWER,
    Verdict.SLOWER: Verdict.FASTER,
    Verdict.NONE: Verdict.NONE,
}


@given(SAMPLES)
def test_nothing_differs_from_itself(samples: list[float]) -> None:
    made = make_measurement(*samples)
    compared = compare(made, made, between_runs=0.0)
    assert compared.verdict is Verdict.NONE
    assert compared.ratio.value == pytest.approx(1.0)


@given(SAMPLES, SAMPLES, st.sampled_from([0.0, 0.02]))
def test_exchanging_the_two_turns_the_answer_round(
    first: list[float], second: list[float], between_runs: float
) -> None:
    a, b = make_measurement(*first), make_measurement(*second)
    forth = compare(a, b, between_runs=between_runs)
    back = compare(b, a, between_runs=between_runs)
    assert forth.ratio.low <= forth.ratio.value <= forth.ratio.high
    assert back.ratio.value == pytest.approx(1 / forth.ratio.value)
    assert back.ratio.low == pytest.approx(1 / forth.ratio.high)
    assert back.verdict is TURNED[forth.verdict]


@given(SAMPLES, SAMPLES, st.sampled_from([0.25, 2.0, 64.0]))
def test_a_common_factor_changes_nothing(
    first: list[float], second: list[float], factor: float
) -> None:
    plain = compare(make_measurement(*first), make_measurement(*second))
    scaled = compare(
        make_measurement(*[factor * each for each in first]),
        make_measurement(*[factor * each for each in second]),
    )
    assert scaled.ratio.value == pytest.approx(plain.ratio.value)
    assert scaled.verdict is plain.verdict


@given(SAMPLES, SAMPLES)
def test_allowing_more_between_runs_shows_no_more(first: list[float], second: list[float]) -> None:
    a, b = make_measurement(*first), make_measurement(*second)
    strict, lenient = compare(a, b, between_runs=0.1), compare(a, b, between_runs=0.0)
    assert strict.ratio.low <= lenient.ratio.low
    assert strict.ratio.high >= lenient.ratio.high


@pytest.mark.parametrize("counts", [(3, 3), (4, 9), (8, 8), (15, 120), (100, 100)])
def test_chance_alone_shows_a_difference_at_most_one_time_in_ten(counts: tuple[int, int]) -> None:
    random = np.random.default_rng(0)
    shown = 0
    for _ in range(300):
        a, b = (
            make_measurement(*np.exp(0.1 * random.standard_normal(count)).tolist())
            for count in counts
        )
        shown += compare(a, b, between_runs=0.0).verdict is not Verdict.NONE
    assert shown / 300 <= 0.12


def test_a_plain_difference_is_shown_both_ways() -> None:
    random = np.random.default_rng(1)
    slow = make_measurement(*(10 + 0.1 * random.standard_normal(30)).tolist())
    fast = make_measurement(*(8 + 0.1 * random.standard_normal(30)).tolist())
    compared = compare(slow, fast)
    assert compared.verdict is Verdict.FASTER
    assert compared.ratio.low < 0.8 < compared.ratio.high
    assert compare(fast, slow).verdict is Verdict.SLOWER


def test_a_difference_smaller_than_that_between_runs_is_not_shown() -> None:
    a, b = make_measurement(*[1.0] * 30), make_measurement(*[1.015] * 30)
    assert compare(a, b).verdict is Verdict.NONE
    assert compare(a, b, between_runs=0.001).verdict is Verdict.SLOWER


def test_three_against_three_can_show_a_difference_and_two_cannot() -> None:
    slow, fast = (9.0, 10.0, 11.0), (4.0, 5.0, 6.0)
    assert compare(make_measurement(*slow), make_measurement(*fast)).verdict is Verdict.FASTER
    few = compare(make_measurement(*slow[:2]), make_measurement(*fast[:2]))
    assert few.verdict is Verdict.NONE
    assert few.method == "separation of all samples"


def test_without_samples_there_is_nothing_to_compare() -> None:
    made = make_measurement(1.0, 1.0)
    with pytest.raises(UsageError, match="'m' has no samples: its outcome is crashed"):
        compare(made, make_measurement())
    with pytest.raises(UsageError, match=r"has a sample of 0\.0 ms"):
        compare(make_measurement(0.0, 1.0), made)


def test_what_else_differs_is_noted() -> None:
    a = make_measurement(1.0, 1.0)
    b = make_measurement(1.0, 1.0, environment=Environment(processor="other"))
    (note,) = compare(a, b).notes
    assert note.code == "environments-differ"
