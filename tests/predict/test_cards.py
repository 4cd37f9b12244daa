"""Cards on disk: what was written is read exactly, what no card can hold is refused."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.errors import StoreError
from slicewise.predict.cards import card_path, find_card, load_card, save_card
from slicewise.predict.correction import (
    Band,
    Card,
    Correction,
    EnergyCorrection,
    Errors,
    MemoryCorrection,
    Range,
)
from slicewise.predict.features import CLASS_NAMES, FEATURES
from slicewise.predict.fitting import LEVELS
from slicewise.testing.predictors import tiny_gpu

_figures = st.floats(0, 1e12, allow_nan=False)
_names = st.text(max_size=8)
_errors = st.builds(
    Errors, _figures, _figures, _figures, st.floats(-1, 1e6),
    by_family=st.dictionaries(_names, _figures, max_size=3),
    by_batch=st.dictionaries(_names, _figures, max_size=3),
)  # fmt: skip
_bands = st.builds(Band, st.floats(1e-6, 1), st.floats(1, 1e6))
_counts = st.integers(1, 10**9)
_corrections = st.builds(
    Correction, _names, _names, st.none() | _names, st.sampled_from(LEVELS),
    st.dictionaries(
        st.sampled_from(CLASS_NAMES),
        st.dictionaries(st.sampled_from(FEATURES), _figures, max_size=3), max_size=3,
    ),
    _figures, _bands,
    st.builds(
        Range, st.tuples(_counts, _counts), st.tuples(_figures, _figures),
        st.lists(st.sampled_from(CLASS_NAMES), max_size=3).map(tuple),
    ),
    _counts, _counts, _errors, _errors,
    st.none() | st.builds(
        MemoryCorrection, _counts, _figures, _figures, _figures, _bands, _errors, _errors
    ),
    st.none() | st.builds(EnergyCorrection, _figures, _bands, _errors, _errors),
)  # fmt: skip
_cards = st.builds(
    Card, _names, st.text("0123456789abcdef", min_size=12, max_size=64),
    st.lists(_corrections, max_size=2).map(tuple), _names, _names,
    st.dictionaries(_names, _names, max_size=2),
)  # fmt: skip


def _card() -> Card:
    none = Errors(0.1, 0.2, 0.3, -0.1, {"vit": 0.1}, {"1": 0.1})
    made = Correction(
        "onnxruntime", "fp32", None, "kinds", {"conv/dense": {"roofline": 0.8}}, 1.0,
        Band(0.9, 1.2), Range((1, 8), (1.0, 50.0), ("conv/dense",)), 4, 2, none, none,
        memory=MemoryCorrection(2**26, 1.1, 1.2, 1.0, Band(0.9, 1.1), none, none),
        energy=EnergyCorrection(1.5, Band(0.9, 1.1), none, none),
    )  # fmt: skip
    return Card("tiny-gpu", tiny_gpu().digest, (made,), "2026-01-01T00:00:00Z", "e", {"a": "1"})


@given(_cards)
@settings(max_examples=40, deadline=None)
def test_what_is_written_is_read_exactly(
    tmp_path_factory: pytest.TempPathFactory, card: Card
) -> None:
    assert load_card(save_card(card, tmp_path_factory.mktemp("cards"))) == card


def test_a_device_finds_its_own_card_and_no_other(tmp_path: Path) -> None:
    device = tiny_gpu()
    assert find_card(tmp_path, device) is None
    path = save_card(_card(), tmp_path / "cards")
    assert path == card_path(tmp_path / "cards", device)
    assert find_card(tmp_path / "cards", device) == _card()
    assert find_card(tmp_path / "cards", device.slice("1g.10gb")) == _card()
    other = replace(device, compute_units=12)
    assert find_card(tmp_path / "cards", other) is None


def test_a_new_card_takes_the_place_of_the_old_and_leaves_nothing_behind(tmp_path: Path) -> None:
    save_card(_card(), tmp_path)
    path = save_card(replace(_card(), made_at="later"), tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert load_card(path).made_at == "later"


def test_a_failed_write_keeps_the_old_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_card(_card(), tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StoreError, match="cannot be written: No space left"):
        save_card(replace(_card(), made_at="later"), tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert load_card(path) == _card()


def _set(document: dict[str, Any], where: str, value: object) -> None:
    *way, last = where.split(".")
    place: Any = document
    for step in way:
        place = place[int(step) if step.isdigit() else step]
    place[last] = value


@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        ("schema", "slicewise.card/2", "its schema is 'slicewise.card/2'"),
        ("device", 3, "device 3 is no text"),
        ("corrections", {}, "corrections is no list"),
        ("packages", [], "packages is no object"),
        ("corrections.0.level", "deep", "level 'deep' is none of"),
        ("corrections.0.host", -1.0, "host -1.0 is no finite number from 0"),
        ("corrections.0.host", math.nan, "it is no JSON: NaN is no figure"),
        ("corrections.0.host", True, "host True is no finite number"),
        ("corrections.0.host", 10**400, "is no finite number"),
        ("corrections.0.theta", {"conv/round": {}}, "theta has 'conv/round'"),
        ("corrections.0.theta", {"conv/dense": {"luck": 1.0}}, "theta has 'luck'"),
        ("corrections.0.theta", {"conv/dense": {"matrix": -0.1}}, "matrix -0.1 is no finite"),
        ("corrections.0.band.low", 1.5, "band 1.5 to 1.2 must hold 1"),
        ("corrections.0.range.batches", [1], "range needs two batches"),
        ("corrections.0.measurements", 0, "measurements 0 is no whole number from 1"),
        ("corrections.0.memory.weights", "2", "weights '2' is no finite number"),
        ("corrections.0.before.by_family", {"vit": None}, "vit None is no finite number"),
    ],
)
def test_what_no_card_can_hold_is_refused(
    tmp_path: Path, where: str, value: object, words: str
) -> None:
    path = save_card(_card(), tmp_path)
    document = json.loads(path.read_text())
    _set(document, where, value)
    path.write_text(json.dumps(document))
    with pytest.raises(StoreError) as caught:
        load_card(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[]", "[" * 100_000, "\x00"])
def test_what_is_no_card_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "card.json"
    path.write_text(content)
    with pytest.raises(StoreError, match="cannot be used"):
        load_card(path)


def test_a_missing_card_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="run slicewise calibrate"):
        load_card(tmp_path / "none.json")
