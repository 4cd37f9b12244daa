"""Units: parsing and formatting of quantities."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.errors import UsageError
from slicewise.core.units import (
    format_capacity,
    format_ms,
    format_number,
    parse_bytes,
    parse_bytes_per_s,
    snap_ms,
)


@given(st.integers(1, 10**6), st.sampled_from(["KiB", "MiB", "GiB", "kB", "MB", "GB", "B"]))
def test_parsing_a_size_inverts_writing_it(count: int, unit: str) -> None:
    factor = parse_bytes(f"1{unit}")
    assert parse_bytes(f"{count}{unit}") == count * factor
    assert parse_bytes(f" {count} {unit} ") == count * factor


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "20 GiB/s", "1 parsec", "nan", "1e400x"])
def test_a_size_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="20GiB"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["25", "25GB", "0GB/s", "fast", "-3GB/s"])
def test_a_bandwidth_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="25GB/s"):
        parse_bytes_per_s(text)


@given(st.lists(st.floats(1e-6, 100.0), min_size=1, max_size=300), st.randoms())
def test_snapped_times_add_up_exactly_in_any_order(
    times_ms: list[float], rng: random.Random
) -> None:
    snapped = [snap_ms(time) for time in times_ms]
    shuffled = snapped[:]
    rng.shuffle(shuffled)
    assert sum(snapped) == sum(shuffled) == math.fsum(snapped)


@given(st.floats(1e-9, 1e9))
def test_snapping_moves_a_time_by_under_a_hundredth_of_a_nanosecond(time_ms: float) -> None:
    assert abs(snap_ms(time_ms) - time_ms) <= 1e-11 + time_ms * 1e-15


@given(st.floats(1e-12, 1e15))
def test_three_digits_are_within_half_a_percent(value: float) -> None:
    assert float(format_number(value)) == pytest.approx(value, rel=5.1e-3)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999.6, "1000"), (0.0099999, "0.0100"), (5, "5.00"), (123456, "123000")],
)
def test_numbers_keep_three_digits(value: float, text: str) -> None:
    assert format_number(value) == text


def test_capacity_and_time_take_the_unit_that_reads_best() -> None:
    assert format_capacity(512) == "512 B"
    assert format_capacity(80 * 2**30) == "80.0 GiB"
    assert format_ms(0.05) == "50.0 us"
    assert format_ms(61_000.0) == "61.0 s"
