"""tvm: runs a model that TVM compiled, a shared library for its virtual machine (extra `tvm`).

The library is what `slicewise tune --engine tvm` writes; its shapes are fixed, its weights are in
it, and it runs in the precision it was compiled in. Nothing is compiled here.
"""

import os
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from slicewise.core.errors import MeasureError, MissingDependency, UsageError, tells_no_memory
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

_NAME = "tvm"
_PACKAGES = ("apache-tvm", "apache-tvm-ffi")
# `pinning` 0 leaves threads to the affinity of the process; 1 lets TVM bind each to a core.
_OPTIONS: Mapping[str, Sequence[str]] = {"pinning": ("0", "1")}
_PRECISIONS = ("fp32", "fp16", "bf16", "int8")
_ENTRY = "main"


@dataclass(frozen=True, slots=True)
class Tvm:
    """The runtime `tvm`."""

    name: str = _NAME
    forms: frozenset[str] = frozenset({"tvm"})
    devices: frozenset[str] = frozenset({"cpu"})

    def load(self) -> Mapping[str, str]:
        """Import TVM and return its versions."""
        try:
            import tvm.relax  # noqa: F401

            return {name: version(name) for name in _PACKAGES}
        except (ImportError, PackageNotFoundError) as err:
            purpose = "measuring what TVM compiled"
            raise MissingDependency(purpose, package=_PACKAGES[0], extra="tvm") from err

    def open(
        self, subject: Subject, values: Sequence[NDArray[np.generic]], setup: Setup
    ) -> Session:
        """Return a session on the library of `subject`; see the protocol.

        `values` are in the order of the library's arguments, as the subject's inputs are.
        """
        options = read_options(_NAME, setup.options, allowed=_OPTIONS)
        refuse_precision(_NAME, setup.precision, allowed=_PRECISIONS)
        if gpu_index(setup.device) is not None:
            raise UsageError(
                f"runtime {_NAME} runs on the cpu, not on {setup.device!r}; measure there with"
                " onnxruntime or torch-eager"
            )
        # read when the first parallel kernel runs; bound by TVM, threads would leave the share
        os.environ["TVM_NUM_THREADS"] = str(setup.threads)
        os.environ["TVM_BIND_THREADS"] = options["pinning"]
        self.load()
        with mapped(lambda err: _refuse(err, subject.name)):
            session = TvmSession(subject.name, *_machine(str(subject.open()), values))
            session.run()
        return session


def _machine(path: str, values: Sequence[NDArray[np.generic]]) -> tuple[Any, Any, list[Any]]:
    """Return the library, a virtual machine on it, and its arguments."""
    from tvm import relax
    from tvm.runtime import cpu, load_module, tensor

    library = load_module(path)
    return library, relax.VirtualMachine(library, cpu()), [tensor(value) for value in values]


@dataclass(slots=True)
class TvmSession:
    """A compiled model with its arguments set."""

    model: str
    _library: Any
    _machine: Any
    _arguments: list[Any]
    notes: tuple[Note, ...] = field(default_factory=tuple)

    def run(self) -> None:
        """Run once; see the protocol."""
        try:
            self._machine[_ENTRY](*self._arguments)
        except Exception as err:
            _refuse(err, self.model)

    def outputs(self) -> tuple[NDArray[np.generic], ...]:
        """Run once and return the outputs; see the protocol."""
        with mapped(lambda err: _refuse(err, self.model)):
            made = [each.numpy() for each in _flat(self._machine[_ENTRY](*self._arguments))]
        return tuple(
            each.astype(np.float32) if each.dtype.kind == "f" or each.dtype.name == "bfloat16"
            else each
            for each in made
        )  # fmt: skip

    def profile(self, runs: int) -> tuple[NodeTime, ...]:
        """Return the mean time of each call of TVM's virtual machine, as it tells them.

        A kernel has the name that TVM gave it when it fused operators ('fused_matmul_add'); what
        the machine does itself, as getting memory, begins with 'vm.'.
        """
        from tvm import relax
        from tvm.runtime import cpu

        watch = _Watch()
        with mapped(lambda err: _refuse(err, self.model)):
            machine = relax.VirtualMachine(self._library, cpu())
            machine.set_instrument(watch)
            for _ in range(runs):
                machine[_ENTRY](*self._arguments)
        return tuple(
            NodeTime(name, name, 1e3 * seconds / runs, watch.calls[name] / runs)
            for name, seconds in watch.seconds.items()
            if seconds > 0
        )

    def close(self) -> None:
        """Free the model; a second call does nothing."""
        self._machine = self._library = None
        self._arguments = []


class _Watch:
    """Told before and after each call of a virtual machine; adds their times up by name."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self._began: list[float] = []

    def __call__(self, _: object, name: str, is_before: bool, *__: object) -> int:
        now = time.perf_counter()
        if is_before:
            self._began.append(time.perf_counter())
        else:
            self.seconds[str(name)] += now - self._began.pop()
            self.calls[str(name)] += 1
        return 0  # go on


def _flat(value: Any) -> list[Any]:
    """Return the tensors of a result, which may be a tuple of tuples."""
    if hasattr(value, "numpy"):
        return [value]
    return [tensor for each in value for tensor in _flat(each)]


# --- refusals


def _refuse(err: Exception, name: str) -> NoReturn:
    """Raise the error of ours that a foreign one stands for."""
    line = first_line(err)
    if isinstance(err, MemoryError) or tells_no_memory(str(err)):
        raise MemoryError(f"tvm ran out of memory on model {name!r}: {line}") from err
    raise MeasureError(
        f"tvm does not run model {name!r}: {line}; give a library that `slicewise tune --engine"
        " tvm` wrote on this machine"
    ) from err


RUNTIME: Runtime = Tvm()
