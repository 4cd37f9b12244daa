"""Where errors of frameworks become ours.

No framework is touched: a runtime says itself what its errors are called.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from slicewise.core.errors import SlicewiseError


@contextmanager
def mapped(refuse: Callable[[Exception], NoReturn]) -> Iterator[None]:
    """Let `refuse` raise what a foreign error stands for; an error of ours passes."""
    try:
        yield
    except SlicewiseError:
        raise
    except Exception as err:
        refuse(err)
