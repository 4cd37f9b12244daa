"""Takes one measurement in a process of its own, and outlives whatever becomes of it.

A fresh interpreter for each measurement costs 0.2 s of CPU before the runtime is loaded (0.1 s
for Python and the types, 0.1 s for numpy), and 50 ms on each core to see whether it is ours.
Nothing that loads numpy or a framework is imported here: binding comes first, since libraries
count cores when they load.

Not `multiprocessing.Process`: a worker of a pool, being daemonic, may not start one, and what is
printed while it starts would reach the user. The way of handing over is that of its 'spawn'.
"""

import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import connection, spawn
from pathlib import Path
from typing import IO, Any

from slicewise.core.errors import MeasureError, SlicewiseError, UsageError, tells_no_memory
from slicewise.core.measurement import Job, Measurement, Outcome
from slicewise.core.notes import Note, unique_notes
from slicewise.core.units import format_capacity
from slicewise.measure.meters.memory import resident_bytes

Bind = Callable[[Job], tuple[Note, ...]]

_CODE = """\
import sys
sys.path.insert(0, sys.argv[1])
from slicewise.measure.child import serve
serve(int(sys.argv[2]))
"""
_TICK_S = 0.5  # how often it is looked whether a silent child still lives
# How often its memory is looked at where that is limited: as soon as it can be at the limit, at
# the rate that one process can fill memory with here (4 GB/s), so that looking costs nothing.
_MEMORY_TICK_S = (0.01, 0.25)
_FILL_BYTES_PER_S = 4e9
_LAST_LINES = 5
_TEXT_LIMIT = 600
# Malloc'd is not resident: the hard limit is only a fuse against growth between two looks.
_FUSE_FACTOR, _FUSE_BYTES = 2, 4 << 30
_UNPICKLABLE = (pickle.PicklingError, AttributeError, TypeError)


def bind_share(job: Job) -> tuple[Note, ...]:
    """Bind this process to the job's share; return what the user should know of it.

    Errors are those of `slicewise.measure.shares._base.bind_share`.
    """
    from slicewise.measure.shares._base import bind_share as bind

    return bind(job)


def measure_apart(job: Job, *, bind: Bind = bind_share, patience_s: float = 0.0) -> Measurement:
    """Return the measurement of `job`, taken in a fresh process that `bind` is first called in.

    `bind` and `job` must be picklable. The process ends after the protocol's `time_limit_s`
    (plus `patience_s`, for which it may wait for quiet cores) and when its resident memory passes
    `memory_limit_bytes`. A crash, a kill, a hang and running out of memory are outcomes of the
    measurement, with the last words of the process as `error`. Nothing it prints is shown.

    Raised are `UsageError` and `DeviceError`, as by `measure_here`, `UsageError` also where the
    job cannot be sent; Ctrl-C kills the process first. If this process dies, so does the other.
    Costs 0.2 s of CPU and 50 ms on each core beyond loading, opening and running.
    """
    payload = _pack(job, bind, patience_s=patience_s)
    with _log() as log:
        child = _Child(job, _start(log), log, patience_s=patience_s)
        try:
            child.begin(payload)
            return child.follow()
        finally:
            child.end()


def _log() -> IO[bytes]:
    """Return a nameless file for what the process prints."""
    try:
        return tempfile.TemporaryFile()
    except OSError as err:
        raise MeasureError(
            f"no file for what the measured process prints can be made: {err.strerror or err};"
            " free some space, or set TMPDIR to a folder that can be written"
        ) from err


def _pack(job: Job, bind: Bind, *, patience_s: float) -> bytes:
    """Return what the process needs: how to import what this one imported, then the job."""
    try:
        sent = pickle.dumps((job, bind, patience_s))
    except _UNPICKLABLE as err:
        raise UsageError(
            f"{job.subject.name!r} cannot be sent to a process of its own ({err}); its `open` "
            "must be a function of a module, or a functools.partial of one"
        ) from err
    way = spawn.get_preparation_data("measure")
    way.pop("authkey", None)  # not to be sent, and of no use there
    return pickle.dumps((way, sent))


@dataclass(frozen=True, slots=True)
class _Started:
    process: "subprocess.Popen[bytes]"
    pipe: "connection.Connection[Any, Any]"


def _start(log: IO[bytes]) -> _Started:
    ours, theirs = multiprocessing.Pipe()
    root = str(Path(__file__).parents[2])
    with theirs:
        # -P: a file of the working folder must not stand in for a module of Python's own.
        command = [sys.executable, "-P", "-c", _CODE, root, str(theirs.fileno())]
        try:
            process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C at the terminal reaches this process alone
            )
        except OSError as err:
            ours.close()
            raise MeasureError(
                f"no process can be started to measure in: {err.strerror or err}; end others, or"
                " raise the limit of processes (ulimit -u)"
            ) from err
    return _Started(process, ours)


class _Child:
    """The running process as it is seen from here."""

    def __init__(self, job: Job, started: _Started, log: IO[bytes], *, patience_s: float) -> None:
        self._job = job
        self._process, self._pipe = started.process, started.pipe
        self._log = log
        self._began = time.monotonic()
        self._end = self._began + job.protocol.time_limit_s + patience_s
        self._step = "starting"
        self._so_far: Measurement | None = None
        self._oom_kills = _oom_kills()

    def begin(self, payload: bytes) -> None:
        """Hand over the job; a process that is already dead is noticed by `follow`."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._pipe.send_bytes(payload)

    def follow(self) -> Measurement:
        """Listen until there is a result, an end or a limit."""
        limit = self._job.protocol.memory_limit_bytes
        tick = _TICK_S if limit is None else _MEMORY_TICK_S[0]
        while True:
            left = self._end - time.monotonic()
            # what it has said is heard first: this process may have been stopped meanwhile
            if connection.wait([self._pipe], timeout=max(0.0, min(tick, left))):
                answer = self._hear()
            elif left <= 0:
                return self._late()
            else:
                answer = None if self._is_alive() else self._dead()
            if answer is not None:
                return answer
            if limit is None:
                continue
            # 0: it has just ended, or there is no /proc, and the fuse is all there is
            held = resident_bytes(Path(f"/proc/{self._process.pid}")) or 0
            least, most = _MEMORY_TICK_S
            tick = min(most, max(least, (limit - held) / _FILL_BYTES_PER_S))
            if held > limit:
                return self._failed(
                    Outcome.OUT_OF_MEMORY,
                    f"resident memory reached {format_capacity(held)} while {self._step}; "
                    f"allowed is memory_limit_bytes={limit}; raise it or take a smaller batch",
                )

    def _hear(self) -> Measurement | None:
        try:
            kind, *told = self._pipe.recv()
        except (EOFError, OSError):  # OSError: it ended in the middle of a word
            return self._dead()
        if kind == "step":
            self._step, self._so_far = told
            return None
        if kind == "raise":
            name, text = told
            raise _error_named(name)(text)
        (measured,) = told
        assert isinstance(measured, Measurement)
        return replace(measured, seconds=time.monotonic() - self._began)

    def _is_alive(self) -> bool:
        return _peek(self._process.pid) is None

    def _dead(self) -> Measurement:
        """Tell what ended the process."""
        # The pipe ends a moment before the process does.
        while (ended := _peek(self._process.pid)) is None:
            if time.monotonic() > self._end:
                return self._late()
            time.sleep(0.001)
        words = self._last_words()
        said = f"; its last words: {words}" if words else ""
        is_signal, code = ended
        how = f"killed by {_signal_name(code)}" if is_signal else f"ended with exit code {code}"
        if is_signal and code == signal.SIGKILL and _oom_kills() > self._oom_kills:
            text = f"the system ran out of memory and ended the process while {self._step}"
            return self._failed(Outcome.OUT_OF_MEMORY, text)
        text = f"the process was {how} while {self._step}{said}"
        text = text.replace("was ended", "ended")
        is_full = tells_no_memory(words)
        return self._failed(Outcome.OUT_OF_MEMORY if is_full else Outcome.CRASHED, text)

    def _late(self) -> Measurement:
        limit = self._job.protocol.time_limit_s
        words = self._last_words()
        said = f"; its last words: {words}" if words else ""
        return self._failed(
            Outcome.TIMED_OUT,
            f"the process was still {self._step} after time_limit_s={limit:g} and was ended; "
            f"raise the limit or take a smaller batch{said}",
        )

    def _failed(self, outcome: Outcome, error: str) -> Measurement:
        from slicewise.measure.harness import begin_measurement

        so_far = self._so_far or begin_measurement(self._job)
        so_far = replace(so_far, seconds=time.monotonic() - self._began)
        if so_far.samples_ms:  # what came after the samples is an extra
            note = Note("profile-missing", f"no times of operators: {error}")
            return replace(so_far, notes=unique_notes((*so_far.notes, note)))
        return replace(so_far, outcome=outcome, error=error)

    def _last_words(self) -> str:
        """Return the last lines that the process wrote, as one line."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 8192))
        text = self._log.read().decode(errors="replace")
        text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
        lines = [" ".join(line.split()) for line in text.splitlines()]
        kept = " | ".join([line for line in lines if line][-_LAST_LINES:])
        kept = "".join(letter for letter in kept if letter.isprintable())
        return kept[-_TEXT_LIMIT:]

    def end(self) -> None:
        """Kill the process and what it started, and wait until it is gone."""
        # Before it is waited for: only till then is its number surely its own.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._pipe.close()


def _peek(pid: int) -> tuple[bool, int] | None:
    """Return (by a signal, its number or the exit code) of a child that has ended and leave it
    to be waited for; None while it runs."""
    try:
        told = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # where SIGCHLD is ignored nobody can say how it ended
        return False, 0
    if told is None:
        return None
    return told.si_code != os.CLD_EXITED, told.si_status


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _oom_kills() -> int:
    """Return how many processes the kernel has killed for memory so far (vmstat; 0 elsewhere)."""
    try:
        found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _error_named(name: str) -> type[SlicewiseError]:
    """Return the nearest class of ours that a message alone makes."""
    from slicewise.core import errors

    found = getattr(errors, name, SlicewiseError)
    return UsageError if found is errors.MissingDependency else found


# From here on: what runs in the process.


def serve(pipe_number: int) -> None:
    """Take the measurement that the pipe asks for and tell it. Ends the process."""
    parent = os.getppid()
    _die_with(parent)
    pipe: connection.Connection[Any, Any] = connection.Connection(pipe_number)
    os.set_inheritable(pipe_number, False)
    try:
        told = _answer(pipe)
    except EOFError:
        os._exit(0)  # nobody listens any more
    with suppress(BrokenPipeError, ConnectionResetError):
        pipe.send(told)
    # Frameworks like to crash or hang while they are taken down, and all is told.
    os._exit(0)


def _answer(pipe: "connection.Connection[Any, Any]") -> tuple[object, ...]:
    way, sent = pickle.loads(pipe.recv_bytes())
    # So that a script that measures without asking for __name__ == "__main__" is told so.
    multiprocessing.current_process()._inheriting = True  # type: ignore[attr-defined]
    try:
        spawn.prepare(way)
        job, bind, patience_s = pickle.loads(sent)
    except Exception as err:
        text = f"the job cannot be read in a process of its own: {type(err).__name__}: {err}"
        return "raise", "UsageError", f"{text}; its `open` must be a function of a module"
    finally:
        del multiprocessing.current_process()._inheriting  # type: ignore[attr-defined]
    _limit(job)
    try:
        notes = bind(job)
        from slicewise.measure.harness import measure_here

        def report(step: str, so_far: Measurement) -> None:
            pipe.send(("step", step, so_far))

        return "done", measure_here(job, notes=notes, patience_s=patience_s, report=report)
    except SlicewiseError as err:
        return "raise", type(err).__name__, str(err)


def _limit(job: Job) -> None:
    """Leave no core files, be the first to go when memory runs out, and blow a fuse at far more
    than the limit: on a GPU none, since CUDA reserves address space far beyond what it uses."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # not Linux: the system chooses by itself
        Path("/proc/self/oom_score_adj").write_text("1000")
    limit = job.protocol.memory_limit_bytes
    if limit is not None and job.device == "cpu" and sys.platform == "linux":
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        fuse = _FUSE_FACTOR * limit + _FUSE_BYTES
        if hard == resource.RLIM_INFINITY or fuse < hard:
            resource.setrlimit(resource.RLIMIT_DATA, (fuse, hard))


def _die_with(parent: int) -> None:
    """End this process when `parent` ends: by the kernel on Linux, else a thread looks."""
    if sys.platform == "linux":
        import ctypes

        # PR_SET_PDEATHSIG = 1 (prctl(2)); meant is the thread that started this process, which
        # waits for it.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    else:
        import threading

        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it ended before that took hold
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
