"""Shares: what the user's words mean on a device, and that a process is really held to them."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.errors import (
    DeviceError,
    MeasureError,
    SlicewiseError,
    UsageError,
)
from slicewise.core.measurement import Job, Subject
from slicewise.core.share import Mechanism, Share
from slicewise.measure.shares import _base
from slicewise.measure.shares._base import (
    Binder,
    bind_share,
    entered_share,
    resolve_share,
    verify_share,
    watch_share,
)
from slicewise.measure.shares.cores import CoreBinder
from slicewise.measure.shares.quota import hold_quota, quota_place, read_cap


def job(share: Share | None, *, device: str = "cpu") -> Job:
    subject = Subject("m", "m.onnx", "0" * 64, (), form="onnx", open=os.getpid)
    return Job(subject, "null", 1, device=device, share=share)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def cgroup(tmp_path: Path) -> Path:
    """A root with a cgroup v2 tree that hands on the cpu controller to this user."""
    write(tmp_path / "sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
    write(tmp_path / "sys/fs/cgroup/mine/cgroup.subtree_control", "cpu\n")
    write(tmp_path / "sys/fs/cgroup/mine/cgroup.procs", "")
    write(tmp_path / "sys/fs/cgroup/mine/leaf/cgroup.procs", "")
    write(tmp_path / "proc/self/cgroup", "0::/mine/leaf\n")
    return tmp_path


def loads(**binders: Binder) -> Any:
    return lambda name: binders.get(name) or _base.load_binder(name)


@pytest.mark.parametrize("name", list(_base.BINDERS))
def test_every_mechanism_has_a_binder_that_says_whether_it_can_be_used(name: str) -> None:
    binder = _base.load_binder(name)
    assert name in tuple(Mechanism)
    assert binder.kind in ("cpu", "gpu")
    assert isinstance(binder.is_available(), str)


class TestCores:
    @given(st.integers(1, 64), st.data())
    def test_whole_cores_by_percentage_are_that_many_and_named_so(
        self, count: int, data: st.DataObject
    ) -> None:
        wanted = data.draw(st.integers(1, count))
        binder = CoreBinder(root=Path("/nowhere"))
        share = binder.part_of_percent(100 * wanted / count, range(count))
        assert len(share.cores) == wanted
        name = binder.name_part(share, 0, range(count))
        assert (name is None) == (wanted == count)
        if name is not None:  # a device's share of that percentage has as many cores
            assert int(count * float(name.rstrip("%")) / 100) == wanted

    def test_words_become_cores_and_a_slice(self) -> None:
        half = Share(Mechanism.CORES, (0, 1))
        assert resolve_share("50", device="cpu", cores=range(4)) == (half, "50%")
        assert resolve_share("cores:1,3", device="cpu", cores=range(4))[1] == "50%"
        assert resolve_share("100%", device="cpu", cores=range(4))[1] is None
        assert resolve_share("33", device="cpu", cores=(4, 6, 9))[0].cores == (4,)

    def test_whole_physical_cores_come_first(self, tmp_path: Path) -> None:
        for core, pair in enumerate(["0,2", "1,3", "0,2", "1,3"]):
            told = f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
            write(tmp_path / told, f"{pair}\n")
        binder = CoreBinder(root=tmp_path)
        assert binder.part_of_percent(50, range(4)).cores == (0, 2)
        (note,) = binder._halved(Share(Mechanism.CORES, cores=(0, 1)))
        assert note.code == "share-splits-core"

    @pytest.mark.parametrize(
        ("text", "cores", "message"),
        [
            ("cores:0-3", (0, 1), r"cores:0-3 wants core 2-3; this process may use 0-1"),
            (
                "50",
                (0,),
                r"50% of 1 cores is 0.5 cores, which needs a cgroup.*whole cores are 100",
            ),
            ("30%", (0, 1), r"whole cores are 50, 100 %"),
            ("0", (0,), "share '0' is impossible"),
            ("120", (0,), "share '120' is impossible"),
            ("half", (0,), "share 'half' is none"),
            ("mps:50", (0,), "divides a gpu, and the device is cpu"),
        ],
    )
    def test_impossible_shares_name_what_is_possible(
        self, text: str, cores: tuple[int, ...], message: str
    ) -> None:
        load = loads(cores=CoreBinder(root=Path("/nowhere")))
        with pytest.raises(UsageError, match=message):
            resolve_share(text, device="cpu", cores=cores, load=load)

    def test_part_of_a_core_is_taken_where_a_cgroup_can_be_made(self, cgroup: Path) -> None:
        load = loads(cores=CoreBinder(root=cgroup))
        share, name = resolve_share("75", device="cpu", cores=(0, 1), load=load)
        assert (share.cores, share.percent, name) == ((0, 1), 75, "75%")
        share, name = resolve_share("30", device="cpu", cores=range(4), load=load)
        assert (share.cores, name) == ((0, 1), "30%")
        assert share.percent == pytest.approx(60)

    def test_a_process_and_what_it_starts_are_held_to_the_share(self) -> None:
        core = min(os.sched_getaffinity(0))
        code = (
            "import sys, pickle, os, subprocess, threading, time\n"
            "from slicewise.measure.shares._base import bind_share, verify_share, watch_share\n"
            "stop = threading.Event()\n"
            "other = threading.Thread(target=stop.wait); other.start()\n"
            "job = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
            "bind_share(job); notes = verify_share(job); watch_share(job)()\n"
            "print([sorted(os.sched_getaffinity(i)) for i in (0, other.native_id)])\n"
            "stop.set()\n"
            "child = 'import os; print(sorted(os.sched_getaffinity(0)))'\n"
            "sys.stdout.flush(); subprocess.run([sys.executable, '-c', child], check=True)\n"
            "print([m for m in ('numpy', 'torch', 'onnxruntime') if m in sys.modules])\n"
        )
        sent = pickle.dumps(job(Share(Mechanism.CORES, cores=(core,)))).hex()
        out = subprocess.run(
            [sys.executable, "-c", code, sent], capture_output=True, text=True, check=True
        )
        assert out.stdout.splitlines() == [f"[[{core}], [{core}]]", f"[{core}]", "[]"]

    def test_no_share_changes_nothing(self) -> None:
        before = os.sched_getaffinity(0)
        nothing = job(None)
        with entered_share(nothing) as notes:
            assert notes == verify_share(nothing) == bind_share(nothing) == ()
        assert watch_share(nothing)() == ()
        assert os.sched_getaffinity(0) == before

    def test_cores_that_are_not_there_cannot_be_bound(self) -> None:
        with pytest.raises(DeviceError, match="cores:900 cannot be taken"):
            bind_share(job(Share(Mechanism.CORES, cores=(900,))))

    def test_an_affinity_that_something_changed_is_found(self) -> None:
        elsewhere = Share(Mechanism.CORES, cores=(901,))
        with pytest.raises(MeasureError, match="cores:901 does not hold"):
            verify_share(job(elsewhere))

    def test_a_quota_that_is_smaller_than_the_cores_is_noted(self, cgroup: Path) -> None:
        write(cgroup / "sys/fs/cgroup/mine/cpu.max", "50000 100000\n")
        write(cgroup / "sys/fs/cgroup/mine/leaf/cpu.max", "max 100000\n")
        assert read_cap(cgroup) == 0.5
        (note,) = CoreBinder(root=cgroup)._caps(Share(Mechanism.CORES, cores=(0, 1)))
        assert note.code == "share-capped" and "0.5 cores, of 2" in note.text

    def test_a_quota_of_the_first_version_counts_too(self, tmp_path: Path) -> None:
        write(tmp_path / "proc/self/cgroup", "4:cpu,cpuacct:/box\n0::/\n")
        for name, value in (("quota", 150_000), ("period", 100_000)):
            write(tmp_path / f"sys/fs/cgroup/cpu/box/cpu.cfs_{name}_us", f"{value}\n")
        assert read_cap(tmp_path) == 1.5

    def test_a_missing_quota_is_an_error_of_a_share_that_needs_one(self, tmp_path: Path) -> None:
        with pytest.raises(MeasureError, match="quota is none"):
            CoreBinder(root=tmp_path)._caps(Share(Mechanism.CORES, cores=(0,), percent=50))

    def test_a_group_is_made_for_the_quota_and_those_of_the_dead_are_removed(
        self, cgroup: Path
    ) -> None:
        place, why = quota_place(cgroup)
        assert place == cgroup / "sys/fs/cgroup/mine" and why == ""
        (place / "slicewise-99999999").mkdir()
        (place / "slicewise-1").mkdir()  # of a process that lives
        hold_quota(place, cores=0.75, root=cgroup)
        group = place / f"slicewise-{os.getpid()}"
        assert (group / "cpu.max").read_text() == "75000 100000"
        assert (group / "cgroup.procs").read_text() == str(os.getpid())
        assert {g.name for g in place.glob("slicewise-*")} == {"slicewise-1", group.name}

    def test_a_quota_that_the_system_refuses_leaves_no_group(
        self, cgroup: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place, _ = quota_place(cgroup)
        assert place is not None

        def refuse(path: Path, text: str) -> int:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(Path, "write_text", refuse)
        with pytest.raises(DeviceError, match=r"quota of 0\.5 cores cannot be set: Operation not"):
            hold_quota(place, cores=0.5, root=cgroup)

    def test_time_of_others_on_the_cores_is_noted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = iter([0.0, 10.0])
        monkeypatch.setattr("time.monotonic", lambda: next(clock))
        tick = os.sysconf("SC_CLK_TCK")
        write(tmp_path / "proc/stat", "cpu 0\ncpu0 0 0 0 0 0 0 0 0 0 0\ncpu10 9 9 9\n")
        end = CoreBinder(root=tmp_path).watch(Share(Mechanism.CORES, cores=(0,)), 0)
        write(tmp_path / "proc/stat", f"cpu0 {3 * tick} 0 0 {5 * tick} 0 0 0 {2 * tick} 0 0\n")
        (note,) = end()
        assert note.code == "share-disturbed" and "50% of the time of cores 0" in note.text

    def test_a_load_that_nobody_tells_is_noted(self, tmp_path: Path) -> None:
        (note,) = CoreBinder(root=tmp_path).watch(Share(Mechanism.CORES, cores=(0,)), 0)()
        assert note.code == "share-unwatched"


@pytest.mark.parametrize("device", ["gpu", "tpu:0", "gpu:x"])
def test_a_device_that_is_none_is_refused(device: str) -> None:
    with pytest.raises(UsageError, match="cannot be shared out here"):
        resolve_share("50", device=device, cores=(0,))


@given(st.text())
def test_any_text_is_a_share_or_an_error_of_ours(text: str) -> None:
    load = loads(cores=CoreBinder(root=Path("/nowhere")))
    try:
        share, _ = resolve_share(text, device="cpu", cores=range(4), load=load)
    except SlicewiseError as err:
        assert "\n" not in str(err)
    else:
        assert set(share.cores) <= set(range(4))
