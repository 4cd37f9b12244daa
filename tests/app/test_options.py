"""Options: what people type becomes typed values, or one clear line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.app.options import parse_batches, parse_dims, parse_inputs, split_list
from slicewise.core.errors import UsageError

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.:/]{0,12}", fullmatch=True)
sizes = st.integers(1, 10**9)


@given(st.dictionaries(names, sizes, max_size=5))
def test_dims_come_back_as_written_repeated_or_joined(dims: dict[str, int]) -> None:
    words = [f"{name}={size}" for name, size in dims.items()]
    assert parse_dims(words) == dims
    assert parse_dims([",".join(words)]) == dims


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
