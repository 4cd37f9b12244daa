"""Turns: one process at a time has a part, and a dead one gives it back."""

import errno
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from slicewise.core.errors import StoreError
from slicewise.store.turns import turn


def _hold(folder: Path, parts: list[str], pipe: "Connection[Any, Any]") -> None:
    with turn(parts, folder=folder):
        pipe.send("held")
        pipe.recv()
    pipe.send("given back")


def _started(folder: Path, parts: list[str]) -> tuple[Any, "Connection[Any, Any]"]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_hold, args=(folder, parts, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def test_a_part_that_another_has_is_waited_for(tmp_path: Path) -> None:
    process, pipe = _started(tmp_path, ["core-0", "core-1"])
    assert pipe.recv() == "held"
    told: list[str] = []

    def let_go(part: str) -> None:
        told.append(part)
        pipe.send("done")

    with turn(["core-1"], folder=tmp_path, waiting=let_go):
        assert told == ["core-1"]
    assert pipe.recv() == "given back"
    process.join()


def test_other_parts_are_free(tmp_path: Path) -> None:
    process, pipe = _started(tmp_path, ["core-0"])
    assert pipe.recv() == "held"

    def never(part: str) -> None:
        raise AssertionError(part)

    with turn(["core-1", "gpu-0"], folder=tmp_path, waiting=never):
        pass
    pipe.send("done")
    process.join()


def test_a_killed_process_gives_its_turn_back(tmp_path: Path) -> None:
    process, pipe = _started(tmp_path, ["core-0"])
    assert pipe.recv() == "held"

    def kill(part: str) -> None:
        os.kill(process.pid, signal.SIGKILL)

    with turn(["core-0"], folder=tmp_path, waiting=kill):
        pass
    process.join()


def test_a_turn_may_be_taken_again(tmp_path: Path) -> None:
    for _ in range(3):
        with turn(["a", "a", "b"], folder=tmp_path):
            pass


def test_waiting_can_be_broken_off(tmp_path: Path) -> None:
    process, pipe = _started(tmp_path, ["core-0"])
    assert pipe.recv() == "held"

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with (
            pytest.raises(KeyboardInterrupt),
            turn(
                ["core-0"],
                folder=tmp_path,
                waiting=lambda part: signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05) and None,
            ),
        ):
            pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    pipe.send("done")
    process.join()


def test_a_file_system_without_locks_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    def refuse(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StoreError, match=r"a.lock' cannot be taken"), turn(["a"], folder=tmp_path):
        pass


def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(StoreError, match="cannot be made"),
        turn(["a"], folder=tmp_path / "file" / "x"),
    ):
        pass
