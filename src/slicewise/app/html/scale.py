"""Axes: from values to places on a chart, and the ticks between. Draws nothing."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

_SMALLEST = 1e-12


def short(value: float) -> str:
    """Return a tick's number: as few digits as it needs, with a decimal prefix beyond 10,000.

    >>> short(0.5), short(2000.0), short(3e6)
    ('0.5', '2000', '3 M')
    """
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(factor, 1e4) * 0.9999:
            return f"{value / factor:.4g} {prefix}"
    return f"{value:.4g}"


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: its label with the unit, its ends, its ticks, and how a tick is written.

    `minor` are ticks that a narrow page leaves without a number.
    """

    label: str
    low: float
    high: float
    log: bool = False
    ticks: tuple[float, ...] = ()
    minor: frozenset[float] = frozenset()
    show: Callable[[float], str] = short

    def at(self, value: float) -> float:
        """Return the place of `value` as a fraction of the axis, held between its ends.

        >>> Axis("ms", 1, 100, log=True).at(10.0)
        0.5
        """
        if self.log:
            value = max(value, _SMALLEST)
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, part))


def linear_axis(
    label: str,
    values: Iterable[float],
    *,
    show: Callable[[float], str] = short,
    steps: Sequence[float] = (1, 2, 5, 10),
    exact: bool = False,
) -> Axis:
    """Return an axis from 0 to a round number above `values`, or to their greatest if `exact`.

    `steps` are the round numbers, times powers of ten, of which ticks may be multiples.
    """
    top = max((value for value in values if math.isfinite(value)), default=0.0)
    top = top if top > 0 else 1.0
    step = _round_step(top / 5, steps)
    high = top if exact else math.ceil(top / step - 1e-9) * step
    ticks = tuple(i * step for i in range(math.floor(high / step + 1e-9) + 1))
    return Axis(label, 0.0, high, ticks=ticks, show=show)


def binary_axis(label: str, values: Iterable[float], *, show: Callable[[float], str]) -> Axis:
    """Return an axis of bytes from 0, with ticks at powers of two or their multiples."""
    top = max(max(values, default=1.0), 1.0)
    step = 2.0 ** math.ceil(math.log2(top / 4))
    high = math.ceil(top / step - 1e-9) * step
    return Axis(label, 0.0, high, ticks=tuple(i * step for i in range(round(high / step) + 1)),
                show=show)  # fmt: skip


def _round_step(rough: float, steps: Sequence[float]) -> float:
    factor = 10.0 ** math.floor(math.log10(rough))
    return next((step * factor for step in steps if step * factor >= rough * 0.9999), 10 * factor)


def log_axis(label: str, values: Iterable[float], *, show: Callable[[float], str] = short) -> Axis:
    """Return a logarithmic axis round the positive ones of `values`, ending at round numbers."""
    known = [value for value in values if value > 0 and math.isfinite(value)] or [1.0, 10.0]
    low, high = _below(min(known)), _above(max(known))
    if high / low < 4:
        low, high = _below(low * 0.7), _above(high * 1.4)
    decades = math.log10(high / low)
    every = max(1, math.ceil(decades / 6))
    first = math.ceil(math.log10(low) - 1e-9)
    powers = [10.0**i for i in range(first, math.floor(math.log10(high) + 1e-9) + 1)]
    if decades >= 2.5:
        ticks = tuple(power for i, power in enumerate(powers) if i % every == 0)
        return Axis(label, low, high, log=True, ticks=ticks, show=show)
    start = math.floor(math.log10(low))
    fine = [m * 10.0**i for i in range(start, start + 5) for m in (1.0, 2.0, 5.0)]
    ticks = tuple(tick for tick in fine if low * 0.999 <= tick <= high * 1.001)
    return Axis(label, low, high, log=True, ticks=ticks, show=show)


def _below(value: float) -> float:
    return _rounded(value, 0.999, up=False)


def _above(value: float) -> float:
    return _rounded(value, 1.001, up=True)


def _rounded(value: float, slack: float, *, up: bool) -> float:
    """Return the nearest of 1, 2, 5 times a power of ten that is not beyond `value`."""
    power = math.floor(math.log10(value))
    near = [m * 10.0**i for i in (power - 1, power, power + 1) for m in (1.0, 2.0, 5.0)]
    if up:
        return min(step for step in near if step * slack >= value)
    return max(step for step in near if step * slack <= value)


def power_axis(label: str, values: Sequence[int]) -> Axis:
    """Return a logarithmic axis with a tick at each power of two between the least and greatest
    of `values`; every second number gives way on a narrow page."""
    low, high = min(values), max(values)
    if low == high:
        low, high = max(1, low // 2), high * 2
    exponents = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    ticks = tuple(2.0**i for i in exponents)
    minor = frozenset(ticks[1::2]) if len(ticks) > 5 else frozenset()
    return Axis(label, float(low), float(high), log=True, ticks=ticks, minor=minor)
