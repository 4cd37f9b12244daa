"""Ray workers, here or on a cluster: the same laws as the local pool, on as many machines.

A worker is an actor with one CPU and one item at a time. Ray's own retries are off: which item a
dead worker had is known here, so it runs once more and is then reported alone. What is sent is
pickled here, as the local pool does, so that the same work can go either way; a function is sent
by its name, and slicewise must be installed where it runs.
"""

import contextlib
import os
import pickle
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from slicewise.core.errors import SlicewiseError
from slicewise.core.executor import Done, Item, Result
from slicewise.execute.local import ATTEMPTS
from slicewise.execute.portable import UNPICKLABLE, encoded, lost, portable, unsendable
from slicewise.execute.ray_cluster import connected, first_line, talk_on_stderr

_START_S = 120.0  # without a worker that is ready or an item that runs: there is no room
_GRACE_S = 5.0  # a worker of this machine that was told to end and does not is killed


class Hand:
    """What runs inside a worker."""

    def __init__(self, function: bytes) -> None:
        """Take the function, pickled."""
        self._sent = function

    def is_here(self) -> tuple[str, int]:
        """Return the machine and the id of this process."""
        return _machine(), os.getpid()

    def work(self, index: int, item: bytes) -> bytes:
        """Return the pickled outcome of one item; no error leaves here but in it."""
        try:
            function = pickle.loads(self._sent)
            done: Done[Any] = Done(index, function(pickle.loads(item)))
        except Exception as err:
            done = Done(index, error=portable(err))
        return encoded(done)


@dataclass(slots=True, eq=False)
class _Worker:
    """An actor, the answer that is awaited of it, and the item that it works on."""

    actor: Any
    awaited: Any
    item: int | None = None
    process: tuple[str, int] | None = None


class RayExecutor:
    """Up to `workers` workers of Ray: of the one in use here, of `$RAY_ADDRESS`, or of a new one.

    A Ray that was started for the work is shut down after it; one that was there stays.
    """

    def __init__(self, workers: int) -> None:
        """Start nothing yet: workers live from the first item asked for to the last."""
        self.workers = workers

    def as_completed(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[Done[Result]]:
        """Yield each item's outcome as soon as it is known.

        `MissingDependency` without Ray, `UsageError` if `function` cannot be sent,
        `SlicewiseError` if Ray cannot be reached, cannot start or has no room.
        """
        if not items:
            return
        try:
            sent = pickle.dumps(function)
        except UNPICKLABLE as err:
            raise unsendable("function", err) from err
        with talk_on_stderr(), connected(self.workers, what="the executor 'ray'") as ray:
            crew = _Crew(ray, sent, size=min(self.workers, len(items)))
            try:
                yield from crew.carry(items)
            finally:
                crew.dismiss()


class _Crew:
    """The workers of one piece of work."""

    def __init__(self, ray: Any, function: bytes, *, size: int) -> None:
        self._ray = ray
        self._size = size
        self._function = ray.put(function)
        self._make = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(Hand)
        self._workers: list[_Worker] = []
        self._ended: list[_Worker] = []
        self._deaths: Counter[int] = Counter()
        self._waiting: deque[int] = deque()

    def carry(self, items: Sequence[Any]) -> Iterator[Done[Any]]:
        """Keep the crew busy until every item is answered; the dead are replaced."""
        self._waiting.extend(range(len(items)))
        left = len(items)
        while left:
            while len(self._workers) < min(self._size, left):
                self._workers.append(self._start())
            for done in (*self._feed(items), *self._hear()):
                left -= 1
                yield done

    def _start(self) -> _Worker:
        actor = self._make.remote(self._function)
        return _Worker(actor, awaited=actor.is_here.remote())

    def _feed(self, items: Sequence[Any]) -> list[Done[Any]]:
        """Give each idle worker an item; return the outcome of those that cannot be sent."""
        refused: list[Done[Any]] = []
        for worker in self._workers:
            while worker.awaited is None and self._waiting:
                index = self._waiting.popleft()
                try:
                    sent = pickle.dumps(items[index])
                except UNPICKLABLE as err:
                    refused.append(Done(index, error=unsendable("item", err)))
                    continue
                worker.item = index
                worker.awaited = worker.actor.work.remote(index, sent)
        return refused

    def _hear(self) -> list[Done[Any]]:
        """Wait for one answer; return the outcome in it, if there is one."""
        awaited = {w.awaited: w for w in self._workers if w.awaited is not None}
        if not awaited:
            return []
        runs = any(worker.item is not None for worker in awaited.values())
        ready, _ = self._ray.wait(list(awaited), timeout=None if runs else _START_S)
        if not ready:
            raise self._no_room()
        worker = awaited[ready[0]]
        try:
            told = self._ray.get(worker.awaited)
        except self._ray.exceptions.RayError as err:
            return self._bury(worker, err)
        worker.awaited = None
        if worker.item is None:
            worker.process = told
            return []
        worker.item = None
        done: Done[Any] = pickle.loads(told)
        return [done]

    def _bury(self, worker: _Worker, error: Exception) -> list[Done[Any]]:
        """Put the item of a lost worker back in the queue, or give it up and say so."""
        self._workers.remove(worker)
        self._ended.append(worker)
        reason = first_line(error)
        if worker.process is None:
            raise SlicewiseError(
                f"a worker of Ray cannot start ({reason}); slicewise must be installed on every"
                " machine of the cluster; or use the local executor"
            ) from error
        if worker.item is None:
            return []
        self._deaths[worker.item] += 1
        if self._deaths[worker.item] < ATTEMPTS:
            self._waiting.append(worker.item)
            return []
        return [Done(worker.item, error=lost(ATTEMPTS, reason))]

    def _no_room(self) -> SlicewiseError:
        have = self._ray.cluster_resources().get("CPU", 0)
        free = self._ray.available_resources().get("CPU", 0)
        return SlicewiseError(
            f"Ray gave no worker within {_START_S:g} s: of its {have:g} CPUs {free:g} are free;"
            " wait for other work to end, add machines, or use the local executor"
        )

    def dismiss(self) -> None:
        """End all workers and return when those of this machine are gone."""
        for worker in (*self._workers, *self._ended):
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.kill(worker.actor)
        for worker in (*self._workers, *self._ended):
            if worker.process is not None and worker.process[0] == _machine():
                _see_off(worker.process[1])
        self._workers.clear()


def _see_off(pid: int) -> None:
    """Return when the process is gone; it is killed if it does not go."""
    deadline = time.monotonic() + _GRACE_S
    while _is_running(pid):
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        time.sleep(0.005)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _machine() -> str:
    """Return what tells this machine from others of a cluster: containers count as machines."""
    import ray

    return str(ray.get_runtime_context().get_node_id())
