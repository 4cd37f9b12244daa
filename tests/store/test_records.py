"""The record store: what was added is found again, exactly, and only what was asked for."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.store_kill import damage, kill_often
from slicewise.core.errors import StoreError
from slicewise.core.measurement import Measurement, Outcome
from slicewise.store.keys import column_text, own_text
from slicewise.store.record_codec import content_digest
from slicewise.store.records import RecordStore, default_path
from slicewise.testing.records import failed_measurement, measurements, tiny_measurement


@pytest.fixture
def store() -> Iterator[RecordStore]:
    with RecordStore.in_memory() as made:
        yield made


@given(
    st.lists(measurements(), max_size=4),
    st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\udc80\x01")),
)
@settings(deadline=None, max_examples=60)
def test_what_is_added_is_found_again_exactly(made: list[Measurement], campaign: str) -> None:
    with RecordStore.in_memory() as store:
        numbers = [store.add(each, campaign=campaign, point=f"{i}") for i, each in enumerate(made)]
        assert [record.measurement for record in store.find()] == made
        assert [record.id for record in store.find()] == numbers
        assert {record.campaign for record in store.find()} <= {campaign}
        for number, each in zip(numbers, made, strict=True):
            found = store.get(number)
            assert found is not None
            assert found.measurement == each
            assert store.has(each.key)
            assert store.has_content(each)


@given(st.text(st.characters(exclude_categories=()) | st.sampled_from('\udc80\x01"u')))
def test_any_text_is_kept_in_a_column_as_it_is(text: str) -> None:
    column_text(text).encode()
    assert own_text(column_text(text)) == text


@given(measurements())
@settings(deadline=None, max_examples=30)
def test_the_content_digest_tells_measurements_apart_and_only_them(made: Measurement) -> None:
    other = replace(made, seconds=made.seconds + abs(made.seconds) + 1)
    again = replace(made, options=dict(reversed(list(made.options.items()))))
    assert content_digest(made) == content_digest(again)
    assert content_digest(made) != content_digest(other)


def test_the_content_digest_is_that_of_earlier_versions() -> None:
    # kept in the files of users: a change of it would let records be imported twice
    assert content_digest(tiny_measurement()) == "e8951d97f06964c068e510331d282705"


CASES = (
    tiny_measurement(0),
    tiny_measurement(1),
    replace(tiny_measurement(0), seconds=2.0),
    replace(tiny_measurement(2), slice="50%", mechanism="cores"),
    replace(failed_measurement(3, Outcome.OUT_OF_MEMORY), device="l4", threads=4),
    replace(tiny_measurement(4), model="a[1]", location="deep/a[1].onnx", runtime="null"),
    replace(tiny_measurement(5), precision="bf16", device="l4", slice="1g.5gb"),
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "key": st.sampled_from(CASES).map(lambda made: made.key),
            "digest": st.sampled_from(CASES).map(lambda made: made.digest),
            "model": st.sampled_from([made.model for made in CASES]),
            "device": st.sampled_from(["cpu", "l4", "none"]),
            "slice": st.sampled_from([None, "50%", "1g.5gb", ...]),
            "runtime": st.sampled_from(["null", "onnxruntime"]),
            "batch": st.integers(1, 8),
            "precision": st.sampled_from(["fp32", "bf16"]),
            "threads": st.sampled_from([2, 4]),
            "outcome": st.sampled_from(Outcome),
        },
    )
)
@settings(deadline=None)
def test_what_is_found_is_exactly_what_meets_all_conditions(asked: dict[str, object]) -> None:
    with RecordStore.in_memory() as store:
        store.add_all(CASES)
        found = [record.measurement for record in store.find(**asked)]  # type: ignore[arg-type]
        wanted = [
            made
            for made in CASES
            if all(v is ... or getattr(made, name) == v for name, v in asked.items())
        ]
        assert found == wanted
        assert store.count(**asked) == len(wanted)  # type: ignore[arg-type]
        outcomes = store.count_outcomes(**asked)  # type: ignore[arg-type]
        assert sum(outcomes.values()) == len(wanted)


@pytest.mark.parametrize(
    ("pattern", "models"),
    [
        ("net*", ["net0", "net1", "net0", "net2", "net3", "net5"]),
        ("net[01]", ["net0", "net1", "net0"]),
        ("a[1]", ["a[1]"]),  # a name that looks like a pattern is found by its name
        ("deep/*", ["a[1]"]),  # where the model was read from counts as well
        ("NET0", []),
    ],
)
def test_models_are_found_by_patterns(store: RecordStore, pattern: str, models: list[str]) -> None:
    store.add_all(CASES)
    assert [record.measurement.model for record in store.find(model=pattern)] == models


def test_the_latest_of_a_key_is_the_one_added_last_whatever_the_clock_said(
    store: RecordStore,
) -> None:
    first, second = tiny_measurement(0), replace(tiny_measurement(0), started_at="1999-01-01")
    store.add_all([first, tiny_measurement(1), second])
    found = store.latest(first.key)
    assert found is not None
    assert (found.id, found.measurement) == (3, second)
    assert [record.id for record in store.find(latest=True)] == [2, 3]
    assert store.latest("0" * 64) is None
    assert not store.has("0" * 64)


def test_a_limit_keeps_those_added_last(store: RecordStore) -> None:
    store.add_all([tiny_measurement(i) for i in range(5)])
    assert [record.id for record in store.find(limit=2)] == [4, 5]
    assert [record.id for record in store.find(limit=2, latest=True, model="net[0-2]")] == [2, 3]
    assert list(store.find(limit=0)) == []
    assert store.count(limit=3) == 3


def test_records_are_found_by_the_time_they_were_added(store: RecordStore) -> None:
    store.add(tiny_measurement())
    [record] = store.find()
    assert store.count(since=record.added_at) == 1
    assert store.count(since=record.added_at[:10]) == 1
    assert store.count(since=f"{record.added_at}0") == 0


def test_a_find_that_goes_on_while_records_are_removed_and_added_is_not_confused(
    store: RecordStore,
) -> None:
    store.add_all([tiny_measurement(i, samples=1) for i in range(1100)])
    found = []
    for record in store.find():
        found.append(record.id)
        if record.id == 1:
            store.remove([1100])
            store.add(tiny_measurement(0))
    assert found == list(range(1, 1100))


def test_a_number_is_never_given_twice(store: RecordStore) -> None:
    numbers = store.add_all([tiny_measurement(0), tiny_measurement(1)])
    assert store.remove(numbers) == 2
    assert store.remove(numbers) == 0
    assert store.add(tiny_measurement(2)) == 3


def test_a_campaign_knows_its_points_whatever_became_of_them(store: RecordStore) -> None:
    store.add(tiny_measurement(0), campaign="a", point="p0")
    store.add(failed_measurement(1), campaign="a", point="caf\udce9")
    store.add(tiny_measurement(2), campaign="b", point="p2")
    store.add(tiny_measurement(3), point="p3")
    assert store.points_done("a") == {"p0", "caf\udce9"}
    assert store.points_done("none") == store.points_done("") == set()


def test_after_an_error_none_of_several_records_is_kept(store: RecordStore) -> None:
    bad = replace(tiny_measurement(1), batch=2**70)
    with pytest.raises(StoreError, match="64 bits"):
        store.add_all([tiny_measurement(0), bad])
    assert store.count() == 0


@pytest.mark.parametrize(
    "bad",
    [
        {"model": "a surrogate that is no byte: \ud800"},
        {"samples_ms": (1.0, float("nan"))},
        {"energy_j": float("inf")},
        {"seconds": object()},
        {"threads": "two"},
    ],
)
def test_what_would_not_read_back_as_it_is_is_refused(
    store: RecordStore, bad: dict[str, object]
) -> None:
    with pytest.raises(StoreError, match="cannot be kept"):
        store.add(replace(tiny_measurement(), **bad))  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="cannot be kept: a name is no text"):
        store.add(tiny_measurement(), campaign="\ud800")
    assert store.count() == 0


def test_the_default_store_lies_in_the_home_of_slicewise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLICEWISE_HOME", str(tmp_path / "new" / "home"))
    with RecordStore() as store:
        assert store.add(tiny_measurement()) == 1
    assert default_path() == tmp_path / "new" / "home" / "records.sqlite"
    with RecordStore(default_path(), read_only=True) as store:
        assert store.count() == 1


_WRITER = """
import sys
from pathlib import Path
from slicewise.store.records import RecordStore
from slicewise.testing.records import tiny_measurement

sys.stdin.readline()
with RecordStore(Path(sys.argv[1])) as store:
    for i in range(20):
        store.add(tiny_measurement(i), campaign=sys.argv[2], point=str(i))
"""


def test_processes_that_make_and_write_a_store_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    command = [sys.executable, "-c", _WRITER, str(path)]
    writers = [
        subprocess.Popen([*command, f"{i}"], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        for i in range(3)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"\n")
        writer.stdin.flush()
    for writer in writers:
        _, err = writer.communicate()
        assert writer.returncode == 0, err
    with RecordStore(path) as store:
        for i in range(len(writers)):
            assert store.points_done(f"{i}") == {str(n) for n in range(20)}


def test_a_process_killed_at_any_moment_loses_no_record_and_leaves_no_half_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "records.sqlite"
    found = kill_often(path, kills=10, seed=7)
    assert [kill.lost for kill in found] == [0] * 10
    assert [kill.wrong for kill in found] == [0] * 10
    assert all(kill.beyond <= 1 for kill in found)
    assert sum(kill.acknowledged for kill in found) > 50
    assert damage(path) == "ok"
