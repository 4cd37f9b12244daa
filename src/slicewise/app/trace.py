"""The predicted timeline as a Chrome trace: open it in https://ui.perfetto.dev or chrome://tracing.

Format: "Trace Event Format" (Google, 2016): complete events 'X', counters 'C', metadata 'M'; `ts`
and `dur` in microseconds. One process for each prediction. Computes nothing but sums.
"""

from collections.abc import Iterator, Sequence

import msgspec

from slicewise._version import __version__
from slicewise.app.kernels import LaunchedKernel, launched_kernels
from slicewise.app.words import clean, runtime_words, subject
from slicewise.core.cost import Prediction
from slicewise.core.document import PredictionSet

Event = dict[str, object]
_HOST_LANE, _KERNEL_LANE = 1, 2


def encode_trace(result: PredictionSet) -> bytes:
    """Return the trace of all predictions as one JSON document.

    On the lane `host` the part of the latency that is not the device's, on `kernels` one event for
    each launch behind it, no two overlapping; their durations add up to the latency. The counter
    `memory, bytes` holds weights, runtime (with workspace) and living activations, where these are
    known.
    """
    events = [
        event
        for i, made in enumerate(result.predictions)
        for event in _prediction_events(made, process=i + 1)
    ]
    document = {
        "displayTimeUnit": "ms",
        "otherData": {
            "made_by": f"slicewise {__version__}",
            "kind": "prediction; nothing was run",
        },
        "traceEvents": events,
    }
    return msgspec.json.encode(document) + b"\n"


def _prediction_events(made: Prediction, *, process: int) -> Iterator[Event]:
    yield from _names(made, process)
    if made.host_ms:
        yield _event("host", process, _HOST_LANE, 0.0, made.host_ms, {"part": "host"})
    kernels = launched_kernels(made)
    knows_memory = any(kernel.alive_bytes for kernel in kernels)
    # Sums of milliseconds are exact (core/units.py), and so is a thousand times that up to one
    # second: beyond it an event may seem to begin one rounding before the last one ended.
    start_ms, end_us = made.host_ms, 0.0
    if knows_memory and made.host_ms:
        yield _memory(made, process, 0.0, 0)
    for kernel in kernels:
        ms = kernel.latency_ms
        start_us = max(start_ms * 1e3, end_us)
        if knows_memory:
            yield _memory(made, process, start_us, kernel.alive_bytes)
        event = _event(clean(kernel.title), process, _KERNEL_LANE, start_us, ms, _about(kernel))
        end_us = start_us + ms * 1e3
        start_ms += ms
        yield event
    if knows_memory:
        yield _memory(made, process, end_us, 0)


def _names(made: Prediction, process: int) -> Iterator[Event]:
    labels = f"{made.precision}, {runtime_words(made)}, {made.latency_ms.value:.6g} ms"
    for name, lane, args in (
        ("process_name", 0, {"name": subject(made)}),
        ("process_labels", 0, {"labels": labels}),
        ("process_sort_index", 0, {"sort_index": process}),
        ("thread_name", _HOST_LANE, {"name": "host"}),
        ("thread_name", _KERNEL_LANE, {"name": "kernels"}),
    ):
        yield {"ph": "M", "name": name, "pid": process, "tid": lane, "args": args}


def _event(
    name: str, process: int, lane: int, start_us: float, ms: float, args: dict[str, object]
) -> Event:
    category = "host" if lane == _HOST_LANE else str(args["kind"])
    return {
        "ph": "X", "name": name, "cat": category, "pid": process, "tid": lane,
        "ts": start_us, "dur": ms * 1e3, "args": args,
    }  # fmt: skip


def _about(kernel: LaunchedKernel) -> dict[str, object]:
    main = kernel.main
    return {
        "nodes": _names_of(kernel),
        "kind": main.kind.value,
        "limit": main.limit,
        "flops": kernel.flops,
        "moved_bytes": kernel.moved_bytes,
        "intensity_flop_per_byte": kernel.intensity_flop_per_byte,
        "flop_per_s": kernel.flop_per_s,
    }


def _names_of(kernel: LaunchedKernel) -> Sequence[str]:
    return [clean(node.name) for node in kernel.nodes]


def _memory(made: Prediction, process: int, at_us: float, alive_bytes: int) -> Event:
    memory = made.memory_bytes
    held = memory.runtime + memory.workspace
    args = {"weights": memory.weights, "runtime": held, "activations": alive_bytes}
    return {
        "ph": "C",
        "name": "memory, bytes",
        "pid": process,
        "tid": 0,
        "ts": at_us,
        "args": args,
    }
