"""Peak memory: weights, activations alive at once, workspace, and what the runtime holds.

    value = weights + activations + workspace + runtime

Activations follow from tensor lifetimes in execution order (`lifetimes.py`); workspace is what
kernels, libraries and allocators take beside them (`workspace.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slicewise.core.cost import GraphWork, Kind, MemoryEstimate, NodeWork
from slicewise.core.device import Device
from slicewise.core.graph import Graph
from slicewise.core.notes import Note
from slicewise.core.units import format_capacity
from slicewise.predict import workspace
from slicewise.predict.correction import MemoryCorrection
from slicewise.predict.lifetimes import Lifetimes, trace
from slicewise.predict.runtimes import Runtime

SOURCE = "tensor lifetimes"


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one graph under one runtime on one kind of device.

    `scratch_bytes`: by how much scratch memory of kernels raises the peak of activations.
    `possible_scratch_bytes`: the most that a convolution would take if it copied all it touches.
    `alive_bytes`: activations alive while each node runs. `is_told`: the source tells views
    and what the program holds.
    """

    weight_bytes: int
    activation_bytes: int
    scratch_bytes: int
    possible_scratch_bytes: int
    uses_products: bool
    is_told: bool
    alive_bytes: tuple[int, ...]


def measure_footprint(
    graph: Graph, work: GraphWork, *, runtime: str, device_kind: str
) -> Footprint:
    """Return the footprint of one inference. Time O(nodes + edges)."""
    lives = trace(
        graph,
        work.nodes,
        work.kernels,
        workspace.HABITS[runtime],
        block_bytes=workspace.BLOCK_BYTES.get((runtime, device_kind), 1),
    )
    launched = _launched(work, lives)
    peak = lives.peak_bytes
    for step, node in launched:
        taken = workspace.scratch_bytes(node, runtime=runtime, device_kind=device_kind)
        if taken:
            peak = max(peak, lives.step_bytes[step] + taken)
    moved = (node.work.moved_bytes for _, node in launched if node.kind is Kind.CONV)
    return Footprint(
        weight_bytes=weight_bytes(graph),
        activation_bytes=lives.peak_bytes,
        scratch_bytes=peak - lives.peak_bytes,
        possible_scratch_bytes=max(moved, default=0),
        uses_products=any(node.kind in workspace.USES_PRODUCTS for _, node in launched),
        is_told=any(node.storage_of is not None for node in graph.nodes)
        and all(note.code != "lifetimes-by-module" for note in graph.notes),
        alive_bytes=lives.alive_bytes,
    )


def _launched(work: GraphWork, lives: Lifetimes) -> Sequence[tuple[int, NodeWork]]:
    """Return what runs in each step: kernels, or nodes where none are known."""
    if work.kernels is None:
        return list(zip(lives.step_of, work.nodes, strict=True))
    return [(k, kernel.work) for k, kernel in enumerate(work.kernels)]


def estimate_memory(
    footprint: Footprint,
    device: Device,
    runtime: Runtime,
    *,
    correction: MemoryCorrection | None = None,
) -> MemoryEstimate:
    """Return peak bytes of one inference with its 90 % interval.

    Under a correction each part is multiplied by its factor, the runtime holds what was measured,
    and the interval is that of the measurements.
    """
    made = _estimate_alone(footprint, device, runtime)
    return made if correction is None else corrected(made, correction)


def corrected(made: MemoryEstimate, correction: MemoryCorrection) -> MemoryEstimate:
    """Return the estimate with the factors of a correction on its parts."""
    weights = round(made.weights * correction.weights)
    activations = round(made.activations * correction.activations)
    beside = round(made.workspace * correction.workspace)
    value = weights + activations + beside + correction.runtime_bytes
    return MemoryEstimate(
        value=value,
        low=max(1, min(value, round(value * correction.band.low))),
        high=max(value, round(value * correction.band.high)),
        weights=weights,
        activations=activations,
        runtime=correction.runtime_bytes,
        source=f"{made.source}, measured factors",
        workspace=beside,
    )


def _estimate_alone(footprint: Footprint, device: Device, runtime: Runtime) -> MemoryEstimate:
    where = (runtime.name, device.kind)
    weights, activations = footprint.weight_bytes, footprint.activation_bytes
    held = runtime.gpu_bytes if device.kind == "gpu" else runtime.cpu_bytes
    library = 0
    if footprint.uses_products and device.kind == "gpu":
        library = workspace.library_bytes(runtime.name, device.architecture)
    beside = _rounded(
        activations, footprint.scratch_bytes + library, workspace.SEGMENT_BYTES.get(where, 1)
    )
    spread = workspace.ACTIVATIONS[runtime.name]
    if footprint.is_told and runtime.name == "torch-eager":
        spread = workspace.ACTIVATIONS_TOLD[device.kind]
    stored = workspace.WEIGHTS.get(where, workspace.WEIGHTS_OTHERS)
    possible = max(beside, footprint.possible_scratch_bytes + library)
    return MemoryEstimate(
        value=weights + activations + beside + held,
        low=round(weights * stored.low + activations * spread.low + held * workspace.RUNTIME.low),
        high=round(
            weights * stored.high
            + activations * spread.high
            + possible
            + workspace.SEGMENT_SLACK_BYTES.get(where, 0)
            + held * workspace.RUNTIME.high
        ),
        weights=weights,
        activations=activations,
        runtime=held,
        source=SOURCE,
        workspace=beside,
    )


def _rounded(activations: int, beside: int, segment_bytes: int) -> int:
    """Return `beside`, grown so that both together fill whole segments."""
    return -(-(activations + beside) // segment_bytes) * segment_bytes - activations


def memory_notes(needed: MemoryEstimate, device: Device) -> tuple[Note, ...]:
    """Return a Note where the model would not, or may not, fit into the device."""
    if needed.low > device.memory_bytes:
        verdict = "it does not fit"
    elif needed.value > device.memory_bytes:
        verdict = "it would probably not fit"
    elif needed.high > device.memory_bytes:
        verdict = f"with up to {format_capacity(needed.high)} it may not fit"
    else:
        return ()
    return (
        Note(
            "memory-exceeded",
            f"needs {format_capacity(needed.value)}, {device.name} has"
            f" {format_capacity(device.memory_bytes)}; {verdict}",
        ),
    )


def weight_bytes(graph: Graph) -> int:
    """Return the bytes of all constants as stored, those of bodies included."""
    own = sum(constant.stored_bytes for constant in graph.constants.values())
    return own + sum(weight_bytes(body) for node in graph.nodes for body in node.bodies)
