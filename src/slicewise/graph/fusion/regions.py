"""Regions: the loops that a compiler generates for pointwise operators, norms, reductions.

Each group gets a level, how many kernels must have ended before it: one more than what it reads
where the two cannot share loops, as much where they can. Groups of one level that can share loops
are one region. Nothing leaves a region and comes back, since every way out goes up a level.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slicewise.graph.fusion.groups import Groups, in_order
from slicewise.graph.fusion.pattern import Part, Space, Table


class _Loops:
    """What the groups of a graph run over, and which can share it."""

    def __init__(self, groups: Groups, parts: Sequence[Part]) -> None:
        self.groups = groups
        by_name = {name: part for part in parts for name in part.name.split("|")}
        wiring = groups.wiring
        self.part: dict[int, Part | None] = {}
        self.length: dict[int, int] = {}
        self.result: dict[int, int] = {}
        for number in groups.numbers():
            group = groups.at(number)
            part = by_name.get(group.op) or by_name.get(group.kind)
            self.part[number] = part if wiring.launches[group.tip] else None
            node = wiring.graph.nodes[group.tip]
            result = sum(wiring.elements(name) for name in node.outputs if name)
            self.result[number] = self.length[number] = result
            if part is not None and part.space is Space.DATA:
                first = wiring.graph.nodes[min(group.members)].inputs[:1]
                self.length[number] = max(result, *(wiring.elements(name) for name in first))

    def join(self, maker: int, reader: int, reach: int = 0) -> bool:
        """True where `reader` can run in the loops that make what it reads.

        `reach`: the longest loops of the maker's region, in whose rows its result is known.
        """
        before, after = self.part[maker], self.part[reader]
        if before is None or after is None or not self._gives(maker) or not after.takes:
            return False
        length = self.length[reader]
        if after.any_size or length in (self.length[maker], reach):
            return True
        return before.space is Space.DATA and self.result[maker] == length

    def _gives(self, number: int) -> bool:
        part, group = self.part[number], self.groups.at(number)
        assert part is not None
        inputs = len(self.groups.wiring.graph.nodes[group.tip].inputs)
        return part.gives and inputs <= part.most_inputs

    def is_inlined(self, maker: int, reader: int) -> bool:
        """True where `maker` is computed again for each element of `reader` that needs it."""
        before, after = self.part[maker], self.part[reader]
        if before is None or after is None or not self._gives(maker) or not after.takes:
            return False
        return before.space is Space.RESULT


@dataclass(slots=True)
class _Regions:
    """Groups by region, and how many kernels must have ended before each group."""

    of: dict[int, int]
    members: dict[int, list[int]]
    level: dict[int, int]

    def merge(self, into: int, other: int) -> None:
        """Make two regions one, at the level of `into`."""
        level = self.level[self.members[into][0]]
        for number in self.members.pop(other):
            self.of[number] = into
            self.level[number] = level
            self.members[into].append(number)


def form_regions(groups: Groups, table: Table) -> None:
    """Merge the groups that the parts of a table let run in the same loops.

    Time O((groups + edges) log groups).
    """
    loops = _Loops(groups, table.parts)
    order = in_order(groups)
    makers = {number: groups.makers(number) for number in order}
    regions = _by_level(loops, order, makers)
    _sink(loops, regions, makers)
    if table.shares_reads:
        _share(loops, regions)
    for numbers in regions.members.values():
        for other in numbers[1:]:
            groups.merge(numbers[0], other)


def _by_level(loops: _Loops, order: Sequence[int], makers: Mapping[int, set[int]]) -> _Regions:
    """Return the regions of groups that are joined on one level."""
    level: dict[int, int] = {}
    parent = {number: number for number in order}

    def find(number: int) -> int:
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    reach = dict(loops.length)
    for number in order:
        joined = {m: loops.join(m, number, reach[find(m)]) for m in makers[number]}
        level[number] = max((level[m] + (not soft) for m, soft in joined.items()), default=0)
        for maker, soft in joined.items():
            first, second = find(maker), find(number)
            if soft and level[maker] == level[number] and first != second:
                parent[second] = first
                reach[first] = max(reach[first], reach[second])
    of = {number: find(number) for number in order}
    members: dict[int, list[int]] = {}
    for number in order:
        members.setdefault(of[number], []).append(number)
    return _Regions(of, members, level)


def _sink(loops: _Loops, regions: _Regions, makers: Mapping[int, set[int]]) -> None:
    """Move each region whose results one other region alone reads into that one, last ones first.

    What waits for nothing but its reader is computed there: the gate of a product, the mask of a
    sum. Only its sole reader comes behind it, so the rise in level crosses nobody.
    """
    edges: dict[int, list[tuple[int, int]]] = {}
    for reader, its in makers.items():
        for maker in its:
            edges.setdefault(maker, []).append((maker, reader))
    levels = {number: regions.level[its[0]] for number, its in regions.members.items()}
    for number in sorted(regions.members, key=lambda n: (-levels[n], -n)):
        out = [
            edge
            for member in regions.members[number]
            for edge in edges.get(member, ())
            if regions.of[edge[1]] != number
        ]
        targets = {regions.of[reader] for _, reader in out}
        if len(targets) != 1:
            continue
        if all(loops.join(*edge) or loops.is_inlined(*edge) for edge in out):
            regions.merge(targets.pop(), number)


def _share(loops: _Loops, regions: _Regions) -> None:
    """Merge regions of one level and length that read the same tensor: neither waits.

    Two views of one tensor are not the same: they are read at different places.
    """
    seen: dict[tuple[int, int, str], int] = {}  # a group that reads it there
    for number in list(regions.members):
        if number not in regions.members:
            continue  # merged meanwhile
        its = regions.members[number]
        parts = [loops.part[member] for member in its]
        if any(part is None or not part.takes for part in parts):
            continue
        length = max(loops.length[member] for member in its)
        level = regions.level[its[0]]
        member = its[0]
        for name in _outside_reads(loops.groups, its):
            first = regions.of[seen.setdefault((level, length, name), member)]
            if first != regions.of[member]:
                regions.merge(first, regions.of[member])


def _outside_reads(groups: Groups, numbers: Sequence[int]) -> list[str]:
    """Return what groups read that none of them makes, constants left out, in their order."""
    wiring, own = groups.wiring, set(numbers)
    names: dict[str, None] = {}
    for number in numbers:
        for i in groups.at(number).members:
            for name in wiring.graph.nodes[i].inputs:
                maker = wiring.maker.get(wiring.root_of(name))
                is_own = maker is not None and groups.of[maker] in own
                if name and not is_own and not wiring.is_constant(name):
                    names[name] = None
    return list(names)
