"""Small packing problems at random, large ones with a known optimum, and brute force.

Slow and plain on purpose: it shares with the solvers the meaning of the types alone. What can
stand on a card is handed in by the test as rows of counts.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import numpy as np
from hypothesis import strategies as st

from slicewise.core.cost import Estimate
from slicewise.core.device import Device
from slicewise.core.packing import GpuStock, Offer, PackProblem, PackWorkload, Serving

# (profile, count) of one maximal layout; None is the whole card
Layouts = Mapping[str, Sequence[Mapping[str | None, int]]]

_PARTS = [0.2, 0.3, 0.5, 0.6, 0.9, 1.0, 1.1, 1.7, 2.0, 2.4]


def offer_of(
    device: str, profile: str | None, capacity_per_s: float, *, energy_j: float = 0.0
) -> Offer:
    """Return an offer that takes no memory to speak of."""
    serving = Serving(
        1, 1, Estimate(5.0, low=5.0, high=5.0), capacity_per_s, 1e8, energy_j, "predicted"
    )
    return Offer(device, profile, serving, capacity_per_s)


def workload_of(name: str, rate_per_s: float, offers: Sequence[Offer]) -> PackWorkload:
    """Return a workload with a target that its offers are said to meet."""
    return PackWorkload(name, rate_per_s, 20.0, 99.0, tuple(offers))


@st.composite
def problems(
    draw: st.DrawFn, devices: Sequence[Device], *, most: int = 4, is_energy: bool = False
) -> PackProblem:
    """Draw a problem with up to `most` workloads, whose larger slices carry no less."""
    chosen = draw(st.lists(st.sampled_from(devices), min_size=1, max_size=2, unique=True))
    costs = draw(st.lists(st.sampled_from([1.0, 1.0, 1.5, 2.0]), min_size=2, max_size=2))
    stock = tuple(
        GpuStock(device, None, 1.0 if is_energy else cost)
        for device, cost in zip(chosen, costs, strict=False)
    )
    count = draw(st.integers(1, most))
    made = []
    for number in range(count):
        rate = 100.0
        offers = []
        for device in chosen:
            parts = [(p.compute_units / device.compute_units, p.name) for p in device.profiles
                     if not p.attributes]  # fmt: skip
            scale = draw(st.sampled_from(_PARTS[-5:] if is_energy else _PARTS))
            for part, profile in [*sorted(parts), (1.0, None)]:
                if draw(st.integers(0, 4)) == 0:
                    continue
                shape = draw(st.sampled_from([1.0, 0.8, 0.6]))
                energy = draw(st.sampled_from([0.1, 0.2, 0.5])) if is_energy else 0.0
                capacity = round(rate * scale * 2 * part**shape, 1)
                if capacity > 0:
                    offers.append(offer_of(device.name, profile, capacity, energy_j=energy))
        made.append(workload_of(f"w{number}", rate, offers))
    return PackProblem(tuple(made), stock)


def optimum(problem: PackProblem, layouts: Layouts, *, most_cards: int = 6) -> float:
    """Return the least cost of the cards that serve everything; inf beyond `most_cards` cards.

    For counts and costs of cards, not for energy. Tries every multiset of layouts in order of
    cost, and for each whether its slices can be dealt out.
    """
    kinds = [
        (
            stock.cost,
            stock.device.name,
            Counter({(stock.device.name, p): n for p, n in row.items()}),
        )
        for stock in problem.stock
        for row in layouts[stock.device.name]
    ]
    if any(not each.offers for each in problem.workloads):
        return math.inf
    for cost, chosen in sorted(_choices(kinds, most_cards), key=lambda each: each[0]):
        counts = Counter(name for _, name, _ in chosen)
        if any(s.count is not None and counts[s.device.name] > s.count for s in problem.stock):
            continue
        there: Counter[tuple[str, str | None]] = Counter()
        for _, _, row in chosen:
            there.update(row)
        if _can_deal(problem, there):
            return cost
    return math.inf


def _choices(
    kinds: Sequence[tuple[float, str, Counter[tuple[str, str | None]]]], most: int
) -> Iterator[tuple[float, tuple[tuple[float, str, Counter[tuple[str, str | None]]], ...]]]:
    for count in range(most + 1):
        for chosen in itertools.combinations_with_replacement(kinds, count):
            yield math.fsum(cost for cost, _, _ in chosen), chosen


def _can_deal(problem: PackProblem, there: Counter[tuple[str, str | None]]) -> bool:
    """True if the slices can be dealt out so that each workload's rate is covered."""
    resources = sorted(there, key=str)
    tables = []
    for workload in problem.workloads:
        best = dict.fromkeys(resources, 0.0)
        for each in workload.offers:
            key = (each.device, each.profile)
            if key in best:
                best[key] = max(best[key], each.capacity_per_s)
        tables.append((workload.rate_per_s, [best[r] for r in resources]))

    @cache
    def deal(place: int, left: tuple[int, ...]) -> bool:
        if place == len(tables):
            return True
        rate, capacity = tables[place]
        for taken in itertools.product(*(range(n + 1) for n in left)):
            if math.fsum(n * c for n, c in zip(taken, capacity, strict=True)) >= rate * (
                1 - 1e-12
            ):
                after = tuple(n - t for n, t in zip(left, taken, strict=True))
                if deal(place + 1, after):
                    return True
        return False

    return deal(0, tuple(there[r] for r in resources))


def planted(
    device: Device, layouts: Layouts, *, cards: int, workloads: int, seed: int
) -> PackProblem:
    """Return a problem whose optimum is exactly `cards`.

    Full layouts are drawn at random and their slices dealt to the workloads. A slice carries at
    most a part of a workload's rate for each of its compute slices, and the layouts used waste
    none: all compute slices of `cards` cards are needed.
    """
    generator = np.random.default_rng(seed)
    sizes = {p.name: p.compute_slices for p in device.profiles}
    whole = max(sizes.values())
    rows = [
        row for row in layouts[device.name]
        if None not in row and sum(sizes[p] * n for p, n in row.items() if p) == whole
    ]  # fmt: skip
    dealt: list[Counter[str]] = [Counter() for _ in range(workloads)]
    slices = [
        profile
        for _ in range(cards)
        for profile, n in rows[int(generator.integers(len(rows)))].items()
        for _ in range(n)
        if profile is not None
    ]
    generator.shuffle(slices)
    for i, profile in enumerate(slices):
        owner = i if i < workloads else int(generator.integers(workloads))
        dealt[owner][profile] += 1
    made = []
    for number, mine in enumerate(dealt):
        if not mine:
            continue
        unit = float(generator.integers(20, 200))
        # the profiles it has are the best ones; others carry less for each compute slice
        offers = [
            offer_of(
                device.name,
                profile,
                unit * size * (1.0 if profile in mine else float(generator.uniform(0.5, 0.99))),
            )
            for profile, size in sizes.items()
            if not device.profile_named(profile).attributes
        ]
        rate = unit * sum(sizes[profile] * n for profile, n in mine.items())
        made.append(workload_of(f"w{number}", rate, offers))
    return PackProblem(tuple(made), (GpuStock(device),))


def fleet(
    devices: Sequence[Device],
    counts: Sequence[int | None],
    *,
    workloads: int,
    load: float,
    seed: int,
) -> PackProblem:
    """Return many workloads of very unlike rates that take about `load` cards in all.

    How well a slice is used differs by workload: some saturate a small slice, some need a large
    one, some do not fit the memory of small ones.
    """
    generator = np.random.default_rng(seed)
    weights = generator.lognormal(0.0, 1.0, workloads)
    weights *= load / weights.sum()
    made = []
    for number in range(workloads):
        speed = {device.name: float(generator.lognormal(0.0, 0.2)) for device in devices}
        shape = float(generator.uniform(0.55, 1.0))
        memory = float(generator.choice([2e9, 4e9, 8e9, 15e9]))
        base = float(generator.uniform(50.0, 2000.0))
        offers = []
        for device in devices:
            relative = (
                device.memory_bandwidth_bytes_per_s / devices[0].memory_bandwidth_bytes_per_s
            )
            for profile in device.profiles:
                if profile.attributes or profile.memory_bytes < memory:
                    continue
                part = profile.compute_units / device.compute_units
                rate = base * relative * speed[device.name] * part**shape
                offers.append(offer_of(device.name, profile.name, round(rate, 3)))
            if device.memory_bytes >= memory:
                rate = base * relative * speed[device.name]
                offers.append(offer_of(device.name, None, round(rate, 3)))
        made.append(
            workload_of(f"w{number}", max(0.01, round(base * float(weights[number]), 3)), offers)
        )
    stock = tuple(GpuStock(device, count) for device, count in zip(devices, counts, strict=True))
    return PackProblem(tuple(made), stock)
