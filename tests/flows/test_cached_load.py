"""Slow models are read once and then come from the cache, the same in everything."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

import slicewise
from slicewise.core.errors import ModelError
from slicewise.core.graph import Binding, Graph
from slicewise.flows.cached_load import load_cached
from slicewise.graph.frontends import _base

Light = Callable[[str], Path]
CARD = "a100-sxm4-80gb"


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home; the cache is on."""
    monkeypatch.setenv("SLICEWISE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SLICEWISE_NO_CACHE", raising=False)
    return tmp_path / "home" / "graphs"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that a front-end read."""
    told: list[str] = []
    true = _base.load

    def load(location: str, binding: Binding) -> Graph:
        told.append(location)
        return true(location, binding)

    monkeypatch.setattr(_base, "load", load)
    return told


def _needs_timm() -> None:
    # found, not imported: the front-end knows what must be done before
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("timm") is None:
        pytest.skip("timm is absent")


def test_an_onnx_file_needs_no_cache(light: Light, shelf: Path, reads: list[str]) -> None:
    path = str(light("squeezenet"))
    assert load_cached(path, Binding(1)) == load_cached(path, Binding(1))
    assert reads == [path, path] and not shelf.exists()


def test_a_zoo_model_is_read_once_for_each_binding(shelf: Path, reads: list[str]) -> None:
    _needs_timm()
    first = load_cached("timm:mobilenetv3_small_050", Binding(2))
    again = load_cached("timm:mobilenetv3_small_050", Binding(2))
    assert again == first and again.digest == first.digest and len(reads) == 1
    assert slicewise.predict(again, device=CARD) == slicewise.predict(first, device=CARD)
    assert again.source is not None and again.source.runtime == "torch-eager"
    assert again.bind(batch_size=4).batch_size == 4
    assert again.bind(batch_size=4).batch_size == 4
    assert len(reads) == 2 and len(list(shelf.iterdir())) == 2


def test_one_trace_serves_all_batches_that_are_not_kept_yet(shelf: Path, reads: list[str]) -> None:
    _needs_timm()
    first = load_cached("timm:mobilenetv3_small_050", Binding(1))
    assert [first.bind(batch_size=size).batch_size for size in (2, 4)] == [2, 4]
    assert len(reads) == 1 and len(list(shelf.iterdir())) == 3
    kept = load_cached("timm:mobilenetv3_small_050", Binding(1))
    assert [kept.bind(batch_size=size).batch_size for size in (2, 8, 16)] == [2, 8, 16]
    assert len(reads) == 2


def test_an_error_is_that_of_the_front_end_and_is_not_kept(shelf: Path) -> None:
    _needs_timm()
    for _ in range(2):
        with pytest.raises(ModelError, match="timm"):
            load_cached("timm:no_such_model_at_all", Binding(1))
    assert not shelf.exists()
