"""Material and wishes become numbers: each wish, and what no cut could keep told at once."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from slicewise.core.device import Link
from slicewise.core.errors import Infeasible, PartitionError, UsageError
from slicewise.core.pipeline import FastMemory, Objective, StageDevice, StageLink
from slicewise.flows.partitioning.pipeline_material import CutTensor, Material
from slicewise.flows.partitioning.pipeline_problem import assemble
from slicewise.flows.partitioning.wishes import LAST, MemoryWish, Selector, Wishes

# a feeds b and c, b feeds d, c feeds d; b and its twin are one kernel
MATERIAL = Material(
    name="fork",
    source="fork.onnx",
    labels=("a", "b", "c", "b2", "d"),
    groups=((0,), (1, 3), (2,), (4,)),
    names=("a", "b", "c", "d"),
    tensors=(
        CutTensor("ta", 0, (1, 2), 1e6),
        CutTensor("tb", 1, (3,), 2e6),
        CutTensor("tc", 2, (3,), 4e6),
        CutTensor("td", 3, (), None),
    ),
    devices={
        "big": StageDevice("big", (1.0, 2.0, 3.0, 4.0), (0.1,) * 4, 1000.0, 10.0, 5.0),
        "small": StageDevice("small", (2.0, 4.0, 6.0, 8.0), (0.1,) * 4, 500.0, 20.0, 2.0),
    },
    memory_bytes=(10.0, 20.0, 30.0, 40.0),
    weight_bytes=(5.0, 5.0, 5.0, 5.0),
    links={"big": Link("fast", 1e9, 1e-6), "small": Link("slow", 5e8, 2e-6)},
)


def _sel(text: str) -> Selector:
    return Selector(text, "c.yaml, line 1: ")


def test_bytes_over_the_link_are_the_cost_and_its_latency_stays_apart() -> None:
    problem = assemble(MATERIAL, Wishes(), stages=3).problem
    assert [transfer.transfer_ms for transfer in problem.transfers] == [1.0, 2.0, 4.0, 0.0]
    assert problem.links == (StageLink(1.0, 1e-3),) * 2
    assert problem.is_uniform


def test_unlike_devices_are_joined_by_the_slower_link() -> None:
    case = assemble(MATERIAL, Wishes(devices=("big", "big", "small")), stages=3)
    assert case.problem.links == (StageLink(1.0, 1e-3), StageLink(2.0, 2e-3))
    assert [case.problem.kinds[place].name for place in case.problem.places] == [
        "big", "big", "small",
    ]  # fmt: skip
    stock = assemble(MATERIAL, Wishes(devices=("big", "small"), any_order=True), stages=2)
    assert not stock.problem.is_placed
    assert [note.code for note in stock.notes] == ["link-slowest"]
    assert stock.problem.transfers[0].transfer_ms == 2.0


def test_a_link_named_is_taken_for_all_and_several_one_by_one() -> None:
    one = assemble(MATERIAL, Wishes(links=(Link("l", 1e8, 0.0),)), stages=3).problem
    assert (one.transfers[0].transfer_ms, one.links) == (10.0, ())
    several = (Link("l", 1e8, 0.0), Link("m", 2e8, 5e-6))
    two = assemble(MATERIAL, Wishes(links=several), stages=3).problem
    assert two.links == (StageLink(1.0, 0.0), StageLink(0.5, 5e-3))
    with pytest.raises(UsageError, match="2 links are given for 4 stages"):
        assemble(MATERIAL, Wishes(links=several), stages=4)


def test_reserves_add_and_limits_are_those_of_the_stage_then_the_device_then_all() -> None:
    wishes = Wishes(
        devices=("big", "big", "small"),
        memory=MemoryWish(300.0, 1.0),
        device_memory={"small": MemoryWish(200.0)},
        stage_memory={1: MemoryWish(150.0, 7.0)},
    )
    problem = assemble(MATERIAL, wishes, stages=3).problem
    kinds = [problem.kinds[place] for place in problem.places]
    assert [kind.memory_limit_bytes for kind in kinds] == [300.0, 150.0, 200.0]
    assert [kind.reserve_bytes for kind in kinds] == [11.0, 17.0, 21.0]
    with pytest.raises(UsageError, match="stage 3, of 3 stages"):
        assemble(MATERIAL, Wishes(stage_memory={3: MemoryWish(1.0)}), stages=3)
    with pytest.raises(UsageError, match=r"device 'bigg'.*did you mean big"):
        assemble(MATERIAL, Wishes(device_memory={"bigg": MemoryWish(1.0)}), stages=3)


def test_nodes_are_named_by_the_model_and_a_kernel_is_one() -> None:
    wishes = Wishes(
        together=((_sel("a"), _sel("b2")),),
        forbidden=((_sel("c"), _sel("d")),),
        pins=((_sel("d"), LAST), (_sel("a"), 0)),
        node_bytes=((_sel("b*"), 3.0),),
    )
    problem = assemble(MATERIAL, wishes, stages=3).problem
    assert problem.together == ((0, 1), (2, 3))
    assert dict(problem.pinned) == {3: 2, 0: 0}
    assert problem.memory_bytes == (10.0, 26.0, 30.0, 40.0)
    alone = assemble(MATERIAL, Wishes(forbidden=((_sel("a"), None),)), stages=2).problem
    assert alone.together == ((0, 1), (0, 2))


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"pins": ((_sel("d"), 3),)}, "c.yaml, line 1: 'd' is pinned to stage 3, of 3 stages"),
        ({"pins": ((_sel("b"), 0), (_sel("b2"), 1))}, "'b2' is pinned to stage 1, and a node of"),
        ({"forbidden": ((_sel("b"), _sel("c")),)}, "no tensor goes from 'b' to 'c'"),
        ({"together": ((_sel("x"),),)}, "no node is called"),
        ({"devices": ("big", "small")}, "2 devices are named for 3 stages"),
        ({"any_order": True}, "any order of one kind"),
        ({"limit_ms": 3.0}, "limit-ms 3 says nothing"),
        ({"objective": Objective.ENERGY}, "needs a limit"),
        ({"replicates": True, "devices": ("big", "big", "small")}, "need them in any order"),
        ({"stage_memory": {0: MemoryWish(1e9)}, "replicates": True}, "without replicas"),
    ],
)
def test_wishes_that_cannot_be_are_refused(wishes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        assemble(MATERIAL, Wishes(**wishes), stages=3)


def test_variants_reach_the_problem() -> None:
    wishes = Wishes(overlaps=True, hops=True, fast_memory=FastMemory(64.0, 0.5))
    problem = assemble(MATERIAL, wishes, stages=2).problem
    assert (problem.overlaps, problem.hops, problem.replicates) == (True, True, False)
    assert problem.kinds[0].fast_memory == FastMemory(64.0, 0.5)
    assert problem.weight_bytes == MATERIAL.weight_bytes
    energy = assemble(
        MATERIAL, Wishes(objective=Objective.ENERGY, limit_ms=20.0, link_w=30.0), stages=2
    )
    assert (energy.problem.limit_ms, energy.problem.transfer_j_per_ms) == (20.0, 0.03)
    assert energy.problem.kinds[0].static_w == 5.0
    assert energy.notes == ()
    silent = assemble(MATERIAL, Wishes(objective=Objective.ENERGY, limit_ms=20.0), stages=2)
    assert [note.code for note in silent.notes] == ["link-energy-unknown"]


def test_a_node_that_no_stage_can_hold_is_named_with_what_would_fit() -> None:
    words = (
        "node 'd' of 'fork' needs 40 B and 10 B reserved in each stage; the limit of big is 45 B,"
        " 5 B too little; a limit of 50 B would fit"
    )
    with pytest.raises(Infeasible, match=re.escape(words)):
        assemble(MATERIAL, Wishes(memory=MemoryWish(45.0)), stages=4)
    with pytest.raises(Infeasible, match="node 'c' and the 1 that share its stage"):
        together = ((_sel("c"), _sel("d")),)
        assemble(MATERIAL, Wishes(memory=MemoryWish(60.0), together=together), stages=4)
    with pytest.raises(Infeasible, match=r"2 stages .* need 100 B for nodes alone"):
        assemble(MATERIAL, Wishes(memory=MemoryWish(55.0)), stages=2)


def test_a_node_that_no_device_can_run_or_in_time_is_named() -> None:
    barred = replace(MATERIAL.devices["big"], work_ms=(1.0, math.inf, 1.0, 1.0))
    material = replace(MATERIAL, devices={"big": barred})
    with pytest.raises(Infeasible, match=r"node 'b' .* can run on none of the devices big"):
        assemble(material, Wishes(), stages=2)
    with pytest.raises(Infeasible, match=r"'d' .* takes 4.00 ms alone; the limit is 3.00 ms"):
        assemble(MATERIAL, Wishes(objective=Objective.ENERGY, limit_ms=3.0), stages=2)


def test_a_device_without_a_link_asks_for_one() -> None:
    material = replace(MATERIAL, links={"big": None})
    with pytest.raises(UsageError, match=r"big has no link of its own .* --link 25GB/s"):
        assemble(material, Wishes(), stages=2)
    assert assemble(material, Wishes(), stages=1).problem.stages == 1
    assert assemble(material, Wishes(links=(Link("l", 1e9, 0.0),)), stages=2).problem.links == ()


def test_a_tensor_of_unknown_size_needs_the_source_s_own_cost() -> None:
    tensors = (CutTensor("ta", 0, (1, 2), None, 0.5), *MATERIAL.tensors[1:])
    material = replace(MATERIAL, tensors=tensors)
    with pytest.raises(PartitionError, match="size of tensor 'ta'"):
        assemble(material, Wishes(), stages=2)


def test_more_stages_than_the_file_has_accelerators_are_noted() -> None:
    case = assemble(replace(MATERIAL, most_stages=2), Wishes(), stages=5)
    assert case.problem.stages == 2
    assert [note.code for note in case.notes] == ["stages-limited"]


def test_what_the_source_colocates_is_kept_besides_wishes() -> None:
    material = replace(MATERIAL, together=((0, 3),))
    problem = assemble(material, Wishes(together=((_sel("a"), _sel("b")),)), stages=2).problem
    assert problem.together == ((0, 3), (0, 1))
