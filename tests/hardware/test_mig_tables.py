"""Slices: equal to the published tables, never above their card, placements complete."""

import csv
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.device import Device, SliceProfile
from slicewise.core.errors import DeviceError
from slicewise.core.precision import DType
from slicewise.hardware.catalogue import device_names, find_device

DEVICES = {name: find_device(name) for name in device_names()}
SLICED = sorted(name for name, device in DEVICES.items() if device.profiles)

# board of the tables -> devices of the catalogue
BOARDS = {
    "A100-40GB": ("a100-sxm4-40gb", "a100-pcie-40gb"),
    "A100-80GB": ("a100-sxm4-80gb", "a100-pcie-80gb"),
    "H100-SXM5-80GB": ("h100-sxm5-80gb",),
    "H100-PCIe-80GB": ("h100-pcie-80gb",),
    "H100-NVL-94GB": ("h100-nvl-94gb",),
    "H100-96GB (GH200), H20-96GB": ("gh200-96gb", "h20-96gb"),
    "H200-141GB (SXM5, NVL)": ("h200-sxm-141gb", "h200-nvl-141gb"),
    "GH200-144GB HBM3e": ("gh200-144gb",),
    "B200-180GB": ("b200-sxm",),
    "GB200-186GB": ("gb200",),
    "B300": ("b300-sxm",),
    "GB300": ("gb300",),
    "A30-24GB": ("a30",),
    "RTX PRO 6000 Blackwell 96GB (Server, Workstation, Max-Q)": (
        "rtx-pro-6000-server", "rtx-pro-6000-ws", "rtx-pro-6000-maxq",
    ),
    "RTX PRO 5000 Blackwell 48GB": ("rtx-pro-5000-48gb",),
    "RTX PRO 4500 Blackwell 32GB": ("rtx-pro-4500-32gb",),
    "Thor iGPU": (),
}  # fmt: skip


def table(data: Path, name: str) -> list[dict[str, str]]:
    with (data / "sharing" / name).open() as file:
        return list(csv.DictReader(file))


def maximal_layouts(device: Device) -> int:
    """Count the layouts of base profiles into which no further base profile fits."""
    places = [
        (profile.name, frozenset(range(start, start + profile.size)))
        for profile in device.profiles
        if not profile.attributes
        for start in profile.starts
    ]

    def extend(chosen: int, taken: frozenset[int], first: int) -> Iterator[tuple[int, ...]]:
        if not any(slots.isdisjoint(taken) for _, slots in places):
            yield ()
        for i in range(first, len(places)):
            if places[i][1].isdisjoint(taken):
                for rest in extend(chosen + 1, taken | places[i][1], i + 1):
                    yield (i, *rest)

    return len(set(extend(0, frozenset(), 0)))


@st.composite
def parts(draw: st.DrawFn) -> tuple[Device, Device]:
    """A device and a slice of it."""
    device = DEVICES[draw(st.sampled_from(SLICED))]
    return device, device.slice(draw(st.sampled_from(device.profiles)).name)


@given(parts())
def test_a_slice_never_exceeds_its_card_in_any_figure(pair: tuple[Device, Device]) -> None:
    card, part = pair
    assert part.parent == card
    assert 1 <= part.compute_units <= card.compute_units
    assert 0 < part.memory_bytes <= card.memory_bytes
    assert part.memory_bandwidth_bytes_per_s <= card.memory_bandwidth_bytes_per_s
    assert 0 < part.cache_bytes <= card.cache_bytes
    assert part.max_power_w <= card.max_power_w
    assert part.idle_power_w <= card.idle_power_w
    assert part.peak_flop_per_s.keys() == card.peak_flop_per_s.keys()
    assert all(rate <= card.peak_flop_per_s[d] for d, rate in part.peak_flop_per_s.items())


@pytest.mark.parametrize("name", SLICED)
def test_a_larger_profile_never_has_less(name: str) -> None:
    device = DEVICES[name]
    for small, large in itertools.pairwise([p for p in device.profiles if not p.attributes]):
        if small.memory_slices <= large.memory_slices:
            assert small.compute_units <= large.compute_units, (small.name, large.name)
            assert small.memory_bytes <= large.memory_bytes
            assert (small.cache_fraction or 0) <= (large.cache_fraction or 0)


@pytest.mark.parametrize("name", SLICED)
def test_profiles_go_from_small_to_large_and_variants_follow_their_base(name: str) -> None:
    keys = [
        (p.compute_slices, p.memory_slices, bool(p.attributes)) for p in DEVICES[name].profiles
    ]
    assert keys == sorted(keys)


@pytest.mark.parametrize("name", SLICED)
def test_placements_stay_inside_the_slots_and_instances_fit(name: str) -> None:
    device = DEVICES[name]
    assert device.memory_slots in (2, 4, 8)
    for profile in device.profiles:
        assert all(0 <= start <= device.memory_slots - profile.size for start in profile.starts)
        assert profile.max_instances <= len(profile.starts)
        assert profile.max_instances * profile.compute_units <= device.compute_units
        assert profile.memory_slices <= profile.size


@given(
    st.sampled_from(sorted(DEVICES)),
    st.floats(0.001, 100),
    st.floats(0.001, 100),
)
def test_a_larger_share_never_has_less(name: str, one: float, other: float) -> None:
    small, large = sorted((one, other))
    device = DEVICES[name]
    assert 1 <= device.share(small).compute_units <= device.share(large).compute_units
    assert device.share(large).peak_flop_per_s[DType.FP32] <= device.peak_flop_per_s[DType.FP32]
    assert device.share(100).compute_units == device.compute_units
    assert device.share(small).memory_bytes == device.memory_bytes


def test_every_board_of_the_tables_is_a_device_or_known_without_one(data: Path) -> None:
    assert {row["gpu"] for row in table(data, "mig_profiles.csv")} == set(BOARDS)
    with pytest.raises(DeviceError, match="no data sheet of it here"):
        find_device("Thor iGPU")


def test_profiles_equal_the_published_table(data: Path) -> None:
    wanted: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in table(data, "mig_profiles.csv"):
        wanted[row["gpu"]].append(row)
    for board, names in BOARDS.items():
        for name in names:
            device = DEVICES[name]
            assert {p.name for p in device.profiles} == {row["profile"] for row in wanted[board]}
            for row in wanted[board]:
                profile = device.profile_named(row["profile"])
                check_profile(profile, row, exact_units=name != "h20-96gb")


def check_profile(profile: SliceProfile, row: dict[str, str], *, exact_units: bool) -> None:
    noted = {note.code for note in profile.notes}
    assert profile.max_instances == int(row["max_instances"])
    if row["sm_count"] and exact_units:
        assert profile.compute_units == int(row["sm_count"])
    else:
        assert "slice-estimated" in noted
    if row["memory_gib_usable"]:
        assert profile.memory_bytes / 2**30 == pytest.approx(
            float(row["memory_gib_usable"]), abs=0.01
        )
    else:
        assert noted & {"slice-estimated", "slice-memory-estimated"}
    if row["gi_slices"]:
        assert profile.compute_slices == int(row["gi_slices"])
        assert profile.memory_slices == int(row["memory_slices"])
        assert profile.cache_fraction == float(Fraction(row["l2_fraction"]))
        assert bool(profile.attributes) == bool(row["attributes"])
    if row["profile_id"]:
        assert profile.profile_id == int(row["profile_id"])


def test_placements_equal_the_published_table(data: Path) -> None:
    starts: dict[tuple[str, str], set[int]] = defaultdict(set)
    sizes: dict[tuple[str, str], int] = {}
    for row in table(data, "mig_placements.csv"):
        key = row["gpu"], row["profile"]
        starts[key].add(int(row["start"]))
        sizes[key] = int(row["size_memory_slices"])
    assert len(starts) == 107
    for (board, profile_name), expected in starts.items():
        for name in BOARDS[board]:
            profile = DEVICES[name].profile_named(profile_name)
            assert set(profile.starts) == expected
            assert profile.size == sizes[board, profile_name]


def test_brute_force_finds_as_many_maximal_layouts_as_published(data: Path) -> None:
    published = json.loads((data / "sharing" / "mig_geometries.json").read_text())["gpus"]
    assert len(published) == 14
    for board, entry in published.items():
        for name in BOARDS[board]:
            assert DEVICES[name].memory_slots == entry["memory_slots"]
            assert maximal_layouts(DEVICES[name]) == entry["placement_maximal_layouts"]


def test_mig_takes_ten_of_the_108_sms_of_an_a100() -> None:
    card = find_device("a100-sxm4-40gb")
    largest = find_device("a100-sxm4-40gb/7g.40gb")
    assert (card.compute_units, largest.compute_units) == (108, 98)
    assert largest.memory_bytes < card.memory_bytes


@pytest.mark.parametrize(
    ("text", "profile"),
    [
        ("a100-sxm4-80gb/3g.39gb", "3g.40gb"),
        ("a100-sxm4-80gb/7g.79gb", "7g.80gb"),
        ("a100-sxm4-80gb/MIG 2g.20gb", "2g.20gb"),
        ("a100-sxm4-80gb/MIG-1g.10gb+me", "1g.10gb+me"),
        ("a100-sxm4-40gb/1g.5gb.me", "1g.5gb+me"),
        ("gb200/7g.189gb", "7g.186gb"),
        ("rtx-pro-6000-ws/1G.24GB-ME", "1g.24gb-me"),
        ("rtx-pro-6000-ws/1g.24gb.me.all", "1g.24gb+me.all"),
    ],
)
def test_driver_spellings_name_the_profile(text: str, profile: str) -> None:
    assert find_device(text).slice_name == profile


def test_boards_of_the_same_die_and_memory_share_their_profiles() -> None:
    sxm, pcie = find_device("a100-sxm4-40gb"), find_device("a100-pcie-40gb")
    assert sxm.profiles == pcie.profiles


def test_a_slice_of_an_estimated_profile_says_so() -> None:
    part = find_device("h200-sxm-141gb/3g.71gb")
    texts = [note.text for note in part.notes if note.code == "slice-estimated"]
    assert part.compute_units == 60
    assert len(texts) == 1
    assert "as H100 SXM5" in texts[0]
    assert not any(
        note.code == "slice-estimated" for note in find_device("h200-sxm-141gb/2g.35gb").notes
    )
