"""Prices of nodes never claim more than the optimum, and prove again what they claimed."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slicewise.core.pipeline import (
    Bound,
    PipelineProblem,
    StageDevice,
    Transfer,
    Trust,
)
from slicewise.partition.contract import contract
from slicewise.partition.evaluate import objective_or_raise
from slicewise.partition.prices import stage_prices
from slicewise.partition.prices.price_kernels import FAR, sweep
from slicewise.partition.prices.stage_prices import METHOD, price_bound, recheck, supports
from slicewise.partition.rechecks import RECHECKS
from slicewise.partition.solvers.rounding import Rounded, round_down
from slicewise.testing.pipelines import VARIANTS, optimum, problems

_TAKEN = [each for each in VARIANTS if each not in ("replicates", "energy", "overlaps")]


def chains(count: int, *, stages: int) -> PipelineProblem:
    """Rows of two chains between two nodes, unlike in works and costs."""
    transfers = []
    for index in range(count):
        first = 5 * index
        transfers.append(Transfer(first, (first + 1, first + 3), 0.75))
        for node, other in ((1, 2), (2, 5), (3, 4), (4, 5)):
            transfers.append(Transfer(first + node, (first + other,), 0.25 + node % 3 / 4))
    nodes = 5 * count + 1
    works = tuple(1.0 + node * 5 % 7 / 4 for node in range(nodes))
    names = tuple(f"n{node}" for node in range(nodes))
    kinds = (StageDevice("d", works),)
    return PipelineProblem("chains", names, tuple(transfers), kinds, (0,) * stages)


def cheapest(rounded: Rounded, price: list[int]) -> int:
    """Return the least cost of a set worth its share, by trying all sets."""
    nodes = range(len(price))
    best = FAR
    for flags in itertools.product((False, True), repeat=len(price)):
        inside = {node for node in nodes if flags[node]}
        if sum(price[node] for node in inside) * rounded.stages < sum(price):
            continue
        cost = sum(rounded.work[node] for node in inside)
        for tensor in rounded.tensors:
            ends = {tensor.producer, *tensor.consumers}
            cost += 0 if ends <= inside or ends.isdisjoint(inside) else tensor.cost
        best = min(best, cost)
    return best


@given(problems("plain", max_nodes=7), st.data())
@settings(max_examples=80, deadline=None)
def test_the_program_finds_the_cheapest_set(problem: PipelineProblem, data: st.DataObject) -> None:
    rounded = round_down(problem, load_ms=4.0)
    line = stage_prices._line_of(rounded)
    assert line is not None
    count = problem.nodes
    price = data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    assume(any(price))
    best = cheapest(rounded, price)
    for target in (best, best + 1):
        ordered = np.array(price, np.int64)[line.order]
        found = stage_prices._cheapest(line, ordered, rounded.stages, target)
        assert found == best


@pytest.mark.parametrize("variant", _TAKEN)
@given(st.data())
@settings(max_examples=12, deadline=None)
def test_what_prices_prove_is_not_above_the_optimum_and_proven_again(
    variant: str, data: st.DataObject
) -> None:
    problem = data.draw(problems(variant))
    best = optimum(problem, objective_or_raise)
    assume(0 < best < math.inf and not supports(problem))
    small = contract(problem).problem
    for incumbent in (best, best * 1.5):
        found = price_bound(small, incumbent=incumbent)
        if found is not None:
            assert found.value <= best
            assert recheck(problem, found) is True


@given(problems("plain", max_nodes=6), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_names_of_nodes_change_no_bound(problem: PipelineProblem, random: object) -> None:
    best = optimum(problem, objective_or_raise)
    assume(best > 0)
    renamed = replace(problem, names=tuple(f"x{name}" for name in problem.names[::-1]))
    assert price_bound(renamed, incumbent=best) == price_bound(problem, incumbent=best)


def test_bounds_rise_above_that_of_the_work_alone() -> None:
    problem = chains(6, stages=8)
    bounds: list[Bound] = []
    found = price_bound(problem, incumbent=14.0, report=bounds.append)
    assert found is not None and bounds[-1] == found
    assert (found.method, found.trust) == (METHOD, Trust.CHECKED)
    values = [bound.value for bound in bounds]
    assert values == sorted(values) and values[-1] > values[0]
    assert values[0] > sum(problem.kinds[0].work_ms) / 8
    assert RECHECKS[METHOD](problem, found) is True


def test_a_bound_that_is_too_high_or_has_no_prices_is_not_proven() -> None:
    problem = chains(6, stages=8)
    found = price_bound(problem, incumbent=14.0)
    assert found is not None
    assert recheck(problem, replace(found, value=found.value * 1.01)) is None
    for prices in ("", "?", 3, stage_prices._packed(np.ones(4, np.int64))):
        assert recheck(problem, replace(found, detail={**found.detail, "prices": prices})) is None
    for detail in ({"scale_ms": 1e-12}, {"prices": stage_prices._packed(np.full(31, 1 << 30))}):
        assert recheck(problem, replace(found, detail={**found.detail, **detail})) is None
    fewer = replace(problem, places=problem.places[:5])
    assert recheck(fewer, found) is True


def test_prices_are_given_up_that_prove_less_than_is_known() -> None:
    bounds: list[Bound] = []
    price_bound(chains(6, stages=8), incumbent=14.0, report=bounds.append)
    fewer: list[Bound] = []
    price_bound(chains(6, stages=8), incumbent=14.0, lower=13.9, report=fewer.append)
    assert fewer == bounds[: len(fewer)]
    assert len(fewer) <= stage_prices._TRIAL


def test_no_time_is_no_bound() -> None:
    assert price_bound(chains(3, stages=2), incumbent=9.0, deadline=lambda: True) is None


def test_problems_it_says_nothing_about_are_refused() -> None:
    problem = chains(2, stages=2)
    assert supports(problem) == ""
    assert "added" in supports(replace(problem, overlaps=True))
    assert "replicas" in supports(replace(problem, replicates=True))
    large = replace(
        problem,
        names=tuple(f"n{node}" for node in range(8001)),
        kinds=(StageDevice("d", (1.0,) * 8001),),
    )
    assert supports(large) == "8001 nodes are more than 8000"


def test_many_tensors_alive_at_once_are_refused() -> None:
    """Every node of one layer feeds every node of the next."""
    width = 32
    names = tuple(f"n{node}" for node in range(3 * width))
    transfers = tuple(
        Transfer(node, tuple(range(width * (node // width + 1), width * (node // width + 2))), 1.0)
        for node in range(2 * width)
    )
    kinds = (StageDevice("d", (1.0,) * len(names)),)
    dense = PipelineProblem("dense", names, transfers, kinds, (0, 0))
    assert price_bound(dense, incumbent=20.0) is None


def test_too_many_cells_are_given_up() -> None:
    line = stage_prices._line_of(round_down(chains(3, stages=2), load_ms=8.0))
    assert line is not None
    limit = np.full(5, 1 << 28, np.int64)
    rest = (line.start, line.slot, line.cost, line.place, limit, 5, 5)
    least, states, *_ = sweep(line.work, np.ones(16, np.int64), *rest, 10, False)
    assert (least, states) == (FAR, -1)
