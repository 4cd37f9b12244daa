"""From a model's graph to operations: which nodes become one kernel, and which none takes.

A product or a convolution takes what follows it into its epilogue (batch norm, bias, a residual,
an activation) where nobody else reads the value in between. Shapes only; no weights are read.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from slicewise.core.graph import Graph, Node, reads_of
from slicewise.core.notes import Note
from slicewise.core.precision import DType
from slicewise.core.tuning import Workload, workload_key
from slicewise.tune.backends.triton.operations import ACTIVATIONS, Operation
from slicewise.tune.workloads import distinct_operators

_STORED = {DType.FP32: "fp32", DType.FP16: "fp16", DType.BF16: "bf16"}
_ACTIVATED_BY = {"Relu": "relu", "Gelu": "gelu", "Swish": "silu"}


class _NoKernel(Exception):
    """No kernel takes this node; the text says why."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The workloads of a model, heaviest first, the operation of each by key, and notes about
    operators that are left out."""

    workloads: tuple[Workload, ...]
    operations: Mapping[str, Operation]
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class _Found:
    op: Operation
    nodes: tuple[Node, ...]


def read_operations(graph: Graph, node_ms: Mapping[str, float], precision: str | None) -> Reading:
    """Return the workloads of a graph that kernels exist for, in `precision` or the model's own.

    A node's latency counts for the kernel that it is part of. What is left out is noted once for
    each reason, with its first node.
    """
    readers = _readers(graph)
    taken: set[str] = set()
    found: dict[str, list[_Found]] = {}
    refused: dict[tuple[str, str], list[Node]] = {}
    working = {name for each in distinct_operators(graph, node_ms) for name in each.nodes}
    for node in graph.nodes:
        if node.name in taken or node.name not in working:
            continue
        try:
            one = _read(graph, node, precision, readers)
        except _NoKernel as why:
            refused.setdefault((node.op_type, str(why)), []).append(node)
            continue
        taken.update(each.name for each in one.nodes)
        found.setdefault(one.op.text, []).append(one)
    made = [_workload(graph, same, node_ms) for same in found.values()]
    made.sort(key=lambda each: (-each.weight_ms, each.key))
    return Reading(
        tuple(made),
        {operation_key(same[0].op): same[0].op for same in found.values()},
        tuple(_notes(refused, taken)),
    )


def operation_key(op: Operation) -> str:
    """Return the key of the workload that an operation is, whatever the model."""
    return workload_key("triton", op.text)


def _workload(graph: Graph, same: list[_Found], node_ms: Mapping[str, float]) -> Workload:
    first = same[0]
    names = tuple(node.name for each in same for node in each.nodes)
    op_types = tuple(dict.fromkeys(node.op_type for node in first.nodes))
    shapes = [
        "x".join(map(str, shape)) for name, shape in first.op.shapes.items() if name in _SHOWN
    ]
    return Workload(
        key=operation_key(first.op),
        name=" ".join(["+".join(op_types), *shapes, first.op.precision]),
        op_types=op_types,
        count=len(same),
        weight_ms=sum(node_ms.get(name, 0.0) for name in names),
        nodes=names,
        kin=f"triton {first.op.kind} {first.op.precision}",
    )


_SHOWN = frozenset({"a", "b", "x", "weight", "query", "key"})


def _notes(refused: Mapping[tuple[str, str], list[Node]], taken: set[str]) -> Iterator[Note]:
    by_reason: dict[str, dict[str, list[Node]]] = {}
    for (op_type, why), nodes in refused.items():
        if left := [node for node in nodes if node.name not in taken]:
            by_reason.setdefault(why, {})[op_type] = left
    for why, kinds in by_reason.items():
        told = ", ".join(f"{len(left)} x {op_type}" for op_type, left in kinds.items())
        first = next(iter(kinds.values()))[0]
        yield Note("operator-not-tuned", f"{why}: {told}; left as they are", node=first.name)


def _read(
    graph: Graph, node: Node, precision: str | None, readers: Mapping[str, list[Node]]
) -> _Found:
    reader = _READERS.get(node.op_type)
    if reader is None:
        raise _NoKernel("no Triton kernel exists")
    op = reader(graph, node, _precision(graph, node, precision))
    found = _Found(op, (node,))
    if op.kind in ("matmul", "conv"):
        found = _with_epilogue(graph, found, readers)
    if why := found.op.refusal:
        raise _NoKernel(why)
    return found


def _precision(graph: Graph, node: Node, asked: str | None) -> str:
    dtype = graph.tensors[node.inputs[0]].dtype
    if dtype not in _STORED:
        raise _NoKernel(f"kernels take fp32, fp16 and bf16, not {dtype}")
    return _STORED[dtype] if asked is None else asked


def _shape(graph: Graph, name: str) -> tuple[int, ...]:
    tensor = graph.tensors.get(name)
    if tensor is None or tensor.shape is None:
        raise _NoKernel("a shape is not known")
    if 0 in tensor.shape:
        raise _NoKernel("a tensor is empty")
    return tensor.shape


def _input(node: Node, place: int) -> str:
    """Return the name of an input, '' where it is left out."""
    return node.inputs[place] if place < len(node.inputs) else ""


def _integers(node: Node, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    value = node.attrs.get(name)
    return tuple(int(each) for each in value) if isinstance(value, tuple) else default


def _real(node: Node, name: str, default: float) -> float:
    value = node.attrs.get(name, default)
    return float(value) if isinstance(value, int | float) else default


# --- each kind


def _gemm(graph: Graph, node: Node, precision: str) -> Operation:
    a, b = _shape(graph, node.inputs[0]), _shape(graph, node.inputs[1])
    if _real(node, "alpha", 1.0) != 1.0 or _real(node, "beta", 1.0) != 1.0:
        raise _NoKernel("alpha or beta is not 1")
    trans_a, trans_b = int(bool(node.attrs.get("transA"))), int(bool(node.attrs.get("transB")))
    if len(b) != 2 or (trans_a and len(a) != 2):
        raise _NoKernel(f"factors of {len(a)} and {len(b)} axes are no plain product")
    k, m = (a[0], a[1]) if trans_a else (a[-1], math.prod(a[:-1]))
    n = b[0] if trans_b else b[1]
    op = Operation.make(
        "matmul", precision, batch=1, m=m, n=n, k=k, trans_a=trans_a, trans_b=trans_b
    )
    added = _input(node, 2)
    return _with_term(op, _shape(graph, added)) if added else op


def _with_term(op: Operation, shape: tuple[int, ...]) -> Operation:
    """Return a product with a term of that shape added, as bias or as residual."""
    n, out = op["n"], (op["batch"] * op["m"], op["n"])
    wide = tuple(shape[i] for i in range(len(shape)) if shape[i] != 1 or i == len(shape) - 1)
    if wide == (n,):
        return _changed(op, bias=1)
    if shape and (math.prod(shape[:-1]), shape[-1]) == out:
        return _changed(op, residual=1)
    raise _NoKernel(f"a term of shape {'x'.join(map(str, shape))} is added")


def _changed(op: Operation, **sizes: int) -> Operation:
    return replace(op, sizes=tuple((name, sizes.get(name, value)) for name, value in op.sizes))


def _matmul(graph: Graph, node: Node, precision: str) -> Operation:
    a, b = _shape(graph, node.inputs[0]), _shape(graph, node.inputs[1])
    if not a or not b:
        raise _NoKernel("a factor is a single number")
    a = a if len(a) > 1 else (1, *a)
    b = b if len(b) > 1 else (*b, 1)
    side_a, side_b = a[:-2], b[:-2]
    k, n = a[-1], b[-1]
    if math.prod(side_b) == 1:
        return Operation.make("matmul", precision, batch=1, m=math.prod(a[:-1]), n=n, k=k)
    if math.prod(side_a) == 1:
        batch = math.prod(side_b)
        return Operation.make("matmul", precision, batch=batch, m=a[-2], n=n, k=k, b_batched=1)
    if side_a != side_b:
        raise _NoKernel("its factors are repeated along some batch axes only")
    return Operation.make(
        "matmul", precision, batch=math.prod(side_a), m=a[-2], n=n, k=k, a_batched=1, b_batched=1
    )


def _conv(graph: Graph, node: Node, precision: str) -> Operation:
    x, weight = _shape(graph, node.inputs[0]), _shape(graph, node.inputs[1])
    out = _shape(graph, node.outputs[0])
    axes = len(x) - 2
    if axes not in (1, 2):
        raise _NoKernel(f"it has {axes} spatial axes, kernels 1 or 2")
    if node.attrs.get("group", 1) != 1:
        raise _NoKernel("it has groups")
    if node.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise _NoKernel("its padding is given by a rule")
    ones = (1,) * axes
    strides, dilations = _integers(node, "strides", ones), _integers(node, "dilations", ones)
    pads = _integers(node, "pads", (0,) * (2 * axes))[:axes]
    if min(pads) < 0:
        raise _NoKernel("its padding cuts values off")
    # a single axis is the last of two
    high = (1,) * (2 - axes)
    (h, w), (kh, kw), (out_h, out_w) = ((*high, *s[2:]) for s in (x, weight, out))
    (stride_h, stride_w), (dilation_h, dilation_w) = (*high, *strides), (*high, *dilations)
    pad_h, pad_w = (*((0,) * (2 - axes)), *pads)
    return Operation.make(
        "conv", precision, n=x[0], c=x[1], h=h, w=w, o=weight[0], kh=kh, kw=kw,
        stride_h=stride_h, stride_w=stride_w, pad_h=pad_h, pad_w=pad_w, out_h=out_h, out_w=out_w,
        dilation_h=dilation_h, dilation_w=dilation_w, bias=int(bool(_input(node, 2))),
    )  # fmt: skip


def _softmax(graph: Graph, node: Node, precision: str) -> Operation:
    shape = _shape(graph, node.inputs[0])
    axis = node.attrs.get("axis", -1)
    if not shape or axis not in (-1, len(shape) - 1):
        raise _NoKernel("it is not over the last axis")
    return Operation.make("softmax", precision, rows=math.prod(shape[:-1]), columns=shape[-1])


def _norm(graph: Graph, node: Node, precision: str) -> Operation:
    shape = _shape(graph, node.inputs[0])
    axis = node.attrs.get("axis", -1)
    if not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
        raise _NoKernel("its axis is not one of the input's")
    columns = math.prod(shape[axis:])
    for place in (1, 2):
        name = _input(node, place)
        if name and math.prod(_shape(graph, name)) != columns:
            raise _NoKernel("its scale or bias is not one value a column")
    is_rms = node.op_type != "LayerNormalization"
    return Operation.make(
        "norm", precision, number=_real(node, "epsilon", 1e-5),
        rows=math.prod(shape) // columns, columns=columns, rms=int(is_rms),
        scale=int(bool(_input(node, 1))), bias=int(not is_rms and bool(_input(node, 2))),
    )  # fmt: skip


def _attention(graph: Graph, node: Node, precision: str) -> Operation:
    query, key, value = (_shape(graph, name) for name in node.inputs[:3])
    if len(query) != 4 or len(key) != 4:
        raise _NoKernel("its heads are not an axis of their own")
    if value != key:
        raise _NoKernel("keys and values differ in shape")
    if any(_input(node, place) for place in (4, 5, 6)):
        raise _NoKernel("it has a cache of keys")
    if _real(node, "softcap", 0.0):
        raise _NoKernel("it caps scores")
    if len([name for name in node.outputs if name]) > 1:
        raise _NoKernel("it has more than one output")
    batch, heads, q, depth = query
    sizes: dict[str, int] = {}
    if mask := _input(node, 3):
        is_boolean = graph.tensors[mask].dtype is DType.BOOL
        sizes = _mask_sizes(_shape(graph, mask), batch=batch, heads=heads, q=q, kv=key[2])
        sizes["mask"] = 1 if is_boolean else 2
    return Operation.make(
        "attention", precision, number=_real(node, "scale", 0.0) or depth**-0.5,
        batch=batch, heads=heads, kv_heads=key[1], q=q, kv=key[2], depth=depth,
        causal=int(bool(node.attrs.get("is_causal"))), **sizes,
    )  # fmt: skip


def _mask_sizes(
    shape: tuple[int, ...], *, batch: int, heads: int, q: int, kv: int
) -> dict[str, int]:
    full = (1,) * (4 - len(shape)) + shape
    wanted = (batch, heads, q, kv)
    if len(full) != 4 or full[3] != kv or any(a not in (1, b) for a, b in zip(full, wanted)):  # noqa: B905
        raise _NoKernel(f"its mask of shape {'x'.join(map(str, shape))} does not fit its scores")
    names = ("mask_batched", "mask_heads", "mask_rows")
    return {name: int(full[i] > 1) for i, name in enumerate(names)}


_READERS: Mapping[str, Callable[[Graph, Node, str], Operation]] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Conv": _conv,
    "Softmax": _softmax,
    "LayerNormalization": _norm,
    "RMSNormalization": _norm,
    "SimplifiedLayerNormalization": _norm,
    "Attention": _attention,
}


# --- epilogues


def _readers(graph: Graph) -> Mapping[str, list[Node]]:
    """Return who reads each tensor; an output of the model counts as read twice."""
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in dict.fromkeys(reads_of(node)):
            readers.setdefault(name, []).append(node)
    for name in graph.outputs:
        readers.setdefault(name, []).extend(graph.nodes[-1:] * 2)
    return readers


def _with_epilogue(graph: Graph, found: _Found, readers: Mapping[str, list[Node]]) -> _Found:
    """Return the kernel with what follows it, in the order that the kernels know: batch norm
    (folded into weights and bias), a bias, a residual, an activation."""
    while found.op.activation == "none":
        value = found.nodes[-1].outputs[0]
        following = readers.get(value, [])
        if len(following) != 1 or any(found.nodes[-1].outputs[1:]):
            return found
        try:
            op = _absorbed(graph, found.op, following[0], value)
        except _NoKernel:
            return found
        found = _Found(op, (*found.nodes, following[0]))
    return found


def _absorbed(graph: Graph, op: Operation, node: Node, value: str) -> Operation:
    if node.op_type in _ACTIVATED_BY and _real(node, "alpha", 1.0) == 1.0:
        name = _ACTIVATED_BY[node.op_type]
        if node.attrs.get("approximate", "none") == "tanh":
            name = "gelu-tanh"
        return _changed(op, activation=ACTIVATIONS.index(name))
    if node.op_type == "BatchNormalization" and op.kind == "conv" and node.inputs[0] == value:
        if op["residual"]:
            raise _NoKernel("a residual comes before the batch norm")
        return _changed(op, bias=1)
    if node.op_type != "Add" or node.inputs[0] == node.inputs[1]:
        raise _NoKernel("it is no part of an epilogue")
    other = node.inputs[1] if node.inputs[0] == value else node.inputs[0]
    if _shape(graph, node.outputs[0]) != _shape(graph, value):
        raise _NoKernel("the sum is larger than the product")
    changed = _added(graph, op, other, value)
    if (changed["bias"] and op["bias"] and not changed["residual"]) or op["residual"]:
        raise _NoKernel("a second term is added")
    return changed


def _added(graph: Graph, op: Operation, other: str, value: str) -> Operation:
    """Return the kernel with the tensor `other` added to its result."""
    shape = _shape(graph, other)
    if other not in graph.constants and shape == _shape(graph, value):
        return _changed(op, residual=1)
    if op.kind == "matmul" and op["batch"] == 1 and other in graph.constants:
        return _with_term(op, shape)
    raise _NoKernel("what is added is neither a bias nor of the same shape")
