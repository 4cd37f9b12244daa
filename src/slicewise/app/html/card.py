"""The parts of a notebook card: styled in place, without a script.

Colours are the notebook's own, paler by opacity, so that a card reads in light and in dark.
"""

from collections.abc import Sequence

from slicewise.app.html.markup import Content, Html, element, join

_CARD = (
    "font-family:system-ui,sans-serif;font-variant-numeric:tabular-nums;line-height:1.45;"
    "max-width:46em;padding:4px 0"
)
PALE = "opacity:.72;font-size:.88em"
_CELL = "padding:3px 16px 3px 0;background:none;border:0;vertical-align:top"
_LINE = "border:0;border-bottom:1px solid rgba(128,128,128,.35);background:none"


def card_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, numeric_from: int) -> Html:
    """Return a table of texts; columns from `numeric_from` on are set to the right."""

    def style(i: int) -> str:
        return f"{_CELL};text-align:{'right' if i >= numeric_from else 'left'}"

    head = element(
        "tr",
        *(element("th", word, scope="col", style=style(i)) for i, word in enumerate(heads)),
        style=_LINE,
    )
    body = [
        element(
            "tr",
            *(element("td", cell, style=style(i)) for i, cell in enumerate(row)),
            style="background:none",
        )
        for row in rows
    ]
    return element(
        "table", element("thead", head), element("tbody", *body),
        style="color:inherit;border-collapse:collapse;margin:6px 0;font-size:.95em",
    )  # fmt: skip


def card(*parts: Content) -> str:
    """Return the parts under one another as one fragment."""
    return str(element("div", join(parts), style=_CARD))
