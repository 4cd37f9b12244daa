"""Builds a zoo model with memory and random weights, to be run and not only read.

The constructor runs on the CPU, so that every buffer it computes (position tables, masks, anchors)
is right; only the filling of weights with random numbers is left out and done anew, cheaply and
the same each time. No weight is downloaded. Values are such that activations stay finite.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from slicewise.core.errors import ModelError
from slicewise.graph.frontends.zoo import _zoo
from slicewise.graph.frontends.zoo.model import ZooModel, parse

# Fillings in place and the steps of them (of truncated normals, say) that need not be done on a
# parameter, which is filled afterwards.
_RANDOM = frozenset(
    {"normal_", "uniform_", "bernoulli_", "exponential_", "log_normal_", "cauchy_", "random_",
     "geometric_", "erfinv_", "clamp_", "mul_", "add_", "div_", "sub_"}
)  # fmt: skip
_POOL = 1 << 20  # random numbers made once and used again and again
_SPREAD = 0.05  # of biases around 0 and of scales around 1
_SEED = 20_240_229


def build_real(location: str) -> ZooModel:
    """Return the zoo model in evaluation mode, on the CPU, its weights random and repeatable.

    A matrix or kernel is normal with variance 1 / fan-in, which keeps the size of activations
    through layers (LeCun et al., Efficient BackProp, 1998, 4.6); a bias is small, a scale near 1.
    Errors as those of the zoo, and `MemoryError`.
    """
    name = parse(location)
    zoo = _zoo(name)
    with _built_as_is(zoo):
        model = zoo.build(name)
    module: Any = model.module
    fill_weights(module, label=name.label)
    module.requires_grad_(False)
    return model


@contextlib.contextmanager
def _built_as_is(zoo: Any) -> Iterator[None]:
    """Let a zoo build on the CPU instead of the meta device."""
    import torch

    meta, to_empty = zoo.built_on_meta, torch.nn.Module.to_empty

    def built(make: Callable[[], Any]) -> Any:
        # what a constructor draws by itself is the same each time, too
        with torch.random.fork_rng(devices=[]), _without_filling():
            torch.manual_seed(_SEED)
            return make().eval()

    # a part of the zoo moves what it built on the meta device to the CPU; here it is there
    torch.nn.Module.to_empty = lambda module, **_: module
    zoo.built_on_meta = built
    try:
        yield
    finally:
        zoo.built_on_meta, torch.nn.Module.to_empty = meta, to_empty


def _without_filling() -> Any:
    """Return the mode of torch in which parameters are not filled with random numbers.

    What is only reserved is zero instead of what happened to be in memory.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class WithoutFilling(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if func is torch.empty:
                kwargs.pop("memory_format", None)
                return torch.zeros(*args, **kwargs)
            if (
                getattr(func, "__name__", "") in _RANDOM
                and args
                and isinstance(args[0], torch.nn.Parameter)
            ):
                return args[0]
            return func(*args, **kwargs)

    return WithoutFilling()


def fill_weights(module: Any, *, label: str) -> None:
    """Fill every floating-point parameter of `module` in place.

    What a constructor set in a vector other than a bias (scales, decays) stays unless it is 0.
    `ModelError` if a parameter is on the meta device.
    """
    import torch

    generator = torch.Generator().manual_seed(_SEED)
    pool = torch.randn(_POOL, generator=generator).repeat(2)
    with torch.no_grad():
        for i, (name, parameter) in enumerate(module.named_parameters()):
            if parameter.device.type == "meta":
                raise ModelError(
                    f"{label} cannot be built with memory: its {name} is on the meta device;"
                    " give another model"
                )
            if parameter.is_floating_point() and parameter.numel():
                # each parameter starts elsewhere, so that no two are alike
                start = (i * 7919) % _POOL
                _fill(name, parameter, pool[start : start + min(parameter.numel(), _POOL)])


def _fill(name: str, parameter: Any, numbers: Any) -> None:
    if parameter.ndim >= 2:
        fan_in = parameter.numel() // parameter.shape[0]
        _copy_over(parameter, numbers * fan_in**-0.5)
    elif name.endswith("bias"):
        _copy_over(parameter, numbers * _SPREAD)
    elif not bool(parameter.isfinite().all()) or not bool(parameter.any()):
        _copy_over(parameter, 1 + numbers * _SPREAD)


def _copy_over(parameter: Any, values: Any) -> None:
    """Copy `values` into the parameter, over and over until it is full."""
    whole, rest = divmod(parameter.numel(), values.numel())
    if not parameter.data.is_contiguous():  # another layout of memory: by way of a copy
        tiled = values.repeat(whole + 1)[: parameter.numel()]
        parameter.data.copy_(tiled.view(parameter.shape))
        return
    flat = parameter.data.view(-1)
    flat[: whole * values.numel()].view(whole, values.numel()).copy_(values.expand(whole, -1))
    flat[whole * values.numel() :].copy_(values[:rest])


def real_module(location: str) -> object:
    """Return the module of `build_real` alone."""
    return build_real(location).module
