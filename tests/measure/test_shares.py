"""Shares: what the user's words mean on a device, and that a process is really held to them."""

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.errors import DeviceError, MeasureError, SlicewiseError, UsageError
from slicewise.core.measurement import Job, Subject
from slicewise.core.share import Mechanism, Share
from slicewise.measure.runtimes import cuda_parts
from slicewise.measure.shares import _base
from slicewise.measure.shares._base import (
    Binder,
    bind_share,
    entered_share,
    inner_device,
    resolve_share,
    verify_share,
    watch_share,
)
from slicewise.measure.shares.cores import CoreBinder
from slicewise.measure.shares.green import GreenBinder, round_sms
from slicewise.measure.shares.mig import MigBinder
from slicewise.measure.shares.mps import MpsBinder
from slicewise.measure.shares.quota import hold_quota, quota_place, read_cap
from slicewise.measure.shares.smi import count_others, read_listing

LISTED = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-aa)
  MIG 2g.20gb     Device  0: (UUID: MIG-one)
  MIG 1g.10gb     Device  1: (UUID: MIG-two)
GPU 1: NVIDIA H200 (UUID: GPU-bb)
"""


def smi(command: Sequence[str]) -> str:
    return LISTED if "-L" in command else "GPU-bb, 11\nGPU-bb, 12\nGPU-aa, 13\n"


def silent(command: Sequence[str]) -> str:
    return ""


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
            ("cores:0-3", (0, 1), r"cores:0-3 wants core 2, 3; this process may use 0-1"),
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


class TestMps:
    SHARE = Share(Mechanism.MPS, percent=25)

    def binder(self, pipes: Path) -> MpsBinder:
        environment = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes)}
        return MpsBinder(environment=environment, run=smi)

    def test_it_can_be_used_where_a_daemon_is_up(self, tmp_path: Path) -> None:
        binder = self.binder(tmp_path)
        assert "no MPS daemon has its pipes in" in binder.is_available()
        write(tmp_path / "control", "")
        assert binder.is_available() == ""
        write(tmp_path / "nvidia-cuda-mps-control.pid", f"{os.getpid()}\n")
        assert binder.is_available() == ""
        write(tmp_path / "nvidia-cuda-mps-control.pid", "99999999\n")
        assert "has ended; start it with `nvidia-cuda-mps-control -d`" in binder.is_available()

    def test_binding_sets_what_cuda_reads(self, tmp_path: Path) -> None:
        binder = self.binder(tmp_path)
        assert binder.bind(self.SHARE, 1) == ()
        assert binder.environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
        assert binder.environment["CUDA_VISIBLE_DEVICES"] == "GPU-bb"
        assert inner_device(job(self.SHARE, device="gpu:1")) == "gpu:0"

    def test_a_gpu_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DeviceError, match="gpu:5 is not there; nvidia-smi lists gpu:0, gpu:1"):
            self.binder(tmp_path).bind(self.SHARE, 5)

    def test_it_says_how_many_sms_cuda_shows(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        binder = self.binder(tmp_path)
        with pytest.raises(MeasureError, match="PERCENTAGE is None"):
            binder.verify(self.SHARE, 0)
        binder.bind(self.SHARE, 0)
        monkeypatch.setattr(cuda_parts, "count_sms", lambda index: 33)
        (note,) = binder.verify(self.SHARE, 0)
        assert note.code == "share-seen" and "33 SMs" in note.text

    def test_a_process_that_uses_cuda_already_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        used = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True))
        monkeypatch.setitem(sys.modules, "torch", used)
        with pytest.raises(MeasureError, match="comes too late"):
            self.binder(tmp_path).bind(self.SHARE, 0)

    def test_other_processes_on_the_gpu_are_noted(self, tmp_path: Path) -> None:
        (note,) = self.binder(tmp_path).watch(self.SHARE, 1)()
        assert note.code == "share-disturbed" and note.text.startswith("1 other")
        assert self.binder(tmp_path).watch(self.SHARE, 0)() == ()


class TestMig:
    SHARE = Share(Mechanism.MIG, uuid="MIG-one")

    def test_the_slice_is_called_by_its_profile(self) -> None:
        load = loads(mig=MigBinder(environment={}, run=smi))
        share, name = resolve_share("mig:MIG-one", device="gpu:0", cores=(), load=load)
        assert (share, name) == (self.SHARE, "2g.20gb")

    def test_an_instance_that_is_not_there_or_elsewhere_is_refused(self) -> None:
        load = loads(mig=MigBinder(environment={}, run=smi))
        with pytest.raises(
            DeviceError, match=r"MIG-xx is not there.*MIG-one \(2g.20gb of gpu:0\)"
        ):
            resolve_share("mig:MIG-xx", device="gpu:0", cores=(), load=load)
        with pytest.raises(UsageError, match="is on gpu:0, and the device is gpu:1"):
            resolve_share("mig:MIG-one", device="gpu:1", cores=(), load=load)
        nowhere = loads(mig=MigBinder(environment={}, run=silent))
        with pytest.raises(DeviceError, match="lists no MIG instance"):
            resolve_share("mig:MIG-one", device="gpu:0", cores=(), load=nowhere)

    def test_binding_shows_the_instance_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        binder = MigBinder(environment={}, run=smi)
        with pytest.raises(MeasureError, match="CUDA_VISIBLE_DEVICES is ''"):
            binder.verify(self.SHARE, 0)
        binder.bind(self.SHARE, 0)
        assert binder.environment == {"CUDA_VISIBLE_DEVICES": "MIG-one"}
        monkeypatch.setattr(cuda_parts, "count_sms", lambda index: 28)
        assert "28 SMs" in binder.verify(self.SHARE, 0)[0].text
        assert binder.watch(self.SHARE, 0)() == ()

    def test_a_percentage_is_no_instance(self) -> None:
        with pytest.raises(UsageError, match="names no MIG instance"):
            MigBinder(environment={}, run=smi).part_of_percent(50, ())


@dataclass
class FakeCuda:
    sms: int = 132
    capability: tuple[int, int] = (9, 0)
    current: int | None = None
    tells: bool = True
    entered: list[int] = field(default_factory=list)

    def count_sms(self, device_index: int) -> int:
        return self.sms

    def read_capability(self, device_index: int) -> tuple[int, int]:
        return self.capability

    @contextmanager
    def green_context(self, device_index: int, *, sms: int) -> Iterator[None]:
        self.current = sms
        self.entered.append(sms)
        try:
            yield
        finally:
            self.current = None

    def count_context_sms(self) -> int | None:
        return (self.current or self.sms) if self.tells else None


class TestGreen:
    SHARE = Share(Mechanism.GREEN, percent=25)

    @given(st.floats(0.1, 100), st.integers(16, 256), st.integers(6, 13))
    def test_sms_of_a_context_are_legal_and_near(
        self, percent: float, total: int, major: int
    ) -> None:
        least, step = {6: (1, 1), 7: (2, 2), 8: (4, 2)}.get(major, (8, 8))
        sms = round_sms(percent, total, major)
        assert least <= sms <= total and sms % step == 0
        near = abs(sms - total * percent / 100) <= step / 2
        assert near or sms in (least, total // step * step)

    def test_the_block_runs_inside_and_rounding_is_noted(self) -> None:
        cuda = FakeCuda()
        binder = GreenBinder(cuda=cuda, run=smi, torch_version="2.11.0")
        assert binder.bind(self.SHARE, 0) == ()
        with binder.entered(self.SHARE, 0) as (note,):
            assert cuda.current == 32
            assert note.code == "share-rounded" and "of 132 SMs is 33" in note.text
            assert "32 SMs" in binder.verify(self.SHARE, 0)[0].text
        assert cuda.current is None

    def test_an_error_inside_leaves_the_context(self) -> None:
        cuda = FakeCuda()
        with (
            pytest.raises(ZeroDivisionError),
            GreenBinder(cuda=cuda, run=smi).entered(self.SHARE, 0),
        ):
            raise ZeroDivisionError
        assert cuda.current is None

    def test_the_whole_device_needs_no_context(self) -> None:
        cuda = FakeCuda()
        with GreenBinder(cuda=cuda).entered(Share(Mechanism.GREEN), 0) as notes:
            assert notes == () and cuda.entered == []

    def test_running_outside_of_the_context_is_found(self) -> None:
        with pytest.raises(MeasureError, match="the context has 132 SMs, not 32"):
            GreenBinder(cuda=FakeCuda(), run=smi).verify(self.SHARE, 0)

    def test_what_nobody_can_tell_is_noted(self) -> None:
        (note,) = GreenBinder(cuda=FakeCuda(tells=False), run=smi).verify(self.SHARE, 0)
        assert note.code == "share-unverified"

    @pytest.mark.parametrize(
        ("version", "run", "why"),
        [
            ("", smi, "need torch: pip install"),
            ("2.9.1", smi, "not 2.9.1"),
            ("2.13.0+cpu", smi, r"not 2.13.0\+cpu"),
            ("2.11.0", silent, "lists no GPU"),
            ("2.11.0+cu130", smi, "^$"),
        ],
    )
    def test_it_says_why_it_cannot_be_used(self, version: str, run: Any, why: str) -> None:
        assert re.search(why, GreenBinder(run=run, torch_version=version).is_available())


class TestCudaParts:
    """What is asked of torch, with a torch that answers."""

    @pytest.fixture
    def log(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        log: list[str] = []

        class Context:
            @staticmethod
            def create(*, num_sms: int, device_id: int) -> "Context":
                if num_sms > 100:
                    raise RuntimeError("too many SMs\nmore")
                log.append(f"create {num_sms} on {device_id}")
                return Context()

            def set_context(self) -> None:
                log.append("set")

            def pop_context(self) -> None:
                log.append("pop")

        properties = SimpleNamespace(multi_processor_count=132)
        cuda = SimpleNamespace(
            get_device_properties=lambda index: properties,
            get_device_capability=lambda index: (9, 0),
            init=lambda: log.append("init"),
        )
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
        monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
        green = SimpleNamespace(GreenContext=Context)
        monkeypatch.setitem(sys.modules, "torch.cuda.green_contexts", green)
        return log

    def test_a_context_is_made_entered_and_left(self, log: list[str]) -> None:
        assert cuda_parts.count_sms(0) == 132
        assert cuda_parts.read_capability(0) == (9, 0)
        with cuda_parts.green_context(1, sms=32):
            log.append("run")
        assert log == ["init", "create 32 on 1", "set", "run", "pop"]

    def test_a_refusal_is_an_error_of_the_device(self, log: list[str]) -> None:
        with (
            pytest.raises(DeviceError, match=r"of 128 SMs cannot be made on gpu:0: too many SMs;"),
            cuda_parts.green_context(0, sms=128),
        ):
            pass

    def test_the_driver_tells_the_sms_of_a_context(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def ask(context: object, kind: object) -> tuple[int, Any]:
            return 0, SimpleNamespace(sm=SimpleNamespace(smCount=32))

        driver = SimpleNamespace(
            CUresult=SimpleNamespace(CUDA_SUCCESS=0),
            CUdevResourceType=SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM=1),
            cuCtxGetCurrent=lambda: (0, object()),
            cuCtxGetDevResource=ask,
        )
        monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)
        assert cuda_parts.count_context_sms() == 32
        driver.cuCtxGetCurrent = lambda: (201, None)
        assert cuda_parts.count_context_sms() is None
        monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
        assert cuda_parts.count_context_sms() is None


def test_a_bare_percentage_of_a_gpu_takes_the_first_way_there_is(tmp_path: Path) -> None:
    nothing = MpsBinder(environment={"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}, run=smi)
    green = GreenBinder(run=smi, torch_version="2.11.0")
    load = loads(mps=nothing, green=green)
    assert resolve_share("25", device="gpu:1", cores=(), load=load) == (
        Share(Mechanism.GREEN, percent=25),
        "25%",
    )
    write(tmp_path / "control", "")
    share, _ = resolve_share("25", device="gpu:1", cores=(), load=load)
    assert share.mechanism is Mechanism.MPS
    (tmp_path / "control").unlink()
    load = loads(mps=nothing, green=GreenBinder(run=smi, torch_version=""))
    with pytest.raises(DeviceError, match=r"mps: no MPS daemon.*green: green contexts need torch"):
        resolve_share("25", device="gpu:0", cores=(), load=load)


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


def test_listing_and_processes_are_read() -> None:
    listing = read_listing(LISTED)
    assert listing.gpus == {0: "GPU-aa", 1: "GPU-bb"}
    assert [(i.profile, i.gpu) for i in listing.instances] == [("2g.20gb", 0), ("1g.10gb", 0)]
    told = "GPU-aa, 5\nGPU-aa, 6\nGPU-bb, 7\nnonsense\n"
    assert count_others(told, uuid="GPU-aa", pid=5) == 1
    assert count_others(told, uuid="GPU-bb", pid=5) == 0  # numbers of another namespace
    assert count_others("", uuid="GPU-aa", pid=5) == 0
