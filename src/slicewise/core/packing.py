"""Models on slices: judging one model on every slice, and many workloads on few GPUs.

Types only. A request is one item; rates are items per second. A place on a card is a MIG profile
at its first memory slot, or the whole card, un-sliced (profile None at slot 0).
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum

from slicewise.core.cost import Estimate, Prediction
from slicewise.core.device import Device, SliceProfile
from slicewise.core.errors import UsageError
from slicewise.core.notes import Note


class LatencyModel(StrEnum):
    """What of the time between a request and its answer is counted against the target.

    SERVICE: the time of one batch, at most 0.45 of the target (the published rule: a request may
    wait for the batch before its own). FILL: that of filling a batch, and of one batch. QUEUE:
    both and waiting for others, at the percentile asked.
    """

    SERVICE = "service"
    FILL = "fill"
    QUEUE = "queue"


class PackObjective(StrEnum):
    """What is made least: the number of GPUs (by their cost), or the power drawn."""

    GPUS = "gpus"
    ENERGY = "energy"


@dataclass(frozen=True, slots=True)
class Target:
    """What a model must reach; None where nothing is asked.

    `safety` s: a predicted latency L meets the target if L x (1 + s) does, a rate if it is (1 + s)
    times as high as asked.

    >>> Target(latency_ms=20.0, safety=0.1).latency_allowed_ms
    18.18...
    """

    latency_ms: float | None = None
    throughput_per_s: float | None = None
    safety: float = 0.1

    @property
    def latency_allowed_ms(self) -> float:
        """The longest predicted latency that meets the target, inf without one."""
        return math.inf if self.latency_ms is None else self.latency_ms / (1 + self.safety)

    @property
    def throughput_needed_per_s(self) -> float:
        """The least predicted rate that meets the target, 0 without one."""
        asked = self.throughput_per_s
        return 0.0 if asked is None else asked * (1 + self.safety)


@dataclass(frozen=True, slots=True)
class Fit:
    """One profile of a card judged for one model: does it fit, and why (not).

    `profile` None is the whole card, un-sliced, or a share where `prediction.slice` says '40%'.
    `per_slice_per_s` is the rate for each slice of the card that the part takes away from others:
    what is best when no target is asked. `confidence` (0 to 1) is the probability that memory and
    target hold, from the intervals of the prediction; `safety` is what was kept to spare.
    """

    profile: SliceProfile | None
    prediction: Prediction
    fits: bool
    reason: str
    per_slice_per_s: float
    confidence: float = 1.0
    safety: float = 0.0


@dataclass(frozen=True, slots=True)
class Serving:
    """One way to serve a workload on one part of a card: `processes` of it, each with its own
    batches of `batch` items.

    `service_ms` is the time of one batch while all processes run, `throughput_per_s` the rate of
    all processes together, `memory_bytes` what all take together, `energy_j` what one item costs
    beyond the idle power of the card. `source` says whether it was measured or predicted.
    """

    batch: int
    processes: int
    service_ms: Estimate
    throughput_per_s: float
    memory_bytes: float
    energy_j: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        if self.batch < 1 or self.processes < 1:
            raise UsageError(
                f"serving with batch {self.batch} and {self.processes} processes is impossible;"
                " give at least 1 of each"
            )


@dataclass(frozen=True, slots=True)
class Offer:
    """A serving on a profile of a kind of card, and what it carries under the workload's target.

    `capacity_per_s` is the highest rate at which it still meets the target; at any lower rate it
    does as well, if a batch is started once `max_delay_ms` have passed since its first request.
    """

    device: str
    profile: str | None
    serving: Serving
    capacity_per_s: float
    max_delay_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class PackWorkload:
    """Requests of one model: `rate_per_s`, of which `percentile` percent are to be answered within
    `latency_ms`. `offers` are all ways to serve it that meet that; none: it cannot be served.
    """

    name: str
    rate_per_s: float
    latency_ms: float
    percentile: float
    offers: tuple[Offer, ...]
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuStock:
    """Cards of one kind: how many there are (None: as many as needed) and what one costs."""

    device: Device
    count: int | None = None
    cost: float = 1.0


@dataclass(frozen=True, slots=True)
class PlacedSlice:
    """A part of a card with what runs on it; `workload` None: it is there and free.

    `rate_per_s` is its part of the workload's requests, at most `offer.capacity_per_s`. `in_use`
    slices are never moved or changed.
    """

    profile: str | None
    start: int
    workload: str | None = None
    offer: Offer | None = None
    rate_per_s: float = 0.0
    in_use: bool = False


@dataclass(frozen=True, slots=True)
class PlacedGpu:
    """A card with its slices, from the first slot on; `index` counts the cards of its kind."""

    device: str
    index: int
    slices: tuple[PlacedSlice, ...]

    @property
    def is_used(self) -> bool:
        """True if a workload runs on it."""
        return any(each.workload is not None for each in self.slices)


@dataclass(frozen=True, slots=True)
class PackProblem:
    """Workloads to be put on cards. `current` is what stands there now: of two answers with the
    same objective the one with fewer slices made, removed or taken from a workload for another is
    better; to give a workload a slice that stands free costs nothing.
    """

    workloads: tuple[PackWorkload, ...]
    stock: tuple[GpuStock, ...]
    objective: PackObjective = PackObjective.GPUS
    current: tuple[PlacedGpu, ...] = ()

    def device(self, name: str) -> Device:
        """Return the kind of card called `name`."""
        return next(each.device for each in self.stock if each.device.name == name)


@dataclass(frozen=True, slots=True)
class PackBound:
    """No answer has fewer GPUs (objective value, with cards of unlike cost); `is_exact` if it was
    re-computed in exact arithmetic, else a solver's word is taken for it."""

    value: float
    method: str
    is_exact: bool = False


@dataclass(frozen=True, slots=True)
class Unserved:
    """Requests that no card is left for, and what would serve them."""

    workload: str
    rate_per_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Packing:
    """The answer: what runs where. `value` is the objective: GPUs by their cost, or W.

    `moves` counts the slices made, removed or taken from a workload for another against
    `current`; neither leaving a slice free nor using one that stood free is a move.
    """

    gpus: tuple[PlacedGpu, ...]
    value: float
    bounds: tuple[PackBound, ...]
    unserved: tuple[Unserved, ...] = ()
    method: str = ""
    seconds: float = 0.0
    seed: int = 0
    moves: int = 0
    notes: tuple[Note, ...] = field(default=())

    @property
    def bound(self) -> float:
        """The best lower bound on the objective, 0 without one."""
        return max((each.value for each in self.bounds), default=0.0)

    @property
    def gpus_used(self) -> int:
        """Cards on which a workload runs."""
        return sum(gpu.is_used for gpu in self.gpus)

    @property
    def gap(self) -> float:
        """(value - bound) / value, 0 where nothing is used."""
        return max(0.0, (self.value - self.bound) / self.value) if self.value > 0 else 0.0

    @property
    def is_optimal(self) -> bool:
        """True if no better answer exists and nothing is left unserved."""
        return not self.unserved and self.value <= self.bound * (1 + 1e-9)
