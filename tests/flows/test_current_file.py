"""Layouts that stand: three forms of file, one meaning, every mistake with its line."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from slicewise.core.device import Device
from slicewise.core.errors import DeviceError, SlicewiseError, UsageError
from slicewise.core.packing import Packing, PackProblem, PlacedSlice
from slicewise.flows.packing.current_file import CurrentLayout, read_current
from slicewise.hardware.catalogue import find_device
from slicewise.slices.emit import emit
from tests.slices.cards import KINDS, packings

A100, H100, L4 = find_device("a100-sxm4-80gb"), find_device("h100-sxm5-80gb"), find_device("l4")


def read(folder: Path, text: str, *devices: Device) -> CurrentLayout:
    path = folder / "layout"
    path.write_text(text, encoding="utf-8")
    return read_current(path, devices or (A100,))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(packings())
def test_what_is_printed_is_read_back(tmp_path: Path, case: tuple[Packing, PackProblem]) -> None:
    made, asked = case
    found = read(tmp_path, emit(made, "json", problem=asked), *KINDS)
    told = {
        (g.device, g.index, s.profile, s.start, s.workload) for g in made.gpus for s in g.slices
    }
    assert told == {
        (g.device, g.index, s.profile, s.start, s.workload) for g in found.gpus for s in g.slices
    }
    assert [len(gpu.slices) for gpu in found.gpus].count(0) == sum(
        not gpu.slices for gpu in made.gpus
    )
    servings = {s.offer.serving.batch for g in found.gpus for s in g.slices if s.offer}
    assert servings == {s.offer.serving.batch for g in made.gpus for s in g.slices if s.offer}


def test_lines_of_text(tmp_path: Path) -> None:
    text = (
        "gpu1: whole=bert\ngpu0: 3g.40gb@0=resnet50! 2g.20gb@4 1g.10gb@6  # as it stands\ngpu3:\n"
    )
    found = read(tmp_path, text)
    assert [gpu.index for gpu in found.gpus] == [0, 1, 3]
    assert found.gpus[0].slices == (
        PlacedSlice("3g.40gb", 0, "resnet50", in_use=True),
        PlacedSlice("2g.20gb", 4),
        PlacedSlice("1g.10gb", 6),
    )
    assert found.gpus[1].slices == (PlacedSlice(None, 0, "bert"),)
    assert found.gpus[2].slices == ()
    assert found.notes == ()


def test_lines_name_the_kind_where_there_are_several(tmp_path: Path) -> None:
    text = "h100-sxm5-80gb#0: 1g.20gb@6\na100-sxm4-80gb gpu2: 1g.10gb\n"
    found = read(tmp_path, text, A100, H100)
    assert [(gpu.device, gpu.index) for gpu in found.gpus] == [
        ("a100-sxm4-80gb", 2),
        ("h100-sxm5-80gb", 0),
    ]
    assert [note.code for note in found.notes] == ["slice-start-chosen"]


MIG_PARTED = """version: v1
mig-configs:
  all-balanced:
  - devices: [0, 1]
    mig-enabled: true
    mig-devices:
      "1g.10gb": 2
      "2g.20gb": 1
      "3g.40gb": 1
  - device-filter: "0x20B010DE"
    devices: 2
    mig-enabled: false
    mig-devices: {}
"""


def test_mig_parted(tmp_path: Path) -> None:
    found = read(tmp_path, MIG_PARTED)
    assert [(gpu.index, len(gpu.slices)) for gpu in found.gpus] == [(0, 4), (1, 4), (2, 0)]
    assert [note.code for note in found.notes] == ["slice-start-chosen"]
    assert all(each.workload is None for gpu in found.gpus for each in gpu.slices)


def test_the_kind_of_a_mig_parted_file_is_told_by_its_name_or_its_profiles(tmp_path: Path) -> None:
    own = MIG_PARTED.replace("all-balanced", "slicewise-h100-sxm5-80gb")
    assert {gpu.device for gpu in read(tmp_path, own, A100, H100).gpus} == {"h100-sxm5-80gb"}
    rtx = find_device("rtx-pro-6000-ws")
    lines = MIG_PARTED.split("  - device-filter")[0]
    assert {gpu.device for gpu in read(tmp_path, lines, rtx, A100).gpus} == {"a100-sxm4-80gb"}
    with pytest.raises(DeviceError, match="may be for any of a100-sxm4-80gb, h100-sxm5-80gb"):
        read(tmp_path, MIG_PARTED, A100, H100)


def test_fields_of_the_document_that_are_not_read_may_stand(tmp_path: Path) -> None:
    text = (
        '{"schema": "slicewise.pack/1", "optimal": true, "gpus": [{"device": "a100-sxm4-80gb",'
        ' "index": 0, "slices": [{"profile": "3g.39gb", "start": 4, "workload": "a", "batch": 8,'
        ' "processes": 2, "service_ms": 5e-6, "rate_per_s": null, "colour": "red"}]}]}'
    )
    ((each,),) = (gpu.slices for gpu in read(tmp_path, text).gpus)
    assert (each.profile, each.start, each.workload, each.rate_per_s) == ("3g.40gb", 4, "a", 0.0)
    assert each.offer is not None
    serving = each.offer.serving
    assert (serving.batch, serving.processes, serving.service_ms.value) == (8, 2, 5e-6)


def gpus(*slices: str) -> str:
    return f"gpus: [{{device: a100-sxm4-80gb, index: 0, slices: [\n{','.join(slices)}]}}]"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("gpu0: 3g.40gb@0\ngpu1: 3g.40gb@4 2g.20gb@4", DeviceError,
         r"layout, line 2: layout '3g\.40gb@4 2g\.20gb@4' .* overlap at slots 4 to 5"),
        ("gpu0: 5g.50gb@0", DeviceError, "layout, line 1: a100-sxm4-80gb has no slice profile"),
        ("\ncluster: x", DeviceError, "line 2: 'cluster' names no card"),
        ("gpu0: [3g.40gb]", UsageError, "line 1: gpu0 is a list; write a text"),
        ("gpu0: 1g.10gb@0\n0: 1g.10gb@1", UsageError, "a100-sxm4-80gb#0 stands twice"),
        ("- gpu0", UsageError, "a layout is lines as in gpu0: 3g.40gb@0 2g.20gb@4"),
        ("", UsageError, "is empty"),
        ("gpus: []\nfleet: 1", UsageError, "line 2: 'fleet' is unknown in layout; known are"),
        ("schema: slicewise.pack/2", UsageError, "this release reads 'slicewise.pack/1'"),
        ("schema: slicewise.pack/1", UsageError, "lacks 'gpus'; add it"),
        ("gpus: 3", UsageError, "gpus is no list"),
        ("gpus: [{device: a100-sxm4-80g, index: 0}]", DeviceError,
         "which is not among the cards a100-sxm4-80gb; did you mean a100-sxm4-80gb"),
        ("gpus: [{device: a100-sxm4-80gb, index: -1}]", UsageError, "index -1 is no index"),
        ("gpus: [{device: a100-sxm4-80gb, index: 0, slices: x}]", UsageError, "slices is no list"),
        (gpus("{profile: 3g.40gb, start: 4}", "\n{profile: 1g.10gb, start: 6}"), DeviceError,
         "overlap at slot 6"),
        (gpus("{profile: 3g.41gb, start: 4}"), DeviceError, "line 2: .*did you mean 3g.40gb"),
        (gpus("{profile: 3g.40gb}"), UsageError, "line 2: a slice lacks 'start'; add it"),
        (gpus("{profile: null, start: 1}"), UsageError, "start of a whole card is 0"),
        (gpus("{profile: null, start: 0}", "{profile: 1g.10gb, start: 0}"), DeviceError,
         "used whole and cut at once"),
        (gpus("{profile: 1g.10gb, start: 0, in_use: 3}"), UsageError, "in_use is neither true"),
        (gpus("{profile: 1g.10gb, start: 0, workload: a, rate_per_s: fast}"), UsageError,
         "rate_per_s 'fast' is not a number over 0"),
        (gpus("{profile: 1g.10gb, start: 0, workload: a, batch: 0}"), UsageError,
         "batch 0 is not a positive whole number"),
        (gpus("{profile: 1g.10gb, start: 0, wrkload: a}"), UsageError,
         "'wrkload' is unknown in a slice.*did you mean workload"),
        ("version: v1", UsageError, "lacks 'mig-configs'"),
        ("mig-configs:", UsageError, "mig-configs holds nothing; keep the one that is applied"),
        ("mig-configs: {a: [], b: []}", UsageError, "mig-configs holds a, b; keep the one"),
        (MIG_PARTED.replace("[0, 1]", "all"), UsageError,
         "line 4: devices: all does not tell how many cards there are"),
        (MIG_PARTED.replace('"3g.40gb": 1', '"3g.40gb": 3'), DeviceError,
         "line 6: .* find no room"),
        (MIG_PARTED.replace("enabled: true", "enabled: false"), UsageError,
         "slices are named in mig-devices, but mig-enabled is false"),
        (MIG_PARTED.replace("enabled: true", "enabled: 3"), UsageError, "neither true nor false"),
        (MIG_PARTED.replace("mig-enabled: true", "mig-enable: true"), UsageError,
         "'mig-enable' is unknown.*did you mean mig-enabled"),
        (MIG_PARTED.replace("devices: 2", "devices: 0"), UsageError, "#0 stands twice"),
    ],
)  # fmt: skip
def test_every_mistake_is_told_with_its_line(
    tmp_path: Path, text: str, error: type[SlicewiseError], message: str
) -> None:
    with pytest.raises(error, match=message):
        read(tmp_path, text)


def test_several_kinds_need_to_be_told_apart(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="card 'gpu0' may be any of a100-sxm4-80gb, l4; write"):
        read(tmp_path, "gpu0: 3g.40gb", A100, L4)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_current(tmp_path / "none.yaml", [A100])
