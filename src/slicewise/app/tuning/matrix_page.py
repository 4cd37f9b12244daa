"""The page of `slicewise tune --matrix --html`: what tuning elsewhere costs, as heat maps."""

from collections.abc import Sequence

from slicewise.app.html.blocks import Column, Fact, Section, facts, figure, page, sentence, table
from slicewise.app.html.endings import notes_section, reproduce_section
from slicewise.app.html.markup import Content, Html, element, join
from slicewise.app.tuning.heat import heat_map
from slicewise.app.tuning.matrix_words import (
    better_elsewhere,
    chosen_words,
    diagonal_words,
    how_words,
    matrix_answer,
    matrix_subject,
    off_diagonal,
    percent_more,
    shown_penalties,
    verdict,
)
from slicewise.app.tuning.page import RESTS_ON, strong_middle
from slicewise.app.tuning.words import config_words, time_words
from slicewise.app.words import clean, counted, interval, short_name
from slicewise.core.tuning import Matrix
from slicewise.core.units import format_number
from slicewise.flows.tuning.result import MatrixResult

_MOST_MAPS = 12


def matrix_page(made: MatrixResult, *, arguments: Sequence[str]) -> str:
    """Return the page of a matrix; `arguments` are the words that made it."""
    caption = (
        "Latency of what was tuned at one share (row), run at another (column), over that of what"
        " is tuned there, with the 90 % interval below. Underlined: beyond noise."
        f" {diagonal_words(made.total)} {chosen_words(made)}"
    )
    body = figure("Penalty of tuning elsewhere", heat_map(made.total), caption=caption)
    sections = [
        Section("matrix", _sentence(verdict(made.total)), body, "Tuned at, run at"),
        *_workloads(made),
        _cells(made),
        *notes_section(made.notes),
        reproduce_section(
            arguments, name=made.model.name, source=made.model.source, digest=made.model.digest
        ),
    ]
    title = f"{matrix_subject(made)}: tuned at, run at"
    return page(title, sections, lead=_lead(made), kicker="Tuning over shares", rests_on=RESTS_ON)


def _sentence(pieces: tuple[str, str, str]) -> str:
    words = "".join(pieces)
    return f"{words[0].upper()}{words[1:]}"


def _lead(made: MatrixResult) -> Html:
    cells = off_diagonal(made.total)
    beyond = f"{len(shown_penalties(made.total))} of {len(cells)}"
    beaten = f"{len(better_elsewhere(made.total))} of {len(cells)}"
    return join(
        (
            element("p", *strong_middle(matrix_answer(made)), class_="answer"),
            element("p", how_words(made), class_="under"),
            facts(
                (
                    Fact("Pairs that cost", beyond, "beyond noise"),
                    Fact("Pairs that beat the diagonal", beaten, "beyond noise"),
                    Fact("Candidates", f"{made.candidates:,}", "the same at every share"),
                    Fact("Time", time_words(made.phases.wall_s), "in all"),
                )
            ),
        )
    )


def _workloads(made: MatrixResult) -> list[Section]:
    if len(made.workloads) < 2:
        return []

    def worst(matrix: Matrix) -> float:
        return max((cell.penalty.value for cell in off_diagonal(matrix)), default=1.0)

    ranked = sorted(made.workloads, key=lambda matrix: -worst(matrix))
    maps = [
        element("figure", element("h3", short_name(matrix.name)), heat_map(matrix))
        for matrix in ranked[:_MOST_MAPS]
    ]
    body: list[Content] = [element("div", *maps, class_="heats")]
    if len(ranked) > _MOST_MAPS:
        more = f"{counted(len(ranked) - _MOST_MAPS, 'more workload')}; --json has all."
        body.append(sentence(more, style="quiet"))
    count = sum(bool(shown_penalties(matrix)) for matrix in ranked)
    title = f"{count} of {counted(len(ranked), 'workload')} lose where they were not tuned"
    return [Section("workloads", title, join(body), "Workloads")]


def _cells(made: MatrixResult) -> Section:
    """Every cell of the whole in a table, with what was chosen."""
    columns = [Column("tuned at"), Column("run at"), Column("latency ms", numeric=True)]
    columns += [Column("90 %", numeric=True), Column("costs", numeric=True)]
    has_configs = any(cell.config for cell in made.total.cells)
    columns += [Column("configuration")] if has_configs else []
    rows: list[list[Content]] = []
    for cell in made.total.cells:
        is_own = cell.tuned_at == cell.run_at
        figures = format_number(cell.latency_ms.value), interval(cell.latency_ms)
        told = "tuned here" if is_own else percent_more(cell.penalty)
        config = [config_words(cell.config)] if has_configs else []
        rows.append([clean(cell.tuned_at), clean(cell.run_at), *figures, told, *config])
    body = table(columns, rows, caption="Every pair of shares")
    return Section("cells", "Latencies of every pair", body, "Figures")
