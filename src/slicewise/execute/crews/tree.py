"""Everything below a process, whatever session or group it has moved to: stop, go on, kill.

Reads `/proc`, so Linux only; elsewhere nothing is found below anybody. What a parent leaves behind
when it ends stays below a root that is a subreaper (`prctl(2)`), as a keeper is.
"""

import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress

_Children = defaultdict[int, list[int]]
_LOOK_S = 0.0005  # between two looks at whether all have stopped: a signal takes microseconds
_GONE = "ZX"  # a zombie or dead: runs no more, and cannot be stopped
_STOPPED = "Tt" + _GONE


def below(root: int) -> list[int]:
    """Return the processes below `root` that have not ended, parents first, without `root`.

    >>> below(2**30)
    []
    """
    return [pid for pid, _ in _walk({root}, _children())]


def stop_below(roots: Collection[int], *, patience_s: float) -> set[int]:
    """Stop all below each of the roots and return the roots below which everything stands still.

    It is looked again until nothing new is found: what was stopped starts no more. A process
    in the midst of a system call that cannot be interrupted may need longer than `patience_s`.
    """
    until = time.monotonic() + patience_s
    is_still = False
    while True:
        running = {root for pid, root in _walk(set(roots), _children()) if _stop(pid)}
        # Twice in a row: one of those that stopped last may have started another just before,
        # which only a list that was read after it had stopped is sure to hold.
        if (is_still and not running) or time.monotonic() > until:
            return set(roots) - running
        is_still = not running
        if running:
            time.sleep(_LOOK_S)


def continue_below(roots: Collection[int]) -> None:
    """Let all below the roots go on."""
    for pid, _ in list(_walk(set(roots), _children())):
        _send(pid, signal.SIGCONT)


def kill_below(root: int, *, patience_s: float, reap: Callable[[], object]) -> bool:
    """Kill all below `root` and return whether nothing is left; `reap` takes up the dead."""
    until = time.monotonic() + patience_s
    while found := below(root):
        for pid in found:
            _send(pid, signal.SIGKILL)
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_S)
        reap()
    return True


def _stop(pid: int) -> bool:
    """Stop a process; True if it was seen running."""
    if all(state in _STOPPED for state in _thread_states(pid)):
        return False
    _send(pid, signal.SIGSTOP)
    return True


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # it has ended, or is another user's now
        os.kill(pid, number)


def _walk(
    roots: Collection[int], children: defaultdict[int, list[int]]
) -> Iterator[tuple[int, int]]:
    """Yield (process, its root) of all below the roots, parents first."""
    waiting = [(child, root) for root in sorted(roots) for child in children[root]]
    seen = set(roots)
    while waiting:
        pid, root = waiting.pop(0)
        if pid in seen:
            continue  # below two roots; or a number was given anew while we read
        seen.add(pid)
        yield pid, root
        waiting.extend((child, root) for child in children[pid])


def _children() -> _Children:
    """Return the living children of each process."""
    # `/proc/PID/task/*/children` would be a shorter way, where the kernel is built with it
    found: _Children = defaultdict(list)
    with suppress(OSError):
        for name in os.listdir("/proc"):
            told = _stat(f"/proc/{name}/stat") if name.isdigit() else None
            if told is not None and told[0] not in _GONE:
                found[told[1]].append(int(name))
    return found


def _thread_states(pid: int) -> list[str]:
    """Return the state letter of each thread; a process that is gone has none."""
    folder = f"/proc/{pid}/task"
    try:
        threads = os.listdir(folder)
    except OSError:
        return []
    return [told[0] for thread in threads if (told := _stat(f"{folder}/{thread}/stat"))]


def _stat(path: str) -> tuple[str, int] | None:
    """Return state and parent (proc(5): third and fourth field; the second may hold anything)."""
    try:
        with open(path, "rb", buffering=0) as file:
            state, parent = file.read(1024).rpartition(b")")[2].split()[:2]
    except (OSError, ValueError):
        return None  # it ended while we looked
    return state.decode(), int(parent)
