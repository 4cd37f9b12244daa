"""A problem in whole numbers, all costs rounded down: a bound on it is one on the original.

Only loads of like devices: what unlike devices, links or pins forbid is dropped, which can only
lower the optimum. Replicas and energy are not of this kind; see `explain_refusal`.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from slicewise.core.pipeline import Objective, PipelineProblem

# A load of about 2^24 units: rounding 1000 nodes and tensors of a stage down loses < 1e-4 of it.
_BITS = 24


@dataclass(frozen=True, slots=True)
class RoundedTensor:
    """A tensor that something consumes, and the whole units that one transfer costs."""

    producer: int
    consumers: tuple[int, ...]
    cost: int


@dataclass(frozen=True, slots=True)
class Rounded:
    """Loads in units of 1 / `scale` ms. `memory_limit` is None where no stage has a limit."""

    scale: Fraction
    stages: int
    work: tuple[int, ...]
    tensors: tuple[RoundedTensor, ...]
    memory: tuple[int, ...]
    memory_limit: int | None
    together: tuple[tuple[int, ...], ...]
    overlaps: bool
    hops: bool

    @property
    def total(self) -> int:
        """The work of all nodes."""
        return sum(self.work)

    def to_ms(self, load: int) -> float:
        """Return a load in ms, rounded down."""
        return float_below(Fraction(load) / self.scale)

    def from_ms(self, load_ms: float) -> int:
        """Return the most units that a cut of this load can have."""
        return math.floor(Fraction(load_ms) * self.scale)


def explain_refusal(problem: PipelineProblem) -> str:
    """Return why whole stages of like devices say nothing about a problem; '' if they do."""
    if problem.objective is Objective.ENERGY:
        return "it bounds the slowest stage, not energy"
    if problem.replicates:
        return "a stage with replicas may lie across the border of two groups of devices"
    return ""


def float_below(value: Fraction) -> float:
    """Return the greatest float that is not above a rational."""
    near = float(value)
    return near if Fraction(near) <= value else math.nextafter(near, -math.inf)


def scale_for(load_ms: float, *, bits: int = _BITS) -> Fraction:
    """Return a power of two that makes a load about 2^bits units: binary costs stay exact."""
    if not 0 < load_ms < math.inf:
        return Fraction(1)
    return Fraction(2) ** (bits - math.frexp(load_ms)[1])


def round_down(problem: PipelineProblem, *, load_ms: float) -> Rounded:
    """Return the relaxation to like devices; `load_ms` is about what a stage will take.

    Every node takes as long as on its fastest device, every tensor as long as on the fastest
    link. A node that no device can run is taken as 0: that is found elsewhere.
    """
    scale = scale_for(load_ms)
    used = [problem.kinds[kind] for kind in sorted(set(problem.places))]
    links = [problem.link(index) for index in range(max(1, problem.stages - 1))]
    latency = min(Fraction(link.latency_ms) for link in links)
    factor = min(Fraction(link.scale) for link in links)
    fastest = (min(kind.work_ms[node] for kind in used) for node in range(problem.nodes))
    limits = [kind.memory_limit_bytes - kind.reserve_bytes for kind in used]
    limit = max(limits)
    has_limit = bool(problem.memory_bytes) and limit < math.inf
    return Rounded(
        scale,
        problem.stages,
        tuple(math.floor(Fraction(w) * scale) if w < math.inf else 0 for w in fastest),
        tuple(
            RoundedTensor(
                tensor.producer,
                tensor.consumers,
                math.floor((latency + factor * Fraction(tensor.transfer_ms)) * scale),
            )
            for tensor in problem.transfers
            if tensor.consumers
        ),
        tuple(math.floor(held) for held in problem.memory_bytes) if has_limit else (),
        max(0, math.floor(limit)) if has_limit else None,
        tuple(group for group in problem.together if len(group) > 1),
        problem.overlaps,
        problem.hops,
    )
