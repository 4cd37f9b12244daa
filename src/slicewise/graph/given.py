"""What the user gave for a model, checked against the inputs that the model declares.

Figures become plain integers, names become inputs and axes, or one `UsageError` says what is
wrong. It chooses nothing that was not given.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import SupportsIndex

from slicewise.core.errors import UsageError
from slicewise.core.graph import LARGEST_DIMENSION, Binding
from slicewise.core.plugins import did_you_mean
from slicewise.graph.check import listed
from slicewise.graph.dimensions import Axis, Input, Shape


def checked(binding: Binding) -> Binding:
    """Return the binding in plain integers; refuse numbers that no dimension can be."""
    batch, dims, inputs = binding.batch_size, binding.dims, binding.inputs
    if batch is not None and (wrong := _wrong_size(batch)):
        raise UsageError(f"batch {batch!r} {wrong}; give one, as in --batch 8")
    for name, size in dims.items():
        if wrong := _wrong_size(size):
            raise UsageError(
                f"dimension {name}={size!r} {wrong}; give one, as in --dim {quoted(name)}=128"
                f"{_EMPTY_PAST if _is_zero(size) else ''}"
            )
    for name, shape in inputs.items():
        prefix = f"{name}=" if name else ""
        if wrong := next(filter(None, map(_wrong_size, shape)), ""):
            raise UsageError(
                f"input shape {prefix}{text_of(shape)} has a size that {wrong}; give such numbers,"
                f" as in --input {prefix}1x3x224x224"
                f"{_EMPTY_PAST if any(map(_is_zero, shape)) else ''}"
            )
    for name, axis in binding.batch_axes.items():
        if axis is not None and not _is_integer(axis):
            raise UsageError(
                f"batch axis {axis!r} of {name or 'every input'!r} is no whole number; give one,"
                f" as in --batch-axis {name + '=' if name else ''}1, or none"
            )
    return replace(
        binding,
        batch_size=None if batch is None else int(batch),
        dims={name: int(size) for name, size in dims.items()},
        inputs={name: tuple(int(size) for size in shape) for name, shape in inputs.items()},
        batch_axes={n: None if a is None else int(a) for n, a in binding.batch_axes.items()},
    )


# Exporters of decoders write the first step as one with a past of no tokens.
_EMPTY_PAST = "; for an empty cache of past keys and values give 1, or export without past inputs"


def _is_zero(value: object) -> bool:
    return _is_integer(value) and value == 0


def _is_integer(value: object) -> bool:
    return isinstance(value, SupportsIndex) and not isinstance(value, bool)


def _wrong_size(value: object) -> str:
    """Return what is wrong with a size, '' if nothing is."""
    if not isinstance(value, SupportsIndex) or isinstance(value, bool) or value.__index__() < 1:
        return "is not a whole number of at least 1"
    if value.__index__() > LARGEST_DIMENSION:
        return f"is not a whole number of at most {LARGEST_DIMENSION} (2^31 - 1)"
    return ""


def shapes_by_name(
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
                f"input {names[0]!r} is given two shapes, {text_of(unnamed)} and"
                f" {text_of(shapes[names[0]])}; give one"
            )
        shapes[names[0]] = unnamed
    for name in shapes:
        _check_name(name, names, label=label)
    return shapes


def _check_name(name: str, names: Sequence[str], *, label: str) -> None:
    if name not in names:
        raise UsageError(
            f"{label} has no input {name!r}; its inputs are {listed(names) or 'none'}"
            f"{did_you_mean(name, names)}"
        )


def with_shape(each: Input, shape: Shape | None, *, label: str) -> Input:
    """Return the input with the user's shape, if there is one."""
    if shape is None:
        return each
    if each.axes is not None and len(each.axes) != len(shape):
        raise UsageError(
            f"input {each.name!r} of {label} has {len(each.axes)} axes ({each}), the given shape"
            f" {text_of(shape)} has {len(shape)}; give a shape of the same rank"
        )
    return Input(each.name, tuple(Axis(size) for size in shape), given=True)


def batch_axes_by_name(
    inputs: Sequence[Input], binding: Binding, *, label: str
) -> Mapping[str, int | None]:
    """Return the user's batch axes by input name, counted from 0; None: the input has no batch.

    '' stands for all inputs that have such an axis and are not named themselves.
    """
    names = [each.name for each in inputs]
    given = {name: axis for name, axis in binding.batch_axes.items() if name}
    for name in given:
        _check_name(name, names, label=label)
    found: dict[str, int | None] = {}
    for each in inputs:
        axis = given.get(each.name, binding.batch_axes.get(""))
        if each.name not in given and "" not in binding.batch_axes:
            continue
        if axis is None:
            found[each.name] = None
        elif each.axes is not None and -len(each.axes) <= axis < len(each.axes):
            found[each.name] = axis % len(each.axes)
        elif each.name in given:
            _refuse_axis(each, axis, label=label)
    if not found and "" in binding.batch_axes:
        raise UsageError(
            f"--batch-axis {binding.batch_axes['']}: no input of {label} has such an axis"
            f" ({text_of_inputs(inputs)}); count from 0, or from the end with -1"
        )
    _check_agreement(inputs, found, label=label)
    return found


def _refuse_axis(each: Input, axis: int, *, label: str) -> None:
    option = f"--batch-axis {quoted(each.name)}"
    if each.axes is None:
        raise UsageError(
            f"{option}={axis} needs the shape of {each.name!r}, which {label} leaves open; give it"
            f" with --input {quoted(each.name)}=1x3x224x224"
        )
    last = len(each.axes) - 1
    allowed = f"0 to {last} or {option}=none" if each.axes else f"{option}=none"
    raise UsageError(
        f"{option}={axis} is no axis of input {each.name!r} of {label}, which is {each}; give"
        f" {allowed}"
    )


def _check_agreement(
    inputs: Sequence[Input], found: Mapping[str, int | None], *, label: str
) -> None:
    """Refuse batch axes that the model has different numbers for."""
    sizes: dict[int, str] = {}
    for each in inputs:
        axis = found.get(each.name)
        size = each.axes[axis].value if each.axes and axis is not None else None
        if size is not None and not each.given:
            sizes.setdefault(size, f"axis {axis} of {each.name!r} is {size}")
    if len(sizes) > 1:
        raise UsageError(
            f"--batch-axis gives {label} batches of different sizes: {', '.join(sizes.values())};"
            " name the input and its axis, or none, as in --batch-axis"
            f" {quoted(inputs[0].name)}=none"
        )


def quoted(name: str) -> str:
    """Return a name as one word of a command line."""
    return name if re.fullmatch(r"[\w./:@+-]+", name) else f"'{name}'"


def text_of(shape: Sequence[object]) -> str:
    """Return a shape as it is given on the command line."""
    return "x".join(str(size) for size in shape)


def text_of_inputs(inputs: Sequence[Input]) -> str:
    """Return all inputs with their shapes, for messages."""
    return ", ".join(f"{each.name}: {each}" for each in inputs) or "it has no inputs"
