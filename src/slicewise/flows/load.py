"""`load`: from what a user names to a graph with every dimension bound."""

from collections.abc import Mapping, Sequence
from operator import index
from os import PathLike, fspath
from typing import SupportsIndex

from slicewise.core.errors import UsageError
from slicewise.core.graph import Binding, Graph

ModelLike = str | PathLike[str] | Graph


def load(
    model: ModelLike,
    *,
    batch: SupportsIndex | None = None,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    batch_axes: Mapping[str, int | None] | None = None,
    optional_dims: frozenset[str] = frozenset(),
) -> Graph:
    """Return the graph of a model file, its free dimensions bound.

    `batch` sets the leading axis of every input that has it; None keeps the model's own (1 where
    it is free). `dims` binds free dimensions by name, `inputs` gives whole shapes (the name '' is
    the only input). `batch_axes` says which axis of an input is the batch where it is not the
    leading one (None: none; the name '' is every input). `optional_dims` are names in `dims` that
    the model may lack. A `Graph` comes back bound anew, or as it is when nothing is asked.
    `ModelError` if the file is no model or a dimension stays free.

    >>> graph = load(model, batch=8)
    >>> len(graph.nodes), graph.parameters, graph.tensors[graph.inputs[0]].shape
    (176, 25557032, (8, 3, 224, 224))
    """
    batch_size = None if batch is None else _positive("batch", batch)
    for what, given in (("dims", dims), ("inputs", inputs), ("batch_axes", batch_axes)):
        if given is not None and not isinstance(given, Mapping):
            raise UsageError(
                f"{what} {given!r} is a {type(given).__name__}; give a mapping by name"
            )
        if any(not isinstance(name, str) for name in given or ()):
            raise UsageError(f"{what} {dict(given or {})!r}: names are strings")
    shapes = {name: _shape(name, shape) for name, shape in (inputs or {}).items()}
    if isinstance(model, Graph):
        if not dims and not shapes and not batch_axes and batch_size in (None, model.batch_size):
            return model
        return model.bind(batch_size=batch_size, dims=dims, inputs=shapes, batch_axes=batch_axes)
    if not isinstance(model, str | PathLike):
        raise UsageError(
            f"model {model!r} is a {type(model).__name__}; give a path of a model file or a graph"
            " that slicewise.load returned"
        )
    # Imported here: the front-ends pull in onnx, and `import slicewise` must stay light.
    from slicewise.graph.frontends import _base

    binding = Binding(batch_size, dict(dims or {}), shapes, dict(batch_axes or {}), optional_dims)
    return _base.load(fspath(model), binding)


def _shape(name: str, shape: object) -> tuple[int, ...]:
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise UsageError(
            f"shape {shape!r} of input {name!r} is no sequence of sizes; give (1, 3, 224, 224)"
        )
    return tuple(shape)


def _positive(what: str, value: SupportsIndex) -> int:
    """Return a whole number, numpy's included; `UsageError` for anything else."""
    try:
        number = 0 if isinstance(value, bool) else index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise UsageError(f"{what} {value!r} is not a positive whole number; give 1, 8, 32, ...")
    return number
