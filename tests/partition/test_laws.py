"""Laws of the answer, whatever found it: what is worse never helps, and names change nothing."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.errors import PartitionError
from slicewise.core.pipeline import PipelineProblem, Transfer
from slicewise.partition.evaluate import objective_or_raise
from slicewise.partition.portfolio import solve
from slicewise.testing.pipelines import VARIANTS, optimum, problems

EXACT = [variant for variant in VARIANTS if variant != "fast"]


def least(problem: PipelineProblem) -> float:
    """The proven optimum; inf where no cut keeps the limits."""
    try:
        made = solve(problem, time_limit_s=5.0)
    except PartitionError:
        return math.inf
    assert made.is_optimal
    return made.value


def at_least(value: float) -> float:
    """What an optimum that is no less may be, since one is proven to 1e-4 only."""
    return value * (1 - 1.01e-4)


@pytest.mark.parametrize("variant", EXACT)
@given(st.data())
@settings(max_examples=8, deadline=None)
def test_more_work_more_bytes_and_less_bandwidth_never_help(
    variant: str, data: st.DataObject
) -> None:
    problem = data.draw(problems(variant))
    before = least(problem)
    node = data.draw(st.integers(0, problem.nodes - 1))
    heavier = replace(
        problem,
        kinds=tuple(
            replace(
                kind,
                work_ms=tuple(w + 1.0 * (n == node) for n, w in enumerate(kind.work_ms)),
                energy_j=tuple(e + 1.0 * (n == node) for n, e in enumerate(kind.energy_j)),
            )
            for kind in problem.kinds
        ),
        memory_bytes=tuple(m + 1.0 * (n == node) for n, m in enumerate(problem.memory_bytes)),
    )
    assert least(heavier) >= at_least(before)
    slower = replace(
        problem,
        transfers=tuple(replace(t, transfer_ms=1.5 * t.transfer_ms) for t in problem.transfers),
        links=tuple(replace(link, latency_ms=link.latency_ms + 0.5) for link in problem.links),
    )
    assert least(slower) >= at_least(before)


@pytest.mark.parametrize("variant", EXACT)
@given(st.data())
@settings(max_examples=8, deadline=None)
def test_another_numbering_is_the_same_problem(variant: str, data: st.DataObject) -> None:
    problem = data.draw(problems(variant))
    keys = data.draw(st.permutations(range(problem.nodes)))
    assert least(renumbered(problem, keys)) == pytest.approx(least(problem), rel=1.01e-4)


@pytest.mark.slow
@pytest.mark.parametrize("variant", EXACT)
@given(st.data())
@settings(max_examples=20, deadline=None)
def test_nine_nodes_are_solved_as_brute_force_solves_them(
    variant: str, data: st.DataObject
) -> None:
    problem = data.draw(problems(variant, max_nodes=9))
    assert least(problem) == pytest.approx(optimum(problem, objective_or_raise), rel=1.01e-4)


def renumbered(problem: PipelineProblem, keys: list[int]) -> PipelineProblem:
    """The problem with its nodes in another topological order: that of `keys` where it may be."""
    inputs: list[set[int]] = [set() for _ in range(problem.nodes)]
    for transfer in problem.transfers:
        for node in transfer.consumers:
            inputs[node].add(transfer.producer)
    order: list[int] = []
    while len(order) < problem.nodes:
        ready = [n for n in range(problem.nodes) if n not in order and inputs[n] <= set(order)]
        order.append(min(ready, key=lambda node: keys[node]))
    place = {node: index for index, node in enumerate(order)}

    def sorted_values(values: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(values[node] for node in order) if values else ()

    return replace(
        problem,
        names=tuple(problem.names[node] for node in order),
        transfers=tuple(
            Transfer(
                place[t.producer], tuple(sorted(place[n] for n in t.consumers)), t.transfer_ms,
                t.size_bytes,
            )
            for t in problem.transfers
        ),
        kinds=tuple(
            replace(
                kind, work_ms=sorted_values(kind.work_ms), energy_j=sorted_values(kind.energy_j)
            )
            for kind in problem.kinds
        ),
        memory_bytes=sorted_values(problem.memory_bytes),
        weight_bytes=sorted_values(problem.weight_bytes),
        together=tuple(tuple(place[n] for n in group) for group in problem.together),
        pinned={place[n]: stage for n, stage in problem.pinned.items()},
    )  # fmt: skip
