"""The check of answers: a true one passes, and each sort of lie is told by name."""

from dataclasses import replace

import pytest

from slicewise.core.errors import PartitionError
from slicewise.core.packing import (
    GpuStock,
    PackBound,
    Packing,
    PackObjective,
    PackProblem,
    PlacedGpu,
    PlacedSlice,
    Unserved,
)
from slicewise.hardware.catalogue import find_device
from slicewise.slices.verify import verify
from slicewise.testing.packings import offer_of, workload_of

CARD = find_device("a100-sxm4-80gb")
SMALL = offer_of(CARD.name, "1g.10gb", 50.0, energy_j=0.5)
LARGE = offer_of(CARD.name, "3g.40gb", 160.0, energy_j=0.4)
WHOLE = offer_of(CARD.name, None, 400.0, energy_j=0.3)
WORK = workload_of("a", 100.0, [SMALL, LARGE, WHOLE])
OTHER = workload_of("b", 40.0, [SMALL])
PROBLEM = PackProblem((WORK, OTHER), (GpuStock(CARD, 2),))

GPU = PlacedGpu(
    CARD.name,
    0,
    (
        PlacedSlice("1g.10gb", 0, "b", SMALL, 40.0),
        PlacedSlice("3g.40gb", 4, "a", LARGE, 100.0),
    ),
)
TRUE = Packing((GPU,), 1.0, (PackBound(1.0, "columns", is_exact=True),))


def with_slices(*slices: PlacedSlice) -> Packing:
    return replace(TRUE, gpus=(replace(GPU, slices=slices),))


B = GPU.slices[0]
A = GPU.slices[1]


def test_a_true_answer_passes() -> None:
    verify(PROBLEM, TRUE)


@pytest.mark.parametrize(
    ("packing", "words"),
    [
        (with_slices(B, replace(A, start=2)), "3g.40gb cannot start at 2"),
        (with_slices(replace(B, start=4), A), "overlap at slot 4"),
        (with_slices(B, replace(A, profile="9g.99gb")), "no profile 9g.99gb"),
        (with_slices(B, replace(A, profile=None)), "used whole and has slices"),
        (with_slices(B, replace(A, rate_per_s=100.1)), "'a' is served"),
        (with_slices(replace(B, rate_per_s=51.0), A), "over its capacity"),
        (with_slices(B), "'a' is served 0/s"),
        (with_slices(B, replace(A, offer=SMALL)), "is one for a100-sxm4-80gb/1g.10gb"),
        (with_slices(B, replace(A, offer=replace(LARGE, max_delay_ms=1.0))), "no such way"),
        (with_slices(B, replace(A, offer=None)), "without telling how"),
        (with_slices(B, A, PlacedSlice("1g.10gb", 1, "c", SMALL, 0.0)), "'c' is unknown"),
        (with_slices(B, A, PlacedSlice("1g.10gb", 1, None, SMALL, 0.0)), "free and serves"),
        (with_slices(B, A, PlacedSlice("1g.10gb", 1, in_use=True)), "told to be in use"),
        (replace(TRUE, gpus=(GPU, GPU)), "is there 2 times"),
        (replace(TRUE, gpus=(replace(GPU, index=2),)), "not among the 2"),
        (replace(TRUE, gpus=(replace(GPU, device="a30"),)), "a30 is not in the stock"),
        (replace(TRUE, value=2.0), "value 2 is told, it is 1"),
        (replace(TRUE, bounds=(PackBound(1.5, "columns"),)), "bound columns 1.5 is above"),
        (replace(TRUE, moves=3), "3 moves are told, there are 0"),
        (replace(TRUE, unserved=(Unserved("a", 5.0, "no card"),)), "told as unserved"),
    ],
)
def test_each_lie_is_told(packing: Packing, words: str) -> None:
    with pytest.raises(PartitionError, match=words):
        verify(PROBLEM, packing)


def test_all_lies_are_told_at_once() -> None:
    wrong = replace(with_slices(replace(B, start=4), replace(A, rate_per_s=1.0)), value=7.0)
    with pytest.raises(PartitionError) as told:
        verify(PROBLEM, wrong)
    for words in ("overlap", "'a' is served", "value 7"):
        assert words in str(told.value)


def test_memory_is_checked_against_what_is_usable() -> None:
    profile = CARD.profile_named("1g.10gb")
    for memory, is_right in ((profile.memory_bytes, True), (profile.memory_bytes + 1, False)):
        fat = replace(SMALL, serving=replace(SMALL.serving, memory_bytes=memory))
        work = workload_of("b", 40.0, [fat])
        problem = PackProblem((work,), (GpuStock(CARD),))
        made = replace(TRUE, gpus=(replace(GPU, slices=(replace(B, offer=fat),)),))
        if is_right:
            verify(problem, made)
        else:
            with pytest.raises(PartitionError, match="bytes of"):
                verify(problem, made)


def test_one_slice_with_the_media_extension_is_enough() -> None:
    slices = tuple(PlacedSlice("1g.10gb+me", start, None, in_use=True) for start in (2, 3))
    problem = replace(PROBLEM, current=(PlacedGpu(CARD.name, 0, slices),))
    with pytest.raises(PartitionError, match="media extension"):
        verify(problem, with_slices(B, A, *slices))


def test_slices_in_use_must_stay() -> None:
    used = PlacedSlice("2g.20gb", 2, "x", in_use=True)
    problem = replace(PROBLEM, current=(PlacedGpu(CARD.name, 0, (used,)),))
    with pytest.raises(PartitionError, match="in use by 'x', is gone"):
        verify(problem, TRUE)
    verify(problem, replace(with_slices(B, A, used), moves=2))


def test_moves_are_slices_made_removed_or_given_away() -> None:
    now = (
        PlacedSlice("1g.10gb", 0, "a"),  # given to b
        PlacedSlice("1g.10gb", 1, "a"),  # left free
        PlacedSlice("2g.20gb", 2, "b"),  # removed
    )
    problem = replace(PROBLEM, current=(PlacedGpu(CARD.name, 0, now),))
    verify(problem, replace(with_slices(B, A, PlacedSlice("1g.10gb", 1)), moves=3))


def test_a_slice_that_stood_free_is_used_without_a_move() -> None:
    now = (PlacedSlice("1g.10gb", 0), PlacedSlice("3g.40gb", 4, "a"))
    problem = replace(PROBLEM, current=(PlacedGpu(CARD.name, 0, now),))
    verify(problem, replace(TRUE, moves=0))
    with pytest.raises(PartitionError, match="1 moves are told, there are 0"):
        verify(problem, replace(TRUE, moves=1))


def test_the_value_is_power_where_energy_is_asked() -> None:
    problem = replace(PROBLEM, objective=PackObjective.ENERGY)
    watts = CARD.idle_power_w + 40.0 * 0.5 + 100.0 * 0.4
    verify(problem, replace(TRUE, value=watts, bounds=()))
    with pytest.raises(PartitionError, match="value"):
        verify(problem, replace(TRUE, value=watts + 1, bounds=()))
