"""Stages compared with the whole model, and split points between layers."""

from collections.abc import Sequence

import numpy as np
import pytest

from slicewise.core.errors import MeasureError, PartitionError
from slicewise.core.graph import Graph, Node
from slicewise.partition.split.check import compare_output
from slicewise.partition.split.points import find_layers, split_points, split_points_text

# --- comparing


def test_differences_are_told_and_judged_by_type() -> None:
    a = np.array([1.0, -4.0, np.nan], np.float32)
    same = compare_output("y", a, a.copy())
    assert same.is_equal and same.is_within and same.absolute == 0
    near = compare_output("y", a, a + np.float32(4e-6))
    assert not near.is_equal and near.is_within
    assert near.relative == pytest.approx(near.absolute / 4)
    assert not compare_output("y", a, a + np.float32(0.1)).is_within
    assert not compare_output("y", a, np.array([1, -4, 0], np.float32)).is_within
    ids = np.array([3], np.int64)
    assert not compare_output("y", ids, ids + 1).is_within
    assert compare_output("y", ids.astype(np.uint8), (ids + 1).astype(np.uint8)).is_within
    assert compare_output("y", [a, a], [a, a]).is_equal
    assert compare_output("y", [], []).is_equal
    assert compare_output("y", None, None).is_equal
    text = np.array(["a"], object)
    assert compare_output("y", text, text).is_equal
    for b in (a[:2], a.astype(np.float64), None):
        with pytest.raises(MeasureError, match="in the whole model and"):
            compare_output("y", a, b)
    with pytest.raises(MeasureError, match="sequence of 1"):
        compare_output("y", [a], [])


# --- layers


def layered(paths: Sequence[str]) -> Graph:
    names = ["x", *(f"v{i}" for i in range(len(paths)))]
    return Graph(
        name="layered",
        nodes=tuple(
            Node(path, "Relu", (names[i],), (names[i + 1],), origin=path)
            for i, path in enumerate(paths)
        ),
        tensors={},
        inputs=("x",),
        outputs=(names[-1],),
        constants={},
    )


BLOCK = ("embed", *(f"model.layers.{i}.{p}" for i in range(4) for p in ("attn", "mlp.0")), "head")


@pytest.mark.parametrize("style", ["dots", "onnx", "underscore"])
def test_layers_are_found_and_cuts_between_them_are_said_in_both_ways(style: str) -> None:
    paths = {
        "dots": BLOCK,
        "onnx": tuple(
            "/" + path.replace(".", "/").replace("layers/", "layers.") for path in BLOCK
        ),
        "underscore": tuple(path.replace("layers.", "layer_") for path in BLOCK),
    }[style]
    layers = find_layers(layered(paths))
    assert [layer.index for layer in layers.layers] == [0, 1, 2, 3]
    assert layers.groups == ((0, 1, 2), (3, 4), (5, 6), (7, 8, 9))
    points = split_points(layers, [0] * 5 + [2] * 5)
    assert points.counts == (2, 2) and points.vllm == "2,2"
    assert points.begins == (layers.layers[2].path,)
    text = split_points_text(points)
    assert 'VLLM_PP_LAYER_PARTITION="2,2"' in text
    compile(text, "split_points.py", "exec")


def test_cuts_through_a_layer_have_no_split_points() -> None:
    layers = find_layers(layered(BLOCK))
    with pytest.raises(PartitionError, match=r"'model.layers.1' is in stages \[0, 1\]"):
        split_points(layers, [0] * 4 + [1] * 6)


def test_blocks_of_blocks_are_cut_between_all_and_vllm_says_nothing() -> None:
    paths = [f"layer{i}.{j}.conv" for i in (1, 2) for j in (0, 1)]
    layers = find_layers(layered(paths))
    assert [layer.path for layer in layers.layers] == [
        "layer1.0", "layer1.1", "layer2.0", "layer2.1"
    ]  # fmt: skip
    points = split_points(layers, [0, 1, 1, 1])
    assert points.begins == ("layer1.1",) and points.vllm is None
    assert "not one list" in split_points_text(points)


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(PartitionError, match="no block of layers that repeats"):
        find_layers(layered(["conv", "relu", "layers.0"]))
