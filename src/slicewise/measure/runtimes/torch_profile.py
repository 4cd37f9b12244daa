"""Times of single operators by torch's profiler, each with the module that called it.

The profile is taken in runs of its own: hooks on the modules mark where each operator belongs,
and are gone afterwards.
"""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from slicewise.core.measurement import NodeTime

_MODULE = "module:"  # in front of a module's path in the name of its mark


def profile(
    run: Callable[[], None], module: Any, runs: int, *, is_gpu: bool
) -> tuple[NodeTime, ...]:
    """Return the mean time of each operator over `runs` calls of `run`.

    An operator is the outermost ATen call, what it calls included; its time is that on the CPU,
    or that of its kernels on a GPU. `origin` is the path of the module whose forward called it,
    '' in a compiled program, whose own code is one entry 'compiled'.
    """
    import torch
    from torch.profiler import ProfilerActivity

    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_gpu else [])]
    with _marked(module):
        run()
        with torch.profiler.profile(activities=kinds) as profiler:
            for _ in range(runs):
                run()
    return _node_times(profiler.events(), runs, is_gpu=is_gpu)


@contextlib.contextmanager
def _marked(module: Any) -> Iterator[None]:
    """Let each part of an eager module mark its calls; a compiled one stays as it is."""
    import torch

    open_marks: list[Any] = []

    def enter(path: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            mark = torch.profiler.record_function(_MODULE + path)
            mark.__enter__()
            open_marks.append(mark)

        return hook

    def leave(*_: Any) -> None:
        open_marks.pop().__exit__(None, None, None)

    is_compiled = hasattr(module, "_orig_mod")
    handles = []
    for path, part in () if is_compiled else module.named_modules():
        handles.append(part.register_forward_pre_hook(enter(path)))
        handles.append(part.register_forward_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _node_times(events: Any, runs: int, *, is_gpu: bool) -> tuple[NodeTime, ...]:
    total_us: defaultdict[tuple[str, str], float] = defaultdict(float)
    calls: defaultdict[tuple[str, str], int] = defaultdict(int)
    for event in events:
        if str(event.device_type).endswith("CUDA") or event.name.startswith(_MODULE):
            continue  # a kernel is in the time of the operator that launched it
        if _is_operator(event):
            if any(map(_is_operator, _above(event))):
                continue
            spent_us = event.device_time_total if is_gpu else event.cpu_time_total
            key = (_module_of(event), event.name.rpartition("::")[2])
        else:  # of a compiled program: what is in no operator
            spent_us = event.self_device_time_total if is_gpu else event.self_cpu_time_total
            if event.name.startswith(("cuda", "cu", "Activity Buffer", "ProfilerStep", "[")):
                continue
            key = ("", event.name if event.name.startswith("triton") else "compiled")
        if spent_us > 0:
            total_us[key] += spent_us
            calls[key] += 1
    return tuple(
        NodeTime(origin, kind, us / 1e3 / runs, calls[origin, kind] / runs)
        for (origin, kind), us in total_us.items()
    )


def _is_operator(event: Any) -> bool:
    return "::" in event.name and not event.name.startswith(_MODULE)


def _above(event: Any) -> Iterator[Any]:
    while (event := event.cpu_parent) is not None:
        yield event


def _module_of(event: Any) -> str:
    """Return the path of the innermost module that was running."""
    for each in _above(event):
        if each.name.startswith(_MODULE):
            return str(each.name).removeprefix(_MODULE)
    return ""
