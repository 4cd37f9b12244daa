"""`infer`: every value gets its shape, the batch reaches everything, contradictions are refused."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from slicewise.core.errors import ModelError
from slicewise.core.precision import DType
from slicewise.graph.shapes import Shapes, infer

F, I64 = TensorProto.FLOAT, TensorProto.INT64
Dims = Sequence[int] | None
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def tensor(name: str, dims: Dims = None, elem_type: int = F) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, dims)


def ints(name: str, *values: int) -> TensorProto:
    return onnx.numpy_helper.from_array(np.array(values, np.int64), name)


def scalar(name: str, value: int) -> TensorProto:
    return onnx.numpy_helper.from_array(np.array(value, np.int64), name)


def weight(name: str, *dims: int, elem_type: int = F) -> TensorProto:
    """A weight without its bytes."""
    return TensorProto(name=name, data_type=elem_type, dims=dims)


def node(op_type: str, ins: str, outs: str, **attributes: Any) -> onnx.NodeProto:
    """A node from blank-separated value names; '-' is an absent one."""
    names = [["" if x == "-" else x for x in text.split()] for text in (ins, outs)]
    return helper.make_node(op_type, *names, name=f"{op_type}_{names[1][0]}", **attributes)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    constants: Sequence[TensorProto] = (),
    *,
    outputs: str = "y",
    opset: int = 17,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    outs = [onnx.ValueInfoProto(name=name) for name in outputs.split()]
    graph = helper.make_graph(list(nodes), "test", list(inputs), outs, list(constants))
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions))


def shape_of(shapes: Shapes, name: str = "y") -> tuple[int, ...] | None:
    return shapes.main[name].shape


def codes(shapes: Shapes) -> list[str]:
    return [note.code for note in shapes.notes]


# --- the light CNNs of the onnx wheel -------------------------------------------------------

CNNS = sorted(path.stem.removeprefix("light_") for path in LIGHT.glob("*.onnx"))


def light(name: str, batch: int) -> onnx.ModelProto:
    loaded = onnx.load(LIGHT / f"light_{name}.onnx")
    constants = {each.name for each in loaded.graph.initializer}
    for value in loaded.graph.input:
        if value.name not in constants:
            value.type.tensor_type.shape.dim[0].dim_value = batch
    return loaded


def test_the_wheel_ships_nine_light_cnns() -> None:
    assert len(CNNS) == 9


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("name", CNNS)
def test_light_cnns_keep_their_batch_to_the_end(name: str, batch: int) -> None:
    loaded = light(name, batch)
    shapes = infer(loaded, batch_change=(1, batch))
    assert all(each.shape is not None for each in shapes.main.values())
    for value in loaded.graph.output:
        assert shape_of(shapes, value.name) in ((batch, 1000), (batch, 1000, 1, 1))
    for each in shapes.model.graph.node:
        if each.op_type == "Reshape":
            assert shapes.main[each.input[0]].elements == shapes.main[each.output[0]].elements


@pytest.mark.parametrize("name", CNNS)
def test_activations_of_light_cnns_are_the_batch_times_those_of_one_item(name: str) -> None:
    one = infer(light(name, 1), batch_change=None)
    many = infer(light(name, 5), batch_change=(1, 5))
    weights = {x.output[0] for x in one.model.graph.node if x.op_type == "ConstantOfShape"}
    data = [value.name for value in one.model.graph.output]
    for name_, each in one.main.items():
        if name_ in data:
            assert many.main[name_].elements == 5 * each.elements
        if name_ in weights:
            assert many.main[name_] == each


def test_resnet_has_one_target_rewritten_with_a_note() -> None:
    shapes = infer(light("resnet50", 8), batch_change=(1, 8))
    (note,) = shapes.notes
    assert note.code == "reshape-rewritten"
    assert note.node == "n173"
    assert "[1,2048]" in note.text
    assert "[8,2048]" in note.text


def test_a_model_at_its_own_batch_is_not_rewritten() -> None:
    shapes = infer(light("shufflenet", 1), batch_change=(1, 1))
    assert shapes.notes == ()
    assert len(shapes.model.graph.node) == len(light("shufflenet", 1).graph.node)


# --- laws -----------------------------------------------------------------------------------


def transformer(batch: int, old: int, *, free: bool, first: bool = True) -> onnx.ModelProto:
    """Patches, class token, one attention block with all shapes baked at batch `old`."""
    seq, width, heads = 16, 24, 3
    tokens, size = seq + 1, width // heads
    nodes = [
        node("Conv", "x patch", "p", kernel_shape=[4, 4], strides=[4, 4]),
        node("Reshape", "p to_tokens", "t"),
        node("Transpose", "t", "tt", perm=[0, 2, 1]),
        node("Concat", "cls tt", "c", axis=1),
        node("Add", "c pos", "e"),
    ]
    for name in "qkv":
        nodes += [
            node("MatMul", f"e w{name}", f"{name}1"),
            node("Reshape", f"{name}1 to_heads", f"{name}2"),
            node("Transpose", f"{name}2", f"{name}3", perm=[0, 2, 1, 3]),
            node("Reshape", f"{name}3 merged", f"{name}4"),
        ]
    nodes += [
        node("Transpose", "k4", "kt", perm=[0, 2, 1]),
        node("MatMul", "q4 kt", "s"),
        node("Softmax", "s", "a", axis=-1),
        node("MatMul", "a v4", "o"),
        node("Reshape", "o unmerged", "o2"),
        node("Transpose", "o2", "o3", perm=[0, 2, 1, 3]),
        node("Reshape", "o3 joined", "o4"),
        node("Gather", "o4 zero", "g", axis=1),
        node("Reshape", "g flat", "y"),
    ]
    constants = [
        weight("patch", width, 3, 4, 4),
        weight("cls", old, 1, width),
        weight("pos", 1, tokens, width),
        *(weight(f"w{name}", width, width) for name in "qkv"),
        ints("to_tokens", old, width, -1 if free else seq),
        ints("to_heads", old, -1 if free else tokens, heads, size),
        ints("merged", old * heads, -1 if free else tokens, size),
        ints("unmerged", old, heads, -1 if free else tokens, size),
        ints("joined", old, -1 if free else tokens, width),
        scalar("zero", 0),
        ints("flat", old, -1 if free else width),
    ]
    return model(nodes, [tensor("x", (batch, 3, 16, 16))], constants)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 4), st.integers(1, 9), st.booleans())
def test_every_activation_of_a_baked_transformer_scales_with_the_batch(
    old: int, new: int, free: bool
) -> None:
    before = infer(transformer(old, old, free=free), batch_change=None)
    assert before.notes == ()
    after = infer(transformer(new, old, free=free), batch_change=(old, new))
    constants = {each.name for each in before.model.graph.initializer}
    for name, each in before.main.items():
        if name not in constants:
            assert after.main[name].elements * old == each.elements * new, name
    assert shape_of(after) == (new, 24)


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 4), st.integers(1, 9))
def test_the_rewritten_model_infers_the_same_shapes_again(old: int, new: int) -> None:
    once = infer(transformer(new, old, free=False), batch_change=(old, new))
    again = infer(once.model, batch_change=None)
    assert again.notes == ()
    assert again.main == once.main


def test_the_model_given_is_left_as_it_is() -> None:
    given_model = transformer(8, 1, free=True)
    before = given_model.SerializeToString(deterministic=True)
    infer(given_model, batch_change=(1, 8))
    assert given_model.SerializeToString(deterministic=True) == before


def test_stale_shapes_in_the_file_do_not_win() -> None:
    stale = transformer(8, 1, free=False)
    own = infer(transformer(1, 1, free=False), batch_change=None)
    for name, each in own.main.items():
        if each.shape and name not in {x.name for x in stale.graph.initializer}:
            stale.graph.value_info.append(tensor(name, each.shape))
    stale.graph.output[0].CopyFrom(tensor("y", (1, 24)))
    assert shape_of(infer(stale, batch_change=(1, 8))) == (8, 24)


# --- places where exporters bake the batch --------------------------------------------------


def test_a_class_token_is_widened_not_its_parameters() -> None:
    shapes = infer(
        model(
            [node("Concat", "cls x", "y", axis=1)],
            [tensor("x", (8, 196, 768))],
            [weight("cls", 1, 1, 768)],
        ),
        batch_change=(1, 8),
    )
    assert shape_of(shapes) == (8, 197, 768)
    assert shape_of(shapes, "cls") == (1, 1, 768)
    assert codes(shapes) == ["batch-rewritten"]


def lstm(batch: int, *, layout: int = 0) -> onnx.ModelProto:
    """[batch, seq, features] transposed into an LSTM whose states are made for one item."""
    state = (1, 1, 16)
    nodes = [node("ConstantOfShape", "state", "h")]
    if not layout:
        nodes.append(node("Transpose", "x", "xt", perm=[1, 0, 2]))
    nodes.append(
        node(
            "LSTM",
            f"{'x' if layout else 'xt'} w r - - h c",
            "s y",
            hidden_size=16,
            layout=layout,
        )
    )
    constants = [
        ints("state", *state),
        weight("c", *state),
        weight("w", 1, 64, 4),
        weight("r", 1, 64, 16),
    ]
    return model(nodes, [tensor("x", (batch, 5, 4))], constants, outputs="s y")


@pytest.mark.parametrize(("layout", "expected"), [(0, (1, 8, 16)), (1, (8, 1, 16))])
def test_states_made_for_one_item_are_widened(layout: int, expected: tuple[int, ...]) -> None:
    shapes = infer(lstm(8, layout=layout), batch_change=(1, 8))
    assert shape_of(shapes) == expected
    assert codes(shapes) == ["batch-rewritten"] * 2


def test_positions_that_broadcast_stay_as_they_are() -> None:
    shapes = infer(
        model(
            [node("Add", "x pos", "y")],
            [tensor("x", (8, 196, 768))],
            [weight("pos", 1, 196, 768)],
        ),
        batch_change=(1, 8),
    )
    assert shape_of(shapes) == (8, 196, 768)
    assert shapes.notes == ()


def test_an_operand_for_an_old_batch_above_one_is_repeated() -> None:
    shapes = infer(
        model([node("Add", "x m", "y")], [tensor("x", (6, 5))], [weight("m", 2, 5)]),
        batch_change=(2, 6),
    )
    assert shape_of(shapes) == (6, 5)
    assert codes(shapes) == ["batch-rewritten"]


@pytest.mark.parametrize(
    ("each", "constants", "expected"),
    [
        (node("Resize", "x - - sizes", "y"), [ints("sizes", 1, 3, 16, 16)], (8, 3, 16, 16)),
        (node("Slice", "x a b c", "y"), [ints("a", 0), ints("b", 1), ints("c", 0)], (8, 3, 8, 8)),
        (node("Gather", "x i", "y", axis=0), [ints("i", 0)], (8, 3, 8, 8)),
        (node("Split", "x s", "y", axis=0), [ints("s", 1)], (8, 3, 8, 8)),
        (node("Expand", "x e", "y"), [ints("e", 1, 3, 8, 8)], (8, 3, 8, 8)),
        (node("Reshape", "x t", "y", allowzero=1), [ints("t", 1, 192)], (8, 192)),
    ],
)
def test_constants_that_name_the_old_batch_are_rewritten(
    each: onnx.NodeProto, constants: list[TensorProto], expected: tuple[int, ...]
) -> None:
    shapes = infer(model([each], [tensor("x", (8, 3, 8, 8))], constants), batch_change=(1, 8))
    assert shape_of(shapes) == expected


def test_an_old_reshape_with_its_target_as_attribute_is_rewritten() -> None:
    shapes = infer(
        model([node("Reshape", "x", "y", shape=[1, 192])], [tensor("x", (8, 3, 8, 8))], opset=4),
        batch_change=(1, 8),
    )
    assert shape_of(shapes) == (8, 192)
    assert codes(shapes) == ["reshape-rewritten"]


def test_a_target_from_a_constant_node_or_a_folded_value_is_rewritten() -> None:
    target = helper.make_tensor("t", I64, [2], [1, 192])
    for nodes in (
        [node("Constant", "", "t", value=target), node("Reshape", "x t", "y")],
        [node("Concat", "one rest", "t", axis=0), node("Reshape", "x t", "y")],
    ):
        constants = [ints("one", 1), ints("rest", 192)]
        shapes = infer(model(nodes, [tensor("x", (8, 3, 8, 8))], constants), batch_change=(1, 8))
        assert shape_of(shapes) == (8, 192)


def test_a_target_computed_from_the_batch_is_left_alone() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n", axis=0),
        node("Unsqueeze", "n axis", "n1"),
        node("Concat", "n1 rest", "t", axis=0),
        node("Reshape", "x t", "y"),
    ]
    shapes = infer(
        model(
            nodes,
            [tensor("x", (8, 3, 8, 8))],
            [ints("rest", -1), scalar("zero", 0), ints("axis", 0)],
        ),
        batch_change=(1, 8),
    )
    assert shape_of(shapes) == (8, 192)
    assert shapes.notes == ()


def test_one_item_taken_on_purpose_is_noted_not_rewritten() -> None:
    shapes = infer(
        model([node("Gather", "x zero", "y", axis=0)], [tensor("x", (8, 3))], [scalar("zero", 0)]),
        batch_change=(1, 8),
    )
    assert shape_of(shapes) == (3,)
    assert codes(shapes) == ["batch-lost"]


@pytest.mark.parametrize(
    ("each", "constants", "message"),
    [
        (
            node("Squeeze", "x axes", "y"),
            [ints("axes", 0)],
            "axis 0 of [10,6] is not 1 and cannot be squeezed",
        ),
        (node("Reshape", "x t", "y"), [ints("t", 3, 4)], "target [3,4], input [10,6]"),
        (node("MatMul", "x x", "y"), [], "inner dimensions of [10,6] x [10,6] differ"),
    ],
)
def test_a_batch_that_cannot_be_moved_is_refused_in_one_line(
    each: onnx.NodeProto, constants: list[TensorProto], message: str
) -> None:
    old = 1 if each.op_type == "Squeeze" else 6 if each.op_type == "MatMul" else 2
    with pytest.raises(ModelError) as caught:
        infer(model([each], [tensor("x", (10, 6))], constants), batch_change=(old, 10))
    assert str(caught.value) == (
        f"batch is baked in at node '{each.op_type}_y' ({each.op_type}): {message};"
        f" export with a dynamic batch or use --batch {old}"
    )


def test_a_model_that_contradicts_at_its_own_batch_is_not_blamed_on_the_batch() -> None:
    with pytest.raises(ModelError, match="contradictory shapes .* correct the model"):
        infer(
            model(
                [node("Conv", "x w", "y")], [tensor("x", (8, 3, 8, 8))], [weight("w", 4, 2, 3, 3)]
            ),
            batch_change=(1, 8),
        )


def test_a_batch_behind_the_leading_axis_is_followed_too() -> None:
    nodes = [
        node("Concat", "past x4", "k", axis=2),
        node("Reshape", "x to4", "x3"),
        node("Transpose", "x3", "x4", perm=[1, 0, 2, 3]),
        node("Reshape", "k flat", "y"),
    ]
    shapes = infer(
        model(
            nodes,
            [tensor("x", (8, 4, 32)), tensor("past", (2, 8, 6, 32))],
            [ints("to4", 1, 2, 2, 32), ints("flat", 2, 1, 256)],
        ),
        batch_change=(1, 8),
    )
    assert shape_of(shapes) == (2, 8, 256)


# --- contradictions -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("each", "constants", "message"),
    [
        (node("Conv", "x w", "y"), [weight("w", 4, 2, 3, 3)], r"'Conv_y' \(Conv\).*3 channels"),
        (node("MatMul", "x w", "y"), [weight("w", 5, 7)], r"inner dimensions of \[1,3,8,8\]"),
        (node("Reshape", "x t", "y"), [ints("t", 1, 100)], r"\[1,3,8,8\].*\[1,100\]"),
        (node("Add", "x w", "y"), [weight("w", 5)], "do not broadcast"),
        (node("Concat", "x w", "y", axis=1), [weight("w", 2, 3, 8, 8)], "do not join"),
        (node("Split", "x s", "y z", axis=1), [ints("s", 1, 1)], r"do not add up"),
        (node("Transpose", "x", "y", perm=[0, 1]), [], "does not permute"),
    ],
)
def test_contradictory_shapes_are_refused(
    each: onnx.NodeProto, constants: list[TensorProto], message: str
) -> None:
    with pytest.raises(ModelError, match=f"contradictory shapes at node .*{message}"):
        infer(model([each], [tensor("x", (1, 3, 8, 8))], constants), batch_change=None)


def test_a_cycle_a_missing_value_and_a_second_maker_are_refused() -> None:
    x = [tensor("x", (1, 3))]
    with pytest.raises(ModelError, match="cycle through node 'Add_a'"):
        infer(model([node("Add", "x b", "a"), node("Relu", "a", "b")], x), batch_change=None)
    with pytest.raises(ModelError, match="reads 'gone', which nothing makes"):
        infer(model([node("Add", "x gone", "y")], x), batch_change=None)
    with pytest.raises(ModelError, match="value 'y' is made twice"):
        infer(model([node("Relu", "x", "y"), node("Relu", "x", "y")], x), batch_change=None)


def test_nodes_in_any_order_with_absent_inputs_are_put_in_order() -> None:
    nodes = [
        node("Relu", "b", "y"),
        node("Clip", "a - six", "b"),
        node("Dropout", "x", "a -"),
    ]
    six = onnx.numpy_helper.from_array(np.float32(6.0), "six")
    shapes = infer(model(nodes, [tensor("x", (1, 3))], [six]), batch_change=None)
    assert [each.op_type for each in shapes.model.graph.node] == ["Dropout", "Clip", "Relu"]
    assert shape_of(shapes) == (1, 3)


# --- shape arithmetic -----------------------------------------------------------------------


def test_old_gpt2_arithmetic_resolves() -> None:
    """Shape -> Gather -> Div -> Concat -> Reshape and a Range, as the old zoo's GPT-2 has it."""
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s two", "w", axis=0),
        node("Div", "w heads", "size"),
        node("Cast", "size", "f", to=F),
        node("Floor", "f", "ff"),
        node("Cast", "ff", "size2", to=I64),
        node("Unsqueeze", "size2 ax", "size3"),
        node("Slice", "s ax two1", "lead"),
        node("Concat", "lead heads1 size3", "t", axis=0),
        node("Reshape", "x t", "y"),
        node("Gather", "s one", "seq", axis=0),
        node("Range", "zero seq one", "positions"),
        node("Unsqueeze", "positions ax", "p"),
        node("Gather", "table p", "e", axis=0),
    ]
    constants = [
        scalar("zero", 0), scalar("one", 1), scalar("two", 2), scalar("heads", 12),
        ints("heads1", 12), ints("ax", 0), ints("two1", 2), weight("table", 1024, 768),
    ]  # fmt: skip
    shapes = infer(
        model(nodes, [tensor("x", (2, 50, 768))], constants, outputs="y e"), batch_change=None
    )
    assert shape_of(shapes) == (2, 50, 12, 64)
    assert shape_of(shapes, "e") == (1, 50, 768)
    assert shapes.notes == ()


def test_scales_computed_in_floats_resize_an_image() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Slice", "s two four", "hw"),
        node("Cast", "hw", "f", to=F),
        node("Mul", "f factor", "g"),
        node("Floor", "g", "h"),
        node("Cast", "h", "sizes", to=I64),
        node("Slice", "s zero two", "nc"),
        node("Concat", "nc sizes", "all", axis=0),
        node("Resize", "x - - all", "y"),
    ]
    factor = onnx.numpy_helper.from_array(np.array([1.5, 0.5], np.float32), "factor")
    constants = [ints("two", 2), ints("four", 4), ints("zero", 0), factor]
    shapes = infer(model(nodes, [tensor("x", (1, 3, 7, 8))], constants), batch_change=None)
    assert shape_of(shapes) == (1, 3, 10, 4)


def test_a_chain_of_arithmetic_is_followed_however_long() -> None:
    nodes = [node("Shape", "x", "v0")]
    nodes += [node("Add", f"v{k} one", f"v{k + 1}") for k in range(3000)]
    nodes += [node("ConstantOfShape", "v3000", "y")]
    shapes = infer(model(nodes, [tensor("x", (2, 3))], [ints("one", 1)]), batch_change=None)
    assert shape_of(shapes) == (3002, 3003)


def test_what_depends_on_data_gets_an_upper_bound_with_a_note() -> None:
    nodes = [
        node("NonZero", "mask", "where"),
        node("Transpose", "where", "rows", perm=[1, 0]),
        node("GatherND", "x rows", "y"),
    ]
    shapes = infer(
        model(nodes, [tensor("mask", (2, 5)), tensor("x", (2, 5, 7))]), batch_change=None
    )
    assert shape_of(shapes) == (10, 7)
    assert codes(shapes) == ["shape-upper-bound"]


def test_what_nothing_can_tell_is_noted_once_where_it_is_lost() -> None:
    nodes = [
        node("Mystery", "x", "a", domain="acme"),
        node("Relu", "a", "b"),
        node("Exp", "b", "y"),
    ]
    shapes = infer(model(nodes, [tensor("x", (1, 3))], domains=["acme"]), batch_change=None)
    assert [shape_of(shapes, name) for name in "aby"] == [None, None, None]
    assert shapes.main["a"].dtype is DType.UNKNOWN
    (note,) = shapes.notes
    assert (note.code, note.node) == ("shape-unknown", "Mystery_a")


def test_a_shape_declared_behind_an_unknown_operator_is_believed_with_a_note() -> None:
    nodes = [node("Mystery", "x", "a", domain="acme"), node("Flatten", "a", "y")]
    given_model = model(nodes, [tensor("x", (4, 3))], domains=["acme"])
    given_model.graph.value_info.append(tensor("a", (2, 3, 5)))
    shapes = infer(given_model, batch_change=(2, 4))
    assert shape_of(shapes) == (4, 15)
    assert codes(shapes) == ["shape-declared"]


def test_an_input_without_a_shape_is_noted() -> None:
    shapes = infer(model([node("Relu", "x", "y")], [tensor("x")]), batch_change=None)
    assert shape_of(shapes) is None
    assert codes(shapes) == ["shape-unknown"]
    assert shapes.main["y"].dtype is DType.FP32


# --- control flow ---------------------------------------------------------------------------


def body(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: str,
    constants: Sequence[TensorProto] = (),
) -> onnx.GraphProto:
    outs = [onnx.ValueInfoProto(name=name) for name in outputs.split()]
    return helper.make_graph(list(nodes), "body", list(inputs), outs, list(constants))


TURN = [tensor("i", (), I64), tensor("go", (), TensorProto.BOOL)]
GO = node("Identity", "go", "on")
TRUE = onnx.numpy_helper.from_array(np.array(True), "true")


def loop(
    inner: Sequence[onnx.NodeProto],
    *,
    state: Dims = (2, 4),
    outs: str = "on s2",
    most: int | None = 5,
    go: str = "true",
    keep: onnx.NodeProto = GO,
    names: str = "y",
) -> onnx.ModelProto:
    turn = body([keep, *inner], [*TURN, tensor("s")], outs)
    inputs = [tensor("x", state)]
    constants = [TRUE]
    if most is None:
        inputs.append(tensor("most", (), I64))
    else:
        constants.append(scalar("most", most))
    return model([node("Loop", f"most {go} x", names, body=turn)], inputs, constants)


@pytest.mark.parametrize("go", ["true", "-"])
def test_a_loop_with_a_constant_count_repeats_its_body(go: str) -> None:
    each = [node("Relu", "s", "s2"), node("Flatten", "s2", "f", axis=0)]
    shapes = infer(loop(each, outs="on s2 f", go=go, names="y stack"), batch_change=None)
    assert shapes.repeats == {"y": 5}
    assert shapes.main["y"].shape == (2, 4)
    assert shapes.main["stack"].shape == (5, 1, 8)
    assert shapes.bodies["y"]["f"].shape == (1, 8)
    assert shapes.notes == ()


def test_a_loop_without_a_known_count_runs_once_with_a_note() -> None:
    less = [node("ReduceSum", "s", "sum", keepdims=0), node("Cast", "sum", "on", to=9)]
    computed = loop([less[1], node("Relu", "s", "s2")], keep=less[0])
    for each in (computed, loop([node("Relu", "s", "s2")], most=None)):
        shapes = infer(each, batch_change=None)
        assert shapes.repeats == {"y": 1}
        assert codes(shapes) == ["trip-count-unknown"]
        assert shape_of(shapes) == (2, 4)


def test_a_loop_that_never_starts_gives_its_input() -> None:
    shapes = infer(loop([node("Concat", "s s", "s2", axis=0)], most=0), batch_change=None)
    assert shapes.repeats == {"y": 0}
    assert shape_of(shapes) == (2, 4)


def test_a_carried_value_that_grows_ends_after_all_turns() -> None:
    shapes = infer(loop([node("Concat", "s x", "s2", axis=1)]), batch_change=None)
    assert shape_of(shapes) == (2, 4 + 5 * 4)
    assert shapes.bodies["y"]["s"].shape == (2, 4)  # the body is counted at its first turn
    assert codes(shapes) == ["loop-carried-grows"]


def test_a_carried_value_that_broadcasts_once_settles() -> None:
    wide = loop([node("Add", "s x", "s2")], state=(2, 4))
    wide.graph.node[0].input[2] = "zero"
    wide.graph.initializer.append(weight("zero", 1))
    shapes = infer(wide, batch_change=None)
    assert shape_of(shapes) == (2, 4)
    assert shapes.notes == ()


def test_a_state_made_for_one_item_is_widened_for_the_loop() -> None:
    grown = loop([node("Add", "s x", "s2")], state=(8, 4))
    grown.graph.node[0].input[2] = "zero"
    grown.graph.initializer.append(weight("zero", 1, 4))
    shapes = infer(grown, batch_change=(1, 8))
    assert shape_of(shapes) == (8, 4)
    assert shapes.bodies["y"]["s"].shape == (8, 4)
    assert codes(shapes) == ["batch-rewritten"]


def test_a_target_baked_inside_a_body_is_rewritten_there() -> None:
    baked = loop([node("Reshape", "s t", "r"), node("Reshape", "r u", "s2")], state=(8, 4))
    baked.graph.initializer.extend([ints("t", 1, 2, 2), ints("u", 1, 4)])
    shapes = infer(baked, batch_change=(1, 8))
    assert shape_of(shapes) == (8, 4)
    assert shapes.bodies["y"]["r"].shape == (8, 2, 2)
    assert codes(shapes) == ["reshape-rewritten"] * 2
    again = infer(shapes.model, batch_change=None)
    assert again.bodies["y"] == shapes.bodies["y"]


def test_a_scan_repeats_along_its_axis() -> None:
    step = body(
        [node("Add", "s e", "s2"), node("Relu", "s2", "o")], [tensor("s"), tensor("e")], "s2 o"
    )
    scan = node("Scan", "init x", "y out", body=step, num_scan_inputs=1, scan_input_axes=[1])
    shapes = infer(
        model([scan], [tensor("x", (2, 9, 4))], [weight("init", 2, 4)], outputs="y out"),
        batch_change=None,
    )
    assert shapes.repeats == {"y": 9}
    assert shape_of(shapes) == (2, 4)
    assert shape_of(shapes, "out") == (9, 2, 4)
    assert shapes.bodies["y"]["e"].shape == (2, 4)


def branch(nodes: Sequence[onnx.NodeProto]) -> onnx.GraphProto:
    return body(nodes, [], nodes[-1].output[0])


def test_branches_of_equal_shape_and_their_outer_values() -> None:
    both = node(
        "If", "c", "y",
        then_branch=branch([node("Relu", "x", "t")]),
        else_branch=branch([node("Exp", "x", "e")]),
    )  # fmt: skip
    shapes = infer(
        model([both], [tensor("c", (), TensorProto.BOOL), tensor("x", (2, 3))]), batch_change=None
    )
    assert shape_of(shapes) == (2, 3)
    assert set(shapes.bodies) == {"y#then", "y#else"}
    assert shapes.notes == ()


def squeeze_or_not() -> onnx.NodeProto:
    return node(
        "If", "c", "y",
        then_branch=branch([node("Squeeze", "x one", "t")]),
        else_branch=branch([node("Concat", "x x", "e", axis=0)]),
    )  # fmt: skip


def test_branches_that_differ_give_the_larger_with_a_note() -> None:
    shapes = infer(
        model(
            [squeeze_or_not()],
            [tensor("c", (), TensorProto.BOOL), tensor("x", (2, 1))],
            [ints("one", 1)],
        ),
        batch_change=None,
    )
    assert shape_of(shapes) == (4, 1)
    assert codes(shapes) == ["branch-shapes-differ"]


def test_a_condition_that_is_known_chooses_the_branch() -> None:
    chosen = model([squeeze_or_not()], [tensor("x", (2, 1))], [ints("one", 1)])
    chosen.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "c"))
    shapes = infer(chosen, batch_change=None)
    assert shape_of(shapes) == (2,)
    assert shapes.notes == ()


def test_a_branch_written_for_other_inputs_does_not_refuse_the_model() -> None:
    shapes = infer(
        model(
            [squeeze_or_not()],
            [tensor("c", (), TensorProto.BOOL), tensor("x", (2, 3))],
            [ints("one", 1)],
        ),
        batch_change=None,
    )
    assert shape_of(shapes) == (4, 3)
    assert codes(shapes) == ["branch-contradicts"]


def test_nested_bodies_have_paths_as_keys() -> None:
    inner = body([GO, node("Relu", "s", "s2")], [*TURN, tensor("s")], "on s2")
    outer = body(
        [
            node("Identity", "go0", "on0"),
            node("Loop", "three true s0", "z", body=inner),
        ],
        [tensor("i0", (), I64), tensor("go0", (), TensorProto.BOOL), tensor("s0")],
        "on0 z",
    )
    shapes = infer(
        model(
            [node("Loop", "two true x", "y", body=outer)],
            [tensor("x", (2, 3))],
            [scalar("two", 2), scalar("three", 3), TRUE],
        ),
        batch_change=None,
    )
    assert shapes.repeats == {"y": 2, "y/z": 3}
    assert shapes.bodies["y/z"]["s2"].shape == (2, 3)


def test_sequences_carry_the_shapes_of_their_elements() -> None:
    nodes = [
        node("SplitToSequence", "x sizes", "seq", axis=1),
        node("SequenceInsert", "seq extra", "seq2"),
        node("SequenceLength", "seq2", "n"),
        node("SequenceAt", "seq2 one", "at"),
        node("ConcatFromSequence", "seq2", "y", axis=1),
    ]
    shapes = infer(
        model(
            nodes,
            [tensor("x", (2, 7, 3)), tensor("extra", (2, 5, 3))],
            [ints("sizes", 3, 4), scalar("one", 1)],
            outputs="y at n",
        ),
        batch_change=None,
    )
    assert shape_of(shapes) == (2, 12, 3)
    assert shape_of(shapes, "at") == (2, 4, 3)
    assert shape_of(shapes, "n") == ()


# --- functions, contrib operators, models without bytes -------------------------------------


def test_functions_of_the_model_are_inlined() -> None:
    twice = helper.make_function(
        "acme", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    shapes = infer(
        model(
            [node("Twice", "x", "y", domain="acme")],
            [tensor("x", (2, 3))],
            functions=[twice],
            domains=["acme"],
        ),
        batch_change=None,
    )
    assert [each.op_type for each in shapes.model.graph.node] == ["Add"]
    assert shape_of(shapes) == (2, 3)


def test_a_fused_bert_layer_resolves_and_passes_types_on() -> None:
    half = TensorProto.FLOAT16
    ms = "com.microsoft"
    nodes = [
        node("EmbedLayerNormalization", "ids - words places - g b", "e mask", domain=ms),
        node("Attention", "e w b3 mask", "a", domain=ms, num_heads=12),
        node("SkipLayerNormalization", "a e g b", "s", domain=ms),
        node("MatMul", "s up", "u"),
        node("FastGelu", "u upb", "f", domain=ms),
        node("MatMul", "f down", "d"),
        node("SkipLayerNormalization", "d s g b", "y", domain=ms),
    ]
    sizes = {
        "words": (30522, 768), "places": (512, 768), "g": (768,), "b": (768,),
        "w": (768, 2304), "b3": (2304,), "up": (768, 3072), "upb": (3072,), "down": (3072, 768),
    }  # fmt: skip
    constants = [weight(name, *dims, elem_type=half) for name, dims in sizes.items()]
    ids = tensor("ids", (8, 128), TensorProto.INT32)
    shapes = infer(model(nodes, [ids], constants, domains=[ms]), batch_change=(1, 8))
    assert shape_of(shapes) == (8, 128, 768)
    assert shape_of(shapes, "f") == (8, 128, 3072)
    assert {shapes.main[name].dtype for name in "easufdy"} == {DType.FP16}
    assert shapes.notes == ()


def test_a_target_without_its_bytes_is_unknown_not_a_crash() -> None:
    shapes = infer(
        model(
            [node("Reshape", "x t", "y")],
            [tensor("x", (1, 3, 8, 8))],
            [weight("t", 2, elem_type=I64)],
        ),
        batch_change=None,
    )
    assert shape_of(shapes) is None
    assert codes(shapes) == ["shape-unknown"]


def test_weights_in_a_missing_file_are_not_looked_for() -> None:
    far = weight("w", 40_000, 20_000)
    far.data_location = TensorProto.EXTERNAL
    far.external_data.add(key="location", value="nowhere.bin")
    shapes = infer(
        model([node("MatMul", "x w", "y")], [tensor("x", (4, 40_000))], [far]), batch_change=None
    )
    assert shape_of(shapes) == (4, 20_000)


def test_where_onnx_gives_up_our_own_rules_go_on() -> None:
    given_model = model(
        [node("Relu", "x", "a"), node("MatMul", "a w", "y")],
        [tensor("x", (2, 3))],
        [weight("w", 3, 4)],
    )
    # onnx refuses an output whose declared type is not the inferred one
    given_model.graph.output[0].CopyFrom(tensor("y", None, I64))
    shapes = infer(given_model, batch_change=None)
    assert shape_of(shapes) == (2, 4)


def test_an_opset_that_onnx_does_not_know_yet_still_gets_shapes() -> None:
    shapes = infer(
        model(
            [node("Conv", "x w", "c"), node("Relu", "c", "y")],
            [tensor("x", (2, 3, 8, 8))],
            [weight("w", 4, 3, 3, 3)],
            opset=999,
        ),
        batch_change=None,
    )
    assert shape_of(shapes) == (2, 4, 6, 6)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolution_and_pooling_of_any_rank_without_optional_attributes(rank: int) -> None:
    nodes = [
        node("Conv", "x w", "c"),
        node("MaxPool", "c", "p", kernel_shape=[2] * rank),
        node("ConvTranspose", "p v", "y"),
    ]
    shapes = infer(
        model(
            nodes,
            [tensor("x", (2, 3, *[9] * rank))],
            [weight("w", 4, 3, *[3] * rank), weight("v", 4, 5, *[2] * rank)],
        ),
        batch_change=None,
    )
    assert shape_of(shapes) == (2, 5, *[7] * rank)


def test_an_empty_past_is_a_legal_size() -> None:
    shapes = infer(
        model(
            [node("Concat", "past k", "y", axis=2)],
            [tensor("past", (1, 8, 0, 64)), tensor("k", (1, 8, 5, 64))],
        ),
        batch_change=None,
    )
    assert shape_of(shapes) == (1, 8, 5, 64)
    assert shape_of(shapes, "past") == (1, 8, 0, 64)


# --- a decoder with its arithmetic ----------------------------------------------------------


def decoder(batch: int, seq: int, past: int, *, layers: int = 2) -> onnx.ModelProto:
    """Grouped heads, a cache, rotary halves; every Reshape target computed from Shape."""
    heads, groups, size = 8, 2, 16
    width = heads * size
    nodes: list[onnx.NodeProto] = []
    constants = [
        scalar("i0", 0), scalar("i1", 1), scalar("i3", 3), scalar("half", 2), ints("a0", 0),
        ints("a2", 2), ints("a3", 3), ints("end", 2**63 - 1), ints("nh", heads), ints("ng", groups),
        ints("nd", size), ints("rep", heads // groups), ints("free", -1), weight("table", 99, width),
    ]  # fmt: skip
    inputs = [tensor("ids", (batch, seq), I64)]
    nodes.append(node("Gather", "table ids", "x0"))

    def dims(source: str, tag: str, *which: int) -> list[str]:
        nodes.append(node("Shape", source, f"{tag}_s"))
        names = []
        for axis in which:
            nodes.append(node("Gather", f"{tag}_s d{axis}", f"{tag}_d{axis}", axis=0))
            names.append(f"{tag}_d{axis}")
        return names

    constants += [ints(f"d{axis}", axis) for axis in range(4)]
    for layer in range(layers):
        x = f"x{layer}"
        for name, count in (("q", "nh"), ("k", "ng"), ("v", "ng")):
            tag = f"{name}{layer}"
            out = width if name == "q" else groups * size
            constants.append(weight(f"w{tag}", width, out))
            nodes.append(node("MatMul", f"{x} w{tag}", f"{tag}m"))
            b, s = dims(f"{tag}m", tag, 0, 1)
            nodes += [
                node("Concat", f"{b} {s} {count} nd", f"{tag}t", axis=0),
                node("Reshape", f"{tag}m {tag}t", f"{tag}r"),
                node("Transpose", f"{tag}r", f"{tag}h", perm=[0, 2, 1, 3]),
            ]
        for name in "qk":
            tag = f"{name}{layer}"
            (last,) = dims(f"{tag}h", f"{tag}rot", 3)
            nodes += [
                node("Div", f"{last} half", f"{tag}mid"),
                node("Slice", f"{tag}h a0 {tag}mid a3", f"{tag}lo"),
                node("Slice", f"{tag}h {tag}mid end a3", f"{tag}hi"),
                node("Neg", f"{tag}hi", f"{tag}neg"),
                node("Concat", f"{tag}neg {tag}lo", f"{tag}turned", axis=3),
                node("Add", f"{tag}h {tag}turned", f"{tag}e"),
            ]
        for name, fresh in (("k", f"k{layer}e"), ("v", f"v{layer}h")):
            tag = f"{name}{layer}"
            inputs.append(tensor(f"past_{tag}", (batch, groups, past, size)))
            nodes.append(node("Concat", f"past_{tag} {fresh}", f"present_{tag}", axis=2))
            b, g, t, d = dims(f"present_{tag}", f"{tag}rep", 0, 1, 2, 3)
            nodes += [
                node("Unsqueeze", f"present_{tag} a2", f"{tag}u"),
                node("Concat", f"{b} {g} rep {t} {d}", f"{tag}et", axis=0),
                node("Expand", f"{tag}u {tag}et", f"{tag}x"),
                node("Concat", f"{b} nh {t} {d}", f"{tag}ft", axis=0),
                node("Reshape", f"{tag}x {tag}ft", f"{tag}all"),
            ]
        b, s = dims(x, f"o{layer}", 0, 1)
        constants.append(weight(f"wo{layer}", width, width))
        nodes += [
            node("Transpose", f"k{layer}all", f"kt{layer}", perm=[0, 1, 3, 2]),
            node("MatMul", f"q{layer}e kt{layer}", f"score{layer}"),
            node("Softmax", f"score{layer}", f"prob{layer}", axis=-1),
            node("MatMul", f"prob{layer} v{layer}all", f"mix{layer}"),
            node("Transpose", f"mix{layer}", f"back{layer}", perm=[0, 2, 1, 3]),
            node("Concat", f"{b} {s} free", f"ot{layer}", axis=0),
            node("Reshape", f"back{layer} ot{layer}", f"flat{layer}"),
            node("MatMul", f"flat{layer} wo{layer}", f"out{layer}"),
            node("Add", f"x{layer} out{layer}", f"x{layer + 1}"),
        ]
    return model(nodes, inputs, constants, outputs=f"x{layers}")


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 7))
def test_a_dynamic_decoder_resolves_at_any_binding(batch: int, seq: int, past: int) -> None:
    shapes = infer(decoder(batch, seq, past), batch_change=(1, batch))
    assert shapes.notes == ()
    assert shape_of(shapes, "x2") == (batch, seq, 128)
    assert shape_of(shapes, "score1") == (batch, 8, seq, past + seq)
    assert shape_of(shapes, "present_k0") == (batch, 2, past + seq, 16)
    assert all(each.shape is not None for each in shapes.main.values())


def test_values_of_the_model_and_only_those_are_told() -> None:
    shapes = infer(decoder(2, 3, 4), batch_change=(1, 2))
    graph = shapes.model.graph
    names = {each.name for each in (*graph.input, *graph.initializer)}
    names |= {name for each in graph.node for name in each.output if name}
    assert set(shapes.main) == names


def test_elements_of_every_reshape_agree() -> None:
    shapes: Mapping[str, Any] = infer(decoder(2, 3, 4), batch_change=(1, 2)).main
    for layer in range(2):
        assert math.prod(shapes[f"k{layer}x"].shape) == shapes[f"k{layer}all"].elements
