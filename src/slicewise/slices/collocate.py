"""Two models on one card: what each loses beside the other, by mechanism, and which to take.

Predictions and the factors by which neighbours slow each other come in; nothing is predicted here.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slicewise.core.cost import Estimate, Prediction
from slicewise.core.device import Device
from slicewise.core.units import format_capacity, format_number
from slicewise.slices.layouts import Placement, place

# Isolation is worth so much latency: a model that is alone in its memory, bandwidth and faults is
# as quick tomorrow as today. A judgement, not a measurement.
WORTH_OF_ISOLATION = 0.1


@dataclass(frozen=True, slots=True)
class Side:
    """One of two models on its part of a card while the other one runs.

    `prediction` is that of the part alone, `factor` by how much the neighbour slows it there, 1
    or more. `latency_ms` and `throughput_per_s` are with the neighbour. `slowdown` is that latency
    over the one alone on the whole card; errors of the card's own prediction do not widen it.
    """

    prediction: Prediction
    factor: Estimate
    latency_ms: Estimate
    slowdown: Estimate
    throughput_per_s: float


@dataclass(frozen=True, slots=True)
class Sharing:
    """Two models on one card under one mechanism: 'mig', 'mps' or 'time-slicing'.

    `fits` tells whether both have the memory, `reason` says so in words. `placements` are the two
    slices under MIG, the first model's first.
    """

    mechanism: str
    sides: tuple[Side, Side]
    fits: bool
    reason: str
    placements: tuple[Placement, ...] = ()

    @property
    def worst_slowdown(self) -> float:
        """The larger of the two slow-downs."""
        return max(side.slowdown.value for side in self.sides)

    @property
    def gain(self) -> float:
        """Both rates as parts of those alone, added up; turns without overlap give 1."""
        return sum(1 / side.slowdown.value for side in self.sides)


def legal_pairs(device: Device) -> Iterator[tuple[Placement, Placement]]:
    """Yield every ordered pair of base profiles that can stand on the card together, placed."""
    names = [profile.name for profile in device.profiles if not profile.attributes]
    for i, one in enumerate(names):
        for other in names[i:]:
            counts = {one: 2} if one == other else {one: 1, other: 1}
            found = place(device, counts)
            if found is None:
                continue
            first = next(each for each in found if each.profile == one)
            second = next(each for each in found if each is not first)
            yield first, second
            if one != other:
                yield second, first


def side(alone: Prediction, on_part: Prediction, factor: Estimate) -> Side:
    """Return what a model does on its part beside a neighbour that slows it by `factor`.

    `alone` is its prediction on the whole card. Logarithms of independent errors add in
    quadrature; the card's own error is in both latencies and cancels in their ratio.
    """
    whole, part = alone.latency_ms, on_part.latency_ms
    value_ms = part.value * factor.value
    rule_low = _rest(math.log(part.value / part.low), math.log(whole.value / whole.low))
    rule_high = _rest(math.log(part.high / part.value), math.log(whole.high / whole.value))
    down, up = math.log(factor.value / factor.low), math.log(factor.high / factor.value)
    slowdown = value_ms / whole.value
    return Side(
        prediction=on_part,
        factor=factor,
        latency_ms=Estimate(
            value_ms,
            value_ms / math.exp(math.hypot(math.log(part.value / part.low), down)),
            value_ms * math.exp(math.hypot(math.log(part.high / part.value), up)),
            f"{part.source}; {factor.source}" if factor.source else part.source,
        ),
        slowdown=Estimate(
            slowdown,
            max(1.0, slowdown / math.exp(math.hypot(rule_low, down))),
            slowdown * math.exp(math.hypot(rule_high, up)),
            factor.source,
        ),
        throughput_per_s=on_part.throughput_per_s / factor.value,
    )


def _rest(both: float, one: float) -> float:
    """Return what remains of an error of which `one` is a part, independent of the rest."""
    return math.sqrt(max(0.0, both * both - one * one))


def sharing(
    mechanism: str,
    sides: tuple[Side, Side],
    *,
    limits: Sequence[int],
    placements: tuple[Placement, ...] = (),
) -> Sharing:
    """Return the sharing with the judgement of its memory.

    `limits` are the usable bytes of each model's own part, or one figure that both have together.
    """
    memories = [each.prediction.memory_bytes for each in sides]
    needs = [(memory.value, memory.high) for memory in memories]
    if len(limits) == 1:
        needs = [(sum(value for value, _ in needs), sum(high for _, high in needs))]
    pairs = list(zip(needs, limits, strict=True))
    wanting = [(need, limit) for (need, _), limit in pairs if need > limit]
    if wanting:
        need, limit = max(wanting, key=lambda pair: pair[0] - pair[1])
        reason = (
            f"needs {format_capacity(need)}, {format_capacity(need - limit)} more than"
            f" {format_capacity(limit)} usable"
        )
    else:
        reason = " and ".join(
            f"{format_capacity(need)} of {format_capacity(limit)}{_doubt(high, limit)}"
            for (need, high), limit in pairs
        )
    return Sharing(mechanism, sides, not wanting, reason, placements)


def _doubt(high_bytes: int, limit_bytes: int) -> str:
    if high_bytes <= limit_bytes:
        return ""
    return f" (up to {format_capacity(high_bytes)} may be needed)"


def best_split(candidates: Sequence[Sharing]) -> Sharing:
    """Return the split with the least worst slow-down, of equal ones the one with the most gain.

    Splits without the memory come only where no split has it. There must be a candidate.
    """
    fitting = [each for each in candidates if each.fits] or list(candidates)
    return min(fitting, key=lambda each: (round(each.worst_slowdown, 9), -each.gain))


def advise(sharings: Sequence[Sharing]) -> tuple[Sharing | None, str]:
    """Return the sharing to take and why; None where no mechanism has the memory for both.

    The least worst slow-down wins, but MIG where it is within `WORTH_OF_ISOLATION` of it.
    """
    fitting = [each for each in sharings if each.fits]
    if not fitting:
        told = "; ".join(f"{each.mechanism}: {each.reason}" for each in sharings)
        return None, f"the two do not fit into memory together: {told}"
    best = min(fitting, key=lambda each: (round(each.worst_slowdown, 9), -each.gain))
    mig = next((each for each in fitting if each.mechanism == "mig"), None)
    if mig is None:
        return best, f"the least slow-down, {_times(best)}; it isolates neither speed nor faults"
    if mig.worst_slowdown <= best.worst_slowdown * (1 + WORTH_OF_ISOLATION):
        beside = "" if mig is best else f", within 10 % of {best.mechanism} ({_times(best)})"
        why = f"slow-downs of at most {_times(mig)}{beside}, and memory, bandwidth and faults of"
        return mig, f"{why} each model stay its own"
    why = f"slow-downs of at most {_times(best)} against {_times(mig)} under mig"
    return best, f"{why}; it isolates neither speed nor faults, so take mig where these matter"


def _times(each: Sharing) -> str:
    return format_number(each.worst_slowdown)
