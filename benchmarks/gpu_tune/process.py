"""Worker processes that answer several requests at once, and files of JSON lines."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from pathlib import Path
from typing import Any, TextIO

Reply = Mapping[str, Any]


class PeerLost(Exception):
    """The process died, hung or did not start; the text says which."""


class Peer:
    """A process that reads requests as JSON lines and answers each by its number, in any order."""

    def __init__(
        self, module: str, *arguments: str, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start it; `ready` waits until it can answer."""
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env={**os.environ, **(environment or {})}, start_new_session=True,
            )  # fmt: skip
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        # number 0 is the greeting
        self._waiting: dict[int, Future[Reply]] = {0: Future()}
        self._greeting = self._waiting[0]
        self.is_lost = False
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                reply = json.loads(line)
                with self._lock:
                    future = self._waiting.pop(reply["number"], None)
                if future is not None:
                    future.set_result(reply)
        with self._lock:
            self.is_lost = True
            left, self._waiting = self._waiting, {}
        for future in left.values():
            future.set_exception(PeerLost("its process ended"))

    def ready(self, timeout_s: float) -> Reply:
        """Return its greeting; `PeerLost` if none comes."""
        return self._wait(self._greeting, timeout_s)

    def ask(self, request: Mapping[str, Any], *, timeout_s: float) -> Reply:
        """Return the answer; `PeerLost` if none comes, and then it is killed."""
        future: Future[Reply] = Future()
        with self._lock:
            if self.is_lost:
                raise PeerLost("its process has ended")
            number = next(self._numbers)
            self._waiting[number] = future
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps({**request, "number": number}) + "\n")
                self._process.stdin.flush()
            except (OSError, ValueError) as err:
                self.is_lost = True
                raise PeerLost("its process has ended") from err
        return self._wait(future, timeout_s)

    def _wait(self, future: "Future[Reply]", timeout_s: float) -> Reply:
        try:
            return future.result(timeout_s)
        except Late as err:
            self.kill()
            raise PeerLost(f"no answer within {timeout_s:.0f} s") from err

    def kill(self) -> None:
        """End it with all that it has started."""
        self.is_lost = True
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)
        with self._lock, contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        if threading.current_thread() is not self._reader:
            self._reader.join(10)


def serve(answer: Any, out: TextIO) -> None:
    """Greet, then hand every request to `answer(request, reply)` until the input ends.

    `reply(row)` may be called later and from any thread.
    """
    lock = threading.Lock()

    def send(number: int, row: Mapping[str, Any]) -> None:
        with lock:
            out.write(json.dumps({**row, "number": number}) + "\n")
            out.flush()

    send(0, {})
    for line in sys.stdin:
        request = json.loads(line)
        answer(request, lambda row, number=request["number"]: send(number, row))


def own_output() -> TextIO:
    """Return the standard output, and let whatever else prints go to the standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


class Lines:
    """A file of JSON lines that a kill leaves whole up to the last."""

    def __init__(self, path: Path) -> None:
        self._file, self._lock = path.open("w"), threading.Lock()

    def add(self, row: Mapping[str, Any]) -> None:
        """Write one row."""
        with self._lock:
            if not self._file.closed:  # a thread may outlast a stop
                self._file.write(json.dumps(dict(row)) + "\n")
                self._file.flush()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()


def short(err: BaseException) -> str:
    """Return the first line of an error, without paths of this machine."""
    lines = [line.strip() for line in str(err).splitlines() if line.strip()]
    words = (lines or [""])[0].split()
    told = [word.rpartition("/")[2] if word.startswith("/") else word for word in words]
    return f"{type(err).__name__}: {' '.join(told)}"[:240]
