"""CPU core sets: affinity, and a cgroup for the part of a core. Reads `/proc` and `/sys` only.

A share of cores holds for every thread there is and all that come. Its `percent` is the part of
the time of its cores: 100, unless a percentage was asked for that is no whole number of cores.
"""

import math
import os
import time
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from slicewise.core.errors import DeviceError, MeasureError, UsageError
from slicewise.core.notes import Note
from slicewise.core.share import Mechanism, Share
from slicewise.measure.shares._base import Ending
from slicewise.measure.shares.quota import hold_quota, quota_place, read_cap

# A percentage this near to whole cores means them: '33' of three cores is one.
_NEAR_CORE = 0.05
_NEAR_PERCENT = 0.5
# Others on the cores for more of the time than this are worth a note.
_DISTURBED = 0.05


@dataclass(frozen=True, slots=True)
class CoreBinder:
    """Holds a process to cores. `root` is where `/proc` and `/sys` are read."""

    root: Path = Path("/")
    kind: str = "cpu"

    def is_available(self) -> str:
        """Return '' where the system knows core affinity."""
        if hasattr(os, "sched_setaffinity"):
            return ""
        return "this operating system has no core affinity; measure on Linux, or the whole device"

    def part_of_percent(self, percent: float, cores: Collection[int]) -> Share:
        """Return the cores that are `percent` of `cores`, whole physical cores first.

        What is no whole number of cores needs a cgroup; `UsageError` names the whole-core
        percentages where none can be made.
        """
        ordered = self._by_physical_core(cores)
        wanted = percent / 100 * len(ordered)
        whole = round(wanted)
        near = min(_NEAR_CORE, _NEAR_PERCENT / 100 * len(ordered))
        if whole >= 1 and abs(wanted - whole) <= near:
            return Share(Mechanism.CORES, cores=tuple(sorted(ordered[:whole])))
        place, why = quota_place(self.root)
        if place is None:
            raise UsageError(
                f"share {percent:g}% of {len(ordered)} cores is {wanted:.3g} cores, which needs a"
                f" cgroup, and {why}; whole cores are {_whole_choices(len(ordered))}"
            )
        held = math.ceil(wanted)
        return Share(
            Mechanism.CORES, cores=tuple(sorted(ordered[:held])), percent=100 * wanted / held
        )

    def name_part(self, share: Share, device_index: int, cores: Collection[int]) -> str | None:
        """Return the part of `cores` that the share is, as '50%'; None for all of them."""
        lacking = [core for core in share.cores if core not in cores]
        if lacking or not share.cores:
            raise UsageError(
                f"share {share.text} wants core {_list(lacking) or 'none'}; this"
                f" process may use {_list(cores)}; choose {len(cores)} or fewer of these"
            )
        percent = len(share.cores) * share.percent / len(cores)
        # Rounded up, so that the whole cores of it are found again: 2 of 7 is not 28.571 %.
        return None if percent >= 100 else f"{math.ceil(percent * 1e4 - 1e-6) / 1e4:g}%"

    def bind(self, share: Share, device_index: int) -> tuple[Note, ...]:
        """Set the affinity of every thread of this process, and a quota for part of a core."""
        for thread in _threads():
            _pin(thread, share)
        if share.percent < 100:
            place, why = quota_place(self.root)
            if place is None:
                raise DeviceError(
                    f"share {share.text} at {share.percent:g}% needs a cgroup, and {why}; use"
                    " whole cores"
                )
            hold_quota(place, cores=len(share.cores) * share.percent / 100, root=self.root)
        return ()

    def entered(self, share: Share, device_index: int) -> AbstractContextManager[tuple[Note, ...]]:
        """Return a context that does nothing: the process is bound already."""
        return nullcontext(())

    def verify(self, share: Share, device_index: int) -> tuple[Note, ...]:
        """Return notes on caps and halved cores; `MeasureError` if a thread runs elsewhere."""
        for thread in _threads():
            try:
                found = os.sched_getaffinity(thread)
            except ProcessLookupError:
                continue  # it ended meanwhile
            if not found <= set(share.cores):
                raise MeasureError(
                    f"share {share.text} does not hold: a thread may run on cores {_list(found)};"
                    " something changed the affinity (KMP_AFFINITY, GOMP_CPU_AFFINITY, a taskset);"
                    " unset it"
                )
        return (*self._caps(share), *self._halved(share))

    def _caps(self, share: Share) -> tuple[Note, ...]:
        wanted = len(share.cores) * share.percent / 100
        cap = read_cap(self.root)
        if share.percent < 100 and (cap is None or cap > wanted * 1.01):
            raise MeasureError(
                f"share {share.text} at {share.percent:g}% does not hold: the cgroup's quota is"
                f" {'none' if cap is None else f'{cap:g} cores'}; use whole cores"
            )
        if cap is None or cap >= wanted * 0.99:
            return ()
        text = f"a cgroup gives this process the time of {cap:g} cores, of {wanted:g} asked for"
        return (Note("share-capped", text),)

    def _halved(self, share: Share) -> tuple[Note, ...]:
        split = [c for c in share.cores if not self._siblings(c) <= set(share.cores)]
        if not split:
            return ()
        text = f"the other hardware thread of cores {_list(split)} is outside the share"
        return (Note("share-splits-core", f"{text} and can slow it down"),)

    def watch(self, share: Share, device_index: int) -> Ending:
        """Note, when ended, the part of the cores' time that others had.

        Kernel ticks of 10 ms count: under half a second this is coarse, and not told.
        """
        before, ours, start = self._busy_s(share), _own_s(), time.monotonic()

        def end() -> tuple[Note, ...]:
            wall_s = time.monotonic() - start
            after, used = self._busy_s(share), _own_s() - ours
            if before is None or after is None:
                return (Note("share-unwatched", "this system does not tell each core's load"),)
            others = max(0.0, after - before - used) / max(1e-9, wall_s * len(share.cores))
            if wall_s < 0.5 or others < _DISTURBED:
                return ()
            text = f"others had {100 * min(1.0, others):.0f}% of the time of cores"
            return (Note("share-disturbed", f"{text} {_list(share.cores)} meanwhile"),)

        return end

    def _busy_s(self, share: Share) -> float | None:
        """Return the time in s that the cores were not idle, stolen time included.

        Fields of /proc/stat: user nice system idle iowait irq softirq steal (proc(5)).
        """
        try:
            lines = (self.root / "proc/stat").read_text().splitlines()
        except OSError:
            return None
        names = {f"cpu{core}" for core in share.cores}
        rows = [line.split() for line in lines if line.split(" ")[0] in names]
        if len(rows) < len(names):
            return None
        ticks = sum(int(row[i]) for row in rows for i in (1, 2, 3, 6, 7, 8) if i < len(row))
        return ticks / os.sysconf("SC_CLK_TCK")

    def _siblings(self, core: int) -> set[int]:
        """Return the hardware threads of a core; itself alone where nothing is told."""
        told = f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
        try:
            text = (self.root / told).read_text().strip()
        except OSError:
            return {core}
        return set(Share.parse(f"cores:{text}").cores) if text else {core}

    def _by_physical_core(self, cores: Collection[int]) -> list[int]:
        return sorted(cores, key=lambda core: (min(self._siblings(core)), core))


def _threads() -> list[int]:
    """Return the ids of this process's threads: an affinity belongs to a thread, not to all."""
    try:
        return [int(entry.name) for entry in Path("/proc/self/task").iterdir()]
    except OSError:
        return [0]


def _pin(thread: int, share: Share) -> None:
    try:
        os.sched_setaffinity(thread, share.cores)
    except ProcessLookupError:
        return  # it ended meanwhile
    except OSError as err:
        raise DeviceError(
            f"share {share.text} cannot be taken: {err.strerror}; this process may use cores"
            f" {_list(os.sched_getaffinity(0))}"
        ) from err
    if (got := os.sched_getaffinity(thread)) != set(share.cores):
        # The kernel drops cores that a cpuset forbids and says nothing.
        raise DeviceError(
            f"share {share.text} cannot be taken: the system gives cores {_list(got)} of it;"
            " choose among these"
        )


def _own_s() -> float:
    """Return the processor time of this process in s."""
    times = os.times()
    return times.user + times.system


def _list(cores: Collection[int]) -> str:
    return Share(Mechanism.CORES, cores=tuple(sorted(cores))).text.removeprefix("cores:")


def _whole_choices(count: int) -> str:
    """Return '25, 50, 75, 100 %' for 4 cores; the ends alone for many."""
    each = [f"{100 * k / count:.4g}" for k in range(1, count + 1)]
    return f"{', '.join(each if count <= 8 else [*each[:3], '...', each[-1]])} %"


BINDER = CoreBinder()
