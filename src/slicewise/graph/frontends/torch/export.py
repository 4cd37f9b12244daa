"""Traces a torch.nn.Module with torch.export: nothing is run, no weight is copied.

One export serves every batch where the batch can stay a symbol. The module comes back as it was.
What torch refuses becomes one `ModelError` (`torch/errors.py`).
"""

import contextlib
import inspect
import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slicewise.core.errors import ModelError
from slicewise.core.notes import Note
from slicewise.graph.frontends.torch.errors import batch_error, export_error
from slicewise.graph.frontends.torch.lives import mark_lifetimes

_TRACED_BATCH = 2  # torch.export takes 0 and 1 for constants


@dataclass(frozen=True, slots=True)
class Exported:
    """An exported program. `batch_symbol` is the symbol that stands for the batch, None where
    the program holds for the batch that it was exported with only."""

    program: Any
    batch_symbol: str | None = None
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor among the example inputs, by its flattened name."""

    name: str
    path: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: str


def export(
    module: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    label: str,
    batch_axes: Mapping[str, int | None] | None = None,
    batch: int | None = None,
) -> Exported:
    """Return the program of `module` called with `args` and `kwargs`.

    `batch_axes` gives the axis that is the batch by flattened input name; None: the leading axis
    that all share. It becomes a symbol where the module allows that; where not, the program holds
    for `batch` alone (None: that of the example inputs). The module is in evaluation mode while
    it is traced and as before afterwards. `ModelError` in one line where torch.export refuses.
    """
    args, kwargs = in_order(module, args, kwargs, label=label)
    leaves = leaves_of(module, args, kwargs)
    axes = _shared_leading(leaves) if batch_axes is None else batch_axes
    axes = {leaf.name: axes[leaf.name] for leaf in leaves if axes.get(leaf.name) is not None}
    notes = _mode_notes(module)
    with evaluating(module):
        if axes:
            symbolic = _export_symbolic(module, args, kwargs, leaves, axes)
            if symbolic is not None:
                return Exported(*symbolic, notes)
        fixed = {leaf.name: _resized(leaf.shape, axes.get(leaf.name), batch) for leaf in leaves}
        try:
            of_batch = reshaped(module, args, kwargs, fixed)
            return Exported(_export(module, *of_batch, None), None, notes)
        except Exception as err:
            if axes and batch is not None and _holds(module, args, kwargs):
                own = {leaf.shape[axes[leaf.name] or 0] for leaf in leaves if leaf.name in axes}
                raise batch_error(err, batch, min(own), axes, label=label) from err
            raise export_error(err, module, args, kwargs, label=label) from err


def _holds(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether the module can be exported with these very inputs."""
    try:
        _export(module, args, kwargs, None)
    except Exception:  # whatever: what is told is the error of the batch asked
        return False
    return True


def in_order(
    module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, label: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with keywords in the order of the module's signature.

    `ModelError` where they do not fit it.
    """
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):
        return tuple(args), dict(kwargs)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as err:
        raise export_error(err, module, args, kwargs, label=label) from err
    places = {name: i for i, name in enumerate(signature.parameters)}
    return tuple(args), dict(sorted(kwargs.items(), key=lambda kv: places.get(kv[0], 1 << 30)))


def leaves_of(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Leaf, ...]:
    """Return the tensors among the arguments, in the order in which torch.export lists them."""
    from torch.utils import _pytree as pytree

    named = _by_parameter(module, args, kwargs)
    found, _ = pytree.tree_flatten_with_path(named)
    leaves = []
    for path, value in found:
        if _is_tensor(value):
            name = "_".join(_text(key) for key in path)
            name = re.sub(r"\W", "_", name.lower() if len(path) > 1 else name)
            dtype = str(value.dtype).removeprefix("torch.")
            leaves.append(Leaf(name, tuple(path), tuple(value.shape), dtype))
    return tuple(leaves)


def _by_parameter(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        return {**{f"args_{i}": value for i, value in enumerate(args)}, **kwargs}


def _text(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _shared_leading(leaves: Sequence[Leaf]) -> Mapping[str, int]:
    """Return axis 0 for each input if all that have two axes or more lead with one size."""
    sizes = {leaf.shape[0] for leaf in leaves if len(leaf.shape) >= 2}
    if len(sizes) != 1:
        return {}
    return {leaf.name: 0 for leaf in leaves if leaf.shape and leaf.shape[0] in sizes}


@contextlib.contextmanager
def evaluating(module: Any) -> Iterator[None]:
    """Put a module into evaluation mode; each part has its own mode again afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        module.eval()
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def _mode_notes(module: Any) -> tuple[Note, ...]:
    if not module.training:
        return ()
    text = "the module was in training mode; it was read as in evaluation: no dropout, statistics"
    return (Note("training-mode", f"{text} of normalisations as learnt"),)


def _export_symbolic(
    module: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    leaves: Sequence[Leaf],
    axes: Mapping[str, int | None],
) -> tuple[Any, str] | None:
    """Return a program whose batch is a symbol and the symbol's name; None if there is none."""
    import torch

    sizes = {leaf.shape[axis] for leaf in leaves if (axis := axes.get(leaf.name)) is not None}
    if len(sizes) != 1:
        return None
    batch = max(_TRACED_BATCH, *sizes) if sizes != {1} else _TRACED_BATCH
    wide = {leaf.name: _resized(leaf.shape, axes.get(leaf.name), batch) for leaf in leaves}
    new_args, new_kwargs = reshaped(module, args, kwargs, wide)
    dims = {
        leaf.name: {axis: torch.export.Dim.AUTO}
        for leaf in leaves
        if (axis := axes.get(leaf.name)) is not None
    }
    specs = _dynamic_shapes(module, new_args, new_kwargs, dims)
    try:
        program = _export(module, new_args, new_kwargs, specs)
    except Exception:  # torch raises what its tracing meets; the static export tells it
        return None
    symbol = _batch_symbol(program, {n: a for n, a in axes.items() if a is not None}, leaves)
    return None if symbol is None else (program, symbol)


def _resized(shape: tuple[int, ...], axis: int | None, size: int | None) -> tuple[int, ...]:
    return shape if axis is None or size is None else (*shape[:axis], size, *shape[axis + 1 :])


def reshaped(
    module: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with tensors of the shapes wanted, on the device each is on.

    A tensor that has its shape already is kept; of another one the values are lost. What was one
    tensor given twice stays one: self-attention asks whether query and key are the same object.
    """
    import torch
    from torch.utils import _pytree as pytree

    names = iter([leaf.name for leaf in leaves_of(module, args, kwargs)])
    made: dict[tuple[int, tuple[int, ...]], Any] = {}

    def replaced(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        shape = shapes.get(next(names), tuple(value.shape))
        if tuple(value.shape) == shape:
            return value
        if (id(value), shape) not in made:
            made[id(value), shape] = value.new_empty(shape)
        return made[id(value), shape]

    bound = inspect.signature(module.forward).bind(*args, **kwargs)
    named = pytree.tree_map(replaced, dict(bound.arguments))
    bound.arguments.update(named)
    positional = bound.args[: len(args)] if len(bound.args) >= len(args) else bound.args
    flat = {**bound.kwargs}
    for name, value in zip(
        list(inspect.signature(module.forward).parameters)[len(args) :],
        bound.args[len(args) :],
        strict=False,
    ):
        flat[name] = value
    return tuple(positional), {name: flat[name] for name in kwargs if name in flat}


def _dynamic_shapes(
    module: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    dims: Mapping[str, Mapping[int, Any]],
) -> Any:
    """Return the dynamic shapes that torch.export wants, nested as the arguments are."""
    import torch
    from torch.utils import _pytree as pytree

    names = iter([leaf.name for leaf in leaves_of(module, args, kwargs)])

    def spec(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        return dims.get(next(names)) or None

    return pytree.tree_map(spec, _by_parameter(module, args, kwargs))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep torch from talking: what it logs, warns and prints of a failure is in the error."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _export(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], specs: Any) -> Any:
    import torch

    with torch.no_grad(), quiet():
        program = torch.export.export(
            module, args, dict(kwargs), dynamic_shapes=specs, strict=False
        )
        program = without_transforms(program)
        mark_lifetimes(program, module, args, kwargs)
        return program


def without_transforms(program: Any) -> Any:
    """Return a program in which torch.func's transforms (vmap, jvp) are worked out.

    Between their marks an exported program shows shapes of one item; a second trace gives the
    operators on whole tensors. A program without them comes back as it is.
    """
    if not any(str(getattr(node.target, "__module__", "")).startswith("torch._functorch")
               for node in program.graph.nodes):  # fmt: skip
        return program
    with quiet():
        return program.run_decompositions({})


def _batch_symbol(program: Any, axes: Mapping[str, int], leaves: Sequence[Leaf]) -> str | None:
    """Return the symbol of the first batch axis; None where torch made a number of one.

    Inputs that no operator compares have symbols of their own, all of the same size.
    """
    found: list[str] = []
    inputs = [value for _, value in input_values(program)]
    for leaf, value in zip(leaves, inputs, strict=False):
        if leaf.name in axes:
            size = value.shape[axes[leaf.name]]
            found.append("" if isinstance(size, int) else str(size.node.expr))
    are_symbols = all(re.fullmatch(r"[a-zA-Z]\w*", symbol) for symbol in found)
    return found[0] if found and are_symbols else None


def input_values(program: Any) -> list[tuple[str, Any]]:
    """Return name and fake tensor of every tensor that the program's user gives, in order."""
    names = set(program.graph_signature.user_inputs)
    return [
        (node.name, node.meta["val"])
        for node in program.graph.nodes
        if node.op == "placeholder"
        and node.name in names
        and hasattr(node.meta.get("val"), "stride")
    ]


def refuse_non_module(module: Any, label: str) -> None:
    """Raise `ModelError` for what torch.export takes no module."""
    import torch

    if not isinstance(module, torch.nn.Module):
        raise ModelError(
            f"{label} is a {type(module).__name__}; give a torch.nn.Module with example inputs"
        )
