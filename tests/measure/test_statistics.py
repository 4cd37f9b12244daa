"""Medians and their intervals: laws, and coverage on data whose median is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from slicewise.core.errors import UsageError
from slicewise.measure.statistics import (
    effective_samples,
    find_drift,
    is_narrow_enough,
    is_steady,
    summarise,
)

SAMPLES = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=80)


def _autoregression(
    random: np.random.Generator, *, coefficient: float, count: int
) -> NDArray[np.float64]:
    """Samples around 10 where each leans on the one before."""
    noise = random.standard_normal(count + 50)
    for i in range(1, count + 50):
        noise[i] += coefficient * noise[i - 1]
    return 10 + 0.1 * noise[50:]


@given(SAMPLES)
def test_the_interval_holds_the_median_and_lies_within_the_samples(samples: list[float]) -> None:
    made = summarise(samples)
    assert min(samples) <= made.low <= made.value <= made.high <= max(samples)
    assert made.source == "measured"


@given(SAMPLES, st.sampled_from([0.25, 0.5, 2.0, 1024.0]))
def test_scaling_the_samples_scales_the_estimate(samples: list[float], factor: float) -> None:
    made, scaled = summarise(samples), summarise([factor * sample for sample in samples])
    assert (scaled.low, scaled.value, scaled.high) == (
        factor * made.low, factor * made.value, factor * made.high,
    )  # fmt: skip


@given(SAMPLES)
def test_samples_are_worth_at_most_their_number_and_at_least_one(samples: list[float]) -> None:
    assert 1 - 1e-9 <= effective_samples(samples) <= len(samples)


@given(st.floats(1e-3, 1e6), st.integers(1, 50))
def test_equal_samples_have_no_width(sample: float, count: int) -> None:
    made = summarise([sample] * count)
    assert made.low == made.value == made.high
    assert is_narrow_enough(made, relative_width=0.0)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7])
def test_few_samples_are_bounded_by_the_least_and_the_greatest(count: int) -> None:
    samples = [float(i) for i in range(1, count + 1)]
    made = summarise(samples)
    assert (made.low, made.high) == (1.0, float(count))


@pytest.mark.parametrize(("count", "rank"), [(8, 2), (15, 4), (30, 11), (100, 42), (2000, 963)])
def test_ranks_of_independent_samples_are_those_of_the_binomial(count: int, rank: int) -> None:
    # Alternating above and below: nothing is lost to dependence. Ranks: the greatest k with
    # 2 P(Bin(n, 1/2) < k) <= 0.1, as tables of the sign test have them.
    samples = [float(i // 2 if i % 2 else count - i // 2) for i in range(count)]
    assert sorted(samples)[rank - 1] == summarise(samples).low


def test_more_samples_narrow_the_interval_on_average() -> None:
    random = np.random.default_rng(1)
    widths = []
    for count in (10, 40, 160):
        made = [summarise(list(10 + random.standard_normal(count))) for _ in range(60)]
        widths.append(float(np.mean([each.high - each.low for each in made])))
    assert widths[0] > widths[1] > widths[2]


@pytest.mark.parametrize(
    ("coefficient", "count", "least"), [(0.0, 15, 0.88), (0.0, 60, 0.88), (0.6, 200, 0.86)]
)
def test_nine_of_ten_intervals_hold_the_true_median(
    coefficient: float, count: int, least: float
) -> None:
    random = np.random.default_rng(2)
    hits = 0
    for _ in range(400):
        made = summarise(_autoregression(random, coefficient=coefficient, count=count).tolist())
        hits += made.low <= 10 <= made.high
    assert hits / 400 >= least


def test_samples_that_lean_on_each_other_are_worth_less() -> None:
    random = np.random.default_rng(3)
    free = _autoregression(random, coefficient=0.0, count=400)
    leaning = _autoregression(random, coefficient=0.8, count=400)
    # (1 + c) / (1 - c) = 9 would be right of the mean; the sign of a sample leans a little less.
    assert effective_samples(leaning.tolist()) < 120
    assert effective_samples(free.tolist()) > 200


def test_one_outlier_moves_neither_median_nor_interval_far() -> None:
    samples = [1.0, 1.01, 0.99, 1.02, 0.98] * 4
    assert summarise([*samples, 1000.0]).high <= 1.02


@pytest.mark.parametrize("samples", [[], [1.0, float("nan")], [float("inf")]])
def test_samples_without_a_median_are_refused(samples: list[float]) -> None:
    with pytest.raises(UsageError, match="have no median"):
        summarise(samples)


def test_falling_times_are_not_steady_and_level_or_rising_ones_are() -> None:
    assert not is_steady([1.0, 1.0])
    assert not is_steady([10.0 - i for i in range(9)])
    assert is_steady([50.0, 1.0, 1.0])
    assert is_steady([5.0] * 3 + [1.0] * 6)
    assert is_steady([1.0, 2.0, 3.0])


@given(SAMPLES, st.sampled_from([0.5, 4.0]))
def test_steadiness_has_no_unit(samples: list[float], factor: float) -> None:
    assert is_steady(samples) == is_steady([factor * sample for sample in samples])


def test_drift_is_told_where_the_halves_lie_apart() -> None:
    random = np.random.default_rng(4)
    level = 1 + 0.001 * random.standard_normal(40)
    assert find_drift(level.tolist()) == 0.0
    slower = np.concatenate([level[:20], 1.1 * level[20:]])
    assert find_drift(slower.tolist()) == pytest.approx(0.1, abs=0.01)
    assert find_drift(slower[::-1].tolist()) == pytest.approx(-0.09, abs=0.01)
    assert find_drift([1.0, 2.0] * 4) == 0.0
