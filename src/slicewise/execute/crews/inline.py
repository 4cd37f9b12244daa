"""A crew without processes: each order is carried out where it is given, and heard at `wait`.

Deterministic, with nothing to start and nothing to send. What hangs, hangs the caller.
"""

import time
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Self

from slicewise.core.crew import Answer, AnswerKind, Handler, MakeHandler


class InlineCrew:
    """Workers that live in the calling thread. Nothing can be held: between calls nobody works."""

    def __init__(self) -> None:
        """Begin with nobody."""
        self._handlers: dict[int, Handler] = {}
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
        """Return the time in s on the monotonic clock."""
        return time.monotonic()

    def hire(
        self, make: MakeHandler, *, label: str, resources: Mapping[str, float] | None = None
    ) -> int:
        """Make the handler and return the worker's number; `resources` are not looked at."""
        worker = self._hired
        self._hired += 1
        try:
            self._handlers[worker] = make()
        except Exception as err:
            self._say(worker, AnswerKind.FAILED, error=err)
        else:
            self._say(worker, AnswerKind.READY)
        return worker

    def give(self, worker: int, order: object) -> None:
        """Carry the order out."""
        assert worker in self._handlers, f"there is no worker {worker}"
        try:
            value = self._handlers[worker](
                order, lambda step: self._say(worker, AnswerKind.STEP, step)
            )
        except Exception as err:
            self._say(worker, AnswerKind.FAILED, error=err)
        else:
            self._say(worker, AnswerKind.DONE, value)

    def wait(self, *, timeout_s: float | None = None) -> tuple[Answer, ...]:
        """Return what was said since, at once: nothing more can come while the caller waits."""
        said = tuple(self._said)
        self._said.clear()
        return said

    def hold(self, workers: Collection[int]) -> Collection[int]:
        """Return nobody."""
        return ()

    def release(self, workers: Collection[int]) -> None:
        """Do nothing."""

    def dismiss(self, worker: int) -> None:
        """Forget the worker and what it has said."""
        self._handlers.pop(worker, None)
        self._said = [answer for answer in self._said if answer.worker != worker]

    def close(self) -> None:
        """Forget all workers."""
        self._handlers.clear()
        self._said.clear()

    def _say(
        self,
        worker: int,
        kind: AnswerKind,
        value: object = None,
        *,
        error: Exception | None = None,
    ) -> None:
        self._said.append(Answer(worker, kind, value, error))
