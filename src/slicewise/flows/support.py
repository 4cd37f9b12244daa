"""`support`: is every operator of a model priced? Answered by the very code that prices it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from slicewise.core.cost import Kind, NodeWork
from slicewise.core.coverage import Coverage, OperatorSupport, Support
from slicewise.core.graph import Graph, Node
from slicewise.core.notes import unique_notes
from slicewise.flows.load import ModelLike, load
from slicewise.flows.predict import describe


def support(
    model: ModelLike,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
) -> Support:
    """Return how each operator of the model is priced, and every note that pricing leaves."""
    from slicewise.graph.work import count_work

    graph = load(model, batch=batch, dims=dims, inputs=inputs)
    work = count_work(graph)
    counts: Counter[tuple[str, str, Kind]] = Counter()
    for node, cost in _pairs(graph, work.nodes):
        counts[(node.domain, node.op_type, cost.kind)] += 1
    operators = tuple(
        OperatorSupport(op_type, domain, kind, count, _coverage(domain, op_type))
        for (domain, op_type, kind), count in counts.most_common()
    )
    return Support(
        model=describe(graph),
        operators=operators,
        covered=all(operator.coverage is Coverage.FORMULA for operator in operators),
        notes=unique_notes((*graph.notes, *work.notes)),
    )


def _coverage(domain: str, op_type: str) -> Coverage:
    from slicewise.graph.ops import operator

    row = operator(domain, op_type)
    if row is None:
        return Coverage.UNKNOWN
    return Coverage.BYTES_ONLY if row.is_bytes_only else Coverage.FORMULA


def _pairs(graph: Graph, work: Sequence[NodeWork]) -> Iterator[tuple[Node, NodeWork]]:
    """Yield every node with its work; of an If only the branch whose work was kept."""
    for node, cost in zip(graph.nodes, work, strict=True):
        yield node, cost
        for body in node.bodies:
            if len(body.nodes) == len(cost.body):
                yield from _pairs(body, cost.body)
                break
