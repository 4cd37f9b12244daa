"""Count what every node of a graph computes and moves, by the operator table.

Device-free: no speed is known here and no kernel is fused. Weight values are never looked at.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from slicewise.core.cost import GraphWork, Kind, NodeWork, Work
from slicewise.core.errors import ModelError
from slicewise.core.graph import Constant, Graph, Node, Tensor
from slicewise.core.notes import Note, unique_notes
from slicewise.core.precision import DType
from slicewise.graph.fuse import (
    NARROW_ARITHMETIC,
    NO_FUSION,
    Fusion,
    fuse_quantised,
    fusion_notes,
)
from slicewise.graph.ops import Operator, Product, Seen, operator

_NO_WORK = Work()
_NO_TENSOR = Tensor(None, DType.UNKNOWN)
_UNKNOWN = Operator("?", Kind.OPAQUE)
_WIDE_FLOATS = frozenset({DType.FP64, DType.FP32, DType.FP16, DType.BF16})
_LEARNT = frozenset({"DequantizeLinear", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})


def count_work(graph: Graph, compute: DType | None = None) -> GraphWork:
    """Return the work of each node of `graph`, index by index.

    `compute` is the arithmetic that float contractions are done in (`Precision.compute`); None:
    the type of their activations. Integer and quantised contractions keep their own.

    A tensor that a node reads twice is counted once; constants count as `weight_bytes` in their
    stored form; a view moves nothing. A kernel between DequantizeLinear and QuantizeLinear moves
    the quantised elements and these two nothing, with a Note. A body counts `repeats` times; of
    an If the costlier branch counts, with a Note. What has no known shape counts 0, with a Note.
    Time O(nodes).
    `ModelError` where a standard node contradicts its operator's specification.
    """
    tally = _Tally(compute, any(note.code == "shape-guessed" for note in graph.notes))
    nodes = _count_nodes(graph, _Scope((graph.tensors,), (graph.constants,)), tally)
    notes = (*tally.notes, *fusion_notes(tally.absorbed), *_listed(tally))
    return GraphWork(nodes, _sum(nodes), unique_notes(notes))


@dataclass(slots=True)
class _Tally:
    """What is gathered over one count: notes, nodes that fused kernels took in, and how often
    operators without formula are met. `is_guessed`: some shapes are guesses."""

    compute: DType | None
    is_guessed: bool = False
    absorbed: list[Node] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    unlisted: Counter[tuple[str, str]] = field(default_factory=Counter)


@dataclass(slots=True)
class _Scope:
    """What names mean inside a graph or body, innermost first.

    `dequantised` names for each result of DequantizeLinear what it was made from, `views` the
    constants that a reshaped, squeezed or renamed one stands for.
    """

    tensors: tuple[Mapping[str, Tensor], ...]
    constants: tuple[Mapping[str, Constant], ...]
    dequantised: dict[str, str] = field(default_factory=dict)
    views: dict[str, Constant] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def tensor(self, name: str) -> Tensor:
        """Return the tensor called `name`, one of unknown shape and type if none is."""
        for level in self.tensors:
            if name in level:
                return level[name]
        return _NO_TENSOR

    def constant(self, name: str) -> Constant | None:
        """Return the constant that `name` is or is a view of, else None."""
        for level in self.constants:
            if name in level:
                return level[name]
        return self.views.get(name)

    def bytes_of(self, name: str, tensor: Tensor) -> int:
        """Return the size of the tensor called `name`, worked out once."""
        size = self.sizes.get(name)
        if size is None:
            size = self.sizes[name] = tensor.size_bytes
        return size

    def inside(self, body: Graph) -> "_Scope":
        """Return the scope of a body, this one around it."""
        return _Scope(
            (body.tensors, *self.tensors),
            (body.constants, *self.constants),
            dict(self.dequantised),
            dict(self.views),
        )

    def learn(self, node: Node) -> None:
        """Remember a result that is dequantised, or a view of a constant."""
        source, result = node.inputs[0], node.outputs[0]
        if node.op_type == "DequantizeLinear":
            self.dequantised[result] = source
        else:
            constant = self.constant(source)
            if constant is not None:
                self.views[result] = constant


def _count_nodes(graph: Graph, scope: _Scope, tally: _Tally) -> tuple[NodeWork, ...]:
    for node in graph.nodes:
        if node.op_type in _LEARNT and node.inputs and node.outputs:
            scope.learn(node)
    fusion = _fusion(graph, scope) if scope.dequantised else NO_FUSION
    tally.absorbed += [graph.nodes[i] for i in sorted(fusion.absorbed)]
    return tuple(
        _count_node(node, scope, tally)
        if i not in fusion.absorbed and i not in fusion.inside
        else _count_fused(node, scope, tally, fusion, is_absorbed=i in fusion.absorbed)
        for i, node in enumerate(graph.nodes)
    )


def _fusion(graph: Graph, scope: _Scope) -> Fusion:
    """Return what engines fuse into quantised kernels in one graph or body."""
    products = [
        i
        for i, node in enumerate(graph.nodes)
        if (row := operator(node.domain, node.op_type)) is not None
        and row.macs is not None
        and not row.is_integer
        and _quantised_operands(_see(node, scope), scope) is not None
    ]
    stored = {
        name: source
        for name, source in scope.dequantised.items()
        if scope.tensor(source).dtype in NARROW_ARITHMETIC
    }
    return fuse_quantised(
        graph,
        products=products,
        stored=stored,
        is_fixed=lambda name: scope.constant(name) is not None,
    )


def _count_fused(
    node: Node, scope: _Scope, tally: _Tally, fusion: Fusion, *, is_absorbed: bool
) -> NodeWork:
    """Count a node that is a quantised kernel, or that one took in."""
    if is_absorbed:
        dtype = _element_type(_see(node, scope))
        return NodeWork(node.name, node.op_type, Kind.VIEW, dtype, _NO_WORK)
    inputs, outputs = fusion.narrowed(node)
    narrow = _see(replace(node, inputs=inputs, outputs=outputs), scope)
    return _count_node(node, scope, tally, moved=narrow)


def _see(node: Node, scope: _Scope) -> Seen:
    return Seen(
        node,
        tuple([scope.tensor(name) if name else None for name in node.inputs]),
        tuple([scope.tensor(name) if name else None for name in node.outputs]),
    )


def _count_node(
    node: Node, scope: _Scope, tally: _Tally, *, moved: Seen | None = None
) -> NodeWork:
    """Count one node; `moved` are the tensors that its kernel reads and writes in their place."""
    row = operator(node.domain, node.op_type)
    if row is None or row.is_bytes_only:
        code = "op-unknown" if row is None else "op-bytes-only"
        tally.unlisted[code, f"{node.domain}.{node.op_type}" if node.domain else node.op_type] += 1
        row = row or _UNKNOWN
    seen = _see(node, scope)
    if row.kind is Kind.VIEW or _converts_nothing(seen):
        return NodeWork(node.name, node.op_type, Kind.VIEW, _element_type(seen), _NO_WORK)
    if row.kind is Kind.CONTROL:
        return _with_bodies(node, Kind.CONTROL, _element_type(seen), scope, tally)
    dtype = _arithmetic(row, seen, scope, tally.compute)
    product, work = _own_work(row, seen, moved or seen, scope, tally)
    plain = NodeWork(
        node.name, node.op_type, row.kind, dtype, work, product.contraction, product.steps
    )
    if not node.bodies:
        return plain
    inner = _with_bodies(node, row.kind, dtype, scope, tally)
    return replace(
        plain,
        work=work + inner.work,
        body=inner.body,
        repeats=inner.repeats,
        body_index=inner.body_index,
    )


def _converts_nothing(seen: Seen) -> bool:
    """True for a Cast between equal types."""
    if seen.node.op_type not in ("Cast", "CastLike") or not seen.reads or not seen.writes:
        return False
    source, target = seen.reads[0], seen.writes[0]
    return source is not None and target is not None and source.dtype is target.dtype


def _with_bodies(node: Node, kind: Kind, dtype: DType, scope: _Scope, tally: _Tally) -> NodeWork:
    """Count the bodies of `node`: all of them `repeats` times, or the costlier branch of an If."""
    bodies = [_count_nodes(body, scope.inside(body), tally) for body in node.bodies]
    first = 0
    if node.op_type == "If" and bodies:
        costs = [_sum(body) for body in bodies]
        first = max(range(len(bodies)), key=lambda i: (costs[i].flops, costs[i].moved_bytes))
        if any(cost != costs[first] for cost in costs):
            text = "which branch runs depends on the data; the costlier one is counted"
            tally.notes.append(Note("branch-unknown", text, node.name))
        bodies = [bodies[first]]
    inner = tuple(work for body in bodies for work in body)
    return NodeWork(
        node.name, node.op_type, kind, dtype, _sum(inner) * node.repeats,
        body=inner, repeats=node.repeats, body_index=first,
    )  # fmt: skip


def _own_work(
    row: Operator, seen: Seen, moved: Seen, scope: _Scope, tally: _Tally
) -> tuple[Product, Work]:
    """Return the multiply-adds and the work of a node, bodies aside."""
    product, other = Product(0, None), 0
    unknown = _unknown_shape(row, seen)
    if unknown:
        tally.notes.append(_incomplete(row, seen.node, f"the shape of {unknown!r} is unknown"))
        return product, _moved(_UNKNOWN, moved, scope, 0, 0)
    try:
        if row.macs is not None:
            product = row.macs(seen)
        if row.flops is not None:
            other = row.flops(seen)
        return product, _moved(row, moved, scope, product.macs, 2 * product.macs + other)
    except (ValueError, IndexError) as err:
        fault = str(err) if isinstance(err, ValueError) else "an input has too few axes"
        if seen.node.domain in ("", "ai.onnx") and not tally.is_guessed:
            raise _contradiction(seen, fault) from err
        # other domains change their operators without a version, and a guessed shape may be
        # wrong: count bytes, and say so
        tally.notes.append(_incomplete(row, seen.node, fault))
        return Product(0, None), _moved(_UNKNOWN, moved, scope, 0, 0)


def _unknown_shape(row: Operator, seen: Seen) -> str:
    """Return the name of a tensor whose shape the count needs and nobody knows, or ''."""
    for i, tensor in enumerate(seen.reads):
        if tensor is not None and tensor.shape is None and i not in row.reads:
            return seen.node.inputs[i]
    for i, tensor in enumerate(seen.writes):
        if tensor is not None and tensor.shape is None:
            return seen.node.outputs[i]
    return ""


def _moved(row: Operator, seen: Seen, scope: _Scope, macs: int, flops: int) -> Work:
    node = seen.node
    weights: dict[str, int] = {}
    activations: dict[str, int] = {}
    for i, (name, tensor) in enumerate(zip(node.inputs, seen.reads, strict=True)):
        if tensor is None:
            continue
        constant = scope.constant(name)
        whole = scope.bytes_of(name, tensor) if constant is None else constant.stored_bytes
        if i in row.reads:
            whole = _part(whole, tensor, row.reads[i](seen))
        read = activations if constant is None else weights
        # a tensor in two slots is read once
        read[name] = max(whole, read.get(name, 0))
    written = 0
    for i, (name, tensor) in enumerate(zip(node.outputs, seen.writes, strict=True)):
        if tensor is not None:
            whole = scope.bytes_of(name, tensor)
            written += _part(whole, tensor, row.writes[i](seen)) if i in row.writes else whole
    return Work(macs, flops, sum(activations.values()), written, sum(weights.values()))


def _part(whole_bytes: int, tensor: Tensor, elements: int) -> int:
    """Return the bytes of `elements` of the tensor, never more than all of it."""
    if tensor.shape is None:
        return (elements * tensor.dtype.bits + 7) // 8
    own = tensor.elements
    return whole_bytes if elements >= own else -(-whole_bytes * elements // own)


def _arithmetic(row: Operator, seen: Seen, scope: _Scope, compute: DType | None) -> DType:
    """Return the type a node computes in."""
    if row.is_integer:
        return DType.INT8
    own = _element_type(seen)
    if row.macs is None:
        return own
    quantised = _quantised_operands(seen, scope)
    if quantised is not None:
        return quantised
    first = seen.reads[0] if seen.reads else None
    if first is not None and first.dtype is not DType.UNKNOWN:
        own = NARROW_ARITHMETIC.get(first.dtype, first.dtype)
    return compute if compute is not None and own in _WIDE_FLOATS else own


def _quantised_operands(seen: Seen, scope: _Scope) -> DType | None:
    """Return INT8, FP8 or FP4 where both operands come from DequantizeLinear, else None.

    A runtime turns DequantizeLinear -> Conv into a kernel of that type. A weight may have been
    folded: then its stored form is smaller than the tensor.
    """
    stored: list[DType] = []
    for name, tensor in zip(seen.node.inputs[:2], seen.reads, strict=False):
        constant = scope.constant(name)
        if name in scope.dequantised:
            stored.append(scope.tensor(scope.dequantised[name]).dtype)
        elif constant is None or tensor is None or constant.stored_bytes >= tensor.size_bytes:
            return None
    return NARROW_ARITHMETIC.get(stored[0]) if stored and len(seen.reads) > 1 else None


def _element_type(seen: Seen) -> DType:
    """Return the float type a node handles, or the type of its result."""
    both = [tensor for tensor in (*seen.writes[:1], *seen.reads) if tensor is not None]
    for tensor in both:
        if tensor.dtype.is_float:
            return tensor.dtype
    return both[0].dtype if both else DType.UNKNOWN


def _sum(nodes: Iterable[NodeWork]) -> Work:
    macs = flops = read = write = weight = 0
    for node in nodes:
        work = node.work
        macs += work.macs
        flops += work.flops
        read += work.read_bytes
        write += work.write_bytes
        weight += work.weight_bytes
    return Work(macs, flops, read, write, weight)


def _incomplete(row: Operator, node: Node, fault: str) -> Note:
    has_formula = row.macs is not None or row.flops is not None
    lost = "no arithmetic and only" if has_formula else "only"
    text = f"of {node.op_type} {lost} the bytes of tensors with known shapes are counted: {fault}"
    return Note("work-incomplete", text, node.name)


def _contradiction(seen: Seen, fault: str) -> ModelError:
    shapes = ", ".join(
        "none" if tensor is None else str(list(tensor.shape or ())) for tensor in seen.reads
    )
    return ModelError(
        f"node {seen.node.name!r} ({seen.node.op_type}) cannot be: {fault}; its inputs have shapes"
        f" {shapes}; correct the model or its input shapes"
    )


_LISTED = {
    "op-unknown": (
        "is in no table: its arithmetic is not counted; to have it counted, export it as a model"
        " function of standard operators; where its output shapes are unknown, declare them in the"
        " file's value_info"
    ),
    "op-bytes-only": "has no formula: its arithmetic is not counted, its bytes are",
}


def _listed(tally: _Tally) -> Iterable[Note]:
    for (code, name), count in sorted(tally.unlisted.items()):
        nodes = "1 node" if count == 1 else f"{count} nodes"
        yield Note(code, f"operator {name} ({nodes}) {_LISTED[code]}")
