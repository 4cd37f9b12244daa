"""Models written in few words, and models with the batch baked in as exporters do it.

No weight has bytes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

F: int = TensorProto.FLOAT
I64: int = TensorProto.INT64
Dims = Sequence[int] | None


def tensor(name: str, dims: Dims = None, elem_type: int = F) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, dims)


def ints(name: str, *values: int) -> TensorProto:
    return onnx.numpy_helper.from_array(np.array(values, np.int64), name)


def scalar(name: str, value: int) -> TensorProto:
    return onnx.numpy_helper.from_array(np.array(value, np.int64), name)


def weight(name: str, *dims: int, elem_type: int = F) -> TensorProto:
    """A weight without its bytes."""
    return TensorProto(name=name, data_type=elem_type, dims=dims)


def node(op_type: str, ins: str, outs: str, **attributes: Any) -> onnx.NodeProto:
    """A node from blank-separated value names; '-' is an absent one."""
    names = [["" if x == "-" else x for x in text.split()] for text in (ins, outs)]
    return helper.make_node(op_type, *names, name=f"{op_type}_{names[1][0]}", **attributes)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    constants: Sequence[TensorProto] = (),
    *,
    outputs: str = "y",
    opset: int = 17,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    outs = [onnx.ValueInfoProto(name=name) for name in outputs.split()]
    graph = helper.make_graph(list(nodes), "test", list(inputs), outs, list(constants))
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions))


def transformer(batch: int, old: int, *, free: bool, first: bool = True) -> onnx.ModelProto:
    """Patches, class token, one attention block with all shapes baked at batch `old`."""
    seq, width, heads = 16, 24, 3
    tokens, size = seq + 1, width // heads
    nodes = [
        node("Conv", "x patch", "p", kernel_shape=[4, 4], strides=[4, 4]),
        node("Reshape", "p to_tokens", "t"),
        node("Transpose", "t", "tt", perm=[0, 2, 1]),
        node("Concat", "cls tt", "c", axis=1),
        node("Add", "c pos", "e"),
    ]
    for name in "qkv":
        nodes += [
            node("MatMul", f"e w{name}", f"{name}1"),
            node("Reshape", f"{name}1 to_heads", f"{name}2"),
            node("Transpose", f"{name}2", f"{name}3", perm=[0, 2, 1, 3]),
            node("Reshape", f"{name}3 merged", f"{name}4"),
        ]
    nodes += [
        node("Transpose", "k4", "kt", perm=[0, 2, 1]),
        node("MatMul", "q4 kt", "s"),
        node("Softmax", "s", "a", axis=-1),
        node("MatMul", "a v4", "o"),
        node("Reshape", "o unmerged", "o2"),
        node("Transpose", "o2", "o3", perm=[0, 2, 1, 3]),
        node("Reshape", "o3 joined", "o4"),
        node("Gather", "o4 zero", "g", axis=1),
        node("Reshape", "g flat", "y"),
    ]
    constants = [
        weight("patch", width, 3, 4, 4),
        weight("cls", old, 1, width),
        weight("pos", 1, tokens, width),
        *(weight(f"w{name}", width, width) for name in "qkv"),
        ints("to_tokens", old, width, -1 if free else seq),
        ints("to_heads", old, -1 if free else tokens, heads, size),
        ints("merged", old * heads, -1 if free else tokens, size),
        ints("unmerged", old, heads, -1 if free else tokens, size),
        ints("joined", old, -1 if free else tokens, width),
        scalar("zero", 0),
        ints("flat", old, -1 if free else width),
    ]
    return model(nodes, [tensor("x", (batch, 3, 16, 16))], constants)


def lstm(batch: int, *, layout: int = 0) -> onnx.ModelProto:
    """[batch, seq, features] transposed into an LSTM whose states are made for one item."""
    state = (1, 1, 16)
    nodes = [node("ConstantOfShape", "state", "h")]
    if not layout:
        nodes.append(node("Transpose", "x", "xt", perm=[1, 0, 2]))
    nodes.append(
        node(
            "LSTM",
            f"{'x' if layout else 'xt'} w r - - h c",
            "s y",
            hidden_size=16,
            layout=layout,
        )
    )
    constants = [
        ints("state", *state),
        weight("c", *state),
        weight("w", 1, 64, 4),
        weight("r", 1, 64, 16),
    ]
    return model(nodes, [tensor("x", (batch, 5, 4))], constants, outputs="s y")


def decoder(batch: int, seq: int, past: int, *, layers: int = 2) -> onnx.ModelProto:
    """Grouped heads, a cache, rotary halves; every Reshape target computed from Shape."""
    heads, groups, size = 8, 2, 16
    width = heads * size
    nodes: list[onnx.NodeProto] = []
    constants = [
        scalar("i0", 0), scalar("i1", 1), scalar("i3", 3), scalar("half", 2), ints("a0", 0),
        ints("a2", 2), ints("a3", 3), ints("end", 2**63 - 1), ints("nh", heads),
        ints("ng", groups), ints("nd", size), ints("rep", heads // groups), ints("free", -1),
        weight("table", 99, width),
    ]  # fmt: skip
    inputs = [tensor("ids", (batch, seq), I64)]
    nodes.append(node("Gather", "table ids", "x0"))

    def dims(source: str, tag: str, *which: int) -> list[str]:
        nodes.append(node("Shape", source, f"{tag}_s"))
        names = []
        for axis in which:
            nodes.append(node("Gather", f"{tag}_s d{axis}", f"{tag}_d{axis}", axis=0))
            names.append(f"{tag}_d{axis}")
        return names

    constants += [ints(f"d{axis}", axis) for axis in range(4)]
    for layer in range(layers):
        x = f"x{layer}"
        for name, count in (("q", "nh"), ("k", "ng"), ("v", "ng")):
            tag = f"{name}{layer}"
            out = width if name == "q" else groups * size
            constants.append(weight(f"w{tag}", width, out))
            nodes.append(node("MatMul", f"{x} w{tag}", f"{tag}m"))
            b, s = dims(f"{tag}m", tag, 0, 1)
            nodes += [
                node("Concat", f"{b} {s} {count} nd", f"{tag}t", axis=0),
                node("Reshape", f"{tag}m {tag}t", f"{tag}r"),
                node("Transpose", f"{tag}r", f"{tag}h", perm=[0, 2, 1, 3]),
            ]
        for name in "qk":
            tag = f"{name}{layer}"
            (last,) = dims(f"{tag}h", f"{tag}rot", 3)
            nodes += [
                node("Div", f"{last} half", f"{tag}mid"),
                node("Slice", f"{tag}h a0 {tag}mid a3", f"{tag}lo"),
                node("Slice", f"{tag}h {tag}mid end a3", f"{tag}hi"),
                node("Neg", f"{tag}hi", f"{tag}neg"),
                node("Concat", f"{tag}neg {tag}lo", f"{tag}turned", axis=3),
                node("Add", f"{tag}h {tag}turned", f"{tag}e"),
            ]
        for name, fresh in (("k", f"k{layer}e"), ("v", f"v{layer}h")):
            tag = f"{name}{layer}"
            inputs.append(tensor(f"past_{tag}", (batch, groups, past, size)))
            nodes.append(node("Concat", f"past_{tag} {fresh}", f"present_{tag}", axis=2))
            b, g, t, d = dims(f"present_{tag}", f"{tag}rep", 0, 1, 2, 3)
            nodes += [
                node("Unsqueeze", f"present_{tag} a2", f"{tag}u"),
                node("Concat", f"{b} {g} rep {t} {d}", f"{tag}et", axis=0),
                node("Expand", f"{tag}u {tag}et", f"{tag}x"),
                node("Concat", f"{b} nh {t} {d}", f"{tag}ft", axis=0),
                node("Reshape", f"{tag}x {tag}ft", f"{tag}all"),
            ]
        b, s = dims(x, f"o{layer}", 0, 1)
        constants.append(weight(f"wo{layer}", width, width))
        nodes += [
            node("Transpose", f"k{layer}all", f"kt{layer}", perm=[0, 1, 3, 2]),
            node("MatMul", f"q{layer}e kt{layer}", f"score{layer}"),
            node("Softmax", f"score{layer}", f"prob{layer}", axis=-1),
            node("MatMul", f"prob{layer} v{layer}all", f"mix{layer}"),
            node("Transpose", f"mix{layer}", f"back{layer}", perm=[0, 2, 1, 3]),
            node("Concat", f"{b} {s} free", f"ot{layer}", axis=0),
            node("Reshape", f"back{layer} ot{layer}", f"flat{layer}"),
            node("MatMul", f"flat{layer} wo{layer}", f"out{layer}"),
            node("Add", f"x{layer} out{layer}", f"x{layer + 1}"),
        ]
    return model(nodes, inputs, constants, outputs=f"x{layers}")
