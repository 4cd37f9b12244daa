"""If, Loop, Scan and sequences: bodies, trip counts, what grows and what differs."""

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from slicewise.graph.shapes import Shapes, infer
from slicewise.testing.baked_models import (
    ints,
    model,
    node,
    scalar,
    tensor,
    weight,
)

I64 = TensorProto.INT64
Dims = Sequence[int] | None


def shape_of(shapes: Shapes, name: str = "y") -> tuple[int, ...] | None:
    return shapes.main[name].shape


def codes(shapes: Shapes) -> list[str]:
    return [note.code for note in shapes.notes]


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


def test_a_state_joined_inside_a_body_is_widened_there_and_at_the_loop() -> None:
    """A recurrent cell over [state, item]: the joined width needs the same batch on both."""
    cell = loop([node("Concat", "s x", "sx", axis=1), node("MatMul", "sx w", "s2")], state=(8, 4))
    cell.graph.initializer.extend([weight("zero", 1, 4), weight("w", 8, 4)])
    cell.graph.node[0].input[2] = "zero"
    cell.graph.node.append(node("Concat", "token y", "z", axis=1))
    cell.graph.initializer.append(weight("token", 1, 2))
    cell.graph.output.append(onnx.ValueInfoProto(name="z"))
    shapes = infer(cell, batch_change=(1, 8))
    assert shape_of(shapes) == (8, 4)
    assert shape_of(shapes, "z") == (8, 6)
    assert shapes.bodies["y"]["sx"].shape == (8, 8)
    assert set(codes(shapes)) == {"batch-rewritten"}
    again = infer(shapes.model, batch_change=None)
    assert again.notes == ()
    assert again.main == shapes.main
    assert again.bodies == shapes.bodies


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
    assert shapes.taken == {"y": "then_branch"}


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
    assert shapes.bodies["y#then"]["t"].shape is None


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
