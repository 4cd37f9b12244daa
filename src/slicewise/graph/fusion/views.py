"""Which nodes launch nothing under a runtime: by their kind, the source, the runtime's table."""

from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet

from slicewise.core.cost import Kind
from slicewise.graph.fusion.match import holds
from slicewise.graph.fusion.pattern import Table
from slicewise.graph.fusion.wiring import NO_ALIAS, Wiring

# Kinds whose results share storage where the source says so.
_VIEW_LIKE = frozenset({Kind.VIEW, Kind.MOVEMENT})


class Views:
    """The views of one table. A runtime without free operators copies where operators say so."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.has_strides = any(not row.same_size for row in table.free)
        self._behind: dict[str, set[str]] | None = None
        self._readers: dict[str, set[str]] = {}

    def __call__(self, wiring: Wiring, i: int) -> bool:
        """True where node `i`, wired up to its inputs, launches nothing."""
        node, kind = wiring.graph.nodes[i], wiring.works[i].kind
        if kind not in _VIEW_LIKE:
            return False
        if self._is_copied(wiring, i):
            if kind is Kind.VIEW:
                wiring.copies.add(i)
            return False
        if any(row.same_size and self._keeps_size(wiring, row.text, i) for row in self.table.free):
            return True
        if not self.has_strides:
            return kind is Kind.VIEW
        if node.storage_of is None:
            return kind is Kind.VIEW or self._is_free(wiring, i)
        if node.storage_of == "" and kind is Kind.VIEW and node.op_type not in NO_ALIAS:
            wiring.copies.add(i)
            return False
        return kind is Kind.VIEW or node.storage_of != ""

    def _is_free(self, wiring: Wiring, i: int) -> bool:
        name = wiring.graph.nodes[i].outputs[0]
        return any(
            not row.same_size
            and holds(wiring, row.text, i)
            and not (row.unless and row.unless & self._ops_behind(wiring, name))
            for row in self.table.free
        )

    def _keeps_size(self, wiring: Wiring, text: str, i: int) -> bool:
        node = wiring.graph.nodes[i]
        if not node.inputs or not node.outputs or not holds(wiring, text, i):
            return False
        size = wiring.elements(node.inputs[0])
        return size > 0 and size == wiring.elements(node.outputs[0])

    def _is_copied(self, wiring: Wiring, i: int) -> bool:
        node = wiring.graph.nodes[i]
        rows = [row for row in self.table.copied if row.view == node.op_type]
        if not rows:
            return False
        self._ops_behind(wiring, node.outputs[0])
        readers = self._readers.get(node.outputs[0], ())
        return any(row.reader in readers for row in rows)

    def _ops_behind(self, wiring: Wiring, name: str) -> AbstractSet[str]:
        """Return the operators that read a tensor, directly or through other views."""
        if self._behind is None:
            self._behind = {}
            for node, work in zip(
                reversed(wiring.graph.nodes), reversed(wiring.works), strict=True
            ):
                ops = {node.op_type}
                if work.kind in _VIEW_LIKE:
                    ops.update(*_of(self._behind, node.outputs))
                for read in node.inputs:
                    self._readers.setdefault(read, set()).add(node.op_type)
                    self._behind.setdefault(read, set()).update(ops)
        return self._behind.get(name, frozenset())


def _of(table: dict[str, set[str]], names: Collection[str]) -> Iterator[set[str]]:
    yield from (table[name] for name in names if name in table)
