"""Stages of a model as files: run one after the other they give what the whole model gives."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node

import slicewise
from slicewise.core.errors import PartitionError
from slicewise.core.graph import Graph
from slicewise.partition.split.annotation import read_annotation
from slicewise.partition.split.manifest import (
    read_manifest,
)
from slicewise.testing import onnx_models
from tests.partition.split_models import (
    assert_same,
    chain,
    cut_models,
    equal,
    floats,
    function_model,
    run,
    save,
    session,
    split,
    x_of,
)

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
