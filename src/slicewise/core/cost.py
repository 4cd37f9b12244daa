"""What a graph costs: device-free work, and predictions on a device.

Types only; counting is the business of `graph/work.py`, predicting that of `predict/`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from slicewise.core.display import as_html
from slicewise.core.notes import Note
from slicewise.core.precision import DType


class Kind(StrEnum):
    """What sort of kernel an operator becomes."""

    CONV = "conv"
    MATMUL = "matmul"
    ATTENTION = "attention"
    RECURRENT = "recurrent"
    NORM = "norm"
    SOFTMAX = "softmax"
    POOL = "pool"
    REDUCTION = "reduction"
    ELEMENTWISE = "elementwise"
    MOVEMENT = "movement"  # copies, transposes, gathers, concatenations
    SORT = "sort"
    QUANTIZE = "quantize"
    VIEW = "view"  # no bytes move: reshape, identity, shape arithmetic
    CONTROL = "control"  # If, Loop, Scan: cost is that of the bodies
    OPAQUE = "opaque"  # in no table: bytes only, with a Note


@dataclass(frozen=True, slots=True)
class Work:
    """Device-free cost of one node, or of a sum of nodes.

    `macs`: multiply-adds of convolution, matrix product, attention and recurrence, whole batch.
    `flops`: 2 x macs + other arithmetic. `read_bytes` are activations read, `write_bytes` results
    written, `weight_bytes` constants read in their stored form.

    >>> product = Work(macs=6, flops=12, read_bytes=20, write_bytes=8)
    >>> (product + product).flops, product.moved_bytes
    (24, 28)
    """

    macs: int = 0
    flops: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    weight_bytes: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.macs + other.macs,
            self.flops + other.flops,
            self.read_bytes + other.read_bytes,
            self.write_bytes + other.write_bytes,
            self.weight_bytes + other.weight_bytes,
        )

    def __mul__(self, times: int) -> "Work":
        return Work(
            self.macs * times,
            self.flops * times,
            self.read_bytes * times,
            self.write_bytes * times,
            self.weight_bytes * times,
        )

    @property
    def moved_bytes(self) -> int:
        """All bytes read and written."""
        return self.read_bytes + self.write_bytes + self.weight_bytes


@dataclass(frozen=True, slots=True)
class Contraction:
    """A node seen as `batch` matrix products [m, k] x [k, n].

    Convolution: batch = groups, m = images x output positions, n = output channels of a group,
    k = input channels of a group x kernel. Attention: batch = images x heads, m = queries,
    n = head size of the values, k = keys.
    """

    batch: int
    m: int
    n: int
    k: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """What a runtime launches at once: one node, or several that it fuses.

    `nodes` are indices into the nodes of the same graph or body, in order; every node that does
    not launch a kernel of its own belongs to one, or to none where nothing runs for it (a view).
    `work` is that of the whole kernel: results that only the kernel itself reads move no bytes.
    It has the name, operator, kind and contraction of the node that the others are fused to.
    `moved_bytes` tells which node exchanges how much with memory, one figure for each of `nodes`;
    they add up to what the kernel moves. Empty where that is not told.
    """

    nodes: tuple[int, ...]
    work: "NodeWork"
    moved_bytes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeWork:
    """Work of one node of a graph and what a predictor needs to price it.

    `work` is the node's own and that of all `repeats` of its body; `body` holds the nodes of one
    run of it: those of `Node.bodies[body_index]`, and for an operator that runs several bodies
    those of the next ones behind. `dtype` is the type the arithmetic is done in. `contraction` is
    set for conv, matmul, attention, recurrent. `steps` are dependent launches inside the node
    (recurrence over a sequence). `kernels` are those of `body`, as `GraphWork.kernels`.
    """

    name: str
    op_type: str
    kind: Kind
    dtype: DType
    work: Work
    contraction: Contraction | None = None
    steps: int = 1
    body: "tuple[NodeWork, ...]" = ()
    repeats: int = 1
    body_index: int = 0
    kernels: tuple[Kernel, ...] | None = None

    @property
    def own_work(self) -> Work:
        """Work of the node without that of its body."""
        if not self.body:
            return self.work
        inner = sum((node.work for node in self.body), Work()) * self.repeats
        return Work(
            self.work.macs - inner.macs,
            self.work.flops - inner.flops,
            self.work.read_bytes - inner.read_bytes,
            self.work.write_bytes - inner.write_bytes,
            self.work.weight_bytes - inner.weight_bytes,
        )

    def by_body(self, sizes: Sequence[int]) -> "tuple[tuple[NodeWork, ...] | None, ...]":
        """Return the part of `body` that belongs to each body of the node.

        `sizes` are their numbers of nodes. None for a body whose work was not kept: of an If only
        the costlier branch is.
        """
        parts: list[tuple[NodeWork, ...] | None] = [None] * len(sizes)
        start = 0
        for i in range(self.body_index, len(sizes)):
            if start + sizes[i] > len(self.body):
                break
            parts[i] = self.body[start : start + sizes[i]]
            start += sizes[i]
        return tuple(parts)


@dataclass(frozen=True, slots=True)
class GraphWork:
    """Work of every node of a graph, index by index, and what counting had to note.

    `kernels` are what a runtime launches for it, in order (`graph/launch.py`); None before a
    runtime is chosen: then each node is a kernel of its own. `total` never depends on them.
    """

    nodes: tuple[NodeWork, ...]
    total: Work
    notes: tuple[Note, ...] = ()
    kernels: tuple[Kernel, ...] | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure computed without running; low and high bound the 90 % interval.

    >>> latency_ms = Estimate(4.1, low=3.8, high=4.6, source="roofline")
    >>> latency_ms.low <= latency_ms.value <= latency_ms.high
    True
    """

    value: float
    low: float
    high: float
    source: str = ""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Peak device memory: weights + activations + workspace + runtime, with a 90 % interval.

    `activations` are the tensors alive at once, `workspace` what kernels, libraries and allocators
    take beside them, `runtime` what is held before any model is loaded.

    >>> import slicewise
    >>> memory = slicewise.predict(model, device="t4").memory_bytes
    >>> parts = memory.weights + memory.activations + memory.workspace + memory.runtime
    >>> memory.value == parts
    True
    """

    value: int
    low: int
    high: int
    weights: int
    activations: int
    runtime: int
    source: str = ""
    workspace: int = 0


@dataclass(frozen=True, slots=True)
class NodeEstimate:
    """Predicted time of one node.

    `latency_ms` is its part of the whole. `compute_ms` and `memory_ms` are what its arithmetic and
    its bytes alone would take with every compute unit busy, at the efficiency of its kind.
    `limit` names what binds it: compute, memory, waves (arithmetic, but on too few units or
    padded tiles), launch, or none for a view. Nodes with the same `kernel` are launched as one, -1
    is a node that launches nothing. `alive_bytes` are the activations alive while it runs.

    >>> import slicewise
    >>> made = slicewise.predict(model, device="t4", precision="fp16", runtime="tensorrt")
    >>> conv, relu = made.nodes[0], made.nodes[2]
    >>> conv.op_type, relu.op_type, conv.kernel == relu.kernel
    ('Conv', 'Relu', True)
    """

    name: str
    op_type: str
    kind: Kind
    latency_ms: float
    compute_ms: float
    memory_ms: float
    limit: str
    flops: int
    moved_bytes: int
    kernel: int = -1
    alive_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one model costs at one batch on one device, or slice of one.

    The latencies of `nodes` plus `host_ms` add up to `latency_ms.value` exactly.
    `compute_utilisation`: achieved flop/s over the device's peak. `saturation`: b t_sat / (T - H),
    1 = the device is full; the slice rule uses this one. `runtime_version` is (2, 4) for 2.4, None
    where none was asked for; `layout` is the memory format of image tensors.

    >>> import slicewise
    >>> made = slicewise.predict(model, device="l4", batch=8)
    >>> made.host_ms + sum(node.latency_ms for node in made.nodes) == made.latency_ms.value
    True
    """

    model: str
    device: str
    slice: str | None
    batch: int
    precision: str
    runtime: str
    macs: int
    flops: int
    latency_ms: Estimate
    throughput_per_s: float
    energy_j: Estimate
    memory_bytes: MemoryEstimate
    compute_utilisation: float
    saturation: float
    source: str
    host_ms: float = 0.0
    nodes: tuple[NodeEstimate, ...] = ()
    notes: tuple[Note, ...] = field(default=())
    layout: str = "nchw"
    runtime_version: tuple[int, ...] | None = None

    def _repr_html_(self) -> str:
        """Return the card that notebooks show."""
        return as_html("prediction", self)
