"""Conditions: a runtime's version and a layout as people write them, or one clear line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.conditions import (
    LAYOUTS,
    USUAL,
    Conditions,
    RuntimeChoice,
    layout_named,
    runtime_choice,
    version_text,
)
from slicewise.core.errors import UsageError

names = st.from_regex(r"[a-z][a-z-]{0,12}", fullmatch=True)
versions = st.lists(st.integers(0, 10**9 - 1), min_size=1, max_size=4).map(tuple)


@given(names, st.none() | versions)
def test_a_choice_comes_back_as_written(name: str, version: tuple[int, ...] | None) -> None:
    choice = RuntimeChoice(name, version)
    assert runtime_choice(str(choice)) == choice
    assert (version_text(version) is None) is (version is None)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("torch-eager@2.4", (2, 4)),
        ("torch-compile@2.1", (2, 1)),
        ("tensorrt@8.6.1.6", (8, 6, 1, 6)),
        ("onnxruntime@1.17", (1, 17)),
        ("torch-eager@2", (2,)),
        ("torch-eager@2.10", (2, 10)),
    ],
)
def test_a_version_stands_behind_the_name(text: str, version: tuple[int, ...]) -> None:
    assert runtime_choice(text) == RuntimeChoice(text.partition("@")[0], version)


@pytest.mark.parametrize(
    "version",
    [
        *("", " ", "x", "v2.4", "2.x", "2.", ".4", "2..4", "-2", "2,4", "2.4.0+cu121", "2.4 "),
        *("1.2.3.4.5", "2@4", "@2.4", "\u0662.4", "9" * 5000),
    ],
)
def test_what_is_no_version_is_refused_with_an_example(version: str) -> None:
    with pytest.raises(UsageError, match=r"no version behind the @.*write torch-eager@2\.4, or"):
        runtime_choice(f"torch-eager@{version}")


def test_a_version_without_a_name_is_shown_a_whole_one() -> None:
    assert runtime_choice("@2.4").name == ""
    with pytest.raises(UsageError, match=r"write torch-eager@2\.4"):
        runtime_choice("@")


def test_the_usual_conditions_are_those_of_nobody_asking() -> None:
    assert Conditions() == USUAL == Conditions("nchw", None)
    assert [layout_named(name) for name in LAYOUTS] == ["nchw", "nhwc"]


@pytest.mark.parametrize("layout", ["NHWC", "nhcw", "nwhc"])
def test_a_layout_that_is_nearly_one_is_told_which(layout: str) -> None:
    words = rf"layout '{layout}' is unknown; known are nchw, nhwc; did you mean n"
    with pytest.raises(UsageError, match=words):
        layout_named(layout)
    with pytest.raises(UsageError, match=words):
        Conditions(layout=layout)


@pytest.mark.parametrize("layout", ["", "blocked", "channels_last"])
def test_a_layout_that_is_none_is_told_the_known_ones(layout: str) -> None:
    with pytest.raises(UsageError, match="is unknown; known are nchw, nhwc"):
        layout_named(layout)
