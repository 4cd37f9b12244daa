"""The processes of a pipeline's stages and the memory between them, from start to end.

Whatever happens here or there, no process and no named memory outlives `dismiss`, and none
outlives this process. What the times mean is not judged here.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from pickle import PicklingError
from typing import Any

from numpy.typing import NDArray

from slicewise.core.errors import MeasureError
from slicewise.core.pipeline_measurement import StageSpec
from slicewise.core.processes import interrupts_held
from slicewise.core.units import format_capacity
from slicewise.measure.stages.plan import FEEDER, Plan, state_offset
from slicewise.measure.stages.rings import Gone, Receiver, Sender
from slicewise.measure.stages.stage import (
    BLOCKED,
    DONE,
    OPENING,
    RUNNING,
    STARVED,
    Brief,
    Ends,
    OpenStage,
    Told,
    serve_stage,
)
from slicewise.measure.stages.times import Phases, Stamps

_GRACE_S = 5.0  # for a process to end, and for the cause to show after its neighbour has left
_SHARED = Path("/dev/shm")  # where POSIX shared memory lies on Linux
_DOING = {
    OPENING: "opening its model", STARVED: "waiting for inputs", RUNNING: "running",
    BLOCKED: "waiting for room", DONE: "done",
}  # fmt: skip


@dataclass(slots=True)
class Carried:
    """What was seen here: when each item was fed, what came out, which stages gave it."""

    last_stages: tuple[int, ...]
    fed_ns: list[int] = field(default_factory=list)
    received: int = 0
    kept: list[dict[str, NDArray[Any]]] = field(default_factory=list)


def _check_room(size_bytes: int) -> None:
    """Raise `MeasureError` where shared memory has no such room: writing would kill us."""
    if not _SHARED.is_dir():
        return  # another system: making it tells
    status = os.statvfs(_SHARED)
    free = status.f_bavail * status.f_frsize
    if size_bytes > free:
        raise MeasureError(
            f"the queues need {format_capacity(size_bytes)} of shared memory, and {_SHARED} has"
            f" {format_capacity(free)}; use less depth or a smaller batch, or enlarge it"
            " (docker run --shm-size)"
        )


def _make_memory(size_bytes: int) -> SharedMemory:
    _check_room(size_bytes)
    try:
        return SharedMemory(create=True, size=size_bytes)
    except OSError as err:
        raise MeasureError(
            f"{format_capacity(size_bytes)} of shared memory for the queues cannot be had: {err};"
            " use less depth or a smaller batch"
        ) from err


def _buffer(shared: SharedMemory) -> memoryview:
    assert shared.buf is not None, "closed"
    return shared.buf


@dataclass(slots=True)
class _Member:
    """The process of a stage, this end of its control pipe, and what it has said."""

    stage: StageSpec
    process: SpawnProcess
    control: Any
    has_attached: bool = False
    is_ready: bool = False
    stamps: Stamps | None = None
    has_left: bool = False


class Crew:
    """The processes of the stages and the memory between them, from `start` to `dismiss`."""

    def __init__(
        self, stages: Sequence[StageSpec], plan: Plan, *, deadline: float, limit: float
    ) -> None:
        self._stages = stages
        self._plan = plan
        self._deadline = deadline
        self._limit = limit
        self._members: list[_Member] = []
        self._shared: SharedMemory | None = None
        self._is_named = False
        self._pipes: list[Any] = []
        self._senders: list[Sender] = []
        self._receivers: list[Receiver] = []
        self._left: str = ""  # a stage that left since a neighbour was gone

    def start(self, *, total: int, open_stage: OpenStage) -> None:
        """Start all stages and return when their models are open."""
        with interrupts_held():
            self._shared = _make_memory(self._plan.size_bytes)
            self._is_named = True
            receive, send = self._join(_buffer(self._shared))
            for index, stage in enumerate(self._stages):
                brief = Brief(
                    index, stage, self._plan, self._shared.name, total,
                    tuple(receive[index]), tuple(send[index]), open_stage,
                )  # fmt: skip
                self._members.append(_start(brief))
        # What stages hold of the pipes ends with them from here on.
        for ends in [*receive[:-1], *send[:-1]]:
            for end in ends:
                end.filled.close()
                end.freed.close()
        self._await(lambda: all(member.has_attached for member in self._members))
        # No name, nothing left behind: from here on the memory ends with its processes.
        self._unname()
        self._await(lambda: all(member.is_ready for member in self._members))

    def _join(self, memory: memoryview) -> tuple[list[list[Ends]], list[list[Ends]]]:
        """Make the pipes of all routes; return the ends to receive and to send by, per place."""
        places = self._plan.stages + 1
        receive: list[list[Ends]] = [[] for _ in range(places)]
        send: list[list[Ends]] = [[] for _ in range(places)]
        for route in self._plan.routes:
            filled_out, filled_in = multiprocessing.Pipe(duplex=False)
            freed_out, freed_in = multiprocessing.Pipe(duplex=False)
            self._pipes += [filled_out, filled_in, freed_out, freed_in]
            if route.target == self._plan.stages:
                self._receivers.append(Receiver(route, memory, filled=filled_out, freed=freed_in))
            else:
                receive[route.target].append(Ends(route, filled=filled_out, freed=freed_in))
            if route.source == FEEDER:
                self._senders.append(Sender(route, memory, filled=filled_in, freed=freed_out))
            else:
                send[route.source].append(Ends(route, filled=filled_in, freed=freed_out))
        return receive, send

    def carry(
        self, encoded: Sequence[Mapping[str, bytes]], phases: Phases, *, keep: int
    ) -> Carried:
        """Feed all items and collect what comes of them."""
        last = tuple(receiver.route.source for receiver in self._receivers)
        carried = Carried(last)
        while carried.received < phases.total:
            fed = len(carried.fed_ns)
            in_turn = carried.received if fed < phases.alone else fed
            wants_to_feed = fed < phases.total and fed <= in_turn
            if all(receiver.waiting for receiver in self._receivers):
                self._collect(carried, keep=keep)
            elif wants_to_feed and all(sender.room for sender in self._senders):
                carried.fed_ns.append(time.perf_counter_ns())
                for sender in self._senders:
                    self._tolerate(sender.put_bytes, encoded[fed % len(encoded)])
            else:
                lacking: list[Any] = [r for r in self._receivers if not r.waiting]
                lacking += [s for s in self._senders if wants_to_feed and not s.room]
                self._wait(lacking)
        return carried

    def _collect(self, carried: Carried, *, keep: int) -> None:
        if carried.received < keep:
            kept: dict[str, NDArray[Any]] = {}
            for receiver in self._receivers:
                kept |= receiver.copies()
            carried.kept.append(kept)
        for receiver in self._receivers:
            receiver.release()
        carried.received += 1

    def take_stamps(self) -> list[Stamps]:
        """Return the stamps of all stages, once they are done."""
        self._await(lambda: all(member.stamps is not None for member in self._members))
        return [member.stamps or () for member in self._members]

    def _await(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._wait([])

    def _tolerate(self, act: Any, *arguments: Any) -> None:
        """Do what fails if a stage is gone: its control pipe tells which, and why."""
        try:
            act(*arguments)
        except Gone:
            self._await(lambda: False)

    def _wait(self, lacking: Sequence[Any]) -> None:
        """Wait for a word of a stage or for tokens; `MeasureError` at the deadline."""
        pipes = {
            each.filled if isinstance(each, Receiver) else each.freed: each for each in lacking
        }
        controls = {m.control: m for m in self._members if m.stamps is None and not m.has_left}
        left_s = self._deadline - time.monotonic()
        ready = connection.wait([*pipes, *controls], timeout=max(0.0, left_s))
        if not ready:
            raise self._late()
        for each in ready:
            if each in controls:
                self._hear(controls[each])
        for each in ready:
            if each in pipes:
                self._tolerate(pipes[each].take_tokens)

    def _hear(self, member: _Member) -> None:
        """Take in what a stage says; `MeasureError` if it failed or died."""
        try:
            told: Told = member.control.recv()
        except (EOFError, OSError):
            self._bury(member)
            return
        if told.what == "failed":
            raise MeasureError(f"stage {member.stage.name!r} ({member.stage.model}): {told.error}")
        member.has_attached = True
        member.is_ready = member.is_ready or told.what in ("ready", "done")
        if told.what == "done":
            member.stamps = told.stamps

    def _bury(self, member: _Member) -> None:
        member.process.join(_GRACE_S)
        code = member.process.exitcode
        if code != 0:
            how = f"killed by signal {-code}" if code and code < 0 else f"exit code {code}"
            if not member.has_attached:
                raise MeasureError(
                    f"stage {member.stage.name!r}: its process cannot start ({how}); a script that"
                    " runs pipelines keeps its own calls under `if __name__ == '__main__':`"
                )
            raise MeasureError(
                f"stage {member.stage.name!r} ({member.stage.model}): its process died ({how}),"
                " for lack of memory perhaps; run the stage alone, or with less memory"
            )
        # It left because a neighbour did: that one's end is about to be heard of.
        self._left = member.stage.name
        member.has_left = True
        self._deadline = min(self._deadline, time.monotonic() + _GRACE_S)

    def _late(self) -> MeasureError:
        """Return the error of a run that took too long, naming the stage that is behind."""
        if self._left:
            return MeasureError(
                f"stage {self._left!r} lost its neighbour, and none says why; run it again"
            )
        states = self._states()
        stuck = [each for each in states if each[1] in (OPENING, RUNNING)] or states
        item, doing, _ = min(stuck)
        names = ", ".join(repr(name) for *state, name in stuck if state == [item, doing])
        return MeasureError(
            f"stage {names} is still {_DOING[doing]}"
            f"{f' item {item}' if doing != OPENING else ''} after {self._limit:g} s, the limit;"
            " give a longer time limit or fewer items"
        )

    def _states(self) -> list[tuple[int, int, str]]:
        """Return (item, what it does, name) of each stage."""
        assert self._shared is not None
        states = []
        for index, stage in enumerate(self._stages):
            start = state_offset(index)
            both = _buffer(self._shared)[start : start + 16].tobytes()
            doing, item = (int.from_bytes(both[i : i + 8], sys.byteorder) for i in (0, 8))
            states.append((item, doing, stage.name))
        return states

    def _unname(self) -> None:
        if self._shared is not None and self._is_named:
            self._is_named = False
            self._shared.unlink()

    def dismiss(self) -> None:
        """End all processes and give the memory back; what has ended already stays so."""
        with interrupts_held():
            for member in self._members:
                if member.stamps is None:
                    member.process.kill()
                member.control.close()
            for member in self._members:
                member.process.join(_GRACE_S)
                if member.process.exitcode is None:
                    member.process.kill()
                    member.process.join()
                member.process.close()
            for pipe in self._pipes:
                pipe.close()
            self._senders.clear()
            self._receivers.clear()
            self._unname()
            if self._shared is not None:
                self._shared.close()


def _start(brief: Brief) -> _Member:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=serve_stage, args=(brief, theirs), daemon=True
    )
    try:
        process.start()
    except (AttributeError, TypeError, ValueError, OSError, AssertionError, PicklingError) as err:
        ours.close()
        raise MeasureError(
            f"stage {brief.stage.name!r}: its process cannot start: {err}; `open_stage` must be a"
            " function of a module"
        ) from err
    finally:
        theirs.close()  # so that the end of the process is the end of the pipe
    return _Member(brief.stage, process, ours)
