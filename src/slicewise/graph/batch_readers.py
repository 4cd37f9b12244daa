"""What the operators that read a model's inputs tell about the batch.

Follows values through operators that keep their axes, main graph only. It chooses no size and
changes no model; whether its word counts is for `batch.py` to say.
"""

from collections.abc import Mapping

import onnx

from slicewise.graph.check import initialiser_names

# Where recurrent operators hold the batch: (input slot, axis) for layout 0, sequence first, and
# for layout 1 (ONNX operator specification: RNN, GRU, LSTM; 4 is sequence_lens, 5 and 6 are the
# initial states). Only LSTM has slot 6.
_RECURRENT = frozenset({"RNN", "GRU", "LSTM"})
_RECURRENT_AXES = {0: ((0, 1), (4, 0), (5, 1), (6, 1)), 1: ((0, 0), (4, 0), (5, 0), (6, 0))}

# Operators of one data input, slot 0, whose result has the same axes.
_UNARY = frozenset(
    (
        "Identity", "Cast", "Dropout", "Relu", "LeakyRelu", "PRelu", "Elu", "Gelu", "Sigmoid",
        "Tanh", "Erf", "Softplus", "Softsign", "Clip", "HardSigmoid", "HardSwish", "Neg", "Abs",
        "Exp", "Log", "Sqrt", "Reciprocal", "Sin", "Cos", "Floor", "Ceil", "Round",
        "QuantizeLinear", "DequantizeLinear",
    )
)  # fmt: skip
_BROADCASTING = frozenset({"Add", "Sub", "Mul", "Div", "Pow"})

# (operator, slot) that serve one item of a batch at a time when they read a vector: a time step,
# a class or a length for each item.
_READ_PER_ITEM = frozenset(
    {("Unsqueeze", 0), ("Reshape", 0), ("Expand", 0), ("Shape", 0), ("Gather", 1)}
    | {(op_type, 4) for op_type in _RECURRENT}
)


def recurrent_batch_axes(model: onnx.ModelProto) -> Mapping[str, int]:
    """Return the batch axis of each graph input that a recurrent operator reads, itself or
    through operators that keep the axes (Transpose, an embedding, a projection)."""
    recurrent = [n for n in model.graph.node if n.op_type in _RECURRENT and not n.domain]
    if not recurrent:
        return {}
    constants = _constant_sizes(model)
    producers = {name: node for node in model.graph.node for name in node.output}
    inputs = {value.name for value in model.graph.input} - constants.keys()
    found: dict[str, int] = {}
    for node in recurrent:
        layout = next((a.i for a in node.attribute if a.name == "layout"), 0)
        for slot, axis in _RECURRENT_AXES.get(layout, ()):
            if slot >= len(node.input):
                continue
            name, at = _source(node.input[slot], axis, producers, constants)
            if name in inputs:
                found.setdefault(name, at)
    return found


def _source(
    name: str,
    axis: int,
    producers: Mapping[str, onnx.NodeProto],
    constants: Mapping[str, int],
) -> tuple[str, int]:
    """Follow an axis of a value back to where it is first seen as such."""
    while name in producers:
        node = producers[name]
        if node.domain or not node.input:
            break
        if node.op_type in _UNARY or node.op_type == "LayerNormalization":
            name = node.input[0]
        elif node.op_type == "Transpose":
            order = next((list(a.ints) for a in node.attribute if a.name == "perm"), None)
            if order is None or axis >= len(order):
                break
            name, axis = node.input[0], order[axis]
        elif node.op_type == "MatMul" and node.input[1] in constants:
            name = node.input[0]
        elif node.op_type in _BROADCASTING and not constants.keys().isdisjoint(node.input):
            # a bias: the other operand has all the axes
            name = next((each for each in node.input if each not in constants), "")
        elif node.op_type == "Gather" and node.input[0] in constants and not _gather_axis(node):
            name = node.input[1]  # an embedding appends an axis to those of the indices
        else:
            break
    return name, axis


def _gather_axis(node: onnx.NodeProto) -> int:
    return next((a.i for a in node.attribute if a.name == "axis"), 0)


def is_read_per_item(name: str, model: onnx.ModelProto) -> bool:
    """Return True if nothing reads the vector `name` in a way that a longer one would break.

    It would where the vector stands for one number: scaled with a whole tensor it broadcasts.
    """
    constants = _constant_sizes(model)
    reached = {name}
    for node in model.graph.node:
        slots = [k for k, each in enumerate(node.input) if each in reached]
        if not slots:
            continue
        others = {each for each in node.input if each and each not in reached}
        scalars = all(constants.get(each) == 1 for each in others)
        if node.op_type in _UNARY or (node.op_type in _BROADCASTING and scalars):
            reached.update(node.output)
        elif any((node.op_type, slot) not in _READ_PER_ITEM for slot in slots):
            return False
    return True


def _constant_sizes(model: onnx.ModelProto) -> dict[str, int]:
    """Return the number of elements of initialisers and of Constant nodes; 0 where unknown."""
    sizes = dict.fromkeys(initialiser_names(model.graph), 0)
    for tensor in model.graph.initializer:
        sizes[tensor.name] = _elements(tensor)
    for node in model.graph.node:
        if node.op_type == "Constant" and node.output:
            sizes[node.output[0]] = next(map(_elements_of_attribute, node.attribute), 0)
    return sizes


def _elements_of_attribute(attribute: onnx.AttributeProto) -> int:
    if attribute.name in ("value_int", "value_float"):
        return 1
    return _elements(attribute.t) if attribute.name == "value" else 0


def _elements(tensor: onnx.TensorProto) -> int:
    count = 1
    for size in tensor.dims:
        count *= size
    return count
