"""The distinct operators of a model: what is tuned once, however often the model has it.

Reads shapes, types and attributes. What an operator costs comes in as an argument; no kernel is
chosen here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slicewise.core.graph import AttrValue, Graph, Node
from slicewise.core.precision import DType
from slicewise.core.tuning import Workload, workload_key

# Nothing runs for these: no bytes move, or only a shape is computed.
_NO_WORK = frozenset({
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "BitCast", "Shape",
    "Size", "Constant", "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt",
    "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength",
    "SplitToSequence", "ExpandDims", "BitmaskDropout",
})  # fmt: skip
# Numbers that enter the result and not the work.
_VALUES_ONLY = frozenset(
    {"alpha", "beta", "gamma", "epsilon", "lambd", "bias", "momentum", "seed", "value", "scale"}
)


def distinct_operators(graph: Graph, node_ms: Mapping[str, float]) -> tuple[Workload, ...]:
    """Return the distinct operators of the graph, those that take the most time first.

    `node_ms` is the predicted latency of each node in ms by its name; one that is not there counts
    0. Two nodes are one operator where kind, shapes and types of inputs and outputs, which inputs
    are constant or the same, and the attributes that change the work agree; names and constants'
    values play no part. Nodes for which nothing runs (views, shape arithmetic, results known
    before the run) are left out. Weights add up to the time of the nodes kept. Ties go by key.
    """
    kinds: dict[str, _Kind] = {}
    for node in graph.nodes:
        if node.op_type in _NO_WORK or all(
            name in graph.constants for name in node.outputs if name
        ):
            continue
        key = operator_key(graph, node)
        kind = kinds.setdefault(key, _Kind(node))
        kind.names.append(node.name)
        kind.ms += node_ms.get(node.name, 0.0)
    made = [
        Workload(
            key=key,
            name=operator_name(graph, kind.first),
            op_types=(kind.first.op_type,),
            count=len(kind.names),
            weight_ms=kind.ms,
            nodes=tuple(kind.names),
            kin=operator_kin(graph, kind.first),
        )
        for key, kind in kinds.items()
    ]
    return tuple(sorted(made, key=lambda each: (-each.weight_ms, each.key)))


@dataclass(slots=True)
class _Kind:
    """Nodes that are one operator: the first of them, their names and their time."""

    first: Node
    names: list[str] = field(default_factory=list)
    ms: float = 0.0


def operator_key(graph: Graph, node: Node) -> str:
    """Return the key of the operator that `node` is: equal in two models for equal work."""
    return workload_key(
        node.domain,
        node.op_type,
        tuple(_seen(graph, node)),
        tuple(_typed(graph, name) for name in node.outputs),
        _attributes(node),
        node.repeats,
        tuple(body.digest for body in node.bodies),
    )


def operator_kin(graph: Graph, node: Node) -> str:
    """Return what operators have in common whose good configurations resemble each other.

    Kind, ranks and types, attributes in words, and whether the work is split into groups, since
    a depthwise convolution is unlike a dense one; no sizes.
    """
    ranks = tuple(
        (len(shape) if shape is not None else None, dtype, is_constant)
        for shape, dtype, is_constant, _ in _seen(graph, node)
    )
    words = tuple((name, value) for name, value in _attributes(node) if isinstance(value, str))
    has_groups = node.attrs.get("group", 1) != 1
    return workload_key("kin", node.domain, node.op_type, ranks, words, has_groups)


def operator_name(graph: Graph, node: Node) -> str:
    """Return a name for people: 'Conv 1x64x56x56 64x64x3x3', strides and groups behind it."""
    shapes: list[str] = []
    dtypes: set[DType] = set()
    for name in node.inputs:
        tensor = graph.tensors.get(name)
        if tensor is None or not tensor.shape:
            continue  # an omitted input or a scalar tells nobody anything
        if tensor.dtype.is_float or not shapes:
            shapes.append("x".join(map(str, tensor.shape)))
            dtypes.add(tensor.dtype)
    # a bias has one axis and follows from the weight
    told = [shape for i, shape in enumerate(shapes) if i == 0 or "x" in shape] or shapes
    extra = [f"group={node.attrs['group']}"] if node.attrs.get("group", 1) != 1 else []
    strides = node.attrs.get("strides")
    if isinstance(strides, tuple) and any(step != 1 for step in strides):
        extra.append(f"strides={'x'.join(map(str, strides))}")
    types = sorted(dtype.value for dtype in dtypes if dtype is not DType.FP32)
    return " ".join((node.op_type, *told, *types, *extra))


def _seen(
    graph: Graph, node: Node
) -> list[tuple[tuple[int, ...] | None, DType | None, bool, int]]:
    """Return shape, type, whether constant, and the first place of the same tensor, of inputs."""
    first: dict[str, int] = {}
    seen = []
    for place, name in enumerate(node.inputs):
        shape, dtype = _typed(graph, name)
        same = first.setdefault(name, place) if name else place
        seen.append((shape, dtype, name in graph.constants, same))
    return seen


def _typed(graph: Graph, name: str) -> tuple[tuple[int, ...] | None, DType | None]:
    tensor = graph.tensors.get(name) if name else None
    return (None, None) if tensor is None else (tensor.shape, tensor.dtype)


def _attributes(node: Node) -> tuple[tuple[str, AttrValue], ...]:
    return tuple((name, v) for name, v in sorted(node.attrs.items()) if name not in _VALUES_ONLY)
