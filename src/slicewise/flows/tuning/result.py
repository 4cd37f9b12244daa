"""What `tune` gives back: the artefact, before and after, each workload, and where time went."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slicewise.core.cost import Estimate
from slicewise.core.display import as_html
from slicewise.core.document import ModelInfo
from slicewise.core.notes import Note
from slicewise.core.tuning import Matrix, Phases, Trial, TrialOutcome, Tuned

# `source` of latencies before and after that were added up, operator by operator.
SUMMED = "sum over the workloads"


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The state of a run after `trials` trials, `at_s` seconds after it began.

    `total_ms` is the sum over the workloads of count x best latency so far; workloads without a
    trial yet count with their predicted latency. It rises where a first trial is slower than the
    prediction, and where finalists, measured alone, are slower than they looked (`is_alone`).
    """

    at_s: float
    trials: int
    total_ms: float
    is_alone: bool = False


@dataclass(frozen=True, slots=True)
class Outlook:
    """What `seconds` more of the same tuning would bring: `total_ms` by extrapolation, with an
    interval, and how many trials that would be. An estimate, and said to be one."""

    seconds: float
    trials: int
    total_ms: Estimate


@dataclass(frozen=True, slots=True)
class TunedWorkload:
    """What came of one workload. `tuned` is None where nothing ran; `failures` by outcome.

    `gain` is default / tuned latency, None where the engine has no default for it.
    """

    tuned: Tuned | None
    name: str
    key: str
    op_types: tuple[str, ...]
    count: int
    weight_ms: float
    trials: int
    failures: Mapping[TrialOutcome, int] = field(default_factory=dict)

    @property
    def gain(self) -> float | None:
        """Return how many times faster than the engine's default it is."""
        if self.tuned is None or self.tuned.default_ms is None:
            return None
        return self.tuned.default_ms / self.tuned.latency_ms.value


@dataclass(frozen=True, slots=True)
class SharePoint:
    """One share of a sweep: predicted latency, and the measured one where it was confirmed."""

    percent: float
    predicted_ms: Estimate
    measured_ms: Estimate | None = None


@dataclass(frozen=True, slots=True)
class ShareChoice:
    """The sweep behind `--share auto`: the smallest share within `tolerance` of the whole
    device's latency is the knee, `chosen_percent`."""

    points: tuple[SharePoint, ...]
    chosen_percent: float
    tolerance: float


@dataclass(frozen=True, slots=True)
class TuneResult:
    """A model tuned for a share of a device.

    `before_ms` and `after_ms` were measured alternately, in processes bound to the share; None
    where the engine's artefact is not run as a whole (then the curve tells). `outputs_equal` is
    None where they could not be compared, `difference` the greatest one relative to the largest
    output. `share` is '50%' or a MIG profile, None for the whole device.

    >>> import slicewise
    >>> rehearsed = slicewise.TuneOptions(
    ...     engine="simulated", trials=400, executor="inline", artifact=folder, is_fresh=True
    ... )
    >>> made = slicewise.tune(model, device="cpu", options=rehearsed)
    >>> made.gain > 1, made.workloads[0].tuned.trials > 0, made.share
    (True, True, None)
    """

    model: ModelInfo
    engine: str
    engine_version: str
    device: str
    share: str | None
    mechanism: str | None
    threads: int
    batch: int
    precision: str
    artifact: Path | None
    how_to_run: str
    before_ms: Estimate | None
    after_ms: Estimate | None
    before_options: Mapping[str, str]
    after_options: Mapping[str, str]
    outputs_equal: bool | None
    difference: float | None
    workloads: tuple[TunedWorkload, ...]
    trials: tuple[Trial, ...]
    phases: Phases
    curve: tuple[CurvePoint, ...]
    outlook: Outlook | None = None
    choice: ShareChoice | None = None
    journal: Path | None = None
    seed: int = 0
    notes: tuple[Note, ...] = ()

    @property
    def gain(self) -> float | None:
        """Return how many times faster the artefact is than before; None where not compared."""
        if self.before_ms is None or self.after_ms is None:
            return None
        return self.before_ms.value / self.after_ms.value

    def _repr_html_(self) -> str:
        """Return the card that notebooks show."""
        return as_html("tuning", self)


@dataclass(frozen=True, slots=True)
class MatrixResult:
    """One fixed set of candidates measured at several shares, so that no search noise is in it.

    The configuration tuned at a share is chosen on one half of the samples and judged on the
    other, so that luck does not make the diagonal look best.

    >>> import slicewise
    >>> rehearsed = slicewise.TuneOptions(engine="simulated", candidates=4, executor="inline")
    >>> made = slicewise.tune_matrix(model, shares=["50", "100"], options=rehearsed, rounds=1)
    >>> made.shares, len(made.total.cells)
    (('50%', '100%'), 4)
    """

    model: ModelInfo
    engine: str
    engine_version: str
    device: str
    mechanism: str
    batch: int
    shares: tuple[str, ...]
    candidates: int
    total: Matrix
    workloads: tuple[Matrix, ...]
    phases: Phases
    notes: tuple[Note, ...] = ()

    def _repr_html_(self) -> str:
        """Return the card that notebooks show."""
        return as_html("tuning matrix", self)
