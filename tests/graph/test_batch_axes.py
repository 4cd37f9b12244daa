"""Where the batch stands: the user's word, what recurrent operators say, fixed sizes, notes."""

from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

from slicewise.core.errors import ModelError, UsageError
from slicewise.core.graph import Binding, Graph
from slicewise.graph.bind import Bound, bind
from slicewise.graph.frontends.onnx import read_graph
from slicewise.graph.work import count_work
from slicewise.testing import onnx_models as tiny

WIDTH, HEADS = 16, 4


def model_of(**inputs: tiny.Shape) -> onnx.ModelProto:
    return tiny.model([helper.make_node("Identity", [next(iter(inputs))], ["y"])], inputs=inputs)


def bound(
    model: onnx.ModelProto,
    batch: int | None = None,
    axes: Mapping[str, int | None] | None = None,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, tuple[int, ...]] | None = None,
) -> Bound:
    binding = Binding(batch, dims or {}, inputs or {}, axes or {})
    return bind(model, binding, label="model 'm.onnx'")


def shapes_of(found: Bound) -> dict[str, tuple[int, ...]]:
    return {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in found.model.graph.input
    }


def lstm(*, x: tiny.Shape, layout: int = 0, states: tiny.Shape = None) -> onnx.ModelProto:
    """Return an LSTM of width 4 over x [.., .., 3]; with `states`, h and c are inputs."""
    names = ["h", "c"] if states is not None else []
    node = helper.make_node(
        "LSTM", ["x", "w", "r", "", "", *names], ["y"], hidden_size=4, layout=layout
    )
    return tiny.model(
        [node],
        inputs={"x": x, **dict.fromkeys(names, states)},
        weights=[tiny.weight("w", 1, 16, 3), tiny.weight("r", 1, 16, 4)],
    )


def attention(lead: tiny.Dim, batch: tiny.Dim, target: list[int]) -> onnx.ModelProto:
    """Return self-attention of 4 heads over x [sequence, batch, 16], as torch exports it.

    Heads and batch are one axis: Reshape to `target`, [sequence, batch * heads, 4].
    """
    nodes = []
    for part, order in (("q", [1, 0, 2]), ("k", [1, 2, 0]), ("v", [1, 0, 2])):
        nodes += [
            helper.make_node("MatMul", ["x", f"w.{part}"], [f"{part}0"]),
            helper.make_node("Reshape", [f"{part}0", "heads"], [f"{part}1"]),
            helper.make_node("Transpose", [f"{part}1"], [part], perm=order),
        ]
    nodes += [
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"]),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    return tiny.model(
        nodes,
        inputs={"x": [lead, batch, WIDTH]},
        weights=[
            *(tiny.weight(f"w.{part}", WIDTH, WIDTH) for part in "qkv"),
            tiny.integers("heads", target),
        ],
    )


def read(folder: Path, model: onnx.ModelProto, binding: Binding) -> Graph:
    return read_graph(tiny.save(model, folder / "m.onnx"), binding)


# --- laws: on whatever axis the batch is, work follows it


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(batch=st.integers(1, 40), seq=st.integers(1, 40), fixed=st.booleans(), own=st.booleans())
def test_work_of_a_recurrent_model_follows_the_batch_behind_the_sequence(
    tmp_path: Path, batch: int, seq: int, fixed: bool, own: bool
) -> None:
    states: tiny.Shape = [1, 1 if fixed else "N", 4] if own else None
    model = lstm(x=[seq, 1, 3] if fixed else ["T", "N", 3], states=states)
    dims = {} if fixed else {"T": seq}
    one = read(tmp_path, model, Binding(dims=dims))
    many = read(tmp_path, model, Binding(batch, dims))
    assert (one.batch_size, many.batch_size) == (1, batch)
    assert many.batch_axes["x"] == 1
    assert many.tensors["x"].shape == (seq, batch, 3)
    assert many.tensors["y"].shape == (seq, 1, batch, 4)
    assert count_work(many).total.macs == batch * count_work(one).total.macs
    assert many.digest == one.digest


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    batch=st.integers(1, 40),
    seq=st.integers(2, 40),
    fixed=st.booleans(),
    whole=st.booleans(),
    axis=st.sampled_from([1, -2]),
)
def test_work_of_sequence_first_attention_follows_the_batch_told(
    tmp_path: Path, batch: int, seq: int, fixed: bool, whole: bool, axis: int
) -> None:
    target = [seq, 4 if whole else -1, 4]
    model = attention(seq, 1 if fixed else "n", target)
    one = read(tmp_path, model, Binding(batch_axes={"x": axis}))
    many = read(tmp_path, model, Binding(batch, batch_axes={"x": axis}))
    assert (one.batch_size, many.batch_size) == (1, batch)
    assert many.tensors["x"].shape == (seq, batch, WIDTH)
    assert many.tensors["y"].shape == (batch * HEADS, seq, 4)
    assert count_work(many).total.macs == batch * count_work(one).total.macs
    assert many.digest == one.digest
    assert (many.inputs, [n.op_type for n in many.nodes]) == (
        one.inputs,
        [n.op_type for n in one.nodes],
    )


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    data=st.data(),
    batch=st.integers(1, 64),
)
def test_the_axis_told_and_no_other_becomes_the_batch(
    shape: list[int], data: st.DataObject, batch: int
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    found = bound(model_of(x=shape), batch, {"x": axis})
    k = axis % len(shape)
    assert shapes_of(found) == {"x": (*shape[:k], batch, *shape[k + 1 :])}
    assert (found.batch_size, found.batch_axes) == (batch, {"x": k})
    assert found.batch_change == (None if shape[k] == batch else (shape[k], batch))
    own = bound(model_of(x=shape), axes={"": axis})
    assert (own.batch_size, own.batch_axes, own.notes) == (shape[k], {"x": k}, ())


# --- the user's word


def test_a_sequence_first_model_is_read_with_its_batch() -> None:
    model = model_of(x=[50, 1, 256])
    assert bound(model).batch_size == 50
    told = bound(model, axes={"": 1})
    assert (told.batch_size, told.notes) == (1, ())
    many = bound(model, 8, {"": 1})
    assert shapes_of(many) == {"x": (50, 8, 256)}
    assert [str(note) for note in many.notes] == [
        "batch-fixed: the fixed 1 on axis 1 of 'x' was replaced by 8"
    ]
    given_shape = bound(model, axes={"x": 1}, inputs={"x": (50, 6, 256)})
    assert (given_shape.batch_size, given_shape.batch_change) == (6, (1, 6))
    with pytest.raises(UsageError, match="axis 1 of 'x' is the batch; give 8 or 1 there"):
        bound(model, 8, {"x": 1}, inputs={"x": (50, 6, 256)})


def test_a_free_axis_told_is_the_batch_and_the_leading_one_is_not() -> None:
    model = model_of(x=["frames_", "M", 64], mask=["M", 10])
    found = bound(model, 8, {"x": 1}, {"frames_": 5})
    assert shapes_of(found) == {"x": (5, 8, 64), "mask": (8, 10)}
    assert found.batch_axes == {"x": 1, "mask": 0}
    by_dim = bound(model, None, {"x": 1}, {"frames_": 5, "M": 8})
    assert by_dim.batch_size == 8
    with pytest.raises(ModelError, match=r"'batch' \(axis 0 of x\)"):
        bound(model_of(x=["batch", "M", 64]), 8, {"x": 1})


def test_an_input_told_to_have_no_batch_keeps_its_shape() -> None:
    model = model_of(x=[1, 3], table=[1, 7])
    assert shapes_of(bound(model, 8, {"table": None})) == {"x": (8, 3), "table": (1, 7)}
    fixed = bound(model_of(x=[197, 768]), axes={"": None})
    assert (fixed.batch_size, fixed.batch_axes, fixed.notes) == (1, {}, ())
    with pytest.raises(ModelError, match=r"batch 8 cannot be set.*--batch-axis x=1"):
        bound(model_of(x=[197, 768]), 8, {"": None})
    with pytest.raises(ModelError, match=r"'batch' \(axis 0 of x\)"):
        bound(model_of(x=["batch", 3]), 8, {"x": None})


def test_a_name_wins_over_every_input() -> None:
    model = model_of(x=[50, 1, 64], mask=[1, 50], length=[1])
    found = bound(model, 8, {"": 1, "mask": 0})
    assert shapes_of(found) == {"x": (50, 8, 64), "mask": (8, 50), "length": (1,)}
    with pytest.raises(UsageError, match=r"axis 1 of 'x' is 1, axis 1 of 'mask' is 50"):
        bound(model, 8, {"": 1})


def test_an_axis_that_is_none_is_refused() -> None:
    model = model_of(x=[50, 1, 256])
    with pytest.raises(UsageError, match=r"--batch-axis x=3 is no axis .* 50x1x256; give 0 to 2"):
        bound(model, axes={"x": 3})
    with pytest.raises(UsageError, match=r"x=-4 is no axis"):
        bound(model, axes={"x": -4})
    with pytest.raises(UsageError, match=r"--batch-axis 3: no input of model 'm\.onnx' has such"):
        bound(model, axes={"": 3})
    with pytest.raises(UsageError, match=r"no input 'z'; its inputs are 'x'"):
        bound(model, axes={"z": 1})
    with pytest.raises(UsageError, match=r"batch axis 1\.5 of 'x' is no whole number"):
        bound(model, axes={"x": 1.5})  # type: ignore[dict-item]
    with pytest.raises(UsageError, match=r"x=1 needs the shape of 'x'.*--input x="):
        bound(model_of(x=None), axes={"x": 1})
    found = bound(model_of(x=None), 8, {"x": 1}, inputs={"x": (5, 1, 3)})
    assert (shapes_of(found), found.batch_axes) == ({"x": (5, 8, 3)}, {"x": 1})


def test_binding_a_graph_again_keeps_the_batch_axis(tmp_path: Path) -> None:
    graph = read(tmp_path, attention(9, 1, [9, 4, 4]), Binding(batch_axes={"": 1}))
    again = graph.bind(batch_size=6)
    assert again.tensors["x"].shape == (9, 6, WIDTH)
    assert again.digest == graph.digest
    assert again.bind(batch_axes={"x": 0}).tensors["x"].shape == (6, 1, WIDTH)


# --- recurrent operators


def test_what_a_recurrent_operator_reads_has_its_batch_where_the_layout_says() -> None:
    first = bound(lstm(x=[5, 1, 3], states=[1, 1, 4]), 8)
    assert shapes_of(first) == {"x": (5, 8, 3), "h": (1, 8, 4), "c": (1, 8, 4)}
    second = bound(lstm(x=[1, 5, 3], states=[1, 1, 4], layout=1), 8)
    assert shapes_of(second) == {"x": (8, 5, 3), "h": (8, 1, 4), "c": (8, 1, 4)}
    free = bound(lstm(x=[50, "N", 3]), dims={"N": 8})
    assert (free.batch_size, free.batch_axes) == (8, {"x": 1})
    large = bound(lstm(x=[50, 64, 3]))
    assert (large.batch_size, large.notes) == (64, ())


def test_the_batch_is_followed_through_embedding_projection_and_transpose() -> None:
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["a"]),
        helper.make_node("MatMul", ["a", "w0"], ["b"]),
        helper.make_node("Add", ["b", "bias"], ["c"]),
        helper.make_node("Transpose", ["c"], ["d"], perm=[1, 0, 2]),
        helper.make_node("GRU", ["d", "w", "r"], ["y"], hidden_size=4),
    ]
    weights = [tiny.weight("table", 100, 6), tiny.weight("w0", 6, 3), tiny.weight("bias", 3),
               tiny.weight("w", 1, 12, 3), tiny.weight("r", 1, 12, 4)]  # fmt: skip
    ints = {"ids": onnx.TensorProto.INT64}
    turned = tiny.model(nodes, inputs={"ids": [64, 20]}, weights=weights, dtypes=ints)
    assert (bound(turned).batch_size, bound(turned).notes) == (64, ())
    plain = [*nodes[:3], helper.make_node("GRU", ["c", "w", "r"], ["y"], hidden_size=4)]
    straight = tiny.model(plain, inputs={"ids": ["T", "n"]}, weights=weights, dtypes=ints)
    assert shapes_of(bound(straight, 8, dims={"T": 20})) == {"ids": (20, 8)}


def test_names_that_contradict_a_recurrent_operator_are_believed() -> None:
    found = bound(lstm(x=["batch", "seq", 3]), 8, dims={"seq": 5})
    assert shapes_of(found) == {"x": (8, 5, 3)}


def test_a_letter_behind_a_sequence_is_the_batch() -> None:
    for letter in "nNbB":
        found = bound(model_of(x=["seq", letter, 64]), dims={"seq": 50, letter: 8})
        assert (found.batch_size, found.batch_axes) == (8, {"x": 1})
    with pytest.raises(ModelError, match="'c'"):
        bound(model_of(x=["seq", "c", 64]), 8, dims={"seq": 50})


def test_a_batch_that_stands_behind_in_one_input_leaves_a_fixed_front_alone() -> None:
    found = bound(model_of(x=["batch", 3], h=[1, "batch", 4]), 8)
    assert shapes_of(found) == {"x": (8, 3), "h": (1, 8, 4)}


# --- fixed sizes and what is said about them


@pytest.mark.parametrize(
    ("shape", "better"),
    [([50, 1, 256], "x=1"), ([197, 768], "x=none"), ([8, 3, 4, 1], "x=3")],
)
def test_a_fixed_leading_number_that_is_kept_is_said_to_be_assumed(
    shape: list[int], better: str
) -> None:
    (note,) = bound(model_of(x=shape)).notes
    assert str(note) == (
        f"batch-assumed: the fixed leading axis {shape[0]} of 'x' is taken as the batch;"
        f" --batch-axis {better} if it is not"
    )
    assert bound(model_of(x=shape), shape[0]).notes == ()
    assert bound(model_of(x=shape), axes={"x": 0}).notes == ()
    assert bound(model_of(x=[1, *shape[1:]])).notes == ()


def test_every_fixed_batch_that_is_replaced_is_named_once() -> None:
    ones = bound(model_of(x=[1, 3], y=[1, 7]), 8)
    assert [str(note) for note in ones.notes] == [
        "batch-fixed: the fixed leading 1 of 'x', 'y' was replaced by 8"
    ]
    fours = bound(model_of(x=[4, 3]), 8)
    assert [str(note) for note in fours.notes] == [
        "batch-fixed: the fixed leading 4 of 'x' was replaced by 8; --batch-axis x=none if it is"
        " not"
    ]
    moved = bound(model_of(x=[1, 3], y=[1, 5]), inputs={"x": (4, 3)})
    assert [note.code for note in moved.notes] == ["batch-fixed"]
    assert bound(model_of(x=["batch", 3]), 8).notes == ()
    assert bound(model_of(x=[1, 3]), 1).notes == ()


def test_a_zero_in_the_file_is_replaced_with_a_note() -> None:
    model = model_of(x=[1, 3])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 0
    for batch in (None, 8):
        found = bound(model, batch)
        assert shapes_of(found) == {"x": (batch or 1, 3)}
        assert [str(note) for note in found.notes] == [
            f"batch-fixed: the fixed leading 0 of 'x' was replaced by {batch or 1}"
        ]
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert bound(model, 8).notes == ()


def unet(*reads: onnx.NodeProto, name: str = "t", **others: tiny.Shape) -> onnx.ModelProto:
    """Return x [1, 4, 8, 8] and a vector [1], read by `reads`."""
    return tiny.model(
        [*reads, helper.make_node("Relu", ["x"], ["y"])],
        inputs={"x": [1, 4, 8, 8], name: [1], **others},
        weights=[tiny.weight("thousand"), tiny.weight("freqs", 1, 16), tiny.weight("bank", 16)],
    )


STEP = helper.make_node("Unsqueeze", ["t"], ["t1"])
SCALED = helper.make_node("Mul", ["t", "thousand"], ["t0"])
LATER = helper.make_node("Unsqueeze", ["t0"], ["t1"])


@pytest.mark.parametrize("reads", [(), (STEP,), (SCALED, LATER)])
def test_a_time_step_of_one_axis_follows_the_batch(reads: tuple[onnx.NodeProto, ...]) -> None:
    found = bound(unet(*reads, context=[1, 77, 16]), 8)
    assert shapes_of(found) == {"x": (8, 4, 8, 8), "t": (8,), "context": (8, 77, 16)}
    assert found.batch_axes == {"x": 0, "t": 0, "context": 0}
    assert [note.text for note in found.notes] == [
        "the fixed leading 1 of 'x', 't', 'context' was replaced by 8"
    ]


def test_a_time_step_follows_the_batch_into_its_embedding(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Unsqueeze", ["t", "one"], ["t1"]),
        helper.make_node("Mul", ["t1", "freqs"], ["t2"]),
        helper.make_node("MatMul", ["t2", "up"], ["t3"]),
        helper.make_node("Add", ["x", "t3"], ["y"]),
    ]
    model = tiny.model(
        nodes,
        inputs={"x": [1, 32], "t": [1]},
        weights=[tiny.weight("freqs", 1, 16), tiny.weight("up", 16, 32),
                 tiny.integers("one", [1])],
    )  # fmt: skip
    one, many = (read(tmp_path, model, Binding(batch)) for batch in (1, 8))
    assert count_work(many).total.macs == 8 * count_work(one).total.macs
    assert many.digest == one.digest


@pytest.mark.parametrize(
    "read_as",
    [
        helper.make_node("Mul", ["x", "t"], ["z"]),
        helper.make_node("Mul", ["t", "bank"], ["z"]),
        helper.make_node("Reshape", ["x", "t"], ["z"]),
        helper.make_node("Squeeze", ["t"], ["z"]),
    ],
)
def test_a_vector_that_stands_for_one_number_is_kept(read_as: onnx.NodeProto) -> None:
    found = bound(unet(read_as), 8)
    assert shapes_of(found) == {"x": (8, 4, 8, 8), "t": (1,)}
    assert found.batch_axes == {"x": 0}
    assert [note.text for note in found.notes] == [
        "the fixed leading 1 of 'x' was replaced by 8; 't' of that one axis was kept"
    ]
    assert shapes_of(bound(unet(read_as), 8, {"t": 0}))["t"] == (8,)


def test_a_vector_is_kept_where_its_name_or_another_input_says_so() -> None:
    assert shapes_of(bound(unet(name="cache_position"), 8))["cache_position"] == (1,)
    assert shapes_of(bound(unet(state=[2, 1, 64]), 8))["t"] == (1,)
    assert shapes_of(bound(unet(ids=["batch", 3]), 8))["t"] == (1,)
    assert shapes_of(bound(model_of(x=[1, 3], scale=[1]), 6)) == {"x": (6, 3), "scale": (1,)}


# --- messages


def test_a_batch_that_has_no_axis_is_told_how_to_give_one() -> None:
    with pytest.raises(ModelError, match=r"say which axis is, as in --batch-axis x=1, or give"):
        bound(model_of(x=["seq", 1, 256]), 8, dims={"seq": 50})
    assert shapes_of(bound(model_of(x=["seq", 1, 256]), 8, {"x": 1}, {"seq": 50})) == {
        "x": (50, 8, 256)
    }
