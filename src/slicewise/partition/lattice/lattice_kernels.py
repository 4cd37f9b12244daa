"""The inner loops over ideals (sets of nodes that hold all their ancestors), in whole numbers.

Arrays in, arrays out; what the numbers mean is said in `lattice.py`. Ideal 0 is empty, ideals are
numbered by rising size, and row i of `up` lists the ideals with one node more than ideal i. Costs
are rounded down to integers before they come here, so that sums are exact.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from slicewise.partition.compiled import compiled

Ints: TypeAlias = NDArray[np.int64]
Shorts: TypeAlias = NDArray[np.int32]
Enumerated: TypeAlias = tuple[int, Ints, Ints, Shorts, Shorts, Shorts]

FAR = 1 << 62  # more than any sum that is compared


@compiled
def enumerate_ideals(
    before_start: Ints, before: Ints, after_start: Ints, after: Ints, keys: Ints, most: int
) -> Enumerated:
    """Return the number of ideals, their bits, the rows of `up` (starts, nodes, ideals), and the
    edge each ideal was first found by; the number is -1 if there are more than `most`.

    `before` and `after` are the neighbours of each node, `keys` random numbers to hash with.
    """
    nodes = len(keys)
    words = (nodes + 63) >> 6
    one = np.int64(1)
    room = min(most, 1024) + 1
    bits = np.zeros((room, words), np.int64)
    sums = np.zeros(room, np.int64)
    start = np.zeros(room + 1, np.int64)
    found_by = np.zeros(room, np.int32)
    edges = 4096
    up_node = np.zeros(edges, np.int32)
    up_ideal = np.zeros(edges, np.int32)
    slots = 4096
    table = np.full(slots, -1, np.int32)
    used = 0
    for node in range(nodes):
        if before_start[node + 1] == before_start[node]:
            if used == edges:
                edges *= 2
                up_node = _grown(up_node, edges)
                up_ideal = _grown(up_ideal, edges)
            up_node[used] = node
            used += 1
    start[1] = used
    count = 1
    ideal = 0
    while ideal < count:
        for edge in range(start[ideal], start[ideal + 1]):
            node = up_node[edge]
            word, bit = node >> 6, one << np.int64(node & 63)
            total = sums[ideal] ^ keys[node]
            slot = total & (slots - 1)
            made = -1
            while table[slot] >= 0:
                other = table[slot]
                if sums[other] == total:
                    is_same = True
                    for index in range(words):
                        wanted = bits[ideal, index]
                        if index == word:
                            wanted |= bit
                        if bits[other, index] != wanted:
                            is_same = False
                            break
                    if is_same:
                        made = other
                        break
                slot = (slot + 1) & (slots - 1)
            if made < 0:
                if count == most:
                    return -1, bits, start, up_node, up_ideal, found_by
                if count == room:
                    room = min(2 * room, most + 1)
                    more = np.zeros((room, words), np.int64)
                    more[:count] = bits[:count]
                    bits = more
                    longer = np.zeros(room, np.int64)
                    longer[:count] = sums[:count]
                    sums = longer
                    further = np.zeros(room + 1, np.int64)
                    further[: count + 1] = start[: count + 1]
                    start = further
                    found_by = _grown(found_by, room)
                made = count
                count += 1
                table[slot] = made
                sums[made] = total
                bits[made] = bits[ideal]
                bits[made, word] |= bit
                found_by[made] = edge
                wide = start[ideal + 1] - start[ideal] + after_start[node + 1] - after_start[node]
                if used + wide > edges:
                    edges = 2 * (used + wide)
                    up_node = _grown(up_node, edges)
                    up_ideal = _grown(up_ideal, edges)
                for index in range(start[ideal], start[ideal + 1]):
                    if up_node[index] != node:
                        up_node[used] = up_node[index]
                        used += 1
                for index in range(after_start[node], after_start[node + 1]):
                    other = after[index]
                    is_ready = True
                    for place in range(before_start[other], before_start[other + 1]):
                        needed = before[place]
                        if not (bits[made, needed >> 6] >> np.int64(needed & 63)) & one:
                            is_ready = False
                            break
                    if is_ready:
                        up_node[used] = other
                        used += 1
                start[made + 1] = used
                if 2 * count > slots:
                    slots *= 4
                    table = np.full(slots, -1, np.int32)
                    for index in range(1, count):
                        slot = sums[index] & (slots - 1)
                        while table[slot] >= 0:
                            slot = (slot + 1) & (slots - 1)
                        table[slot] = index
            up_ideal[edge] = made
        ideal += 1
    return count, bits[:count], start[: count + 1], up_node[:used], up_ideal[:used], found_by


@compiled
def _grown(array: Shorts, size: int) -> Shorts:
    more = np.zeros(size, np.int32)
    more[: len(array)] = array
    return more


@compiled
def sum_over_nodes(found_by: Shorts, origin: Shorts, up_node: Shorts, value: Ints) -> Ints:
    """Return the sum of `value` over the nodes of each ideal; `origin` is the lower end of the
    edge that found it."""
    count = len(origin)
    total = np.zeros(count, np.int64)
    for ideal in range(1, count):
        total[ideal] = total[origin[ideal]] + value[up_node[found_by[ideal]]]
    return total


@compiled
def sum_over_alive(
    bits: Ints, found_by: Shorts, origin: Shorts, up_node: Shorts,
    made_start: Ints, made: Ints, used_start: Ints, used: Ints, uses_start: Ints, uses: Ints,
    cost: Ints,
) -> Ints:  # fmt: skip
    """Return, for each row of `cost` and each ideal, the cost of the tensors that leave it."""
    count = len(origin)
    one = np.int64(1)
    total = np.zeros((cost.shape[0], count), np.int64)
    for ideal in range(1, count):
        node = up_node[found_by[ideal]]
        for row in range(cost.shape[0]):
            total[row, ideal] = total[row, origin[ideal]]
        for index in range(made_start[node], made_start[node + 1]):
            tensor = made[index]
            if uses_start[tensor + 1] > uses_start[tensor]:
                for row in range(cost.shape[0]):
                    total[row, ideal] += cost[row, tensor]
        for index in range(used_start[node], used_start[node + 1]):
            tensor = used[index]
            is_done = True
            for place in range(uses_start[tensor], uses_start[tensor + 1]):
                use = uses[place]
                if not (bits[ideal, use >> 6] >> np.int64(use & 63)) & one:
                    is_done = False
                    break
            if is_done:
                for row in range(cost.shape[0]):
                    total[row, ideal] -= cost[row, tensor]
    return total


@compiled
def whole_groups(bits: Ints, group_start: Ints, group: Ints) -> Shorts:
    """Return 1 for each ideal that holds every group whole or not at all, else 0."""
    count = len(bits)
    one = np.int64(1)
    good = np.ones(count, np.int32)
    for ideal in range(count):
        for index in range(len(group_start) - 1):
            first = group[group_start[index]]
            has = (bits[ideal, first >> 6] >> np.int64(first & 63)) & one
            for place in range(group_start[index], group_start[index + 1]):
                node = group[place]
                if (bits[ideal, node >> 6] >> np.int64(node & 63)) & one != has:
                    good[ideal] = 0
    return good


@compiled
def _walk(
    low: int, most: int, room: int, bits: Ints, up_start: Ints, up_node: Shorts, up_ideal: Shorts,
    used_start: Ints, used: Ints, producer: Ints, uses_start: Ints, uses: Ints,
    good: Shorts, work: Ints, bad: Ints, memory: Ints, sent_all: Ints, got_all: Ints,
    get: Ints, send: Ints, overlaps: bool, hops: bool,
    stamp: Ints, mark: int, touched: Ints, left: Ints, stack: Ints, edge_at: Ints, via: Ints,
    hit_ideal: Ints, hit_load: Ints, hit_moved: Ints,
) -> tuple[int, int]:  # fmt: skip
    """Return how many ideals above `low` make a stage of load `most` at most, and steps taken.

    Walks up edge by edge, each ideal once. Work, memory, forbidden nodes and what is received only
    grow on the way up, so beyond a limit nothing above is walked. What is sent: all tensors that
    leave the upper ideal but those that left the lower one already.
    """
    one = np.int64(1)
    hits = steps = depth = 0
    received = got_all[low] if hops else 0
    freed = 0
    stack[0] = low
    edge_at[0] = up_start[low]
    while depth >= 0:
        ideal = stack[depth]
        edge = edge_at[depth]
        if edge == up_start[ideal + 1]:
            if depth and not hops:
                node = via[depth]
                for index in range(used_start[node], used_start[node + 1]):
                    tensor = used[index]
                    made = producer[tensor]
                    if (bits[low, made >> 6] >> np.int64(made & 63)) & one:
                        if touched[tensor] == left[tensor]:
                            freed -= send[tensor]
                        touched[tensor] -= 1
                        if touched[tensor] == 0:
                            received -= get[tensor]
            depth -= 1
            continue
        edge_at[depth] = edge + 1
        upper = up_ideal[edge]
        if stamp[upper] == mark:
            continue
        stamp[upper] = mark
        worked = work[upper] - work[low]
        if bad[upper] != bad[low] or memory[upper] - memory[low] > room:
            continue
        if worked > most or (not overlaps and worked + received > most):
            continue
        steps += 1
        node = up_node[edge]
        if not hops:
            for index in range(used_start[node], used_start[node + 1]):
                tensor = used[index]
                made = producer[tensor]
                if (bits[low, made >> 6] >> np.int64(made & 63)) & one:
                    if touched[tensor] == 0:
                        received += get[tensor]
                        missing = 0
                        for place in range(uses_start[tensor], uses_start[tensor + 1]):
                            use = uses[place]
                            if not (bits[low, use >> 6] >> np.int64(use & 63)) & one:
                                missing += 1
                        left[tensor] = missing
                    touched[tensor] += 1
                    if touched[tensor] == left[tensor]:
                        freed += send[tensor]
        depth += 1
        stack[depth] = upper
        via[depth] = node
        if received > most or (not overlaps and worked + received > most):
            edge_at[depth] = up_start[upper + 1]
            continue
        edge_at[depth] = up_start[upper]
        if good[upper]:
            sent = sent_all[upper] if hops else sent_all[upper] - sent_all[low] + freed
            load = max(worked, received, sent) if overlaps else worked + received + sent
            if load <= most:
                hit_ideal[hits] = upper
                hit_load[hits] = load
                hit_moved[hits] = received + sent
                hits += 1
    return hits, steps


@compiled
def settle_least(
    first: int, budget: int, stages: int, most: int, replicates: bool, rest: Ints,
    best: Ints, parent: Shorts, room: int,
    bits: Ints, up_start: Ints, up_node: Shorts, up_ideal: Shorts,
    used_start: Ints, used: Ints, producer: Ints, uses_start: Ints, uses: Ints,
    good: Shorts, work: Ints, bad: Ints, memory: Ints, sent_all: Ints, got_all: Ints,
    get: Ints, send: Ints, overlaps: bool, hops: bool,
) -> tuple[int, int]:  # fmt: skip
    """Find the fewest like devices that reach each ideal with loads of at most `most` a device.

    Ideals are taken in rising order from `first` until `budget` steps are spent; returned are the
    next one to take (the last, if it was reached) and the steps. `rest` is what the stages above
    an ideal must do together, at least.
    """
    count = len(good)
    last = count - 1
    tensors = len(producer)
    deep = len(used_start) + 1
    stamp = np.full(count, -1, np.int64)
    touched, left = np.zeros(tensors, np.int64), np.zeros(tensors, np.int64)
    stack, edge_at = np.zeros(deep, np.int64), np.zeros(deep, np.int64)
    via = np.zeros(deep, np.int64)
    hit_ideal, hit_load = np.zeros(count, np.int64), np.zeros(count, np.int64)
    hit_moved = np.zeros(count, np.int64)
    steps = 0
    ideal = first
    while ideal < last and steps < budget:
        low = ideal
        ideal += 1
        free = stages - best[low]
        if best[low] >= FAR or free < 1 or rest[low] > free * most:
            continue
        # the last stage receives all that leaves the ideal and sends nothing
        worked = work[last] - work[low]
        load = max(worked, got_all[low]) if overlaps else worked + got_all[low]
        if bad[last] == bad[low] and memory[last] - memory[low] <= room:
            need = max(1, -(-load // most)) if most > 0 else 1
            if load <= most or (replicates and most > 0 and need <= free):
                best[last] = best[low] + need
                parent[last] = low
                return last, steps
        if free == 1:
            continue
        limit = most * free if replicates else most
        hits, taken = _walk(
            low, limit, room, bits, up_start, up_node, up_ideal,
            used_start, used, producer, uses_start, uses, good, work, bad, memory, sent_all,
            got_all, get, send, overlaps, hops, stamp, low, touched, left, stack, edge_at, via,
            hit_ideal, hit_load, hit_moved,
        )  # fmt: skip
        steps += taken + 1
        for index in range(hits):
            upper = hit_ideal[index]
            need = best[low] + 1
            if replicates and hit_load[index] > most:
                need = best[low] + -(-hit_load[index] // most)
            if need < best[upper] and rest[upper] <= (stages - need) * most:
                best[upper] = need
                parent[upper] = low
    return ideal, steps


@compiled
def settle_states(
    first: int, budget: int, most: int, least_energy: int,
    value: Ints, parent: Shorts, parent_arc: Shorts,
    arc_source: Ints, arc_target: Ints, arc_kind: Ints, arc_start: Ints, devices_left: Ints,
    kind_device: Ints, kind_replicas: Ints, kind_before: Ints, kind_after: Ints,
    kind_room: Ints, kind_static: Ints, joules_per_ms: float,
    rest: Ints, rest_energy: Ints, energy: Ints,
    bits: Ints, up_start: Ints, up_node: Shorts, up_ideal: Shorts,
    used_start: Ints, used: Ints, producer: Ints, uses_start: Ints, uses: Ints,
    good: Shorts, work: Ints, bad: Ints, memory: Ints, alive: Ints, link_cost: Ints,
    overlaps: bool, hops: bool, is_first_enough: bool,
) -> tuple[int, int]:  # fmt: skip
    """Find the least energy of each (ideal, state), every load per device at most `most`.

    As `settle_least`, for any machine. Arcs of stage kind q are `arc_start[q]` to
    `arc_start[q + 1]`; those after the last are of empty stages, by rising target. Nothing of an
    energy above `least_energy`, with what the rest needs at least, is kept.
    """
    count = len(good)
    last = count - 1
    states = value.shape[1]
    tensors = len(producer)
    deep = len(used_start) + 1
    stamp = np.full(count, -1, np.int64)
    touched, left = np.zeros(tensors, np.int64), np.zeros(tensors, np.int64)
    stack, edge_at = np.zeros(deep, np.int64), np.zeros(deep, np.int64)
    via = np.zeros(deep, np.int64)
    hit_ideal, hit_load = np.zeros(count, np.int64), np.zeros(count, np.int64)
    hit_moved = np.zeros(count, np.int64)
    steps = 0
    mark = 0
    ideal = first
    while ideal < last and steps < budget:
        low = ideal
        ideal += 1
        for arc in range(arc_start[len(arc_start) - 1], len(arc_source)):
            source, target, kind = arc_source[arc], arc_target[arc], arc_kind[arc]
            if value[low, source] < FAR:
                got, sent = alive[kind_before[kind], low], alive[kind_after[kind], low]
                if not hops:
                    got, sent = 0, 0
                load = max(got, sent) if overlaps else got + sent
                total = value[low, source] + np.int64(joules_per_ms * (got + sent))
                if load <= most and total < value[low, target]:
                    value[low, target] = total
                    parent[low, target] = low
                    parent_arc[low, target] = arc
        if not good[low]:
            continue
        for kind in range(len(arc_start) - 1):
            is_active = goes_on = False
            for arc in range(arc_start[kind], arc_start[kind + 1]):
                source = arc_source[arc]
                if value[low, source] < FAR and rest[low] <= devices_left[source] * most:
                    is_active = True
                    goes_on |= devices_left[arc_target[arc]] > 0
            if not is_active:
                continue
            device = kind_device[kind]
            limit = most * kind_replicas[kind]
            if goes_on:
                hits, taken = _walk(
                    low, limit, kind_room[kind], bits, up_start, up_node, up_ideal, used_start,
                    used, producer, uses_start, uses, good, work[device], bad[kind], memory,
                    alive[kind_after[kind]], alive[kind_before[kind]],
                    link_cost[kind_before[kind]], link_cost[kind_after[kind]], overlaps, hops,
                    stamp, mark, touched, left, stack, edge_at, via, hit_ideal, hit_load,
                    hit_moved,
                )  # fmt: skip
                mark += 1
            else:  # nothing may follow: the stage takes all that is left
                hits, taken = 0, 0
                worked = work[device, last] - work[device, low]
                got = alive[kind_before[kind], low]
                load = max(worked, got) if overlaps else worked + got
                is_legal = bad[kind, last] == bad[kind, low]
                if is_legal and memory[last] - memory[low] <= kind_room[kind] and load <= limit:
                    hit_ideal[0], hit_load[0], hit_moved[0] = last, load, got
                    hits = 1
            steps += taken + 1
            for index in range(hits):
                upper = hit_ideal[index]
                cost = energy[device, upper] - energy[device, low] + kind_static[kind]
                cost += np.int64(joules_per_ms * hit_moved[index])
                for arc in range(arc_start[kind], arc_start[kind + 1]):
                    source, target = arc_source[arc], arc_target[arc]
                    if value[low, source] >= FAR:
                        continue
                    total = value[low, source] + cost
                    if total >= value[upper, target] or total + rest_energy[upper] > least_energy:
                        continue
                    if rest[upper] <= devices_left[target] * most:
                        value[upper, target] = total
                        parent[upper, target] = low
                        parent_arc[upper, target] = arc
        if is_first_enough:
            for state in range(states):
                if value[last, state] < FAR:
                    return last, steps
    return ideal, steps
