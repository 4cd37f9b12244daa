"""Element types and the precisions a model can be run in."""

from dataclasses import dataclass
from enum import StrEnum

from slicewise.core.errors import UsageError
from slicewise.core.plugins import did_you_mean


class DType(StrEnum):
    """Element type of a tensor, or the arithmetic of a matrix unit (`TF32`)."""

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    FP4 = "fp4"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    INT4 = "int4"
    INT2 = "int2"
    UINT64 = "uint64"
    UINT32 = "uint32"
    UINT16 = "uint16"
    UINT8 = "uint8"
    UINT4 = "uint4"
    UINT2 = "uint2"
    BOOL = "bool"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"
    STRING = "string"
    UNKNOWN = "unknown"

    @property
    def bits(self) -> int:
        """Storage of one element in bits. A string is counted as one 8-byte pointer."""
        return _BITS[self]

    @property
    def is_float(self) -> bool:
        """True for real floating-point types, whatever their width."""
        return self in _FLOATS


_BITS = {
    DType.FP64: 64, DType.FP32: 32, DType.TF32: 32, DType.FP16: 16, DType.BF16: 16,
    DType.FP8: 8, DType.FP4: 4,
    DType.INT64: 64, DType.INT32: 32, DType.INT16: 16, DType.INT8: 8, DType.INT4: 4,
    DType.INT2: 2,
    DType.UINT64: 64, DType.UINT32: 32, DType.UINT16: 16, DType.UINT8: 8, DType.UINT4: 4,
    DType.UINT2: 2,
    DType.BOOL: 8, DType.COMPLEX64: 64, DType.COMPLEX128: 128, DType.STRING: 64,
    DType.UNKNOWN: 32,
}  # fmt: skip
_FLOATS = frozenset(
    {DType.FP64, DType.FP32, DType.TF32, DType.FP16, DType.BF16, DType.FP8, DType.FP4}
)


@dataclass(frozen=True, slots=True)
class Precision:
    """How a model is run: arithmetic of matrix units, storage of activations and of weights."""

    name: str
    compute: DType
    activation: DType
    weight: DType

    @staticmethod
    def named(name: str) -> "Precision":
        """Return the precision called `name`; `UsageError` lists the allowed ones."""
        try:
            return PRECISIONS[name]
        except KeyError:
            raise UsageError(
                f"precision {name!r} is unknown; allowed are {', '.join(PRECISIONS)}"
                f"{did_you_mean(name, PRECISIONS)}"
            ) from None

    @staticmethod
    def predicted(name: str) -> "Precision":
        """Return the precision that a prediction is in: also a type that cannot be asked for, in
        which a model may be by itself.

        >>> Precision.predicted("fp64").compute
        <DType.FP64: 'fp64'>
        """
        if name in PRECISIONS:
            return PRECISIONS[name]
        dtype = DType(name)
        return Precision(name, dtype, dtype, dtype)


# amp: torch autocast keeps fp32 weights and runs matrix products in fp16. Quantised precisions
# keep activations between nodes in 16 bits, except int8, which engines keep in 8 bits throughout.
PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("fp32", DType.FP32, DType.FP32, DType.FP32),
        Precision("tf32", DType.TF32, DType.FP32, DType.FP32),
        Precision("fp16", DType.FP16, DType.FP16, DType.FP16),
        Precision("bf16", DType.BF16, DType.BF16, DType.BF16),
        Precision("amp", DType.FP16, DType.FP16, DType.FP32),
        Precision("int8", DType.INT8, DType.INT8, DType.INT8),
        Precision("fp8", DType.FP8, DType.BF16, DType.FP8),
        Precision("nvfp4", DType.FP4, DType.BF16, DType.FP4),
    )
}
