"""Tell the precision a graph is in, and give the graph as it is stored in another one.

Types and stored bytes change, nothing else: shapes, operators and wiring stay. Speed is not known
here; `count_work(graph, precision.compute)` reports the arithmetic of the contractions.

Conventions (ours, after how engines build a network):
- Every float activation takes the activation type, inputs and outputs of the graph included,
  except in amp, where autocast mixes two (`autocast.py`). In int8 that is 8 bits throughout, as in
  a TensorRT INT8 engine whose layers all take INT8.
- Factors of contractions (Conv, MatMul, Gemm, attention projections, recurrences) take the weight
  type; so do embedding tables in int8 (ONNX Runtime's quantizer includes Gather) but not in fp8
  and nvfp4, whose published checkpoints keep them in 16 bits.
- Other parameters (biases, scales of norms) and running statistics take the activation type, or
  fp32 where activations are int8, and fp32 in amp (torch autocast casts no stored parameter).
- Integers, booleans and data constants stay; what is already kept in fewer bytes stays so.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from slicewise.core.graph import Constant, Graph, Node, Role, Tensor, captured_by
from slicewise.core.precision import PRECISIONS, DType, Precision
from slicewise.graph.autocast import autocast_types
from slicewise.graph.fuse import NARROW_ARITHMETIC
from slicewise.graph.ops import Slot, operator

_WIDE_FLOATS = frozenset({DType.FP64, DType.FP32, DType.FP16, DType.BF16})
_OWN = {
    DType.FP64: Precision("fp64", DType.FP64, DType.FP64, DType.FP64),
    DType.FP32: PRECISIONS["fp32"],
    DType.FP16: PRECISIONS["fp16"],
    DType.BF16: PRECISIONS["bf16"],
    DType.FP8: PRECISIONS["fp8"],
    DType.FP4: PRECISIONS["nvfp4"],
    DType.INT8: PRECISIONS["int8"],
}
# operators that hand their first input on, so that a constant behind them is still a weight
_CARRIERS = frozenset(
    {"Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Cast"}
)
# NVFP4: 4-bit values (E2M1) and an FP8 scale for each block of 16 (NVIDIA, Introducing NVFP4 for
# Efficient and Accurate Low-Precision Inference, June 2025); its one FP32 scale for a tensor is
# left out
_NVFP4_BLOCK = 16


def own_precision(graph: Graph) -> Precision:
    """Return the precision that most of a graph's parameters are in.

    int8 (fp8) where activations are quantised and at least half the parameters are too; else the
    float type that holds most stored bytes, weight-only quantisation counting for the type of the
    activations; without parameters the type of the first float input; else fp32.
    """
    votes = _Votes()
    votes.read(graph)
    return _OWN[votes.winner(graph)]


class _Votes:
    """Parameters of a graph and its bodies, counted by how they are kept."""

    def __init__(self) -> None:
        self.float_bytes: Counter[DType] = Counter()
        self.float_elements = 0
        self.quantised_elements = 0
        self.quantised_bytes = 0
        self.activations: Counter[DType] = Counter()
        self.arithmetic: Counter[DType] = Counter()

    def read(self, graph: Graph) -> None:
        """Count the parameters, activations and 8-bit products of a graph and its bodies."""
        for name, constant in graph.constants.items():
            if constant.role is Role.PARAMETER and name in graph.tensors:
                self._read_parameter(graph.tensors[name], constant)
        for name, tensor in graph.tensors.items():
            if name not in graph.constants and tensor.dtype in _WIDE_FLOATS:
                self.activations[tensor.dtype] += tensor.elements
        for node in graph.nodes:
            self._read_node(node, graph)
            for body in node.bodies:
                self.read(body)

    def _read_parameter(self, tensor: Tensor, constant: Constant) -> None:
        if tensor.dtype.is_float and constant.stored_bytes >= tensor.size_bytes:
            self.float_bytes[tensor.dtype] += constant.stored_bytes
            self.float_elements += tensor.elements
        else:
            self.quantised_elements += tensor.elements
            self.quantised_bytes += constant.stored_bytes

    def _read_node(self, node: Node, graph: Graph) -> None:
        row = operator(node.domain, node.op_type)
        if row is not None and row.macs is not None:
            first = graph.tensors.get(node.inputs[0]) if node.inputs else None
            is_small = first is not None and first.dtype in (DType.INT8, DType.UINT8)
            self.arithmetic[DType.INT8] += row.is_integer or is_small
        elif node.op_type == "DequantizeLinear" and node.inputs[0] not in graph.constants:
            source = graph.tensors.get(node.inputs[0])
            kernel = None if source is None else NARROW_ARITHMETIC.get(source.dtype)
            if kernel is not None:
                self.arithmetic[kernel] += 1

    def winner(self, graph: Graph) -> DType:
        """Return the type that stands for the precision of the graph counted."""
        if any(self.arithmetic.values()) and self.quantised_elements >= max(
            1, self.float_elements
        ):
            return max(self.arithmetic, key=lambda dtype: self.arithmetic[dtype])
        floats = Counter(self.float_bytes)
        if self.quantised_elements and self.activations:
            running = max(self.activations, key=lambda dtype: self.activations[dtype])
            floats[running] += self.quantised_bytes
        known = {dtype: count for dtype, count in floats.items() if dtype in _OWN and count}
        if known:
            return max(known, key=lambda dtype: known[dtype])
        types = (graph.tensors[name].dtype for name in graph.inputs if name in graph.tensors)
        return next((dtype for dtype in types if dtype in _OWN and dtype.is_float), DType.FP32)


def cast(graph: Graph, precision: Precision) -> Graph:
    """Return the graph as it is stored when run in `precision`.

    The graph itself where nothing changes, so casting a float graph to its own precision is the
    identity. A graph that its author quantised to int8 stays as it is in int8.
    """
    if precision.compute is DType.INT8 and own_precision(graph) == precision:
        return graph
    return _cast_graph(graph, precision, {})


def _cast_graph(graph: Graph, precision: Precision, outer: Mapping[str, Tensor]) -> Graph:
    """Cast a graph, or a body that may list tensors of `outer`, already cast, as well."""
    factors, tables = _factors_and_tables(graph)
    outside = _outside(graph) & outer.keys() if outer else set()
    tensors, constants = dict(graph.tensors), dict(graph.constants)
    mixed = _mixed_types(graph, precision, outer)
    for name, tensor in graph.tensors.items():
        if name in outside:
            tensors[name] = outer[name]
            continue
        if tensor.dtype not in _WIDE_FLOATS:
            continue
        constant = graph.constants.get(name)
        if constant is not None and constant.role is Role.DATA:
            continue
        if constant is None and name not in factors:
            dtype = mixed.get(name, precision.activation)
        else:
            dtype = _parameter_type(precision, name in factors, name in tables)
        tensors[name] = replace(tensor, dtype=dtype)
        if constant is not None:
            stored = _stored_bytes(tensors[name])
            if constant.stored_bytes < tensor.size_bytes:
                stored = min(stored, constant.stored_bytes)
            constants[name] = replace(constant, stored_bytes=stored)
    scope = {**outer, **tensors} if any(node.bodies for node in graph.nodes) else tensors
    nodes = tuple(_cast_node(node, precision, scope) for node in graph.nodes)
    if tensors == graph.tensors and constants == graph.constants and nodes == graph.nodes:
        return graph
    return replace(graph, tensors=tensors, constants=constants, nodes=nodes)


def _mixed_types(
    graph: Graph, precision: Precision, outer: Mapping[str, Tensor]
) -> Mapping[str, DType]:
    """Return the types of activations where they are mixed, nothing where all are one type."""
    if precision.name != "amp":
        return {}
    around = {name: tensor.dtype for name, tensor in outer.items() if tensor.dtype in _WIDE_FLOATS}
    return autocast_types(graph, precision.activation, around)


def _cast_node(node: Node, precision: Precision, scope: Mapping[str, Tensor]) -> Node:
    if not node.bodies:
        return node
    bodies = tuple(_cast_graph(body, precision, scope) for body in node.bodies)
    return replace(node, bodies=bodies)


def _parameter_type(precision: Precision, is_factor: bool, is_table: bool) -> DType:
    is_int8 = precision.activation is DType.INT8
    if is_factor or (is_table and is_int8):
        return precision.weight
    if is_int8 or precision.weight is DType.FP32:
        return DType.FP32
    return precision.activation


def _stored_bytes(tensor: Tensor) -> int:
    if tensor.dtype is DType.FP4:
        return tensor.size_bytes + -(-tensor.elements // _NVFP4_BLOCK)
    return tensor.size_bytes


def _factors_and_tables(graph: Graph) -> tuple[set[str], set[str]]:
    """Return the constant factors of contractions and the constant tables that are looked up.

    Bodies included. A factor may reach its node through operators that hand it on; what these
    make of a constant is a factor too.
    """
    fixed = set(graph.constants)
    for node in graph.nodes:
        if node.op_type in _CARRIERS and node.inputs and node.inputs[0] in fixed:
            fixed.update(node.outputs)
    factors: set[str] = set()
    tables: set[str] = set()
    for node in reversed(graph.nodes):
        for body in node.bodies:
            inner_factors, inner_tables = _factors_and_tables(body)
            captured = set(captured_by(body))
            factors |= inner_factors & captured
            tables |= inner_tables & captured
        if node.op_type in _CARRIERS:
            if any(name in factors for name in node.outputs):
                factors.add(node.inputs[0])
            continue
        row_factors, row_tables = _read_by(node)
        factors.update(row_factors)
        tables.update(row_tables)
    return factors & (fixed | _outside(graph)), tables


def _outside(graph: Graph) -> set[str]:
    return set(captured_by(graph)) - set(graph.inputs)


def _read_by(node: Node) -> tuple[Iterator[str], Iterator[str]]:
    """Return what `node` reads as factors of a product, and as tables."""
    row = operator(node.domain, node.op_type)
    if row is None:
        return iter(()), iter(())
    weights = (
        name
        for i, name in enumerate(node.inputs)
        if name and row.slots.get(i, row.other_slots) in (Slot.WEIGHT, Slot.QWEIGHT)
    )
    if row.macs is not None:
        return weights, iter(())
    if node.op_type == "Gather":
        return iter(()), iter(node.inputs[:1])
    return iter(()), weights
