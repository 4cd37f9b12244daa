"""Small problems of every variant for hypothesis, and their optimum by brute force.

Slow and plain on purpose: what it shares with the solvers is the definition of the cost alone.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from slicewise.core.pipeline import (
    Assignment,
    FastMemory,
    Objective,
    PipelineProblem,
    StageDevice,
    StageLink,
    Transfer,
)

# Few values, so that ties and zeros are common; all are exact in binary.
_COSTS = st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0, 1.0, 2.0, 3.0, 7.0])
_WORKS = st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0, 3.0, 5.0])
_SIZES = st.sampled_from([0.0, 1.0, 2.0, 4.0])

VARIANTS = (
    "plain", "memory", "fast", "placed", "stock", "links", "overlaps", "hops", "replicates",
    "together", "pinned", "energy",
)  # fmt: skip


def cuts(problem: PipelineProblem) -> Iterator[Assignment]:
    """Yield every legal cut, whatever its cost, some of them more than once."""
    for kind_of, replicas in _device_rows(problem):
        for stage_of in _stage_rows(problem, len(kind_of)):
            yield Assignment(stage_of, kind_of, replicas)


def optimum(problem: PipelineProblem, objective: Any) -> float:
    """Return the least `objective(problem, cut)` of all cuts; inf where each raises `Infeasible`.

    `objective` is `slicewise.partition.evaluate.objective_or_raise`, handed in by the test.
    """
    from slicewise.core.errors import Infeasible

    best = math.inf
    for cut in cuts(problem):
        try:
            best = min(best, objective(problem, cut))
        except Infeasible:
            continue
    return best


def _device_rows(problem: PipelineProblem) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    is_alike = len(set(problem.places)) == 1
    if not problem.replicates and (problem.is_placed or is_alike):
        yield problem.places, (1,) * problem.stages
        return
    most = problem.stages if problem.replicates else 1
    for length in range(1, problem.stages + 1):
        for kind_of in itertools.product(sorted(set(problem.places)), repeat=length):
            for replicas in itertools.product(range(1, most + 1), repeat=length):
                pairs = list(zip(kind_of, replicas, strict=True))
                if all(
                    sum(r for other, r in pairs if other == kind) <= problem.places.count(kind)
                    for kind in set(kind_of)
                ):
                    yield kind_of, replicas


def _stage_rows(problem: PipelineProblem, stages: int) -> Iterator[tuple[int, ...]]:
    inputs: list[list[int]] = [[] for _ in range(problem.nodes)]
    for transfer in problem.transfers:
        for node in transfer.consumers:
            inputs[node].append(transfer.producer)
    row: list[int] = []

    def extend() -> Iterator[tuple[int, ...]]:
        node = len(row)
        if node == problem.nodes:
            if all(len({row[n] for n in group}) <= 1 for group in problem.together):
                yield tuple(row)
            return
        first = max((row[n] for n in inputs[node]), default=0)
        pin = problem.pinned.get(node)
        for stage in range(first, stages):
            if pin is None or pin == stage:
                row.append(stage)
                yield from extend()
                row.pop()

    return extend()


@st.composite
def problems(
    draw: st.DrawFn, variant: str | None = None, *, max_nodes: int = 6, max_stages: int = 3
) -> PipelineProblem:
    """Draw a problem of a variant (None: any of `VARIANTS`, or some of them mixed)."""
    count = draw(st.integers(1, max_nodes))
    stages = draw(st.integers(1, max_stages))
    chosen = {variant} if variant else set(draw(st.lists(st.sampled_from(VARIANTS), max_size=3)))
    if "links" in chosen or "pinned" in chosen or "placed" in chosen:
        chosen -= {"stock", "replicates"}
    if "stock" in chosen and "replicates" in chosen:
        chosen -= {"hops"}
    devices = 2 if chosen & {"placed", "stock"} else 1
    kinds = tuple(draw(_device(f"d{index}", count, chosen)) for index in range(devices))
    places = tuple(draw(st.integers(0, devices - 1)) for _ in range(stages))
    transfers = draw(_transfers(count))
    return PipelineProblem(
        name="drawn",
        names=tuple(f"n{node}" for node in range(count)),
        transfers=transfers,
        kinds=kinds,
        places=places,
        memory_bytes=draw(_values(_SIZES, count)) if chosen & {"memory", "fast"} else (),
        weight_bytes=draw(_values(_SIZES, count)) if "fast" in chosen else (),
        links=draw(_links(stages)) if "links" in chosen else (),
        is_placed="stock" not in chosen and not ("replicates" in chosen and devices > 1),
        overlaps="overlaps" in chosen,
        hops="hops" in chosen,
        replicates="replicates" in chosen,
        together=draw(_groups(count)) if "together" in chosen else (),
        pinned=draw(_pins(count, stages)) if "pinned" in chosen else {},
        objective=Objective.ENERGY if "energy" in chosen else Objective.BOTTLENECK,
        limit_ms=draw(st.sampled_from([4.0, 8.0, 64.0])) if "energy" in chosen else math.inf,
        transfer_j_per_ms=draw(st.sampled_from([0.0, 0.5])) if "energy" in chosen else 0.0,
    )


def _values(values: st.SearchStrategy[float], count: int) -> st.SearchStrategy[tuple[float, ...]]:
    return st.lists(values, min_size=count, max_size=count).map(tuple)


@st.composite
def _transfers(draw: st.DrawFn, count: int) -> tuple[Transfer, ...]:
    made = []
    for node in range(count):
        for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):
            later = list(range(node + 1, count))
            uses = draw(st.lists(st.sampled_from(later), max_size=3, unique=True)) if later else []
            made.append(Transfer(node, tuple(sorted(uses)), draw(_COSTS), draw(_SIZES)))
    return tuple(made)


@st.composite
def _device(draw: st.DrawFn, name: str, count: int, chosen: set[str]) -> StageDevice:
    works = draw(_values(_WORKS, count))
    if chosen & {"placed", "stock"}:
        some = st.sampled_from([1.0, 1.0, 1.0, math.inf])
        works = tuple(draw(some) if draw(st.booleans()) else work for work in works)
    return StageDevice(
        name,
        works,
        energy_j=draw(_values(_COSTS, count)) if "energy" in chosen else (),
        memory_limit_bytes=draw(st.sampled_from([4.0, 8.0, math.inf]))
        if "memory" in chosen
        else math.inf,
        reserve_bytes=draw(st.sampled_from([0.0, 1.0])) if "memory" in chosen else 0.0,
        static_w=draw(st.sampled_from([0.0, 250.0])) if "energy" in chosen else 0.0,
        fast_memory=FastMemory(draw(st.sampled_from([4.0, 8.0, 16.0])), 0.25)
        if "fast" in chosen
        else None,
    )


@st.composite
def _links(draw: st.DrawFn, stages: int) -> tuple[StageLink, ...]:
    link = st.builds(
        StageLink, st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([0.0, 0.25, 1.0])
    )
    return tuple(draw(link) for _ in range(stages - 1))


@st.composite
def _groups(draw: st.DrawFn, count: int) -> tuple[tuple[int, ...], ...]:
    nodes = st.lists(st.integers(0, count - 1), min_size=1, max_size=3, unique=True)
    return tuple(tuple(sorted(group)) for group in draw(st.lists(nodes, max_size=2)))


@st.composite
def _pins(draw: st.DrawFn, count: int, stages: int) -> dict[int, int]:
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, stages - 1))
    return dict(draw(st.lists(pairs, max_size=2)))
