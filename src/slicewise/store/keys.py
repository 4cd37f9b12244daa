"""What records are asked by: conditions in, the text and values of an SQL condition out.

Runs nothing. A text with lone surrogates (a file name that is no UTF-8) is kept in columns in a
form that SQLite takes.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType
from typing import Any, TypedDict

from slicewise.core.measurement import Outcome

_MARK = "\x01"  # before a text in JSON, which stands for one that is no UTF-8


class Conditions(TypedDict, total=False):
    """What records are asked for; all of it together, and nothing asked is every record.

    `model` is compared with the name of a record and with where it was read from, and like
    `device` may be a pattern (`*`, `?`, `[ab]`). `slice` None is the whole device, `...` whatever
    part. `since` is the UTC time in ISO 8601, or the beginning of one, of the oldest record by
    when it was added. `latest` keeps the last added of each key among those that match, `limit`
    the last added of all.
    """

    key: str | None
    digest: str | None
    model: str | None
    device: str | None
    slice: str | EllipsisType | None
    runtime: str | None
    batch: int | None
    precision: str | None
    threads: int | None
    outcome: Outcome | None
    campaign: str | None
    since: str | None
    latest: bool
    limit: int | None


def column_text(text: str) -> str:
    """Return a text in the form that a column holds; `own_text` gives it back.

    >>> column_text("resnet"), own_text(column_text("caf\\udce9.onnx")) == "caf\\udce9.onnx"
    ('resnet', True)
    """
    if text.startswith(_MARK) or not _is_unicode(text):
        return _MARK + json.dumps(text)
    return text


def own_text(column: str) -> str:
    """Return the text that a column stands for."""
    return str(json.loads(column[len(_MARK) :])) if column.startswith(_MARK) else column


def shown_text(text: str) -> str:
    """Return a name with `\\udc80` for each byte that is no UTF-8: what patterns compare with."""
    return text.encode("utf-8", "backslashreplace").decode()


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_Term = tuple[str, Callable[[Any], tuple[object, ...]]]


def _equal(column: str) -> _Term:
    return f"{column} = ?", lambda value: (value,)


def _same_text(column: str) -> _Term:
    return f"{column} = ?", lambda value: (shown_text(value),)


def _like(*columns: str) -> _Term:
    terms = [f"{column} = ? OR {column} GLOB ?" for column in columns]
    return f"({' OR '.join(terms)})", lambda value: (shown_text(value),) * (2 * len(columns))


_TERMS: Mapping[str, _Term] = {
    "key": _equal("key"),
    "digest": _same_text("digest"),
    "model": _like("model", "location"),
    "device": _like("device"),
    "runtime": _same_text("runtime"),
    "batch": _equal("batch"),
    "precision": _same_text("precision"),
    "threads": _equal("threads"),
    "outcome": ("outcome = ?", lambda value: (Outcome(value).value,)),
    "campaign": ("campaign = ?", lambda value: (column_text(value),)),
    "since": ("added_at >= ?", lambda value: (shown_text(value),)),
}


def condition(asked: Conditions) -> tuple[str, Sequence[object]]:
    """Return the SQL condition and its values; `latest` and `limit` are left to the caller."""
    terms: list[str] = []
    values: list[object] = []
    for name, value in asked.items():
        if name in _TERMS and value is not None:
            term, bind = _TERMS[name]
            terms.append(term)
            values.extend(bind(value))
    part = asked.get("slice", ...)
    if not isinstance(part, EllipsisType):
        terms.append("slice IS ?")
        values.append(None if part is None else shown_text(part))
    return " AND ".join(terms) or "1", values
