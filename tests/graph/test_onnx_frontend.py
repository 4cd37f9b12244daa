"""An ONNX file becomes a Graph: topology, constants, parameters, bodies; or one clear error."""

import pickle
import random
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from slicewise.core.errors import ModelError, SlicewiseError, UsageError
from slicewise.core.graph import Binding, Constant, Graph, Role, Tensor, captured_by
from slicewise.core.precision import DType
from slicewise.graph.frontends import _base
from slicewise.graph.frontends._base import FRONTENDS, load
from slicewise.graph.frontends.onnx import OnnxSource, read_graph
from slicewise.graph.frontends.onnx import wire as onnx_wire
from slicewise.graph.work import count_work
from slicewise.testing import onnx_models as tiny

make_node = helper.make_node
SHIPPED = Path(onnx.__file__).parent / "backend" / "test" / "data"
LIGHT = SHIPPED / "light"

Load = Callable[..., Graph]


@pytest.fixture
def graph_of(tmp_path: Path) -> Load:
    """Write a model to a file and load it."""

    def build(model: onnx.ModelProto, batch: int | None = None, **dims: int) -> Graph:
        path = tiny.save(model, tmp_path / "model.onnx")
        return load(path, Binding(batch_size=batch, dims=dims))

    return build


def fresh(factory: pytest.TempPathFactory, model: onnx.ModelProto, binding: Binding) -> Graph:
    return load(tiny.save(model, factory.mktemp("law") / "model.onnx"), binding)


def role_of(graph: Graph, name: str) -> Role:
    return graph.constants[name].role


# --- laws


def renamed(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Return the model with every value and node under another name."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    rng = random.Random(seed)
    names: dict[str, str] = {"": ""}

    def new(name: str) -> str:
        return names.setdefault(name, f"v{rng.random()}")

    for value in (*copy.graph.input, *copy.graph.output, *copy.graph.initializer):
        value.name = new(value.name)
    for node in copy.graph.node:
        node.name = rng.choice(["", f"n{rng.random()}", "same"])
        node.input[:] = [new(name) for name in node.input]
        node.output[:] = [new(name) for name in node.output]
    return copy


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000))
def test_names_do_not_enter_the_digest(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model, binding = tiny.small_decoder(layers=2, past=True), Binding(2, {"seq": 3, "past": 5})
    plain = fresh(tmp_path_factory, model, binding)
    other = fresh(tmp_path_factory, renamed(model, seed), binding)
    assert other.digest == plain.digest
    assert other.parameters == plain.parameters
    assert count_work(other).total == count_work(plain).total


@settings(max_examples=20, deadline=None)
@given(batch=st.integers(1, 10**6))
def test_a_batch_multiplies_the_macs_and_leaves_weights_and_digest(
    batch: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for model, dims in (
        (tiny.small_cnn(), {}),
        (tiny.small_cnn(batch=1), {}),
        (tiny.small_decoder(past=True), {"seq": 3, "past": 5}),
    ):
        one = fresh(tmp_path_factory, model, Binding(1, dims))
        many = fresh(tmp_path_factory, model, Binding(batch, dims))
        assert count_work(many).total.macs == batch * count_work(one).total.macs
        assert (many.parameters, many.buffers) == (one.parameters, one.buffers)
        assert many.digest == one.digest
        assert many.batch_size == batch


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(range(21)))
def test_graphs_are_topological_whatever_the_order_in_the_file(
    order: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = tiny.small_decoder()
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(nodes[i] for i in order if i < len(nodes))
    graph = fresh(tmp_path_factory, model, Binding(dims={"seq": 4}))
    known = {*graph.inputs, *graph.constants}
    for node in graph.nodes:
        assert {name for name in node.inputs if name} <= known
        known.update(node.outputs)
    assert set(graph.outputs) <= known
    assert len({node.name for node in graph.nodes}) == len(graph.nodes)
    assert known - {""} == set(graph.tensors)


# --- the networks of the onnx wheel


@pytest.mark.parametrize(
    ("name", "parameters", "buffers", "macs"),
    [
        ("bvlc_alexnet", 60_965_224, 0, 654_560_384),
        ("densenet121", 7_978_856, 83_648, 2_834_161_664),
        ("inception_v1", 6_998_552, 0, 1_431_556_352),
        ("inception_v2", 11_194_984, 19_904, 2_018_851_840),
        ("resnet50", 25_557_032, 53_120, 4_089_184_256),
        ("shufflenet", 1_393_320, 26_832, 124_664_528),
        ("squeezenet", 1_235_496, 0, 349_151_936),
        ("vgg19", 143_667_240, 0, 19_632_062_464),
        ("zfnet512", 87_250_536, 0, 1_481_727_008),
    ],
)
def test_networks_of_the_wheel_have_their_published_size(
    name: str, parameters: int, buffers: int, macs: int
) -> None:
    graph = load(str(LIGHT / f"light_{name}.onnx"), Binding())
    assert (graph.parameters, graph.buffers) == (parameters, buffers)
    assert count_work(graph).total.macs == macs
    assert graph.name == f"light_{name}"
    many = graph.bind(batch_size=8)
    assert count_work(many).total.macs == 8 * macs
    assert (many.parameters, many.digest) == (parameters, graph.digest)


def loads_or_says_why(path: str) -> bool:
    try:
        graph = load(path, Binding())
        count_work(graph)
        assert len(graph.digest) == 64
    except SlicewiseError as err:
        assert "\n" not in str(err)
        return False
    return True


def test_every_shipped_model_loads_or_says_why() -> None:
    paths = sorted(SHIPPED.rglob("*.onnx"))
    loaded = [path for path in paths if loads_or_says_why(str(path))]
    assert len(paths) >= 149
    assert len(loaded) >= 148


def test_every_node_test_model_loads_or_says_why(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = [case for case in collect_testcases(None) if case.model is not None]
    loaded = 0
    for i, case in enumerate(cases):
        loaded += loads_or_says_why(tiny.save(case.model, tmp_path / f"{i}.onnx"))
    assert len(cases) > 1500
    assert loaded > 0.88 * len(cases)


# --- constants


def test_initialisers_have_the_role_of_the_slot_that_reads_them(graph_of: Load) -> None:
    graph = graph_of(tiny.small_cnn())
    roles = {name: role_of(graph, name) for name in graph.constants}
    buffers = {"bn.m", "bn.v"}
    assert {name for name, role in roles.items() if role is Role.BUFFER} == buffers
    assert {name for name, role in roles.items() if role is Role.PARAMETER} == {
        "conv.w", "bn.s", "bn.b", "fc.w", "fc.b"
    }  # fmt: skip
    assert (graph.parameters, graph.buffers) == (216 + 16 + 90, 16)


def test_constant_nodes_and_their_kin_become_constants(graph_of: Load) -> None:
    full = helper.make_tensor("v", TensorProto.FLOAT, [1], [0.02])
    nodes = [
        make_node("Constant", [], ["w"], value=tiny.weight("", 4, 6)),
        make_node("ConstantOfShape", ["shape"], ["u"], value=full),
        make_node("MatMul", ["x", "w"], ["a"]),
        make_node("MatMul", ["a", "u"], ["y"]),
    ]
    model = tiny.model(nodes, inputs={"x": ["n", 4]}, weights=[tiny.integers("shape", [6, 5])])
    graph = graph_of(model)
    assert [node.op_type for node in graph.nodes] == ["MatMul", "MatMul"]
    assert graph.constants == {
        "w": Constant(Role.PARAMETER, 96),
        "u": Constant(Role.PARAMETER, 120),
    }
    assert graph.tensors["u"] == Tensor((6, 5), DType.FP32)
    assert graph.parameters == 24 + 30


def test_chains_of_constants_fold_and_count_once(graph_of: Load) -> None:
    nodes = [
        make_node("Transpose", ["w"], ["wt"]),
        make_node("Cast", ["wt"], ["wh"], to=TensorProto.FLOAT16),
        make_node("Cast", ["wh"], ["wf"], to=TensorProto.FLOAT),
        make_node("Identity", ["wf"], ["wi"]),
        make_node("MatMul", ["x", "wi"], ["y"]),
    ]
    model = tiny.model(nodes, inputs={"x": ["n", 4]}, weights=[tiny.weight("w", 6, 4)])
    graph = graph_of(model)
    assert [node.op_type for node in graph.nodes] == ["MatMul"]
    assert graph.constants == {"wi": Constant(Role.PARAMETER, 96)}
    assert graph.parameters == 24


def test_tied_weights_are_counted_once(graph_of: Load) -> None:
    graph = graph_of(tiny.small_decoder(), seq=4)
    assert graph.parameters == 100 * 16 + 4 * 16 * 16
    assert graph.constants["embed"] == Constant(Role.PARAMETER, 6400)
    assert graph.constants["head"] == Constant(Role.PARAMETER, 6400, trainable=0)


def test_concatenated_and_split_weights_keep_their_count(graph_of: Load) -> None:
    nodes = [
        make_node("Concat", ["q", "k"], ["qk"], axis=1),
        make_node("MatMul", ["x", "qk"], ["a"]),
        make_node("Split", ["v"], ["v1", "v2"], axis=1, num_outputs=2),
        make_node("MatMul", ["a", "v1"], ["b"]),
        make_node("MatMul", ["a", "v2"], ["c"]),
        make_node("Add", ["b", "c"], ["y"]),
    ]
    weights = [tiny.weight("q", 4, 3), tiny.weight("k", 4, 3), tiny.weight("v", 6, 10)]
    graph = graph_of(tiny.model(nodes, inputs={"x": ["n", 4]}, weights=weights))
    assert graph.parameters == 12 + 12 + 60
    assert [node.op_type for node in graph.nodes] == ["MatMul", "MatMul", "MatMul", "Add"]


def position_embedding() -> onnx.ModelProto:
    nodes = [
        make_node("Shape", ["ids"], ["shape"]),
        make_node("Constant", [], ["one"], value_ints=[1]),
        make_node("Gather", ["shape", "one"], ["length"]),
        make_node("Slice", ["positions", "zero", "length", "one"], ["picked"]),
        make_node("Expand", ["picked", "shape"], ["spread"]),
        make_node("Gather", ["table", "spread"], ["place"]),
        make_node("Gather", ["words", "ids"], ["word"]),
        make_node("Add", ["word", "place"], ["y"]),
    ]
    weights = [
        tiny.integers("positions", range(512), [1, 512]),
        tiny.integers("zero", [0]),
        tiny.weight("table", 512, 16),
        tiny.weight("words", 1000, 16),
    ]
    return tiny.model(
        nodes,
        inputs={"ids": ["batch", "seq"]},
        weights=weights,
        dtypes={"ids": TensorProto.INT64},
    )


@pytest.mark.parametrize(("batch", "seq"), [(1, 1), (1, 512), (3, 7)])
def test_rows_picked_from_a_table_count_the_whole_table(
    graph_of: Load, batch: int, seq: int
) -> None:
    graph = graph_of(position_embedding(), batch, seq=seq)
    assert [node.op_type for node in graph.nodes] == ["Gather", "Add"]
    assert graph.tensors["place"].shape == (batch, seq, 16)
    assert graph.parameters == 512 * 16 + 1000 * 16


def test_shape_arithmetic_vanishes(graph_of: Load) -> None:
    nodes = [
        make_node("Shape", ["x"], ["s"]),
        make_node("Gather", ["s", "first"], ["n"]),
        make_node("Concat", ["n", "rest"], ["target"], axis=0),
        make_node("Reshape", ["x", "target"], ["r"]),
        make_node("ConstantOfShape", ["s"], ["zeros"]),
        make_node("Cast", ["n"], ["nf"], to=TensorProto.FLOAT),
        make_node("Add", ["x", "zeros"], ["a"]),
        make_node("Mul", ["a", "nf"], ["y"]),
        make_node("Relu", ["r"], ["z"]),
    ]
    model = tiny.model(
        nodes,
        inputs={"x": ["batch", 3, 4]},
        outputs=["y", "z"],
        weights=[tiny.integers("first", [0]), tiny.integers("rest", [-1])],
    )
    graph = graph_of(model, 5)
    assert [node.op_type for node in graph.nodes] == ["Reshape", "Add", "Mul", "Relu"]
    assert graph.tensors["r"].shape == (5, 12)
    assert graph.parameters == 0
    assert role_of(graph, "target") is Role.DATA
    # zeros in the shape of an activation are no weight
    assert role_of(graph, "zeros") is Role.DATA


def test_dequantised_weights_keep_their_stored_bytes(graph_of: Load) -> None:
    nodes = [
        make_node("DequantizeLinear", ["wq", "ws", "wz"], ["wd"], axis=0),
        make_node("Transpose", ["wd"], ["w"]),
        make_node("DequantizeLinear", ["bq", "bs"], ["b"]),
        make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        make_node("Gemm", ["xd", "w", "b"], ["y"]),
    ]
    weights = [
        tiny.weight("wq", 8, 30, dtype=TensorProto.INT8),
        tiny.weight("ws", 8),
        tiny.weight("wz", 8, dtype=TensorProto.INT8),
        tiny.weight("bq", 8, dtype=TensorProto.INT32),
        tiny.weight("bs", 8),
        tiny.weight("xs"),
        tiny.weight("xz", dtype=TensorProto.UINT8),
    ]
    graph = graph_of(tiny.model(nodes, inputs={"x": ["n", 30]}, weights=weights))
    assert graph.tensors["w"] == Tensor((30, 8), DType.FP32)
    assert graph.constants["w"] == Constant(Role.PARAMETER, 240 + 32 + 8)
    assert graph.constants["b"] == Constant(Role.PARAMETER, 32 + 32)
    assert graph.parameters == 240 + 8
    assert role_of(graph, "xs") is Role.DATA
    assert [node.op_type for node in graph.nodes] == [
        "QuantizeLinear", "DequantizeLinear", "Gemm"
    ]  # fmt: skip


def test_quantised_weights_read_as_they_are_are_parameters(graph_of: Load) -> None:
    inputs = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    weights = [
        tiny.weight("w", 8, 3, 3, 3, dtype=TensorProto.INT8),
        tiny.weight("b", 8, dtype=TensorProto.INT32),
        *(tiny.weight(name) for name in ("xs", "ws", "ys")),
        *(tiny.weight(name, dtype=TensorProto.UINT8) for name in ("xz", "yz")),
        tiny.weight("wz", dtype=TensorProto.INT8),
    ]
    model = tiny.model(
        [make_node("QLinearConv", inputs, ["y"])],
        inputs={"x": ["n", 3, 8, 8]},
        weights=weights,
        dtypes={"x": TensorProto.UINT8, "y": TensorProto.UINT8},
    )
    assert graph_of(model).parameters == 216 + 8


@pytest.mark.parametrize(("bits", "dtype"), [(4, DType.INT4), (2, DType.INT2), (8, DType.INT8)])
def test_packed_weights_count_one_element_each(graph_of: Load, bits: int, dtype: DType) -> None:
    node = make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=64, N=10, bits=bits,
        block_size=32,
    )  # fmt: skip
    blob = 32 * bits // 8
    weights = [tiny.weight("w", 10, 2, blob, dtype=TensorProto.UINT8), tiny.weight("s", 20)]
    graph = graph_of(tiny.model([node], inputs={"x": ["n", 64]}, weights=weights))
    assert graph.tensors["w"] == Tensor((10, 64), dtype)
    assert graph.constants["w"] == Constant(Role.PARAMETER, 10 * 2 * blob)
    assert graph.parameters == 640
    assert count_work(graph).total.macs == 640


def test_sparse_initialisers_are_stored_as_values_and_indices(graph_of: Load) -> None:
    values = numpy_helper.from_array(np.ones(5, np.float32), "w")
    indices = numpy_helper.from_array(np.arange(5, dtype=np.int64), "")
    model = tiny.model([make_node("MatMul", ["x", "w"], ["y"])], inputs={"x": ["n", 10]})
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [10, 10]))
    graph = graph_of(model)
    assert graph.tensors["w"] == Tensor((10, 10), DType.FP32)
    assert graph.constants["w"] == Constant(Role.PARAMETER, 5 * 4 + 5 * 8)


def test_a_normalisation_with_its_scale_behind_it_is_counted_once(graph_of: Load) -> None:
    def build(scale: float) -> onnx.ModelProto:
        nodes = [
            make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["n"]),
            make_node("Mul", ["n", "gamma"], ["g"]),
            make_node("Add", ["g", "beta"], ["y"]),
        ]
        weights = [
            helper.make_tensor("s", TensorProto.FLOAT, [8], [scale] * 8),
            helper.make_tensor("b", TensorProto.FLOAT, [8], [0.0] * 8),
            *(tiny.weight(name, 8) for name in "mv"),
            *(tiny.weight(name, 8, 1, 1) for name in ("gamma", "beta")),
        ]
        return tiny.model(nodes, inputs={"x": ["n", 8, 4, 4]}, weights=weights)

    assert graph_of(build(1.0)).parameters == 16
    assert graph_of(build(0.5)).parameters == 32


def test_what_is_never_read_is_no_parameter(graph_of: Load) -> None:
    model = tiny.small_cnn()
    model.graph.initializer.append(tiny.weight("spare", 1000))
    graph = graph_of(model)
    assert graph.parameters == 322
    assert [(n.code, "'spare'" in n.text) for n in graph.notes] == [("unused-initialiser", True)]


def test_nodes_that_no_output_needs_are_left_out_with_a_note(graph_of: Load) -> None:
    nodes = [make_node("Relu", ["x"], ["y"]), make_node("Exp", ["x"], ["z"], name="spare")]
    graph = graph_of(tiny.model(nodes, inputs={"x": ["n", 4]}))
    assert [node.op_type for node in graph.nodes] == ["Relu"]
    assert [(n.code, "'spare'" in n.text) for n in graph.notes] == [("unused-node", True)]


def test_random_operators_are_not_folded(graph_of: Load) -> None:
    nodes = [
        make_node("RandomNormalLike", ["w"], ["noise"]),
        make_node("Add", ["x", "noise"], ["y"]),
    ]
    model = tiny.model(nodes, inputs={"x": ["n", 4]}, weights=[tiny.weight("w", 4)])
    assert [node.op_type for node in graph_of(model).nodes] == ["RandomNormalLike", "Add"]


def test_a_model_of_constants_alone_says_so(graph_of: Load) -> None:
    model = tiny.model([make_node("Constant", [], ["y"], value_floats=[1.0, 2.0])], inputs={})
    graph = graph_of(model)
    assert (graph.nodes, graph.outputs) == ((), ("y",))
    assert graph.constants == {"y": Constant(Role.DATA, 8)}
    assert [note.code for note in graph.notes] == ["all-constant"]


# --- bodies


def loop(*, trips: int) -> onnx.ModelProto:
    body = helper.make_graph(
        [make_node("MatMul", ["v", "w"], ["next"]), make_node("Identity", ["go"], ["on"])],
        "body",
        [
            tiny.value("i", [], TensorProto.INT64),
            tiny.value("go", [], TensorProto.BOOL),
            tiny.value("v", None),
        ],
        [tiny.value("on", [], TensorProto.BOOL), tiny.value("next", None)],
    )
    return tiny.model(
        [make_node("Loop", ["trips", "", "x"], ["y"], body=body, name="loop")],
        inputs={"x": ["batch", 4]},
        weights=[tiny.integers("trips", [trips], []), tiny.weight("w", 4, 4)],
    )


def test_a_loop_repeats_its_body_and_its_weights_count_once(graph_of: Load) -> None:
    graph = graph_of(loop(trips=5), 3)
    (node,) = graph.nodes
    assert (node.repeats, len(node.bodies)) == (5, 1)
    (body,) = node.bodies
    assert body.inputs == ("i", "go", "v")
    assert body.tensors["next"] == Tensor((3, 4), DType.FP32)
    assert set(captured_by(body)) == {"w"}
    assert body.tensors["w"] == graph.tensors["w"]
    assert body.constants == {}
    assert graph.parameters == 16
    assert count_work(graph).total.macs == 5 * 3 * 16
    assert role_of(graph, "trips") is Role.DATA


def test_branches_come_then_first_and_fold_what_they_capture(graph_of: Load) -> None:
    then = helper.make_graph(
        [make_node("MatMul", ["x", "w"], ["t"])], "t", [], [tiny.value("t", None)]
    )
    other = helper.make_graph(
        [make_node("Transpose", ["w"], ["wt"]), make_node("MatMul", ["x", "wt"], ["e"])],
        "e",
        [],
        [tiny.value("e", None)],
    )
    node = make_node("If", ["c"], ["y"], else_branch=other, then_branch=then)
    model = tiny.model(
        [node],
        inputs={"x": [4, 4], "c": []},
        weights=[tiny.weight("w", 4, 4)],
        dtypes={"c": TensorProto.BOOL},
    )
    graph = graph_of(model)
    first, second = graph.nodes[0].bodies
    assert (first.outputs, second.outputs) == (("t",), ("e",))
    assert [n.op_type for n in second.nodes] == ["MatMul"]
    assert second.constants == {"wt": Constant(Role.PARAMETER, 64, trainable=0)}
    assert graph.parameters == 16


@pytest.mark.parametrize("condition", [True, False])
def test_of_an_if_with_a_constant_condition_only_the_branch_that_runs_is_kept(
    graph_of: Load, condition: bool
) -> None:
    def branch(name: str, weight: str) -> onnx.GraphProto:
        product = make_node("MatMul", ["x", weight], [name])
        return helper.make_graph([product], name, [], [tiny.value(name, None)])

    node = make_node(
        "If", ["c"], ["y"], else_branch=branch("e", "wide"), then_branch=branch("t", "slim")
    )
    model = tiny.model(
        [make_node("Not", ["flag"], ["c"]), node],
        inputs={"x": ["n", 4]},
        weights=[
            tiny.weight("wide", 4, 64),
            tiny.weight("slim", 4, 2),
            onnx.numpy_helper.from_array(np.array(not condition), "flag"),
        ],
    )
    graph = graph_of(model, 3)
    (kept,) = graph.nodes[0].bodies
    assert kept.outputs == (("t",) if condition else ("e",))
    columns = 2 if condition else 64
    assert graph.parameters == 4 * columns
    work = count_work(graph)
    assert work.total.macs == 3 * 4 * columns
    assert work.notes == ()


def test_a_scan_runs_once_for_each_slice(graph_of: Load) -> None:
    body = helper.make_graph(
        [make_node("MatMul", ["xi", "w"], ["m"]), make_node("Add", ["s", "m"], ["next"])],
        "body",
        [tiny.value("s", [1, 4]), tiny.value("xi", [1, 4])],
        [tiny.value("next", [1, 4])],
    )
    body.initializer.append(tiny.weight("w", 4, 4))
    model = tiny.model(
        [make_node("Scan", ["s0", "x"], ["y"], body=body, num_scan_inputs=1)],
        inputs={"s0": [1, 4], "x": [10, 1, 4]},
    )
    graph = graph_of(model)
    assert graph.nodes[0].repeats == 10
    assert graph.nodes[0].bodies[0].tensors["xi"].shape == (1, 4)
    assert graph.parameters == 16
    assert count_work(graph).total.macs == 160


def test_a_body_input_hides_a_constant_of_the_same_name(graph_of: Load) -> None:
    model = loop(trips=2)
    model.graph.initializer.append(tiny.weight("v", 4, 4))
    graph = graph_of(model, 3)
    assert [n.op_type for n in graph.nodes[0].bodies[0].nodes] == ["MatMul", "Identity"]
    assert "v" not in graph.constants


def test_functions_are_inlined(graph_of: Load) -> None:
    function = helper.make_function(
        "mine",
        "Twice",
        ["a", "w"],
        ["c"],
        [make_node("MatMul", ["a", "w"], ["b"]), make_node("MatMul", ["b", "w"], ["c"])],
        [helper.make_opsetid("", tiny.OPSET)],
    )
    model = tiny.model(
        [make_node("Twice", ["x", "w"], ["y"], domain="mine")],
        inputs={"x": ["n", 4]},
        weights=[tiny.weight("w", 4, 4)],
        functions=[function],
    )
    graph = graph_of(model, 2)
    assert [node.op_type for node in graph.nodes] == ["MatMul", "MatMul"]
    assert graph.parameters == 16


# --- nodes


def test_names_are_unique_and_origins_kept(graph_of: Load) -> None:
    nodes = [
        make_node("Relu", ["x"], ["a"], name="same"),
        make_node("Relu", ["a"], ["b"], name="same"),
        make_node("Relu", ["b"], ["c"]),
        make_node("Relu", ["c"], ["d"], name="Relu_c"),
        make_node("Relu", ["d"], ["y"]),
    ]
    graph = graph_of(tiny.model(nodes, inputs={"x": ["n", 4]}))
    assert [node.name for node in graph.nodes] == [
        "same",
        "Relu_b",
        "Relu_c_2",
        "Relu_c",
        "Relu_y",
    ]
    assert [node.origin for node in graph.nodes] == ["same", "same", "", "Relu_c", ""]


def test_attributes_are_plain_values(graph_of: Load) -> None:
    node = make_node(
        "Own", ["x"], ["y"], domain="acme", i=3, f=0.5, s="text", ints=[1, 2], floats=[0.5],
        strings=["a", "b"], t=tiny.weight("", 100),
    )  # fmt: skip
    graph = graph_of(tiny.model([node], inputs={"x": [4]}))
    assert dict(graph.nodes[0].attrs) == {
        "i": 3, "f": 0.5, "s": "text", "ints": (1, 2), "floats": (0.5,), "strings": ("a", "b"),
    }  # fmt: skip
    assert graph.nodes[0].domain == "acme"


def test_omitted_inputs_are_no_edges(graph_of: Load) -> None:
    nodes = [
        make_node("Relu", ["x"], ["a"]),
        make_node("Clip", ["a", "", "limit"], ["b"]),
        make_node("Dropout", ["b"], ["y", ""]),
    ]
    graph = graph_of(tiny.model(nodes, inputs={"x": [4]}, weights=[tiny.weight("limit")]))
    assert graph.nodes[1].inputs == ("a", "", "limit")
    assert graph.edges == ((0, 1, "a"), (1, 2, "b"))
    assert "" not in graph.tensors


# --- source and binding


def test_a_source_binds_again_and_travels(tmp_path: Path) -> None:
    path = tiny.save(tiny.small_decoder(past=True), tmp_path / "decoder.onnx")
    graph = load(path, Binding(dims={"seq": 3, "past": 5}))
    assert graph.source == OnnxSource(path)
    again = graph.bind(batch_size=4).bind(dims={"seq": 7})
    assert (again.batch_size, again.tensors["input_ids"].shape) == (4, (4, 7))
    assert pickle.loads(pickle.dumps(graph)).digest == graph.digest
    assert graph.batch_inputs == {
        "input_ids", "past_key_values.0.key", "past_key_values.0.value"
    }  # fmt: skip


def test_a_baked_batch_is_rewritten_or_refused_never_kept() -> None:
    graph = load(str(LIGHT / "light_resnet50.onnx"), Binding(batch_size=8))
    assert graph.tensors[graph.outputs[0]].shape == (8, 1000)
    assert [n.code for n in graph.notes if n.node].count("reshape-rewritten") == 1


def test_errors_name_the_model_and_the_node(tmp_path: Path) -> None:
    path = tiny.save(tiny.small_cnn(), tmp_path / "cnn.onnx")
    with pytest.raises(ModelError, match=r"model '.*cnn.onnx'.*node 'conv'.*4 channels"):
        load(path, Binding(inputs={"x": (1, 4, 32, 32)}))
    path = tiny.save(tiny.small_decoder(), tmp_path / "decoder.onnx")
    with pytest.raises(ModelError, match=r"model '.*decoder.onnx' leaves 1 dimension free: 'seq'"):
        load(path, Binding())


def test_weights_that_are_elsewhere_or_nowhere_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.small_cnn()
    for tensor in model.graph.initializer:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="../../elsewhere/weights.bin")
    path = tiny.save(model, tmp_path / "external.onnx")
    opened: list[str] = []
    real_open = Path.open

    def watched(self: Path, *args: str, **kwargs: int) -> object:
        opened.append(str(self))
        return real_open(self, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", watched)
    graph = load(path, Binding())
    assert (graph.parameters, graph.notes) == (322, ())
    assert opened == [path]


def test_a_second_binding_does_not_read_the_file_again(tmp_path: Path) -> None:
    path = tiny.save(tiny.small_cnn(), tmp_path / "cnn.onnx")
    graph = load(path, Binding())
    before = onnx_wire._read_cached.cache_info()
    graph.bind(batch_size=8)
    after = onnx_wire._read_cached.cache_info()
    assert (after.misses, after.hits) == (before.misses, before.hits + 1)


# --- what is not a model


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_models_load_or_say_why(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = data.draw(st.sampled_from([tiny.small_cnn(), tiny.small_decoder(past=True)]))
    content = bytearray(model.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "m.onnx"
    path.write_bytes(content)
    loads_or_says_why(str(path))


def test_names_that_are_not_text_are_refused(tmp_path: Path) -> None:
    content = tiny.small_cnn().SerializeToString().replace(b"relu", b"re\xffu")
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"not UTF-8 text: b're\\xffu'"):
        load(str(path), Binding())


def test_a_missing_file_is_answered_with_its_neighbours(tmp_path: Path) -> None:
    tiny.save(tiny.small_cnn(), tmp_path / "resnet50.onnx")
    with pytest.raises(ModelError, match=r"no model file .*resnet5.onnx.*did you mean .*resnet50"):
        load(str(tmp_path / "resnet5.onnx"), Binding())
    (tmp_path / "resnet5.py").touch()
    with pytest.raises(ModelError) as caught:
        load(str(tmp_path / "resnet5.pt2"), Binding())
    assert "resnet5.py" not in str(caught.value)
    with pytest.raises(ModelError, match="there is no folder"):
        load(str(tmp_path / "nowhere" / "m.onnx"), Binding())
    with pytest.raises(ModelError, match="there is no model file"):
        load("x" * 5000, Binding())


def test_folders_are_answered_with_what_is_inside(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"a folder without \.onnx or \.pt2 files"):
        load(str(tmp_path), Binding())
    tiny.save(tiny.small_cnn(), tmp_path / "inner.onnx")
    with pytest.raises(ModelError, match=r"give one file of it, such as .*inner\.onnx"):
        load(str(tmp_path), Binding())
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(ModelError, match=r"SavedModel.*tf2onnx"):
        load(str(tmp_path), Binding())


@pytest.mark.parametrize("name", ["net.pth", "m.keras", "m.pdmodel", "m.mlir", "m.x"])
def test_other_formats_are_named_with_the_way_to_go_on(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"something else")
    with pytest.raises(ModelError, match=r"PyTorch programs and zoo names can be read; \w"):
        load(str(path), Binding())


def test_a_model_under_another_name_is_known_by_its_content(tmp_path: Path) -> None:
    for name in ("model.pb", "model", "MODEL.ONNX", "model.onnx.bak"):
        assert load(tiny.save(tiny.small_cnn(), tmp_path / name), Binding()).parameters == 322


def test_zoos_that_cannot_be_read_say_what_to_do_instead() -> None:
    with pytest.raises(ModelError, match=r"zoo keras, which cannot be read yet.*tf2onnx"):
        load("keras:ResNet50", Binding())


@pytest.mark.parametrize("name", ["", "  ", "a\0b"])
def test_what_is_no_path_is_a_usage_error(name: str) -> None:
    with pytest.raises(UsageError, match="is not a path"):
        load(name, Binding())


def test_the_table_of_front_ends_loads() -> None:
    assert list(FRONTENDS) == ["onnx", "pt2", "zoo"]
    for name in FRONTENDS:
        assert callable(FRONTENDS.load(name))
    assert FRONTENDS.load("onnx") is read_graph
    assert _base.format_of(str(LIGHT / "light_vgg19.onnx")) == "onnx"
