"""`predict`: models x devices x batches -> predictions, nothing run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, SupportsIndex

from slicewise.core.conditions import (
    Conditions,
    RuntimeChoice,
    layout_named,
    runtime_choice,
)
from slicewise.core.cost import GraphWork, Prediction
from slicewise.core.device import Device
from slicewise.core.document import ModelInfo, PredictionSet
from slicewise.core.errors import DeviceError, PredictionError, UsageError
from slicewise.core.graph import Graph
from slicewise.core.notes import Note, unique_notes
from slicewise.core.precision import DType, Precision
from slicewise.flows.devices import device as find_device
from slicewise.flows.load import ModelLike, load

if TYPE_CHECKING:
    from slicewise.predict.correction import Card

DeviceLike = str | Device
# Of a graph that has no source to ask.
DEFAULT_RUNTIME = "onnxruntime"
DEFAULT_PREDICTOR = "learned"


@dataclass(frozen=True, slots=True)
class PredictOptions:
    """What all predictions of one call share. `precision` None is the model's own, `runtime` None
    the one that models of its format run on: onnxruntime for ONNX, torch-eager for PyTorch; a
    version may stand behind it, as in 'torch-eager@2.4'. `layout` is the memory format of images.
    `card` is the path of a device card; None takes what `calibrate` kept for a device, 'none' no
    card at all. `predictor` 'learned' uses the trained networks wherever they cover the case,
    'roofline' nowhere.

    >>> import slicewise
    >>> options = PredictOptions(precision="fp16", runtime="tensorrt@8.4", layout="nhwc")
    >>> found = slicewise.predict_many([model], devices=["l4"], batches=[8], options=options)
    >>> made = found.predictions[0]
    >>> made.runtime, made.runtime_version, made.layout
    ('tensorrt', (8, 4), 'nhwc')
    """

    precision: str | None = None
    runtime: str | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, Sequence[int]] = field(default_factory=dict)
    batch_axes: Mapping[str, int | None] = field(default_factory=dict)
    strict: bool = False
    card: str | None = None
    layout: str = "nchw"
    predictor: str = DEFAULT_PREDICTOR


def predict(
    model: ModelLike,
    *,
    device: DeviceLike | None = None,
    batch: SupportsIndex | None = None,
    precision: str | None = None,
    runtime: str | None = None,
    layout: str = "nchw",
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    batch_axes: Mapping[str, int | None] | None = None,
    strict: bool = False,
    example_inputs: object = None,
) -> Prediction:
    """Return the predicted latency, energy and memory of one model on one device or slice.

    `model` is what `load` takes; a `torch.nn.Module` comes with `example_inputs`. `device` None
    is this machine. `runtime` may have a version, as in 'torch-eager@2.4'; `layout` is 'nchw' or
    'nhwc', the memory format of images. Latency in ms for the whole batch, energy in J for the
    whole batch, memory in bytes, each with a 90 % interval. `strict` raises `PredictionError` if
    anything had to be assumed.

    >>> made = predict(model, device="a100-sxm4-80gb/2g.20gb", batch=8, precision="fp16")
    >>> made.slice, made.macs // made.batch, made.latency_ms.low < made.latency_ms.high
    ('2g.20gb', 4089184256, True)
    """
    options = PredictOptions(
        precision, runtime, dims or {}, inputs or {}, batch_axes or {}, strict, layout=layout
    )
    if example_inputs is not None:
        model = load(
            model,
            example_inputs=example_inputs,
            batch=batch,
            dims=dims,
            inputs=inputs,
            batch_axes=batch_axes,
        )
        options = replace(options, dims={}, inputs={}, batch_axes={})
    result = predict_many([model], devices=[device], batches=[batch], options=options)
    return result.predictions[0]


def predict_many(
    models: Sequence[ModelLike],
    *,
    devices: Sequence[DeviceLike | None],
    batches: Sequence[SupportsIndex | None],
    options: PredictOptions | None = None,
    progress: Callable[[str], None] | None = None,
) -> PredictionSet:
    """Return one prediction for each model x batch x device, in that order.

    Each graph is read, cast and counted once per batch, whatever the number of devices.
    `progress` is called with a few words before each graph.

    >>> found = predict_many([model], devices=["t4", "l4"], batches=[1, 8])
    >>> [(made.batch, made.device) for made in found.predictions]
    [(1, 't4'), (1, 'l4'), (8, 't4'), (8, 'l4')]
    """
    asked = options or PredictOptions()
    _check_types(models, devices, batches, asked)
    if not models or not devices or not batches:
        raise UsageError("predict needs at least one model, one device and one batch")
    from slicewise.predict._base import load_predictor
    from slicewise.predict.runtimes import runtime_named

    if asked.runtime is not None:
        runtime_named(runtime_choice(asked.runtime).name)
    if asked.precision is not None:
        Precision.named(asked.precision)
    layout_named(asked.layout)
    load_predictor(asked.predictor)
    targets = [target_named(device) for device in devices]
    # With several models a dimension need not occur in each, but in one of them it must.
    optional_dims = frozenset(asked.dims) if len(models) > 1 else frozenset()
    unused = set(asked.dims)
    infos: list[ModelInfo] = []
    predictions: list[Prediction] = []
    for model in models:
        graph, made = _predict_model(model, batches, targets, asked, optional_dims, progress)
        unused -= set(graph.binding.dims)
        info = told_apart(describe(graph), infos)
        infos.append(info)
        predictions.extend(replace(each, model=info.name) for each in made)
    if optional_dims and unused:
        raise UsageError(
            f"none of the {len(models)} models has a free dimension {', '.join(sorted(unused))};"
            " leave it out"
        )
    if asked.strict:
        _refuse_notes(predictions)
    return PredictionSet(tuple(infos), tuple(predictions))


def _check_types(
    models: object, devices: object, batches: object, options: PredictOptions
) -> None:
    """Raise `UsageError` for what a type checker would refuse, before it fails somewhere deep."""
    for name, value in (("models", models), ("devices", devices), ("batches", batches)):
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise UsageError(f"{name} {value!r} is a {type(value).__name__}; give a list of them")
    for name, value in (("runtime", options.runtime), ("precision", options.precision)):
        if not isinstance(value, str | None):
            raise UsageError(f"{name} {value!r} is a {type(value).__name__}; give its name")


def _predict_model(
    model: ModelLike,
    batches: Sequence[SupportsIndex | None],
    targets: Sequence[Device],
    options: PredictOptions,
    optional_dims: frozenset[str],
    progress: Callable[[str], None] | None,
) -> tuple[Graph, list[Prediction]]:
    """Predict one model at every batch on every target; the file is opened once."""
    label = _label(model)
    first: Graph | None = None
    made: list[Prediction] = []
    for batch in batches:
        if progress is not None:
            progress(label if batch is None else f"{label}, batch {batch}")
        if first is None:
            graph = first = load(
                model,
                batch=batch,
                dims=options.dims,
                inputs=options.inputs,
                batch_axes=options.batch_axes,
                optional_dims=optional_dims,
            )
        else:
            graph = load(first, batch=batch)
        made.extend(predict_graph(graph, targets, options))
    assert first is not None
    return first, made


def _label(model: ModelLike) -> str:
    """Return what progress calls a model."""
    if isinstance(model, Graph):
        return model.name
    return Path(model).name if isinstance(model, str | PathLike) else type(model).__name__


def predict_graph(
    graph: Graph, targets: Sequence[Device], options: PredictOptions
) -> list[Prediction]:
    """Predict one bound graph on every target; a part goes through its whole device once.

    `DeviceError` for the first target that cannot run it.
    """
    made: list[Prediction] = []
    for each in predict_where_possible(graph, targets, options):
        if isinstance(each, DeviceError):
            raise each
        made.append(each)
    return made


def predict_where_possible(
    graph: Graph,
    targets: Sequence[Device],
    options: PredictOptions,
    *,
    cards: "Mapping[str, Card] | None" = None,
) -> list[Prediction | DeviceError]:
    """Predict one bound graph on every target; a target that cannot run it gets its error.

    `cards` are those of whole devices by name; None reads what the options ask for.
    """
    from slicewise.graph.precision import own_precision
    from slicewise.predict._base import load_predictor
    from slicewise.predict.correction import as_whole
    from slicewise.predict.slice import scale

    predictor = load_predictor(options.predictor)
    choice = _runtime_of(graph, options)
    runtime, conditions = choice.name, Conditions(options.layout, choice.version)
    own = own_precision(graph)
    asked = None if options.precision is None else Precision.named(options.precision)
    known = cards
    if known is None:
        known = cards_of([target.whole for target in targets], options.card)
    chosen = [
        (asked, _quantised(own, asked)) if asked is not None else _able(own, target.whole)
        for target in targets
    ]
    # A part that was itself measured is predicted as a device of its own, without the slice rule.
    roads: list[Device] = []
    corrections: dict[str, Card] = {}
    for target, (precision, _) in zip(targets, chosen, strict=True):
        card = known.get(target.whole.name)
        part = target.slice_name
        if part is not None and card is not None and card.find(runtime, precision.name, part=part):
            roads.append(as_whole(target))
            corrections[target.name] = card.of_part(part)
        else:
            roads.append(target.whole)
            if card is not None:
                corrections[target.whole.name] = card
    made: dict[tuple[Device, str], Prediction | DeviceError] = {}
    for precision in dict.fromkeys(precision for precision, _ in chosen):
        ready, work = ready_graph(graph, precision, runtime=runtime)
        its = [
            road for road, (its_own, _) in zip(roads, chosen, strict=True) if its_own == precision
        ]
        its = list(dict.fromkeys(its))
        run = partial(
            predictor,
            ready,
            work,
            precision=precision,
            runtime=runtime,
            cards=corrections,
            conditions=conditions,
        )
        for road, each in zip(its, _on_cards(run, its), strict=True):
            made[road, precision.name] = each
    results: list[Prediction | DeviceError] = []
    for target, road, (precision, notes) in zip(targets, roads, chosen, strict=True):
        found = made[road, precision.name]
        if isinstance(found, DeviceError):
            results.append(found)
            continue
        found = _noted(found, notes)
        if road is target.whole:
            results.append(found if target.parent is None else scale(found, target))
        else:
            results.append(replace(found, device=target.whole.name, slice=target.slice_name))
    return results


def _runtime_of(graph: Graph, options: PredictOptions) -> RuntimeChoice:
    """Return the runtime asked, or the newest of the one that models of its format run on."""
    if options.runtime is not None:
        return runtime_choice(options.runtime)
    return RuntimeChoice(DEFAULT_RUNTIME if graph.source is None else graph.source.runtime)


def ready_graph(graph: Graph, precision: Precision, *, runtime: str) -> tuple[Graph, GraphWork]:
    """Return a graph in `precision` and the work of the kernels that `runtime` launches for it."""
    from slicewise.graph.launch import launch
    from slicewise.graph.precision import cast, own_precision
    from slicewise.graph.work import count_work

    is_own = precision == own_precision(graph)
    ready = graph if is_own else cast(graph, precision)
    work = count_work(ready, compute=None if is_own else precision.compute)
    return ready, launch(ready, work, runtime=runtime)


def cards_of(devices: Sequence[Device], asked: str | None) -> "dict[str, Card]":
    """Return the device card of each whole device that has one, by the device's name.

    `asked` is a path, 'none', or None for the cards that `calibrate` keeps. `StoreError` for a
    card that cannot be read, `UsageError` for one that was asked for and is of another device.
    """
    if asked is not None and asked.strip().lower() == "none":
        return {}
    from slicewise.predict.cards import find_card, load_card

    unique = {device.name: device for device in devices}
    if asked is not None:
        card = load_card(Path(asked))
        its = {
            name: card
            for name, device in unique.items()
            if (name, device.digest) == (card.device, card.device_digest)
        }
        if not its:
            raise UsageError(
                f"card {asked!r} is of another {card.device} than any of {', '.join(unique)};"
                " leave it out, or predict on the machine that it was made on"
            )
        return its
    folder = cards_folder()
    if folder is None:
        return {}
    found = {name: find_card(folder, device) for name, device in unique.items()}
    return {name: card for name, card in found.items() if card is not None}


def cards_folder() -> Path | None:
    """Return where device cards are kept, None for a user without a home."""
    from slicewise.core.errors import StoreError
    from slicewise.store.home import home

    try:
        return home() / "cards"
    except StoreError:
        return None


def _on_cards(
    run: Callable[[Sequence[Device]], Sequence[Prediction]], cards: Sequence[Device]
) -> list[Prediction | DeviceError]:
    """Predict all cards at once; where one of them cannot, each by itself."""
    try:
        return list(run(cards))
    except DeviceError as err:
        if len(cards) == 1:
            return [err]
    return [each for card in cards for each in _on_cards(run, [card])]


def _noted(made: Prediction, notes: tuple[Note, ...]) -> Prediction:
    return replace(made, notes=unique_notes((*made.notes, *notes)))


_NARROW = frozenset({DType.INT8, DType.FP8, DType.FP4})


def _quantised(own: Precision, asked: Precision) -> tuple[Note, ...]:
    """Tell that a model in floats was taken as if it had been quantised."""
    if asked.compute not in _NARROW or own.compute in _NARROW:
        return ()
    text = (
        f"the model is in {own.name}; {asked.name} is predicted as if it were quantised whole, all"
        " products in that type and no conversion between: no runtime does that by itself"
    )
    return (Note("quantisation-assumed", text),)


def _able(own: Precision, device: Device) -> tuple[Precision, tuple[Note, ...]]:
    """Return the model's own precision, or fp32 with a Note where the device has no such rate.

    A runtime would convert, too: onnxruntime runs fp16 models on a CPU in fp32.
    """
    if own.compute in device.peak_flop_per_s:
        return own, ()
    text = f"the model is in {own.name}, for which {device.name} has no rate; predicted in fp32"
    return Precision.named("fp32"), (Note("precision-substituted", text),)


def describe(graph: Graph) -> ModelInfo:
    """Return name, source, digest and parameter counts of a graph."""
    source = graph.name if graph.source is None else graph.source.location
    return ModelInfo(graph.name, source, graph.digest, graph.parameters, graph.buffers)


def told_apart(model: ModelInfo, earlier: Sequence[ModelInfo]) -> ModelInfo:
    """Return the model under its source's name if an earlier one has the same short name."""
    taken = any(known.name == model.name for known in earlier)
    return replace(model, name=model.source) if taken else model


def target_named(device: DeviceLike | None) -> Device:
    if isinstance(device, Device):
        return device
    if not isinstance(device, str | None):
        raise UsageError(
            f"device {device!r} is a {type(device).__name__}; give a name, as in 'a100-sxm4-80gb'"
        )
    return find_device(device)


def _refuse_notes(predictions: Sequence[Prediction]) -> None:
    """Raise one error that lists every note of every prediction once."""
    notes: tuple[Note, ...] = unique_notes(note for made in predictions for note in made.notes)
    if notes:
        listed = "; ".join(str(note) for note in notes)
        raise PredictionError(
            f"strict: {len(notes)} assumptions were made: {listed}; leave strict out to accept"
        )
