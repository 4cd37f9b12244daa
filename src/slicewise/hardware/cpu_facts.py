"""What an operating system tells about its processor, and the `Device` that follows by rule.

Reads text files below a given root (so that tests can fake a machine); runs nothing, measures
nothing: the same machine always gives the same figures.
"""

import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from slicewise.core.device import Device
from slicewise.core.notes import Note
from slicewise.core.precision import DType
from slicewise.hardware.device_file import DEFAULTS, POWER_FLOOR_FRACTION

_UNLIMITED_BYTES = 2**60  # cgroup v1 writes a huge number for "no limit"


@dataclass(frozen=True, slots=True)
class CpuFacts:
    """What is known of a processor; 0 or empty where the system does not tell."""

    model: str = ""
    vendor: str = ""
    family: int = 0
    machine: str = ""  # x86_64, aarch64, arm64
    flags: frozenset[str] = frozenset()
    cores: int = 0  # physical cores that this process may use
    quota_cores: float = math.inf  # processor time granted by the container
    sockets: int = 1
    socket_cores: int = 0
    clock_hz: float = 0.0
    cache_bytes: int = 0
    memory_bytes: int = 0
    limit_bytes: int = 0  # memory granted by the container
    power_w: float = 0.0


@dataclass(frozen=True, slots=True)
class VectorUnit:
    """fp32 operations a core does per clock when `flag` is there, a multiply-add counted as 2."""

    flag: str
    flop_per_clock: int
    why: str


# First row that fits wins. Lanes x 2 x FMA pipes of the common cores: Intel and Agner Fog's
# optimisation manuals (2024), Arm software optimisation guides. AMD before family 26 (Zen 5)
# runs AVX-512 as two halves, so one 512-bit FMA a clock.
_X86_UNITS = (
    VectorUnit("avx512f", 64, "two AVX-512 FMA pipes"),
    VectorUnit("fma", 32, "two AVX2 FMA pipes"),
    VectorUnit("avx", 16, "one AVX multiply and one add pipe"),
    VectorUnit("sse2", 8, "one SSE multiply and one add pipe"),
)
_ARM_UNITS = (
    VectorUnit("asimd", 16, "two 128-bit NEON FMA pipes"),
    VectorUnit("neon", 8, "one 128-bit NEON FMA pipe"),
)
_APPLE_UNIT = VectorUnit("asimd", 32, "four 128-bit NEON FMA pipes")
_SCALAR_UNIT = VectorUnit("", 2, "no vector unit known")
_FIRST_FULL_WIDTH_AMD_FAMILY = 26

# Flag -> (type, rate over fp32). AMX tiles: 2048 int8 and 1024 bf16 operations a clock against 64
# of fp32 (Intel architecture manual); VNNI and dot-product instructions do four int8
# multiply-adds a lane, bf16 and fp16 ones two; Arm i8mm and bf16 matrix instructions double that.
_FASTER_TYPES = (
    ("amx_int8", DType.INT8, 32.0),
    ("avx512_vnni", DType.INT8, 4.0),
    ("avx_vnni", DType.INT8, 4.0),
    ("i8mm", DType.INT8, 8.0),
    ("asimddp", DType.INT8, 4.0),
    ("amx_bf16", DType.BF16, 16.0),
    ("avx512_bf16", DType.BF16, 2.0),
    ("bf16", DType.BF16, 4.0),
    ("avx512_fp16", DType.FP16, 2.0),
    ("asimdhp", DType.FP16, 2.0),
)
# Without such instructions int8 takes a multiply, a widening add and an add for 4 times the lanes.
_PLAIN_INT8 = 4 / 3

# An AMD server runs vector code on all cores above the base clock that a virtual machine shows:
# all-core boost is 1.2 to 1.5 times base (EPYC 9004 data sheets); a matrix product did 105 Gflop/s
# a core at a base of 2.6 GHz, 32 operations a clock (our measurement, 2026). Intel with AVX-512
# runs near its base clock.
_AMD_OVER_BASE = 1.3

# A core sustains 10 to 15 GB/s; a socket of up to 16 cores has two to four memory channels, a
# larger one six to twelve (i9-10940X: 94 GB/s by its channels for 14 cores).
_CORE_BYTES_PER_S = 12e9
_SOCKET_BYTES_PER_S = ((16, 80e9), (math.inf, 200e9))
_CORE_CACHE_BYTES = 2**21
_CORE_POWER_W = 10.0  # package power of 2020 to 2026 over cores: 6 to 14 W
_ASSUMED_MEMORY_BYTES = 8 * 2**30


def device_of_cpu(facts: CpuFacts) -> Device:
    """Return the device that follows from `facts`, with a Note for each rule and guess.

    peak fp32 = cores x operations a clock (vector unit) x clock.
    """
    notes = [_basis_note(facts)]
    cores = _usable_cores(facts, notes)
    clock_hz = _or_assumed(facts.clock_hz, DEFAULTS["clock_hz"].cpu, "clock-assumed", notes)
    unit = _vector_unit(facts)
    fp32 = cores * unit.flop_per_clock * clock_hz
    memory = _or_assumed(facts.memory_bytes, _ASSUMED_MEMORY_BYTES, "memory-assumed", notes)
    if 0 < facts.limit_bytes < memory:
        memory = facts.limit_bytes
        notes.append(Note("memory-limited", f"the container grants {memory} bytes of memory"))
    cache = facts.cache_bytes or cores * _CORE_CACHE_BYTES
    max_power_w = facts.power_w or _CORE_POWER_W * cores
    return Device(
        name="cpu",
        kind="cpu",
        vendor=facts.vendor,
        architecture=f"{facts.machine}, {unit.why}".removeprefix(", "),
        compute_units=cores,
        peak_flop_per_s={
            DType.FP64: fp32 / 2,  # half the lanes of the same vector unit
            DType.FP32: fp32,
            **{dtype: fp32 * ratio for dtype, ratio in _ratios(facts.flags).items()},
        },
        memory_bytes=int(memory),
        memory_bandwidth_bytes_per_s=_bandwidth(facts, cores),
        cache_bytes=int(min(cache, memory)),
        clock_hz=clock_hz,
        idle_power_w=POWER_FLOOR_FRACTION * max_power_w,
        max_power_w=max_power_w,
        launch_s=DEFAULTS["launch_s"].cpu,
        host_s=DEFAULTS["host_s"].cpu,
        title=facts.model or "processor of unknown make",
        notes=tuple(notes),
    )


def _basis_note(facts: CpuFacts) -> Note:
    return Note(
        "spec-probed",
        f"cpu is {facts.model or 'of unknown make'}: peaks follow from cores, clock and"
        f" instruction set, bandwidth from cores, power from"
        f" {'the power limit it reports' if facts.power_w else 'cores'}, its floor while work runs"
        f" taken as {POWER_FLOOR_FRACTION:.0%} of that; nothing was measured",
    )


def _usable_cores(facts: CpuFacts, notes: list[Note]) -> int:
    cores = facts.cores
    if not cores:
        cores = 1
        notes.append(Note("cores-assumed", "the system tells no number of cores: 1 taken"))
    if facts.quota_cores < cores:
        granted = max(1, math.floor(facts.quota_cores))
        notes.append(
            Note("cpu-quota", f"the container grants {facts.quota_cores:g} of {cores} cores")
        )
        cores = granted
    return cores


def _or_assumed(value: float, assumed: float, code: str, notes: list[Note]) -> float:
    if value > 0:
        return value
    notes.append(Note(code, f"the system does not tell: {assumed:g} taken"))
    return assumed


def _vector_unit(facts: CpuFacts) -> VectorUnit:
    arm = facts.machine.startswith(("aarch64", "arm"))
    if arm and "apple" in facts.model.casefold():
        return _APPLE_UNIT
    for unit in _ARM_UNITS if arm else _X86_UNITS:
        if unit.flag in facts.flags:
            halved = (
                unit.flag == "avx512f"
                and facts.vendor == "AMD"
                and facts.family < _FIRST_FULL_WIDTH_AMD_FAMILY
            )
            return VectorUnit("avx512f", 32, "AVX-512 in two halves") if halved else unit
    return _SCALAR_UNIT


def _ratios(flags: frozenset[str]) -> dict[DType, float]:
    ratios: dict[DType, float] = {}
    for flag, dtype, ratio in _FASTER_TYPES:
        if flag in flags:
            ratios.setdefault(dtype, ratio)
    ratios.setdefault(DType.INT8, _PLAIN_INT8)
    return ratios


def _bandwidth(facts: CpuFacts, cores: int) -> float:
    per_socket = next(
        rate for most, rate in _SOCKET_BYTES_PER_S if (facts.socket_cores or cores) <= most
    )
    return min(_CORE_BYTES_PER_S * cores, per_socket * max(1, facts.sockets))


def read_linux(root: Path, *, affinity: Collection[int], machine: str) -> CpuFacts:
    """Return what `proc` and `sys` below `root` tell about the processors in `affinity`."""
    blocks = _cpuinfo_blocks(_text(root / "proc/cpuinfo"))
    first = blocks[0] if blocks else {}
    cpus = root / "sys/devices/system/cpu"
    allowed = sorted(affinity)
    cores = {_core_of(cpus / f"cpu{cpu}", cpu) for cpu in allowed}
    quota, limit = _container_limits(root)
    flags = first.get("flags") or first.get("Features") or ""
    return CpuFacts(
        model=first.get("model name") or first.get("Model") or first.get("Hardware") or "",
        vendor=_VENDORS.get(first.get("vendor_id", ""), "")
        or _ARM_VENDORS.get(first.get("CPU implementer", ""), ""),
        family=_whole(first.get("cpu family", "")),
        machine=machine,
        flags=frozenset(flags.split()),
        cores=len(cores),
        quota_cores=quota,
        sockets=max(1, len({package for package, _ in cores})),
        socket_cores=_whole(first.get("cpu cores", "")),
        clock_hz=_clock_hz(first, cpus / f"cpu{allowed[0] if allowed else 0}"),
        cache_bytes=_cache_bytes(cpus, allowed)
        or _size_bytes(first.get("cache size", "").replace(" KB", "K")),
        memory_bytes=_meminfo_bytes(_text(root / "proc/meminfo")),
        limit_bytes=limit,
        power_w=_power_limit_w(root, len(cores), _whole(first.get("cpu cores", ""))),
    )


_VENDORS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD", "HygonGenuine": "Hygon"}
_ARM_VENDORS = {
    "0x41": "Arm",
    "0x43": "Cavium",
    "0x51": "Qualcomm",
    "0x61": "Apple",
    "0xc0": "Ampere",
}


def read_sysctl(text: str, *, machine: str) -> CpuFacts:
    """Return what the output of macOS `sysctl hw machdep.cpu` tells."""
    facts = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    features = (
        f"{facts.get('machdep.cpu.features', '')} {facts.get('machdep.cpu.leaf7_features', '')}"
    )
    names = {"avx1.0": "avx", "avx2": "avx2", "avx512f": "avx512f", "fma": "fma", "sse2": "sse2"}
    flags = {names[word] for word in features.lower().split() if word in names}
    # Apple silicon: hardware fp16 and dot products since M1 (Apple's hw.optional.arm listing)
    apple = {"asimd", "asimdhp", "asimddp"} if machine == "arm64" else set()
    cores = _whole(facts.get("hw.physicalcpu", ""))
    return CpuFacts(
        model=facts.get("machdep.cpu.brand_string", ""),
        vendor="Apple" if machine == "arm64" else "Intel",
        machine=machine,
        flags=frozenset(flags | apple),
        cores=cores,
        socket_cores=cores,
        clock_hz=float(_whole(facts.get("hw.cpufrequency", ""))),
        cache_bytes=_whole(facts.get("hw.l3cachesize") or facts.get("hw.l2cachesize", "")),
        memory_bytes=_whole(facts.get("hw.memsize", "")),
    )


def _text(path: Path) -> str:
    """Return the text of a file of the system, '' where there is none or it is not readable."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _whole(text: str) -> int:
    digits = re.match(r"\d{1,20}", text.strip())
    return int(digits[0]) if digits else 0


def _cpuinfo_blocks(text: str) -> list[dict[str, str]]:
    blocks = []
    for block in re.split(r"\n\s*\n", text):
        pairs = (line.split(":", 1) for line in block.splitlines() if ":" in line)
        fields = {key.strip(): value.strip() for key, value in pairs}
        if fields:
            blocks.append(fields)
    return blocks


def _core_of(cpu: Path, number: int) -> tuple[str, str]:
    """Return (package, core) of a logical processor; alone in its core where not told."""
    core = _text(cpu / "topology/core_id").strip()
    package = _text(cpu / "topology/physical_package_id").strip()
    return package or "0", core or f"processor {number}"


def _clock_hz(cpuinfo: dict[str, str], cpu: Path) -> float:
    """Return the clock of vector code on all cores: near the base clock, else what is told."""
    stated = re.search(r"@\s*([\d.]+)\s*GHz", cpuinfo.get("model name", ""))
    if stated:
        return float(stated[1].rstrip(".")) * 1e9
    for name in ("base_frequency", "cpuinfo_max_freq"):
        if kilohertz := _whole(_text(cpu / "cpufreq" / name)):
            return kilohertz * 1e3
    virtual = "hypervisor" in cpuinfo.get("flags", "").split()
    over_base = _AMD_OVER_BASE if virtual and cpuinfo.get("vendor_id") == "AuthenticAMD" else 1.0
    return _whole(cpuinfo.get("cpu MHz", "")) * 1e6 * over_base


def _cache_bytes(cpus: Path, allowed: Iterable[int]) -> int:
    """Return the last-level cache that the processors reach, each shared cache counted once."""
    caches: dict[tuple[int, str], int] = {}
    for cpu in allowed:
        for index in sorted((cpus / f"cpu{cpu}/cache").glob("index*")):
            if _text(index / "type").strip() != "Instruction":
                shared = _text(index / "shared_cpu_list").strip() or str(cpu)
                level = _whole(_text(index / "level"))
                caches[level, shared] = _size_bytes(_text(index / "size"))
    last = max((level for level, _ in caches), default=0)
    return sum(size for (level, _), size in caches.items() if level == last)


def _size_bytes(text: str) -> int:
    found = re.fullmatch(r"(\d{1,12})([KMG]?)", text.strip())
    return int(found[1]) * 1024 ** " KMG".index(found[2] or " ") if found else 0


def _meminfo_bytes(text: str) -> int:
    found = re.search(r"^MemTotal:\s*(\d+)\s*kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _container_limits(root: Path) -> tuple[float, int]:
    """Return (cores, bytes) that control groups grant; (inf, 0) without a limit.

    The limit of every enclosing group holds, so the least of all counts (cgroup v2 and v1 of the
    Linux kernel documentation).
    """
    cores = math.inf
    limit = _UNLIMITED_BYTES
    for line in _text(root / "proc/self/cgroup").splitlines() or ["0::/"]:
        group = line.split(":", 2)[-1]
        parts = [part for part in group.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            inner = "/".join(parts[:depth])
            v2 = root / "sys/fs/cgroup" / inner
            cpu, memory = (root / f"sys/fs/cgroup/{kind}" / inner for kind in ("cpu", "memory"))
            cores = min(
                cores,
                _quota(*_text(v2 / "cpu.max").partition(" ")[::2]),
                _quota(_text(cpu / "cpu.cfs_quota_us"), _text(cpu / "cpu.cfs_period_us")),
            )
            for text in (_text(v2 / "memory.max"), _text(memory / "memory.limit_in_bytes")):
                limit = min(limit, _whole(text) or _UNLIMITED_BYTES)
    return cores, 0 if limit >= _UNLIMITED_BYTES else limit


def _quota(quota: str, period: str) -> float:
    granted, over = _whole(quota), _whole(period)
    return granted / over if granted and over else math.inf


def _power_limit_w(root: Path, cores: int, package_cores: int) -> float:
    """Return the part of the package power limit (RAPL) that falls to `cores`; 0 if not told."""
    limit = _whole(_text(root / "sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw"))
    share = min(1.0, cores / package_cores) if package_cores else 1.0
    return limit * 1e-6 * share
