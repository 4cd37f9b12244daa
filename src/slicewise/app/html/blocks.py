"""What a page is made of: the page itself, sections, figures, tables, call-outs.

A page is one file that loads nothing: its style sheet and script stand in it, and its content
policy forbids everything else, so that no name from a model can run or fetch anything. Without
the script all content is there; with it, tables sort and filter, marks answer to the pointer, and
the theme can be chosen.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from slicewise._version import __version__
from slicewise.app.html.markup import Content, Html, element, join, text
from slicewise.app.words import counted

LONG_TABLE = 200  # rows from which a table is folded


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: `name` is its anchor and must be unique, `title` says the finding.

    `about` names the topic, in small letters above the title.
    """

    name: str
    title: str
    body: Html
    about: str = ""


@cache
def _asset(name: str) -> Html:
    return Html((resources.files("slicewise.app.html") / name).read_text(encoding="utf-8"))


def page(
    title: str,
    sections: Sequence[Section],
    *,
    lead: Content = None,
    kicker: str = "",
    rests_on: str = "nothing was run",
) -> str:
    """Return a whole HTML page: the lead first, then the sections.

    `kicker` is the small line above the title; `lead` may hold any markup of this module;
    `rests_on` says in the last line whether anything was run for it.
    """
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}';"
        " base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="generator", content=f"slicewise {__version__}"),
        element("title", title),
        element("style", _asset("page.css")),
    )
    toggle = element("button", "Dark", type="button", id="theme", class_="quiet", hidden=True)
    header = element(
        "header", element("p", kicker, class_="kicker"), toggle, element("h1", title), lead
    )
    footer = element("footer", element("p", f"Made by slicewise {__version__}; {rests_on}."))
    body = element(
        "body",
        header,
        element("main", *map(section, sections)),
        footer,
        element("script", script),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def section(part: Section) -> Html:
    """Return the markup of one section."""
    return element(
        "section",
        element("p", part.about, class_="about") if part.about else None,
        element("h2", part.title, id=f"{part.name}-title"),
        part.body,
        id=part.name,
        aria_labelledby=f"{part.name}-title",
    )


def figure(title: str, chart: Html, *, caption: Content = None, about: str = "") -> Html:
    """Return a chart under a heading that says its finding, its caption below."""
    return element(
        "figure",
        element("p", about, class_="about") if about else None,
        element("h3", title),
        chart,
        element("figcaption", caption) if caption else None,
    )


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure of `facts`: its name, its value, and a line below it (the interval)."""

    name: str
    value: str
    below: str = ""


def facts(items: Iterable[Fact]) -> Html:
    """Return figures side by side, each with its name above and its interval below."""
    return element(
        "dl",
        *(
            element(
                "div",
                element("dt", item.name),
                element("dd", item.value, class_="value"),
                element("dd", item.below, class_="below") if item.below else None,
            )
            for item in items
        ),
        class_="facts",
    )


def sentence(words: Content, *, style: str = "") -> Html:
    """Return a paragraph; `style` 'quiet' sets it back."""
    return element("p", words, class_=style or None)


def callout(head: str, words: Content) -> Html:
    """Return a boxed remark that must not be overlooked."""
    return element("p", element("strong", head), " ", words, class_="callout")


def folded(summary: Content, body: Content, *, is_open: bool = False, style: str = "") -> Html:
    """Return content that a reader can fold, with or without the script."""
    return element(
        "details", element("summary", summary), body, open=is_open, class_=style or None
    )


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `table`: its head with the unit, and whether it holds numbers."""

    head: str
    numeric: bool = False
    hint: str = ""


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Content]],
    *,
    caption: str,
    sortable: bool = True,
    filterable: bool = False,
    first_is_name: bool = True,
    fold: bool = False,
) -> Html:
    """Return a table whose caption says what it holds; rows as given, cells escaped.

    With the script, a click on a head sorts and, if `filterable`, a box above filters. The first
    cell of a row is its head if `first_is_name`. From `LONG_TABLE` rows, or if `fold`, the table
    is folded away behind its caption.
    """
    numeric = [column.numeric for column in columns]
    heads = [
        element(
            "th",
            column.head,
            scope="col",
            class_="n" if column.numeric else None,
            title=column.hint or None,
        )
        for column in columns
    ]
    made = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *heads)),
        element("tbody", *(_row(row, numeric, first_is_name) for row in rows)),
        class_="sortable" if sortable else None,
    )
    wrapped = element("div", made, class_="scroll", tabindex=0, role="region", aria_label=caption)
    if filterable:
        box = element(
            "input", type="search", placeholder="Filter rows", aria_label=f"Filter: {caption}"
        )
        count = element("output", counted(len(rows), "row"))
        wrapped = join((element("p", box, count, class_="filter", hidden=True), wrapped))
    body = element("div", wrapped, class_="table")
    if fold or len(rows) > LONG_TABLE:
        return folded(f"{caption} ({counted(len(rows), 'row')})", body, style="long")
    return body


def _row(cells: Sequence[Content], numeric: Sequence[bool], first_is_name: bool) -> Html:
    # Written out, not through `element`: a large model has tens of thousands of cells.
    parts = []
    for i, cell in enumerate(cells):
        tag = "th" if i == 0 and first_is_name else "td"
        scope = ' scope="row"' if tag == "th" else ""
        style = ' class="n"' if numeric[i] else ""
        parts.append(f"<{tag}{scope}{style}>{text(cell or '')}</{tag}>")
    return Html(f"<tr>{''.join(parts)}</tr>")
