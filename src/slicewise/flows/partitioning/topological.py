"""A topological order as near to the given one as can be, or the cycle that forbids it."""

import heapq
from collections.abc import Callable, Sequence

from slicewise.core.errors import PartitionError


def topological(
    count: int, edges: Sequence[tuple[int, int]], *, describe: Callable[[list[int]], str]
) -> list[int]:
    """Return the nodes 0 .. count-1 so that every edge goes forward; the least free one first.

    `PartitionError` with the words of `describe` for a cycle, given as its nodes, the first one
    again at the end. Time O((nodes + edges) log nodes).
    """
    waits = [0] * count
    after: list[list[int]] = [[] for _ in range(count)]
    for u, v in edges:
        waits[v] += 1
        after[u].append(v)
    free = [node for node in range(count) if not waits[node]]
    heapq.heapify(free)
    order = []
    while free:
        node = heapq.heappop(free)
        order.append(node)
        for other in after[node]:
            waits[other] -= 1
            if not waits[other]:
                heapq.heappush(free, other)
    if len(order) < count:
        raise PartitionError(describe(_cycle(count, edges, waits)))
    return order


def _cycle(count: int, edges: Sequence[tuple[int, int]], waits: Sequence[int]) -> list[int]:
    """Return a cycle among the nodes that still wait: each has a predecessor that waits."""
    before = {v: u for u, v in edges if waits[u] and waits[v]}
    node = next(node for node in range(count) if waits[node])
    seen: dict[int, int] = {}
    path: list[int] = []
    while node not in seen:
        seen[node] = len(path)
        path.append(node)
        node = before[node]
    return [*path[seen[node] :], node][::-1]


def parts(count: int, edges: Sequence[tuple[int, int]]) -> int:
    """Return into how many parts a graph falls that no edge joins."""
    root = list(range(count))

    def find(node: int) -> int:
        while root[node] != node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    for u, v in edges:
        root[find(u)] = find(v)
    return sum(find(node) == node for node in range(count))
