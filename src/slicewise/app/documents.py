"""The JSON documents that scripts rely on: frozen types in, plain values out.

Field names are fixed by the contract: added to, never renamed.
"""

from collections.abc import Sequence

import msgspec

from slicewise.core.conditions import version_text
from slicewise.core.cost import Prediction
from slicewise.core.coverage import Support
from slicewise.core.device import Device
from slicewise.core.document import PredictionSet

Json = dict[str, object]


def encode(document: Json) -> bytes:
    """Return the document as indented JSON text with a final newline."""
    try:
        encoded = msgspec.json.encode(document)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(_encodable(document))
    return msgspec.json.format(encoded, indent=2) + b"\n"


def predict_document(result: PredictionSet, *, nodes: bool) -> Json:
    """Return `slicewise.predict/1`. `model` is the first model, `models` all of them."""
    models = [_plain(model) for model in result.models]
    predictions = [prediction_entry(made) for made in result.predictions]
    for document in predictions:
        if not nodes:
            del document["nodes"]
    return {
        "schema": "slicewise.predict/1",
        "model": models[0],
        "models": models,
        "predictions": predictions,
    }


def prediction_entry(made: Prediction) -> Json:
    """Return the fields of a prediction. A version is text, as people and `--runtime` write it."""
    return {**_plain(made), "runtime_version": version_text(made.runtime_version)}


def support_document(result: Support) -> Json:
    """Return `slicewise.support/1`."""
    return {"schema": "slicewise.support/1", **_plain(result)}


def devices_document(devices: Sequence[Device]) -> Json:
    """Return `slicewise.devices/1`. `parent` and `slice` are names, null for a whole card."""
    return {"schema": "slicewise.devices/1", "devices": [_device(device) for device in devices]}


def _device(device: Device) -> Json:
    document = _plain(device)
    document["parent"] = None if device.parent is None else device.parent.name
    document["slice"] = device.slice_name
    del document["profile"], document["share_percent"]
    return document


def _plain(thing: object) -> Json:
    """Return the fields of a frozen type, nested ones too, under their own names."""
    document: Json = msgspec.to_builtins(thing)
    return document


def _encodable(thing: object) -> object:
    """Return the same value with file names that are no UTF-8 shown with replacement marks."""
    if isinstance(thing, str):
        return thing.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(thing, dict):
        return {key: _encodable(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [_encodable(value) for value in thing]
    return thing
