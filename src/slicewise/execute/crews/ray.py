"""A crew on the machines of a Ray cluster: the same laws as the local one, but for holding.

Each worker has an actor, which the cluster places where its resources are; the actor is a foreman
with a local crew of one. So a worker is the same fresh process everywhere, with nothing of Ray in
it, and what a lost one was doing is known. Orders and answers are pickled here and there;
slicewise must be installed where they run, and nothing of the caller's own script can.
"""

import contextlib
import pickle
import threading
import time
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from slicewise.core.crew import Answer, AnswerKind, MakeHandler
from slicewise.core.errors import SlicewiseError
from slicewise.execute._base import usable_cores
from slicewise.execute.crews.local import LocalCrew, way_of_importing
from slicewise.execute.portable import UNPICKLABLE, unsendable
from slicewise.execute.ray_cluster import connected, first_line, talk_on_stderr

_START_S = 120.0  # for the cluster to place a worker: without it there is no room
_GRACE_S = 15.0  # for a worker to be killed where it is
# Of a Ray that is started here: who sits where on one machine is settled before workers are hired.
_OWN_RESOURCES: Mapping[str, float] = {"slice": 1000}


class Foreman:
    """What runs inside an actor, in two threads: one hears the worker, one hears the crew."""

    def __init__(self, sent: bytes, label: str) -> None:
        """Take what makes the handler, pickled."""
        self._sent, self._label = sent, label
        # Ray kills the children of an actor that it ends, and a keeper must outlive it.
        self._crew = LocalCrew(has_grandchildren=True)
        self._worker: int | None = None
        self._orders: deque[bytes] = deque()
        self._uses_crew = threading.Lock()
        self._is_ending = False

    def hear(self) -> list[tuple[str, bytes]]:
        """Return what the worker says next, kind and pickled answer; nothing the first time."""
        with self._uses_crew:
            if self._worker is None:
                way = way_of_importing(with_script=False)
                self._worker = self._crew.hire_sent(self._sent, way, label=self._label)
                return []
            while not self._is_ending:
                while self._orders:
                    self._crew.give_sent(self._worker, self._orders.popleft())
                if said := self._crew.wait():
                    return [(answer.kind.value, pickle.dumps(answer)) for answer in said]
            return []

    def give(self, order: bytes) -> None:
        """Have the order given; whoever hears the worker does it."""
        self._orders.append(order)
        self._crew.wake()

    def end(self) -> None:
        """End the worker, with all it has started."""
        self._is_ending = True
        self._crew.wake()
        with self._uses_crew:
            self._crew.close()


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker as it is seen from here, and the answer that is awaited of its foreman."""

    number: int
    label: str
    actor: Any
    awaited: Any
    hired_s: float
    resources: Mapping[str, float]
    is_placed: bool = False
    is_ready: bool = False
    is_busy: bool = False


class RayCrew:
    """Workers on the Ray in use here, that of `$RAY_ADDRESS`, or one that is started for them.

    Of the cluster a worker takes what its `resources` name, 'CPU' among them, and no more. A Ray
    that is started here has the cores that this process may use, and slices without end.
    """

    def __init__(self) -> None:
        """Start nothing yet: Ray is connected for the first worker."""
        self._ray: Any = None
        self._undone = ExitStack()
        self._workers: dict[int, _Worker] = {}
        self._said: list[Answer] = []
        self._hired = 0

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
        """Return the time in s on the monotonic clock of this machine."""
        return time.monotonic()

    def hire(
        self, make: MakeHandler, *, label: str, resources: Mapping[str, float] | None = None
    ) -> int:
        """Ask the cluster for a worker and return its number; one it never places is LOST.

        `UsageError` if `make` cannot be sent; `MissingDependency` without Ray, `SlicewiseError` if
        it cannot be reached or started.
        """
        try:
            sent = pickle.dumps(make)
        except UNPICKLABLE as err:
            raise unsendable("function", err) from err
        ray = self._connected()
        taken = dict(resources or {})
        number = self._hired
        self._hired += 1
        actor = (
            ray.remote(Foreman)
            .options(
                num_cpus=taken.pop("CPU", 0),
                num_gpus=taken.pop("GPU", 0),
                resources=taken,
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=3,  # one hears, one gives or ends
            )
            .remote(sent, label)
        )
        self._workers[number] = _Worker(
            number, label, actor, actor.hear.remote(), self.now_s(), dict(resources or {})
        )
        return number

    def give(self, worker: int, order: object) -> None:
        """Send the order; `UsageError`, with the worker still idle, if it cannot be sent."""
        try:
            sent = pickle.dumps(order)
        except UNPICKLABLE as err:
            raise unsendable("order", err) from err
        taker = self._workers.get(worker)
        assert taker is not None, f"there is no worker {worker}"
        assert taker.is_ready and not taker.is_busy, f"worker {worker} is not idle"
        taker.is_busy = True
        taker.actor.give.remote(sent)

    def wait(self, *, timeout_s: float | None = None) -> tuple[Answer, ...]:
        """Return what was said since; at once nothing where no worker is left to say something."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        left: float | None = 0.0
        while True:
            if self._workers:
                self._listen(left)
            said = tuple(self._said)
            self._said.clear()
            left = None if until is None else max(0.0, until - time.monotonic())
            if said or not self._workers or left == 0:
                return said

    def hold(self, workers: Collection[int]) -> Collection[int]:
        """Return nobody: over a network there is no saying when a worker has stopped."""
        return ()

    def release(self, workers: Collection[int]) -> None:
        """Do nothing."""

    def dismiss(self, worker: int) -> None:
        """Kill the worker and all it has started, and return when they are gone."""
        leaver = self._workers.pop(worker, None)
        if leaver is not None:
            self._see_off([leaver])
        self._said = [answer for answer in self._said if answer.worker != worker]

    def close(self) -> None:
        """Kill all workers; a Ray that was started for them is shut down."""
        leavers = list(self._workers.values())
        self._workers.clear()
        self._said.clear()
        try:
            if leavers:
                self._see_off(leavers)
        finally:
            self._ray = None
            self._undone.close()

    def _connected(self) -> Any:
        if self._ray is None:
            self._undone.enter_context(talk_on_stderr())
            self._ray = self._undone.enter_context(
                connected(usable_cores(), what="the crew 'ray'", resources=_OWN_RESOURCES)
            )
        return self._ray

    def _listen(self, timeout_s: float | None) -> None:
        """Wait until a foreman has told something, or one is seen never to be placed."""
        awaited = {worker.awaited: worker for worker in self._workers.values()}
        ends = [w.hired_s + _START_S for w in awaited.values() if not w.is_placed]
        if ends:
            patience = max(0.0, min(ends) - self.now_s())
            timeout_s = patience if timeout_s is None else min(timeout_s, patience)
        self._ray.wait(list(awaited), timeout=timeout_s)
        ready, _ = self._ray.wait(list(awaited), num_returns=len(awaited), timeout=0)
        for reference in ready:
            self._attend(awaited[reference])
        for worker in list(self._workers.values()):
            if not worker.is_placed and self.now_s() > worker.hired_s + _START_S:
                self._bury(worker, self._no_room(worker))

    def _attend(self, worker: _Worker) -> None:
        """Take what a foreman has told, and have it listen again."""
        try:
            told = self._ray.get(worker.awaited)
        except self._ray.exceptions.RayError as err:
            doing = "worked on an order" if worker.is_busy else "was idle"
            doing = doing if worker.is_ready else "started"
            error = SlicewiseError(
                f"worker {worker.label!r} of Ray was lost while it {doing}: {first_line(err)}"
            )
            self._bury(worker, error)
            return
        worker.is_placed = True
        for kind, content in told:
            answer = self._answer(worker, AnswerKind(kind), content)
            self._said.append(answer)
            if answer.kind is AnswerKind.LOST or not worker.is_ready:
                self._part_with(worker)
                return
        worker.awaited = worker.actor.hear.remote()

    def _answer(self, worker: _Worker, kind: AnswerKind, content: bytes) -> Answer:
        worker.is_ready |= kind is AnswerKind.READY
        worker.is_busy &= kind is AnswerKind.STEP
        try:
            answer: Answer = pickle.loads(content)
        except Exception as err:  # whatever its modules raise when they are imported here
            error = SlicewiseError(
                f"what worker {worker.label!r} answers cannot be read here:"
                f" {type(err).__name__}: {err}"
            )
            kind = AnswerKind.FAILED if kind is AnswerKind.DONE else kind
            return Answer(worker.number, kind, error=error)
        return replace(answer, worker=worker.number)

    def _bury(self, worker: _Worker, error: SlicewiseError) -> None:
        self._part_with(worker)
        self._said.append(Answer(worker.number, AnswerKind.LOST, error=error))

    def _part_with(self, worker: _Worker) -> None:
        del self._workers[worker.number]
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(worker.actor)

    def _see_off(self, leavers: list[_Worker]) -> None:
        """Have the foremen end their workers, then end the foremen."""
        ending = [worker.actor.end.remote() for worker in leavers if worker.is_placed]
        if ending:
            self._ray.wait(ending, num_returns=len(ending), timeout=_GRACE_S)
        for worker in leavers:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.kill(worker.actor)

    def _no_room(self, worker: _Worker) -> SlicewiseError:
        wanted = worker.resources or {"CPU": 0.0}
        have, free = self._ray.cluster_resources(), self._ray.available_resources()
        told = ", ".join(
            f"{name} {count:g} (of {have.get(name, 0):g}, {free.get(name, 0):g} free)"
            for name, count in wanted.items()
        )
        return SlicewiseError(
            f"Ray found no place for worker {worker.label!r} within {_START_S:g} s; it needs"
            f" {told}; wait for other work to end, add machines, or use the local crew"
        )
