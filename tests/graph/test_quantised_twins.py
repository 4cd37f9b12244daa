"""Graphs that ONNX Runtime's own quantizer made: the macs and parameters of their float twin."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from slicewise.core.graph import Binding, Graph
from slicewise.core.precision import PRECISIONS, DType
from slicewise.graph.frontends._base import load
from slicewise.graph.precision import cast, own_precision
from slicewise.graph.work import count_work

quantization = pytest.importorskip("onnxruntime.quantization")
pytestmark = pytest.mark.filterwarnings("ignore")


class Calibration:
    """Two random images, then none, as the quantizer asks for them."""

    def __init__(self) -> None:
        self.images: Iterator[dict[str, np.ndarray]] = iter(
            [{"x": np.random.default_rng(seed).random((1, 3, 8, 8), "f4")} for seed in (0, 1)]
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.images, None)


def write_float(path: Path) -> None:
    """Write Conv, depthwise Conv with a skip, pool, MatMul, Gemm."""
    generator = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(generator.normal(size=shape).astype("f4"), name)

    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["c"], group=8, pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["b", "c"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("MatMul", ["f", "w3"], ["g"]),
        helper.make_node("Gemm", ["g", "w4", "b4"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])]
    weights = [
        weight("w1", 8, 3, 3, 3), weight("b1", 8), weight("w2", 8, 1, 3, 3),
        weight("w3", 8, 16), weight("w4", 16, 10), weight("b4", 10),
    ]  # fmt: skip
    graph = helper.make_graph(nodes, "twin", inputs, outputs, weights)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Graph]:
    """The float graph and what the quantizer makes of it, by method."""
    folder = tmp_path_factory.mktemp("twins")
    source = folder / "float.onnx"
    write_float(source)
    quantization.quantize_dynamic(source, folder / "dynamic.onnx")
    for name, form in (("qdq", "QDQ"), ("qoperator", "QOperator")):
        for per_channel in (False, True):
            quantization.quantize_static(
                source,
                folder / f"{name}{'-per-channel' if per_channel else ''}.onnx",
                Calibration(),
                quant_format=quantization.QuantFormat[form],
                per_channel=per_channel,
            )
    binding = Binding(batch_size=2)
    return {path.stem: load(str(path), binding) for path in sorted(folder.glob("*.onnx"))}


METHODS = ("dynamic", "qdq", "qdq-per-channel", "qoperator", "qoperator-per-channel")


@pytest.mark.parametrize("method", METHODS)
def test_macs_and_parameters_are_those_of_the_float_twin(
    twins: dict[str, Graph], method: str
) -> None:
    assert count_work(twins[method]).total.macs == count_work(twins["float"]).total.macs
    assert twins[method].parameters == twins["float"].parameters


@pytest.mark.parametrize("method", METHODS)
def test_every_contraction_computes_in_int8(twins: dict[str, Graph], method: str) -> None:
    work = count_work(twins[method])
    assert [node.dtype for node in work.nodes if node.contraction] == [DType.INT8] * 4
    fused = ["qdq-fused"] if method.startswith("qdq") else []
    assert [note.code for note in work.notes] == fused


@pytest.mark.parametrize("suffix", ["", "-per-channel"])
def test_both_forms_of_one_quantised_network_move_the_same_activations(
    twins: dict[str, Graph], suffix: str
) -> None:
    # QLinearConv and DequantizeLinear -> Conv -> QuantizeLinear are the same kernel
    pairs, fused = (count_work(twins[form + suffix]).total for form in ("qdq", "qoperator"))
    assert (pairs.read_bytes, pairs.write_bytes) == (fused.read_bytes, fused.write_bytes)


@pytest.mark.parametrize("method", [m for m in METHODS if m != "dynamic"])
def test_a_statically_quantised_network_moves_less_than_its_float_twin(
    twins: dict[str, Graph], method: str
) -> None:
    quantised, plain = count_work(twins[method]).total, count_work(twins["float"]).total
    assert quantised.moved_bytes < plain.moved_bytes / 2


@pytest.mark.parametrize("method", METHODS)
def test_the_graph_is_in_int8_and_stays_as_its_author_quantised_it(
    twins: dict[str, Graph], method: str
) -> None:
    assert own_precision(twins[method]) == PRECISIONS["int8"]
    assert cast(twins[method], PRECISIONS["int8"]) is twins[method]


@pytest.mark.parametrize("method", METHODS)
def test_weights_take_less_than_half_of_the_float_bytes(
    twins: dict[str, Graph], method: str
) -> None:
    quantised, plain = count_work(twins[method]).total, count_work(twins["float"]).total
    assert quantised.weight_bytes < plain.weight_bytes / 2
