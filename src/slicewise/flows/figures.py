"""Numbers that a user gives: is it one, and how a message shows what it is instead."""

from numbers import Real
from typing import TypeGuard


def is_number(value: object) -> TypeGuard[float]:
    """Return True for a number, numpy's included; a truth value is none.

    >>> [is_number(value) for value in (1, 0.5, "20", True, None)]
    [True, True, False, False, False]
    """
    return isinstance(value, Real) and not isinstance(value, bool)


def shown(value: object) -> str:
    """Return a number in few digits, anything else as Python writes it.

    >>> shown(0.25), shown("20")
    ('0.25', "'20'")
    """
    return f"{value:g}" if is_number(value) else repr(value)
