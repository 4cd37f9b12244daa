"""The types that tensors have under PyTorch's automatic mixed precision.

Autocast decides operator by operator: products cast their inputs down, an operator that needs the
range casts its inputs up and gives fp32, the rest follows the widest of what it reads. A class
token, a position table or a layer scale kept in fp32 therefore lifts the whole residual stream of
a transformer to fp32. Sources: PyTorch documentation, "Automatic Mixed Precision package", CUDA
op reference (lists of operators); "Tensor attributes", type promotion. No node is added: what a
cast costs follows from the types around an operator. No speed is known here.
"""

from collections.abc import Mapping

from slicewise.core.graph import Constant, Graph, Node, Role, Tensor
from slicewise.core.precision import DType
from slicewise.graph.ops import operator

# Products, by the operator table; these take and give half precision too.
_HALF = frozenset({"PRelu"})
# Operators that autocast runs in fp32. Interpolation is among them since PyTorch 1.x; pooling,
# means, batch normalisation and activations are not.
_WIDE = frozenset(
    {
        "LayerNormalization", "GroupNormalization", "Softmax", "LogSoftmax", "ReduceL1",
        "ReduceL2", "ReduceSum", "ReduceProd", "ReduceSumSquare", "ReduceLogSumExp", "CumSum",
        "CumProd", "Exp", "Log", "Pow", "Reciprocal", "Softplus", "Tan", "Sinh", "Cosh", "Acos",
        "Asin", "Resize", "Upsample",
    }
)  # fmt: skip
_FLOATS = frozenset({DType.FP64, DType.FP32, DType.FP16, DType.BF16})


def autocast_types(
    graph: Graph, half: DType, outer: Mapping[str, DType] | None = None
) -> dict[str, DType]:
    """Return the type of each float activation of `graph` under autocast to `half`.

    `outer` are types of tensors of graphs around it. Constants, integers and bodies are left out.
    Time O(nodes + edges).
    """
    types: dict[str, DType] = dict(outer or {})
    found: dict[str, DType] = {}

    def type_of(name: str) -> DType | None:
        if name in types:
            return types[name]
        tensor = graph.tensors.get(name)
        if tensor is None or tensor.dtype not in _FLOATS:
            return None
        constant = graph.constants.get(name)
        if constant is not None and not _promotes(tensor, constant):
            return None
        return DType.FP32

    for name in graph.inputs:
        tensor = graph.tensors.get(name)
        if tensor is not None and tensor.dtype in _FLOATS:
            found[name] = types[name] = DType.FP32
    for node in graph.nodes:
        given = [type_of(name) for name in node.inputs if name]
        result = _result(node, given, half)
        for name in node.outputs:
            tensor = graph.tensors.get(name)
            if name and tensor is not None and tensor.dtype in _FLOATS:
                found[name] = types[name] = result
    return found


def _promotes(tensor: Tensor, constant: Constant) -> bool:
    """True where a constant counts in type promotion: numbers without axes do not."""
    return constant.role is not Role.DATA or bool(tensor.shape)


def _result(node: Node, given: list[DType | None], half: DType) -> DType:
    if is_product(node):
        return half
    if node.op_type in _WIDE:
        return DType.FP32
    if node.op_type == "BatchNormalization" or node.op_type == "InstanceNormalization":
        # statistics are kept in fp32 whatever flows
        return given[0] or half if given else half
    known = [dtype for dtype in given if dtype is not None]
    return DType.FP32 if DType.FP32 in known else (half if known else DType.FP32)


def is_product(node: Node) -> bool:
    """True for an operator that autocast runs in half precision."""
    if node.op_type in _HALF:
        return True
    row = operator(node.domain, node.op_type)
    return row is not None and row.macs is not None
