"""The cards of a packing by machine, and what each card is to become: the common ground of files.

A packing counts the cards of a kind; a file is for the cards of one machine. Cards of one kind are
taken to fill machines one after another, in order of their index.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slicewise.core.device import Device
from slicewise.core.errors import PartitionError
from slicewise.core.packing import Packing, PackProblem, PlacedGpu, PlacedSlice
from slicewise.slices.emitters.names import comment, safe_names
from slicewise.slices.layouts import Placement, creation_order, slots_of

GPUS_PER_HOST = 8  # of the common servers with SXM boards (HGX, DGX)


@dataclass(frozen=True, slots=True)
class HostedGpu:
    """A card of a machine: its index there, what is planned on it, what stands on it now.

    `current` None: nothing is known of it, it is taken to be idle and without slices.
    """

    device: Device
    index: int
    planned: PlacedGpu
    current: PlacedGpu | None

    @property
    def is_whole(self) -> bool:
        """True if the card is to serve un-sliced."""
        return any(each.profile is None for each in self.planned.slices)

    @property
    def is_sliceable(self) -> bool:
        """True if the card has MIG."""
        return bool(self.device.profiles)

    @property
    def wanted(self) -> tuple[Placement, ...]:
        """The slices that the plan needs, in an order in which they can be made."""
        slices = placements(self.planned)
        return creation_order(self.device, slices) if slices else ()

    @property
    def standing(self) -> tuple[Placement, ...]:
        """The slices that stand there now, in order of slots."""
        return () if self.current is None else placements(self.current)

    @property
    def in_use(self) -> tuple[Placement, ...]:
        """The slices of now that must stay."""
        if self.current is None:
            return ()
        used = [each for each in self.current.slices if each.in_use]
        return placements(PlacedGpu(self.current.device, self.index, tuple(used)))

    @property
    def removed(self) -> tuple[Placement, ...]:
        """The slices that have to go; never one in use.

        Where the card stays sliced, those that the plan lacks; where it becomes whole, all.
        `PartitionError` if a slice in use stands in the way of the plan.
        """
        standing = () if self.current is None else self.current.slices
        if not self.is_whole and any(each.profile is None and each.in_use for each in standing):
            raise PartitionError(
                f"{self.device.name}#{self.planned.index} is in use as a whole, but the plan cuts"
                " it; give the layout that stands there to the packing"
            )
        gone = [each for each in self.standing if each not in self.wanted]
        for each in gone:
            if each in self.in_use:
                raise PartitionError(
                    f"{each} of {self.device.name}#{self.planned.index} is in use, but the plan"
                    " has no such slice; give the layout that stands there to the packing"
                )
        return tuple(gone)

    @property
    def created(self) -> tuple[Placement, ...]:
        """The slices that have to be made, in an order that works."""
        return tuple(each for each in self.wanted if each not in self.standing)


@dataclass(frozen=True, slots=True)
class Host:
    """A machine with cards of one kind. `name` is safe as a name of files and objects.

    `spare` are cards that have slices now and none in the plan.
    """

    name: str
    device: Device
    gpus: tuple[HostedGpu, ...]
    spare: tuple[HostedGpu, ...] = ()


def placements(gpu: PlacedGpu) -> tuple[Placement, ...]:
    """Return the MIG slices of a card as placements."""
    return tuple(
        Placement(each.profile, each.start) for each in gpu.slices if each.profile is not None
    )


def hosts_of(
    packing: Packing, problem: PackProblem, *, gpus_per_host: int = GPUS_PER_HOST
) -> tuple[Host, ...]:
    """Return the machines with the cards on which the plan has anything, kind by kind."""
    current = {(gpu.device, gpu.index): gpu for gpu in problem.current}
    planned = {(gpu.device, gpu.index): gpu for gpu in packing.gpus}
    by_host: dict[tuple[str, int], list[HostedGpu]] = {}
    for name, number in [*planned, *(key for key in current if key not in planned)]:
        gpu = planned.get((name, number), PlacedGpu(name, number, ()))
        standing = current.get((name, number))
        if gpu.slices or (standing is not None and standing.slices):
            host, index = divmod(number, gpus_per_host)
            hosted = HostedGpu(problem.device(name), index, gpu, standing)
            by_host.setdefault((name, host), []).append(hosted)
    used = {key for key, gpus in by_host.items() if any(gpu.planned.slices for gpu in gpus)}
    by_host = {key: gpus for key, gpus in by_host.items() if key in used}
    kinds = Counter(name for name, _ in by_host)
    told = {
        (name, number): f"{name} node {number}" if kinds[name] > 1 or number else name
        for name, number in sorted(by_host, key=lambda key: (_place(problem, key[0]), key[1]))
    }
    safe = safe_names(told.values(), longest=40, otherwise="gpu")
    return tuple(
        Host(
            safe[words],
            problem.device(key[0]),
            _in_order(gpu for gpu in by_host[key] if gpu.planned.slices),
            _in_order(gpu for gpu in by_host[key] if not gpu.planned.slices),
        )
        for key, words in told.items()
    )


def _in_order(gpus: Iterable[HostedGpu]) -> tuple[HostedGpu, ...]:
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def _place(problem: PackProblem, name: str) -> int:
    return next(i for i, each in enumerate(problem.stock) if each.device.name == name)


def workload_names(packing: Packing) -> Mapping[str, str]:
    """Return a safe name for each workload of the packing, in order of appearance."""
    return safe_names(
        each.workload for gpu in packing.gpus for each in gpu.slices if each.workload is not None
    )


def told(each: PlacedSlice) -> str:
    """Return what a slice is for, in a line of comment.

    >>> told(PlacedSlice("3g.40gb", 4, "bert"))
    '3g.40gb@4 bert'
    """
    place = "whole card" if each.profile is None else f"{each.profile}@{each.start}"
    if each.workload is None:
        return f"{place} free"
    made = f"{place} {comment(each.workload)}"
    if each.offer is None:
        return made
    serving = each.offer.serving
    processes = "" if serving.processes == 1 else f", {serving.processes} processes"
    return f"{made} (batch {serving.batch}{processes})"


def position(device: Device, placement: Placement) -> str:
    """Return the place of a slice as `nvidia-smi mig -lgi` prints it: START:SIZE.

    >>> import slicewise
    >>> position(slicewise.device("a100-sxm4-80gb"), Placement("3g.40gb", 4))
    '4:4'
    """
    slots = slots_of(device, placement)
    return f"{slots.start}:{len(slots)}"
