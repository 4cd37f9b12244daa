"""Which tensors are alive while each node runs, for the ways in which runtimes treat storage.

A tensor lives from the step that makes it to the last step that needs it. A step is a kernel; a
view runs within the step before it. Bytes of activations only: weights, scratch memory and what a
runtime holds are the business of `memory.py` and `workspace.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

from slicewise.core.cost import Kernel, Kind, NodeWork
from slicewise.core.graph import Graph, Node, Tensor, reads_of

# Bytes that a node makes beside its outputs and drops when it returns.
Beside: TypeAlias = Callable[[Node, NodeWork, Mapping[str, Tensor]], int]


@dataclass(frozen=True, slots=True)
class Habits:
    """How a runtime treats the storage of activations.

    `trusts_source`: views and operators in place are those of the source program; otherwise the
    kind of the operator decides and nothing runs in place. `holds_arguments`: a tensor lives while
    the program still refers to it (`Graph.held_to`). `writes_into_inputs`: an elementwise kernel
    writes over an input of the same size that nobody needs after it. `binds_outputs`: the caller
    has the outputs allocated before the run. `beside`: bytes of results that an operator makes
    beside its outputs and drops when it returns, by operator.
    """

    trusts_source: bool = False
    holds_arguments: bool = False
    writes_into_inputs: bool = False
    binds_outputs: bool = False
    beside: Mapping[str, Beside] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Bytes of activations alive while each node and each step runs, bodies included.

    `step_of` gives the step of each node, `peak_bytes` the largest entry.
    """

    alive_bytes: tuple[int, ...]
    step_bytes: tuple[int, ...]
    step_of: tuple[int, ...]
    peak_bytes: int


def trace(
    graph: Graph,
    work: Sequence[NodeWork] | None,
    kernels: Sequence[Kernel] | None,
    habits: Habits,
    *,
    block_bytes: int = 1,
    is_body: bool = False,
) -> Lifetimes:
    """Return the lifetimes of the tensors of `graph`, every one rounded up to `block_bytes`.

    `work` is index-aligned with the nodes; None where it was not kept (the cheaper branch of an
    If): then no node is taken for a view, an upper bound. Inputs are held by the caller, except
    those of a body, which are made in front of each run of it. Time O(nodes + edges).
    """
    steps = _steps(len(graph.nodes), kernels)
    last = max(steps, default=0)
    launching = frozenset(i for kernel in kernels or () for i in kernel.nodes)
    shared = _shared_inputs(graph, work, habits, None if kernels is None else launching)
    book = _Book(graph, steps, shared, launching, block_bytes)
    if habits.holds_arguments:
        book.hold(graph.held_to)
    if not is_body:
        book.keep_inputs(last)
    book.keep_outputs(last, bound=habits.binds_outputs and not is_body)
    if kernels is not None:
        book.drop_results_inside(kernels)
    change = book.changes(last)
    if habits.writes_into_inputs and work is not None:
        _write_into_inputs(book, graph, _elementwise(graph, work, kernels), change)
    alive = list(accumulate(change))[: last + 1]
    for step, extra in _within(graph, work, steps, habits, block_bytes).items():
        alive[step] += extra
    return Lifetimes(
        alive_bytes=tuple(alive[step] for step in steps),
        step_bytes=tuple(alive),
        step_of=tuple(steps),
        peak_bytes=max(alive, default=0),
    )


def _steps(count: int, kernels: Sequence[Kernel] | None) -> list[int]:
    """Return the step of each node; what launches nothing belongs to the step before it."""
    if kernels is None:
        return list(range(count))
    step_of = [-1] * count
    for k, kernel in enumerate(kernels):
        for i in kernel.nodes:
            step_of[i] = k
    before = 0
    for i, step in enumerate(step_of):
        if step < 0:
            step_of[i] = before
        else:
            before = step
    return step_of


def _shared_inputs(
    graph: Graph,
    work: Sequence[NodeWork] | None,
    habits: Habits,
    launching: frozenset[int] | None,
) -> list[str | None]:
    """Return for each node the input whose storage its outputs share, None where they own it.

    What belongs to no kernel, where kernels are known, is a view to the runtime.
    """
    shared: list[str | None] = [None] * len(graph.nodes)
    for i, node in enumerate(graph.nodes):
        if habits.trusts_source and node.storage_of is not None:
            shared[i] = node.storage_of or None
        elif work is not None and node.inputs:
            kind = work[i].kind
            is_idle = launching is not None and i not in launching and kind is not Kind.CONTROL
            if kind is Kind.VIEW or is_idle:
                shared[i] = node.inputs[0] or None
    return shared


class _Book:
    """Who owns which bytes, from which step to which."""

    def __init__(
        self,
        graph: Graph,
        steps: Sequence[int],
        shared: Sequence[str | None],
        launching: frozenset[int],
        block_bytes: int,
    ) -> None:
        self.graph, self.steps = graph, steps
        self.owner: dict[str, str] = {}  # a view -> the tensor that owns its bytes
        self.size: dict[str, int] = {}
        self.born: dict[str, int] = dict.fromkeys(graph.inputs, 0)
        self.dies: dict[str, int] = dict.fromkeys(graph.inputs, 0)
        self.readers: dict[str, set[int]] = {}  # steps in which a kernel reads it
        self.pinned: set[str] = set()  # what the caller holds
        narrow: dict[str, int] = {}
        tensors, constants, owner = graph.tensors, graph.constants, self.owner
        for i, node in enumerate(graph.nodes):
            step, source = steps[i], shared[i]
            for name in reads_of(node) if node.bodies else node.inputs:
                root = owner.get(name, name)
                if root in self.dies:
                    if step > self.dies[root]:
                        self.dies[root] = step
                    if source is None or name != source or i in launching:
                        self.readers.setdefault(root, set()).add(step)
            for name in node.outputs:
                if not name or name in constants:
                    continue
                if source is None:
                    self.born[name] = self.dies[name] = step
                    continue
                root = owner[name] = owner.get(source, source)
                if root not in narrow and root in tensors:
                    narrow[root] = tensors[root].size_bytes
                # a view with as many elements in fewer bytes is what the kernel in front of it
                # writes: an int8 kernel that took in the QuantizeLinear behind it
                if root in tensors and tensors[name].elements == tensors[root].elements:
                    narrow[root] = min(narrow[root], tensors[name].size_bytes)
        for name in self.born:
            exact = narrow.get(name)
            exact = tensors[name].size_bytes if exact is None else exact
            self.size[name] = -(-exact // block_bytes) * block_bytes

    def hold(self, held_to: Mapping[str, str]) -> None:
        """Keep tensors to the nodes until which the program refers to them."""
        place = {node.name: step for node, step in zip(self.graph.nodes, self.steps, strict=True)}
        for name, node in held_to.items():
            root = self.owner.get(name, name)
            if root in self.dies and node in place:
                self.dies[root] = max(self.dies[root], place[node])

    def keep_inputs(self, last: int) -> None:
        """Keep what the caller gave to the end."""
        for name in self.graph.inputs:
            self.dies[name] = last
            self.pinned.add(name)

    def keep_outputs(self, last: int, *, bound: bool) -> None:
        """Keep outputs to the end; where they are `bound`, from the start."""
        for name in self.graph.outputs:
            root = self.owner.get(name, name)
            if root in self.dies:
                self.dies[root] = last
                self.pinned.add(root)
                if bound:
                    self.born[root] = 0

    def drop_results_inside(self, kernels: Sequence[Kernel]) -> None:
        """Take away the bytes of results that only the kernel which makes them reads."""
        for k, kernel in enumerate(kernels):
            if len(kernel.nodes) < 2:
                continue
            for i in kernel.nodes:
                for name in self.graph.nodes[i].outputs:
                    if self.readers.get(name) == {k} and name not in self.pinned:
                        self.size[name] = 0

    def changes(self, last: int) -> list[int]:
        """Return by how many bytes what is alive grows at each step, and at the one behind."""
        change = [0] * (last + 2)
        for name, born in self.born.items():
            size = self.size[name]
            change[born] += size
            change[max(self.dies[name], born) + 1] -= size
        return change


def _elementwise(
    graph: Graph, work: Sequence[NodeWork], kernels: Sequence[Kernel] | None
) -> Mapping[int, Sequence[int]]:
    """Return the nodes of each step that is an elementwise kernel."""
    if kernels is None:
        each = enumerate(work[: len(graph.nodes)])
        return {i: (i,) for i, node in each if node.kind is Kind.ELEMENTWISE}
    return {
        k: kernel.nodes for k, kernel in enumerate(kernels) if kernel.work.kind is Kind.ELEMENTWISE
    }


def _write_into_inputs(
    book: _Book, graph: Graph, kernels: Mapping[int, Sequence[int]], change: list[int]
) -> None:
    """Let each result of an elementwise kernel take the place of an input that dies in it."""
    for step, nodes in kernels.items():
        dying = [
            root
            for i in nodes
            for root in (book.owner.get(name, name) for name in graph.nodes[i].inputs)
            if book.dies.get(root) == step and book.born[root] < step and root not in book.pinned
        ]
        free = {root: book.size[root] for root in dying}
        for name in (name for i in nodes for name in graph.nodes[i].outputs):
            size = book.size.get(name, 0)
            match = next((root for root, bytes_ in free.items() if bytes_ == size), None)
            if size and match is not None and book.born[name] == step:
                del free[match]
                # the input's bytes become those of the result at the start of the step
                change[step] -= size
                change[step + 1] += size


def _within(
    graph: Graph,
    work: Sequence[NodeWork] | None,
    steps: Sequence[int],
    habits: Habits,
    block_bytes: int,
) -> Mapping[int, int]:
    """Return the bytes that exist inside a step only: results dropped at once, peaks of bodies."""
    extra: dict[int, int] = {}
    for i, node in enumerate(graph.nodes):
        inside = 0
        rule = habits.beside.get(node.op_type)
        if rule is not None and work is not None and not node.domain:
            inside = -(-rule(node, work[i], graph.tensors) // block_bytes) * block_bytes
        if node.bodies:
            inside += _peak_of_bodies(node, None if work is None else work[i], habits, block_bytes)
        if inside:
            extra[steps[i]] = max(extra.get(steps[i], 0), inside)
    return extra


def _peak_of_bodies(node: Node, work: NodeWork | None, habits: Habits, block_bytes: int) -> int:
    """Return the largest peak of a node's bodies. Kernels are known of a single body only."""
    sizes = [len(body.nodes) for body in node.bodies]
    parts = [None] * len(sizes) if work is None else work.by_body(sizes)
    kept = [part for part in parts if part is not None]
    kernels = work.kernels if work is not None and len(kept) == 1 else None
    return max(
        (
            trace(
                body,
                part,
                kernels if part is not None else None,
                habits,
                block_bytes=block_bytes,
                is_body=True,
            ).peak_bytes
            for body, part in zip(node.bodies, parts, strict=True)
        ),
        default=0,
    )
