"""Builds the models of a zoo with random weights on the device, by slicewise's own zoo.

The same functions as behind `slicewise.load(location)` make the module and tell its inputs, only
the meta device is replaced by the real one: what is measured is what is predicted.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu_campaign.plan import ModelPoint

_WIDTH = {"fp32": 32, "tf32": 32, "amp": 32, "fp16": 16, "bf16": 16}


@dataclass(slots=True)
class Built:
    """A module on the device, cast in place from point to point."""

    location: str
    module: Any
    zoo_model: Any
    storage: str = "float32"

    @property
    def weight_bytes(self) -> int:
        """Bytes of parameters and buffers."""
        tensors = (*self.module.parameters(), *self.module.buffers())
        unique = {id(each): each for each in tensors}
        return sum(each.numel() * each.element_size() for each in unique.values())

    @property
    def parameters(self) -> int:
        """Trainable elements, each tensor counted once."""
        return sum(each.numel() for each in self.module.parameters())

    def can_be(self, precision: str) -> bool:
        """True if casting to `precision` does not widen what was narrowed before."""
        return self.storage == "float32" or _WIDTH[precision] == 16


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model cast and with its inputs: one call of it, the inputs' shapes and their bytes."""

    run: Callable[[], Any]
    shapes: str
    input_bytes: int


def build(location: str, *, device: str) -> Built:
    """Return the model of a zoo name on `device`, random weights, in evaluation mode."""
    from slicewise.graph.frontends import zoo
    from slicewise.graph.frontends.zoo.model import parse

    name = parse(location)
    with _real_device(device):
        zoo_model = zoo._zoo(name).build(name)
    module: Any = zoo_model.module
    return Built(location, module.requires_grad_(False), zoo_model)


@contextlib.contextmanager
def _real_device(device: str) -> Iterator[None]:
    """Let the zoo build on `device` where it would build on the meta device."""
    from slicewise.graph.frontends.zoo import timm, torchvision, transformers

    places: tuple[Any, ...] = (timm, torchvision, transformers)
    before = [place.built_on_meta for place in places]

    def built(make: Callable[[], Any]) -> Any:
        return _made_on(make, device)

    for place in places:
        place.built_on_meta = built
    try:
        yield
    finally:
        for place, kept in zip(places, before, strict=True):
            place.built_on_meta = kept


def _made_on(make: Callable[[], Any], device: str) -> Any:
    import torch

    try:
        with torch.device(device):
            module = make()
    except (NotImplementedError, RuntimeError, TypeError):  # a constructor that computes in numpy
        module = make()
    return module.to(device).eval()


def prepare(built: Built, point: ModelPoint, *, device: str) -> Prepared:
    """Cast the module to the point's precision; return its call.

    tf32 is fp32 storage with TF32 matrix units, fp32 has them off, amp is fp16 autocast over fp32
    weights, fp16 and bf16 cast weights and inputs.
    """
    import torch

    is_tf32 = point.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = is_tf32
    torch.backends.cudnn.allow_tf32 = is_tf32
    storage = {"fp16": "float16", "bf16": "bfloat16"}.get(point.precision, "float32")
    if built.storage != storage:
        built.module.to(getattr(torch, storage))
        built.storage = storage
    values = _inputs(built, point.batch, storage, device=device)
    shapes = ";".join(
        f"{name}={'x'.join(map(str, value.shape))}" for name, value in values.items()
    )
    call = _compiled(built.module) if point.runtime == "torch-compile" else built.module
    args, kwargs = ((), values) if built.zoo_model.by_name else (tuple(values.values()), {})
    is_amp = point.precision == "amp"
    kind = "cuda" if device == "cuda" else "cpu"
    amp_type = torch.float16 if device == "cuda" else torch.bfloat16

    def run() -> Any:
        with torch.no_grad(), torch.autocast(kind, amp_type, enabled=is_amp):
            return call(*args, **kwargs)

    taken = sum(value.numel() * value.element_size() for value in values.values())
    return Prepared(run, shapes, taken)


def _compiled(module: Any) -> Any:
    import torch

    config: Any = torch._dynamo.config
    for name in ("recompile_limit", "cache_size_limit"):  # the older torch has the second name
        if hasattr(config, name):
            setattr(config, name, 64)
    return torch.compile(module, dynamic=False)


def _inputs(built: Built, batch: int, storage: str, *, device: str) -> Mapping[str, Any]:
    """Return random inputs: ids below the vocabulary's size, masks of ones, standard normals."""
    import torch

    generator = torch.Generator(device=device).manual_seed(0)
    made: dict[str, Any] = {}
    for spec in built.zoo_model.inputs:
        shape = (batch, *spec.shape[1:]) if spec.has_batch else spec.shape
        dtype = getattr(torch, storage if spec.dtype.startswith("float") else spec.dtype)
        if dtype.is_floating_point:
            made[spec.name] = torch.randn(shape, device=device, generator=generator).to(dtype)
        elif "mask" in spec.name:
            made[spec.name] = torch.ones(shape, dtype=dtype, device=device)
        else:
            top = _vocabulary(built.module)
            made[spec.name] = torch.randint(
                0, top, shape, dtype=dtype, device=device, generator=generator
            )
    return made


def _vocabulary(module: Any) -> int:
    """Return the smallest vocabulary of the configuration and its parts; 100 where none is."""
    config = module.config
    holders = [config, *(getattr(config, key, None) for key in getattr(config, "sub_configs", {}))]
    sizes = [getattr(each, "vocab_size", None) for each in holders]
    return min((size for size in sizes if isinstance(size, int) and size > 0), default=100)
