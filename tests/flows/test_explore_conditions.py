"""Versions of runtimes and memory layouts as a sweep has them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from slicewise.core.errors import UsageError
from slicewise.flows.explore import ExploreOptions, explore

Light = Callable[[str], Path]


def test_versions_and_layouts_are_swept_like_everything_else(light: Light) -> None:
    options = ExploreOptions(
        runtimes=["tensorrt@8.4", None, "tensorrt", "tensorrt@08.4"],
        layouts=["nhwc", "nchw", "nhwc"],
    )
    found = explore([light("squeezenet")], devices=["t4", "mi300x"], options=options)
    told = [
        (point.runtime, point.runtime_version, point.layout, point.device)
        for point in found.points
    ]
    assert told == [
        (runtime, version, layout, device)
        for runtime, version in (("tensorrt", (8, 4)), ("onnxruntime", None), ("tensorrt", None))
        for layout in ("nhwc", "nchw")
        for device in ("t4", "mi300x")
    ]
    for point in found.points:
        made = point.prediction
        if made is None:
            assert point.failure is not None and "given mi300x" in point.failure.reason
            continue
        assert (made.runtime, made.runtime_version, made.layout) == (
            point.runtime, point.runtime_version, point.layout,
        )  # fmt: skip
        codes = {note.code for note in made.notes}
        is_roofline = point.runtime == "onnxruntime"
        assert ("layout-ignored" in codes) is (is_roofline and point.layout == "nhwc")
        assert "version-ignored" not in codes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (ExploreOptions(layouts=["nhcw"]), r"layout 'nhcw' is unknown"),
        (ExploreOptions(layouts=[]), r"layouts \[\]: explore needs a list"),
        (ExploreOptions(layouts="nhwc"), r"layouts 'nhwc': explore needs a list"),
        (ExploreOptions(runtimes=["tensorrt@"]), r"no version behind the @ but ''"),
        (ExploreOptions(runtimes=["tensort@8.4"]), r"runtime 'tensort' is unknown"),
    ],
)
def test_a_layout_or_version_that_cannot_be_raises_before_any_work(
    light: Light, options: ExploreOptions, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        explore([light("squeezenet")], devices=["t4"], options=options)


def test_a_sweep_with_the_roofline_predictor_learns_nothing(light: Light) -> None:
    def sources(predictor: str) -> set[str]:
        options = ExploreOptions(runtimes=["torch-eager"], predictor=predictor)
        found = explore([light("resnet50")], devices=["rtx-3090"], batches=[8], options=options)
        return {point.prediction.source for point in found.points if point.prediction is not None}

    (plain,), (learned,) = sources("roofline"), sources("learned")
    assert plain.startswith("roofline") and learned.startswith("network")


def test_an_unknown_predictor_raises_before_any_work(light: Light) -> None:
    with pytest.raises(UsageError, match="predictor 'learnt' is unknown"):
        explore([light("squeezenet")], devices=["t4"], options=ExploreOptions(predictor="learnt"))
