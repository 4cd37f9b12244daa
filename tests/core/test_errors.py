"""The error tree: one exit code for each branch."""

import pytest

from slicewise.core import errors


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.SlicewiseError, 1),
        (errors.UsageError, 2),
        (errors.MissingDependency, 2),
        (errors.ModelError, 3),
        (errors.DeviceError, 4),
        (errors.PredictionError, 5),
        (errors.PartitionError, 6),
        (errors.Infeasible, 6),
        (errors.MeasureError, 7),
        (errors.TuningError, 8),
        (errors.StoreError, 9),
    ],
)
def test_exit_codes_are_those_of_the_contract(
    error: type[errors.SlicewiseError], code: int
) -> None:
    assert error.exit_code == code
    assert issubclass(error, errors.SlicewiseError)


def test_a_missing_dependency_names_the_extra() -> None:
    error = errors.MissingDependency("the 'cp-sat' solver", package="ortools", extra="solve")
    assert str(error) == "the 'cp-sat' solver needs ortools: pip install 'slicewise[solve]'"
    assert "pip install foo" in str(errors.MissingDependency("x", package="foo", extra=None))
