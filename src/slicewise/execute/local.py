"""Processes of this machine, one item at a time each.

Own workers rather than `concurrent.futures`: there a dead worker breaks the whole pool and nobody
knows which item it had; here each worker has its own pipe, so the item is known, runs once more,
and is then reported alone.

Workers are spawned, not forked: a fork of a process with threads (torch, BLAS) can hang, and
spawning is the one way that all platforms share. It costs the imports of each worker, 0.3 s of
CPU, paid side by side; a fork server would save them from the third worker on, for one more
process to look after.
"""

import multiprocessing
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from typing import Any

from slicewise.core.errors import SlicewiseError
from slicewise.core.executor import Done, Item, Result
from slicewise.core.processes import interrupts_held
from slicewise.execute.inline import InlineExecutor
from slicewise.execute.portable import UNPICKLABLE, encoded, lost, portable, unsendable

ATTEMPTS = 2  # an item whose worker dies is tried once more
_GRACE_S = 5.0  # a worker that was told to end and does not is killed


@dataclass(slots=True)
class _Worker:
    """A process, this end of its pipe, and the item that it works on."""

    process: SpawnProcess
    pipe: "connection.Connection[Any, Any]"
    item: int | None = None
    is_ready: bool = False


class LocalPool:
    """Up to `workers` processes of this machine. Little work (one item) is done in this one.

    Ctrl-C reaches this process alone: the workers ignore it and are killed from here. If this
    process is killed, they end with the item at hand.
    """

    def __init__(self, workers: int) -> None:
        """Start nothing yet: processes live from the first item asked for to the last."""
        self.workers = workers

    def as_completed(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[Done[Result]]:
        """Yield each item's outcome as soon as it is known.

        `SlicewiseError` if no worker can start; `UsageError` if `function` cannot be sent.
        """
        count = min(self.workers, len(items))
        if count <= 1:
            yield from InlineExecutor().as_completed(function, items)
            return
        crew: list[_Worker] = []
        is_done = False
        try:
            yield from _carry(crew, function, items, size=count)
            is_done = True
        finally:
            _dismiss(crew, gently=is_done)


def _carry(
    crew: list[_Worker],
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    size: int,
) -> Iterator[Done[Result]]:
    """Keep a crew of `size` busy until every item is answered; the dead are replaced."""
    waiting = deque(range(len(items)))
    deaths: Counter[int] = Counter()
    left = len(items)
    while left:
        crew.extend(_start(function) for _ in range(min(size, left) - len(crew)))
        for refused in _feed(crew, items, waiting):
            left -= 1
            yield refused
        for pipe in connection.wait([worker.pipe for worker in crew]) if left else ():
            worker = next(worker for worker in crew if worker.pipe is pipe)
            answer = _answer(worker)
            if answer is None and worker.pipe.closed:
                crew.remove(worker)
                answer = _bury(worker, deaths, waiting)
            if answer is not None:
                left -= 1
                yield answer


def _bury(worker: _Worker, deaths: Counter[int], waiting: deque[int]) -> Done[Any] | None:
    """Put the item of a dead worker back in the queue, or give it up and say so."""
    if not worker.is_ready:
        raise _cannot_start(worker)
    if worker.item is None:
        return None
    deaths[worker.item] += 1
    if deaths[worker.item] < ATTEMPTS:
        waiting.append(worker.item)
        return None
    return Done(worker.item, error=_lost(worker.process.exitcode))


def _feed(crew: list[_Worker], items: Sequence[Item], waiting: deque[int]) -> list[Done[Any]]:
    """Give each idle worker an item; return the outcome of those that cannot be sent."""
    refused: list[Done[Any]] = []
    for worker in crew:
        while worker.item is None and waiting:
            index = worker.item = waiting.popleft()
            try:
                worker.pipe.send((index, items[index]))
            except OSError:
                break  # it died meanwhile: reading from its pipe tells
            except UNPICKLABLE as err:
                worker.item = None
                refused.append(Done(index, error=unsendable("item", err)))
    return refused


def _answer(worker: _Worker) -> Done[Any] | None:
    """Return what a worker says; None if it only says that it is ready, or has died."""
    try:
        said = worker.pipe.recv()
    except (EOFError, OSError):
        worker.pipe.close()
        worker.process.join(_GRACE_S)
        return None
    if said is None:
        worker.is_ready = True
        return None
    worker.item = None
    done: Done[Any] = said
    return done


def _start(function: Callable[[Any], Any]) -> _Worker:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(theirs, function), daemon=True
    )
    with interrupts_held():
        try:
            process.start()
        except UNPICKLABLE as err:
            raise unsendable("function", err) from err
    theirs.close()  # so that the end of the worker is the end of the pipe
    return _Worker(process, ours)


def _serve(pipe: "connection.Connection[Any, Any]", function: Callable[[Any], Any]) -> None:
    """Answer items until the pipe ends. Runs in the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        pipe.send(None)
        while True:
            index, item = pipe.recv()
            try:
                done = Done(index, function(item))
            except Exception as err:
                done = Done(index, error=portable(err))
            pipe.send_bytes(encoded(done))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent has what it wants, or is gone


def _dismiss(crew: list[_Worker], *, gently: bool) -> None:
    """End the workers: idle ones leave when their pipe ends, busy ones are killed."""
    for worker in crew:
        if not gently:
            worker.process.kill()
        worker.pipe.close()
    for worker in crew:
        worker.process.join(_GRACE_S)
        if worker.process.exitcode is None:
            worker.process.kill()
            worker.process.join()


def _lost(code: int | None) -> SlicewiseError:
    how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    return lost(ATTEMPTS, how)


def _cannot_start(worker: _Worker) -> SlicewiseError:
    return SlicewiseError(
        f"worker processes cannot start (exit code {worker.process.exitcode}); a script that uses"
        " several workers keeps its own calls under `if __name__ == '__main__':`; or use one"
        " worker"
    )
