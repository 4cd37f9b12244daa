"""What the user asks of a PyTorch program: sizes for its symbols, its batch, whole input shapes.

The rules are those for ONNX (`graph/bind.py`): the inputs are declared as those of a model
without nodes, and bound by the same code. Nothing is traced here.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slicewise.core.errors import UsageError
from slicewise.core.graph import LARGEST_DIMENSION, Binding
from slicewise.core.notes import Note
from slicewise.graph.frontends.torch.export import Leaf, input_values

_BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Asked:
    """Input shapes in numbers. `batch_change` is (old, new) where a fixed batch is another one."""

    shapes: Mapping[str, tuple[int, ...]]
    batch_size: int
    batch_axes: Mapping[str, int]
    batch_change: tuple[int, int] | None
    binding: Binding
    notes: tuple[Note, ...] = ()
    assumed: tuple[Note, ...] = ()


def ask(program: Any, binding: Binding, *, label: str) -> Asked:
    """Return the input shapes of an exported program under `binding`.

    Its symbols go by their own names (`s77`). `ModelError` names what stays free; `UsageError`
    where the user's figures are impossible, unknown or contradict each other.
    """
    declared = {name: _written(value.shape) for name, value in input_values(program)}
    return _bind(declared, binding, label=label)


def ask_module(leaves: Sequence[Leaf], binding: Binding, *, label: str) -> Asked:
    """Return the input shapes of a module under `binding`; the examples give what it leaves open.

    The axis that the examples share as the batch is free, under the name 'batch'; the model's own
    batch is theirs. `assumed` are the notes that hold where it cannot stay free.
    """
    declared: dict[str, Sequence[int | str]] = {leaf.name: leaf.shape for leaf in leaves}
    own = _bind(declared, Binding(batch_axes=binding.batch_axes), label=label)
    for name, axis in own.batch_axes.items():
        shape = declared[name]
        declared[name] = (*shape[:axis], _BATCH, *shape[axis + 1 :])
    is_given = _BATCH in binding.dims or any(
        name in own.batch_axes or not name for name in binding.inputs
    )
    size = binding.batch_size
    if size is None and own.batch_axes and not is_given:
        size = own.batch_size
    asked = _bind(declared, replace(binding, batch_size=size), label=label)
    kept = replace(asked.binding, batch_size=binding.batch_size)
    assumed = own.notes if binding.batch_size is None else ()
    return replace(asked, binding=kept, batch_change=None, assumed=assumed)


def _written(shape: Sequence[Any]) -> tuple[int | str, ...]:
    """Return a shape with symbols as text."""
    return tuple(
        size if isinstance(size, int) else re.sub(r"\s", "", str(size.node.expr)) for size in shape
    )


def _bind(declared: Mapping[str, Sequence[int | str]], binding: Binding, *, label: str) -> Asked:
    import onnx

    from slicewise.graph.bind import bind

    values = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, list(shape))
        for name, shape in declared.items()
    ]
    model = onnx.helper.make_model(onnx.helper.make_graph([], "inputs", values, []))
    bound = bind(model, binding, label=label)
    shapes = {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in bound.model.graph.input
    }
    return Asked(
        shapes=shapes,
        batch_size=bound.batch_size,
        batch_axes=bound.batch_axes,
        batch_change=bound.batch_change,
        binding=bound.binding,
        notes=bound.notes,
    )


def symbol_sizes(program: Any, asked: Asked) -> Mapping[Any, int] | None:
    """Return the size of each symbol of the program under the shapes asked.

    None where the program has numbers in place of what is asked, so that no sizes give it.
    Symbols of sizes that depend on data have their upper bound where they have one.
    """
    sizes: dict[Any, int] = {}
    derived: list[tuple[Any, int]] = []
    for name, value in input_values(program):
        for size, wanted in zip(value.shape, asked.shapes[name], strict=True):
            if isinstance(size, int):
                if size != wanted:
                    return None
                continue
            expression = size.node.expr
            if expression.is_Symbol:
                if sizes.setdefault(expression, wanted) != wanted:
                    return None
            else:
                derived.append((expression, wanted))
    for expression, wanted in derived:
        _solve(expression, wanted, sizes)
    if any(int(each.xreplace(_exact(sizes))) != wanted for each, wanted in derived):
        return None
    return sizes


def check_ranges(program: Any, sizes: Mapping[Any, int], *, label: str) -> None:
    """Raise `UsageError` for a size that the program was not exported for.

    A lower bound of 2 is no bound: torch writes it wherever a batch of 1 was not tried.
    """
    for symbol, allowed in program.range_constraints.items():
        size = sizes.get(symbol)
        low, high = _bound(allowed.lower, 0), _bound(allowed.upper, LARGEST_DIMENSION)
        if size is not None and ((size < low and low > 2) or size > high):
            raise UsageError(
                f"dimension {symbol}={size} is outside the range that {label} was exported for,"
                f" {low} to {high}; give a size within it"
            )


def _bound(bound: Any, default: int) -> int:
    try:
        return min(int(bound), LARGEST_DIMENSION)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return default  # torch's infinities


def _exact(sizes: Mapping[Any, int]) -> Mapping[Any, Any]:
    import sympy

    return {symbol: sympy.Integer(size) for symbol, size in sizes.items()}


def _solve(expression: Any, wanted: int, sizes: dict[Any, int]) -> None:
    """Find the one symbol that a derived size leaves open."""
    import sympy

    left = expression.xreplace(_exact(sizes))
    free = sorted(left.free_symbols, key=str)
    if len(free) != 1:
        return
    found = sympy.solve(left - wanted, free[0])
    whole = [int(each) for each in found if each.is_integer and each > 0]
    if whole:
        sizes[free[0]] = whole[0]
