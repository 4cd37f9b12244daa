"""What a cut costs: the definition in floats and the one in exact arithmetic say the same."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.errors import Infeasible, PartitionError
from slicewise.core.pipeline import (
    Assignment,
    Bound,
    FastMemory,
    Objective,
    Partition,
    PipelineProblem,
    StageDevice,
    StageLink,
    Transfer,
    Trust,
)
from slicewise.partition.evaluate import (
    like_devices,
    objective_of,
    objective_or_raise,
    stage_loads,
)
from slicewise.partition.verify import exact_objective, verify
from slicewise.testing.pipelines import VARIANTS, cuts, optimum, problems


def chain(*works: float, cost_ms: float = 1.0, stages: int = 2) -> PipelineProblem:
    """A chain of nodes, each tensor as costly as the others."""
    count = len(works)
    return PipelineProblem(
        "chain",
        tuple("abcdefghij"[:count]),
        tuple(Transfer(n, (n + 1,), cost_ms, 2.0) for n in range(count - 1)),
        (StageDevice("d", works),),
        (0,) * stages,
    )


@pytest.mark.parametrize("variant", VARIANTS)
@given(st.data())
def test_floats_and_fractions_agree_on_every_cut(variant: str, data: st.DataObject) -> None:
    problem = data.draw(problems(variant, max_nodes=5))
    for cut in cuts(problem):
        try:
            told = objective_or_raise(problem, cut)
        except Infeasible:
            with pytest.raises(PartitionError):
                exact_objective(problem, cut)
            continue
        # costs are exact in binary, a third of them is not
        assert float(exact_objective(problem, cut)) == told


@given(problems(), st.sampled_from([0.5, 2.0]))
def test_the_unit_of_time_is_nothing(problem: PipelineProblem, factor: float) -> None:
    if problem.objective is Objective.ENERGY or any(kind.fast_memory for kind in problem.kinds):
        return
    scaled = replace(
        problem,
        kinds=tuple(
            replace(kind, work_ms=tuple(factor * work for work in kind.work_ms))
            for kind in problem.kinds
        ),
        transfers=tuple(replace(t, transfer_ms=factor * t.transfer_ms) for t in problem.transfers),
        links=tuple(replace(link, latency_ms=factor * link.latency_ms) for link in problem.links),
    )
    assert optimum(scaled, objective_or_raise) == factor * optimum(problem, objective_or_raise)


@given(problems("plain"))
def test_more_stages_never_hurt(problem: PipelineProblem) -> None:
    more = problem.with_stages(problem.stages + 1)
    assert optimum(more, objective_or_raise) <= optimum(problem, objective_or_raise)


def test_a_tensor_is_paid_once_by_its_producer_and_once_by_each_stage_that_uses_it() -> None:
    problem = PipelineProblem(
        "fan",
        ("a", "b", "c", "d"),
        (Transfer(0, (1, 2, 3), 10.0),),
        (StageDevice("d", (1.0, 2.0, 3.0, 4.0)),),
        (0, 0, 0),
    )
    loads = stage_loads(problem, like_devices(problem, (0, 1, 1, 2)))
    assert [load.load_ms for load in loads] == [11.0, 15.0, 14.0]
    hopping = stage_loads(replace(problem, hops=True), like_devices(problem, (0, 1, 1, 2)))
    assert [load.load_ms for load in hopping] == [11.0, 25.0, 14.0]
    overlapped = replace(problem, overlaps=True)
    assert objective_or_raise(overlapped, like_devices(problem, (0, 1, 1, 2))) == 10.0


def test_each_link_has_its_own_bandwidth_and_latency() -> None:
    problem = replace(
        chain(1.0, 1.0, 1.0, stages=3), links=(StageLink(2.0, 0.5), StageLink(4.0, 0.25))
    )
    loads = stage_loads(problem, like_devices(problem, (0, 1, 2)))
    assert [(load.receive_ms, load.send_ms) for load in loads] == [
        (0, 2.5),
        (2.5, 4.25),
        (4.25, 0),
    ]


def test_replicas_share_the_load_and_draw_static_power_each() -> None:
    problem = replace(
        chain(6.0, 2.0, stages=3),
        kinds=(StageDevice("d", (6.0, 2.0), energy_j=(1.0, 1.0), static_w=100.0),),
        replicates=True,
        objective=Objective.ENERGY,
        limit_ms=10.0,
    )
    loads = stage_loads(problem, Assignment((0, 1), (0, 0), (2, 1)))
    assert [load.load_ms for load in loads] == [3.5, 3.0]
    assert [load.energy_j for load in loads] == [3.0, 2.0]


def test_weights_that_find_no_room_are_read_again() -> None:
    fast = FastMemory(10.0, 0.5)
    problem = replace(
        chain(1.0, 1.0, 1.0, stages=1),
        kinds=(StageDevice("edge", (1.0, 1.0, 1.0), fast_memory=fast),),
        weight_bytes=(4.0, 4.0, 4.0),
    )
    (load,) = stage_loads(problem, like_devices(problem, (0, 0, 0)))
    assert (load.fast_bytes, load.work_ms) == (4.0, 6.0)  # two tensors alive: 6 of 12 bytes spill


@pytest.mark.parametrize(
    ("cut", "told"),
    [
        (Assignment((1, 0), (0, 0), (1, 1)), "'b' is in stage 0, before its input 'a'"),
        (Assignment((0, 2), (0, 0), (1, 1)), "not in 0 to 1"),
        (Assignment((0,), (0, 0), (1, 1)), "another size"),
        (Assignment((0, 1), (0, 0), (2, 1)), "has no replicas"),
        (Assignment((0, 1), (0, 0), (1, 0)), "has no device"),
    ],
)
def test_what_is_no_cut_is_named(cut: Assignment, told: str) -> None:
    with pytest.raises(PartitionError, match=told):
        stage_loads(chain(1.0, 1.0), cut)
    with pytest.raises(PartitionError):
        exact_objective(chain(1.0, 1.0), cut)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"places": ()}, "0 stages"),
        ({"places": (1,)}, "kind of device that is not there"),
        ({"names": (), "transfers": ()}, "no nodes"),
        ({"transfers": (Transfer(0, (7,), 1.0),)}, "has a node that is not there"),
        ({"transfers": (Transfer(1, (0,), 1.0),)}, "must come after it"),
        ({"transfers": (Transfer(0, (1,), math.nan),)}, "has the cost nan"),
        ({"transfers": (Transfer(0, (1,), -1.0),)}, "has the cost -1.0"),
        ({"kinds": (StageDevice("d", (1.0,)),)}, "has 1 values, not 2"),
        ({"kinds": (StageDevice("d", (math.nan, 1.0)),)}, "has the cost nan"),
        ({"links": (StageLink(), StageLink())}, "2 links for 2 stages"),
        ({"pinned": {0: 5}}, "stages 0 to 1"),
        ({"together": ((0, 9),)}, "holds a node together that is not there"),
        ({"objective": Objective.ENERGY}, "give the energy of each node and a limit"),
        ({"links": (StageLink(2.0),), "replicates": True, "pinned": {0: 0}}, "pins nodes"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(change: dict[str, object], told: str) -> None:
    with pytest.raises(PartitionError, match=told):
        replace(chain(1.0, 1.0), **change)  # type: ignore[arg-type]


def _partition(problem: PipelineProblem, stage_of: tuple[int, ...], *bounds: Bound) -> Partition:
    cut = like_devices(problem, stage_of)
    loads = stage_loads(problem, cut)
    return Partition(cut, loads, objective_of(problem, loads), bounds, "by hand", 0, 0.0)


def test_a_wrong_value_bound_or_proof_does_not_pass() -> None:
    problem = chain(3.0, 2.0)
    made = _partition(problem, (0, 1), Bound("work", 2.5, Trust.CHECKED))
    assert (made.value, made.is_optimal) == (4.0, False)
    assert made.gap == pytest.approx(4.0 / 2.5 - 1)
    assert verify(problem, made, rechecks={"work": lambda *_: True}) == ()
    (note,) = verify(problem, made, rechecks={"work": lambda *_: None})
    assert note.code == "bound-not-rechecked"
    with pytest.raises(PartitionError, match="has no proof"):
        verify(problem, made, rechecks={"work": lambda *_: False})
    with pytest.raises(PartitionError, match="exactly it is 4"):
        verify(problem, replace(made, value=3.9), rechecks={})
    with pytest.raises(PartitionError, match="above the value"):
        high = replace(made, bounds=(Bound("cp-sat", 4.1, Trust.SOLVER),))
        verify(problem, high, rechecks={})
