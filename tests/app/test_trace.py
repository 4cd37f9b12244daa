"""The predicted timeline as a trace: nothing overlaps, nothing is lost."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.app.cli import run
from slicewise.app.trace import encode_trace
from slicewise.core.cost import Estimate, Kind, MemoryEstimate, NodeEstimate, Prediction
from slicewise.core.document import ModelInfo, PredictionSet
from slicewise.core.units import snap_ms

Light = Callable[[str], Path]
Event = dict[str, object]
MODEL = ModelInfo("tiny", "tiny.onnx", "cd" * 32, 10, 0)
MEMORY = MemoryEstimate(700, 600, 900, 50, 150, 500)


def _prediction(nodes: tuple[NodeEstimate, ...], *, host_ms: float = 0.0) -> Prediction:
    total_ms = host_ms + sum(node.latency_ms for node in nodes)
    return Prediction(
        model="tiny", device="tiny-gpu", slice=None, batch=2, precision="fp16",
        runtime="onnxruntime", macs=1, flops=2, latency_ms=Estimate(total_ms, 0.0, total_ms),
        throughput_per_s=1.0, energy_j=Estimate(1.0, 0.5, 2.0), memory_bytes=MEMORY,
        compute_utilisation=0.1, saturation=0.2, source="roofline", host_ms=host_ms, nodes=nodes,
    )  # fmt: skip


def _node(name: str, ms: float, *, kernel: int, alive: int = 0) -> NodeEstimate:
    return NodeEstimate(name, "Conv", Kind.CONV, ms, ms, ms, "compute", 10**6, 10**3,
                        kernel=kernel, alive_bytes=alive)  # fmt: skip


def _events(*predictions: Prediction) -> list[Event]:
    document = json.loads(encode_trace(PredictionSet((MODEL,), predictions)))
    events: list[Event] = document["traceEvents"]
    return events


def _lanes(events: list[Event]) -> dict[tuple[object, object], list[tuple[float, float]]]:
    lanes: dict[tuple[object, object], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            span = (float(str(event["ts"])), float(str(event["dur"])))
            lanes.setdefault((event["pid"], event["tid"]), []).append(span)
    return lanes


@given(
    st.lists(st.tuples(st.floats(0, 50), st.integers(-1, 5)), max_size=40),
    st.floats(0, 5),
)
def test_events_of_a_lane_follow_one_another_and_add_up_to_the_latency(
    drawn: list[tuple[float, int]], host_ms: float
) -> None:
    nodes = tuple(
        _node(f"n{i}", snap_ms(ms), kernel=kernel) for i, (ms, kernel) in enumerate(drawn)
    )
    made = _prediction(nodes, host_ms=snap_ms(host_ms))
    lanes = _lanes(_events(made))
    for spans in lanes.values():
        assert spans == sorted(spans)
        for (start, length), (following, _) in pairwise(spans):
            assert start + length <= following
    total_us = sum(length for spans in lanes.values() for _, length in spans)
    assert total_us == pytest.approx(made.latency_ms.value * 1e3, rel=1e-12, abs=1e-9)


def test_a_fused_kernel_is_one_event_that_names_its_nodes() -> None:
    nodes = (_node("conv", 0.5, kernel=0), _node("other", 0.25, kernel=1),
             _node("relu", 0.125, kernel=0))  # fmt: skip
    events = [event for event in _events(_prediction(nodes)) if event["ph"] == "X"]
    names = [json.loads(json.dumps(event["args"]))["nodes"] for event in events]
    assert names == [["other"], ["conv", "relu"]]  # a kernel runs where its last node stands
    assert events[1]["dur"] == 625.0
    assert set(json.loads(json.dumps(events[1]["args"]))) >= {
        "flops", "moved_bytes", "limit", "intensity_flop_per_byte", "kind",
    }  # fmt: skip


def test_each_prediction_is_a_process_with_named_lanes() -> None:
    one = _prediction((_node("a", 1.0, kernel=0),), host_ms=0.5)
    events = _events(one, replace(one, slice="1g.10gb", batch=4))
    names = {
        (event["pid"], event["name"]): json.loads(json.dumps(event["args"]))
        for event in events
        if event["ph"] == "M"
    }
    assert names[(1, "process_name")]["name"] == "tiny on tiny-gpu, batch 2"
    assert names[(2, "process_name")]["name"] == "tiny on tiny-gpu/1g.10gb, batch 4"
    lanes = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert lanes == {(1, 1), (1, 2), (2, 1), (2, 2)}
    spans = _lanes(events)
    assert spans[(1, 1)] == [(0.0, 500.0)]
    assert spans[(1, 2)] == [(500.0, 1000.0)]


def test_memory_is_counted_only_where_it_is_known() -> None:
    known = _prediction((_node("a", 1.0, kernel=0, alive=7), _node("b", 1.0, kernel=1, alive=9)))
    counters = [event for event in _events(known) if event["ph"] == "C"]
    alive = [json.loads(json.dumps(event["args"]))["activations"] for event in counters]
    assert alive == [7, 9, 0]
    assert {event["name"] for event in counters} == {"memory, bytes"}
    times = [float(str(event["ts"])) for event in counters]
    assert times == sorted(times)
    hosted = replace(known, host_ms=0.5)
    first = next(event for event in _events(hosted) if event["ph"] == "C")
    assert first["ts"] == 0 and json.loads(json.dumps(first["args"]))["activations"] == 0
    unknown = _prediction((_node("a", 1.0, kernel=0),))
    assert not [event for event in _events(unknown) if event["ph"] == "C"]


def test_the_command_writes_a_trace_that_adds_up(
    tmp_path: Path, light: Light, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "trace.json"
    words = ["predict", str(light("squeezenet")), "--device", "a100-sxm4-80gb", "--json"]
    assert run([*words, "--trace", str(target)]) == 0
    made = json.loads(capsys.readouterr().out)["predictions"][0]
    document = json.loads(target.read_text())
    total_us = sum(event.get("dur", 0.0) for event in document["traceEvents"])
    assert total_us == pytest.approx(made["latency_ms"]["value"] * 1e3, rel=1e-12)
    assert document["displayTimeUnit"] == "ms"
