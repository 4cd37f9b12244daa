"""Calibration: what is learned from measurements helps, and the laws of predictors still hold."""

import importlib.util
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.cost import Kind, Prediction
from slicewise.core.errors import MeasureError
from slicewise.core.measurement import Environment, MeasuredMemory
from slicewise.predict import fitting
from slicewise.predict.calibrate import CalibrationCase, fit_card
from slicewise.predict.correction import Band, Card, Correction, Errors, Range, as_whole
from slicewise.predict.features import CLASS_NAMES, CLASSES, FEATURES
from slicewise.predict.operators import OperatorTime, Profiled, operator_rows
from slicewise.predict.roofline import predict_roofline_on
from slicewise.testing import predictors
from slicewise.testing.predictors import as_graph, pointwise, tiny_gpu
from tests.predict.calibration_cases import FP32, RUNTIME, case, distorted, nodes_of

_NONE = Errors(0.0, 0.0, 0.0, 0.0)
SLOW = {Kind.CONV: 3.0, Kind.MATMUL: 0.6, Kind.ELEMENTWISE: 1.8, Kind.SOFTMAX: 0.4}


def _card(theta: dict[str, dict[str, float]], *, host: float = 0.7) -> Card:
    """Return a card with these coefficients for fp32 under every runtime used here."""
    made = Correction(
        RUNTIME, "fp32", None, "classes", theta, host, Band(0.8, 1.3),
        Range((1, 64), (1e-6, 1e9), CLASS_NAMES), 9, 3, _NONE, _NONE,
    )  # fmt: skip
    return Card("tiny-gpu", tiny_gpu().digest, (made,))


_EVERY = {
    name: {feature: 0.1 + ((i * 5 + j * 3) % 7) / 4 for j, feature in enumerate(FEATURES)}
    for i, name in enumerate(CLASS_NAMES)
}


def _laws() -> type:
    """Return the suite made anew: hypothesis lets one test function serve one class only."""
    spec = importlib.util.spec_from_file_location("calibrated_laws", predictors.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    suite: type = module.PredictorLaws
    return suite


_Laws = _laws()


class TestCalibratedRoofline(_Laws):  # type: ignore[misc, valid-type]
    predictor = staticmethod(partial(predict_roofline_on, cards={"tiny-gpu": _card(_EVERY)}))


def _predict(
    seed: int, card: Card | None, *, runtime: str = RUNTIME, batch: int | None = None
) -> Prediction:
    graph, work = as_graph(nodes_of(seed), batch=batch or 1 + seed % 2)
    cards = {} if card is None else {"tiny-gpu": card}
    (made,) = predict_roofline_on(
        graph, work, [tiny_gpu()], precision=FP32, runtime=runtime, cards=cards
    )
    return made


def _fit(cases: Sequence[CalibrationCase]) -> Card:
    return fit_card(cases, device=tiny_gpu())


def _median_error(card: Card | None, seeds: Sequence[int]) -> float:
    truth = distorted(SLOW)
    errors = [
        abs(_predict(seed, card).latency_ms.value / truth(_predict(seed, None)) - 1)
        for seed in seeds
    ]
    return float(np.median(errors))


def test_a_hidden_distortion_of_kinds_is_found_from_half_of_the_families() -> None:
    card = _fit([case(seed, distorted(SLOW)) for seed in range(40)])
    unseen = range(40, 80)
    assert _median_error(card, unseen) < 0.05 < 0.2 < _median_error(None, unseen)
    (made,) = card.corrections
    assert made.after.median < made.before.median / 3
    assert made.level != "none"


@pytest.mark.parametrize("count", [1, 5, 20])
def test_few_measurements_already_help_on_a_biased_device(count: int) -> None:
    biased = {kind: 2.0 * factor for kind, factor in SLOW.items()}
    truth = distorted(biased)
    before, after = [], []
    for start in range(0, 30, 6):
        card = _fit([case(start + i, truth) for i in range(count)])
        for seed in range(50, 70):
            measured = truth(_predict(seed, None))
            before.append(abs(_predict(seed, None).latency_ms.value / measured - 1))
            after.append(abs(_predict(seed, card).latency_ms.value / measured - 1))
    assert np.median(after) < np.median(before)


@given(st.integers(0, 200), st.floats(0.05, 20.0))
@settings(deadline=None, max_examples=25)
def test_one_measurement_moves_the_prediction_toward_it(seed: int, factor: float) -> None:
    one = case(seed, lambda made: made.latency_ms.value * factor)
    plain = _predict(seed, None).latency_ms.value
    moved = _predict(seed, _fit([one])).latency_ms.value
    low, high = sorted((plain, one.latency_ms))
    assert low * (1 - 1e-9) <= moved <= high * (1 + 1e-9)
    if not 0.95 < factor < 1.05:
        assert abs(np.log(moved / one.latency_ms)) < 0.7 * abs(np.log(factor))


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0.3, 3.0)), min_size=1, max_size=14))
@settings(deadline=None, max_examples=10)
def test_coefficients_are_never_negative_and_order_does_not_matter(
    told: list[tuple[int, float]],
) -> None:
    cases = [
        case(seed, lambda made, by=factor: made.latency_ms.value * by, family=f"f{seed % 6}")  # type: ignore[misc]
        for seed, factor in told
    ]
    card = _fit(cases)
    (made,) = card.corrections
    assert all(value >= 0 for row in made.theta.values() for value in row.values())
    assert made.host >= 0
    assert made.band.low < 1 < made.band.high
    shuffled = list(cases)
    random.Random(len(told)).shuffle(shuffled)
    again = _fit(shuffled).corrections[0]
    assert again.level == made.level
    assert _predict(7, _fit(shuffled)).latency_ms.value == pytest.approx(
        _predict(7, card).latency_ms.value, rel=1e-6
    )


@given(st.floats(0.2, 5.0))
@settings(deadline=None, max_examples=5)
def test_all_measurements_times_c_scale_predictions_by_about_c(factor: float) -> None:
    truth = distorted(SLOW)
    once = _fit([case(seed, truth) for seed in range(16)])
    scaled = _fit([case(seed, lambda made: truth(made) * factor) for seed in range(16)])
    ratio = _predict(33, scaled).latency_ms.value / _predict(33, once).latency_ms.value
    assert ratio == pytest.approx(factor, rel=0.15)


def _problem(seed: int, rows: int, families: int) -> fitting.Problem:
    made = np.random.default_rng(seed)
    design = np.zeros((rows, len(CLASSES), len(FEATURES)))
    design[:, :4] = made.gamma(0.3, 1e-3, (rows, 4, len(FEATURES)))
    host = np.full(rows, 1e-5)
    noise = np.exp(made.normal(0, 1.0, rows))
    plain = fitting.uncalibrated().predict(
        fitting.Problem(design, host, noise, np.zeros(rows, dtype=np.int64))
    )
    return fitting.Problem(design, host, plain * noise, np.arange(rows) % families)


@given(st.integers(0, 10_000), st.integers(3, 25), st.integers(3, 9))
@settings(deadline=None, max_examples=15)
def test_held_out_families_are_never_worse_than_without_a_card(
    seed: int, rows: int, families: int
) -> None:
    problem = _problem(seed, max(rows, families), families)
    fitted = fitting.fit(problem)
    before = np.abs(np.log(fitting.uncalibrated().predict(problem) / problem.measured)).mean()
    after = np.abs(np.log(fitted.held_out / problem.measured)).mean()
    assert after <= before * (1 + 1e-12)


@given(st.integers(0, 10_000), st.integers(1, 12))
def test_the_non_negative_solution_meets_its_conditions(seed: int, size: int) -> None:
    made = np.random.default_rng(seed)
    columns = made.normal(size=(size + 3, size))
    gram, right = columns.T @ columns + 0.01 * np.eye(size), made.normal(size=size)
    found = fitting.non_negative(gram, right, np.maximum(made.normal(size=size), 0))
    slope = gram @ found - right
    assert (found >= 0).all()
    assert (slope >= -1e-7).all()
    assert abs(float(slope @ found)) < 1e-7


def test_the_prediction_names_the_card_and_takes_its_band() -> None:
    card = _fit([case(seed, distorted(SLOW)) for seed in range(12)])
    made = _predict(5, card)
    assert made.source == "roofline + card tiny-gpu (12 measurements)"
    assert made.latency_ms.source == made.source
    band = card.corrections[0].band
    assert made.latency_ms.low == pytest.approx(made.latency_ms.value * band.low)
    assert made.latency_ms.high == pytest.approx(made.latency_ms.value * band.high)
    assert "calibration-extrapolated" not in {note.code for note in made.notes}


def test_a_batch_never_measured_widens_the_interval_and_says_so() -> None:
    card = _fit([case(seed, distorted(SLOW)) for seed in range(12)])
    inside, beyond = _predict(5, card), _predict(5, card, batch=64)
    (note,) = [note for note in beyond.notes if note.code == "calibration-extrapolated"]
    assert "batch 64 (measured: 1 to 2)" in note.text
    assert beyond.latency_ms.high / beyond.latency_ms.value > (
        inside.latency_ms.high / inside.latency_ms.value
    )


def test_a_card_of_little_is_no_less_sure_than_none_at_all() -> None:
    card = _fit([case(1, distorted(SLOW))])
    made, plain = _predict(5, card, batch=64), _predict(5, None, batch=64)
    sides = [
        (each.latency_ms.low / each.latency_ms.value, each.latency_ms.high / each.latency_ms.value)
        for each in (made, plain)
    ]
    assert sides[0][0] >= sides[1][0] * (1 - 1e-9)
    assert sides[0][1] <= sides[1][1] * (1 + 1e-9)


def test_kernels_never_measured_and_latencies_far_off_are_told() -> None:
    graph, work = as_graph(tuple(pointwise(10**6 * (1 + i)) for i in range(3)))
    plain = case(1, lambda made: made.latency_ms.value)
    cases = [replace(plain, graph=graph, work=work, latency_ms=1e-3 * i) for i in (1, 2, 3)]
    made = _predict(3, _fit(cases))
    (note,) = [note for note in made.notes if note.code == "calibration-extrapolated"]
    assert "kernels never measured take" in note.text
    assert "conv/dense" in note.text
    assert "(measured: 0.001 to 0.003 ms)" in note.text


def test_a_runtime_that_the_card_lacks_is_predicted_without_it_and_noted() -> None:
    card = _fit([case(seed, distorted(SLOW)) for seed in range(3)])
    made, plain = _predict(5, card, runtime="tensorrt"), _predict(5, None, runtime="tensorrt")
    assert made.latency_ms == plain.latency_ms
    (note,) = [note for note in made.notes if note.code == "calibration-absent"]
    assert "has no correction for tensorrt in fp32" in note.text


def test_runtimes_and_parts_get_corrections_of_their_own() -> None:
    part = tiny_gpu().share(50)
    alone = as_whole(part)
    cases = [case(seed, lambda made: made.latency_ms.value * 2) for seed in range(4)]
    cases += [
        replace(case(s, lambda made: made.latency_ms.value * 3, device=alone), slice="50%")
        for s in range(4)
    ]
    cases += [
        case(s, lambda made: made.latency_ms.value * 4, runtime="torch-eager") for s in range(4)
    ]
    card = _fit(cases)
    keys = [(each.runtime, each.precision, each.slice) for each in card.corrections]
    assert keys == [
        ("onnxruntime", "fp32", None), ("onnxruntime", "fp32", "50%"),
        ("torch-eager", "fp32", None),
    ]  # fmt: skip
    graph, work = as_graph(nodes_of(2))
    (made,) = predict_roofline_on(
        graph, work, [alone], precision=FP32, runtime=RUNTIME,
        cards={alone.name: card.of_part("50%")},
    )  # fmt: skip
    (plain,) = predict_roofline_on(graph, work, [alone], precision=FP32, runtime=RUNTIME)
    assert made.latency_ms.value == pytest.approx(3 * plain.latency_ms.value, rel=0.2)
    assert card.of_part("25%").corrections == ()


def test_memory_factors_are_found_and_used() -> None:
    def memory(made: Prediction) -> MeasuredMemory:
        parts = made.memory_bytes
        held = 300 * 2**20
        peak = 2 * parts.weights + 1.5 * parts.activations + parts.workspace + 1.1 * held
        return MeasuredMemory(round(peak), held, "rss")

    card = _fit([case(seed, distorted(SLOW), memory=memory) for seed in range(30)])
    learned = card.corrections[0].memory
    assert learned is not None
    assert learned.after.median < 0.05 < learned.before.median
    made, measured = _predict(41, card).memory_bytes, memory(_predict(41, None)).peak_bytes
    assert made.value == pytest.approx(measured, rel=0.05)
    assert made.low <= made.value <= made.high
    assert made.weights + made.activations + made.workspace + made.runtime == made.value


def test_energy_is_corrected_where_it_was_measured() -> None:
    cases = [
        case(
            seed, lambda made: made.latency_ms.value,
            energy_j=lambda made: made.energy_j.value * 1.7,
        )
        for seed in range(12)
    ]  # fmt: skip
    made, plain = _predict(20, _fit(cases)), _predict(20, None)
    assert made.energy_j.value == pytest.approx(1.7 * plain.energy_j.value, rel=0.1)
    assert made.energy_j.high / made.energy_j.low < plain.energy_j.high / plain.energy_j.low
    assert "energy-estimated" not in {note.code for note in made.notes}


def test_errors_are_told_by_family_and_batch() -> None:
    card = _fit([case(seed, distorted(SLOW), family=f"f{seed % 5}") for seed in range(20)])
    (made,) = card.corrections
    assert sorted(made.after.by_family) == [f"f{i}" for i in range(5)]
    assert sorted(made.before.by_batch) == ["1", "2"]
    assert (made.measurements, made.families) == (20, 5)
    assert made.after.median <= made.after.p90


def test_the_environment_of_the_measurements_is_kept() -> None:
    found = Environment(processor="p", packages={"onnxruntime": "1"})
    one = case(1, distorted(SLOW))
    card = fit_card([one], device=tiny_gpu(), environment=found, made_at="2026-01-01T00:00:00Z")
    assert (card.environment_digest, card.packages) == (found.digest, {"onnxruntime": "1"})
    assert card.made_at == "2026-01-01T00:00:00Z"
    assert card.device_digest == tiny_gpu().digest


def test_no_measurement_is_refused() -> None:
    with pytest.raises(MeasureError, match="no measurement of tiny-gpu to calibrate from"):
        _fit([])


@pytest.mark.parametrize("latency_ms", [0.0, -1.0, float("nan"), float("inf")])
def test_a_latency_that_cannot_be_is_refused(latency_ms: float) -> None:
    with pytest.raises(MeasureError, match=r"latency_ms .* cannot be measured"):
        _fit([case(1, lambda made: latency_ms)])


# --- times of single operators


def _operators(seed: int, factors: dict[Kind, float], *, noise: float = 0.0) -> CalibrationCase:
    """Return a case that carries a profile: each kernel's own distorted time, and some noise."""
    one = case(seed, distorted(factors))
    made = _predict(seed, None, batch=one.graph.batch_size)
    drawn = np.exp(np.random.default_rng(seed).normal(0, noise, len(made.nodes)))
    times = tuple(
        OperatorTime((k,), node.latency_ms * factors.get(node.kind, 1.0) * float(off))
        for k, (node, off) in enumerate(zip(made.nodes, drawn, strict=True))
    )
    return replace(one, operators=times)


def test_profiles_find_from_few_models_what_latencies_alone_do_not() -> None:
    seeds, unseen = range(3, 11), range(40, 80)
    profiled = [_operators(seed, SLOW, noise=0.1) for seed in seeds]
    plain = [replace(each, operators=()) for each in profiled]
    assert _median_error(_fit(profiled), unseen) <= _median_error(_fit(plain), unseen)


def test_profiles_of_some_of_the_cases_suffice() -> None:
    cases = [_operators(seed, SLOW) for seed in range(0, 20, 2)]
    cases += [case(seed, distorted(SLOW)) for seed in range(1, 20, 2)]
    assert _median_error(_fit(cases), range(40, 80)) < 0.05


@pytest.mark.parametrize("wrong", ["shuffled", "doubled", "nothing"])
def test_wrong_profiles_do_little_harm(wrong: str) -> None:
    cases = []
    for seed in range(24):
        one = _operators(seed, SLOW)
        ms = [time.latency_ms for time in one.operators]
        if wrong == "shuffled":
            random.Random(seed).shuffle(ms)
        factor = {"shuffled": 1.0, "doubled": 2.0, "nothing": 0.0}[wrong]
        times = (
            OperatorTime(t.kernels, m * factor) for t, m in zip(one.operators, ms, strict=True)
        )
        cases.append(replace(one, operators=tuple(times)))
    card = _fit(cases)
    assert _median_error(card, range(40, 80)) < 0.08
    (made,) = card.corrections
    assert made.after.median < made.before.median / 2


def test_the_order_of_cases_with_profiles_does_not_matter() -> None:
    cases = [_operators(seed, SLOW, noise=0.2) for seed in range(9)]
    there, back = _fit(cases), _fit(cases[::-1])
    assert there.corrections[0].level == back.corrections[0].level
    assert _predict(33, there).latency_ms.value == pytest.approx(
        _predict(33, back).latency_ms.value, rel=1e-6
    )


@given(st.integers(0, 10_000), st.floats(0.01, 100.0))
@settings(deadline=None, max_examples=5)
def test_whatever_profiles_say_held_out_families_are_never_worse_than_without_a_card(
    seed: int, scale: float
) -> None:
    problem = _problem(seed, 12, 5)
    made = np.random.default_rng(seed)
    told = [
        Profiled(
            problem.design[i],
            np.arange(len(CLASSES)),
            tuple(OperatorTime((k,), float(made.gamma(0.5, scale))) for k in range(4)),
            float(problem.measured[i]),
        )
        for i in range(12)
    ]
    fitted = fitting.fit(replace(problem, operators=operator_rows(told)))
    before = np.abs(np.log(fitting.uncalibrated().predict(problem) / problem.measured)).mean()
    after = np.abs(np.log(fitted.held_out / problem.measured)).mean()
    assert after <= before * (1 + 1e-12)
    assert (fitted.theta.kernels >= 0).all()


@pytest.mark.parametrize("latency_ms", [-1.0, float("nan"), float("inf")])
def test_an_operator_time_that_cannot_be_is_refused(latency_ms: float) -> None:
    one = replace(case(1, distorted(SLOW)), operators=(OperatorTime((0,), latency_ms),))
    with pytest.raises(MeasureError, match=r"an operator of .* cannot be measured"):
        _fit([one])
