"""CUDA MPS: a client limited to a percentage of the SMs. Starts no daemon and stops none.

The limit is an environment variable that CUDA reads once, when it is first used in the process
(NVIDIA MPS guide, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE); it caps, it does not reserve.
"""

import os
import sys
from collections.abc import Collection, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from slicewise.core.errors import DeviceError, MeasureError, MissingDependency
from slicewise.core.notes import Note
from slicewise.core.processes import run_command
from slicewise.core.share import Mechanism, Share
from slicewise.measure.shares._base import Ending
from slicewise.measure.shares.smi import LIST, PROCESSES, Run, count_others, read_listing

_PERCENT = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
_DEFAULT_PIPES = "/tmp/nvidia-mps"  # NVIDIA MPS guide, environment variables
_START = "start it with `nvidia-cuda-mps-control -d`"


@dataclass(frozen=True, slots=True)
class MpsBinder:
    """Holds a process to a percentage of SMs. `environment` is the one that CUDA will read."""

    environment: MutableMapping[str, str] = field(default_factory=lambda: os.environ)
    run: Run = run_command
    kind: str = "gpu"

    def is_available(self) -> str:
        """Return '' where a control daemon of MPS is up."""
        pipes = Path(self.environment.get(_PIPES, _DEFAULT_PIPES))
        if not (pipes / "control").exists():
            return f"no MPS daemon has its pipes in {pipes} ({_PIPES}); {_START}"
        noted = pipes / "nvidia-cuda-mps-control.pid"
        if noted.is_file() and not _is_alive(noted.read_text().strip()):
            return f"the MPS daemon of {pipes} has ended; {_START}"
        return ""

    def part_of_percent(self, percent: float, cores: Collection[int]) -> Share:
        """Return the share of `percent` of the SMs."""
        return Share(Mechanism.MPS, percent=percent)

    def name_part(self, share: Share, device_index: int, cores: Collection[int]) -> str | None:
        """Return '25%'; None for all SMs. `DeviceError` where the driver has no such GPU."""
        self._uuid(device_index)
        return None if share.percent >= 100 else f"{share.percent:g}%"

    def bind(self, share: Share, device_index: int) -> tuple[Note, ...]:
        """Set the environment that CUDA reads; the GPU is number 0 in this process from now on."""
        refuse_late(share)
        self.environment[_PERCENT] = f"{share.percent:g}"
        self.environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        self.environment["CUDA_VISIBLE_DEVICES"] = self._uuid(device_index)
        return ()

    def _uuid(self, device_index: int) -> str:
        gpus = read_listing(self.run(LIST)).gpus
        return uuid_of(gpus, device_index)

    def entered(self, share: Share, device_index: int) -> AbstractContextManager[tuple[Note, ...]]:
        """Return a context that does nothing: the process is bound already."""
        return nullcontext(())

    def verify(self, share: Share, device_index: int) -> tuple[Note, ...]:
        """Note the SMs that CUDA shows this client; `MeasureError` if the variable has changed."""
        if self.environment.get(_PERCENT) != f"{share.percent:g}":
            raise MeasureError(
                f"share {share.text} does not hold: {_PERCENT} is"
                f" {self.environment.get(_PERCENT)!r}; nothing else may set it"
            )
        return (seen_note(share, visible_sms()),)

    def watch(self, share: Share, device_index: int) -> Ending:
        """Note, when ended, how many other processes compute on the GPU."""
        return watch_gpu(self.run, share, self._uuid(device_index))


def uuid_of(gpus: Mapping[int, str], device_index: int) -> str:
    """Return the UUID of GPU `device_index`; `DeviceError` if the driver has no such GPU."""
    if device_index not in gpus:
        have = ", ".join(f"gpu:{index}" for index in gpus) or "no GPU"
        raise DeviceError(
            f"gpu:{device_index} is not there; nvidia-smi lists {have}; choose among these, or cpu"
        )
    return gpus[device_index]


def refuse_late(share: Share) -> None:
    """Raise `MeasureError` if CUDA was used in this process: it no longer reads the variables."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise MeasureError(
            f"share {share.text} comes too late: CUDA is in use in this process; bind first"
        )


def seen_note(share: Share, seen: int | None) -> Note:
    """Return the note that says how many SMs CUDA shows in this process; None: nobody tells."""
    if seen is None:
        return Note("share-unverified", f"nobody here can tell the SMs that {share.text} gave")
    return Note("share-seen", f"{share.text}: CUDA shows this process {seen} SMs")


def watch_gpu(run: Run, share: Share, uuid: str) -> Ending:
    """Return what ends the watch over a GPU and notes other processes on it."""

    def end() -> tuple[Note, ...]:
        others = count_others(run(PROCESSES), uuid=uuid, pid=os.getpid())
        if not others:
            return ()
        text = f"{others} other processes compute on the GPU of {share.text}"
        return (Note("share-disturbed", f"{text}; bandwidth and cache are shared with them"),)

    return end


def visible_sms() -> int | None:
    """Return the SMs that CUDA shows in this process, which is bound to one GPU.

    None where there is no torch, or none for CUDA: another runtime may use the GPU without it.
    """
    from slicewise.measure.runtimes.cuda_parts import count_sms

    try:
        return count_sms(0)
    except (MissingDependency, DeviceError):
        return None


def _is_alive(pid: str) -> bool:
    if not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's daemon
    return True


BINDER = MpsBinder()
