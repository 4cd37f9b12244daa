"""The extra predictions that a page shows: each model of it at further batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from slicewise.core.cost import Prediction
from slicewise.core.device import Device
from slicewise.core.document import PredictionSet
from slicewise.core.errors import SlicewiseError
from slicewise.flows.load import load
from slicewise.flows.predict import PredictOptions, predict_many

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Predictions of one model over the batch, nodes left out, and which batches failed why."""

    model: str
    predictions: tuple[Prediction, ...]
    failed: tuple[tuple[int, str], ...] = ()


def sweep_models(
    models: Sequence[str],
    result: PredictionSet,
    *,
    devices: Sequence[Device],
    options: PredictOptions,
    progress: Callable[[str], None] | None = None,
) -> tuple[Sweep, ...]:
    """Return a sweep over `BATCHES` for each of `models`, which `result` was made of.

    Batches that `result` holds are not predicted again; one that cannot be predicted (the batch is
    baked in, `--input` fixes it) is kept with its reason.
    """
    each = len(result.predictions) // len(models)
    return tuple(
        _sweep(model, result.predictions[i * each : (i + 1) * each], devices, options, progress)
        for i, model in enumerate(models)
    )


def _sweep(
    model: str,
    known: Sequence[Prediction],
    devices: Sequence[Device],
    options: PredictOptions,
    progress: Callable[[str], None] | None,
) -> Sweep:
    found = [replace(made, nodes=()) for made in known]
    failed: list[tuple[int, str]] = []
    graph = load(
        model,
        dims=options.dims,
        inputs=options.inputs,
        batch_axes=options.batch_axes,
        optional_dims=frozenset(options.dims),
    )
    # The graph is bound already; nobody asked for these, so that `strict` does not refuse them.
    bare = PredictOptions(
        precision=options.precision,
        runtime=options.runtime,
        card=options.card,
        layout=options.layout,
        predictor=options.predictor,
    )
    for batch in BATCHES:
        if any(made.batch == batch for made in known):
            continue
        try:
            more = predict_many(
                [graph], devices=devices, batches=[batch], options=bare, progress=progress
            )
        except SlicewiseError as err:
            failed.append((batch, str(err)))
            continue
        found.extend(replace(made, nodes=(), model=known[0].model) for made in more.predictions)
    return Sweep(known[0].model, tuple(found), tuple(failed))
