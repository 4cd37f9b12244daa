"""How work is carried: one function over many items, here or in other processes.

The protocol and its result type; the implementations live in `execute/`. No process is started
here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Done(Generic[Result]):
    """What became of one item: its place in the sequence, and its result or its error."""

    index: int
    value: Result | None = None
    error: Exception | None = None

    def result(self) -> Result:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # None only where Result allows it


class Executor(Protocol):
    """Applies a function to items; `slicewise.testing.executors` checks the laws.

    Every item is answered exactly once, whatever becomes of the others. Closing the iterator
    cancels what is not done and stops the workers before it returns.
    """

    @property
    def workers(self) -> int:
        """How many items run at once."""

    def as_completed(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[Done[Result]]:
        """Yield each item's outcome as soon as it is known, in any order.

        `function` and `items` must be picklable where the work leaves this process. An error of
        an item is in its `Done`, never raised; what keeps any item from running is raised.
        """


def in_order(
    executor: Executor, function: Callable[[Item], Result], items: Sequence[Item]
) -> list[Result]:
    """Return the results in the order of `items`; the first item's error if some failed.

    All items are run to their end first, so that one error does not cut off the others.
    """
    done = sorted(executor.as_completed(function, items), key=lambda each: each.index)
    return [each.result() for each in done]
