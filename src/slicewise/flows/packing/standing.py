"""What stands already, as cards of the problem: each slice with the offer by which it serves."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from slicewise.core.errors import UsageError
from slicewise.core.notes import Note
from slicewise.core.packing import GpuStock, Offer, PlacedGpu, PlacedSlice
from slicewise.flows.packing.offers import Served


def ways_standing(gpus: Sequence[PlacedGpu], name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the batches and the numbers of processes with which a workload is served now."""
    servings = [
        each.offer.serving
        for gpu in gpus
        for each in gpu.slices
        if each.workload == name and each.offer is not None
    ]
    batches = sorted({serving.batch for serving in servings})
    return tuple(batches), tuple(sorted({serving.processes for serving in servings}))


def refuse_uncounted(gpus: Sequence[PlacedGpu], stock: Sequence[GpuStock]) -> None:
    """Raise `UsageError` if more cards stand than there are."""
    counts = {each.device.name: each.count for each in stock}
    for gpu in gpus:
        count = counts[gpu.device]
        if count is not None and gpu.index >= count:
            raise UsageError(
                f"the current layout has {gpu.device} {gpu.index} (counted from 0), --count says"
                f" {count}; raise the count to {gpu.index + 1} or more"
            )


def current_of(
    gpus: Sequence[PlacedGpu], workloads: Mapping[str, Served]
) -> tuple[tuple[PlacedGpu, ...], list[Note]]:
    """Return the cards as they stand for these workloads, and what to note: workloads that are
    gone, slices in use that miss the target and so carry nothing.
    """
    notes: list[Note] = []
    placed = tuple(
        replace(gpu, slices=tuple(_placed(gpu, each, workloads, notes) for each in gpu.slices))
        for gpu in gpus
    )
    standing = {each.workload for gpu in gpus for each in gpu.slices}
    for name, served in workloads.items():
        if served.spec.in_use and name not in standing:
            text = f"workload {name!r} is in use, but nothing in the current layout serves it"
            notes.append(Note("in-use-nowhere", text))
    return placed, notes


def _placed(
    gpu: PlacedGpu, each: PlacedSlice, workloads: Mapping[str, Served], notes: list[Note]
) -> PlacedSlice:
    name = each.workload
    if name is None:
        return each
    known = workloads.get(name)
    what = f"{each.profile or 'the whole card'} at slot {each.start} of {gpu.device} {gpu.index}"
    if known is None:
        kept = "it is in use and stays" if each.in_use else "it counts as free"
        text = f"{what} serves {name!r}, which is not among the workloads; {kept}"
        notes.append(Note("workload-gone", text))
        return replace(each, workload=name if each.in_use else None, offer=None, rate_per_s=0.0)
    in_use = each.in_use or known.spec.in_use
    offer = _offer(known, gpu.device, each)
    if offer is None and in_use:
        text = f"{what} is in use by {name!r} but misses its target; it counts as carrying nothing"
        notes.append(Note("in-use-misses-target", text))
    rate_per_s = 0.0 if offer is None else min(each.rate_per_s, offer.capacity_per_s)
    return replace(each, offer=offer, rate_per_s=rate_per_s, in_use=in_use)


def _offer(known: Served, card: str, each: PlacedSlice) -> Offer | None:
    """Return the offer that the slice works by; where that is not told, the best on it."""
    told = None if each.offer is None else each.offer.serving
    offers = [
        offer
        for offer in known.offers
        if (offer.device, offer.profile) == (card, each.profile)
        and (
            told is None
            or (offer.serving.batch, offer.serving.processes) == (told.batch, told.processes)
        )
    ]
    return max(offers, key=lambda offer: offer.capacity_per_s, default=None)
