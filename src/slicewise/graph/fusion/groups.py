"""The nodes of one graph gathered into kernels, step by step: expressions, then chains.

Every group that chains make has one way out, its tip, unless a step keeps a result; so nothing
leaves a group and comes back, and groups can always be put in order.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from slicewise.core.cost import Kind
from slicewise.graph.fusion.match import find_expressions, is_worded
from slicewise.graph.fusion.pattern import Step, Table, chain
from slicewise.graph.fusion.wiring import Wiring

# Which of several nodes gives a kernel its name and kind: the first of these.
_ANCHORS = (
    Kind.ATTENTION, Kind.CONV, Kind.MATMUL, Kind.RECURRENT, Kind.SORT, Kind.NORM, Kind.SOFTMAX,
    Kind.REDUCTION, Kind.POOL, Kind.QUANTIZE, Kind.OPAQUE, Kind.ELEMENTWISE, Kind.MOVEMENT,
    Kind.VIEW, Kind.CONTROL,
)  # fmt: skip
RANK = {kind: i for i, kind in enumerate(_ANCHORS)}


@dataclass(slots=True)
class Group:
    """Nodes that run together. `anchor` gives the kernel its name, `tip` its result; `op` is what
    chains call it. `is_forked`: a result besides that of the tip may be read elsewhere."""

    members: list[int]
    anchor: int
    tip: int
    op: str
    kind: Kind
    is_forked: bool = False


@dataclass(slots=True)
class Groups:
    """All groups of a graph, by number; `of` is the group of each node. Merged ones are None."""

    wiring: Wiring
    of: list[int]
    table: list[Group | None] = field(default_factory=list)

    def at(self, number: int) -> Group:
        """Return the group of that number, which is not merged."""
        group = self.table[number]
        assert group is not None
        return group

    def numbers(self) -> list[int]:
        """Return the numbers of all groups, in the order of their first nodes."""
        return [number for number, group in enumerate(self.table) if group is not None]

    def makers(self, number: int) -> set[int]:
        """Return the groups that make what this one reads."""
        wiring, of = self.wiring, self.of
        found = {
            of[wiring.maker[name]]
            for i in self.at(number).members
            for name in wiring.reads[i]
            if name in wiring.maker
        }
        found.discard(number)
        return found

    def merge(self, into: int, other: int) -> None:
        """Make two groups one, under the number `into`."""
        first, second = self.at(into), self.at(other)
        for i in second.members:
            self.of[i] = into
        first.members += second.members
        if RANK[second.kind] < RANK[first.kind]:
            first.anchor, first.op, first.kind = second.anchor, second.op, second.kind
        first.is_forked |= second.is_forked
        self.table[other] = None


def form_groups(wiring: Wiring, table: Table) -> Groups:
    """Return the groups that the expressions and chains of a table make."""
    nodes = wiring.graph.nodes
    groups = Groups(wiring, [-1] * len(nodes))
    taken = {
        i for i, node in enumerate(nodes) if table.undoes_exporters and node.storage_of is not None
    }
    at_root = {}
    for row, members in find_expressions(wiring, table.expressions, taken):
        at_root[members[-1]] = (row, members)
        for i in members[:-1]:
            groups.of[i] = -2  # numbered with its root
    for i, work in enumerate(wiring.works):
        if groups.of[i] == -2 or wiring.aliases[i]:
            continue
        kind = Kind.MOVEMENT if i in wiring.copies else work.kind
        group = Group([i], i, i, wiring.ops[i], kind)
        if i in at_root:
            row, members = at_root[i]
            anchor = min(members, key=lambda j: (RANK[wiring.works[j].kind], -j))
            group = Group(list(members), anchor, i, row.name, row.kind)
        for j in group.members:
            groups.of[j] = len(groups.table)
        groups.table.append(group)
    for text in table.chains:
        _follow(groups, chain(text))
    return groups


def _follow(groups: Groups, steps: Sequence[Step]) -> None:
    """Merge every run of groups that a chain describes."""
    if not any(group is not None and group.op in steps[0].ops for group in groups.table):
        return
    for number in range(len(groups.table)):
        group = groups.table[number]
        if group is None or group.op not in steps[0].ops:
            continue
        if steps[0].other and not _reads_only(groups, group, steps[0].other):
            continue
        for other in _run(groups, number, steps) or ():
            tip = groups.at(other).tip
            is_behind = tip > groups.at(number).tip
            groups.merge(number, other)
            if is_behind:
                groups.at(number).tip = tip


def _run(groups: Groups, start: int, steps: Sequence[Step]) -> list[int] | None:
    """Return the groups that follow `start` along the chain, None if a step is missing."""
    run: list[int] = []
    tip = groups.at(start).tip
    is_forked, is_kept = groups.at(start).is_forked, steps[0].is_kept
    for step in steps[1:]:
        found = _next(groups, {start, *run}, tip, step, is_kept=is_kept, is_forked=is_forked)
        if found is None:
            if step.is_optional:
                continue
            return None
        is_forked |= is_kept or groups.at(found).is_forked
        run.append(found)
        tip, is_kept = groups.at(found).tip, step.is_kept
    if is_forked and run:
        groups.at(start).is_forked = True
    return run


def _next(
    groups: Groups, behind: set[int], tip: int, step: Step, *, is_kept: bool, is_forked: bool
) -> int | None:
    """Return the group that reads the result of node `tip` and is what `step` asks for."""
    wiring = groups.wiring
    readers = {groups.of[i] for i in wiring.readers_of(tip)} - behind
    if not is_kept and (len(readers) != 1 or wiring.leaves(tip)):
        return None
    for number in sorted(readers):
        group = groups.at(number)
        if group.op not in step.ops:
            continue
        if (is_kept or is_forked) and not groups.makers(number) <= behind:
            continue  # what it also reads might hang on the result that is kept
        if step.other and not _has_other(groups, group, tip, step.other):
            continue
        return number
    return None


def _has_other(groups: Groups, group: Group, tip: int, word: str) -> bool:
    """True where what a group reads besides the result of `tip` is what `word` says.

    A residual (`t`) must have as many elements as what it is added to.
    """
    wiring = groups.wiring
    result = wiring.result(tip)
    own = {wiring.result(i) for i in group.members}
    names = [
        name
        for i in group.members
        for name in wiring.graph.nodes[i].inputs
        if name and wiring.root_of(name) != result and wiring.root_of(name) not in own
    ]
    if not names or not all(is_worded(wiring, word, name) for name in names):
        return False
    size = wiring.elements(result)
    return word[0] != "t" or all(wiring.elements(name) == size for name in names)


def _reads_only(groups: Groups, group: Group, word: str) -> bool:
    """True where the second operand of the group's node is what `word` says."""
    inputs = groups.wiring.graph.nodes[group.anchor].inputs
    return len(inputs) > 1 and is_worded(groups.wiring, word, inputs[1])


def in_order(groups: Groups) -> list[int]:
    """Return the numbers of all groups so that each comes after what it reads, lowest node first.

    Time O((groups + edges) log groups).
    """
    waits: dict[int, int] = {}
    behind: dict[int, list[int]] = {}
    ready: list[tuple[int, int]] = []
    for number in groups.numbers():
        makers = groups.makers(number)
        waits[number] = len(makers)
        for maker in makers:
            behind.setdefault(maker, []).append(number)
        if not makers:
            ready.append((min(groups.at(number).members), number))
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, number = heapq.heappop(ready)
        order.append(number)
        for reader in behind.get(number, ()):
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, (min(groups.at(reader).members), reader))
    assert len(order) == len(waits), "a group reads what hangs on its own result"
    return order
