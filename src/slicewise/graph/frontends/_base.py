"""Chooses the front-end for what the user names: a file, a folder or a zoo model.

One row for each kind of source; a front-end is imported when it is first needed. No model is
looked into here beyond telling what kind of file it is.
"""

import difflib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn, cast

from slicewise.core.errors import ModelError, UsageError
from slicewise.core.graph import Binding, Graph
from slicewise.core.plugins import PluginTable

Read = Callable[[str, Binding], Graph]

FRONTENDS = PluginTable(
    "model format",
    {"onnx": "slicewise.graph.frontends.onnx:read_graph"},
    error=ModelError,
)

_FORMAT_OF_SUFFIX = {".onnx": "onnx"}

_EXPORT_TORCH = "export it with torch.onnx.export(model, inputs, 'model.onnx')"
_EXPORT_TF = "convert it with python -m tf2onnx.convert --output model.onnx"
_EXPORT_PADDLE = "convert it with paddle2onnx"

# What other files are, and how an ONNX model is made of them.
_OTHER_SUFFIXES: Mapping[str, tuple[str, str]] = {
    ".pt": ("a PyTorch file", _EXPORT_TORCH),
    ".pth": ("a PyTorch file", _EXPORT_TORCH),
    ".pt2": ("a PyTorch exported program", _EXPORT_TORCH),
    ".bin": ("a weights file", _EXPORT_TORCH),
    ".ckpt": ("a checkpoint", _EXPORT_TORCH),
    ".safetensors": ("a safetensors weights file", _EXPORT_TORCH),
    ".py": ("a Python source file", _EXPORT_TORCH),
    ".keras": ("a Keras model", _EXPORT_TF),
    ".h5": ("a Keras HDF5 model", _EXPORT_TF),
    ".hdf5": ("a Keras HDF5 model", _EXPORT_TF),
    ".pb": ("a TensorFlow graph or single tensor", _EXPORT_TF),
    ".tflite": ("a TensorFlow Lite model", _EXPORT_TF),
    ".pdmodel": ("a Paddle model", _EXPORT_PADDLE),
    ".pdiparams": ("a Paddle weights file", _EXPORT_PADDLE),
    ".json": ("a JSON file", _EXPORT_PADDLE),
    ".mlir": ("a StableHLO module", "export an ONNX model from the framework"),
    ".ort": ("an ONNX Runtime model", "give the .onnx file that it was made from"),
    ".gguf": ("a GGUF file", "export an ONNX model from the framework"),
    ".engine": ("a TensorRT engine", "give the .onnx file that it was built from"),
    ".plan": ("a TensorRT engine", "give the .onnx file that it was built from"),
}
_ZOOS = ("timm", "torchvision", "transformers", "keras", "zoo")


def load(location: str, binding: Binding) -> Graph:
    """Return the graph of the model at `location`, every dimension bound.

    `ModelError` if there is no such model or its format cannot be read; `UsageError` if the
    binding, or the way the model is named, cannot be.
    """
    read = cast(Read, FRONTENDS.load(format_of(location)))
    return read(location, binding)


def format_of(location: str) -> str:
    """Return the row of `FRONTENDS` that reads `location`, by name first, then by content."""
    if not location.strip() or "\0" in location:
        raise UsageError(f"model {location!r} is not a path; give one, such as model.onnx")
    zoo, colon, name = location.partition(":")
    if colon and zoo.lower() in _ZOOS:
        raise UsageError(
            f"model {location!r} is a name in a zoo, which cannot be read yet; only .onnx files"
            f" can; {_EXPORT_TORCH} from {name or 'the model'} and give that file"
        )
    path = Path(location)
    if not os.path.lexists(path):
        _refuse_missing(path)
    if os.path.isdir(path):
        _refuse_folder(path)
    suffix = path.suffix.lower()
    if suffix in _FORMAT_OF_SUFFIX:
        return _FORMAT_OF_SUFFIX[suffix]
    from slicewise.graph.frontends.onnx_wire import looks_like_onnx

    if looks_like_onnx(path):
        return "onnx"
    what, remedy = _OTHER_SUFFIXES.get(suffix, ("no ONNX model", "give the path of an .onnx file"))
    raise ModelError(f"model {location!r} is {what}; only ONNX models can be read today; {remedy}")


def _refuse_missing(path: Path) -> NoReturn:
    nearby = _near_names(path)
    hint = f"; did you mean {', '.join(nearby)}?" if nearby else ""
    folder = "" if os.path.isdir(path.parent) else f" (there is no folder {str(path.parent)!r})"
    raise ModelError(
        f"there is no model file {str(path)!r}{folder}; give the path of an .onnx file{hint}"
    )


def _near_names(path: Path) -> list[str]:
    """Return files in the same folder whose names are like the missing one's."""
    try:
        names = [entry.name for entry in os.scandir(path.parent)]
    except OSError:
        return []
    by_fold = {name.casefold(): name for name in sorted(names)}
    near = difflib.get_close_matches(path.name.casefold(), list(by_fold), n=3, cutoff=0.6)
    return [str(path.parent / by_fold[name]) for name in near]


def _refuse_folder(path: Path) -> NoReturn:
    try:
        names = sorted(entry.name for entry in os.scandir(path))
    except OSError as err:
        raise ModelError(
            f"model {str(path)!r} is a folder that cannot be read: {err.strerror}; give the path"
            " of an .onnx file"
        ) from err
    models = [str(path / name) for name in names if re.search(r"\.onnx$", name, re.IGNORECASE)]
    if "saved_model.pb" in names:
        what, remedy = "a TensorFlow SavedModel", _EXPORT_TF
    elif models:
        what, remedy = "a folder", f"give one file of it, such as {', '.join(models[:3])}"
    else:
        what, remedy = "a folder without .onnx files", "give the path of an .onnx file"
    raise ModelError(f"model {str(path)!r} is {what}; only ONNX files can be read today; {remedy}")
