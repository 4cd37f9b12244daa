"""The verbs from Python: what a script may rely on."""

import itertools
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import slicewise
from slicewise.core.conditions import Conditions
from slicewise.flows.predict import PredictOptions, predict_many
from slicewise.predict import _base
from slicewise.predict.roofline import predict_roofline_on

Light = Callable[[str], Path]
CARD = "a100-sxm4-80gb"


def test_the_room_of_the_same_name_never_replaces_the_verb(light: Light) -> None:
    from slicewise.predict.slice import scale

    assert callable(scale)
    first = slicewise.predict(light("squeezenet"), device=CARD)
    assert slicewise.predict(light("squeezenet"), device=CARD) == first


@pytest.mark.parametrize("name", [name for name in slicewise.__all__ if name != "__version__"])
def test_every_public_name_exists_and_says_what_it_is(name: str) -> None:
    thing = getattr(slicewise, name)
    assert (thing.__doc__ or "").strip()
    assert name in dir(slicewise)


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'fit_all'"):
        _ = slicewise.fit_all


def test_a_loaded_graph_is_predicted_at_any_batch(light: Light) -> None:
    graph = slicewise.load(light("resnet50"))
    by_graph = slicewise.predict(graph, device=CARD, batch=8)
    by_path = slicewise.predict(light("resnet50"), device=CARD, batch=8)
    assert by_graph == by_path
    assert by_graph.batch == 8
    assert slicewise.predict(graph, device=CARD).batch == 1
    assert graph.bind(batch_size=8).digest == graph.digest


def test_a_graph_from_another_process_is_predicted_alike(light: Light) -> None:
    graph = slicewise.load(light("shufflenet"), batch=2)
    again = pickle.loads(pickle.dumps(graph))
    assert slicewise.predict(again, device=CARD) == slicewise.predict(graph, device=CARD)
    assert slicewise.predict(again, device=CARD, batch=4).batch == 4


@pytest.mark.parametrize("name", ["resnet50", "densenet121", "vgg19", "shufflenet"])
@pytest.mark.parametrize("device", [CARD, "t4", "h100-sxm5-80gb/1g.20gb", f"{CARD}@25%"])
def test_a_larger_batch_takes_no_less_and_serves_no_fewer(
    light: Light, name: str, device: str
) -> None:
    made = predict_many([light(name)], devices=[device], batches=[1, 2, 8, 64]).predictions
    for small, large in itertools.pairwise(made):
        assert large.latency_ms.value >= small.latency_ms.value
        # A wave may be cut short and a cache overflow, so throughput may dip a little.
        assert large.throughput_per_s >= small.throughput_per_s * 0.85
        assert large.energy_j.value >= small.energy_j.value
        assert large.memory_bytes.value >= small.memory_bytes.value
        assert large.macs * small.batch == small.macs * large.batch


@pytest.mark.parametrize("card", [CARD, "a100-sxm4-40gb", "h100-sxm5-80gb", "a30", "b200-sxm"])
def test_a_bigger_slice_is_never_slower(light: Light, card: str) -> None:
    profiles = [p for p in slicewise.device(card).profiles if not p.attributes]
    made = predict_many(
        [light("resnet50")],
        devices=[card, *(f"{card}/{profile.name}" for profile in profiles)],
        batches=[1, 32],
        options=PredictOptions(precision="fp16"),
    ).predictions
    for start in (0, 1 + len(profiles)):
        whole, *parts = made[start : start + 1 + len(profiles)]
        for a, part_a in zip(profiles, parts, strict=True):
            assert part_a.latency_ms.value >= whole.latency_ms.value * (1 - 1e-9)
            for b, part_b in zip(profiles, parts, strict=True):
                fits = a.compute_units <= b.compute_units and a.memory_slices <= b.memory_slices
                if fits:
                    assert part_b.latency_ms.value <= part_a.latency_ms.value * (1 + 1e-9)


def test_lower_precision_is_not_slower_and_needs_less_memory(light: Light) -> None:
    single = slicewise.predict(light("vgg19"), device=CARD, batch=16)
    half = slicewise.predict(light("vgg19"), device=CARD, batch=16, precision="fp16")
    assert half.latency_ms.value < single.latency_ms.value
    assert half.memory_bytes.weights * 2 == pytest.approx(single.memory_bytes.weights, rel=0.01)
    assert half.macs == single.macs


def test_the_grid_comes_in_the_order_asked(light: Light) -> None:
    devices = [CARD, f"{CARD}/2g.20gb", "t4"]
    told: list[str] = []
    result = predict_many(
        [light("squeezenet"), light("shufflenet")],
        devices=devices,
        batches=[1, 4],
        progress=told.append,
    )
    assert [(p.model, p.batch, p.device, p.slice) for p in result.predictions] == [
        (model, batch, device.partition("/")[0], device.partition("/")[2] or None)
        for model in ("light_squeezenet", "light_shufflenet")
        for batch in (1, 4)
        for device in devices
    ]
    assert len(told) == 4
    assert [model.name for model in result.models] == ["light_squeezenet", "light_shufflenet"]


def test_two_devices_of_one_name_are_kept_apart(light: Light) -> None:
    card = slicewise.device(CARD)
    twin = replace(card, memory_bandwidth_bytes_per_s=card.memory_bandwidth_bytes_per_s / 4)
    first, second = predict_many(
        [light("squeezenet")], devices=[card, twin], batches=[64]
    ).predictions
    assert second.latency_ms.value > first.latency_ms.value


def test_strict_lists_every_note_in_one_error(light: Light) -> None:
    with pytest.raises(slicewise.PredictionError, match=r"reshape-rewritten.*launch-estimated"):
        slicewise.predict(light("resnet50"), device=CARD, batch=8, strict=True)


@pytest.mark.parametrize("batch", [0, -1, 1.5, True, "8"])
def test_a_batch_that_is_none_is_refused(light: Light, batch: int) -> None:
    with pytest.raises(slicewise.UsageError, match="positive whole number"):
        slicewise.load(light("squeezenet"), batch=batch)


def test_support_covers_the_light_networks(light: Light) -> None:
    found = slicewise.support(light("inception_v2"))
    assert found.covered
    assert sum(row.count for row in found.operators) == len(
        slicewise.load(light("inception_v2")).nodes
    )


def test_every_device_of_the_catalogue_predicts_in_every_precision_it_has(light: Light) -> None:
    cards = [card for card in slicewise.devices() if card.kind == "gpu"]
    assert len(cards) > 50
    for name in ("fp32", "fp16"):
        able = [card for card in cards if name in {d.value for d in card.peak_flop_per_s}]
        made = predict_many(
            [light("squeezenet")],
            devices=able,
            batches=[1],
            options=PredictOptions(precision=name),
        ).predictions
        assert all(0 < p.latency_ms.value < 1e3 for p in made)
        assert all(p.energy_j.low <= p.energy_j.value <= p.energy_j.high for p in made)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"device": 4}, "device 4 is a int"),
        ({"precision": 5}, "precision 5 is a int"),
        ({"runtime": 7}, "runtime 7 is a int"),
        ({"dims": "x"}, "dims 'x' is a str"),
        ({"dims": {1: 2}}, "names are strings"),
        ({"inputs": {"": "1x3x224x224"}}, "no sequence of sizes"),
        ({"inputs": {"": None}}, "no sequence of sizes"),
        ({"batch_axes": 1}, "batch_axes 1 is a int"),
    ],
)
def test_wrong_types_are_a_users_mistake(
    light: Light, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(slicewise.UsageError, match=words):
        slicewise.predict(light("squeezenet"), **arguments)


@pytest.mark.parametrize("model", [3, None, ["a.onnx"]])
def test_what_is_no_model_is_told(model: Any) -> None:
    with pytest.raises(slicewise.UsageError, match="give the path of a model file"):
        slicewise.load(model)
    with pytest.raises(slicewise.UsageError, match="give a list"):
        predict_many("a.onnx", devices=["t4"], batches=[1])


def test_devices_and_graphs_can_be_keys(light: Light) -> None:
    graph, again = slicewise.load(light("squeezenet")), slicewise.load(light("squeezenet"))
    assert len({graph, again}) == 1
    assert len({slicewise.device("t4"), slicewise.device("t4"), slicewise.device("l4")}) == 2
    assert len({*graph.nodes}) == len(graph.nodes)


def test_floats_taken_as_quantised_are_noted(light: Light) -> None:
    for name, told in (("int8", True), ("fp8", True), ("fp16", False)):
        made = slicewise.predict(light("squeezenet"), device="h100-sxm5-80gb", precision=name)
        assert ("quantisation-assumed" in {note.code for note in made.notes}) is told


def _ignored(made: slicewise.Prediction) -> list[str]:
    return [note.code for note in made.notes if note.code.endswith("-ignored")]


def test_layout_and_version_come_back_and_the_roofline_says_that_it_ignores_them(
    light: Light,
) -> None:
    asked: dict[str, Any] = {"device": f"{CARD}/2g.20gb", "batch": 8}
    plain = slicewise.predict(light("squeezenet"), runtime="onnxruntime", **asked)
    assert (plain.runtime_version, plain.layout, _ignored(plain)) == (None, "nchw", [])
    for runtime, version in (("onnxruntime", None), ("onnxruntime@1.17", (1, 17))):
        for layout in ("nchw", "nhwc"):
            made = slicewise.predict(light("squeezenet"), runtime=runtime, layout=layout, **asked)
            told = ["layout-ignored"] * (layout == "nhwc") + ["version-ignored"] * bool(version)
            assert _ignored(made) == told
            assert (made.runtime, made.runtime_version, made.layout) == (
                "onnxruntime", version, layout,
            )  # fmt: skip
            same = replace(made, runtime_version=None, layout="nchw", notes=plain.notes)
            assert same == plain


def test_the_predictor_receives_the_plain_name_and_the_conditions(
    light: Light, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[tuple[str, Conditions]] = []

    def listening(*arguments: Any, **named: Any) -> tuple[slicewise.Prediction, ...]:
        received.append((named["runtime"], named["conditions"]))
        return predict_roofline_on(*arguments, **named)

    monkeypatch.setattr(_base, "load_predictor", lambda name: listening)
    graph = slicewise.load(light("squeezenet"))
    slicewise.predict(graph, device="t4")
    slicewise.predict(graph, device="t4", runtime="torch-eager")
    slicewise.predict(graph, device="t4", runtime="torch-eager@2.4", layout="nhwc")
    assert received == [
        ("onnxruntime", Conditions()),
        ("torch-eager", Conditions()),
        ("torch-eager", Conditions("nhwc", (2, 4))),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"layout": "nhcw"}, r"layout 'nhcw' is unknown; known are nchw, nhwc; did you mean"),
        ({"layout": None}, r"layout None is unknown"),
        ({"layout": 4}, r"layout 4 is unknown"),
        ({"runtime": "torch-eager@2.x"}, r"no version behind the @ but '2\.x'"),
        ({"runtime": "torch-eagr@2.4"}, r"runtime 'torch-eagr' is unknown.*mean torch-eager"),
        ({"runtime": "@2.4"}, r"runtime '' is unknown"),
    ],
)
def test_a_layout_or_version_that_cannot_be_is_refused(
    light: Light, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(slicewise.UsageError, match=words):
        slicewise.predict(light("squeezenet"), device="t4", **arguments)
