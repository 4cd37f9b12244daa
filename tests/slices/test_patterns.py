"""Patterns of slices for one workload, the cheapest at prices, and what prices prove."""

import itertools
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.packing import PackProblem
from slicewise.hardware.catalogue import find_device
from slicewise.slices.layouts import multisets
from slicewise.slices.packing.material import SHARE, Option, prepare
from slicewise.slices.packing.patterns import (
    Patterns,
    Pick,
    all_patterns,
    cheapest,
    cost_of,
    covers,
    factor_for,
    near,
    whole_prices,
)
from slicewise.slices.packing.prices import first_prices, improve_prices, proven, upper_cost
from slicewise.testing.packings import Layouts, optimum, problems

A30, L4 = find_device("a30"), find_device("l4")

shares = st.sampled_from([SHARE // 7, SHARE // 5, SHARE // 3, SHARE // 2, 2 * SHARE // 3, SHARE])
option_lists = st.lists(
    st.tuples(shares, st.sampled_from([0, 0, 3, 10])), min_size=1, max_size=4
).map(lambda rows: [Option(i, share, cost, None) for i, (share, cost) in enumerate(rows)])


def every_cover(options: list[Option]) -> list[Pick]:
    """All multisets that cover, up to as many of each as cover alone."""
    ranges = [range(-(-SHARE // option.share) + 1) for option in options]
    picks = [
        tuple((i, n) for i, n in enumerate(counts) if n) for counts in itertools.product(*ranges)
    ]
    return [pick for pick in picks if covers(options, pick)]


def price_of(options: list[Option], pick: Pick, prices: list[int], factor: int) -> int:
    rent = sum(prices[options[i].resource] * count for i, count in pick)
    return rent + factor * cost_of(options, pick)


@given(option_lists, st.lists(st.integers(0, 50), min_size=4, max_size=4))
@settings(deadline=None, max_examples=80)
def test_the_cheapest_pattern_is_that_of_all(options: list[Option], prices: list[int]) -> None:
    least = min(price_of(options, pick, prices, 1) for pick in every_cover(options))
    value, pick = cheapest(options, prices, 1)
    assert covers(options, pick)
    assert price_of(options, pick, prices, 1) <= value + 1  # the pattern's own cost rounds down
    assert least <= value + 1 and value <= least + 1


@given(option_lists, st.lists(st.integers(0, 50), min_size=4, max_size=4))
@settings(deadline=None, max_examples=80)
def test_the_listed_patterns_hold_the_cheapest(options: list[Option], prices: list[int]) -> None:
    listed = all_patterns(options, [frozenset()] * len(options), limit=10_000)
    assert listed is not None and len(set(listed)) == len(listed)
    assert all(covers(options, pick) for pick in listed)
    least = min(price_of(options, pick, prices, 1) for pick in every_cover(options))
    assert min(price_of(options, pick, prices, 1) for pick in listed) == least


@given(option_lists, st.lists(st.integers(0, 50), min_size=4, max_size=4), st.integers(0, 30))
@settings(deadline=None, max_examples=60)
def test_near_patterns_are_all_that_cost_little_more(
    options: list[Option], prices: list[int], more: int
) -> None:
    least, _ = cheapest(options, prices, 1)
    found = near(options, prices, 1, most=least + more, limit=10_000)
    listed = all_patterns(options, [frozenset()] * len(options), limit=10_000)
    assert found is not None and listed is not None
    assert all(covers(options, pick) for pick in found)
    missing = set(listed) - set(found)
    assert all(price_of(options, pick, prices, 1) > least + more - 1 for pick in missing)
    assert near(options, prices, 1, most=least + more, limit=0) is None


def test_too_many_patterns_are_not_listed() -> None:
    options = [Option(i, SHARE // (20 + i), 0, None) for i in range(6)]
    assert all_patterns(options, [frozenset()] * 6, limit=100) is None


def test_a_search_that_is_cut_off_gives_a_bound() -> None:
    options = [Option(i, SHARE // (37 + 3 * i) + i, 0, None) for i in range(9)]
    prices = [1000 + 7 * i * i - 23 * i for i in range(9)]
    value, pick = cheapest(options, prices, 1)
    assert covers(options, pick)
    ratio = min(Fraction(p * SHARE, o.share) for p, o in zip(prices, options, strict=True))
    assert ratio - 1 <= value <= price_of(options, pick, prices, 1)


@given(problems([A30, L4], most=4), st.integers(0, 1000))
@settings(deadline=None, max_examples=40)
def test_no_prices_prove_more_than_the_optimum(problem: PackProblem, seed: int) -> None:
    layouts: Layouts = {
        A30.name: [{None: 1}, *(dict[str | None, int](m) for m in multisets(A30))],
        L4.name: [{None: 1}],
    }
    best = optimum(problem, layouts, most_cards=4)
    if best > 1e9:
        return
    material = prepare(problem)
    patterns = Patterns(material)
    upper = upper_cost(material, None)
    start = first_prices(material)
    noise = np.random.default_rng(seed).uniform(0.2, 2.0, len(start))
    for proof in (
        proven(material, patterns, start * noise, upper=upper),
        improve_prices(material, patterns, start, upper=upper, steps=60),
    ):
        assert material.value(float(proof.cost)) <= best * (1 + 1e-9)


def test_rates_of_many_cards_are_priced_as_few_are() -> None:
    options = [Option(i, SHARE // (70_000 - 9_973 * i), 0, None) for i in range(6)]
    prices = [1000 + 170 * i for i in range(6)]
    value, pick = cheapest(options, prices, 1)
    assert covers(options, pick)
    ratio = min(Fraction(p * SHARE, o.share) for p, o in zip(prices, options, strict=True))
    assert ratio - 1 <= value <= price_of(options, pick, prices, 1) <= ratio + max(prices)


def test_prices_stay_within_64_bits() -> None:
    assert whole_prices([0.5, -1.0, 1e300], 8).tolist() == [4, 0, 2**58]


def test_factors_leave_room_in_64_bits() -> None:
    for peak in (1.0, 1e6, 1e12, 1e17):
        assert factor_for(peak) >= 1 and factor_for(peak) * peak < 2**59
