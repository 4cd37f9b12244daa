"""Energy: between idle and full power, and monotone in what matters."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.cost import NodeWork, Prediction
from slicewise.core.precision import PRECISIONS
from slicewise.predict.roofline import predict_roofline
from slicewise.predict.slice import scale
from slicewise.testing.predictors import as_graph, pointwise, product, tiny_gpu, works


def _predict(nodes: tuple[NodeWork, ...], batch: int = 1) -> Prediction:
    graph, work = as_graph(nodes, batch=batch)
    return predict_roofline(
        graph, work, tiny_gpu(), precision=PRECISIONS["fp32"], runtime="onnxruntime"
    )


def _power_w(made: Prediction) -> float:
    return made.energy_j.value / (made.latency_ms.value * 1e-3)


@given(works)
@settings(deadline=None)
def test_mean_power_lies_between_idle_and_the_limit(nodes: tuple[NodeWork, ...]) -> None:
    device = tiny_gpu()
    power_w = _power_w(_predict(nodes))
    assert device.idle_power_w * (1 - 1e-9) <= power_w <= device.max_power_w * (1 + 1e-9)


def test_a_fuller_device_draws_more_power() -> None:
    powers = [_power_w(_predict((product(128 * b, 512, 512),) * 4)) for b in (1, 8, 64, 1024)]
    assert powers == sorted(powers)
    assert powers[0] < 200 < powers[-1]


@given(works, st.sampled_from(["1g.10gb", "3g.40gb"]))
@settings(deadline=None)
def test_a_slice_keeps_the_dynamic_energy_and_pays_its_part_of_idle(
    nodes: tuple[NodeWork, ...], profile: str
) -> None:
    device, made = tiny_gpu(), _predict(nodes)
    part = device.slice(profile)
    on_slice = scale(made, part)
    dynamic_j = made.energy_j.value - device.idle_power_w * made.latency_ms.value * 1e-3
    idle_j = part.idle_power_w * on_slice.latency_ms.value * 1e-3
    assert on_slice.energy_j.value == pytest.approx(dynamic_j + idle_j, rel=1e-6)


def test_a_wider_latency_interval_widens_the_energy() -> None:
    made = _predict((pointwise(1 << 22),))
    wide = made.energy_j.high / made.energy_j.value
    assert wide > 1.7
    assert replace(made).energy_j.low < made.energy_j.value / 1.7
