"""The crew of processes keeps the laws, and leaves nothing behind whatever ends it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slicewise.core.crew import AnswerKind
from slicewise.execute.crews import local
from slicewise.execute.crews.local import LocalCrew
from slicewise.testing.crew_work import is_running, make_work
from slicewise.testing.crews import HoldingCrewLaws, Listener

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="holding needs /proc")


class TestLocalCrew(HoldingCrewLaws):
    make = staticmethod(LocalCrew)


def _wait_for(condition: object) -> None:
    assert callable(condition)
    until = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < until
        os.sched_yield()


HELD_AND_BUSY = """
import sys, time
from slicewise.execute.crews.local import LocalCrew
from slicewise.testing.crews import Listener

if __name__ == "__main__":
    listener = Listener(LocalCrew())
    worker, held = listener.hire(), listener.hire()
    print(listener.ask(worker, "start", sys.argv[1], True).value)
    print(listener.ask(worker, "folder").value)
    print(listener.ask(worker, "hang").value)
    print(listener.ask(held, "hang").value)
    listener.crew.hold([held])
    print("up", flush=True)
    sys.stdin.read()
"""


def _script(tmp_path: Path, text: str) -> "subprocess.Popen[str]":
    path = tmp_path / "script.py"
    path.write_text(text)
    return subprocess.Popen(
        [sys.executable, str(path), str(tmp_path / "count")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_killed_caller_leaves_neither_workers_nor_what_they_started(tmp_path: Path) -> None:
    with _script(tmp_path, HELD_AND_BUSY) as caller:
        assert caller.stdout is not None
        started, folder, worker, held, _ = (caller.stdout.readline().strip() for _ in range(5))
        pids = [int(started), int(worker), int(held)]
        assert all(map(is_running, pids)) and Path(folder).exists()
        caller.kill()
        _wait_for(lambda: not any(map(is_running, pids)) and not Path(folder).exists())


def test_a_killed_keeper_costs_its_worker_and_no_other() -> None:
    with LocalCrew() as crew:
        listener = Listener(crew)
        worker, other = listener.hire(), listener.hire()
        pid = listener.ask(worker, "hang").value
        assert isinstance(pid, int)
        os.kill(crew._workers[worker].keeper.pid, signal.SIGKILL)
        lost = listener.next(worker)
        assert lost.kind is AnswerKind.LOST and "killed by SIGKILL" in str(lost.error)
        _wait_for(lambda: not is_running(pid))
        assert listener.ask(other, "square", 2).value == 4


def test_a_stopped_keeper_does_not_keep_the_crew_from_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "_GRACE_S", 0.05)
    crew = LocalCrew()
    listener = Listener(crew)
    worker = listener.hire()
    pid = listener.ask(worker, "hang").value
    os.kill(crew._workers[worker].keeper.pid, signal.SIGSTOP)
    crew.close()
    assert isinstance(pid, int)
    _wait_for(lambda: not is_running(pid))


def test_a_system_that_gives_no_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    with LocalCrew() as crew:
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "Popen", refuse)
            worker = crew.hire(make_work, label="client 0")
        (answer,) = crew.wait()
        assert (answer.worker, answer.kind) == (worker, AnswerKind.FAILED)
        assert "worker 'client 0' cannot be started: Resource temporarily" in str(answer.error)
        assert crew.wait() == ()


def test_memory_that_ran_out_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalCrew() as crew:
        listener = Listener(crew)
        worker = listener.hire()
        pid = listener.ask(worker, "hang").value
        assert isinstance(pid, int)
        before = crew._workers[worker].oom_kills
        monkeypatch.setattr(local, "_oom_kills", lambda: before + 1)
        os.kill(pid, signal.SIGKILL)
        assert "ended by the system, which ran out of memory" in str(listener.next(worker).error)


def test_a_log_that_grows_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_LOG_BYTES", 4)
    with LocalCrew() as crew:
        listener = Listener(crew)
        worker = listener.hire()
        log = crew._workers[worker].log
        os.write(log.fileno(), b"too much")
        listener.ask(worker, "square", 1)
        assert os.fstat(log.fileno()).st_size == 0


UNGUARDED = """
from slicewise.execute.crews.local import LocalCrew
from slicewise.testing.crew_work import make_work

crew = LocalCrew()
crew.hire(make_work, label="it")
for answer in crew.wait():
    print(answer.kind.value, answer.error)
crew.close()
"""


def test_a_script_without_a_guard_is_told_and_starts_no_others(tmp_path: Path) -> None:
    with _script(tmp_path, UNGUARDED) as caller:
        out, err = caller.communicate(timeout=120)
    assert err == "" and out.startswith("failed the script cannot be imported in a worker")
    assert out.rstrip().endswith("keeps its own calls under `if __name__ == '__main__':`")


INTERRUPTED = """
import os, signal
from slicewise.execute.crews.local import LocalCrew
from slicewise.testing.crews import Listener

if __name__ == "__main__":
    with LocalCrew() as crew:
        listener = Listener(crew)
        worker = listener.hire()
        try:
            os.killpg(0, signal.SIGINT)
            crew.wait()
        except KeyboardInterrupt:
            print(listener.ask(worker, "square", 7).value)
"""


def test_an_interrupt_of_the_terminal_reaches_the_caller_alone(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(INTERRUPTED)
    out = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
    )
    assert out.stdout == "49\n"
