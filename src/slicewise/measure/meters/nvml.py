"""The few figures of NVIDIA's management library (NVML) that meters read, of one GPU.

Through the pynvml module where it is installed, else through the driver's own C library, which is
wherever the driver is. Nothing is set: no clock, no limit, no mode.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any


class NvmlMissing(Exception):
    """This figure is not told, by this GPU or to this user. Never leaves the meters."""


class Nvml:
    """One GPU as NVML sees it. `api` has the functions of pynvml that are called here."""

    def __init__(self, api: Any, gpu: int, *, environ: Mapping[str, str] = os.environ) -> None:
        """Find GPU number `gpu` of those that this process may use; `NvmlMissing` if it is not
        there."""
        self._api = api
        self._call(api.nvmlInit)
        self._handle = self._find(gpu, environ.get("CUDA_VISIBLE_DEVICES"))

    def _find(self, gpu: int, visible: str | None) -> Any:
        """CUDA numbers the GPUs that CUDA_VISIBLE_DEVICES lists, NVML numbers all of them."""
        if visible is None:
            return self._call(self._api.nvmlDeviceGetHandleByIndex, gpu)
        listed = [part.strip() for part in visible.split(",") if part.strip()]
        if gpu >= len(listed):
            raise NvmlMissing(f"CUDA_VISIBLE_DEVICES={visible!r} lists no GPU number {gpu}")
        if listed[gpu].isdigit():
            return self._call(self._api.nvmlDeviceGetHandleByIndex, int(listed[gpu]))
        return self._call(self._api.nvmlDeviceGetHandleByUUID, listed[gpu])

    def name(self) -> str:
        """The product name."""
        return _text(self._call(self._api.nvmlDeviceGetName, self._handle))

    def driver(self) -> str:
        """The version of the driver."""
        return _text(self._call(self._api.nvmlSystemGetDriverVersion))

    def energy_mj(self) -> int:
        """Millijoules since the driver was loaded (Volta and later)."""
        return int(self._call(self._api.nvmlDeviceGetTotalEnergyConsumption, self._handle))

    def power_mw(self) -> int:
        """Power of the board in milliwatts, now or over the last second, as the GPU tells it."""
        return int(self._call(self._api.nvmlDeviceGetPowerUsage, self._handle))

    def busy_percent(self) -> int:
        """Percent of the last period in which a kernel ran."""
        return int(self._call(self._api.nvmlDeviceGetUtilizationRates, self._handle).gpu)

    def used_bytes(self) -> int:
        """Memory in use on the device, by all processes."""
        return int(self._call(self._api.nvmlDeviceGetMemoryInfo, self._handle).used)

    def clock_hz(self) -> float:
        """The clock of the SMs now."""
        return 1e6 * int(self._call(self._api.nvmlDeviceGetClockInfo, self._handle, _SM_CLOCK))

    def process_bytes(self) -> Mapping[int, int | None]:
        """Memory of each process with a compute context, by its number; None: not told."""
        listed = self._call(self._api.nvmlDeviceGetComputeRunningProcesses, self._handle)
        return {int(one.pid): one.usedGpuMemory for one in listed}

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except NvmlMissing:
            raise
        except Exception as err:  # pynvml's errors are classes that it makes at run time
            raise NvmlMissing(f"NVML does not tell: {err}") from err


def open_nvml(gpu: int) -> Nvml | None:
    """Return GPU `gpu` as NVML sees it; None where there is no driver, or no such GPU."""
    api = _load_api()
    if api is None:
        return None
    try:
        return Nvml(api, gpu)
    except NvmlMissing:
        return None


def own_bytes(nvml: Nvml, *, pid: int | None = None) -> int | None:
    """Return what this process holds on the GPU; None where the driver does not tell.

    Inside a container the driver may list processes by numbers that mean nothing here.
    """
    try:
        return nvml.process_bytes().get(os.getpid() if pid is None else pid)
    except NvmlMissing:
        return None


def _load_api() -> Any | None:
    try:
        import pynvml
    except ImportError:
        return load_library()
    return pynvml


_SM_CLOCK = 1  # NVML_CLOCK_SM
_UNKNOWN = 0xFFFFFFFFFFFFFFFF  # NVML_VALUE_NOT_AVAILABLE


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))


class _Process(ctypes.Structure):  # nvmlProcessInfo_t of the _v3 functions
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("usedGpuMemory", ctypes.c_ulonglong),
        ("gpuInstanceId", ctypes.c_uint),
        ("computeInstanceId", ctypes.c_uint),
    )


def load_library(name: str = "libnvidia-ml.so.1") -> Any | None:
    """Return the driver's own library behind the functions of pynvml that `Nvml` calls; None
    where it is not there. Signatures: NVML API reference, nvml.h."""
    if sys.platform != "linux":
        return None
    try:
        return wrap_library(ctypes.CDLL(name))
    except OSError:
        return None


def wrap_library(library: Any) -> Any:
    """Return pynvml's functions made of those of the C library."""

    def check(code: int) -> None:
        if code:
            raise NvmlMissing(f"NVML does not tell: error {code}")

    def value(function: str, kind: Any, *arguments: Any) -> Any:
        result = kind()
        check(getattr(library, function)(*arguments, ctypes.byref(result)))
        return result

    def text(function: str, *arguments: Any) -> bytes:
        buffer = ctypes.create_string_buffer(96)  # NVML_DEVICE_NAME_V2_BUFFER_SIZE
        check(getattr(library, function)(*arguments, buffer, ctypes.c_uint(96)))
        return buffer.value

    def processes(handle: Any) -> list[Any]:
        count, rows = ctypes.c_uint(256), (_Process * 256)()
        function = library.nvmlDeviceGetComputeRunningProcesses_v3
        check(function(handle, ctypes.byref(count), rows))
        return [
            SimpleNamespace(
                pid=row.pid,
                usedGpuMemory=None if row.usedGpuMemory == _UNKNOWN else row.usedGpuMemory,
            )
            for row in rows[: count.value]
        ]

    def get(function: str, kind: Any, handle: Any) -> Any:
        return value(function, kind, handle)

    number = ctypes.c_ulonglong
    return SimpleNamespace(
        nvmlInit=lambda: check(library.nvmlInit_v2()),
        nvmlDeviceGetHandleByIndex=lambda index: value(
            "nvmlDeviceGetHandleByIndex_v2", ctypes.c_void_p, ctypes.c_uint(index)
        ),
        nvmlDeviceGetHandleByUUID=lambda uuid: value(
            "nvmlDeviceGetHandleByUUID", ctypes.c_void_p, ctypes.c_char_p(uuid.encode())
        ),
        nvmlDeviceGetName=lambda handle: text("nvmlDeviceGetName", handle),
        nvmlSystemGetDriverVersion=lambda: text("nvmlSystemGetDriverVersion"),
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: (
            get("nvmlDeviceGetTotalEnergyConsumption", number, handle).value
        ),
        nvmlDeviceGetPowerUsage=lambda handle: (
            get("nvmlDeviceGetPowerUsage", ctypes.c_uint, handle).value
        ),
        nvmlDeviceGetUtilizationRates=lambda handle: get(
            "nvmlDeviceGetUtilizationRates", _Utilization, handle
        ),
        nvmlDeviceGetMemoryInfo=lambda handle: get("nvmlDeviceGetMemoryInfo", _Memory, handle),
        nvmlDeviceGetClockInfo=lambda handle, kind: (
            value("nvmlDeviceGetClockInfo", ctypes.c_uint, handle, ctypes.c_uint(kind)).value
        ),
        nvmlDeviceGetComputeRunningProcesses=processes,
    )


def _text(told: Any) -> str:
    return told.decode(errors="replace") if isinstance(told, bytes) else str(told)
