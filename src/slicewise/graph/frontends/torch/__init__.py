"""The PyTorch door: a module, an exported program or a .pt2 file becomes a Graph.

export -> bind -> convert. Each step lives in a module of its own; here they meet. No weight is
read, moved or copied.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

from slicewise.core.errors import MissingDependency, ModelError
from slicewise.core.graph import Binding, Graph, Source
from slicewise.core.notes import Note, unique_notes
from slicewise.graph.frontends.torch.aten.row import Values
from slicewise.graph.frontends.torch.bind import Asked, ask, ask_module, check_ranges, symbol_sizes
from slicewise.graph.frontends.torch.convert import convert
from slicewise.graph.frontends.torch.export import (
    Exported,
    Leaf,
    export,
    in_order,
    input_values,
    leaves_of,
    refuse_non_module,
    reshaped,
    without_transforms,
)
from slicewise.graph.frontends.torch.inputs import ready_inputs, refuse_opaque

Example = tuple[Any, tuple[Any, ...], Mapping[str, Any]]  # module, args, kwargs
RUNTIME = "torch-eager"


def require_torch() -> None:
    """Raise `MissingDependency` where torch is not installed."""
    try:
        import torch  # noqa: F401
    except ImportError as err:
        raise MissingDependency("reading PyTorch models", package="torch", extra="torch") from err


# --- sources


@dataclass(frozen=True, slots=True)
class ProgramFileSource:
    """A .pt2 file as a source of graphs; holds the path alone, so that it can be pickled."""

    location: str
    runtime: str = RUNTIME

    def bind(self, binding: Binding) -> Graph:
        """Return the graph with every dimension bound; `ModelError` if some stay free."""
        return read_program(self.location, binding)


@dataclass(frozen=True, slots=True, eq=False)
class ProgramSource:
    """An exported program in memory as a source of graphs."""

    program: Any = field(repr=False)
    name: str
    location: str
    runtime: str = RUNTIME

    def bind(self, binding: Binding) -> Graph:
        """Return the graph with every dimension bound; `ModelError` if some stay free."""
        return read_exported(self.program, binding, name=self.name, location=self.location)


@dataclass(slots=True, eq=False)
class ModuleSource:
    """A module with example inputs as a source of graphs.

    `remake` makes module, args and kwargs anew; with it the source can be pickled: the module
    stays behind and is made again where it is needed. The last exports are kept, so that another
    batch costs no tracing.
    """

    name: str
    location: str
    example: Example | None = field(default=None, repr=False)
    remake: Callable[[], Example] | None = field(default=None, repr=False)
    runtime: str = RUNTIME
    exports: dict[Any, Exported] = field(default_factory=dict, repr=False)

    def bind(self, binding: Binding) -> Graph:
        """Return the graph with every dimension bound; `ModelError` if that cannot be."""
        if self.example is None:
            if self.remake is None:
                raise ModelError(
                    f"model {self.location!r} came from another process without its module; load"
                    " it anew here"
                )
            self.example = self.remake()
        return _bind_module(self, self.example, binding)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.remake is None:
            raise TypeError(
                f"a graph of the module {self.location!r} cannot be sent to another process; save"
                " it with torch.export.save and load the .pt2 file"
            )
        return ModuleSource, (self.name, self.location, None, self.remake, self.runtime)


# --- the doors


def read_program(path: str, binding: Binding) -> Graph:
    """Return the exported program in the file `path` (.pt2) with every dimension bound.

    `ModelError` if the file is no exported program or dimensions stay free; `UsageError` if the
    binding names what it does not have.
    """
    from slicewise.graph.frontends.torch.file import load_program

    require_torch()
    program = load_program(Path(path))
    source = ProgramFileSource(path)
    return _bind_program(
        program, binding, source, name=PurePath(path).stem, label=f"model {path!r}"
    )


def read_exported(program: Any, binding: Binding, *, name: str, location: str) -> Graph:
    """Return a torch.export.ExportedProgram with every dimension bound."""
    program = without_transforms(program)
    source = ProgramSource(program, name, location)
    return _bind_program(program, binding, source, name=name, label=f"model {location!r}")


def read_module(
    module: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    binding: Binding,
    *,
    name: str,
    location: str,
    remake: Callable[[], Example] | None = None,
) -> Graph:
    """Return the graph of a torch.nn.Module called with example inputs.

    Shapes and types of the inputs count, their values do not. `remake` makes (module, args,
    kwargs) anew, so that the source can be pickled. The module is not changed; the batch is that
    of the example inputs where the binding does not say.
    """
    require_torch()
    refuse_non_module(module, f"model {location!r}")
    refuse_opaque(module, f"model {location!r}")
    source = ModuleSource(name, location, (module, args, kwargs), remake)
    return source.bind(binding)


# --- binding


def _bind_program(
    program: Any, binding: Binding, source: Source, *, name: str, label: str
) -> Graph:
    asked = ask(program, binding, label=label)
    sizes = symbol_sizes(program, asked)
    if sizes is not None:
        check_ranges(program, sizes, label=label)
        values = Values(sizes)
        graph = convert(program, values, name=name)
        return _bound(graph, asked, source)
    from slicewise.graph.frontends.torch.rebatch import rebatch

    values, notes = rebatch(program, asked, label=label)
    graph = convert(program, values, name=name)
    return _bound(graph, asked, source, notes)


def _bound(graph: Graph, asked: Asked, source: Source, notes: tuple[Note, ...] = ()) -> Graph:
    return replace(
        graph,
        batch_size=asked.batch_size,
        batch_axes=asked.batch_axes,
        notes=unique_notes((*asked.notes, *notes, *graph.notes)),
        source=source,
        binding=asked.binding,
    )


def _bind_module(source: ModuleSource, example: Example, binding: Binding) -> Graph:
    """Return the graph under a binding; the export is made anew only where shapes differ."""
    module, args, kwargs = example
    label = f"model {source.location!r}"
    args, kwargs = ready_inputs(module, args, kwargs, label=label)
    args, kwargs = in_order(module, args, kwargs, label=label)
    leaves = leaves_of(module, args, kwargs)
    asked = ask_module(leaves, binding, label=label)
    axes = {leaf.name: asked.batch_axes.get(leaf.name) for leaf in leaves}
    key = tuple((leaf.name, _without(asked.shapes[leaf.name], axes[leaf.name])) for leaf in leaves)
    exported = source.exports.get(key) or source.exports.get((key, asked.batch_size))
    if exported is None:
        # with the batch of the examples, which need memory; another one where it must be fixed
        shapes = {leaf.name: _with_own_batch(leaf, asked) for leaf in leaves}
        new_args, new_kwargs = reshaped(module, args, kwargs, shapes)
        batch = asked.batch_size if asked.batch_axes else None
        exported = export(module, new_args, new_kwargs, label=label, batch_axes=axes, batch=batch)
        symbolic = exported.batch_symbol is not None
        source.exports[key if symbolic else (key, asked.batch_size)] = exported
    names = [name for name, _ in input_values(exported.program)]
    theirs = {leaf.name: name for leaf, name in zip(leaves, names, strict=True)}
    shapes = {theirs[name]: shape for name, shape in asked.shapes.items()}
    batch_axes = {theirs[name]: axis for name, axis in asked.batch_axes.items()}
    asked = replace(asked, shapes=shapes, batch_axes=batch_axes)
    sizes = symbol_sizes(exported.program, asked)
    assert sizes is not None, "a program was exported for shapes that it does not have"
    graph = convert(exported.program, Values(sizes), name=source.name)
    notes = exported.notes if exported.batch_symbol else (*asked.assumed, *exported.notes)
    return _bound(graph, asked, source, notes)


def _with_own_batch(leaf: Leaf, asked: Asked) -> tuple[int, ...]:
    shape, axis = asked.shapes[leaf.name], asked.batch_axes.get(leaf.name)
    return shape if axis is None else (*shape[:axis], leaf.shape[axis], *shape[axis + 1 :])


def _without(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    return shape if axis is None else (*shape[:axis], -1, *shape[axis + 1 :])
