"""Rows of single operators: what a profiler adds goes, nothing is counted twice, rows add up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from slicewise.predict.operators import (
    LEAST_LEFT,
    OperatorTime,
    Profiled,
    operator_rows,
    settle,
    weighted_median,
)

FEATURES = 3


def _profiled(seed: int, *, kernels: int = 6, per_call_ms: float = 0.0) -> Profiled:
    """Return a case of which each kernel was timed: the sum of its features and the call."""
    made = np.random.default_rng(seed)
    columns = made.gamma(1.0, 1e-4, (kernels, FEATURES))
    its_ms = columns.sum(axis=1) * 1e3
    times = tuple(OperatorTime((k,), float(its_ms[k]) + per_call_ms) for k in range(kernels))
    return Profiled(columns, np.arange(kernels) % 3, times, float(its_ms.sum()) * 1e-3)


_told = st.lists(st.tuples(st.floats(0, 50), st.floats(0.1, 9)), min_size=0, max_size=12)


@given(st.lists(st.tuples(_told, st.floats(0.01, 200)), min_size=1, max_size=6))
def test_operators_take_no_longer_than_their_model(
    cases: list[tuple[list[tuple[float, float]], float]],
) -> None:
    made = [
        Profiled(
            np.ones((1, FEATURES)),
            np.zeros(1, dtype=np.int64),
            tuple(OperatorTime((0,), ms, calls) for ms, calls in told),
            latency_ms * 1e-3,
        )
        for told, latency_ms in cases
    ]
    for case, seconds in zip(made, settle(made), strict=True):
        assert (seconds >= 0).all()
        assert len(seconds) == len(case.times)
        assert seconds.sum() <= case.latency_s * (1 + 1e-9)


@given(st.floats(-0.005, 0.02), st.integers(0, 1000))
def test_what_each_call_costs_is_taken_off(per_call_ms: float, seed: int) -> None:
    cases = [_profiled(seed + i, kernels=4 + i, per_call_ms=per_call_ms) for i in range(3)]
    for case, seconds in zip(cases, settle(cases), strict=True):
        true_s = case.columns.sum(axis=1)
        kept = np.maximum(true_s, LEAST_LEFT * (true_s + per_call_ms * 1e-3))
        assert seconds == pytest.approx(kept * min(1.0, case.latency_s / kept.sum()))


def test_a_profile_of_a_disturbed_run_is_scaled_down() -> None:
    quiet = [_profiled(i) for i in range(4)]
    loud = Profiled(
        quiet[0].columns,
        quiet[0].classes,
        tuple(OperatorTime(t.kernels, 3 * t.latency_ms) for t in quiet[0].times),
        quiet[0].latency_s,
    )
    *_, seconds = settle([*quiet, loud])
    assert seconds == pytest.approx(loud.columns.sum(axis=1), rel=1e-6)


def test_without_a_profile_there_are_no_rows() -> None:
    case = Profiled(np.ones((2, FEATURES)), np.zeros(2, dtype=np.int64), (), 1e-3)
    rows = operator_rows([case, case])
    assert rows.blocks == ()
    gram, right = rows.normal(np.ones(9), np.ones(2), huber=1.5)
    assert not gram.any()
    assert not right.any()


def test_alike_operators_of_a_model_are_one_row() -> None:
    columns = np.array([[1e-3, 0.0, 2e-3]] * 4 + [[5e-3, 0.0, 0.0]])
    times = tuple(OperatorTime((k,), 1.0 + k) for k in range(5))
    case = Profiled(columns, np.array([1, 1, 1, 1, 1]), times, 1.0)
    (block,) = operator_rows([case]).blocks
    assert block.columns.tolist() == [3, 4, 5]
    assert block.design == pytest.approx(np.array([[4e-3, 0.0, 8e-3], [5e-3, 0.0, 0.0]]))


def test_kernels_of_two_classes_in_one_entry_share_its_row() -> None:
    columns = np.array([[1e-3, 0.0, 0.0], [0.0, 2e-3, 0.0]])
    case = Profiled(columns, np.array([2, 0]), (OperatorTime((0, 1), 3.0),), 3e-3)
    (block,) = operator_rows([case]).blocks
    assert block.columns.tolist() == [0, 1, 2, 6, 7, 8]
    assert block.design[0].tolist() == [0.0, 2e-3, 0.0, 1e-3, 0.0, 0.0]


def test_time_of_no_kernel_is_no_row_but_counts_in_the_sum() -> None:
    columns = np.array([[1e-3, 0.0, 0.0]])
    times = (OperatorTime((0,), 6.0, 1.0), OperatorTime((), 6.0, 1.0))
    case = Profiled(columns, np.zeros(1, dtype=np.int64), times, 6e-3)
    (block,) = operator_rows([case]).blocks
    assert len(block.measured) == 1
    assert block.measured[0] == pytest.approx(3e-3)


@given(st.integers(0, 10_000), st.lists(st.integers(0, 4), min_size=9, max_size=9))
def test_grouped_columns_predict_the_same(seed: int, place: list[int]) -> None:
    rows = operator_rows([_profiled(seed + i) for i in range(3)])
    to = np.array(place)
    theta = np.random.default_rng(seed).gamma(1.0, 1.0, 5)
    for block, grouped in zip(rows.blocks, rows.grouped(to).blocks, strict=True):
        assert grouped.design @ theta[grouped.columns] == pytest.approx(
            block.design @ theta[to[block.columns]]
        )


@given(st.integers(0, 10_000), st.lists(st.booleans(), min_size=4, max_size=4))
def test_rows_of_some_cases_are_those_of_these_alone(seed: int, chosen: list[bool]) -> None:
    cases = [_profiled(seed + i) for i in range(4)]
    solution, which = np.ones(9), np.array(chosen)
    some = operator_rows(cases).of(which).normal(solution, np.ones(sum(chosen)), huber=1.5)
    weights = which.astype(np.float64)
    kept = operator_rows(cases).normal(solution, np.maximum(weights, 1e-300), huber=1e9)
    assert some[0] == pytest.approx(kept[0], rel=1e-6, abs=1e-12)
    assert some[1] == pytest.approx(kept[1], rel=1e-6, abs=1e-12)


def test_the_truth_solves_the_equations_whatever_one_wild_row_says() -> None:
    cases = [_profiled(i, kernels=9) for i in range(12)]
    wild = tuple(
        OperatorTime(time.kernels, time.latency_ms * (0.2 if k == 4 else 1.0))
        for k, time in enumerate(cases[3].times)
    )
    cases[3] = Profiled(cases[3].columns, cases[3].classes, wild, cases[3].latency_s)
    rows = operator_rows(cases)
    solution: NDArray[np.float64] = np.ones(9)
    for _ in range(9):
        gram, right = rows.normal(solution, np.ones(12), huber=1.5)
        solution = np.linalg.solve(gram + 1e-9 * np.eye(9), right).astype(np.float64)
    assert solution == pytest.approx(np.ones(9), rel=0.02)


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(0.1, 5)), min_size=1, max_size=9))
def test_half_of_the_weight_lies_at_or_below_the_weighted_median(
    told: list[tuple[float, float]],
) -> None:
    values, weights = (np.array(column) for column in zip(*told, strict=True))
    found = weighted_median(values, weights)
    assert found in values
    assert weights[values <= found].sum() >= weights.sum() / 2 * (1 - 1e-9)
    assert weights[values < found].sum() <= weights.sum() / 2 * (1 + 1e-9)
