"""A crew of processes of this machine.

Each worker is a fresh interpreter below a keeper (`keeper.py`) that sees to it that nothing of the
worker is left when it ends, or when this process does, however. What workers print goes to a
nameless file, whose last lines are a lost one's last words. Nothing here ever waits for a worker:
neither for one that is held in the midst of its answer, nor for one that hangs.
"""

import fcntl
import os
import pickle
import re
import secrets
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing import spawn
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from slicewise.core.crew import Answer, AnswerKind, MakeHandler
from slicewise.core.errors import SlicewiseError, UsageError
from slicewise.core.processes import interrupts_held
from slicewise.execute.crews.channel import Channel, Word
from slicewise.execute.crews.keeper import ENDED, STARTED
from slicewise.execute.crews.tree import continue_below, kill_below, stop_below
from slicewise.execute.portable import UNPICKLABLE, unsendable

_CODE = """\
import sys
sys.path.insert(0, sys.argv[1])
from slicewise.execute.crews.keeper import keep
keep(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], is_grandchild=bool(sys.argv[5]))
"""
_START_S = 30.0  # for an interpreter to come up, on a machine that is very busy
_STOP_S = 2.0  # for a process to stop; only one that waits for a disk takes more than a moment
_GRACE_S = 15.0  # for a keeper to end; it gives its own killing 10 s
_LOG_BYTES = 16 << 20  # of what a worker prints no more is kept
_LAST_LINES, _TEXT_LIMIT = 5, 600
_SAID = {Word.STEP: AnswerKind.STEP, Word.DONE: AnswerKind.DONE}


@dataclass(slots=True)
class _Worker:
    """A worker as it is seen from here. `line` is the way to and from its keeper."""

    number: int
    label: str
    keeper: "subprocess.Popen[bytes]"
    channel: Channel
    line: socket.socket
    log: IO[bytes]
    folder: str
    oom_kills: int
    told: bytearray = field(default_factory=bytearray)
    process: int | None = None
    exit_code: int | None = None
    has_ended: bool = False
    is_ready: bool = False
    is_busy: bool = False


class LocalCrew:
    """Workers that are processes of this machine. Ctrl-C reaches this process alone.

    Works where the system is POSIX; only Linux can hold workers, and reach what moved to a session
    of its own.
    """

    def __init__(self, *, has_grandchildren: bool = False) -> None:
        """Start nothing yet. `has_grandchildren`: nothing that must end in good order is a child
        of this process itself; then nobody can be held."""
        self._has_grandchildren = has_grandchildren
        self._workers: dict[int, _Worker] = {}
        self._said: deque[Answer] = deque()
        self._hired = 0
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def now_s(self) -> float:
        """Return the time in s on the monotonic clock."""
        return time.monotonic()

    def hire(
        self, make: MakeHandler, *, label: str, resources: Mapping[str, float] | None = None
    ) -> int:
        """Start a process and return the worker's number; `resources` are not looked at.

        `UsageError` if `make` cannot be sent. A system that gives no process is told as FAILED.
        """
        try:
            sent = pickle.dumps(make)
        except UNPICKLABLE as err:
            raise unsendable("function", err) from err
        return self.hire_sent(sent, way_of_importing(), label=label)

    def hire_sent(self, sent: bytes, way: bytes, *, label: str) -> int:
        """Do as `hire` with what is pickled already, and how its modules are found."""
        assert not self._is_closed, "the crew is closed"
        number = self._hired
        self._hired += 1
        try:
            with interrupts_held():
                worker = self._workers[number] = _start(
                    number, label, is_grandchild=self._has_grandchildren
                )
        except OSError as err:
            error = SlicewiseError(
                f"worker {label!r} cannot be started: {err.strerror or err}; end other processes,"
                " free some space, or raise the limits (ulimit -u, ulimit -n)"
            )
            self._said.append(Answer(number, AnswerKind.FAILED, error=error))
        else:
            worker.channel.send(Word.MAKE, pickle.dumps((way, sent)))
        return number

    def give(self, worker: int, order: object) -> None:
        """Send the order; `UsageError`, with the worker still idle, if it cannot be sent."""
        try:
            sent = pickle.dumps(order)
        except UNPICKLABLE as err:
            raise unsendable("order", err) from err
        self.give_sent(worker, sent)

    def give_sent(self, worker: int, sent: bytes) -> None:
        """Do as `give` with what is pickled already."""
        taker = self._workers.get(worker)
        assert taker is not None, f"there is no worker {worker}"
        assert taker.is_ready and not taker.is_busy, f"worker {worker} is not idle"
        taker.is_busy = True
        taker.channel.send(Word.ORDER, sent)

    def wait(self, *, timeout_s: float | None = None) -> tuple[Answer, ...]:
        """Return what was said since; at once nothing where no worker is left to say something."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        left: float | None = 0.0
        while True:
            was_woken = self._listen(left)
            said = tuple(self._said)
            self._said.clear()
            left = None if until is None else max(0.0, until - time.monotonic())
            if said or was_woken or not self._workers or left == 0:
                return said

    def wake(self) -> None:
        """Make `wait` return, with nothing perhaps. The one call for another thread."""
        with suppress(BlockingIOError):
            os.write(self._wake, b"!")

    def hold(self, workers: Collection[int]) -> Collection[int]:
        """Stop the workers with all they have started; return those that stand still now."""
        if sys.platform != "linux" or self._has_grandchildren:
            return ()
        chosen = [self._workers[number] for number in workers if number in self._workers]
        roots = {each.keeper.pid: each.number for each in chosen if self._has_started(each)}
        stopped = stop_below(roots, patience_s=_STOP_S)
        continue_below(set(roots) - stopped)
        return tuple(sorted(roots[root] for root in stopped))

    def release(self, workers: Collection[int]) -> None:
        """Let the workers go on, with all they have started."""
        chosen = [self._workers[number] for number in workers if number in self._workers]
        continue_below({each.keeper.pid for each in chosen})

    def dismiss(self, worker: int) -> None:
        """Kill the worker and all it has started, and return when they are gone."""
        leaver = self._workers.pop(worker, None)
        if leaver is not None:
            _see_off([leaver])
        self._said = deque(answer for answer in self._said if answer.worker != worker)

    def close(self) -> None:
        """Kill all workers and return when they are gone."""
        if self._is_closed:
            return
        self._is_closed = True
        leavers = list(self._workers.values())
        self._workers.clear()
        self._said.clear()
        try:
            _see_off(leavers)
        finally:
            os.close(self._woken)
            os.close(self._wake)

    def _listen(self, timeout_s: float | None) -> bool:
        """Wait until somebody says or takes something; True if it was `wake`."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for worker in self._workers.values():
                selector.register(worker.line, selectors.EVENT_READ, worker)
                reads = 0 if worker.channel.is_ended else selectors.EVENT_READ
                writes = selectors.EVENT_WRITE if worker.channel.has_more else 0
                if reads | writes:
                    selector.register(worker.channel, reads | writes, worker)
            ready = selector.select(timeout_s)
        heard = {key.data.number: key.data for key, _ in ready if key.data is not None}
        was_woken = any(key.data is None for key, _ in ready) and _emptied(self._woken)
        for worker in heard.values():
            self._attend(worker)
        return was_woken

    def _attend(self, worker: _Worker) -> None:
        """Take what a worker and its keeper have said, and send what it has room for."""
        worker.channel.flush()
        _hear_keeper(worker)
        _bound(worker.log)
        # after its keeper: once that has told the end, all that was said is there
        for word, content in worker.channel.receive():
            answer = self._answer(worker, word, content)
            self._said.append(answer)
            if answer.kind is AnswerKind.FAILED and not worker.is_ready:
                self._part_with(worker)
                return
        if worker.has_ended:
            error = _how_it_ended(worker)
            self._part_with(worker)
            self._said.append(Answer(worker.number, AnswerKind.LOST, error=error))

    def _answer(self, worker: _Worker, word: Word, content: bytes) -> Answer:
        if word is Word.READY:
            worker.is_ready = True
            return Answer(worker.number, AnswerKind.READY)
        if word in (Word.DONE, Word.FAILED):
            worker.is_busy = False
        try:
            value = pickle.loads(content)
        except Exception as err:  # whatever its modules raise when they are imported here
            error = UsageError(
                f"what worker {worker.label!r} answers cannot be read here:"
                f" {type(err).__name__}: {err}"
            )
            kind = AnswerKind.STEP if word is Word.STEP else AnswerKind.FAILED
            return Answer(worker.number, kind, error=error)
        if word is Word.FAILED:
            return Answer(worker.number, AnswerKind.FAILED, error=value)
        return Answer(worker.number, _SAID[word], value)

    def _part_with(self, worker: _Worker) -> None:
        del self._workers[worker.number]
        _see_off([worker])

    def _has_started(self, worker: _Worker) -> bool:
        """Wait for the process to be there; False if it has ended."""
        until = time.monotonic() + _START_S
        while worker.process is None and not worker.has_ended:
            ready, _, _ = select.select([worker.line], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return False
            _hear_keeper(worker)
        return not worker.has_ended


def way_of_importing(*, with_script: bool = True) -> bytes:
    """Return how a worker finds the modules that this process does; pickled.

    `with_script`: also those of this process's own script. `UsageError` while that script is
    being imported in a worker.
    """
    try:
        way = spawn.get_preparation_data("worker")
    except RuntimeError as err:
        raise UsageError(
            "a worker imports this script, and would start workers of its own; keep the script's"
            " calls under `if __name__ == '__main__':`"
        ) from err
    way.pop("authkey", None)  # not to be sent, and of no use there
    if not with_script:
        way.pop("init_main_from_name", None)
        way.pop("init_main_from_path", None)
    return pickle.dumps(way)


def _start(number: int, label: str, *, is_grandchild: bool) -> _Worker:
    """Start a keeper, which starts the worker. `OSError` where the system refuses."""
    with ExitStack() as undone:
        # made by the keeper, which is sure to remove it
        folder = str(Path(tempfile.gettempdir(), f"slicewise-{secrets.token_hex(8)}"))
        log = undone.enter_context(tempfile.TemporaryFile())
        # so that it can be cut while it is written to
        fcntl.fcntl(log, fcntl.F_SETFL, fcntl.fcntl(log, fcntl.F_GETFL) | os.O_APPEND)
        ours, theirs = map(undone.enter_context, socket.socketpair())
        line, far = map(undone.enter_context, socket.socketpair())
        process = subprocess.Popen(
            # -P: a file of the working folder must not stand in for a module of Python's own
            [sys.executable, "-P", "-c", _CODE, str(Path(__file__).parents[3]),
             str(theirs.fileno()), str(far.fileno()), folder, "yes" if is_grandchild else ""],
            pass_fds=(theirs.fileno(), far.fileno()),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "TMPDIR": folder},
            start_new_session=True,  # Ctrl-C at the terminal reaches this process alone
        )  # fmt: skip
        undone.pop_all()
    theirs.close()
    far.close()
    line.setblocking(False)
    return _Worker(number, label, process, Channel(ours), line, log, folder, _oom_kills())


def _hear_keeper(worker: _Worker) -> None:
    """Read what the keeper has told."""
    while not worker.has_ended:
        try:
            chunk = worker.line.recv(4096)
        except BlockingIOError:
            break
        except OSError:
            chunk = b""
        worker.has_ended = not chunk
        worker.told += chunk
    *lines, rest = bytes(worker.told).split(b"\n")
    worker.told = bytearray(rest)
    for line in lines:
        word, number = line.split()
        if word == STARTED:
            worker.process = int(number)
        elif word == ENDED:
            worker.exit_code, worker.has_ended = int(number), True


def _see_off(leavers: list[_Worker]) -> None:
    """Return when these workers and their keepers are gone."""
    for worker in leavers:
        with suppress(OSError):  # its keeper is gone already
            # not only closed: a fork of this process may hold the socket too
            worker.line.shutdown(socket.SHUT_RDWR)
        worker.line.close()
        worker.channel.close()
    until = time.monotonic() + _GRACE_S
    for worker in leavers:
        try:
            worker.keeper.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:  # somebody has stopped it
            kill_below(worker.keeper.pid, patience_s=0.1, reap=lambda: None)
            worker.keeper.kill()
            worker.keeper.wait()
        if worker.keeper.returncode and worker.process is not None:
            # The keeper itself was killed: the worker dies with it, and here is the rest of it.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(worker.process, signal.SIGKILL)
        shutil.rmtree(worker.folder, ignore_errors=True)
        worker.log.close()


def _how_it_ended(worker: _Worker) -> SlicewiseError:
    """Return the error that tells why a worker is gone."""
    doing = (
        "while it worked on an order" if worker.is_busy
        else "while it was idle" if worker.is_ready
        else "while it started"
    )  # fmt: skip
    code = worker.exit_code
    if code is None:
        with suppress(subprocess.TimeoutExpired):
            worker.keeper.wait(_GRACE_S)
        code = worker.keeper.returncode
    how = f"ended with exit code {code}"
    if code is not None and code < 0:
        how = f"was killed by {_signal_name(-code)}"
    if code == -signal.SIGKILL and _oom_kills() > worker.oom_kills:
        how = "was ended by the system, which ran out of memory,"
    words = _last_words(worker.log)
    said = f"; its last words: {words}" if words else ""
    return SlicewiseError(f"worker {worker.label!r} {how} {doing}{said}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_words(log: IO[bytes]) -> str:
    """Return the last lines that a worker wrote, as one line."""
    size = os.fstat(log.fileno()).st_size
    text = os.pread(log.fileno(), 8192, max(0, size - 8192)).decode(errors="replace")
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    kept = " | ".join([line for line in lines if line][-_LAST_LINES:])
    return "".join(letter for letter in kept if letter.isprintable())[-_TEXT_LIMIT:]


def _bound(log: IO[bytes]) -> None:
    """Empty a log that has grown large: compilers can say gigabytes in an hour."""
    if os.fstat(log.fileno()).st_size > _LOG_BYTES:
        os.ftruncate(log.fileno(), 0)


def _emptied(pipe: int) -> bool:
    """Empty the pipe; return whether there was something in it."""
    with suppress(BlockingIOError):
        return bool(os.read(pipe, 4096))
    return False


def _oom_kills() -> int:
    """Return how many processes the kernel has killed for memory so far (vmstat; 0 elsewhere)."""
    with suppress(OSError):
        found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
        return int(found[1]) if found else 0
    return 0
