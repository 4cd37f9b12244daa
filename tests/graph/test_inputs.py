"""No input value that `input_specs` allows leaves a table; masks are ones, lengths are whole."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import slicewise
from slicewise.core.measurement import InputSpec
from slicewise.core.precision import DType
from slicewise.graph.inputs import input_specs
from slicewise.testing.onnx_models import Shape, integers, model, save, weight

I64 = TensorProto.INT64
NODE = helper.make_node


def _specs(
    folder: Path,
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, Shape],
    weights: list[onnx.TensorProto],
    dtypes: Mapping[str, int] | None = None,
) -> dict[str, InputSpec]:
    made = model(
        nodes, inputs=inputs, weights=weights, dtypes=dtypes or dict.fromkeys(inputs, I64)
    )
    graph = slicewise.load(save(made, folder / "m.onnx"))
    return {spec.name: spec for spec in input_specs(graph)}


def _range(spec: InputSpec) -> tuple[int, int]:
    return spec.low, spec.high


_STEPS = {
    "Identity": lambda a, b: [NODE("Identity", [a], [b])],
    "Cast": lambda a, b: [NODE("Cast", [a], [b], to=I64)],
    "Reshape": lambda a, b: [NODE("Reshape", [a, "flat"], [b])],
    "Unsqueeze": lambda a, b: [NODE("Unsqueeze", [a, "zero"], [b])],
    "Slice": lambda a, b: [NODE("Slice", [a, "zero", "one"], [b])],
    "Transpose": lambda a, b: [NODE("Transpose", [a], [b])],
    "Concat": lambda a, b: [NODE("Concat", [a, a], [b], axis=0)],
    "Max": lambda a, b: [NODE("Max", [a, a], [b])],
}


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(st.sampled_from(sorted(_STEPS)), max_size=4),
    rows=st.lists(st.integers(1, 50), min_size=1, max_size=3),
)
def test_any_value_allowed_is_a_row_of_every_table(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], rows: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("m")
    nodes, name = [], "ids"
    for i, step in enumerate(steps):
        nodes += _STEPS[step](name, f"v{i}")
        name = f"v{i}"
    tables = [
        numpy_helper.from_array(np.ones((n, 2), np.float32), f"t{k}") for k, n in enumerate(rows)
    ]
    nodes += [NODE("Gather", [f"t{k}", name], [f"y{k}"]) for k in range(len(rows))]
    made = model(
        nodes,
        inputs={"ids": [2, 3]},
        outputs=[f"y{k}" for k in range(len(rows))],
        weights=[*tables, integers("flat", [-1]), integers("zero", [0]), integers("one", [1])],
        dtypes={"ids": I64},
    )
    for value in made.graph.output:
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, None))
    path = save(made, folder / "m.onnx")
    (spec,) = input_specs(slicewise.load(path))
    assert _range(spec) == (0, min(rows))
    session = onnxruntime.InferenceSession(path)
    for extreme in (spec.low, spec.high - 1):
        session.run(None, {"ids": np.full((2, 3), extreme, np.int64)})


def test_the_smallest_table_wins(tmp_path: Path) -> None:
    nodes = [
        NODE("Gather", ["big", "ids"], ["a"]),
        NODE("Gather", ["small", "ids"], ["b"]),
        NODE("Add", ["a", "b"], ["y"]),
    ]
    tables = [weight("big", 100, 4), weight("small", 7, 4)]
    assert _range(_specs(tmp_path, nodes, {"ids": [1, 5]}, tables)["ids"]) == (0, 7)


def test_what_is_computed_before_a_look_up_is_all_ones(tmp_path: Path) -> None:
    # widths of boxes, as in LayoutLM: a difference of two values that are rows themselves
    nodes = [
        NODE("Slice", ["bbox", "zero", "one", "one"], ["left"]),
        NODE("Slice", ["bbox", "one", "two", "one"], ["right"]),
        NODE("Sub", ["right", "left"], ["width"]),
        NODE("Gather", ["table", "left"], ["a"]),
        NODE("Gather", ["table", "width"], ["b"]),
        NODE("Add", ["a", "b"], ["y"]),
    ]
    constants = [
        weight("table", 50, 4),
        integers("zero", [0]),
        integers("one", [1]),
        integers("two", [2]),
    ]
    assert _range(_specs(tmp_path, nodes, {"bbox": [1, 2]}, constants)["bbox"]) == (1, 2)


def test_a_mask_is_ones_and_floats_are_left_alone(tmp_path: Path) -> None:
    nodes = [
        NODE("Cast", ["mask", ], ["m"], to=TensorProto.FLOAT),
        NODE("Mul", ["x", "m"], ["y"]),
    ]  # fmt: skip
    specs = _specs(tmp_path, nodes, {"x": [1, 4], "mask": [1, 4]}, [], {"mask": I64})
    assert _range(specs["mask"]) == (1, 2)
    assert specs["x"].dtype is DType.FP32


def test_a_comparison_ends_the_way_of_ids(tmp_path: Path) -> None:
    # positions from a count of what is no padding, as in RoBERTa
    nodes = [
        NODE("Gather", ["words", "ids"], ["w"]),
        NODE("Equal", ["ids", "pad"], ["is_pad"]),
        NODE("Cast", ["is_pad"], ["n"], to=I64),
        NODE("CumSum", ["n", "axis"], ["positions"]),
        NODE("Gather", ["places", "positions"], ["p"]),
        NODE("Add", ["w", "p"], ["y"]),
    ]
    constants = [
        weight("words", 90, 4),
        weight("places", 20, 4),
        integers("pad", [1]),
        integers("axis", [1], []),
    ]
    assert _range(_specs(tmp_path, nodes, {"ids": [1, 5]}, constants)["ids"]) == (0, 90)


def test_lengths_of_a_recurrent_operator_are_the_whole_length(tmp_path: Path) -> None:
    nodes = [NODE("LSTM", ["x", "w", "r", "", "lengths"], ["y"], hidden_size=4)]
    specs = _specs(
        tmp_path,
        nodes,
        {"x": [6, 2, 3], "lengths": [2]},
        [weight("w", 1, 16, 3), weight("r", 1, 16, 4)],
        {"lengths": TensorProto.INT32},
    )
    assert _range(specs["lengths"]) == (6, 7)


def test_a_picture_of_bytes_has_all_their_values(tmp_path: Path) -> None:
    nodes = [NODE("Cast", ["x"], ["y"], to=TensorProto.FLOAT)]
    specs = _specs(tmp_path, nodes, {"x": [1, 3, 4, 4]}, [], {"x": TensorProto.UINT8})
    assert _range(specs["x"]) == (0, 256)


def test_a_look_up_inside_a_body_counts(tmp_path: Path) -> None:
    inner = [NODE("Gather", ["table", "ids"], ["t"])]
    value = helper.make_tensor_value_info("t", TensorProto.FLOAT, None)
    branch = helper.make_graph(inner, "branch", [], [value])
    nodes = [NODE("If", ["flag"], ["y"], then_branch=branch, else_branch=branch)]
    specs = _specs(
        tmp_path,
        nodes,
        {"flag": [], "ids": [1, 3]},
        [weight("table", 9, 2)],
        {"flag": TensorProto.BOOL, "ids": I64},
    )
    assert _range(specs["ids"]) == (0, 9)
