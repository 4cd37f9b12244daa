"""Input values for a model that is measured: of the right shape and type, and valid.

Times of dense operators do not depend on values, but ids outside a table crash, zeros can skip
work and denormals can slow it. No framework type is made here: the runtime casts to what numpy
lacks.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slicewise.core.errors import MeasureError, UsageError
from slicewise.core.measurement import InputSpec
from slicewise.core.precision import DType

# Types that numpy lacks come in the nearest one that holds all their values.
_NUMPY: dict[DType, type[np.generic]] = {
    DType.FP64: np.float64, DType.FP32: np.float32, DType.TF32: np.float32,
    DType.FP16: np.float16, DType.BF16: np.float32, DType.FP8: np.float32, DType.FP4: np.float32,
    DType.INT64: np.int64, DType.INT32: np.int32, DType.INT16: np.int16, DType.INT8: np.int8,
    DType.INT4: np.int8, DType.INT2: np.int8,
    DType.UINT64: np.uint64, DType.UINT32: np.uint32, DType.UINT16: np.uint16,
    DType.UINT8: np.uint8, DType.UINT4: np.uint8, DType.UINT2: np.uint8,
    DType.BOOL: np.bool_, DType.COMPLEX64: np.complex64, DType.COMPLEX128: np.complex128,
}  # fmt: skip


def make_values(inputs: Sequence[InputSpec], *, seed: int) -> tuple[NDArray[np.generic], ...]:
    """Return one array for each input, in order; the same for the same seed.

    Floats (and both parts of complex numbers) are standard normal, integers are drawn from `low`
    to `high - 1`, booleans are True. bf16, fp8 and fp4 come as float32, 4- and 2-bit integers in
    8 bits: the runtime casts them. `MeasureError` for a type that has no values (string, unknown),
    `UsageError` for a range that is empty or beyond the type.

    >>> (ids,) = make_values([InputSpec("ids", (1, 3), DType.INT64, low=5, high=6)], seed=0)
    >>> ids.tolist()
    [[5, 5, 5]]
    """
    return tuple(
        _values(spec, np.random.default_rng([seed, place])) for place, spec in enumerate(inputs)
    )


def _values(spec: InputSpec, random: np.random.Generator) -> NDArray[np.generic]:
    dtype = _NUMPY.get(spec.dtype)
    if dtype is None:
        raise MeasureError(
            f"input {spec.name!r} is of type {spec.dtype}; values can be made for numbers and "
            "booleans; measure a part of the model that starts behind it"
        )
    if spec.dtype is DType.BOOL:
        return np.ones(spec.shape, dtype=np.bool_)
    if issubclass(dtype, np.integer):
        return _integers(spec, random, dtype=dtype)
    if issubclass(dtype, np.complexfloating):
        parts = random.standard_normal((2, *spec.shape))
        numbers: NDArray[np.generic] = (parts[0] + 1j * parts[1]).astype(dtype)
        return numbers
    if issubclass(dtype, np.float64):
        return random.standard_normal(spec.shape)
    floats: NDArray[np.generic] = random.standard_normal(spec.shape, dtype=np.float32)
    return floats.astype(dtype, copy=False)


def _integers(
    spec: InputSpec, random: np.random.Generator, *, dtype: type[np.integer]
) -> NDArray[np.generic]:
    least, most = _range(spec.dtype)
    if not least <= spec.low < spec.high <= most + 1:
        raise UsageError(
            f"input {spec.name!r}: low={spec.low}, high={spec.high} is no range of {spec.dtype}; "
            f"low must be below high, within {least} to {most + 1}"
        )
    return random.integers(spec.low, spec.high, size=spec.shape, dtype=dtype)


def _range(dtype: DType) -> tuple[int, int]:
    if dtype.startswith("u"):
        return 0, 2**dtype.bits - 1
    return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1
