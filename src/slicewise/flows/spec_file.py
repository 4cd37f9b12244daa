"""YAML files that a user writes: read with the line of every entry, so that mistakes can name it.

Only mappings, lists, text and numbers; what an entry means is the business of the verb that reads
it. Every mistake is one `UsageError` with the file, the line and the nearest known word.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slicewise.core.errors import UsageError
from slicewise.core.plugins import did_you_mean

_LARGEST_BYTES = 16 * 2**20  # a list of a million names; more is no file that a person wrote


@dataclass(frozen=True, slots=True)
class Entry:
    """A value of the file and where it stands."""

    path: str
    line: int
    what: str
    value: Any  # str, int, float, bool, None, list[Entry] or dict[str, Entry]

    def mistake(self, text: str) -> UsageError:
        """Return the error that says where in the file something is wrong."""
        return UsageError(f"{self.path}, line {self.line}: {text}")

    def fields(self, known: Sequence[str], *, needed: Sequence[str] = ()) -> "dict[str, Entry]":
        """Return the entries of a mapping; unknown or missing names are a mistake."""
        if not isinstance(self.value, dict):
            raise self.mistake(
                f"{self.what} is {_kind(self.value)}; write entries NAME: VALUE, of"
                f" {', '.join(known)}"
            )
        for name, entry in self.value.items():
            if name not in known:
                raise entry.mistake(
                    f"{name!r} is unknown in {self.what}; known are {', '.join(known)}"
                    f"{did_you_mean(name, known)}"
                )
        for name in needed:
            if name not in self.value:
                raise self.mistake(f"{self.what} lacks {name!r}; add it")
        return dict(self.value)

    def items(self) -> "list[Entry]":
        """Return the entries of a list; a single value is a list of one."""
        return list(self.value) if isinstance(self.value, list) else [self]

    def text(self) -> str:
        """Return a text or a number as text."""
        if isinstance(self.value, bool) or not isinstance(self.value, str | int | float):
            raise self.mistake(f"{self.what} is {_kind(self.value)}; write a text")
        return str(self.value)

    def number(self, *, above: float = 0.0, most: float | None = None) -> float:
        """Return a number over `above` and at most `most`."""
        value = self.value
        limit = "" if most is None else f" and at most {most:g}"
        largest = sys.float_info.max if most is None else most
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not above < value <= largest
        ):
            raise self.mistake(
                f"{self.what} {value!r} is not a number over {above:g}{limit}; write one"
            )
        return float(value)

    def whole(self, *, most: int = 2**63 - 1) -> int:
        """Return a positive whole number, at most `most`."""
        if isinstance(self.value, bool) or not isinstance(self.value, int) or self.value < 1:
            raise self.mistake(
                f"{self.what} {self.value!r} is not a positive whole number; write 1, 2, ..."
            )
        if self.value > most:
            raise self.mistake(f"{self.what} {self.value} is over {most:,}; write less")
        return self.value


def read_entries(path: Path, *, what: str) -> Entry:
    """Return the file as entries; `UsageError` if it is no YAML or cannot be read."""
    shown = str(path)
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise UsageError(f"{what} {shown!r} is over 16 MiB; split it")
        content = path.read_text(encoding="utf-8")
    except OSError as err:
        raise UsageError(
            f"{what} {shown!r} cannot be read: {err.strerror or err}; give a YAML file"
        ) from err
    except UnicodeDecodeError as err:
        raise UsageError(f"{what} {shown!r} is no UTF-8 text; give a YAML file") from err
    import yaml

    try:
        node = yaml.compose(content, Loader=yaml.SafeLoader)
        if node is None:
            raise UsageError(f"{what} {shown!r} is empty; write entries NAME: VALUE")
        return _entry(node, shown, what, {})
    except yaml.YAMLError as err:
        mark = getattr(err, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        problem = getattr(err, "problem", None) or str(err).splitlines()[0]
        raise UsageError(f"{shown}{line}: no YAML: {problem}; mend the file") from err
    except RecursionError as err:
        raise UsageError(f"{what} {shown!r} is nested too deeply; flatten it") from err


def _entry(node: Any, path: str, what: str, made: dict[int, Entry | None]) -> Entry:
    """Return a node of the file; one that aliases repeat is made once, however often it stands."""
    import yaml

    line = node.start_mark.line + 1
    if id(node) in made:
        known = made[id(node)]
        if known is None:
            raise UsageError(f"{path}, line {line}: {what} contains itself; leave the alias out")
        return Entry(path, known.line, what, known.value)
    made[id(node)] = None
    value: Any
    if isinstance(node, yaml.MappingNode):
        value = {}
        for key, child in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise UsageError(f"{path}, line {line}: a name in {what} is no text; write one")
            if key.value in value:
                raise UsageError(
                    f"{path}, line {key.start_mark.line + 1}: {key.value!r} stands twice in"
                    f" {what}; leave one out"
                )
            entry = _entry(child, path, key.value, made)
            value[key.value] = Entry(path, key.start_mark.line + 1, entry.what, entry.value)
    elif isinstance(node, yaml.SequenceNode):
        value = [_entry(child, path, what, made) for child in node.value]
    else:
        try:
            value = yaml.SafeLoader("").construct_object(node)
        # what the loader's own conversions raise for 2026-02-30, for !!int x, for 5,000 digits
        except (ValueError, KeyError, AttributeError, OverflowError) as err:
            raise UsageError(
                f"{path}, line {line}: {node.value[:40]!r} in {what} is no value that YAML knows;"
                " put it in quotes"
            ) from err
    entry = made[id(node)] = Entry(path, line, what, value)
    return entry


def _kind(value: object) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return "empty" if value is None else f"{value!r}"
