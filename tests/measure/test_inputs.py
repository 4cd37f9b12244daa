"""Input values: right type and shape, valid, the same for the same seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.errors import MeasureError, UsageError
from slicewise.core.measurement import InputSpec
from slicewise.core.precision import DType
from slicewise.measure.inputs import make_values

INTEGERS = [each for each in DType if "int" in each.value]
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@given(SHAPES, st.sampled_from(INTEGERS), st.integers(0, 1), st.integers(1, 2**32))
def test_integers_lie_in_their_range(
    shape: tuple[int, ...], dtype: DType, low: int, seed: int
) -> None:
    (made,) = make_values([InputSpec("x", shape, dtype, low=low, high=2)], seed=seed)
    assert made.shape == shape
    assert np.issubdtype(made.dtype, np.integer)
    assert all(low <= each < 2 for each in made.ravel().tolist())


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (DType.FP64, np.float64), (DType.FP32, np.float32), (DType.FP16, np.float16),
        (DType.BF16, np.float32), (DType.FP8, np.float32), (DType.INT64, np.int64),
        (DType.INT4, np.int8), (DType.UINT8, np.uint8), (DType.COMPLEX64, np.complex64),
        (DType.BOOL, np.bool_),
    ],
)  # fmt: skip
def test_types_are_those_of_the_inputs_or_the_nearest_of_numpy(
    dtype: DType, expected: type[np.generic]
) -> None:
    (made,) = make_values([InputSpec("x", (2, 3), dtype)], seed=0)
    assert made.dtype == expected
    assert made.shape == (2, 3)


def test_every_type_has_values_or_is_refused() -> None:
    for dtype in DType:
        spec = InputSpec("x", (1,), dtype, high=1)
        if dtype in (DType.STRING, DType.UNKNOWN):
            with pytest.raises(MeasureError, match="'x' is of type"):
                make_values([spec], seed=0)
        else:
            assert make_values([spec], seed=0)[0].size == 1


@pytest.mark.parametrize("dtype", [DType.FP64, DType.FP32, DType.FP16, DType.COMPLEX64])
def test_floats_are_standard_normal(dtype: DType) -> None:
    (made,) = make_values([InputSpec("x", (20_000,), dtype)], seed=0)
    real = made.real.astype(np.float64)
    assert abs(real.mean()) < 0.05
    assert abs(real.std() - 1) < 0.05


def test_booleans_are_true_and_a_range_of_one_is_constant() -> None:
    flags, mask = make_values(
        [InputSpec("f", (3,), DType.BOOL), InputSpec("m", (3,), DType.INT64, low=1, high=2)],
        seed=0,
    )
    assert flags.all()
    assert mask.tolist() == [1, 1, 1]


def test_same_seed_same_values_and_inputs_differ_from_each_other() -> None:
    specs = [InputSpec("a", (64,), DType.FP32), InputSpec("b", (64,), DType.FP32)]
    first, again, other = (make_values(specs, seed=seed) for seed in (7, 7, 8))
    assert all((x == y).all() for x, y in zip(first, again, strict=True))
    assert not (first[0] == other[0]).all()
    assert not (first[0] == first[1]).all()


@pytest.mark.parametrize(("low", "high"), [(2, 2), (3, 1), (0, 257), (-1, 2)])
def test_an_impossible_range_is_refused(low: int, high: int) -> None:
    with pytest.raises(UsageError, match="no range of uint8"):
        make_values([InputSpec("x", (1,), DType.UINT8, low=low, high=high)], seed=0)


def test_the_whole_range_of_a_type_can_be_asked_for() -> None:
    (made,) = make_values([InputSpec("x", (9,), DType.UINT8, low=0, high=256)], seed=0)
    assert made.dtype == np.uint8
