"""Marks on charts as inline SVG that keeps its text size at any width.

The drawing area of a chart is the whole `<svg>`: places are percentages of it, so that it widens
with the page while letters, dots and strokes keep their size; what stands outside the axes
overflows into the margin that the style sheet leaves. Shapes of many points live in a nested
`<svg>` that is stretched. Nothing here knows predictions.
"""

from collections.abc import Sequence

from slicewise.app.html.markup import Html, element, join, text
from slicewise.app.html.scale import Axis

# Shapes of the same visual weight, round (0, 0), for a side of 2.
_SHAPES = {
    "circle": "M-1 0a1 1 0 1 0 2 0a1 1 0 1 0-2 0z",
    "square": "M-.9-.9h1.8v1.8h-1.8z",
    "diamond": "M0-1.25L1.25 0 0 1.25-1.25 0z",
    "up": "M0-1.2L1.15.85h-2.3z",
    "down": "M0 1.2L1.15-.85h-2.3z",
    "cross": "M-.35-1.1h.7v.75h.75v.7h-.75v.75h-.7v-.75h-.75v-.7h.75z",
}


def percent(part: float) -> str:
    """Return a fraction as SVG writes a length: '12.5%'."""
    return f"{100 * part:.2f}".rstrip("0").rstrip(".") + "%"


def plot(marks: Sequence[Html], *, x: Axis, y: Axis, label: str, height: int = 320) -> Html:
    """Return a chart: grid, ticks, axis labels and the marks above them.

    `label` is read out in place of the picture. `height` is that of the drawing area in pixels.
    """
    drawing = element(
        "svg",
        _grid(x, y),
        *marks,
        role="img",
        aria_label=label,
        width="100%",
        height=height,
    )
    return element("div", drawing, class_="plot")


def _grid(x: Axis, y: Axis) -> Html:
    parts = []
    for tick in y.ticks:
        place = percent(1 - y.at(tick))
        parts.append(element("line", class_="grid", x1=0, x2="100%", y1=place, y2=place))
        parts.append(label_at(0, 1 - y.at(tick), y.show(tick), anchor="end", dx=-8, dy=4))
    parts.append(element("line", class_="axis", x1=0, x2="100%", y1="100%", y2="100%"))
    for tick in x.ticks:
        place = percent(x.at(tick))
        parts.append(element("line", class_="axis", x1=place, x2=place, y1="100%", y2="101.5%"))
        style = "minor" if tick in x.minor else ""
        parts.append(label_at(x.at(tick), 1, x.show(tick), anchor="middle", dy=20, style=style))
    parts.append(label_at(0, 0, y.label, dx=-44, dy=-14, style="title"))
    parts.append(label_at(1, 1, x.label, anchor="end", dy=40, style="title"))
    return join(parts)


def label_at(
    x: float,
    y: float,
    words: str,
    *,
    anchor: str = "start",
    dx: float = 0,
    dy: float = 0,
    style: str = "",
) -> Html:
    """Return words at the fractions `x`, `y` (from the top), moved by pixels."""
    return element(
        "text",
        words,
        x=percent(x),
        y=percent(y),
        dx=f"{dx:g}",
        dy=f"{dy:g}",
        text_anchor=anchor,
        class_=style or None,
    )


def marker(x: float, y: float, hover: str, *, shape: str, style: str, size: float = 4) -> Html:
    """Return a mark at the fractions `x`, `y` (from the top); `hover` is its title."""
    return Html(
        f'<svg x="{percent(x)}" y="{percent(y)}" class="mark {style}">'
        f'<path d="{_SHAPES[shape]}" transform="scale({size:.3g})"/>'
        f"<title>{text(hover)}</title></svg>"
    )


def swatch(shape: str, style: str) -> Html:
    """Return the mark of a legend, as wide as a letter."""
    return Html(
        f'<svg class="swatch {style}" viewBox="-7 -7 14 14" aria-hidden="true">'
        f'<path d="{_SHAPES[shape]}" transform="scale(5)"/></svg>'
    )


def segment(x1: float, y1: float, x2: float, y2: float, *, style: str) -> Html:
    """Return a straight line between two places."""
    return element(
        "line", class_=style, x1=percent(x1), y1=percent(y1), x2=percent(x2), y2=percent(y2)
    )


def outline(points: Sequence[tuple[float, float]], *, style: str, closed: bool = False) -> Html:
    """Return a line (or a filled area if `closed`) through places, stretched with the chart."""
    path = "L".join(f"{1000 * x:.1f} {1000 * y:.1f}" for x, y in points)
    return Html(
        '<svg class="stretch" viewBox="0 0 1000 1000" preserveAspectRatio="none" width="100%"'
        f' height="100%"><path class="{style}" d="M{path}{"Z" if closed else ""}"/></svg>'
    )
