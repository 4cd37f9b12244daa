"""Finds the processor and the GPUs of this machine. The only place that asks a driver.

NVML through `pynvml` where that is installed (extra `gpu`), else `nvidia-smi`; nothing is
changed on the device, nothing is run on it.
"""

import logging
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slicewise.core.device import Device
from slicewise.core.errors import DeviceError
from slicewise.core.processes import run_command
from slicewise.hardware.cpu_facts import CpuFacts, device_of_cpu, read_linux, read_sysctl
from slicewise.hardware.gpu_facts import (
    SMI_FIELDS,
    GpuFacts,
    MigInstance,
    device_of_gpu,
    parse_smi_list,
    parse_smi_query,
)

_log = logging.getLogger(__name__)

Run = Callable[[Sequence[str]], str]


def probe_cpu() -> Device:
    """Return this machine's processor as a device called `cpu`.

    Cores are the physical ones that this process may use. Figures follow by rule from what the
    operating system tells; Notes say which.
    """
    machine = platform.machine() or "unknown"
    system = platform.system()
    if system == "Linux":
        affinity = os.sched_getaffinity(0)
        return device_of_cpu(read_linux(Path("/"), affinity=affinity, machine=machine))
    if system == "Darwin":
        told = read_sysctl(run_command(["sysctl", "hw", "machdep.cpu"]), machine=machine)
        return device_of_cpu(told)
    return device_of_cpu(_from_interpreter(machine))


def _from_interpreter(machine: str) -> CpuFacts:
    """Return what Python itself knows, on systems without a reader: half the logical cores."""
    logical = os.cpu_count() or 1
    x86 = machine.casefold() in ("amd64", "x86_64")
    return CpuFacts(
        model=platform.processor(),
        machine="x86_64" if x86 else machine.casefold(),
        # every 64-bit processor that current systems of this kind support has these
        flags=frozenset({"fma", "avx2"} if x86 else {"asimd"}),
        cores=max(1, logical // 2 if x86 else logical),
    )


def probe_gpus() -> tuple[Device, ...]:
    """Return the NVIDIA GPUs of this machine in driver order; empty where there are none.

    `DeviceError` if one is neither in the catalogue nor described well enough by the driver.
    """
    return tuple(_device(facts) for facts in gpu_facts())


def probe_gpu(index: int) -> Device:
    """Return GPU number `index` of this machine; `DeviceError` if it has no such GPU."""
    known = gpu_facts()
    for facts in known:
        if facts.index == index:
            return _device(facts)
    if not known:
        raise DeviceError(
            f"gpu:{index} is not there: neither NVML nor nvidia-smi finds an NVIDIA GPU on this"
            " machine; use cpu, or a device that `slicewise devices` lists"
        )
    names = ", ".join(f"gpu:{facts.index} ({facts.name})" for facts in known)
    raise DeviceError(f"gpu:{index} is not there; this machine has {names}")


def gpu_facts() -> tuple[GpuFacts, ...]:
    """Return what the driver tells about each GPU; empty where there is no driver."""
    found = facts_from_nvml()
    return facts_from_smi(run_command) if found is None else found


def _device(facts: GpuFacts) -> Device:
    from slicewise.hardware.catalogue import find_device

    return device_of_gpu(facts, find=find_device)


def facts_from_smi(run: Run) -> tuple[GpuFacts, ...]:
    """Return the GPUs that nvidia-smi lists, with their MIG instances."""
    query = f"--query-gpu={','.join(SMI_FIELDS)}"
    gpus = parse_smi_query(run(["nvidia-smi", query, "--format=csv,noheader,nounits"]))
    if not any(gpu.mig_enabled for gpu in gpus):
        return gpus
    instances = parse_smi_list(run(["nvidia-smi", "-L"]))
    return tuple(replace(gpu, mig_instances=instances.get(gpu.index, ())) for gpu in gpus)


def facts_from_nvml() -> tuple[GpuFacts, ...] | None:
    """Return the GPUs that NVML lists; None where pynvml or the driver is absent."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as err:
        _log.info("NVML does not start: %s", err)
        return None
    try:
        count = pynvml.nvmlDeviceGetCount()
        return tuple(_nvml_facts(pynvml, index) for index in range(count))
    except pynvml.NVMLError as err:
        _log.warning("NVML stopped answering: %s", err)
        return None
    finally:
        pynvml.nvmlShutdown()


def _nvml_facts(nvml: Any, index: int) -> GpuFacts:
    """Return what NVML tells of one GPU; a question it does not support counts as not told."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(question: str, *arguments: object, default: Any) -> Any:
        call = getattr(nvml, question, None)  # older pynvml lacks some
        if call is None:
            return default
        try:
            return call(handle, *arguments)
        except nvml.NVMLError:
            return default

    limits = ask("nvmlDeviceGetPowerManagementLimitConstraints", default=(0, 0))
    major, minor = ask("nvmlDeviceGetCudaComputeCapability", default=(0, 0))
    memory = ask("nvmlDeviceGetMemoryInfo", default=None)
    memory_mhz = ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_MEM, default=0)
    enabled = bool(ask("nvmlDeviceGetMigMode", default=(0, 0))[0])
    return GpuFacts(
        index=index,
        name=_as_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_as_text(ask("nvmlDeviceGetUUID", default="")),
        memory_bytes=0 if memory is None else int(memory.total),
        max_power_w=limits[1] * 1e-3,
        clock_hz=ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM, default=0) * 1e6,
        compute_capability=f"{major}.{minor}" if major else "",
        cores=ask("nvmlDeviceGetNumGpuCores", default=0),
        # two transfers per memory clock (as NVML counts it for HBM and GDDR), 8 bits a byte
        bandwidth_bytes_per_s=2e6 * memory_mhz * ask("nvmlDeviceGetMemoryBusWidth", default=0) / 8,
        mig_enabled=enabled,
        mig_instances=_nvml_instances(nvml, handle) if enabled else (),
    )


def _nvml_instances(nvml: Any, handle: object) -> tuple[MigInstance, ...]:
    instances = []
    for i in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, i)
        except nvml.NVMLError:
            continue  # an unused place
        profile = _as_text(nvml.nvmlDeviceGetName(part)).rpartition("MIG ")[2]
        instances.append(MigInstance(profile, _as_text(nvml.nvmlDeviceGetUUID(part))))
    return tuple(instances)


def _as_text(value: str | bytes) -> str:
    """Older pynvml answers in bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
