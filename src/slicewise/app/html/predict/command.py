"""The road from the options of `predict --html` to the bytes of the page."""

from collections.abc import Callable, Mapping, Sequence

from slicewise.app.html.predict.page import PageInput, predict_page
from slicewise.app.html.predict.sweep import sweep_models
from slicewise.app.words import as_argument
from slicewise.core.conditions import USUAL
from slicewise.core.document import PredictionSet
from slicewise.flows.devices import device
from slicewise.flows.predict import DEFAULT_PREDICTOR, PredictOptions


def encode_page(
    models: Sequence[str],
    device_names: Sequence[str],
    result: PredictionSet,
    *,
    options: PredictOptions,
    progress: Callable[[str], None] | None = None,
) -> bytes:
    """Return the page of `result`, predicted from these models, devices and options, as UTF-8.

    Predicts each model at further batches first; a name that is no text is shown with marks.
    """
    devices = [device(name) for name in device_names] or [device(None)]
    sweeps = sweep_models(models, result, devices=devices, options=options, progress=progress)
    times = len(result.predictions) // len(devices)
    given = PageInput(
        result, tuple(devices * times), sweeps, command_line(models, device_names, result, options)
    )
    return predict_page(given).encode("utf-8", "replace")


def command_line(
    models: Sequence[str],
    device_names: Sequence[str],
    result: PredictionSet,
    options: PredictOptions,
) -> tuple[str, ...]:
    """Return the words of a command line that gives the same predictions."""
    each = len(result.predictions) // len(models)
    batches = dict.fromkeys(str(made.batch) for made in result.predictions[:each])
    devices = device_names or list(dict.fromkeys(made.device for made in result.predictions))
    words = [
        "predict",
        *map(as_argument, models),
        "--device",
        ",".join(devices),
        "--batch",
        ",".join(batches),
    ]
    for option, value in (("--precision", options.precision), ("--runtime", options.runtime)):
        if value is not None:
            words += [option, value]
    if options.layout != USUAL.layout:
        words += ["--layout", options.layout]
    if options.predictor != DEFAULT_PREDICTOR:
        words += ["--predictor", options.predictor]
    if options.card is not None:
        words += ["--card", options.card]
    words += _pairs("--dim", options.dims)
    words += _pairs(
        "--input", {name: "x".join(map(str, shape)) for name, shape in options.inputs.items()}
    )
    axes = {n: "none" if axis is None else axis for n, axis in options.batch_axes.items()}
    words += _pairs("--batch-axis", axes)
    return tuple(words)


def _pairs(option: str, values: Mapping[str, object]) -> list[str]:
    named = [f"{name}={value}" if name else str(value) for name, value in values.items()]
    return [word for pair in named for word in (option, pair)]
