"""Kernels: the same answer compiled, plain, and where no cache can be written."""

from typing import Any

import numba
import pytest

from slicewise.partition import compiled as room
from slicewise.partition.compiled import Kernel, compiled, is_compiled


@compiled
def twice(number: int) -> int:
    return 2 * number


@compiled
def four_times(number: int) -> int:
    return twice(twice(number))


def test_a_kernel_may_call_another_compiled_and_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_compiled()
    assert four_times(3) == 12
    monkeypatch.setattr(room, "is_compiled", lambda: False)
    plain = Kernel(four_times.function)
    assert plain.made() is four_times.function
    assert plain(3) == 12


def test_where_no_cache_can_be_written_kernels_are_compiled_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    njit = numba.njit

    def without_cache(*args: Any, cache: bool = False, nogil: bool = False) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return njit(*args, nogil=nogil)

    monkeypatch.setattr(numba, "njit", without_cache)
    assert Kernel(twice.function)(4) == 8


def test_a_kernel_keeps_name_and_words_of_its_function() -> None:
    assert twice.__name__ == "twice"  # type: ignore[attr-defined]
