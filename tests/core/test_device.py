"""Slices and shares as devices, without a catalogue."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.device import UNIT_BYTES_PER_CLOCK
from slicewise.core.errors import DeviceError
from slicewise.core.precision import PRECISIONS, DType
from slicewise.testing.predictors import tiny_gpu


@pytest.mark.parametrize("name", ["1g.10gb", "3g.40gb", "MIG 1g.10gb", "3G.40GB"])
def test_a_slice_is_a_device_with_true_figures(name: str) -> None:
    card = tiny_gpu()
    part = card.slice(name)
    assert part.parent is card
    assert part.whole is card
    assert part.profile is not None
    assert part.compute_units == part.profile.compute_units
    share = part.compute_units / card.compute_units
    for dtype, rate in part.peak_flop_per_s.items():
        assert rate == pytest.approx(card.peak_flop_per_s[dtype] * share)
    bandwidth = card.memory_bandwidth_bytes_per_s * part.profile.memory_slices / 8
    assert part.memory_bandwidth_bytes_per_s == pytest.approx(bandwidth)
    assert part.slice_name == part.profile.name
    assert part.name == f"tiny-gpu/{part.profile.name}"


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_a_larger_share_has_no_less_of_anything(a: float, b: float) -> None:
    small, large = (tiny_gpu().share(percent) for percent in sorted((a, b)))
    assert 1 <= small.compute_units <= large.compute_units <= 108
    assert small.memory_bandwidth_bytes_per_s <= large.memory_bandwidth_bytes_per_s
    assert small.peak_flop_per_s[DType.FP16] <= large.peak_flop_per_s[DType.FP16]
    assert small.memory_bytes == large.memory_bytes


def test_a_few_units_cannot_take_in_the_whole_bandwidth() -> None:
    card = tiny_gpu()
    one = card.share(1)
    assert one.memory_bandwidth_bytes_per_s == UNIT_BYTES_PER_CLOCK * card.clock_hz
    assert card.share(50).memory_bandwidth_bytes_per_s == card.memory_bandwidth_bytes_per_s


def test_parts_of_parts_are_refused() -> None:
    part = tiny_gpu().slice("1g.10gb")
    with pytest.raises(DeviceError, match="already a part of tiny-gpu"):
        part.slice("1g.10gb")
    with pytest.raises(DeviceError, match="already a part of tiny-gpu"):
        part.share(50)


@pytest.mark.parametrize("percent", [0, -1, 100.5, float("nan")])
def test_a_share_that_is_none_is_refused(percent: float) -> None:
    with pytest.raises(DeviceError, match="over 0 and at most 100"):
        tiny_gpu().share(percent)


def test_an_unknown_profile_lists_those_of_the_card() -> None:
    with pytest.raises(DeviceError, match=r"no slice profile '1g.5gb'; it has 1g.10gb"):
        tiny_gpu().slice("1g.5gb")


def test_a_missing_rate_lists_those_of_the_data_sheet() -> None:
    assert tiny_gpu().peak_for(PRECISIONS["amp"]) == 312e12
    with pytest.raises(DeviceError, match=r"no fp4 arithmetic.*gives bf16, fp16, fp32"):
        tiny_gpu().peak_for(PRECISIONS["nvfp4"])
