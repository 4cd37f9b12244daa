"""Which ways there are to hold a process to a part of a device, and the verbs over them.

`resolve_share` runs where the user's words are read; the others run in the measuring process:
`bind_share` before any framework is imported, `entered_share` around opening and running,
`verify_share` once the model is open, `watch_share` around the samples. No framework is imported
here, and no speed is predicted.
"""

import re
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, cast

from slicewise.core.errors import DeviceError, UsageError
from slicewise.core.measurement import Job
from slicewise.core.notes import Note
from slicewise.core.plugins import PluginTable
from slicewise.core.share import Mechanism, Share

Ending = Callable[[], tuple[Note, ...]]


class Binder(Protocol):
    """One way of holding a process to a part. `kind` is that of the devices it divides.

    `device_index` is the number of the GPU as its driver counts, 0 for the CPU.
    """

    @property
    def kind(self) -> str:
        """Return 'cpu' or 'gpu'."""

    def is_available(self) -> str:
        """Return '' where this way can be gone here, else why not and what to do."""

    def part_of_percent(self, percent: float, cores: Collection[int]) -> Share:
        """Return the share that is `percent` of the device; `UsageError` if there is none."""

    def name_part(self, share: Share, device_index: int, cores: Collection[int]) -> str | None:
        """Return the slice's name as devices give it, None for the whole device.

        `UsageError` or `DeviceError` for a part that is not there.
        """

    def bind(self, share: Share, device_index: int) -> tuple[Note, ...]:
        """Hold this process, and what it starts, to the share. Before frameworks are imported.

        `DeviceError` where the system refuses.
        """

    def entered(self, share: Share, device_index: int) -> AbstractContextManager[tuple[Note, ...]]:
        """Hold what runs inside the `with` block to the share, where `bind` alone cannot."""

    def verify(self, share: Share, device_index: int) -> tuple[Note, ...]:
        """Ask system or driver what this process has; `MeasureError` where that is not the share.

        What nobody can tell is a Note.
        """

    def watch(self, share: Share, device_index: int) -> Ending:
        """Start watching the part; the function returned ends it and notes who else was there."""


BINDERS = PluginTable(
    what="way of sharing a device",
    rows={
        "cores": "slicewise.measure.shares.cores:BINDER",
        "mps": "slicewise.measure.shares.mps:BINDER",
        "mig": "slicewise.measure.shares.mig:BINDER",
        "green": "slicewise.measure.shares.green:BINDER",
    },
)
# A bare percentage of a device of this kind is taken by the first way that can be gone.
_FOR_PERCENT = {
    "cpu": (Mechanism.CORES,),
    "gpu": (Mechanism.MPS, Mechanism.GREEN),
}

Load = Callable[[str], Binder]


def load_binder(name: str) -> Binder:
    """Return the way called `name`; `UsageError` lists the known ones."""
    return cast(Binder, BINDERS.load(name))


def resolve_share(
    text: str, *, device: str, cores: Collection[int], load: Load = load_binder
) -> tuple[Share, str | None]:
    """Return the share that `text` names on `device`, and the name of the slice that it is.

    `text` is a percentage ('50', '12.5%'), 'cores:0-1', 'mps:25', 'green:25' or 'mig:MIG-UUID';
    `device` 'cpu' or 'gpu:N'; `cores` the logical cores that may be used. The name is '50%', or
    a MIG profile; None where the share is the whole device. `UsageError` for a share that cannot
    be, `DeviceError` for one that this machine cannot give.
    """
    kind, index = _kind_and_index(device)
    match = re.fullmatch(r"\s*([0-9]{1,3}(?:\.[0-9]+)?)\s*%?\s*", text)
    if match is not None:
        percent = float(match[1])
        if not 0 < percent <= 100:
            raise UsageError(f"share {text!r} is impossible; give over 0 and at most 100")
        share = _share_of_percent(percent, kind=kind, device=device, cores=cores, load=load)
    else:
        share = Share.parse(text)
    binder = load(share.mechanism.value)
    if binder.kind != kind:
        ways = [name for name in BINDERS if load(name).kind == kind]
        raise UsageError(
            f"share {text!r} divides a {binder.kind}, and the device is {device}; for it write a"
            f" percentage, or {' or '.join(f'{name}:...' for name in ways)}"
        )
    if why := binder.is_available():
        raise DeviceError(f"share {text!r} of {device} cannot be taken: {why}")
    return share, binder.name_part(share, index, cores)


def _share_of_percent(
    percent: float, *, kind: str, device: str, cores: Collection[int], load: Load
) -> Share:
    refused: list[str] = []
    for mechanism in _FOR_PERCENT[kind]:
        binder = load(mechanism.value)
        if not (why := binder.is_available()):
            return binder.part_of_percent(percent, cores)
        refused.append(f"{mechanism}: {why}")
    raise DeviceError(
        f"share {percent:g}% of {device} cannot be taken here ({'; '.join(refused)}); measure the"
        " whole device, or a MIG instance with mig:MIG-UUID"
    )


def bind_share(job: Job) -> tuple[Note, ...]:
    """Hold this process to the job's share; the first thing that a measuring process does.

    Nothing is done, and nothing noted, where the job has no share. `DeviceError` where the share
    cannot be had here.
    """
    if job.share is None:
        return ()
    binder = load_binder(job.share.mechanism.value)
    if why := binder.is_available():
        raise DeviceError(f"share {job.share.text} of {job.device} cannot be taken: {why}")
    return binder.bind(job.share, _kind_and_index(job.device)[1])


def inner_device(job: Job) -> str:
    """Return what the job's device is called inside a bound process.

    A process bound to a MIG instance or to MPS sees one GPU only, which is then number 0.
    """
    narrowed = job.share is not None and job.share.mechanism in (Mechanism.MPS, Mechanism.MIG)
    return "gpu:0" if narrowed else job.device


def entered_share(job: Job) -> AbstractContextManager[tuple[Note, ...]]:
    """Return the context to open and run the model in; its value are notes."""
    if job.share is None:
        return nullcontext(())
    binder = load_binder(job.share.mechanism.value)
    return binder.entered(job.share, _kind_and_index(job.device)[1])


def verify_share(job: Job) -> tuple[Note, ...]:
    """Return what is to be known about the share that this process really has.

    To be called inside `entered_share`, once the model is open: a framework can undo an affinity.
    `MeasureError` if the process does not have its share.
    """
    if job.share is None:
        return ()
    binder = load_binder(job.share.mechanism.value)
    return binder.verify(job.share, _kind_and_index(job.device)[1])


def watch_share(job: Job) -> Ending:
    """Start watching the share; call what is returned to learn who else was on it."""
    if job.share is None:
        return lambda: ()
    binder = load_binder(job.share.mechanism.value)
    return binder.watch(job.share, _kind_and_index(job.device)[1])


def _kind_and_index(device: str) -> tuple[str, int]:
    """Return ('gpu', 1) for 'gpu:1' and ('cpu', 0) for 'cpu'."""
    match = re.fullmatch(r"cpu|gpu:([0-9]{1,4})", device)
    if match is None:
        raise UsageError(f"device {device!r} cannot be shared out here; use cpu or gpu:0, gpu:1")
    return ("cpu", 0) if match[1] is None else ("gpu", int(match[1]))
