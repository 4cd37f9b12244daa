"""A tuned-at, run-at matrix for people: what tuning elsewhere costs, then every penalty."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slicewise.app.report import notes_lines
from slicewise.app.tuning.matrix_words import (
    better_elsewhere,
    cell_at,
    chosen_words,
    diagonal_words,
    how_words,
    matrix_answer,
    off_diagonal,
    percent_more,
    shown_penalties,
)
from slicewise.app.tuning.words import time_words
from slicewise.app.words import clean, interval, short_name
from slicewise.core.tuning import Matrix
from slicewise.core.units import format_number
from slicewise.flows.tuning.result import MatrixResult

MOST_ROWS = 12


def matrix_report(made: MatrixResult) -> RenderableType:
    """Return the report of `slicewise tune --matrix`."""
    head, middle, tail = matrix_answer(made)
    is_shown = bool(shown_penalties(made.total))
    parts: list[RenderableType] = [
        Text.assemble(head, (middle, "bold yellow" if is_shown else "bold green"), tail),
        Text(diagonal_words(made.total)),
        Text(chosen_words(made)),
        Text(),
        Text("Penalty: latency / that of what is tuned where it runs", style="bold"),
        _table(made.total),
        Text(
            "Rows: tuned at; columns: run at. In brackets the 90 % interval; on the diagonal (=)"
            " the latency in ms. *: beyond noise.",
            style="dim",
        ),
        *_workloads(made),
        Text(),
        Text(how_words(made), style="dim"),
        Text(f"Time: {time_words(made.phases.wall_s)} in all.", style="dim"),
    ]
    return Group(*parts, *notes_lines(made.notes))


def _table(matrix: Matrix) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("tuned at", no_wrap=True)
    for share in matrix.shares:
        table.add_column(clean(share), justify="right", no_wrap=True)
    for share in matrix.shares:
        table.add_row(clean(share), *(_cell(matrix, share, run_at) for run_at in matrix.shares))
    return table


def _cell(matrix: Matrix, tuned_at: str, run_at: str) -> Text:
    cell = cell_at(matrix, tuned_at, run_at)
    if cell is None:
        return Text("-", style="dim")
    if tuned_at == run_at:
        return Text(f"= {format_number(cell.latency_ms.value)} ms", style="bold")
    is_beyond = not cell.penalty.low <= 1 <= cell.penalty.high
    told = f"{format_number(cell.penalty.value)} ({interval(cell.penalty)})"
    return Text(f"{'*' if is_beyond else ''}{told}", style="yellow" if is_beyond else "")


def _workloads(made: MatrixResult) -> Sequence[RenderableType]:
    """Each operator with the pair of shares that costs it most; none where there is only one."""
    if len(made.workloads) < 2:
        return ()
    rows = []
    for matrix in made.workloads:
        cells = off_diagonal(matrix)
        if cells:
            rows.append((matrix, max(cells, key=lambda cell: cell.penalty.value)))
    rows.sort(key=lambda row: -row[1].penalty.value)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("workload", overflow="fold")
    for head in ("tuned at", "run at", "costs", "beyond noise", "diagonal beaten"):
        table.add_column(head, justify="right", no_wrap=True)
    for matrix, cell in rows[:MOST_ROWS]:
        table.add_row(
            short_name(matrix.name),
            clean(cell.tuned_at),
            clean(cell.run_at),
            percent_more(cell.penalty),
            f"{len(shown_penalties(matrix))} of {len(off_diagonal(matrix))}",
            str(len(better_elsewhere(matrix))),
        )
    more = len(rows) - MOST_ROWS
    rest = [Text(f"{more} more; --json has all.", style="dim")] if more > 0 else []
    return (Text(), Text("The dearest pair of each workload", style="bold"), table, *rest)
