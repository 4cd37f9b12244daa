"""Whose turn it is to use a part of this machine: file locks that processes take one by one.

Two measurements on the same cores would measure each other. A lock is a file under slicewise's
home, held by an open descriptor: whoever dies, however, gives it back. Knows nothing of what is
measured; on a system without file locks everybody has his turn.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from slicewise.core.errors import StoreError

_TICK_S = 0.2  # how often it is looked whether a part is free


@contextmanager
def turn(
    parts: Sequence[str], *, folder: Path, waiting: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Hold the parts ('core-0', 'gpu-1') for the time of the context, once they are free.

    Taken in the order of their names, so that no two wait for each other. `waiting` is called
    once with the part that another process has. `StoreError` where the folder cannot be written.
    """
    with ExitStack() as held:
        for part in sorted(set(parts)):
            descriptor = _opened(folder / f"{part}.lock")
            held.callback(os.close, descriptor)
            _wait_for(descriptor, part, waiting)
        yield


def _opened(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
    except OSError as err:
        raise StoreError(
            f"the lock {str(path)!r} cannot be made: {err.strerror or err}; set SLICEWISE_HOME to"
            " a folder that can be written"
        ) from err


def _wait_for(descriptor: int, part: str, waiting: Callable[[str], None] | None) -> None:
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        return
    is_told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if waiting is not None and not is_told:
                waiting(part)
                is_told = True
        time.sleep(_TICK_S)
