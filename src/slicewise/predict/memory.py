"""Peak memory: weights, the activations alive at once, and what the runtime holds.

A first peak: every tensor lives from the node that makes it to its last reader, views own no
bytes, nodes run in graph order, nothing is updated in place. Allocator rounding and convolution
workspaces are not modelled; the interval covers them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slicewise.core.cost import GraphWork, Kind, MemoryEstimate, NodeWork
from slicewise.core.device import Device
from slicewise.core.graph import Graph, Node, reads_of
from slicewise.core.notes import Note
from slicewise.core.units import format_capacity
from slicewise.predict.runtimes import Runtime

# Factors on the activation peak. Low: in-place activations and fusion halve the peak of a
# convolution net. High: caching allocators and workspaces. Our estimate, until measured.
_ACTIVATIONS_LOW, _ACTIVATIONS_HIGH = 0.5, 1.6
_RUNTIME_LOW, _RUNTIME_HIGH = 0.6, 1.8
_WEIGHTS_HIGH = 1.05


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes that do not depend on the device: weights as stored, and the activation peak."""

    weight_bytes: int
    activation_bytes: int


def measure_footprint(graph: Graph, work: GraphWork) -> Footprint:
    """Return the footprint of one inference."""
    return Footprint(weight_bytes(graph), peak_activation_bytes(graph, work.nodes))


def estimate_memory(footprint: Footprint, device: Device, runtime: Runtime) -> MemoryEstimate:
    """Return peak bytes of one inference with its 90 % interval."""
    weights, activations = footprint.weight_bytes, footprint.activation_bytes
    held = runtime.gpu_bytes if device.kind == "gpu" else runtime.cpu_bytes
    return MemoryEstimate(
        value=weights + activations + held,
        low=round(weights + activations * _ACTIVATIONS_LOW + held * _RUNTIME_LOW),
        high=round(
            weights * _WEIGHTS_HIGH + activations * _ACTIVATIONS_HIGH + held * _RUNTIME_HIGH
        ),
        weights=weights,
        activations=activations,
        runtime=held,
        source="tensor lifetimes",
    )


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


def peak_activation_bytes(graph: Graph, work: Sequence[NodeWork] | None) -> int:
    """Return the largest sum of tensor bytes alive at one node, graph inputs included.

    `work` is index-aligned with the nodes; None where it was not kept (the cheaper branch of an
    If): then no node is taken for a view, an upper bound. The largest peak of a node's bodies is
    added to what is alive around it. Time O(nodes + edges).
    """
    storage = {} if work is None else _storage(graph, [node.kind for node in work])
    narrow = _narrowed(graph, storage)
    dying = _last_uses(graph, storage)
    own = {name: graph.tensors[name].size_bytes for name in graph.inputs}
    alive = peak = sum(own.values())
    for i, node in enumerate(graph.nodes):
        for name in node.outputs:
            if name and name not in storage and name not in graph.constants:
                own[name] = narrow.get(name, graph.tensors[name].size_bytes)
                alive += own[name]
        inside = _peak_of_bodies(node, None if work is None else work[i])
        peak = max(peak, alive + inside)
        for name in dying.get(i, ()):
            alive -= own.pop(name, 0)
    return peak


def _peak_of_bodies(node: Node, work: NodeWork | None) -> int:
    sizes = [len(body.nodes) for body in node.bodies]
    parts = [None] * len(sizes) if work is None else work.by_body(sizes)
    pairs = zip(node.bodies, parts, strict=True)
    return max((peak_activation_bytes(body, part) for body, part in pairs), default=0)


def _narrowed(graph: Graph, storage: Mapping[str, str]) -> Mapping[str, int]:
    """Return the bytes of tensors that exist in a narrower form only.

    A view with as many elements in fewer bytes is what the kernel in front of it writes: an int8
    kernel that took in the QuantizeLinear behind it.
    """
    sizes: dict[str, int] = {}
    for view, owner in storage.items():
        wide, narrow = graph.tensors[owner], graph.tensors[view]
        if narrow.elements == wide.elements and narrow.size_bytes < wide.size_bytes:
            sizes[owner] = min(narrow.size_bytes, sizes.get(owner, narrow.size_bytes))
    return sizes


def _last_uses(graph: Graph, storage: Mapping[str, str]) -> Mapping[int, Sequence[str]]:
    """Return, by node index, the tensors that nobody needs after that node."""
    last_use: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        for name in (*reads_of(node), *node.outputs):
            last_use[storage.get(name, name)] = i
    for name in graph.outputs:
        last_use.pop(storage.get(name, name), None)  # the caller still holds it at the end
    dying: dict[int, list[str]] = {}
    for name, i in last_use.items():
        dying.setdefault(i, []).append(name)
    return dying


def _storage(graph: Graph, kinds: list[Kind]) -> Mapping[str, str]:
    """Map each view's output to the tensor that owns its bytes."""
    owner: dict[str, str] = {}
    for node, kind in zip(graph.nodes, kinds, strict=True):
        if kind is Kind.VIEW and node.inputs and node.inputs[0]:
            source = node.inputs[0]
            for name in node.outputs:
                if name:
                    owner[name] = owner.get(source, source)
    return owner
