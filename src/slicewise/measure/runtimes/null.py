"""A runtime that runs no model: known work, and every way to fail on request. For tests, and to
tell what the harness itself costs.

The subject is never opened: only the batch is read, from the first axis of its first input.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from slicewise.core.errors import MeasureError, UsageError
from slicewise.core.measurement import NodeTime, Subject
from slicewise.core.notes import Note
from slicewise.measure.runtimes._base import Setup

OPTIONS: Mapping[str, str] = {
    "work": "sums over 8,192 numbers for each item of the batch (default 10)",
    "noise": "relative scatter of the work from run to run (default 0)",
    "at": "where it fails: 'open', 'run' (default) or 'profile'",
    "crash": "1 or abort, segv, exit: the process ends there",
    "hang": "1: it waits there for ever",
    "eat_memory": "bytes to take there and keep",
    "refuse": "1: MeasureError there",
    "fail": "a text: RuntimeError with it there",
    "chatter": "a text to write to standard output and error there",
    "profile": "1: it has a profiler",
}
_ELEMENTS = 8192
_CHUNK_BYTES = 1 << 24
_CRASHES: Mapping[str, Callable[[], None]] = {
    "1": os.abort,
    "abort": os.abort,
    "segv": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "exit": lambda: os._exit(3),
}


class _NullSession:
    """Work in proportion to the batch, and the failures that the options ask for."""

    def __init__(
        self, values: Sequence[NDArray[np.generic]], options: Mapping[str, str], *, batch: int
    ) -> None:
        self.notes: tuple[Note, ...] = ()
        self._values = tuple(values)
        self._options = options
        self._numbers = np.linspace(0.0, 1.0, _ELEMENTS)
        self._sums = max(0, round(_number(options, "work", 10.0) * batch))
        self._noise = _number(options, "noise", 0.0)
        self._random = np.random.default_rng(0)
        self._kept: list[NDArray[np.uint8]] = []
        self._fails_in_run = options.get("at", "run") == "run" and bool(options.keys() & _FAILURES)
        self.fail("open")

    def run(self) -> None:
        if self._fails_in_run:
            self.fail("run")
        sums = self._sums
        if self._noise:
            sums = round(sums * max(0.0, 1 + self._noise * self._random.standard_normal()))
        for _ in range(sums):
            np.add.reduce(self._numbers)

    def outputs(self) -> tuple[NDArray[np.generic], ...]:
        self.run()
        return tuple(np.asarray(value.sum(), dtype=np.float32) for value in self._values)

    def profile(self, runs: int) -> tuple[NodeTime, ...]:
        self.fail("profile")
        if self._options.get("profile") != "1":
            raise MeasureError("the null runtime has no profiler here; give it profile=1")
        return (NodeTime("sum", "ReduceSum", 0.001 * self._sums, calls=float(self._sums)),)

    def close(self) -> None:
        self._kept.clear()

    def fail(self, place: str) -> None:
        """Do what the options ask for at `place`: crash, hang, eat memory, refuse, talk."""
        options = self._options
        if options.get("at", "run") != place:
            return
        if text := options.get("chatter"):
            print(text, flush=True)
            print(text, file=sys.stderr, flush=True)
        if take := int(_number(options, "eat_memory", 0.0)):
            self._eat(take)
        if "crash" in options:
            _CRASHES[options["crash"]]()
        if options.get("hang") == "1":
            threading.Event().wait()
        if options.get("refuse") == "1":
            raise MeasureError(f"the null runtime refuses to {place}: refuse=1 asks for it")
        if text := options.get("fail"):
            raise RuntimeError(text)

    def _eat(self, take: int) -> None:
        held = sum(chunk.nbytes for chunk in self._kept)
        while held < take:
            chunk = np.ones(min(_CHUNK_BYTES, take - held), dtype=np.uint8)
            self._kept.append(chunk)
            held += chunk.nbytes


_FAILURES = ("crash", "hang", "eat_memory", "refuse", "fail", "chatter")


class NullRuntime:
    """The runtime 'null'."""

    name = "null"
    forms = frozenset({"onnx", "torch"})
    devices = frozenset({"cpu", "gpu"})

    def load(self) -> Mapping[str, str]:
        return {"numpy": np.__version__}

    def open(
        self, subject: Subject, values: Sequence[NDArray[np.generic]], setup: Setup
    ) -> _NullSession:
        """Return a session; `UsageError` for an option that is not one of `OPTIONS`."""
        _check(setup.options)
        shape = subject.inputs[0].shape if subject.inputs else ()
        return _NullSession(values, setup.options, batch=shape[0] if shape else 1)


def _check(options: Mapping[str, str]) -> None:
    for name, value in options.items():
        if name not in OPTIONS:
            raise UsageError(
                f"option {name}={value!r} is none of the null runtime; it has {', '.join(OPTIONS)}"
            )
    crash = options.get("crash", "1")
    if crash not in _CRASHES:
        raise UsageError(f"option crash={crash!r} is impossible; it can be {', '.join(_CRASHES)}")
    for name in ("work", "noise", "eat_memory"):
        _number(options, name, 0.0)


def _number(options: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(options.get(name, default))
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError(f"option {name}={options[name]!r} is no number from 0 up; give one")
    return value


RUNTIME = NullRuntime()
