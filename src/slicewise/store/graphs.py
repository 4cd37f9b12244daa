"""A cache of graphs on disk, for front-ends that take seconds: PyTorch exports, zoo models.

One file a graph, named by the digest of what the graph depends on. No weights and no code are in
it, and reading one runs nothing. A damaged file is a miss. The room does not know the front-ends:
they come as functions.
"""

import contextlib
import hashlib
import json
import os
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from slicewise.core.errors import StoreError
from slicewise.core.graph import Binding, Graph, Source
from slicewise.core.units import MIB
from slicewise.store.graph_codec import DecodeError, decode_graph, encode_graph
from slicewise.store.home import home

LIMIT_BYTES = 512 * MIB
# What a killed process left half written is older than any write takes.
_STALE_S = 3600.0
_SUFFIX = ".graph"

Read = Callable[[str, Binding, Source | None], Graph]


@dataclass(frozen=True, slots=True)
class GraphKey:
    """What a graph depends on.

    `model` is the name in a zoo, or the digest of a file's content (`file_digest`) and what else
    of the file enters the graph, such as its name. `versions` are those of slicewise, of the
    framework and of the zoo's package.
    """

    frontend: str
    model: str
    binding: Binding
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 of all of it, 64 hexadecimal digits."""
        binding = self.binding
        plain = [
            self.frontend,
            self.model,
            binding.batch_size,
            sorted(binding.dims.items()),
            sorted((name, list(shape)) for name, shape in binding.inputs.items()),
            sorted(binding.batch_axes.items()),
            sorted(binding.optional_dims),
            sorted(self.versions.items()),
        ]
        return hashlib.sha256(json.dumps(plain).encode()).hexdigest()


@dataclass(slots=True)
class CachedSource:
    """The source of a graph that came from the cache: reads through `read` when bound anew.

    `read` is a function of a module, so that the source can be sent to another process. `live` is
    the front-end's own source once something had to be read: it may hold a trace that serves
    every batch, so that a miss after the first costs little.
    """

    location: str
    runtime: str
    read: Read
    live: Source | None = field(default=None, compare=False, repr=False)

    def bind(self, binding: Binding) -> Graph:
        """Return the graph under another binding, from the cache or the front-end."""
        graph = self.read(self.location, binding, self.live)
        if isinstance(graph.source, CachedSource):
            self.live = self.live or graph.source.live
        return graph


def cached(
    key: GraphKey,
    make: Callable[[], Graph],
    *,
    location: str,
    read: Read,
    folder: Path | None = None,
    limit_bytes: int = LIMIT_BYTES,
) -> Graph:
    """Return the graph of `key` from the cache, or `make` it and keep it.

    `location` is what the user calls the model, `read` reads it again under another binding. The
    cache never fails a call: what cannot be read is made, what cannot be written is not kept.
    `folder` None is `graphs` under slicewise's home. `SLICEWISE_NO_CACHE=1` turns it off.
    """
    if os.environ.get("SLICEWISE_NO_CACHE", "") not in ("", "0"):
        return make()
    try:
        place = (home() / "graphs" if folder is None else folder) / f"{key.digest}{_SUFFIX}"
    except StoreError:
        return make()
    found = _read(place)
    live: Source | None = None
    if found is None:
        graph = make()
        live = graph.source
        runtime = "" if live is None else live.runtime
        _keep(place, graph, runtime, limit_bytes)
    else:
        graph, runtime = found
    return replace(graph, source=CachedSource(location, runtime, read, live))


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content, 64 hexadecimal digits.

    Of a zip archive (a PyTorch program is one) the directory is taken, which holds the size and
    the CRC-32 of every member: weights of many gigabytes need not be read.
    """
    with path.open("rb") as file:
        try:
            members = zipfile.ZipFile(file).infolist()
        except (zipfile.BadZipFile, ValueError, NotImplementedError):
            file.seek(0)
            return hashlib.file_digest(file, "sha256").hexdigest()
    told = [(member.filename, member.file_size, member.CRC) for member in members]
    return hashlib.sha256(repr(told).encode()).hexdigest()


def _read(place: Path) -> tuple[Graph, str] | None:
    """Return the graph and its default runtime; None for a miss or a damaged file."""
    try:
        found = decode_graph(place.read_bytes())
    except (OSError, DecodeError):
        return None
    with contextlib.suppress(OSError):  # a cache that is only read keeps its order of age
        os.utime(place)
    return found


def _keep(place: Path, graph: Graph, runtime: str, limit_bytes: int) -> None:
    """Write the graph whole or not at all, then let the least used go."""
    try:
        content = encode_graph(graph, runtime)
    except (OverflowError, TypeError, ValueError):  # no plain value, or over 64 bits: made anew
        return
    with contextlib.suppress(OSError):  # no room or no right to write: made anew each time
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=place.parent, prefix=".", suffix=".tmp")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.replace(name, place)
        except OSError:
            os.unlink(name)
            raise
        _shrink(place.parent, limit_bytes)


def _shrink(folder: Path, limit_bytes: int) -> None:
    """Remove the least recently used graphs beyond the limit, and what killed writers left."""
    kept: list[tuple[float, int, str]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # another process removed it
                told = entry.stat()
                if entry.name.endswith(_SUFFIX):
                    kept.append((told.st_mtime, told.st_size, entry.path))
                elif entry.name.endswith(".tmp") and told.st_mtime < time.time() - _STALE_S:
                    os.unlink(entry.path)
    total = sum(size for _, size, _ in kept)
    for _, size, path in sorted(kept):
        if total <= limit_bytes:
            return
        with contextlib.suppress(OSError):
            os.unlink(path)
        total -= size
