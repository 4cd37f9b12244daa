"""Gives a module arguments whose values decide about shapes, such as the grid of a picture.

An input has no values while a program is traced; a tensor that `forward` itself makes of numbers
has. So such an argument is taken out of the signature and made anew in every call.
"""

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

Numbers = tuple[tuple[int, ...], ...]


def fix_arguments(module: Any, values: Mapping[str, Numbers]) -> None:
    """Make `module` call its forward with integer tensors of `values`, rows of a matrix.

    The signature of `module.forward` loses these arguments. The module goes to the CPU, since the
    meta device keeps no values; memory of its weights is reserved, and never touched.
    """
    import torch

    module.to_empty(device="cpu")
    forward = module.forward
    signature = inspect.signature(forward)

    @functools.wraps(forward)
    def fixed(*args: Any, **kwargs: Any) -> Any:
        with _values_kept():
            made = {name: torch.tensor(rows) for name, rows in values.items()}
            return forward(*args, **kwargs, **made)

    kept = [each for name, each in signature.parameters.items() if name not in values]
    # `signature` must come from here: wraps names the original, which inspect would follow
    fixed.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    module.forward = fixed


@contextlib.contextmanager
def _values_kept() -> Iterator[None]:
    """Let fake tensors that are made of numbers keep their values beyond a single element.

    torch 2.13 follows the values of constants of at most CONSTANT_NUMEL_LIMIT = 1 elements
    (torch/_subclasses/fake_tensor.py); a grid and its running sums have a few more.
    """
    from torch._subclasses import fake_tensor

    before = fake_tensor.CONSTANT_NUMEL_LIMIT
    fake_tensor.CONSTANT_NUMEL_LIMIT = _VALUES
    try:
        yield
    finally:
        fake_tensor.CONSTANT_NUMEL_LIMIT = before


_VALUES = 1_000_000
