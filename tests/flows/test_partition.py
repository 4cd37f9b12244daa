"""The verb: what comes back, the curve, what is refused. The search itself is replaced."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slicewise.core.errors import Infeasible, PartitionError, UsageError
from slicewise.core.pipeline import (
    Bound,
    Partition,
    PipelineProblem,
    StageDevice,
    Transfer,
    Trust,
)
from slicewise.flows.partition import partition, partition_curve
from slicewise.flows.partitioning.answers import compact
from slicewise.flows.partitioning.baselines import baselines
from slicewise.flows.partitioning.options import PartitionOptions, parse_stages, wishes_of
from slicewise.flows.partitioning.schedule import schedule_of
from slicewise.partition.evaluate import (
    broken_limits,
    objective_of,
    objective_or_raise,
    stage_loads,
)
from slicewise.testing.pipelines import cuts, problems
from tests import plain_solver

Light = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_solver.install(monkeypatch)


def chain(works: list[float], costs: list[float], *, stages: int = 2, **changes: Any) -> Any:
    """Return a problem of a chain."""
    count = len(works)
    problem = PipelineProblem(
        "chain",
        tuple(f"n{i}" for i in range(count)),
        tuple(
            Transfer(i, (i + 1,) if i + 1 < count else (), cost) for i, cost in enumerate(costs)
        ),
        (StageDevice("d", tuple(works)),),
        (0,) * stages,
    )
    return replace(problem, **changes)


def test_a_model_is_cut_with_its_names_its_batch_and_its_notes(light: Light) -> None:
    made = partition(str(light("resnet50")), stages=3, device="l4", batch=8)
    assert len(made.stage_of) == 176
    assert sorted(set(made.stage_of)) == list(made.used) == [0, 1, 2]
    assert made.throughput_per_s == pytest.approx(8e3 / made.partition.bottleneck_ms)
    assert made.synchronous_ms == pytest.approx(3 * made.partition.bottleneck_ms)
    assert made.asynchronous_ms <= made.synchronous_ms
    assert made.case.graph is not None
    assert {"host-spread", "activations-reserved"} <= {note.code for note in made.notes}


def test_what_is_cut_is_what_is_sent() -> None:
    made = partition(chain([1.0, 4.0, 1.0], [2.0, 0.5, 0.0], stages=3))
    assert made.partition.value == 5.5
    assert [(cut.tensor.name, cut.source, cut.targets) for cut in made.cut_tensors] == [
        ("n1", 0, (1,))
    ]
    assert made.used == (0, 1)  # the empty stage is gone


@given(st.data())
def test_leaving_empty_stages_out_never_makes_a_cut_worse(data: st.DataObject) -> None:
    problem = data.draw(problems(max_nodes=4))
    some = [cut for _, cut in zip(range(60), cuts(problem), strict=False)]
    assume(some)
    cut = data.draw(st.sampled_from(some))
    loads = stage_loads(problem, cut)
    value = objective_of(problem, loads)
    assume(not broken_limits(problem, loads))
    whole = Partition(cut, loads, value, (), "drawn", 0, 0.0)
    made = compact(problem, whole)
    assert objective_or_raise(problem, made.assignment) == pytest.approx(made.value)
    assert made.value <= value + 1e-9
    assert made.loads == stage_loads(problem, made.assignment)
    if problem.is_uniform:
        assert all(load.nodes for load in made.loads)


def test_more_stages_than_nodes_are_legal() -> None:
    made = partition(chain([1.0, 1.0], [0.0, 0.0]), stages=64)
    assert (made.partition.value, made.used, made.case.problem.stages) == (1.0, (0, 1), 64)


def test_a_curve_never_rises_and_bounds_of_more_stages_hold_for_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def worse(problem: PipelineProblem, **asked: Any) -> Partition:
        found = plain_solver.solve(problem)
        if problem.stages == 3:  # a search that found nothing better than one stage
            cut = next(cuts(problem))
            found = replace(
                found, assignment=replace(cut, stage_of=(0,) * problem.nodes), value=10.0,
                bounds=(Bound("late", 2.5, Trust.SOLVER),),
            )  # fmt: skip
        else:
            found = replace(found, bounds=(Bound("early", 1.0, Trust.CHECKED),))
        return found

    plain_solver.install(monkeypatch, solver=worse)
    problem = chain([3.0, 3.0, 3.0, 1.0], [0.0] * 4)
    found = partition_curve(problem, stages=[1, 2, 3, 4])
    assert [made.partition.value for made in found.results] == [10.0, 6.0, 6.0, 3.0]
    assert [made.partition.bound for made in found.results] == [2.5, 2.5, 2.5, 1.0]
    assert found.results[0].partition.bounds[-1].detail["stages"] == 3
    assert "fewer-stages-better" in {note.code for note in found.results[2].notes}


def test_the_knee_is_the_fewest_stages_within_the_tolerance() -> None:
    problem = chain([2.0, 1.0, 1.0, 1.0], [0.0] * 4)
    found = partition_curve(problem, stages=range(1, 5))
    assert [made.partition.value for made in found.results] == [5.0, 3.0, 2.0, 2.0]
    assert found.knee.case.problem.stages == 3


def test_numbers_of_stages_that_no_cut_can_keep_are_left_out_of_a_curve() -> None:
    device = StageDevice("d", (1.0,) * 4, memory_limit_bytes=5.0)
    problem = chain([1.0] * 4, [0.0] * 4, kinds=(device,), memory_bytes=(4.0, 3.0, 2.0, 3.0))
    found = partition_curve(problem, stages=[1, 2, 3, 4])
    assert [made.case.problem.stages for made in found.results] == [3, 4]
    assert [stages for stages, _ in found.infeasible] == [1, 2]
    with pytest.raises(Infeasible, match="2 stages"):
        partition_curve(problem, stages=[1, 2])


def test_ctrl_c_in_a_curve_ends_it_and_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def stopped(problem: PipelineProblem, **asked: Any) -> Partition:
        limits.append(asked["time_limit_s"])
        return plain_solver.interrupted(problem)

    plain_solver.install(monkeypatch, solver=stopped)
    found = partition_curve(chain([1.0, 1.0], [0.0, 0.0]), stages=[1, 2, 3])
    assert [limit > 0 for limit in limits] == [True]
    assert not any(made.partition.is_complete for made in found.results)
    assert [stages for stages, _ in found.infeasible] == [2, 3]
    assert all("Ctrl-C came before" in words for _, words in found.infeasible)


def test_numbers_that_the_time_limit_leaves_no_time_for_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = iter([0.0, 0.0, 61.0, 61.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now, 61.0))
    plain_solver.install(monkeypatch)
    found = partition_curve(chain([1.0, 1.0], [0.0, 0.0]), stages=[1, 2, 3])
    assert len(found.results) == 1
    assert [stages for stages, _ in found.infeasible] == [2, 3]
    assert all("the time limit came before" in words for _, words in found.infeasible)


def test_strict_lists_every_note(light: Light) -> None:
    options = PartitionOptions(strict=True)
    with pytest.raises(PartitionError, match=r"strict: [0-9]+ assumptions .*host-spread"):
        partition(str(light("squeezenet")), stages=2, device="l4", options=options)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"time_limit_s": 0.0}, "time limit 0 s leaves no time"),
        ({"time_limit_s": math.nan}, "time limit nan s"),
        ({"seed": -1}, "seed -1 is not between"),
        ({"objective": "speed"}, "objective 'speed' is unknown"),
        ({"honour": ("limit",)}, "honour 'limit' is unknown"),
        ({"limit_ms": -1.0}, "limit-ms -1"),
        ({"memory_limit_bytes": 0.0}, "memory limit 0"),
        ({"workers": 0}, "workers 0"),
        ({"link": "0GB/s"}, "link '0GB/s'"),
    ],
)
def test_options_that_cannot_be_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        wishes_of(PartitionOptions(**given))


@pytest.mark.parametrize("stages", [0, -1, True, 2.5, 10**6])
def test_a_number_of_stages_that_cannot_be_is_refused(stages: Any) -> None:
    with pytest.raises(UsageError, match="stages"):
        partition(chain([1.0], [0.0]), stages=stages)


@pytest.mark.parametrize("text", ["", "a", "0", "4..2", "2..", "1..65537", "1..400", "-1"])
def test_stages_as_text_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="stages"):
        parse_stages(text)


def test_stages_as_text() -> None:
    assert parse_stages("2..4,8") == [2, 3, 4, 8]


def test_a_problem_made_elsewhere_has_its_own_constraints() -> None:
    with pytest.raises(UsageError, match="carries its own constraints"):
        partition(chain([1.0], [0.0]), options=PartitionOptions(hops=True))


def test_a_curve_of_devices_one_by_one_is_refused(light: Light) -> None:
    options = PartitionOptions(devices=("l4", "t4"))
    with pytest.raises(UsageError, match="are those of one number of stages"):
        partition_curve(str(light("squeezenet")), stages=[1, 2], options=options)


def test_without_a_number_of_stages_the_devices_are_counted(light: Light, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    options = PartitionOptions(devices=("l4", "t4"), link="25GB/s")
    made = partition(str(light("squeezenet")), options=options)
    assert made.case.places == ("l4", "t4")
    with pytest.raises(UsageError, match="number of stages is missing"):
        partition(str(light("squeezenet")), device="l4")
    path.write_text("devices: [l4, t4]\nlinks: 25GB/s\n")
    file = PartitionOptions(constraints=path)
    assert partition(str(light("squeezenet")), options=file).case.places == ("l4", "t4")
    over = partition(str(light("squeezenet")), stages=2, device="l4", options=file)
    assert over.case.places == ("l4", "l4")
    with pytest.raises(UsageError, match="not both"):
        partition(str(light("squeezenet")), device="l4", options=options)


def test_what_does_not_fit_is_told_before_the_search(light: Light) -> None:
    options = PartitionOptions(memory_limit_bytes=1e6)
    with pytest.raises(Infeasible, match="too little; a limit of"):
        partition(str(light("vgg19")), stages=2, device="l4", options=options)


def test_baselines_are_the_splits_that_they_say() -> None:
    problem = chain([1.0, 1.0, 1.0, 5.0, 1.0, 1.0], [0.5] * 5 + [0.0], stages=2)
    count, work = baselines(problem)
    assert (count.rule, count.value) == ("equal number of nodes", 7.5)
    assert (work.rule, work.value) == ("balanced work", 7.5)
    torn = replace(problem, together=((2, 3),))
    assert [each.value for each in baselines(torn)] == [None, None]
    assert "several stages: n2, n3" in baselines(torn)[0].broken


def test_balanced_work_is_the_best_of_all_runs_by_work() -> None:
    for works in ([3.0, 1.0, 4.0, 1.0, 5.0], [0.0, 0.0], [2.0, 7.0, 1.0, 8.0]):
        for stages in (1, 2, 3, 4):
            problem = chain(works, [0.0] * len(works), stages=stages)
            best = min(
                max(
                    sum(works[i] for i in range(len(works)) if cut.stage_of[i] == stage)
                    for stage in range(stages)
                )
                for cut in cuts(problem)
            )
            assert baselines(problem)[1].value == pytest.approx(best, rel=1e-6)


def test_the_schedule_runs_at_the_bottleneck() -> None:
    made = partition(chain([2.0, 3.0], [1.0, 0.0]))
    schedule = schedule_of(made, more_items=6)
    assert len(schedule.done_ms) == 8
    assert schedule.interval_ms == pytest.approx(made.interval_ms)


def test_energy_is_made_least_under_a_limit(light: Light) -> None:
    options = PartitionOptions(objective="energy", limit_ms=5.0)
    made = partition(str(light("squeezenet")), stages=2, device="l4", options=options)
    assert made.partition.value == pytest.approx(made.partition.energy_j)
    assert made.interval_ms == 5.0
    assert all(load.load_ms <= 5.0 for load in made.partition.loads)
