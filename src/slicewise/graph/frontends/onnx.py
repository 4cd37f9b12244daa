"""The ONNX door: a file becomes a Graph.

read without weights -> repair -> bind -> infer shapes -> fold and convert. Each step lives in a
module of its own; here they meet. Nothing but the one file is opened.
"""

import functools
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from slicewise.core.errors import ModelError
from slicewise.core.graph import Binding, Graph
from slicewise.graph.bind import bind
from slicewise.graph.check import Tidy, tidy
from slicewise.graph.frontends.onnx_convert import convert
from slicewise.graph.frontends.onnx_wire import read_stripped
from slicewise.graph.shapes import infer


@dataclass(frozen=True, slots=True)
class OnnxSource:
    """An ONNX file as a source of graphs; holds the path alone, so that it can be pickled."""

    location: str

    def bind(self, binding: Binding) -> Graph:
        """Return the graph with every dimension bound; `ModelError` if some stay free."""
        return read_graph(self.location, binding)


def read_graph(path: str, binding: Binding) -> Graph:
    """Return the ONNX model at `path` with every dimension bound.

    `ModelError` if the file is not a usable model or dimensions stay free; `UsageError` if the
    binding names what the model does not have. Time and memory do not depend on weight bytes.
    """
    label = f"model {path!r}"
    model = _tidy_model(read_stripped(Path(path)), label)
    bound = bind(model.model, binding, label=label)
    try:
        shapes = infer(
            bound.model, batch_change=bound.batch_change, batch_inputs=bound.batch_inputs
        )
    except ModelError as err:
        raise ModelError(f"{label}: {err}") from err
    return convert(shapes, bound, source=OnnxSource(path), binding=binding, notes=model.notes)


@functools.lru_cache(maxsize=2)
def _tidy_model(stripped: bytes, label: str) -> Tidy:
    """Return the parsed and repaired model; the last are kept for the next batch size."""
    try:
        model = onnx.ModelProto.FromString(stripped)
    except DecodeError as err:
        raise ModelError(
            f"{label} is not an ONNX model or is damaged: {err}; an ONNX model is a serialised"
            " ModelProto; export or download it again"
        ) from err
    return tidy(model, label=label)
