"""Two models on one card: pairs, intervals, and which mechanism is taken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slicewise
from slicewise.core.cost import Estimate
from slicewise.slices.collocate import Sharing, advise, best_split, legal_pairs, sharing, side
from slicewise.slices.layouts import is_legal
from tests.slices.test_fit import prediction

factors = st.floats(1.0, 3.0)
GIB = 2**30


def _sharing(
    mechanism: str, one: float, other: float, *, memory_gib: float = 1.0, limit_gib: int = 80
) -> Sharing:
    alone = prediction(10.0)
    sides = [
        side(alone, prediction(10.0 * times, memory_gib=memory_gib), Estimate(1.0, 1.0, 1.0))
        for times in (one, other)
    ]
    return sharing(mechanism, (sides[0], sides[1]), limits=[limit_gib * GIB])


@pytest.mark.parametrize("name", ["a100-sxm4-80gb", "a30", "rtx-pro-6000-server"])
def test_every_pair_is_legal_and_comes_both_ways(name: str) -> None:
    device = slicewise.device(name)
    pairs = list(legal_pairs(device))
    assert pairs
    assert all(is_legal(device, pair) for pair in pairs)
    names = {(one.profile, other.profile) for one, other in pairs}
    assert len(names) == len(pairs)
    assert {(other, one) for one, other in names} == names


def test_an_a100_holds_4g_beside_3g_and_not_4g_twice() -> None:
    names = {
        (one.profile, other.profile)
        for one, other in legal_pairs(slicewise.device("a100-sxm4-80gb"))
    }
    assert ("4g.40gb", "3g.40gb") in names
    assert ("3g.40gb", "3g.40gb") in names
    assert ("4g.40gb", "4g.40gb") not in names
    assert not any("7g.80gb" in pair for pair in names)


@given(st.floats(0.1, 100.0), st.floats(1.0, 10.0), st.tuples(factors, factors, factors))
def test_a_side_holds_its_values_and_is_never_quicker_than_alone(
    whole_ms: float, times: float, three: tuple[float, float, float]
) -> None:
    low, value, high = sorted(three)
    alone = prediction(whole_ms)
    made = side(alone, prediction(whole_ms * times), Estimate(value, low, high, "pairs"))
    for estimate in (made.latency_ms, made.slowdown):
        assert estimate.low <= estimate.value * (1 + 1e-12)
        assert estimate.value <= estimate.high * (1 + 1e-12)
    assert made.slowdown.low >= 1
    assert made.slowdown.value == pytest.approx(times * value)
    assert made.throughput_per_s == pytest.approx(8 / (whole_ms * times * value) * 1e3)


def test_errors_of_the_card_itself_do_not_widen_a_slowdown() -> None:
    made = side(prediction(10.0), prediction(20.0), Estimate(1.0, 1.0, 1.0, ""))
    assert (made.slowdown.low, made.slowdown.high) == pytest.approx((2.0, 2.0))
    assert made.latency_ms.high == pytest.approx(25.0)


def test_the_split_with_the_least_worst_slowdown_is_kept_among_those_with_memory() -> None:
    splits = [_sharing("mps", 3.0, 1.0), _sharing("mps", 1.9, 2.0), _sharing("mps", 2.0, 1.5)]
    assert best_split(splits) is splits[2]
    tight = _sharing("mps", 1.0, 1.0, memory_gib=50.0)
    assert not tight.fits
    assert best_split([tight, *splits]) is splits[2]
    assert best_split([tight]) is tight


def test_isolation_is_worth_a_tenth() -> None:
    mps = _sharing("mps", 2.0, 1.0)
    near, far = _sharing("mig", 2.15, 1.0), _sharing("mig", 2.3, 1.0)
    assert advise([near, mps])[0] is near
    found, why = advise([far, mps])
    assert found is mps
    assert "2.00 against 2.30 under mig" in why


def test_two_that_memory_does_not_hold_are_told_why() -> None:
    found, why = advise([_sharing("time-slicing", 2.0, 2.0, memory_gib=50.0)])
    assert found is None
    assert "needs 100 GiB, 20.0 GiB more than 80.0 GiB usable" in why


def test_memory_that_may_be_too_little_is_told() -> None:
    made = _sharing("mps", 1.0, 1.0, memory_gib=30.0)
    assert made.fits
    assert made.reason == "60.0 GiB of 80.0 GiB (up to 120 GiB may be needed)"


@given(factors, factors)
def test_turns_gain_nothing_and_no_loss_gains_one_more(one: float, other: float) -> None:
    made = _sharing("mps", one, other)
    assert made.gain == pytest.approx(1 / one + 1 / other)
    assert made.worst_slowdown == pytest.approx(max(one, other))
