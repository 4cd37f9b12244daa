"""Laws of the capacity of a slice under a latency target, and the simulation that checks them."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.cost import Estimate
from slicewise.core.errors import UsageError
from slicewise.core.packing import LatencyModel, Offer, Serving
from slicewise.slices.latency import SERVICE_PART, offer
from slicewise.slices.simulate import Arrivals, arrivals_of, simulate


def serving_of(batch: int, processes: int, service_ms: float, *, pause: float = 1.0) -> Serving:
    """`pause`: a process takes that many times its service from batch to batch."""
    per_s = 1e3 * batch * processes / (service_ms * pause)
    estimate = Estimate(service_ms, low=service_ms, high=service_ms)
    return Serving(batch, processes, estimate, per_s, memory_bytes=1e9)


def offered(
    serving: Serving,
    latency_ms: float,
    model: LatencyModel,
    *,
    percentile: float = 99.0,
    safety: float = 0.0,
) -> Offer | None:
    return offer(
        serving, device="a30", profile="1g.6gb", rate_per_s=10.0, latency_ms=latency_ms,
        percentile=percentile, model=model, safety=safety,
    )  # fmt: skip


def capacity(found: Offer | None) -> float:
    return 0.0 if found is None else found.capacity_per_s


servings = st.builds(
    serving_of,
    st.sampled_from([1, 2, 4, 8, 32]),
    st.integers(1, 4),
    st.floats(0.5, 200.0),
    pause=st.sampled_from([1.0, 1.2]),
)
models = st.sampled_from(list(LatencyModel))


@given(servings, models, st.floats(1.0, 500.0), st.floats(1.0, 3.0))
@settings(deadline=None, max_examples=80)
def test_a_looser_target_never_lowers_the_capacity(
    serving: Serving, model: LatencyModel, latency_ms: float, times: float
) -> None:
    tight = offered(serving, latency_ms, model)
    loose = offered(serving, latency_ms * times, model)
    assert capacity(loose) >= capacity(tight) * (1 - 1e-9)


@given(servings, models, st.floats(1.0, 500.0), st.floats(0.0, 0.5))
@settings(deadline=None, max_examples=60)
def test_safety_never_raises_the_capacity(
    serving: Serving, model: LatencyModel, latency_ms: float, safety: float
) -> None:
    plain = offered(serving, latency_ms, model)
    safe = offered(serving, latency_ms, model, safety=safety)
    assert capacity(safe) <= capacity(plain) * (1 + 1e-9)


@given(servings, models, st.floats(1.0, 500.0), st.floats(0.3, 1.0))
@settings(deadline=None, max_examples=60)
def test_a_faster_slice_carries_no_less(
    serving: Serving, model: LatencyModel, latency_ms: float, part: float
) -> None:
    cycle = 1e3 * serving.batch * serving.processes / serving.throughput_per_s
    pause = cycle / serving.service_ms.value
    fast = serving_of(
        serving.batch, serving.processes, serving.service_ms.value * part, pause=pause
    )
    slow = capacity(offered(serving, latency_ms, model))
    # the dimensionless slack is rounded down in steps of half a percent
    assert capacity(offered(fast, latency_ms, model)) >= slow * (1 - 1e-9)


@given(servings, models, st.floats(1.0, 500.0))
@settings(deadline=None, max_examples=60)
def test_no_capacity_is_above_the_throughput(
    serving: Serving, model: LatencyModel, latency_ms: float
) -> None:
    found = offered(serving, latency_ms, model)
    assert capacity(found) <= serving.throughput_per_s * (1 + 1e-9)
    if found is not None:
        assert 0 <= found.max_delay_ms <= latency_ms


@given(servings, st.floats(1.0, 500.0), st.floats(80.0, 99.0))
@settings(deadline=None, max_examples=40)
def test_a_lower_percentile_never_lowers_the_capacity(
    serving: Serving, latency_ms: float, percentile: float
) -> None:
    strict = offered(serving, latency_ms, LatencyModel.QUEUE, percentile=99.5)
    mild = offered(serving, latency_ms, LatencyModel.QUEUE, percentile=percentile)
    assert capacity(mild) >= capacity(strict) * (1 - 1e-9)


@pytest.mark.parametrize("part", [1.0, 0.6, 0.1])
@pytest.mark.parametrize(
    ("batch", "processes", "times"),
    list(itertools.product((1, 8, 32), (1, 3), (1.5, 2.3, 4.0))),
)
def test_random_arrivals_keep_the_percentile_at_the_capacity_and_below(
    batch: int, processes: int, times: float, part: float
) -> None:
    found = offered(serving_of(batch, processes, 20.0), 20.0 * times, LatencyModel.QUEUE)
    assert found is not None
    told = simulate(
        [(found, found.capacity_per_s * part)], percentiles=(99.0,), requests=40_000, seed=3
    )
    assert told.percentiles_ms[0] <= 20.0 * times


@pytest.mark.parametrize("model", [LatencyModel.SERVICE, LatencyModel.FILL])
@pytest.mark.parametrize("part", [1.0, 0.93, 0.5, 0.07])
@pytest.mark.parametrize(
    ("batch", "processes", "times"),
    list(itertools.product((1, 2, 8, 32), (1, 3), (1.1, 1.5, 2.3, 4.0))),
)
def test_even_arrivals_keep_the_target_at_the_capacity_and_below(
    model: LatencyModel, batch: int, processes: int, times: float, part: float
) -> None:
    found = offered(serving_of(batch, processes, 20.0), 20.0 * times, model)
    if found is None:
        assert model is LatencyModel.SERVICE and SERVICE_PART * times < 1
        return
    told = simulate(
        [(found, found.capacity_per_s * part)], percentiles=(100.0,), requests=3_000,
        arrivals=arrivals_of(model),
    )  # fmt: skip
    assert told.percentiles_ms[0] <= 20.0 * times * (1 + 1e-9)


@pytest.mark.parametrize("times", [2.3, 4.0])
@pytest.mark.parametrize(("batch", "processes"), [(1, 1), (8, 1), (8, 3), (32, 2)])
def test_the_queueing_capacity_is_not_far_from_what_the_simulation_finds(
    batch: int, processes: int, times: float
) -> None:
    serving = serving_of(batch, processes, 20.0)
    found = offered(serving, 20.0 * times, LatencyModel.QUEUE)
    assert found is not None
    more = found.capacity_per_s + 0.25 * serving.throughput_per_s
    if more < 0.97 * serving.throughput_per_s:
        told = simulate([(found, more)], percentiles=(99.0,), requests=40_000, seed=3)
        assert told.percentiles_ms[0] > 20.0 * times


def test_the_published_rule_keeps_a_batch_under_its_part_of_the_target() -> None:
    serving = serving_of(16, 1, 45.0)
    assert offered(serving, 99.9, LatencyModel.SERVICE) is None
    found = offered(serving, 100.0, LatencyModel.SERVICE)
    assert found is not None
    assert found.capacity_per_s == pytest.approx(serving.throughput_per_s)
    assert found.max_delay_ms == pytest.approx(10.0)


def test_filling_takes_as_long_as_a_batch_where_all_processes_work() -> None:
    serving = serving_of(10, 2, 40.0)  # a batch begins every 20 ms at most
    wide = offered(serving, 60.0, LatencyModel.FILL)
    narrow = offered(serving, 59.0, LatencyModel.FILL)
    assert wide is not None and narrow is not None
    assert wide.capacity_per_s == pytest.approx(500.0)
    assert narrow.capacity_per_s == pytest.approx(50.0)  # batches of one
    assert offered(serving, 39.0, LatencyModel.FILL) is None


def test_safety_counts_on_time_and_rate() -> None:
    found = offered(serving_of(1, 1, 10.0), 24.3, LatencyModel.SERVICE, safety=0.1)
    assert offered(serving_of(1, 1, 10.0), 24.3, LatencyModel.SERVICE, safety=0.11) is None
    assert found is None or found.capacity_per_s == pytest.approx(100.0 / 1.1)


def test_arrivals_of_each_model() -> None:
    assert arrivals_of(LatencyModel.QUEUE) is Arrivals.POISSON
    assert arrivals_of(LatencyModel.FILL) is Arrivals.EVEN


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("latency_ms", 0.0), ("rate_per_s", -1.0), ("percentile", 100.0), ("percentile", 0.0),
        ("safety", -0.1), ("latency_ms", float("nan")),
    ],
)  # fmt: skip
def test_impossible_numbers_are_refused(name: str, value: float) -> None:
    asked = {"latency_ms": 10.0, "rate_per_s": 1.0, "percentile": 99.0, "safety": 0.1}
    with pytest.raises(UsageError, match=name):
        offer(
            serving_of(1, 1, 1.0), device="a30", profile=None, model=LatencyModel.QUEUE,
            **{**asked, name: value},
        )  # fmt: skip
