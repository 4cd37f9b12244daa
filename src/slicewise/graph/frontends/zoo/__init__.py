"""The zoo door: `timm:resnet50?num_classes=10` becomes a Graph.

cut the name -> build the module on the meta device -> give it inputs of the sizes asked -> read it
as any module. A row tells where a zoo lives and which packages it needs. No weights are made or
downloaded.
"""

import functools
import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from slicewise.core.errors import MissingDependency, ModelError, UsageError
from slicewise.core.graph import Binding, Graph, Source
from slicewise.core.notes import Note
from slicewise.core.plugins import did_you_mean
from slicewise.graph.dimensions import Axis, Input
from slicewise.graph.frontends.zoo.model import InputSpec, Zoo, ZooModel, ZooName, parse
from slicewise.graph.given import checked, shapes_by_name, with_shape


@dataclass(frozen=True, slots=True)
class _Row:
    """Where a zoo is built, and the packages that must be installed for it, torch besides."""

    module: str
    packages: tuple[str, ...]


_ROWS: Mapping[str, _Row] = {
    # timm imports torchvision when it is itself imported
    "timm": _Row("slicewise.graph.frontends.zoo.timm", ("torchvision", "timm")),
    "torchvision": _Row("slicewise.graph.frontends.zoo.torchvision", ("torchvision",)),
    "transformers": _Row("slicewise.graph.frontends.zoo.transformers", ("transformers",)),
}
ZOOS = tuple(_ROWS)


@dataclass(frozen=True, slots=True)
class ZooSource:
    """A zoo name as a source of graphs; holds the name alone, so that it can be pickled."""

    location: str
    runtime: str = "torch-eager"

    def bind(self, binding: Binding) -> Graph:
        """Return the graph with every dimension bound; `ModelError` if it cannot be exported."""
        return read_graph(self.location, binding)


def read_graph(location: str, binding: Binding) -> Graph:
    """Return the graph of a zoo model, its inputs of the sizes that `binding` asks.

    `ModelError` if the zoo has no such model or it cannot be exported; `UsageError` for options
    or sizes that the model does not have; `MissingDependency` if a package is absent.
    """
    model, label = _model(location), f"model {location!r}"
    shapes, used = _shapes(model.inputs, checked(binding), label=label)
    without = {spec.name: None for spec in model.inputs if not spec.has_batch}
    axes = {**without, **binding.batch_axes}
    asked = replace(binding, inputs=shapes, dims={}, batch_axes=axes)
    graph = _read(location, asked, is_sized=bool(binding.inputs))
    kept = replace(binding, dims=used)
    return replace(graph, source=ZooSource(location), binding=kept)


def _read(location: str, binding: Binding, *, is_sized: bool) -> Graph:
    """Return the graph with all inputs, or without those that it can do without, and a Note."""
    model = _model(location)
    apart = tuple(spec.name for spec in model.inputs if spec.may_be_left_out)
    left_out, why = model.left_out, "whose layout is in the values of other inputs"
    if location not in _needs_leaving_out:
        try:
            graph = _module(location, ()).bind(binding)
            return replace(graph, notes=(*graph.notes, *_left_out_notes(left_out, why)))
        except ModelError as err:
            if not apart:
                raise _with_hint(err, model, is_sized=is_sized) from err
            why = f"with which it cannot be exported ({err})"
    inputs = {name: shape for name, shape in binding.inputs.items() if name not in apart}
    try:
        graph = _module(location, apart).bind(replace(binding, inputs=inputs))
    except ModelError as err:
        raise _with_hint(err, model, is_sized=is_sized) from err
    why = _needs_leaving_out.setdefault(location, why)
    return replace(graph, notes=(*graph.notes, *_left_out_notes((*left_out, *apart), why)))


# Names whose second modality was tried once and cannot be exported, and why.
_needs_leaving_out: dict[str, str] = {}


def _left_out_notes(names: tuple[str, ...], why: str) -> tuple[Note, ...]:
    if not names:
        return ()
    text = f"the model also takes {', '.join(names)}, {why}; only the rest is predicted"
    return (Note("input-left-out", text),)


def _with_hint(err: ModelError, model: ZooModel, *, is_sized: bool) -> ModelError:
    """Return the error with a word on sizes, where the user gave one."""
    return ModelError(f"{err}; {model.hint}") if is_sized and model.hint else err


@functools.lru_cache(maxsize=4)
def _model(location: str) -> ZooModel:
    """Return the module of a zoo name; the last are kept for the next batch or length."""
    name = parse(location)
    return _zoo(name).build(name)


@functools.lru_cache(maxsize=4)
def _module(location: str, left_out: tuple[str, ...]) -> Source:
    """Return the model as a module with example inputs of its own sizes; it keeps its exports."""
    from slicewise.graph.frontends.torch import ModuleSource

    model = _model(location)
    made = {spec.name: _on_meta(spec) for spec in model.inputs if spec.name not in left_out}
    args, kwargs = ((), made) if model.by_name else (tuple(made.values()), {})
    return ModuleSource(parse(location).model, location, (model.module, args, kwargs))


def _on_meta(spec: InputSpec) -> Any:
    import torch

    return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="meta")


# --- sizes


def _shapes(
    specs: Sequence[InputSpec], binding: Binding, *, label: str
) -> tuple[Mapping[str, tuple[int, ...]], Mapping[str, int]]:
    """Return the input shapes that the binding asks for, and the dimensions of it that exist.

    A dimension such as `seq` is an axis of one or several inputs.
    """
    inputs = [Input(spec.name, _axes(spec)) for spec in specs]
    given = shapes_by_name(inputs, binding, label=label)
    for each in inputs:
        with_shape(each, given.get(each.name), label=label)  # refuses another rank
    known = {symbol for spec in specs for symbol in spec.symbols.values()}
    for symbol in binding.dims:
        if symbol not in known and symbol not in binding.optional_dims:
            raise UsageError(
                f"{label} has no free dimension {symbol!r}; it has"
                f" {', '.join(sorted(known)) or 'none'}; give whole shapes with --input"
                f"{did_you_mean(symbol, known)}"
            )
    used = {symbol: size for symbol, size in binding.dims.items() if symbol in known}
    batch = binding.batch_size or next((shape[0] for shape in given.values()), 1)
    return {
        spec.name: _shape(spec, given.get(spec.name), used, batch, label=label)
        for spec in specs
        if spec.name in given or not used.keys().isdisjoint(spec.symbols.values())
    }, used


def _axes(spec: InputSpec) -> tuple[Axis, ...]:
    sized = (
        Axis(None, spec.symbols[i]) if i in spec.symbols else Axis(size)
        for i, size in enumerate(spec.shape[1:], start=1)
    )
    return (Axis(None, "batch") if spec.has_batch else Axis(spec.shape[0]), *sized)


def _shape(
    spec: InputSpec,
    given: tuple[int, ...] | None,
    dims: Mapping[str, int],
    batch: int,
    *,
    label: str,
) -> tuple[int, ...]:
    shape = list(given or (batch, *spec.shape[1:]))
    for axis, symbol in spec.symbols.items():
        size = dims.get(symbol, shape[axis])
        if given is not None and size != shape[axis]:
            raise UsageError(
                f"{label}: --dim {symbol}={size} contradicts axis {axis} of --input"
                f" {spec.name}={'x'.join(map(str, given))}; give one of them"
            )
        shape[axis] = size
    return tuple(shape)


# --- packages


def _zoo(name: ZooName) -> Zoo:
    """Return the zoo of a name, its packages imported."""
    row = _ROWS.get(name.zoo)
    if row is None:
        raise ModelError(
            f"there is no zoo {name.zoo!r}; zoos are {', '.join(ZOOS)}"
            f"{did_you_mean(name.zoo, ZOOS)}"
        )
    if not is_installed("torch"):
        raise MissingDependency(name.label, package="torch", extra="torch")
    for package in row.packages:
        if not is_installed(package):
            raise MissingDependency(name.label, package=package, extra=None)
    if is_installed("torchvision"):  # transformers imports it where it can
        import_torchvision()
    return cast(Zoo, importlib.import_module(row.module))


def is_installed(package: str) -> bool:
    """Return whether a package can be found, without importing it."""
    return importlib.util.find_spec(package) is not None


# Operators that importing torchvision asks for (torchvision/_meta_registrations.py of 0.28) and
# that its compiled library defines.
_NMS = "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_QUANTISED_NMS = "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
# Definitions of operators vanish with the object that made them.
_kept_alive: list[Any] = []


def import_torchvision() -> Any:
    """Return the package torchvision, also where its compiled operators do not fit this torch.

    Its wheels are built for CUDA; beside a torch for CPUs the library of operators does not load
    and the import stops at the missing `torchvision::nms`. Declaring its signature is enough for
    everything but the boxes of detectors.
    """
    import torch

    try:
        return importlib.import_module("torchvision")
    except RuntimeError as err:
        if "torchvision::nms" not in str(err):
            raise ModelError(
                f"torchvision cannot be imported: {err}; install the torchvision that belongs to"
                f" torch {torch.__version__}"
            ) from err
    library = torch.library.Library("torchvision", "DEF")
    library.define(_NMS)
    library.define(_QUANTISED_NMS)
    _kept_alive.append(library)
    return importlib.import_module("torchvision")
