"""The graph type: edges, digest, captured tensors, rebinding."""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.errors import ModelError, UsageError
from slicewise.core.graph import (
    Binding,
    Constant,
    Graph,
    Node,
    Role,
    Tensor,
    captured_by,
)
from slicewise.core.precision import PRECISIONS, DType, Precision


def _chain(names: list[str], batch: int = 2, *, attr: int = 1) -> Graph:
    """x -> MatMul(w) -> Relu -> Add(x): three nodes under the given names."""
    x, w, y, z, out = names
    half = Tensor((batch, 4), DType.FP16)
    return Graph(
        name="chain",
        nodes=(
            Node(f"n{y}", "MatMul", (x, w), (y,)),
            Node(f"n{z}", "Relu", (y,), (z,), {"slope": attr}),
            Node(f"n{out}", "Add", (z, x), (out,)),
        ),
        tensors={x: half, w: Tensor((4, 4), DType.FP16), y: half, z: half, out: half},
        inputs=(x,),
        outputs=(out,),
        constants={w: Constant(Role.PARAMETER, 32)},
        batch_size=batch,
        batch_axes={x: 0},
    )


@given(st.lists(st.text(min_size=1, max_size=6), min_size=5, max_size=5, unique=True))
def test_renaming_changes_neither_digest_nor_counts(names: list[str]) -> None:
    graph, reference = _chain(names), _chain(["x", "w", "y", "z", "out"])
    assert graph.digest == reference.digest
    assert graph.parameters == reference.parameters == 16
    assert [edge[:2] for edge in graph.edges] == [(0, 1), (1, 2)]


def test_digest_ignores_the_batch_and_sees_everything_else() -> None:
    names = ["x", "w", "y", "z", "out"]
    graph = _chain(names)
    assert _chain(names, batch=64).digest == graph.digest
    assert _chain(names, attr=2).digest != graph.digest
    wired = replace(graph, nodes=(*graph.nodes[:2], replace(graph.nodes[2], inputs=("z", "z"))))
    assert wired.digest != graph.digest
    wider = replace(graph, tensors={**graph.tensors, "w": Tensor((4, 5), DType.FP16)})
    assert wider.digest != graph.digest


def test_an_omitted_input_is_no_edge() -> None:
    graph = _chain(["x", "w", "y", "z", "out"])
    clip = Node("clip", "Clip", ("y", "", ""), ("z", ""))
    assert replace(graph, nodes=(graph.nodes[0], clip, graph.nodes[2])).edges == (
        (0, 1, "y"),
        (1, 2, "z"),
    )


def test_a_body_counts_as_read_by_its_node_and_its_constants_once() -> None:
    body = replace(
        _chain(["i", "v", "y", "z", "out"]),
        nodes=(Node("b", "MatMul", ("i", "v"), ("y",)), Node("c", "Add", ("y", "outer"), ("z",))),
        outputs=("z",),
    )
    assert set(captured_by(body)) == {"outer"}
    outer = _chain(["x", "w", "outer", "z", "out"])
    loop = Node("loop", "Loop", ("", "", "x"), ("z",), bodies=(body,), repeats=3)
    graph = replace(outer, nodes=(outer.nodes[0], loop, outer.nodes[2]))
    assert (0, 1, "outer") in graph.edges
    assert graph.parameters == 32
    assert graph.digest != outer.digest


def test_a_graph_survives_pickling_for_other_processes() -> None:
    graph = _chain(["x", "w", "y", "z", "out"])
    assert pickle.loads(pickle.dumps(graph)) == graph


def test_binding_again_needs_a_source_and_keeps_earlier_bindings() -> None:
    graph = _chain(["x", "w", "y", "z", "out"])
    with pytest.raises(ModelError, match="no source to bind again"):
        graph.bind(batch_size=4)

    asked: list[Binding] = []

    class Recorder:
        location = "somewhere"
        runtime = "onnxruntime"

        def bind(self, binding: Binding) -> Graph:
            asked.append(binding)
            return graph

    bound = replace(graph, source=Recorder(), binding=Binding(2, {"seq": 7}))
    bound.bind(batch_size=4)
    bound.bind(dims={"past": 1})
    assert asked == [Binding(4, {"seq": 7}), Binding(2, {"seq": 7, "past": 1})]


def test_sub_byte_tensors_are_packed() -> None:
    assert Tensor((3,), DType.INT4).size_bytes == 2
    assert Tensor((), DType.FP32).size_bytes == 4
    assert Tensor((0, 5), DType.FP32).size_bytes == 0
    assert Tensor(None, DType.FP32).size_bytes == 0


def test_every_precision_of_the_contract_exists_and_an_unknown_one_is_named() -> None:
    assert list(PRECISIONS) == ["fp32", "tf32", "fp16", "bf16", "amp", "int8", "fp8", "nvfp4"]
    with pytest.raises(UsageError, match=r"'fp12' is unknown; allowed are fp32.*did you mean"):
        Precision.named("fp12")


def test_every_type_has_a_width() -> None:
    assert all(dtype.bits >= 2 for dtype in DType)


def test_digest_ignores_how_data_is_shared_and_weights_widened_to_the_batch() -> None:
    base = _chain(["x", "w", "y", "z", "out"], batch=4)
    row = Tensor((1, 4), DType.FP16)
    wide = Tensor((4, 4), DType.FP16)

    def with_token(tensor: Tensor, trainable: int | None) -> Graph:
        return replace(
            base,
            nodes=(*base.nodes, Node("cat", "Concat", ("token", "out"), ("joined",))),
            tensors={**base.tensors, "token": tensor, "joined": wide},
            constants={**base.constants, "token": Constant(Role.PARAMETER, 8, trainable)},
        )

    assert with_token(wide, 4).digest == with_token(row, None).digest
    assert with_token(wide, 4).parameters == with_token(row, None).parameters == 20
    assert with_token(wide, None).digest != with_token(row, None).digest

    def reshaped(targets: tuple[str, str]) -> Graph:
        target = Tensor((2,), DType.INT64)
        return replace(
            base,
            nodes=tuple(
                replace(node, inputs=(*node.inputs, target_name))
                for node, target_name in zip(base.nodes[1:], targets, strict=True)
            ),
            tensors={**base.tensors, **dict.fromkeys(targets, target)},
            constants=dict.fromkeys(targets, Constant(Role.DATA, 16)),
        )

    assert reshaped(("s", "s")).digest == reshaped(("s", "r")).digest
