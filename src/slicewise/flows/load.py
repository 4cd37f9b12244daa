"""`load`: from what a user names to a graph with every dimension bound."""

from collections.abc import Iterator, Mapping, Sequence
from operator import index
from os import PathLike, fspath
from typing import Any, Protocol, SupportsIndex

from slicewise.core.errors import UsageError
from slicewise.core.graph import Binding, Graph


class TorchModel(Protocol):
    """A `torch.nn.Module` or a `torch.export.ExportedProgram`, told by what both have."""

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Yield the weights by name."""


ModelLike = str | PathLike[str] | Graph | TorchModel


def load(
    model: ModelLike,
    *,
    example_inputs: object = None,
    batch: SupportsIndex | None = None,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    batch_axes: Mapping[str, int | None] | None = None,
    optional_dims: frozenset[str] = frozenset(),
) -> Graph:
    """Return the graph of a model, its free dimensions bound.

    `model` is the path of an .onnx or .pt2 file, a zoo name such as `timm:resnet50`, a
    `torch.nn.Module` or an exported program. A module, which may lie on the meta device, needs
    `example_inputs`: a tensor, a tuple of positional or a mapping of keyword inputs. They are
    looked at for shape and type only; nothing is run.

    `batch` sets the leading axis of every input that has it; None keeps the model's own (1 where
    it is free). `dims` binds free dimensions by name, `inputs` gives whole shapes (the name '' is
    the only input). `batch_axes` says which axis of an input is the batch where it is not the
    leading one (None: none; the name '' is every input). `optional_dims` are names in `dims` that
    the model may lack. A `Graph` comes back bound anew, or as it is when nothing is asked.
    `ModelError` if the file is no model, the module cannot be exported or a dimension stays free.

    >>> graph = load(model, batch=8)
    >>> len(graph.nodes), graph.parameters, graph.tensors[graph.inputs[0]].shape
    (176, 25557032, (8, 3, 224, 224))
    """
    batch_size = None if batch is None else positive("batch", batch)
    for what, given in (("dims", dims), ("inputs", inputs), ("batch_axes", batch_axes)):
        if given is not None and not isinstance(given, Mapping):
            raise UsageError(
                f"{what} {given!r} is a {type(given).__name__}; give a mapping by name"
            )
        if any(not isinstance(name, str) for name in given or ()):
            raise UsageError(f"{what} {dict(given or {})!r}: names are strings")
    shapes = {name: _shape(name, shape) for name, shape in (inputs or {}).items()}
    if isinstance(model, Graph):
        _refuse_inputs(model.name, example_inputs)
        if not dims and not shapes and not batch_axes and batch_size in (None, model.batch_size):
            return model
        return model.bind(batch_size=batch_size, dims=dims, inputs=shapes, batch_axes=batch_axes)
    # Imported here: the front-ends pull in onnx, and `import slicewise` must stay light.
    from slicewise.graph.frontends import _base

    binding = Binding(batch_size, dict(dims or {}), shapes, dict(batch_axes or {}), optional_dims)
    if _base.torch_kind(model):
        return _base.load_torch(model, example_inputs, binding)
    if not isinstance(model, str | PathLike):
        raise UsageError(
            f"{_what(model)}; give the path of a model file, a zoo name, a torch.nn.Module with"
            " example_inputs, or a graph that slicewise.load returned"
        )
    _refuse_inputs(model, example_inputs)
    from slicewise.flows.cached_load import load_cached

    return load_cached(fspath(model), binding)


def _what(model: object) -> str:
    """Say in a few words what was given as a model and is none."""
    name = getattr(model, "__qualname__", type(model).__qualname__)
    if isinstance(model, type):
        return f"model {name} is a class; call it to make a module"
    if callable(model) and not hasattr(model, "shape"):
        return (
            f"model {name} is a {type(model).__name__}; make it the forward method of a"
            " torch.nn.Module"
        )
    if isinstance(model, Mapping):
        return f"a model was given as a {name} of {len(model)} entries: weights are no program"
    text = repr(model)
    shown = f" {text}" if len(text) <= 60 and text.isprintable() else ""
    return f"model{shown} is a {name}"


def _refuse_inputs(model: object, example_inputs: object) -> None:
    if example_inputs is not None:
        raise UsageError(
            f"example_inputs are given for model {str(model)!r}, which knows its inputs; only a"
            " torch.nn.Module needs them; give shapes with inputs={'x': (1, 3, 224, 224)}"
        )


def _shape(name: str, shape: object) -> tuple[int, ...]:
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise UsageError(
            f"shape {shape!r} of input {name!r} is no sequence of sizes; give (1, 3, 224, 224)"
        )
    return tuple(shape)


def positive(what: str, value: SupportsIndex) -> int:
    """Return a whole number, numpy's included; `UsageError` for anything else."""
    try:
        number = 0 if isinstance(value, bool) else index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise UsageError(f"{what} {value!r} is not a positive whole number; give 1, 8, 32, ...")
    return number
