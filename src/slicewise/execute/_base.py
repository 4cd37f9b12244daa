"""Which executors there are; `core/executor.py` holds the protocol.

An executor is a row of the table: a name and a function that takes the number of workers.
"""

import os
from collections.abc import Callable
from typing import cast

from slicewise.core.errors import UsageError
from slicewise.core.executor import Executor
from slicewise.core.plugins import PluginTable

EXECUTORS = PluginTable(
    what="executor",
    rows={
        "inline": "slicewise.execute.inline:InlineExecutor",
        "local": "slicewise.execute.local:LocalPool",
        "ray": "slicewise.execute.ray:RayExecutor",
    },
)


def make_executor(name: str, *, workers: int) -> Executor:
    """Return the executor called `name` with `workers` at once; `UsageError` lists the known.

    >>> make_executor("inline", workers=1).workers
    1
    """
    if workers < 1:
        raise UsageError(f"workers={workers} is not a positive number; give 1, 2, ...")
    make = cast(Callable[[int], Executor], EXECUTORS.load(name))
    return make(workers)


def choose_executor(workers: int | None = None) -> Executor:
    """Return the executor of this machine: inline for one worker, else processes.

    None is one worker for each core that this process may use.
    """
    count = usable_cores() if workers is None else workers
    return make_executor("inline" if count == 1 else "local", workers=count)


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
