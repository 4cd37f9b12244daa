"""`support`: is every operator of a model priced? Answered by the very code that prices it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from slicewise.core.cost import Kind, NodeWork
from slicewise.core.coverage import Coverage, OperatorSupport, Support
from slicewise.core.graph import Graph, Node
from slicewise.core.notes import unique_notes
from slicewise.flows.load import ModelLike, load
from slicewise.flows.predict import describe

# A formula without shapes prices nothing.
_UNPRICED = frozenset({"shape-unknown", "work-incomplete"})


def support(
    model: ModelLike,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    batch_axes: Mapping[str, int | None] | None = None,
) -> Support:
    """Return how each operator of the model is priced, and every note that pricing leaves.

    >>> found = support(model)
    >>> found.covered, found.operators[0].op_type, found.operators[0].count
    (True, 'Conv', 53)
    """
    from slicewise.graph.work import count_work

    graph = load(model, batch=batch, dims=dims, inputs=inputs, batch_axes=batch_axes)
    work = count_work(graph)
    counts = Counter((node.domain, node.op_type, kind) for node, kind in _kinds(graph, work.nodes))
    operators = tuple(
        OperatorSupport(op_type, domain, kind, count, _coverage(domain, op_type))
        for (domain, op_type, kind), count in counts.most_common()
    )
    notes = unique_notes((*graph.notes, *work.notes))
    priced = all(operator.coverage is Coverage.FORMULA for operator in operators)
    return Support(
        model=describe(graph),
        operators=operators,
        covered=priced and not any(note.code in _UNPRICED for note in notes),
        notes=notes,
    )


def _coverage(domain: str, op_type: str) -> Coverage:
    from slicewise.graph.ops import operator

    row = operator(domain, op_type)
    if row is None:
        return Coverage.UNKNOWN
    return Coverage.BYTES_ONLY if row.is_bytes_only else Coverage.FORMULA


def _kinds(graph: Graph, work: Sequence[NodeWork] | None) -> Iterator[tuple[Node, Kind]]:
    """Yield every node with its kind, those of bodies included.

    `work` None: a branch of an If that was not priced; the table tells the kind.
    """
    for i, node in enumerate(graph.nodes):
        cost = None if work is None else work[i]
        yield node, _listed_kind(node) if cost is None else cost.kind
        sizes = [len(body.nodes) for body in node.bodies]
        parts = [None] * len(sizes) if cost is None else cost.by_body(sizes)
        for body, part in zip(node.bodies, parts, strict=True):
            yield from _kinds(body, part)


def _listed_kind(node: Node) -> Kind:
    from slicewise.graph.ops import operator

    row = operator(node.domain, node.op_type)
    return Kind.OPAQUE if row is None else row.kind
