"""Trained networks as one ONNX model: members side by side, embeddings as tables.

Inputs: `context` [kernels, contexts], `basis_us` [kernels, causes], `figures` [1, figures],
`device` [1] and `under` [1] (numbers in the vocabulary, 0 for what was never seen). Outputs, one
row for each member: `kernels_us` [members, kernels], `launch` [members] and `host_us` [members].
"""

from collections.abc import Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from slicewise.predict.basis import BASIS
from slicewise.predict.conditions import FIGURES
from slicewise.predict.context import CONTEXT
from training.network import HOST_US, Slowdowns

OPSET = 17


def as_onnx(networks: Sequence[Slowdowns]) -> onnx.ModelProto:
    """Return the networks as one model."""
    made = _Maker(networks)
    made.linear("first", made.scaled("context"), "hidden")
    made.curved("hidden")
    made.linear("second", "hidden_made", "trunk")
    made.curved("trunk")
    made.embedded()
    made.linear("condition", "told", "condition")
    made.silu("condition")
    made.linear("modulate", "condition_silu", "modulation")
    made.node("Split", ("modulation",), ("gain", "shift"), axis=-1)
    made.node("Mul", ("trunk_made", "gain"), ("amplified",))
    made.node("Add", ("trunk_made", "amplified"), ("larger",))
    made.node("Add", ("larger", "shift"), ("modulated",))
    made.linear("theta", "modulated", "theta_own")
    made.linear("theta_condition", "condition_silu", "theta_told")
    made.node("Add", ("theta_own", "theta_told"), ("theta",))
    ends = made.number("least", -12.0), made.number("most", made.settings.largest)
    made.node("Clip", ("theta", *ends), ("clear",))
    made.node("Exp", ("clear",), ("factor",))
    made.node("Mul", ("factor", "basis_us"), ("parts",))
    axis = made.constant("last", np.array([-1], dtype=np.int64))
    made.node("ReduceSum", ("parts", axis), ("kernels_us",), keepdims=0)
    for name, unit in (("launch", 1.0), ("host", HOST_US)):
        made.linear(name, "condition_silu", f"{name}_log")
        made.node("Exp", (f"{name}_log",), (f"{name}_each",))
        made.node("Mul", (f"{name}_each", made.number(f"{name}_unit", unit)), (f"{name}_scaled",))
        flat = made.constant(f"{name}_shape", np.array([len(networks)], dtype=np.int64))
        made.node("Reshape", (f"{name}_scaled", flat),
                  ("launch" if name == "launch" else "host_us",))  # fmt: skip
    return made.model()


class _Maker:
    """Gathers nodes and weights of the model."""

    def __init__(self, networks: Sequence[Slowdowns]) -> None:
        self.networks = networks
        self.settings = networks[0].settings
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def node(
        self, op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: object
    ) -> None:
        self.nodes.append(helper.make_node(op, list(inputs), list(outputs), **attributes))

    def constant(self, name: str, value: NDArray[np.generic]) -> str:
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def number(self, name: str, value: float) -> str:
        return self.constant(name, np.array(value, dtype=np.float32))

    def stacked(self, name: str, of: str) -> NDArray[np.float32]:
        parts = [network.state_dict()[f"{name}.{of}"].numpy() for network in self.networks]
        return np.stack(parts).astype(np.float32)

    def scaled(self, name: str) -> str:
        states = [network.state_dict() for network in self.networks]
        mean, scale = (np.stack([state[each].numpy() for state in states])[:, None, :]
                       for each in ("mean", "scale"))  # fmt: skip
        self.node("Sub", (name, self.constant("mean", mean)), (f"{name}_centred",))
        self.node("Div", (f"{name}_centred", self.constant("scale", scale)), (f"{name}_even",))
        reach = self.settings.reach
        ends = self.number("lowest", -reach), self.number("highest", reach)
        self.node("Clip", (f"{name}_even", *ends), (f"{name}_scaled",))
        return f"{name}_scaled"

    def linear(self, layer: str, source: str, target: str) -> None:
        weight = self.stacked(layer, "weight").transpose(0, 2, 1).copy()
        self.constant(f"{layer}_weight", weight)
        has_bias = f"{layer}.bias" in self.networks[0].state_dict()
        product = f"{target}_product" if has_bias else target
        self.node("MatMul", (source, f"{layer}_weight"), (product,))
        if has_bias:
            bias = self.constant(f"{layer}_bias", self.stacked(layer, "bias")[:, None, :])
            self.node("Add", (product, bias), (target,))

    def silu(self, name: str, target: str = "") -> None:
        self.node("Sigmoid", (name,), (f"{name}_gate",))
        self.node("Mul", (name, f"{name}_gate"), (target or f"{name}_silu",))

    def curved(self, name: str) -> None:
        if self.settings.is_bounded:
            self.node("Tanh", (name,), (f"{name}_made",))
        else:
            self.silu(name, f"{name}_made")

    def embedded(self) -> None:
        parts = []
        for table in ("device", "under"):
            weight = self.stacked(table, "weight")
            weight[:, 0] = 0.0
            self.constant(f"{table}_table", weight)
            self.node("Gather", (f"{table}_table", table), (f"{table}_vector",), axis=1)
            parts.append(f"{table}_vector")
        members = np.array([len(self.networks), 1, len(FIGURES)], dtype=np.int64)
        self.node("Expand", ("figures", self.constant("members", members)), ("each_figures",))
        self.node("Concat", ("each_figures", *parts), ("told",), axis=-1)

    def model(self) -> onnx.ModelProto:
        def tensor(name: str, kind: int, *shape: object) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, kind, list(shape))

        members = len(self.networks)
        graph = helper.make_graph(
            self.nodes,
            "slowdowns",
            [
                tensor("context", TensorProto.FLOAT, "kernels", len(CONTEXT)),
                tensor("basis_us", TensorProto.FLOAT, "kernels", len(BASIS)),
                tensor("figures", TensorProto.FLOAT, 1, len(FIGURES)),
                tensor("device", TensorProto.INT64, 1),
                tensor("under", TensorProto.INT64, 1),
            ],
            [
                tensor("kernels_us", TensorProto.FLOAT, members, "kernels"),
                tensor("launch", TensorProto.FLOAT, members),
                tensor("host_us", TensorProto.FLOAT, members),
            ],
            self.weights,
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="slicewise"
        )
        model.ir_version = 8
        onnx.checker.check_model(model)
        return model
