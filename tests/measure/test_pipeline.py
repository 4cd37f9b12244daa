"""Pipelines: items come out as they went in, times add up, and nothing is left behind."""

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from slicewise.core.errors import MeasureError, UsageError
from slicewise.core.graph import Tensor
from slicewise.core.pipeline_measurement import StageSpec
from slicewise.core.precision import DType
from slicewise.measure.pipeline import Conduct, PipelineRun, _feeding_notes, run_pipeline
from slicewise.measure.stages import crew as stage_crew
from slicewise.measure.stages.plan import FEEDER, plan_routes
from slicewise.measure.stages.times import (
    estimate_latency,
    estimate_throughput,
    time_stage,
)
from slicewise.testing import onnx_models, stages

WIDTH = 8
CORES = sorted(os.sched_getaffinity(0))
SHORT = Conduct(items=6, warmup=2, depth=2, keep=3)
FLOATS = Tensor((1, WIDTH), DType.FP32)


def spec(
    name: str, reads: str, gives: str, *, model: str = "", core: int | None = None
) -> StageSpec:
    return StageSpec(
        name,
        model or "none",
        dict.fromkeys(reads.split(), FLOATS),
        dict.fromkeys(gives.split(), FLOATS),
        cores=() if core is None else (CORES[core % len(CORES)],),
    )


def numbered(count: int, *names: str) -> list[dict[str, NDArray[np.generic]]]:
    return [
        {name: np.full((1, WIDTH), 10 * i + j, np.float32) for j, name in enumerate(names)}
        for i in range(count)
    ]


def codes(run: PipelineRun) -> set[str]:
    """Return the codes of the notes that do not hang on how fast this machine is."""
    return {note.code for note in run.measurement.notes} - {"feeder-limits"}


def left_behind() -> set[str]:
    shared = Path("/dev/shm")
    return {p.name for p in shared.glob("psm_*")} if shared.is_dir() else set()


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Any:
    before = left_behind()
    yield
    assert multiprocessing.active_children() == []
    assert left_behind() <= before


def layer(x: str, y: str, weight: str) -> list[Any]:
    return [
        helper.make_node("MatMul", [x, weight], [f"{y}_product"]),
        helper.make_node("Tanh", [f"{y}_product"], [y]),
    ]


def onnx_stages(tmp_path: Path) -> tuple[list[StageSpec], str]:
    """Return two stages, x -> h, t and (h, t, x) -> y, and the file of the whole model."""
    rng = np.random.default_rng(0)
    weights = {
        name: numpy_helper.from_array(rng.normal(size=(WIDTH, WIDTH)).astype(np.float32), name)
        for name in "abc"
    }
    first = [*layer("x", "h", "a"), *layer("h", "t", "b")]
    second = [
        helper.make_node("Add", ["h", "t"], ["ht"]),
        helper.make_node("Add", ["ht", "x"], ["htx"]),
        *layer("htx", "y", "c"),
    ]
    shape = (1, WIDTH)

    def save(name: str, nodes: list[Any], reads: str, gives: str, used: str) -> str:
        proto = onnx_models.model(
            nodes,
            inputs=dict.fromkeys(reads.split(), shape),
            outputs=dict.fromkeys(gives.split(), shape),
            weights=[weights[each] for each in used],
        )
        return onnx_models.save(proto, tmp_path / f"{name}.onnx")

    head = save("head", first, "x", "h t", "ab")
    tail = save("tail", second, "h t x", "y", "c")
    whole = save("whole", [*first, *second], "x", "y", "abc")
    return [
        spec("head", "x", "h t", model=head, core=0),
        spec("tail", "h t x", "y", model=tail, core=1),
    ], whole


def test_two_onnx_stages_give_what_the_whole_model_gives(tmp_path: Path) -> None:
    specs, whole = onnx_stages(tmp_path)
    rng = np.random.default_rng(1)
    items: list[dict[str, NDArray[np.generic]]] = [
        {"x": rng.normal(size=(1, WIDTH)).astype(np.float32)} for _ in range(3)
    ]
    run = run_pipeline(specs, items, conduct=Conduct(items=20, warmup=2, keep=5))
    session = onnxruntime.InferenceSession(whole, providers=["CPUExecutionProvider"])
    for i in range(5):
        np.testing.assert_allclose(
            run.outputs[i]["y"], session.run(["y"], items[i % 3])[0], rtol=1e-6
        )
    taken = run.measurement
    assert taken.items == 20
    assert taken.items_in == taken.items_out == 2 + 6 + 20 + 6
    for stage in taken.stages:
        assert stage.busy + stage.starved + stage.blocked == pytest.approx(1)
        assert stage.service_ms.low <= stage.service_ms.value <= stage.service_ms.high
    for told in (taken.throughput_per_s, taken.latency_ms, taken.alone_ms):
        assert told is not None and 0 < told.low <= told.value <= told.high
    assert taken.bottleneck in taken.stages


def test_one_stage_is_a_pipeline_too(tmp_path: Path) -> None:
    _, whole = onnx_stages(tmp_path)
    x = np.ones((1, WIDTH), np.float32)
    run = run_pipeline([spec("all", "x", "y", model=whole, core=0)], [{"x": x}], conduct=SHORT)
    session = onnxruntime.InferenceSession(whole, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(run.outputs[0]["y"], session.run(["y"], {"x": x})[0], rtol=1e-6)
    assert codes(run) == set()


def test_items_come_out_in_the_order_in_which_they_went_in() -> None:
    # t skips a stage, x and z enter late, s comes out early: every kind of route.
    chain = [spec("a", "x", "h t"), spec("b", "h", "g s"), spec("c", "g t x z", "y")]
    conduct = Conduct(items=30, warmup=1, depth=1, keep=40)
    items = numbered(7, "x", "z")
    run = run_pipeline(chain, items, conduct=conduct, open_stage=stages.open_double)
    assert len(run.outputs) == 40
    for i, out in enumerate(run.outputs):
        x, z = 10.0 * (i % 7), 10.0 * (i % 7) + 1
        assert sorted(out) == ["s", "y"]
        assert (out["s"] == 4 * x).all()
        assert (out["y"] == 2 * (4 * x + 2 * x + x + z)).all()
    assert run.measurement.items_in == run.measurement.items_out == 1 + 6 + 30 + 6
    assert codes(run) == {"stage-unbound"}


def test_a_stage_that_hands_on_its_input_does_not_hand_on_its_memory() -> None:
    chain = [spec("a", "x", "h"), spec("b", "h", "y")]
    run = run_pipeline(chain, numbered(3, "x"), conduct=SHORT, open_stage=stages.open_echo)
    assert [float(out["y"][0, 0]) for out in run.outputs] == [0, 10, 20]


def test_each_stage_runs_on_its_cores() -> None:
    chain = [spec("a", "x", "y", core=0), spec("b", "x", "z", core=-1)]
    pair = Tensor((2,), DType.FP32)
    chain = [
        StageSpec(s.name, s.model, s.inputs, dict.fromkeys(s.outputs, pair), s.cores)
        for s in chain
    ]
    run = run_pipeline(chain, numbered(1, "x"), conduct=SHORT, open_stage=stages.open_cores)
    assert run.outputs[0]["y"].tolist() == [CORES[0]] * 2
    assert run.outputs[0]["z"].tolist() == [CORES[-1]] * 2


def test_stages_on_the_same_core_or_with_more_threads_than_cores_are_noted() -> None:
    chain = [spec("a", "x", "h", core=0), spec("b", "h", "y", core=0)]
    chain[0] = StageSpec("a", "m", chain[0].inputs, chain[0].outputs, chain[0].cores, threads=2)
    run = run_pipeline(chain, numbered(1, "x"), conduct=SHORT, open_stage=stages.open_double)
    noted = [(n.code, n.node) for n in run.measurement.notes]
    assert noted[:2] == [("stage-crowded", "a"), ("stages-share-cores", "b")]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("refuse", r"stage 'b' \(refuse\): operator 'Odd' is not known"),
        ("fail", r"stage 'b' \(fail\): ZeroDivisionError: by zero$"),
        ("die early", r"stage 'b' .*its process died \(killed by signal 9\)"),
        ("die", r"stage 'b' .*its process died \(killed by signal 9\)"),
        ("misshape", r"stage 'b' .*it gives 'g' as float32\[8, 1\], .* says float32\[1, 8\]"),
        ("lack", r"stage 'b' .*it does not give 'g'"),
    ],
)
def test_a_stage_that_fails_ends_the_run_and_is_named(fault: str, message: str) -> None:
    chain = [spec("a", "x", "h"), spec("b", "h", "g", model=fault), spec("c", "g", "y")]
    if fault != "die":  # one with neighbours on both sides is enough
        chain = chain[:2]
    with pytest.raises(MeasureError, match=message):
        run_pipeline(chain, numbered(1, "x"), conduct=SHORT, open_stage=stages.open_faulty)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("hang", "stage 'b' is still running item 2 after 6 s"),
        pytest.param(
            "hang early",
            "stage 'b' is still opening its model after 6 s",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_stage_that_hangs_ends_the_run_and_is_named(fault: str, message: str) -> None:
    chain = [spec("a", "x", "h"), spec("b", "h", "y", model=fault)]
    conduct = Conduct(items=3, warmup=0, time_limit_s=6)
    with pytest.raises(MeasureError, match=message):
        run_pipeline(chain, numbered(1, "x"), conduct=conduct, open_stage=stages.open_faulty)


def test_a_model_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with pytest.raises(MeasureError, match=r"stage 'a' \(.*broken.onnx\): onnxruntime refuses"):
        run_pipeline([spec("a", "x", "y", model=str(broken))], numbered(1, "x"), conduct=SHORT)


def test_what_opens_a_stage_must_be_sendable() -> None:
    with pytest.raises(MeasureError, match="must be a function of a module"):
        run_pipeline(
            [spec("a", "x", "y")], numbered(1, "x"), open_stage=lambda stage: lambda values: {}
        )


def test_a_script_that_runs_itself_again_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from slicewise.core.graph import Tensor; from slicewise.core.precision import DType\n"
        "from slicewise.core.pipeline_measurement import StageSpec\n"
        "from slicewise.measure.pipeline import run_pipeline\n"
        "import numpy as np\n"
        "t = Tensor((1,), DType.FP32)\n"
        "run_pipeline([StageSpec('a', 'm', {'x': t}, {'y': t})], [{'x': np.ones(1, 'f')}])\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert "stage 'a': its process cannot start (exit code 1)" in last
    assert last.endswith("under `if __name__ == '__main__':`")


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_process_outlives_the_one_that_runs_the_pipeline(ending: signal.Signals) -> None:
    code = (
        "from slicewise.core.graph import Tensor; from slicewise.core.precision import DType\n"
        "from slicewise.core.pipeline_measurement import StageSpec\n"
        "from slicewise.measure.pipeline import run_pipeline\n"
        "from slicewise.testing.stages import open_speaking\n"
        "import numpy as np\n"
        "if __name__ == '__main__':\n"
        "    t = Tensor((1,), DType.FP32)\n"
        "    both = [StageSpec(n, 'm', {'x': t}, {n: t}) for n in 'ab']\n"
        "    run_pipeline(both, [{'x': np.ones(1, np.float32)}], open_stage=open_speaking)\n"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        assert parent.stdout is not None and parent.stderr is not None
        assert [parent.stdout.readline() for _ in "ab"] == [b"running\n"] * 2
        parent.send_signal(ending)
        # The pipes end when the last process that holds them does.
        assert parent.stdout.read() == b""
        said = parent.stderr.read().decode()
    assert "resource_tracker" not in said and "BufferError" not in said
    assert ("KeyboardInterrupt" in said) == (ending == signal.SIGINT)


def test_a_stage_that_waits_for_what_is_fed_is_noted() -> None:
    chain = [spec("a", "x", "h"), spec("b", "h x", "y")]
    stamps = ((0, 50, 90, 90, 100),) * 2
    times = [time_stage(stage, stamps, range(1)) for stage in chain]
    (note,) = _feeding_notes(chain, times)
    assert (note.code, note.node) == ("feeder-limits", "a")
    assert "waited 50% of the time" in note.text


class TestPlan:
    def test_a_route_that_skips_has_room_for_all_between(self) -> None:
        plan = plan_routes(
            [spec("a", "x", "h t"), spec("b", "h", "g"), spec("c", "g t", "y")], depth=2
        )
        slots = {(r.source, r.target): r.slots for r in plan.routes}
        assert slots == {(FEEDER, 0): 2, (0, 1): 2, (0, 2): 5, (1, 2): 2, (2, 3): 2}

    @given(st.lists(st.integers(0, 5), max_size=4), st.integers(1, 4), st.integers(1, 6))
    def test_no_two_tensors_overlap(self, shape: list[int], depth: int, count: int) -> None:
        tensor = Tensor(tuple(shape), DType.FP16)
        chain = [
            StageSpec(f"s{i}", "m", {f"t{i}": tensor, "x": tensor}, {f"t{i + 1}": tensor})
            for i in range(count)
        ]
        plan = plan_routes(chain, depth=depth)
        taken = [
            (start, start + place.size)
            for route in plan.routes
            for slot in range(route.slots)
            for place in route.places
            for start in [route.offset + slot * route.slot_bytes + place.offset]
        ]
        taken = sorted(each for each in taken if each[0] < each[1])
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(taken))
        assert all(end <= plan.size_bytes for _, end in taken)

    @pytest.mark.parametrize(
        ("chain", "outputs", "message"),
        [
            ([], None, "a pipeline of 0 stages"),
            ([spec("a", "y", "h"), spec("b", "h", "y")], None, "that is not before it"),
            ([spec("a", "x", "h"), spec("a", "h", "y")], None, "stage 'a' is given twice"),
            ([spec("a", "x", "h"), spec("b", "h", "h")], None, "tensor 'h' is given twice"),
            ([spec("a", "x", "h"), spec("b", "h", "y")], ["q"], "output 'q' is given by no"),
            ([spec("a", "x", "h"), spec("b", "x", "y")], ["y"], "'a' gives no tensor that is"),
            ([spec("a", "", "h"), spec("b", "h", "y")], None, "'a' reads no tensor"),
            ([spec("a", "x", "y")], [], "needs an output"),
        ],
    )
    def test_stages_that_cannot_be_joined_are_refused(
        self, chain: list[StageSpec], outputs: list[str] | None, message: str
    ) -> None:
        with pytest.raises(UsageError, match=message):
            plan_routes(chain, depth=2, outputs=outputs)

    @pytest.mark.parametrize(
        ("tensor", "message"),
        [
            (Tensor(None, DType.FP32), "bind the model's dimensions first"),
            (Tensor((2,), DType.BF16), "is bf16, which cannot be passed between stages"),
            (Tensor((1, 9), DType.FP32), r"reads 'h' as fp32\[1, 9\], and it is fp32\[1, 8\]"),
        ],
    )
    def test_tensors_that_cannot_be_passed_are_refused(self, tensor: Tensor, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            plan_routes(
                [spec("a", "x", "h"), StageSpec("b", "m", {"h": tensor}, {"y": FLOATS})], depth=2
            )

    def test_no_threads_are_refused(self) -> None:
        with pytest.raises(UsageError, match="threads=0"):
            plan_routes([StageSpec("a", "m", {"x": FLOATS}, {"y": FLOATS}, threads=0)], depth=1)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "needs inputs for at least one item"),
        ([{}], "input 'x' is read, and neither.*given are none"),
        ([{"x": np.ones((1, 2), np.float32)}], r"is float32\[1, 2\], and the stages read"),
        ([{"x": np.ones((1, WIDTH), np.float64)}], "input 'x' is float64"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(items: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run_pipeline([spec("a", "x", "y")], items)


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(UsageError, match="cannot run 0 items"):
        Conduct(items=0)


def test_queues_that_shared_memory_cannot_hold_are_refused() -> None:
    with pytest.raises(MeasureError, match=r"the queues need .* TiB of shared memory, and"):
        stage_crew._check_room(2**60)


class TestTimes:
    @given(st.lists(st.integers(1, 10**7), min_size=1, max_size=60))
    def test_throughput_lies_in_its_interval(self, gaps: list[int]) -> None:
        done = np.cumsum([0, *gaps]).tolist()
        told = estimate_throughput(done)
        assert told.value == pytest.approx(len(gaps) / sum(gaps) * 1e9)
        assert 0 < told.low <= told.value <= told.high

    def test_an_even_beat_has_a_narrow_interval(self) -> None:
        told = estimate_throughput([i * 1_000_000 for i in range(101)])
        assert told.low == pytest.approx(1000) and told.high == pytest.approx(1000)

    @given(st.lists(st.integers(1, 10**12), min_size=1, max_size=50))
    def test_a_median_lies_in_its_interval(self, taken_ns: list[int]) -> None:
        told = estimate_latency([0] * len(taken_ns), taken_ns)
        least, most = min(taken_ns) / 1e6, max(taken_ns) / 1e6
        assert least <= told.low <= told.value <= told.high <= most

    def test_items_that_depend_on_their_neighbours_widen_the_interval(self) -> None:
        waves = [10**6 * (1 + i // 10 % 2) + i for i in range(100)]
        shuffled = [waves[37 * i % 100] for i in range(100)]
        wide, narrow = (estimate_latency([0] * 100, each) for each in (waves, shuffled))
        assert wide.value == narrow.value
        assert wide.high - wide.low >= narrow.high - narrow.low

    @given(st.lists(st.tuples(*[st.integers(0, 1000)] * 4), min_size=1, max_size=20))
    def test_parts_of_the_time_add_up(self, steps: list[tuple[int, ...]]) -> None:
        clock, stamps = 0, []
        for step in steps:
            each = [clock]
            for part in step:
                each.append(each[-1] + part)
            stamps.append(tuple(each))
            clock = each[-1]
        told = time_stage(spec("a", "x", "y"), tuple(stamps), range(len(stamps)))  # type: ignore[arg-type]
        assert told.busy + told.starved + told.blocked == pytest.approx(1)
        assert min(told.busy, told.starved, told.blocked) >= 0
