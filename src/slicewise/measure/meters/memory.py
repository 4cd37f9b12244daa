"""Peak memory of this process: resident memory on a CPU, allocator and context on a GPU.

What is told is the peak while the model runs, not while it is loaded: weights that a runtime
copies or re-packs on the way count as far as they are still held. Nothing is allocated here.
"""

import ctypes
import sys
from pathlib import Path
from typing import Any

from slicewise.core.measurement import MeasuredMemory
from slicewise.core.notes import Note
from slicewise.measure.meters._base import Reading, Scope
from slicewise.measure.meters.nvml import NvmlMissing, open_nvml, own_bytes


class ProcessMemory:
    """Resident memory: its high-water mark between `start` and `stop`.

    On Linux the mark is set back at `start` (5 into /proc/self/clear_refs, proc(5)) and read as
    VmHWM. Where that is not allowed it is the peak of the process's whole life, with a Note.
    """

    def __init__(self, scope: Scope) -> None:
        """Read nothing yet."""
        self._proc = scope.root / "proc/self"
        self._runtime_bytes = 0
        self._is_reset = False

    def loaded(self) -> None:
        """Keep what the runtime alone holds."""
        self._runtime_bytes = resident_bytes(self._proc) or _life_peak_bytes()

    def start(self) -> None:
        """Set the high-water mark back to what is held now."""
        try:
            (self._proc / "clear_refs").write_text("5")
            self._is_reset = True
        except OSError:
            self._is_reset = False

    def stop(self) -> Reading:
        """Return the peak since `start`."""
        peak = _status_bytes(self._proc, "VmHWM")
        notes: tuple[Note, ...] = ()
        if peak is None or not self._is_reset:
            text = "the peak could not be set back: it includes loading the model"
            notes = (Note("memory-of-whole-life", text),)
        peak = peak or _life_peak_bytes()
        memory = MeasuredMemory(peak, min(self._runtime_bytes, peak), "rss")
        return Reading(memory=memory, notes=notes)


class GpuMemory:
    """Memory of one GPU that this process holds.

    With torch: the peak that its allocator reserved, plus the context: what the driver counts
    for the process beyond the allocator. Else what the driver counts at the end (a runtime's
    arena does not shrink), and where it does not count by process, by how much the memory in use
    on the whole device grew, with a Note.
    """

    def __init__(self, scope: Scope) -> None:
        """Read nothing yet."""
        self._gpu = scope.gpu
        self._nvml = open_nvml(scope.gpu)
        self._used_before = 0

    def loaded(self) -> None:
        """Keep what is in use on the device before there is a model."""
        if self._nvml is None:
            return
        try:
            # A runtime that made its context while loading is in this figure already.
            self._used_before = self._nvml.used_bytes() - (own_bytes(self._nvml) or 0)
        except NvmlMissing:
            self._nvml = None  # torch may still tell; `stop` says what is missing

    def start(self) -> None:
        """Set the allocator's peak back to what it holds now."""
        torch = _torch_on_gpu()
        if torch is not None:
            torch.cuda.reset_peak_memory_stats(self._gpu)

    def stop(self) -> Reading:
        """Return the peak since `start`; none, with a Note, where neither source tells."""
        held, notes = self._held_bytes()
        torch = _torch_on_gpu()
        peak = 0 if torch is None else int(torch.cuda.max_memory_reserved(self._gpu))
        if torch is None or not peak:  # torch told the SMs of a share, say, and holds nothing
            if held is None:
                text = "neither torch nor the driver tells what the process holds on the GPU"
                return Reading(notes=(Note("memory-unmetered", text),))
            return Reading(memory=MeasuredMemory(held, 0, "nvml"), notes=notes)
        allocated = int(torch.cuda.max_memory_allocated(self._gpu))
        if held is None:
            text = "the driver does not tell the size of the context: it is not counted"
            memory = MeasuredMemory(peak, 0, "allocator", allocator_bytes=allocated)
            return Reading(memory=memory, notes=(Note("context-unmetered", text),))
        context = max(0, held - int(torch.cuda.memory_reserved(self._gpu)))
        memory = MeasuredMemory(
            peak + context, context, "allocator+context", allocator_bytes=allocated
        )
        return Reading(memory=memory, notes=notes)

    def _held_bytes(self) -> tuple[int | None, tuple[Note, ...]]:
        if self._nvml is None:
            return None, ()
        own = own_bytes(self._nvml)
        if own is not None:
            return own, ()
        try:
            grown = max(0, self._nvml.used_bytes() - self._used_before)
        except NvmlMissing:
            return None, ()
        text = "the driver does not count by process: growth of the whole device was taken"
        return grown, (Note("memory-whole-device", text),)


def resident_bytes(proc: Path = Path("/proc/self")) -> int | None:
    """Return the resident memory of the process whose folder is `proc`; None if not told."""
    return _status_bytes(proc, "VmRSS")


def release_freed_memory() -> bool:
    """Give freed memory of the C library back to the system, so that it is not taken for the
    model's; False where the C library cannot (malloc_trim(3) is of glibc)."""
    if sys.platform != "linux":
        return False
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return False
    trim(0)
    return True


def _status_bytes(proc: Path, field: str) -> int | None:
    try:
        for line in (proc / "status").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == field:
                return 1024 * int(rest.split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return None


def _life_peak_bytes() -> int:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # getrusage(2): bytes on macOS


def _torch_on_gpu() -> Any | None:
    """Return torch where this process has used it on a GPU: it is never imported for this."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return torch
