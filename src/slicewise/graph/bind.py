"""Gives every dimension of a model's inputs a number: user's shapes, then symbols, then batch.

A pure function on a ModelProto: no file, no weights, no inference of inner shapes (that follows
in `shapes.py`). What stays free is one `ModelError` that names all of it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

import onnx

from slicewise.core.errors import ModelError, UsageError
from slicewise.core.graph import Binding
from slicewise.core.notes import Note
from slicewise.core.plugins import did_you_mean
from slicewise.graph.batch import BatchAxes, find_batch_axes
from slicewise.graph.check import listed
from slicewise.graph.dimensions import (
    Axis,
    Input,
    Shape,
    declared_inputs,
    free_symbols,
    inner_symbols,
    parts_of,
    tensor_type_of,
    value_of,
)


@dataclass(frozen=True, slots=True)
class Bound:
    """A model whose inputs all have numbers for dimensions.

    `batch_inputs` are the inputs whose leading axis is the batch; `batch_change` is (old, new)
    where that axis was changed, a free axis counting as 1: exporters bake a 1 into Reshape even
    then. `changed` says that a dimension which the model had fixed is another one now, so that
    shapes stored in the file may be stale.
    """

    model: onnx.ModelProto
    batch_size: int
    batch_inputs: frozenset[str]
    batch_change: tuple[int, int] | None
    changed: bool
    notes: tuple[Note, ...] = ()


def bind(model: onnx.ModelProto, binding: Binding, *, label: str) -> Bound:
    """Return `model` with every input dimension a number.

    Shapes of `binding.inputs` win, then `binding.dims`, then the batch (`graph/batch.py` says
    which axes that is). `batch_size` None keeps the model's own batch, 1 where it is free, unless
    the other two fix it. `label` names the model in messages. `ModelError` names all that stays
    free; `UsageError` where the user's figures are impossible, unknown or contradict each other.
    """
    binding = _checked(binding)
    declared = declared_inputs(model, label=label)
    shapes = _shapes_by_name(declared, binding, label=label)
    inputs = tuple(_with_shape(each, shapes.get(each.name), label=label) for each in declared)
    symbols = _bind_symbols(declared, inputs, model, binding)
    axes = _with_unranked(find_batch_axes(declared, model), declared, inputs)
    size = _batch_size(inputs, axes, symbols, binding)
    followers = {s: size for s in axes.symbols if binding.batch_size or s not in symbols}
    symbols = {**symbols, **followers}
    final = _final_shapes(
        inputs,
        symbols,
        axes,
        size,
        free=free_symbols(declared),
        forced=binding.batch_size is not None,
        label=label,
    )
    if size > 1 and not axes.members and not axes.symbols:
        raise ModelError(
            f"batch {size} cannot be set: no input of {label} has a batch axis"
            f" ({_text_of_inputs(inputs)}); leave the batch at 1, or give whole shapes with"
            " --input"
        )
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    _write_shapes(bound, final, symbols)
    return Bound(
        model=bound,
        batch_size=size,
        batch_inputs=frozenset(name for name in axes.members if final[name][0] == size),
        batch_change=None if axes.own_size == size else (axes.own_size, size),
        changed=_is_changed(declared, final),
        notes=_batch_notes(axes, size),
    )


def _is_changed(declared: Sequence[Input], final: Mapping[str, Shape]) -> bool:
    return any(
        axis.value is not None and axis.value != size
        for each in declared
        for axis, size in zip(each.axes or (), final[each.name], strict=False)
    )


def _batch_notes(axes: BatchAxes, size: int) -> tuple[Note, ...]:
    if axes.own_size in (1, size):
        return ()
    text = f"the model's fixed batch of {axes.own_size} was replaced with {size}"
    return (Note("batch-fixed", text),)


# --- what the user gave


def _checked(binding: Binding) -> Binding:
    """Return the binding in plain integers; refuse numbers that no dimension can be."""
    batch, dims, inputs = binding.batch_size, binding.dims, binding.inputs
    if batch is not None and not _is_size(batch):
        raise UsageError(
            f"batch {batch!r} is not a whole number of at least 1; give one, as in --batch 8"
        )
    for name, size in dims.items():
        if not _is_size(size):
            raise UsageError(
                f"dimension {name}={size!r} is not a whole number of at least 1; give one, as in"
                f" --dim {_quoted(name)}=128"
            )
    for name, shape in inputs.items():
        prefix = f"{name}=" if name else ""
        if not all(_is_size(size) for size in shape):
            text = "x".join(str(size) for size in shape)
            raise UsageError(
                f"input shape {prefix}{text} has a size that is not a whole number of at least 1;"
                f" give such numbers, as in --input {prefix}1x3x224x224"
            )
    return Binding(
        batch_size=None if batch is None else int(batch),
        dims={name: int(size) for name, size in dims.items()},
        inputs={name: tuple(int(size) for size in shape) for name, shape in inputs.items()},
    )


def _is_size(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return False
    return 1 <= value.__index__() < 2**63


def _shapes_by_name(
    inputs: Sequence[Input], binding: Binding, *, label: str
) -> Mapping[str, Shape]:
    """Return the user's shapes by input name; '' is the only input."""
    names = [each.name for each in inputs]
    shapes = {name: shape for name, shape in binding.inputs.items() if name}
    if "" in binding.inputs:
        if len(names) != 1:
            raise UsageError(
                f"an input shape without a name needs a model with one input; {label} has"
                f" {len(names)}: {listed(names) or 'none'}; name it, as in --input"
                f" {names[0] if names else 'NAME'}=1x3x224x224"
            )
        unnamed = binding.inputs[""]
        if shapes.get(names[0], unnamed) != unnamed:
            raise UsageError(
                f"input {names[0]!r} is given two shapes, {_text(unnamed)} and"
                f" {_text(shapes[names[0]])}; give one"
            )
        shapes[names[0]] = unnamed
    for name in shapes:
        if name not in names:
            raise UsageError(
                f"{label} has no input {name!r}; its inputs are {listed(names) or 'none'}"
                f"{did_you_mean(name, names)}"
            )
    return shapes


def _with_shape(each: Input, shape: Shape | None, *, label: str) -> Input:
    if shape is None:
        return each
    if each.axes is not None and len(each.axes) != len(shape):
        raise UsageError(
            f"input {each.name!r} of {label} has {len(each.axes)} axes ({each}), the given shape"
            f" {_text(shape)} has {len(shape)}; give a shape of the same rank"
        )
    return Input(each.name, tuple(Axis(size) for size in shape), given=True)


# --- symbols and batch


def _bind_symbols(
    declared: Sequence[Input], inputs: Sequence[Input], model: onnx.ModelProto, binding: Binding
) -> Mapping[str, int]:
    """Return symbols bound by `--dim` and by the shapes given with `--input`."""
    free = free_symbols(declared)
    parts = (part for symbol in free for part in parts_of(symbol, free))
    known = tuple(dict.fromkeys((*free, *parts, *inner_symbols(model))))
    for name in binding.dims:
        if name not in known:
            raise UsageError(
                f"the model has no free dimension {name!r}; it has"
                f" {listed(known) or 'none, all its dimensions are fixed'}"
                f"{did_you_mean(name, known)}"
            )
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
    axes: BatchAxes, declared: Sequence[Input], inputs: Sequence[Input]
) -> BatchAxes:
    """Add inputs whose rank only the user knows: their leading axis is free, so the batch."""
    unranked = {
        after.name
        for before, after in zip(declared, inputs, strict=True)
        if before.axes is None and after.axes is not None and len(after.axes) >= 2
    }
    return BatchAxes(axes.symbols, axes.free | unranked, axes.fixed)


def _batch_size(
    inputs: Sequence[Input], axes: BatchAxes, symbols: Mapping[str, int], binding: Binding
) -> int:
    """Return the batch: the option, else what `--dim` or `--input` say, else the model's own."""
    by_dim = {name: size for name, size in binding.dims.items() if name in axes.symbols}
    if binding.batch_size is not None:
        for name, size in by_dim.items():
            if size != binding.batch_size:
                raise UsageError(
                    f"batch {binding.batch_size} contradicts --dim {name}={size}: {name!r} is the"
                    " batch; give one of the two"
                )
        return binding.batch_size
    for size in by_dim.values():
        return size
    for each in inputs:
        if each.given and each.axes and each.name in axes.members and each.axes[0].value:
            return each.axes[0].value
    return next((symbols[s] for s in sorted(axes.symbols) if s in symbols), axes.own_size)


# --- result


def _final_shapes(
    inputs: Sequence[Input],
    symbols: Mapping[str, int],
    axes: BatchAxes,
    batch_size: int,
    *,
    free: Sequence[str],
    forced: bool,
    label: str,
) -> Mapping[str, Shape]:
    """Return the shape of every input; `ModelError` naming every dimension still free.

    `forced`: the user asked for this batch, so that it also replaces a leading axis of a shape
    given with `--input`.
    """
    final: dict[str, Shape] = {}
    unbound: dict[str, list[str]] = {}
    unranked = [each.name for each in inputs if each.axes is None]
    for each in inputs:
        sizes: list[int] = []
        for i, axis in enumerate(each.axes or ()):
            takes_batch = i == 0 and each.name in axes.members
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
    if unbound or unranked:
        raise ModelError(_unbound_message(inputs, unbound, unranked, label=label))
    return final


def _missing(symbol: str, symbols: Mapping[str, int], free: Sequence[str]) -> Sequence[str]:
    return [name for name in parts_of(symbol, free) if name not in symbols] or [symbol]


def _unbound_message(
    inputs: Sequence[Input],
    unbound: Mapping[str, Sequence[str]],
    unranked: Sequence[str],
    *,
    label: str,
) -> str:
    parts = [f"{name!r} ({', '.join(places)})" for name, places in unbound.items()]
    parts += [f"the whole shape of {name!r}" for name in unranked]
    options = [f"--dim {_quoted(name)}=128" for name in unbound]
    options += [f"--input {_quoted(name)}=1x3x224x224" for name in unranked]
    example = next((e for e in inputs if e.axes and any(a.value is None for a in e.axes)), None)
    instead = ""
    if example is not None and example.axes is not None and unbound:
        shape = "x".join(
            str(a.value or (1 if i == 0 else 128)) for i, a in enumerate(example.axes)
        )
        instead = f", or whole shapes, as in --input {_quoted(example.name)}={shape}"
    count = len(parts)
    return (
        f"{label} leaves {count} dimension{'s' if count > 1 else ''} free: {', '.join(parts)};"
        f" give {' '.join(options)}{instead}"
    )


def _quoted(name: str) -> str:
    """Return a name as one word of a command line."""
    return name if re.fullmatch(r"[\w./:@+-]+", name) else f"'{name}'"


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


def _text(shape: Shape) -> str:
    return "x".join(str(size) for size in shape)


def _text_of_inputs(inputs: Sequence[Input]) -> str:
    shown = [f"{e.name}: {e}" for e in inputs]
    return ", ".join(shown) or "it has no inputs"
