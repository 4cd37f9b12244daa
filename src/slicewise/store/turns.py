"""Whose turn it is to use a part of this machine: file locks that processes take one by one.

Two measurements on the same cores would measure each other. A lock is a file under slicewise's
home, held by an open descriptor: whoever dies, however, gives it back. Knows nothing of what is
measured; on a system without file locks everybody has his turn.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from slicewise.core.errors import StoreError


@contextmanager
def turn(
    parts: Sequence[str], *, folder: Path, waiting: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Hold the parts ('core-0', 'gpu-1') for the time of the context, once they are free.

    Taken in the order of their names, so that no two wait for each other. `waiting` is called
    once with the part that another process has. `StoreError` where the folder cannot be written,
    or its file system refuses locks.
    """
    with ExitStack() as held:
        for part in sorted(set(parts)):
            path = folder / f"{part}.lock"
            descriptor = _opened(path)
            held.callback(os.close, descriptor)
            _wait_for(path, descriptor, waiting)
        yield


def _opened(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
    except OSError as err:
        raise _refused(path, "made", err) from err


def _refused(path: Path, done: str, err: OSError) -> StoreError:
    return StoreError(
        f"the lock {str(path)!r} cannot be {done}: {err.strerror or err}; set SLICEWISE_HOME to a"
        " folder that can be written, on a file system with locks"
    )


def _wait_for(path: Path, descriptor: int, waiting: Callable[[str], None] | None) -> None:
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        return

    def is_locked(how: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | how)
        except BlockingIOError:
            return False
        except OSError as err:
            raise _refused(path, "taken", err) from err
        return True

    if not is_locked(fcntl.LOCK_NB):
        if waiting is not None:
            waiting(path.stem)
        is_locked(0)  # waits; Ctrl-C ends that
