"""What people write about slices: read as meant, or refused in one clear line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.errors import DeviceError
from slicewise.core.packing import PlacedSlice
from slicewise.hardware.catalogue import device_names, find_device
from slicewise.slices.layouts import Placement, is_legal, maximal_layouts
from slicewise.slices.validate import WrittenSlice, placed_slices, read_gpu_name, read_slices

SLICED = [device for name in device_names() if (device := find_device(name)).profiles]
A100, H100, L4 = find_device("a100-sxm4-80gb"), find_device("h100-sxm5-80gb"), find_device("l4")


@given(st.data())
def test_a_layout_written_down_is_read_back(data: st.DataObject) -> None:
    device = data.draw(st.sampled_from(SLICED))
    layout = data.draw(st.sampled_from(maximal_layouts(device)))
    words = []
    for each in data.draw(st.permutations(layout)):
        name = device.profile_named(each.profile)
        spelling = data.draw(st.sampled_from([name.name, *name.aliases]))
        spelling = data.draw(st.sampled_from([spelling, spelling.upper(), f"MIG {spelling}"]))
        words.append(f"{spelling}@{each.start}")
    text = data.draw(st.sampled_from([" ", ", ", "; ", "\t"])).join(words)
    slices, notes = placed_slices(read_slices(text, device), device)
    assert [(each.profile, each.start) for each in slices] == [
        (each.profile, each.start) for each in layout
    ]
    assert notes == ()


@given(st.data())
def test_starts_that_are_not_told_are_chosen_and_noted(data: st.DataObject) -> None:
    device = data.draw(st.sampled_from(SLICED))
    layout = data.draw(st.sampled_from(maximal_layouts(device)))
    written = [WrittenSlice(each.profile) for each in layout]
    slices, notes = placed_slices(written, device)
    assert sorted(each.profile or "" for each in slices) == sorted(each.profile for each in layout)
    assert is_legal(device, [Placement(each.profile or "", each.start) for each in slices])
    assert [note.code for note in notes] == ["slice-start-chosen"]
    assert device.name in notes[0].text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3g.40gb@4=resnet50!", [WrittenSlice("3g.40gb", 4, "resnet50", is_in_use=True)]),
        ("MIG 3g.39gb@4", [WrittenSlice("3g.40gb", 4)]),
        ("mig-1g.10gb.me@0", [WrittenSlice("1g.10gb+me", 0)]),
        ("3x1g.10gb", [WrittenSlice("1g.10gb")] * 3),
        ("2 x MIG 1g.10gb, 3g.40gb@4", [*[WrittenSlice("1g.10gb")] * 2,
                                        WrittenSlice("3g.40gb", 4)]),
        ("whole=my-model:v1", [WrittenSlice(None, None, "my-model:v1")]),
        ("WHOLE@0!", [WrittenSlice(None, 0, is_in_use=True)]),
        ("", []),
        (" - ", []),
    ],
)  # fmt: skip
def test_spellings(text: str, found: list[WrittenSlice]) -> None:
    assert list(read_slices(text, A100)) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3g.40gb@0@2", r"'3g\.40gb@0@2' is no slice of a100-sxm4-80gb; write slices as in"),
        ("@3", "'@3' is no slice"),
        ("1g.10gb@", "'1g.10gb@' is no slice"),
        ("5g.50gb@0", r"no slice profile '5g\.50gb'; it has 1g\.10gb, .*did you mean"),
        ("2g.10gb@0", r"no slice profile '2g\.10gb'.*did you mean 2g\.20gb"),
        ("2x1g.10gb@0", "has 2 slices at one start; write each with its own, or leave @0 out"),
        ("whole@2", "a card is whole once, from slot 0"),
        ("2xwhole", "a card is whole once"),
    ],
)
def test_words_that_are_no_slice_are_refused(text: str, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        read_slices(text, A100)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3g.40gb@4 2g.20gb@4", r"3g\.40gb@4 \(slots 4 to 7\) and 2g\.20gb@4 \(slots 4 to 5\)"
         " overlap at slots 4 to 5; `slicewise devices a100-sxm4-80gb --layouts` shows"),
        ("4g.40gb@4", "4g.40gb cannot start at slot 4; it can at 0"),
        ("1g.10gb+me@0 1g.10gb+me@1", "2 instances of 1g.10gb.me are more than the 1"),
        ("3x3g.40gb", "3x3g.40gb of a100-sxm4-80gb find no room;"),
        ("1g.10gb 7g.80gb@0", "1x1g.10gb of a100-sxm4-80gb find no room beside 7g.80gb@0"),
        ("whole 3g.40gb@0", "is given whole and cut at once; leave one of them out"),
    ],
)  # fmt: skip
def test_slices_that_cannot_stand_together_are_refused(text: str, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        placed_slices(read_slices(text, A100), A100)


def test_a_card_without_mig_can_be_whole_only() -> None:
    slices, notes = placed_slices(read_slices("whole=vgg", L4), L4)
    assert (slices, notes) == ((PlacedSlice(None, 0, "vgg"),), ())
    with pytest.raises(DeviceError, match=r"l4 cannot be sliced \(no MIG profiles\)"):
        read_slices("1g.10gb@0", L4)
    assert placed_slices((), L4) == ((), ())


def test_workloads_stay_with_their_slices_where_starts_are_chosen() -> None:
    text = "1g.10gb=a 1g.10gb=b! 2g.20gb@4=c"
    slices, _ = placed_slices(read_slices(text, A100), A100)
    assert {(each.profile, each.workload, each.in_use) for each in slices} == {
        ("1g.10gb", "a", False), ("1g.10gb", "b", True), ("2g.20gb", "c", False),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kind", "index"),
    [
        ("gpu0", None, 0),
        ("GPU 7", None, 7),
        ("12", None, 12),
        ("card3", None, 3),
        ("a100-sxm4-80gb#2", A100, 2),
        ("A100-SXM4-80GB gpu1", A100, 1),
        ("h100-sxm5-80gb: 4", H100, 4),
        ("h100-sxm5-80gb-5", H100, 5),
    ],
)
def test_names_of_cards(text: str, kind: object, index: int) -> None:
    assert read_gpu_name(text, [A100, H100]) == (kind, index)


@pytest.mark.parametrize(
    "text",
    ["", "x", "a100-sxm4-80gb", "a100-sxm4-80gb/1", "gpu", "l4#0", "gpu-1", "-1", "card:-1",
     "a100-sxm4-80gb gpu-1", "a100-sxm4-80gb#-1"],
)  # fmt: skip
def test_what_names_no_card_is_refused(text: str) -> None:
    with pytest.raises(DeviceError, match="names no card; write gpu0, or with several kinds"):
        read_gpu_name(text, [A100, H100])


def test_a_misspelt_kind_is_told_the_nearest() -> None:
    with pytest.raises(DeviceError, match="did you mean a100-sxm4-80gb"):
        read_gpu_name("a100-sxm-80gb#1", [A100, H100])
