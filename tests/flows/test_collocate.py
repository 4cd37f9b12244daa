"""`collocate`: two models on one GPU of the catalogue."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import slicewise
from slicewise.core.errors import DeviceError, PredictionError, UsageError
from slicewise.flows.collocate import collocate
from slicewise.flows.predict import PredictOptions
from slicewise.slices.layouts import is_legal

Light = Callable[[str], Path]
A100 = "a100-sxm4-80gb"


def test_all_mechanisms_stand_side_by_side(light: Light) -> None:
    models = [str(light("resnet50")), str(light("squeezenet"))]
    made = collocate(models, device=A100, batches=[8, 4])
    assert [each.mechanism for each in made.sharings] == ["mig", "mps", "time-slicing"]
    assert not made.left_out
    assert [alone.batch for alone in made.alone] == [8, 4]
    assert made.recommended in made.sharings
    for each in made.sharings:
        assert each.worst_slowdown >= 1
        for alone, side in zip(made.alone, each.sides, strict=True):
            assert side.latency_ms.value >= alone.latency_ms.value * (1 - 1e-9)
            assert side.throughput_per_s <= alone.throughput_per_s * (1 + 1e-9)
            ratio = side.latency_ms.value / alone.latency_ms.value
            assert side.slowdown.value == pytest.approx(ratio)


def test_slices_are_legal_and_predicted_as_predict_does(light: Light) -> None:
    path = str(light("squeezenet"))
    made = collocate([path, path], device=A100, batches=[16])
    mig = made.sharings[0]
    assert is_legal(made.device, mig.placements)
    for placement, side in zip(mig.placements, mig.sides, strict=True):
        alone = slicewise.predict(path, device=f"{A100}/{placement.profile}", batch=16)
        assert side.latency_ms.value == pytest.approx(alone.latency_ms.value)
        assert side.factor.value == 1.0


def test_shares_add_up_to_the_card(light: Light) -> None:
    path = str(light("squeezenet"))
    made = collocate([path, path], device="l4", batches=[8, 1])
    mps = next(each for each in made.sharings if each.mechanism == "mps")
    percentages = [float((side.prediction.slice or "").rstrip("%")) for side in mps.sides]
    assert sum(percentages) == 100
    assert all(side.factor.value >= 1 for side in mps.sides)


def test_what_a_card_lacks_is_left_out_and_told(light: Light) -> None:
    path = str(light("squeezenet"))
    made = collocate([path, path], device="l4")
    assert [(each.mechanism, each.reason) for each in made.left_out] == [
        ("mig", "l4: it has no MIG profiles")
    ]
    made = collocate([path, path], device="mi300x")
    assert [each.mechanism for each in made.sharings] == ["time-slicing"]
    assert {each.mechanism for each in made.left_out} == {"mig", "mps"}


def test_two_that_do_not_fit_get_no_recommendation(light: Light) -> None:
    path = str(light("vgg19"))
    made = collocate([path, path], device="a2", batches=[512])
    assert made.recommended is None
    assert "do not fit into memory together" in made.reason


def test_mistakes_are_named(light: Light) -> None:
    path = str(light("squeezenet"))
    with pytest.raises(UsageError, match="takes two models, given 1"):
        collocate([path], device=A100)
    with pytest.raises(UsageError, match="3 batches are given for two models"):
        collocate([path, path], device=A100, batches=[1, 2, 3])
    with pytest.raises(DeviceError, match="cpu is no GPU"):
        collocate([path, path], device="cpu")
    with pytest.raises(DeviceError, match="cuts a whole one in two"):
        collocate([path, path], device=f"{A100}/3g.40gb")
    with pytest.raises(UsageError, match="neither model has a free dimension seq"):
        collocate([path, path], device=A100, options=PredictOptions(dims={"seq": 8}))
    strict = replace(PredictOptions(), strict=True)
    with pytest.raises(PredictionError, match="strict"):
        collocate([path, path], device=A100, options=strict)
