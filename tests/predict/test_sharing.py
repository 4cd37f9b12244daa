"""Sharing: laws of equal processes in one part, and of unlike neighbours."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.cost import NodeWork, Prediction
from slicewise.core.errors import UsageError
from slicewise.core.precision import PRECISIONS
from slicewise.predict.roofline import predict_roofline
from slicewise.predict.sharing import MECHANISMS, crowd, crowded_ms, neighbours
from slicewise.predict.slice import scale
from slicewise.testing.predictors import as_graph, pointwise, product, tiny_gpu, works

times_ms = st.floats(0.0, 1e4)
counts = st.integers(1, 20)


def _predict(nodes: tuple[NodeWork, ...], batch: int = 4) -> Prediction:
    graph, work = as_graph(nodes, batch=batch)
    return predict_roofline(
        graph, work, tiny_gpu(), precision=PRECISIONS["fp32"], runtime="onnxruntime"
    )


@given(st.floats(1e-3, 1e4), counts, counts, times_ms, times_ms, times_ms)
def test_more_processes_are_never_faster_and_never_slower_together(
    alone_ms: float, few: int, more: int, host_ms: float, tail_ms: float, work_ms: float
) -> None:
    few, more = min(few, more), max(few, more)
    short, long = (
        crowded_ms(alone_ms, n, host_ms=host_ms, tail_ms=tail_ms, work_ms=work_ms)
        for n in (few, more)
    )
    assert alone_ms <= short * (1 + 1e-9)
    assert short <= long * (1 + 1e-9)
    assert long / more <= short / few * (1 + 1e-9)


@given(works, st.integers(1, 8))
@settings(deadline=None)
def test_a_crowd_adds_up_exactly(nodes: tuple[NodeWork, ...], processes: int) -> None:
    one = scale(_predict(nodes), tiny_gpu().slice("1g.10gb"))
    made = crowd(one, processes)
    assert made.host_ms + sum(node.latency_ms for node in made.nodes) == made.latency_ms.value
    assert 0 < made.latency_ms.low <= made.latency_ms.value <= made.latency_ms.high
    assert made.throughput_per_s == pytest.approx(
        processes * made.batch / made.latency_ms.value * 1e3
    )
    assert made.throughput_per_s >= one.throughput_per_s * (1 - 1e-9)
    assert made.memory_bytes.value == processes * one.memory_bytes.value
    assert 0 <= made.saturation <= 1
    assert 0 < made.energy_j.low <= made.energy_j.value <= made.energy_j.high


def test_one_process_is_no_crowd() -> None:
    made = _predict((pointwise(1000),))
    assert crowd(made, 1) is made
    with pytest.raises(UsageError, match="processes=0 is impossible; give at least 1"):
        crowd(made, 0)


def test_launch_bound_processes_hide_each_other() -> None:
    made = _predict((pointwise(1000),) * 50)
    assert crowd(made, 4).latency_ms.value == pytest.approx(made.latency_ms.value, rel=0.25)


def test_saturated_processes_take_turns() -> None:
    made = _predict((product(65536, 4096, 4096),))
    assert crowd(made, 3).latency_ms.value == pytest.approx(3 * made.latency_ms.value, rel=0.02)
    assert crowd(made, 3).throughput_per_s == pytest.approx(made.throughput_per_s, rel=0.02)


@given(works, works, st.sampled_from(MECHANISMS))
@settings(deadline=None)
def test_neighbours_never_speed_each_other_up(
    mine: tuple[NodeWork, ...], other: tuple[NodeWork, ...], mechanism: str
) -> None:
    share = tiny_gpu().share(50)
    a, b = scale(_predict(mine), share), scale(_predict(other), share)
    for slowdown in neighbours(a, b, mechanism):
        assert 1 <= slowdown.low <= slowdown.value <= slowdown.high
    assert neighbours(b, a, mechanism) == tuple(reversed(neighbours(a, b, mechanism)))


def test_mig_isolates_and_mps_does_not() -> None:
    heavy = _predict((product(65536, 4096, 4096),))
    light = _predict((pointwise(1000),) * 50)
    assert {each.value for each in neighbours(heavy, light, "mig")} == {1.0}
    by_heavy, _ = neighbours(heavy, heavy, "mps")
    by_light, slowed_light = neighbours(heavy, light, "mps")
    assert 1 < by_light.value < by_heavy.value == pytest.approx(1.1, rel=0.01)
    assert slowed_light.value == pytest.approx(1.35, rel=0.05)
    assert slowed_light.high == pytest.approx(1.8, rel=0.05)


def test_time_slices_halve_two_that_fill_the_card_and_spare_launches() -> None:
    heavy = _predict((product(65536, 4096, 4096),))
    light = replace(_predict((pointwise(1000),) * 50), saturation=0.01)
    both, _ = neighbours(heavy, heavy, "time-slicing")
    assert both.value == pytest.approx(2.05, rel=0.02)
    spared, _ = neighbours(light, light, "time-slicing")
    assert spared.value < 1.3
    assert math.isfinite(spared.high)


def test_an_unknown_mechanism_names_those_there_are() -> None:
    made = _predict((pointwise(1000),))
    with pytest.raises(UsageError, match="'vgpu' is unknown; choose mig, mps, time-slicing"):
        neighbours(made, made, "vgpu")
