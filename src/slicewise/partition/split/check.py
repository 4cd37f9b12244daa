"""Compares what the stages of a split model give with what the whole model gives.

Runs nothing. A runtime may fuse operators in one file that a cut puts into two, which changes the
last bits; how much is let through goes by the element type.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slicewise.core.errors import MeasureError

# Largest difference, as a part of the largest value of the output, that rounding in another order
# explains: about a thousand roundings of the type (unit roundoff 2^-53, 2^-24, 2^-11; Higham,
# Accuracy and Stability of Numerical Algorithms, 2002, Sec. 2.2 and 3.1). Whole numbers and truths
# are let through equal only, apart from quantised ones of 8 bits, which may round the other way.
TOLERANCE: Mapping[str, float] = {
    "float64": 1e-12, "float32": 1e-4, "float16": 1e-2, "complex64": 1e-4, "complex128": 1e-12,
}  # fmt: skip
_OTHER_FLOAT = 3e-2  # bf16 and smaller, by the name that numpy extensions give them
_ONE_STEP = ("int8", "uint8")


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """One output, staged against whole.

    `absolute` is the largest difference, `relative` the same over the largest absolute value of
    the whole model's output (0 where both are 0). `allowed` is the most that `relative` may be;
    for whole numbers the most that `absolute` may be. `is_blind`: the whole model's output has no
    finite number, so that equal says little.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    absolute: float
    relative: float
    allowed: float
    is_equal: bool
    is_within: bool
    is_blind: bool = False


def compare_output(name: str, whole: object, staged: object) -> OutputDifference:
    """Return how far an output of the stages is from the whole model's.

    Not-a-number and infinities are equal where both have them. `MeasureError` for another shape,
    type or kind. Sequences are compared element by element, the worst one told.
    """
    if isinstance(whole, list | tuple) and isinstance(staged, list | tuple):
        return _compare_sequence(name, whole, staged)
    if whole is None or staged is None:  # an optional that holds nothing
        if whole is not staged:
            raise _unlike(name, whole, staged)
        return OutputDifference(name, "optional", (), 0.0, 0.0, 0.0, True, True)
    a, b = np.asarray(whole), np.asarray(staged)
    if a.shape != b.shape or a.dtype != b.dtype:
        raise _unlike(name, a, b)
    if a.dtype.kind in "OSU":
        same = bool(np.array_equal(a, b))
        worst = 0.0 if same else float("inf")
        return OutputDifference(name, "string", a.shape, worst, worst, 0.0, same, same)
    return _compare_numbers(name, a, b)


def _compare_numbers(
    name: str, a: NDArray[np.generic], b: NDArray[np.generic]
) -> OutputDifference:
    is_equal = a.tobytes() == b.tobytes()
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    x, y = a.astype(wide), b.astype(wide)
    both = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore"):
        distance = np.where(both, 0.0, np.abs(x - y))
    absolute = float(np.max(distance, initial=0.0))
    absolute = float("inf") if np.isnan(absolute) else absolute
    finite = np.abs(x[np.isfinite(x)])
    largest = float(np.max(finite, initial=0.0))
    relative = absolute / largest if largest else (float("inf") if absolute else 0.0)
    kind = a.dtype.name
    if a.dtype.kind in "iub":
        allowed = 1.0 if kind in _ONE_STEP else 0.0
        within = absolute <= allowed
    else:
        allowed = TOLERANCE.get(kind, _OTHER_FLOAT)
        within = relative <= allowed
    blind = x.size > 0 and not finite.size
    return OutputDifference(
        name, kind, a.shape, absolute, relative, allowed, is_equal, within, blind
    )


def _compare_sequence(
    name: str, whole: Sequence[object], staged: Sequence[object]
) -> OutputDifference:
    if len(whole) != len(staged):
        raise MeasureError(
            f"output {name!r} is a sequence of {len(whole)} in the whole model and of"
            f" {len(staged)} after the stages; split the model again"
        )
    each = [compare_output(name, a, b) for a, b in zip(whole, staged, strict=True)]
    if not each:
        return OutputDifference(name, "sequence", (0,), 0.0, 0.0, 0.0, True, True)
    worst = max(each, key=lambda one: (not one.is_within, one.relative))
    return OutputDifference(
        name,
        worst.dtype,
        worst.shape,
        worst.absolute,
        worst.relative,
        worst.allowed,
        all(one.is_equal for one in each),
        all(one.is_within for one in each),
        all(one.is_blind for one in each),
    )


def _unlike(name: str, whole: object, staged: object) -> MeasureError:
    def told(value: object) -> str:
        return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else "nothing"

    return MeasureError(
        f"output {name!r} is {told(whole)} in the whole model and {told(staged)} after the stages;"
        " split the model again"
    )
