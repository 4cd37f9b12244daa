"""Opens a .pt2 file as a module that can be called, its weights with it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slicewise.core.errors import MeasureError
from slicewise.graph.frontends.torch.export import input_values, quiet


def program_module(path: str, shapes: Sequence[tuple[int, ...]]) -> Any:
    """Return the exported program in the file as a module to be called with `shapes`.

    `MeasureError` if it cannot be read or holds for other shapes alone.
    """
    import torch

    try:
        with quiet():
            program = torch.export.load(Path(path))
    except Exception as err:  # torch raises what its reading meets
        line = " ".join(str(err).split())[:200]
        raise MeasureError(
            f"model {path!r} cannot be read by torch {torch.__version__}: {line}; save it again"
            " with this version"
        ) from err
    for (name, value), shape in zip(input_values(program), shapes, strict=True):
        own = tuple(value.shape)
        if any(isinstance(a, int) and a != b for a, b in zip(own, shape, strict=True)):
            raise MeasureError(
                f"model {path!r} was exported for {name} of shape {'x'.join(map(str, own))} and"
                f" does not run with {'x'.join(map(str, shape))}; measure it with its own, or"
                " export it with dynamic_shapes"
            )
    module = program.module()
    example = program.example_inputs
    return module if example is None or _is_flat(example) else _unflattened(module, example)


def _is_flat(example: Any) -> bool:
    """Return whether the program is called with tensors in a row and nothing else."""
    import torch

    args, kwargs = example
    return not kwargs and all(isinstance(each, torch.Tensor) for each in args)


def _unflattened(module: Any, example: Any) -> Any:
    """Return a module that takes the tensors in a row and gives them as the example is nested."""
    import torch
    from torch.utils import _pytree as pytree

    leaves, spec = pytree.tree_flatten(example)

    class Unflattened(torch.nn.Module):  # type: ignore[misc]  # torch is not typed
        def __init__(self) -> None:
            super().__init__()
            self.inner = module
            self.training = False

        def forward(self, *values: Any) -> Any:
            given = iter(values)
            whole = [next(given) if isinstance(each, torch.Tensor) else each for each in leaves]
            args, kwargs = pytree.tree_unflatten(whole, spec)
            return self.inner(*args, **kwargs)

    return Unflattened()
