"""The table of operators as a runtime's own profiler timed them."""

from collections.abc import Sequence

from rich.table import Table

from slicewise.app.words import clean
from slicewise.core.measurement import NodeTime
from slicewise.core.units import format_number

_HEAVIEST = 10


def operator_times(nodes: Sequence[NodeTime]) -> Table:
    """Return the heaviest operators with their share of all, the rest in one line."""
    total_ms = sum(node.latency_ms for node in nodes)
    ranked = sorted(nodes, key=lambda node: -node.latency_ms)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("operator", overflow="fold")
    table.add_column("name in the runtime", overflow="fold", max_width=60)
    for head in ("ms", "share", "calls"):
        table.add_column(head, justify="right", no_wrap=True)

    def share(part_ms: float) -> str:
        return f"{part_ms / total_ms:.1%}" if total_ms > 0 else "-"

    for node in ranked[:_HEAVIEST]:
        cells = (clean(node.op_type), clean(node.origin), format_number(node.latency_ms))
        table.add_row(*cells, share(node.latency_ms), f"{node.calls:g}")
    if rest := ranked[_HEAVIEST:]:
        rest_ms = sum(node.latency_ms for node in rest)
        table.add_row(f"{len(rest)} more", "", format_number(rest_ms), share(rest_ms), "")
    return table
