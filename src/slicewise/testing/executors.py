"""The conformance suite of executors: inherit it, say how one is made, and run pytest.

class TestMine(ExecutorLaws):
    make = staticmethod(lambda workers: MyExecutor(workers))

The functions that are carried stand here, where a worker process can import them.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from slicewise.core.errors import MissingDependency, SlicewiseError, UsageError
from slicewise.core.executor import Executor, in_order


def square(number: int) -> int:
    """Return the square."""
    return number * number


def process_id(_: int) -> int:
    """Return the id of the process that works."""
    return os.getpid()


def square_of_even(number: int) -> int:
    """Return the square; odd numbers fail with an error of ours, 5 with another one."""
    if number == 5:
        raise ZeroDivisionError("five")
    if number % 2:
        raise UsageError(f"{number} is odd; give an even one")
    return number * number


def lacking(_: int) -> int:
    """Fail with an error that a message alone cannot make."""
    raise MissingDependency("this work", package="nothing", extra=None)


def die_at_three(number: int) -> int:
    """Kill the process that works on 3; return the square of others."""
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def die_once(marker: str) -> str:
    """Kill the process the first time; the marker file tells. '' never kills."""
    if marker and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return marker


class ExecutorLaws:
    """What holds for every executor. Set `make` to what makes one with some workers."""

    make: ClassVar[Callable[..., Executor]]

    def executor(self) -> Executor:
        """Return one with two workers, or as many as it has."""
        return type(self).make(2)

    @pytest.mark.parametrize("count", [0, 1, 2, 9])
    def test_every_item_is_answered_exactly_once(self, count: int) -> None:
        done = list(self.executor().as_completed(square, range(count)))
        assert sorted(each.index for each in done) == list(range(count))
        assert all(each.result() == each.index**2 for each in done)

    def test_results_in_order_are_those_of_a_plain_loop(self) -> None:
        numbers = [7, 3, 3, 11, 0]
        assert in_order(self.executor(), square, numbers) == [n * n for n in numbers]

    def test_an_error_stays_with_its_item(self) -> None:
        done = {
            each.index: each for each in self.executor().as_completed(square_of_even, range(7))
        }
        assert sorted(done) == list(range(7))
        assert [done[i].value for i in (0, 2, 4, 6)] == [0, 4, 16, 36]
        for i in (1, 3):
            assert isinstance(done[i].error, UsageError)
            assert str(done[i].error) == f"{i} is odd; give an even one"
        assert "five" in str(done[5].error)

    def test_the_first_error_in_order_is_raised_after_all_ran(self) -> None:
        with pytest.raises(UsageError, match=r"^1 is odd"):
            in_order(self.executor(), square_of_even, [2, 1, 3, 4])

    def test_errors_of_any_making_arrive(self) -> None:
        for each in self.executor().as_completed(lacking, range(2)):
            assert isinstance(each.error, SlicewiseError)
            assert "pip install nothing" in str(each.error)
            assert each.error.exit_code == UsageError.exit_code

    def test_closing_early_leaves_no_worker_behind(self) -> None:
        carried = self.executor().as_completed(process_id, range(1000))
        worker = next(iter(carried)).result()
        carried.close()  # type: ignore[attr-defined]  # an executor yields from a generator
        if worker != os.getpid():
            with pytest.raises(ProcessLookupError):
                os.kill(worker, 0)

    def test_it_can_be_used_again(self) -> None:
        executor = self.executor()
        for _ in range(2):
            assert in_order(executor, square, [1, 2, 3]) == [1, 4, 9]


class IsolatedExecutorLaws(ExecutorLaws):
    """What holds besides for an executor whose work runs in other processes."""

    def test_a_killed_worker_loses_only_the_item_that_kills(self) -> None:
        done = {each.index: each for each in self.executor().as_completed(die_at_three, range(8))}
        assert sorted(done) == list(range(8))
        assert [done[i].value for i in (0, 1, 2, 4, 5, 6, 7)] == [0, 1, 4, 16, 25, 36, 49]
        assert "died on this work" in str(done[3].error)

    def test_an_item_whose_worker_is_killed_once_is_done_by_another(self, tmp_path: Path) -> None:
        items = ["", str(tmp_path / "a"), "", str(tmp_path / "b"), ""]
        assert in_order(self.executor(), die_once, items) == items

    def test_what_cannot_be_sent_is_an_error_of_its_item(self) -> None:
        items = [1, lambda: 2, 3]
        done = {each.index: each for each in self.executor().as_completed(type, items)}
        assert "cannot be sent between processes" in str(done[1].error)
        assert done[0].value is int and done[2].value is int

    def test_a_function_that_cannot_be_sent_is_refused(self) -> None:
        with pytest.raises(UsageError, match="cannot be sent between processes"):
            list(self.executor().as_completed(lambda number: number, [1, 2]))

    def test_two_workers_are_two_processes_and_neither_is_this_one(self) -> None:
        ids = set(in_order(self.executor(), process_id, range(20)))
        assert os.getpid() not in ids
        assert len(ids) <= 2
