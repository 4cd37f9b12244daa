"""Arrays of real inputs on disk: opened, counted, unpacked; their use is not known here."""

import math
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slicewise.core.errors import UsageError


def first_axis(path: Path) -> int:
    """Return the length of the first axis of an `.npy` file; `UsageError` if it has none."""
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as err:
        raise UsageError(
            f"{str(path)!r} cannot be read as an array: {err}; write it with numpy.save"
        ) from err
    if not isinstance(found, np.ndarray) or found.ndim == 0:
        raise UsageError(f"{str(path)!r} is no array of samples; its first axis must be those")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise UsageError(
            f"{str(path)!r} holds what is no number (NaN or infinite), by which nothing can be"
            " calibrated or judged; leave those samples out"
        )
    return int(found.shape[0])


def read_array(path: Path) -> NDArray[np.generic]:
    """Return the array of an `.npy` file; `UsageError` where it cannot be read."""
    first_axis(path)
    found: NDArray[np.generic] = np.load(path, allow_pickle=False)
    return found


def unpacked(path: Path, folder: Path) -> dict[str, Path]:
    """Write each array of an `.npz` file as `.npy` into `folder`, and return the files by key.

    `UsageError` where the file cannot be read or a key is no file name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made: dict[str, Path] = {}
    try:
        with np.load(path, allow_pickle=False) as arrays:
            for place, key in enumerate(arrays.files):
                # by number: a name of an input may hold what no file name can
                target = folder / f"{place}.npy"
                part = target.with_suffix(f".{os.getpid()}")
                with part.open("wb") as file:
                    np.save(file, arrays[key])
                part.replace(target)
                made[key] = target
    except (OSError, ValueError, zipfile.BadZipFile) as err:
        why = err.strerror if isinstance(err, OSError) and err.strerror else "it is none"
        raise UsageError(
            f"{str(path)!r} cannot be read as an .npz archive of plain arrays ({why}); write it"
            " with numpy.savez"
        ) from err
    return made


def greatest_difference(
    first: Sequence[NDArray[np.generic]], second: Sequence[NDArray[np.generic]]
) -> float:
    """Return the greatest difference of two rows of outputs, each relative to the largest
    magnitude in its output; infinite where number, shapes or what is not finite differ.

    >>> greatest_difference([np.array([1.0, 4.0])], [np.array([1.0, 3.0])])
    0.25
    """
    if len(first) != len(second):
        return math.inf
    return max((_difference(a, b) for a, b in zip(first, second, strict=True)), default=0.0)


def _difference(first: NDArray[np.generic], second: NDArray[np.generic]) -> float:
    if first.shape != second.shape:
        return math.inf
    if first.size == 0:
        return 0.0
    if first.dtype.kind not in "fiub" or second.dtype.kind not in "fiub":
        return 0.0 if np.array_equal(first, second) else math.inf
    a, b = first.astype(np.float64), second.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)):
        return math.inf
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return math.inf
    if not finite.any():
        return 0.0
    scale = float(np.abs(a[finite]).max())
    apart = float(np.abs(a[finite] - b[finite]).max())
    return apart / scale if scale > 0 else (0.0 if apart == 0 else math.inf)
