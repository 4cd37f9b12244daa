"""What the benchmarks of slices judge by: choices, and what is known of each source."""

import pytest

from benchmarks.open_rows import is_data_present
from benchmarks.sharing_rows import SOURCES, Subject, alone, crowded, pairs
from benchmarks.slice_rule import Compared, cells, largest_of, part_of
from benchmarks.smallest_slice import LARGEST, Case, cases, choose, judged, verdict
from slicewise.core.cost import Estimate
from slicewise.hardware.catalogue import find_device

CASE = Case(
    Subject("ParvaGPU", "resnet50", "resnet"),
    batch=8,
    measured_ms={"1g.10gb": 40.0, "2g.20gb": 21.0, "4g.40gb": 12.0, LARGEST: 10.0},
)


def test_the_right_slice_is_the_smallest_that_keeps_the_target() -> None:
    assert CASE.right(10.0) == LARGEST
    assert CASE.right(25.0) == "2g.20gb"
    assert CASE.right(100.0) == "1g.10gb"


def test_a_choice_is_exact_missed_or_over() -> None:
    assert verdict(CASE, "2g.20gb", 25.0) == "exact"
    assert verdict(CASE, "1g.10gb", 25.0) == "missed"
    assert verdict(CASE, "4g.40gb", 25.0) == "over"


def test_safety_only_ever_enlarges_the_choice() -> None:
    told = {"1g.10gb": 38.0, "2g.20gb": 20.0, "4g.40gb": 12.0, LARGEST: 10.0}
    assert choose(CASE, told, 21.0, 0.0) == "2g.20gb"
    assert choose(CASE, told, 21.0, 0.1) == "4g.40gb"
    assert choose(CASE, told, 5.0, 0.0) == LARGEST  # as told, nothing keeps it


def test_whoever_knows_the_measured_latencies_is_always_exact() -> None:
    found = judged(lambda case, limit_ms: case.right(limit_ms), [CASE])
    assert {kind for _, kind, _ in found} == {"exact"}


def test_errors_are_relative_to_what_was_measured() -> None:
    row = Compared("full", "ParvaGPU", "resnet", "on 1g.10gb", 10.0, Estimate(12.0, 9.0, 13.0))
    assert row.error == pytest.approx(0.2)
    assert row.is_within
    assert cells([row]) == ("20.0%", "20.0%", "20.0%", "+20.0%", "100%")


def test_every_source_has_a_device_with_its_largest_part() -> None:
    for name, source in SOURCES.items():
        device = find_device(source.device)
        part = part_of(device, largest_of(name))
        assert part.whole.name == source.device
    assert [name for name, source in SOURCES.items() if source.is_fitted] == ["ParvaGPU", "MISO"]


def test_what_an_item_moves() -> None:
    image = Subject("ParvaGPU", "vgg19", "vgg19").transfer_bytes_per_item
    assert image == 224 * 224 * 3 * 4
    assert Subject("MISO", "bert", "bert").transfer_bytes_per_item is None
    llama = [
        Subject("MuxServe", f"llama-13b-{phase}-tp{cards}", "llama-13b", "128,A100")
        for phase, cards in (("decoding", 1), ("decoding", 4), ("prefill", 4))
    ]
    none, decode, prefill = (each.transfer_bytes_per_item for each in llama)
    # two all-reduces of 40 layers of 5,120 fp16 numbers, each 2 (n - 1) / n times over the link
    assert none == 0
    assert decode == 2 * 40 * 5120 * 2 * 2 * 3 / 4
    assert prefill == 128 * decode


@pytest.mark.skipif(not is_data_present(), reason="measured data not present")
def test_open_rows_are_all_taken_up() -> None:
    singles = alone()
    assert {subject.source for subject in singles} == set(SOURCES)
    assert sum(len(rows) for rows in crowded().values()) == 1082
    assert all(row.processes > 1 for rows in crowded().values() for row in rows)
    assert len(list(pairs())) == 2710
    assert all(len(case.measured_ms) > 1 and LARGEST in case.measured_ms for case in cases())
