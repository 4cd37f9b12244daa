"""Is the answer true? Positions, memory, rates, targets, stock, slices in use, value and moves.

Shares no code with the search or with `layouts.py`: it counts slots itself, in exact arithmetic.
"""

import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

from slicewise.core.device import Device, SliceProfile
from slicewise.core.errors import PartitionError
from slicewise.core.packing import (
    Packing,
    PackObjective,
    PackProblem,
    PackWorkload,
    PlacedGpu,
    PlacedSlice,
)

# Sums of floats may be off by a few units in the last place; more is a wrong answer.
_SLACK = Fraction(1, 10**9)


def verify(problem: PackProblem, packing: Packing) -> None:
    """Raise a `PartitionError` that lists everything that is not true of an answer.

    Checked: cards are in the stock, each once; slices stand at legal slots without overlap; no
    profile has more instances, no card more media extensions, than there are; what runs fits the
    memory and is one of the workload's own ways; each slice carries at most its capacity, all
    together the whole rate but for what is told as unserved; slices in use are as they were; the
    value and the moves are those told; no bound is above the value. Rates may be off by 1e-9.

    >>> from slicewise.core.packing import GpuStock
    >>> import slicewise
    >>> empty = PackProblem((), (GpuStock(slicewise.device("a30")),))
    >>> verify(empty, Packing((), value=1.0, bounds=()))
    Traceback (most recent call last):
    slicewise.core.errors.PartitionError: the packing is wrong: value 1 is told, it is 0
    """
    found = [
        *_cards(problem, packing),
        *(text for gpu in packing.gpus for text in _slices(problem, gpu)),
        *(text for each in problem.workloads for text in _rates(problem, packing, each)),
        *_in_use(problem, packing),
        *_sums(problem, packing),
    ]
    if found:
        raise PartitionError(f"the packing is wrong: {'; '.join(found)}")


def _cards(problem: PackProblem, packing: Packing) -> Iterator[str]:
    counts = {each.device.name: each.count for each in problem.stock}
    for (name, index), times in Counter((g.device, g.index) for g in packing.gpus).items():
        count = counts.get(name)
        if name not in counts:
            yield f"{name} is not in the stock"
        elif index < 0 or (count is not None and index >= count):
            yield f"{name} number {index} is not among the {count} of the stock"
        if times > 1:
            yield f"{name} number {index} is there {times} times"


def _slices(problem: PackProblem, gpu: PlacedGpu) -> Iterator[str]:
    where = f"{gpu.device} number {gpu.index}"
    device = next((s.device for s in problem.stock if s.device.name == gpu.device), None)
    if device is None:
        return
    names = {profile.name: profile for profile in device.profiles}
    taken: dict[int, str] = {}
    whole = [each for each in gpu.slices if each.profile is None]
    if whole and (len(gpu.slices) > 1 or whole[0].start != 0):
        yield f"{where} is used whole and has slices"
    there: list[SliceProfile] = []
    for each in gpu.slices:
        yield from _content(problem, device, each, where)
        if each.profile is None:
            continue
        profile = names.get(each.profile)
        if profile is None:
            yield f"{where} has no profile {each.profile}"
            continue
        there.append(profile)
        if each.start not in profile.starts:
            yield f"{where}: {each.profile} cannot start at {each.start}"
        for slot in range(each.start, each.start + profile.size):
            if slot in taken:
                yield f"{where}: {each.profile} and {taken[slot]} overlap at slot {slot}"
            if slot >= device.memory_slots:
                yield f"{where} has no slot {slot}"
            taken[slot] = each.profile
    for profile, count in Counter(there).items():
        if count > profile.max_instances:
            yield f"{where}: {count} of {profile.name}, at most {profile.max_instances} can be"
    if sum("me" in profile.attributes.split(".")[:1] for profile in there) > 1:
        yield f"{where}: more than one slice has the media extension"


def _content(problem: PackProblem, device: Device, each: PlacedSlice, where: str) -> Iterator[str]:
    """Tell what is wrong with what runs in a slice."""
    here = f"{where}, {each.profile or 'whole'} at {each.start}"
    workload = next((w for w in problem.workloads if w.name == each.workload), None)
    offer = each.offer
    if not each.in_use and each.workload is not None and workload is None:
        yield f"{here}: workload {each.workload!r} is unknown"
    if each.rate_per_s < 0 or not math.isfinite(each.rate_per_s):
        yield f"{here}: rate {each.rate_per_s:g} cannot be"
    if offer is None:
        if each.rate_per_s > 0 or (workload is not None and not each.in_use):
            yield f"{here}: {each.workload!r} runs without telling how"
        return
    if each.workload is None:
        yield f"{here}: it is free and serves"
    if (offer.device, offer.profile) != (device.name, each.profile):
        yield f"{here}: its way to serve is one for {offer.device}/{offer.profile}"
    if workload is not None and not each.in_use and offer not in workload.offers:
        yield f"{here}: {workload.name!r} has no such way to be served"
    room = device.memory_bytes
    if each.profile is not None:
        room = next((p.memory_bytes for p in device.profiles if p.name == each.profile), 0)
    if offer.serving.memory_bytes > room and not each.in_use:
        yield (
            f"{here}: {each.workload!r} takes {offer.serving.memory_bytes:,.0f} bytes of"
            f" {room:,} there are"
        )
    if Fraction(each.rate_per_s) > Fraction(offer.capacity_per_s) * (1 + _SLACK):
        yield f"{here}: {each.rate_per_s:g}/s are over its capacity {offer.capacity_per_s:g}/s"


def _placed(packing: Packing) -> Iterator[tuple[PlacedGpu, PlacedSlice]]:
    for gpu in packing.gpus:
        for each in gpu.slices:
            yield gpu, each


def _rates(problem: PackProblem, packing: Packing, workload: PackWorkload) -> Iterator[str]:
    served = sum(
        (
            Fraction(each.rate_per_s)
            for _, each in _placed(packing)
            if each.workload == workload.name
        ),
        Fraction(0),
    )
    left = sum(
        (Fraction(each.rate_per_s) for each in packing.unserved if each.workload == workload.name),
        Fraction(0),
    )
    asked = Fraction(workload.rate_per_s)
    if abs(served + left - asked) > _SLACK * asked:
        told = f" and {float(left):.6g}/s told as unserved" if left else ""
        yield (
            f"{workload.name!r} is served {float(served):.9g}/s{told}, asked are"
            f" {workload.rate_per_s:.9g}/s"
        )


def _in_use(problem: PackProblem, packing: Packing) -> Iterator[str]:
    there = {
        (gpu.device, gpu.index, each.profile, each.start, each.workload)
        for gpu, each in _placed(packing)
        if each.in_use
    }
    before = set()
    for gpu in problem.current:
        for each in gpu.slices:
            if each.in_use:
                key = (gpu.device, gpu.index, each.profile, each.start, each.workload)
                before.add(key)
                if key not in there:
                    yield (
                        f"{each.profile or 'the whole card'} at {each.start} of {gpu.device}"
                        f" number {gpu.index}, in use by {each.workload!r}, is gone or changed"
                    )
    for name, index, profile, start, _ in sorted(there - before, key=str):
        yield f"{profile} at {start} of {name} number {index} is told to be in use, and is not"


def _sums(problem: PackProblem, packing: Packing) -> Iterator[str]:
    value = _value(problem, packing)
    if abs(value - Fraction(packing.value)) > _SLACK * max(value, Fraction(1, 10**6)):
        yield f"value {packing.value:.9g} is told, it is {float(value):.9g}"
    if not packing.unserved:
        for bound in packing.bounds:
            if Fraction(bound.value) > value * (1 + _SLACK):
                told = f"{bound.method} {bound.value:.9g}"
                yield f"bound {told} is above the value {float(value):.9g}"
    moves = _moves(problem, packing)
    if moves != packing.moves:
        yield f"{packing.moves} moves are told, there are {moves}"


def _value(problem: PackProblem, packing: Packing) -> Fraction:
    stock = {each.device.name: each for each in problem.stock}
    total = Fraction(0)
    for gpu in packing.gpus:
        if gpu.device not in stock or all(each.workload is None for each in gpu.slices):
            continue
        each = stock[gpu.device]
        if problem.objective is PackObjective.GPUS:
            total += Fraction(each.cost)
        else:
            total += Fraction(each.device.idle_power_w)
    if problem.objective is PackObjective.ENERGY:
        for _, placed in _placed(packing):
            if placed.offer is not None:
                total += Fraction(placed.rate_per_s) * Fraction(placed.offer.serving.energy_j)
    return total


def _moves(problem: PackProblem, packing: Packing) -> int:
    """Count slices made, removed, or taken from a workload for another."""
    before = {}
    for gpu in problem.current:
        for each in gpu.slices:
            before[gpu.device, gpu.index, each.profile, each.start] = each.workload
    if not before:
        return 0
    moves = 0
    there = set()
    for gpu, each in _placed(packing):
        key = (gpu.device, gpu.index, each.profile, each.start)
        there.add(key)
        # a slice that is only left free, or was free, needs nothing done
        is_as_it_was = each.workload is None or before.get(key) in (None, each.workload)
        if key not in before or not is_as_it_was:
            moves += 1
    return moves + len(before.keys() - there)
