"""Which kernels a runtime launches for a graph: fusion tables applied to counted work.

    load -> count_work -> launch(runtime) -> a predictor prices the kernels

The tables are in `fusion/`, one file a runtime. Laws: each node that is no view is in exactly one
kernel; no path leaves a kernel and comes back; kernels stand in topological order; multiply-adds
and flops of all kernels add up to those of the graph (a folded batch normalisation keeps its own);
no kernel moves more bytes than its nodes do one by one. Nothing is priced here.
"""

from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from slicewise.core.cost import GraphWork, Kernel, Kind, NodeWork, Work
from slicewise.core.graph import Graph
from slicewise.graph.fusion.groups import RANK, Group, Groups, form_groups, in_order
from slicewise.graph.fusion.pattern import Table
from slicewise.graph.fusion.regions import form_regions
from slicewise.graph.fusion.tables import table_of
from slicewise.graph.fusion.views import Views
from slicewise.graph.fusion.wiring import Scope, Wiring, views_between, wire

_NOTHING = Work()


def launch(graph: Graph, work: GraphWork, *, runtime: str) -> GraphWork:
    """Return `work` with the kernels that `runtime` launches for it, those of bodies included.

    Names of nodes and tensors do not matter. Time O((nodes + edges) log nodes). `UsageError` for
    a runtime without a table.
    """
    table = table_of(runtime)
    scope = Scope(graph.tensors, graph.constants)
    nodes, kernels = _launch(graph, work.nodes, scope, table)
    return replace(work, nodes=nodes, kernels=kernels)


def kernel_of(graph: Graph, work: GraphWork, members: Collection[int], *, runtime: str) -> Kernel:
    """Return the kernel that the nodes `members` of `graph` would be if nothing joined them.

    What a cut through a kernel leaves on either side: a result that the other side reads is
    written. `members` are indices of top-level nodes, at least one of which launches something.
    """
    table = table_of(runtime)
    wiring = _wired(graph, work.nodes, Scope(graph.tensors, graph.constants), table)
    launching = sorted(i for i in members if wiring.launches[i])
    anchor = min(launching, key=lambda i: (RANK[work.nodes[i].kind], i))
    kind = work.nodes[anchor].kind
    return _Pricer(wiring).kernel(Group(launching, anchor, launching[-1], "", kind))


def _launch(
    graph: Graph, works: tuple[NodeWork, ...], scope: Scope, table: Table
) -> tuple[tuple[NodeWork, ...], tuple[Kernel, ...]]:
    """Return the nodes of one graph or body with kernels in their bodies, and its own kernels."""
    works = tuple(
        _with_body(graph, i, work, scope, table) if work.body else work
        for i, work in enumerate(works)
    )
    wiring = _wired(graph, works, scope, table)
    groups = form_groups(wiring, table)
    if table.parts:
        form_regions(groups, table)
    pricer = _Pricer(wiring)
    made = (
        pricer.kernel(groups.at(number)) for number in in_order(groups) if _runs(groups, number)
    )
    return works, tuple(made)


def _wired(graph: Graph, works: tuple[NodeWork, ...], scope: Scope, table: Table) -> Wiring:
    return wire(graph, works, scope, Views(table))


def _runs(groups: Groups, number: int) -> bool:
    wiring = groups.wiring
    return any(wiring.launches[i] or wiring.works[i].own_work != _NOTHING
               for i in groups.at(number).members)  # fmt: skip


def _with_body(graph: Graph, i: int, work: NodeWork, scope: Scope, table: Table) -> NodeWork:
    """Return the work of a node with the kernels of the bodies whose work it keeps."""
    bodies = graph.nodes[i].bodies
    parts = work.by_body([len(body.nodes) for body in bodies])
    nodes: list[NodeWork] = []
    kernels: list[Kernel] = []
    for body, part in zip(bodies, parts, strict=True):
        if part is None:
            continue
        inside = Scope(
            ChainMap(dict(body.tensors), dict(scope.tensors)),
            ChainMap(dict(body.constants), dict(scope.constants)),
        )
        inner, its = _launch(body, part, inside, table)
        kernels += [
            replace(kernel, nodes=tuple(j + len(nodes) for j in kernel.nodes)) for kernel in its
        ]
        nodes += inner
    return replace(work, body=tuple(nodes), kernels=tuple(kernels))


@dataclass(frozen=True, slots=True)
class _Pricer:
    """Adds the work of nodes up to that of the kernels they are in."""

    wiring: Wiring

    def kernel(self, group: Group) -> Kernel:
        """Return the kernel of a group: its nodes and the views between them, and its work."""
        wiring = self.wiring
        if len(group.members) == 1:
            (i,) = group.members
            node = wiring.works[i]
            if i in wiring.copies:
                return Kernel((i,), replace(node, kind=Kind.MOVEMENT, work=self._copy(i)))
            if node.body:
                node = replace(node, work=node.own_work, body=(), kernels=None)
            return Kernel((i,), node)
        members = set(group.members)
        anchor = wiring.works[group.anchor]
        work, moved = self._joint(sorted(members), members)
        nodes = tuple(sorted(members | views_between(wiring, members)))
        steps = max(wiring.works[i].steps for i in members)
        made = replace(anchor, kind=group.kind, work=work, steps=steps)
        return Kernel(nodes, made, tuple(moved.get(i, 0) for i in nodes))

    def _copy(self, i: int) -> Work:
        node, tensors = self.wiring.graph.nodes[i], self.wiring.scope.tensors
        size = sum(tensors[name].size_bytes for name in node.outputs if name in tensors)
        if self.wiring.is_constant(node.inputs[0]):
            return Work(write_bytes=size, weight_bytes=size)
        return Work(read_bytes=size, write_bytes=size)

    def _joint(
        self, order: Sequence[int], members: Collection[int]
    ) -> tuple[Work, Mapping[int, int]]:
        """Return the work of several nodes as one kernel, and the bytes that each node moves.

        A tensor is read once, by the first that reads it inside; a result is written where
        somebody outside reads it, or nobody at all. A node never reads or writes more than it
        does alone.
        """
        wiring, works = self.wiring, self.wiring.works
        macs = flops = written = 0
        read: dict[str, int] = {}
        weights: dict[str, int] = {}
        moved = dict.fromkeys(order, 0)
        for i in order:
            work = works[i].work
            macs += work.macs
            flops += work.flops
            alone = self._copy(i) if i in wiring.copies else work
            for name in wiring.graph.nodes[i].inputs:
                root = wiring.root.get(name, name)
                if not name or wiring.maker.get(root, -1) in members:
                    continue
                constant = wiring.scope.constants.get(root)
                known = read if constant is None else weights
                if constant is None:
                    size = min(self._size(name, root), alone.read_bytes)
                else:
                    size = min(constant.stored_bytes, alone.weight_bytes)
                moved[i] += max(0, size - known.get(root, 0))
                known[root] = max(size, known.get(root, 0))
            if self._leaves(i, members):
                written += alone.write_bytes
                moved[i] += alone.write_bytes
        bound = self._bound(order)
        joint = Work(
            macs, flops, min(sum(read.values()), bound.read_bytes), written,
            min(sum(weights.values()), bound.weight_bytes),
        )  # fmt: skip
        return joint, _trimmed(moved, joint.moved_bytes)

    def _bound(self, order: Sequence[int]) -> Work:
        works, copies = self.wiring.works, self.wiring.copies
        alone = [self._copy(i) if i in copies else works[i].work for i in order]
        return Work(
            read_bytes=sum(work.read_bytes for work in alone),
            weight_bytes=sum(work.weight_bytes for work in alone),
        )

    def _size(self, name: str, root: str) -> int:
        """Return the bytes read of a view `name` of `root`: those of the smaller of the two."""
        tensors = self.wiring.scope.tensors
        sizes = [tensors[each].size_bytes for each in {name, root} if each in tensors]
        return min(sizes, default=0)

    def _leaves(self, i: int, members: Collection[int]) -> bool:
        """True where a result of node `i` is read outside, is an output, or is read by nobody."""
        wiring = self.wiring
        readers = wiring.readers_of(i)
        return not readers or wiring.leaves(i) or any(r not in members for r in readers)


def _trimmed(moved: Mapping[int, int], total: int) -> Mapping[int, int]:
    """Return the bytes of each node, the last ones lessened until they add up to `total`."""
    excess = sum(moved.values()) - total
    trimmed = dict(moved)
    for i in reversed(trimmed):
        less = min(excess, trimmed[i])
        trimmed[i] -= less
        excess -= less
    return trimmed
