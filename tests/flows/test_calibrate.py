"""`calibrate`: from records to a card that `predict` uses and names."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import slicewise
from slicewise.app.cli import run
from slicewise.core.cost import Estimate
from slicewise.core.errors import MeasureError, UsageError
from slicewise.core.measurement import Environment, MeasuredMemory, Measurement, Outcome
from slicewise.flows.calibrate import _useful, calibrate, family_of_location
from slicewise.flows.measure import target_here
from slicewise.flows.predict import PredictOptions, predict_many
from slicewise.store.records import RecordStore

Light = Callable[[str], Path]
NAMES = ("resnet50", "squeezenet", "shufflenet")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLICEWISE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def _record(model: Path, *, factor: float, threads: int, **changes: object) -> Measurement:
    """A measurement that is `factor` times what is predicted without a card."""
    device = target_here("cpu").device
    graph = slicewise.load(model, batch=1)
    part = (
        device
        if threads >= device.compute_units
        else device.share(100 * threads / device.compute_units)
    )
    predicted = slicewise.predict(model, device=part, batch=1)
    ms = predicted.latency_ms.value * factor
    made = Measurement(
        graph.name, str(model), graph.digest, "cpu", None, "onnxruntime", 1, "fp32", threads,
        device_digest=device.digest,
        latency_ms=Estimate(ms, 0.99 * ms, 1.01 * ms, "measured"),
        samples_ms=(ms,) * 5,
        memory=MeasuredMemory(predicted.memory_bytes.value, predicted.memory_bytes.runtime, "rss"),
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def _kept(measurements: list[Measurement]) -> None:
    with RecordStore() as records:
        records.add_all(measurements)


def _cores() -> int:
    return target_here("cpu").device.compute_units


def test_a_card_moves_predictions_to_what_was_measured(home: Path, light: Light) -> None:
    _kept([_record(light(name), factor=2.0, threads=_cores()) for name in NAMES])
    before = slicewise.predict(light("densenet121"), device="cpu", batch=1)
    found = calibrate(device="cpu")
    assert found.used == found.found == 3 and Path(found.path).parent == home / "cards"
    after = slicewise.predict(light("densenet121"), device="cpu", batch=1)
    assert 1.6 < after.latency_ms.value / before.latency_ms.value < 2.4
    assert "card cpu (3 measurements)" in after.source
    assert after.host_ms + sum(n.latency_ms for n in after.nodes) == after.latency_ms.value
    (plain,) = predict_many(
        [light("densenet121")], devices=["cpu"], batches=[1], options=PredictOptions(card="none")
    ).predictions
    assert plain == before


def test_a_card_is_used_under_its_conditions_only(home: Path, light: Light) -> None:
    _kept([_record(light("resnet50"), factor=3.0, threads=_cores())])
    elsewhere = slicewise.predict(light("resnet50"), device="l4", batch=1)
    other = slicewise.predict(light("resnet50"), device="cpu", batch=1, runtime="torch-eager")
    calibrate(device="cpu")
    assert slicewise.predict(light("resnet50"), device="l4", batch=1) == elsewhere
    same = slicewise.predict(light("resnet50"), device="cpu", batch=1, runtime="torch-eager")
    assert same.latency_ms == other.latency_ms
    assert "calibration-absent" in {note.code for note in same.notes}


@pytest.mark.skipif(_cores() < 2, reason="one core has no half")
def test_a_measured_part_is_predicted_without_the_slice_rule(home: Path, light: Light) -> None:
    _kept([_record(light(name), factor=1.5, threads=1) for name in NAMES])
    part = f"cpu@{100 / _cores():g}%"
    calibrate(device="cpu")
    made = slicewise.predict(light("resnet50"), device=part, batch=1)
    assert (made.device, made.slice) == ("cpu", part.partition("@")[2])
    assert "card" in made.source
    assert "slice-estimated" not in {note.code for note in made.notes}
    whole = slicewise.predict(light("resnet50"), device="cpu", batch=1)
    assert "card" not in whole.source


def test_records_that_cannot_be_used_are_told(home: Path, light: Light, tmp_path: Path) -> None:
    gone = tmp_path / "gone.onnx"
    gone.write_bytes(light("squeezenet").read_bytes())
    lost = _record(gone, factor=1.0, threads=_cores())
    gone.unlink()
    _kept(
        [
            _record(light("resnet50"), factor=2.0, threads=_cores()),
            _record(light("resnet50"), factor=2.0, threads=_cores(), device_digest="f" * 64),
            _record(light("resnet50"), factor=2.0, threads=_cores(), digest="0" * 64, batch=2),
            _record(light("resnet50"), factor=2.0, threads=_cores(), latency_ms=None,
                    samples_ms=(), outcome=Outcome.CRASHED),
            lost,
        ]
    )  # fmt: skip
    found = calibrate(device="cpu", keep=False)
    assert (found.used, found.found, found.path) == (1, 5, "")
    assert {note.code for note in found.notes} == {
        "records-of-another-device", "records-without-latency", "record-stale", "record-unusable",
    }  # fmt: skip
    assert not (home / "cards").exists()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"options": {"spinning": "0"}}, "records-with-options"),
        ({"runtime": "openvino"}, "records-unpredicted"),
        ({"threads": 1000}, "records-crowded"),
    ],
)
def test_records_that_predictions_know_nothing_of_are_left_out(
    home: Path, light: Light, changes: dict[str, object], code: str
) -> None:
    _kept([_record(light("resnet50"), factor=2.0, threads=_cores())])
    strange = replace(
        _record(light("resnet50"), factor=9.0, threads=_cores()),
        **changes,  # type: ignore[arg-type]
    )
    _kept([strange])
    found = calibrate(device="cpu", keep=False)
    assert (found.used, found.found) == (1, 2)
    assert [note.code for note in found.notes] == [code]


def test_of_repeats_the_middle_one_goes_in(home: Path, light: Light) -> None:
    factors = (2.0, 2.1, 50.0)
    _kept([_record(light("resnet50"), factor=f, threads=_cores()) for f in factors])
    before = slicewise.predict(light("resnet50"), device="cpu", batch=1)
    found = calibrate(device="cpu")
    after = slicewise.predict(light("resnet50"), device="cpu", batch=1)
    assert found.used == 1
    assert 1.3 < after.latency_ms.value / before.latency_ms.value < 2.5


def test_records_of_a_busy_machine_are_left_out_where_there_are_others(
    home: Path, light: Light
) -> None:
    busy = Environment(waited=0.4, core_share=0.5)
    _kept([_record(light(n), factor=9.0, threads=_cores(), environment=busy) for n in NAMES])
    found = calibrate(device="cpu", keep=False)
    assert found.used == 3
    assert "all there is" in {n.code: n.text for n in found.notes}["records-disturbed"]
    _kept([_record(light(n), factor=2.0, threads=_cores()) for n in NAMES])
    found = calibrate(device="cpu", keep=False)
    assert found.used == 3
    assert "left out" in {n.code: n.text for n in found.notes}["records-disturbed"]
    assert found.card.corrections[0].after.median < 0.2


def test_a_correction_that_helps_nobody_is_not_kept(home: Path, light: Light) -> None:
    _kept([_record(light(n), factor=2.0, threads=_cores()) for n in NAMES])
    good = calibrate(device="cpu", keep=False).card
    (correction,) = good.corrections
    worse = replace(correction, precision="fp16", after=replace(correction.after, mean=9.0))
    card, notes = _useful(replace(good, corrections=(correction, worse)))
    assert card.corrections == (correction,)
    assert [note.code for note in notes] == ["correction-useless"]
    with pytest.raises(MeasureError, match="predicted no better with a correction"):
        _useful(replace(good, corrections=(worse,)))


def test_a_campaign_that_has_no_records_is_named(home: Path, light: Light) -> None:
    _kept([_record(light("resnet50"), factor=2.0, threads=_cores())])
    with pytest.raises(MeasureError, match=r"given none in campaign 'nope'"):
        calibrate(device="cpu", campaign="nope")


def test_nothing_to_learn_from_is_one_line(home: Path, light: Light) -> None:
    with pytest.raises(MeasureError, match=r"no record of cpu to calibrate from, given none"):
        calibrate(device="cpu")


def test_a_card_of_another_machine_is_refused_where_it_is_named(
    home: Path, light: Light, tmp_path: Path
) -> None:
    _kept([_record(light("resnet50"), factor=2.0, threads=_cores())])
    path = Path(calibrate(device="cpu").path)
    document = json.loads(path.read_text())
    document["device_digest"] = "0" * 64
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document))
    with pytest.raises(UsageError, match="is of another cpu"):
        predict_many(
            [light("resnet50")],
            devices=["cpu"],
            batches=[1],
            options=PredictOptions(card=str(other)),
        )


def test_the_command_tells_before_and_after(
    home: Path, light: Light, capsys: pytest.CaptureFixture[str]
) -> None:
    _kept([_record(light(name), factor=2.0, threads=_cores()) for name in NAMES])
    assert run(["calibrate", "--device", "cpu", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "slicewise.calibrate/1"
    (correction,) = document["card"]["corrections"]
    assert correction["before"]["median"] > correction["after"]["median"]
    assert run(["calibrate", "--device", "cpu", "--no-keep"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("cpu: median error of latency") and "not kept" in text


@pytest.mark.parametrize(
    ("location", "family"),
    [
        ("timm:resnet50", "resnet"), ("timm:vit_base_patch16_224", "vit"), ("b/net-2.onnx", "net"),
        ("timm:tf_efficientnet_b0?in_chans=1", "efficientnet"), ("transformers:gpt2", "gpt"),
        ("C:\\models\\bert.onnx", "bert"), ("50.onnx", "50.onnx"),
    ],
)  # fmt: skip
def test_families_go_by_the_letters_of_the_name(location: str, family: str) -> None:
    assert family_of_location(location) == family
