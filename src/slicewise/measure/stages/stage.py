"""The process of one stage: binds itself, opens its model, and passes items on until all are done.

It ends with its parent, whatever becomes of that one, and leaves nothing behind.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from slicewise.core.errors import MeasureError
from slicewise.core.pipeline_measurement import StageSpec
from slicewise.core.share import Mechanism, Share
from slicewise.measure.shares.cores import CoreBinder
from slicewise.measure.stages.plan import Plan, Route, numpy_type, state_offset
from slicewise.measure.stages.rings import Gone, Receiver, Sender
from slicewise.measure.stages.times import Stamp, Stamps

Arrays = Mapping[str, NDArray[np.generic]]
RunStage = Callable[[Arrays], Arrays]
# What a stage does, as its state tells.
OPENING, STARVED, RUNNING, BLOCKED, DONE = range(5)


class OpenStage(Protocol):
    """Makes a stage's model ready, in the stage's process; picklable."""

    def __call__(self, stage: StageSpec) -> RunStage:
        """Return what takes the stage's inputs and gives its outputs, by name."""


@dataclass(frozen=True, slots=True)
class Ends:
    """The ends of a route's two pipes that one process holds."""

    route: Route
    filled: Any
    freed: Any


@dataclass(frozen=True, slots=True)
class Brief:
    """All that the process of a stage is told. `total` items come."""

    index: int
    stage: StageSpec
    plan: Plan
    memory: str
    total: int
    receive: tuple[Ends, ...]
    send: tuple[Ends, ...]
    open_stage: OpenStage


@dataclass(frozen=True, slots=True)
class Told:
    """What the process of a stage says: `what` is 'attached', 'ready', 'done' or 'failed'.

    `stamps` are five times of each item in ns: it began to wait, had its inputs, had run, had
    room to send, had sent.
    """

    what: str
    error: str = ""
    stamps: Stamps = ()


def serve_stage(brief: Brief, control: Any) -> None:
    """Run the stage. The process ends here, and not through the interpreter's own end.

    There are views of the shared memory then, which could not be closed in order.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(control,), daemon=True).start()
    try:
        control.send(Told("done", stamps=_serve(brief, control)))
    except (Gone, BrokenPipeError):
        os._exit(0)  # not this stage's fault; the parent learns whose
    except BaseException as err:
        text = str(err).strip() if isinstance(err, MeasureError) else _one_line(err)
        control.send(Told("failed", error=text))
        os._exit(1)
    os._exit(0)


def _end_with_parent(control: Any) -> None:
    """Wait for the end of the pipe, which is that of the parent: it never writes."""
    try:
        control.recv()
    except (EOFError, OSError):
        os._exit(1)


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"


def _serve(brief: Brief, control: Any) -> Stamps:
    if brief.stage.cores:
        CoreBinder().bind(Share(Mechanism.CORES, cores=brief.stage.cores), 0)
    shared = SharedMemory(brief.memory)
    assert shared.buf is not None
    control.send(Told("attached"))
    state = np.ndarray(2, np.int64, buffer=shared.buf, offset=state_offset(brief.index))
    run = brief.open_stage(brief.stage)
    receivers = [
        Receiver(end.route, shared.buf, filled=end.filled, freed=end.freed)
        for end in brief.receive
    ]
    senders = [
        Sender(end.route, shared.buf, filled=end.filled, freed=end.freed) for end in brief.send
    ]
    control.send(Told("ready"))
    stamps = []
    for item in range(brief.total):
        state[:] = STARVED, item
        stamps.append(_pass_on(brief.stage, receivers, senders, run=run, state=state))
    state[:] = DONE, brief.total
    return tuple(stamps)


def _pass_on(
    stage: StageSpec,
    receivers: list[Receiver],
    senders: list[Sender],
    *,
    run: RunStage,
    state: NDArray[np.int64],
) -> Stamp:
    """Take one item through the stage and return its five times."""
    now = time.perf_counter_ns  # of the whole system, so that stages' times compare
    began = now()
    for receiver in receivers:
        receiver.wait()
    got = now()
    state[0] = RUNNING
    values = {name: view for each in receivers for name, view in each.views().items()}
    outputs = _checked(run(values), stage, values)
    for receiver in receivers:
        receiver.release()
    ran = now()
    state[0] = BLOCKED
    for sender in senders:
        sender.wait()
    had_room = now()
    for sender in senders:
        sender.put(outputs)
    return began, got, ran, had_room, now()


def _checked(outputs: Arrays, stage: StageSpec, inputs: Arrays) -> Arrays:
    """Return the outputs, apart from the memory of the inputs; `MeasureError` if not as told."""
    checked: dict[str, NDArray[np.generic]] = {}
    for name, tensor in stage.outputs.items():
        if name not in outputs:
            raise MeasureError(f"it does not give {name!r}, which its specification names")
        array = outputs[name]
        told = (tensor.shape, np.dtype(numpy_type(tensor.dtype)))
        if (array.shape, array.dtype) != told:
            raise MeasureError(
                f"it gives {name!r} as {array.dtype}{list(array.shape)}, and its specification"
                f" says {told[1]}{list(tensor.shape or ())}"
            )
        shared = any(np.may_share_memory(array, view) for view in inputs.values())
        checked[name] = array.copy() if shared else array
    return checked
