"""Slices that have little to carry: the quickest way that still does, and nothing else changed."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

import slicewise
from slicewise.core.cost import Estimate
from slicewise.core.packing import (
    GpuStock,
    Offer,
    Packing,
    PackObjective,
    PackProblem,
    PackWorkload,
    PlacedGpu,
    PlacedSlice,
    Serving,
)
from slicewise.flows.packing.calm import calmed, most_per_s
from slicewise.slices.verify import verify

CARD = slicewise.device("a100-sxm4-80gb")
PROFILES = ("1g.10gb", "2g.20gb")


@st.composite
def offers(draw: st.DrawFn) -> Offer:
    value_ms = draw(st.floats(1.0, 50.0))
    high_ms = value_ms * draw(st.floats(1.0, 3.0))
    serving = Serving(
        draw(st.sampled_from([1, 2, 8, 32])),
        draw(st.sampled_from([1, 2, 3])),
        Estimate(value_ms, value_ms, high_ms, "test"),
        1000.0,
        memory_bytes=draw(st.sampled_from([1e9, 2e9])),
    )
    return Offer(
        CARD.name, draw(st.sampled_from(PROFILES)), serving, draw(st.floats(1.0, 500.0)), 1.0
    )


@st.composite
def packings(draw: st.DrawFn) -> tuple[PackProblem, Packing]:
    ways = tuple(draw(st.lists(offers(), min_size=1, max_size=12)))
    slices, start = [], 0
    for _ in range(draw(st.integers(1, 3))):
        offer = draw(st.sampled_from(ways))
        assert offer.profile is not None
        rate_per_s = offer.capacity_per_s * draw(st.floats(0.001, 1.0))
        is_used = draw(st.booleans())
        slices.append(PlacedSlice(offer.profile, start, "a", offer, rate_per_s, is_used))
        start += 2
    gpu = PlacedGpu(CARD.name, 0, tuple(slices))
    asked = sum(each.rate_per_s for each in slices)
    workload = PackWorkload("a", asked, 200.0, 99.0, ways)
    current = (replace(gpu, slices=tuple(each for each in slices if each.in_use)),)
    problem = PackProblem((workload,), (GpuStock(CARD),), current=current)
    kept = sum(each.in_use for each in slices)
    moves = len(slices) - kept if kept else 0
    return problem, Packing((gpu,), 1.0, (), moves=moves)


@given(packings())
def test_every_slice_serves_by_the_quickest_way_that_carries_its_rate(
    case: tuple[PackProblem, Packing],
) -> None:
    problem, packing = case
    made = calmed(problem, packing)
    verify(problem, packing)
    verify(problem, made)
    (workload,) = problem.workloads
    for before, after in zip(packing.gpus[0].slices, made.gpus[0].slices, strict=True):
        assert before.offer is not None and after.offer is not None
        assert replace(after, offer=before.offer) == before
        if before.in_use:
            assert after.offer == before.offer
            continue
        # four fifths full at most, or no fuller than before
        enough = min(before.offer.capacity_per_s, before.rate_per_s / 0.8)
        able = [
            offer.serving.service_ms.high
            for offer in workload.offers
            if offer.profile == before.profile and offer.capacity_per_s >= enough
        ]
        assert after.offer.serving.service_ms.high == min(able)
        assert after.offer.capacity_per_s <= most_per_s(workload, after.offer)


@given(packings())
def test_a_calm_packing_stays_as_it_is_and_so_does_one_of_least_energy(
    case: tuple[PackProblem, Packing],
) -> None:
    problem, packing = case
    once = calmed(problem, packing)
    assert calmed(problem, once) == once
    assert calmed(replace(problem, objective=PackObjective.ENERGY), packing) == packing
