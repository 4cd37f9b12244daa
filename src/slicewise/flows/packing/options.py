"""How a packing is asked for: the options and their checks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike

from slicewise.core.errors import UsageError
from slicewise.core.packing import LatencyModel, PackObjective
from slicewise.core.plugins import did_you_mean
from slicewise.flows.figures import is_number, shown
from slicewise.flows.load import positive
from slicewise.flows.packing.workload import WorkloadSpec
from slicewise.flows.predict import PredictOptions

# What is left between a predicted figure and the target where nothing else is asked.
USUAL_SAFETY = 0.1


@dataclass(frozen=True, slots=True)
class PackOptions:
    """How a packing is asked for.

    `costs` are those of one card of each kind, or one for all. `latency_model` says what of the
    time to the answer counts ('service', 'fill', 'queue'), `safety` what is left to the target;
    None leaves a tenth where a latency was predicted and nothing where it was measured. `current`
    is the path of a layout that stands already, `what_if` a file or a list of further workloads
    that are packed on top. `simulates` plays the requests of every workload; the model 'queue'
    always does. `predict` says how models are priced; what a workload says of itself goes over it.

    >>> PackOptions(latency_model="queue", safety=0.2).time_limit_s
    60.0
    """

    costs: Sequence[float] = ()
    objective: PackObjective | str = PackObjective.GPUS
    latency_model: LatencyModel | str = LatencyModel.SERVICE
    safety: float | None = None
    current: str | PathLike[str] | None = None
    what_if: str | PathLike[str] | Sequence[WorkloadSpec] | None = None
    time_limit_s: float = 60.0
    seed: int = 0
    workers: int | None = None
    simulates: bool = False
    strict: bool = False
    predict: PredictOptions = field(default_factory=PredictOptions)

    def __post_init__(self) -> None:
        _word("objective", self.objective, [each.value for each in PackObjective])
        _word("latency model", self.latency_model, [each.value for each in LatencyModel])
        if self.safety is not None and not (
            is_number(self.safety) and 0 <= self.safety < math.inf
        ):
            raise UsageError(
                f"safety {shown(self.safety)} is no part of the target, 0 or more; write"
                " --safety 0.1"
            )
        if not (is_number(self.time_limit_s) and 0 < self.time_limit_s < math.inf):
            raise UsageError(
                f"time limit {shown(self.time_limit_s)} s leaves no time to find a packing; give"
                " --time-limit 60"
            )
        if not (isinstance(self.seed, int) and 0 <= self.seed < 2**31):
            raise UsageError(
                f"seed {self.seed!r} is no whole number from 0 to 2^31 - 1; write --seed 0"
            )
        if self.workers is not None:
            positive("workers", self.workers)

    @property
    def model(self) -> LatencyModel:
        """The latency model as a word of the contract."""
        return LatencyModel(self.latency_model)

    def safety_of(self, *, is_measured: bool) -> float:
        """Return what is left to the target, as a part of the figure."""
        if self.safety is not None:
            return self.safety
        return 0.0 if is_measured else USUAL_SAFETY


def _word(what: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise UsageError(
            f"{what} {value!r} is unknown; known are {', '.join(known)}"
            f"{did_you_mean(str(value), known)}"
        )
