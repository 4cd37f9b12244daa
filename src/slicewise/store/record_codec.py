"""A measurement as the values of one row and back, exactly; and its content digest.

`body` is JSON of every field but the long ones, in full: the columns that a store is asked by are
copies, so a field added to `Measurement` needs no new column. Samples are little-endian float64:
zlib makes real samples hardly smaller (their low bits are noise). Times of operators are
compressed JSON, since names repeat themselves. Knows nothing of databases.
"""

import hashlib
import json
import math
import sys
import zlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from slicewise.core.measurement import Measurement, NodeTime

# Times of operators are text that repeats itself: level 3 makes 60 kB 6 kB in a millisecond.
_LEVEL = 3
_LONG = ("samples_ms", "nodes")
_BLANK = Measurement("", "", "", "", None, "", 0, "", 0)
_ABSENT: object = object()


class CodecError(ValueError):
    """A measurement that cannot be kept as it is, or what was kept is damaged."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A measurement in the form that it is kept in. `nodes` is None where there are none."""

    body: str
    samples: bytes
    nodes: bytes | None
    content: str


def encode(measurement: Measurement) -> Encoded:
    """Return the measurement encoded; `CodecError` if it would not read back as the same.

    Such is one with figures that are not finite, or with values of other types than it declares.
    """
    try:
        plain = _plain(measurement)
        content = _digest(plain)
        body = as_json({name: value for name, value in plain.items() if name not in _LONG})
        nodes = as_json(plain["nodes"]) if measurement.nodes else None
        made = Encoded(
            body.decode(),
            _to_bytes(measurement.samples_ms),
            None if nodes is None else zlib.compress(nodes, _LEVEL),
            content,
        )
    except (TypeError, ValueError, OverflowError, RecursionError) as err:
        raise CodecError(f"it cannot be written down: {err}") from err
    if decode(body, made.samples, made.nodes) != measurement:
        raise CodecError("it has figures that are not finite, or values of other types than told")
    return made


def decode(body: bytes, samples: bytes, nodes: bytes | None) -> Measurement:
    """Return the measurement of a row; `CodecError` if the row is damaged."""
    measurement: Measurement = from_json(body, Measurement)
    times = () if nodes is None else from_json(unpack(nodes), tuple[NodeTime, ...])
    return replace(measurement, samples_ms=_from_bytes(samples), nodes=times)


def decode_samples(samples: bytes) -> list[float]:
    """Return the samples in milliseconds; `CodecError` if the blob is damaged."""
    return list(_from_bytes(samples))


def unpack(nodes: bytes | None) -> bytes:
    """Return the JSON array of the times of operators; `CodecError` if it is damaged."""
    if nodes is None:
        return b"[]"
    try:
        return zlib.decompress(nodes)
    except zlib.error as err:
        raise CodecError(f"its operators' times cannot be unpacked: {err}") from err


def as_json(plain: object) -> bytes:
    """Return JSON; the bytes of a file name that are no UTF-8 (PEP 383) are written with escapes.

    `UnicodeEncodeError` for surrogates that stand for no byte, which no reader could show.
    """
    try:
        return msgspec.json.encode(plain)
    except UnicodeEncodeError:
        json.dumps(plain, ensure_ascii=False).encode("utf-8", "surrogateescape")
        return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode()


def check_names(*names: str) -> None:
    """Raise `CodecError` for a name that no reader could show."""
    try:
        as_json(names)
    except UnicodeEncodeError as err:
        raise CodecError(f"a name is no text: {err}") from err


def from_json(content: bytes, kind: Any) -> Any:
    """Return the value of type `kind` that the JSON holds; `CodecError` if it holds none."""
    try:
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            # msgspec refuses the lone surrogates that `as_json` writes, the standard library not
            return msgspec.convert(json.loads(content), kind)
    except json.JSONDecodeError as err:
        raise CodecError(f"it is not JSON: {err.msg} at character {err.pos}") from err
    except (msgspec.MsgspecError, ValueError, RecursionError) as err:
        raise CodecError(str(err)) from err


def _plain(measurement: Measurement) -> dict[str, Any]:
    """Return plain values; sets in order, so that the same measurement is the same text."""
    plain: dict[str, Any] = msgspec.to_builtins(measurement, order="deterministic", enc_hook=_own)
    return plain


def _own(value: object) -> object:
    """Return a plain value for what msgspec has no rule for: other mappings, numpy's scalars."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"{type(value).__name__} is no plain value")


def content_digest(measurement: Measurement) -> str:
    """Return what two records of one measurement have in common: 32 hexadecimal digits.

    Of the fields that differ from their default, at any depth: a field that a later version adds
    leaves the digests of older measurements as they are.
    """
    return _digest(_plain(measurement))


def _digest(plain: dict[str, Any]) -> str:
    return hashlib.sha256(_sorted_json(_told(plain, _DEFAULTS))).hexdigest()[:32]


def _told(plain: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _told(value, default)
        if isinstance(value, dict) and isinstance(default := defaults.get(name), dict)
        else value
        for name, value in plain.items()
        if value != defaults.get(name, _ABSENT)
    }


def _sorted_json(plain: object) -> bytes:
    try:
        return msgspec.json.encode(plain, order="sorted")
    except UnicodeEncodeError:
        return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def _to_bytes(samples_ms: tuple[float, ...]) -> bytes:
    if not all(map(math.isfinite, samples_ms)):
        raise ValueError("a sample is not finite")
    values = array("d", samples_ms)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _from_bytes(samples: bytes) -> tuple[float, ...]:
    values = array("d")
    try:
        values.frombytes(samples)
    except ValueError as err:
        raise CodecError(f"its samples are cut short: {err}") from err
    if sys.byteorder == "big":
        values.byteswap()
    return tuple(values)


_DEFAULTS: dict[str, Any] = _plain(_BLANK)
