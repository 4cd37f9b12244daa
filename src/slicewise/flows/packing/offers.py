"""From ways to serve to offers: what meets the target of a workload, and what it then carries.

How long an answer takes is the business of `slices/latency.py`; here it is asked of every way.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slicewise.core.errors import Infeasible
from slicewise.core.notes import Note
from slicewise.core.packing import Offer, PackWorkload
from slicewise.core.units import format_capacity, format_ms
from slicewise.flows.packing.options import PackOptions
from slicewise.flows.packing.ways import Way, fits
from slicewise.flows.packing.workload import WorkloadSpec

# How many of the quickest ways are looked at to tell what target could be met, and how finely.
_QUICKEST = 24
_HALVINGS = 20


@dataclass(frozen=True, slots=True)
class Served:
    """A workload with the ways that meet its target, each with its offer.

    `workload.offers` are those that it asked for; `pairs` also hold those by which it is served in
    a current layout, with a batch or processes that it does not ask for.
    """

    spec: WorkloadSpec
    workload: PackWorkload
    pairs: tuple[tuple[Way, Offer], ...]

    @property
    def offers(self) -> tuple[Offer, ...]:
        """All offers, those of what stands already included."""
        return tuple(offer for _, offer in self.pairs)

    def way(self, asked: Offer) -> Way | None:
        """Return the way behind an offer, None if it is none of them."""
        return next((way for way, offer in self.pairs if offer == asked), None)


def offer_of(
    spec: WorkloadSpec, way: Way, options: PackOptions, *, latency_ms: float | None = None
) -> Offer | None:
    """Return what a way carries under the target, or another; None if it misses it or memory."""
    from slicewise.slices.latency import offer

    safety = options.safety_of(is_measured=way.is_measured)
    if not fits(way, safety):
        return None
    return offer(
        way.serving,
        device=way.part.card.name,
        profile=way.part.profile,
        rate_per_s=spec.rate_per_s,
        latency_ms=spec.latency_ms if latency_ms is None else latency_ms,
        percentile=spec.percentile,
        model=options.model,
        safety=safety,
    )


def served(
    spec: WorkloadSpec, ways: Sequence[Way], options: PackOptions, notes: Sequence[Note]
) -> Served:
    """Return the workload with its offers; `Infeasible` if there is none, with what would do."""
    found = ((way, offer_of(spec, way, options)) for way in ways)
    pairs = tuple((way, made) for way, made in found if made is not None)
    asked = [offer for way, offer in pairs if _is_asked(spec, way)]
    if not asked:
        its = [way for way in ways if _is_asked(spec, way)]
        raise Infeasible(_hopeless(spec, its, options))
    workload = PackWorkload(
        name=spec.name,
        rate_per_s=spec.rate_per_s,
        latency_ms=spec.latency_ms,
        percentile=spec.percentile,
        offers=tuple(asked),
        notes=tuple(notes),
    )
    return Served(spec, workload, pairs)


def _is_asked(spec: WorkloadSpec, way: Way) -> bool:
    """False for a way that is only there because something stands that works so."""
    if spec.profile is not None:
        return True  # its rows are chosen when they are read
    serving = way.serving
    return serving.batch in spec.batches_tried and serving.processes in spec.processes_tried


def _hopeless(spec: WorkloadSpec, ways: Sequence[Way], options: PackOptions) -> str:
    """Say why nothing serves a workload: memory, or the target, and what would do."""
    roomy = [way for way in ways if fits(way, options.safety_of(is_measured=way.is_measured))]
    if not roomy:
        least = min(ways, key=lambda way: way.serving.memory_bytes)
        largest = max(ways, key=lambda way: way.part.device.memory_bytes).part.device
        safety = options.safety_of(is_measured=least.is_measured)
        spare = f" and a safety of {safety:g}" if safety else ""
        return (
            f"{spec.where}workload {spec.name!r} needs"
            f" {format_capacity(least.serving.memory_bytes)}{spare} at batch"
            f" {least.serving.batch}, the largest part, {largest.name}, has"
            f" {format_capacity(largest.memory_bytes)}; choose a larger card or a smaller batch or"
            " precision"
        )
    quickest = sorted(roomy, key=lambda way: way.serving.service_ms.value)
    best = min(
        ((_least_target_ms(spec, way, options), i) for i, way in enumerate(quickest[:_QUICKEST])),
    )
    way, target_ms = quickest[best[1]], best[0]
    service = format_ms(way.serving.service_ms.value)
    return (
        f"{spec.where}no slice or card answers workload {spec.name!r} within"
        f" {format_ms(spec.latency_ms)} (latency model {options.model.value}); the quickest is"
        f" {way.part.device.name} with batch {way.serving.batch}, {service} for a batch, which"
        f" keeps a target of {format_ms(target_ms)}; raise latency_ms to that, or add a faster"
        " card"
    )


def _least_target_ms(spec: WorkloadSpec, way: Way, options: PackOptions) -> float:
    """Return about the least target that a way meets, at most one part in a thousand above."""
    low_ms, high_ms = 0.0, spec.latency_ms
    while offer_of(spec, way, options, latency_ms=high_ms) is None:
        low_ms, high_ms = high_ms, 2 * high_ms
        if high_ms > 1e12:
            return high_ms
    for _ in range(_HALVINGS):
        if high_ms - low_ms <= 1e-3 * high_ms:
            break
        middle_ms = (low_ms + high_ms) / 2
        if offer_of(spec, way, options, latency_ms=middle_ms) is None:
            low_ms = middle_ms
        else:
            high_ms = middle_ms
    return high_ms
