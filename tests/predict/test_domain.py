"""Intervals: from the published errors, and never silent where there are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.predict.domain import ERROR_BANDS, UNCOVERED, latency_interval
from slicewise.predict.runtimes import RUNTIMES
from slicewise.testing.predictors import tiny_gpu


@pytest.mark.parametrize("key", sorted(ERROR_BANDS))
def test_every_band_is_a_band_of_real_rows(key: tuple[str, str, str]) -> None:
    band = ERROR_BANDS[key]
    assert 0.1 < band.low < band.high < 10
    assert band.rows >= 30
    assert band.families >= 5
    assert key[1] in RUNTIMES


def test_a_guess_is_wider_than_every_band() -> None:
    assert UNCOVERED.high >= max(band.high for band in ERROR_BANDS.values()) * 0.9
    assert UNCOVERED.low <= min(band.low for band in ERROR_BANDS.values())


@given(st.floats(1e-3, 1e4), st.sampled_from(sorted(RUNTIMES)), st.floats(0.01, 1.0))
def test_the_interval_holds_the_value_and_scales_with_it(
    latency_ms: float, runtime: str, saturation: float
) -> None:
    estimate, notes = latency_interval(
        latency_ms, device=tiny_gpu(), runtime=runtime, saturation=saturation, source="x"
    )
    assert 0 < estimate.low <= estimate.value <= estimate.high
    double, _ = latency_interval(
        2 * latency_ms, device=tiny_gpu(), runtime=runtime, saturation=saturation, source="x"
    )
    assert double.high == pytest.approx(2 * estimate.high)
    covered = any(key[:2] == ("gpu", runtime) for key in ERROR_BANDS)
    assert covered or notes
