"""Charts that any page may use: bars, intervals on a common axis, scatter, lines over an axis.

Each returns markup from plain values; what the values mean is the caller's business.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slicewise.app.html.markup import Content, Html, element, join
from slicewise.app.html.plot import label_at, marker, outline, percent, plot, segment, swatch
from slicewise.app.html.scale import Axis, linear_axis, log_axis


@dataclass(frozen=True, slots=True)
class Point:
    """A dot of `scatter`: where, what to say on hovering, a label to write beside it.

    `style` is a class of the style sheet (a colour), `shape` one of `plot.marker`'s, `size` its
    radius in pixels.
    """

    x: float
    y: float
    hover: str
    label: str = ""
    style: str = "accent"
    shape: str = "circle"
    size: float = 4.5


def scatter(
    points: Sequence[Point],
    *,
    x: str | Axis,
    y: str | Axis,
    label: str,
    highlight: Sequence[int] = (),
    behind: Sequence[Html] = (),
    height: int = 340,
) -> Html:
    """Return a scatter chart; both axes are logarithmic unless an `Axis` is given.

    `x` and `y` are the axes or their labels, with the unit. `highlight` are indices of points that
    a front joins: these are drawn last, full and joined by steps, the others pale. `behind` is
    drawn under the points. `label` is what a screen reader says of the chart.
    """
    across = log_axis(x, [point.x for point in points]) if isinstance(x, str) else x
    up = log_axis(y, [point.y for point in points]) if isinstance(y, str) else y
    chosen = set(highlight)
    marks = list(behind)
    if chosen:
        front = sorted(chosen, key=lambda i: (points[i].x, points[i].y))
        corners: list[tuple[float, float]] = []
        for i in front:
            here = (across.at(points[i].x), 1 - up.at(points[i].y))
            if corners:
                corners.append((here[0], corners[-1][1]))
            corners.append(here)
        marks.append(outline(corners, style="front"))
    order = sorted(range(len(points)), key=lambda i: i in chosen)
    for i in order:
        point = points[i]
        pale = " pale" if chosen and i not in chosen else ""
        left, top = across.at(point.x), 1 - up.at(point.y)
        marks.append(
            marker(
                left,
                top,
                point.hover,
                shape=point.shape,
                style=f"{point.style}{pale}",
                size=point.size,
            )
        )
    marks.extend(_point_labels([points[i] for i in order], across, up, height))
    return plot(marks, x=across, y=up, label=label, height=height)


def _point_labels(points: Sequence[Point], x: Axis, y: Axis, height: int) -> Iterable[Html]:
    """Yield the labels of points, above right of the mark or below left near the right end.

    Those at the ends are written first. A label that would lie on an earlier one is left out, or
    only on a narrow page if there is room on a wide one: the mark says the same on hovering.
    """
    taken: dict[int, list[tuple[float, float, float]]] = {_WIDE: [], _NARROW: []}
    labelled = sorted((point for point in points if point.label), key=lambda point: point.x)
    for point in [*labelled[:1], *labelled[:0:-1]]:
        left, top = x.at(point.x), 1 - y.at(point.y)
        ends = left > 0.7
        fits = {}
        for width, placed in taken.items():
            length = _LETTER * len(point.label)
            start = left * width - (length if ends else 0)
            low = top * height + (16 if ends else -8)
            fits[width] = start >= 0 and all(
                start > other_end or start + length < other_start or abs(low - other_low) > _LINE
                for other_start, other_end, other_low in placed
            )
            if fits[width]:
                placed.append((start, start + length, low))
        if fits[_WIDE]:
            yield label_at(
                left,
                top,
                point.label,
                anchor="end" if ends else "start",
                dx=-5 if ends else 5,
                dy=16 if ends else -8,
                style="direct" if fits[_NARROW] else "direct minor",
            )


# Pixels: the drawing area of a chart on a wide and a narrow page, a letter, a line of text.
_WIDE, _NARROW, _LETTER, _LINE = 900, 310, 7, 15


@dataclass(frozen=True, slots=True)
class Line:
    """A line of `lines`: its points, its name, its hovering texts, and an interval if known.

    `doubtful` are indices of points drawn hollow.
    """

    name: str
    points: Sequence[tuple[float, float]]
    hovers: Sequence[str]
    style: str
    shape: str = "circle"
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    doubtful: frozenset[int] = frozenset()


def lines(
    drawn: Sequence[Line], *, x: Axis, y: Axis, label: str, band: bool, height: int = 260
) -> Html:
    """Return lines with dots over a common axis; `band` shades the interval of each."""
    marks: list[Html] = []
    for line in drawn:
        places = [(x.at(a), 1 - y.at(b)) for a, b in line.points]
        if band and line.low:
            over = [(place[0], 1 - y.at(v)) for place, v in zip(places, line.high, strict=True)]
            under = [(place[0], 1 - y.at(v)) for place, v in zip(places, line.low, strict=True)]
            marks.append(outline([*over, *under[::-1]], style=f"band {line.style}", closed=True))
        marks.append(outline(places, style=f"line {line.style}"))
    for line in drawn:
        for i, (a, b) in enumerate(line.points):
            style = f"{line.style}{' hollow' if i in line.doubtful else ''}"
            marks.append(
                marker(x.at(a), 1 - y.at(b), line.hovers[i], shape=line.shape, style=style, size=4)
            )
    return plot(marks, x=x, y=y, label=label, height=height)


@dataclass(frozen=True, slots=True)
class Range:
    """A row of `intervals`: a value with its interval, and what is written at both sides.

    Rows of the same `group` that follow one another stand under it as a heading.
    """

    name: str
    value: float
    low: float
    high: float
    shown: str
    group: str = ""
    best: bool = False


def intervals(rows: Sequence[Range], *, axis_label: str, label: str) -> Html:
    """Return values with their intervals on a common axis, a row each.

    The axis starts at 0 unless the values span more than a factor of 20: then it is logarithmic
    and says so.
    """
    spread = [bound for row in rows for bound in (row.low, row.high)]
    wide = min(spread) > 0 and max(spread) > 20 * min(spread)
    axis = log_axis(axis_label, spread) if wide else linear_axis(axis_label, spread)
    body = []
    for i, row in enumerate(rows):
        if row.group and (i == 0 or rows[i - 1].group != row.group):
            body.append(element("li", row.group, class_="group"))
        body.append(
            element(
                "li",
                element("span", row.name, class_="name"),
                element("span", _interval_mark(row, axis), class_="track"),
                element("span", row.shown, class_="value"),
                class_="best" if row.best else None,
            )
        )
    ticks = [
        label_at(axis.at(tick), 0, axis.show(tick), anchor="middle", dy=13) for tick in axis.ticks
    ]
    scale = element(
        "li",
        element("span", f"{axis_label}{', logarithmic' if wide else ''}", class_="name"),
        element(
            "span",
            element("svg", *ticks, width="100%", height=18, aria_hidden="true"),
            class_="track",
        ),
        element("span", class_="value"),
        class_="scale",
    )
    return element("ul", *body, scale, class_="rows intervals", aria_label=label)


def _interval_mark(row: Range, axis: Axis) -> Html:
    low, high = axis.at(row.low), axis.at(row.high)
    grid = [segment(axis.at(t), 0, axis.at(t), 1, style="grid") for t in axis.ticks]
    return element(
        "svg",
        *grid,
        element("title", f"{row.name}: {row.shown}"),
        segment(low, 0.5, high, 0.5, style="whisker"),
        marker(axis.at(row.value), 0.5, row.shown, shape="circle", style="accent", size=5.5),
        width="100%",
        height=26,
        role="img",
        aria_label=f"{row.name}: {row.shown}",
    )


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of `bars`: a part of the whole between 0 and 1, and what is written beside it."""

    name: Content
    part: float
    shown: str
    style: str = "accent"


def bars(rows: Sequence[Bar], *, label: str) -> Html:
    """Return horizontal bars from 0, the longest filling the width."""
    top = max((row.part for row in rows), default=0) or 1
    return element(
        "ul",
        *(
            element(
                "li",
                element("span", row.name, class_="name"),
                element(
                    "span",
                    element(
                        "svg",
                        element(
                            "rect",
                            class_=f"bar {row.style}",
                            width=percent(row.part / top),
                            height=16,
                            y=5,
                            rx=2,
                        ),
                        width="100%",
                        height=26,
                        aria_hidden="true",
                    ),
                    class_="track",
                ),
                element("span", row.shown, class_="value"),
            )
            for row in rows
        ),
        class_="rows",
        aria_label=label,
    )


def stack(
    parts: Sequence[Bar],
    *,
    label: str,
    whisker: tuple[float, float] | None = None,
    limit: float | None = None,
) -> Html:
    """Return one bar cut into parts of a whole of 1, with a legend below.

    `whisker` draws an interval over it and `limit` a thick line, as fractions of the whole.
    """
    marks, start = [], 0.0
    for part in parts:
        end = min(1.0, start + part.part)
        marks.append(
            element(
                "rect",
                element("title", f"{part.name}: {part.shown}"),
                class_=f"bar {part.style}",
                x=percent(start),
                width=percent(max(0.0, end - start)),
                y=4,
                height=22,
            )
        )
        start = end
    if whisker is not None:
        low, high = (min(1.0, max(0.0, bound)) for bound in whisker)
        marks.append(segment(low, 0.5, high, 0.5, style="whisker thin"))
        marks.extend(segment(end, 0.25, end, 0.75, style="whisker thin") for end in (low, high))
    if limit is not None:
        marks.append(segment(limit, 0, limit, 1, style="limit"))
    drawing = element(
        "svg", *marks, class_="stack", role="img", aria_label=label, width="100%", height=30
    )
    return join((drawing, legend((str(p.name), p.shown, "square", p.style) for p in parts)))


def legend(entries: Iterable[tuple[str, str, str, str]]) -> Html:
    """Return a line that names marks: (name, figure, shape, style) each."""
    return element(
        "ul",
        *(
            element("li", swatch(shape, style), name, " " if shown else "",
                    element("b", shown) if shown else None)
            for name, shown, shape, style in entries
        ),
        class_="legend",
    )  # fmt: skip
