"""Who makes and who reads what in one graph or body, with views seen through.

A view is what launches nothing and has the bytes of its first input: its results are other names
of the tensor that they look at, their *root*. Nothing here knows runtimes or patterns.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from slicewise.core.cost import Kind, NodeWork
from slicewise.core.graph import Constant, Graph, Node, Tensor, reads_of

# They launch nothing, but what they give is not their input seen otherwise.
NO_ALIAS = frozenset(
    {"Shape", "Size", "Constant", "SequenceLength", "SequenceConstruct", "SequenceInsert"}
)


@dataclass(frozen=True, slots=True)
class Scope:
    """What names mean in a graph, those of graphs around it included."""

    tensors: Mapping[str, Tensor]
    constants: Mapping[str, Constant]


@dataclass(slots=True)
class Wiring:
    """One graph or body.

    `ops` has the operator of each node that a pattern may name, '' for the others. `root` maps the
    results of views; `maker` and `readers` are by root. `launches` tells which nodes become part
    of a kernel, `aliases` which are views; `copies` are views that own their bytes.
    """

    graph: Graph
    works: tuple[NodeWork, ...]
    scope: Scope
    ops: list[str] = field(default_factory=list)
    root: dict[str, str] = field(default_factory=dict)
    maker: dict[str, int] = field(default_factory=dict)
    reads: list[tuple[str, ...]] = field(default_factory=list)
    readers: dict[str, list[int]] = field(default_factory=dict)
    launches: list[bool] = field(default_factory=list)
    aliases: list[bool] = field(default_factory=list)
    copies: set[int] = field(default_factory=set)
    outputs: frozenset[str] = frozenset()

    def root_of(self, name: str) -> str:
        """Return the tensor whose bytes `name` has."""
        return self.root.get(name, name)

    def is_constant(self, name: str) -> bool:
        """True for a constant, or a view of one."""
        return self.root.get(name, name) in self.scope.constants

    def elements(self, name: str) -> int:
        """Return the number of elements of the tensor called `name`, 0 if unknown."""
        tensor = self.scope.tensors.get(name)
        return 0 if tensor is None else tensor.elements

    def result(self, i: int) -> str:
        """Return the root of the first result of node `i`, '' if it has none."""
        outputs = self.graph.nodes[i].outputs
        return outputs[0] if outputs else ""

    def readers_of(self, i: int) -> list[int]:
        """Return the nodes that read any result of node `i`."""
        outputs = self.graph.nodes[i].outputs
        if len(outputs) == 1:
            return self.readers.get(outputs[0], [])
        return [reader for name in outputs for reader in self.readers.get(name, ())]

    def leaves(self, i: int) -> bool:
        """True where a result of node `i` is an output of the graph."""
        return any(name in self.outputs for name in self.graph.nodes[i].outputs)


IsView = Callable[[Wiring, int], bool]


def wire(graph: Graph, works: tuple[NodeWork, ...], scope: Scope, is_view: IsView) -> Wiring:
    """Return the wiring of `graph` under a runtime that runs the nodes `is_view` as views.

    `is_view` may count a node among the `copies`. Time O(nodes + edges).
    """
    wiring = Wiring(graph, works, scope)
    for i, (node, work) in enumerate(zip(graph.nodes, works, strict=True)):
        viewed = is_view(wiring, i)
        is_alias = viewed and _is_alias(wiring, node)
        reads = () if is_alias else _reads(wiring, node)
        wiring.reads.append(reads)
        wiring.aliases.append(is_alias)
        if is_alias:
            for name in node.outputs:
                wiring.root[name] = wiring.root_of(node.inputs[0])
        else:
            for name in node.outputs:
                wiring.maker[name] = i
            for name in reads:
                wiring.readers.setdefault(name, []).append(i)
        is_named = not viewed and work.kind is not Kind.OPAQUE and not node.bodies
        wiring.ops.append(node.op_type if is_named else "")
        wiring.launches.append(not viewed and work.kind is not Kind.CONTROL)
    wiring.outputs = frozenset(wiring.root_of(name) for name in graph.outputs)
    return wiring


def _reads(wiring: Wiring, node: Node) -> tuple[str, ...]:
    names = reads_of(node) if node.bodies else node.inputs
    root = wiring.root
    return tuple({root.get(name, name): None for name in names if name})


def _is_alias(wiring: Wiring, node: Node) -> bool:
    """True unless the shape of a view hangs on other kernels: then that order must be kept."""
    if node.op_type in NO_ALIAS or not node.inputs or not node.inputs[0]:
        return False
    return all(not name or wiring.is_constant(name) for name in node.inputs[1:])


def views_between(wiring: Wiring, members: Collection[int]) -> set[int]:
    """Return the views through which members read what other members make."""
    found: set[int] = set()
    nodes, made = wiring.graph.nodes, None
    for i in members:
        for name in nodes[i].inputs:
            if name not in wiring.root or wiring.maker.get(wiring.root[name], -1) not in members:
                continue
            if made is None:
                made = _view_makers(wiring)
            while name in wiring.root:
                found.add(made[name])
                name = nodes[made[name]].inputs[0]
    return found


def _view_makers(wiring: Wiring) -> Mapping[str, int]:
    return {
        name: i
        for i, node in enumerate(wiring.graph.nodes)
        for name in node.outputs
        if name in wiring.root
    }
