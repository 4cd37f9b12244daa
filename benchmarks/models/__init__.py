"""Builders of published architectures as ONNX models without weight bytes.

`build('resnet50@224')` returns the model, `write` puts it into a file. A key is the name of an
architecture and its image side (or sequence length). The tables of the families say which numbers
make which network; parameters and multiply-adds of every member are compared with published
tables in `tests/benchmarks`.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

import onnx

FAMILIES = (
    "classic",
    "convnext",
    "grouped",
    "language",
    "mixer",
    "multiscale",
    "mobile",
    "preact",
    "pyramid",
    "resnet",
    "stacked",
    "swin",
    "vit",
    "yolo",
)
"""Modules of this package; each has a table `MODELS`: name -> builder by size."""


@cache
def builders() -> Mapping[str, Callable[[int], onnx.ModelProto]]:
    """Return every architecture by name."""
    table: dict[str, Callable[[int], onnx.ModelProto]] = {}
    for family in FAMILIES:
        members = import_module(f"benchmarks.models.{family}").MODELS
        assert not table.keys() & members.keys(), (family, table.keys() & members.keys())
        table |= members
    return table


def key_of(name: str, size: int) -> str:
    """Return the key of architecture `name` at `size`."""
    return f"{name}@{size}"


def build(key: str) -> onnx.ModelProto:
    """Return the model that `key` names; `KeyError` if no family has it."""
    name, _, size = key.partition("@")
    return builders()[name](int(size))


@cache
def _version() -> str:
    """A digest of the builders' source, so that no file of an earlier builder is taken."""
    sha = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        sha.update(path.read_bytes())
    return sha.hexdigest()[:12]


def cache_folder() -> Path:
    """Return where built models are kept: $SLICEWISE_HOME/cache, or the temporary folder."""
    home = os.environ.get("SLICEWISE_HOME")
    root = Path(home) / "cache" if home else Path(tempfile.gettempdir()) / "slicewise"
    return root / "benchmark-models" / _version()


def write(key: str, folder: Path | None = None) -> Path:
    """Write the model of `key` into `folder` (default `cache_folder()`); return its path.

    A file that is already there is kept. The file appears whole or not at all.
    """
    folder = cache_folder() if folder is None else folder
    path = folder / f"{key}.onnx"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=folder, suffix=".part")
    with os.fdopen(handle, "wb") as part:
        part.write(build(key).SerializeToString())
    os.replace(name, path)
    return path
