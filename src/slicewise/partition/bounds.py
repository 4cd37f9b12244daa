"""Lower bounds that need no solver, by name; each can be computed again in exact arithmetic.

    work      all work over all devices: no k stages can share it better
    node      one node that some stage must run, with the transfers that no cut spares it
    memory    not a time: what the nodes hold, against what the devices have (`check_room`)
    energy    each node, and what the cheapest devices draw, with nothing sent

Every bound holds for every variant, or is not among the answers. Searches for nothing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from slicewise.core.errors import Infeasible
from slicewise.core.pipeline import Bound, Objective, PipelineProblem, StageDevice, Trust

Exact = Callable[[PipelineProblem], Fraction]


def combinatorial_bounds(problem: PipelineProblem) -> tuple[Bound, ...]:
    """Return the bounds on the objective of a problem, best first, in ms or J.

    `Infeasible` where no cut can keep a limit: a node that no device can run or hold, or more
    memory than all devices have.
    """
    check_room(problem)
    if problem.objective is Objective.ENERGY:
        _check_limit(problem)
        methods: Mapping[str, Exact] = {"energy": _energy}
    else:
        methods = _LOADS
    found = [
        Bound(name, _float_below(exact(problem)), Trust.CHECKED) for name, exact in methods.items()
    ]
    return tuple(sorted(found, key=lambda bound: -bound.value))


def recompute(problem: PipelineProblem, bound: Bound) -> Fraction:
    """Return a combinatorial bound's value exactly; `KeyError` for a method of another module."""
    return METHODS[bound.method](problem)


def recheck(problem: PipelineProblem, bound: Bound) -> bool:
    """Return whether a combinatorial bound is proven again, as `verify` asks for it."""
    is_energy = bound.method == "energy"
    if is_energy != (problem.objective is Objective.ENERGY):
        return False
    return Fraction(bound.value) <= recompute(problem, bound)


def check_room(problem: PipelineProblem) -> None:
    """Raise `Infeasible` where a node, or all together, have no device that can hold them.

    Says which, by how much, and what would fit.
    """
    kinds = _used(problem)
    for node in range(problem.nodes):
        able = [kind for kind in kinds if kind.work_ms[node] < math.inf]
        name = problem.names[node]
        if not able:
            known = ", ".join(kind.name for kind in kinds)
            raise Infeasible(
                f"node {name!r} of {problem.name!r} can run on none of its devices ({known}); give"
                " one that can"
            )
        roomy = max(able, key=lambda kind: kind.memory_limit_bytes - kind.reserve_bytes)
        needed = _held(problem, node) + Fraction(roomy.reserve_bytes)
        if roomy.memory_limit_bytes < math.inf and needed > Fraction(roomy.memory_limit_bytes):
            over = float(needed - Fraction(roomy.memory_limit_bytes))
            raise Infeasible(
                f"node {name!r} of {problem.name!r} needs {float(needed):.6g} bytes on one stage"
                f" (reserve included), the limit of {roomy.name!r} is"
                f" {roomy.memory_limit_bytes:.6g}: {over:.6g} too many; use a larger limit"
            )
    _check_fast_memory(problem, kinds)
    _check_all_fit(problem)


def _check_fast_memory(problem: PipelineProblem, kinds: Sequence[StageDevice]) -> None:
    """Raise `Infeasible` for a node whose own tensors fit into no fast memory.

    What a node reads and makes is alive while it runs, whatever its stage.
    """
    if any(kind.fast_memory is None for kind in kinds):
        return
    own = [Fraction(0)] * problem.nodes
    for transfer in problem.transfers:
        for node in (transfer.producer, *transfer.consumers):
            own[node] += Fraction(transfer.size_bytes)
    most = max(
        Fraction(kind.fast_memory.capacity_bytes) for kind in kinds if kind.fast_memory is not None
    )
    node = max(range(problem.nodes), key=lambda node: own[node])
    if own[node] > most:
        raise Infeasible(
            f"node {problem.names[node]!r} of {problem.name!r} reads and makes"
            f" {float(own[node]):.6g} bytes, fast memory holds {float(most):.6g}:"
            f" {float(own[node] - most):.6g} too many; give one that holds {math.ceil(own[node])}"
        )


def _check_all_fit(problem: PipelineProblem) -> None:
    """Raise `Infeasible` where all devices together have too little memory."""
    rooms = []
    for place in problem.places:
        kind = problem.kinds[place]
        if kind.memory_limit_bytes == math.inf:
            return
        rooms.append(
            max(Fraction(0), Fraction(kind.memory_limit_bytes) - Fraction(kind.reserve_bytes))
        )
    held = _total(problem.memory_bytes)
    if held <= sum(rooms):
        return
    largest = max(rooms)
    least = f"at least {math.ceil(held / largest)} stages" if largest else "larger devices"
    raise Infeasible(
        f"{problem.name!r} holds {float(held):.6g} bytes, its {problem.stages} stages"
        f" {float(sum(rooms)):.6g} beside their reserve: {float(held - sum(rooms)):.6g} too many;"
        f" use {least}, or a larger limit"
    )


def _check_limit(problem: PipelineProblem) -> None:
    """Raise `Infeasible` where even the bounds on the slowest stage are above its limit."""
    limit = Fraction(problem.limit_ms)
    for name, exact in _LOADS.items():
        least = exact(problem)
        # the definition sums floats: what is above by rounding alone may pass there
        if least > limit * (1 + Fraction(1, 10**9)):
            raise Infeasible(
                f"the slowest stage of {problem.name!r} takes {float(least):.6g} ms at least"
                f" ({name} bound), the limit is {problem.limit_ms:.6g} ms:"
                f" {float(least - limit):.6g} too many; give more stages or a higher limit"
            )


def _used(problem: PipelineProblem) -> list[StageDevice]:
    return [problem.kinds[kind] for kind in sorted(set(problem.places))]


def _held(problem: PipelineProblem, node: int) -> Fraction:
    return Fraction(problem.memory_bytes[node]) if problem.memory_bytes else Fraction(0)


def _total(values: "tuple[float, ...] | list[float]") -> Fraction:
    """Return the exact sum, by whole numbers of the finest unit: faster than fractions."""
    pairs = [value.as_integer_ratio() for value in map(float, values)]
    shift = max((bottom.bit_length() for _, bottom in pairs), default=1) - 1
    return Fraction(sum((top << shift) // bottom for top, bottom in pairs), 1 << shift)


def _work(problem: PipelineProblem) -> Fraction:
    """Return the least load of the busiest device, if all work were divisible.

    Like devices: W / k. Unlike: each node takes its least share of all devices. Were device d busy
    for T, it would do w_vd of node v in T: with x_vd the part of v on d, sum_v x_vd w_vd <= T for
    each of them; any weights y_d with sum y_d = 1 give T >= sum_v min_d y_d w_vd (weak duality).
    Taken is y_d proportional to the speed of d over all nodes that every device can run.
    """
    places = sorted(set(problem.places))
    counts = [problem.places.count(place) for place in places]
    if len(places) == 1:
        return _total(problem.kinds[places[0]].work_ms) / counts[0]
    best = Fraction(0)
    for weights in _device_weights(problem, places, counts):
        whole = sum(w * n for w, n in zip(weights, counts, strict=True))
        shares = []
        for node in range(problem.nodes):
            terms = [
                weight * Fraction(problem.kinds[place].work_ms[node])
                for place, weight in zip(places, weights, strict=True)
                if problem.kinds[place].work_ms[node] < math.inf
            ]
            shares.append(min(terms, default=Fraction(0)))
        best = max(best, sum(shares, Fraction(0)) / whole)
    return best


def _device_weights(
    problem: PipelineProblem, places: list[int], counts: list[int]
) -> list[list[Fraction]]:
    """Return weights of the kinds of devices, each of which gives a bound: alike, and by speed."""
    sums = []
    for place in places:
        works = [
            problem.kinds[place].work_ms[node]
            for node in range(problem.nodes)
            if all(problem.kinds[other].work_ms[node] < math.inf for other in places)
        ]
        sums.append(_total(works))
    rows = [[Fraction(1)] * len(places)]
    if all(sums):
        # rounded: any weights are valid, long fractions only slow
        rows.append([Fraction(float(max(sums) / each)) for each in sums])
    return rows


def _node(problem: PipelineProblem) -> Fraction:
    """Return the most that any one node, or group held together, costs the stage that runs it.

    The work of node v on its fastest device, and what its stage cannot spare: along any path of
    producers up from v, the stage has all of it, or receives a tensor where it leaves off after
    the work until there; the same down the consumers. With B(v) the best path up,
    B(v) = max over inputs p of min(c_p, w_p + B(p)); not for overlapped transfers. All of it is
    divided by the most replicas there can be.
    """
    least = [_least_work(problem, node) for node in range(problem.nodes)]
    loads = list(least)
    if not problem.overlaps:
        up, down = _unavoidable(problem, least)
        loads = [sum(parts, Fraction(0)) for parts in zip(least, up, down, strict=True)]
    best = max(loads) / max(_most_replicas(problem, place) for place in set(problem.places))
    for group in problem.together:
        alone = []
        for place in set(problem.places):
            works = [problem.kinds[place].work_ms[node] for node in set(group)]
            if math.inf not in works:
                alone.append(_total(works) / _most_replicas(problem, place))
        best = max([best, min(alone)] if alone else [best])
    return best


def _most_replicas(problem: PipelineProblem, place: int) -> int:
    return problem.places.count(place) if problem.replicates else 1


def _unavoidable(
    problem: PipelineProblem, least: list[Fraction]
) -> tuple[list[Fraction], list[Fraction]]:
    """Return what paths up and down from each node cost its stage at least; see `_node`."""
    up, down = [Fraction(0)] * problem.nodes, [Fraction(0)] * problem.nodes
    tensors = sorted(problem.transfers, key=lambda tensor: tensor.producer)
    costs = [_crossing_cost(problem, tensor.transfer_ms) for tensor in tensors]
    for tensor, cost in zip(tensors, costs, strict=True):  # producers of the producer are done
        made = tensor.producer
        for node in tensor.consumers:
            up[node] = max(up[node], min(cost, least[made] + up[made]))
    for tensor, cost in zip(reversed(tensors), reversed(costs), strict=True):
        made = tensor.producer
        for node in tensor.consumers:
            down[made] = max(down[made], min(cost, least[node] + down[node]))
    return up, down


def _least_work(problem: PipelineProblem, node: int) -> Fraction:
    works = [problem.kinds[place].work_ms[node] for place in set(problem.places)]
    return Fraction(min(works))


def _crossing_cost(problem: PipelineProblem, cost_ms: float) -> Fraction:
    """Return the least that one tensor costs over any link."""
    links = [problem.link(index) for index in range(max(1, problem.stages - 1))]
    return min(
        Fraction(link.latency_ms) + Fraction(link.scale) * Fraction(cost_ms) for link in links
    )


def _energy(problem: PipelineProblem) -> Fraction:
    """Return the energy of every node on its thriftiest device, and of the fewest devices' power.

    At least one device has a stage; as many as the least work needs at the limit.
    """
    least = []
    for node in range(problem.nodes):
        able = [kind for kind in _used(problem) if kind.work_ms[node] < math.inf]
        least.append(min(kind.energy_j[node] for kind in able))
    work = _total([min(kind.work_ms[n] for kind in _used(problem)) for n in range(problem.nodes)])
    # a hair fewer: a stage may be above the limit by what floats round
    limit = Fraction(problem.limit_ms) * (1 + Fraction(1, 10**9))
    devices = max(1, math.ceil(work / limit)) if limit else 1
    drawn = sorted(Fraction(problem.kinds[place].static_w) for place in problem.places)
    power = sum(drawn[:devices], Fraction(0))
    return _total(least) + power * Fraction(problem.limit_ms) / 1000


def _float_below(value: Fraction) -> float:
    near = float(value)
    return near if Fraction(near) <= value else math.nextafter(near, -math.inf)


_LOADS: Mapping[str, Exact] = {"work": _work, "node": _node}
METHODS: Mapping[str, Exact] = {**_LOADS, "energy": _energy}
