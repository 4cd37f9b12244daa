"""The learned predictor: the laws of predictors where it covers a case, and how it falls back."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.conditions import Conditions
from slicewise.core.cost import Prediction
from slicewise.core.device import Device
from slicewise.core.errors import PredictionError
from slicewise.core.graph import Graph
from slicewise.core.precision import PRECISIONS
from slicewise.graph.launch import launch
from slicewise.graph.precision import cast
from slicewise.graph.work import count_work
from slicewise.hardware.catalogue import find_device
from slicewise.predict import weights
from slicewise.predict.network import BOOST, predict_network_on
from slicewise.testing.graphs import residual_cnn, transformer
from slicewise.testing.predictors import PredictorLaws, as_graph, product, tiny_gpu


class TestEager(PredictorLaws):
    predictor = staticmethod(predict_network_on)
    runtime = "torch-eager"
    growing = frozenset({"m"})


class TestCompiled(PredictorLaws):
    predictor = staticmethod(predict_network_on)
    runtime = "torch-compile"
    growing = frozenset({"m"})


def predicted(
    graph: Graph,
    device: Device | None = None,
    *,
    runtime: str = "torch-eager",
    precision: str = "amp",
    conditions: Conditions | None = None,
) -> Prediction:
    """Return the prediction of a graph on one device."""
    its = PRECISIONS[precision]
    ready = cast(graph, its)
    work = launch(ready, count_work(ready, its.compute), runtime=runtime)
    (made,) = predict_network_on(
        ready, work, [device or find_device("rtx-4090")], precision=its, runtime=runtime,
        conditions=conditions or Conditions(),
    )  # fmt: skip
    return made


def codes(made: Prediction) -> set[str]:
    """Return the codes of the notes."""
    return {note.code for note in made.notes}


def width(made: Prediction) -> float:
    """Return high over low of the latency."""
    return made.latency_ms.high / made.latency_ms.low


def test_what_is_covered_names_the_networks_as_its_source() -> None:
    made = predicted(residual_cnn(64, channels=64, size=56))
    assert made.source.startswith("network ")
    assert made.latency_ms.source == made.source
    assert "learned-uncovered" not in codes(made)


@pytest.mark.parametrize("precision", ["nvfp4", "fp8"])
def test_what_is_not_covered_keeps_the_roofline_and_says_so(precision: str) -> None:
    made = predicted(
        residual_cnn(8), find_device("b200-sxm"), runtime="torch-eager", precision=precision
    )
    assert made.source == "roofline"
    assert "learned-uncovered" in codes(made)


@pytest.mark.parametrize("build", [residual_cnn, transformer])
@pytest.mark.parametrize("runtime", ["torch-eager", "torch-compile", "tensorrt"])
def test_more_images_are_never_faster(build: object, runtime: str) -> None:
    latencies = [
        predicted(
            build(batch),  # type: ignore[operator]
            find_device("t4"),
            runtime=runtime,
            precision="fp16",
        ).latency_ms.value
        for batch in (1, 2, 5, 16, 64, 200)
    ]
    assert latencies == sorted(latencies)


def test_a_device_never_seen_has_a_wider_interval_and_a_note() -> None:
    graph = residual_cnn(256, channels=64, size=56)
    known, unseen = predicted(graph), predicted(graph, find_device("rtx-4080"))
    assert width(unseen) > width(known)
    assert "learned-extrapolated" in codes(unseen)
    told = next(note.text for note in unseen.notes if note.code == "learned-extrapolated")
    assert "rtx-4080" in told


def test_a_batch_beyond_the_rows_widens_the_interval() -> None:
    device = find_device("i9-10940x")
    inside = predicted(residual_cnn(1), device, runtime="torch-compile", precision="fp32")
    outside = predicted(residual_cnn(64), device, runtime="torch-compile", precision="fp32")
    assert "batch 64" in " ".join(note.text for note in outside.notes)
    assert width(outside) > width(inside) * 0.99


def test_a_version_newer_than_all_rows_is_told() -> None:
    graph = residual_cnn(64)
    newer = predicted(graph, conditions=Conditions(runtime_version=(99, 0)))
    assert "version-clamped" in codes(newer)
    assert newer.latency_ms.value == predicted(graph).latency_ms.value


def test_layout_and_version_make_a_difference() -> None:
    graph = residual_cnn(256, channels=64, size=56)
    plain = predicted(graph, find_device("rtx-3090")).latency_ms.value
    last = predicted(graph, find_device("rtx-3090"), conditions=Conditions(layout="nhwc"))
    older = predicted(
        graph, find_device("rtx-3090"), conditions=Conditions(runtime_version=(1, 13))
    )
    assert last.latency_ms.value != plain
    assert older.latency_ms.value != plain
    assert not codes(last) & {"layout-ignored", "version-ignored"}


@given(st.integers(1, 4000), st.integers(1, 4000), st.integers(1, 4000))
@settings(deadline=None)
def test_no_product_is_faster_than_the_peak_allows(m: int, n: int, k: int) -> None:
    graph, work = as_graph((product(m, n, k),))
    (made,) = predict_network_on(
        graph, work, [tiny_gpu()], precision=PRECISIONS["fp32"], runtime="torch-eager"
    )
    least_ms = 2 * m * n * k / 19.5e12 / BOOST * 1e3
    assert made.latency_ms.value >= least_ms


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a copy of the weights folder that is read instead of the installed one."""
    source = weights.weights_path().parent
    for path in source.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(weights, "weights_path", lambda: tmp_path / "network.onnx")
    weights.read_card.cache_clear()
    yield tmp_path
    weights.read_card.cache_clear()


def edited(folder: Path, **fields: object) -> None:
    """Change fields of a card."""
    path = folder / "card.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_weights_of_other_columns_are_refused(installed: Path) -> None:
    edited(installed, columns="0123456789abcdef")
    with pytest.raises(PredictionError, match="another version of slicewise"):
        weights.read_card()


def test_weights_that_the_card_does_not_describe_are_refused(installed: Path) -> None:
    (installed / "network.onnx").write_bytes(b"something else")
    with pytest.raises(PredictionError, match="not those that their card describes"):
        weights.read_card()


def test_a_card_that_is_no_json_is_refused(installed: Path) -> None:
    (installed / "card.json").write_text("{")
    with pytest.raises(PredictionError, match="cannot be read"):
        weights.read_card()


def test_the_card_tells_data_licences_ranges_and_errors() -> None:
    told = weights.read_card().told
    assert told["rows_by_source"]["timm-results"] > 20_000
    assert "AGPL" not in told["licences"]
    for split in ("unseen family", "unseen model and size", "unseen device and family"):
        assert told["errors"][split]
    for band in told["intervals"]["known device"].values():
        assert band["low"] < 0 < band["high"]


def test_the_networks_are_small() -> None:
    assert weights.weights_path().stat().st_size < 5_000_000


def test_nodes_of_a_fused_kernel_share_its_time() -> None:
    made = predicted(residual_cnn(64), runtime="torch-compile")
    assert made.host_ms + sum(node.latency_ms for node in made.nodes) == made.latency_ms.value
    assert all(node.latency_ms >= 0 for node in made.nodes)
