"""Layouts: all of them, none that cannot be, and the places that waste least.

The oracle knows bits and counts only; it shares no line with the code under test.
"""

import itertools
import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.device import Device, SliceProfile
from slicewise.core.errors import DeviceError
from slicewise.hardware.catalogue import device_names, find_device
from slicewise.slices.layouts import (
    Placement,
    checked,
    creation_order,
    dominated_multisets,
    driver_start,
    free_profiles,
    is_legal,
    largest_free,
    maximal_layouts,
    multiset_of,
    multisets,
    place,
    slots_of,
    why_illegal,
)

SLICED = [
    device for name in device_names() if (device := find_device(name)).profiles
]  # each board file is that of at least one device
BOARDS = {device.profiles: device for device in SLICED}.values()
A100 = find_device("a100-sxm4-80gb")
A30 = find_device("a30")
RTX = find_device("rtx-pro-6000-ws")
RTX_5000 = find_device("rtx-pro-5000-48gb")

# Board of the shared tables -> one device of it.
TABLES = {
    "A100-40GB": "a100-sxm4-40gb", "A100-80GB": "a100-sxm4-80gb",
    "H100-SXM5-80GB": "h100-sxm5-80gb", "H100-PCIe-80GB": "h100-pcie-80gb",
    "H100-NVL-94GB": "h100-nvl-94gb", "H100-96GB (GH200), H20-96GB": "gh200-96gb",
    "H200-141GB (SXM5, NVL)": "h200-sxm-141gb", "GH200-144GB HBM3e": "gh200-144gb",
    "B200-180GB": "b200-sxm", "GB200-186GB": "gb200", "B300": "b300-sxm", "GB300": "gb300",
    "A30-24GB": "a30",
    "RTX PRO 6000 Blackwell 96GB (Server, Workstation, Max-Q)": "rtx-pro-6000-ws",
}  # fmt: skip


def spots(device: Device, *, variants: bool = False) -> list[tuple[SliceProfile, int]]:
    return [
        (profile, start)
        for profile in device.profiles
        if variants or not profile.attributes
        for start in profile.starts
    ]


def can_stand(chosen: list[tuple[SliceProfile, int]]) -> bool:
    """The rule itself, written down a second time: slots, counts, media engines."""
    slots = [slot for profile, start in chosen for slot in range(start, start + profile.size)]
    counts = Counter(profile.name for profile, _ in chosen)
    most = {profile.name: profile.max_instances for profile, _ in chosen}
    attributes = [profile.attributes for profile, _ in chosen]
    others = [each for each in attributes if each not in ("me.all", "no media")]
    return (
        len(slots) == len(set(slots))
        and all(counts[name] <= most[name] for name in counts)
        and attributes.count("me") + attributes.count("me.all") <= 1
        and not ("me.all" in attributes and others)
    )


def brute_force_maximal(device: Device) -> set[frozenset[tuple[str, int]]]:
    """Every subset of the base placements is tried; those that can take one more are dropped."""
    all_spots = spots(device)
    masks = [((1 << profile.size) - 1) << start for profile, start in all_spots]
    found = []
    for subset in range(1 << len(all_spots)):
        taken = 0
        for i, mask in enumerate(masks):
            if subset >> i & 1:
                if taken & mask:
                    break
                taken |= mask
        else:
            chosen = [spot for i, spot in enumerate(all_spots) if subset >> i & 1]
            if can_stand(chosen):
                found.append(frozenset((profile.name, start) for profile, start in chosen))
    legal = set(found)
    named = [(profile.name, start) for profile, start in all_spots]
    return {
        one for one in legal if not any({spot} - one and one | {spot} in legal for spot in named)
    }


def as_sets(device: Device) -> list[frozenset[tuple[str, int]]]:
    return [frozenset((p.profile, p.start) for p in layout) for layout in maximal_layouts(device)]


@st.composite
def placements(draw: st.DrawFn) -> tuple[Device, list[Placement]]:
    """Slices that may or may not stand together, variants and bad starts among them."""
    device = draw(st.sampled_from(SLICED))
    spot = st.builds(
        Placement,
        st.sampled_from([profile.name for profile in device.profiles]),
        st.integers(0, device.memory_slots),
    )
    legal = st.sampled_from(spots(device, variants=True)).map(lambda s: Placement(s[0].name, s[1]))
    return device, draw(st.lists(st.one_of(legal, legal, legal, spot), max_size=6))


@st.composite
def legal_layouts(draw: st.DrawFn) -> tuple[Device, list[Placement]]:
    """Some slices of a maximal layout, a base profile perhaps replaced by a variant of it."""
    device = draw(st.sampled_from(SLICED))
    layout = draw(st.sampled_from(maximal_layouts(device)))
    kept = [each for each in layout if draw(st.booleans())]
    return device, kept


@pytest.mark.parametrize("device", BOARDS, ids=lambda device: device.name)
def test_the_layouts_are_those_of_brute_force(device: Device) -> None:
    found = as_sets(device)
    assert len(set(found)) == len(found)
    assert set(found) == brute_force_maximal(device)


def test_the_layouts_are_those_of_the_published_tables(data: Path) -> None:
    published = json.loads((data / "sharing" / "mig_geometries.json").read_text())["gpus"]
    assert set(published) == set(TABLES)
    for board, entry in published.items():
        device = find_device(TABLES[board])
        counts = Counter(map(multiset_of, maximal_layouts(device)))
        dominated = dominated_multisets(device)
        told = {
            tuple(sorted(each["profiles"].items())): (each["layouts"], each["dominated"])
            for each in entry["configurations"]
        }
        assert {one: (n, one in dominated) for one, n in counts.items()} == told
        assert len(maximal_layouts(device)) == entry["placement_maximal_layouts"]


@pytest.mark.parametrize("device", BOARDS, ids=lambda device: device.name)
def test_boards_of_seven_slices_have_78_layouts_of_38_multisets(device: Device) -> None:
    expected = {8: (78, 38, 10), 4: (5, 4, 0), 2: (1, 1, 0)}[device.memory_slots]
    if device.name == "rtx-pro-5000-48gb":  # one 1g at most, and a 4g
        expected = (5, 2, 0)
    found = (
        len(maximal_layouts(device)),
        len(multisets(device)),
        len(dominated_multisets(device)),
    )
    assert found == expected


@pytest.mark.parametrize("device", BOARDS, ids=lambda device: device.name)
def test_every_layout_is_legal_and_has_no_room_left(device: Device) -> None:
    for layout in maximal_layouts(device):
        assert is_legal(device, layout)
        assert free_profiles(device, layout) == ()
        assert largest_free(device, layout) is None
        assert list(layout) == sorted(layout, key=lambda each: each.start)


def test_multisets_come_once_with_their_counts_by_name() -> None:
    found = multisets(A100)
    assert len(set(found)) == len(found) == 38
    assert all(list(each) == sorted(each) for each in found)
    assert found[0] == (("7g.80gb", 1),)
    assert found[-1] == (("1g.10gb", 7),)


@given(placements())
def test_legality_is_that_of_the_rule(case: tuple[Device, list[Placement]]) -> None:
    device, chosen = case
    profiles = [(device.profile_named(each.profile), each.start) for each in chosen]
    legal = all(start in profile.starts for profile, start in profiles) and can_stand(profiles)
    assert is_legal(device, chosen) is legal
    assert bool(why_illegal(device, chosen)) is not legal
    if legal:
        assert Counter(checked(device, chosen)) == Counter(chosen)
    else:
        with pytest.raises(DeviceError, match="cannot be"):
            checked(device, chosen)


@given(legal_layouts(), st.integers(0, 1000))
def test_order_does_not_matter(case: tuple[Device, list[Placement]], seed: int) -> None:
    device, chosen = case
    shuffled = random.Random(seed).sample(chosen, len(chosen))
    assert is_legal(device, shuffled)
    assert checked(device, shuffled) == checked(device, chosen)


@given(legal_layouts())
def test_free_places_are_those_that_the_rule_allows(case: tuple[Device, list[Placement]]) -> None:
    device, chosen = case
    free = free_profiles(device, chosen)
    allowed = {
        Placement(profile.name, start)
        for profile, start in spots(device)
        if is_legal(device, [*chosen, Placement(profile.name, start)])
    }
    assert set(free) == allowed
    sizes = [_size(device, each.profile) for each in free]
    assert sizes == sorted(sizes, reverse=True)
    assert largest_free(device, chosen) == (free[0].profile if free else None)


def _size(device: Device, name: str) -> tuple[int, int]:
    profile = device.profile_named(name)
    return profile.compute_slices, profile.memory_slices


def _free_runs(device: Device, placed: list[Placement]) -> int:
    taken = {slot for each in placed for slot in slots_of(device, each)}
    free = [slot not in taken for slot in range(device.memory_slots)]
    return sum(now and not before for before, now in itertools.pairwise([False, *free]))


@st.composite
def placing(draw: st.DrawFn) -> tuple[Device, dict[str, int], list[Placement]]:
    device = draw(st.sampled_from([A100, A30, RTX, RTX_5000]))
    names = [profile.name for profile in device.profiles]
    counts = draw(st.dictionaries(st.sampled_from(names), st.integers(0, 3), max_size=3))
    fixed = draw(st.lists(st.sampled_from(spots(device, variants=True)), max_size=2))
    placed = [Placement(profile.name, start) for profile, start in fixed]
    return device, counts, placed if is_legal(device, placed) else placed[:1]


@settings(deadline=None)
@given(placing())
def test_places_are_legal_exact_and_leave_the_most(
    case: tuple[Device, dict[str, int], list[Placement]],
) -> None:
    device, counts, fixed = case
    made = place(device, counts, fixed=fixed)
    ways = [
        list(way)
        for way in itertools.product(
            *(
                itertools.combinations(
                    [Placement(name, start) for start in device.profile_named(name).starts], count
                )
                for name, count in counts.items()
            )
        )
    ]
    flat = [[each for group in way for each in group] for way in ways]
    legal = [way for way in flat if is_legal(device, [*fixed, *way])]
    if made is None:
        assert not legal
        return
    assert Counter(each.profile for each in made) == Counter(
        {k: n for k, n in counts.items() if n}
    )
    assert is_legal(device, [*fixed, *made])

    def quality(way: list[Placement]) -> tuple[tuple[int, int], int]:
        largest = largest_free(device, [*fixed, *way])
        size = (0, 0) if largest is None else _size(device, largest)
        return size, -_free_runs(device, [*fixed, *way])

    assert quality(list(made)) == max(map(quality, legal))


@pytest.mark.parametrize("device", BOARDS, ids=lambda device: device.name)
def test_each_multiset_can_be_placed_and_no_larger_one(device: Device) -> None:
    for multiset in multisets(device):
        made = place(device, dict(multiset))
        assert made is not None and multiset_of(made) == multiset
        if multiset not in dominated_multisets(device):
            assert free_profiles(device, made) == ()


def test_a_small_slice_stands_where_a_half_of_the_card_stays_free() -> None:
    assert largest_free(A100, place(A100, {"1g.10gb": 1}) or ()) == "4g.40gb"
    assert place(A100, {"2g.20gb": 1}, fixed=[Placement("4g.40gb", 0)]) == (
        Placement("2g.20gb", 4),
    )
    assert place(A100, {}) == ()
    assert place(A100, {"7g.80gb": 1}, fixed=[Placement("1g.10gb", 6)]) is None
    assert place(A100, {"3g.39gb": 2}) == (Placement("3g.40gb", 0), Placement("3g.40gb", 4))


@pytest.mark.parametrize(
    ("device", "layout", "why"),
    [
        (A100, [("3g.40gb", 0), ("2g.20gb", 2)], r"3g.40gb@0 \(slots 0 to 3\) and 2g.20gb@2"
         r" \(slots 2 to 3\) overlap at slots 2 to 3"),
        (A100, [("1g.10gb", 3), ("1g.10gb", 3)], "overlap at slot 3"),
        (A100, [("4g.40gb", 4)], "4g.40gb cannot start at slot 4; it can at 0"),
        (A100, [("1g.10gb", 7)], "cannot start at slot 7"),
        (A100, [("1g.10gb+me", 0), ("1g.10gb+me", 1)], "2 instances of 1g.10gb.me are more than"
         " the 1"),
        (A100, [("5g.50gb", 0)], "no slice profile '5g.50gb'"),
        (A30, [("1g.6gb+me", 0), ("2g.12gb+me", 2)], "1g.6gb.me and 2g.12gb.me both need the"
         " media extension"),
        (RTX, [("1g.24gb+me.all", 0), ("1g.24gb", 1)], "takes every media engine and 1g.24gb"),
        (RTX, [("1g.24gb+gfx", 0), ("2g.48gb+me.all", 2)], "takes every media engine and"
         " 1g.24gb.gfx"),
        (RTX, [("1g.24gb+me", 0), ("2g.48gb+me.all", 2)], "both need the media extension"),
        (RTX_5000, [("1g.12gb", 0), ("1g.12gb", 1)], "2 instances of 1g.12gb are more than the 1"),
        (find_device("l4"), [("1g.10gb", 0)], "l4 has no MIG"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told(device: Device, layout: list[tuple[str, int]], why: str) -> None:
    chosen = [Placement(*each) for each in layout]
    assert re.search(why, why_illegal(device, chosen))
    assert not is_legal(device, chosen)
    with pytest.raises(DeviceError, match=why):
        free_profiles(device, chosen)


@pytest.mark.parametrize(
    ("device", "layout"),
    [
        (A100, [("1g.10gb+me", 0), *(("1g.10gb", start) for start in range(1, 7))]),
        (RTX, [("1g.24gb+gfx", 0), ("1g.24gb+me", 1), ("2g.48gb+gfx", 2)]),
        (RTX, [("1g.24gb+me.all", 0), ("1g.24gb-me", 1), ("2g.48gb-me", 2)]),
        (RTX_5000, [("1g.12gb", 0), ("1g.12gb+me", 1), ("1g.12gb+gfx", 2), ("1g.12gb-me", 3)]),
    ],
)
def test_variants_stand_beside_their_base(device: Device, layout: list[tuple[str, int]]) -> None:
    assert why_illegal(device, [Placement(*each) for each in layout]) == ""


def test_the_order_of_the_guide_works_and_the_other_fails() -> None:
    """MIG User Guide r580, "Getting Started": 19,19,14,9 fails, 9,19,14,19 works (A100-40GB)."""
    device = find_device("a100-sxm4-40gb")
    names = {profile.profile_id: profile.name for profile in device.profiles}

    def made(ids: list[int]) -> list[Placement]:
        standing: list[Placement] = []
        for number in ids:
            start = driver_start(device, standing, names[number])
            if start is not None:
                standing.append(Placement(names[number], start))
        return standing

    assert len(made([19, 19, 14, 9])) == 3
    assert len(made([9, 19, 14, 19])) == 4
    # as the guide lists two 3g: the first at 4, the second at 0
    assert made([9, 9]) == [Placement("3g.20gb", 4), Placement("3g.20gb", 0)]


@given(legal_layouts())
def test_slices_made_in_order_find_room_without_starts(
    case: tuple[Device, list[Placement]],
) -> None:
    device, chosen = case
    order = creation_order(device, chosen)
    assert Counter(order) == Counter(chosen)
    standing: list[Placement] = []
    for each in order:
        start = driver_start(device, standing, each.profile)
        assert start is not None
        standing.append(Placement(each.profile, start))
    assert multiset_of(standing) == multiset_of(chosen)
    assert is_legal(device, standing)


def _driven(device: Device, names: tuple[str, ...]) -> bool:
    """True if the driver finds room for slices of these profiles, made one after another."""
    standing: list[Placement] = []
    for name in names:
        start = driver_start(device, standing, name)
        if start is None:
            return False
        standing.append(Placement(name, start))
    return True


@pytest.mark.parametrize("device", [A100, A30, RTX], ids=lambda device: device.name)
def test_large_slices_are_made_first_unless_the_driver_would_find_no_room(device: Device) -> None:
    for layout in maximal_layouts(device):
        names = [each.profile for each in creation_order(device, layout)]
        sizes = [device.profile_named(name).size for name in names]
        if sizes != sorted(sizes, reverse=True):
            falling = [
                order
                for order in set(itertools.permutations(names))
                if [device.profile_named(name).size for name in order]
                == sorted(sizes, reverse=True)
            ]
            assert not any(_driven(device, order) for order in falling)


def test_numbers_and_names_that_cannot_be_are_refused() -> None:
    with pytest.raises(DeviceError, match=r"-1 instances of '1g\.10gb' cannot be placed"):
        place(A100, {"1g.10gb": -1})
    with pytest.raises(DeviceError, match=r"did you mean 3g\.40gb"):
        place(A100, {"3g.40g": 1})
    with pytest.raises(DeviceError, match="l4 has no MIG and cannot be sliced"):
        maximal_layouts(find_device("l4"))
    with pytest.raises(DeviceError, match="overlap"):
        place(A100, {}, fixed=[Placement("7g.80gb", 0), Placement("1g.10gb", 0)])


def test_a_file_with_beyond_counting_layouts_is_refused() -> None:
    from dataclasses import replace

    profile = replace(A100.profiles[0], starts=tuple(range(40)), max_instances=40)
    double = replace(profile, name="1g.20gb", size=2, starts=tuple(range(39)), max_instances=20)
    device = replace(A100, memory_slots=40, profiles=(profile, double))
    with pytest.raises(DeviceError, match="too many layouts of its 40 memory slots"):
        maximal_layouts(device)
    with pytest.raises(DeviceError, match="too many layouts of its 40 memory slots"):
        place(device, {"1g.10gb": 5, "1g.20gb": 3})
    made = place(device, {"1g.10gb": 2})
    assert made is not None and is_legal(device, made)
    assert len(creation_order(device, made)) == 2
