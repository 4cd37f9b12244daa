"""What an exploration of the design space gives back: points, what became of them, the front.

Types only; the sweep is the business of `flows/explore.py`.
"""

from dataclasses import dataclass
from enum import StrEnum

from slicewise.core.cost import Prediction
from slicewise.core.display import as_html
from slicewise.core.document import ModelInfo
from slicewise.core.notes import Note


class Objective(StrEnum):
    """What a Pareto front trades; energy is that of one item of the batch."""

    LATENCY = "latency"  # ms for the batch, the less the better
    THROUGHPUT = "throughput"  # items per second, the more the better
    ENERGY = "energy"  # J per item, the less the better
    MEMORY = "memory"  # peak bytes, the less the better


class Standing(StrEnum):
    """Where a point stands with regard to the front."""

    FRONT = "front"  # nothing is at least as good in all objectives and better in one
    DOMINATED = "dominated"
    OVER_LIMIT = "over-limit"  # over the latency or memory limit that was asked
    UNFIT = "unfit"  # needs more memory than the device has
    IMPOSSIBLE = "impossible"  # cannot be predicted; `failure` says why


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a point cannot be: the class of the error, its exit code, and its one line."""

    error: str
    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True)
class ExploredPoint:
    """One combination and its prediction, or the reason why there is none.

    `batch`, `precision` and `runtime` are those predicted; of an impossible point those asked,
    None where the model's own was asked for. `runtime_version` and `layout` are those asked. The
    prediction has no `nodes`.

    >>> import slicewise
    >>> found = slicewise.explore([model], devices=["t4"], batches=[1, 8])
    >>> [(point.batch, point.on_front) for point in found.points]
    [(1, True), (8, True)]
    """

    model: str
    source: str
    device: str
    slice: str | None
    batch: int | None
    precision: str | None
    runtime: str | None
    standing: Standing
    prediction: Prediction | None = None
    failure: Failure | None = None
    layout: str = "nchw"
    runtime_version: tuple[int, ...] | None = None

    @property
    def on_front(self) -> bool:
        """True if no other point is better in one objective and no worse in the rest."""
        return self.standing is Standing.FRONT

    @property
    def energy_per_item_j(self) -> float | None:
        """Energy of one item of the batch in J, None for an impossible point."""
        made = self.prediction
        return None if made is None else made.energy_j.value / made.batch


@dataclass(frozen=True, slots=True)
class Exploration:
    """All points of a sweep in the order asked: model, batch, precision, runtime, layout, device.

    `models` are those that could be read. `notes` concern the sweep as a whole.

    >>> import slicewise
    >>> found = slicewise.explore([model], devices=["t4", "l4"])
    >>> [point.device for point in found.points], found.front[0].standing.value
    (['t4', 'l4'], 'front')
    """

    models: tuple[ModelInfo, ...]
    points: tuple[ExploredPoint, ...]
    objectives: tuple[Objective, ...]
    latency_limit_ms: float | None = None
    memory_limit_bytes: int | None = None
    per_model: bool = False
    notes: tuple[Note, ...] = ()

    @property
    def front(self) -> tuple[ExploredPoint, ...]:
        """The points that no other dominates, in the order of `points`."""
        return tuple(point for point in self.points if point.on_front)

    def _repr_html_(self) -> str:
        """Return the card that notebooks show."""
        return as_html("exploration", self)


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of a group: its prediction without notes, and which notes of the group it has."""

    prediction: Prediction | None
    failure: Failure | None
    note_indices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """What became of one model at one batch: a cell for each precision, runtime, layout, device.

    This is what workers send and journals keep, so each note is held once. `dims` are the free
    dimensions of the model that the user's figures bound.
    """

    index: int
    model: ModelInfo | None
    cells: tuple[Cell, ...]
    notes: tuple[Note, ...] = ()
    dims: tuple[str, ...] = ()
