"""One item after the other, in this process: nothing to start, nothing to send."""

from collections.abc import Callable, Iterator, Sequence

from slicewise.core.executor import Done, Item, Result


class InlineExecutor:
    """Runs items in order, in the calling thread. The number of workers is always 1."""

    workers = 1

    def __init__(self, workers: int = 1) -> None:
        """Accept the number of workers that every executor is made with, and use one."""

    def as_completed(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[Done[Result]]:
        """Yield each item's outcome in order; the next item runs when it is asked for."""
        for i, item in enumerate(items):
            try:
                done = Done(i, function(item))
            except Exception as err:
                done = Done(i, error=err)
            yield done
