"""The simulation against what is known exactly, and its own promises."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.cost import Estimate
from slicewise.core.errors import UsageError
from slicewise.core.packing import Offer, Serving
from slicewise.slices.simulate import Arrivals, simulate


def part_of(
    batch: int, processes: int, service_ms: float, *, max_delay_ms: float = 0.0, pause: float = 1.0
) -> Offer:
    per_s = 1e3 * batch * processes / (service_ms * pause)
    estimate = Estimate(service_ms, low=service_ms, high=service_ms)
    serving = Serving(batch, processes, estimate, per_s, memory_bytes=1e9)
    return Offer("a30", None, serving, per_s, max_delay_ms)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_server_waits_as_long_as_pollaczek_and_khinchine_say(load: float) -> None:
    part = part_of(1, 1, 10.0)
    told = simulate([(part, load * 100.0)], requests=200_000, seed=1)
    assert told.mean_ms == pytest.approx(10 + 10 * load / (2 * (1 - load)), rel=0.03)
    assert told.load == pytest.approx(load, rel=0.02)


def test_even_arrivals_below_the_rate_of_one_server_never_wait() -> None:
    told = simulate([(part_of(1, 1, 10.0), 99.0)], requests=2_000, arrivals=Arrivals.EVEN)
    assert told.percentiles_ms == pytest.approx((10.0, 10.0, 10.0))


def test_a_batch_is_full_or_its_first_request_has_waited_the_delay() -> None:
    # every 2 ms a request; 4 of them fill a batch in 6 ms
    quick = simulate(
        [(part_of(4, 8, 10.0, max_delay_ms=50.0), 500.0)], percentiles=(0.0, 100.0),
        requests=4_000, arrivals=Arrivals.EVEN,
    )  # fmt: skip
    assert quick.percentiles_ms == pytest.approx((10.0, 16.0))
    assert quick.batch == pytest.approx(4.0)
    short = simulate(
        [(part_of(4, 8, 10.0, max_delay_ms=3.0), 500.0)], percentiles=(0.0, 100.0),
        requests=4_000, arrivals=Arrivals.EVEN,
    )  # fmt: skip
    assert short.percentiles_ms == pytest.approx((11.0, 13.0))
    assert short.batch == pytest.approx(2.0)


def test_a_pause_between_batches_delays_the_next_but_not_its_own() -> None:
    told = simulate(
        [(part_of(1, 1, 10.0, pause=1.5), 60.0)], percentiles=(100.0,), requests=2_000,
        arrivals=Arrivals.EVEN,
    )  # fmt: skip
    assert told.percentiles_ms[0] == pytest.approx(10.0)


@given(st.integers(0, 5), st.sampled_from([1, 8]), st.integers(1, 3))
@settings(deadline=None, max_examples=15)
def test_the_same_seed_gives_the_same_answer(seed: int, batch: int, processes: int) -> None:
    part = part_of(batch, processes, 10.0, max_delay_ms=5.0)
    rate = 0.7 * part.capacity_per_s
    first = simulate([(part, rate)], requests=3_000, seed=seed)
    assert first == simulate([(part, rate)], requests=3_000, seed=seed)
    assert min(first.percentiles_ms) >= 10.0 and first.percentiles_ms == tuple(
        sorted(first.percentiles_ms)
    )


def test_more_load_is_never_quicker() -> None:
    part = part_of(8, 2, 10.0, max_delay_ms=0.0)
    means = [
        simulate([(part, load * part.capacity_per_s)], requests=50_000, seed=2).mean_ms
        for load in (0.2, 0.5, 0.8, 0.95)
    ]
    assert means == sorted(means)


def test_requests_of_several_slices_count_by_their_rates() -> None:
    slow, fast = part_of(1, 1, 90.0), part_of(1, 1, 1.0)
    told = simulate(
        [(slow, 1.0), (fast, 99.0)], percentiles=(50.0,), requests=20_000, arrivals=Arrivals.EVEN
    )
    assert told.percentiles_ms[0] == pytest.approx(1.0)
    assert told.mean_ms == pytest.approx(0.01 * 90 + 0.99 * 1, rel=0.02)
    assert told.requests == pytest.approx(0.95 * 20_000, abs=2)


def test_safety_stretches_every_batch() -> None:
    part = part_of(1, 1, 10.0)
    told = simulate(
        [(part, 50.0)], percentiles=(100.0,), requests=1_000, arrivals=Arrivals.EVEN, safety=0.2
    )
    assert told.percentiles_ms[0] == pytest.approx(12.0)


@pytest.mark.parametrize("rates", [(0.0,), (-1.0, 5.0), ()])
def test_impossible_rates_are_refused(rates: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="rates"):
        simulate([(part_of(1, 1, 10.0), rate) for rate in rates])
