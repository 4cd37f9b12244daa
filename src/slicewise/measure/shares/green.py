"""CUDA green contexts: a fixed set of SMs for what one process runs inside a `with` block.

They need CUDA, so they take effect after the framework is loaded: `bind` does nothing, `entered`
does it all. Memory, cache and bandwidth stay shared.
"""

import importlib.metadata
import re
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from slicewise.core.errors import MeasureError
from slicewise.core.notes import Note
from slicewise.core.processes import run_command
from slicewise.core.share import Mechanism, Share
from slicewise.measure.shares._base import Ending
from slicewise.measure.shares.mps import seen_note, uuid_of, watch_gpu
from slicewise.measure.shares.smi import LIST, Run, read_listing

_TORCH = (2, 10)  # the first with torch.cuda.green_contexts
# (least SMs, step) by major compute capability: CUDA driver API, section Green Contexts.
_STEPS = {6: (1, 1), 7: (2, 2), 8: (4, 2), 9: (8, 8)}


class Cuda(Protocol):
    """What is asked of CUDA; `runtimes/cuda_parts.py` does it with torch."""

    def count_sms(self, device_index: int) -> int:
        """Return the SMs of the device."""

    def read_capability(self, device_index: int) -> tuple[int, int]:
        """Return the compute capability, as (9, 0)."""

    def green_context(self, device_index: int, *, sms: int) -> AbstractContextManager[None]:
        """Run the block with `sms` SMs."""

    def count_context_sms(self) -> int | None:
        """Return the SMs of the current context; None where nobody tells."""


def _torch_cuda() -> Cuda:
    from slicewise.measure.runtimes import cuda_parts

    return cuda_parts


def _torch_version() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""


@dataclass(frozen=True, slots=True)
class GreenBinder:
    """Holds a block to a set of SMs. `cuda` is None until the framework may be loaded."""

    cuda: Cuda | None = None
    run: Run = run_command
    torch_version: str = field(default_factory=_torch_version)
    kind: str = "gpu"

    def is_available(self) -> str:
        """Return '' where torch is new enough and built for CUDA, and a driver is there.

        Torch is not imported for it: the version tells, and `+cpu` in it.
        """
        match = re.match(r"(\d+)\.(\d+)", self.torch_version)
        if match is None:
            return "green contexts need torch: pip install 'slicewise[torch]'"
        if (int(match[1]), int(match[2])) < _TORCH or "+cpu" in self.torch_version:
            return f"green contexts need torch 2.10 or later for CUDA, not {self.torch_version}"
        if not read_listing(self.run(LIST)).gpus:
            return "nvidia-smi lists no GPU on this machine; use cpu"
        return ""

    def part_of_percent(self, percent: float, cores: Collection[int]) -> Share:
        """Return the share of `percent` of the SMs."""
        return Share(Mechanism.GREEN, percent=percent)

    def name_part(self, share: Share, device_index: int, cores: Collection[int]) -> str | None:
        """Return '25%'; None for all SMs. `DeviceError` where the driver has no such GPU."""
        uuid_of(read_listing(self.run(LIST)).gpus, device_index)
        return None if share.percent >= 100 else f"{share.percent:g}%"

    def bind(self, share: Share, device_index: int) -> tuple[Note, ...]:
        """Do nothing: CUDA is not loaded yet."""
        return ()

    @contextmanager
    def entered(self, share: Share, device_index: int) -> Iterator[tuple[Note, ...]]:
        """Run the block inside a green context; nothing is entered for 100 %."""
        if share.percent >= 100:
            yield ()
            return
        cuda = self.cuda or _torch_cuda()
        sms, notes = self._plan(share, device_index)
        with cuda.green_context(device_index, sms=sms):
            yield notes

    def _plan(self, share: Share, device_index: int) -> tuple[int, tuple[Note, ...]]:
        """Return the SMs of the context, and a note where they are not what was asked for."""
        cuda = self.cuda or _torch_cuda()
        total = cuda.count_sms(device_index)
        sms = round_sms(share.percent, total, cuda.read_capability(device_index)[0])
        wanted = total * share.percent / 100
        if abs(sms - wanted) < 0.5:
            return sms, ()
        text = f"{share.text} of {total} SMs is {wanted:.4g}; green contexts give {sms}"
        return sms, (Note("share-rounded", f"{text}, {100 * sms / total:.3g}% of the device"),)

    def verify(self, share: Share, device_index: int) -> tuple[Note, ...]:
        """Note the SMs of the current context; `MeasureError` if they are not the share's."""
        if share.percent >= 100:
            return ()
        cuda = self.cuda or _torch_cuda()
        seen = cuda.count_context_sms()
        sms, _ = self._plan(share, device_index)
        if seen is not None and seen != sms:
            raise MeasureError(
                f"share {share.text} does not hold: the context has {seen} SMs, not {sms}; run"
                f" inside the green context, or use mps:{share.percent:g}"
            )
        return (seen_note(share, seen),)

    def watch(self, share: Share, device_index: int) -> Ending:
        """Note, when ended, how many other processes compute on the GPU."""
        return watch_gpu(self.run, share, uuid_of(read_listing(self.run(LIST)).gpus, device_index))


def round_sms(percent: float, total: int, major: int) -> int:
    """Return the number of SMs nearest to `percent` of `total` that a green context can have.

    >>> round_sms(25, 132, 9), round_sms(1, 108, 8)
    (32, 4)
    """
    least, step = _STEPS[min(max(major, min(_STEPS)), max(_STEPS))]
    most = total // step * step
    return max(least, min(most, round(total * percent / 100 / step) * step))


BINDER = GreenBinder()
