"""Ways to hold work to a part of the SMs: green contexts inside a process, MPS for a process.

Nothing is timed here. The MPS daemon started here listens in a folder of its own and is ended
again; no setting of the card is changed.

    python -m benchmarks.gpu_campaign.shares     # prints the SMs that CUDA shows this process
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Least number and step of SMs on compute capability 9.0 (CUDA driver API, green contexts,
# cuDevSmResourceSplitByCount).
GRANULARITY = 8


def sms_of(percent: int, total: int) -> int:
    """Return the SMs for a nominal share: the nearest multiple of 8, at least 8.

    >>> [sms_of(percent, 132) for percent in (12, 25, 50, 75, 100)]
    [16, 32, 64, 96, 132]
    """
    if percent >= 100:
        return total
    nearest = round(total * percent / 100 / GRANULARITY) * GRANULARITY
    return min(total, max(GRANULARITY, nearest))


class GreenShares:
    """Green contexts of this process, made once for each number of SMs."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._made: dict[int, Any] = {}

    @contextlib.contextmanager
    def held(self, sms: int) -> Iterator[None]:
        """Run the body on so many SMs; on all of them without a green context."""
        if sms >= self._total:
            yield
            return
        import torch
        from torch.cuda.green_contexts import GreenContext

        torch.cuda.synchronize()
        if sms not in self._made:
            self._made[sms] = GreenContext.create(num_sms=sms, device_id=0)
        context = self._made[sms]
        context.set_context()
        try:
            yield
            torch.cuda.synchronize()
        finally:
            context.pop_context()


class Mps:
    """An MPS daemon of our own, and the environment of its clients."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="mps-")
        self._log = tempfile.mkdtemp(prefix="mps-log-")

    def client(self, percent: int) -> Mapping[str, str]:
        """Return the environment of a client held to `percent` of the SMs."""
        return {
            "CUDA_MPS_PIPE_DIRECTORY": self._folder,
            "CUDA_MPS_LOG_DIRECTORY": self._log,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent),
        }

    def start(self) -> str:
        """Start the daemon; return an error text, empty if it started."""
        if shutil.which("nvidia-cuda-mps-control") is None:
            return "nvidia-cuda-mps-control is not installed"
        try:
            made = subprocess.run(
                ["nvidia-cuda-mps-control", "-d"], env={**os.environ, **self.client(100)},
                capture_output=True, text=True, timeout=15,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as err:
            return f"the daemon did not start: {type(err).__name__}"
        return "" if made.returncode == 0 else f"the daemon did not start: {_line(made)}"

    def visible_sms(self, percent: int) -> tuple[int, str]:
        """Return the SMs that CUDA shows a client held to `percent`, and an error text."""
        try:
            made = subprocess.run(
                [sys.executable, "-m", "benchmarks.gpu_campaign.shares"],
                env={**os.environ, **self.client(percent)},
                capture_output=True, text=True, timeout=20,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return 0, "a client of the daemon hung"
        found = made.stdout.strip()
        return (int(found), "") if found.isdigit() else (0, _line(made))

    def stop(self) -> None:
        """End the daemon and remove its folders."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                ["nvidia-cuda-mps-control"], input="quit\n", text=True, timeout=10,
                env={**os.environ, **self.client(100)}, capture_output=True,
            )  # fmt: skip
        for folder in (self._folder, self._log):
            shutil.rmtree(Path(folder), ignore_errors=True)


def _line(made: "subprocess.CompletedProcess[str]") -> str:
    lines = [line.strip() for line in (made.stderr + made.stdout).splitlines() if line.strip()]
    return lines[-1][:200] if lines else f"exit code {made.returncode}"


def visible_sms() -> int:
    """Return the SMs that the driver shows this process (CUdevice_attribute 16)."""
    driver = ctypes.CDLL("libcuda.so.1")
    device, context, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    for code in (
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(device), 0),
        # under MPS the limit shows once there is a context
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        driver.cuCtxSetCurrent(context),
        driver.cuDeviceGetAttribute(ctypes.byref(count), 16, device),
    ):
        if code != 0:
            raise OSError(f"the CUDA driver answers {code}")
    return count.value


if __name__ == "__main__":
    sys.stdout.write(f"{visible_sms()}\n")
