"""The true peak of activation bytes while a module runs on the CPU, seen in two ways.

`dispatch_peak`: a hook below every operator books each new storage and each one freed: tensors of
the program, exact. `allocator_peak`: the events of PyTorch's CPU allocator, which also sees what
kernels take for themselves while they run. Both count inputs, and neither weights nor buffers.
"""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True, slots=True)
class Peak:
    """The most bytes alive at once, the operator that ran then, and the largest storages alive:
    bytes with the operator that made them."""

    bytes_: int
    operator: str
    largest: tuple[tuple[int, str], ...] = ()


def dispatch_peak(
    module: "nn.Module", args: "tuple[torch.Tensor, ...]", kwargs: Mapping[str, Any]
) -> Peak:
    """Return the peak of live storages during one forward pass, inputs included.

    Without gradients, but not in inference mode: there the hook would not see the operators that
    composite ones, such as `linear`, are made of.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    weights = {t.untyped_storage()._cdata for t in (*module.parameters(), *module.buffers())}

    class Book(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.alive: dict[int, tuple[int, str]] = {}
            self.bytes_ = 0
            self.peak = Peak(0, "")

        def enter(self, thing: object, maker: str) -> None:
            if not isinstance(thing, torch.Tensor):
                return
            storage = thing.untyped_storage()
            key = storage._cdata
            if key in weights or key in self.alive:
                return
            self.alive[key] = (storage.nbytes(), maker)
            self.bytes_ += storage.nbytes()
            weakref.finalize(storage, self.leave, key)

        def leave(self, key: int) -> None:
            self.bytes_ -= self.alive.pop(key)[0]

        def note_peak(self, operator: str) -> None:
            if self.bytes_ > self.peak.bytes_:
                largest = sorted(self.alive.values(), reverse=True)[:8]
                self.peak = Peak(self.bytes_, operator, tuple(largest))

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made = func(*args, **(kwargs or {}))
            name = str(func).removeprefix("aten.")
            for thing in tree_leaves(made):
                self.enter(thing, name)
            self.note_peak(name)
            return made

    with torch.no_grad(), Book() as book:
        for thing in tree_leaves((args, kwargs)):
            book.enter(thing, "input")
        book.note_peak("input")
        module(*args, **kwargs)
    peak: Peak = book.peak
    return peak


def allocator_peak(
    module: "nn.Module", args: "tuple[torch.Tensor, ...]", kwargs: Mapping[str, Any]
) -> int:
    """Return the peak of bytes handed out by the CPU allocator during one forward pass.

    Bytes of the inputs, allocated before, are added.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile
    from torch.utils._pytree import tree_leaves

    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        module(*args, **kwargs)
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    alive = peak = 0  # bytes
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    given: int = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
    return given + peak
