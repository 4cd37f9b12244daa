"""Stages of a pipeline without a model, for tests: they double, echo, fail, die or hang.

Each is what a pipeline calls in a stage's process, so they stand where that one can import them.
Whatever `model` says is their own business; no file is read.
"""

import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slicewise.core.errors import MeasureError
from slicewise.core.pipeline_measurement import StageSpec

Arrays = Mapping[str, NDArray[np.generic]]


def open_double(stage: StageSpec) -> Callable[[Arrays], Arrays]:
    """Return what gives twice the sum of its inputs, as every output."""

    def run(values: Arrays) -> Arrays:
        total: Any = sum(array.astype(np.float64) for array in values.values())
        return dict.fromkeys(stage.outputs, (2 * total).astype(np.float32))

    return run


def open_echo(stage: StageSpec) -> Callable[[Arrays], Arrays]:
    """Return what hands on its first input itself, not a copy."""
    return lambda values: dict.fromkeys(stage.outputs, next(iter(values.values())))


def open_faulty(stage: StageSpec) -> Callable[[Arrays], Arrays]:
    """Return what does what `stage.model` says, at the third item or when it is opened.

    'refuse', 'die early', 'hang early', 'fail', 'die', 'hang', 'misshape', 'lack'; else double.
    """
    early = {"refuse": _refuse, "die early": _die, "hang early": _hang}
    late = {"fail": _fail, "die": _die, "hang": _hang}
    if stage.model in early:
        early[stage.model]()
    double = open_double(stage)
    if stage.model == "misshape":
        return lambda values: {n: a.reshape(-1, 1) for n, a in double(values).items()}
    if stage.model == "lack":
        return lambda values: {}
    seen: list[int] = []

    def run(values: Arrays) -> Arrays:
        seen.append(1)
        if len(seen) == 3 and stage.model in late:
            late[stage.model]()
        return double(values)

    return run


def open_speaking(stage: StageSpec) -> Callable[[Arrays], Arrays]:
    """Return what says on stdout that it runs, and then hangs."""

    def run(values: Arrays) -> Arrays:
        os.write(1, b"running\n")
        _hang()
        return {}

    return run


def open_cores(stage: StageSpec) -> Callable[[Arrays], Arrays]:
    """Return what gives the least and the greatest core that it may run on."""
    cores = os.sched_getaffinity(0)
    return lambda values: dict.fromkeys(
        stage.outputs, np.array([min(cores), max(cores)], np.float32)
    )


def _refuse() -> None:
    raise MeasureError("operator 'Odd' is not known")


def _fail() -> None:
    raise ZeroDivisionError("by zero\nsecond line")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang() -> None:
    threading.Event().wait()
