"""Where `fit` has its predictions from: a model that is predicted, or measured latencies.

Both answer the same question: what does a part of a card do at a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, SupportsIndex

from slicewise.core.cost import Prediction
from slicewise.core.device import Device
from slicewise.core.document import ModelInfo
from slicewise.core.errors import DeviceError, UsageError
from slicewise.core.graph import Graph
from slicewise.core.notes import Note
from slicewise.flows.load import ModelLike, load, positive
from slicewise.flows.predict import PredictOptions, describe, predict_where_possible

if TYPE_CHECKING:
    from slicewise.predict.measured import MeasuredCurve


class Source(Protocol):
    """What `fit` asks: predictions of parts of a card at a batch, and what was measured there."""

    @property
    def model(self) -> ModelInfo:
        """Who the model is."""

    @property
    def batch(self) -> int:
        """The batch asked, or the model's own."""

    @property
    def notes(self) -> tuple[Note, ...]:
        """What reading it had to note."""

    @property
    def is_measured(self) -> bool:
        """True if latencies were measured, at least some."""

    def predict(
        self, parts: Sequence[Device], batch: int, *, processes: int
    ) -> list[Prediction | DeviceError]:
        """Return what each part does, or the error of a device that cannot run the model."""

    def has_measured(self, part: Device, batch: int, *, processes: int) -> bool:
        """Return True if the latency of this very case was measured."""


@dataclass(frozen=True, slots=True)
class PredictedModel:
    """A model whose graph is predicted. `graph` is bound to `batch`."""

    graph: Graph
    options: PredictOptions
    batch: int
    notes: tuple[Note, ...] = ()
    is_measured: bool = False
    _graphs: dict[int, Graph] = field(default_factory=dict, compare=False, repr=False)

    @property
    def model(self) -> ModelInfo:
        """Name, source and size of the model."""
        return describe(self.graph)

    def predict(
        self, parts: Sequence[Device], batch: int, *, processes: int
    ) -> list[Prediction | DeviceError]:
        """Return the predictions of all parts, from one prediction of each whole card."""
        from slicewise.predict.sharing import crowd

        if batch not in self._graphs:
            self._graphs[batch] = load(self.graph, batch=batch)
        made = predict_where_possible(self._graphs[batch], parts, self.options)
        return [each if isinstance(each, DeviceError) else crowd(each, processes) for each in made]

    def has_measured(self, part: Device, batch: int, *, processes: int) -> bool:
        """Return False: nothing was measured."""
        return False


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """Latencies that were measured on one card, whatever the model is."""

    path: str
    curve: "MeasuredCurve"
    batch: int
    notes: tuple[Note, ...] = ()
    is_measured: bool = True

    @property
    def model(self) -> ModelInfo:
        """The file's name; digest and sizes are not known."""
        return ModelInfo(self.curve.model, self.path, "", 0, 0)

    def predict(
        self, parts: Sequence[Device], batch: int, *, processes: int
    ) -> list[Prediction | DeviceError]:
        """Return what the measured rows tell about each part of their card."""
        return [
            replace(self.curve.on(_plain(part), batch, processes), slice=part.slice_name)
            for part in parts
        ]

    def has_measured(self, part: Device, batch: int, *, processes: int) -> bool:
        """Return True if a row is of this part, batch and number of processes."""
        wanted = (_plain(part).slice_name, batch, processes)
        return any((row.slice, row.batch, row.processes) == wanted for row in self.curve.rows)


def _plain(part: Device) -> Device:
    """Return the slice without further engines that has the same figures, or the part itself."""
    own = part.profile
    if own is None or not own.attributes:
        return part
    figures = (own.compute_units, own.memory_slices, own.memory_bytes)
    for each in part.whole.profiles:
        same = (each.compute_units, each.memory_slices, each.memory_bytes) == figures
        if same and not each.attributes:
            return part.whole.slice(each.name)
    return part


def model_source(
    model: ModelLike, *, batch: SupportsIndex | None, options: PredictOptions
) -> PredictedModel:
    """Return the source of a model that is predicted; `load`'s errors."""
    graph = load(
        model,
        batch=batch,
        dims=options.dims,
        inputs=options.inputs,
        batch_axes=options.batch_axes,
    )
    return PredictedModel(graph, options, graph.batch_size)


def measured_source(
    path: Path, *, device: Device, batch: SupportsIndex | None, options: PredictOptions,
    item_bytes: float | None = None,
) -> MeasuredModel:  # fmt: skip
    """Return the source of a measured file on `device`; a precision says what was measured.

    `item_bytes` is what one item moves to and from the card within the measured time.

    `UsageError` for options that are a model's, and where the batch is not named and the file has
    several.
    """
    from slicewise.flows.fitting.odd_rows import odd_notes
    from slicewise.flows.measured_file import read_measured
    from slicewise.predict.measured import measured_curve

    usual = PredictOptions()
    for name in ("runtime", "layout", "predictor", "card", "dims", "inputs",
                 "batch_axes"):  # fmt: skip
        given = getattr(options, name)
        if given and given != getattr(usual, name):
            raise UsageError(
                f"{name} {given!r} says how a model is predicted, and {str(path)!r} holds what was"
                " measured; leave it out"
            )
    read = read_measured(path)
    batches = sorted({row.batch for row in read.rows})
    if batch is None and len(batches) > 1:
        listed = ", ".join(map(str, batches[:8]))
        raise UsageError(
            f"{str(path)!r} was measured at batches {listed}; say which, as in --batch"
            f" {batches[-1]}"
        )
    size = batches[0] if batch is None else positive("batch", batch)
    rows = read.on(device)
    odd = odd_notes(read.path, rows, read.lines, device)
    curve = measured_curve(
        rows,
        device,
        model=path.stem,
        precision="unknown" if options.precision is None else options.precision,
        transfer_bytes_per_item=item_bytes,
    )
    return MeasuredModel(read.path, curve, size, (*read.notes, *odd))
