"""The pack solver: agreement with brute force, laws, slices in use, what cannot be served."""

import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slicewise.core.errors import UsageError
from slicewise.core.packing import (
    GpuStock,
    PackObjective,
    PackProblem,
    PlacedGpu,
    PlacedSlice,
)
from slicewise.hardware.catalogue import find_device
from slicewise.slices.pack import pack
from slicewise.slices.packing.search import Search
from slicewise.slices.verify import verify
from slicewise.testing.packings import (
    fleet,
    offer_of,
    optimum,
    planted,
    problems,
    workload_of,
)
from tests.slices.packs import layouts_of, solved, without_ortools

A100 = find_device("a100-sxm4-80gb")
A30 = find_device("a30")
L4 = find_device("l4")  # no MIG


small = problems([A100, A30, L4], most=3)


@given(small)
@settings(deadline=None, max_examples=40)
def test_the_answer_is_that_of_brute_force(problem: PackProblem) -> None:
    best = optimum(problem, layouts_of([A100, A30, L4]), most_cards=3)
    assume(best < 1e9)
    found = solved(problem)
    assert found.value == pytest.approx(best)
    assert found.is_optimal


@given(problems([A30, L4], most=5))
@settings(deadline=None, max_examples=40)
def test_no_bound_is_above_the_optimum_without_a_solver(problem: PackProblem) -> None:
    best = optimum(problem, layouts_of([A30, L4]), most_cards=4)
    assume(best < 1e9)
    with pytest.MonkeyPatch.context() as patch:
        without_ortools(patch)
        found = solved(problem)
    assert found.bound <= best * (1 + 1e-9)
    assert found.value >= best * (1 - 1e-9)
    assert all(bound.is_exact for bound in found.bounds)


@given(problems([A100, A30], most=5, is_energy=True))
@settings(deadline=None, max_examples=30)
def test_energy_is_never_above_that_of_the_fewest_cards(problem: PackProblem) -> None:
    frugal = solved(replace(problem, objective=PackObjective.ENERGY))
    few = solved(problem)
    assume(not few.unserved)
    energy = replace(problem, objective=PackObjective.ENERGY)
    watts = sum(
        energy.device(gpu.device).idle_power_w
        + sum(each.rate_per_s * each.offer.serving.energy_j for each in gpu.slices if each.offer)
        for gpu in few.gpus
    )
    assert frugal.is_optimal, (frugal.value, frugal.bounds, frugal.method, frugal.seconds)
    assert frugal.value <= watts * (1 + 1e-9)
    assert frugal.bound <= watts * (1 + 1e-9)


@given(problems([A100, A30], most=5))
@settings(deadline=None, max_examples=30)
def test_one_more_workload_never_frees_a_gpu(problem: PackProblem) -> None:
    assume(all(each.offers for each in problem.workloads) and len(problem.workloads) > 1)
    less = replace(problem, workloads=problem.workloads[:-1])
    assert solved(less).value <= solved(problem).value + 1e-9


@given(problems([A100, A30], most=4), st.floats(1.0, 3.0))
@settings(deadline=None, max_examples=30)
def test_offers_that_carry_more_never_need_more(problem: PackProblem, times: float) -> None:
    assume(all(each.offers for each in problem.workloads))
    better = replace(
        problem,
        workloads=tuple(
            replace(
                work,
                offers=tuple(
                    replace(each, capacity_per_s=each.capacity_per_s * times)
                    for each in work.offers
                ),
            )
            for work in problem.workloads
        ),
    )
    assert solved(better).value <= solved(problem).value + 1e-9


@given(problems([A100, A30], most=4), st.permutations(range(4)))
@settings(deadline=None, max_examples=20)
def test_the_order_of_workloads_does_not_matter(problem: PackProblem, order: list[int]) -> None:
    mixed = tuple(problem.workloads[i] for i in order if i < len(problem.workloads))
    assert solved(replace(problem, workloads=mixed)).value == pytest.approx(solved(problem).value)


@pytest.mark.parametrize("cards", [1, 3, 8, 16])
@pytest.mark.parametrize("workloads", [2, 12])
def test_planted_optima_are_found_and_proven(cards: int, workloads: int) -> None:
    problem = planted(A100, layouts_of([A100]), cards=cards, workloads=workloads, seed=cards)
    found = solved(problem)
    assert (found.gpus_used, found.is_optimal) == (cards, True)


def test_a_mixed_fleet_is_packed_close_to_its_bound() -> None:
    problem = fleet([A100, A30], [40, 20], workloads=80, load=30.0, seed=1)
    found = solved(problem)
    assert not found.unserved
    assert found.gap <= 0.03
    used = Counter(gpu.device for gpu in found.gpus)
    assert used[A100.name] <= 40 and used[A30.name] <= 20


def test_the_same_seed_gives_the_same_answer() -> None:
    problem = fleet([A100, A30], [None, None], workloads=30, load=8.0, seed=4)
    first, second = solved(problem, seed=5), solved(problem, seed=5)
    assert (first.gpus, first.value, first.bounds) == (second.gpus, second.value, second.bounds)
    assert first.seed == 5


# --- rates, places, costs


def test_rates_are_split_by_capacity_and_no_slice_is_made_in_vain() -> None:
    offers = [offer_of(A100.name, "1g.10gb", 10.0), offer_of(A100.name, "3g.40gb", 40.0)]
    found = solved(PackProblem((workload_of("w", 75.0, offers),), (GpuStock(A100),)))
    (gpu,) = found.gpus
    loads = {each.rate_per_s / each.offer.capacity_per_s for each in gpu.slices if each.offer}
    assert max(loads) == pytest.approx(min(loads))
    assert sum(each.rate_per_s for each in gpu.slices) == pytest.approx(75.0)
    assert all(each.workload == "w" for each in gpu.slices)


def test_the_largest_profile_stays_free() -> None:
    offers = [offer_of(A100.name, "1g.10gb", 10.0)]
    found = solved(PackProblem((workload_of("w", 25.0, offers),), (GpuStock(A100),)))
    (gpu,) = found.gpus
    taken = {each.start for each in gpu.slices}
    assert len(taken) == 3 and (max(taken) < 4 or min(taken) >= 4)


def test_unlike_costs_decide_which_cards_are_used() -> None:
    offers = [offer_of(A100.name, None, 100.0), offer_of(L4.name, None, 40.0)]
    work = workload_of("w", 100.0, offers)
    for cost, name in ((0.3, L4.name), (0.4, A100.name)):
        stock = (GpuStock(A100), GpuStock(L4, cost=cost))
        found = solved(PackProblem((work,), stock))
        assert {gpu.device for gpu in found.gpus} == {name}
        assert found.is_optimal
        assert found.value == pytest.approx(min(1.0, 3 * cost))


def test_energy_prefers_the_frugal_slice() -> None:
    thirsty = offer_of(A100.name, "1g.10gb", 100.0, energy_j=2.0)
    frugal = offer_of(A100.name, "4g.40gb", 100.0, energy_j=0.5)
    work = workload_of("w", 100.0, [thirsty, frugal])
    found = solved(PackProblem((work,), (GpuStock(A100),), PackObjective.ENERGY))
    assert [each.profile for each in found.gpus[0].slices] == ["4g.40gb"]
    assert found.value == pytest.approx(A100.idle_power_w + 50.0)
    assert found.is_optimal


def test_nothing_to_pack_needs_no_card() -> None:
    found = solved(PackProblem((), (GpuStock(A100, 2),)))
    assert (found.gpus, found.value, found.is_optimal, found.moves) == ((), 0.0, True, 0)


# --- what stands already


HALF = (offer_of(A100.name, "3g.40gb", 100.0), offer_of(A100.name, "4g.40gb", 130.0))
SMALL = (offer_of(A100.name, "1g.10gb", 30.0), offer_of(A100.name, "2g.20gb", 70.0))


def test_a_slice_in_use_stays_and_carries() -> None:
    used = PlacedSlice("3g.40gb", 4, "a", HALF[0], 60.0, in_use=True)
    works = (workload_of("a", 150.0, (*HALF, *SMALL)), workload_of("b", 30.0, SMALL))
    problem = PackProblem(works, (GpuStock(A100, 3),), current=(PlacedGpu(A100.name, 1, (used,)),))
    found = solved(problem)
    assert found.gpus_used == 1 and found.is_optimal
    (gpu,) = found.gpus
    assert gpu.index == 1
    kept = next(each for each in gpu.slices if each.in_use)
    assert (kept.profile, kept.start, kept.workload) == ("3g.40gb", 4, "a")
    assert kept.rate_per_s > 0


def test_a_foreign_slice_in_use_only_takes_room() -> None:
    used = PlacedSlice("1g.10gb+me", 3, None, in_use=True)
    problem = PackProblem(
        (workload_of("a", 100.0, HALF[:1]), workload_of("b", 100.0, HALF[:1])),
        (GpuStock(A100, 2),),
        current=(PlacedGpu(A100.name, 0, (used,)),),
    )
    found = solved(problem)
    assert found.gpus_used == 1  # both on the empty card: beside the foreign slice one fits
    assert found.is_optimal


def test_nothing_moves_where_all_is_well() -> None:
    works = (workload_of("a", 100.0, HALF), workload_of("b", 60.0, SMALL))
    first = solved(PackProblem(works, (GpuStock(A100),)))
    again = solved(PackProblem(works, (GpuStock(A100),), current=first.gpus))
    assert again.moves == 0
    assert again.value == first.value


def test_a_larger_slice_than_needed_is_kept_rather_than_changed() -> None:
    now = (PlacedSlice("4g.40gb", 0, "a", HALF[1], 50.0), PlacedSlice("1g.10gb", 6, "b"))
    works = (workload_of("a", 50.0, HALF), workload_of("b", 20.0, SMALL))
    problem = PackProblem(works, (GpuStock(A100),), current=(PlacedGpu(A100.name, 0, now),))
    found = solved(problem)
    assert found.moves == 0
    assert [(each.profile, each.workload) for each in found.gpus[0].slices] == [
        ("4g.40gb", "a"), ("1g.10gb", "b"),
    ]  # fmt: skip


def test_one_more_workload_changes_only_what_it_must() -> None:
    works = tuple(workload_of(f"w{i}", 100.0, HALF) for i in range(5))
    first = solved(PackProblem(works[:4], (GpuStock(A100),)))
    more = solved(PackProblem(works, (GpuStock(A100),), current=first.gpus))
    assert more.value == 3
    assert more.moves == 1


def test_few_cards_come_before_few_moves() -> None:
    apart = tuple(PlacedGpu(A100.name, i, (PlacedSlice("3g.40gb", 0, f"w{i}"),)) for i in range(2))
    works = tuple(workload_of(f"w{i}", 90.0, HALF) for i in range(2))
    found = solved(PackProblem(works, (GpuStock(A100),), current=apart))
    assert found.value == 1
    assert found.moves == 1  # the slice left behind is free, and need not go
    assert [gpu.is_used for gpu in found.gpus] == [True, False]


def test_slices_that_stand_free_are_used_before_any_is_made() -> None:
    names = ["2g.20gb", "2g.20gb", "1g.10gb", "1g.10gb", "1g.10gb"]
    starts = [0, 2, 4, 5, 6]
    free = tuple(PlacedSlice(name, at) for name, at in zip(names, starts, strict=True))
    current = (PlacedGpu(A100.name, 0, free),)
    works = (
        workload_of("a", 140.0, SMALL[1:]),
        workload_of("b", 55.0, SMALL[:1]),
        workload_of("c", 25.0, SMALL[:1]),
    )
    found = solved(PackProblem(works, (GpuStock(A100, 3),), current=current))
    (gpu,) = found.gpus
    assert (found.value, found.moves, gpu.index) == (1.0, 0, 0)
    assert [(each.profile, each.start) for each in gpu.slices] == [
        (each.profile, each.start) for each in free
    ]
    assert all(each.workload for each in gpu.slices)


def test_a_free_slice_is_taken_before_one_of_another_workload() -> None:
    now = tuple(PlacedSlice("1g.10gb", at, name) for at, name in enumerate(["gone", None, "b"]))
    problem = PackProblem(
        (workload_of("a", 20.0, SMALL[:1]), workload_of("b", 20.0, SMALL[:1])),
        (GpuStock(A100),),
        current=(PlacedGpu(A100.name, 4, now),),
    )
    found = solved(problem)
    assert found.moves == 0
    assert [each.workload for each in found.gpus[0].slices] == [None, "a", "b"]


def test_of_equal_moves_cards_that_hold_slices_come_first() -> None:
    now = (PlacedSlice("1g.10gb", 6),)
    problem = PackProblem(
        (workload_of("a", 90.0, HALF[:1]),), (GpuStock(A100, 3),),
        current=(PlacedGpu(A100.name, 1, now),),
    )  # fmt: skip
    found = solved(problem)
    assert found.moves == 1
    assert [(gpu.index, gpu.is_used) for gpu in found.gpus] == [(1, True)]


def test_a_freed_slice_stays_where_it_is_in_nobody_s_way() -> None:
    now = (PlacedSlice("3g.40gb", 0, "gone"), PlacedSlice("1g.10gb", 6, "b"))
    problem = PackProblem(
        (workload_of("b", 20.0, SMALL),), (GpuStock(A100),),
        current=(PlacedGpu(A100.name, 0, now),),
    )  # fmt: skip
    found = solved(problem)
    assert found.moves == 0
    assert found.gpus[0].slices[0] == PlacedSlice("3g.40gb", 0)


@given(problems([A100, A30], most=4), problems([A100, A30], most=4))
@settings(deadline=None, max_examples=15)
def test_what_stands_never_costs_a_card(before: PackProblem, after: PackProblem) -> None:
    stands = solved(before).gpus
    stock = tuple(GpuStock(device) for device in (A100, A30))
    plain = solved(replace(after, stock=stock))
    again = solved(replace(after, stock=stock, current=stands))
    assert again.value == pytest.approx(plain.value)


# --- what cannot be served


def test_a_workload_without_offers_is_told() -> None:
    works = (workload_of("a", 90.0, HALF), workload_of("b", 1.0, ()))
    found = solved(PackProblem(works, (GpuStock(A100),)))
    (left,) = found.unserved
    assert (left.workload, left.rate_per_s) == ("b", 1.0)
    assert "within 20 ms" in left.reason
    assert found.gpus_used == 1 and not found.is_optimal


def test_rates_beyond_the_fleet_tell_how_many_cards_would_do() -> None:
    works = (workload_of("a", 1000.0, HALF), workload_of("b", 90.0, HALF))
    found = solved(PackProblem(works, (GpuStock(A100, 2),)))
    assert found.gpus_used == 2 and found.bounds == ()
    served = {each.workload: each.rate_per_s for each in found.unserved}
    # two halves of each card: b is served whole, the rest goes to a
    assert served == {"a": pytest.approx(1000.0 - 130.0 - 130.0 - 100.0)}
    assert "5 cards would serve all: a100-sxm4-80gb x 5 (there are 2)" in found.unserved[0].reason


def test_no_cards_at_all_serve_nothing() -> None:
    found = solved(PackProblem((workload_of("a", 90.0, HALF),), (GpuStock(A100, 0),)))
    assert found.gpus == () and found.unserved[0].rate_per_s == 90.0
    assert "1 cards would serve all" in found.unserved[0].reason


def test_offers_on_other_cards_are_left_out_with_a_note() -> None:
    work = workload_of("a", 90.0, [*HALF, offer_of("h100-sxm5-80gb", "1g.10gb", 500.0)])
    found = solved(PackProblem((work,), (GpuStock(A100),)))
    assert [note.code for note in found.notes] == ["offer-left-out"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stock": ()}, "no cards"),
        ({"stock": (GpuStock(A100), GpuStock(A100))}, "twice"),
        ({"stock": (GpuStock(A100, -1),)}, "count -1"),
        ({"stock": (GpuStock(A100, cost=0.0),)}, "cost 0"),
        ({"stock": (GpuStock(A100, cost=1e300),)}, "cost 1e.300 of a100"),
        ({"stock": (GpuStock(A100, cost=float("nan")),)}, "cost nan"),
        ({"stock": (GpuStock(A100, cost=1e6), GpuStock(A30, cost=0.5))}, "times cost 0.5"),
        (
            {"stock": (GpuStock(A100),), "workloads": (workload_of("a", 1e9, HALF),)},
            "at least 4,347,827 cards would be needed",
        ),
        (
            {"stock": (GpuStock(A100),), "workloads": (workload_of("a", 1e300, HALF),)},
            "at least 4.35e.297 cards would be needed",
        ),
        ({"workloads": (workload_of("a", 1.0, HALF),) * 2}, "'a' is there twice"),
        ({"workloads": (workload_of("a", 0.0, HALF),)}, "rate_per_s=0"),
        ({"current": (PlacedGpu("a30", 0, ()),)}, "not in the stock"),
        ({"current": (PlacedGpu(A100.name, 7, ()),)}, "number 7"),
        ({"current": (PlacedGpu(A100.name, 0, ()),) * 2}, "twice"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], words: str) -> None:
    problem = PackProblem((workload_of("a", 1.0, HALF),), (GpuStock(A100, 2),))
    with pytest.raises(UsageError, match=words):
        pack(replace(problem, **change))


def test_a_time_limit_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="--time-limit"):
        pack(PackProblem((), (GpuStock(A100),)), time_limit_s=-1.0)


# --- the search


def test_without_time_there_is_an_answer_all_the_same() -> None:
    problem = fleet([A100, A30], [None, None], workloads=60, load=20.0, seed=2)
    found = pack(problem, time_limit_s=0.0)
    verify(problem, found)
    assert not found.unserved and found.value > 0


def test_without_ortools_the_built_in_methods_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    made = fleet([A100, A30], [30, 30], workloads=60, load=25.0, seed=6)
    problem = replace(made, objective=PackObjective.ENERGY)
    best = pack(problem, time_limit_s=3.0, workers=1)
    without_ortools(monkeypatch)
    found = solved(problem)
    assert "solver-missing" in [note.code for note in found.notes]
    assert not found.unserved
    assert found.value <= 1.25 * best.value
    assert 0.9 * best.bound <= found.bound <= best.value


def test_ctrl_c_leaves_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = fleet([A100, A30], [None, None], workloads=60, load=20.0, seed=2)

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "_recreate", interrupted)
    found = solved(problem)
    assert "search-interrupted" in [note.code for note in found.notes]
    assert not found.unserved and found.bound <= found.value


def test_news_are_told() -> None:
    lines: list[str] = []
    problem = fleet([A100, A30], [None, None], workloads=30, load=8.0, seed=3)
    started = time.monotonic()
    found = solved(problem, told=lines.append)
    assert lines and "at least" in lines[-1]
    assert 0 <= found.seconds <= time.monotonic() - started
