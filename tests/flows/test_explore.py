"""Sweeps from Python: every point a row, in an order that no worker changes; going on."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import slicewise
from slicewise.core.cost import Prediction
from slicewise.core.device import Device
from slicewise.core.errors import DeviceError, ModelError, StoreError, UsageError
from slicewise.core.executor import Done, Item, Result
from slicewise.core.exploration import Exploration, ExploredPoint, Standing
from slicewise.core.graph import Graph
from slicewise.core.ties import places
from slicewise.execute.inline import InlineExecutor
from slicewise.execute.local import LocalPool
from slicewise.flows import cached_load
from slicewise.flows.explore import ExploreOptions, Record, explore
from slicewise.flows.pareto import costs_of
from slicewise.flows.predict import PredictOptions, predict_where_possible
from slicewise.testing import onnx_models

Light = Callable[[str], Path]
CARD = "a100-sxm4-80gb"


def _key(point: ExploredPoint) -> tuple[object, ...]:
    return (point.model, point.batch, point.precision, point.runtime, point.device, point.slice)


def _small(light: Light, **changes: object) -> Exploration:
    given: dict[str, object] = {
        "devices": [CARD, "mi300x", f"{CARD}/1g.10gb"],
        "batches": [1, 8],
        "options": ExploreOptions(
            precisions=["fp32", "fp16"], runtimes=["onnxruntime", "tensorrt"]
        ),
    }
    models = [light("squeezenet"), light("shufflenet")]
    return explore(models, **{**given, **changes})  # type: ignore[arg-type]


class Reversed:
    """Runs items last first: no order of completion may change a result."""

    workers = 1

    def as_completed(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[Done[Result]]:
        for i in reversed(range(len(items))):
            yield Done(i, function(items[i]))


class Interrupted:
    """Stops the whole sweep after some items, as Ctrl-C would."""

    workers = 1

    def __init__(self, after: int) -> None:
        self.after = after

    def as_completed(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[Done[Result]]:
        for i, item in enumerate(items):
            if i == self.after:
                raise KeyboardInterrupt
            yield Done(i, function(item))


def test_points_are_the_whole_product_in_the_order_asked(light: Light) -> None:
    found = _small(light)
    assert [_key(point) for point in found.points] == [
        (model, batch, precision, runtime, device, part)
        for model in (found.models[0].name, found.models[1].name)
        for batch in (1, 8)
        for precision in ("fp32", "fp16")
        for runtime in ("onnxruntime", "tensorrt")
        for device, part in ((CARD, None), ("mi300x", None), (CARD, "1g.10gb"))
    ]


def test_every_executor_gives_the_same_points_exactly(light: Light) -> None:
    reference = _small(light, executor=InlineExecutor())
    assert _small(light, executor=Reversed()) == reference
    assert _small(light, executor=LocalPool(2)) == reference


def test_a_point_is_what_predict_says(light: Light) -> None:
    for point in _small(light).points:
        if point.prediction is None:
            continue
        made = slicewise.predict(
            point.source,
            device=point.device if point.slice is None else f"{point.device}/{point.slice}",
            batch=point.batch,
            precision=point.precision,
            runtime=point.runtime,
        )
        assert point.prediction == replace(made, nodes=(), model=point.model)


def test_what_cannot_be_is_a_row_with_its_reason_and_costs_no_other_row(
    light: Light, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    found = explore(
        [broken, light("squeezenet"), tmp_path / "missing.onnx"],
        devices=["t4", "mi300x"],
        options=ExploreOptions(precisions=["fp32", "nvfp4"], runtimes=["tensorrt"]),
    )
    assert len(found.points) == 3 * 2 * 2
    reasons = {point.failure.reason for point in found.points if point.failure is not None}
    for words in ("broken.onnx", "missing.onnx", "t4 has no fp4 arithmetic", "NVIDIA GPUs only"):
        assert any(words in reason for reason in reasons)
    possible = [point for point in found.points if point.failure is None]
    assert [(point.device, point.precision) for point in possible] == [("t4", "fp32")]
    assert all(
        (point.standing is Standing.IMPOSSIBLE) == (point.prediction is None)
        for point in found.points
    )
    assert {p.failure.exit_code for p in found.points if p.failure is not None} == {3, 4}


def test_a_fault_in_the_house_is_the_reason_of_its_rows_only(
    light: Light, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slicewise.flows import sweep

    true = predict_where_possible

    def faulty(
        graph: Graph, targets: Sequence[Device], options: PredictOptions, **more: Any
    ) -> Sequence[Prediction | DeviceError]:
        if options.precision == "fp16":
            raise ZeroDivisionError("division by zero")
        return true(graph, targets, options, **more)

    monkeypatch.setattr(sweep, "predict_where_possible", faulty)
    options = ExploreOptions(precisions=["fp16", "fp32"])
    found = explore([light("squeezenet")], devices=["t4"], options=options)
    first, second = found.points
    assert first.failure is not None and second.failure is None
    assert "unexpected ZeroDivisionError" in first.failure.reason


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"devices": ["t5"]}, DeviceError, "'t5' is unknown"),
        ({"devices": []}, UsageError, "needs a list with at least one"),
        ({"batches": ["1"]}, UsageError, "not a positive whole number"),
        ({"options": ExploreOptions(precisions=["fp31"])}, UsageError, "'fp31' is unknown"),
        ({"options": ExploreOptions(runtimes=["trt"])}, UsageError, "'trt' is unknown"),
        ({"options": ExploreOptions(objectives=["speed"])}, UsageError, "'speed' is unknown"),
        ({"options": ExploreOptions(objectives=[])}, UsageError, "needs a list with at least one"),
    ],
)
def test_a_mistake_that_concerns_all_is_refused_before_any_work(
    light: Light, changes: dict[str, object], error: type[Exception], message: str
) -> None:
    class Untouched:
        workers = 1

        def as_completed(self, function: object, items: object) -> Iterator[Done[object]]:
            raise AssertionError("work was begun")

    with pytest.raises(error, match=message):
        _small(light, **{"executor": Untouched(), **changes})


def test_models_none_of_which_is_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no model file"):
        explore([tmp_path / "a.onnx", tmp_path / "b.onnx"], devices=["t4"])


def test_what_is_named_twice_counts_once(light: Light) -> None:
    model = light("squeezenet")
    found = explore([model, str(model)], devices=["t4", "T4"], batches=[1, 1])
    assert len(found.points) == 1


def test_models_of_one_name_are_told_apart_by_their_source(light: Light, tmp_path: Path) -> None:
    copy = tmp_path / light("squeezenet").name
    copy.write_bytes(light("squeezenet").read_bytes())
    found = explore([light("squeezenet"), copy], devices=["t4"])
    assert len({point.model for point in found.points}) == 2
    assert found.points[1].model == str(copy)


def test_the_front_is_the_non_dominated_part_of_what_is_allowed(light: Light) -> None:
    found = _small(light)
    made = [p for p in found.points if p.prediction is not None]
    figures = [costs_of(p.prediction, found.objectives) for p in made if p.prediction is not None]
    # figures that differ by rounding alone are ties
    costs = list(zip(*(places(each) for each in zip(*figures, strict=True)), strict=True))
    for point, cost in zip(made, costs, strict=True):
        beaten = any(
            all(a <= b for a, b in zip(other, cost, strict=True)) and other != cost
            for other in costs
        )
        assert point.on_front is not beaten


def test_limits_and_device_memory_keep_points_off_the_front(light: Light) -> None:
    free = _small(light)
    latencies = sorted(p.prediction.latency_ms.value for p in free.points if p.prediction)
    limit_ms = latencies[len(latencies) // 2]
    options = ExploreOptions(precisions=["fp32", "fp16"], latency_limit_ms=limit_ms)
    found = _small(light, options=options)
    for point in found.points:
        assert point.prediction is not None
        over = point.prediction.latency_ms.value > limit_ms
        assert (point.standing is Standing.OVER_LIMIT) == over
    none = _small(light, options=replace(options, memory_limit_bytes=1))
    assert none.front == ()
    crowded = explore([light("vgg19")], devices=[f"{CARD}/1g.10gb"], batches=[4096])
    assert [point.standing for point in crowded.points] == [Standing.UNFIT]


def test_each_model_has_a_front_of_its_own_when_asked(light: Light) -> None:
    options = ExploreOptions(objectives=["latency"], per_model=True)
    found = _small(light, options=options)
    assert {point.model for point in found.front} == {model.name for model in found.models}
    alone = [
        explore([model], devices=[CARD, "mi300x", f"{CARD}/1g.10gb"], batches=[1, 8],
                options=options).front
        for model in (light("squeezenet"), light("shufflenet"))
    ]  # fmt: skip
    assert [_key(p)[1:] for p in found.front] == [_key(p)[1:] for front in alone for p in front]


def test_a_dimension_that_no_model_has_leaves_a_note(light: Light, tmp_path: Path) -> None:
    path = tmp_path / "decoder.onnx"
    onnx_models.save(onnx_models.small_decoder(layers=1), path)
    models = [light("squeezenet"), path]
    named = {"batch": 1, "seq": 16, "past": 4, "total": 20}
    found = explore(models, devices=["t4"], options=ExploreOptions(dims={**named, "sqe": 3}))
    assert "sqe" in " ".join(note.text for note in found.notes)
    assert not any("'seq'" in note.text for note in found.notes)


def test_progress_grows_to_the_whole_and_never_falls(light: Light) -> None:
    told: list[tuple[int, int]] = []
    _small(light, progress=lambda done, count: told.append((done, count)))
    assert told == sorted(told)
    assert told[-1] == (48, 48)


@pytest.mark.parametrize("after", [0, 1, 3])
def test_an_interrupted_sweep_goes_on_where_it_stopped(
    light: Light, tmp_path: Path, after: int
) -> None:
    path = tmp_path / "sweep.partial"
    with pytest.raises(KeyboardInterrupt):
        _small(light, executor=Interrupted(after), record=Record(path))
    resumed: list[tuple[int, int]] = []
    progress: list[int] = []
    record = Record(path, resumed=lambda done, count: resumed.append((done, count)))
    found = _small(light, record=record, progress=lambda done, _: progress.append(done))
    assert found == _small(light)
    assert resumed == ([(12 * after, 48)] if after else [])
    assert progress == list(range(12 * (after + 1), 49, 12))
    record.discard()
    assert not path.exists()


def test_another_front_of_the_same_sweep_is_resumed_another_sweep_is_refused(
    light: Light, tmp_path: Path
) -> None:
    record = Record(tmp_path / "sweep.partial")
    _small(light, record=record)
    cheap = ExploreOptions(
        precisions=["fp32", "fp16"], runtimes=["onnxruntime", "tensorrt"], objectives=["energy"]
    )
    idle = Interrupted(0)
    idle.after = -1
    found = _small(light, record=record, options=cheap, executor=idle)
    assert len(found.points) == 48
    with pytest.raises(StoreError, match="--fresh"):
        _small(light, record=record, batches=[1, 16])
    assert len(_small(light, record=replace(record, fresh=True), batches=[1]).points) == 24


def test_a_changed_model_is_another_sweep(light: Light, tmp_path: Path) -> None:
    import os

    model = tmp_path / "model.onnx"
    model.write_bytes(light("squeezenet").read_bytes())
    record = Record(tmp_path / "sweep.partial")
    explore([model], devices=["t4"], record=record)
    explore([model], devices=["t4"], record=record)
    os.utime(model, ns=(0, 0))
    with pytest.raises(StoreError, match="another sweep"):
        explore([model], devices=["t4"], record=record)


def test_what_killed_a_worker_is_tried_again_when_resumed(light: Light, tmp_path: Path) -> None:
    class Losing:
        workers = 1

        def as_completed(
            self, function: Callable[[Item], Result], items: Sequence[Item]
        ) -> Iterator[Done[Result]]:
            for i, item in enumerate(items):
                yield Done(i, error=UsageError("lost")) if i == 1 else Done(i, function(item))

    record = Record(tmp_path / "sweep.partial")
    found = _small(light, executor=Losing(), record=record)
    lost = [point for point in found.points if point.failure and point.failure.reason == "lost"]
    assert len(lost) == 12
    assert _small(light, record=record) == _small(light)


def test_a_loaded_graph_is_swept_like_its_file(light: Light) -> None:
    graph = slicewise.load(light("squeezenet"))
    by_graph = explore([graph], devices=["t4"], batches=[1, 8])
    by_path = explore([light("squeezenet")], devices=["t4"], batches=[1, 8])
    assert by_graph.points == by_path.points


def test_a_file_named_in_two_ways_counts_once(
    light: Light, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.onnx").write_bytes(light("squeezenet").read_bytes())
    monkeypatch.chdir(tmp_path)
    found = explore(["a.onnx", "./a.onnx", tmp_path / "a.onnx"], devices=["t4"])
    assert [point.source for point in found.points] == ["a.onnx"]


def test_devices_that_share_a_name_and_no_figures_are_refused(light: Light) -> None:
    card = slicewise.device("t4")
    models = [light("squeezenet")]
    assert len(explore(models, devices=[card, "t4"]).points) == 1
    with pytest.raises(UsageError, match="are both called 't4'"):
        explore(models, devices=[card, replace(card, max_power_w=1000.0)])


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"batches": [True]}, "not a positive whole number"),
        ({"batches": [8, 0]}, "batch 0 is not a positive whole number"),
        ({"options": ExploreOptions(precisions=[7])}, "precision 7 is a int"),  # type: ignore
        ({"options": ExploreOptions(objectives="latency")}, "objectives 'latency'"),
        ({"options": ExploreOptions(latency_limit_ms=float("nan"))}, "latency_limit_ms=nan"),
        ({"options": ExploreOptions(memory_limit_bytes=0)}, "memory_limit_bytes=0"),
    ],
)
def test_what_a_type_checker_would_refuse_is_one_line(
    light: Light, changes: dict[str, object], match: str
) -> None:
    with pytest.raises(UsageError, match=match):
        _small(light, **changes)


def test_a_module_is_told_the_way_to_be_swept(light: Light) -> None:
    with pytest.raises(UsageError, match=r"slicewise.load\(module, example_inputs=x\)"):
        explore([object()], devices=["t4"])  # type: ignore[list-item]


@pytest.mark.parametrize("damage", ["index", "cells", "notes"])
def test_an_entry_that_is_none_of_the_sweep_is_damage(
    light: Light, tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "sweep.partial"
    _small(light, record=Record(path))
    header, first, *_ = path.read_text().splitlines()
    entry = json.loads(first)
    if damage == "index":
        entry["index"] = 77
    elif damage == "cells":
        del entry["cells"][-1]
    else:
        entry["cells"][0]["note_indices"] = [900]
    path.write_text(f"{header}\n{json.dumps(entry)}\n")
    with pytest.raises(StoreError, match="is damaged"):
        _small(light, record=Record(path))


class Noting:
    """Runs items in order and notes what was handed out; some of several groups get lost."""

    def __init__(self, workers: int, *, loses: bool = False) -> None:
        self.workers, self.loses = workers, loses
        self.handed: list[tuple[int, ...]] = []

    def as_completed(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[Done[Result]]:
        for i, item in enumerate(items):
            assert isinstance(item, tuple)
            self.handed.append(item)
            is_lost = self.loses and len(item) > 1
            yield Done(i, error=UsageError("lost")) if is_lost else Done(i, function(item))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_load, "_FAST", frozenset())


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("workers", "handed"),
    [
        (1, [(0,), (1,), (2,), (3,), (4,), (5,)]),
        (2, [(0, 1, 2), (3, 4, 5)]),
        (4, [(0, 1), (3, 4), (2,), (5,)]),
        (64, [(0,), (1,), (2,), (3,), (4,), (5,)]),
    ],
)
def test_batches_of_a_model_that_is_traced_stay_together_as_far_as_workers_allow(
    light: Light, workers: int, handed: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = Noting(workers)
    monkeypatch.setenv("SLICEWISE_NO_CACHE", "1")
    found = _small(light, batches=[1, 2, 4], executor=executor)
    assert executor.handed == handed
    assert len(found.points) == 72


def test_batches_of_a_file_that_is_read_at_once_are_spread(light: Light) -> None:
    executor = Noting(2)
    _small(light, executor=executor)
    assert executor.handed == [(0,), (1,), (2,), (3,)]


@pytest.mark.usefixtures("slow")
def test_of_batches_that_were_lost_together_each_is_tried_alone(
    light: Light, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLICEWISE_NO_CACHE", "1")
    executor = Noting(2, loses=True)
    progress: list[int] = []
    found = _small(
        light,
        executor=executor,
        record=Record(tmp_path / "sweep.partial"),
        progress=lambda done, _: progress.append(done),
    )
    assert executor.handed == [(0, 1), (2, 3), (0,), (1,), (2,), (3,)]
    assert found == _small(light)
    assert progress == sorted(progress) and progress[-1] == 48


def test_a_sweep_of_versions_goes_on_from_its_journal(light: Light, tmp_path: Path) -> None:
    options = ExploreOptions(runtimes=["tensorrt@8.6.1"], layouts=["nhwc"])
    models, record = [light("squeezenet")], Record(tmp_path / "journal")
    whole = explore(models, devices=["t4"], batches=[1, 2, 4], options=options)
    with pytest.raises(KeyboardInterrupt):
        explore(
            models, devices=["t4"], batches=[1, 2, 4], options=options,
            executor=Interrupted(2), record=record,
        )  # fmt: skip
    again = explore(models, devices=["t4"], batches=[1, 2, 4], options=options, record=record)
    assert again == whole
    other = replace(options, layouts=["nchw"])
    with pytest.raises(StoreError):
        explore(models, devices=["t4"], batches=[1, 2, 4], options=other, record=record)
