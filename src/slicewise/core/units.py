"""Quantities as people write them ('20GiB', '25GB/s', '98.4 ms') and back.

The only place that converts units. Binary units (KiB, MiB, GiB) are for capacity, decimal ones
(kB, MB, GB) for bandwidth, as data sheets use them.
"""

import math
import re

from slicewise.core.errors import UsageError

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
_BYTES = {
    "": 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB,
}  # fmt: skip
_LARGEST_BYTES = 2**63 - 1  # what every reader of the documents can hold
_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([a-zA-Z]*)\s*(/s)?\s*")

# Latencies are rounded to this binary fraction of a millisecond (1.5e-11 ms), so that sums of
# node latencies are exact in whatever order they are added, up to 131 s.
GRID_PER_MS = 2.0**36


def parse_bytes(text: str) -> int:
    """Return the number of bytes that `text` names ('20GiB', '1.5 GB', '4096').

    >>> parse_bytes("1.5KiB")
    1536
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in _BYTES or match[3]:
        raise UsageError(f"size {text!r} is not a number with a unit; write 20GiB, 512MB or 4096")
    size = float(match[1]) * _BYTES[match[2]]
    if size > _LARGEST_BYTES:
        raise UsageError(f"size {text!r} is more than 2^63 - 1 bytes; write 20GiB, 512MB or 4096")
    return round(size)


def parse_bytes_per_s(text: str) -> float:
    """Return the bytes per second that `text` names ('25GB/s').

    >>> parse_bytes_per_s("25GB/s")
    25000000000.0
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in _BYTES or not match[3] or not float(match[1]) > 0:
        raise UsageError(f"bandwidth {text!r} is not a positive rate; write 25GB/s")
    return float(match[1]) * _BYTES[match[2]]


_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(ms|s|min|m|h)?\s*")


def parse_seconds(text: str) -> float:
    """Return the seconds that `text` names ('30m', '1h30m', '90 s', '500ms'; bare numbers are s).

    Zero is a time; what asks for more says so itself.

    >>> parse_seconds("30m"), parse_seconds("1h 30m"), parse_seconds("0.5")
    (1800.0, 5400.0, 0.5)
    """
    parts = list(_DURATION.finditer(text.strip()))
    is_whole = "".join(part[0] for part in parts) == text.strip()
    # a number without a unit stands alone: '1h30' may be minutes or seconds
    is_clear = len(parts) == 1 or all(part[2] for part in parts)
    if not parts or not is_whole or not is_clear:
        raise UsageError(f"time {text!r} is none; write 30m, 90s, 1h30m, or 45 for seconds")
    seconds = sum(float(part[1]) * _SECONDS[part[2] or ""] for part in parts)
    if not math.isfinite(seconds):
        raise UsageError(f"time {text!r} never ends; write 30m, 90s, 1h30m, or 45 for seconds")
    return seconds


def snap_ms(value_ms: float) -> float:
    """Return `value_ms` rounded to the grid on which sums of latencies are exact."""
    return round(value_ms * GRID_PER_MS) / GRID_PER_MS


def format_number(value: float) -> str:
    """Return three significant digits, without an exponent between 1e-3 and 1e6.

    >>> format_number(1234.5), format_number(0.012345), format_number(7.0)
    ('1230', '0.0123', '7.00')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    magnitude = math.floor(math.log10(abs(float(f"{value:.2e}"))))
    if magnitude < -3 or magnitude >= 6:
        return f"{value:.2e}"
    return f"{float(f'{value:.2e}'):.{max(0, 2 - magnitude)}f}"


def format_scaled(value: float, unit: str = "") -> str:
    """Return three digits with a decimal prefix.

    >>> format_scaled(4.09e9, "MAC"), format_scaled(312e12, "flop/s")
    ('4.09 GMAC', '312 Tflop/s')
    """
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor * 0.9995:
            return f"{format_number(value / factor)} {prefix}{unit}".rstrip()
    return f"{format_number(value)} {unit}".rstrip()


def format_capacity(size_bytes: float) -> str:
    """Return a capacity in binary units.

    >>> format_capacity(20 * GIB)
    '20.0 GiB'
    """
    for factor, unit in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes >= factor * 0.9995:
            return f"{format_number(size_bytes / factor)} {unit}"
    return f"{size_bytes:.0f} B"


def format_ms(value_ms: float) -> str:
    """Return a time with the unit that reads best.

    >>> format_ms(0.0123), format_ms(12.3), format_ms(12345.0)
    ('12.3 us', '12.3 ms', '12.3 s')
    """
    if abs(value_ms) < 0.1:
        return f"{format_number(value_ms * 1e3)} us"
    if abs(value_ms) < 1e4:
        return f"{format_number(value_ms)} ms"
    return f"{format_number(value_ms / 1e3)} s"
