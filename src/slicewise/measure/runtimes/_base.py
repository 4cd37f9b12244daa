"""What a runtime is and which ones exist. `slicewise.testing.runtimes` checks the laws.

A runtime opens a model in this process and gives a session; it takes no time and keeps no
record, which is the harness's work. Frameworks are imported inside functions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from slicewise.core.errors import MissingDependency
from slicewise.core.measurement import NodeTime, Subject
from slicewise.core.notes import Note
from slicewise.core.plugins import PluginTable


@dataclass(frozen=True, slots=True)
class Setup:
    """How a runtime is set up. `device` is 'cpu' or 'gpu:N'; `threads` for the work inside an
    operator; `options` are the runtime's own, checked by it."""

    device: str = "cpu"
    threads: int = 1
    precision: str = "fp32"
    options: Mapping[str, str] = field(default_factory=dict)


class Session(Protocol):
    """A model that is ready to run with the inputs it was opened with."""

    @property
    def notes(self) -> tuple[Note, ...]:
        """What was assumed or replaced on the way."""

    def run(self) -> None:
        """Run the model once and return when its outputs are there: on a GPU, after the sync."""

    def outputs(self) -> tuple[NDArray[np.generic], ...]:
        """Run once and return the outputs, floats as float32."""

    def profile(self, runs: int) -> tuple[NodeTime, ...]:
        """Return the mean time of each operator over `runs` runs by the runtime's own profiler.

        `MeasureError` if the runtime has none.
        """

    def close(self) -> None:
        """Free what the session holds; a second call does nothing."""


class Runtime(Protocol):
    """A runtime. `forms` are those of `Subject.form`; `devices` 'cpu' and 'gpu'."""

    @property
    def name(self) -> str:
        """What the table calls it."""

    @property
    def forms(self) -> frozenset[str]:
        """The forms of a subject that it takes."""

    @property
    def devices(self) -> frozenset[str]:
        """The kinds of device that it runs on."""

    def load(self) -> Mapping[str, str]:
        """Import the framework and return the versions of the packages that run the model.

        `MissingDependency` names the extra where one is absent.
        """

    def open(
        self, subject: Subject, values: Sequence[NDArray[np.generic]], setup: Setup
    ) -> Session:
        """Return a session for the subject, with `values` as its inputs in order.

        `MeasureError` where the runtime does not run this model, `UsageError` for an option that
        it does not know or a precision that it does not have; foreign errors are mapped here.
        `MemoryError` where memory ran out.
        """


RUNTIMES = PluginTable(
    what="measuring runtime",
    rows={
        "onnxruntime": "slicewise.measure.runtimes.onnxruntime:RUNTIME",
        "torch-eager": "slicewise.measure.runtimes.torch:EAGER",
        "torch-compile": "slicewise.measure.runtimes.torch:COMPILED",
        "openvino": "slicewise.measure.runtimes.openvino:RUNTIME",
        "tvm": "slicewise.measure.runtimes.tvm:RUNTIME",
    },
)
# Runs no model: loaded by its name, and named to nobody who asks what there is.
_UNLISTED = PluginTable(
    what="measuring runtime", rows={"null": "slicewise.measure.runtimes.null:RUNTIME"}
)


def load_runtime(name: str) -> Runtime:
    """Return the runtime called `name`; `UsageError` lists the known ones."""
    return cast(Runtime, (_UNLISTED if name in _UNLISTED else RUNTIMES).load(name))


# What has to be installed for a runtime: package, and the extra that brings it (None: the core).
_PACKAGES: Mapping[str, tuple[str, str | None]] = {
    "onnxruntime": ("onnxruntime", None),
    "torch-eager": ("torch", "torch"),
    "torch-compile": ("torch", "torch"),
    "openvino": ("openvino", "tune"),
    "tvm": ("tvm", "tvm"),
}


def available_runtime(name: str) -> Runtime:
    """Return the runtime called `name` if its framework is installed; nothing is imported.

    `UsageError` lists the known ones; `MissingDependency` names what to install.
    """
    runtime = load_runtime(name)
    package, extra = _PACKAGES.get(name, ("", None))
    if package and find_spec(package) is None:
        raise MissingDependency(f"runtime {name}", package=package, extra=extra)
    return runtime
