"""Long-living workers that are given orders one by one: the seam that tuning runs through.

An `Executor` maps a function over items; a `Crew` keeps workers with a state of their own (a
search, an open share) and lets the caller choose who gets what, and when. The protocol and its
types only; the implementations live in `execute/`, a simulated one with a clock of its own in
`tune/simulate.py`. No process is started here.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

Tell = Callable[[object], None]
# What a worker does with an order: it returns the answer, and tells steps on the way.
Handler = Callable[[object, Tell], object]
# Makes the handler, in the worker: what is bound, opened or imported there belongs here.
MakeHandler = Callable[[], Handler]


class AnswerKind(StrEnum):
    """What an answer is."""

    READY = "ready"  # the worker has made its handler; the first answer of each
    STEP = "step"  # said on the way; the order goes on
    DONE = "done"
    FAILED = "failed"  # the order raised an error; the worker lives
    LOST = "lost"  # the worker is gone, with its order if it had one


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker said. `value` of STEP and DONE, `error` of FAILED and LOST."""

    worker: int
    kind: AnswerKind
    value: object = None
    error: Exception | None = None


class Crew(Protocol):
    """Workers by number; `slicewise.testing.crews` checks the laws.

    Every order is answered by exactly one of DONE, FAILED and LOST, unless its worker is
    dismissed. A worker has at most one order. Ctrl-C reaches the caller alone; leaving the
    context, or `close`, ends every worker, whatever it does.
    """

    def now_s(self) -> float:
        """Return the time in s on the clock that the crew lives by; only differences count."""

    def hire(
        self, make: MakeHandler, *, label: str, resources: Mapping[str, float] | None = None
    ) -> int:
        """Start a worker and return its number; it answers READY, FAILED (its handler could not
        be made) or LOST. `make` is picklable. `resources` are those of a cluster ('slice': 1)."""

    def give(self, worker: int, order: object) -> None:
        """Give a ready and idle worker an order, a picklable one."""

    def wait(self, *, timeout_s: float | None = None) -> tuple[Answer, ...]:
        """Return what was said since, at least one answer, in the order said; none once
        `timeout_s` is over, and none at once where no worker is left that could say something."""

    def hold(self, workers: Collection[int]) -> Collection[int]:
        """Stop these workers where they are, with all they have started, until `release`, and
        return those that could be. A second hold is no more than one."""

    def release(self, workers: Collection[int]) -> None:
        """Let held workers go on."""

    def dismiss(self, worker: int) -> None:
        """End a worker at once, with all it has started. Nothing more is heard from it."""

    def close(self) -> None:
        """End all workers; a second call does nothing."""
