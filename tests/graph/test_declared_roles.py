"""Weights whose role the file itself declares, as files of torch.onnx.export(dynamo=True) do."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from slicewise.core.graph import Binding, Role
from slicewise.graph.frontends.onnx import read_graph

_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"


def _model(folder: Path, kinds: Mapping[str, str]) -> str:
    """Save x @ w + mask, times a gain of one element, plus a literal; `w` is transposed first."""
    nodes = [
        helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "wt"], ["y"]),
        helper.make_node("Add", ["y", "mask"], ["masked"]),
        helper.make_node("Mul", ["masked", "gain"], ["scaled"]),
        helper.make_node("Add", ["scaled", "literal"], ["out"]),
    ]
    weights = {"w": (4, 4), "mask": (4, 4), "gain": (1,), "literal": (4,)}
    graph = helper.make_graph(
        nodes,
        "declared",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [4, 4])],
        [numpy_helper.from_array(np.ones(s, np.float32), n) for n, s in weights.items()],
    )
    for name, kind in kinds.items():
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, weights[name])
        entry = value.metadata_props.add()
        entry.key, entry.value = _KIND, kind
        graph.value_info.append(value)
    path = folder / "declared.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
    return str(path)


def test_what_is_declared_a_parameter_counts_and_nothing_else(tmp_path: Path) -> None:
    kinds = {"w": "PARAMETER", "mask": "BUFFER", "gain": "PARAMETER"}
    graph = read_graph(_model(tmp_path, kinds), Binding())
    assert graph.parameters == 16 + 1
    assert graph.constants["mask"].role is Role.DATA
    assert graph.constants["literal"].role is Role.DATA


@pytest.mark.parametrize("kinds", [{}, {"w": "TOKEN"}])
def test_without_declarations_the_slots_decide(tmp_path: Path, kinds: dict[str, str]) -> None:
    graph = read_graph(_model(tmp_path, kinds), Binding())
    assert graph.parameters == 16 + 16 + 4
