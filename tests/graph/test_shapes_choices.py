"""Batch-1 exports whose Reshapes leave open where the batch goes: attention as torch writes it.

Laws are judged by running the mended model: it serves a batch as the original serves each item.
"""

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper

from slicewise.core.errors import ModelError
from slicewise.graph.shape.facts import tensor_fact, type_fact
from slicewise.graph.shape.outlook import Outlook
from slicewise.graph.shape.search import Choices
from slicewise.graph.shape.walk import Scope, graph_inputs
from slicewise.graph.shapes import Shapes, infer
from slicewise.testing.baked_models import ints, model, node, scalar, tensor, weight

Floats = NDArray[np.float32]


def filled(name: str, *dims: int) -> TensorProto:
    """A weight with values that tell its places apart."""
    values = np.cos(np.arange(np.prod(dims, dtype=int)) * 1.7 + len(name)) / 2
    return onnx.numpy_helper.from_array(values.reshape(dims).astype(np.float32), name)


def attention(
    batch: int, query: int, key: int, *, heads: int = 3, size: int = 2
) -> onnx.ModelProto:
    """torch.nn.MultiheadAttention(batch_first=True) exported at batch 1, inputs at `batch`.

    The sequence goes in front of the batch, [tokens, 1, width]; heads join the batch,
    [tokens, 1 * heads, size]; the output projection is a Gemm on [tokens * 1, width].
    """
    width = heads * size
    nodes = [
        node("Transpose", "x", "x1", perm=[1, 0, 2]),
        node("Transpose", "m", "m1", perm=[1, 0, 2]),
        node("MatMul", "x1 wq", "q1"),
        node("MatMul", "m1 wk", "k1"),
        node("MatMul", "m1 wv", "v1"),
    ]
    for name, tokens in (("q", "to_query"), ("k", "to_key"), ("v", "to_key")):
        nodes += [
            node("Reshape", f"{name}1 {tokens}", f"{name}2"),
            node("Transpose", f"{name}2", f"{name}3", perm=[1, 0, 2]),
        ]
    nodes += [
        node("Reshape", "q3 query", "q4"),
        node("Reshape", "v3 key", "v4"),
        node("Transpose", "k3", "k4", perm=[0, 2, 1]),
        node("Reshape", "k4 key_t", "k5"),
        node("MatMul", "q4 k5", "s"),
        node("Softmax", "s", "a", axis=-1),
        node("MatMul", "a v4", "o"),
        node("Transpose", "o", "o1", perm=[2, 0, 1, 3]),
        node("Reshape", "o1 packed", "o2"),
        node("Gemm", "o2 wo b", "o3", transB=1),
        node("Reshape", "o3 unpacked", "o4"),
        node("Transpose", "o4", "o5", perm=[1, 0, 2]),
        node("Add", "x o5", "y"),
    ]
    constants = [
        ints("to_query", query, heads, size),
        ints("to_key", key, heads, size),
        ints("query", 1, heads, query, size),
        ints("key", 1, heads, key, size),
        ints("key_t", 1, heads, size, key),
        ints("packed", query, width),
        ints("unpacked", query, 1, width),
        *(filled(f"w{name}", width, width) for name in "qkvo"),
        filled("b", width),
    ]
    inputs = [tensor("x", (batch, query, width)), tensor("m", (batch, key, width))]
    return model(nodes, inputs, constants)


def run(proto: onnx.ModelProto, feed: dict[str, Floats]) -> Floats:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    proto.ir_version = 8
    for value in proto.graph.output:
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, feed)
    return np.asarray(found)


def shape_of(shapes: Shapes, name: str = "y") -> tuple[int, ...] | None:
    return shapes.main[name].shape


@given(
    st.integers(2, 6), st.integers(1, 4), st.integers(1, 4), st.integers(2, 4), st.integers(2, 3)
)
@settings(max_examples=40, deadline=None)
def test_mended_attention_serves_each_item_as_the_original_does(
    batch: int, query: int, key: int, heads: int, size: int
) -> None:
    wide = attention(batch, query, key, heads=heads, size=size)
    mended = infer(wide, batch_change=(1, batch))
    assert shape_of(mended) == (batch, query, heads * size)
    rng = np.random.default_rng(batch)
    feed = {
        value.name: rng.standard_normal(type_fact(value.type).shape, np.float32)
        for value in wide.graph.input
    }
    single = attention(1, query, key, heads=heads, size=size)
    each = [run(single, {name: x[k : k + 1] for name, x in feed.items()}) for k in range(batch)]
    found = run(mended.model, feed)
    np.testing.assert_allclose(found, np.concatenate(each), rtol=1e-4, atol=1e-5)


def test_the_batch_does_not_go_where_a_weight_is_summed() -> None:
    shapes = infer(attention(8, 50, 50), batch_change=(1, 8))
    assert shape_of(shapes, "q2") == (50, 24, 2)
    assert shape_of(shapes, "o2") == (400, 6)
    assert shape_of(shapes, "o4") == (50, 8, 6)


def test_the_model_is_left_as_it_is_whatever_was_tried() -> None:
    proto = attention(8, 1, 1)
    before = proto.SerializeToString()
    shapes = infer(proto, batch_change=(1, 8))
    assert shape_of(shapes, "q2") == (1, 24, 2)
    assert proto.SerializeToString() == before


def test_notes_are_those_of_the_way_taken() -> None:
    shapes = infer(attention(8, 1, 7), batch_change=(1, 8))
    assert (shapes.notes[0].node, shapes.notes[0].text.partition(";")[2]) == (
        "Reshape_q2",
        " [1,24,2] is used at batch 8",
    )
    assert len({note.node for note in shapes.notes}) == len(shapes.notes) == 8


def test_one_query_of_many_keys_ends_as_one_row_an_item() -> None:
    """The pooling of CLIP's ResNet: the sequence of 1 is squeezed away at the end."""
    proto = attention(8, 1, 7)
    proto.graph.node.append(node("Squeeze", "o4 axis", "pooled"))
    proto.graph.initializer.append(ints("axis", 0))
    assert shape_of(infer(proto, batch_change=(1, 8)), "pooled") == (8, 6)


def test_a_sequence_first_classifier_packs_tokens_and_batch() -> None:
    """CRNN: [tokens, 1, width] -> [tokens, width] -> Gemm -> [tokens, 1, classes]."""
    nodes = [
        node("Transpose", "x", "t", perm=[1, 0, 2]),
        node("Reshape", "t packed", "p"),
        node("Relu", "p", "r"),
        node("Gemm", "r w b", "c", transB=1),
        node("Reshape", "c unpacked", "y"),
    ]
    constants = [ints("packed", 12, 32), ints("unpacked", 12, 1, 10), weight("w", 10, 32)]
    shapes = infer(
        model(nodes, [tensor("x", (4, 12, 32))], [*constants, weight("b", 10)]),
        batch_change=(1, 4),
    )
    assert [shape_of(shapes, name) for name in "pcy"] == [(48, 32), (48, 10), (12, 4, 10)]


def test_batches_joined_along_their_axis_are_unpacked_behind_their_number() -> None:
    """Guidance with and without a condition: [x, x] -> [2, batch, ...] -> two parts."""
    nodes = [
        node("Concat", "x x", "both", axis=0),
        node("Reshape", "both apart", "y"),
        node("Split", "both", "a c", axis=0),
    ]
    shapes = infer(
        model(nodes, [tensor("x", (4, 6, 8))], [ints("apart", 2, 1, 48)], outputs="y a c"),
        batch_change=(1, 4),
    )
    assert shape_of(shapes) == (2, 4, 48)
    assert shape_of(shapes, "a") == shape_of(shapes, "c") == (4, 6, 8)


def test_what_lies_behind_the_batch_in_a_merged_axis_stays_there() -> None:
    """[tokens, batch, heads, size] -> one axis -> transposed -> back."""
    nodes = [
        node("Transpose", "x", "t", perm=[1, 0, 2, 3]),
        node("Reshape", "t merged", "m"),
        node("Transpose", "m", "n", perm=[1, 0]),
        node("Reshape", "n parted", "y"),
    ]
    shapes = infer(
        model(
            nodes,
            [tensor("x", (4, 5, 3, 2))],
            [ints("merged", 15, 2), ints("parted", 2, 5, 1, 3)],
        ),
        batch_change=(1, 4),
    )
    assert shape_of(shapes, "m") == (60, 2)
    assert shape_of(shapes) == (2, 5, 4, 3)


def test_a_batch_that_is_mixed_on_purpose_is_left_so() -> None:
    proto = attention(4, 1, 1)
    proto.graph.node.append(node("ReduceMean", "y", "mean", axes=[0], keepdims=0))
    shapes = infer(proto, batch_change=(1, 4))
    assert shape_of(shapes) == (4, 1, 6)
    assert shape_of(shapes, "mean") == (1, 6)


def test_queries_that_are_the_same_for_all_items_are_repeated_for_their_heads() -> None:
    """Learned queries (Perceiver): heads of a constant [heads, ...] meet [batch * heads, ...]."""
    proto = attention(4, 5, 7)
    inputs = {value.name: value for value in proto.graph.input}
    del proto.graph.input[:]
    proto.graph.input.append(inputs["m"])
    proto.graph.initializer.append(weight("x", 1, 5, 6))
    del proto.graph.node[-12:]  # up to the heads
    proto.graph.node.extend(
        [
            node("Transpose", "k3", "k4", perm=[0, 2, 1]),
            node("MatMul", "q3 k4", "s"),
            node("Softmax", "s", "a", axis=-1),
            node("MatMul", "a v3", "o"),
            node("Reshape", "o query", "y"),
        ]
    )
    shapes = infer(proto, batch_change=(1, 4))
    assert shape_of(shapes, "s") == (12, 5, 7)
    assert shape_of(shapes) == (4, 3, 5, 2)


@pytest.mark.parametrize(
    ("nodes", "constants", "place"),
    [
        (
            # a filter for each item (StyleGAN): its groups would have to be as many as items
            [
                node("MatMul", "z mixing", "f"),
                node("Reshape", "f filters", "w"),
                node("Conv", "x w", "y"),
            ],
            [weight("mixing", 5, 162), ints("filters", 6, 3, 3, 3)],
            r"'Conv_y' \(Conv\): the batch is in its weight \[24,3,3,3\]",
        ),
        (
            # all items in one row
            [node("Reshape", "x all", "r"), node("MatMul", "r head", "y")],
            [ints("all", 192), weight("head", 192, 10)],
            r"'MatMul_y' \(MatMul\): inner dimensions of \[768\] x \[192,10\] differ",
        ),
    ],
)
def test_where_no_choice_holds_together_one_line_refuses(
    nodes: list[onnx.NodeProto], constants: list[TensorProto], place: str
) -> None:
    inputs = [tensor("x", (4, 3, 8, 8)), tensor("z", (4, 5))]
    with pytest.raises(ModelError, match=f"^batch is baked in at node {place}; export with") as e:
        infer(model(nodes, inputs, constants), batch_change=(1, 4))
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("reader", "constants", "barred"),
    [
        (node("MatMul", "v w", "y"), [weight("w", 5, 7)], {2}),
        (node("MatMul", "w v", "y"), [weight("w", 7, 4)], {1}),
        (node("MatMul", "v w", "y"), [weight("w", 3, 5, 7)], {0, 2}),
        (node("Add", "v w", "y"), [weight("w", 5)], {2}),
        (node("Add", "v w", "y"), [weight("w", 3, 1, 1)], {0}),
        (node("Add", "v v", "y"), [], set()),
        (node("Softmax", "v", "y", axis=-1), [], {2}),
        (node("ReduceSum", "v k", "y"), [ints("k", 1)], {1}),
        (node("ReduceMean", "v", "y", axes=[0, -1]), [], {0, 2}),
        (node("ArgMax", "v", "y", axis=1), [], {1}),
        (node("LayerNormalization", "v w", "y", axis=1), [weight("w", 4, 5)], {1, 2}),
        (node("InstanceNormalization", "v w w", "y"), [weight("w", 4)], {1, 2}),
        (node("GlobalAveragePool", "v", "y"), [], {2}),
        (node("Concat", "v v", "y", axis=1), [], {1}),
        (node("Gather", "v i", "y", axis=1), [scalar("i", 0)], {1}),
        (node("Slice", "v i j k", "y"), [ints("i", 0, 0), ints("j", 3, 2), ints("k", 0, 1)], {1}),
        (node("LSTM", "v w r", "y", hidden_size=2), [weight("w", 1, 8, 5)], {0, 2}),
        (node("Einsum", "v w", "y", equation="abc,cd->abd"), [weight("w", 5, 7)], {2}),
        (node("CumSum", "v i", "y"), [scalar("i", 1)], {1}),
        (node("Unheard", "v w", "y"), [weight("w", 5, 7)], set()),
        (node("Reshape", "v to", "y"), [ints("to", 12, 5)], set()),
    ],
)
def test_axes_that_are_mixed_or_meet_a_constant_do_not_hold_the_batch(
    reader: onnx.NodeProto, constants: list[TensorProto], barred: set[int]
) -> None:
    proto = model([reader], [tensor("v", (3, 4, 5))], [*constants, weight("r", 1, 8, 2)])
    assert outlook(proto).barred("v", range(3)) == barred


@pytest.mark.parametrize(
    ("between", "barred"),
    [
        (node("Transpose", "v", "u", perm=[2, 0, 1]), {1}),
        (node("Unsqueeze", "v one", "u"), {2}),
        (node("Relu", "v", "u"), {2}),
        (node("Expand", "v four", "u"), {2}),
        (node("Flatten", "v", "u", axis=1), {1, 2}),
        (node("Reshape", "v four", "u"), set()),
    ],
)
def test_values_are_followed_up_to_the_next_reshape(
    between: onnx.NodeProto, barred: set[int]
) -> None:
    proto = model(
        [between, node("Softmax", "u", "y", axis=-1)],
        [tensor("v", (3, 4, 5))],
        [ints("one", 1), ints("four", 1, 3, 4, 5)],
    )
    assert outlook(proto).barred("v", range(3)) == barred


def outlook(proto: onnx.ModelProto) -> Outlook:
    """What the readers in a graph say, given the shapes of its values."""
    shapes = {name: t.shape for name, t in infer(proto, batch_change=None).main.items()}
    facts = {**graph_inputs(proto.graph)}
    for name, shape in shapes.items():
        if name not in facts:
            facts[name] = type_fact(helper.make_tensor_type_proto(TensorProto.FLOAT, shape))
    for tensor_ in proto.graph.initializer:
        facts[tensor_.name] = tensor_fact(tensor_)
    return Outlook(proto.graph, Scope(facts), {"": 17})


@given(st.lists(st.integers(2, 4), min_size=1, max_size=4))
def test_every_combination_is_tried_once_the_first_ways_first(counts: list[int]) -> None:
    seen = []
    choices: Choices | None = Choices()
    while choices is not None:
        seen.append(tuple(choices.pick(case, count) for case, count in enumerate(counts)))
        choices = choices.next()
    assert seen == sorted(set(seen))
    assert len(seen) == np.prod(counts)
