"""Existing MIG instances, by UUID. Creates no instance and removes none."""

import os
from collections.abc import Collection, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from slicewise.core.errors import DeviceError, MeasureError, UsageError
from slicewise.core.notes import Note
from slicewise.core.processes import run_command
from slicewise.core.share import Share
from slicewise.measure.shares._base import Ending
from slicewise.measure.shares.mps import refuse_late, seen_note, visible_sms
from slicewise.measure.shares.smi import LIST, Instance, Run, read_listing


@dataclass(frozen=True, slots=True)
class MigBinder:
    """Holds a process to an instance. `environment` is the one that CUDA will read."""

    environment: MutableMapping[str, str] = field(default_factory=lambda: os.environ)
    run: Run = run_command
    kind: str = "gpu"

    def is_available(self) -> str:
        """Return '' where the driver lists MIG instances."""
        if self._instances():
            return ""
        return (
            "nvidia-smi lists no MIG instance on this machine; make some with `nvidia-smi mig"
            " -cgi PROFILE -C`, or use mps:25 or green:25"
        )

    def part_of_percent(self, percent: float, cores: Collection[int]) -> Share:
        """Raise `UsageError`: an instance has a profile, not a percentage."""
        raise UsageError(
            f"share {percent:g}% names no MIG instance; write mig:UUID with one of"
            f" {_told(self._instances())}"
        )

    def name_part(self, share: Share, device_index: int, cores: Collection[int]) -> str | None:
        """Return the profile of the instance; `UsageError` if it is on another GPU."""
        found = self._find(share)
        if found.gpu != device_index:
            raise UsageError(
                f"share {share.text} is on gpu:{found.gpu}, and the device is gpu:{device_index};"
                f" give --device gpu:{found.gpu}"
            )
        return found.profile

    def bind(self, share: Share, device_index: int) -> tuple[Note, ...]:
        """Show CUDA this instance alone; it is number 0 in this process from now on."""
        refuse_late(share)
        self.environment["CUDA_VISIBLE_DEVICES"] = self._find(share).uuid
        return ()

    def _find(self, share: Share) -> Instance:
        have = self._instances()
        for instance in have:
            if instance.uuid.casefold() == share.uuid.casefold():
                return instance
        raise DeviceError(
            f"share {share.text} is not there; this machine has {_told(have)}; choose among these"
        )

    def _instances(self) -> tuple[Instance, ...]:
        return read_listing(self.run(LIST)).instances

    def entered(self, share: Share, device_index: int) -> AbstractContextManager[tuple[Note, ...]]:
        """Return a context that does nothing: the process is bound already."""
        return nullcontext(())

    def verify(self, share: Share, device_index: int) -> tuple[Note, ...]:
        """Note the SMs that CUDA shows; `MeasureError` if another device is shown to it."""
        shown = self.environment.get("CUDA_VISIBLE_DEVICES", "")
        if shown.casefold() != share.uuid.casefold():
            raise MeasureError(
                f"share {share.text} does not hold: CUDA_VISIBLE_DEVICES is {shown!r}; nothing"
                " else may set it"
            )
        return (seen_note(share, visible_sms()),)

    def watch(self, share: Share, device_index: int) -> Ending:
        """Return what notes nothing: an instance is isolated by the hardware."""
        return lambda: ()


def _told(instances: Collection[Instance]) -> str:
    each = [f"{one.uuid} ({one.profile} of gpu:{one.gpu})" for one in instances]
    return ", ".join(each) or "no MIG instance"


BINDER = MigBinder()
