"""Starting other processes: what several rooms do alike. What they do is no concern here."""

import logging
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker

_log = logging.getLogger(__name__)
_COMMAND_TIMEOUT_S = 10.0


def run_command(command: Sequence[str]) -> str:
    """Return what a system tool prints; '' where it is absent, fails or takes too long.

    >>> run_command(["no-such-tool"])
    ''
    """
    path = shutil.which(command[0])
    if path is None:
        return ""
    try:
        done = subprocess.run(
            [path, *command[1:]],
            capture_output=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        _log.warning("%s gave no answer: %s", command[0], err)
        return ""
    if done.returncode != 0:
        _log.warning("%s failed with status %d", command[0], done.returncode)
        return ""
    return done.stdout.decode(errors="replace")


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back here, and for good in a process started meanwhile: it inherits the mask."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # The tracker clears the mask when it starts, so it has to run before.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
