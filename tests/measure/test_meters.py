"""Meters on made trees and drivers: what counters say is told, what is missing is said."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.measurement import MeasuredMemory
from slicewise.core.notes import Note
from slicewise.measure.meters import energy, memory, nvml, utilisation
from slicewise.measure.meters._base import METERS, Meter, MeterSet, Reading, Scope, meters_for
from slicewise.measure.meters.nvml import Nvml, NvmlMissing

MIB = 1 << 20


class FakeNvml:
    """The functions of pynvml, of one GPU whose figures are set here."""

    class Error(Exception):
        pass

    def __init__(self, **figures: Any) -> None:
        self.figures: dict[str, Any] = {"energy": 5000, "power": 250_000, **figures}
        self.asked: list[object] = []

    def nvmlInit(self) -> None:  # noqa: N802  # names of the library
        self._tell("init", None)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        self.asked.append(index)
        return "handle"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        self.asked.append(uuid)
        return "handle"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        names = {
            "nvmlDeviceGetName": "name",
            "nvmlSystemGetDriverVersion": "driver",
            "nvmlDeviceGetTotalEnergyConsumption": "energy",
            "nvmlDeviceGetPowerUsage": "power",
            "nvmlDeviceGetUtilizationRates": "rates",
            "nvmlDeviceGetMemoryInfo": "memory",
            "nvmlDeviceGetClockInfo": "clock",
            "nvmlDeviceGetComputeRunningProcesses": "processes",
        }
        return lambda *_: self._tell(names[name], FakeNvml.Error("Not Supported"))

    def _tell(self, name: str, missing: object) -> Any:
        told = self.figures.get(name, missing)
        if isinstance(told, Exception):
            raise told
        return told


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(nvml, "_load_api", lambda: fake)
    return fake


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_load_api", lambda: None)


# The table.


@pytest.mark.parametrize("device", ["cpu", "gpu:0"])
def test_each_kind_of_device_has_memory_energy_and_utilisation(
    device: str, no_driver: None
) -> None:
    made = meters_for(Scope(device, (0,)))
    assert len(made) == 3
    assert {type(each).__module__.rpartition(".")[2] for each in made} == {
        "memory", "energy", "utilisation",
    }  # fmt: skip


@pytest.mark.parametrize("name", list(METERS))
def test_every_meter_can_be_used_where_nothing_is_told(
    name: str, no_driver: None, tmp_path: Path
) -> None:
    meter: Meter = METERS.load(name)(Scope("gpu:0", (0,), tmp_path))  # type: ignore[operator]
    meter.loaded()
    meter.start()
    reading = meter.stop()
    assert reading.notes or reading.utilisation is not None


def test_a_meter_that_fails_costs_its_figures_alone() -> None:
    class Broken:
        def loaded(self) -> None:
            raise OSError("no such bus")

        def start(self) -> None:
            raise AssertionError("it was to be left out")

        def stop(self) -> Reading:
            raise AssertionError("it was to be left out")

    class Whole:
        def loaded(self) -> None: ...

        def start(self) -> None: ...

        def stop(self) -> Reading:
            return Reading(energy_j=0.0, notes=(Note("a", "b"),))

    meters = MeterSet([Broken(), Whole(), Whole()])
    meters.loaded()
    meters.start()
    made = meters.stop()
    assert made.energy_j == 0.0
    assert [note.code for note in made.notes] == ["a", "meter-failed"]
    assert "no such bus" in made.notes[1].text


def test_of_two_meters_that_tell_the_same_the_first_counts() -> None:
    def telling(reading: Reading) -> Meter:
        return SimpleNamespace(loaded=lambda: None, start=lambda: None, stop=lambda: reading)

    first = Reading(energy_j=1.0, memory=MeasuredMemory(2, 1, "rss"))
    second = Reading(energy_j=9.0, utilisation=0.5, memory=MeasuredMemory(9, 9, "nvml"))
    made = MeterSet([telling(first), telling(second)]).stop()
    assert (made.energy_j, made.utilisation, made.memory) == (1.0, 0.5, first.memory)


# RAPL.


class Rapl:
    """A powercap tree."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "sys/class/powercap"

    def zone(self, place: str, name: str, microjoules: int, most: int = 1 << 40) -> Path:
        zone = self.folder / place
        zone.mkdir(parents=True, exist_ok=True)
        for field, value in (
            ("name", name), ("energy_uj", microjoules), ("max_energy_range_uj", most),
        ):  # fmt: skip
            (zone / field).write_text(f"{value}\n")
        return zone


@pytest.fixture
def rapl(tmp_path: Path) -> Rapl:
    return Rapl(tmp_path)


def _rapl_meter(root: Path) -> energy.RaplEnergy:
    meter = energy.RaplEnergy(Scope(root=root))
    meter.loaded()
    return meter


def test_packages_and_their_memory_add_up_and_parts_are_left_out(
    rapl: Rapl, tmp_path: Path
) -> None:
    zones = {
        "intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram",
        "intel-rapl:1": "package-1", "intel-rapl:2": "psys", "intel-rapl-mmio:0": "package-0",
    }  # fmt: skip
    for place, name in zones.items():
        rapl.zone(place, name, 1_000_000)
    meter = _rapl_meter(tmp_path)
    meter.start()
    for place, name in zones.items():
        rapl.zone(place, name, 3_500_000)
    assert meter.stop() == Reading(energy_j=3 * 2.5)


@given(before=st.integers(0, 999), used=st.integers(0, 999))
def test_a_counter_that_wraps_round_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory, before: int, used: int
) -> None:
    root = tmp_path_factory.mktemp("rapl")
    rapl = Rapl(root)
    rapl.zone("intel-rapl:0", "package-0", before, most=1000)
    meter = _rapl_meter(root)
    meter.start()
    rapl.zone("intel-rapl:0", "package-0", (before + used) % 1000, most=1000)
    made = meter.stop().energy_j
    assert made == pytest.approx(used / 1e6)


def test_no_counter_means_no_energy_and_a_note(tmp_path: Path) -> None:
    meter = _rapl_meter(tmp_path)
    meter.start()
    made = meter.stop()
    assert made.energy_j is None
    assert [note.code for note in made.notes] == ["energy-unmetered"]


def test_a_counter_that_may_not_be_read_is_said_to_be_there(
    rapl: Rapl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rapl.zone("intel-rapl:0", "package-0", 5)
    meter = _rapl_meter(tmp_path)

    def refuse(zone: Path, field: str) -> int:
        raise PermissionError

    monkeypatch.setattr(energy, "_microjoules", refuse)
    meter.start()
    (note,) = meter.stop().notes
    assert note.code == "energy-unmetered"
    assert "root" in note.text


def test_a_counter_that_vanishes_is_noted(rapl: Rapl, tmp_path: Path) -> None:
    zone = rapl.zone("intel-rapl:0", "package-0", 5)
    meter = _rapl_meter(tmp_path)
    meter.start()
    (zone / "energy_uj").unlink()
    made = meter.stop()
    assert made.energy_j is None
    assert "stopped telling" in made.notes[0].text


# NVML.


def test_the_energy_counter_of_a_gpu_is_read_at_both_ends(driver: FakeNvml) -> None:
    meter = energy.NvmlEnergy(Scope("gpu:0"))
    meter.loaded()
    meter.start()
    driver.figures["energy"] = 12_500
    assert meter.stop() == Reading(energy_j=7.5)


def test_without_a_counter_the_power_is_integrated(driver: FakeNvml) -> None:
    del driver.figures["energy"]
    ticks = iter(range(10_000))
    meter = energy.NvmlEnergy(Scope("gpu:0"), clock=lambda: float(next(ticks)))
    meter.start()
    made = meter.stop()
    # Constant power: the integral is exact however often it was read.
    assert made.energy_j is not None
    assert made.energy_j / 250.0 == pytest.approx(next(ticks) - 1)
    assert [note.code for note in made.notes] == ["energy-integrated"]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_gpu_that_tells_neither_energy_nor_power_has_none(
    is_there: bool, driver: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.figures.clear()
    if not is_there:
        monkeypatch.setattr(nvml, "_load_api", lambda: None)
    meter = energy.NvmlEnergy(Scope("gpu:0"))
    meter.start()
    made = meter.stop()
    assert made.energy_j is None
    assert [note.code for note in made.notes] == ["energy-unmetered"]


def test_utilisation_of_a_gpu_is_the_drivers(driver: FakeNvml) -> None:
    meter = utilisation.GpuUtilisation(Scope("gpu:0"))
    meter.loaded()
    meter.start()
    (note,) = meter.stop().notes
    assert note.code == "utilisation-unmetered"
    driver.figures["rates"] = SimpleNamespace(gpu=87)
    assert meter.stop().utilisation == 0.87


@pytest.mark.parametrize(
    ("visible", "gpu", "asked"),
    [
        (None, 1, 1),
        ("2,0", 0, 2),
        ("2, 0", 1, 0),
        ("GPU-abc", 0, "GPU-abc"),
        ("MIG-1,MIG-2", 1, "MIG-2"),
    ],
)
def test_gpus_are_numbered_as_cuda_numbers_them(
    visible: str | None, gpu: int, asked: object
) -> None:
    fake = FakeNvml(name=b"H", driver="1.2", clock=1500)
    found = Nvml(fake, gpu, environ={} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert fake.asked == [asked]
    assert (found.name(), found.driver(), found.clock_hz()) == ("H", "1.2", 1.5e9)


def test_a_gpu_that_is_not_visible_or_a_dead_driver_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(NvmlMissing, match="lists no GPU number 1"):
        Nvml(FakeNvml(), 1, environ={"CUDA_VISIBLE_DEVICES": "0"})
    monkeypatch.setattr(nvml, "_load_api", lambda: FakeNvml(init=RuntimeError("Driver gone")))
    assert nvml.open_nvml(0) is None


def test_scope_names_the_gpu() -> None:
    assert (Scope("gpu:3").gpu, Scope("gpu").gpu, Scope("cpu").gpu) == (3, 0, 0)


class FakeCuda:
    """torch.cuda's figures."""

    def __init__(self, *, reserved: int, peak: int, allocated: int) -> None:
        self._figures = reserved, peak, allocated
        self.resets: list[int] = []

    def is_initialized(self) -> bool:
        return True

    def reset_peak_memory_stats(self, gpu: int) -> None:
        self.resets.append(gpu)

    def memory_reserved(self, gpu: int) -> int:
        return self._figures[0]

    def max_memory_reserved(self, gpu: int) -> int:
        return self._figures[1]

    def max_memory_allocated(self, gpu: int) -> int:
        return self._figures[2]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda(reserved=300 * MIB, peak=400 * MIB, allocated=350 * MIB)
    monkeypatch.setattr(memory, "_torch_on_gpu", lambda: SimpleNamespace(cuda=fake))
    return fake


def _gpu_memory() -> Reading:
    meter = memory.GpuMemory(Scope("gpu:1"))
    meter.loaded()
    meter.start()
    return meter.stop()


def test_memory_of_torch_is_the_allocators_peak_and_the_context(
    driver: FakeNvml, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.figures["memory"] = SimpleNamespace(used=0)
    driver.figures["processes"] = [SimpleNamespace(pid=77, usedGpuMemory=800 * MIB)]
    monkeypatch.setattr(os, "getpid", lambda: 77)
    made = _gpu_memory()
    assert cuda.resets == [1]
    assert made.memory == MeasuredMemory(
        900 * MIB, 500 * MIB, "allocator+context", allocator_bytes=350 * MIB
    )
    assert not made.notes


def test_without_the_driver_torch_tells_its_allocator_alone(
    no_driver: None, cuda: FakeCuda
) -> None:
    made = _gpu_memory()
    assert made.memory == MeasuredMemory(400 * MIB, 0, "allocator", allocator_bytes=350 * MIB)
    assert [note.code for note in made.notes] == ["context-unmetered"]


def test_where_the_driver_does_not_count_by_process_the_growth_is_taken(
    driver: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_torch_on_gpu", lambda: None)
    driver.figures["memory"] = SimpleNamespace(used=1000 * MIB)
    meter = memory.GpuMemory(Scope("gpu:0"))
    meter.loaded()
    meter.start()
    driver.figures["memory"] = SimpleNamespace(used=1700 * MIB)
    made = meter.stop()
    assert made.memory == MeasuredMemory(700 * MIB, 0, "nvml")
    assert [note.code for note in made.notes] == ["memory-whole-device"]


def test_without_driver_and_torch_gpu_memory_is_not_told(
    driver: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_torch_on_gpu", lambda: None)
    made = _gpu_memory()  # a driver that tells no memory at all
    assert made.memory is None
    assert [note.code for note in made.notes] == ["memory-unmetered"]


# Memory of a process on a CPU.


def _process(root: Path, *, held_kib: int, peak_kib: int) -> None:
    folder = root / "proc/self"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "status").write_text(f"Name:\tx\nVmHWM:\t{peak_kib} kB\nVmRSS:\t{held_kib} kB\n")
    (folder / "clear_refs").touch()


def test_peak_of_a_process_is_the_mark_since_the_start(tmp_path: Path) -> None:
    _process(tmp_path, held_kib=10, peak_kib=50)
    meter = memory.ProcessMemory(Scope(root=tmp_path))
    meter.loaded()
    meter.start()
    assert (tmp_path / "proc/self/clear_refs").read_text() == "5"
    _process(tmp_path, held_kib=20, peak_kib=30)
    assert meter.stop() == Reading(memory=MeasuredMemory(30 * 1024, 10 * 1024, "rss"))


def test_a_mark_that_cannot_be_set_back_is_noted(tmp_path: Path) -> None:
    _process(tmp_path, held_kib=10, peak_kib=50)
    (tmp_path / "proc/self/clear_refs").unlink()
    (tmp_path / "proc/self/clear_refs").mkdir()
    meter = memory.ProcessMemory(Scope(root=tmp_path))
    meter.loaded()
    meter.start()
    made = meter.stop()
    assert made.memory == MeasuredMemory(50 * 1024, 10 * 1024, "rss")
    assert [note.code for note in made.notes] == ["memory-of-whole-life"]


def test_this_process_holds_memory_and_its_peak_sees_what_was_freed() -> None:
    meter = memory.ProcessMemory(Scope())
    meter.loaded()
    meter.start()
    block = bytearray(b"\x01" * (64 * MIB))
    del block
    made = meter.stop().memory
    held = memory.resident_bytes()
    assert made is not None
    assert held is not None
    assert made.peak_bytes >= made.runtime_bytes + 32 * MIB
    assert made.peak_bytes >= held - MIB


def test_freed_memory_goes_back_to_the_system() -> None:
    assert memory.release_freed_memory()


def test_a_torch_that_holds_nothing_leaves_the_memory_to_the_driver(
    driver: FakeNvml, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda._figures = 0, 0, 0
    driver.figures["memory"] = SimpleNamespace(used=0)
    driver.figures["processes"] = [SimpleNamespace(pid=77, usedGpuMemory=800 * MIB)]
    monkeypatch.setattr(os, "getpid", lambda: 77)
    assert _gpu_memory().memory == MeasuredMemory(800 * MIB, 0, "nvml")


def test_torch_is_never_imported_by_a_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert memory._torch_on_gpu() is None
    idle = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", idle)
    assert memory._torch_on_gpu() is None


# Utilisation of cores.


@given(st.floats(0.1, 100), st.floats(0, 100), st.integers(1, 64))
def test_used_part_of_the_cores_lies_between_none_and_all(
    wall_s: float, own_s: float, cores: int
) -> None:
    wall, own = iter((5.0, 5.0 + wall_s)), iter((1.0, 1.0 + own_s))
    scope = Scope(cores=tuple(range(cores)))
    meter = utilisation.ProcessorTime(scope, wall=lambda: next(wall), own=lambda: next(own))
    meter.loaded()
    meter.start()
    made = meter.stop().utilisation
    assert made is not None
    assert made == pytest.approx(min(1.0, own_s / (wall_s * cores)), abs=1e-9)


def test_no_time_means_no_utilisation() -> None:
    meter = utilisation.ProcessorTime(Scope(cores=(0,)), wall=lambda: 1.0, own=lambda: 1.0)
    meter.start()
    (note,) = meter.stop().notes
    assert note.code == "utilisation-unmetered"
