"""Plug-in tables: a name and where its object lives, loaded on first use.

A room's `_base.py` holds one `PluginTable`; adding a plug-in is adding a row.
"""

import difflib
import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from slicewise.core.errors import SlicewiseError, UsageError


def did_you_mean(name: str, known: Iterable[str], *, limit: int = 3) -> str:
    """Return '; did you mean a, b?' for the nearest known names, or ''."""
    by_fold = {word.casefold(): word for word in known}
    near = difflib.get_close_matches(name.casefold(), list(by_fold), n=limit, cutoff=0.6)
    return f"; did you mean {', '.join(by_fold[word] for word in near)}?" if near else ""


@dataclass(frozen=True, slots=True)
class PluginTable:
    """Rows `name -> "module:object"`; `what` names the kind of plug-in in messages."""

    what: str
    rows: Mapping[str, str]
    error: type[SlicewiseError] = UsageError

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def load(self, name: str) -> object:
        """Return the object behind `name`, importing its module on first use."""
        if name not in self.rows:
            raise self.error(
                f"{self.what} {name!r} is unknown; known are {', '.join(self.rows)}"
                f"{did_you_mean(name, self.rows)}"
            )
        module, _, attribute = self.rows[name].partition(":")
        loaded: object = getattr(importlib.import_module(module), attribute)
        return loaded
