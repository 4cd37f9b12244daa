"""Types under autocast: products narrow, norms widen, the rest follows what it reads."""

from hypothesis import given

from slicewise.core.graph import Graph, Role
from slicewise.core.precision import PRECISIONS, DType
from slicewise.graph.autocast import autocast_types
from slicewise.graph.precision import cast
from slicewise.testing.graphs import Sketch, graphs

HALF, WIDE = DType.FP16, DType.FP32


def transformer_stem(*, table: Role | None) -> tuple[Graph, dict[str, str]]:
    """Return Conv -> Add(table) -> LayerNormalization -> MatMul -> Add, and their results."""
    sketch = Sketch()
    x = sketch.input(2, 3, 8, 8)
    conv = sketch.node(
        "Conv", (x, sketch.constant(16, 3, 4, 4)), (2, 16, 2, 2),
        attrs={"kernel_shape": (4, 4), "strides": (4, 4)},
    )  # fmt: skip
    added = conv
    if table is not None:
        added = sketch.node("Add", (conv, sketch.constant(16, 2, 2, role=table)), (2, 16, 2, 2))
    norm = sketch.node(
        "LayerNormalization", (added, sketch.constant(2), sketch.constant(2)), (2, 16, 2, 2)
    )
    product = sketch.node("MatMul", (norm, sketch.constant(2, 2)), (2, 16, 2, 2))
    total = sketch.node("Add", (added, product), (2, 16, 2, 2))
    names = {"conv": conv, "added": added, "norm": norm, "product": product, "total": total}
    return sketch.graph(), names


def test_a_parameter_lifts_the_residual_stream_to_fp32() -> None:
    graph, names = transformer_stem(table=Role.PARAMETER)
    types = autocast_types(graph, HALF)
    assert [types[names[key]] for key in ("conv", "added", "norm", "product", "total")] == [
        HALF, WIDE, WIDE, HALF, WIDE,
    ]  # fmt: skip


def test_without_one_the_stream_stays_narrow_and_only_the_norm_is_wide() -> None:
    graph, names = transformer_stem(table=None)
    types = autocast_types(graph, HALF)
    assert types[names["norm"]] is WIDE
    assert types[names["total"]] is HALF


def test_the_input_comes_in_fp32() -> None:
    graph, _ = transformer_stem(table=None)
    assert autocast_types(graph, HALF)[graph.inputs[0]] is WIDE


@given(graphs())
def test_casting_to_amp_gives_the_types_of_autocast_and_touches_no_shape(graph: Graph) -> None:
    amp = cast(graph, PRECISIONS["amp"])
    for name, dtype in autocast_types(graph, HALF).items():
        if name not in graph.constants:
            assert amp.tensors[name].dtype in (dtype, graph.tensors[name].dtype, HALF)
    assert {n: t.shape for n, t in amp.tensors.items()} == {
        n: t.shape for n, t in graph.tensors.items()
    }


@given(graphs())
def test_amp_never_moves_more_than_fp32(graph: Graph) -> None:
    def stored(name: str) -> int:
        its = cast(graph, PRECISIONS[name])
        return sum(t.size_bytes for n, t in its.tensors.items() if n not in its.constants)

    assert stored("fp16") <= stored("amp") <= stored("fp32")
