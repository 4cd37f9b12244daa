"""`slicewise fit` and `collocate`: documents, reports, pages as agreed; a mistake is one line."""

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

import slicewise
from slicewise.app.cli import run
from slicewise.app.documents import encode
from slicewise.app.slicing.collocate_documents import collocate_document
from slicewise.app.slicing.collocate_report import collocate_report
from slicewise.app.slicing.fit_card import fit_card, fits_card
from slicewise.app.slicing.fit_documents import fit_document, fits_document
from slicewise.app.slicing.fit_page import fit_page
from slicewise.app.slicing.fit_report import fit_report, fits_report
from slicewise.core.cost import Estimate, MemoryEstimate
from slicewise.core.device import Device
from slicewise.core.document import ModelInfo
from slicewise.core.notes import Note
from slicewise.core.packing import Target
from slicewise.flows.collocate import CollocateResult, LeftOut
from slicewise.flows.fitting.result import Elsewhere, FitResult, FitSet, LargestBatch
from slicewise.slices.collocate import advise, sharing, side
from slicewise.slices.fit import judge, recommend
from slicewise.slices.layouts import Placement
from slicewise.testing.predictors import tiny_gpu
from tests.slices.test_fit import on_all_parts, prediction

Golden = Callable[[str, str], None]
Light = Callable[[str], Path]
MODEL = ModelInfo("resnet", "models/resnet.onnx", "ab" * 32, 25_557_032, 53_120)
NOTE = Note("batch-fixed", "the fixed leading 1 of 'x' was replaced by 8")
GIB = 2**30


def _card(name: str = "tiny-gpu") -> Device:
    """A made-up card: figures of the catalogue may change, words may not."""
    tiny = tiny_gpu()
    profiles = tuple(replace(each, compute_slices=each.size) for each in tiny.profiles)
    media = replace(profiles[0], name="1g.10gb+me", attributes="me", max_instances=1)
    return replace(tiny, name=name, profiles=(profiles[0], media, *profiles[1:]))


def _result(
    whole_ms: float = 5.0, target: Target | None = None, *, card: Device | None = None,
    memory_gib: float = 2.0,
) -> FitResult:  # fmt: skip
    device, asked = card or _card(), target or Target(latency_ms=20.0)
    parts = on_all_parts(whole_ms, memory_gib=memory_gib, device=device)
    fits = judge(parts, asked, device=device)
    return FitResult(
        MODEL, device, 8, asked, "mig", 1, fits, recommend(fits, asked), notes=(NOTE,)
    )


def _nothing() -> FitResult:
    made = _result(50.0)
    other = replace(_card("huge-gpu"), compute_units=10 * 108)
    (there,) = judge([(None, prediction(6.0))], made.target, device=other)
    return replace(made, elsewhere=(Elsewhere(other, there),))


def _with_batches() -> FitResult:
    made = _result()
    first, last = made.fits[0], made.fits[-1]
    return replace(
        made,
        largest=(
            LargestBatch("1g.10gb", 0, None, first.reason),
            LargestBatch(None, 31, last, "18.5 ms is within 20.0 ms, but not 20.4 ms"),
        ),
    )


def _pair() -> CollocateResult:
    card = _card()
    alone = prediction(10.0), prediction(2.0, batch=1)
    mig = sharing(
        "mig",
        (
            side(alone[0], prediction(20.0, part="3g.40gb"), Estimate(1.0, 1.0, 1.0, "isolated")),
            side(alone[1], prediction(2.5, part="1g.10gb"), Estimate(1.0, 1.0, 1.0, "isolated")),
        ),
        limits=[39 * GIB, 10 * GIB],
        placements=(Placement("3g.40gb", 4), Placement("1g.10gb", 0)),
    )
    pairs = Estimate(1.25, 1.0, 1.5, "5,175 measured pairs")
    mps = sharing(
        "mps",
        (
            side(alone[0], prediction(11.0, part="80%"), pairs),
            side(alone[1], prediction(2.2, part="20%"), pairs),
        ),
        limits=[80 * GIB],
    )
    found, why = advise([mig, mps])
    left_out = (LeftOut("time-slicing", "not asked"),)
    return CollocateResult(
        (MODEL, replace(MODEL, name="vit")), card, alone, (mig, mps), found, why, left_out, (NOTE,)
    )


def _text(made: RenderableType) -> str:
    file = io.StringIO()
    Console(file=file, width=150, highlight=False).print(made)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _report(made: FitResult) -> str:
    return _text(fit_report(made, width=150))


def test_a_fit_reads_as_agreed(golden: Golden) -> None:
    golden("fit.txt", _report(_with_batches()))
    golden("fit.json", encode(fit_document(_with_batches())).decode())


def test_a_fit_of_nothing_reads_as_agreed(golden: Golden) -> None:
    golden("fit_nothing.txt", _report(_nothing()))
    golden("fit_nothing.json", encode(fit_document(_nothing())).decode())


def test_several_cards_read_as_agreed(golden: Golden) -> None:
    found = FitSet((_result(target=Target()), _nothing()))
    golden("fits.txt", _text(fits_report(found, width=150)))
    golden("fits.json", encode(fits_document(found)).decode())


def test_two_models_on_a_card_read_as_agreed(golden: Golden) -> None:
    golden("collocate.txt", _text(collocate_report(_pair())))
    golden("collocate.json", encode(collocate_document(_pair())).decode())


def test_a_narrow_terminal_keeps_the_part_and_whether_it_fits() -> None:
    file = io.StringIO()
    Console(file=file, width=60, highlight=False).print(fit_report(_nothing(), width=60))
    lines = file.getvalue().splitlines()
    assert any(line.strip().startswith("1g.10gb") and " no " in line for line in lines)


def test_only_the_whole_card_and_nothing_at_all_are_told_apart() -> None:
    card = _result(15.0, Target(latency_ms=20.0))
    assert card.recommended is card.whole
    told = fit_document(card)
    assert told["recommended"] is None
    recommendation: Any = told["recommendation"]
    assert recommendation["kind"] == "card"
    assert recommendation["next_larger"] is None
    assert "the whole card, no slice of it, fits" in _report(card).replace("\n", " ")
    recommendation = fit_document(_nothing())["recommendation"]
    assert recommendation["kind"] == "none"
    assert recommendation["best_possible"]["latency_ms"]["value"] == 50.0


def test_figures_that_are_not_known_are_null() -> None:
    made = _result()
    bare = [
        (
            fit.profile,
            replace(
                fit.prediction,
                energy_j=Estimate(0.0, 0.0, 0.0),
                memory_bytes=MemoryEstimate(0, 0, 0, 0, 0, 0),
            ),
        )
        for fit in made.fits
    ]
    fits = judge(bare, made.target, device=made.device)
    measured = replace(
        made, fits=fits, recommended=fits[-1], is_measured=True,
        model=ModelInfo("full", "full.csv", "", 0, 0),
    )  # fmt: skip
    document: Any = fit_document(measured)
    assert document["model"]["digest"] is None
    assert document["model"]["parameters"] is None
    assert document["runtime"] is None
    for entry in document["profiles"]:
        assert entry["energy_j"] is None
        assert entry["memory_bytes"] is None
    assert "? of 80.0 GiB" in _report(measured)
    assert "Memory of every part" not in fit_page(FitSet((measured,)), arguments=["fit"])


def test_a_page_shows_slots_target_head_room_and_every_part() -> None:
    page = fit_page(FitSet((_with_batches(),)), arguments=["fit", "resnet.onnx"])
    for words in (
        "The slice in its card", "Latency of every part", "line: target", "Memory of every part",
        "1g.10gb+me", "whole card", "Largest batch within 20.0 ms", "slicewise fit resnet.onnx",
    ):  # fmt: skip
        assert words in page
    assert "Where it would fit" in fit_page(FitSet((_nothing(),)), arguments=["fit"])
    whole = _result(15.0)
    assert "The slice in its card" not in fit_page(FitSet((whole,)), arguments=["fit"])


def test_a_page_of_several_cards_has_each_part_once() -> None:
    page = fit_page(FitSet((_result(), _nothing())), arguments=["fit"])
    anchors = re.findall(r'<section id="([^"]+)"', page)
    assert len(anchors) == len(set(anchors)) > 5
    assert "2 cards side by side" in page


def test_names_from_a_file_cannot_reach_a_page_or_a_terminal_as_markup() -> None:
    evil = "<script>alert(1)</script>\x1b[31m"
    made = replace(_nothing(), model=replace(MODEL, name=evil, source=evil))
    fitting = replace(_with_batches(), model=made.model)
    pair = replace(_pair(), models=(made.model, made.model))
    for page in (
        fit_page(FitSet((made, fitting)), arguments=["fit", evil]),
        fit_page(FitSet((fitting,)), arguments=["fit", evil]),
        fit_card(made) + "<script>",
    ):
        assert "<script>alert" not in page
        assert "\x1b" not in page
        assert page.count("<script") == 1
        assert not re.findall(r"(?:src|href)=[\"']?(?!#)", page)
    assert "\x1b[31m" not in _report(made) + _report(fitting) + _text(collocate_report(pair))


def test_a_notebook_shows_the_answer_and_every_part() -> None:
    shown = fit_card(_result())
    assert "<strong>3g.40gb</strong> is the smallest slice that fits" in shown
    assert shown.count("<tr") == len(_result().fits)  # +me stands with the plain one
    assert "nothing fits" in fits_card(FitSet((_nothing(),)))
    assert _result()._repr_html_() == shown
    assert FitSet((_result(),))._repr_html_() == fits_card(FitSet((_result(),)))


_CONTRACT = ("schema", "model", "device", "batch", "recommended", "profiles", "notes")
_PROFILE = (
    "profile", "fits", "reason", "latency_ms", "throughput_per_s", "energy_j", "memory_bytes",
)  # fmt: skip


def test_the_document_holds_the_contract_and_nothing_else_is_printed(
    light: Light, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = tmp_path / "out.json"
    words = ["fit", str(light("squeezenet")), "--device", "a100-sxm4-80gb", "--batch", "4"]
    code = run([*words, "--latency-ms", "20", "--json", "--output", str(output)])
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    assert output.read_text() == captured.out
    made = json.loads(captured.out)
    assert made["schema"] == "slicewise.fit/1"
    assert set(_CONTRACT) <= set(made)
    assert (made["device"], made["batch"]) == ("a100-sxm4-80gb", 4)
    assert all(set(_PROFILE) <= set(entry) for entry in made["profiles"])
    by_name = {entry["profile"]: entry for entry in made["profiles"]}
    profiles = slicewise.device("a100-sxm4-80gb").profiles
    assert set(by_name) == {None, *(profile.name for profile in profiles)}
    assert by_name[made["recommended"]]["fits"]
    for profile in profiles:
        assert by_name[profile.name]["usable_memory_bytes"] == profile.memory_bytes


def test_several_cards_are_a_list_of_that_document(
    light: Light, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fit", str(light("squeezenet")), "--device", "a30,a100-sxm4-80gb", "--json"]
    assert run(words) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["schema"] == "slicewise.fit/1"
    assert [each["device"] for each in made["fits"]] == ["a30", "a100-sxm4-80gb"]
    assert all(set(_CONTRACT) <= set(each) for each in made["fits"])
    assert made["best"]["device"] in ("a30", "a100-sxm4-80gb")


def test_nothing_that_fits_is_an_answer_and_no_error(
    light: Light, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fit", str(light("squeezenet")), "--device", "a30", "--latency-ms", "0.001"]
    assert run(words) == 0
    told = capsys.readouterr().out
    assert "nothing fits; best possible on" in told.splitlines()[0]
    assert "No GPU of the catalogue meets this." in told
    assert run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recommended"] is None


def test_the_page_is_written_beside_the_report(
    light: Light, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "fit.html"
    words = ["fit", str(light("squeezenet")), "--device", "a30", "--mechanism", "mps"]
    assert run([*words, "--html", str(page)]) == 0
    assert "--mechanism mps --html" in page.read_text()
    assert "share-alone" in capsys.readouterr().out


def test_a_measured_file_takes_the_place_of_a_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "full.csv"
    path.write_text("batch,latency_ms\n1,4.0\n8,10.0\n32,34.0\n128,130.0\n")
    words = ["fit", "--measured", str(path), "--device", "a100-sxm4-80gb", "--batch", "32"]
    assert run([*words, "--latency-ms", "100"]) == 0
    assert "full on a100-sxm4-80gb, batch 32: " in capsys.readouterr().out
    assert run([*words, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["measured"] is True
    whole = next(entry for entry in made["profiles"] if entry["profile"] is None)
    assert whole["latency_ms"]["value"] == pytest.approx(34.0)
    assert whole["safety"] == 0.0


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("fit", 2, "fit is given no model; give a model, or --measured FILE"),
        ("fit MODEL --measured full.csv", 2, "and --measured 'full.csv'"),
        ("fit MODEL --device t4", 4, "use --mechanism mps"),
        ("fit MODEL --device t4 --mechanism mpi", 2, "mechanism 'mpi' is unknown"),
        ("fit MODEL --device a30 --latency-ms 0", 2, "latency_ms 0 is no target"),
        ("fit MODEL --device a30 --throughput -5", 2, "throughput_per_s -5 is no target"),
        ("fit MODEL --device a30 --safety -1", 2, "safety -1 is impossible"),
        ("fit MODEL --device a30 --on 1g.6gb", 2, "ask for largest_batch too"),
        ("fit MODEL --device a30 --largest-batch --on 1g.5gb", 4, "no slice profile '1g.5gb'"),
        ("fit MODEL --device a31", 4, "a31"),
        ("fit MODEL --device a30 --batch 0", 2, "batch 0 is not a positive"),
        ("fit none.onnx --device a30", 3, "there is no model file"),
        ("fit --measured none.csv --device a30", 2, "cannot be read"),
        ("fit MODEL --device a30 --strict", 5, "strict"),
        ("fit MODEL --device a30 --html MODEL", 2, "is read as input"),
        ("collocate MODEL --device a30", 2, "collocate takes two models, given 1"),
        ("collocate MODEL MODEL --device cpu", 4, "cpu is no GPU"),
        ("collocate MODEL MODEL --device a30 --batch 1,2,3", 2, "3 batches are given"),
        ("collocate MODEL MODEL --device a30 --batch 0", 2, "--batch '0'"),
    ],
)
def test_a_mistake_is_one_line_and_its_code(
    light: Light, capsys: pytest.CaptureFixture[str], words: str, code: int, told: str
) -> None:
    model = str(light("squeezenet"))
    assert run([model if word == "MODEL" else word for word in words.split()]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert told in captured.err


def test_collocate_prints_one_document_or_a_report(
    light: Light, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [str(light("squeezenet")), str(light("resnet50"))]
    words = ["collocate", *models, "--device", "a100-sxm4-80gb", "--batch", "8,1"]
    assert run([*words, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["schema"] == "slicewise.collocate/1"
    assert [each["batch"] for each in made["models"]] == [8, 1]
    assert {each["mechanism"] for each in made["sharings"]} == {"mig", "mps", "time-slicing"}
    assert made["recommended"] in ("mig", "mps", "time-slicing")
    for each in made["sharings"]:
        assert len(each["sides"]) == 2
        assert all(side["slowdown"]["value"] >= 1 for side in each["sides"])
    assert run(words) == 0
    assert "What the slow-downs rest on" in capsys.readouterr().out
