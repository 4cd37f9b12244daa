"""Builds a module on the meta device: shapes and types of weights, no memory for them."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


def built_on_meta(make: Callable[[], Any]) -> Any:
    """Return the module that `make` builds, every parameter and buffer on the meta device.

    A constructor that reads values of tensors (widths of a RegNet, rates of a schedule) cannot run
    on that device; then tensors are made on the CPU and a parameter leaves it the moment that it
    is registered, before anything is written to its memory.
    """
    import torch

    try:
        with torch.device("meta"):
            return make().eval()
    except (NotImplementedError, RuntimeError) as err:
        if "meta" not in str(err):
            raise
    with _parameters_to_meta():
        return make().to("meta").eval()


@contextlib.contextmanager
def _parameters_to_meta() -> Iterator[None]:
    import torch

    register = torch.nn.Module.register_parameter

    def registered(module: Any, name: str, parameter: Any) -> None:
        register(module, name, parameter)
        if parameter is not None and parameter.device.type != "meta":
            moved = torch.nn.Parameter(parameter.to("meta"), parameter.requires_grad)
            module._parameters[name] = moved

    # In place: what has read the class already finds it there. Single-threaded like torch's own
    # construction contexts.
    torch.nn.Module.register_parameter = registered
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register
