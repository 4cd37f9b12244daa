"""What kernels are like: the same at every batch, under every name, and told by the wiring."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.graph import Graph
from slicewise.core.precision import PRECISIONS, DType
from slicewise.graph.launch import launch
from slicewise.graph.precision import cast
from slicewise.graph.work import count_work
from slicewise.predict.context import CONTEXT, bare_context, context_of
from slicewise.predict.kernels import Array, Row, kernels_of
from slicewise.testing.graphs import Sketch, graphs, renamed, residual_cnn, transformer
from slicewise.testing.predictors import product


def rows_of(graph: Graph, *, runtime: str = "torch-eager", precision: str = "fp32") -> list[Row]:
    """Return the kernels of a graph."""
    ready = cast(graph, PRECISIONS[precision])
    work = launch(ready, count_work(ready, PRECISIONS[precision].compute), runtime=runtime)
    return list(kernels_of(work))


def context(
    graph: Graph, *, runtime: str = "torch-eager", precision: str = "fp32", layout: str = "nchw"
) -> Array:
    """Return the context of the kernels of a graph."""
    rows = rows_of(graph, runtime=runtime, precision=precision)
    return context_of(cast(graph, PRECISIONS[precision]), rows, layout=layout)


def column(made: Array, name: str) -> list[float]:
    """Return one column."""
    return [float(value) for value in made[:, CONTEXT.index(name)]]


@pytest.mark.parametrize("runtime", ["torch-eager", "torch-compile", "tensorrt"])
@pytest.mark.parametrize("build", [residual_cnn, transformer])
def test_nothing_changes_with_the_batch(build: object, runtime: str) -> None:
    one, two = (context(build(batch), runtime=runtime) for batch in (2, 6))  # type: ignore[operator]
    assert np.allclose(one, two)


@given(graphs(), st.sampled_from(["torch-eager", "torch-compile"]))
def test_names_mean_nothing(graph: Graph, runtime: str) -> None:
    assert np.allclose(context(graph, runtime=runtime), context(renamed(graph), runtime=runtime))


@given(graphs())
def test_columns_are_finite_and_of_the_order_of_one(graph: Graph) -> None:
    made = context(graph)
    assert made.shape[1] == len(CONTEXT)
    assert np.isfinite(made).all()
    assert (np.abs(made) <= 20).all()


def test_channels_last_goes_from_the_image_through_convolutions() -> None:
    graph = residual_cnn()
    assert sum(column(context(graph, layout="nchw"), "channels last")) == 0
    made = context(graph, layout="nhwc")
    convolutions = [i for i, row in enumerate(rows_of(graph)) if row.kernel.op_type == "Conv"]
    assert convolutions
    assert all(column(made, "channels last")[i] == 1 for i in convolutions)


def permuted(*, sliced: bool) -> Graph:
    """Return an image turned to channels last, maybe a part of its channels, and a convolution."""
    sketch = Sketch()
    x = sketch.relu(sketch.input(2, 6, 6, 16))
    if sliced:
        x = sketch.node("Split", (x,), (2, 6, 6, 8), attrs={"axis": -1})
    turned = sketch.node(
        "Transpose", (x,), (2, 8 if sliced else 16, 6, 6), attrs={"perm": (0, 3, 1, 2)}
    )
    sketch.conv(turned, 16)
    return sketch.graph()


def test_a_turned_image_is_channels_last_and_a_part_of_its_channels_is_told() -> None:
    whole = context(permuted(sliced=False))
    assert column(whole, "channels last")[-1] == 1
    assert column(whole, "sliced reads")[-1] == 0


def test_casts_under_autocast_are_told_where_they_happen() -> None:
    sketch = Sketch()
    x = sketch.input(2, 3, 8, 8)
    x = sketch.conv(x, 16)
    sketch.conv(x, 16)
    made = context(sketch.graph(), precision="amp")
    first, second = column(made, "casts of activations")
    assert first > 0  # the image comes in fp32
    assert second == 0


def test_kernels_alone_are_told_like_kernels() -> None:
    made = bare_context([product(64, 128, 256, dtype=DType.FP16)])
    assert made.shape == (1, len(CONTEXT))
    assert column(made, "kind matmul") == [1.0]
    assert column(made, "is matrix fp16") == [1.0]
    assert column(made, "n aligned") == [1.0]
