"""`load`: from what a user names to a graph with every dimension bound."""

from collections.abc import Mapping, Sequence
from os import PathLike, fspath

from slicewise.core.errors import UsageError
from slicewise.core.graph import Binding, Graph

ModelLike = str | PathLike[str] | Graph


def load(
    model: ModelLike,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
) -> Graph:
    """Return the graph of a model file, its free dimensions bound.

    `batch` sets the leading axis of every input that has it; None keeps the model's own (1 where
    it is free). `dims` binds free dimensions by name, `inputs` gives whole shapes (the name '' is
    the only input). A `Graph` comes back bound anew, or as it is when nothing is asked.
    `ModelError` if the file is no model or a dimension stays free.
    """
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise UsageError(f"batch {batch!r} is not a positive whole number; give 1, 8, 32, ...")
    shapes = {name: tuple(shape) for name, shape in (inputs or {}).items()}
    if isinstance(model, Graph):
        if not dims and not shapes and batch in (None, model.batch_size):
            return model
        return model.bind(batch_size=batch, dims=dims, inputs=shapes)
    # Imported here: the front-ends pull in onnx, and `import slicewise` must stay light.
    from slicewise.graph.frontends import _base

    binding = Binding(batch_size=batch, dims=dict(dims or {}), inputs=shapes)
    return _base.load(fspath(model), binding)
