"""The dynamic program over sets of nodes, in whole numbers: what the cheapest one costs.

Nodes come in one order. A state says for each tensor that is alive, one with nodes on both sides
of the present place, whether its nodes so far are all outside of the set, all inside, or on both
sides (it is paid for then). For each state and worth the least cost is kept. Arrays in, arrays
out; what the numbers mean is said in `stage_prices.py`.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from slicewise.partition.compiled import compiled

Ints: TypeAlias = NDArray[np.int64]
Shorts: TypeAlias = NDArray[np.int32]
Codes: TypeAlias = NDArray[np.int16]
Swept: TypeAlias = tuple[int, int, Ints, Ints, Ints]

FAR = 1 << 30  # more than any cost that is kept
MOST_STATES = 16_000  # a code is twice a state
BOTH = 2  # of a tensor: nodes of it are inside, and outside


@compiled
def sweep(
    work: Ints, price: Ints, start: Ints, slot: Ints, cost: Ints, place: Ints, limit: Ints,
    share: int, noted: int, most_cells: int, is_traced: bool,
) -> Swept:  # fmt: skip
    """Return the least cost of a set worth `share`, how many states there were at most, and sets.

    Node j has the tensors `slot[start[j]:start[j + 1]]`; `place` is 1 where the node is the first
    of a tensor, 2 where it is the last, 3 where it is both. A set worth q that costs more than
    `limit[q]` is dropped, worth is counted up to the last q. The states are -1 where there are too
    many. Traced: the dearest sets worth `noted` or more that end at each node: starts, nodes,
    worths.
    """
    nodes, top = len(work), len(limit) - 1
    keys = np.zeros(1, np.int64)
    table = np.full((1, top + 1), FAR, np.int32)
    table[0, 0] = 0
    codes = np.zeros(1 << 16 if is_traced else 1, np.int16)
    tops = np.zeros(1 << 12 if is_traced else 1, np.int32)
    offset = np.zeros(nodes + 1, np.int64)  # of the first state of each node among all
    ended = np.full((nodes, 3), -1, np.int64)
    least, most, cells = FAR, 1, 0
    for node in range(nodes):
        count = len(keys)
        fresh = np.empty(2 * count, np.int64)
        paid = np.zeros(2 * count, np.int64)
        for row in range(2 * count):
            fresh[row], paid[row] = _labelled(
                keys[row % count], row // count, slot[start[node] : start[node + 1]],
                cost[start[node] : start[node + 1]], place[start[node] : start[node + 1]],
            )  # fmt: skip
            paid[row] += work[node] * (row // count)
        met, of = _distinct(fresh)
        made = np.full((len(met), top + 1), FAR, np.int32)
        code = np.zeros((len(met), top + 1) if is_traced else (1, 1), np.int16)
        before = np.zeros(len(met), np.int32)
        cells += 2 * count * (top + 1)
        for row in range(2 * count):
            _extend(
                table[row % count], made[of[row]], code[of[row] if is_traced else 0], before,
                of[row], row, count, paid[row], price[node], limit[top], is_traced,
            )  # fmt: skip
        kept = np.zeros(len(met), np.bool_)
        for state in range(len(met)):
            for worth in range(top, -1, -1):
                if made[state, worth] > limit[worth]:
                    made[state, worth] = FAR
                    continue
                if met[state] == 0 and worth >= noted and is_traced and ended[node, 0] < 0:
                    ended[node, 0] = worth
                    ended[node, 1] = code[state, worth]
                    ended[node, 2] = before[state]
                if met[state] == 0 and worth >= share:  # whole: nothing else makes it cheaper
                    least = min(least, made[state, worth])
                    made[state, worth] = FAR
                else:
                    kept[state] = True
        keys, table = met[kept], made[kept]
        most = max(most, len(keys))
        if most > MOST_STATES or cells > most_cells:
            return least, -1, np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)
        offset[node + 1] = offset[node] + len(keys)
        if is_traced:
            first, last = offset[node] * (top + 1), offset[node + 1] * (top + 1)
            while len(codes) < last:
                codes = np.concatenate((codes, np.zeros(len(codes), np.int16)))
            while len(tops) < offset[node + 1]:
                tops = np.concatenate((tops, np.zeros(len(tops), np.int32)))
            codes[first:last] = code[kept].ravel()
            tops[offset[node] : offset[node + 1]] = before[kept]
    starts, members, worths = _sets(ended, codes, tops, offset, price, top)
    return least, most, starts, members, worths


@compiled
def _labelled(key: int, is_in: int, slot: Ints, cost: Ints, place: Ints) -> tuple[int, int]:
    """Return the state after a node that is inside or outside, and what is paid for that."""
    paid = 0
    for index in range(len(slot)):
        shift = 2 * slot[index]
        label = (key >> shift) & 3
        if place[index] & 1:
            label = is_in
        elif label != is_in:
            paid += 0 if label == BOTH else cost[index]
            label = BOTH
        key &= ~(np.int64(3) << shift)
        if not place[index] & 2:
            key |= np.int64(label) << shift
    return key, paid


@compiled
def _distinct(keys: Ints) -> tuple[Ints, Ints]:
    """Return the different keys, sorted, and which of them each key is."""
    order = np.argsort(keys)
    met = np.empty(len(keys), np.int64)
    of = np.empty(len(keys), np.int64)
    count = 0
    for index in order:
        if count == 0 or met[count - 1] != keys[index]:
            met[count] = keys[index]
            count += 1
        of[index] = count - 1
    return met[:count].copy(), of


@compiled
def _extend(
    old: Shorts, new: Shorts, code: Codes, before: Shorts, state: int, row: int, count: int,
    paid: int, price: int, limit: int, is_traced: bool,
) -> None:  # fmt: skip
    """Take what costs less for each worth from one state into another."""
    if paid > limit:
        return
    top = len(old) - 1
    gain = price if row >= count else 0
    mark = 2 * (row % count) + row // count
    for worth in range(top + 1):
        total = old[worth] + paid
        index = min(worth + gain, top)
        if total < new[index]:
            new[index] = total
            if is_traced:
                code[index] = mark
                if index == top:
                    before[state] = worth


@compiled
def _sets(
    ended: Ints, codes: Codes, tops: Shorts, offset: Ints, price: Ints, top: int
) -> tuple[Ints, Ints, Ints]:
    """Return the sets that ended, walked back: starts, nodes, worths."""
    found = 0
    for node in range(len(price)):
        found += ended[node, 0] >= 0
    starts = np.zeros(found + 1, np.int64)
    worths = np.zeros(found, np.int64)
    members = np.zeros(1 << 12, np.int64)
    used, index = 0, 0
    for last in range(len(price)):
        if ended[last, 0] < 0:
            continue
        worths[index] = worth = ended[last, 0]
        code, before = ended[last, 1], ended[last, 2]
        for node in range(last, -1, -1):
            if node < last:
                state = offset[node] + code
                code, before = np.int64(codes[state * (top + 1) + worth]), np.int64(tops[state])
            is_in = code & 1
            if is_in:
                if used == len(members):
                    members = np.concatenate((members, np.zeros(used, np.int64)))
                members[used] = node
                used += 1
            if worth == top:
                worth = before
            elif is_in:
                worth -= price[node]
            code >>= 1
        index += 1
        starts[index] = used
    return starts, members[:used].copy(), worths
