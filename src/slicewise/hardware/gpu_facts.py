"""What a driver tells about NVIDIA GPUs, parsed, and the `Device` that follows from it.

Pure functions over text and facts; asking the driver is the business of `probe.py`.
"""

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from slicewise.core.device import Device
from slicewise.core.errors import DeviceError
from slicewise.core.notes import Note
from slicewise.core.precision import DType
from slicewise.core.units import MIB, format_capacity
from slicewise.hardware.device_file import DEFAULTS, POWER_FLOOR_FRACTION

# what `nvidia-smi --query-gpu` is asked, in this order
SMI_FIELDS = (
    "index",
    "name",
    "uuid",
    "memory.total",
    "power.max_limit",
    "clocks.max.sm",
    "compute_cap",
    "mig.mode.current",
)


@dataclass(frozen=True, slots=True)
class MigInstance:
    """One slice that exists on a GPU now."""

    profile: str
    uuid: str


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What is known of one GPU; 0 or empty where the driver does not tell."""

    index: int
    name: str
    uuid: str = ""
    memory_bytes: int = 0
    max_power_w: float = 0.0
    clock_hz: float = 0.0
    compute_capability: str = ""
    cores: int = 0  # CUDA cores; NVML only
    bandwidth_bytes_per_s: float = 0.0  # from bus width and memory clock; NVML only
    mig_enabled: bool = False
    mig_instances: tuple[MigInstance, ...] = ()


@dataclass(frozen=True, slots=True)
class Generation:
    """Cores of one SM and the dense operations an SM does per clock, by type."""

    cores: int
    rates: Mapping[DType, int]


_Rates = dict[DType, int]


def _rates(fp64: int, tf32: int, half: int, int8: int, fp8: int, fp4: int) -> _Rates:
    """Return the rates that are there; `half` is that of fp16 and of bf16."""
    named = {
        DType.FP64: fp64, DType.TF32: tf32, DType.FP16: half, DType.BF16: half, DType.INT8: int8,
        DType.FP8: fp8, DType.FP4: fp4,
    }  # fmt: skip
    return {dtype: rate for dtype, rate in named.items() if rate}


# Compute capability -> generation. Rates follow from the shipped files of that generation (peak /
# SMs / clock, rounded to a power of two); consumer cards with fp32 accumulation, so data-centre
# cards of 8.6, 8.9 and 12.0 do twice as much. fp64 and the int8 of 6.1 and 7.0 (DP4A) are those
# of the arithmetic throughput table of the CUDA programming guide.
GENERATIONS = {
    "5.2": Generation(128, {DType.FP64: 8}),
    "6.0": Generation(64, {DType.FP64: 64, DType.FP16: 256}),
    "6.1": Generation(128, {DType.FP64: 8, DType.INT8: 1024}),
    "7.0": Generation(64, {DType.FP64: 64, DType.FP16: 1024, DType.INT8: 512}),
    "7.5": Generation(64, {DType.FP64: 4, DType.FP16: 512, DType.INT8: 2048}),
    #                              fp64  tf32  half   int8    fp8    fp4
    "8.0": Generation(64, _rates(   128, 1024, 2048,  4096,     0,     0)),
    "8.6": Generation(128, _rates(    4,  256,  512,  2048,     0,     0)),
    "8.9": Generation(128, _rates(    4,  256,  512,  2048,  1024,     0)),
    "9.0": Generation(128, _rates(  256, 2048, 4096,  8192,  8192,     0)),
    "10.0": Generation(128, _rates( 128, 4096, 8192, 16384, 16384, 32768)),
    "12.0": Generation(128, _rates(   4,  256,  512,  2048,  1024,  4096)),
}  # fmt: skip
# least cache an SM of any shipped GPU since 2017 has its share of: 40 SMs on 4 MiB (T4)
_CACHE_PER_SM_BYTES = 4 * MIB // 40


def parse_smi_query(text: str) -> tuple[GpuFacts, ...]:
    """Return the GPUs in the output of `nvidia-smi --query-gpu=… --format=csv,noheader,nounits`.

    A field that the driver does not support reads '[N/A]' and counts as not told.
    """
    gpus = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) != len(SMI_FIELDS) or not row[0].strip().isdecimal():
            continue  # a warning between the rows, as some drivers print
        index, name, uuid, memory, power, clock, capability, mig = (cell.strip() for cell in row)
        gpus.append(
            GpuFacts(
                index=int(index),
                name=name,
                uuid=uuid,
                memory_bytes=round(_number(memory)) * MIB,
                max_power_w=_number(power),
                clock_hz=_number(clock) * 1e6,
                compute_capability=capability if _number(capability) else "",
                mig_enabled=mig == "Enabled",
            )
        )
    return tuple(gpus)


def parse_smi_list(text: str) -> dict[int, tuple[MigInstance, ...]]:
    """Return the MIG instances of each GPU in the output of `nvidia-smi -L`."""
    instances: dict[int, tuple[MigInstance, ...]] = {}
    index = -1
    for line in text.splitlines():
        if gpu := re.match(r"GPU (\d+):", line):
            index = int(gpu[1])
            instances[index] = ()
        elif mig := re.match(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (\S+)\)", line):
            instances[index] = (*instances.get(index, ()), MigInstance(mig[1], mig[2]))
    return instances


def _number(text: str) -> float:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else 0.0


def device_of_gpu(facts: GpuFacts, *, find: Callable[[str], Device]) -> Device:
    """Return the device that `facts` describe.

    A card that the catalogue knows (`find` by its name) takes its figures from there, memory and
    power limit from the driver. Another one is built from what NVML tells, with Notes;
    `DeviceError` where that is not enough.
    """
    try:
        card = find(facts.name)
    except DeviceError:
        return _built(facts)
    notes = [_probed_note(facts), *card.notes]
    if _far(facts.memory_bytes, card.memory_bytes):
        notes.append(
            Note(
                "memory-differs",
                f"gpu:{facts.index} reports {format_capacity(facts.memory_bytes)},"
                f" {card.name} has {format_capacity(card.memory_bytes)}; the catalogue may mean"
                " another variant",
            )
        )
    return replace(
        card,
        memory_bytes=facts.memory_bytes or card.memory_bytes,
        max_power_w=max(facts.max_power_w or card.max_power_w, card.idle_power_w),
        notes=tuple(notes),
    )


def _far(reported: int, known: int) -> bool:
    """Drivers and error correction keep up to a tenth of the memory; more is another card."""
    return bool(reported) and not 0.85 * known <= reported <= 1.05 * known


def _probed_note(facts: GpuFacts) -> Note:
    mig = "MIG off"
    if facts.mig_enabled:
        listed = ", ".join(f"{one.profile} ({one.uuid})" for one in facts.mig_instances)
        mig = f"MIG on: {listed or 'no instance yet'}; the whole card is not usable now"
    return Note("device-probed", f"gpu:{facts.index} is {facts.name} ({facts.uuid}), {mig}")


def _built(facts: GpuFacts) -> Device:
    generation = GENERATIONS.get(facts.compute_capability)
    needed = (facts.cores, facts.bandwidth_bytes_per_s, facts.memory_bytes, facts.clock_hz)
    if generation is None or not all(needed) or not facts.max_power_w:
        told = f"compute capability {facts.compute_capability or 'unknown'}"
        raise DeviceError(
            f"gpu:{facts.index} is {facts.name!r} ({told},"
            f" {format_capacity(facts.memory_bytes)}), which is not in the catalogue, and the"
            " driver does not tell enough; pip install 'slicewise[gpu]' to ask NVML, or give its"
            " figures in a TOML file, as in --device ./mine.toml (docs/how-to/add-a-device.md)"
        )
    units = max(1, facts.cores // generation.cores)
    rates = {DType.FP32: 2 * generation.cores, **generation.rates}
    return Device(
        name=f"gpu:{facts.index}",
        kind="gpu",
        vendor="NVIDIA",
        architecture=f"compute capability {facts.compute_capability}",
        compute_units=units,
        peak_flop_per_s={d: units * rate * facts.clock_hz for d, rate in rates.items()},
        memory_bytes=facts.memory_bytes,
        memory_bandwidth_bytes_per_s=facts.bandwidth_bytes_per_s,
        cache_bytes=units * _CACHE_PER_SM_BYTES,
        clock_hz=facts.clock_hz,
        idle_power_w=POWER_FLOOR_FRACTION * facts.max_power_w,
        max_power_w=facts.max_power_w,
        launch_s=DEFAULTS["launch_s"].gpu,
        host_s=DEFAULTS["host_s"].gpu,
        title=facts.name,
        notes=(
            _probed_note(facts),
            Note(
                "spec-probed",
                f"{facts.name} is not in the catalogue: peaks follow from its cores, clock and"
                " compute capability, bandwidth from bus width and memory clock; cache,"
                f" launch and host time are estimates, and {POWER_FLOOR_FRACTION:.0%} of the power"
                " limit stands for the floor of power while work runs",
            ),
        ),
    )
