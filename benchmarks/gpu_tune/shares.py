"""Ways to hold work to SMs inside one process, each with several disjoint sets ('lanes').

green-stream   a stream of a green context (cuGreenCtxStreamCreate); kernels of the device's
               own context run on it
green-context  the same, with the green context current, so that kernels are loaded in it
green-torch    torch.cuda.green_contexts: sets of SMs, but no choice of which
whole          nothing is held here: the process is a client of MPS, or the CPU
"""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

MECHANISMS = ("green-stream", "green-context", "green-torch")
# Those whose sets of SMs are disjoint.
DISJOINT = frozenset({"green-stream", "green-context", "mps"})


class Shares:
    """Sets of SMs of this process by (SMs, lane), made on first use and kept."""

    def __init__(self, mechanism: str) -> None:
        """Make nothing yet."""
        self.mechanism = mechanism
        self._made: dict[tuple[int, int], Any] = {}
        self._groups: dict[int, list[Any]] = {}
        self.seen: dict[int, int] = {}

    @contextlib.contextmanager
    def held(self, sms: int, lane: int) -> Iterator[None]:
        """Run the body on the lane-th set of so many SMs; 0 SMs: on the whole device."""
        if sms == 0 or self.mechanism == "whole":
            yield
            return
        if (sms, lane) not in self._made:
            self._made[sms, lane] = self._make(sms, lane)
        with self._entered(self._made[sms, lane]):
            yield

    def _make(self, sms: int, lane: int) -> Any:
        import torch

        torch.cuda.init()
        torch.cuda.current_stream()  # the primary context exists from here on
        if self.mechanism == "green-torch":
            from torch.cuda.green_contexts import GreenContext

            self.seen[sms] = sms
            return GreenContext.create(num_sms=sms, device_id=0)
        return _green(self._group(sms, lane))

    def count(self, sms: int) -> int | None:
        """Return how many disjoint sets of so many SMs there are; None where nobody tells."""
        return len(self._all(sms)) if self.mechanism in DISJOINT else None

    def _all(self, sms: int) -> list[Any]:
        if sms not in self._groups:
            self._groups[sms] = _split(sms)
            self.seen[sms] = int(self._groups[sms][0].sm.smCount)
        return self._groups[sms]

    def _group(self, sms: int, lane: int) -> Any:
        groups = self._all(sms)
        if lane >= len(groups):
            raise ValueError(f"the device has {len(groups)} sets of {sms} SMs, not {lane + 1}")
        return groups[lane]

    @contextlib.contextmanager
    def _entered(self, made: Any) -> Iterator[None]:
        import torch

        if self.mechanism == "green-torch":
            made.set_context()
            try:
                yield
                torch.cuda.synchronize()
            finally:
                made.pop_context()
            return
        context, stream = made
        if self.mechanism == "green-context":
            driver = _driver()
            _checked(driver.cuCtxPushCurrent(context))
        try:
            with torch.cuda.stream(stream):
                yield
                stream.synchronize()
        finally:
            if self.mechanism == "green-context":
                _checked(driver.cuCtxPopCurrent())


def _driver() -> Any:
    return importlib.import_module("cuda.bindings.driver")


def _checked(told: Any) -> Any:
    """Return what a driver call gives beside its status; `OSError` with the status' name."""
    status, *values = told
    if int(status) != 0:
        raise OSError(f"the CUDA driver answers {getattr(status, 'name', status)}")
    return values[0] if len(values) == 1 else tuple(values)


def _split(sms: int) -> list[Any]:
    """Return the device's SMs as disjoint groups of so many (cuDevSmResourceSplitByCount)."""
    driver = _driver()
    device = _checked(driver.cuDeviceGet(0))
    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    whole = _checked(driver.cuDeviceGetDevResource(device, kind))
    wanted = max(1, int(whole.sm.smCount) // sms)
    groups, count, _ = _checked(driver.cuDevSmResourceSplitByCount(wanted, whole, 0, sms))
    return list(groups)[: int(count)]


def _green(group: Any) -> tuple[Any, Any]:
    """Return a green context of a group of SMs, as a context, and a torch stream on it."""
    import torch

    driver = _driver()
    device = _checked(driver.cuDeviceGet(0))
    description = _checked(driver.cuDevResourceGenerateDesc([group], 1))
    flag = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    green = _checked(driver.cuGreenCtxCreate(description, device, flag))
    kind = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
    stream = _checked(driver.cuGreenCtxStreamCreate(green, kind, 0))
    context = _checked(driver.cuCtxFromGreenCtx(green))
    return context, torch.cuda.ExternalStream(int(stream), device=torch.device("cuda", 0))
