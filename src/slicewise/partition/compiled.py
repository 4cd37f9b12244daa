"""Compiles the inner loops of this room with numba, where it is installed, on their first call.

Without numba the same functions run as they stand, only slower. Nothing is computed here, and
numba is not imported before a kernel is called.
"""

import functools
import importlib
import importlib.util
from collections.abc import Callable
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


@functools.cache
def is_compiled() -> bool:
    """Return True if numba can be imported, so that kernels are compiled."""
    if importlib.util.find_spec("numba") is None:
        return False
    try:
        importlib.import_module("numba")
    except ImportError:  # installed, and broken
        return False
    return True


class Kernel(Generic[P, R]):
    """A function over numbers and numpy arrays that is compiled on its first call.

    It may call kernels of its own module only: numba's cache looks at the date of one file.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        self.function = function
        self._made: Callable[P, R] | None = None
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.made()(*args, **kwargs)

    def made(self) -> Callable[P, R]:
        """Return what a call runs: the compiled function, or the plain one without numba."""
        if self._made is None:
            self._made = _compile(self.function) if is_compiled() else self.function
        return self._made


def compiled(function: Callable[P, R]) -> Kernel[P, R]:
    """Return the function as a kernel; used as a decorator."""
    return Kernel(function)


def _compile(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function compiled, with the kernels it calls put in place of their wrappers."""
    import numba

    assert isinstance(function, FunctionType)
    scope = dict(function.__globals__)
    for name in function.__code__.co_names:
        if isinstance(scope.get(name), Kernel):
            scope[name] = scope[name].made()
    plain = FunctionType(function.__code__, scope, function.__name__, function.__defaults__)
    plain.__module__, plain.__qualname__ = function.__module__, function.__qualname__
    made: Any
    try:
        # numba keeps its cache beside the source or, where that is read-only, in the user's cache
        made = numba.njit(cache=True, nogil=True)(plain)
    except RuntimeError:  # neither can be written: compile for this process only
        made = numba.njit(nogil=True)(plain)
    return made  # type: ignore[no-any-return]
