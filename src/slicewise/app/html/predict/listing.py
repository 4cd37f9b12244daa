"""What a page lists in full: notes, and the nodes of a prediction."""

from collections.abc import Sequence

from slicewise.app.html import blocks
from slicewise.app.html.blocks import Column, Section, folded, sentence
from slicewise.app.html.markup import Content, Html, element, join
from slicewise.app.kernels import launched_kernels
from slicewise.app.words import NoteText, clean, grouped_notes, subject
from slicewise.core.cost import Prediction
from slicewise.core.units import format_ms, format_number

MOST_ROWS = 6000  # of nodes on a page: beyond that it would grow slow
FEW_ROWS = 100  # of one prediction among several, where all rows would be more than that
_TEXTS_SHOWN = 3
_OPEN_ROWS = 40  # a longer table is folded


def note_text(note: NoteText) -> str:
    """Return the words of a note and the nodes that it concerns, as one sentence."""
    where = ""
    if note.nodes:
        more = f" and {len(note.nodes) - 1:,} more" if len(note.nodes) > 1 else ""
        where = f" (node {clean(note.nodes[0])}{more})"
    return f"{clean(note.text).rstrip('.')}{where}."


def notes_section(predictions: Sequence[Prediction]) -> list[Section]:
    """Return all notes, each text once; many of one code are folded."""
    groups = grouped_notes(note for made in predictions for note in made.notes)
    if not groups:
        return []
    items: list[Content] = []
    for group in groups:
        texts = [element("p", note_text(note)) for note in group.texts]
        items.append(element("dt", group.code))
        items.append(element("dd", *texts[:_TEXTS_SHOWN]))
        if len(texts) > _TEXTS_SHOWN:
            head = f"{len(texts) - _TEXTS_SHOWN} more"
            items.append(element("dd", folded(head, join(texts[_TEXTS_SHOWN:]), style="long")))
    title = "One thing was assumed" if len(groups) == 1 else f"{len(groups)} kinds of assumption"
    return [Section("notes", title, element("dl", *items, class_="notes"), about="Notes")]


_NODE_COLUMNS = (
    Column("node"),
    Column("operator"),
    Column("kind"),
    Column("kernel", numeric=True, hint="nodes of the same number are launched as one"),
    Column("ms", numeric=True),
    Column("share %", numeric=True),
    Column("limit"),
    Column("Gflop", numeric=True),
    Column("MB moved", numeric=True),
    Column("MiB alive", numeric=True, hint="activations alive while the node runs"),
)


def nodes_section(made: Prediction) -> Section:
    title = "The only node" if len(made.nodes) == 1 else f"All {len(made.nodes):,} nodes"
    return Section("nodes", title, nodes_table(made, most=MOST_ROWS), about="Nodes")


def nodes_table(made: Prediction, *, most: int) -> Html:
    """Return the nodes in graph order; the heaviest of them where they are more than `most`."""
    count = len(made.nodes)
    order = list(range(count))
    told, rest = f"Nodes of {subject(made)}, in graph order", None
    if count > most:
        by_time = sorted(order, key=lambda i: -made.nodes[i].latency_ms)
        left_ms = sum(made.nodes[i].latency_ms for i in by_time[most:])
        rest = sentence(
            f"{count - most:,} lighter nodes are left out, together {format_ms(left_ms)};"
            " --explain --json has all.",
            style="quiet",
        )
        told = f"The {most:,} heaviest nodes of {subject(made)}, in graph order"
        order = sorted(by_time[:most])
    numbers = _kernel_numbers(made)
    rows = [_node_row(made, i, numbers[i]) for i in order]
    fold = len(rows) > _OPEN_ROWS
    return join(
        (blocks.table(_NODE_COLUMNS, rows, caption=told, filterable=True, fold=fold), rest)
    )


def _kernel_numbers(made: Prediction) -> list[str]:
    """Return the number of each node's launch, from 1 in launch order; '' where it has none."""
    numbers = [""] * len(made.nodes)
    for number, kernel in enumerate(launched_kernels(made), start=1):
        for i in kernel.indices:
            numbers[i] = str(number)
    return numbers


def _node_row(made: Prediction, i: int, number: str) -> list[Content]:
    node = made.nodes[i]
    return [
        clean(node.name),
        clean(node.op_type),
        node.kind.value,
        number,
        format_number(node.latency_ms),
        format_number(100 * node.latency_ms / made.latency_ms.value),
        node.limit,
        format_number(node.flops / 1e9),
        format_number(node.moved_bytes / 1e6),
        format_number(node.alive_bytes / 2**20) if node.alive_bytes else "",
    ]
