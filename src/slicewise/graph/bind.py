"""Gives every dimension of a model's inputs a number: user's shapes, then symbols, then batch.

A pure function on a ModelProto: no file, no weights, no inference of inner shapes (that follows
in `shapes.py`). What stays free is one `ModelError` that names all of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx

from slicewise.core.errors import ModelError, UsageError
from slicewise.core.graph import Binding
from slicewise.core.notes import Note
from slicewise.core.plugins import did_you_mean
from slicewise.graph.batch import BatchAxes, find_batch_axes
from slicewise.graph.check import listed
from slicewise.graph.dimensions import (
    Input,
    Shape,
    declared_inputs,
    free_symbols,
    inner_symbols,
    parts_of,
    tensor_type_of,
    type_notes,
    value_of,
)
from slicewise.graph.given import (
    batch_axes_by_name,
    checked,
    quoted,
    shapes_by_name,
    text_of_inputs,
    with_shape,
)


@dataclass(frozen=True, slots=True)
class Bound:
    """A model whose inputs all have numbers for dimensions.

    `batch_axes` gives the axis that is the batch for each input that has one; `batch_change` is
    (old, new) where that axis was changed, a free axis counting as 1: exporters bake a 1 into
    Reshape even then. `changed` says that a dimension which the model had fixed is another one
    now, so that shapes stored in the file may be stale. `binding` is what of the user's figures
    the model has: optional dimensions that it lacks are gone.
    """

    model: onnx.ModelProto
    batch_size: int
    batch_axes: Mapping[str, int]
    batch_change: tuple[int, int] | None
    changed: bool
    binding: Binding
    notes: tuple[Note, ...] = ()

    @property
    def batch_inputs(self) -> frozenset[str]:
        """The inputs that have the batch as one of their axes."""
        return frozenset(self.batch_axes)


def bind(model: onnx.ModelProto, binding: Binding, *, label: str) -> Bound:
    """Return `model` with every input dimension a number.

    Shapes of `binding.inputs` win, then `binding.dims`, then the batch (`graph/batch.py` says
    which axes that is). `batch_size` None keeps the model's own batch, 1 where it is free, unless
    the other two fix it. `label` names the model in messages. `ModelError` names all that stays
    free; `UsageError` where the user's figures are impossible, unknown or contradict each other.
    """
    asked = checked(binding)
    declared = declared_inputs(model, label=label)
    shapes = shapes_by_name(declared, asked, label=label)
    inputs = tuple(with_shape(each, shapes.get(each.name), label=label) for each in declared)
    binding = _applicable(asked, declared, model, label=label)
    symbols = _bind_symbols(declared, inputs, binding)
    told = batch_axes_by_name(inputs, binding, label=label)
    axes = _with_unranked(find_batch_axes(declared, model, told), told, declared, inputs)
    size = _batch_size(inputs, axes, symbols, binding)
    followers = {s: size for s in axes.symbols if binding.batch_size or s not in symbols}
    symbols = {**symbols, **followers}
    final, unbound = _final_shapes(
        inputs,
        symbols,
        axes,
        size,
        free=free_symbols(declared),
        forced=binding.batch_size is not None,
    )
    unranked = [each.name for each in inputs if each.axes is None]
    if unbound or unranked:
        absent = [name for name in asked.dims if name not in binding.dims]
        raise ModelError(_unbound_message(inputs, unbound, unranked, absent, label=label))
    if size > 1 and not axes.axes and not axes.symbols:
        raise ModelError(_no_batch_message(inputs, size, label=label))
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    _write_shapes(bound, final, symbols)
    return Bound(
        model=bound,
        batch_size=size,
        batch_axes={n: axis for n, axis in axes.axes.items() if final[n][axis] == size},
        batch_change=None if axes.own_size == size else (axes.own_size, size),
        changed=_is_changed(declared, final),
        binding=binding,
        notes=(*type_notes(model), *_batch_notes(declared, final, axes, binding)),
    )


def _is_changed(declared: Sequence[Input], final: Mapping[str, Shape]) -> bool:
    return any(
        axis.value is not None and axis.value != size
        for each in declared
        for axis, size in zip(each.axes or (), final[each.name], strict=False)
    )


# --- notes


def _batch_notes(
    declared: Sequence[Input], final: Mapping[str, Shape], axes: BatchAxes, binding: Binding
) -> tuple[Note, ...]:
    """Return what was done to fixed batches, each kind in one note."""
    by_name = {each.name: each for each in declared}
    replaced: dict[tuple[int, int, int], list[Input]] = {}
    assumed: dict[int, list[Input]] = {}
    for name, k in axes.axes.items():
        each, new = by_name[name], final[name][k]
        old = _number_in_file(each, k)
        if old is not None and old != new:
            replaced.setdefault((old, k, new), []).append(each)
        elif old == new > 1 and binding.batch_size is None and name not in axes.certain:
            assumed.setdefault(new, []).append(each)
    notes = []
    if replaced:
        text = "; ".join(
            f"the fixed {f'leading {old}' if k == 0 else f'{old} on axis {k}'} of"
            f" {listed(e.name for e in group)} was replaced by {new}"
            for (old, k, new), group in replaced.items()
        )
        if axes.kept:
            text += f"; {listed(axes.kept)} of that one axis was kept"
        if any(old > 1 and group[0].name not in axes.certain
               for (old, _, _), group in replaced.items()):  # fmt: skip
            text += _other_axis(next(group for (old, _, _), group in replaced.items() if old > 1))
        notes.append(Note("batch-fixed", text))
    for size, group in assumed.items():
        names = listed(each.name for each in group)
        text = f"the fixed leading axis {size} of {names} is taken as the batch"
        notes.append(Note("batch-assumed", text + _other_axis(group)))
    return tuple(notes)


def _number_in_file(each: Input, k: int) -> int | None:
    """Return the number that the file has on an axis: 0 is one, but bound as if it were free."""
    if each.axes is None:
        return None
    return 0 if each.axes[k].written == "0" else each.axes[k].value


def _other_axis(inputs: Sequence[Input]) -> str:
    """Return how to say that the leading axis is not the batch: an axis of 1 is likelier."""
    each = inputs[0]
    ones = (str(k) for k, axis in enumerate(each.axes or ()) if k > 0 and axis.value == 1)
    return f"; --batch-axis {quoted(each.name)}={next(ones, 'none')} if it is not"


# --- symbols and batch


def _applicable(
    binding: Binding, declared: Sequence[Input], model: onnx.ModelProto, *, label: str
) -> Binding:
    """Return the binding without optional dimensions that the model lacks; refuse others."""
    free = free_symbols(declared)
    parts = (part for symbol in free for part in parts_of(symbol, free))
    known = tuple(dict.fromkeys((*free, *parts, *inner_symbols(model))))
    for name in binding.dims:
        if name not in known and name not in binding.optional_dims:
            raise UsageError(
                f"{label} has no free dimension {name!r}; it has"
                f" {listed(known) or 'none, all its dimensions are fixed'}"
                f"{did_you_mean(name, known)}"
            )
    return replace(binding, dims={n: size for n, size in binding.dims.items() if n in known})


def _bind_symbols(
    declared: Sequence[Input], inputs: Sequence[Input], binding: Binding
) -> Mapping[str, int]:
    """Return symbols bound by `--dim` and by the shapes given with `--input`."""
    bound = dict(binding.dims)
    origin = {name: f"--dim {name}={size}" for name, size in bound.items()}
    for before, after in zip(declared, inputs, strict=True):
        if not after.given or before.axes is None or after.axes is None:
            continue
        for axis, given in zip(before.axes, after.axes, strict=True):
            if axis.value is not None or given.value is None:
                continue
            source = f"--input {after.name}={after}"
            if bound.setdefault(axis.symbol, given.value) != given.value:
                raise UsageError(
                    f"dimension {axis.symbol!r} is given two values: {bound[axis.symbol]} by"
                    f" {origin[axis.symbol]}, {given.value} by {source}; give one"
                )
            origin.setdefault(axis.symbol, source)
    return bound


def _with_unranked(
    axes: BatchAxes,
    told: Mapping[str, int | None],
    declared: Sequence[Input],
    inputs: Sequence[Input],
) -> BatchAxes:
    """Add inputs whose rank only the user knows: their leading axis is free, so the batch."""
    unranked = {
        after.name: 0
        for before, after in zip(declared, inputs, strict=True)
        if before.axes is None and len(after.axes or ()) >= 2 and after.name not in told
    }
    return replace(axes, axes={**axes.axes, **unranked})


def _batch_size(
    inputs: Sequence[Input], axes: BatchAxes, symbols: Mapping[str, int], binding: Binding
) -> int:
    """Return the batch: the option, else what `--dim` or `--input` say, else the model's own."""
    by_dim = {name: size for name, size in binding.dims.items() if name in axes.symbols}
    by_input = {
        each: each.axes[axes.axes[each.name]].value or 1
        for each in inputs
        if each.given and each.axes and each.name in axes.axes
    }
    batch = binding.batch_size
    if batch is None:
        known = (*by_dim.values(), *by_input.values())
        known += tuple(symbols[s] for s in sorted(axes.symbols) if s in symbols)
        return next(iter(known), axes.own_size)
    for name, size in by_dim.items():
        if size != batch:
            raise UsageError(
                f"batch {batch} contradicts --dim {name}={size}: {name!r} is the batch; give one"
                " of the two"
            )
    for each, size in by_input.items():
        # a 1 is what a shape is written with before the batch is thought of
        if size not in (1, batch):
            raise UsageError(
                f"batch {batch} contradicts --input {each.name}={each}: axis"
                f" {axes.axes[each.name]} of {each.name!r} is the batch; give {batch} or 1 there,"
                f" or --batch-axis {quoted(each.name)}=none"
            )
    return batch


# --- result


def _final_shapes(
    inputs: Sequence[Input],
    symbols: Mapping[str, int],
    axes: BatchAxes,
    batch_size: int,
    *,
    free: Sequence[str],
    forced: bool,
) -> tuple[Mapping[str, Shape], Mapping[str, Sequence[str]]]:
    """Return the shape of every input, and where each dimension stands that is still free.

    `forced`: the user asked for this batch, so that it also replaces the 1 of a shape given with
    `--input`.
    """
    final: dict[str, Shape] = {}
    unbound: dict[str, list[str]] = {}
    for each in inputs:
        sizes: list[int] = []
        for i, axis in enumerate(each.axes or ()):
            takes_batch = axes.axes.get(each.name) == i
            takes_batch &= forced or (axis.value is not None and not each.given)
            known = axis.value or value_of(axis.symbol, symbols, free)
            size = batch_size if takes_batch else known
            if size is None:
                for name in _missing(axis.symbol, symbols, free):
                    place = f"axis {i} of {each.name}"
                    place += f", {axis.written} in the file" if axis.written else ""
                    unbound.setdefault(name, []).append(place)
            sizes.append(size or 0)
        final[each.name] = tuple(sizes)
    return final, unbound


def _missing(symbol: str, symbols: Mapping[str, int], free: Sequence[str]) -> Sequence[str]:
    return [name for name in parts_of(symbol, free) if name not in symbols] or [symbol]


def _unbound_message(
    inputs: Sequence[Input],
    unbound: Mapping[str, Sequence[str]],
    unranked: Sequence[str],
    absent: Sequence[str],
    *,
    label: str,
) -> str:
    parts = [f"{name!r} ({', '.join(places)})" for name, places in unbound.items()]
    parts += [f"the whole shape of {name!r}" for name in unranked]
    options = [f"--dim {quoted(name)}=128" for name in unbound]
    options += [f"--input {quoted(name)}=1x3x224x224" for name in unranked]
    example = next((e for e in inputs if e.axes and any(a.value is None for a in e.axes)), None)
    instead = ""
    if example is not None and example.axes is not None and unbound:
        shape = "x".join(
            str(a.value or (1 if i == 0 else 128)) for i, a in enumerate(example.axes)
        )
        instead = f", or whole shapes, as in --input {quoted(example.name)}={shape}"
    count = len(parts)
    lacks = f" (it has none called {listed(absent)})" if absent else ""
    return (
        f"{label} leaves {count} dimension{'s' if count > 1 else ''} free: {', '.join(parts)}"
        f"{lacks}; give {' '.join(options)}{instead}"
    )


def _no_batch_message(inputs: Sequence[Input], size: int, *, label: str) -> str:
    wide = next((each.name for each in inputs if len(each.axes or ()) > 1), "")
    option = f", say which axis is, as in --batch-axis {quoted(wide)}=1" if wide else ""
    return (
        f"batch {size} cannot be set: no input of {label} has a batch axis"
        f" ({text_of_inputs(inputs)}); leave the batch at 1{option}, or give whole shapes with"
        " --input"
    )


def _write_shapes(
    model: onnx.ModelProto, shapes: Mapping[str, Shape], symbols: Mapping[str, int]
) -> None:
    """Write input shapes, and the symbols bound, into the model in place."""
    for value in model.graph.input:
        if value.name in shapes:
            tensor = tensor_type_of(value.type)
            assert tensor is not None
            tensor.shape.ClearField("dim")
            for size in shapes[value.name]:
                tensor.shape.dim.add().dim_value = size
            tensor.shape.SetInParent()
    free = tuple(symbols)
    for value in (*model.graph.output, *model.graph.value_info):
        tensor = tensor_type_of(value.type)
        for dim in tensor.shape.dim if tensor is not None and tensor.HasField("shape") else ():
            known = value_of(dim.dim_param, symbols, free) if dim.dim_param else None
            if known is not None:
                dim.dim_value = known
