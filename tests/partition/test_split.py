"""Stages of a model as files: run one after the other they give what the whole model gives."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node

import slicewise
from slicewise.core.errors import MeasureError, ModelError, PartitionError, UsageError
from slicewise.core.graph import Graph, Node
from slicewise.partition.split import files as split_module
from slicewise.partition.split import weights as split_weights
from slicewise.partition.split.annotation import read_annotation
from slicewise.partition.split.check import compare_output
from slicewise.partition.split.files import Forecast, split_model
from slicewise.partition.split.manifest import (
    MANIFEST,
    PredictedLoad,
    StageFiles,
    read_manifest,
    stages_document,
)
from slicewise.partition.split.points import find_layers, split_points, split_points_text
from slicewise.testing import onnx_models

FLOAT = TensorProto.FLOAT


def floats(name: str, *shape: int, seed: int = 0) -> onnx.TensorProto:
    values = np.random.default_rng([seed, len(name)]).standard_normal(shape)
    return numpy_helper.from_array((0.2 * values).astype(np.float32), name)


def save(model: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    path = folder / name
    path.write_bytes(model.SerializeToString())
    return path


def session(path: Path) -> onnxruntime.InferenceSession:
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4
    return onnxruntime.InferenceSession(
        str(path), sess_options=settings, providers=["CPUExecutionProvider"]
    )


def cut_at(graph: Graph, *places: int | str) -> dict[str, int]:
    """Return stages by name: each place, an index or the name of a node, begins a new stage."""
    names = [node.name for node in graph.nodes]
    begins = [names.index(place) if isinstance(place, str) else place for place in places]
    return {name: sum(i >= begin for begin in begins) for i, name in enumerate(names)}


def split(
    path: Path, *places: int | str, stages: Mapping[str, int] | None = None, **binding: Any
) -> StageFiles:
    graph = slicewise.load(str(path), **binding)
    return split_model(
        path, graph, stage_of=stages or cut_at(graph, *places), directory=path.parent / "stages"
    )


def run(files: StageFiles, fed: Mapping[str, Any], *, infer: bool = True) -> dict[str, Any]:
    """Return all values after each stage ran on what it says that it reads; files are valid."""
    values = dict(fed)
    for stage in files.stages:
        place = files.directory / stage.file
        onnx.checker.check_model(str(place), full_check=infer)
        opened = session(place)
        assert {each.name for each in opened.get_inputs()} == set(stage.inputs)
        assert [each.name for each in opened.get_outputs()] == list(stage.outputs)
        made = opened.run(list(stage.outputs), {name: values[name] for name in stage.inputs})
        values.update(zip(stage.outputs, made, strict=True))
    return values


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())


def assert_same(
    source: Path, files: StageFiles, fed: Mapping[str, Any], *, infer: bool = True
) -> dict[str, Any]:
    """Check the stages and the annotated model against the source, bit for bit."""
    values = run(files, fed, infer=infer)
    for whole in (source, files.directory / files.whole):
        made = session(whole).run(list(files.outputs), dict(fed))
        for name, expected in zip(files.outputs, made, strict=True):
            assert equal(expected, values[name]), name
    return values


def x_of(*shape: int, seed: int = 3) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def chain(folder: Path, count: int = 4, **kwargs: Any) -> Path:
    """Save x -> t0 -> t1 ... -> y, MatMul by a weight each, and return the file."""
    names = ["x", *(f"t{i}" for i in range(count - 1)), "y"]
    nodes = [
        make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]], name=f"n{i}")
        for i in range(count)
    ]
    weights = [floats(f"w{i}", 8, 8, seed=i) for i in range(count)]
    made = onnx_models.model(
        nodes, inputs={"x": ["batch", 8]}, weights=weights, outputs={"y": ["batch", 8]}, **kwargs
    )
    return save(made, folder)


# --- what a cut can go through


def test_stages_of_a_chain_give_what_the_whole_gives(tmp_path: Path) -> None:
    path = chain(tmp_path)
    files = split(path, 1, 3)
    assert [(s.inputs, s.outputs) for s in files.stages] == [
        (("x",), ("t0",)),
        (("t0",), ("t2",)),
        (("t2",), ("y",)),
    ]
    assert [(cut.name, cut.source, cut.targets) for cut in files.cuts] == [
        ("t0", 0, (1,)),
        ("t2", 1, (2,)),
    ]
    assert files.tensors["t0"].dims == ("batch", 8)
    for batch in (1, 5):  # the free axis stays free
        assert_same(path, files, {"x": x_of(batch, 8)})
    assert [stage.weight_bytes for stage in files.stages] == [256, 512, 256]


def test_empty_stages_get_no_file_and_others_keep_their_numbers(tmp_path: Path) -> None:
    path = chain(tmp_path)
    files = split(path, stages={"n0": 1, "n1": 1, "n2": 4, "n3": 4})
    assert [(stage.index, stage.file) for stage in files.stages] == [
        (1, "stage-1.onnx"),
        (4, "stage-4.onnx"),
    ]
    assert_same(path, files, {"x": x_of(2, 8)})


def test_skip_tensors_inputs_and_early_outputs_go_directly(tmp_path: Path) -> None:
    nodes = [
        make_node("Relu", ["x"], ["a"], name="a"),
        make_node("Tanh", ["a"], ["early"], name="b"),
        make_node("Add", ["early", "z"], ["c"], name="c"),
        make_node("Add", ["c", "a"], ["d"], name="d"),
        make_node("Mul", ["d", "z"], ["y"], name="e"),
    ]
    model = onnx_models.model(
        nodes,
        inputs={"x": [1, 4], "z": [1, 4]},
        outputs={"y": [1, 4], "early": [1, 4]},
    )
    path = save(model, tmp_path)
    files = split(path, "c", "d", "e")
    assert set(files.stages[0].outputs) == {"a", "early"}
    assert set(files.stages[1].inputs) == {"early", "z"}
    assert {"z"} <= set(files.stages[3].inputs)
    assert {(cut.name, cut.targets) for cut in files.cuts} >= {("a", (2,)), ("early", (1,))}
    assert files.outputs == ("y", "early")
    assert_same(path, files, {"x": x_of(1, 4), "z": x_of(1, 4, seed=4)})


def test_a_shared_weight_is_in_each_stage_that_reads_it_and_in_no_other(tmp_path: Path) -> None:
    nodes = [
        make_node("MatMul", ["x", "w"], ["a"], name="a"),
        make_node("Relu", ["a"], ["b"], name="b"),
        make_node("MatMul", ["b", "w"], ["y"], name="c"),
    ]
    model = onnx_models.model(nodes, inputs={"x": [2, 8]}, weights=[floats("w", 8, 8)])
    path = save(model, tmp_path)
    files = split(path, "b", "c")
    held = [
        [t.name for t in onnx.load(str(files.directory / s.file)).graph.initializer]
        for s in files.stages
    ]
    assert held == [["w"], [], ["w"]]
    assert_same(path, files, {"x": x_of(2, 8)})


def test_what_follows_from_weights_is_made_again_where_it_is_read(tmp_path: Path) -> None:
    nodes = [
        make_node("Constant", [], ["half"], name="half", value_float=0.5),
        make_node("Transpose", ["w"], ["wt"], name="turn", perm=[1, 0]),
        make_node("Mul", ["wt", "half"], ["scaled"], name="scale"),
        make_node("MatMul", ["x", "w"], ["a"], name="a"),
        make_node("Add", ["a", "half"], ["b"], name="b"),
        make_node("MatMul", ["b", "scaled"], ["c"], name="c"),
        make_node("MatMul", ["c", "scaled"], ["y"], name="d"),
    ]
    model = onnx_models.model(nodes, inputs={"x": [2, 8]}, weights=[floats("w", 8, 8)])
    path = save(model, tmp_path)
    files = split(path, "b", "c", "d")
    assert [cut.name for cut in files.cuts] == ["a", "b", "c"]
    assert [note.code for note in files.notes] == ["split-copied"]
    assert_same(path, files, {"x": x_of(2, 8)})


def test_the_shape_of_a_tensor_goes_on_instead_of_the_tensor(tmp_path: Path) -> None:
    nodes = [
        make_node("Relu", ["x"], ["a"], name="a"),
        make_node("Shape", ["a"], ["size"], name="size"),
        make_node("ReduceMax", ["a", "axes"], ["m"], name="m", keepdims=1),
        make_node("Tanh", ["m"], ["n"], name="n"),
        make_node("Gather", ["size", "one"], ["width"], name="width"),
        make_node("Concat", ["lead", "width"], ["wide"], name="wide", axis=0),
        make_node("Expand", ["n", "wide"], ["y"], name="y"),
    ]
    weights = [onnx_models.integers(n, [v]) for n, v in (("axes", 1), ("one", 1), ("lead", 1))]
    model = onnx_models.model(nodes, inputs={"x": ["batch", "width"]}, weights=weights)
    path = save(model, tmp_path)
    files = split(path, "n", "y", dims={"width": 6})
    assert ("size", 0, (2,)) in {(c.name, c.source, c.targets) for c in files.cuts}
    assert files.tensors["size"].shape == (2,)
    for width in (6, 3):  # nothing is fixed to what the graph was bound to
        assert_same(path, files, {"x": x_of(1, width)})


def test_a_shape_that_is_known_too_late_is_frozen_with_a_note(tmp_path: Path) -> None:
    # The graph has no edge from 'late' to 'y1': its shape is known. The file has one.
    nodes = [
        make_node("Relu", ["x"], ["a"], name="a"),
        make_node("Tanh", ["x"], ["late"], name="late"),
        make_node("Shape", ["late"], ["size"], name="size"),
        make_node("Expand", ["a", "size"], ["y1"], name="y1"),
        make_node("Add", ["late", "y1"], ["y"], name="y"),
    ]
    model = onnx_models.model(nodes, inputs={"x": ["batch", 4]})
    path = save(model, tmp_path)
    files = split(path, stages={"a": 0, "y1": 0, "late": 1, "y": 1}, batch=3)
    (note,) = [each for each in files.notes if each.code == "shape-frozen"]
    assert note.node == "size"
    assert_same(path, files, {"x": x_of(3, 4)})


def test_what_is_computed_for_its_shape_alone_is_computed_once(tmp_path: Path) -> None:
    # The graph leaves 'wide' and 'wider' out: their shape is known. The file computes them.
    nodes = [
        make_node("Relu", ["x"], ["a"], name="a"),
        make_node("Tanh", ["x"], ["late"], name="late"),
        make_node("Concat", ["late", "late"], ["wide"], name="wide", axis=0),
        make_node("Neg", ["wide"], ["wider"], name="wider"),
        make_node("Shape", ["wider"], ["size"], name="size"),
        make_node("Expand", ["a", "size"], ["y1"], name="y1"),
        make_node("Mul", ["late", "y1"], ["y2"], name="y2"),
        make_node("Expand", ["y2", "size"], ["y"], name="y"),
    ]
    model = onnx_models.model(nodes, inputs={"x": [1, 4]}, outputs={"y": [2, 4], "y1": [2, 4]})
    path = save(model, tmp_path)
    stages = {"a": 0, "y1": 0, "late": 1, "y2": 2, "y": 2}
    files = split(path, stages=stages)
    assert "shape-frozen" in {note.code for note in files.notes}
    assert ("size", 1, (2,)) in {(c.name, c.source, c.targets) for c in files.cuts}
    assert_same(path, files, {"x": x_of(1, 4)})


def test_a_node_before_its_input_is_refused_by_name(tmp_path: Path) -> None:
    path = chain(tmp_path)
    with pytest.raises(PartitionError, match=r"'n1' is in stage 1 and node 'n2'.*in stage 0"):
        split(path, stages={"n0": 0, "n1": 1, "n2": 0, "n3": 1})
    assert sorted(os.listdir(tmp_path)) == ["model.onnx"]
    with pytest.raises(PartitionError, match="no stage from 0 up for node 'n3'"):
        split(path, stages={"n0": 0, "n1": 1, "n2": 1})


def test_bodies_of_if_loop_and_scan_read_what_other_stages_give(tmp_path: Path) -> None:
    one = onnx_models.value("t", [1, 4])
    then = helper.make_graph([make_node("Add", ["a", "w"], ["t"])], "then", [], [one])
    other = helper.make_graph(
        [make_node("Mul", ["b", "local"], ["t"])], "else", [], [one],
        initializer=[floats("local", 4)],
    )  # fmt: skip
    carried = [
        onnx_models.value("i", [], TensorProto.INT64),
        onnx_models.value("go", [], TensorProto.BOOL),
        onnx_models.value("s", [1, 4]),
    ]
    loop = helper.make_graph(
        [
            make_node("Add", ["s", "a"], ["s2"]),
            make_node("Identity", ["go"], ["go2"]),
        ],
        "loop",
        carried,
        [onnx_models.value("go2", [], TensorProto.BOOL), onnx_models.value("s2", [1, 4])],
    )
    nodes = [
        make_node("Relu", ["x"], ["a"], name="a"),
        make_node("Tanh", ["a"], ["b"], name="b"),
        make_node("ReduceSum", ["b"], ["sum"], name="sum", keepdims=0),
        make_node("Greater", ["sum", "zero"], ["yes"], name="yes"),
        make_node("If", ["yes"], ["c"], name="if", then_branch=then, else_branch=other),
        make_node("Loop", ["trips", "", "c"], ["y"], name="loop", body=loop),
    ]
    weights = [
        floats("w", 4),
        numpy_helper.from_array(np.float32(0), "zero"),
        onnx_models.integers("trips", [3], []),
    ]
    model = onnx_models.model(nodes, inputs={"x": [1, 4]}, weights=weights, outputs={"y": [1, 4]})
    path = save(model, tmp_path)
    files = split(path, "b", "if", "loop")
    assert set(files.stages[2].inputs) == {"a", "b", "yes"}
    assert set(files.stages[3].inputs) == {"a", "c"}
    for sign in (1, -1):
        assert_same(path, files, {"x": sign * np.abs(x_of(1, 4))})
        assert_same(path, files, {"x": -10 * np.ones((1, 4), np.float32)})


def test_a_scan_and_what_its_body_captures_are_cut_apart(tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            make_node("Add", ["s", "row"], ["s2"]),
            make_node("MatMul", ["s2", "turned"], ["out"]),
        ],
        "scan",
        [onnx_models.value("s", [4]), onnx_models.value("row", [4])],
        [onnx_models.value("s2", [4]), onnx_models.value("out", [4])],
    )
    nodes = [
        make_node("Relu", ["x"], ["a"], name="a"),
        make_node("ReduceSum", ["a", "axis"], ["start"], name="start", keepdims=0),
        make_node("Transpose", ["w"], ["turned"], name="turn", perm=[1, 0]),
        make_node("Scan", ["start", "a"], ["last", "y"], name="scan", body=body,
                  num_scan_inputs=1),
        make_node("MatMul", ["last", "turned"], ["z"], name="z"),
    ]  # fmt: skip
    model = onnx_models.model(
        nodes,
        inputs={"x": ["rows", 4]},
        outputs={"y": None, "z": None},
        weights=[floats("w", 4, 4), onnx_models.integers("axis", [0])],
    )
    path = save(model, tmp_path)
    files = split(path, "start", "scan", "z", dims={"rows": 3})
    assert set(files.stages[2].inputs) == {"a", "start"}
    assert set(files.stages[3].inputs) == {"last"}
    assert_same(path, files, {"x": x_of(3, 4)})


def test_sparse_weights_go_with_their_readers(tmp_path: Path) -> None:
    path = chain(tmp_path, 3)
    model = onnx.load(str(path))
    dense = numpy_helper.from_array(np.array([1.5, -2.0], np.float32), "w2")
    places = onnx_models.integers("w2_places", [0, 1, 7, 7], [2, 2])
    del model.graph.initializer[2]
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(dense, places, [8, 8]))
    path.write_bytes(model.SerializeToString())
    files = split(path, 1, 2)
    held = [
        len(onnx.load(str(files.directory / stage.file)).graph.sparse_initializer)
        for stage in files.stages
    ]
    assert held == [0, 0, 1]
    assert_same(path, files, {"x": x_of(2, 8)}, infer=False)  # onnx cannot: sparse has no rank


def test_sequences_and_optionals_cross(tmp_path: Path) -> None:
    nodes = [
        make_node("SplitToSequence", ["x", "two"], ["parts"], name="cut", axis=1),
        make_node("Optional", ["parts"], ["maybe"], name="maybe"),
        make_node("OptionalGetElement", ["maybe"], ["again"], name="again"),
        make_node("SequenceAt", ["again", "first"], ["a"], name="at"),
        make_node("ConcatFromSequence", ["parts"], ["b"], name="join", axis=0),
        make_node("Concat", ["a", "b"], ["y"], name="y", axis=0),
    ]
    weights = [onnx_models.integers("two", [2], []), onnx_models.integers("first", [0], [])]
    model = onnx_models.model(nodes, inputs={"x": ["batch", 4]}, weights=weights)
    path = save(model, tmp_path)
    files = split(path, "again", "at", "y")
    assert files.tensors["parts"].kind == "sequence"
    assert files.tensors["maybe"].kind == "optional"
    assert_same(path, files, {"x": x_of(2, 4)})


def test_quantised_chains_are_cut_between_integers(tmp_path: Path) -> None:
    scale = numpy_helper.from_array(np.float32(0.05), "scale")
    zero = numpy_helper.from_array(np.uint8(128), "zero")
    weight = numpy_helper.from_array(
        np.random.default_rng(0).integers(0, 255, (8, 8)).astype(np.uint8), "wq"
    )
    nodes = [
        make_node("QuantizeLinear", ["x", "scale", "zero"], ["xq"], name="q"),
        make_node("DequantizeLinear", ["xq", "scale", "zero"], ["xf"], name="dq"),
        make_node("DequantizeLinear", ["wq", "scale", "zero"], ["wf"], name="dqw"),
        make_node("MatMul", ["xf", "wf"], ["a"], name="a"),
        make_node("QuantizeLinear", ["a", "scale", "zero"], ["aq"], name="qa"),
        make_node("DequantizeLinear", ["aq", "scale", "zero"], ["af"], name="dqa"),
        make_node("MatMul", ["af", "wf"], ["y"], name="y"),
    ]
    model = onnx_models.model(nodes, inputs={"x": [2, 8]}, weights=[scale, zero, weight])
    path = save(model, tmp_path)
    files = split(path, "dq", "dqa")
    assert files.tensors["xq"].dtype == files.tensors["aq"].dtype == "uint8"
    assert_same(path, files, {"x": x_of(2, 8)})


def scaled_function(name: str = "Twice") -> onnx.FunctionProto:
    return helper.make_function(
        "own", name, ["a", "w"], ["c", "extra"],
        [make_node("MatMul", ["a", "w"], ["b"]), make_node("Inner", ["b"], ["c"], domain="own"),
         make_node("Neg", ["b"], ["extra"])],
        [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)],
    )  # fmt: skip


def function_model() -> onnx.ModelProto:
    inner = helper.make_function(
        "own", "Inner", ["a"], ["b"], [make_node("Tanh", ["a"], ["t"]),
                                       make_node("Relu", ["t"], ["b"])],
        [helper.make_opsetid("", 20)],
    )  # fmt: skip
    unused = helper.make_function(
        "own", "Unused", ["a"], ["b"], [make_node("Neg", ["a"], ["b"])],
        [helper.make_opsetid("", 20)],
    )  # fmt: skip
    nodes = [
        make_node("Twice", ["x", "w"], ["a", ""], name="one", domain="own"),
        make_node("FusedMatMul", ["a", "w"], ["b"], name="mm", domain="com.microsoft", alpha=0.5),
        make_node("Twice", ["b", "w"], ["c", "e"], name="two", domain="own"),
        make_node("Add", ["c", "e"], ["y"], name="end"),
    ]
    return onnx_models.model(
        nodes,
        inputs={"x": [2, 8]},
        weights=[floats("w", 8, 8)],
        functions=[inner, scaled_function(), unused],
    )


def test_functions_are_copied_where_called_and_their_domains_imported(tmp_path: Path) -> None:
    path = save(function_model(), tmp_path)
    graph = slicewise.load(str(path))
    kinds = [node.op_type for node in graph.nodes]
    begin = kinds.index("FusedMatMul")
    files = split(path, begin, begin + 1)
    models = [onnx.load(str(files.directory / stage.file)) for stage in files.stages]
    assert [[f.name for f in m.functions] for m in models] == [
        ["Inner", "Twice"],
        [],
        ["Inner", "Twice"],
    ]
    assert all({o.domain for o in m.opset_import} >= {"", "own", "com.microsoft"} for m in models)
    assert_same(path, files, {"x": x_of(2, 8)})


def test_a_function_that_is_cut_is_opened_and_only_that_call(tmp_path: Path) -> None:
    path = save(function_model(), tmp_path)
    graph = slicewise.load(str(path))
    kinds = [node.op_type for node in graph.nodes]
    last = len(kinds) - 1 - kinds[::-1].index("Tanh")
    files = split(path, last)
    first = onnx.load(str(files.directory / files.stages[0].file))
    assert [node.op_type for node in first.graph.node if node.domain == "own"] == ["Twice"]
    assert "split-functions" in {note.code for note in files.notes}
    assert_same(path, files, {"x": x_of(2, 8)})


def test_outputs_that_no_node_makes_are_there(tmp_path: Path) -> None:
    nodes = [
        make_node("Relu", ["x"], ["a"], name="a"),
        make_node("Constant", [], ["c"], name="c", value_float=2.0),
        make_node("Tanh", ["a"], ["y"], name="y"),
    ]
    model = onnx_models.model(
        nodes,
        inputs={"x": [1, 4]},
        outputs={"y": [1, 4], "c": [], "w": [3], "x": [1, 4]},
        weights=[floats("w", 3)],
    )
    path = save(model, tmp_path)
    files = split(path, "y")
    assert files.passed == ("x",)
    values = run(files, {"x": x_of(1, 4)})
    made = session(path).run(["y", "c", "w", "x"], {"x": x_of(1, 4)})
    assert all(equal(a, values[n]) for a, n in zip(made, "ycwx", strict=True))


def test_a_node_drawn_at_random_is_drawn_once(tmp_path: Path) -> None:
    nodes = [
        make_node("RandomNormal", [], ["r"], name="r", shape=[1, 4], seed=1.0),
        make_node("Add", ["x", "r"], ["a"], name="a"),
        make_node("Sub", ["a", "r"], ["y"], name="y"),
    ]
    path = save(onnx_models.model(nodes, inputs={"x": [1, 4]}), tmp_path)
    files = split(path, "y")
    assert {cut.name for cut in files.cuts} == {"a", "r"}
    x = x_of(1, 4)
    np.testing.assert_allclose(run(files, {"x": x})["y"], x, atol=1e-6)


def test_dead_nodes_and_weights_are_left_out_with_a_note(tmp_path: Path) -> None:
    nodes = [
        make_node("Relu", ["x"], ["a"], name="a"),
        make_node("MatMul", ["a", "w"], ["dead"], name="dead"),
        make_node("Tanh", ["a"], ["y"], name="y"),
    ]
    model = onnx_models.model(nodes, inputs={"x": [1, 8]}, weights=[floats("w", 8, 8)])
    path = save(model, tmp_path)
    files = split(path, "y")
    assert [note.code for note in files.notes] == ["split-unused"]
    assert sum(stage.weight_bytes for stage in files.stages) == 0
    assert_same(path, files, {"x": x_of(1, 8)})


def test_a_file_out_of_order_with_nameless_nodes_is_split(tmp_path: Path) -> None:
    nodes = [
        make_node("Tanh", ["b"], ["y"]),
        make_node("Relu", ["a"], ["b"]),
        make_node("MatMul", ["x", "w"], ["a"]),
    ]
    model = onnx_models.model(nodes, inputs={"x": [1, 8]}, weights=[floats("w", 8, 8)])
    path = save(model, tmp_path)
    assert_same(path, split(path, 1, 2), {"x": x_of(1, 8)})


def test_an_old_file_with_weights_among_its_inputs_is_split(tmp_path: Path) -> None:
    path = chain(tmp_path, 2, opset=9)
    model = onnx.load(str(path))
    model.ir_version = 3
    for tensor in model.graph.initializer:
        model.graph.input.append(onnx_models.value(tensor.name, list(tensor.dims)))
    path.write_bytes(model.SerializeToString())
    files = split(path, 1)
    assert files.inputs == ("x",)
    assert_same(path, files, {"x": x_of(2, 8)})


def test_a_file_fixed_to_another_batch_is_freed_where_it_is_cut(tmp_path: Path) -> None:
    path = chain(tmp_path)
    model = onnx.load(str(path))
    model.graph.value_info.append(onnx_models.value("t0", [1, 8]))  # stale: x has a free batch
    path.write_bytes(model.SerializeToString())
    files = split(path, 1, batch=4)
    assert files.tensors["t0"].shape == (4, 8)
    assert_same(path, files, {"x": x_of(4, 8)})


HARSH = ("../../etc/x", "a/b\\c", "n\n0", "ä\u200b", "con", " ", '"quoted"')


def test_names_of_nodes_and_tensors_make_no_file(tmp_path: Path) -> None:
    names = ["x", *HARSH[:-1], "y"]
    nodes = [
        make_node("Relu" if i % 2 else "Tanh", [names[i]], [names[i + 1]], name=name)
        for i, name in enumerate(HARSH)
    ]
    path = save(onnx_models.model(nodes, inputs={"x": [1, 4]}), tmp_path)
    files = split(path, *range(1, len(HARSH)))
    names_written = sorted(os.listdir(files.directory))
    assert names_written == sorted(
        ["model.onnx", "stages.json", *(f"stage-{i}.onnx" for i in range(len(HARSH)))]
    )
    assert sorted(os.listdir(tmp_path)) == ["model.onnx", "stages"]
    assert_same(path, files, {"x": x_of(1, 4)})
    again = read_manifest(files.directory)
    assert again == files


# --- random graphs


_UNARY = ("Relu", "Tanh", "Neg", "Abs", "Sigmoid")


@st.composite
def cut_models(draw: st.DrawFn) -> tuple[onnx.ModelProto, list[int]]:
    """Draw a model of shapes [batch, 4] with shared weights, shape readers and constants, and how
    much later than the stages that it reads from each node is."""
    count = draw(st.integers(2, 12))
    values = ["x", "z"]
    nodes: list[onnx.NodeProto] = []
    for i in range(count):
        out = f"v{i}"
        kind = draw(st.sampled_from(("unary", "add", "matmul", "expand", "scale", "sliced")))
        a, b = (values[draw(st.integers(0, len(values) - 1))] for _ in range(2))
        if kind == "unary":
            nodes.append(make_node(draw(st.sampled_from(_UNARY)), [a], [out], name=f"n{i}"))
        elif kind == "add":
            nodes.append(make_node("Add", [a, b], [out], name=f"n{i}"))
        elif kind == "matmul":
            weight = draw(st.sampled_from(("w0", "w1", "turned")))
            if weight == "turned" and not any("turned" in node.output for node in nodes):
                nodes.append(make_node("Transpose", ["w0"], ["turned"], name="turn", perm=[1, 0]))
            nodes.append(make_node("MatMul", [a, weight], [out], name=f"n{i}"))
        elif kind == "expand":
            nodes.append(make_node("Shape", [a], [f"s{i}"], name=f"shape{i}"))
            nodes.append(make_node("Expand", [b, f"s{i}"], [out], name=f"n{i}"))
        elif kind == "scale":
            nodes.append(make_node("Constant", [], [f"c{i}"], name=f"c{i}", value_float=0.5))
            nodes.append(make_node("Mul", [a, f"c{i}"], [out], name=f"n{i}"))
        else:
            nodes.append(make_node("Split", [a], [f"l{i}", f"r{i}"], name=f"p{i}", axis=1,
                                   num_outputs=2))  # fmt: skip
            nodes.append(make_node("Concat", [f"r{i}", f"l{i}"], [out], name=f"n{i}", axis=1))
        values.append(out)
    shown = draw(st.lists(st.sampled_from(values[2:]), min_size=1, max_size=3, unique=True))
    model = onnx_models.model(
        nodes,
        inputs={"x": ["batch", 4], "z": ["batch", 4]},
        outputs={name: ["batch", 4] for name in shown},
        weights=[floats("w0", 4, 4), floats("w1", 4, 4, seed=5)],
    )
    return model, draw(st.lists(st.integers(-4, 2), min_size=3 * count, max_size=3 * count))


def stages_after(graph: Graph, jumps: Sequence[int]) -> dict[str, int]:
    """Return a cut that is legal by the graph, whatever the file's order is."""
    stages = [max(0, jump) for jump in jumps[: len(graph.nodes)]]
    for source, target, _ in graph.edges:
        later = stages[source] + max(0, jumps[target])
        stages[target] = max(stages[target], later)
    return {node.name: stage for node, stage in zip(graph.nodes, stages, strict=True)}


@settings(max_examples=40, deadline=None)
@given(case=cut_models(), batch=st.integers(1, 3))
def test_any_cut_of_any_graph_gives_what_the_whole_gives(
    case: tuple[onnx.ModelProto, list[int]], batch: int, tmp_path_factory: Any
) -> None:
    model, jumps = case
    path = save(model, tmp_path_factory.mktemp("random"))
    graph = slicewise.load(str(path), batch=batch)
    files = split(path, stages=stages_after(graph, jumps), batch=batch)
    frozen = any(note.code == "shape-frozen" for note in files.notes)
    for size in (batch,) if frozen else (batch, batch + 1):
        fed = {"x": x_of(size, 4), "z": x_of(size, 4, seed=9)}
        read = {value.name for value in onnx.load(str(path)).graph.input}
        assert_same(path, files, {name: fed[name] for name in fed if name in read})
    cut = read_annotation(files.directory / files.whole)
    for stage in files.stages:  # the annotation says the same as the files
        for node in onnx.load(str(files.directory / stage.file)).graph.node:
            assert frozen or cut.stage_of[node.output[0]] <= stage.index


# --- the whole model annotated


def test_the_annotated_model_carries_the_standard_fields(tmp_path: Path) -> None:
    path = chain(tmp_path)
    graph = slicewise.load(str(path))
    forecast = Forecast({0: PredictedLoad(1, 0, 1, 2, device="gpu-a")}, 5.0)
    files = split_model(
        path, graph, stage_of=cut_at(graph, 2), directory=tmp_path / "s", forecast=forecast
    )
    model = onnx.load(str(files.directory / files.whole))
    assert model.ir_version >= 11
    (configuration,) = model.configuration
    assert configuration.num_devices == 2 and list(configuration.device) == ["gpu-a", "stage-1"]
    stages = [node.device_configurations[0].pipeline_stage for node in model.graph.node]
    assert stages == [0, 0, 1, 1]
    assert {p.key: p.value for p in model.graph.node[2].metadata_props}["slicewise.stage"] == "1"
    said = read_annotation(files.directory / files.whole)
    assert said.stage_of == {"t0": 0, "t1": 0, "t2": 1, "y": 1}
    assert said.source_sha256 == files.digest
    again = slicewise.load(str(files.directory / files.whole))  # a cut model is cut again
    assert split_model(
        files.directory / files.whole, again, stage_of=cut_at(again, 1), directory=tmp_path / "t"
    ).stages[0].outputs == ("t0",)
    with pytest.raises(ModelError, match="has no pipeline stages"):
        read_annotation(path)
    with pytest.raises(ModelError, match="cannot be read"):
        read_annotation(tmp_path / "none.onnx")


def test_the_same_cut_gives_the_same_bytes(tmp_path: Path) -> None:
    path = save(function_model(), tmp_path)
    first = {p.name: p.read_bytes() for p in split(path, 2, 4).directory.iterdir()}
    second = {p.name: p.read_bytes() for p in split(path, 2, 4).directory.iterdir()}
    assert first == second


# --- external data


def external(folder: Path, *, location: str = "weights.bin", count: int = 3) -> Path:
    """Save a chain whose weights are in a file of their own; the third has no length."""
    path = chain(folder, count)
    model = onnx.load(str(path))
    blob = b""
    for i, tensor in enumerate(model.graph.initializer):
        content = tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
        tensor.external_data.add(key="offset", value=str(len(blob)))
        if i < count - 1:
            tensor.external_data.add(key="length", value=str(len(content)))
        blob += content
    path.write_bytes(model.SerializeToString())
    (folder / "weights.bin").write_bytes(blob)
    return path


def test_external_weights_stay_external_each_with_its_stage(tmp_path: Path) -> None:
    path = external(tmp_path)
    files = split(path, 1)
    assert [stage.data for stage in files.stages] == ["stage-0.onnx.data", "stage-1.onnx.data"]
    sizes = [(files.directory / stage.data).stat().st_size for stage in files.stages]
    assert sizes == [256, 4096 + 256]  # the second at a page of its own
    assert_same(path, files, {"x": x_of(2, 8)})
    locations = {
        entry.value
        for name in sorted(p.name for p in files.directory.glob("*.onnx"))
        for tensor in onnx.load(
            str(files.directory / name), load_external_data=False
        ).graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    assert locations == {"stage-0.onnx.data", "stage-1.onnx.data"}
    moved = files.directory.rename(tmp_path / "elsewhere")
    (tmp_path / "weights.bin").unlink()
    run(read_manifest(moved), {"x": x_of(2, 8)})


def test_embedded_weights_near_the_limit_of_a_file_go_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_weights, "EMBEDDED_LIMIT", 1000)
    monkeypatch.setattr(split_weights, "_SMALL_BYTES", 100)
    path = chain(tmp_path, 5)
    files = split(path, 2)
    assert all(stage.data for stage in files.stages)
    assert_same(path, files, {"x": x_of(1, 8)})


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("../weights.bin", "only names inside"),
        ("/etc/passwd", "only names inside"),
        ("C:\\weights.bin", "only names inside"),
        ("a\\..\\..\\weights.bin", "only names inside"),
        ("", "only names inside"),
        ("none.bin", "not there"),
        (".", "no regular file"),
        ("link.bin", "leads out"),
    ],
)
def test_external_weights_outside_the_models_folder_are_refused(
    tmp_path: Path, location: str, why: str
) -> None:
    inner = tmp_path / "model"
    inner.mkdir()
    (tmp_path / "weights.bin").write_bytes(bytes(10_000))
    (inner / "link.bin").symlink_to(tmp_path / "weights.bin")
    path = external(inner, location=location)
    with pytest.raises(ModelError, match=why):
        split(path, 1)
    assert not (inner / "stages").exists()
    assert not list(inner.glob(".*"))


def test_a_download_cache_with_links_is_read(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    external(blobs)
    for name in ("model.onnx", "weights.bin"):
        (snapshot / name).symlink_to(Path("..") / "blobs" / name)
    files = split(snapshot / "model.onnx", 1)
    run(files, {"x": x_of(1, 8)})


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [("offset", "-4", "numbers from 0 up"), ("offset", "many", "numbers from 0 up"),
     ("length", "99999", "cut off")],
)  # fmt: skip
def test_external_weights_that_are_not_where_they_should_be_are_refused(
    tmp_path: Path, key: str, value: str, why: str
) -> None:
    path = external(tmp_path)
    model = onnx.load(str(path), load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == key:
            entry.value = value
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=why):
        split(path, 1)


@pytest.mark.slow
def test_more_than_two_gib_pass_through_little_memory(tmp_path: Path) -> None:
    import resource

    rows = 2**27 + 2**20  # 4 columns of fp32: 2 GiB and some
    nodes = [
        make_node("Gather", ["big", "x"], ["a"], name="a"),
        make_node("ReduceMean", ["a"], ["y"], name="y", keepdims=0),
    ]
    tensor = TensorProto(name="big", data_type=FLOAT, dims=[rows, 4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "big.bin"), ("offset", 0), ("length", rows * 16)):
        tensor.external_data.add(key=key, value=str(value))
    model = onnx_models.model(
        nodes, inputs={"x": [2]}, weights=[tensor], dtypes={"x": TensorProto.INT64}
    )
    path = save(model, tmp_path)
    with (tmp_path / "big.bin").open("wb") as file:
        file.truncate(rows * 16)
        file.seek((rows - 1) * 16)
        file.write(np.ones(4, np.float32).tobytes())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    files = split(path, 1)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200_000  # KiB
    data = files.directory / files.stages[0].data
    assert data.stat().st_size == rows * 16
    assert data.stat().st_blocks * 512 < 2**26  # zeros are holes
    with data.open("rb") as file:
        file.seek(-16, os.SEEK_END)
        assert np.frombuffer(file.read(), np.float32).tolist() == [1.0] * 4


# --- the folder


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    path = chain(tmp_path)
    stages = tmp_path / "stages"
    stages.mkdir()
    split(path, 1)  # an empty one is taken
    split(path, 2)  # and our own again
    (stages / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds 'notes.txt', which is not of stages"):
        split(path, 1)
    assert (stages / "notes.txt").read_text() == "mine"
    assert len(read_manifest(stages).stages) == 2
    (stages / MANIFEST).unlink()
    with pytest.raises(UsageError, match="give a new or empty folder"):
        split(path, 1)
    graph = slicewise.load(str(path))
    for directory, why in ((path, "is a file"), (tmp_path / "a" / "b", "is no folder")):
        with pytest.raises(UsageError, match=why):
            split_model(path, graph, stage_of=cut_at(graph, 1), directory=directory)


def test_what_fails_half_way_leaves_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = chain(tmp_path)
    files = split(path, 1)

    def fail(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(split_module, "write_manifest", fail)
    with pytest.raises(KeyboardInterrupt):
        split(path, 2)
    assert read_manifest(files.directory) == files
    assert sorted(os.listdir(tmp_path)) == ["model.onnx", "stages"]


def test_a_file_that_is_not_the_graphs_is_refused(tmp_path: Path) -> None:
    graph = slicewise.load(str(chain(tmp_path)))
    (tmp_path / "other").mkdir()
    other = chain(tmp_path / "other", 2)
    with pytest.raises(ModelError, match="has no 't1', which the graph that was cut has"):
        split_model(other, graph, stage_of=cut_at(graph, 1), directory=tmp_path / "s")
    other.write_bytes(b"\xff\xff")
    with pytest.raises(ModelError, match="cannot be read"):
        split_model(other, graph, stage_of=cut_at(graph, 1), directory=tmp_path / "s")


# --- stages.json


def document(files: StageFiles) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((files.directory / MANIFEST).read_text())
    return loaded


def test_stages_json_says_all_of_the_files(tmp_path: Path) -> None:
    files = split(chain(tmp_path), 1)
    said = document(files)
    assert said["schema"] == "slicewise.stages/1"
    assert said == json.loads(json.dumps(stages_document(files)))
    assert len(said["digest"]) == 64
    assert said["tensors"]["x"] == {
        "dtype": "fp32",
        "dims": ["batch", 8],
        "shape": [1, 8],
        "kind": "tensor",
    }
    assert set(said["versions"]) == {"slicewise", "onnx"}
    assert read_manifest(files.directory) == files


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"schema": "slicewise.stages/2"}, "its schema is"),
        ({"whole": "../model.onnx"}, "no plain name"),
        ({"whole": "sub\\model.onnx"}, "no plain name"),
        ({"whole": "gone.onnx"}, "not in the folder"),
        ({"stages": []}, "no stages"),
        ({"stages": 3}, "TypeError"),
        ({"inputs": []}, "reads 'x', which nothing gives"),
        ({"outputs": ["q"]}, "does not describe 'q'"),
    ],
)
def test_a_damaged_stages_json_is_refused(
    tmp_path: Path, change: Mapping[str, Any], why: str
) -> None:
    files = split(chain(tmp_path), 1)
    (files.directory / MANIFEST).write_text(json.dumps({**document(files), **change}))
    with pytest.raises(ModelError, match=why):
        read_manifest(files.directory)


def test_a_folder_without_stages_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no readable stages.json"):
        read_manifest(tmp_path)
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(ModelError, match="it is no JSON"):
        read_manifest(tmp_path)


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
