"""The probe, on faked machines: files below a folder, outputs of the driver, a faked NVML."""

import math
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.device import Device
from slicewise.core.errors import DeviceError
from slicewise.core.precision import DType
from slicewise.core.processes import run_command
from slicewise.hardware import probe
from slicewise.hardware.catalogue import find_device
from slicewise.hardware.cpu_facts import CpuFacts, device_of_cpu, read_linux, read_sysctl
from slicewise.hardware.gpu_facts import (
    GENERATIONS,
    GpuFacts,
    MigInstance,
    device_of_gpu,
    parse_smi_list,
    parse_smi_query,
)

XEON = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model name\t: Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz
cpu MHz\t\t: 3000.000
cache size\t: 107520 KB
cpu cores\t: 2
flags\t\t: fpu sse2 avx avx2 fma avx512f avx512_vnni avx512_bf16 amx_int8 amx_bf16

processor\t: 1
vendor_id\t: GenuineIntel
"""
GRAVITON = """processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd evtstrm aes asimdhp asimddp i8mm bf16
CPU implementer\t: 0x41
"""
SMI = """0, NVIDIA A100-SXM4-40GB, GPU-aaaa, 40960, 400.00, 1410, 8.0, Enabled
1, Tesla T4, GPU-bbbb, 15360, 70.00, 1590, 7.5, [N/A]
"""
SMI_LIST = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa)
  MIG 1g.5gb      Device  0: (UUID: MIG-1111)
  MIG 1c.3g.20gb  Device  1: (UUID: MIG-GPU-aaaa/2/0)
GPU 1: Tesla T4 (UUID: GPU-bbbb)
"""


def machine(root: Path, cpuinfo: str, *, cpus: int, threads_per_core: int = 1) -> Path:
    """Write the files of a Linux machine with one package below `root`."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/cpuinfo").write_text(cpuinfo)
    (root / "proc/meminfo").write_text("MemTotal:       33554432 kB\nMemFree: 1 kB\n")
    (root / "proc/self/cgroup").write_text("0::/pod/app\n")
    for cpu in range(cpus):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}"
        (folder / "topology").mkdir(parents=True)
        (folder / "topology/core_id").write_text(f"{cpu // threads_per_core}\n")
        (folder / "topology/physical_package_id").write_text("0\n")
        for index, (level, kind, size, shared) in enumerate(
            [(1, "Data", "48K", str(cpu)), (1, "Instruction", "32K", str(cpu)),
             (2, "Unified", "2048K", str(cpu)), (3, "Unified", "105M", f"0-{cpus - 1}")]
        ):  # fmt: skip
            cache = folder / f"cache/index{index}"
            cache.mkdir(parents=True)
            for name, value in (("level", str(level)), ("type", kind), ("size", size),
                                ("shared_cpu_list", shared)):  # fmt: skip
                (cache / name).write_text(f"{value}\n")
    return root


def codes(device: Device) -> set[str]:
    return {note.code for note in device.notes}


def test_an_x86_server_gives_cores_clock_caches_and_peaks_by_rule(tmp_path: Path) -> None:
    root = machine(tmp_path, XEON, cpus=4, threads_per_core=2)
    facts = read_linux(root, affinity={0, 1, 2, 3}, machine="x86_64")
    assert (facts.cores, facts.clock_hz, facts.vendor) == (2, 2.0e9, "Intel")
    assert facts.cache_bytes == 105 * 2**20
    assert facts.memory_bytes == 32 * 2**30
    device = device_of_cpu(facts)
    assert (device.name, device.kind, device.compute_units) == ("cpu", "cpu", 2)
    assert device.peak_flop_per_s[DType.FP32] == 2 * 64 * 2.0e9
    assert device.peak_flop_per_s[DType.INT8] == 32 * 2 * 64 * 2.0e9
    assert device.peak_flop_per_s[DType.BF16] == 16 * 2 * 64 * 2.0e9
    assert codes(device) == {"spec-probed"}


def test_hyper_threads_of_one_core_count_once(tmp_path: Path) -> None:
    root = machine(tmp_path, XEON, cpus=8, threads_per_core=2)
    assert read_linux(root, affinity={0, 1}, machine="x86_64").cores == 1
    assert read_linux(root, affinity={0, 2, 5}, machine="x86_64").cores == 3


def test_zen_4_does_half_of_a_full_width_avx512_core() -> None:
    zen4 = CpuFacts(vendor="AMD", family=25, machine="x86_64", flags=frozenset({"avx512f"}),
                    cores=1, clock_hz=1e9)  # fmt: skip
    assert device_of_cpu(zen4).peak_flop_per_s[DType.FP32] == 32e9
    assert device_of_cpu(replace(zen4, family=26)).peak_flop_per_s[DType.FP32] == 64e9
    assert device_of_cpu(replace(zen4, vendor="Intel")).peak_flop_per_s[DType.FP32] == 64e9


@pytest.mark.parametrize(("flags", "over_base"), [("fma hypervisor", 1.3), ("fma", 1.0)])
def test_a_virtual_amd_core_runs_above_the_base_clock_it_shows(
    tmp_path: Path, flags: str, over_base: float
) -> None:
    cpuinfo = f"processor : 0\nvendor_id : AuthenticAMD\ncpu MHz : 2600.0\nflags : {flags}\n"
    facts = read_linux(machine(tmp_path, cpuinfo, cpus=1), affinity={0}, machine="x86_64")
    assert facts.clock_hz == pytest.approx(2.6e9 * over_base)


def test_an_arm_server_is_read(tmp_path: Path) -> None:
    root = machine(tmp_path, GRAVITON, cpus=2)
    frequency = root / "sys/devices/system/cpu/cpu0/cpufreq"
    frequency.mkdir()
    (frequency / "cpuinfo_max_freq").write_text("2600000\n")
    device = device_of_cpu(read_linux(root, affinity={0, 1}, machine="aarch64"))
    assert device.vendor == "Arm"
    assert device.peak_flop_per_s[DType.FP32] == 2 * 16 * 2.6e9
    assert device.peak_flop_per_s[DType.FP16] == 2 * 2 * 16 * 2.6e9
    assert device.peak_flop_per_s[DType.INT8] == 8 * 2 * 16 * 2.6e9


@pytest.mark.parametrize(
    ("group", "text"),
    [
        ("sys/fs/cgroup/cpu.max", "150000 100000\n"),
        ("sys/fs/cgroup/pod/cpu.max", "150000 100000\n"),
        ("sys/fs/cgroup/pod/app/cpu.max", "150000 100000\n"),
    ],
)
def test_a_container_quota_limits_the_cores(tmp_path: Path, group: str, text: str) -> None:
    root = machine(tmp_path, XEON, cpus=4)
    (root / group).parent.mkdir(parents=True, exist_ok=True)
    (root / group).write_text(text)
    device = device_of_cpu(read_linux(root, affinity=range(4), machine="x86_64"))
    assert device.compute_units == 1
    assert "cpu-quota" in codes(device)


def test_an_old_style_container_limit_counts_too(tmp_path: Path) -> None:
    root = machine(tmp_path, XEON, cpus=4)
    (root / "proc/self/cgroup").write_text("4:cpu,cpuacct:/app\n3:memory:/app\n")
    for kind, files in (
        ("cpu", {"cpu.cfs_quota_us": "300000", "cpu.cfs_period_us": "100000"}),
        ("memory", {"memory.limit_in_bytes": "4294967296"}),
    ):
        folder = root / f"sys/fs/cgroup/{kind}/app"
        folder.mkdir(parents=True)
        for name, value in files.items():
            (folder / name).write_text(value)
    device = device_of_cpu(read_linux(root, affinity=range(4), machine="x86_64"))
    assert (device.compute_units, device.memory_bytes) == (3, 4 * 2**30)
    assert {"cpu-quota", "memory-limited"} <= codes(device)


def test_no_container_limit_leaves_the_machine_whole(tmp_path: Path) -> None:
    root = machine(tmp_path, XEON, cpus=4)
    folder = root / "sys/fs/cgroup/pod/app"
    folder.mkdir(parents=True)
    (folder / "cpu.max").write_text("max 100000\n")
    (folder / "memory.max").write_text("max\n")
    facts = read_linux(root, affinity=range(4), machine="x86_64")
    assert (facts.quota_cores, facts.limit_bytes) == (math.inf, 0)


def test_a_package_power_limit_is_shared_among_its_cores(tmp_path: Path) -> None:
    root = machine(tmp_path, XEON.replace("cpu cores\t: 2", "cpu cores\t: 8"), cpus=4)
    rapl = root / "sys/class/powercap/intel-rapl:0"
    rapl.mkdir(parents=True)
    (rapl / "constraint_0_power_limit_uw").write_text("200000000\n")
    device = device_of_cpu(read_linux(root, affinity=range(4), machine="x86_64"))
    assert device.max_power_w == pytest.approx(100)


def test_an_empty_machine_still_gives_a_device_with_notes(tmp_path: Path) -> None:
    device = device_of_cpu(read_linux(tmp_path, affinity=(), machine=""))
    assert device.compute_units == 1
    assert {"spec-probed", "cores-assumed", "clock-assumed", "memory-assumed"} <= codes(device)


def test_garbage_in_the_files_of_the_system_does_no_harm(tmp_path: Path) -> None:
    root = machine(tmp_path, "\x00\xff: :\n::::\nflags\n", cpus=1)
    (root / "proc/meminfo").write_bytes(b"\xff\xfeMemTotal: many kB")
    (root / "sys/devices/system/cpu/cpu0/cache/index3/size").write_text("huge\n")
    (root / "proc/self/cgroup").write_text("nonsense\n0::/../../etc\n")
    device = device_of_cpu(read_linux(root, affinity={0}, machine="x86_64"))
    assert device.compute_units == 1
    assert device.cache_bytes > 0


def test_apple_silicon_is_read() -> None:
    text = (
        "hw.physicalcpu: 8\nhw.memsize: 17179869184\nhw.l2cachesize: 4194304\n"
        "machdep.cpu.brand_string: Apple M2\n"
    )
    device = device_of_cpu(read_sysctl(text, machine="arm64"))
    assert device.title == "Apple M2"
    assert device.memory_bytes == 16 * 2**30
    assert device.peak_flop_per_s[DType.FP32] == 8 * 32 * 2.5e9
    assert "clock-assumed" in codes(device)


def test_an_intel_mac_is_read() -> None:
    text = (
        "hw.physicalcpu: 4\nhw.cpufrequency: 2000000000\nhw.l3cachesize: 6291456\n"
        "machdep.cpu.features: FPU SSE2 FMA AVX1.0\nmachdep.cpu.leaf7_features: AVX2\n"
    )
    device = device_of_cpu(read_sysctl(text, machine="x86_64"))
    assert device.peak_flop_per_s[DType.FP32] == 4 * 32 * 2e9


@pytest.mark.parametrize("system", ["Windows", "Darwin", "Plan9"])
def test_other_systems_fall_back_with_notes(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(probe, "run_command", lambda command: "")
    device = probe.probe_cpu()
    assert device.compute_units >= 1
    assert "memory-assumed" in codes(device)


def test_this_machine_has_a_cpu_that_stays_the_same() -> None:
    device = find_device("cpu")
    assert device == probe.probe_cpu()
    assert device.peak_flop_per_s[DType.FP32] > 1e9
    assert find_device("CPU@50%").compute_units == max(1, device.compute_units // 2)


@given(st.integers(1, 512), st.floats(1e8, 1e10), st.integers(1, 512))
def test_more_cores_are_never_slower(cores: int, clock_hz: float, more: int) -> None:
    few = CpuFacts(machine="x86_64", flags=frozenset({"fma"}), cores=cores, clock_hz=clock_hz)
    one, other = device_of_cpu(few), device_of_cpu(replace(few, cores=cores + more))
    assert one.peak_flop_per_s[DType.FP32] < other.peak_flop_per_s[DType.FP32]
    assert one.memory_bandwidth_bytes_per_s <= other.memory_bandwidth_bytes_per_s
    assert one.max_power_w < other.max_power_w


@given(st.sampled_from(["fma", "avx512f", "asimd", "sse2"]), st.integers(1, 64))
def test_a_core_does_half_as_many_fp64_operations_as_fp32(flag: str, cores: int) -> None:
    family = "aarch64" if flag == "asimd" else "x86_64"
    facts = CpuFacts(machine=family, flags=frozenset({flag}), cores=cores, clock_hz=2e9)
    peaks = device_of_cpu(facts).peak_flop_per_s
    assert peaks[DType.FP64] == peaks[DType.FP32] / 2


def test_the_driver_query_is_parsed() -> None:
    a100, t4 = parse_smi_query(SMI)
    assert (a100.index, a100.name, a100.mig_enabled) == (0, "NVIDIA A100-SXM4-40GB", True)
    assert (a100.memory_bytes, a100.max_power_w) == (40960 * 2**20, 400.0)
    assert (t4.index, t4.clock_hz, t4.mig_enabled) == (1, 1.59e9, False)


@pytest.mark.parametrize(
    "text",
    ["", "\n", "No devices were found\n", "0, only, three\n", "WARNING: infoROM is corrupted\n"],
)
def test_a_driver_that_lists_nothing_gives_no_gpu(text: str) -> None:
    assert parse_smi_query(text) == ()


@given(st.text(max_size=200))
def test_any_answer_of_the_driver_is_survived(text: str) -> None:
    assert all(gpu.index >= 0 for gpu in parse_smi_query(text))
    assert all(isinstance(found, tuple) for found in parse_smi_list(text).values())


def test_mig_instances_are_listed_by_gpu() -> None:
    assert parse_smi_list(SMI_LIST) == {
        0: (MigInstance("1g.5gb", "MIG-1111"), MigInstance("1c.3g.20gb", "MIG-GPU-aaaa/2/0")),
        1: (),
    }


def test_a_gpu_of_the_catalogue_takes_its_figures_and_tells_its_mig_state() -> None:
    def run(command: Sequence[str]) -> str:
        return SMI_LIST if "-L" in command else SMI

    a100, t4 = (device_of_gpu(f, find=find_device) for f in probe.facts_from_smi(run))
    assert a100.name == "a100-sxm4-40gb"
    assert a100.memory_bytes == 40960 * 2**20
    assert a100.profiles == find_device("a100-sxm4-40gb").profiles
    assert a100.notes[0].code == "device-probed"
    assert "MIG on: 1g.5gb (MIG-1111)" in a100.notes[0].text
    assert t4.name == "t4"
    assert t4.memory_bytes == 15360 * 2**20
    assert "memory-differs" not in codes(t4)
    assert "MIG off" in t4.notes[0].text


def test_a_card_with_another_memory_size_is_noted() -> None:
    facts = GpuFacts(index=0, name="NVIDIA A100-SXM4-40GB", memory_bytes=80 * 2**30)
    assert "memory-differs" in codes(device_of_gpu(facts, find=find_device))


def test_an_unknown_gpu_that_nvml_describes_becomes_a_device_with_notes() -> None:
    facts = GpuFacts(
        index=1, name="NVIDIA GeForce RTX 4070 Ti", memory_bytes=12 * 2**30, max_power_w=285,
        clock_hz=2.61e9, compute_capability="8.9", cores=7680, bandwidth_bytes_per_s=5.04e11,
    )  # fmt: skip
    device = device_of_gpu(facts, find=find_device)
    assert (device.name, device.compute_units) == ("gpu:1", 60)
    assert device.peak_flop_per_s[DType.FP32] == pytest.approx(40.1e12, rel=0.01)
    assert device.peak_flop_per_s[DType.FP16] == pytest.approx(80.2e12, rel=0.01)
    assert {"device-probed", "spec-probed"} <= codes(device)


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ("5.2", "m40"), ("6.0", "p100-pcie-16gb"), ("6.1", "gtx-1080ti"), ("7.0", "v100-sxm2"),
        ("7.5", "rtx-2080-ti"), ("8.0", "a100-sxm4-80gb"), ("8.6", "rtx-3090"),
        ("8.9", "rtx-4090"), ("9.0", "h100-sxm5-80gb"), ("10.0", "b200-sxm"), ("12.0", "rtx-5090"),
    ],
)  # fmt: skip
def test_the_rates_of_a_generation_are_those_of_a_card_of_it(capability: str, name: str) -> None:
    device, generation = find_device(name), GENERATIONS[capability]
    per_unit = device.compute_units * device.clock_hz
    assert device.peak_flop_per_s.keys() - {DType.FP32} == generation.rates.keys()
    for dtype, rate in {DType.FP32: 2 * generation.cores, **generation.rates}.items():
        assert device.peak_flop_per_s[dtype] / per_unit == pytest.approx(rate, rel=0.15)


def test_an_unknown_gpu_without_facts_says_how_to_add_it() -> None:
    facts = GpuFacts(index=0, name="NVIDIA Mystery 9000", memory_bytes=2**33)
    with pytest.raises(
        DeviceError, match=r"gpu:0 is 'NVIDIA Mystery 9000'.*not in the catalogue.*mine\.toml"
    ):
        device_of_gpu(facts, find=find_device)


def test_a_gpu_that_is_not_there_gives_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "gpu_facts", tuple)
    assert probe.probe_gpus() == ()
    with pytest.raises(DeviceError, match=r"gpu:0 is not there: neither NVML nor nvidia-smi"):
        find_device("gpu:0")
    monkeypatch.setattr(probe, "gpu_facts", lambda: parse_smi_query(SMI))
    with pytest.raises(DeviceError, match=r"gpu:7 is not there; this machine has gpu:0 \(NVIDIA"):
        find_device("cuda:7")
    assert find_device("gpu").name == "a100-sxm4-40gb"
    assert find_device("gpu:0/1g.5gb").name == "a100-sxm4-40gb/1g.5gb"
    assert [device.name for device in probe.probe_gpus()] == ["a100-sxm4-40gb", "t4"]


def test_a_tool_that_is_absent_fails_or_hangs_answers_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run_command(["no-such-tool-anywhere"]) == ""
    assert run_command([sys.executable, "-c", "raise SystemExit(9)"]) == ""
    assert run_command([sys.executable, "-c", "print('fine')"]) == "fine\n"

    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("tool", 10)

    monkeypatch.setattr(subprocess, "run", hang)
    assert run_command([sys.executable, "-c", "pass"]) == ""


class NvmlError(Exception):
    """Stands for pynvml.NVMLError."""


def fake_nvml(**changes: object) -> SimpleNamespace:
    """An NVML with one H100 in MIG mode; an answer that is an exception is raised."""
    answers: dict[str, object] = {
        "nvmlInit": None, "nvmlShutdown": None, "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": "handle", "nvmlDeviceGetName": b"NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetUUID": "GPU-cccc",
        "nvmlDeviceGetPowerManagementLimitConstraints": (200_000, 700_000),
        "nvmlDeviceGetCudaComputeCapability": (9, 0),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=81559 * 2**20),
        "nvmlDeviceGetMaxClockInfo": 1980, "nvmlDeviceGetMigMode": (1, 1),
        "nvmlDeviceGetNumGpuCores": 16896, "nvmlDeviceGetMemoryBusWidth": 5120,
        "nvmlDeviceGetMaxMigDeviceCount": 2,
        "nvmlDeviceGetMigDeviceHandleByIndex": NvmlError("not found"),
        **changes,
    }  # fmt: skip

    def answer(value: object) -> object:
        def call(*_: object) -> object:
            if isinstance(value, Exception):
                raise value
            return value

        return call

    calls = {name: answer(value) for name, value in answers.items() if value is not ...}
    return SimpleNamespace(NVMLError=NvmlError, NVML_CLOCK_MEM=2, NVML_CLOCK_SM=1, **calls)


def test_nvml_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    (facts,) = probe.gpu_facts()
    assert (facts.name, facts.mig_enabled, facts.mig_instances) == (
        "NVIDIA H100 80GB HBM3", True, (),
    )  # fmt: skip
    (device,) = probe.probe_gpus()
    assert device.name == "h100-sxm5-80gb"
    assert "no instance yet" in device.notes[0].text


def test_nvml_lists_mig_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = fake_nvml(nvmlDeviceGetMigDeviceHandleByIndex="part")
    nvml.nvmlDeviceGetName = lambda handle: (
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb" if handle == "part" else "NVIDIA H100 80GB HBM3"
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    (facts,) = probe.gpu_facts()
    assert [one.profile for one in facts.mig_instances] == ["1g.10gb", "1g.10gb"]


def test_questions_that_nvml_does_not_support_count_as_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusal = NvmlError("not supported")
    nvml = fake_nvml(
        nvmlDeviceGetMigMode=refusal, nvmlDeviceGetMemoryInfo=refusal,
        nvmlDeviceGetNumGpuCores=..., nvmlDeviceGetMemoryBusWidth=refusal,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    (facts,) = probe.gpu_facts()
    assert (facts.mig_enabled, facts.memory_bytes, facts.cores) == (False, 0, 0)
    assert probe.probe_gpu(0).memory_bytes == find_device("h100-sxm5-80gb").memory_bytes


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetName"])
def test_a_broken_nvml_leaves_the_question_to_nvidia_smi(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = fake_nvml(**{broken: NvmlError("driver not loaded")})
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(probe, "run_command", lambda command: SMI_LIST if "-L" in command else SMI)
    assert [facts.name for facts in probe.gpu_facts()] == ["NVIDIA A100-SXM4-40GB", "Tesla T4"]
