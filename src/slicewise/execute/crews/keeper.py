"""What runs beside a crew: for each worker a keeper, and below it the worker itself.

The keeper waits for the end of either side. When its worker ends, or the crew (a closed socket;
a killed process closes its own), it kills all that is left below it, removes the worker's folder
for temporary files, and ends. It is a subreaper, so that whatever the worker has started stays
below it, also what outlives its parent or moved to a session of its own: compilers that a crashed
search has left behind would disturb every measurement after it. It loads nothing and takes no part
in the work.

No framework is imported here: binding comes first, in what makes the handler.
"""

import multiprocessing
import os
import pickle
import select
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import spawn
from pathlib import Path
from typing import Any, NoReturn

from slicewise.core.errors import UsageError
from slicewise.execute.crews.channel import Word, frame, read_message
from slicewise.execute.crews.tree import kill_below
from slicewise.execute.portable import portable, unsendable

STARTED = b"started"  # the keeper's words to the crew, a line each: this one with a process id,
ENDED = b"ended"  # and this one with the exit code, negative for a signal
# prctl(2)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_KILL_S = 10.0  # what does not end when killed hangs in the kernel
# Where memory runs out the worker goes before its crew, and what it measures (1000) before it.
_OOM_SCORE = b"500"


def keep(channel: int, line: int, folder: str, *, is_grandchild: bool = False) -> NoReturn:
    """Start a worker that listens to the socket `channel`, and end with it or with `line`.

    Runs in a fresh process that leads a session, and has no thread but this one. `folder` is made
    for the worker's temporary files. `is_grandchild` puts a process between the crew's and this
    one, for a crew whose direct children are killed with it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if is_grandchild and (keeper := os.fork()):
        os.close(channel)
        os.close(line)
        _, status = os.waitpid(keeper, 0)
        os._exit(0 if status == 0 else 1)
    for number in (channel, line):
        os.set_inheritable(number, False)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _leave_no_core_files()
    os.mkdir(folder, 0o700)
    keeper = os.getpid()
    worker = os.fork()
    if worker == 0:
        os.close(line)
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:  # it ended before that took hold
            os._exit(1)
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_bytes(_OOM_SCORE)
        _serve(socket.socket(fileno=channel))
    os.close(channel)
    _say(line, STARTED, worker)
    code = _end_of(worker, line)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(worker, signal.SIGKILL)  # all there is where there is no /proc
    kill_below(keeper, patience_s=_KILL_S, reap=lambda: _reap(worker))
    shutil.rmtree(folder, ignore_errors=True)
    if code is not None:
        _say(line, ENDED, code)
    os._exit(0)


def _end_of(worker: int, line: int) -> int | None:
    """Return the worker's exit code (negative: signal) when it ends, None when the crew does."""
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        code = _reap(worker)
        if code is not None:
            return code
        ready, _, _ = select.select([woken, line], [], [])
        if line in ready:
            return None  # the crew never speaks to a keeper: this is its end
        os.read(woken, 4096)


def _reap(worker: int) -> int | None:
    """Take up all that have ended below; return the worker's exit code if it is among them."""
    code = None
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == worker:
                code = os.waitstatus_to_exitcode(status)
    return code


def _say(line: int, word: bytes, number: int) -> None:
    with suppress(OSError):
        os.write(line, b"%s %d\n" % (word, number))


def _serve(theirs: socket.socket) -> NoReturn:
    """Make the handler and answer orders until the channel ends. Runs in the worker."""
    lock = threading.Lock()

    def say(word: Word, content: bytes) -> None:
        try:
            with lock:
                theirs.sendall(frame(word, content))
        except OSError:
            _leave()  # nobody listens any more

    def tell(step: object) -> None:
        say(Word.STEP, _packed("step", step))

    try:
        handler = _made(*_hear(theirs))
    except Exception as err:
        say(Word.FAILED, _error(err))
        _leave()
    say(Word.READY, b"")
    while True:
        order = _hear(theirs)[0]
        try:
            value = handler(
                pickle.loads(order), lambda step: say(Word.STEP, _packed("step", step))
            )
            content = _packed("answer", value)
        except Exception as err:
            say(Word.FAILED, _error(err))
        else:
            say(Word.DONE, content)


def _hear(theirs: socket.socket) -> list[bytes]:
    """Return the next message: an order, or the two parts of what the handler is made from."""
    try:
        word, content = read_message(theirs)
    except (EOFError, OSError):
        _leave()
    return list(pickle.loads(content)) if word is Word.MAKE else [content]


def _made(way: bytes, sent: bytes) -> Callable[[object, Callable[[object], None]], object]:
    """Return the handler, after importing what the crew's process has imported as its script."""
    process: Any = multiprocessing.current_process()
    # so that a script that starts workers without asking for __name__ == "__main__" is told so
    process._inheriting = True
    try:
        spawn.prepare(pickle.loads(way))
    except Exception as err:
        text = str(err).strip().partition("\n")[0]
        raise UsageError(
            f"the script cannot be imported in a worker ({type(err).__name__}: {text}); a script"
            " that starts workers keeps its own calls under `if __name__ == '__main__':`"
        ) from err
    finally:
        del process._inheriting
    made: Callable[[object, Callable[[object], None]], object] = pickle.loads(sent)()
    return made


def _packed(what: str, value: object) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as err:  # whatever the value's own way of being pickled raises
        raise unsendable(what, err) from err


def _error(error: Exception) -> bytes:
    return pickle.dumps(portable(error))


def _leave() -> NoReturn:
    # Frameworks like to crash or hang while they are taken down, and all is told.
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def _prctl(option: int, value: int) -> None:
    """Set a property of this process where the system is Linux."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, int(value), 0, 0, 0)


def _leave_no_core_files() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
