"""What a tuning looks like in a notebook."""

from slicewise.app.html.card import PALE, card, card_table
from slicewise.app.html.markup import Content, element
from slicewise.app.tuning.matrix_words import (
    cell_at,
    diagonal_words,
    matrix_answer,
)
from slicewise.app.tuning.page import strong_middle
from slicewise.app.tuning.words import (
    answer,
    artifact_words,
    by_weight,
    outlook_words,
    phases_words,
    workload_name,
)
from slicewise.app.words import clean, grouped_notes, interval
from slicewise.core.tuning import Matrix
from slicewise.core.units import format_number
from slicewise.flows.tuning.result import MatrixResult, TuneResult

_MOST_ROWS = 12


def tune_card(made: TuneResult) -> str:
    """Return what a notebook shows of a tuning: the answer, then every workload in a table."""
    parts: list[Content] = [element("div", *strong_middle(answer(made)), style="font-size:1.1em")]
    if told := artifact_words(made):
        parts.append(element("div", told))
    rows = []
    for each in by_weight(made)[:_MOST_ROWS]:
        cells = ["-", "-", "-", "-"]
        if each.tuned is not None:
            default = each.tuned.default_ms
            cells = [
                "-" if default is None else format_number(default),
                format_number(each.tuned.latency_ms.value),
                interval(each.tuned.latency_ms),
                "-" if each.gain is None else format_number(each.gain),
            ]
        rows.append((workload_name(each), str(each.count), *cells, f"{each.trials:,}"))
    heads = ("workload", "count", "default ms", "tuned ms", "90 %", "gain", "trials")
    if rows:
        parts.append(card_table(heads, rows, numeric_from=1))
    codes = ", ".join(group.code for group in grouped_notes(made.notes)) or "none"
    told = " ".join(filter(None, (phases_words(made), outlook_words(made.outlook))))
    parts.append(element("div", f"{told} Notes: {codes}", style=PALE))
    return card(*parts)


def matrix_card(made: MatrixResult) -> str:
    """Return what a notebook shows of a matrix: the answer, then the penalties."""
    heads = ("tuned at", *(f"run at {clean(share)}" for share in made.shares))
    rows = [
        (clean(share), *(_cell(made.total, share, run_at) for run_at in made.shares))
        for share in made.shares
    ]
    codes = ", ".join(group.code for group in grouped_notes(made.notes)) or "none"
    about = f"{diagonal_words(made.total)} Notes: {codes}"
    head = element("div", *strong_middle(matrix_answer(made)), style="font-size:1.1em")
    return card(head, card_table(heads, rows, numeric_from=1), element("div", about, style=PALE))


def _cell(matrix: Matrix, tuned_at: str, run_at: str) -> str:
    cell = cell_at(matrix, tuned_at, run_at)
    if cell is None:
        return "-"
    if tuned_at == run_at:
        return f"{format_number(cell.latency_ms.value)} ms"
    return f"{format_number(cell.penalty.value)} ({interval(cell.penalty)})"
