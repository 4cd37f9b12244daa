import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import slicewise
from slicewise.core.errors import UsageError
from slicewise.core.measurement import Job, Measurement, Subject
from slicewise.core.tuning import Artifact, TuneTask
from slicewise.testing.engines import EngineLaws, Outputs, Taken
from slicewise.testing.graphs import residual_cnn
from slicewise.tune.backends._base import load_engine
from slicewise.tune.backends.simulated import (
    ENGINE,
    LEVELS,
    SimulatedProblem,
    best_levels,
    latency_ms,
)
from slicewise.tune.workloads import operator_key


def no_measurement(job: Job) -> Measurement:
    raise AssertionError("the simulated engine measures nothing")


def nothing() -> object:
    raise AssertionError("the simulated engine opens no model")


VIEWS = {"Flatten", "Reshape"}


class TestSimulated(EngineLaws):
    engine = ENGINE

    def task(self, folder: Path) -> TuneTask:
        graph = residual_cnn()
        return TuneTask(
            subject=Subject("small", "small", graph.digest, (), "onnx", nothing),
            graph=graph,
            place="cpu",
            device=slicewise.device("l4"),
            threads=1,
            folder=folder,
            measure=no_measurement,
            node_ms={node.name: 1.0 + i for i, node in enumerate(graph.nodes)},
            options={"wrong": "0.1", "refuse": "0.1"},
        )

    def outputs(self, task: TuneTask, artifact: Artifact) -> tuple[Outputs, Outputs]:
        """What a simulated model computes is its digest."""
        found = json.loads(artifact.path.read_text())["digest"]
        return [digits(task.graph.digest)], [digits(found)]

    def broken_config(self, taken: Taken) -> str | None:
        return '{"levels":[99]}'


def digits(digest: str) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    return np.array([float(int(each, 16)) for each in digest])


def test_it_is_found_by_name_and_offered_to_nobody() -> None:
    assert load_engine("simulated").name == "simulated"
    with pytest.raises(UsageError, match="known are") as caught:
        load_engine("simulator")
    assert "simulated" not in str(caught.value).partition("known are")[2]


@settings(max_examples=60)
@given(
    key=st.text(min_size=1, max_size=4),
    share=st.floats(0.05, 1.0),
    levels=st.tuples(*[st.integers(0, LEVELS - 1)] * 4),
)
def test_nothing_beats_the_optimum(key: str, share: float, levels: tuple[int, ...]) -> None:
    best = latency_ms(key, best_levels(key, share), base_ms=1.0, share=share)
    assert best <= latency_ms(key, levels, base_ms=1.0, share=share)
    assert best >= 1.0 - 1e-9


@settings(max_examples=30)
@given(key=st.text(min_size=1, max_size=4), small=st.floats(0.05, 0.5))
def test_a_larger_share_is_never_slower_at_its_optimum(key: str, small: float) -> None:
    at = [latency_ms(key, best_levels(key, s), base_ms=1.0, share=s) for s in (small, 1.0)]
    assert at[0] >= at[1]


def test_the_optimum_moves_with_the_share() -> None:
    moved = [best_levels(f"w{i}", 0.2) != best_levels(f"w{i}", 1.0) for i in range(20)]
    assert sum(moved) > 15


@pytest.mark.parametrize("text", ["2", "-1", "many", "nan"])
def test_a_chance_is_a_chance(text: str, tmp_path: Path) -> None:
    task = TestSimulated().task(tmp_path)
    wrong = TuneTask(
        task.subject, task.graph, task.place, task.device, 1, tmp_path, no_measurement,
        options={"crash": text},
    )  # fmt: skip
    with pytest.raises(UsageError, match=f"crash={text}"):
        ENGINE.prepare(wrong)


def test_the_share_is_that_of_the_device(tmp_path: Path) -> None:
    task = TestSimulated().task(tmp_path)
    half = TuneTask(
        task.subject, task.graph, task.place, task.device.share(percent=50), 1, tmp_path,
        no_measurement,
    )  # fmt: skip
    problems = [ENGINE.prepare(each).problem for each in (task, half)]
    shares = [each.share for each in problems if isinstance(each, SimulatedProblem)]
    assert shares == [1.0, 0.5]


def test_its_workloads_are_the_distinct_operators(tmp_path: Path) -> None:
    graph = residual_cnn()
    task = TestSimulated().task(tmp_path)
    keys = {each.key for each in ENGINE.prepare(task).workloads}
    assert keys == {operator_key(graph, node) for node in graph.nodes if node.op_type not in VIEWS}
