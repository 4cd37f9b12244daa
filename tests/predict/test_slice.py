"""The slice rule: laws, and the physics it must not break."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.cost import NodeWork, Prediction
from slicewise.core.device import Device
from slicewise.core.errors import DeviceError
from slicewise.core.notes import Note
from slicewise.core.precision import PRECISIONS, DType
from slicewise.hardware.catalogue import find_device
from slicewise.predict.roofline import predict_roofline
from slicewise.predict.slice import (
    BANDWIDTH_EXPONENT,
    Busy,
    compute_share,
    saturated_slowdown,
    scale,
    slowdown,
)
from slicewise.testing.predictors import as_graph, pointwise, product, tiny_gpu, works

fractions = st.floats(0.05, 1.0)


def _predict(nodes: tuple[NodeWork, ...], device: Device | None = None) -> Prediction:
    graph, work = as_graph(nodes)
    return predict_roofline(
        graph, work, device or tiny_gpu(), precision=PRECISIONS["fp32"], runtime="onnxruntime"
    )


@given(works, fractions, fractions, fractions, fractions)
@settings(deadline=None)
def test_a_bigger_part_is_never_slower(
    nodes: tuple[NodeWork, ...], c1: float, c2: float, g1: float, g2: float
) -> None:
    made = _predict(nodes)
    small = slowdown(made, min(c1, c2), min(g1, g2))
    large = slowdown(made, max(c1, c2), max(g1, g2))
    assert 1.0 <= large <= small * (1 + 1e-12)


@given(works)
@settings(deadline=None)
def test_the_whole_card_as_a_part_changes_nothing(nodes: tuple[NodeWork, ...]) -> None:
    made = _predict(nodes)
    assert slowdown(made, 1.0, 1.0) == pytest.approx(1.0)
    share = scale(made, tiny_gpu().share(100))
    assert share.latency_ms.value == pytest.approx(made.latency_ms.value)
    assert share.slice == "100%"


@given(works, st.sampled_from(["1g.10gb", "3g.40gb"]))
@settings(deadline=None)
def test_on_a_slice_nodes_and_host_still_add_up_exactly(
    nodes: tuple[NodeWork, ...], profile: str
) -> None:
    made = scale(_predict(nodes), tiny_gpu().slice(profile))
    assert made.host_ms + sum(node.latency_ms for node in made.nodes) == made.latency_ms.value
    assert 0 < made.latency_ms.low <= made.latency_ms.value <= made.latency_ms.high
    assert 0 < made.energy_j.low <= made.energy_j.value <= made.energy_j.high
    assert 0 <= made.saturation <= 1
    assert 0 <= made.compute_utilisation <= 1
    assert (made.device, made.slice) == ("tiny-gpu", profile)


@given(works, fractions, fractions)
@settings(deadline=None)
def test_a_part_is_never_faster_than_its_own_roofline(
    nodes: tuple[NodeWork, ...], compute: float, bandwidth: float
) -> None:
    """Full work on a part slows at least as what it has more of: units or bandwidth."""
    made = _predict(nodes)
    busy_ms = (made.latency_ms.value - made.host_ms) * slowdown(made, compute, bandwidth)
    floor_ms = sum(max(node.compute_ms, node.memory_ms) for node in made.nodes)
    assert busy_ms >= floor_ms / max(compute, bandwidth) * (1 - 1e-9)


@given(fractions, fractions, st.floats(0.0, 1.0))
def test_full_work_slows_between_what_its_units_and_its_bandwidth_do(
    compute: float, bandwidth: float, share: float
) -> None:
    slow = saturated_slowdown(compute, bandwidth, share)
    ends = (1 / compute, bandwidth**-BANDWIDTH_EXPONENT)
    assert min(ends) * (1 - 1e-9) <= slow <= max(ends) * (1 + 1e-9)


@given(st.floats(1e-3, 1e4), st.floats(0.0, 1.0), st.floats(1.0, 10.0))
def test_launches_and_work_are_what_takes_the_busy_time(
    busy_ms: float, saturation: float, slow: float
) -> None:
    busy = Busy.of(busy_ms, saturation)
    assert busy.on(1.0) == pytest.approx(busy_ms, rel=1e-6)
    assert busy_ms * (1 - 1e-6) <= busy.on(slow) <= busy_ms * slow * (1 + 1e-6)


def test_equal_bandwidth_brings_3g_and_4g_closer_than_their_units() -> None:
    card = find_device("a100-sxm4-80gb")
    graph, work = as_graph((product(65536, 4096, 4096),))
    made = predict_roofline(graph, work, card, precision=PRECISIONS["tf32"], runtime="torch-eager")
    three, four = (
        scale(made, card.slice(name)).latency_ms.value for name in ("3g.40gb", "4g.40gb")
    )
    assert 1.05 < three / four < 4 / 3


def test_a_slice_with_double_memory_helps_what_streams_and_has_more_units_on_hopper() -> None:
    streams, computes = (pointwise(1 << 28),), (product(65536, 4096, 4096),)
    ratios = {}
    for name in ("a100-sxm4-80gb", "h100-sxm5-80gb"):
        card = find_device(name)
        for nodes in (streams, computes):
            graph, work = as_graph(nodes)
            made = predict_roofline(
                graph, work, card, precision=PRECISIONS["tf32"], runtime="torch-eager"
            )
            one, double = (
                scale(made, card.slice(each)).latency_ms.value for each in ("1g.10gb", "1g.20gb")
            )
            ratios[name, nodes is streams] = one / double
    assert ratios["a100-sxm4-80gb", True] == pytest.approx(2.0, rel=0.1)
    assert 1.0 < ratios["a100-sxm4-80gb", False] < 1.3
    # 26 of 132 SMs against 16
    assert ratios["h100-sxm5-80gb", False] == pytest.approx(26 / 16, rel=0.15)


def test_vector_arithmetic_follows_the_units_more_than_matrix_arithmetic() -> None:
    card = find_device("a100-sxm4-80gb")
    vector, matrix, unknown = (
        compute_share(card, dtype, reference=0.8) for dtype in (DType.FP32, DType.TF32, None)
    )
    assert vector > matrix == unknown == pytest.approx(0.8, abs=0.01)
    assert compute_share(card.slice("1g.10gb"), DType.FP32, reference=0.8) == vector
    assert compute_share(card, DType.FP4, reference=0.8) == 0.8


def test_a_launch_bound_model_loses_nothing_on_a_slice() -> None:
    made = _predict((pointwise(1000),) * 50)
    on_slice = scale(made, tiny_gpu().slice("1g.10gb"))
    assert on_slice.latency_ms.value == pytest.approx(made.latency_ms.value, rel=0.01)


def test_a_saturated_model_slows_down_with_the_units() -> None:
    made = _predict((product(65536, 4096, 4096),))
    on_slice = scale(made, tiny_gpu().slice("1g.10gb"))
    ratio = on_slice.latency_ms.value / made.latency_ms.value
    assert ratio == pytest.approx(108 / 14, rel=0.1)


def test_a_share_does_not_divide_bandwidth() -> None:
    streams = _predict((pointwise(1 << 28),))
    on_share = scale(streams, tiny_gpu().share(50))
    assert on_share.latency_ms.value == pytest.approx(streams.latency_ms.value, rel=0.02)


def test_streaming_weights_at_batch_one_feels_the_memory_slice() -> None:
    made = _predict((product(1, 8192, 8192),) * 20)
    on_slice = scale(made, tiny_gpu().slice("1g.10gb"))
    assert on_slice.latency_ms.value / made.latency_ms.value > 4


def test_an_estimated_slice_widens_the_interval() -> None:
    card = tiny_gpu()
    guessed = tuple(
        replace(profile, notes=(Note("slice-estimated", "units guessed"),))
        for profile in card.profiles
    )
    unsure = replace(card, profiles=guessed)
    made, made_unsure = _predict((pointwise(1 << 20),)), _predict((pointwise(1 << 20),), unsure)
    sure_ms = scale(made, card.slice("1g.10gb")).latency_ms
    unsure_ms = scale(made_unsure, unsure.slice("1g.10gb")).latency_ms
    assert unsure_ms.value == sure_ms.value
    assert unsure_ms.high > sure_ms.high
    assert unsure_ms.low < sure_ms.low


def test_only_a_part_of_the_same_card_is_accepted() -> None:
    made = _predict((pointwise(10),))
    other = replace(tiny_gpu(), name="other")
    for device in (tiny_gpu(), other.slice("1g.10gb")):
        with pytest.raises(DeviceError, match="is not a part of tiny-gpu"):
            scale(made, device)
    part = tiny_gpu().slice("1g.10gb")
    with pytest.raises(DeviceError, match="cannot scale"):
        scale(scale(made, part), part)


def test_a_model_that_outgrows_the_slice_is_told() -> None:
    made = _predict((pointwise(10),))
    grown = replace(made, memory_bytes=replace(made.memory_bytes, value=30 * 2**30))
    codes = {note.code for note in scale(grown, tiny_gpu().slice("1g.10gb")).notes}
    assert "memory-exceeded" in codes
    assert "memory-exceeded" not in {
        note.code for note in scale(grown, tiny_gpu().slice("3g.40gb")).notes
    }


@given(st.floats(0.65, 1.0))
@settings(deadline=None)
def test_above_the_knee_units_may_be_taken_away_for_free(compute: float) -> None:
    """Partial waves leave units idle: what the card does not use it may lose."""
    made = _predict((product(512, 128, 1 << 14),) * 6)
    assert made.saturation < 0.45
    assert slowdown(made, compute, 1.0) < 1.05


@given(st.integers(1, 6), st.sampled_from([5, 10, 30, 50]))
@settings(deadline=None)
def test_more_rows_on_a_share_are_never_faster(doublings: int, percent: int) -> None:
    """Where a product changes from vector to matrix kernels, the share must not show a drop."""
    part = tiny_gpu().share(percent)
    few, many = (
        scale(_predict((product(1 << d, 4096, 4096, dtype=DType.INT8),) * 8), part)
        for d in (doublings - 1, doublings)
    )
    assert many.latency_ms.value >= few.latency_ms.value * (1 - 1e-9)
    assert many.energy_j.value >= few.energy_j.value * (1 - 1e-9)
