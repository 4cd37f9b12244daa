"""Judging one model on every part of a card: laws, borders, words."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slicewise
from slicewise.core.cost import Estimate, MemoryEstimate, Prediction
from slicewise.core.device import Device, SliceProfile
from slicewise.core.errors import UsageError
from slicewise.core.packing import Fit, Target
from slicewise.core.units import GIB
from slicewise.slices.fit import (
    doubt,
    fullness,
    holds,
    judge,
    largest_batch,
    next_larger,
    part_of_card,
    probability,
    recommend,
    usable_bytes,
)

BOARDS = ("a100-sxm4-80gb", "h100-sxm5-80gb", "a30", "rtx-pro-6000-server")
CARD = slicewise.device("a100-sxm4-80gb")
Parts = list[tuple[SliceProfile | None, Prediction]]


def prediction(
    latency_ms: float, *, part: str | None = None, memory_gib: float = 1.0, batch: int = 8
) -> Prediction:
    """Return a prediction with intervals of a factor 1.25 both ways."""
    memory = round(memory_gib * GIB)
    return Prediction(
        model="m", device=CARD.name, slice=part, batch=batch, precision="fp16",
        runtime="tensorrt", macs=1, flops=2,
        latency_ms=Estimate(latency_ms, latency_ms / 1.25, latency_ms * 1.25, "test"),
        throughput_per_s=batch / latency_ms * 1e3,
        energy_j=Estimate(1.0, 0.5, 2.0, "test"),
        memory_bytes=MemoryEstimate(memory, memory // 2, 2 * memory, memory, 0, 0, "test"),
        compute_utilisation=0.5, saturation=0.5, source="test",
    )  # fmt: skip


def on_all_parts(whole_ms: float, *, memory_gib: float = 1.0, device: Device = CARD) -> Parts:
    """Return saturated work on every part: as much slower as the part has fewer units."""
    parts: Parts = [
        (
            profile,
            prediction(
                whole_ms * device.compute_units / profile.compute_units,
                part=profile.name,
                memory_gib=memory_gib,
            ),
        )
        for profile in device.profiles
    ]
    return [*parts, (None, prediction(whole_ms, memory_gib=memory_gib))]


def chosen(parts: Parts, target: Target, *, device: Device = CARD) -> Fit | None:
    return recommend(judge(parts, target, device=device), target)


def size(fit: Fit | None) -> float:
    """Return how large a part is; nothing that fits is larger than everything."""
    if fit is None:
        return 2.0
    return part_of_card(fit, CARD) + (1e-3 if fit.profile is None else 0.0)


latencies = st.floats(0.01, 1e4)
memories = st.floats(0.01, 200.0)
safeties = st.floats(0.0, 2.0)


@given(latencies, memories, latencies, latencies, safeties)
def test_a_looser_latency_never_needs_a_larger_part(
    whole_ms: float, memory_gib: float, one_ms: float, other_ms: float, safety: float
) -> None:
    parts = on_all_parts(whole_ms, memory_gib=memory_gib)
    tight, loose = sorted((one_ms, other_ms))
    tightly = chosen(parts, Target(latency_ms=tight, safety=safety))
    loosely = chosen(parts, Target(latency_ms=loose, safety=safety))
    assert size(loosely) <= size(tightly)


@given(latencies, memories, latencies, latencies, safeties)
def test_a_lower_rate_never_needs_a_larger_part(
    whole_ms: float, memory_gib: float, one: float, other: float, safety: float
) -> None:
    parts = on_all_parts(whole_ms, memory_gib=memory_gib)
    low, high = sorted((one, other))
    slow = chosen(parts, Target(throughput_per_s=low, safety=safety))
    fast = chosen(parts, Target(throughput_per_s=high, safety=safety))
    assert size(slow) <= size(fast)


@given(latencies, memories, latencies, safeties, safeties)
def test_less_safety_never_needs_a_larger_part(
    whole_ms: float, memory_gib: float, limit_ms: float, one: float, other: float
) -> None:
    parts = on_all_parts(whole_ms, memory_gib=memory_gib)
    low, high = sorted((one, other))
    daring = chosen(parts, Target(latency_ms=limit_ms, safety=low))
    careful = chosen(parts, Target(latency_ms=limit_ms, safety=high))
    assert size(daring) <= size(careful)


@given(latencies, memories, memories, st.none() | latencies)
def test_more_memory_makes_no_part_fit(
    whole_ms: float, one: float, other: float, limit_ms: float | None
) -> None:
    target = Target(latency_ms=limit_ms)
    little, much = (
        judge(on_all_parts(whole_ms, memory_gib=gib), target, device=CARD)
        for gib in sorted((one, other))
    )
    for before, after in zip(little, much, strict=True):
        assert before.fits or not after.fits


@given(latencies, memories, st.none() | latencies, st.none() | latencies, safeties)
def test_what_is_recommended_fits_and_nothing_smaller_does(
    whole_ms: float,
    memory_gib: float,
    limit_ms: float | None,
    rate_per_s: float | None,
    safety: float,
) -> None:
    target = Target(limit_ms, rate_per_s, safety)
    fits = judge(on_all_parts(whole_ms, memory_gib=memory_gib), target, device=CARD)
    found = recommend(fits, target)
    assert (found is None) == (not any(fit.fits for fit in fits))
    if found is None:
        return
    made = found.prediction
    assert found.fits
    assert made.latency_ms.value <= target.latency_allowed_ms
    assert made.throughput_per_s >= target.throughput_needed_per_s
    usable = usable_bytes(found.profile, CARD)
    assert made.memory_bytes.value * (1 + safety) <= usable
    if limit_ms is not None or rate_per_s is not None:
        assert all(not fit.fits for fit in fits[: fits.index(found)])
    else:
        best = max(fit.per_slice_per_s for fit in fits if fit.fits)
        assert found.per_slice_per_s == pytest.approx(best)


@given(latencies, memories, latencies, latencies)
def test_confidence_is_a_probability_and_grows_with_the_target(
    whole_ms: float, memory_gib: float, one_ms: float, other_ms: float
) -> None:
    parts = on_all_parts(whole_ms, memory_gib=memory_gib)
    tight, loose = (
        judge(parts, Target(latency_ms=limit), device=CARD) for limit in sorted((one_ms, other_ms))
    )
    for before, after in zip(tight, loose, strict=True):
        assert 0 <= before.confidence <= after.confidence <= 1


@pytest.mark.parametrize("name", BOARDS)
def test_parts_stand_in_the_order_of_what_they_take(name: str) -> None:
    device = slicewise.device(name)
    fits = judge(on_all_parts(10.0, device=device), Target(), device=device)
    taken = [part_of_card(fit, device) for fit in fits]
    assert taken == sorted(taken)
    assert 0 < taken[0] < taken[-1] == 1.0
    assert fits[-1].profile is None
    assert len(fits) == len(device.profiles) + 1


def test_memory_is_that_which_can_be_used_not_that_of_the_name() -> None:
    """The 1g.10gb of an A100 has 9.5 GiB."""
    fits = judge(
        on_all_parts(1.0, memory_gib=9.8), Target(latency_ms=1e3, safety=0.0), device=CARD
    )
    by_name = {fit.prediction.slice: fit for fit in fits}
    assert not by_name["1g.10gb"].fits
    assert by_name["1g.10gb"].reason == "needs 9.80 GiB, 307 MiB more than 9.50 GiB usable"
    found = recommend(fits, Target(latency_ms=1e3))
    assert found is by_name["1g.20gb"]
    assert holds(found, CARD)


def test_the_reason_says_what_is_wanting_and_by_how_much() -> None:
    (fit,) = judge([(None, prediction(24.0))], Target(latency_ms=20.0), device=CARD)
    assert fit.reason == "24.0 ms is 20 % over the target of 20.0 ms"
    (fit,) = judge([(None, prediction(19.0))], Target(latency_ms=20.0), device=CARD)
    assert fit.reason == "19.0 ms plus 10 % to spare is 20.9 ms, over 20.0 ms"
    (fit,) = judge([(None, prediction(18.19))], Target(latency_ms=20.0), device=CARD)
    assert fit.reason == "18.2 ms plus 10 % to spare is 20.01 ms, over 20.0 ms"
    (fit,) = judge([(None, prediction(39.95))], Target(latency_ms=20.0), device=CARD)
    assert fit.reason == "40.0 ms is 2.00 times the target of 20.0 ms"
    (fit,) = judge([(None, prediction(100.0))], Target(throughput_per_s=1e5), device=CARD)
    assert fit.reason == "80.0 items/s, over 99 % less than the 100000 asked"
    (fit,) = judge([(None, prediction(100.0))], Target(throughput_per_s=100.0), device=CARD)
    assert fit.reason == "80.0 items/s, 20 % less than the 100 asked"
    (fit,) = judge([(None, prediction(78.0))], Target(throughput_per_s=100.0), device=CARD)
    assert fit.reason == "103 items/s reaches the 100 asked, but not 110 with 10 % to spare"
    (fit,) = judge([(None, prediction(200.0, memory_gib=90.0))], Target(20.0, 1e3), device=CARD)
    assert fit.reason.startswith("needs 90.0 GiB, 10.0 GiB more than 80.0 GiB usable; 200 ms is")
    assert "40.0 items/s, 96 % less than the 1000 asked" in fit.reason


def test_an_interval_that_crosses_the_target_says_how_sure() -> None:
    (fit,) = judge([(None, prediction(17.7))], Target(latency_ms=20.0), device=CARD)
    assert fit.fits
    told = doubt(fit, Target(latency_ms=20.0), CARD)
    assert told == "high end 22.1 ms is over the target: holds with about 82 %"
    assert fit.reason.endswith(told)
    (sure,) = judge([(None, prediction(10.0))], Target(latency_ms=20.0), device=CARD)
    assert doubt(sure, Target(latency_ms=20.0), CARD) == ""


def test_the_two_ends_of_an_interval_hold_five_percent_each() -> None:
    assert probability(10.0, 8.0, 12.5, 12.5) == pytest.approx(0.95)
    assert probability(10.0, 8.0, 12.5, 8.0) == pytest.approx(0.05)
    assert probability(10.0, 10.0, 10.0, 10.0) == 1.0
    assert probability(10.0, 10.0, 10.0, 9.99) == 0.0
    assert probability(10.0, 8.0, 12.5, float("inf")) == 1.0


def test_a_part_without_known_memory_is_judged_by_its_time() -> None:
    made = replace(prediction(10.0), memory_bytes=MemoryEstimate(0, 0, 0, 0, 0, 0, "unknown"))
    (fit,) = judge([(None, made)], Target(latency_ms=20.0), device=CARD)
    assert fit.fits
    assert "memory is not known" in fit.reason


def test_a_measured_part_may_have_its_own_safety() -> None:
    parts: Parts = [(CARD.profiles[0], prediction(19.5, part="1g.10gb")), (None, prediction(5.0))]
    target = Target(latency_ms=20.0)
    assert recommend(judge(parts, target, device=CARD), target).profile is None  # type: ignore[union-attr]
    fits = judge(parts, target, device=CARD, safeties=[0.0, 0.1])
    assert [fit.safety for fit in fits] == [0.0, 0.1]
    assert recommend(fits, target) is fits[0]


def test_the_next_larger_is_no_other_form_of_the_same_slice() -> None:
    fits = judge(on_all_parts(1.0), Target(latency_ms=100.0), device=CARD)
    assert fits[0].prediction.slice == "1g.10gb"
    larger = next_larger(fits, fits[0])
    assert larger is not None
    assert larger.prediction.slice == "1g.20gb"
    assert next_larger(fits, fits[-1]) is None


def test_memory_slots_count_where_they_are_the_larger_part() -> None:
    """1g with double memory takes a quarter of the card, 3g a half, 4g four of seven."""
    fits = judge(on_all_parts(1.0), Target(), device=CARD)
    taken = {fit.prediction.slice: part_of_card(fit, CARD) for fit in fits}
    assert taken["1g.10gb"] == pytest.approx(1 / 7)
    assert taken["1g.20gb"] == pytest.approx(1 / 4)
    assert taken["3g.40gb"] == pytest.approx(1 / 2)
    assert taken["4g.40gb"] == pytest.approx(4 / 7)


def test_a_share_takes_its_percentage() -> None:
    parts: Parts = [
        (None, prediction(1000.0 / percent, part=f"{percent}%")) for percent in (50, 10)
    ]
    fits = judge(parts, Target(), device=CARD)
    assert [part_of_card(fit, CARD) for fit in fits] == [0.1, 0.5]
    assert fits[0].per_slice_per_s == pytest.approx(fits[0].prediction.throughput_per_s)


@given(st.integers(0, 5000), st.integers(1, 5000), st.floats(0.2, 3.0))
def test_the_largest_batch_is_found(limit: int, most: int, power: float) -> None:
    asked: list[int] = []

    def full(batch: int) -> float:
        asked.append(batch)
        return float((batch / (limit + 0.5)) ** power)

    assert largest_batch(full, most=most) == min(limit, most)
    assert len(asked) == len(set(asked)) <= 45


@given(st.sets(st.integers(1, 300)), st.lists(st.floats(0.0, 1.0), min_size=301, max_size=301))
def test_where_batches_come_and_go_the_next_one_does_not_keep(
    kept: set[int], noise: list[float]
) -> None:
    def full(batch: int) -> float:
        return noise[batch] if batch in kept else 1.5 + noise[batch]

    found = largest_batch(full, most=300)
    if found == 300:
        assert found in kept
    elif found:
        assert found in kept
        assert found + 1 not in kept
    else:
        assert 1 not in kept


def test_a_straight_line_is_followed_in_a_few_calls() -> None:
    asked: list[int] = []

    def full(batch: int) -> float:
        asked.append(batch)
        return (20 + batch) / 1000.5

    assert largest_batch(full) == 980
    assert len(asked) <= 14  # 11 doublings


@given(latencies, memories, st.none() | latencies, safeties)
def test_what_is_full_at_most_is_what_fits(
    whole_ms: float, memory_gib: float, limit_ms: float | None, safety: float
) -> None:
    target = Target(latency_ms=limit_ms, safety=safety)
    for fit in judge(on_all_parts(whole_ms, memory_gib=memory_gib), target, device=CARD):
        full = fullness(fit, target, CARD)
        assert fit.fits == (full <= 1) or full == pytest.approx(1, rel=1e-12)


def test_no_batch_at_all_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="most batch 0"):
        largest_batch(lambda batch: 0.0, most=0)


def test_parts_of_a_card_without_a_profile_of_the_whole_are_counted_by_how_many_fit() -> None:
    half_card = slicewise.device("rtx-pro-4500-32gb")
    (profile,) = half_card.profiles
    fits = judge(
        [(profile, prediction(10.0)), (None, prediction(5.0))], Target(), device=half_card
    )
    assert [part_of_card(fit, half_card) for fit in fits] == [0.5, 1.0]
    assert [fit.per_slice_per_s for fit in fits] == [800.0, 800.0]
