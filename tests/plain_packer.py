"""A packer for tests of what stands before and behind one: first fit, the best slice for each.

Quick, plain, always the same answer and the same seconds: what it finds is written into golden
files. It tells a lower bound that is none but a card for each kind of demand.
"""

import math
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from slicewise.core.notes import Note
from slicewise.core.packing import (
    Offer,
    PackBound,
    Packing,
    PackObjective,
    PackProblem,
    PackWorkload,
    PlacedGpu,
    PlacedSlice,
    Unserved,
)
from slicewise.slices.layouts import Placement, free_profiles


@dataclass
class _Card:
    device: str
    index: int
    slices: list[PlacedSlice] = field(default_factory=list)


def pack(
    problem: PackProblem,
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    workers: int | None = None,
    told: Callable[[str], None] | None = None,
) -> Packing:
    """Return a packing by first fit; what stands in use stays where it is."""
    if told is not None:
        told("first fit")
    cards = [
        _Card(gpu.device, gpu.index, [each for each in gpu.slices if each.in_use])
        for gpu in problem.current
    ]
    cards = [card for card in cards if card.slices]
    unserved = []
    for workload in problem.workloads:
        left = _kept(cards, workload)
        while left > 1e-9:
            offer = _best(problem, workload, left)
            card = _room(problem, cards, offer)
            if card is None:
                reason = "no card is left; 1 more card would do"
                unserved.append(Unserved(workload.name, left, reason))
                break
            rate = min(left, offer.capacity_per_s)
            start = _start(problem, card, offer)
            card.slices.append(PlacedSlice(offer.profile, start, workload.name, offer, rate))
            left -= rate
    gpus = tuple(
        PlacedGpu(card.device, card.index, tuple(sorted(card.slices, key=lambda s: s.start)))
        for card in cards
    )
    value = _value(problem, gpus)
    least = min(each.cost for each in problem.stock)
    is_counted = problem.objective is PackObjective.GPUS
    bound = PackBound(least if gpus and is_counted else 0.0, "at least one", is_exact=True)
    moves = _moves(problem, gpus)
    return Packing(gpus, value, (bound,), tuple(unserved), "first fit", 0.5, seed, moves)


def _value(problem: PackProblem, gpus: tuple[PlacedGpu, ...]) -> float:
    used = [gpu for gpu in gpus if gpu.is_used]
    if problem.objective is PackObjective.GPUS:
        cost = {each.device.name: each.cost for each in problem.stock}
        return sum(cost[gpu.device] for gpu in used)
    rates = [
        each.rate_per_s * each.offer.serving.energy_j
        for gpu in used
        for each in gpu.slices
        if each.offer is not None
    ]
    return sum(problem.device(gpu.device).idle_power_w for gpu in used) + sum(rates)


def _moves(problem: PackProblem, gpus: tuple[PlacedGpu, ...]) -> int:
    """Count slices made, removed, or taken from a workload for another."""
    before, after = (
        {
            (gpu.device, gpu.index, each.profile, each.start): each.workload
            for gpu in cards
            for each in gpu.slices
        }
        for cards in (problem.current, gpus)
    )
    if not before:
        return 0
    changed = [
        key for key in before.keys() & after.keys()
        if None not in (before[key], after[key]) and after[key] != before[key]
    ]  # fmt: skip
    return len(before.keys() ^ after.keys()) + len(changed)


def _kept(cards: list[_Card], workload: PackWorkload) -> float:
    """Give slices in use their part of the rate; return what is left."""
    left = workload.rate_per_s
    for card in cards:
        for i, each in enumerate(card.slices):
            if each.workload == workload.name and each.offer is not None:
                rate = min(left, each.offer.capacity_per_s)
                card.slices[i] = PlacedSlice(
                    each.profile, each.start, each.workload, each.offer, rate, in_use=True
                )
                left -= rate
    return left


def _best(problem: PackProblem, workload: PackWorkload, rate: float) -> Offer:
    def waste(offer: Offer) -> tuple[float, float]:
        device = problem.device(offer.device)
        size = device.memory_slots or 1
        if offer.profile is not None:
            size = device.profile_named(offer.profile).size
        return math.ceil(rate / offer.capacity_per_s) * size, -offer.capacity_per_s

    return min(workload.offers, key=waste)


def _room(problem: PackProblem, cards: list[_Card], offer: Offer) -> _Card | None:
    for card in cards:
        if card.device == offer.device and _start(problem, card, offer) >= 0:
            return card
    stock = next(each for each in problem.stock if each.device.name == offer.device)
    taken = {card.index for card in cards if card.device == offer.device}
    index = next(i for i in range(len(taken) + 1) if i not in taken)
    if stock.count is not None and index >= stock.count:
        return None
    cards.append(_Card(offer.device, index))
    return cards[-1]


def _start(problem: PackProblem, card: _Card, offer: Offer) -> int:
    """Return the first slot at which a slice fits, -1 where it does not."""
    if offer.profile is None:
        return -1 if card.slices else 0
    if any(each.profile is None for each in card.slices):
        return -1
    placed = [Placement(each.profile or "", each.start) for each in card.slices]
    free = free_profiles(problem.device(offer.device), placed)
    return min((each.start for each in free if each.profile == offer.profile), default=-1)


def interrupted(
    problem: PackProblem,
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    workers: int | None = None,
    told: Callable[[str], None] | None = None,
) -> Packing:
    """Return what a search that Ctrl-C ended gives back."""
    made = pack(problem, seed=seed)
    note = Note("search-interrupted", "interrupted: the best packing and bound until then")
    return replace(made, bounds=(), notes=(note,))


def install(monkeypatch: pytest.MonkeyPatch, *, solver: Callable[..., Packing] = pack) -> None:
    """Put the packer in the place of the solver."""
    module = types.ModuleType("slicewise.slices.pack")
    module.__dict__["pack"] = solver
    monkeypatch.setitem(sys.modules, "slicewise.slices.pack", module)
