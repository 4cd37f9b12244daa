"""Shares: which of them have something in common."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.share import Mechanism, Share, cores_text, crowd, overlaps

cores = st.sets(st.integers(0, 6), min_size=1).map(
    lambda chosen: Share(Mechanism.CORES, cores=tuple(sorted(chosen)))
)
percentages = st.builds(
    Share, st.sampled_from([Mechanism.MPS, Mechanism.GREEN]), percent=st.integers(1, 100)
)
instances = st.sampled_from("abc").map(lambda uuid: Share(Mechanism.MIG, uuid=f"MIG-{uuid}"))


@given(cores, cores)
def test_core_shares_overlap_where_they_have_a_core_in_common(a: Share, b: Share) -> None:
    assert overlaps(a, b) == bool(set(a.cores) & set(b.cores))


@given(instances, instances)
def test_instances_overlap_where_they_are_one(a: Share, b: Share) -> None:
    assert overlaps(a, b) == (a.uuid == b.uuid)


@given(percentages, percentages)
def test_percentages_overlap_beyond_the_whole(a: Share, b: Share) -> None:
    assert overlaps(a, b) == (a.percent + b.percent > 100)


@given(st.one_of(cores, percentages, instances), st.one_of(cores, percentages, instances))
def test_overlapping_is_mutual(a: Share, b: Share) -> None:
    assert overlaps(a, b) == overlaps(b, a)


@given(st.lists(st.one_of(cores, percentages, instances), max_size=6))
def test_a_crowd_stays_one_with_more_in_it(shares: list[Share]) -> None:
    for size in range(len(shares)):
        if crowd(shares[:size]):
            assert crowd(shares)
    assert not crowd(shares[:1])
    if not crowd(shares):
        assert all(not overlaps(a, b) for i, a in enumerate(shares) for b in shares[:i])


@pytest.mark.parametrize("count", range(1, 50))
def test_equal_parts_of_the_whole_are_no_crowd(count: int) -> None:
    part = Share(Mechanism.MPS, percent=100 / count)
    assert crowd([part] * count) == ""
    assert crowd([part] * (count + 1)) != ""


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["cores:0-1", "cores:3,1"], "core 1 is in cores:0-1 and in cores:1,3"),
        (["mig:MIG-1", "mig:MIG-1"], "instance MIG-1 is given twice"),
        (["mps:40", "mps:40", "mps:40"], "mps:40%, mps:40% and mps:40% are 120% of the device"),
        (["mig:MIG-1", "mps:10"], "mig:MIG-1 and mps:10% cannot both be"),
        (["cores:0", "mps:100", "cores:1"], ""),
    ],
)
def test_the_limit_that_is_passed_is_named(texts: list[str], told: str) -> None:
    found = crowd([Share.parse(text) for text in texts])
    assert found.startswith(told) and bool(found) == bool(told)


@given(st.sets(st.integers(0, 40)))
def test_cores_read_back_from_their_text(chosen: set[int]) -> None:
    ordered = tuple(sorted(chosen))
    if ordered:
        assert Share.parse(f"cores:{cores_text(ordered)}").cores == ordered
