"""The schedule: nothing at two places at once, nothing before it is there, and its length."""

import math
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slicewise.core.errors import PartitionError
from slicewise.core.pipeline import Assignment, PipelineProblem, StageDevice, StageLoad, Transfer
from slicewise.partition.evaluate import stage_loads
from slicewise.partition.simulate import PARTS, Busy, Schedule, senders, simulate
from slicewise.testing.pipelines import cuts, problems

ITEMS = 12


@st.composite
def _cases(draw: st.DrawFn) -> tuple[PipelineProblem, Assignment, tuple[StageLoad, ...]]:
    problem = draw(problems(max_nodes=5))
    every = [cut for _, cut in zip(range(40), cuts(problem), strict=False)]
    assume(every)
    cut = draw(st.sampled_from(every))
    loads = stage_loads(problem, cut)
    assume(all(load.work_ms < math.inf for load in loads))
    return problem, cut, loads


def _bottleneck(loads: tuple[StageLoad, ...]) -> float:
    return max(load.load_ms for load in loads)


def _units(schedule: Schedule, *, overlaps: bool) -> dict[tuple[int, int, str], list[Busy]]:
    found: dict[tuple[int, int, str], list[Busy]] = {}
    for span in schedule.spans:
        key = (span.stage, span.replica, span.part if overlaps else "")
        found.setdefault(key, []).append(span)
    return found


@given(_cases(), st.sampled_from([0.0, 1.0]))
def test_no_unit_of_a_stage_does_two_things_at_once(
    case: tuple[PipelineProblem, Assignment, tuple[StageLoad, ...]], periods: float
) -> None:
    problem, cut, loads = case
    made = simulate(problem, cut, loads, items=ITEMS, period_ms=periods * _bottleneck(loads))
    for spans in _units(made, overlaps=problem.overlaps).values():
        for before, after in pairwise(spans):
            assert after.start_ms >= before.end_ms


@given(_cases())
def test_an_item_is_received_worked_on_and_sent_after_all_that_it_needs(
    case: tuple[PipelineProblem, Assignment, tuple[StageLoad, ...]],
) -> None:
    problem, cut, loads = case
    made = simulate(problem, cut, loads, items=ITEMS)
    needs = senders(problem, cut)
    ends: dict[tuple[int, int], float] = {}
    for span in made.spans:
        key = (span.stage, span.item)
        assert span.start_ms >= ends.get(key, 0.0)
        for other in needs[span.stage]:
            assert span.start_ms >= ends.get((other, span.item), 0.0)
        ends[key] = span.end_ms
    for stage, load in enumerate(loads):
        lengths = (load.receive_ms, load.work_ms, load.send_ms)
        for part, length in zip(PARTS, lengths, strict=True):
            its = [s for s in made.spans if (s.stage, s.part) == (stage, part)]
            assert len(its) == (ITEMS if length > 0 else 0)
            assert all(math.isclose(s.end_ms - s.start_ms, length) for s in its)


@given(_cases())
def test_in_the_long_run_an_item_takes_the_bottleneck(
    case: tuple[PipelineProblem, Assignment, tuple[StageLoad, ...]],
) -> None:
    problem, cut, loads = case
    bottleneck = _bottleneck(loads)
    made = simulate(problem, cut, loads, items=60, period_ms=bottleneck)
    whole = sum(sum((load.receive_ms, load.work_ms, load.send_ms)) for load in loads)
    most = max(load.replicas for load in loads)
    assert made.end_ms <= 60 * bottleneck + 2 * whole + 1e-9
    assert made.end_ms >= (60 - most) * bottleneck - 1e-9
    quick = simulate(problem, cut, loads, items=60)
    assert quick.end_ms <= made.end_ms + 1e-9
    assert quick.end_ms >= (60 - most) * bottleneck - 1e-9


@given(st.lists(st.tuples(*[st.integers(0, 5)] * 2), min_size=1, max_size=5), st.booleans())
def test_a_chain_takes_the_sum_of_loads_and_a_bottleneck_for_each_further_item(
    drawn: list[tuple[int, int]], overlaps: bool
) -> None:
    problem = _chain([float(work) for work, _ in drawn], [float(cost) for _, cost in drawn],
                     overlaps=overlaps)  # fmt: skip
    count = len(drawn)
    cut = Assignment(tuple(range(count)), (0,) * count, (1,) * count)
    loads = stage_loads(problem, cut)
    made = simulate(problem, cut, loads, items=ITEMS)
    parts = [p for load in loads for p in (load.receive_ms, load.work_ms, load.send_ms)]
    greatest = max(parts) if overlaps else _bottleneck(loads)
    assert made.end_ms == sum(parts) + (ITEMS - 1) * greatest
    assert made.interval_ms == pytest.approx(greatest)


def _chain(works: list[float], costs: list[float], *, overlaps: bool = False) -> PipelineProblem:
    count = len(works)
    return PipelineProblem(
        "chain",
        tuple(f"n{i}" for i in range(count)),
        tuple(
            Transfer(i, (i + 1,) if i + 1 < count else (), cost) for i, cost in enumerate(costs)
        ),
        (StageDevice("d", tuple(works)),),
        (0,) * count,
        overlaps=overlaps,
    )


def test_the_pipeline_is_full_between_its_two_marks() -> None:
    problem = _chain([2.0, 3.0, 1.0], [1.0, 0.0, 0.0])
    cut = Assignment((0, 1, 2), (0, 0, 0), (1, 1, 1))
    loads = stage_loads(problem, cut)
    made = simulate(problem, cut, loads, items=4, period_ms=4.0)
    assert (made.full_ms, made.drain_ms, made.end_ms) == (7.0, 15.0, 20.0)
    assert [span.start_ms for span in made.spans if span.stage == 0 and span.part == "work"] == [
        0.0, 4.0, 8.0, 12.0,
    ]  # fmt: skip


def test_replicas_take_turns() -> None:
    problem = PipelineProblem(
        "two", ("a", "b"), (Transfer(0, (1,), 0.0),), (StageDevice("d", (1.0, 3.0)),), (0,) * 4,
        replicates=True,
    )  # fmt: skip
    cut = Assignment((0, 1), (0, 0), (1, 3))
    made = simulate(problem, cut, stage_loads(problem, cut), items=6)
    assert [span.replica for span in made.spans if span.stage == 1] == [0, 1, 2, 0, 1, 2]
    assert made.done_ms == (4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
    assert (made.full_ms, made.drain_ms) == (3.0, 6.0)


@pytest.mark.parametrize(("items", "period"), [(0, 0.0), (1, -1.0), (1, math.nan)])
def test_a_schedule_of_nothing_is_refused(items: int, period: float) -> None:
    problem = _chain([1.0], [0.0])
    cut = Assignment((0,), (0,), (1,))
    with pytest.raises(PartitionError, match="give 1 item or more"):
        simulate(problem, cut, stage_loads(problem, cut), items=items, period_ms=period)
