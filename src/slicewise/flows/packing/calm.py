"""The quickest way to serve that still carries what a slice has to: same slices, less risk.

A search takes of each slice the way that carries most, as only that counts for the number of
cards. Where a slice has less to carry, a smaller batch answers sooner and leaves more to the
target. It is not taken so small that the slice gets full by it: a rate predicted too high would
then overload it.
"""

from dataclasses import replace

from slicewise.core.packing import (
    Offer,
    Packing,
    PackObjective,
    PackProblem,
    PackWorkload,
    PlacedSlice,
)

# The load that a smaller batch may bring a slice to, if it was not higher before. A judgement: a
# rate may then be a quarter higher than told, or a prediction that much too quick.
_MOST_LOAD = 0.8


def calmed(problem: PackProblem, packing: Packing) -> Packing:
    """Return the packing with, in every slice, the way of the least service time that carries its
    rate; slices, rates, value and moves stay.

    The high end of the interval counts, then the batch, the processes and the memory. Slices in
    use stay as they are, and all do where energy is made least: there the ways are the answer.
    """
    if problem.objective is PackObjective.ENERGY:
        return packing
    workloads = {each.name: each for each in problem.workloads}
    gpus = tuple(
        replace(gpu, slices=tuple(_calmed(gpu.device, each, workloads) for each in gpu.slices))
        for gpu in packing.gpus
    )
    return replace(packing, gpus=gpus)


def most_per_s(workload: PackWorkload, offer: Offer) -> float:
    """Return the highest rate that a workload could have on the slice of an offer, in any way."""
    return max(
        (each.capacity_per_s for each in workload.offers if _place(each) == _place(offer)),
        default=offer.capacity_per_s,
    )


def _calmed(device: str, each: PlacedSlice, workloads: dict[str, PackWorkload]) -> PlacedSlice:
    workload = None if each.workload is None else workloads.get(each.workload)
    if workload is None or each.offer is None or each.in_use:
        return each
    enough = min(each.offer.capacity_per_s, each.rate_per_s / _MOST_LOAD)
    fitting = [
        offer
        for offer in workload.offers
        if _place(offer) == (device, each.profile) and offer.capacity_per_s >= enough
    ]
    return replace(each, offer=min([each.offer, *fitting], key=_unrest))


def _place(offer: Offer) -> tuple[str, str | None]:
    return offer.device, offer.profile


def _unrest(offer: Offer) -> tuple[float, int, int, float]:
    serving = offer.serving
    return serving.service_ms.high, serving.batch, serving.processes, serving.memory_bytes
