"""A workload as a user asks for it: requests of one model, a rate and a target for the answer.

Checks what one workload says of itself; nothing is read or predicted here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from os import PathLike, fspath

from slicewise.core.conditions import layout_named, runtime_choice
from slicewise.core.errors import UsageError
from slicewise.core.graph import LARGEST_DIMENSION
from slicewise.core.plugins import did_you_mean
from slicewise.core.precision import Precision
from slicewise.flows.figures import is_number
from slicewise.flows.load import ModelLike, positive

# What is tried where nothing is asked for: the range of the published rule (ParvaGPU, SC'24:
# batches up to 128, up to three processes in a slice).
USUAL_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
USUAL_PROCESSES = (1, 2, 3)
USUAL_PERCENTILE = 99.0
# An MPS server on Volta and later takes 48 clients (NVIDIA MPS documentation, limits).
MOST_PROCESSES = 48


class Isolation(StrEnum):
    """What may stand between two processes of a workload.

    MIG: hardware, so that each has a slice or a card to itself. MPS: several may share a slice or
    card. ANY: whatever serves best, today the same as MPS.
    """

    MIG = "mig"
    MPS = "mps"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """Requests of one model: `rate_per_s` items a second, of which `percentile` percent are to be
    answered within `latency_ms`.

    Either `model`, what `slicewise.load` takes, or `profile`, a CSV file of measurements. Only
    `batches` and `processes` are tried; none named means the usual ones, or those of the profile.
    `scales_missing` lets slices that the profile lacks be scaled from those that it has; None does
    so where it has one slice only. `in_use`: what serves it in the current layout stays as it is.
    `where` says in messages where it was read. `UsageError` for a figure that cannot be.

    >>> asked = WorkloadSpec("search", model="resnet50.onnx", rate_per_s=300, latency_ms=50)
    >>> asked.percentile, asked.batches_tried[:3], asked.processes_tried
    (99.0, (1, 2, 4), (1, 2, 3))
    """

    name: str
    rate_per_s: float
    latency_ms: float
    model: ModelLike | None = None
    profile: str | PathLike[str] | None = None
    percentile: float = USUAL_PERCENTILE
    batches: Sequence[int] = ()
    processes: Sequence[int] = ()
    isolation: Isolation | str = Isolation.ANY
    in_use: bool = False
    precision: str | None = None
    runtime: str | None = None
    layout: str = "nchw"
    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, Sequence[int]] = field(default_factory=dict)
    batch_axes: Mapping[str, int | None] = field(default_factory=dict)
    scales_missing: bool | None = None
    where: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise self.mistake(f"name {self.name!r} of a workload is no text; write one")
        self._check_source()
        for what, value in (("rate_per_s", self.rate_per_s), ("latency_ms", self.latency_ms)):
            if not is_number(value) or not 0 < value < math.inf:
                raise self.mistake(
                    f"{what} {value!r} of workload {self.name!r} is no positive number; give one"
                )
        if is_number(self.percentile) and 0 < self.percentile < 1:
            raise self.mistake(under_one(self.percentile))
        if not is_number(self.percentile) or not 1 <= self.percentile < 100:
            raise self.mistake(
                f"percentile {self.percentile!r} of workload {self.name!r} is not at least 1 and"
                " under 100; write 99"
            )
        self._check_ways()
        self._check_words()

    def mistake(self, text: str) -> UsageError:
        """Return the error that says where something is wrong."""
        return UsageError(f"{self.where}{text}")

    @property
    def batches_tried(self) -> tuple[int, ...]:
        """The batches that are predicted, in rising order."""
        return tuple(sorted(set(self.batches))) or USUAL_BATCHES

    @property
    def processes_tried(self) -> tuple[int, ...]:
        """The numbers of processes that are tried, in rising order."""
        if self.isolation == Isolation.MIG:
            return (1,)
        return tuple(sorted(set(self.processes))) or USUAL_PROCESSES

    @property
    def source(self) -> str:
        """The model or the profile, as it was given."""
        if self.profile is not None:
            return fspath(self.profile)
        if isinstance(self.model, str | PathLike):
            return fspath(self.model)
        return str(getattr(self.model, "name", type(self.model).__name__))

    def _check_source(self) -> None:
        if (self.model is None) == (self.profile is None):
            what = "neither model nor profile" if self.model is None else "both model and profile"
            raise self.mistake(
                f"workload {self.name!r} has {what}; give one: model: MODEL, or profile: FILE.csv"
            )
        if self.profile is None:
            return
        told = {
            "precision": self.precision, "runtime": self.runtime, "dims": self.dims,
            "input": self.inputs, "batch_axis": self.batch_axes,
            "layout": None if self.layout == "nchw" else self.layout,
        }  # fmt: skip
        for what, value in told.items():
            if value:
                raise self.mistake(
                    f"{what} of workload {self.name!r} says how a model is predicted, its profile"
                    " is measured; leave it out"
                )

    def _check_ways(self) -> None:
        given: tuple[tuple[str, object, int], ...] = (
            ("batch", self.batches, LARGEST_DIMENSION),
            ("processes", self.processes, MOST_PROCESSES),
        )
        for what, values, most in given:
            if isinstance(values, str) or not isinstance(values, Sequence):
                raise self.mistake(
                    f"{what} {values!r} of workload {self.name!r} is no list; write [1, 2]"
                )
            for value in values:
                try:
                    number = positive(what, value)
                except UsageError as err:
                    raise self.mistake(f"{err} for workload {self.name!r}") from err
                if number > most:
                    raise self.mistake(
                        f"{what} {value} of workload {self.name!r} is over {most:,}; give less"
                    )
        if self.isolation == Isolation.MIG and any(value != 1 for value in self.processes):
            raise self.mistake(
                f"workload {self.name!r} asks for isolation mig, one process in each slice, and"
                f" processes {list(self.processes)}; leave one of them out"
            )

    def _check_words(self) -> None:
        known = [each.value for each in Isolation]
        if self.isolation not in known:
            raise self.mistake(
                f"isolation {self.isolation!r} of workload {self.name!r} is unknown; known are"
                f" {', '.join(known)}{did_you_mean(str(self.isolation), known)}"
            )
        try:
            if self.precision is not None:
                Precision.named(self.precision)
            if self.runtime is not None:
                runtime_choice(self.runtime)
            layout_named(self.layout)
        except UsageError as err:
            raise self.mistake(f"{err} (workload {self.name!r})") from err


def under_one(percentile: float) -> str:
    """Return what is wrong with a percentile given as a part of one."""
    meant = f"{100 * percentile:g}"
    return f"percentile {percentile:g} is under 1; write {meant} for {meant} %"


def refuse_duplicates(specs: Sequence[WorkloadSpec]) -> None:
    """Raise `UsageError` if two workloads have one name."""
    seen: set[str] = set()
    for spec in specs:
        if spec.name in seen:
            raise spec.mistake(
                f"two workloads are called {spec.name!r}; give each its own name, or one of them"
                " the rate of both"
            )
        seen.add(spec.name)
