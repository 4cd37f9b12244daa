"""Plain values as YAML text: mappings, lists, texts, whole numbers, truths. Texts are quoted.

Written by hand since the reader of YAML is a foreign library, which stays at its door.
"""

import re
from collections.abc import Mapping, Sequence

from slicewise.slices.emitters.names import quoted

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


class Block(str):
    """Text of several lines that is kept as it is; lines of printable characters only."""

    __slots__ = ()


Plain = str | int | bool | Sequence["Plain"] | Mapping[str, "Plain"]


def yaml_text(value: Plain) -> str:
    """Return a document of YAML with a final newline.

    >>> print(yaml_text({"kind": "Pod", "names": ["a: b"], "none": {}}), end="")
    kind: "Pod"
    names:
    - "a: b"
    none: {}
    """
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Plain) -> list[str]:
    if isinstance(value, Mapping):
        made = [line for key, item in value.items() for line in _entry(key, item)]
        return made or ["{}"]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [line for item in value for line in _item(item)] or ["[]"]
    return [_scalar(value)]


def _entry(key: str, value: Plain) -> list[str]:
    name = key if _PLAIN.fullmatch(key) and key.lower() not in _WORDS else quoted(key)
    if isinstance(value, Block):
        return [f"{name}: |", *(f"  {line}" if line else "" for line in value.splitlines())]
    lines = _lines(value)
    if isinstance(value, str | int) or not value:
        return [f"{name}: {lines[0]}"]
    indent = "  " if isinstance(value, Mapping) else ""
    return [f"{name}:", *(f"{indent}{line}" for line in lines)]


def _item(value: Plain) -> list[str]:
    first, *rest = _lines(value)
    return [f"- {first}", *(f"  {line}" for line in rest)]


def _scalar(value: Plain) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else quoted(str(value))
