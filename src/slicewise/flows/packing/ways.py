"""Ways to serve a workload: batch x processes on each part of each kind of card, predicted.

What of it meets a target is decided elsewhere. Each model is read once and predicted once at a
batch, on all parts together, however many workloads and processes ask for it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, path
from pathlib import Path
from typing import TYPE_CHECKING

from slicewise.core.cost import Prediction
from slicewise.core.device import Device
from slicewise.core.errors import DeviceError, ModelError, SlicewiseError
from slicewise.core.graph import Graph
from slicewise.core.notes import Note
from slicewise.core.packing import Serving
from slicewise.flows.load import load
from slicewise.flows.packing.fleet import Part
from slicewise.flows.packing.profile_file import Profile, read_profile
from slicewise.flows.packing.workload import WorkloadSpec
from slicewise.flows.predict import PredictOptions, cards_of, predict_where_possible

if TYPE_CHECKING:
    from slicewise.predict.correction import Card

MEASURED, SCALED, PREDICTED = "measured", "scaled from measurements", "predicted"


@dataclass(frozen=True, slots=True)
class Way:
    """One way to serve a workload; `prediction` is None where it was measured as it stands."""

    part: Part
    serving: Serving
    prediction: Prediction | None = None
    notes: tuple[Note, ...] = ()

    @property
    def is_measured(self) -> bool:
        """True if nothing about it was predicted."""
        return self.serving.source == MEASURED


@dataclass(slots=True)
class Reader:
    """Reads models and profiles, and predicts, for one run, each once.

    `base` is what all predictions share; `progress` is told a few words before each prediction.
    """

    parts: Sequence[Part]
    base: PredictOptions
    progress: Callable[[str], None] | None = None
    _graphs: dict[object, Graph] = field(default_factory=dict)
    _made: dict[object, list[Prediction | DeviceError]] = field(default_factory=dict)
    _ways: dict[object, list[Way]] = field(default_factory=dict)
    _profiles: dict[str, Profile] = field(default_factory=dict)
    _cards: "Mapping[str, Card] | None" = None

    def at(self, spec: WorkloadSpec, batch: int) -> list[Prediction | DeviceError]:
        """Return the prediction on each part; a part that cannot run the model has its error.

        `ModelError` where the model cannot be read, or not at this batch.
        """
        key = (_key(spec), batch)
        if key not in self._made:
            if self.progress is not None:
                self.progress(f"{spec.name}, batch {batch}")
            self._made[key] = self._predict(spec, batch)
        return self._made[key]

    def ways(self, spec: WorkloadSpec, batch: int, processes: int) -> list[Way]:
        """Return the way to serve it on each part that can run it."""
        from slicewise.predict.sharing import crowd

        key = (_key(spec), batch, processes)
        if key not in self._ways:
            self._ways[key] = [
                Way(part, _serving(crowd(made, processes), made, part, processes), made)
                for part, made in zip(self.parts, self.at(spec, batch), strict=True)
                if not isinstance(made, DeviceError)
            ]
        return self._ways[key]

    def profile(self, spec: WorkloadSpec) -> Profile:
        """Return the rows of a workload that was measured."""
        location = spec.source
        if location not in self._profiles:
            self._profiles[location] = read_profile(Path(location))
        return self._profiles[location]

    def graph(self, spec: WorkloadSpec, batch: int) -> Graph:
        """Return the model bound to a batch."""
        key = _key(spec)
        if key in self._graphs:
            return load(self._graphs[key], batch=batch)
        assert spec.model is not None
        graph = load(
            spec.model,
            batch=batch,
            dims=spec.dims,
            inputs=spec.inputs,
            batch_axes=spec.batch_axes,
        )
        self._graphs[key] = graph
        return graph

    def _predict(self, spec: WorkloadSpec, batch: int) -> list[Prediction | DeviceError]:
        graph = self.graph(spec, batch)
        if self._cards is None:
            whole = [part.card for part in self.parts if part.profile is None]
            self._cards = cards_of(whole, self.base.card)
        options = replace(
            self.base,
            precision=spec.precision or self.base.precision,
            runtime=spec.runtime or self.base.runtime,
            layout=spec.layout,
        )
        devices = [part.device for part in self.parts]
        made = predict_where_possible(graph, devices, options, cards=self._cards)
        # without nodes: what follows needs none of them, and thousands of predictions are kept
        return [
            each if isinstance(each, DeviceError) else replace(each, nodes=()) for each in made
        ]


def _key(spec: WorkloadSpec) -> object:
    model = spec.model
    source = path.realpath(model) if isinstance(model, str | PathLike) else id(model)
    return (
        source, spec.precision, spec.runtime, spec.layout, tuple(sorted(spec.dims.items())),
        tuple((name, tuple(shape)) for name, shape in sorted(spec.inputs.items())),
        tuple(sorted(spec.batch_axes.items())),
    )  # fmt: skip


def predicted_ways(
    spec: WorkloadSpec, reader: Reader, *, batches: Sequence[int], processes: Sequence[int]
) -> tuple[list[Way], list[Note]]:
    """Return every way to serve a model that fits into memory or does not, and what to note.

    Batches stop where one takes longer than the target on every part: a larger one takes longer.
    A usual batch that the model cannot have is left out with a Note, one asked for raises.
    """
    ways: list[Way] = []
    left_out: list[int] = []
    reason: SlicewiseError | None = None
    failed: dict[str, DeviceError] = {}
    for batch in batches:
        try:
            made = reader.at(spec, batch)
        except ModelError as err:
            if spec.batches or batch == batches[0]:
                raise ModelError(f"{spec.where}workload {spec.name!r}: {err}") from err
            left_out.append(batch)
            reason = err
            continue
        quickest_ms = float("inf")
        for part, prediction in zip(reader.parts, made, strict=True):
            if isinstance(prediction, DeviceError):
                failed.setdefault(part.card.name, prediction)
                continue
            quickest_ms = min(quickest_ms, prediction.latency_ms.value)
        for count in processes:
            ways += reader.ways(spec, batch, count)
        if quickest_ms > spec.latency_ms:
            break
    if not ways and failed:
        raise next(iter(failed.values()))
    notes = [
        Note("card-left-out", f"workload {spec.name!r} cannot run on {name}: {err}")
        for name, err in failed.items()
    ]
    if left_out:
        text = (
            f"workload {spec.name!r} is not tried with batch {', '.join(map(str, left_out))}:"
            f" {reason}"
        )
        notes.append(Note("batch-left-out", text))
    return ways, notes


def _serving(made: Prediction, alone: Prediction, part: Part, processes: int) -> Serving:
    return Serving(
        batch=made.batch,
        processes=processes,
        service_ms=made.latency_ms,
        throughput_per_s=made.throughput_per_s,
        memory_bytes=float(made.memory_bytes.value),
        energy_j=dynamic_item_j(alone, part.device),
        source=PREDICTED,
    )


def dynamic_item_j(made: Prediction, device: Device) -> float:
    """Return what one item costs beyond the idle power of the part that it runs on, in J."""
    idle_j = device.idle_power_w * made.latency_ms.value * 1e-3
    return max(0.0, made.energy_j.value - idle_j) / made.batch


def fits(way: Way, safety: float) -> bool:
    """True if the memory that it takes, with the safety to spare, is that of the part or less."""
    return way.serving.memory_bytes * (1 + safety) <= way.part.device.memory_bytes
