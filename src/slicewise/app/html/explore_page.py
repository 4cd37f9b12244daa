"""The page of `slicewise explore --html`: the best points, three charts, every row."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slicewise._version import __version__
from slicewise.app.explore_words import (
    WORDS,
    best_points,
    configuration,
    headline,
    note_counts,
    off_front_reasons,
    ranked_front,
)
from slicewise.app.html.blocks import (
    Column,
    Fact,
    Section,
    facts,
    figure,
    page,
    sentence,
    table,
)
from slicewise.app.html.charts import Point, legend, scatter
from slicewise.app.html.markup import Content, Html, element, join
from slicewise.app.words import clean, counted, intervals_sentence, place, runtime_words
from slicewise.core.cost import Prediction
from slicewise.core.exploration import Exploration, ExploredPoint, Objective
from slicewise.core.units import format_number

# More dots make a browser slow and tell no more; the front is always drawn whole.
DRAWN_POINTS = 1500
TABLE_ROWS = 5000

_Made = Sequence[tuple[ExploredPoint, Prediction]]


@dataclass(frozen=True, slots=True)
class _Chart:
    """A chart: two objectives, and what its heading says."""

    across: Objective
    up: Objective
    title: str


_CHARTS = (
    _Chart(Objective.LATENCY, Objective.THROUGHPUT, "Throughput over latency"),
    _Chart(Objective.LATENCY, Objective.ENERGY, "Energy per item over latency"),
    _Chart(Objective.MEMORY, Objective.LATENCY, "Latency over memory"),
)


def explore_page(result: Exploration, *, arguments: Sequence[str]) -> str:
    """Return the whole page; `arguments` are the words of the command line that made it."""
    made = [(point, point.prediction) for point in result.points if point.prediction is not None]
    sections = []
    if made:
        sections.append(_charts(result, made))
        if result.front:
            sections.append(_front(result))
    sections.extend(_off_front(result))
    sections.append(_rows(result))
    sections.extend(_notes(result))
    sections.append(_reproduce(result, arguments))
    return page(headline(result), sections, lead=_lead(result, made), kicker="Design space")


def _lead(result: Exploration, made: _Made) -> Html:
    several = _has_several(result)
    best = facts(
        Fact(
            words.best.capitalize(),
            words.shown(prediction),
            configuration(point, with_model=several),
        )
        for words, point, prediction in best_points(result)
    )
    told = intervals_sentence(prediction for _, prediction in made) if made else ""
    return join((best, sentence(told, style="under")))


def _charts(result: Exploration, made: _Made) -> Section:
    drawn = _drawn(made)
    front = legend((("on the front", "", "circle", "accent"), ("the rest", "", "circle", "host")))
    parts: list[Content] = [front]
    for chart in _CHARTS:
        across, up = WORDS[chart.across], WORDS[chart.up]
        points = [
            Point(
                across.figure(prediction),
                up.figure(prediction),
                f"{configuration(point)}: {across.shown(prediction)}, {up.shown(prediction)}",
                style="accent" if point.on_front else "host pale",
                size=5 if point.on_front else 3,
            )
            for point, prediction in drawn
        ]
        label = f"{chart.title}: {len(result.front)} of {len(made)} points on the front"
        parts.append(figure(chart.title, scatter(points, x=across.axis, y=up.axis, label=label)))
    if len(drawn) < len(made):
        parts.append(
            sentence(
                f"{len(drawn):,} of {len(made):,} points are drawn, the front whole.",
                style="quiet",
            )
        )
    count = len(result.front)
    beats = "that no other beats in everything"
    title = f"{counted(count, 'point')} {beats}" if count else "No point may stand on the front"
    return Section("space", title, join(parts), about="The space")


def _drawn(made: _Made) -> _Made:
    """Return what is drawn, the front last: all of it, and evenly chosen others."""
    front = [each for each in made if each[0].on_front]
    others = [each for each in made if not each[0].on_front]
    step = -(-len(others) // max(1, DRAWN_POINTS)) or 1
    return [*others[::step], *front]


def _has_several(result: Exploration) -> bool:
    return len({point.source for point in result.points}) > 1


def _front(result: Exploration) -> Section:
    several = _has_several(result)
    title = f"The front, by {result.objectives[0].value}"
    rows = [_cells(several, point) for point, _ in ranked_front(result)]
    shown = table(
        _columns(several), rows, caption="Points on the front", filterable=len(rows) > 20
    )
    return Section("front", title, shown, about="The front")


def _off_front(result: Exploration) -> list[Section]:
    reasons = off_front_reasons(result)
    if not reasons:
        return []
    items = [element("li", line.strip()) for line in reasons]
    title = "Points that cannot stand on the front"
    return [Section("reasons", title, element("ul", *items), about="Limits")]


def _rows(result: Exploration) -> Section:
    several = _has_several(result)
    rows = [
        [*_cells(several, point), point.standing.value, clean(_reason(point))]
        for point in result.points[:TABLE_ROWS]
    ]
    columns = [*_columns(several), Column("standing"), Column("reason")]
    count = len(result.points)
    told = "The only point" if count == 1 else f"All {count:,} points"
    parts: list[Content] = [table(columns, rows, caption=told, filterable=True, fold=True)]
    if len(rows) < len(result.points):
        parts.append(sentence(f"The first {len(rows):,} are shown; --csv has all.", style="quiet"))
    return Section("points", told, join(parts), about="Points")


def _reason(point: ExploredPoint) -> str:
    return "" if point.failure is None else point.failure.reason


def _columns(several: bool) -> list[Column]:
    columns = [Column("device"), Column("batch", numeric=True)]
    if several:
        columns.insert(0, Column("model"))
    columns += [Column("precision"), Column("runtime")]
    return [
        *columns,
        *(Column(words.head, numeric=True, hint=words.axis) for words in WORDS.values()),
    ]


def _cells(several: bool, point: ExploredPoint) -> list[Content]:
    cells: list[Content] = [place(point), str(point.batch or "")]
    if several:
        cells.insert(0, clean(point.model))
    cells += [point.precision or "", runtime_words(point)]
    made = point.prediction
    figures: list[Callable[[Prediction], float]] = [words.figure for words in WORDS.values()]
    return [*cells, *("" if made is None else format_number(each(made)) for each in figures)]


def _notes(result: Exploration) -> list[Section]:
    counts = note_counts(result)
    if not counts and not result.notes:
        return []
    rows: list[list[Content]] = [[code, f"{count:,}"] for code, count in counts]
    parts: list[Content] = [sentence(str(note)) for note in result.notes]
    parts.append(
        table(
            [Column("note"), Column("points", numeric=True)],
            rows,
            caption="Notes by the number of points that have them; --json has their texts",
        )
    )
    return [Section("notes", "What was assumed", join(parts), about="Notes")]


def _reproduce(result: Exploration, arguments: Sequence[str]) -> Section:
    items: list[Content] = [element("dt", "version"), element("dd", f"slicewise {__version__}")]
    for model in result.models:
        items.append(element("dt", clean(model.name)))
        digest = element("code", model.digest)
        items.append(element("dd", clean(model.source), ", digest ", digest))
    command = element("pre", element("code", shlex.join(("slicewise", *arguments))))
    body = join((command, element("dl", *items, class_="given")))
    return Section("reproduce", "The command that made this page", body, about="Reproduce")
