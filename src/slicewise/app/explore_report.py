"""A sweep for people: the best of each objective, the front as a table and a plot, the reasons.

Renders text with rich; what is said stands in `explore_words.py`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from slicewise.app.columns import columns_that_fit
from slicewise.app.explore_words import (
    WORDS,
    best_points,
    configuration,
    headline,
    note_counts,
    off_front_reasons,
    ranked_front,
)
from slicewise.app.words import clean, place, runtime_words
from slicewise.core.cost import Prediction
from slicewise.core.exploration import Exploration, ExploredPoint, Objective
from slicewise.core.units import format_number

FRONT_ROWS = 20
_NAME_WIDTH = 16  # longer names are folded before figures give way
_PLOT_WIDTH, _PLOT_HEIGHT = 64, 14
_LEAST_FOR_PLOT = 8


def explore_report(result: Exploration, *, width: int) -> RenderableType:
    """Return the report of `slicewise explore`, for a terminal of `width` columns."""
    parts: list[RenderableType] = [Text(headline(result), style="bold"), *_best(result)]
    front = ranked_front(result)
    if front:
        parts.extend((Text(), _front_table(result, front, width)))
    points = [(point, point.prediction) for point in result.points if point.prediction is not None]
    places = {(made.latency_ms.value, made.throughput_per_s) for _, made in points}
    if len(places) >= _LEAST_FOR_PLOT and width >= _PLOT_WIDTH + 12:
        parts.extend((Text(), *_plot(points)))
    reasons = off_front_reasons(result)
    if reasons:
        parts.extend((Text(), *(Text(line, style="yellow") for line in reasons)))
    counts = note_counts(result)
    if counts:
        told = ", ".join(f"{code} {count:,}" for code, count in counts)
        parts.extend((Text(), Text(f"Notes, by points that have them: {told}.", style="dim")))
        parts.append(Text("Their texts: --json, or `slicewise predict` of a point.", style="dim"))
    parts.extend(Text(str(note), style="yellow") for note in result.notes)
    return Group(*parts)


def _best(result: Exploration) -> list[RenderableType]:
    several = len({point.source for point in result.points}) > 1
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for words, point, made in best_points(result):
        where = configuration(point, with_model=several)
        table.add_row(words.best, Text(words.shown(made), style="bold green"), where)
    return [table] if table.row_count else []


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the front; the last in rank gives way on a narrow terminal, rank 0 never."""

    head: str
    cells: list[str]
    rank: int = 0
    numeric: bool = False

    @property
    def width(self) -> int:
        """What it needs at most, with the gap to the next; rank 0 can be folded to less."""
        longest = max(map(len, (self.head, *self.cells)))
        return 2 + (min(longest, _NAME_WIDTH) if self.rank == 0 and not self.numeric else longest)


def _front_table(
    result: Exploration, front: Sequence[tuple[ExploredPoint, Prediction]], width: int
) -> RenderableType:
    shown = _evenly(front, FRONT_ROWS)
    every = _columns(result, shown)
    columns = columns_that_fit(every, lambda column: column.width, room=width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        if column.numeric or column.rank:
            justify: JustifyMethod = "right" if column.numeric else "left"
            table.add_column(column.head, justify=justify, no_wrap=True)
        else:
            table.add_column(column.head, overflow="fold", min_width=8)
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*row)
    told = [f"The front, by {result.objectives[0].value}", *_common(result)]
    about = ["Latency (ms) is for the whole batch."]
    if rest := len(front) - len(shown):
        about.append(f"{rest:,} more stand between these; --csv, --json and --html have all.")
    if len(columns) < len(every):
        about.append("A wider terminal shows more columns.")
    return Group(Text(", ".join(told), style="bold"), table, Text(" ".join(about), style="dim"))


def _columns(
    result: Exploration, shown: Sequence[tuple[ExploredPoint, Prediction]]
) -> list[_Column]:
    """Return the columns; what is the same for the whole sweep has none."""
    columns = [_Column("device", [place(point) for point, _ in shown])]
    if len({point.source for point in result.points}) > 1:
        columns.insert(0, _Column("model", [clean(point.model) for point, _ in shown]))
    columns.append(_Column("batch", [str(made.batch) for _, made in shown], numeric=True))
    for name, words in _HOW.items():
        if len(_values(result, words)) > 1:
            columns.append(_Column(name, [words(made) for _, made in shown], rank=1))
    for rank, (objective, told) in enumerate(WORDS.items()):
        rank = rank if objective in result.objectives else rank + len(WORDS)
        cells = [format_number(told.figure(made)) for _, made in shown]
        columns.append(_Column(told.head, cells, rank and rank + 1, numeric=True))
    return columns


def _common(result: Exploration) -> list[str]:
    """Return the precision and the runtime that the whole sweep has."""
    found = [_values(result, words) for words in _HOW.values()]
    return [values.pop() for values in found if len(values) == 1]


# How a point runs, besides where: what the sweep has several of is a column.
_HOW: Mapping[str, Callable[[Prediction], str]] = {
    "precision": lambda made: made.precision,
    "runtime": runtime_words,
}


def _values(result: Exploration, words: Callable[[Prediction], str]) -> set[str]:
    return {words(point.prediction) for point in result.points if point.prediction}


def _evenly(
    front: Sequence[tuple[ExploredPoint, Prediction]], most: int
) -> Sequence[tuple[ExploredPoint, Prediction]]:
    """Return the front, or `most` of it evenly spaced with both ends."""
    if len(front) <= most:
        return front
    step = (len(front) - 1) / (most - 1)
    return [front[round(i * step)] for i in range(most)]


def _plot(points: Sequence[tuple[ExploredPoint, Prediction]]) -> list[RenderableType]:
    """Draw throughput over latency, both logarithmic; the front over the rest."""
    across, up = WORDS[Objective.LATENCY], WORDS[Objective.THROUGHPUT]
    x = _Scale([across.figure(made) for _, made in points], _PLOT_WIDTH)
    y = _Scale([up.figure(made) for _, made in points], _PLOT_HEIGHT)
    cells = [[" "] * _PLOT_WIDTH for _ in range(_PLOT_HEIGHT)]
    for point, made in sorted(points, key=lambda each: each[0].on_front):
        row, column = _PLOT_HEIGHT - 1 - y.at(up.figure(made)), x.at(across.figure(made))
        cells[row][column] = "●" if point.on_front else "·"
    margin = max(len(y.low), len(y.high))
    lines: list[RenderableType] = [Text("items/s over latency; ● on the front", style="bold")]
    for i, row_cells in enumerate(cells):
        end = {0: y.high, _PLOT_HEIGHT - 1: y.low}.get(i, "")
        line = Text(f"{end:>{margin}} │")
        for cell in row_cells:
            line.append(cell, style="bold green" if cell == "●" else "dim")
        line.rstrip()
        lines.append(line)
    lines.append(Text(f"{'':>{margin}} └{'─' * _PLOT_WIDTH}"))
    middle = "latency ms, both axes logarithmic"
    room = _PLOT_WIDTH - len(x.low) - len(x.high)
    lines.append(Text(f"{'':>{margin}}  {x.low}{middle:^{room}}{x.high}"))
    return lines


class _Scale:
    """Values on a logarithmic axis of some cells."""

    def __init__(self, values: Sequence[float], size: int) -> None:
        self._low = math.log(min(values))
        self._span = math.log(max(values)) - self._low
        self._size = size
        self.low, self.high = format_number(min(values)), format_number(max(values))

    def at(self, value: float) -> int:
        """Return the cell of a value, from 0."""
        part = (math.log(value) - self._low) / self._span if self._span > 0 else 0.5
        return min(self._size - 1, int(part * self._size))
