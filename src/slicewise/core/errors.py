"""The error tree. The number beside each class is the exit code of the command line.

SlicewiseError (1)
  UsageError (2)            an option or argument that cannot be
    MissingDependency (2)   an optional library is absent; names the extra
  ModelError (3)            the model file or graph cannot be used
  DeviceError (4)           unknown device, profile or precision; impossible device file
  PredictionError (5)       a prediction cannot be given, or `--strict` refuses its notes
  PartitionError (6)
    Infeasible (6)          no partition respects the limits; says which and by how much
  MeasureError (7)
  TuningError (8)
  StoreError (9)

A message has four parts: what, the value given, what is allowed, what to do.
"""

import re


class SlicewiseError(Exception):
    """Root of all errors that a user can cause or meet.

    >>> import slicewise
    >>> try:
    ...     slicewise.predict(model, device="a1000")
    ... except slicewise.SlicewiseError as err:
    ...     print(type(err).__name__, err.exit_code)
    DeviceError 4
    """

    exit_code = 1


class UsageError(SlicewiseError):
    """An option or argument that cannot be.

    >>> import slicewise
    >>> try:
    ...     slicewise.predict(model, device="t4", precision="fp17")
    ... except slicewise.UsageError as err:
    ...     print(str(err).partition(";")[0])
    precision 'fp17' is unknown
    """

    exit_code = 2


class MissingDependency(UsageError):
    """An optional library is absent."""

    def __init__(self, purpose: str, *, package: str, extra: str | None) -> None:
        remedy = f"'slicewise[{extra}]'" if extra else package
        super().__init__(f"{purpose} needs {package}: pip install {remedy}")
        self.package = package
        self.extra = extra


class ModelError(SlicewiseError):
    """The model file or graph cannot be used.

    >>> import slicewise
    >>> try:
    ...     slicewise.load("none.onnx")
    ... except slicewise.ModelError as err:
    ...     print(str(err).partition(";")[0])
    there is no model file 'none.onnx'
    """

    exit_code = 3


class DeviceError(SlicewiseError):
    """Unknown device, profile or precision, or an impossible device file.

    >>> import slicewise
    >>> try:
    ...     slicewise.device("a100-sxm4-80gb/5g.30gb")
    ... except slicewise.DeviceError as err:
    ...     print(str(err).partition(";")[0])
    a100-sxm4-80gb has no slice profile '5g.30gb'
    """

    exit_code = 4


class PredictionError(SlicewiseError):
    """A prediction cannot be given, or strict mode refuses its notes.

    >>> import slicewise
    >>> try:
    ...     slicewise.predict(model, device="t4", strict=True)
    ... except slicewise.PredictionError as err:
    ...     print(err.exit_code)
    5
    """

    exit_code = 5


class PartitionError(SlicewiseError):
    """A pipeline partition cannot be given."""

    exit_code = 6


class Infeasible(PartitionError):
    """No partition respects the limits."""


class MeasureError(SlicewiseError):
    """A measurement failed.

    >>> import slicewise
    >>> try:
    ...     slicewise.calibrate(device="cpu")
    ... except slicewise.MeasureError as err:
    ...     print(str(err).partition(",")[0])
    no record of cpu to calibrate from
    """

    exit_code = 7


class TuningError(SlicewiseError):
    """Tuning failed."""

    exit_code = 8


class StoreError(SlicewiseError):
    """The record store cannot be read or written."""

    exit_code = 9


# Words of frameworks, CUDA, numpy and the C++ library where memory ran out.
_NO_MEMORY = re.compile(
    r"out ?of ?memory|MemoryError|bad[ _]alloc|not enough memory"
    r"|(?:failed to|unable to|could not|cannot|can't) allocate",
    re.IGNORECASE,
)


def tells_no_memory(text: str) -> bool:
    """True if the words of an error, or the last of a process, say that memory ran out.

    >>> tells_no_memory("std::bad_alloc"), tells_no_memory("Gemm is not known")
    (True, False)
    """
    return _NO_MEMORY.search(text) is not None
