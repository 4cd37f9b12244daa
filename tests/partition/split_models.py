"""Models for tests of splitting, and what runs their stages."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node

import slicewise
from slicewise.core.graph import Graph
from slicewise.partition.split.files import split_model
from slicewise.partition.split.manifest import StageFiles
from slicewise.testing import onnx_models

FLOAT = TensorProto.FLOAT
_UNARY = ("Relu", "Tanh", "Neg", "Abs", "Sigmoid")


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
