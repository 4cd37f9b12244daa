"""`predict`: models x devices x batches -> predictions, nothing run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from slicewise.core.cost import Prediction
from slicewise.core.device import Device
from slicewise.core.document import ModelInfo, PredictionSet
from slicewise.core.errors import PredictionError, UsageError
from slicewise.core.graph import Graph
from slicewise.core.notes import Note, unique_notes
from slicewise.core.precision import Precision
from slicewise.flows.load import ModelLike, load

DeviceLike = str | Device
DEFAULT_RUNTIME = "onnxruntime"


@dataclass(frozen=True, slots=True)
class PredictOptions:
    """What all predictions of one call share. `precision` None is the model's own."""

    precision: str | None = None
    runtime: str = DEFAULT_RUNTIME
    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, Sequence[int]] = field(default_factory=dict)
    strict: bool = False


def predict(
    model: ModelLike,
    *,
    device: DeviceLike | None = None,
    batch: int | None = None,
    precision: str | None = None,
    runtime: str = DEFAULT_RUNTIME,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    strict: bool = False,
) -> Prediction:
    """Return the predicted latency, energy and memory of one model on one device or slice.

    `device` None is this machine. Latency in ms for the whole batch, energy in J for the whole
    batch, memory in bytes, each with a 90 % interval. `strict` raises `PredictionError` if
    anything had to be assumed.
    """
    options = PredictOptions(precision, runtime, dims or {}, inputs or {}, strict)
    result = predict_many([model], devices=[device], batches=[batch], options=options)
    return result.predictions[0]


def predict_many(
    models: Sequence[ModelLike],
    *,
    devices: Sequence[DeviceLike | None],
    batches: Sequence[int | None],
    options: PredictOptions | None = None,
    progress: Callable[[str], None] | None = None,
) -> PredictionSet:
    """Return one prediction for each model x batch x device, in that order.

    Each graph is read, cast and counted once per batch, whatever the number of devices.
    `progress` is called with a few words before each graph.
    """
    asked = options or PredictOptions()
    if not models or not devices or not batches:
        raise UsageError("predict needs at least one model, one device and one batch")
    from slicewise.predict.runtimes import runtime_named

    runtime_named(asked.runtime)
    targets = [_device(device) for device in devices]
    infos: list[ModelInfo] = []
    predictions: list[Prediction] = []
    for model in models:
        graph: Graph | None = None
        for batch in batches:
            if progress is not None:
                progress(
                    f"{_label(model)}, batch {batch if batch is not None else 'of the model'}"
                )
            if graph is None:
                graph = load(model, batch=batch, dims=asked.dims, inputs=asked.inputs)
                infos.append(describe(graph))
            else:
                graph = load(graph, batch=batch)
            predictions.extend(_predict_graph(graph, targets, asked))
    if asked.strict:
        _refuse_notes(predictions)
    return PredictionSet(tuple(infos), tuple(predictions))


def _predict_graph(
    graph: Graph, targets: Sequence[Device], options: PredictOptions
) -> list[Prediction]:
    """Predict one bound graph on every target; a part goes through its whole device once."""
    from slicewise.graph.precision import cast, own_precision
    from slicewise.graph.work import count_work
    from slicewise.predict._base import load_predictor
    from slicewise.predict.slice import scale

    predictor = load_predictor("roofline")
    own = own_precision(graph)
    precision = own if options.precision is None else Precision.named(options.precision)
    ready = graph if precision == own else cast(graph, precision)
    work = count_work(ready, compute=None if precision == own else precision.compute)
    on_cards: list[tuple[Device, Prediction]] = []
    results = []
    for target in targets:
        card = target.whole
        on_card = next((made for known, made in on_cards if known == card), None)
        if on_card is None:
            on_card = predictor(ready, work, card, precision=precision, runtime=options.runtime)
            on_cards.append((card, on_card))
        results.append(on_card if target.parent is None else scale(on_card, target))
    return results


def describe(graph: Graph) -> ModelInfo:
    """Return name, source, digest and parameter counts of a graph."""
    source = graph.name if graph.source is None else graph.source.location
    return ModelInfo(graph.name, source, graph.digest, graph.parameters, graph.buffers)


def _label(model: ModelLike) -> str:
    return model.name if isinstance(model, Graph) else str(model)


def _device(device: DeviceLike | None) -> Device:
    from slicewise.hardware.catalogue import find_device
    from slicewise.hardware.probe import probe_cpu, probe_gpus

    if isinstance(device, Device):
        return device
    if device is None:
        return next(iter(probe_gpus()), None) or probe_cpu()
    return find_device(device)


def _refuse_notes(predictions: Sequence[Prediction]) -> None:
    """Raise one error that lists every note of every prediction once."""
    notes: tuple[Note, ...] = unique_notes(note for made in predictions for note in made.notes)
    if notes:
        listed = "; ".join(str(note) for note in notes)
        raise PredictionError(
            f"strict: {len(notes)} assumptions were made: {listed}; leave strict out to accept"
        )
