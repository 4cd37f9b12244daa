"""Reading a model through the cache of graphs, where the front-end is slow enough to need it."""

import hashlib
from functools import cache, partial
from importlib import metadata
from pathlib import Path

import slicewise
from slicewise.core.errors import SlicewiseError
from slicewise.core.graph import Binding, Graph, Source

# Front-ends that take less time than looking a graph up saves.
_FAST = frozenset({"onnx"})
_FAST_RUNTIME = "onnxruntime"
# What graphs of the slow ones depend on besides this package.
_PACKAGES = ("torch", "torchvision", "timm", "transformers")


def load_cached(location: str, binding: Binding, live: Source | None = None) -> Graph:
    """Return the graph of the model at `location`, every dimension bound.

    `live` is a source of the model that has read it already. Graphs of PyTorch programs and zoo
    names are kept under `$SLICEWISE_HOME/graphs`; `SLICEWISE_NO_CACHE=1` reads them anew each
    time. Errors are those of the front-end.
    """
    from slicewise.graph.frontends import _base
    from slicewise.store.graphs import GraphKey, cached, file_digest

    frontend = _base.format_of(location)
    if frontend in _FAST:
        return _base.load(location, binding)
    path = Path(location)
    # the name of a file is that of its graph
    model = f"{path.name} {file_digest(path)}" if path.is_file() else location
    return cached(
        GraphKey(frontend, model, binding, {"code": _code_digest(), **package_versions()}),
        partial(_base.load, location, binding) if live is None else partial(live.bind, binding),
        location=location,
        read=load_cached,
    )


def is_slow_to_read(model: str | Graph) -> bool:
    """Return whether reading a model under a new binding may mean tracing it, which takes seconds.

    A graph that does not come from a file counts as slow: its source holds a module.
    """
    from slicewise.graph.frontends import _base

    if isinstance(model, Graph):
        return model.source is not None and model.source.runtime != _FAST_RUNTIME
    try:
        return _base.format_of(model) not in _FAST
    except SlicewiseError:  # told when it is read
        return False


@cache
def package_versions() -> dict[str, str]:
    """Return the versions of the packages behind zoo names and programs, '' where absent."""
    return {package: _version_of(package) for package in _PACKAGES}


def _version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


@cache
def _code_digest() -> str:
    """Return what changes with the code that makes graphs, also between two releases."""
    room = Path(slicewise.__file__).parent
    files = [room / "core" / "graph.py", *sorted((room / "graph").rglob("*.py"))]
    told = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr((slicewise.__version__, told)).encode()).hexdigest()
