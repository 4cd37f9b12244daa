"""The driver's own C library behind the functions of pynvml, on a made library."""

import ctypes
from typing import Any

import pytest

from slicewise.measure.meters import nvml
from slicewise.measure.meters.nvml import Nvml, NvmlMissing


class FakeLibrary:
    """Functions of libnvidia-ml that fill what their pointers point at."""

    def __init__(self, code: int = 0) -> None:
        self.code = code

    def nvmlInit_v2(self) -> int:  # noqa: N802  # names of the library
        return self.code

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:  # noqa: N802
        handle._obj.value = 1000 + index.value
        return self.code

    def nvmlDeviceGetHandleByUUID(self, uuid: Any, handle: Any) -> int:  # noqa: N802
        handle._obj.value = len(uuid.value)
        return self.code

    def nvmlDeviceGetName(self, handle: Any, buffer: Any, size: Any) -> int:  # noqa: N802
        buffer.value = f"GPU {handle.value}".encode()
        return self.code

    def nvmlSystemGetDriverVersion(self, buffer: Any, size: Any) -> int:  # noqa: N802
        buffer.value = b"580.1"
        return self.code

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, value: Any) -> int:  # noqa: N802
        value._obj.value = 1 << 40
        return self.code

    def nvmlDeviceGetPowerUsage(self, handle: Any, value: Any) -> int:  # noqa: N802
        value._obj.value = 99_000
        return self.code

    def nvmlDeviceGetUtilizationRates(self, handle: Any, value: Any) -> int:  # noqa: N802
        value._obj.gpu = 42
        return self.code

    def nvmlDeviceGetMemoryInfo(self, handle: Any, value: Any) -> int:  # noqa: N802
        value._obj.used = 5 << 40
        return self.code

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, value: Any) -> int:  # noqa: N802
        value._obj.value = 1000 + kind.value
        return self.code

    def nvmlDeviceGetComputeRunningProcesses_v3(  # noqa: N802
        self, handle: Any, count: Any, rows: Any
    ) -> int:
        count._obj.value = 2
        rows[0].pid, rows[0].usedGpuMemory = 7, 123
        rows[1].pid, rows[1].usedGpuMemory = 8, 0xFFFFFFFFFFFFFFFF
        return self.code


def test_the_drivers_own_library_tells_what_pynvml_tells() -> None:
    found = Nvml(nvml.wrap_library(FakeLibrary()), 3, environ={})
    assert (found.name(), found.driver()) == ("GPU 1003", "580.1")
    assert (found.energy_mj(), found.power_mw(), found.busy_percent()) == (1 << 40, 99_000, 42)
    assert (found.used_bytes(), found.clock_hz()) == (5 << 40, 1001e6)
    assert found.process_bytes() == {7: 123, 8: None}
    assert nvml.own_bytes(found, pid=7) == 123
    assert nvml.own_bytes(found, pid=8) is None
    by_uuid = Nvml(nvml.wrap_library(FakeLibrary()), 0, environ={"CUDA_VISIBLE_DEVICES": "GPU-12"})
    assert by_uuid.name() == "GPU 6"


def test_an_error_code_of_the_library_means_that_it_does_not_tell() -> None:
    with pytest.raises(NvmlMissing, match="error 3"):
        Nvml(nvml.wrap_library(FakeLibrary(code=3)), 0, environ={})


def test_a_library_that_is_absent_is_none() -> None:
    assert nvml.load_library("libno-such-thing.so.1") is None
    assert ctypes.sizeof(nvml._Process) == 24  # nvmlProcessInfo_t, nvml.h
