"""Markup as values: the one place where text from outside becomes HTML.

A plain `str` is text and is escaped; `Html` is markup and is kept. Nothing here knows predictions.
"""

from collections.abc import Iterable
from html import escape

EN_DASH, TIMES = "\N{EN DASH}", "\N{MULTIPLICATION SIGN}"
_VOID = frozenset({"br", "hr", "input", "meta", "wbr"})


class Html(str):
    """Markup that is safe to put into a page as it is."""

    __slots__ = ()


Content = str | Html | None


def text(value: str) -> Html:
    """Return `value` as markup: escaped unless it is markup; control characters become '?'.

    >>> text("<script>"), text(Html("<b>x</b>"))
    ('&lt;script&gt;', '<b>x</b>')
    """
    if isinstance(value, Html):
        return value
    shown = value if value.isprintable() else "".join(c if c.isprintable() else "?" for c in value)
    return Html(escape(shown, quote=True))


def join(parts: Iterable[Content], separator: str = "") -> Html:
    """Return the parts behind one another, each as `text` makes it; None is left out."""
    return Html(text(separator).join(text(part) for part in parts if part is not None))


def element(
    tag: str, /, *children: Content, **attributes: str | int | float | bool | None
) -> Html:
    """Return `<tag attributes>children</tag>`.

    `class_` is written `class` and `aria_label` `aria-label`; True is an attribute without a
    value, None and False leave it out.

    >>> element("p", "1 < 2", class_="note", hidden=True)
    '<p class="note" hidden>1 &lt; 2</p>'
    """
    named = "".join(
        _attribute(name, value)
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _VOID:
        return Html(f"<{tag}{named}>")
    return Html(f"<{tag}{named}>{join(children)}</{tag}>")


def _attribute(name: str, value: str | int | float | bool) -> str:
    written = name.rstrip("_").replace("_", "-")
    return f" {written}" if value is True else f' {written}="{text(str(value))}"'
