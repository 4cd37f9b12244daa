"""Real inputs on disk, and how far two rows of outputs are apart."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from slicewise.core.errors import UsageError
from slicewise.tune.arrays import first_axis, greatest_difference, unpacked

_FLOATS = hnp.arrays(
    np.float32, hnp.array_shapes(max_dims=3, max_side=4), elements=st.floats(-10, 10, width=32)
)


@given(_FLOATS, st.floats(0.5, 4))
def test_the_difference_is_none_to_itself_and_relative_to_the_largest(
    values: np.ndarray, factor: float
) -> None:
    assert greatest_difference([values], [values]) == 0.0
    if np.abs(values).max() > 0:
        apart = greatest_difference([values], [values * np.float32(factor)])
        assert apart == pytest.approx(abs(factor - 1), abs=1e-5)


def test_what_cannot_be_compared_is_infinitely_apart() -> None:
    one = np.ones((2, 2), np.float32)
    assert greatest_difference([one], []) == math.inf
    assert greatest_difference([one], [np.ones(4, np.float32)]) == math.inf
    assert greatest_difference([one], [np.full((2, 2), np.nan, np.float32)]) == math.inf
    nan = np.array([np.nan, 1.0], np.float32)
    assert greatest_difference([nan], [nan]) == 0.0
    assert greatest_difference([np.zeros(2)], [np.array([0.0, 1e-9])]) == math.inf


def test_an_archive_is_unpacked_by_key_whatever_the_key(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"a/b": np.ones((3, 2)), "c": np.zeros((3, 1))}
    np.savez(tmp_path / "real.npz", **arrays)
    made = unpacked(tmp_path / "real.npz", tmp_path / "out")
    assert set(made) == {"a/b", "c"}
    assert [first_axis(made[key]) for key in ("a/b", "c")] == [3, 3]
    assert np.load(made["a/b"]).shape == (3, 2)


def test_what_is_no_array_of_samples_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.npy").write_bytes(b"nothing of the kind")
    with pytest.raises(UsageError, match=r"cannot be read as an array.*numpy\.save"):
        first_axis(tmp_path / "bad.npy")
    np.save(tmp_path / "scalar.npy", np.float32(1))
    with pytest.raises(UsageError, match="no array of samples"):
        first_axis(tmp_path / "scalar.npy")
    np.save(tmp_path / "nan.npy", np.array([1.0, np.nan]))
    with pytest.raises(UsageError, match=r"nan\.npy.* holds what is no number"):
        first_axis(tmp_path / "nan.npy")
    (tmp_path / "bad.npz").write_bytes(b"nothing of the kind")
    with pytest.raises(UsageError, match=r"cannot be read as an \.npz archive of plain arrays"):
        unpacked(tmp_path / "bad.npz", tmp_path / "out")
