"""int8 files: which products are quantised, and how much of a model."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from slicewise.core.errors import TuningError
from slicewise.core.measurement import InputSpec
from slicewise.core.precision import DType
from slicewise.core.tuning import AccuracyData
from slicewise.testing.onnx_models import Shape, model, save
from slicewise.tune.backends.serving.accuracy import (
    Agreement,
    OutputAgreement,
    Samples,
    split_samples,
)
from slicewise.tune.backends.serving.quantise import _inner_products, has_vnni, quantise
from slicewise.tune.backends.serving.space import INT8, INT8_DYNAMIC, INT8_HEAVY


def chain(folder: Path, *, length: int = 6) -> Path:
    """Save a chain of matrix products 8 wide, with a Relu behind each."""
    random = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for i in range(length):
        value = (random.standard_normal((8, 8)) / 3).astype(np.float32)
        weights.append(numpy_helper.from_array(value, f"w{i}"))
        made = "y" if i == length - 1 else f"a{i}"
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"], name=f"p{i}"))
        nodes.append(helper.make_node("Relu", [f"m{i}"], [made], name=f"r{i}"))
        last = made
    shape: Shape = ["batch", 8]
    return Path(
        save(
            model(nodes, inputs={"x": shape}, outputs={"y": shape}, weights=weights),
            folder / "chain.onnx",
        )
    )


def samples(folder: Path) -> Samples:
    np.save(folder / "x.npy", np.random.default_rng(1).standard_normal((64, 8)))
    spec = InputSpec("x", (2, 8), DType.FP32)
    return split_samples(AccuracyData({"x": folder / "x.npy"}), [spec], seed=0)


def quantised(path: Path) -> set[str]:
    """Return the products whose weight is stored in 8 bits."""
    graph = onnx.load(str(path)).graph
    narrow = {t.name for t in graph.initializer if t.data_type == onnx.TensorProto.INT8}
    behind = {
        name
        for node in graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in narrow
        for name in node.output
    }
    products = (node for node in graph.node if node.op_type == "MatMul")
    return {node.name for node in products if set(node.input) & behind}


def judged(path: Path, harmful: frozenset[str]) -> Agreement:
    """Return an agreement that each harmful product in int8 lowers."""
    lost = 0.1 * len(quantised(path) & harmful)
    return Agreement((OutputAgreement("values", None, 1.0 - lost),), 8)


@pytest.mark.parametrize("kind", [INT8, INT8_HEAVY, INT8_DYNAMIC])
def test_all_that_agrees_is_quantised(tmp_path: Path, kind: str) -> None:
    source, target = chain(tmp_path), tmp_path / "out" / "made.onnx"
    quantise(
        source, target, kind=kind, samples=samples(tmp_path), least=0.99,
        judge=lambda path: judged(path, frozenset()),
    )  # fmt: skip
    onnx.checker.check_model(onnx.load(str(target)))
    assert [path.name for path in target.parent.iterdir()] == ["made.onnx"]
    if kind == INT8_HEAVY:
        assert quantised(target) == {"p1", "p2", "p3", "p4"}


def test_what_disagrees_stays_in_float(tmp_path: Path) -> None:
    source, target = chain(tmp_path, length=8), tmp_path / "made.onnx"
    harmful = frozenset({"p2", "p5"})
    quantise(
        source, target, kind=INT8_HEAVY, samples=samples(tmp_path), least=0.99,
        judge=lambda path: judged(path, harmful),
    )  # fmt: skip
    assert quantised(target) == {"p1", "p3", "p4", "p6"}


def test_where_nothing_agrees_nothing_is_left(tmp_path: Path) -> None:
    source, target = chain(tmp_path), tmp_path / "made.onnx"
    every = frozenset(f"p{i}" for i in range(6))
    with pytest.raises(TuningError, match="no part of the model agrees"):
        quantise(
            source, target, kind=INT8_HEAVY, samples=samples(tmp_path), least=0.99,
            judge=lambda path: judged(path, every),
        )  # fmt: skip
    assert not target.exists()


def test_products_at_the_ends_are_left_out(tmp_path: Path) -> None:
    assert _inner_products(chain(tmp_path)) == ["p1", "p2", "p3", "p4"]
    with pytest.raises(TuningError, match="but at the model's ends"):
        quantise(
            chain(tmp_path, length=2), tmp_path / "made.onnx", kind=INT8_HEAVY, least=0.9,
            samples=samples(tmp_path), judge=lambda path: judged(path, frozenset()),
        )  # fmt: skip


def test_a_file_that_is_no_model_is_told(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_text("no model")
    with pytest.raises(TuningError, match=r"does not quantise 'bad.onnx' as int8"):
        quantise(
            tmp_path / "bad.onnx", tmp_path / "made.onnx", kind=INT8, least=0.9,
            samples=samples(tmp_path), judge=lambda path: judged(path, frozenset()),
        )  # fmt: skip
    assert not (tmp_path / "made.onnx").exists()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fpu avx2", False), ("avx512f avx512_vnni", True), ("asimd asimddp", True)],
)
def test_the_processor_is_asked_for_sums_of_bytes(
    tmp_path: Path, flags: str, expected: bool
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    assert has_vnni(tmp_path / "cpuinfo") is expected
    assert not has_vnni(tmp_path / "none")
