"""The inner loops of the slicing dynamic program, compiled where numba is installed.

`slice_dp` says what they are for. All arrays are flat, so that plain lists do as
well without numba.
"""

import math
from typing import NamedTuple

from slicewise.partition.compiled import compiled
from slicewise.partition.slicegraph.arrays import (
    AFTER_LATENCY,
    AFTER_SCALE,
    BEFORE_LATENCY,
    BEFORE_SCALE,
    FAST,
    KIND_COLUMNS,
    MEMORY_LIMIT,
    REPLICAS,
    RESERVE,
    SLOW,
    STATIC,
    Floats,
    Ints,
)


class Graph(NamedTuple):
    """`ProblemArrays`, flat: `work[d * n + v]`."""

    uses_start: Ints
    uses: Ints
    made_start: Ints
    made: Ints
    used_start: Ints
    used: Ints
    cost: Floats
    size: Floats
    work: Floats
    energy: Floats
    memory: Floats
    weight: Floats
    pin: Ints


class Stages(NamedTuple):
    """`MachineArrays`, flat; `arc` has the arcs that are stages, by kind, then source.

    Those of kind q from state s on begin at `first[q * (states + 1) + s]`. `left[s]` places are
    still free in state s.
    """

    kind: Floats
    device: Ints
    place: Ints
    has_fast: Ints
    first: Ints
    left: Ints
    arc: Ints
    source: Ints
    target: Ints
    empty: Ints
    arc_kind: Ints


class Rules(NamedTuple):
    """The variant, and what is fixed for all runs."""

    nodes: int
    states: int
    devices: int
    overlaps: bool
    hops: bool
    is_energy: bool
    any_fast: bool
    transfer_j: float
    load_limit: float
    places: int


class Table(NamedTuple):
    """The table and what the walks write to.

    `allowed[j]` is 1 where the order may be cut at j, `rest[j]` the least work of what is after,
    `low[j]` .. `high[j]` the states that have a value there.
    """

    low: Ints
    high: Ints
    rest: Floats
    best: Floats
    from_position: Ints
    from_arc: Ints
    allowed: Ints
    last: Ints
    cross_ms: Floats
    cross_count: Ints
    cross_bytes: Floats
    counted: Ints
    last_id: Ints
    device_work: Floats
    device_energy: Floats
    tree_sum: Floats
    tree_max: Floats
    touched: Ints


@compiled
def prepare(order: Ints, graph: Graph, table: Table) -> bool:
    """Fill in the last use of each tensor and what crosses each position; False: no order."""
    count = len(order)
    position = [0] * count
    for j in range(count):
        position[order[j]] = j
    for j in range(count + 1):
        table.cross_ms[j] = 0.0
        table.cross_count[j] = 0
        table.cross_bytes[j] = 0.0
    for v in range(count):
        for e in range(graph.made_start[v], graph.made_start[v + 1]):
            t = graph.made[e]
            last = -1
            for u in range(graph.uses_start[t], graph.uses_start[t + 1]):
                at = position[graph.uses[u]]
                if at <= position[v]:
                    return False
                last = max(last, at)
            table.last[t] = last
            table.counted[t] = 0
            if last >= 0:
                for at, sign in ((position[v] + 1, 1), (last + 1, -1)):
                    table.cross_ms[at] += sign * graph.cost[t]
                    table.cross_count[at] += sign
                    table.cross_bytes[at] += sign * graph.size[t]
    for j in range(count):
        table.cross_ms[j + 1] += table.cross_ms[j]
        table.cross_count[j + 1] += table.cross_count[j]
        table.cross_bytes[j + 1] += table.cross_bytes[j]
        if table.cross_count[j + 1] == 0:  # rounding of the sums must not cost anything
            table.cross_ms[j + 1] = 0.0
            table.cross_bytes[j + 1] = 0.0
    return True


@compiled
def _add(table: Table, leaf: int, change: float) -> None:
    """Change the bytes alive from `leaf` on: a tree of sums and greatest prefix sums."""
    at = len(table.tree_sum) // 2 + leaf
    table.tree_sum[at] += change
    table.tree_max[at] = table.tree_sum[at]
    while at > 1:
        at //= 2
        left, right = 2 * at, 2 * at + 1
        table.tree_sum[at] = table.tree_sum[left] + table.tree_sum[right]
        table.tree_max[at] = max(
            table.tree_max[left], table.tree_sum[left] + table.tree_max[right]
        )


@compiled
def _hold(table: Table, graph: Graph, v: int, j: int, stamp: int, touched: int) -> int:
    """Put node v before the run that ends at j into the tree; `evaluate.held_bytes` has the rule.

    Called before `counted` is set for v. Leaves are node ids: tensors begin at a node of the run
    (or at 0) and end after one, so ids that are not in the run never hold more than those in it.
    """
    for e in range(graph.used_start[v], graph.used_start[v + 1]):
        t = graph.used[e]
        size = graph.size[t]
        if table.counted[t] != stamp:
            table.last_id[t] = v
            _add(table, 0, size)
            _add(table, v + 1, -size)
            table.touched[touched] = v + 1
            touched += 1
        elif table.last_id[t] < v:
            _add(table, table.last_id[t] + 1, size)
            _add(table, v + 1, -size)
            table.last_id[t] = v
            table.touched[touched] = v + 1
            touched += 1
    for e in range(graph.made_start[v], graph.made_start[v + 1]):
        t = graph.made[e]
        size = graph.size[t]
        _add(table, v, size)
        table.touched[touched] = v
        touched += 1
        if table.counted[t] == stamp:
            _add(table, 0, -size)
            if table.last[t] >= j:  # sent: alive to the end
                _add(table, table.last_id[t] + 1, size)
        elif table.last[t] < 0:
            _add(table, v + 1, -size)
            table.touched[touched] = v + 1
            touched += 1
    return touched


@compiled
def _clear(table: Table, touched: int) -> None:
    """Set every leaf that was touched to 0, and what is above it."""
    half = len(table.tree_sum) // 2
    for index in range(touched + 1):
        at = half + (table.touched[index] if index < touched else 0)
        while at >= 1:
            table.tree_sum[at] = 0.0
            table.tree_max[at] = 0.0
            at //= 2


@compiled
def fill(
    order: Ints, graph: Graph, stages: Stages, rules: Rules, table: Table,
    begin: int, cutoff: float, slack: float, steps: int,
) -> int:  # fmt: skip
    """Fill the table from position `begin` on; return the next one when `steps` are used up.

    Values of `cutoff` and more are left out. Limits count as `slack` (relative) smaller.
    """
    n, states, kinds = rules.nodes, rules.states, len(stages.device)
    load_cut = rules.load_limit * (1.0 - slack) if rules.is_energy else cutoff
    if begin == 0:
        for t in range(len(table.counted)):
            table.counted[t] = 0
    for j in range(begin, n + 1):
        row = j * states
        for s in range(states):
            table.best[row + s] = math.inf
        table.low[j], table.high[j] = states, -1
        if j == 0:
            table.best[0] = 0.0
            table.low[0] = table.high[0] = 0
        # the other places, one a stage or replica at least, must take what comes after
        spare = (rules.places - 1) * load_cut * (1.0 + 1e-9)
        if table.allowed[j] == 0 or (j > 0 and table.rest[j] > spare):
            continue
        stamp = j
        rx = tx = memory = weight = 0.0
        rx_count = tx_count = 0
        passed = table.cross_bytes[j]
        pin = -1
        touched = 0
        for d in range(rules.devices):
            table.device_work[d] = 0.0
            table.device_energy[d] = 0.0
        if rules.hops:
            tx = table.cross_ms[j]
            tx_count = table.cross_count[j]
        for i in range(j - 1, -1, -1):
            v = order[i]
            if graph.pin[v] >= 0:
                if pin >= 0 and pin != graph.pin[v]:
                    break
                pin = graph.pin[v]
            for d in range(rules.devices):
                table.device_work[d] += graph.work[d * n + v]
                table.device_energy[d] += graph.energy[d * n + v]
            memory += graph.memory[v]
            if rules.any_fast:
                weight += graph.weight[v]
                touched = _hold(table, graph, v, j, stamp, touched)
            for e in range(graph.used_start[v], graph.used_start[v + 1]):
                t = graph.used[e]
                if table.counted[t] != stamp:
                    table.counted[t] = stamp
                    if table.last[t] >= j:
                        passed -= graph.size[t]
                    if not rules.hops:
                        rx += graph.cost[t]
                        rx_count += 1
            for e in range(graph.made_start[v], graph.made_start[v + 1]):
                t = graph.made[e]
                if table.last[t] < 0:
                    continue
                if table.counted[t] == stamp:
                    if not rules.hops:
                        rx -= graph.cost[t]
                        rx_count -= 1
                elif table.last[t] >= j:
                    passed -= graph.size[t]
                if table.last[t] >= j and not rules.hops:
                    tx += graph.cost[t]
                    tx_count += 1
            if rules.hops:
                rx = table.cross_ms[i]
                rx_count = table.cross_count[i]
            elif rx_count == 0:
                rx = 0.0  # nothing is received: what rounding left of the sums goes
            is_allowed = table.allowed[i] == 1
            fast = 0.0
            if rules.any_fast and is_allowed:
                fast = max(0.0, table.tree_max[1])
                if rules.hops:
                    fast += passed
            is_open = False
            for q in range(kinds):
                c = q * KIND_COLUMNS
                if memory + stages.kind[c + RESERVE] > stages.kind[c + MEMORY_LIMIT] * (1 - slack):
                    continue
                if pin >= 0 and stages.place[q] >= 0 and stages.place[q] != pin:
                    continue
                load = table.device_work[stages.device[q]]
                send = (
                    tx_count * stages.kind[c + AFTER_LATENCY] + tx * stages.kind[c + AFTER_SCALE]
                )
                receive = (
                    rx_count * stages.kind[c + BEFORE_LATENCY] + rx * stages.kind[c + BEFORE_SCALE]
                )
                # work and what is sent only grow as the run does; the rest may shrink again
                least = max(load, send) if rules.overlaps else load + send
                least /= stages.kind[c + REPLICAS]
                if least > load_cut or (least == load_cut and not rules.is_energy):
                    continue
                is_open = True
                if not is_allowed:
                    continue
                if stages.has_fast[q] == 1:
                    capacity = stages.kind[c + FAST]
                    if fast > capacity * (1 - slack):
                        continue
                    spilt = min(max(0.0, weight + fast - capacity), weight)
                    load += spilt * stages.kind[c + SLOW]
                value = max(load, send, receive) if rules.overlaps else load + send + receive
                value /= stages.kind[c + REPLICAS]
                if rules.is_energy:
                    if value > load_cut:
                        continue
                    value = (
                        table.device_energy[stages.device[q]]
                        + rules.transfer_j * (send + receive)
                        + stages.kind[c + STATIC]
                    )
                if value >= cutoff:
                    continue
                begins = stages.first[q * (states + 1) + min(table.low[i], states)]
                ends = stages.first[q * (states + 1) + table.high[i] + 1]
                steps -= max(0, ends - begins)
                for r in range(begins, ends):
                    a = stages.arc[r]
                    before = table.best[i * states + stages.source[a]]
                    total = before + value if rules.is_energy else max(before, value)
                    target = stages.target[a]
                    cell = row + target
                    if total < table.best[cell] and total < cutoff:
                        if table.rest[j] > stages.left[target] * load_cut * (1.0 + 1e-9):
                            continue
                        table.best[cell] = total
                        table.from_position[cell] = i
                        table.from_arc[cell] = a
                        table.low[j] = min(table.low[j], target)
                        table.high[j] = max(table.high[j], target)
            if not is_open:
                break
            steps -= 4
        if touched > 0:
            _clear(table, touched)
        for a in range(len(stages.empty)):
            if stages.empty[a] == 1:
                c = stages.arc_kind[a] * KIND_COLUMNS
                value = 0.0
                if rules.hops:
                    crossing, some = table.cross_ms[j], table.cross_count[j]
                    send = (
                        some * stages.kind[c + AFTER_LATENCY]
                        + crossing * stages.kind[c + AFTER_SCALE]
                    )
                    receive = (
                        some * stages.kind[c + BEFORE_LATENCY]
                        + crossing * stages.kind[c + BEFORE_SCALE]
                    )
                    if rules.is_energy:
                        value = rules.transfer_j * (send + receive)
                    else:
                        value = max(send, receive) if rules.overlaps else send + receive
                before = table.best[row + stages.source[a]]
                total = before + value if rules.is_energy else max(before, value)
                target = stages.target[a]
                cell = row + target
                if total < table.best[cell] and total < cutoff:
                    table.best[cell] = total
                    table.from_position[cell] = j
                    table.from_arc[cell] = a
                    table.low[j] = min(table.low[j], target)
                    table.high[j] = max(table.high[j], target)
        if steps < 0:
            return j + 1
    return n + 1
