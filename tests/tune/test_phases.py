import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.tune.phases import PhaseTimes, phase_times, serial_wall_s, spread
from slicewise.tune.records import PieceRecord


def piece(size: int, search_s: float, build_s: float, measure_s: float) -> PieceRecord:
    return PieceRecord(0, "w", size, 0, search_s, build_s, measure_s)


def taken(times: PhaseTimes, sizes: list[int], seed: int) -> list[PieceRecord]:
    draw = random.Random(seed)
    return [
        piece(
            size, times.draw_search_s(size, draw),
            sum(times.draw_build_s(draw) for _ in range(size)),
            sum(times.draw_measure_s(draw, is_careful=False) for _ in range(size)),
        )
        for size in sizes
    ]  # fmt: skip


@settings(max_examples=40)
@given(
    search_s=st.floats(0.01, 5), build_s=st.floats(0.01, 5), measure_s=st.floats(0.01, 5),
    piece_s=st.floats(0, 5),
)  # fmt: skip
def test_what_is_drawn_without_spread_is_found_again(
    search_s: float, build_s: float, measure_s: float, piece_s: float
) -> None:
    times = PhaseTimes(
        search_s, build_s, measure_s, piece_s, search_spread=0, build_spread=0, measure_spread=0
    )
    found = phase_times(taken(times, [2, 4, 8, 8], 0), client_start_s=1.0, server_start_s=2.0)
    assert found.search_s == pytest.approx(search_s, rel=1e-6, abs=1e-6)
    assert found.piece_s == pytest.approx(piece_s, rel=1e-6, abs=1e-6)
    assert found.build_s == pytest.approx(build_s)
    assert found.measure_s == pytest.approx(measure_s)
    assert (found.client_start_s, found.server_start_s) == (1.0, 2.0)


def test_equal_sizes_leave_nothing_for_the_piece() -> None:
    found = phase_times([piece(8, 4.0, 2.0, 1.0)] * 3, client_start_s=0, server_start_s=0)
    assert found.piece_s == 0.0 and found.search_s == 0.5


def test_nothing_is_below_zero() -> None:
    falling = [piece(2, 5.0, 1, 1), piece(8, 1.0, 1, 1)]
    rising = [piece(2, 0.1, 1, 1), piece(8, 9.0, 1, 1)]
    for records in (falling, rising):
        found = phase_times(records, client_start_s=0, server_start_s=0)
        assert found.search_s >= 0 and found.piece_s >= 0


def test_spreads_are_found() -> None:
    times = PhaseTimes(search_spread=0.4)
    found = phase_times(taken(times, [8] * 400, 1), client_start_s=0, server_start_s=0)
    assert found.search_spread == pytest.approx(0.4, abs=0.05)


def test_the_efficiency_of_cores_is_divided_out() -> None:
    found = phase_times(
        [piece(8, 8.0, 4.0, 1.0)], client_start_s=0, server_start_s=0, core_efficiency=0.8
    )
    assert (found.search_s, found.build_s, found.measure_s) == (0.8, 0.4, 0.125)


def test_without_pieces_the_defaults_stand() -> None:
    assert phase_times([], client_start_s=3.0, server_start_s=3.0) == PhaseTimes()


def test_a_spread_keeps_the_mean() -> None:
    draw = random.Random(0)
    drawn = [spread(2.0, 0.5, draw) for _ in range(20_000)]
    assert statistics.fmean(drawn) == pytest.approx(2.0, rel=0.02)


def test_one_after_the_other_adds_up() -> None:
    times = PhaseTimes(1.0, 0.5, 0.25, 2.0, client_start_s=4.0)
    assert serial_wall_s(times, trials=16, piece_size=8) == 4 + 2 * 2 + 16 * 1.75
    faster = serial_wall_s(times, trials=16, piece_size=8, search_speedup=2, build_speedup=2)
    assert faster == 4 + (4 + 16 + 8) / 2 + 4
