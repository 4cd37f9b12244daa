"""Splitting real inputs, and telling how two models agree."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.errors import UsageError
from slicewise.core.measurement import InputSpec
from slicewise.core.precision import DType
from slicewise.core.tuning import AccuracyData
from slicewise.tune.backends.serving.accuracy import (
    CALIBRATING,
    LEAST_SAMPLES,
    Agreement,
    Array,
    Comparing,
    split_samples,
)

IMAGE = InputSpec("x", (2, 3), DType.FP32)
SCALAR = InputSpec("rate", (), DType.INT64)


def _agreement(before: Array, after: Array, name: str = "y", **more: object) -> Agreement:
    comparing = Comparing([name], **more)  # type: ignore[arg-type]
    for one, other in zip(before, after, strict=True):
        comparing.add([one], [other])
    return comparing.agreement()


def _data(folder: Path, **arrays: Array) -> AccuracyData:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return AccuracyData({name: folder / f"{name}.npy" for name in arrays})


@given(samples=st.integers(2 * LEAST_SAMPLES, 300), seed=st.integers(0, 5))
def test_no_sample_both_calibrates_and_judges(
    tmp_path_factory: pytest.TempPathFactory, samples: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("data")
    made = split_samples(_data(folder, x=np.zeros((samples, 3))), [IMAGE], seed=seed)
    assert not set(made.calibrating) & set(made.judging)
    assert len(made.calibrating) <= CALIBRATING
    assert 0 < len(made.calibrating) <= len(made.judging)
    every = {*made.calibrating, *made.judging}
    assert every == set(range(samples // 2))  # two samples make a batch


def test_the_seed_chooses_the_split(tmp_path: Path) -> None:
    data = _data(tmp_path, x=np.zeros((100, 3)))
    first, again, other = (split_samples(data, [IMAGE], seed=seed) for seed in (0, 0, 1))
    assert first == again != other


def test_samples_are_parts_of_a_batch_or_whole_inputs(tmp_path: Path) -> None:
    values = np.arange(60, dtype=np.float64).reshape(20, 3)
    made = split_samples(
        _data(tmp_path, x=values, rate=np.full(10, 16000)), [IMAGE, SCALAR], seed=0
    )
    (run,) = made.runs([4])
    assert run["x"].tolist() == values[8:10].tolist() and run["x"].dtype == np.float32
    assert run["rate"] == 16000 and run["rate"].shape == () and run["rate"].dtype == np.int64


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((20, 4)), r"is \(20, 4\); the model takes \(2, 3\): give \(samples, 3\)"),
        (np.zeros((15, 3)), "gives 7 runs of the model; at least 8"),
    ],
)
def test_data_that_does_not_fit_is_refused(tmp_path: Path, array: Array, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        split_samples(_data(tmp_path, x=array), [IMAGE], seed=0)


def test_a_missing_input_and_a_file_that_is_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no array for input rate; it has x"):
        split_samples(_data(tmp_path, x=np.zeros((20, 3))), [IMAGE, SCALAR], seed=0)
    (tmp_path / "x.npy").write_text("no array")
    with pytest.raises(UsageError, match="cannot be read"):
        split_samples(AccuracyData({"x": tmp_path / "x.npy"}), [IMAGE], seed=0)


@given(st.integers(0, 50))
def test_a_model_agrees_with_itself(seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal((12, 2, 5))
    assert _agreement(values, values).value == 1.0
    assert _agreement(values, values, scores={"y"}).value == 1.0


@given(st.integers(0, 30), st.floats(0.01, 1.0))
def test_more_noise_never_agrees_more(seed: int, part: float) -> None:
    random = np.random.default_rng(seed)
    values, noise = random.standard_normal((2, 12, 2, 5))
    less, more = values + part / 2 * noise, values + part * noise
    assert _agreement(values, more).closeness <= _agreement(values, less).closeness < 1


def test_scores_are_judged_by_the_choice_and_values_by_closeness() -> None:
    random = np.random.default_rng(0)
    logits = random.standard_normal((40, 1, 6))
    swapped = logits.copy()
    swapped[:10, 0] = -swapped[:10, 0]
    judged = _agreement(logits, swapped, scores={"y"})
    assert judged.outputs[0].kind == "scores" and judged.value == 0.75
    assert _agreement(logits, swapped, "class_logits").outputs[0].kind == "scores"
    plain = _agreement(logits, swapped)
    assert plain.outputs[0].kind == "values" and plain.value == plain.closeness < 0.5
    odds = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert _agreement(odds, odds).outputs[0].kind == "scores"
    assert "75 % same choice" in judged.text and "relative RMS error" in judged.text


def test_a_choice_that_never_changes_tells_nothing() -> None:
    odds = np.tile([0.9, 0.1], (40, 1, 1))
    noisy = np.tile([0.6, 0.4], (40, 1, 1))
    judged = _agreement(odds, noisy)
    assert judged.outputs[0].kind == "values" and judged.value < 0.9


def test_whole_numbers_are_labels() -> None:
    labels = np.arange(40).reshape(10, 4).astype(np.float32)
    other = labels.copy()
    other[0, 0] += 1
    judged = _agreement(labels, other)
    assert judged.outputs[0].kind == "labels" and judged.value == 1 - 1 / 40


@pytest.mark.parametrize("other", [np.zeros((10, 3)), np.full((10, 4), np.nan)])
def test_other_shapes_and_what_is_no_number_never_agree(other: Array) -> None:
    assert _agreement(np.ones((10, 4)) / 3, other).value == 0.0


def test_the_worst_output_counts() -> None:
    comparing = Comparing(["a", "b"])
    good, bad = np.array([1.0, 2.5]), np.array([1.0, -2.5])
    comparing.add([good, good], [good, bad])
    assert comparing.agreement().value == 0.0 and comparing.agreement().is_coarse
