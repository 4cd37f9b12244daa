"""Chooses the front-end for what the user gives: a file, a folder, a zoo name or a torch module.

One row for each kind of source; a front-end is imported when it is first needed. No model is
looked into here beyond telling what kind of file or object it is.
"""

import difflib
import os
import re
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, cast

from slicewise.core.errors import ModelError, UsageError
from slicewise.core.graph import Binding, Graph
from slicewise.core.plugins import PluginTable, did_you_mean

Read = Callable[[str, Binding], Graph]

FRONTENDS = PluginTable(
    "model format",
    {
        "onnx": "slicewise.graph.frontends.onnx:read_graph",
        "pt2": "slicewise.graph.frontends.torch:read_program",
        "zoo": "slicewise.graph.frontends.zoo:read_graph",
    },
    error=ModelError,
)

_FORMAT_OF_SUFFIX = {".onnx": "onnx", ".pt2": "pt2"}
ZOOS = ("timm", "torchvision", "transformers")
_READABLE = "an .onnx or .pt2 file, or a zoo name such as timm:resnet50"

# A file of weights has no graph: the module that they belong to has.
_EXPORT_TORCH = (
    "give the module that they belong to: slicewise.load(module, example_inputs=(x,)) in Python,"
    " torch.export.save(torch.export.export(module, (x,)), 'model.pt2') for a file, or its name"
    " in a zoo, such as timm:resnet50"
)
_EXPORT_TF = "convert it with python -m tf2onnx.convert --output model.onnx"
_EXPORT_PADDLE = "convert it with paddle2onnx"

# What other files are, and how an ONNX model is made of them.
_OTHER_SUFFIXES: Mapping[str, tuple[str, str]] = {
    ".pt": ("a PyTorch file of weights or of a pickled module", _EXPORT_TORCH),
    ".pth": ("a PyTorch file of weights or of a pickled module", _EXPORT_TORCH),
    ".bin": ("a weights file", _EXPORT_TORCH),
    ".ckpt": ("a checkpoint", _EXPORT_TORCH),
    ".safetensors": ("a safetensors weights file", _EXPORT_TORCH),
    ".py": (
        "a Python source file",
        "import its module and give that: slicewise.load(module, example_inputs=(x,))",
    ),
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
# Zoos that have names like ours but cannot be read yet.
_OTHER_ZOOS: Mapping[str, str] = {"keras": _EXPORT_TF}


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
    if _zoo_of(location):
        return "zoo"
    path = Path(location)
    if not os.path.lexists(path):
        _refuse_missing(path)
    if os.path.isdir(path):
        _refuse_folder(path)
    suffix = path.suffix.lower()
    if suffix in _FORMAT_OF_SUFFIX:
        return _FORMAT_OF_SUFFIX[suffix]
    from slicewise.graph.frontends.onnx.wire import looks_like_onnx

    if looks_like_onnx(path):
        return "onnx"
    if _is_program(path):
        return "pt2"
    what, remedy = _OTHER_SUFFIXES.get(suffix, ("of no known format", f"give {_READABLE}"))
    raise ModelError(
        f"model {location!r} is {what}; ONNX models, exported PyTorch programs and zoo names can"
        f" be read; {remedy}"
    )


def _zoo_of(location: str) -> str:
    """Return the zoo that a name such as `timm:resnet50` is in; '' for a path.

    `ModelError` if the zoo cannot be read.
    """
    zoo, colon, name = location.partition(":")
    zoo = zoo.strip().lower()
    if colon and zoo in ZOOS:
        return zoo
    # A drive letter is no zoo, nor is anything that exists as a path.
    if not colon or not re.fullmatch(r"[a-z][a-z0-9_-]+", zoo) or os.path.lexists(location):
        return ""
    if zoo in _OTHER_ZOOS:
        raise ModelError(
            f"model {location!r} is in the zoo {zoo}, which cannot be read yet; {', '.join(ZOOS)}"
            f" can; build {name or 'the model'} and {_OTHER_ZOOS[zoo]}"
        )
    if "/" in name or not name:
        return ""
    raise ModelError(
        f"there is no zoo {zoo!r} for model {location!r}; zoos are {', '.join(ZOOS)}; give"
        f" {_READABLE}{did_you_mean(zoo, ZOOS)}"
    )


# Entries of the archives that torch.export.save writes, today's and those of torch 2.6.
_PROGRAM_ENTRIES = ("archive_format", "serialized_exported_program.json")


def _is_program(path: Path) -> bool:
    """True if the file is an archive of torch.export.save under another name."""
    if not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(_PROGRAM_ENTRIES) for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


# --- PyTorch objects


def torch_kind(model: object) -> str:
    """Return 'module' or 'program' for a torch object, '' for anything else.

    Imports nothing: who holds such an object has imported torch.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return ""
    if isinstance(model, torch.nn.Module):
        return "module"
    export = sys.modules.get("torch.export")
    return "program" if export is not None and isinstance(model, export.ExportedProgram) else ""


def load_torch(model: object, example_inputs: object, binding: Binding) -> Graph:
    """Return the graph of a torch module, called with the example inputs, or of a program.

    `example_inputs` is one tensor, a tuple of positional inputs or a mapping of keyword inputs;
    None for a program, which has its own. `UsageError` where that is not so.
    """
    from slicewise.graph.frontends.torch import read_exported, read_module

    kind = type(model)
    name, location = kind.__name__, f"{kind.__module__}.{kind.__qualname__}"
    if torch_kind(model) == "program":
        if example_inputs is not None:
            raise UsageError(
                f"example_inputs {type(example_inputs).__name__} are given for an exported"
                " program, which has its own; leave them out"
            )
        return read_exported(model, binding, name=name, location=location)
    if example_inputs is None:
        raise UsageError(
            f"model {name} is a torch.nn.Module, whose program depends on what it is called with;"
            " give inputs, as in slicewise.load(module, example_inputs=(x,)), or"
            " example_inputs={'input_ids': ids} for keyword inputs; tensors on the meta device do"
        )
    args, kwargs = _as_call(example_inputs)
    return read_module(model, args, kwargs, binding, name=name, location=location)


def _as_call(example_inputs: object) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return positional and keyword inputs."""
    if isinstance(example_inputs, Mapping):
        if wrong := [name for name in example_inputs if not isinstance(name, str)]:
            raise UsageError(
                f"example_inputs has the key {wrong[0]!r}; keys are names of the arguments of"
                " forward, as in {'input_ids': ids}"
            )
        return (), dict(example_inputs)
    if isinstance(example_inputs, Sequence) and not isinstance(example_inputs, str | bytes):
        return tuple(example_inputs), {}
    return (example_inputs,), {}


def _refuse_missing(path: Path) -> NoReturn:
    nearby = _near_names(path)
    hint = f"; did you mean {', '.join(nearby)}?" if nearby else ""
    folder = "" if os.path.isdir(path.parent) else f" (there is no folder {str(path.parent)!r})"
    raise ModelError(f"there is no model file {str(path)!r}{folder}; give {_READABLE}{hint}")


def _near_names(path: Path) -> list[str]:
    """Return models in the same folder whose names are like the missing one's."""
    try:
        names = [entry.name for entry in os.scandir(path.parent)]
    except OSError:
        return []
    names = [name for name in names if Path(name).suffix.lower() in _FORMAT_OF_SUFFIX]
    by_fold = {name.casefold(): name for name in sorted(names)}
    near = difflib.get_close_matches(path.name.casefold(), list(by_fold), n=3, cutoff=0.6)
    return [str(path.parent / by_fold[name]) for name in near]


def _refuse_folder(path: Path) -> NoReturn:
    try:
        names = sorted(entry.name for entry in os.scandir(path))
    except OSError as err:
        raise ModelError(
            f"model {str(path)!r} is a folder that cannot be read: {err.strerror}; give"
            f" {_READABLE}"
        ) from err
    models = [str(path / name) for name in names if re.search(r"\.(onnx|pt2)$", name, re.I)]
    if "saved_model.pb" in names:
        what, remedy = "a TensorFlow SavedModel", _EXPORT_TF
    elif models:
        what, remedy = "a folder", f"give one file of it, such as {', '.join(models[:3])}"
    else:
        what, remedy = "a folder without .onnx or .pt2 files", f"give {_READABLE}"
    raise ModelError(f"model {str(path)!r} is {what}; only files and zoo names are read; {remedy}")
