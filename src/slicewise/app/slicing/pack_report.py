"""A packing for people: how many cards and the proof first, the cards drawn, then workloads."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slicewise.app.columns import Column, columns_for
from slicewise.app.report import notes_lines
from slicewise.app.slicing.pack_words import (
    Row,
    bound_line,
    cards_used,
    change_lines,
    doubt_line,
    growth_line,
    head_room,
    interval_cell,
    kinds_used,
    left_over_lines,
    proof,
    rows,
    rule_line,
    service_cell,
    simulated_cell,
    subject,
    unserved_line,
)
from slicewise.app.words import clean
from slicewise.core.units import format_number
from slicewise.flows.packing.result import PackResult

_MOST_ROWS = 100


def pack_report(made: PackResult, *, width: int) -> RenderableType:
    """Return the report of a packing, for a terminal of `width` columns."""
    parts: list[RenderableType] = [_answer(made)]
    if made.packing.unserved:
        parts.append(Text(f"{unserved_line(made)}.", style="yellow"))
    told = (bound_line(made), rule_line(made), doubt_line(made), *change_lines(made))
    parts += [Text(line) for line in told if line]
    parts += _drawings(made)
    parts += [Text(), _table(made, width), Text(_legend(made), style="dim")]
    parts += [Text(line) for line in (growth_line(made), *left_over_lines(made)) if line]
    parts += notes_lines(made.notes)
    return Group(*parts)


def _answer(made: PackResult) -> Text:
    style = "bold yellow" if made.packing.unserved else "bold green"
    return Text.assemble(
        f"{subject(made)}: ", (cards_used(made), style), f"{kinds_used(made)}, {proof(made)}"
    )


def _drawings(made: PackResult) -> list[RenderableType]:
    from slicewise.app.slicing.drawing import fleet_drawing

    gpus = [gpu for gpu in made.packing.gpus if gpu.slices]
    return [Text(), fleet_drawing(gpus, made.problem.device)] if gpus else []


def _columns(made: PackResult) -> tuple[Column[Row], ...]:
    columns: list[Column[Row]] = [
        Column("slices", 0, lambda row: str(row.count)),
        Column("batch", 0, lambda row: _serving(row, "batch")),
        Column("processes", 3, lambda row: _serving(row, "processes")),
        Column("requests/s", 0, lambda row: format_number(row.rate_per_s)),
        Column("carries/s", 1, _carries),
        Column("head-room", 1, lambda row: head_room(row.outcome) if row.is_first else ""),
        Column("batch ms", 0, lambda row: service_cell(row.offer)),
        Column("90 % interval", 4, lambda row: interval_cell(row.offer)),
        Column("wait ms", 5, _delay),
        Column("target ms", 0, lambda row: format_number(row.outcome.spec.latency_ms)),
    ]
    if made.simulated:
        columns.append(
            Column("simulated", 2, lambda row: simulated_cell(row.outcome) if row.is_first else "")
        )
    return tuple(columns)


def _serving(row: Row, name: str) -> str:
    return "-" if row.offer is None else str(getattr(row.offer.serving, name))


def _carries(row: Row) -> str:
    return "-" if row.offer is None else format_number(row.count * row.offer.capacity_per_s)


def _delay(row: Row) -> str:
    return "-" if row.offer is None else format_number(row.offer.max_delay_ms)


def _table(made: PackResult, width: int) -> Table:
    found = rows(made)
    names = [clean(row.outcome.spec.name) if row.is_first else "" for row in found]
    places = [row.place for row in found]
    room = width - max(map(len, [*names, "workload"])) - max(map(len, places)) - 4
    columns = columns_for(_columns(made), found, room=room)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("workload", overflow="fold", min_width=8)
    table.add_column("slice", overflow="fold", min_width=8)
    for column in columns:
        table.add_column(column.head, justify="right", no_wrap=True)
    for name, row, place in list(zip(names, found, places, strict=True))[:_MOST_ROWS]:
        style = "yellow" if row.outcome.unserved_per_s > 0 else None
        table.add_row(name, place, *(column.cell(row) for column in columns), style=style)
    return table


def _legend(made: PackResult) -> str:
    more = len(rows(made)) - _MOST_ROWS
    left = f"{more:,} more rows; --json has all. " if more > 0 else ""
    percentiles = sorted({each.spec.percentile for each in made.outcomes})
    told = ", ".join(f"{each:g}" for each in percentiles)
    played = f" Simulated: the percentile ({told}), ms." if made.simulated else ""
    return (
        f"{left}Carries: the highest rate that keeps the target; wait: the longest that a batch is"
        f" filled before it starts.{played}"
    )
