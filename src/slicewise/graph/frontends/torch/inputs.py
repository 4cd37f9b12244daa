"""Makes a module and its example inputs ready for tracing, or says why they never will be.

Arrays of numpy become tensors, and inputs go to the device that the weights are on: only shapes
and types count. The user's own objects stay as they are.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from slicewise.core.errors import ModelError


def ready_inputs(
    module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, label: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return example inputs as dense tensors on the device of the module.

    `ModelError` for inputs that no program can be traced with: empty, nested, sparse ones.
    """
    from torch.utils import _pytree as pytree

    device = _device(module)
    made: dict[int, Any] = {}  # what is given twice stays one tensor

    def ready(value: Any) -> Any:
        if id(value) not in made:
            made[id(value)] = _ready(value, device, label)
        return made[id(value)]

    return pytree.tree_map(ready, (tuple(args), dict(kwargs)))  # type: ignore[no-any-return]


def _ready(value: Any, device: Any, label: str) -> Any:
    import torch

    if type(value).__module__ == "numpy" and hasattr(value, "__array__"):
        try:
            value = torch.as_tensor(value)
        except TypeError as err:
            raise ModelError(
                f"an example input of {label} is an array of {value.dtype}, a type that torch does"
                " not have; give a tensor"
            ) from err
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_nested or value.layout != torch.strided:
        kind = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
        raise ModelError(
            f"an example input of {label} is a {kind} tensor, whose shape depends on its values;"
            " give a dense one of the shape to predict for, such as torch.empty(8, 128)"
        )
    if 0 in value.shape:
        sizes = "x".join(map(str, value.shape))
        raise ModelError(
            f"an example input of {label} has shape {sizes} and no elements; give one of the"
            " shape to predict for, batch 1 or more"
        )
    is_elsewhere = device is not None and value.device.type != device.type
    return torch.empty_like(value, device=device) if is_elsewhere else value


def _device(module: Any) -> Any:
    """Return the device that all weights of a module are on, None if there is no such one."""
    devices = {each.device.type: each.device for each in _tensors(module)}
    return next(iter(devices.values())) if len(devices) == 1 else None


def _tensors(module: Any) -> Iterator[Any]:
    yield from module.parameters()
    yield from module.buffers()


def refuse_opaque(module: Any, label: str) -> None:
    """Raise `ModelError` for a module with parts that torch.export cannot look into."""
    import torch

    for path, part in module.named_modules():
        place = f"its part {path!r}" if path else "it"
        if isinstance(part, torch.jit.ScriptModule):
            raise ModelError(
                f"{label} is TorchScript ({place} is a {type(part).__name__}), which torch.export"
                " does not take; give the torch.nn.Module that it was made of, or a file of"
                " torch.onnx.export(module, inputs, 'model.onnx', dynamo=False)"
            )
        kind = type(part)
        if kind.__module__.startswith("torch.ao.nn") and "quantized" in kind.__module__:
            raise ModelError(
                f"{label} is quantised ({place} is a {kind.__module__}.{kind.__qualname__}), and"
                " its packed weights have no shapes for torch.export; give the float module, with"
                " precision int8"
            )
    if any(torch.nn.parameter.is_lazy(each) for each in _tensors(module)):
        raise ModelError(
            f"{label} has lazy layers whose sizes are not known yet; call it once with real"
            " inputs, then give it"
        )
