"""What the pages of `fit`, `pack` and `partition` end with: notes, and how to make them again."""

import shlex
from collections.abc import Iterable, Sequence

from slicewise._version import __version__
from slicewise.app.html.blocks import Section
from slicewise.app.html.markup import Content, element, join
from slicewise.app.words import clean, grouped_notes
from slicewise.core.notes import Note


def notes_section(notes: Iterable[Note]) -> list[Section]:
    """Return the section of the notes by their codes; none where there are no notes."""
    groups = grouped_notes(notes)
    if not groups:
        return []
    items: list[Content] = []
    for group in groups:
        items.append(element("dt", group.code))
        texts = (f"{clean(each.text).rstrip('.')}." for each in group.texts)
        items.append(element("dd", *(element("p", text) for text in texts)))
    title = "One thing was assumed" if len(groups) == 1 else f"{len(groups)} kinds of assumption"
    return [Section("notes", title, element("dl", *items, class_="notes"), "Notes")]


def reproduce_section(
    arguments: Sequence[str], *, name: str = "", source: str = "", digest: str = ""
) -> Section:
    """Return the section with the words of the command line, the version, and what was read."""
    items: list[Content] = [element("dt", "version"), element("dd", f"slicewise {__version__}")]
    if name:
        items += [element("dt", clean(name)), element("dd", clean(source))]
    if digest:
        items += [element("dt", "digest"), element("dd", element("code", digest))]
    command = element("pre", element("code", shlex.join(("slicewise", *arguments))))
    body = join((command, element("dl", *items, class_="given")))
    return Section("reproduce", "The command that made this page", body, "Reproduce")
