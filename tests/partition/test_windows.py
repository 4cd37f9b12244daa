"""Windows of work: what they prove is not above the optimum, and reaches it on small problems."""

import math
import sys
import threading
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slicewise.core.errors import MissingDependency
from slicewise.core.pipeline import (
    Assignment,
    Bound,
    Objective,
    PipelineProblem,
    StageDevice,
    Transfer,
)
from slicewise.partition.evaluate import objective_or_raise
from slicewise.partition.solvers.windows import METHOD, supports, window_bound
from slicewise.testing.pipelines import VARIANTS, optimum, problems

_TAKEN = [variant for variant in VARIANTS if variant not in ("replicates", "energy")]


def layers(count: int, *, stages: int) -> PipelineProblem:
    """Layers of three nodes, the middle one beside a short cut: cheap cuts between layers only."""
    works = [1.0 + (node * 7 % 5) / 4 for node in range(3 * count)]
    transfers = []
    for layer in range(count):
        first = 3 * layer
        transfers.append(Transfer(first, (first + 1, first + 2), 1.5))
        transfers.append(Transfer(first + 1, (first + 2,), 1.5))
        if layer < count - 1:
            transfers.append(Transfer(first + 2, (first + 3,), 0.25))
    names = tuple(f"n{node}" for node in range(3 * count))
    device = StageDevice("d", tuple(works))
    return PipelineProblem("layers", names, tuple(transfers), (device,), (0,) * stages)


@pytest.mark.parametrize("variant", _TAKEN)
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_what_windows_prove_is_not_above_the_optimum(variant: str, data: st.DataObject) -> None:
    problem = data.draw(problems(variant))
    best = optimum(problem, objective_or_raise)
    assume(0 < best < math.inf)
    for incumbent in (best, best * 1.5):
        found = window_bound(problem, incumbent_ms=incumbent, time_limit_s=2.0, workers=1)
        if found.bound is not None:
            assert found.bound.value <= best * (1 + 1e-12)
        if found.cut is not None:
            assert objective_or_raise(problem, found.cut) >= best


def test_layers_are_proven_optimal_and_the_cut_is_found() -> None:
    problem = layers(8, stages=4)
    bounds: list[Bound] = []
    cuts: list[Assignment] = []
    found = window_bound(
        problem, incumbent_ms=40.0, workers=1, report=bounds.append, report_cut=cuts.append
    )
    assert found.is_complete and found.bound is not None and found.cut is not None
    value = objective_or_raise(problem, found.cut)
    assert found.bound.value == pytest.approx(value, rel=1e-4)
    assert (found.bound.method, bounds[-1], cuts[-1]) == (METHOD, found.bound, found.cut)
    assert [bound.value for bound in bounds] == sorted(bound.value for bound in bounds)
    again = window_bound(problem, incumbent_ms=value, workers=2)
    assert again.is_complete and again.bound is not None
    assert again.bound.value == pytest.approx(value, rel=1e-4)
    assert again.bound.value <= value


def test_a_bound_known_already_is_where_it_begins() -> None:
    problem = layers(8, stages=6)
    lower = sum(problem.kinds[0].work_ms) / 6
    found = window_bound(problem, incumbent_ms=60.0, lower_ms=lower * 1.1, workers=2)
    assert found.bound is not None
    assert found.bound.value > lower * 1.1
    assert found.bound.detail["rounding"] == "costs down, bound down"


def test_too_many_nodes_are_refused() -> None:
    count = 8001
    names = tuple(f"n{node}" for node in range(count))
    large = PipelineProblem("large", names, (), (StageDevice("d", (1.0,) * count),), (0,))
    assert supports(large) == "8001 nodes are more than 8000"


def test_a_set_flag_or_no_time_is_no_bound() -> None:
    problem = layers(4, stages=2)
    stop = threading.Event()
    stop.set()
    assert window_bound(problem, incumbent_ms=20.0, stop=stop).bound is None
    assert window_bound(problem, incumbent_ms=20.0, time_limit_s=0.0).bound is None


def test_energy_and_replicas_are_refused() -> None:
    problem = layers(2, stages=2)
    assert supports(problem) == ""
    assert "replicas" in supports(replace(problem, replicates=True))
    kinds = (replace(problem.kinds[0], energy_j=(1.0,) * 6),)
    energetic = replace(problem, kinds=kinds, objective=Objective.ENERGY, limit_ms=9.0)
    assert "energy" in supports(energetic)


def test_a_missing_solver_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(MissingDependency, match=r"pip install 'slicewise\[solve\]'"):
        window_bound(layers(2, stages=2), incumbent_ms=20.0)
