"""The tuned-at, run-at matrix: laws over made-up samples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.tuning import Workload
from slicewise.tune.matrix import matrix_of, total_of

_SHARES = ("50%", "100%")
_WORKLOAD = Workload("k" * 64, "MatMul", ("MatMul",), count=3, weight_ms=1.0)


def _samples(median: float, *, seed: int, spread: float = 0.01, count: int = 40) -> list[float]:
    random = np.random.default_rng(seed)
    return [float(each) for each in median * np.exp(spread * random.standard_normal(count))]


def _sweep(medians: dict[str, dict[str, float]], *, spread: float = 0.01):  # type: ignore[no-untyped-def]
    return {
        share: {
            config: _samples(ms, seed=7 * i + j, spread=spread)
            for j, (config, ms) in enumerate(found.items())
        }
        for i, (share, found) in enumerate(medians.items())
    }


def _cell(matrix, tuned_at: str, run_at: str):  # type: ignore[no-untyped-def]
    (found,) = [c for c in matrix.cells if (c.tuned_at, c.run_at) == (tuned_at, run_at)]
    return found


def test_a_configuration_that_is_best_on_its_own_share_only_costs_elsewhere() -> None:
    sweep = _sweep({"50%": {"a": 10.0, "b": 13.0}, "100%": {"a": 8.0, "b": 5.0}})
    made = matrix_of(_WORKLOAD, sweep, _SHARES, seed=0)
    assert [_cell(made, s, s).penalty.value for s in _SHARES] == [1.0, 1.0]
    there = _cell(made, "50%", "100%")
    assert there.config == "a"
    assert there.penalty.value == pytest.approx(8 / 5, rel=0.02)
    assert 1.5 < there.penalty.low <= there.penalty.value <= there.penalty.high < 1.7
    assert _cell(made, "100%", "50%").penalty.value == pytest.approx(1.3, rel=0.02)


def test_luck_does_not_make_the_diagonal_best() -> None:
    # thirty candidates that are all alike: whichever looks best must not look best where judged
    medians = {share: {f"c{i}": 10.0 for i in range(30)} for share in _SHARES}
    sweep = _sweep(medians, spread=0.05)
    made = matrix_of(_WORKLOAD, sweep, _SHARES, seed=0)
    for tuned_at, run_at in ((_SHARES[0], _SHARES[1]), (_SHARES[1], _SHARES[0])):
        penalty = _cell(made, tuned_at, run_at).penalty
        assert penalty.low <= 1.0 + 0.03
        assert penalty.value == pytest.approx(1.0, abs=0.04)


def test_a_candidate_that_fails_at_one_share_is_chosen_nowhere() -> None:
    sweep = _sweep({"50%": {"a": 1.0, "b": 13.0}, "100%": {"b": 5.0}})
    made = matrix_of(_WORKLOAD, sweep, _SHARES, seed=0)
    assert {cell.config for cell in made.cells} == {"b"}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100)), min_size=1, max_size=6),
    st.floats(0.1, 10),
)
def test_penalties_do_not_depend_on_the_unit(
    medians: list[tuple[float, float]], factor: float
) -> None:
    def sweep(scale: float):  # type: ignore[no-untyped-def]
        return _sweep(
            {
                share: {f"c{i}": scale * pair[place] for i, pair in enumerate(medians)}
                for place, share in enumerate(_SHARES)
            }
        )

    plain = matrix_of(_WORKLOAD, sweep(1.0), _SHARES, seed=1)
    scaled = matrix_of(_WORKLOAD, sweep(factor), _SHARES, seed=1)
    for one, other in zip(plain.cells, scaled.cells, strict=True):
        assert one.config == other.config
        assert one.penalty.value == pytest.approx(other.penalty.value)
        assert one.latency_ms.value * factor == pytest.approx(other.latency_ms.value)
        assert one.penalty.low <= one.penalty.value <= one.penalty.high


def test_the_total_of_one_workload_is_its_matrix_times_its_count() -> None:
    sweep = _sweep({"50%": {"a": 10.0, "b": 13.0}, "100%": {"a": 8.0, "b": 5.0}})
    one = matrix_of(_WORKLOAD, sweep, _SHARES, seed=0)
    total = total_of([one], {_WORKLOAD.key: 3}, _SHARES)
    for part, whole in zip(one.cells, total.cells, strict=True):
        assert whole.latency_ms.value == pytest.approx(3 * part.latency_ms.value)
        assert whole.penalty.value == pytest.approx(part.penalty.value)
        assert whole.penalty.low == pytest.approx(part.penalty.low)
