"""What `pack` gives back: the packing, the problem that it answers, and what follows from both."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from slicewise.core.device import Device
from slicewise.core.notes import Note
from slicewise.core.packing import (
    Offer,
    Packing,
    PackObjective,
    PackProblem,
    PlacedGpu,
    PlacedSlice,
)
from slicewise.core.ties import TIE
from slicewise.flows.packing.calm import most_per_s
from slicewise.flows.packing.offers import Served
from slicewise.flows.packing.options import PackOptions
from slicewise.flows.packing.workload import WorkloadSpec


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a simulation of one workload's requests came to: the time within which its percentile
    was answered, and of how many requests that was found."""

    workload: str
    percentile: float
    latency_ms: float
    target_ms: float
    requests: int

    @property
    def is_met(self) -> bool:
        """True if the target was met, rounding aside."""
        return self.latency_ms <= self.target_ms * (1 + TIE)


@dataclass(frozen=True, slots=True)
class LeftOver:
    """What is free on a used card: every slice that still fits somewhere, by name, and the
    largest of them, '' if none does."""

    device: str
    index: int
    profiles: tuple[str, ...]
    largest: str


@dataclass(frozen=True, slots=True)
class SliceUse:
    """A slice that serves a workload, and the card that it is on."""

    gpu: PlacedGpu
    placed: PlacedSlice

    @property
    def offer(self) -> Offer:
        """The offer by which it serves."""
        assert self.placed.offer is not None
        return self.placed.offer


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a workload got: its slices, what they carry, and what is left of its requests.

    `capacity_largest_batch_per_s` is what the same slices would carry in the way that carries
    most, mostly a larger batch: a slice has the quickest way that carries what it has to.
    """

    spec: WorkloadSpec
    uses: tuple[SliceUse, ...]
    unserved_per_s: float = 0.0
    reason: str = ""
    simulated: Simulated | None = None
    capacity_largest_batch_per_s: float = 0.0

    @property
    def capacity_per_s(self) -> float:
        """The highest rate that its slices carry together."""
        return math.fsum(use.offer.capacity_per_s for use in self.uses)

    @property
    def head_room(self) -> float:
        """The part by which its rate can grow on the slices that it has, negative if it is too
        high."""
        return self.capacity_per_s / self.spec.rate_per_s - 1


@dataclass(frozen=True, slots=True)
class PackResult:
    """Workloads on cards: what was asked (`problem`), the answer with its bounds (`packing`).

    `served` are the workloads with all ways to serve them, `left_over` what is free on used cards,
    `simulated` what playing the requests came to. `before` is the packing without the workloads
    `added` by `what_if`, `standing` what stands now (`current`).

    >>> import slicewise
    >>> asked = slicewise.WorkloadSpec("cat", model=model, rate_per_s=200, latency_ms=100)
    >>> made = slicewise.pack([asked], devices=["a100-sxm4-80gb"])
    >>> made.packing.gpus_used, made.packing.is_optimal, made.outcomes[0].head_room >= 0
    (1, True, True)
    """

    problem: PackProblem
    packing: Packing
    served: tuple[Served, ...]
    options: PackOptions
    left_over: tuple[LeftOver, ...] = ()
    simulated: tuple[Simulated, ...] = ()
    before: Packing | None = None
    added: tuple[str, ...] = ()
    standing: tuple[PlacedGpu, ...] = ()
    notes: tuple[Note, ...] = field(default=())

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """What each workload got, in the order asked."""
        uses = self._uses()
        left = {each.workload: each for each in self.packing.unserved}
        played = {each.workload: each for each in self.simulated}
        made = []
        for each in self.served:
            name = each.spec.name
            rest = left.get(name)
            made.append(
                Outcome(
                    each.spec,
                    tuple(uses.get(name, ())),
                    0.0 if rest is None else rest.rate_per_s,
                    "" if rest is None else rest.reason,
                    played.get(name),
                    math.fsum(most_per_s(each.workload, use.offer) for use in uses.get(name, ())),
                )
            )
        return tuple(made)

    @property
    def to_apply(self) -> PackProblem:
        """The problem as those see it who apply the packing: from what stands now."""
        return replace(self.problem, current=self.standing)

    @property
    def used(self) -> tuple[PlacedGpu, ...]:
        """The cards on which a workload runs."""
        return tuple(gpu for gpu in self.packing.gpus if gpu.is_used)

    @property
    def lower_bound_gpus(self) -> int | None:
        """The fewest cards that could do, as far as that is proven; None where another objective
        was made least."""
        if self.problem.objective is not PackObjective.GPUS:
            return None
        dearest = max(each.cost for each in self.problem.stock)
        return max(0, math.ceil(self.packing.bound / dearest - 1e-6))

    @property
    def largest_free(self) -> str:
        """The largest slice that is free on a used card, as 'DEVICE/PROFILE', '' if none is."""
        found = [
            (self._card(each.device), each.largest) for each in self.left_over if each.largest
        ]
        if not found:
            return ""
        card, name = max(found, key=lambda pair: _size(*pair))
        return f"{card.name}/{name}"

    def _card(self, name: str) -> Device:
        return self.problem.device(name)

    def _uses(self) -> dict[str, list[SliceUse]]:
        uses: dict[str, list[SliceUse]] = {}
        for gpu in self.packing.gpus:
            for placed in gpu.slices:
                if placed.workload is not None and placed.offer is not None:
                    uses.setdefault(placed.workload, []).append(SliceUse(gpu, placed))
        return uses


def _size(card: Device, profile: str) -> tuple[int, int]:
    found = card.profile_named(profile)
    return found.memory_bytes, found.compute_units


def left_over(problem: PackProblem, gpus: Sequence[PlacedGpu]) -> tuple[LeftOver, ...]:
    """Return what is free on each used card that is sliced."""
    from slicewise.slices.layouts import Placement, free_profiles, largest_free

    made = []
    for gpu in gpus:
        card = problem.device(gpu.device)
        if not gpu.is_used or not card.profiles:
            continue
        if any(each.profile is None and each.workload is not None for each in gpu.slices):
            continue
        placements = [
            Placement(each.profile, each.start)
            for each in gpu.slices
            if each.profile is not None and (each.workload is not None or each.in_use)
        ]
        profiles = tuple(dict.fromkeys(each.profile for each in free_profiles(card, placements)))
        made.append(
            LeftOver(gpu.device, gpu.index, profiles, largest_free(card, placements) or "")
        )
    return tuple(made)
