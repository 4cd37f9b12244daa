"""PyTorch: runs a module as it is (`torch-eager`) or compiled (`torch-compile`), CPU or GPU.

Everything runs under `torch.inference_mode`. Opening a compiled module compiles it: the first
runs are made here, so that no sample has compile time in it.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from slicewise.core.errors import (
    MeasureError,
    MissingDependency,
    SlicewiseError,
    UsageError,
    tells_no_memory,
)
from slicewise.core.measurement import NodeTime, Subject
from slicewise.core.notes import Note
from slicewise.measure.runtimes._base import Runtime, Session, Setup
from slicewise.measure.runtimes.refusals import mapped
from slicewise.measure.runtimes.settings import (
    first_line,
    gpu_index,
    read_options,
    refuse_precision,
)
from slicewise.measure.runtimes.torch_profile import profile

_PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "amp")
_EAGER_OPTIONS: Mapping[str, Sequence[str]] = {"channels_last": ("0", "1")}
_COMPILE_OPTIONS: Mapping[str, Sequence[str]] = {
    **_EAGER_OPTIONS,
    "mode": ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
    "freezing": ("0", "1"),
}
# Runs before a compiled module is open: the compiler's work is in the first, recording of CUDA
# graphs in the second.
_FIRST_RUNS = 3


@dataclass(frozen=True, slots=True)
class TorchRuntime:
    """The runtimes `torch-eager` and `torch-compile`."""

    name: str
    is_compiled: bool
    forms: frozenset[str] = frozenset({"torch"})
    devices: frozenset[str] = frozenset({"cpu", "gpu"})

    def load(self) -> Mapping[str, str]:
        """Import torch and return its version, and that of triton where it is there."""
        try:
            import torch
        except ImportError as err:
            purpose = "measuring PyTorch models"
            raise MissingDependency(purpose, package="torch", extra="torch") from err
        found = {"torch": str(torch.__version__)}
        if self.is_compiled and torch.cuda.is_available():
            with contextlib.suppress(metadata.PackageNotFoundError):
                found["triton"] = metadata.version("triton")
        return found

    def open(
        self, subject: Subject, values: Sequence[NDArray[np.generic]], setup: Setup
    ) -> Session:
        """Return a session on the module of `subject`; see the protocol.

        Threads are those of this process: the last session opened sets them for all.
        """
        self.load()
        allowed = _COMPILE_OPTIONS if self.is_compiled else _EAGER_OPTIONS
        options = read_options(self.name, setup.options, allowed=allowed)
        refuse_precision(self.name, setup.precision, allowed=_PRECISIONS)
        device = _device(setup.device)
        if setup.precision == "tf32" and device == "cpu":
            raise UsageError("precision 'tf32' is of NVIDIA GPUs; give fp32, bf16, fp16 or amp")
        _set_threads(setup.threads)
        with mapped(lambda err: _refuse(err, self.name, subject.name)):
            _set_tf32(setup.precision == "tf32")
            session = _opened(self, subject, values, setup.precision, options, device)
            for _ in range(_FIRST_RUNS if self.is_compiled else 1):
                session.run()
        return session


def _opened(
    runtime: TorchRuntime,
    subject: Subject,
    values: Sequence[NDArray[np.generic]],
    precision: str,
    options: Mapping[str, str],
    device: str,
) -> "TorchSession":
    import torch

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    module: Any = subject.open()
    module = module.to(device, dtype)
    tensors = [_tensor(value, device, dtype) for value in values]
    if options["channels_last"] == "1":
        module = module.to(memory_format=torch.channels_last)
        tensors = [each.contiguous(memory_format=torch.channels_last) if each.ndim == 4 else each
                   for each in tensors]  # fmt: skip
    call = module
    if runtime.is_compiled:
        torch._dynamo.reset()
        torch._inductor.config.freezing = options["freezing"] == "1"
        mode = None if options["mode"] == "default" else options["mode"]
        call = torch.compile(module, mode=mode, dynamic=False)
    named = {spec.name: each for spec, each in zip(subject.inputs, tensors, strict=True)}
    args, kwargs = ((), named) if subject.by_name else (tuple(tensors), {})
    # on the CPU torch's own default of autocast is bf16
    half = torch.float16 if device != "cpu" else torch.bfloat16
    return TorchSession(
        runtime, subject.name, call, args, kwargs, device, half if precision == "amp" else None
    )


@dataclass(slots=True)
class TorchSession:
    """A module with its inputs on the device."""

    runtime: TorchRuntime
    model: str
    _call: Any
    _args: tuple[Any, ...]
    _kwargs: Mapping[str, Any]
    _device: str
    _autocast: Any

    @property
    def notes(self) -> tuple[Note, ...]:
        """What was assumed: the type of autocast on the CPU."""
        if self._autocast is None or self._device != "cpu":
            return ()
        return (Note("amp-in-bf16", "autocast on the CPU is in bf16, as is torch's default"),)

    def run(self) -> None:
        """Run once; see the protocol."""
        self._forward()

    def _forward(self) -> Any:
        import torch

        try:
            with torch.inference_mode():
                if self._autocast is None:
                    made = self._call(*self._args, **self._kwargs)
                else:
                    with torch.autocast(self._device.partition(":")[0], self._autocast):
                        made = self._call(*self._args, **self._kwargs)
                if self._device != "cpu":
                    torch.cuda.synchronize(self._device)
                return made
        except Exception as err:
            _refuse(err, self.runtime.name, self.model)

    def outputs(self) -> tuple[NDArray[np.generic], ...]:
        """Run once and return the tensors of the result in order; see the protocol."""
        import torch
        from torch.utils import _pytree as pytree

        made = self._forward()
        if hasattr(made, "to_tuple"):  # a ModelOutput of transformers
            made = made.to_tuple()
        leaves, _ = pytree.tree_flatten(made)
        return tuple(
            (each.float() if each.is_floating_point() else each).cpu().numpy()
            for each in leaves
            if isinstance(each, torch.Tensor)
        )

    def profile(self, runs: int) -> tuple[NodeTime, ...]:
        """Return the time of each operator by torch's profiler; see `torch_profile.profile`."""
        with mapped(lambda err: _refuse(err, self.runtime.name, self.model)):
            return profile(self.run, self._call, runs, is_gpu=self._device != "cpu")

    def close(self) -> None:
        """Free module and inputs, and the compiler's cache; a second call does nothing."""
        if self._call is None:
            return
        import torch

        self._call, self._args, self._kwargs = None, (), {}
        if self.runtime.is_compiled:
            torch._dynamo.reset()
        if self._device != "cpu":
            torch.cuda.empty_cache()


# --- setting up


def _device(device: str) -> str:
    import torch

    gpu = gpu_index(device)
    if gpu is None:
        return "cpu"
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpu >= count:
        there = f"torch {torch.__version__} sees {count or 'no'} GPUs"
        raise UsageError(f"device {device!r} is not there: {there}; give cpu or another one")
    return f"cuda:{gpu}"


def _set_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    with contextlib.suppress(RuntimeError):  # once work between operators began it is fixed
        torch.set_num_interop_threads(1)


def _set_tf32(is_on: bool) -> None:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = is_on
    torch.backends.cudnn.allow_tf32 = is_on


def _tensor(value: NDArray[np.generic], device: str, dtype: Any) -> Any:
    """Return a tensor of the value; floats in the type of the weights."""
    import torch

    made = torch.from_numpy(np.asarray(value, order="C")).to(device)
    return made.to(dtype) if made.is_floating_point() else made


# --- refusals


# Words of the compiler's errors -> what is missing.
_NO_COMPILER = ("no working c++ compiler", "invalidcxxcompiler", "c++ compiler", "python.h")


def _refuse(err: Exception, runtime: str, model: str) -> NoReturn:
    """Raise the error of ours that a foreign one stands for."""
    if isinstance(err, SlicewiseError | MemoryError):
        raise err
    said = f"{type(err).__name__} {err}".lower()
    line = first_line(err)
    if tells_no_memory(said):
        raise MemoryError(f"torch ran out of memory on model {model!r}: {line}") from err
    if runtime == "torch-compile" and any(word in said for word in _NO_COMPILER):
        raise MeasureError(
            f"torch-compile needs a C++ compiler, and the headers of Python, and finds none:"
            f" {line}; install g++ and python3-dev, or measure with torch-eager"
        ) from err
    raise MeasureError(
        f"{runtime} does not run model {model!r}: {type(err).__name__}: {line}; give a model that"
        " it runs, or another runtime"
    ) from err


EAGER: Runtime = TorchRuntime("torch-eager", is_compiled=False)
COMPILED: Runtime = TorchRuntime("torch-compile", is_compiled=True)
