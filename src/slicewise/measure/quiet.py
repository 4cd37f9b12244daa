"""Whether the cores are ours: busy loops before, waiting time around the sampling, and the state
of the machine. Nothing is changed but the affinity of threads that are started and ended here.
"""

import hashlib
import os
import platform
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from slicewise.core.measurement import Environment

ROOT = Path("/")
PROBE_S = 0.05
# 1 MiB is about a millisecond of hashing, and hashlib lets go of the interpreter lock meanwhile,
# so that the loops of several threads run at once.
_BLOCK = bytes(1 << 20)
QUIET_SHARE = 0.95
BUSY_SHARE = 0.90  # below it the user is told
BUSY_WAITED = 0.05  # above it the user is told
_PAUSE_S = 0.25


def bound_cores() -> tuple[int, ...]:
    """Return the logical cores that this process may run on, in order."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def core_share(cores: Sequence[int], *, duration_s: float = PROBE_S) -> float | None:
    """Return the part of `duration_s` that busy loops on `cores` got, one loop on each at once.

    CPU time over wall time, the mean over the cores, at most 1. None where threads cannot be
    pinned (not Linux) or a core is not allowed.
    """
    if sys.platform != "linux" or not cores:
        return None
    shares: dict[int, float] = {}
    together = threading.Barrier(len(cores))
    threads = [
        threading.Thread(
            target=_loop, args=(core, duration_s, together, shares), name=f"probe-{core}"
        )
        for core in cores
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(shares) < len(cores):
        return None
    return min(1.0, sum(shares.values()) / len(shares))


def _loop(
    core: int, duration_s: float, together: threading.Barrier, shares: dict[int, float]
) -> None:
    """Hash on one core until the time is up; leave the share in `shares`."""
    try:
        os.sched_setaffinity(0, {core})  # of this thread alone
    except OSError:  # a core that is not ours to use: the caller sees that its share is missing
        together.abort()
        return
    try:
        together.wait()
    except threading.BrokenBarrierError:
        return
    wall, own = time.perf_counter(), time.thread_time()
    while time.perf_counter() - wall < duration_s:
        hashlib.sha256(_BLOCK)
    shares[core] = (time.thread_time() - own) / (time.perf_counter() - wall)


def wait_for_quiet(
    cores: Sequence[int],
    *,
    patience_s: float,
    probe: Callable[[Sequence[int]], float | None] = core_share,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> float | None:
    """Return the share of the cores once it reaches 95 %, or the last one seen when
    `patience_s` seconds are over.

    One look costs 50 ms, between two looks lie 0.25 s; with no patience there is one look.
    """
    end = clock() + patience_s
    share = probe(cores)
    while share is not None and share < QUIET_SHARE and clock() + _PAUSE_S < end:
        pause(_PAUSE_S)
        share = probe(cores)
    return share


def run_delays(*, root: Path = ROOT) -> Mapping[str, int] | None:
    """Return for each thread of this process how many ns it has waited for a core so far.

    None where the kernel does not tell (not Linux, or built without schedstat). Source: second
    field of /proc/PID/task/TID/schedstat (Linux, Documentation/scheduler/sched-stats.rst).
    """
    found: dict[str, int] = {}
    try:
        tasks = list((root / "proc/self/task").iterdir())
    except OSError:
        return None
    for task in tasks:
        try:
            found[task.name] = int((task / "schedstat").read_text().split()[1])
        except FileNotFoundError:
            continue  # the thread ended between the two readings
        except (OSError, IndexError, ValueError):
            return None
    return found or None


def waited_part(
    before: Mapping[str, int] | None,
    after: Mapping[str, int] | None,
    *,
    seconds: float,
    cores: int,
) -> float | None:
    """Return the part of `seconds` x `cores` that threads waited for a core, at most 1.

    Threads that began in between count in full; None where either reading is missing.
    """
    if before is None or after is None or seconds <= 0 or cores < 1:
        return None
    waited_ns = sum(ns - before.get(task, 0) for task, ns in after.items())
    return min(1.0, max(0.0, waited_ns / 1e9 / (seconds * cores)))


def processor_name(*, root: Path = ROOT) -> str:
    """Return the model of the CPU as the system tells it, '' where it does not."""
    found = re.search(r"^model name\s*:\s*(.+)$", _text(root / "proc/cpuinfo"), re.MULTILINE)
    return found[1].strip() if found else platform.processor()


def clock_hz(cores: Sequence[int], *, root: Path = ROOT) -> float | None:
    """Return the mean clock of `cores` now in Hz; None where the system does not tell.

    From cpufreq's scaling_cur_freq (kHz), else the 'cpu MHz' of /proc/cpuinfo.
    """
    folder = root / "sys/devices/system/cpu"
    told = [_text(folder / f"cpu{core}/cpufreq/scaling_cur_freq").strip() for core in cores]
    if told and all(text.isdigit() for text in told):
        return 1e3 * sum(map(int, told)) / len(told)
    listed = {
        int(core): float(mhz)
        for core, mhz in re.findall(
            r"^processor\s*:\s*(\d+)$(?:\n.+)*?\ncpu MHz\s*:\s*([\d.]+)$",
            _text(root / "proc/cpuinfo"),
            re.MULTILINE,
        )
    }
    ours = [listed[core] for core in cores if core in listed]
    return 1e6 * sum(ours) / len(ours) if ours else None


def look_around(cores: Sequence[int], *, share: float | None) -> Environment:
    """Return the state of the machine before a measurement on `cores`, whose probe gave `share`.

    Versions of packages, clock and waiting time are told later, by those who see them.
    """
    return Environment(
        processor=processor_name(),
        cores=tuple(cores),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        core_share=share,
    )


def _text(path: Path) -> str:
    """Return what the file says, '' where it cannot be read: the system does not tell."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
