"""Which kernels a runtime launches for a graph: fusion tables applied to counted work."""

from slicewise.core.cost import GraphWork
from slicewise.core.graph import Graph


def launch(graph: Graph, work: GraphWork, *, runtime: str) -> GraphWork:
    """Return `work` with the kernels that `runtime` launches for it."""
    return work
