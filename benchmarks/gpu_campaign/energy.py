"""Reads energy, power, clocks and memory of one GPU: pynvml, else NVML by ctypes, else nvidia-smi.

Only reads: no setting of the card is touched. Where there is nothing to read, values are None and
the note says why; a figure is never invented.
"""

import ctypes
import os
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

State = Mapping[str, float | int | None]
_NOTHING: State = {"sm_mhz": None, "memory_mhz": None, "temperature_c": None, "power_w": None,
                   "used_bytes": None, "process_bytes": None}  # fmt: skip


class NoMeter:
    """No meter: every reading is None."""

    source = "none"

    def joules(self) -> float | None:
        return None

    def watts(self) -> float | None:
        return None

    def state(self) -> State:
        return _NOTHING


class NullMeter(NoMeter):
    """A card of 300 W on the clock given, for tests."""

    source = "null"

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now

    def joules(self) -> float | None:
        return 300.0 * round(self._now(), 2)  # renewed every 10 ms

    def watts(self) -> float | None:
        return 300.0

    def state(self) -> State:
        return {"sm_mhz": 1000, "memory_mhz": 2000, "temperature_c": 40, "power_w": 300.0,
                "used_bytes": 1 << 30, "process_bytes": 1 << 29}  # fmt: skip


Reader = Callable[[], float | int | None]


class NvmlMeter:
    """NVML through readers by name; one that the driver does not answer reads None."""

    def __init__(self, source: str, readers: Mapping[str, Reader]) -> None:
        self.source = source
        self._readers = dict(readers)
        self._has_counter = self._read("energy_mj") is not None

    def _read(self, name: str) -> float | int | None:
        reader = self._readers.get(name)
        try:
            return None if reader is None else reader()
        except Exception:  # the driver refuses it: every later reading would be refused too
            self._readers.pop(name, None)
            return None

    def joules(self) -> float | None:
        value = self._read("energy_mj") if self._has_counter else None
        return None if value is None else value * 1e-3

    def watts(self) -> float | None:
        value = self._read("power_mw")
        return None if value is None else value * 1e-3

    def state(self) -> State:
        return {
            "sm_mhz": self._read("sm_mhz"),
            "memory_mhz": self._read("memory_mhz"),
            "temperature_c": self._read("temperature_c"),
            "power_w": self.watts(),
            "used_bytes": self._read("used_bytes"),
            "process_bytes": self._read("process_bytes"),
        }


def find_meter(device: str) -> tuple[Any, str]:
    """Return the best meter for `device` and a note on how it was found."""
    if device != "cuda":
        return NoMeter(), f"no energy meter is asked for on {device}"
    notes = []
    for name, make in (("pynvml", _by_pynvml), ("ctypes", _by_ctypes), ("smi", _by_smi)):
        try:
            meter = make()
        except Exception as err:  # whatever is wrong with it, the next one may do
            notes.append(f"{name}: {type(err).__name__}: {err}")
            continue
        return meter, "; ".join([*notes, f"{name} is used"])
    return NoMeter(), "; ".join(notes)


def _by_pynvml() -> NvmlMeter:
    import pynvml

    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByIndex(_index())

    def own_bytes() -> int | None:
        for each in pynvml.nvmlDeviceGetComputeRunningProcesses(card):
            if each.pid == os.getpid():
                used: int | None = each.usedGpuMemory
                return used
        return None

    return NvmlMeter(
        "nvml",
        {
            "energy_mj": lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(card),
            "power_mw": lambda: pynvml.nvmlDeviceGetPowerUsage(card),
            "sm_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_SM),
            "memory_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_MEM),
            "temperature_c": lambda: pynvml.nvmlDeviceGetTemperature(card, 0),
            "used_bytes": lambda: int(pynvml.nvmlDeviceGetMemoryInfo(card).used),
            "process_bytes": own_bytes,
        },
    )


def _index() -> int:
    """Return NVML's number of CUDA's first device; NVML does not heed CUDA_VISIBLE_DEVICES."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip()
    return int(first) if first.isdigit() else 0


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def _by_ctypes() -> NvmlMeter:
    """Bind the few functions of nvml.h that are needed (NVML API reference)."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    card = ctypes.c_void_p()

    def call(name: str, *arguments: Any) -> None:
        code = getattr(library, name)(*arguments)
        if code != 0:
            raise OSError(f"{name} answers {code}")

    call("nvmlInit_v2")
    call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(_index()), ctypes.byref(card))

    def number(name: str, kind: Any, *before: Any) -> Reader:
        def read() -> int:
            value = kind()
            call(name, card, *before, ctypes.byref(value))
            return int(value.value)

        return read

    def used() -> int:
        memory = _Memory()
        call("nvmlDeviceGetMemoryInfo", card, ctypes.byref(memory))
        return int(memory.used)

    uint = ctypes.c_uint
    return NvmlMeter(
        "nvml",
        {
            "energy_mj": number("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong),
            "power_mw": number("nvmlDeviceGetPowerUsage", uint),
            "sm_mhz": number("nvmlDeviceGetClockInfo", uint, uint(1)),  # NVML_CLOCK_SM
            "memory_mhz": number("nvmlDeviceGetClockInfo", uint, uint(2)),  # NVML_CLOCK_MEM
            "temperature_c": number("nvmlDeviceGetTemperature", uint, uint(0)),
            "used_bytes": used,
        },
    )


def _by_smi() -> NvmlMeter:
    """Ask nvidia-smi anew for every reading: slow, so only power and what goes with it."""

    def field(name: str, factor: float) -> Reader:
        def read() -> float:
            made = subprocess.run(
                ["nvidia-smi", f"--query-gpu={name}", "--format=csv,noheader,nounits", "-i",
                 str(_index())], capture_output=True, text=True, timeout=5, check=True,
            )  # fmt: skip
            return float(made.stdout.strip()) * factor

        return read

    field("power.draw", 1.0)()  # raises where there is no nvidia-smi
    return NvmlMeter(
        "nvidia-smi",
        {
            "power_mw": field("power.draw", 1e3),
            "sm_mhz": field("clocks.sm", 1.0),
            "memory_mhz": field("clocks.mem", 1.0),
            "temperature_c": field("temperature.gpu", 1.0),
            "used_bytes": field("memory.used", 2.0**20),
        },
    )
