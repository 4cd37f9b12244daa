"""Options: what people type becomes typed values, or one clear line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.app.options import (
    parse_batch_axes,
    parse_batches,
    parse_dims,
    parse_inputs,
    split_list,
)
from slicewise.core.errors import UsageError

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.:/]{0,12}", fullmatch=True)
sizes = st.integers(1, 10**9)


@given(st.dictionaries(names, sizes, max_size=5))
def test_dims_come_back_as_written_repeated_or_joined(dims: dict[str, int]) -> None:
    words = [f"{name}={size}" for name, size in dims.items()]
    assert parse_dims(words) == dims
    assert parse_dims([",".join(words)] if words else []) == dims


@given(st.dictionaries(names, st.lists(sizes, min_size=1, max_size=5), max_size=4))
def test_shapes_come_back_as_written(shapes: dict[str, list[int]]) -> None:
    words = [f"{name}={'x'.join(map(str, shape))}" for name, shape in shapes.items()]
    assert parse_inputs(words) == {name: tuple(shape) for name, shape in shapes.items()}


def test_a_single_input_needs_no_name() -> None:
    assert parse_inputs(["1x3x224x224"]) == {"": (1, 3, 224, 224)}
    assert parse_inputs(["1X3"]) == {"": (1, 3)}


def test_batches_default_to_the_models_own() -> None:
    assert parse_batches([]) == [None]
    assert parse_batches(["1, 8", "32"]) == [1, 8, 32]


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", "1x", "٣"])
def test_a_batch_that_is_no_positive_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="positive whole number"):
        parse_batches([text])


@pytest.mark.parametrize("text", ["seq", "=4", "seq=", "seq=-1", "seq=0", "seq=1.5"])
def test_a_dim_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="--dim"):
        parse_dims([text])


@pytest.mark.parametrize("text", ["x=", "1xx3", "x=1x0", "axb", "x=1x-3"])
def test_a_shape_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="1x3x224x224"):
        parse_inputs([text])


def test_the_same_name_twice_must_agree() -> None:
    assert parse_dims(["a=1", "a=1"]) == {"a": 1}
    with pytest.raises(UsageError, match="twice"):
        parse_dims(["a=1", "a=2"])
    with pytest.raises(UsageError, match="two shapes"):
        parse_inputs(["1x2", "1x3"])


@given(st.lists(st.lists(names, max_size=4), max_size=4))
def test_lists_may_be_repeated_and_joined(groups: list[list[str]]) -> None:
    assert split_list([",".join(group) for group in groups]) == [n for g in groups for n in g]


@pytest.mark.parametrize("text", ["", " ", ",", "1,,2", "1,", ",1"])
def test_an_empty_item_is_a_mistake_not_a_default(text: str) -> None:
    with pytest.raises(UsageError, match=r"--batch has an empty item .*--batch 1,8,32"):
        parse_batches([text])
    with pytest.raises(UsageError, match=r"--dim has an empty item"):
        parse_dims([text.replace("1", "a=1").replace("2", "b=2")])
    with pytest.raises(UsageError, match=r"--input has an empty item"):
        parse_inputs([text.replace("1", "a=1x3").replace("2", "b=2x3")])
    with pytest.raises(UsageError, match=r"--batch-axis has an empty item"):
        parse_batch_axes([text.replace("1", "a=1").replace("2", "b=2")])


@pytest.mark.parametrize("digits", ["2147483648", "9" * 20, "9" * 5000])
def test_a_size_over_the_limit_is_told_the_limit(digits: str) -> None:
    with pytest.raises(UsageError, match=r"more than 2147483647 \(2\^31 - 1\)"):
        parse_batches([digits])
    with pytest.raises(UsageError, match="more than 2147483647"):
        parse_dims([f"seq={digits}"])
    assert parse_batches(["2147483647", "0008"]) == [2147483647, 8]


@pytest.mark.parametrize(
    ("text", "better"),
    [
        ("x=1,3,224,224", "--input x=1x3x224x224"),
        ("1, 3, 224", "--input 1x3x224"),
        ("x=[1,3]", "--input x=1x3"),
        ("(1,3,)", "--input 1x3"),
    ],
)
def test_a_shape_with_commas_is_told_how_to_write_it(text: str, better: str) -> None:
    with pytest.raises(UsageError, match=f"{better}$"):
        parse_inputs([text])
    assert parse_inputs(["a=1,b=3"]) == {"a": (1,), "b": (3,)}


@given(st.dictionaries(names | st.just(""), st.none() | st.integers(-9, 9), max_size=4))
def test_batch_axes_come_back_as_written(axes: dict[str, int | None]) -> None:
    words = [
        f"{name}{'=' if name else ''}{'none' if axis is None else axis}"
        for name, axis in axes.items()
    ]
    assert parse_batch_axes(words) == axes


@pytest.mark.parametrize("text", ["x", "x=", "=1", "1.5", "x=--1", "x=1=y", "1x", "9999"])
def test_a_batch_axis_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"--batch-axis 1, --batch-axis x=1"):
        parse_batch_axes([text])


def test_two_batch_axes_of_one_input_are_refused() -> None:
    with pytest.raises(UsageError, match="'x' two axes, 1 and none"):
        parse_batch_axes(["x=1", "x=none"])
    with pytest.raises(UsageError, match="'every input' two axes, 0 and 1"):
        parse_batch_axes(["0", "1"])
