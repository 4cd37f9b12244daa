"""Rates far beyond the cards, and of very many cards: what fits is served, and counts are told."""

import pytest

from slicewise.core.device import Device
from slicewise.core.packing import (
    GpuStock,
    Offer,
    Packing,
    PackProblem,
    PlacedGpu,
    PlacedSlice,
)
from slicewise.hardware.catalogue import find_device
from slicewise.testing.packings import offer_of, workload_of
from tests.slices.packs import layouts_of, solved, without_ortools

A100 = find_device("a100-sxm4-80gb")
A30 = find_device("a30")


def ways_on(device: Device, whole: float) -> list[Offer]:
    """Return offers on all slices that carry more for their size the smaller they are."""
    parts = {p.name: p.compute_units / device.compute_units for p in device.profiles
             if not p.attributes}  # fmt: skip
    rates = {name: round(whole * part**0.8, 1) for name, part in parts.items()}
    return [
        *(offer_of(device.name, name, rate) for name, rate in rates.items()),
        offer_of(device.name, None, whole),
    ]


def carried(found: Packing, name: str) -> float:
    return sum(s.rate_per_s for gpu in found.gpus for s in gpu.slices if s.workload == name)


@pytest.mark.parametrize("is_solved", [True, False])
@pytest.mark.parametrize("cards", [2, 8])
@pytest.mark.parametrize("times", [1.2, 1.5, 4.0, 30.0, 1e6, 1e290])
def test_whatever_is_asked_all_cards_serve_what_they_can(
    times: float, cards: int, is_solved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers = ways_on(A100, 14_000.0)
    rates = {each.profile: each.capacity_per_s for each in offers}
    whole = max(
        sum(rates.get(name, 0.0) * count for name, count in layout.items())
        for layout in layouts_of([A100])[A100.name]
    )
    if not is_solved:
        without_ortools(monkeypatch)
    rate = times * cards * whole
    found = solved(PackProblem((workload_of("w", rate, offers),), (GpuStock(A100, cards),)))
    assert found.gpus_used == cards
    assert carried(found, "w") == pytest.approx(cards * whole)
    (left,) = found.unserved
    assert left.rate_per_s == pytest.approx(rate - cards * whole)


def test_cards_of_which_some_are_in_use_serve_what_is_free() -> None:
    offers = ways_on(A100, 14_000.0)
    rates = {each.profile: each.capacity_per_s for each in offers}
    used = PlacedGpu(A100.name, 0, (PlacedSlice("4g.40gb", 0, None, in_use=True),))
    works = (workload_of("w", 1e9, offers),)
    found = solved(PackProblem(works, (GpuStock(A100, 2),), current=(used,)))
    full = max(
        sum(rates.get(name, 0.0) * count for name, count in layout.items())
        for layout in layouts_of([A100])[A100.name]
    )
    assert carried(found, "w") == pytest.approx(full + 3 * rates["1g.10gb"])


def test_a_workload_beyond_all_cards_leaves_the_others_theirs() -> None:
    works = (
        workload_of("vast", 1e9, ways_on(A100, 14_000.0)),
        workload_of("small", 5_000.0, ways_on(A100, 14_000.0)),
    )
    found = solved(PackProblem(works, (GpuStock(A100, 2),)))
    assert [each.workload for each in found.unserved] == ["vast"]
    assert carried(found, "small") == pytest.approx(5_000.0)
    assert carried(found, "vast") > 20_000.0
    assert "at least" in found.unserved[0].reason


@pytest.mark.parametrize("rate", [1e6, 3e7])
def test_very_many_cards_are_counted_and_proven(rate: float) -> None:
    works = (workload_of("w", rate, ways_on(A100, 14_000.0)),)
    found = solved(PackProblem(works, (GpuStock(A100),)))
    assert not found.unserved and found.gap < 0.001


def test_costs_of_no_small_common_part_are_added_up() -> None:
    work = workload_of("w", 50_000.0, [offer_of(A100.name, None, 20_000.0)])
    for cost in (1 / 3, 0.123456789, 1e-6, 1e6):
        found = solved(PackProblem((work,), (GpuStock(A100, 3, cost), GpuStock(A30, 3, cost))))
        assert found.value == pytest.approx(3 * cost) and found.is_optimal
