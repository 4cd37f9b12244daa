"""`infer`: every value gets its shape, the batch reaches all, contradictions are refused."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from slicewise.core.errors import ModelError
from slicewise.core.graph import Tensor
from slicewise.core.precision import DType
from slicewise.graph.shapes import Shapes, infer
from slicewise.testing.baked_models import (
    decoder,
    ints,
    model,
    node,
    scalar,
    tensor,
    transformer,
    weight,
)

F, I64 = TensorProto.FLOAT, TensorProto.INT64


def shape_of(shapes: Shapes, name: str = "y") -> tuple[int, ...] | None:
    return shapes.main[name].shape


def codes(shapes: Shapes) -> list[str]:
    return [note.code for note in shapes.notes]


LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


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


def test_a_graph_that_does_not_hang_together_is_refused() -> None:
    x = [tensor("x", (1, 3))]
    for nodes in (
        [node("Add", "x y", "a"), node("Relu", "a", "y")],
        [node("Add", "x gone", "y")],
        [node("Relu", "x", "z")],
    ):
        with pytest.raises(ModelError):
            infer(model(nodes, x), batch_change=None)


@pytest.mark.parametrize(
    ("each", "message"),
    [
        (node("Relu", "-", "y"), r"node 'Relu_y' \(Relu\) lacks its input 0"),
        (node("MatMul", "x", "y"), "lacks its input 1; operator set 18 wants at least 2"),
        (node("Relu", "x x", "y"), "has 2 inputs and 1 outputs; operator set 18 allows 1 and 1"),
        (node("Split", "x", "y z", num_outputs=3), "num_outputs=3 and 2 outputs"),
        (node("Constant", "", "y"), "none of its attributes holds a value"),
    ],
)
def test_nodes_without_what_their_operator_needs_are_refused(
    each: onnx.NodeProto, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        infer(model([each], [tensor("x", (4, 4))], opset=18), batch_change=None)


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
        node("Mystery", "x", "a other", domain="acme"),
        node("Relu", "a", "b"),
        node("Exp", "b", "y"),
    ]
    shapes = infer(model(nodes, [tensor("x", (1, 3))], domains=["acme"]), batch_change=None)
    assert [shape_of(shapes, name) for name in "aby"] == [None, None, None]
    assert shapes.main["a"].dtype is DType.UNKNOWN
    (note,) = shapes.notes
    assert (note.code, note.node) == ("shape-unknown", "Mystery_a")
    assert "acme.Mystery" in note.text
    assert "value_info" in note.text


def test_the_shape_behind_an_unknown_operator_is_guessed_with_a_note() -> None:
    nodes = [
        node("Mystery", "w x", "a", domain="acme"),
        node("Relu", "a", "b"),
        node("Mystery", "b", "c", domain="acme"),
        node("Flatten", "c", "y"),
    ]
    half = tensor("x", (2, 3, 5), TensorProto.FLOAT16)
    given_model = model(nodes, [half], [weight("w", 7, 7)], domains=["acme"])
    shapes = infer(given_model, batch_change=None)
    # a constant in front is a weight: the first input that is none gives shape and type
    assert shapes.main["a"] == Tensor((2, 3, 5), DType.FP16)
    assert shape_of(shapes) == (2, 15)
    assert [(note.code, note.node) for note in shapes.notes] == [
        ("shape-guessed", "Mystery_a"),
        ("shape-guessed", "Mystery_c"),
    ]
    assert "acme.Mystery" in shapes.notes[0].text
    assert "[2,3,5]" in shapes.notes[0].text


def test_a_guess_follows_the_batch() -> None:
    nodes = [node("Mystery", "x", "a", domain="acme"), node("Reshape", "a t", "y")]
    shapes = infer(
        model(nodes, [tensor("x", (4, 6))], [ints("t", 1, 2, 3)], domains=["acme"]),
        batch_change=(1, 4),
    )
    assert shape_of(shapes) == (4, 2, 3)
    assert codes(shapes) == ["reshape-rewritten", "shape-guessed"]


@pytest.mark.parametrize("change", [None, (1, 4)])
def test_a_guess_that_contradicts_is_taken_back(change: tuple[int, int] | None) -> None:
    nodes = [node("Pool", "x", "a", domain="acme"), node("MatMul", "a w", "y")]
    shapes = infer(
        model(nodes, [tensor("x", (4, 6))], [weight("w", 3, 8)], domains=["acme"]),
        batch_change=change,
    )
    assert [shape_of(shapes, name) for name in "ay"] == [None, None]
    assert codes(shapes) == ["shape-unknown"]


def test_a_guess_that_contradicts_inside_a_branch_does_not_blame_the_branch() -> None:
    inner = [node("Pool", "x", "a", domain="acme"), node("MatMul", "a w", "b")]
    then = helper.make_graph(inner, "then", [], [tensor("b")])
    other = helper.make_graph([node("MatMul", "x v", "c")], "else", [], [tensor("c")])
    choice = node("If", "flag", "y", then_branch=then, else_branch=other)
    inputs = [tensor("x", (4, 6)), tensor("flag", (), TensorProto.BOOL)]
    constants = [weight("w", 3, 8), weight("v", 6, 8)]
    shapes = infer(model([choice], inputs, constants, domains=["acme"]), batch_change=None)
    assert shape_of(shapes) == (4, 8)
    assert "branch-contradicts" not in codes(shapes)
    assert "shape-guessed" not in codes(shapes)


def test_a_contradiction_that_no_guess_caused_is_refused_all_the_same() -> None:
    nodes = [node("Mystery", "x", "a", domain="acme"), node("MatMul", "x w", "y")]
    given_model = model(nodes, [tensor("x", (4, 6))], [weight("w", 3, 8)], domains=["acme"])
    with pytest.raises(ModelError, match="contradictory shapes at node 'MatMul_y'"):
        infer(given_model, batch_change=None)


def test_standard_operators_and_those_of_the_table_are_never_guessed() -> None:
    nodes = [node("Reshape", "x t", "a"), node("Tokenizer", "x", "y", domain="com.microsoft")]
    target = weight("t", 2, elem_type=I64)
    given_model = model(nodes, [tensor("x", (1, 3))], [target], domains=["com.microsoft"])
    assert set(codes(infer(given_model, batch_change=None))) == {"shape-unknown"}


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


def test_a_huge_range_is_counted_and_never_written_out(tmp_path: Path) -> None:
    """onnx's data propagation would take eight terabytes for these 153 bytes."""
    nodes = [
        helper.make_node("Range", ["start", "limit", "step"], ["r"]),
        helper.make_node("Cast", ["r"], ["y"], to=TensorProto.FLOAT),
    ]
    bounds = {"start": 0, "limit": 10**12, "step": 1}
    graph = helper.make_graph(
        nodes,
        "range",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [helper.make_tensor(k, TensorProto.INT64, [], [v]) for k, v in bounds.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    assert infer(model, batch_change=None).main["y"].shape == (10**12,)
