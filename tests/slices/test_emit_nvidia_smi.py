"""Commands of nvidia-smi: run by a shell on a machine of paper, which enforces placements."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slicewise.core.device import Device
from slicewise.core.errors import PartitionError
from slicewise.core.packing import PlacedGpu
from slicewise.slices.emit import emit, emit_files
from slicewise.slices.layouts import Placement, is_legal, maximal_layouts
from tests.slices.cards import A30, A100, B200, RTX, fixed, packing, placed, problem
from tests.slices.paper import Paper

Golden = Callable[[str, str], None]


@pytest.fixture
def paper(tmp_path: Path) -> Callable[[Device], Paper]:
    return lambda device: Paper(tmp_path, device)


@st.composite
def changes(draw: st.DrawFn) -> tuple[Device, PlacedGpu, PlacedGpu | None]:
    """A card, what it is to become, and what stands there now, some of it in use and kept."""
    device = draw(st.sampled_from([A100, A30, B200, RTX]))
    layout = draw(st.sampled_from(maximal_layouts(device)))
    planned = [
        placed(device, each.profile, each.start, "bert") for each in layout if draw(st.booleans())
    ]
    if not planned or not draw(st.booleans()):
        planned = planned or [placed(device, None, 0, "bert")]
        return device, PlacedGpu(device.name, 0, tuple(planned)), None
    kept = [replace(each, in_use=draw(st.booleans())) for each in planned if draw(st.booleans())]
    others = draw(st.sampled_from(maximal_layouts(device)))
    standing = list(kept)
    for each in others:
        spots = [Placement(one.profile or "", one.start) for one in standing]
        if is_legal(device, [*spots, each]) and draw(st.booleans()):
            standing.append(placed(device, each.profile, each.start, "old"))
    current = PlacedGpu(device.name, 0, tuple(standing))
    in_use = {(each.profile, each.start) for each in kept if each.in_use}
    planned = [replace(p, in_use=(p.profile, p.start) in in_use) for p in planned]
    return device, PlacedGpu(device.name, 0, tuple(planned)), current


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(changes())
def test_the_commands_make_the_plan_and_touch_no_slice_in_use(
    paper: Callable[[Device], Paper], case: tuple[Device, PlacedGpu, PlacedGpu | None]
) -> None:
    device, planned, current = case
    machine = paper(device)
    machine.card(0, slices=() if current is None else current.slices)
    before = {each["id"]: each for each in machine.cards["0"]["slices"]}
    asked = problem(device, current=() if current is None else (current,))
    done = machine.run(emit(packing(planned), "nvidia-smi", problem=asked))
    assert done.returncode == 0, done.stderr
    wanted = {(e.profile, e.start) for e in planned.slices if e.profile is not None}
    assert machine.stands(0) == wanted
    stood = {(each["name"], each["start"]) for each in before.values()}
    for each in machine.cards["0"]["slices"]:
        if (each["name"], each["start"]) in stood:  # never made anew
            assert before[each["id"]]["start"] == each["start"]
    made = sum(command.count(":") for command in machine.commands if "-cgi" in command)
    gone = sum("-dgi" in command for command in machine.commands)
    assert (made, gone) == (len(wanted - stood), len(stood - wanted))
    again = machine.run(emit(packing(planned), "nvidia-smi", problem=asked))
    assert again.returncode == 0, again.stderr
    assert machine.stands(0) == wanted
    assert not any(word in line for line in machine.commands for word in ("-cgi", "-dgi", "-mig"))


def test_the_script_is_as_agreed_and_takes_the_machine(golden: Golden) -> None:
    made, asked = fixed()
    current = PlacedGpu(A100.name, 0, (placed(A100, "3g.40gb", 4, "vgg", in_use=True),
                                       placed(A100, "1g.10gb", 0, "old")))  # fmt: skip
    spare = PlacedGpu(A100.name, 3, (placed(A100, "7g.80gb", 0),))
    asked = replace(asked, current=(current, spare))
    text = emit(made, "nvidia-smi", problem=asked)
    golden("emit_nvidia_smi.sh", text)


def test_a_script_for_several_machines_runs_the_part_asked(
    paper: Callable[[Device], Paper],
) -> None:
    first = PlacedGpu(A100.name, 0, (placed(A100, "3g.40gb", 4, "a"),))
    tenth = PlacedGpu(A100.name, 9, (placed(A100, "4g.40gb", 0, "b"),))
    text = emit(packing(first, tenth), "nvidia-smi", problem=problem(A100))
    machine = paper(A100)
    machine.card(0)
    machine.card(1)
    assert machine.run(text).returncode == 2
    done = machine.run(text, "a100-sxm4-80gb-node-1")
    assert done.returncode == 0, done.stderr
    assert (machine.stands(0), machine.stands(1)) == (set(), {("4g.40gb", 0)})
    files = emit_files(packing(first, tenth), "nvidia-smi", problem=problem(A100))
    assert set(files) == {"a100-sxm4-80gb-node-0.sh", "a100-sxm4-80gb-node-1.sh"}
    assert machine.run(files["a100-sxm4-80gb-node-0.sh"]).returncode == 0
    assert machine.stands(0) == {("3g.40gb", 4)}


def test_a_mode_that_waits_for_a_reset_stops_the_script(paper: Callable[[Device], Paper]) -> None:
    machine = paper(A100)
    machine.card(0, pending=True)
    gpu = PlacedGpu(A100.name, 0, (placed(A100, "3g.40gb", 4, "a"),))
    done = machine.run(emit(packing(gpu), "nvidia-smi", problem=problem(A100)))
    assert done.returncode == 1
    assert "nvidia-smi --gpu-reset -i 0; run this again" in done.stderr
    assert not any("-cgi" in command for command in machine.commands)


def test_a_script_goes_on_behind_a_card_that_waited_for_its_reset(
    paper: Callable[[Device], Paper],
) -> None:
    machine = paper(A100)
    machine.card(0)
    machine.card(1, pending=True)
    first = PlacedGpu(A100.name, 0, (placed(A100, "3g.40gb", 4, "a"),))
    second = PlacedGpu(A100.name, 1, (placed(A100, "4g.40gb", 0, "b"),))
    text = emit(packing(first, second), "nvidia-smi", problem=problem(A100))
    assert machine.run(text).returncode == 1
    assert machine.stands(0) == {("3g.40gb", 4)}
    machine.cards["1"]["pending"] = False
    done = machine.run(text)
    assert done.returncode == 0, done.stderr
    assert (machine.stands(0), machine.stands(1)) == ({("3g.40gb", 4)}, {("4g.40gb", 0)})


def test_a_slice_that_is_gone_is_passed_over_and_no_other_is_taken_for_it(
    paper: Callable[[Device], Paper],
) -> None:
    machine = paper(A100)
    machine.card(0, slices=(placed(A100, "1g.10gb", 6), placed(A100, "3g.40gb", 0)))
    current = PlacedGpu(A100.name, 0, (placed(A100, "1g.10gb", 0),))
    planned = PlacedGpu(A100.name, 0, (placed(A100, "2g.20gb", 4, "a"),))
    asked = problem(A100, current=(current,))
    done = machine.run(emit(packing(planned), "nvidia-smi", problem=asked))
    assert done.returncode == 0 and "card 0 has no 1g.10gb at 0:1 any more" in done.stderr
    assert machine.stands(0) == {("1g.10gb", 6), ("3g.40gb", 0), ("2g.20gb", 4)}


def test_a_slice_in_the_way_is_told_and_stays(paper: Callable[[Device], Paper]) -> None:
    machine = paper(A100)
    machine.card(0, slices=(placed(A100, "3g.40gb", 0),))
    planned = PlacedGpu(A100.name, 0, (placed(A100, "4g.40gb", 0, "a"),))
    done = machine.run(emit(packing(planned), "nvidia-smi", problem=problem(A100)))
    assert done.returncode == 1
    assert "card 0: other slices stand in the way of these; remove those" in done.stderr
    assert machine.stands(0) == {("3g.40gb", 0)}


def test_processes_of_a_whole_card_share_the_card() -> None:
    cards = packing(PlacedGpu(A100.name, 2, (placed(A100, None, 0, "a", processes=3),)))
    text = emit(cards, "nvidia-smi", problem=problem(A100))
    assert "share the card through MPS" in text
    assert "CUDA_VISIBLE_DEVICES=2\n" in text and "MIG-UUID" not in text


def test_a_plan_without_a_slice_in_use_is_refused() -> None:
    current = PlacedGpu(A100.name, 0, (placed(A100, "3g.40gb", 4, "a", in_use=True),))
    planned = packing(PlacedGpu(A100.name, 0, (placed(A100, "7g.80gb", 0, "b"),)))
    with pytest.raises(PartitionError, match=r"3g\.40gb@4 of a100-sxm4-80gb#0 is in use"):
        emit(planned, "nvidia-smi", problem=problem(A100, current=(current,)))
    whole = PlacedGpu(A100.name, 0, (placed(A100, None, 0, "a", in_use=True),))
    with pytest.raises(PartitionError, match="in use as a whole"):
        emit(planned, "nvidia-smi", problem=problem(A100, current=(whole,)))
