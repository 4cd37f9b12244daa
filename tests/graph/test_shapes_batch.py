"""Places where exporters bake the batch: rewritten with a Note, or refused in one line."""

import onnx
import pytest
from onnx import TensorProto, helper

from slicewise.core.errors import ModelError
from slicewise.graph.shapes import Shapes, infer
from slicewise.testing.baked_models import (
    ints,
    lstm,
    model,
    node,
    scalar,
    tensor,
    weight,
)

I64 = TensorProto.INT64


def shape_of(shapes: Shapes, name: str = "y") -> tuple[int, ...] | None:
    return shapes.main[name].shape


def codes(shapes: Shapes) -> list[str]:
    return [note.code for note in shapes.notes]


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
    with pytest.raises(ModelError, match=r"contradictory shapes .* correct the model"):
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
