"""SMs and green contexts of a CUDA device, through torch. Used by the shares; runs no model."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from slicewise.core.errors import DeviceError, MissingDependency
from slicewise.measure.runtimes.settings import first_line


def _torch() -> Any:
    try:
        import torch
    except ImportError as err:
        raise MissingDependency("a share of a GPU", package="torch", extra="torch") from err
    return torch


def count_sms(device_index: int) -> int:
    """Return the SMs that CUDA shows this process; under MPS those of its percentage."""
    torch = _torch()
    with _mapped(f"the properties of gpu:{device_index} cannot be read"):
        return int(torch.cuda.get_device_properties(device_index).multi_processor_count)


def read_capability(device_index: int) -> tuple[int, int]:
    """Return the compute capability of the device, as (9, 0)."""
    torch = _torch()
    with _mapped(f"the properties of gpu:{device_index} cannot be read"):
        major, minor = torch.cuda.get_device_capability(device_index)
    return int(major), int(minor)


@contextmanager
def green_context(device_index: int, *, sms: int) -> Iterator[None]:
    """Run the block in a green context of `sms` SMs; `DeviceError` where CUDA refuses."""
    torch = _torch()
    with _mapped(f"a green context of {sms} SMs cannot be made on gpu:{device_index}"):
        from torch.cuda.green_contexts import GreenContext

        torch.cuda.init()
        context = GreenContext.create(num_sms=sms, device_id=device_index)
        context.set_context()
    try:
        yield
    finally:
        context.pop_context()


def count_context_sms() -> int | None:
    """Return the SMs of the current CUDA context; None without the package cuda-bindings.

    Torch does not tell them: a device's properties are those of the whole, whatever the context.
    """
    try:
        driver: Any = importlib.import_module("cuda.bindings.driver")
    except ImportError:
        return None
    failed, context = driver.cuCtxGetCurrent()
    if failed != driver.CUresult.CUDA_SUCCESS:
        return None
    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    failed, resource = driver.cuCtxGetDevResource(context, kind)
    return None if failed != driver.CUresult.CUDA_SUCCESS else int(resource.sm.smCount)


@contextmanager
def _mapped(what: str) -> Iterator[None]:
    """Turn torch's errors into ours."""
    try:
        yield
    except (RuntimeError, AssertionError, ImportError, AttributeError, TypeError) as err:
        raise DeviceError(
            f"{what}: {first_line(err)}; use mps:25, a MIG instance, or the whole device"
        ) from err
