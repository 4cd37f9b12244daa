"""Executors keep the laws, and one is found by name."""

import pytest

from slicewise.core.errors import UsageError
from slicewise.core.executor import Executor
from slicewise.execute import _base
from slicewise.execute.inline import InlineExecutor
from slicewise.execute.local import LocalPool
from slicewise.testing.executors import ExecutorLaws, IsolatedExecutorLaws, process_id


class TestInline(ExecutorLaws):
    make = staticmethod(InlineExecutor)


class TestLocalPool(IsolatedExecutorLaws):
    make = staticmethod(LocalPool)


@pytest.mark.parametrize("name", list(_base.EXECUTORS))
def test_every_row_of_the_table_makes_an_executor(name: str) -> None:
    made: Executor = _base.make_executor(name, workers=2)
    assert made.workers >= 1


def test_one_worker_means_inline_and_more_mean_processes() -> None:
    assert isinstance(_base.choose_executor(1), InlineExecutor)
    assert isinstance(_base.choose_executor(3), LocalPool)
    assert _base.choose_executor(None).workers == _base.usable_cores()


def test_little_work_starts_no_process() -> None:
    import os

    (done,) = LocalPool(4).as_completed(process_id, [0])
    assert done.value == os.getpid()


@pytest.mark.parametrize(
    ("name", "workers", "message"),
    [("inlin", 1, "did you mean inline"), ("local", 0, "workers=0 is not a positive number")],
)
def test_impossible_executors_are_refused(name: str, workers: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _base.make_executor(name, workers=workers)
