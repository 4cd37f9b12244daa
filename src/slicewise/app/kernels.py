"""Predicted nodes seen as what is launched: nodes fused into one kernel counted as one."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slicewise.core.cost import Kind, NodeEstimate, Prediction


@dataclass(frozen=True, slots=True)
class LaunchedKernel:
    """One launch of a runtime: the nodes it computes, in graph order, and their sums.

    Its bytes are those that it exchanges with memory: what stays inside a fused kernel has none.
    """

    nodes: tuple[NodeEstimate, ...]
    indices: tuple[int, ...]

    @property
    def main(self) -> NodeEstimate:
        """The node that does the most arithmetic, among equals the one that takes longest."""
        return max(self.nodes, key=lambda node: (node.flops, node.latency_ms))

    @property
    def title(self) -> str:
        """The operators, as in 'Conv + Add + Relu'."""
        return " + ".join(node.op_type for node in self.nodes if node.kind is not Kind.VIEW) or (
            self.main.op_type
        )

    @property
    def latency_ms(self) -> float:
        """Time of the launch: the sum of its nodes' parts."""
        return sum(node.latency_ms for node in self.nodes)

    @property
    def flops(self) -> int:
        """Operations of all its nodes."""
        return sum(node.flops for node in self.nodes)

    @property
    def moved_bytes(self) -> int:
        """Bytes that it exchanges with memory: the sum of its nodes' parts."""
        return sum(node.moved_bytes for node in self.nodes)

    @property
    def alive_bytes(self) -> int:
        """The most activations alive while it runs; 0 where that is not known."""
        return max(node.alive_bytes for node in self.nodes)

    @property
    def intensity_flop_per_byte(self) -> float:
        """Operations for each byte moved; 0 if no byte moves."""
        return self.flops / self.moved_bytes if self.moved_bytes else 0.0

    @property
    def flop_per_s(self) -> float:
        """Achieved rate; 0 if it takes no time."""
        return self.flops / self.latency_ms * 1e3 if self.latency_ms else 0.0


def launched_kernels(made: Prediction) -> tuple[LaunchedKernel, ...]:
    """Return what is launched for a prediction, in order; nodes that launch nothing are left out.

    A fused kernel runs where its last node stands: only then is all there that it reads. The
    latencies add up to that of the prediction without its host part, exactly.
    """
    members: dict[object, list[int]] = {}
    for i, node in enumerate(made.nodes):
        if node.kernel >= 0:
            members.setdefault(node.kernel, []).append(i)
        elif node.latency_ms > 0:
            members[f"node {i}"] = [i]
    kernels = sorted(members.values(), key=lambda indices: indices[-1])
    return tuple(_launches(made, kernels))


def _launches(made: Prediction, kernels: list[list[int]]) -> Iterator[LaunchedKernel]:
    for indices in kernels:
        yield LaunchedKernel(tuple(made.nodes[i] for i in indices), tuple(indices))


@dataclass(frozen=True, slots=True)
class AlikeKernels:
    """Launches with the same operators, work, limit and time, to three digits, as one thing.

    A network repeats its blocks: dozens of launches differ in nothing but their place.
    """

    kernels: tuple[LaunchedKernel, ...]

    @property
    def one(self) -> LaunchedKernel:
        """The first of them, to stand for all."""
        return self.kernels[0]

    @property
    def latency_ms(self) -> float:
        """Time of all of them together."""
        return sum(kernel.latency_ms for kernel in self.kernels)


def alike_kernels(kernels: Iterable[LaunchedKernel]) -> tuple[AlikeKernels, ...]:
    """Return the kernels in groups of alike ones, those that take the most time first."""
    groups: dict[object, list[LaunchedKernel]] = {}
    for kernel in kernels:
        limit = kernel.main.limit
        key = (kernel.title, kernel.flops, kernel.moved_bytes, limit, f"{kernel.latency_ms:.2e}")
        groups.setdefault(key, []).append(kernel)
    found = [AlikeKernels(tuple(members)) for members in groups.values()]
    return tuple(sorted(found, key=lambda alike: -alike.latency_ms))
