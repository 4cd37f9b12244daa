"""Shares of a GPU, against tools and drivers that are played."""

import os
import re
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

from slicewise.core.errors import (
    DeviceError,
    MeasureError,
    MissingDependency,
    UsageError,
)
from slicewise.core.measurement import Job, Subject
from slicewise.core.share import Mechanism, Share
from slicewise.measure.runtimes import cuda_parts
from slicewise.measure.shares import _base
from slicewise.measure.shares._base import (
    Binder,
    inner_device,
    resolve_share,
)
from slicewise.measure.shares.green import GreenBinder, round_sms
from slicewise.measure.shares.mig import MigBinder
from slicewise.measure.shares.mps import MpsBinder
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


def loads(**binders: Binder) -> Any:
    return lambda name: binders.get(name) or _base.load_binder(name)


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

    @pytest.mark.parametrize(
        "error", [MissingDependency("x", package="torch", extra=None), DeviceError("no CUDA")]
    )
    def test_a_torch_that_cannot_tell_the_sms_is_a_note(
        self, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(index: int) -> int:
            raise error

        binder = self.binder(tmp_path)
        binder.bind(self.SHARE, 0)
        monkeypatch.setattr(cuda_parts, "count_sms", refuse)
        assert [note.code for note in binder.verify(self.SHARE, 0)] == ["share-unverified"]

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


def test_listing_and_processes_are_read() -> None:
    listing = read_listing(LISTED)
    assert listing.gpus == {0: "GPU-aa", 1: "GPU-bb"}
    assert [(i.profile, i.gpu) for i in listing.instances] == [("2g.20gb", 0), ("1g.10gb", 0)]
    told = "GPU-aa, 5\nGPU-aa, 6\nGPU-bb, 7\nnonsense\n"
    assert count_others(told, uuid="GPU-aa", pid=5) == 1
    assert count_others(told, uuid="GPU-bb", pid=5) == 0  # numbers of another namespace
    assert count_others("", uuid="GPU-aa", pid=5) == 0
