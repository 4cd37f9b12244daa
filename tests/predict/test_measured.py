"""Measured curves: what was measured comes back, laws of what is scaled, accuracy on open rows."""

import csv
import gzip
import itertools
import math
import os
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slicewise.core.cost import NodeWork, Prediction
from slicewise.core.device import Device
from slicewise.core.errors import DeviceError, PredictionError, UsageError
from slicewise.core.precision import PRECISIONS
from slicewise.hardware.catalogue import find_device
from slicewise.predict.measured import MEASURED, MeasuredRow, measured_curve, sharpen
from slicewise.predict.roofline import predict_roofline
from slicewise.predict.slice import scale
from slicewise.predict.sweep import Known, Point, fit_sweep
from slicewise.testing.predictors import as_graph, pointwise, product, tiny_gpu, works

A100 = "a100-sxm4-80gb"
SLICES = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
PARVA_GPU = ("ParvaGPU", "7g.80gb")


def launch_bound_then_full(batch: int) -> float:
    """Return a latency that launches bind up to batch 16, the device above."""
    return max(12.0, 1.5 + 0.5 * batch)


def sweep_rows(part: str | None = "7g.80gb") -> list[MeasuredRow]:
    """Return a sweep of that model on one part."""
    return [MeasuredRow(1 << k, launch_bound_then_full(1 << k), part) for k in range(9)]


latencies = st.lists(
    st.tuples(st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128]), st.floats(0.05, 5e3)),
    min_size=1,
    max_size=6,
    unique_by=lambda pair: pair[0],
)


@given(latencies, st.sampled_from([None, "40%", *SLICES]))
@settings(deadline=None, max_examples=40)
def test_what_was_measured_comes_back(points: list[tuple[int, float]], part: str | None) -> None:
    card = find_device(A100)
    rows = [MeasuredRow(batch, ms, part) for batch, ms in points]
    curve = measured_curve(rows, card, model="m")
    where = find_device(A100 if part is None else f"{A100}{'@' if '%' in part else '/'}{part}")
    for batch, ms in points:
        made = curve.on(where, batch)
        assert made.latency_ms.value == ms
        assert made.source == MEASURED
        assert made.throughput_per_s == pytest.approx(batch / ms * 1e3)
        assert made.nodes == ()


@given(latencies, st.integers(1, 256), st.integers(1, 5))
@settings(deadline=None, max_examples=40)
def test_a_bigger_slice_is_never_slower_unless_it_was_measured_so(
    points: list[tuple[int, float]], batch: int, processes: int
) -> None:
    card = find_device(A100)
    curve = measured_curve([MeasuredRow(b, ms) for b, ms in points], card, model="m")
    made = [curve.on(card.slice(name), batch, processes) for name in SLICES]
    for smaller, larger in itertools.pairwise(made):
        assert larger.latency_ms.value <= smaller.latency_ms.value * (1 + 1e-9)
    for each in made:
        assert 0 < each.latency_ms.low <= each.latency_ms.value <= each.latency_ms.high
        assert 0 < each.energy_j.low <= each.energy_j.value <= each.energy_j.high
        assert 0 <= each.saturation <= 1
        assert 0 <= each.host_ms <= each.latency_ms.value


@given(st.integers(1, 99), st.integers(1, 99), st.integers(1, 256))
@example(6, 96, 1)
@settings(deadline=None, max_examples=30)
def test_a_bigger_share_is_never_slower(first: int, second: int, batch: int) -> None:
    card = find_device(A100)
    curve = measured_curve(sweep_rows(None), card, model="m")
    small, large = 5 * math.ceil(min(first, second) / 5), 5 * math.ceil(max(first, second) / 5)
    slow, fast = (curve.on(card.share(p), batch).latency_ms.value for p in (small, large))
    assert fast <= slow * (1 + 1e-9)


@given(st.integers(1, 64), st.integers(1, 4), st.sampled_from(SLICES))
@settings(deadline=None, max_examples=30)
def test_more_processes_are_never_faster(batch: int, processes: int, part: str) -> None:
    card = find_device(A100)
    curve = measured_curve(sweep_rows(), card, model="m")
    few, more = (curve.on(card.slice(part), batch, n) for n in (processes, processes + 1))
    assert few.latency_ms.value <= more.latency_ms.value * (1 + 1e-9)
    assert few.throughput_per_s <= more.throughput_per_s * (1 + 1e-9)


@given(st.floats(0.01, 100.0))
@settings(deadline=None, max_examples=20)
def test_a_model_that_takes_longer_takes_longer_everywhere(factor: float) -> None:
    card = find_device(A100)
    rows = sweep_rows()
    longer = [replace(row, latency_ms=row.latency_ms * factor) for row in rows]
    one, other = (measured_curve(each, card, model="m") for each in (rows, longer))
    for name in SLICES:
        for batch in (1, 12, 300):
            assert other.on(card.slice(name), batch).latency_ms.value == pytest.approx(
                factor * one.on(card.slice(name), batch).latency_ms.value, rel=1e-3
            )


@given(
    st.lists(st.tuples(st.integers(1, 2**31 - 1), st.floats(1e-6, 1e9)), min_size=1, max_size=8),
    st.integers(1, 2**31 - 1),
)
@settings(deadline=None, max_examples=60)
def test_any_rows_give_finite_answers(points: list[tuple[int, float]], batch: int) -> None:
    card = find_device(A100)
    curve = measured_curve([MeasuredRow(b, ms) for b, ms in points], card, model="m")
    for part in (card, card.slice("1g.10gb"), card.share(10)):
        made = curve.on(part, batch, 2)
        assert 0 < made.latency_ms.low <= made.latency_ms.value <= made.latency_ms.high < math.inf
        assert 0 <= made.saturation <= 1


def test_a_launch_bound_batch_loses_nothing_and_a_full_one_slows_with_the_units() -> None:
    card = find_device(A100)
    curve = measured_curve(sweep_rows(), card, model="m", transfer_bytes_per_item=0.0)
    small, full = curve.on(card.slice("2g.20gb"), 1), curve.on(card.slice("2g.20gb"), 256)
    assert small.latency_ms.value == pytest.approx(12.0, rel=0.05)
    assert full.latency_ms.value / launch_bound_then_full(256) == pytest.approx(3.6, rel=0.1)
    assert small.saturation < 0.5 < full.saturation
    # equal bandwidth: less than the ratio of their units, 4 / 3
    three, four = (curve.on(card.slice(n), 256).latency_ms.value for n in SLICES[2:4])
    assert 1.1 < three / four < 4 / 3


def test_copies_do_not_slow_on_a_slice() -> None:
    card = find_device(A100)
    known = measured_curve(
        sweep_rows(), card, model="m", transfer_bytes_per_item=0.45e6 * 5.9, precision="tf32"
    )
    none = measured_curve(sweep_rows(), card, model="m", transfer_bytes_per_item=0.0)
    part = card.slice("1g.10gb")
    assert known.on(part, 256).latency_ms.value < 0.4 * none.on(part, 256).latency_ms.value
    assert known.on(part, 256).host_ms == pytest.approx(0.45 * 256)


def test_a_measured_slice_sharpens_the_others() -> None:
    card = find_device(A100)
    rows = sweep_rows()
    plain = measured_curve(rows, card, model="m")
    part = card.slice("2g.20gb")
    slow = plain.on(card.slice("1g.10gb"), 64).latency_ms.value * 0.7
    sharper = measured_curve([*rows, MeasuredRow(64, slow, "1g.10gb")], card, model="m")
    assert sharper.on(part, 64).latency_ms.value < plain.on(part, 64).latency_ms.value
    assert sharper.on(part, 128).latency_ms.value < plain.on(part, 128).latency_ms.value


def test_far_above_the_measured_batches_the_interval_widens() -> None:
    card = find_device(A100)
    curve = measured_curve(sweep_rows(), card, model="m")  # batches up to 256
    part = card.slice("7g.80gb")

    def width(batch: int) -> float:
        made = curve.on(part, batch).latency_ms
        assert made.low < made.value < made.high
        return made.high / made.low

    near = [width(batch) for batch in (384, 512)]
    far = [width(batch) for batch in (600, 1024, 4096, 65_536)]
    assert all(a < b for a, b in itertools.pairwise([max(near), *far]))
    assert far[-1] >= 128 ** (2 * 0.25)  # 65,536 is 128 times as far as twice 256
    texts = [[note.text for note in curve.on(part, batch).notes] for batch in (512, 1024)]
    told = ["with a wider interval" in " ".join(each) for each in texts]
    assert told == [False, True]


def test_notes_tell_what_is_scaled_and_how_far() -> None:
    card = find_device(A100)
    rows = [replace(row, memory_bytes=2e9 + 1e7 * row.batch) for row in sweep_rows()]
    curve = measured_curve(rows, card, model="m")

    def codes(part: Device, batch: int, processes: int = 1) -> set[str]:
        return {note.code for note in curve.on(part, batch, processes).notes}

    part = card.slice("7g.80gb")
    assert codes(part, 8) == {"energy-estimated", "idle-power-estimated"}
    assert "batch-interpolated" in codes(part, 12)
    assert "batch-extrapolated" in codes(part, 512)
    assert {"slice-scaled", "copies-assumed"} <= codes(card.slice("1g.10gb"), 8)
    told = measured_curve(rows, card, model="m", transfer_bytes_per_item=0.0)
    assert "copies-assumed" not in {n.code for n in told.on(card.slice("1g.10gb"), 8).notes}
    assert "processes-scaled" in codes(part, 8, 3)
    few = measured_curve([MeasuredRow(8, 10.0)], card, model="m").on(card.slice("1g.10gb"), 8)
    assert {"saturation-assumed", "memory-unmeasured"} <= {note.code for note in few.notes}
    assert few.latency_ms.high / few.latency_ms.low > 1.5


def test_memory_lies_on_the_line_through_what_was_measured() -> None:
    card = find_device(A100)
    rows = [MeasuredRow(b, 10.0 + b, None, 1e9 + 1e8 * b) for b in (1, 4, 16)]
    curve = measured_curve(rows, card, model="m")
    assert curve.on(card, 4).memory_bytes.value == 1.4e9
    assert curve.on(card, 10).memory_bytes.value == 2e9
    assert curve.on(card, 100).memory_bytes.value == 11e9
    assert curve.on(card, 4, 3).memory_bytes.value == 3 * 1.4e9
    assert "memory-exceeded" in {n.code for n in curve.on(card.slice("1g.10gb"), 100).notes}


def test_measured_processes_move_the_others() -> None:
    card = find_device(A100)
    rows = sweep_rows()
    part = card.slice("7g.80gb")
    told = measured_curve(rows, card, model="m").on(part, 64, 2).latency_ms.value
    worse = [MeasuredRow(b, told * b / 64 * 1.2, "7g.80gb", processes=2) for b in (64, 128)]
    curve = measured_curve([*rows, *worse], card, model="m")
    assert curve.on(part, 64, 2).source == MEASURED
    assert curve.on(part, 64, 2).latency_ms.value == pytest.approx(1.2 * told)
    assert curve.on(card.slice("3g.40gb"), 64, 2).latency_ms.value > (
        measured_curve(rows, card, model="m").on(card.slice("3g.40gb"), 64, 2).latency_ms.value
    )


def test_impossible_rows_and_places_are_refused() -> None:
    card = find_device(A100)
    with pytest.raises(UsageError, match="batch=0: must be at least 1"):
        MeasuredRow(0, 1.0)
    with pytest.raises(UsageError, match="latency_ms=-1: must lie between 1e-06 and 1e\\+09"):
        MeasuredRow(1, -1.0)
    with pytest.raises(UsageError, match="memory_bytes=inf"):
        MeasuredRow(1, 1.0, memory_bytes=math.inf)
    with pytest.raises(PredictionError, match="none of one process alone"):
        measured_curve([MeasuredRow(1, 1.0, processes=2)], card, model="m")
    with pytest.raises(DeviceError, match=r"no slice profile '5g\.50gb'"):
        measured_curve([MeasuredRow(1, 1.0, "5g.50gb")], card, model="m")
    curve = measured_curve(sweep_rows(), card, model="m")
    with pytest.raises(DeviceError, match="is no part of a100-sxm4-80gb"):
        curve.on(tiny_gpu(), 1)
    with pytest.raises(UsageError, match="give at least 1 of each"):
        curve.on(card, 0)


def _predict(nodes: tuple[NodeWork, ...]) -> Prediction:
    graph, work = as_graph(nodes, batch=8)
    return predict_roofline(
        graph, work, tiny_gpu(), precision=PRECISIONS["fp32"], runtime="onnxruntime"
    )


@given(works, st.sampled_from(["1g.10gb", "3g.40gb"]), st.floats(0.3, 3.0))
@settings(deadline=None, max_examples=40)
def test_a_sharpened_prediction_adds_up_and_hits_what_was_measured(
    nodes: tuple[NodeWork, ...], profile: str, factor: float
) -> None:
    made = _predict(nodes)
    part = tiny_gpu().slice(profile)
    ms = max(scale(made, part).latency_ms.value * factor, made.host_ms * 1.01)
    sharper = sharpen(made, [MeasuredRow(8, ms, profile)], part)
    assert sharper.latency_ms.value == pytest.approx(ms, rel=1e-6)
    assert sharper.source == made.source
    assert sharper.latency_ms.source == MEASURED
    assert sharper.host_ms + sum(n.latency_ms for n in sharper.nodes) == sharper.latency_ms.value
    assert "measured-sharpened" in {note.code for note in sharper.notes}


def test_a_measurement_on_the_card_moves_its_slices() -> None:
    made = _predict((product(65536, 4096, 4096),))
    part = tiny_gpu().slice("1g.10gb")
    twice = MeasuredRow(8, made.latency_ms.value * 2)
    ratio = sharpen(made, [twice], part).latency_ms.value / scale(made, part).latency_ms.value
    assert 1.5 < ratio < 2.5


def test_without_rows_sharpening_is_scaling() -> None:
    made = _predict((pointwise(1 << 20),))
    part = tiny_gpu().slice("1g.10gb")
    assert sharpen(made, [], part) == scale(made, part)
    assert sharpen(made, [MeasuredRow(1, 1.0, processes=2)], tiny_gpu()) is made
    with pytest.raises(DeviceError, match="is not a part of"):
        sharpen(scale(made, part), [MeasuredRow(1, 1.0)], part)


@given(st.floats(1.0, 50.0), st.floats(0.05, 5.0), st.floats(0.1, 2.0))
@settings(deadline=None, max_examples=30)
def test_a_curve_of_the_rules_own_form_is_found_again(
    launch_ms: float, item_ms: float, tail_factor: float
) -> None:
    tail_ms = tail_factor * item_ms

    def latency_ms(batch: int) -> float:
        return float((launch_ms**10 + (tail_ms + item_ms * batch) ** 10) ** 0.1)

    points = [Point(1 << k, latency_ms(1 << k)) for k in range(12)]
    sweep = fit_sweep(points, Known(host_item_ms=0.0))
    for point in points:
        assert sweep.latency_ms(point.batch) == pytest.approx(point.latency_ms, rel=0.15)
    assert sweep.latency_ms(4096) == pytest.approx(latency_ms(4096), rel=0.1)


def _open_rows() -> dict[str, list[MeasuredRow]]:
    folder = Path(os.environ.get("SLICEWISE_DATA", "../shared/data"))
    file = folder / "sharing" / "slices_open.csv.gz"
    if not file.exists():
        pytest.skip("the measured data is absent (SLICEWISE_DATA)")
    found: dict[str, list[MeasuredRow]] = defaultdict(list)
    with gzip.open(file, "rt") as lines:
        for row in csv.DictReader(lines):
            if row["source"] == PARVA_GPU[0] and row["n_processes"] == "1":
                found[row["model"]].append(
                    MeasuredRow(int(row["batch"]), float(row["latency_ms"]), row["slice"])
                )
    return found


def test_open_slices_follow_from_the_largest() -> None:
    """The figures of benchmarks/results/slice_rule.md, with a margin."""
    card = find_device(A100)
    errors, within = [], []
    for model, rows in _open_rows().items():
        copied = 128 * 30522 * 4 if model == "bert" else 224 * 224 * 3 * 4
        full = [row for row in rows if row.slice == PARVA_GPU[1]]
        curve = measured_curve(
            full, card, model=model, precision="tf32", transfer_bytes_per_item=copied
        )
        batches = {row.batch for row in full}
        for row in rows:
            if row.slice is not None and row not in full and row.batch in batches:
                told = curve.on(card.slice(row.slice), row.batch).latency_ms
                errors.append(abs(told.value / row.latency_ms - 1))
                within.append(told.low <= row.latency_ms <= told.high)
    assert len(errors) == 265
    assert median(errors) < 0.04
    assert mean(errors) < 0.07
    assert mean(within) > 0.85
