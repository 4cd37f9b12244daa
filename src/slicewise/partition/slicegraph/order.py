"""Topological orders for the slicing dynamic program: where to start, and how to vary one.

Nodes that must share a stage (units of `ProblemArrays`) stand side by side in every order, so that
a cut between them parts no group. Nothing is costed here, and chance comes in as numbers.
"""

from collections.abc import Callable

import numpy as np

from slicewise.core.pipeline import PipelineProblem
from slicewise.partition.compiled import compiled
from slicewise.partition.slicegraph.arrays import Floats, Ints, ProblemArrays, arrays_of, rows

# How `keyed` breaks ties of the keys among nodes that are ready.
FIRST_ID, LAST_READY, FIRST_READY = 0, 1, 2


@compiled
def _sift(heap: Ints, size: int, key: Floats, second: Floats, at: int) -> None:
    """Restore the heap (least key, then least second key, first) around one place."""
    while at > 0:
        up = (at - 1) // 2
        a, b = heap[at], heap[up]
        if key[a] > key[b] or (key[a] == key[b] and second[a] >= second[b]):
            break
        heap[at], heap[up] = b, a
        at = up
    while 2 * at + 1 < size:
        down = 2 * at + 1
        if down + 1 < size:
            a, b = heap[down], heap[down + 1]
            if key[b] < key[a] or (key[b] == key[a] and second[b] < second[a]):
                down += 1
        a, b = heap[at], heap[down]
        if key[a] < key[b] or (key[a] == key[b] and second[a] <= second[b]):
            break
        heap[at], heap[down] = b, a
        at = down


@compiled
def _keyed(
    key: Floats, second: Floats, tie: int, start: Ints, after: Ints, waits: Ints, heap: Ints,
    order: Ints,
) -> None:  # fmt: skip
    """Fill in the order that always takes the ready node of least key; `waits` counts inputs."""
    size = done = ready = 0
    for v in range(len(waits)):
        if waits[v] == 0:
            heap[size] = v
            size += 1
            _sift(heap, size, key, second, size - 1)
    while size > 0:
        v = heap[0]
        size -= 1
        heap[0] = heap[size]
        _sift(heap, size, key, second, 0)
        order[done] = v
        done += 1
        for e in range(start[v], start[v + 1]):
            u = after[e]
            waits[u] -= 1
            if waits[u] == 0:
                ready += 1
                if tie == 1:
                    second[u] = -ready
                elif tie == 2:
                    second[u] = ready
                heap[size] = u
                size += 1
                _sift(heap, size, key, second, size - 1)


@compiled
def _frugal(
    cost: Floats, made: Ints, made_start: Ints, used: Ints, used_start: Ints, left: Ints,
    start: Ints, after: Ints, waits: Ints, ready: Ints, order: Ints,
) -> None:  # fmt: skip
    """Fill in the order that takes the ready node that opens least and closes most cost.

    `left` counts the consumers of each tensor that are still to come; the latest ready wins ties.
    """
    size = done = 0
    for v in range(len(waits)):
        if waits[v] == 0:
            ready[size] = v
            size += 1
    while size > 0:
        best, least = size - 1, 0.0
        for index in range(size - 1, -1, -1):
            v = ready[index]
            change = 0.0
            for e in range(made_start[v], made_start[v + 1]):
                change += cost[made[e]]
            for e in range(used_start[v], used_start[v + 1]):
                if left[used[e]] == 1:
                    change -= cost[used[e]]
            if index == size - 1 or change < least:
                best, least = index, change
        v = ready[best]
        for index in range(best, size - 1):
            ready[index] = ready[index + 1]
        size -= 1
        order[done] = v
        done += 1
        for e in range(used_start[v], used_start[v + 1]):
            left[used[e]] -= 1
        for e in range(start[v], start[v + 1]):
            waits[after[e]] -= 1
            if waits[after[e]] == 0:
                ready[size] = after[e]
                size += 1


class Orders:
    """Makes topological orders of one problem's units, and gives them as orders of its nodes."""

    def __init__(self, problem: PipelineProblem, arrays: ProblemArrays | None = None) -> None:
        self.arrays = made = arrays_of(problem) if arrays is None else arrays
        self.units = made.units
        self.member_start, self.members = rows(_members(made))
        ends = made.unit[made.uses]
        begins = made.unit[np.repeat(made.producer, np.diff(made.uses_start))]
        pairs = np.unique(np.stack([begins, ends], axis=1)[begins != ends], axis=0)
        self._after = _rows_of(pairs[:, 0], pairs[:, 1], self.units)
        self._before = _rows_of(pairs[:, 1], pairs[:, 0], self.units)
        self._tensors = self._tensor_rows()

    def keyed(
        self, key: Floats, *, second: Floats | None = None, tie: int = FIRST_ID,
        backward: bool = False,
    ) -> Ints:  # fmt: skip
        """Return the order that always takes the ready unit of least key, then least `second`.

        `tie` replaces `second` by when a unit became ready. `backward` builds it from the end
        (least key last), so that every unit comes as late as it can.
        """
        start, after = self._before if backward else self._after
        waits = np.bincount(after, minlength=self.units).astype(np.int64)
        order = np.zeros(self.units, np.int64)
        ties = np.arange(self.units, dtype=np.float64) if second is None else second.copy()
        heap = np.zeros(self.units + 1, np.int64)
        _keyed(np.asarray(key, np.float64), ties, tie, start, after, waits, heap, order)
        return self.expand(order[::-1] if backward else order)

    def frugal(self) -> Ints:
        """Return a greedy order of least cost of open tensors."""
        start, after = self._after
        waits = np.bincount(after, minlength=self.units).astype(np.int64)
        made, used, left, cost = self._tensors
        order, ready = np.zeros(self.units, np.int64), np.zeros(self.units + 1, np.int64)
        _frugal(
            cost, made[1], made[0], used[1], used[0], left.copy(), start, after, waits, ready,
            order,
        )  # fmt: skip
        return self.expand(order)

    def expand(self, units: Ints) -> Ints:
        """Return the nodes of units in the order of the units, inside a unit by id."""
        if self.units == self.arrays.nodes:
            return np.ascontiguousarray(self.members[units])
        parts = [
            self.members[self.member_start[unit] : self.member_start[unit + 1]] for unit in units
        ]
        return np.concatenate(parts)

    def of_units(self, values: Floats) -> Floats:
        """Return for each unit the value of its first node."""
        return np.ascontiguousarray(values[self.members[self.member_start[:-1]]])

    def starts(self) -> list[Callable[[], Ints]]:
        """Return makers of the orders to begin with: given, depth-first, late, frugal, broad."""
        even = np.zeros(self.units)
        rank = self.of_units(np.arange(self.arrays.nodes, dtype=np.float64))
        return [
            lambda: self.keyed(rank),
            lambda: self.keyed(even, tie=LAST_READY),
            lambda: self.keyed(even, tie=LAST_READY, backward=True),
            lambda: self.keyed(-rank, backward=True),
            self.frugal,
            lambda: self.keyed(even, tie=FIRST_READY),
            lambda: self.keyed(even, tie=FIRST_READY, backward=True),
        ]

    def _tensor_rows(self) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints], Ints, Floats]:
        """Return tensors that leave their unit: as made and used by units, uses, and costs."""
        made: list[list[int]] = [[] for _ in range(self.units)]
        used: list[list[int]] = [[] for _ in range(self.units)]
        arrays = self.arrays
        left = np.zeros(arrays.tensors, np.int64)
        unit = arrays.unit.tolist()
        start, uses = arrays.uses_start.tolist(), arrays.uses.tolist()
        for tensor, producer in enumerate(arrays.producer.tolist()):
            ends = {unit[node] for node in uses[start[tensor] : start[tensor + 1]]}
            ends.discard(unit[producer])
            left[tensor] = len(ends)
            if ends:
                made[unit[producer]].append(tensor)
            for end in sorted(ends):
                used[end].append(tensor)
        return rows(made), rows(used), left, arrays.cost


def _members(arrays: ProblemArrays) -> list[list[int]]:
    members: list[list[int]] = [[] for _ in range(arrays.units)]
    for node, unit in enumerate(arrays.unit.tolist()):
        members[unit].append(node)
    return members


def _rows_of(begins: Ints, ends: Ints, count: int) -> tuple[Ints, Ints]:
    """Return pairs as rows by their first; each row keeps the order of the pairs."""
    start = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(begins, minlength=count), out=start[1:])
    return start, np.ascontiguousarray(ends[np.argsort(begins, kind="stable")])
