"""A model is repaired with Notes, or refused in one line."""

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from slicewise.core.errors import ModelError
from slicewise.graph.check import captured_by, listed, tidy
from slicewise.testing import onnx_models as tiny

make_node = helper.make_node


def codes(notes: object) -> list[str]:
    assert isinstance(notes, tuple)
    return [note.code for note in notes]


def order_of(model: onnx.ModelProto) -> list[str]:
    return [node.name for node in model.graph.node]


@settings(max_examples=40, deadline=None)
@given(order=st.permutations(range(6)))
def test_any_order_of_nodes_becomes_topological(order: list[int]) -> None:
    model = tiny.small_cnn()
    nodes = list(model.graph.node)
    shuffled = tiny.small_cnn()
    del shuffled.graph.node[:]
    shuffled.graph.node.extend(nodes[i] for i in order)
    result = tidy(shuffled, label="m")
    assert order_of(result.model) == order_of(model)
    assert ("nodes-unsorted" in codes(result.notes)) == (order != sorted(order))
    assert [node.name for node in shuffled.graph.node] == [nodes[i].name for i in order]


def test_a_sound_model_comes_back_without_notes() -> None:
    model = tiny.small_cnn()
    result = tidy(model, label="m")
    assert result.notes == ()
    assert result.model == model


def test_nodes_are_sorted_by_what_bodies_capture() -> None:
    body = helper.make_graph([make_node("Relu", ["late"], ["r"])], "b", [], [tiny.value("r", [3])])
    nodes = [
        make_node("If", ["c"], ["y"], name="if", then_branch=body, else_branch=body),
        make_node("Abs", ["x"], ["late"], name="abs"),
    ]
    result = tidy(tiny.model(nodes, inputs={"x": [3], "c": []}), label="m")
    assert order_of(result.model) == ["abs", "if"]
    assert list(captured_by(body)) == ["late"]


def test_duplicates_keep_the_first_with_a_note() -> None:
    model = tiny.small_cnn()
    model.graph.initializer.append(tiny.weight("fc.w", 99, 99))
    model.graph.input.append(tiny.value("x", [7]))
    result = tidy(model, label="m")
    assert codes(result.notes) == ["duplicate-name", "duplicate-name"]
    kept = {tensor.name: list(tensor.dims) for tensor in result.model.graph.initializer}
    assert kept["fc.w"] == [10, 8]
    assert len(result.model.graph.input) == 1
    assert "'fc.w'" in str(result.notes)


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([], "empty graph"),
        (
            [make_node("Add", ["x", "b"], ["a"], name="p"), make_node("Abs", ["a"], ["b"])],
            r"cycle: .*'p'",
        ),
        ([make_node("Relu", ["y"], ["y"], name="self")], "cycle: 'self' -> 'self'"),
        (
            [make_node("Add", ["lost", "gone"], ["y"], name="n")],
            r"'lost' \(by node 'n'\), 'gone' \(by node 'n'\)",
        ),
        ([make_node("Relu", ["x"], ["a"])], r"'y' \(by the outputs\)"),
        (
            [make_node("Relu", ["x"], ["y"]), make_node("Abs", ["x"], ["y"])],
            "more than once: 'y'",
        ),
        ([make_node("Relu", ["x"], ["y", "x"])], "more than once: 'x'"),
        ([make_node("", ["x"], ["y"], name="blank")], "without an operator name"),
    ],
)
def test_what_cannot_be_repaired_is_one_clear_line(nodes: list[onnx.NodeProto], said: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        tidy(tiny.model(nodes, inputs={"x": [3]}), label="model 'm.onnx'")
    assert str(caught.value).startswith("model 'm.onnx'")
    assert "\n" not in str(caught.value)


def test_no_outputs_and_unnamed_values_are_refused() -> None:
    model = tiny.small_cnn()
    del model.graph.output[:]
    with pytest.raises(ModelError, match="declares no outputs"):
        tidy(model, label="m")
    model = tiny.small_cnn()
    model.graph.input.append(tiny.value("", [1]))
    with pytest.raises(ModelError, match="input without a name"):
        tidy(model, label="m")
    model = tiny.small_cnn()
    model.graph.initializer.append(tiny.weight("odd", -1, 3))
    with pytest.raises(ModelError, match=r"'odd' of shape \[-1, 3\]"):
        tidy(model, label="m")


def test_a_value_missing_inside_a_body_is_found() -> None:
    body = helper.make_graph([make_node("Relu", ["lost"], ["r"])], "b", [], [tiny.value("r", [3])])
    node = make_node("If", ["c"], ["y"], name="if", then_branch=body, else_branch=body)
    with pytest.raises(ModelError, match=r"'lost' \(by node 'if'\)"):
        tidy(tiny.model([node], inputs={"c": []}), label="m")


def test_omitted_optional_inputs_and_outputs_are_no_values() -> None:
    nodes = [
        make_node("Clip", ["x", "", "max"], ["a"]),
        make_node("Dropout", ["a"], ["b", ""]),
        make_node("Dropout", ["b"], ["y", ""]),
    ]
    model = tiny.model(nodes, inputs={"x": [3]}, weights=[tiny.weight("max")])
    assert tidy(model, label="m").notes == ()


@pytest.mark.parametrize(
    ("ir_version", "opset", "code", "read_as"),
    [
        (8, 6, "opset-old", 6),
        (8, 9999, "opset-newer", onnx.defs.onnx_opset_version()),
        (8, None, "opset-missing", 18),
        (3, None, "opset-missing", 8),
        (2, None, "opset-missing", 1),
        (999, 20, "ir-newer", 20),
    ],
)
def test_versions_outside_the_supported_range_leave_a_note(
    ir_version: int, opset: int | None, code: str, read_as: int
) -> None:
    model = tiny.small_cnn()
    model.ir_version = ir_version
    del model.opset_import[:]
    if opset is not None:
        model.opset_import.append(helper.make_opsetid("", opset))
    result = tidy(model, label="m")
    assert code in codes(result.notes)
    assert [o.version for o in result.model.opset_import if o.domain == ""] == [read_as]
    assert result.model.ir_version <= onnx.IR_VERSION


def test_both_spellings_of_the_standard_domain_are_one() -> None:
    nodes = [make_node("Relu", ["x"], ["y"], domain="ai.onnx")]
    model = tiny.model(nodes, inputs={"x": [3]})
    model.opset_import[0].domain = "ai.onnx"
    result = tidy(model, label="m")
    assert result.model.graph.node[0].domain == ""
    assert [(o.domain, o.version) for o in result.model.opset_import] == [("", tiny.OPSET)]
    assert result.notes == ()


def function(name: str, calls: str, *, domain: str = "") -> onnx.FunctionProto:
    return helper.make_function(
        "mine",
        name,
        ["x"],
        ["y"],
        [make_node(calls, ["x"], ["t"], domain=domain), make_node("Exp", ["t"], ["y"])],
        [helper.make_opsetid("", tiny.OPSET), helper.make_opsetid("mine", 1)],
    )


def test_functions_are_inlined_nested_ones_too() -> None:
    model = tiny.model(
        [make_node("F", ["x"], ["y"], domain="mine")],
        inputs={"x": [3]},
        functions=[function("F", "G", domain="mine"), function("G", "Relu")],
    )
    result = tidy(model, label="m")
    assert [node.op_type for node in result.model.graph.node] == ["Relu", "Exp", "Exp"]
    assert not result.model.functions


def test_a_function_that_calls_itself_is_refused() -> None:
    model = tiny.model(
        [make_node("F", ["x"], ["y"], domain="mine")],
        inputs={"x": [3]},
        functions=[function("F", "F", domain="mine")],
    )
    with pytest.raises(ModelError, match="cannot be inlined"):
        tidy(model, label="m")


def test_functions_beside_an_operator_of_an_unknown_domain_are_inlined() -> None:
    nodes = [make_node("F", ["x"], ["a"], domain="mine"), make_node("F", ["a"], ["y"], domain="u")]
    model = tiny.model(nodes, inputs={"x": [3]}, functions=[function("F", "Relu")])
    kept = [opset for opset in model.opset_import if opset.domain != "u"]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    found = tidy(model, label="m").model.graph.node
    assert [(n.domain, n.op_type) for n in found] == [("", "Relu"), ("", "Exp"), ("u", "F")]


def test_a_model_without_standard_operators_needs_no_standard_opset() -> None:
    model = tiny.model([make_node("Own", ["x"], ["y"], domain="acme")], inputs={"x": [3]})
    del model.opset_import[0]
    assert tidy(model, label="m").notes == ()


def test_long_lists_end_in_a_count() -> None:
    assert listed(f"n{i}" for i in range(100)).endswith("'n29' and 70 more")
    assert listed(["b", "a", "b"]) == "'b', 'a'"


def test_custom_domains_pass() -> None:
    model = tiny.model(
        [make_node("Own", ["x"], ["y"], domain="acme")],
        inputs={"x": [3]},
        dtypes={"x": TensorProto.FLOAT},
    )
    assert tidy(model, label="m").notes == ()
