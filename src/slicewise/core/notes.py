"""Notes: what the user should know about a result. Every fallback leaves one."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Note:
    """One thing the user should know; `node` is empty when it concerns the whole result.

    `code` is a stable, hyphenated word (`shape-guessed`); docs/reference/notes.md lists them all.

    >>> print(Note("shape-guessed", "its shape is that of its input", node="norm"))
    shape-guessed: its shape is that of its input [norm]
    """

    code: str
    text: str
    node: str = ""

    def __str__(self) -> str:
        where = f" [{self.node}]" if self.node else ""
        return f"{self.code}: {self.text}{where}"


def unique_notes(notes: Iterable[Note]) -> tuple[Note, ...]:
    """Return the notes once each, in order of first appearance."""
    return tuple(dict.fromkeys(notes))
