"""The conformance suite of crews: inherit it, say how one is made, and run pytest.

class TestMine(CrewLaws):
    make = staticmethod(lambda: MyCrew())

`IsolatedCrewLaws` for crews whose workers are processes, `HoldingCrewLaws` where these can be held
besides. What the workers do stands in `crew_work.py`.
"""

import functools
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slicewise.core.crew import Answer, AnswerKind, Crew, Handler
from slicewise.core.errors import SlicewiseError, UsageError
from slicewise.testing.crew_work import (
    counted,
    is_running,
    make_counting,
    make_death,
    make_nothing,
    make_work,
    work,
)

_PATIENCE_S = 300.0  # for an answer that must come, on a machine that is very busy
_BIG = 1 << 20  # bytes that no buffer between processes takes at once
_FINAL = (AnswerKind.DONE, AnswerKind.FAILED, AnswerKind.LOST)


class Listener:
    """A crew, and what was heard of it, by worker."""

    def __init__(self, crew: Crew) -> None:
        """Hear nothing yet."""
        self.crew = crew
        self.heard: dict[int, list[Answer]] = {}

    def hire(self, make: Callable[[], Handler] = make_work) -> int:
        """Hire a worker and wait until it is ready."""
        worker = self.crew.hire(make, label="it")
        assert self.next(worker).kind is AnswerKind.READY
        return worker

    def next(self, worker: int) -> Answer:
        """Return the worker's next answer."""
        until = time.monotonic() + _PATIENCE_S
        while not self.heard.get(worker):
            left = until - time.monotonic()
            assert left > 0, f"worker {worker} says nothing"
            for answer in self.crew.wait(timeout_s=left):
                self.heard.setdefault(answer.worker, []).append(answer)
        return self.heard[worker].pop(0)

    def ask(self, worker: int, *order: object) -> Answer:
        """Give an order and return the next answer to it."""
        self.crew.give(worker, order)
        return self.next(worker)

    def has_silence(self) -> bool:
        """True if nobody has said anything that was not heard."""
        return not self.crew.wait(timeout_s=0) and not any(self.heard.values())


class CrewLaws:
    """What holds for every crew. Set `make` to what makes one."""

    make: ClassVar[Callable[[], Crew]]

    @pytest.fixture
    def listener(self) -> Iterator[Listener]:
        """Give a listener to an empty crew."""
        with closing(type(self).make()) as crew:
            yield Listener(crew)

    def test_every_order_is_answered_once_and_workers_keep_their_state(
        self, listener: Listener
    ) -> None:
        workers = [
            listener.hire(functools.partial(make_counting, 100 * each)) for each in range(2)
        ]
        for number in range(1, 6):
            for worker in workers:
                listener.crew.give(worker, number)
            for i, worker in enumerate(workers):
                answer = listener.next(worker)
                assert answer == Answer(
                    worker, AnswerKind.DONE, 100 * i + number * (number + 1) // 2
                )
        assert listener.has_silence()

    def test_steps_come_in_order_before_the_answer(self, listener: Listener) -> None:
        worker = listener.hire()
        listener.crew.give(worker, ("steps", 5))
        told = [listener.next(worker) for _ in range(6)]
        assert [answer.value for answer in told] == [0, 1, 2, 3, 4, "told"]
        assert {answer.kind for answer in told[:5]} == {AnswerKind.STEP}
        assert told[5].kind is AnswerKind.DONE

    def test_an_order_that_fails_leaves_the_worker_alive(self, listener: Listener) -> None:
        worker = listener.hire()
        answer = listener.ask(worker, "fail", "2 is odd; give an even one")
        assert answer.kind is AnswerKind.FAILED and isinstance(answer.error, UsageError)
        assert str(answer.error) == "2 is odd; give an even one"
        answer = listener.ask(worker, "lack")
        assert isinstance(answer.error, SlicewiseError)
        assert "pip install nothing" in str(answer.error)
        assert listener.ask(worker, "square", 3).value == 9

    def test_a_handler_that_cannot_be_made_is_told_and_its_worker_is_gone(
        self, listener: Listener
    ) -> None:
        worker = listener.crew.hire(
            functools.partial(make_nothing, "there is no share"), label="server 0"
        )
        answer = listener.next(worker)
        assert answer.kind is AnswerKind.FAILED and isinstance(answer.error, UsageError)
        assert str(answer.error) == "there is no share"
        listener.crew.dismiss(worker)
        assert listener.has_silence()

    def test_numbers_are_never_given_twice(self, listener: Listener) -> None:
        first = listener.hire()
        listener.crew.dismiss(first)
        assert listener.hire() != first

    def test_nothing_is_heard_of_one_who_was_dismissed(self, listener: Listener) -> None:
        stays, leaves = listener.hire(), listener.hire()
        listener.crew.give(stays, ("square", 2))
        listener.crew.give(leaves, ("square", 3))
        listener.crew.dismiss(leaves)
        listener.crew.dismiss(leaves)
        assert listener.next(stays).value == 4
        assert listener.has_silence()

    def test_waiting_ends_with_its_time_and_where_nobody_is_left(self, listener: Listener) -> None:
        assert listener.crew.wait() == ()
        worker = listener.hire()
        assert listener.crew.wait(timeout_s=0) == ()
        assert listener.crew.wait(timeout_s=0.01) == ()
        listener.crew.dismiss(worker)
        assert listener.crew.wait() == ()

    def test_time_goes_on(self, listener: Listener) -> None:
        before = listener.crew.now_s()
        assert before <= listener.crew.now_s()

    def test_holding_answers_for_those_it_could_hold(self, listener: Listener) -> None:
        worker = listener.hire()
        held = set(listener.crew.hold([worker]))
        assert held <= {worker}
        assert set(listener.crew.hold([worker])) == held
        listener.crew.release([worker])
        listener.crew.release([worker])
        assert listener.ask(worker, "square", 4).value == 16

    def test_closing_twice_is_closing_once(self) -> None:
        crew = type(self).make()
        Listener(crew).hire()
        crew.close()
        crew.close()


class IsolatedCrewLaws(CrewLaws):
    """What holds besides where workers are processes. `examples` of the random law are run."""

    examples: ClassVar[int] = 8

    def test_workers_are_processes_out_of_reach_of_the_terminal(self, listener: Listener) -> None:
        found = [listener.ask(listener.hire(), "who").value for _ in range(2)]
        assert all(isinstance(each, tuple) for each in found)
        pids = {each[0] for each in found if isinstance(each, tuple)}
        sessions = {each[1] for each in found if isinstance(each, tuple)}
        assert len(pids) == 2 and os.getpid() not in pids and os.getsid(0) not in sessions

    def test_one_that_dies_is_lost_with_its_order_alone(self, listener: Listener) -> None:
        dies, lives = listener.hire(), listener.hire()
        answer = listener.ask(dies, "die", 3)
        assert answer.kind is AnswerKind.LOST
        assert "worker 'it' ended with exit code 3 while it worked on an order" in str(
            answer.error
        )
        assert "its last words: my last words" in str(answer.error)
        assert listener.ask(lives, "square", 5).value == 25
        assert listener.has_silence()
        listener.crew.dismiss(dies)

    def test_one_that_is_killed_at_work_or_idle_is_lost(self, listener: Listener) -> None:
        for order in (("hang",), None):
            worker = listener.hire()
            answer = listener.ask(worker, *order) if order else listener.ask(worker, "who")
            pid = answer.value[0] if isinstance(answer.value, tuple) else answer.value
            assert isinstance(pid, int)
            os.kill(pid, signal.SIGKILL)
            lost = listener.next(worker)
            assert lost.kind is AnswerKind.LOST
            assert "was killed by SIGKILL" in str(lost.error)
            assert ("order" in str(lost.error)) == (order is not None)
        assert listener.has_silence()

    def test_one_that_dies_in_the_making_is_lost(self, listener: Listener) -> None:
        worker = listener.crew.hire(make_death, label="client 2")
        lost = listener.next(worker)
        assert lost.kind is AnswerKind.LOST
        assert "worker 'client 2' ended with exit code 7 while it started" in str(lost.error)
        assert "no such device" in str(lost.error)

    def test_what_cannot_be_sent_is_refused_and_the_worker_stays(self, listener: Listener) -> None:
        with pytest.raises(UsageError, match="function of this work cannot be sent"):
            listener.crew.hire(lambda: work, label="it")
        worker = listener.hire()
        with pytest.raises(UsageError, match="order of this work cannot be sent"):
            listener.crew.give(worker, lambda: None)
        answer = listener.ask(worker, "lambda")
        assert answer.kind is AnswerKind.FAILED and "cannot be sent" in str(answer.error)
        assert listener.ask(worker, "square", 6).value == 36

    def test_orders_and_answers_of_any_size_arrive(self, listener: Listener) -> None:
        worker = listener.hire()
        content = os.urandom(5 * _BIG + 3)
        assert listener.ask(worker, "echo", content).value == content

    def test_a_worker_that_hangs_can_be_dismissed(self, listener: Listener) -> None:
        worker = listener.hire()
        pid = listener.ask(worker, "hang").value
        listener.crew.dismiss(worker)
        assert isinstance(pid, int) and not is_running(pid)
        assert listener.has_silence()

    def test_what_a_worker_started_ends_with_it(self, listener: Listener, tmp_path: Path) -> None:
        worker = listener.hire()
        pids = [
            listener.ask(worker, "start", str(tmp_path / f"{apart}"), apart).value
            for apart in (True, False)
        ]
        assert all(isinstance(pid, int) and is_running(pid) for pid in pids)
        listener.crew.dismiss(worker)
        assert not any(isinstance(pid, int) and is_running(pid) for pid in pids)

    def test_what_a_lost_worker_left_behind_ends_too(
        self, listener: Listener, tmp_path: Path
    ) -> None:
        worker = listener.hire()
        pid = listener.ask(worker, "start_and_die", str(tmp_path / "n")).value
        assert listener.next(worker).kind is AnswerKind.LOST
        assert isinstance(pid, int) and not is_running(pid)

    def test_files_that_a_worker_left_go_with_it(self, listener: Listener) -> None:
        worker = listener.hire()
        folder = listener.ask(worker, "folder").value
        assert isinstance(folder, str) and Path(folder, "left.txt").exists()
        listener.crew.dismiss(worker)
        assert not Path(folder).exists()

    def test_closing_ends_those_who_work_and_those_who_hang(self) -> None:
        crew = type(self).make()
        listener = Listener(crew)
        pids = [listener.ask(listener.hire(), "hang").value for _ in range(2)]
        listener.hire()
        crew.hire(make_work, label="still starting")
        crew.close()
        assert not any(isinstance(pid, int) and is_running(pid) for pid in pids)

    def test_what_workers_print_is_not_shown(
        self, listener: Listener, capfd: pytest.CaptureFixture[str]
    ) -> None:
        listener.ask(listener.hire(), "die", 0)
        shown = capfd.readouterr()
        assert "last" not in shown.out and "last" not in shown.err

    def test_any_sequence_leaves_each_order_with_one_answer(self) -> None:
        moves = st.lists(
            st.tuples(
                st.sampled_from(["hire", "square", "fail", "die", "kill", "dismiss", "wait"]),
                st.integers(0, 7),
            ),
            max_size=12,
        )

        @given(moves)
        @settings(
            deadline=None,
            max_examples=self.examples,
            suppress_health_check=[HealthCheck.too_slow],
        )
        def check(steps: list[tuple[str, int]]) -> None:
            with closing(type(self).make()) as crew:
                _follow(crew, steps)

        check()


def _follow(crew: Crew, steps: list[tuple[str, int]]) -> None:
    """Do the steps, keep account of the orders, and check that it comes out even."""
    listener = Listener(crew)
    idle: list[int] = []
    busy: dict[int, str] = {}
    pids: dict[int, int] = {}

    def settle(worker: int) -> None:
        answer = listener.next(worker)
        order = busy.pop(worker)
        assert answer.kind in _FINAL
        expected = {"square": AnswerKind.DONE, "fail": AnswerKind.FAILED, "die": AnswerKind.LOST}
        assert answer.kind in (expected[order], AnswerKind.LOST)
        if answer.kind is not AnswerKind.LOST:
            idle.append(worker)

    for move, number in steps:
        known = [*idle, *busy]
        if move == "hire" and len(known) < 3:
            worker = listener.hire()
            pid = listener.ask(worker, "who").value
            assert isinstance(pid, tuple)
            pids[worker] = pid[0]
            idle.append(worker)
        elif move in ("square", "fail", "die") and idle:
            worker = idle.pop(number % len(idle))
            busy[worker] = move
            crew.give(worker, (move, number))
        elif move == "kill" and idle:
            worker = idle.pop(number % len(idle))
            os.kill(pids[worker], signal.SIGKILL)
            assert listener.next(worker).kind is AnswerKind.LOST
        elif move == "dismiss" and known:
            worker = known[number % len(known)]
            crew.dismiss(worker)
            listener.heard.pop(worker, None)
            busy.pop(worker, None)
            idle = [each for each in idle if each != worker]
            assert not is_running(pids[worker])
        elif move == "wait" and busy:
            settle(next(iter(busy)))
    for worker in list(busy):
        settle(worker)
    assert listener.has_silence()


class HoldingCrewLaws(IsolatedCrewLaws):
    """What holds besides where workers can be held."""

    def test_held_workers_and_what_they_started_stand_still(
        self, listener: Listener, tmp_path: Path
    ) -> None:
        worker, other = listener.hire(), listener.hire()
        paths = [tmp_path / name for name in ("apart", "beside", "itself")]
        for path, apart in zip(paths[:2], (True, False), strict=True):
            listener.ask(worker, "start", str(path), apart)
        listener.ask(worker, "count", str(paths[2]))
        self._see_progress(paths)
        assert listener.crew.hold([worker]) == (worker,)
        before = [counted(path) for path in paths]
        # another one works meanwhile, for as long as it takes to count far
        listener.ask(other, "count", str(tmp_path / "other"))
        for _ in range(5):
            self._see_progress([tmp_path / "other"])
        assert listener.crew.hold([worker]) == (worker,)
        assert [counted(path) for path in paths] == before
        listener.crew.release([worker])
        self._see_progress(paths)

    def test_one_that_is_killed_while_held_is_lost(self, listener: Listener) -> None:
        worker = listener.hire()
        pid = listener.ask(worker, "hang").value
        assert listener.crew.hold([worker]) == (worker,)
        assert isinstance(pid, int)
        os.kill(pid, signal.SIGKILL)
        assert listener.next(worker).kind is AnswerKind.LOST

    def test_held_workers_can_be_dismissed_and_closed(self, listener: Listener) -> None:
        workers = [listener.hire() for _ in range(2)]
        pids = [listener.ask(worker, "hang").value for worker in workers]
        assert set(listener.crew.hold(workers)) == set(workers)
        listener.crew.dismiss(workers[0])
        listener.crew.close()
        assert not any(isinstance(pid, int) and is_running(pid) for pid in pids)

    def test_one_that_is_starting_can_be_held(self, listener: Listener) -> None:
        worker = listener.crew.hire(make_work, label="it")
        assert listener.crew.hold([worker]) == (worker,)
        listener.crew.wait(timeout_s=0.05)
        listener.crew.release([worker])
        assert listener.next(worker).kind is AnswerKind.READY

    def test_a_held_worker_neither_takes_nor_answers_and_nobody_waits_for_it(
        self, listener: Listener
    ) -> None:
        speaks, hears = listener.hire(), listener.hire()
        assert listener.ask(speaks, "flood", 8 * _BIG).value == "now"
        held = listener.crew.hold([speaks, hears])  # the first in the midst of its answer, likely
        assert set(held) == {speaks, hears}
        listener.crew.give(hears, ("echo", b"y" * (8 * _BIG)))
        while answers := listener.crew.wait(timeout_s=0):
            for answer in answers:
                listener.heard.setdefault(answer.worker, []).append(answer)
        assert not listener.heard.get(hears)
        listener.crew.release([speaks, hears])
        assert listener.next(speaks).value == b"x" * (8 * _BIG)
        assert listener.next(hears).value == b"y" * (8 * _BIG)

    def test_holding_who_is_gone_is_holding_nobody(self, listener: Listener) -> None:
        worker = listener.hire()
        listener.crew.dismiss(worker)
        assert listener.crew.hold([worker, 99]) == ()
        listener.crew.release([worker, 99])

    @staticmethod
    def _see_progress(paths: list[Path]) -> None:
        """Return once every count has grown."""
        before = [counted(path) for path in paths]
        until = time.monotonic() + _PATIENCE_S
        while any(counted(path) <= old for path, old in zip(paths, before, strict=True)):
            assert time.monotonic() < until, "no progress"
            os.sched_yield()
