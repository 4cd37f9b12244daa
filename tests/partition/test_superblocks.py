"""Superblocks: a bound for every choice of sizes, never above the optimum."""

import math
import sys
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slicewise.core.errors import MissingDependency
from slicewise.core.pipeline import Bound, PipelineProblem, StageDevice, Transfer
from slicewise.partition.evaluate import objective_or_raise
from slicewise.partition.solvers.superblocks import shapes, superblock_bounds, supports
from slicewise.testing.pipelines import VARIANTS, optimum, problems

_TAKEN = [variant for variant in VARIANTS if variant not in ("replicates", "energy")]


@pytest.mark.parametrize("variant", _TAKEN)
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_no_superblock_bound_is_above_the_optimum(variant: str, data: st.DataObject) -> None:
    problem = data.draw(problems(variant))
    best = optimum(problem, objective_or_raise)
    assume(0 < best < math.inf)
    for bound in superblock_bounds(problem, incumbent_ms=best, time_limit_s=5.0):
        assert 0 < bound.value <= best * (1 + 1e-12)


@given(st.integers(2, 70))
def test_every_shape_has_all_stages_once(stages: int) -> None:
    rows = list(shapes(stages))
    assert len(set(rows)) == len(rows)
    assert all(sum(row) == stages and min(row) > 0 for row in rows)
    assert {(b, 1, stages - b - 1) for b in range(1, stages - 1)} <= set(rows)


def test_all_sizes_one_is_the_whole_problem() -> None:
    names = tuple("abcdef")
    transfers = tuple(Transfer(node, (node + 1,), 1.0 + node % 2) for node in range(5))
    problem = PipelineProblem(
        "chain", names, transfers, (StageDevice("d", (3.0, 1.0, 4.0, 1.0, 5.0, 2.0)),), (0,) * 3
    )
    best = optimum(problem, objective_or_raise)
    told: list[Bound] = []
    bounds = superblock_bounds(problem, incumbent_ms=best + 1, report=told.append)
    values = {bound.method: bound.value for bound in bounds}
    assert values["superblock"] == pytest.approx(best, rel=1e-5)
    assert set(values) == {"superblock", "bottleneck-stage"}
    assert values["bottleneck-stage"] >= sum(problem.kinds[0].work_ms) / 3
    assert told[-1].detail["shape"] == [1, 1, 1] or told[-1].value <= best
    assert "replicas" in supports(replace(problem, replicates=True))


def test_a_missing_solver_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    problem = PipelineProblem("p", ("a",), (), (StageDevice("d", (1.0,)),), (0,))
    with pytest.raises(MissingDependency, match=r"pip install 'slicewise\[solve\]'"):
        superblock_bounds(problem, incumbent_ms=1.0)
