"""The store of tuned configurations: the better one stays, and only what was meant is found."""

import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.cost import Estimate
from slicewise.core.errors import StoreError
from slicewise.core.tuning import Tuned, Workload
from slicewise.store.tuned import Forgetting, TunedOn, TunedStore, default_path

HERE = TunedOn("serving", "1 ort 2", "cpu", "digest", "50%")
ELSEWHERE = (
    replace(HERE, engine="tvm"), replace(HERE, version="2"), replace(HERE, device="l4"),
    replace(HERE, device_digest="other"), replace(HERE, slice=None), replace(HERE, slice="25%"),
)  # fmt: skip

# Lone surrogates stand for the bytes of a name that is no UTF-8.
text = st.text(st.characters(exclude_categories=()) | st.sampled_from("\udc80\x01\"'"), max_size=6)
figures = st.floats(0, allow_nan=False, allow_infinity=False)
estimates = st.builds(Estimate, figures, figures, figures, source=text)


def tuned_ones(keys: st.SearchStrategy[str] = text) -> st.SearchStrategy[Tuned]:
    workloads = st.builds(
        Workload,
        keys,
        text,
        st.lists(text, max_size=3).map(tuple),
        count=st.integers(1, 9),
        weight_ms=figures,
        nodes=st.lists(text, max_size=2).map(tuple),
        kin=text,
    )
    return st.builds(
        Tuned,
        workloads,
        st.sampled_from("abcd") | text,
        estimates,
        trials=st.integers(0, 1000),
        default_ms=st.none() | figures,
    )


def one(key: str = "k", config: str = "a", latency_ms: float = 1.0, **more: object) -> Tuned:
    """Return a configuration of little content."""
    kin = str(more.pop("kin", "kin"))
    made = Tuned(
        Workload(key, f"MatMul {key}", ("MatMul",), kin=kin),
        config,
        Estimate(latency_ms, low=latency_ms, high=latency_ms),
    )
    return replace(made, **more)  # type: ignore[arg-type]


@given(st.lists(tuned_ones(), unique_by=lambda each: each.workload.key, max_size=5))
@settings(deadline=None)
def test_what_is_put_is_found_again_but_for_what_is_of_the_model(made: list[Tuned]) -> None:
    keys = [each.workload.key for each in made]
    with TunedStore.in_memory() as store:
        assert store.put(HERE, made) == len(made)
        assert store.put(HERE, made) == 0
        found = store.find(HERE, keys)
        assert list(found) == keys
        for each in made:
            work = replace(each.workload, count=1, weight_ms=0.0, nodes=())
            assert found[each.workload.key] == replace(each, workload=work, is_from_store=True)
        assert {kept.tuned.workload.key for kept in store.all()} == set(keys)
        assert {kept.place for kept in store.all()} <= {HERE}


@given(st.lists(tuned_ones(st.sampled_from("kl")), max_size=8))
@settings(deadline=None)
def test_what_is_kept_is_the_best_by_the_latest_measurement_of_each(made: list[Tuned]) -> None:
    expected: dict[str, Tuned] = {}
    for new in made:
        old = expected.get(new.workload.key)
        if old is None:
            expected[new.workload.key] = new
            continue
        wins = new.config == old.config or new.latency_ms.value < old.latency_ms.value
        expected[new.workload.key] = replace(
            new if wins else old,
            trials=max(old.trials, new.trials),
            default_ms=old.default_ms if new.default_ms is None else new.default_ms,
        )
    with TunedStore.in_memory() as store, TunedStore.in_memory() as at_once:
        for each in made:
            store.put(HERE, [each])
        at_once.put(HERE, made)
        found = store.find(HERE, "kl")
        assert found == at_once.find(HERE, "kl")
        assert set(found) == set(expected)
        for key, kept in expected.items():
            assert found[key].config == kept.config
            assert found[key].latency_ms == kept.latency_ms
            assert (found[key].trials, found[key].default_ms) == (kept.trials, kept.default_ms)


@pytest.mark.parametrize("other", ELSEWHERE)
def test_what_was_found_elsewhere_is_not_found_here(other: TunedOn) -> None:
    with TunedStore.in_memory() as store:
        store.put(HERE, [one(config="here")])
        assert store.find(other, ["k"]) == {} and store.near(other, "kin") == ()
        store.put(other, [one(config="there", latency_ms=0.5)])
        assert store.find(HERE, ["k"])["k"].config == "here"
        assert store.find(other, ["k"])["k"].config == "there"
        assert {kept.place for kept in store.all()} == {HERE, other}


def test_near_ones_are_of_the_same_kin_and_the_most_proven_first() -> None:
    with TunedStore.in_memory() as store:
        store.put(
            HERE,
            [
                one("1", "gains little", 1.0, default_ms=1.1),
                one("2", "gains much", 9.0, default_ms=90.0),
                one("3", "often", 5.0),
                one("4", "often", 6.0),
                one("5", "no default", 0.1),
                one("6", "of another kin", 0.1, kin="other"),
                one("7", "of nobody's kin", 0.1, kin=""),
            ],
        )
        expected = ("often", "gains much", "gains little", "no default")
        assert store.near(HERE, "kin") == expected
        assert store.near(HERE, "kin", limit=2) == expected[:2]
        assert store.near(HERE, "") == () == store.near(HERE, "none")


def test_more_keys_can_be_asked_for_than_a_statement_takes() -> None:
    with TunedStore.in_memory() as store:
        store.put(HERE, [one(f"{i}") for i in range(0, 3000, 2)])
        found = store.find(HERE, [f"{i}" for i in range(3000)])
        assert list(found) == [f"{i}" for i in range(0, 3000, 2)]


@pytest.mark.parametrize(
    ("which", "left"),
    [
        (Forgetting(), 0),
        (Forgetting(engine="tvm"), 12),
        (Forgetting(version="1 ort 2", device="cpu"), 4),
        (Forgetting(slice=None), 12),
        (Forgetting(slice="25%", keys=["k"]), 13),
        (Forgetting(keys=["k", "none"]), 7),
        (Forgetting(keys=[]), 14),
    ],
)
def test_only_what_was_meant_is_forgotten(which: Forgetting, left: int) -> None:
    with TunedStore.in_memory() as store:
        for place in (HERE, *ELSEWHERE):
            store.put(place, [one("k"), one("l")])
        assert store.forget(which) == 14 - left
        assert len(list(store.all())) == left


def test_figures_that_are_not_finite_are_refused_and_nothing_is_kept() -> None:
    with TunedStore.in_memory() as store:
        with pytest.raises(StoreError, match=r"'MatMul l' cannot be kept: its latency is nan ms"):
            store.put(HERE, [one("k"), one("l", latency_ms=float("nan"))])
        assert list(store.all()) == []


def test_it_lies_in_the_home_of_slicewise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLICEWISE_HOME", str(tmp_path / "home"))
    with TunedStore() as store:
        assert store.path == default_path() == tmp_path / "home" / "tuned.sqlite"
        store.put(HERE, [one()])
    with TunedStore(read_only=True) as store:
        assert len(list(store.all())) == 1
        with pytest.raises(StoreError, match="read-only"):
            store.put(HERE, [one("l")])


def test_a_store_in_use_by_another_run_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "tuned.sqlite"
    with TunedStore(path) as store, TunedStore(path, busy_s=0.01) as other:
        store._connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError) as caught:
            other.put(HERE, [one()])
        assert str(caught.value) == (
            f"the store of tuned configurations {str(path)!r} is locked: another process is"
            " writing to it; try again when that is done"
        )
        assert other.find(HERE, ["k"]) == {}  # reading goes on
        store._connection.execute("ROLLBACK")
        assert other.put(HERE, [one()]) == 1


def test_an_absent_store_is_not_made_by_reading(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no store of tuned.*`slicewise tune` makes one"):
        TunedStore(tmp_path / "none.sqlite", read_only=True)
    assert os.listdir(tmp_path) == []


def test_files_of_others_and_damage_are_told(tmp_path: Path) -> None:
    records = tmp_path / "records.sqlite"
    connection = sqlite3.connect(records)
    connection.execute("CREATE TABLE record (id)")
    connection.close()
    before = records.read_bytes()
    with pytest.raises(StoreError, match="no store of tuned configurations of slicewise"):
        TunedStore(records)
    assert records.read_bytes() == before
    text_file = tmp_path / "text"
    text_file.write_text("hello, this is no data base" * 50)
    with pytest.raises(StoreError, match="is no SQLite file"):
        TunedStore(text_file)
    path = tmp_path / "tuned.sqlite"
    with TunedStore(path) as store:
        store.put(HERE, [one()])
        store._connection.execute("UPDATE tuned SET op_types = 'x'")
        with pytest.raises(StoreError, match=r"a row of the store of tuned.*is damaged"):
            store.find(HERE, ["k"])


KILLED = """
import os, sys
from pathlib import Path
from slicewise.core.cost import Estimate
from slicewise.core.tuning import Tuned, Workload
from slicewise.store.tuned import TunedOn, TunedStore

with TunedStore(Path(sys.argv[1])) as store:
    number = 0
    while True:
        number += 1
        latency = Estimate(1 / number, low=0, high=1)
        store.put(
            TunedOn("tvm", "1", "cpu"),
            [Tuned(Workload(f"{i}", "w", ()), f"{number}", latency) for i in range(20)],
        )
        os.write(1, b"%d\\n" % number)
"""


def test_a_run_that_is_killed_while_it_writes_leaves_whole_puts(tmp_path: Path) -> None:
    path = tmp_path / "tuned.sqlite"
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            told = [int(child.stdout.readline()) for _ in range(5)]
            child.kill()
            told.extend(map(int, child.stdout.read().split()))
        with TunedStore(path) as store:
            found = store.find(TunedOn("tvm", "1", "cpu"), [f"{i}" for i in range(20)])
            configs = {int(each.config) for each in found.values()}
            assert len(found) == 20 and len(configs) == 1
            # each put was better than the last of this run; one more may be there than was told
            assert configs <= {told[-1], told[-1] + 1}
            store.forget(Forgetting())
