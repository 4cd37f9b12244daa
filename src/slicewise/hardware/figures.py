"""The figures a device file may hold: a table of names, units and limits, and how one is read.

Checks single values only; what figures mean together is checked in `device_file.py`.
"""

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slicewise.core.errors import DeviceError

GUIDE = "docs/how-to/add-a-device.md shows a whole file"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a device file. `scales` are units that people write by mistake."""

    key: str
    what: str
    low: float
    high: float
    example: float
    whole: bool = False
    scales: tuple[tuple[float, str], ...] = ()


_HERTZ = ((1e6, "MHz"), (1e9, "GHz"))
_CAPACITY = ((2.0**20, "MiB"), (2.0**30, "GiB"))
_RATE = ((1e9, "GB/s"), (1e12, "TB/s"))
_ARITHMETIC = ((1e9, "Gflop/s"), (1e12, "Tflop/s"))
_TIME = ((1e-6, "us"), (1e-3, "ms"))

# The limits are a decade or more beyond anything built (2026): they catch mistaken units only.
FIGURES = {
    figure.key: figure
    for figure in (
        Figure("compute_units", "SMs, compute units or cores", 1, 1e5, 108, whole=True),
        Figure("clock_hz", "clock in Hz", 1e7, 2e10, 1.41e9, scales=_HERTZ),
        Figure("memory_bytes", "memory in bytes", 2**24, 2**50, 80 * 2**30, True, _CAPACITY),
        Figure(
            "memory_bandwidth_bytes_per_s", "bandwidth in bytes/s", 1e8, 1e15, 2e12, scales=_RATE
        ),
        Figure(
            "cache_bytes",
            "the last cache level before memory, in bytes",
            2**12,
            2**42,
            40 * 2**20,
            True,
            _CAPACITY,
        ),
        Figure(
            "idle_power_w",
            "floor of power while work runs, in W",
            0,
            1e5,
            50,
            scales=((1e-3, "mW"),),
        ),
        Figure("max_power_w", "power limit in W", 0.1, 1e5, 400, scales=((1e-3, "mW"),)),
        Figure("launch_s", "time between two kernels in s", 0, 0.1, 3e-6, scales=_TIME),
        Figure("host_s", "fixed time of one inference in s", 0, 10, 2e-5, scales=_TIME),
    )
}
PEAK = Figure("peak_flop_per_s", "operations/s", 1e6, 1e19, 1e14, scales=_ARITHMETIC)
LINK_BANDWIDTH = Figure(
    "bandwidth_bytes_per_s", "one direction in bytes/s", 1e6, 1e14, 3e11, scales=_RATE
)
LINK_LATENCY = Figure("latency_s", "latency in s", 0, 1, 2e-6, scales=_TIME)
CACHE_FRACTION = Figure("cache_fraction", "part of the cache", 1e-6, 1, 0.125)


def count(key: str, *, high: float, low: float = 0) -> Figure:
    """Return the figure of a whole number between `low` and `high`."""
    return Figure(key, "a whole number", low, high, max(low, 1), whole=True)


@dataclass(frozen=True, slots=True)
class Section:
    """A table of a device file; `where` names the file and `prefix` the table, for messages."""

    where: str
    table: Mapping[str, object]
    prefix: str = ""

    def error(self, text: str) -> DeviceError:
        """Return the error that says `text` about this file."""
        return DeviceError(f"{self.where}: {text}")

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """`DeviceError` if the table holds a key that is not in `known`."""
        allowed = list(known)
        for key in self.table:
            if key not in allowed:
                near = difflib.get_close_matches(key.casefold(), allowed, n=1, cutoff=0.5)
                hint = f"; did you mean {self.prefix}{near[0]}?" if near else f"; {GUIDE}"
                raise self.error(
                    f"unknown key {self.prefix}{key}; allowed are {', '.join(allowed)}{hint}"
                )

    def number(self, figure: Figure) -> float | None:
        """Return the figure, or None if the table lacks it."""
        value = self.table.get(figure.key)
        return None if value is None else self._checked(figure, value)

    def required(self, figure: Figure) -> float:
        """Return the figure; `DeviceError` if the table lacks it."""
        value = self.number(figure)
        if value is None:
            raise self.missing(figure.key, figure.what, f"{figure.example:g}")
        return value

    def missing(self, key: str, what: str, example: str) -> DeviceError:
        """Return the error for a key that must be there."""
        name = f"{self.prefix}{key}"
        return self.error(f"lacks {name} ({what}); add a line like: {name} = {example}; {GUIDE}")

    def text(self, key: str, *, default: str | None = None) -> str:
        """Return the string at `key`; without a default it must be there."""
        value = self.table.get(key, default)
        if value is None:
            raise self.missing(key, "a string", '"my-device"')
        if not isinstance(value, str) or not value.isprintable() or len(value) > 2000:
            raise self.error(f"{self.prefix}{key}={shown(value)} must be a string of one line")
        return value

    def strings(self, key: str) -> tuple[str, ...]:
        """Return the list of strings at `key`; empty if absent."""
        value = self.table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(f"{self.prefix}{key}={shown(value)} must be a list of strings")
        return tuple(value)

    def section(self, key: str) -> "Section | None":
        """Return the table at `key`, or None."""
        value = self.table.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(f"{self.prefix}{key}={shown(value)} must be a table: [{key}]")
        return Section(self.where, value, f"{self.prefix}{key}.")

    def sections(self, key: str) -> "tuple[Section, ...]":
        """Return the array of tables at `key`; empty if absent."""
        value = self.table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.error(f"{key}={shown(value)} must be tables, each opened by [[{key}]]")
        return tuple(
            Section(self.where, item, f"{key}[{item.get('name', i)}].")
            for i, item in enumerate(value)
        )

    def _checked(self, figure: Figure, value: object) -> float:
        name = f"{self.prefix}{figure.key}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(
                f"{name}={shown(value)} must be a number: {figure.what}, for example"
                f" {figure.example:g}"
            )
        # compared before any conversion: TOML integers have no upper limit
        if not figure.low <= value <= figure.high:
            raise self.error(
                f"{name}={shown(value)} is impossible; {figure.what} lies between"
                f" {figure.low:g} and {figure.high:g}{_unit_hint(figure, value)}"
            )
        if figure.whole and value != int(value):
            raise self.error(f"{name}={shown(value)} must be a whole number: {figure.what}")
        return int(value) if figure.whole else float(value)


def shown(value: object) -> str:
    """Return the value as a message shows it: its repr, cut at 60 characters."""
    text = "inf" if value == math.inf else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _unit_hint(figure: Figure, value: float) -> str:
    """Guess the unit in which the value would make sense: the one nearest to the example."""
    if isinstance(value, int) and abs(value) > 2**63:
        return ""
    fitting = [
        (abs(math.log(value * factor / figure.example)), value * factor, unit)
        for factor, unit in figure.scales
        if value > 0 and math.isfinite(value) and figure.low <= value * factor <= figure.high
    ]
    if not fitting:
        return ""
    _, meant, unit = min(fitting)
    text = f"{round(meant)}" if figure.whole else f"{meant:g}"
    return f"; did you mean {text} ({value:g} {unit})?"
