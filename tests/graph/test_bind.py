"""Every dimension gets a number: by shape, by symbol, by batch; or one error names all of them."""

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from slicewise.core.errors import ModelError, UsageError
from slicewise.core.graph import Binding
from slicewise.graph.bind import Bound, bind
from slicewise.testing import onnx_models as tiny

Shapes = dict[str, tuple[int, ...]]


def model_of(**inputs: tiny.Shape) -> onnx.ModelProto:
    return tiny.model([helper.make_node("Identity", [next(iter(inputs))], ["y"])], inputs=inputs)


def shapes_of(bound: Bound) -> Shapes:
    return {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in bound.model.graph.input
    }


def bound(
    model: onnx.ModelProto,
    batch: int | None = None,
    dims: dict[str, int] | None = None,
    inputs: Shapes | None = None,
) -> Bound:
    return bind(model, Binding(batch, dims or {}, inputs or {}), label="model 'm.onnx'")


# --- laws


@settings(max_examples=60, deadline=None)
@given(batch=st.integers(1, 10**6), lead=st.sampled_from(["batch", "N", None, 1, "unk__7", 4]))
def test_a_batch_reaches_the_leading_axis_alone(batch: int, lead: tiny.Dim) -> None:
    found = bound(model_of(x=[lead, 3, 8, 8]), batch)
    assert shapes_of(found) == {"x": (batch, 3, 8, 8)}
    assert (found.batch_size, found.batch_axes) == (batch, {"x": 0})
    old = lead if isinstance(lead, int) else 1
    assert found.batch_change == (None if old == batch else (old, batch))


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 64),
    seq=st.integers(1, 4096),
    past=st.integers(1, 4096),
)
def test_every_way_to_bind_a_decoder_gives_the_same_shapes(
    batch: int, seq: int, past: int
) -> None:
    model = tiny.small_decoder(past=True)
    by_batch = bound(model, batch, {"seq": seq, "past": past})
    by_dims = bound(model, None, {"batch": batch, "seq": seq, "past": past})
    cache = {f"past_key_values.0.{side}": (batch, 2, past, 8) for side in ("key", "value")}
    by_shape = bound(model, None, {}, {"input_ids": (batch, seq), **cache})
    expected = {"input_ids": (batch, seq), **cache}
    assert shapes_of(by_batch) == shapes_of(by_dims) == shapes_of(by_shape) == expected
    assert {by_batch.batch_size, by_dims.batch_size, by_shape.batch_size} == {batch}
    assert by_batch.batch_inputs == by_shape.batch_inputs == frozenset(expected)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.integers(1, 9), max_size=4),
    free=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_a_whole_shape_binds_whatever_is_free(shape: list[int], free: list[bool]) -> None:
    declared: tiny.Shape = [None if f else s for f, s in zip(free, shape, strict=False)]
    assert shapes_of(bound(model_of(x=declared), inputs={"": tuple(shape)})) == {"x": tuple(shape)}


def test_binding_leaves_the_model_as_it_was() -> None:
    model = tiny.small_cnn()
    before = model.SerializeToString()
    bound(model, 8)
    assert model.SerializeToString() == before


# --- the batch


def test_a_free_batch_is_one_unless_asked() -> None:
    found = bound(model_of(x=["batch", 3]))
    assert (found.batch_size, found.batch_change, found.changed) == (1, None, False)


def test_a_fixed_batch_is_kept_unless_asked() -> None:
    model = model_of(x=[4, 3], mask=[4, 7])
    kept = bound(model)
    assert (kept.batch_size, kept.batch_change) == (4, None)
    assert [note.code for note in kept.notes] == ["batch-assumed"]
    found = bound(model, 8)
    assert shapes_of(found) == {"x": (8, 3), "mask": (8, 7)}
    assert (found.batch_change, found.changed) == ((4, 8), True)
    assert [note.code for note in found.notes] == ["batch-fixed"]


def test_a_fixed_number_that_inputs_do_not_share_is_no_batch() -> None:
    model = model_of(image=["batch", 3, 8, 8], rois=[1000, 5])
    found = bound(model, 2)
    assert shapes_of(found) == {"image": (2, 3, 8, 8), "rois": (1000, 5)}
    assert found.batch_inputs == frozenset({"image"})


@pytest.mark.parametrize(
    "symbol",
    ["seq", "sequence_length", "seqLen", "time", "num_boxes", "past_len", "tokens", "height",
     "width", "H", "total_seq_length", "num_points", "encoder_length", "frames"],
)  # fmt: skip
def test_a_leading_axis_named_like_a_sequence_is_no_batch(symbol: str) -> None:
    with pytest.raises(ModelError, match=f"'{symbol}'"):
        bound(model_of(x=[symbol, 80]), 4)


@pytest.mark.parametrize("symbol", ["batch", "N", "b", "s0", "s77", "unk__1", "dim_0", "B"])
def test_any_other_free_leading_axis_is_the_batch(symbol: str) -> None:
    assert shapes_of(bound(model_of(x=[symbol, 80]), 4)) == {"x": (4, 80)}


def test_a_leading_symbol_that_stands_elsewhere_too_is_no_batch() -> None:
    with pytest.raises(ModelError, match=r"'n' \(axis 0 of x, axis 1 of x\)"):
        bound(model_of(x=["n", "n"]), 4)


def test_a_symbol_called_batch_is_the_batch_wherever_it_stands() -> None:
    model = model_of(ids=["batch_size", "seq"], past=[2, "batch_size", 12, "past_seq", 64])
    found = bound(model, 4, {"seq": 1, "past_seq": 9})
    assert shapes_of(found) == {"ids": (4, 1), "past": (2, 4, 12, 9, 64)}
    assert found.batch_axes == {"ids": 0, "past": 1}


def test_a_lone_axis_is_the_batch_only_where_a_wider_input_shares_it() -> None:
    found = bound(model_of(x=["n", 3], lengths=["n"]), 5)
    assert shapes_of(found) == {"x": (5, 3), "lengths": (5,)}
    with pytest.raises(ModelError, match=r"'m' \(axis 0 of signal\)"):
        bound(model_of(signal=["m"]), 5)


def test_a_batch_without_an_axis_for_it_is_refused() -> None:
    with pytest.raises(ModelError, match=r"batch 8 cannot be set.*x: 10.*--input"):
        bound(model_of(x=[10]), 8)
    assert bound(model_of(x=[10]), 1).batch_size == 1


def test_a_given_shape_leads_with_the_batch() -> None:
    model = model_of(ids=["batch", "seq"], mask=["batch", "seq"])
    found = bound(model, inputs={"ids": (4, 128)})
    assert shapes_of(found) == {"ids": (4, 128), "mask": (4, 128)}
    assert (found.batch_size, found.batch_change) == (4, (1, 4))


def test_a_given_shape_moves_a_fixed_batch_of_the_other_inputs() -> None:
    found = bound(model_of(x=[1, 3], y=[1, 5]), inputs={"x": (4, 3)})
    assert shapes_of(found) == {"x": (4, 3), "y": (4, 5)}


@pytest.mark.parametrize("given_size", [2, 7, 9])
def test_a_batch_and_a_given_shape_with_another_are_refused(given_size: int) -> None:
    for model in (model_of(x=["batch", 3]), model_of(x=[1, 3]), model_of(x=[given_size, 3])):
        match = f"batch 8 contradicts --input x={given_size}x3: axis 0 of 'x'.*give 8 or 1 there"
        with pytest.raises(UsageError, match=match):
            bound(model, 8, inputs={"x": (given_size, 3)})
    free = model_of(x=["batch", "seq"], past=[2, "batch", 3])
    with pytest.raises(UsageError, match=r"--input past=2x4x3: axis 1 of 'past'"):
        bound(free, 8, {"seq": 5}, {"past": (2, 4, 3)})
    same = bound(free, 8, {"seq": 5}, {"past": (2, 8, 3)})
    assert shapes_of(same) == {"x": (8, 5), "past": (2, 8, 3)}


def test_a_batch_replaces_the_leading_one_of_a_given_shape() -> None:
    model = model_of(ids=["batch", "seq"], mask=["batch", "seq"])
    found = bound(model, 8, inputs={"ids": (1, 128)})
    assert shapes_of(found) == {"ids": (8, 128), "mask": (8, 128)}


def test_two_batches_of_their_own_keep_their_given_sizes() -> None:
    model = model_of(image=["image_batch", 3], text=["text_batch", 77])
    found = bound(model, inputs={"image": (1, 3), "text": (5, 77)})
    assert shapes_of(found) == {"image": (1, 3), "text": (5, 77)}
    assert found.batch_axes == {"image": 0}
    assert shapes_of(bound(model, 2)) == {"image": (2, 3), "text": (2, 77)}


# --- symbols


def test_one_error_names_every_free_dimension_and_what_to_give() -> None:
    model = model_of(ids=["batch", "seq"], mask=["batch", "seq"], pixels=["batch", 3, None, "w"])
    with pytest.raises(ModelError) as caught:
        bound(model)
    text = str(caught.value)
    assert "leaves 3 dimensions free" in text
    assert "'seq' (axis 1 of ids, axis 1 of mask)" in text
    assert "'pixels.2' (axis 2 of pixels)" in text
    assert "'w' (axis 3 of pixels)" in text
    assert "--dim seq=128 --dim pixels.2=128 --dim w=128" in text
    assert "--input ids=1x128" in text
    assert "batch'" not in text
    assert "\n" not in text


def test_unnamed_dimensions_are_bound_by_input_and_axis() -> None:
    model = model_of(x=[None, 3, None, None])
    found = bound(model, 2, {"x.2": 5, "x.3": 7})
    assert shapes_of(found) == {"x": (2, 3, 5, 7)}


@pytest.mark.parametrize("unknown", ["?", "-1", "None"])
def test_placeholders_for_a_free_dimension_are_no_symbols(unknown: str) -> None:
    model = model_of(x=["batch", unknown, unknown])
    assert shapes_of(bound(model, dims={"x.1": 3, "x.2": 4})) == {"x": (1, 3, 4)}


def test_a_negative_size_in_the_file_is_free() -> None:
    model = model_of(x=[1, 3])
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = -1
    with pytest.raises(ModelError, match=r"'x\.1' \(axis 1 of x, -1 in the file\)"):
        bound(model)


def test_derived_dimensions_follow_their_parts() -> None:
    model = model_of(
        ids=["batch", "seq"], past=["batch", 2, "past", 8], mask=["batch", "past + seq"]
    )
    found = bound(model, dims={"seq": 3, "past": 10})
    assert shapes_of(found)["mask"] == (1, 13)
    with pytest.raises(ModelError, match="leaves 2 dimensions free") as caught:
        bound(model)
    assert "past + seq" not in str(caught.value)


def test_a_name_with_a_hyphen_is_a_name() -> None:
    model = model_of(x=["batch-size", "encoder-len"])
    assert shapes_of(bound(model, 2, {"encoder-len": 7})) == {"x": (2, 7)}


def test_symbols_of_outputs_are_bound_as_well() -> None:
    model = tiny.small_cnn()
    model.graph.output[0].CopyFrom(tiny.value("y", ["batch", "boxes"]))
    found = bound(model, 4, {"boxes": 9})
    dims = found.model.graph.output[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims] == [4, 9]


def test_an_input_without_a_rank_asks_for_its_shape() -> None:
    model = model_of(x=None)
    with pytest.raises(ModelError, match=r"the whole shape of 'x'; give --input x="):
        bound(model)
    found = bound(model, inputs={"x": (2, 3)})
    assert (shapes_of(found), found.batch_size) == ({"x": (2, 3)}, 2)


def test_initialisers_among_the_inputs_are_not_bound() -> None:
    model = tiny.small_cnn()
    model.graph.input.append(tiny.value("fc.w", ["out", "in"]))
    assert bound(model).batch_size == 1


def test_optional_tensors_are_taken_as_present() -> None:
    model = model_of(x=["batch", 3])
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(1, ["batch", 5]))
    model.graph.input.append(helper.make_value_info("o", kind))
    found = bound(model, 4)
    dims = found.model.graph.input[1].type.optional_type.elem_type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims] == [4, 5]


def test_inputs_that_are_not_tensors_are_refused_at_once() -> None:
    model = model_of(x=["batch", 3])
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, [3]))
    model.graph.input.append(helper.make_value_info("list", kind))
    with pytest.raises(ModelError, match=r"not tensors: 'list' \(sequence\)"):
        bound(model)


# --- impossible figures


@pytest.mark.parametrize("batch", [0, -1, 1.5, True, "4", 2**63])
def test_a_batch_must_be_a_whole_number(batch: object) -> None:
    with pytest.raises(UsageError, match=r"batch .* --batch 8"):
        bind(tiny.small_cnn(), Binding(batch_size=batch), label="m")  # type: ignore[arg-type]


def test_a_dimension_of_more_than_32_bits_is_told_the_limit() -> None:
    limit = r"is not a whole number of at most 2147483647 \(2\^31 - 1\)"
    with pytest.raises(UsageError, match=f"batch 99999999999999999999 {limit}"):
        bound(tiny.small_cnn(), 99999999999999999999)
    with pytest.raises(UsageError, match=f"dimension seq=2147483648 {limit}"):
        bound(tiny.small_decoder(), dims={"seq": 2**31})
    with pytest.raises(UsageError, match="at most 2147483647"):
        bound(tiny.small_cnn(), inputs={"": (1, 3, 2**31, 4)})
    assert bound(model_of(x=["batch", 3]), 2**31 - 1).batch_size == 2**31 - 1


@pytest.mark.parametrize("size", [0, -1, 2.0, None, "x"])
def test_dimensions_must_be_whole_numbers(size: object) -> None:
    with pytest.raises(UsageError, match=r"dimension seq=.* --dim seq=128"):
        bind(tiny.small_decoder(), Binding(dims={"seq": size}), label="m")  # type: ignore[dict-item]
    with pytest.raises(UsageError, match=r"input shape x=.*--input x=1x3x224x224"):
        bind(tiny.small_cnn(), Binding(inputs={"x": (1, 3, size, 4)}), label="m")  # type: ignore[dict-item]


def test_who_gives_an_empty_past_is_told_what_to_give() -> None:
    remedy = "for an empty cache of past keys and values give 1, or export without past inputs"
    decoder = tiny.small_decoder()
    with pytest.raises(UsageError, match=f"dimension past=0 .*; {remedy}$"):
        bind(decoder, Binding(dims={"past": 0}), label="m")
    with pytest.raises(UsageError, match=f"input shape past=1x8x0x64 .*; {remedy}$"):
        bind(decoder, Binding(inputs={"past": (1, 8, 0, 64)}), label="m")
    with pytest.raises(UsageError, match=r"--dim past=128$"):
        bind(decoder, Binding(dims={"past": -1}), label="m")


def test_integers_of_numpy_are_whole_numbers() -> None:
    sizes: Any = {"batch": np.int64(4), "seq": np.int32(5)}
    found = bind(model_of(x=["batch", "seq"]), Binding(dims=sizes), label="m")
    assert shapes_of(found) == {"x": (4, 5)}


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match=r"model 'm\.onnx' has no free dimension 'sec'.*'seq'.*did you mean seq"
    ):
        bound(tiny.small_decoder(), dims={"sec": 4})
    with pytest.raises(UsageError, match="none, all its dimensions are fixed"):
        bound(model_of(x=[1, 3]), dims={"seq": 4})
    with pytest.raises(UsageError, match=r"no input 'input_id'.*did you mean input_ids"):
        bound(tiny.small_decoder(), inputs={"input_id": (1, 4)})


def test_optional_dimensions_may_be_absent_and_only_those() -> None:
    def asked(dims: dict[str, int], *optional: str) -> Bound:
        each = Binding(dims=dims, optional_dims=frozenset(optional))
        return bind(tiny.small_decoder(), each, label="m")

    found = asked({"seq": 7, "width": 5}, "seq", "width")
    assert shapes_of(found) == {"input_ids": (1, 7)}
    assert found.binding.dims == {"seq": 7}
    with pytest.raises(UsageError, match="m has no free dimension 'width'"):
        asked({"seq": 7, "width": 5}, "seq")
    with pytest.raises(ModelError, match=r"'seq' .*it has none called 'sec'\); give --dim seq"):
        asked({"sec": 7}, "sec")


def test_a_shape_without_a_name_needs_a_single_input() -> None:
    with pytest.raises(UsageError, match=r"has 2: 'x', 'z'; name it"):
        bound(model_of(x=["batch", 3], z=["batch", 3]), inputs={"": (1, 3)})
    with pytest.raises(UsageError, match="given two shapes, 2x3 and 1x3"):
        bound(model_of(x=["batch", 3]), inputs={"": (2, 3), "x": (1, 3)})


def test_another_rank_is_refused() -> None:
    with pytest.raises(UsageError, match=r"has 4 axes \(batch x 3 x 32 x 32\).*1x3 has 2"):
        bound(tiny.small_cnn(), inputs={"x": (1, 3)})


def test_figures_that_contradict_are_refused() -> None:
    model = model_of(ids=["batch", "seq"], mask=["batch", "seq"])
    with pytest.raises(UsageError, match=r"'seq' is given two values: 64 by --dim seq=64, 128"):
        bound(model, dims={"seq": 64}, inputs={"ids": (1, 128)})
    with pytest.raises(UsageError, match=r"two values: 128 by --input ids=1x128, 64 by --input"):
        bound(model, inputs={"ids": (1, 128), "mask": (1, 64)})
    with pytest.raises(UsageError, match="batch 8 contradicts --dim batch=4"):
        bound(model, 8, {"batch": 4, "seq": 1})


def test_a_fixed_axis_may_be_given_another_size() -> None:
    found = bound(model_of(x=[1, 3, 224, 224]), inputs={"x": (1, 3, 320, 320)})
    assert shapes_of(found) == {"x": (1, 3, 320, 320)}
    assert (found.changed, found.batch_change) == (True, None)


# --- element types


@pytest.mark.parametrize("number", [onnx.TensorProto.UNDEFINED, 999])
def test_an_element_type_that_nothing_knows_leaves_a_note(number: int) -> None:
    assert bound(tiny.small_cnn()).notes == ()
    weights = tiny.small_cnn()
    weights.graph.initializer[0].data_type = number
    inputs = tiny.small_cnn()
    inputs.graph.input[0].type.tensor_type.elem_type = number
    for model, name in ((weights, "conv.w"), (inputs, "x")):
        (note,) = bound(model).notes
        assert note.code == "type-unknown"
        assert f"4 bytes are counted for each element of '{name}' of " in note.text
        assert ("no element type" in note.text) == (number == onnx.TensorProto.UNDEFINED)
        assert ("999" in note.text) == (number == 999)
