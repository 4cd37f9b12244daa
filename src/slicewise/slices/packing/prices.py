"""Prices of slices: what each is worth on its card, and the bound that they prove.

For any prices at least 0: no answer costs less than what all workloads' cheapest patterns cost at
these prices, less what the cards earn by holding their best layouts (Lagrange; Geoffrion 1974).
The bound is computed in whole numbers, so that rounding cannot make it too high.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from slicewise.slices.packing.material import SHARE, Material
from slicewise.slices.packing.patterns import Patterns, cheapest, whole_prices

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Proof:
    """A proven bound on the cost (exact), and the prices that prove it."""

    cost: Fraction
    prices: Floats


def first_prices(material: Material) -> Floats:
    """Return prices by the part of a card that a slice takes."""
    prices = np.zeros(len(material.resources))
    for i, (name, profile_name) in enumerate(material.resources):
        device = material.problem.device(name)
        costs = [each.cost for each in material.cards if each.device == name and each.cost]
        cost = costs[0] if costs else material.scale
        part = 1.0
        if profile_name is not None:
            profile = device.profile_named(profile_name)
            most = max(each.compute_slices for each in device.profiles)
            part = max(profile.compute_slices / most, profile.size / device.memory_slots)
        prices[i] = cost * part
    return prices


def upper_cost(material: Material, known: int | None) -> int:
    """Return what the answer costs at most: that of one known, or of all cards there are.

    With kinds of which there is no end and no answer known: that of one card for each slice of
    each workload's smallest pattern.
    """
    if known is not None:
        return known
    most = max((each.cost for each in material.cards), default=0)
    slices = sum(min(-(-(SHARE) // o.share) for o in options) for options in material.options)
    own = sum(max(o.cost for o in options) for options in material.options)
    return most * slices + own


def proven(
    material: Material, patterns: Patterns, prices: Floats, *, upper: int, quick: bool = False
) -> Proof:
    """Return the bound that prices prove, in exact arithmetic.

    `upper` is what some answer costs at most. `quick` takes a weaker bound for workloads whose
    patterns are not all known: their cheapest share of a slice.
    """
    factor = patterns.factor_at(prices)
    whole = whole_prices(prices.tolist(), factor)
    least, _ = patterns.least(patterns.priced(whole, factor))
    sure = np.array(patterns.is_complete)
    total = Fraction(sum(least[sure].tolist()))
    rows = whole.tolist()
    for w in patterns.incomplete:
        options = material.options[w]
        if quick:
            total += min(
                Fraction(rows[o.resource] * SHARE, o.share) + o.cost * factor
                if o.resource >= 0
                else Fraction(o.cost * factor)
                for o in options
            )
        else:
            value, pick = cheapest(options, rows, factor)
            total += value
            patterns.add(w, pick)
    for cards in material.cards:
        earned = int((cards.layouts @ whole).max()) - cards.cost * factor
        if earned > 0:
            total -= earned * material.at_most(cards, upper)
    return Proof(total / factor, prices)


def improve_prices(
    material: Material, patterns: Patterns, start: Floats, *, upper: int, steps: int
) -> Proof:
    """Return the best proof of an ascent on the smoothed bound, from prices all over 0.

    Least and greatest are taken softly, less and less so (Nesterov 2005), and the logarithms of
    prices follow the slope by Adam's rule (Kingma and Ba 2015). Workloads whose patterns are not
    all known count by their cheapest share of a slice: weaker, but quick. Cost of a step: two
    products of all patterns and prices.
    """
    soft = _Soft(material, patterns, upper)
    top = max(1.0, *(float(each.cost) for each in material.cards))
    logs = np.log(np.maximum(start, 1e-3 * top))
    mean, spread = np.zeros_like(logs), np.zeros_like(logs)
    best_value, best = -np.inf, start
    for step in range(steps):
        part = step / max(1, steps - 1)
        heat = top * _HOT * (_COLD / _HOT) ** part
        prices = np.exp(logs)
        value, slope = soft.slope(prices, heat)
        if value > best_value:
            best_value, best = value, prices
        slope *= prices
        slope /= max(1e-12, float(np.abs(slope).max()))
        mean = 0.9 * mean + 0.1 * slope
        spread = 0.99 * spread + 0.01 * slope**2
        corrected = mean / (1 - 0.9 ** (step + 1))
        scale = np.sqrt(spread / (1 - 0.99 ** (step + 1))) + 1e-9
        logs = logs + _PACE * (1 - part) * corrected / scale
    return proven(material, patterns, best, upper=upper, quick=True)


# Softness in parts of the cost of a card, from the first step to the last; the first step's width.
_HOT, _COLD, _PACE = 0.05, 0.001, 0.08


class _Soft:
    """The bound as a function of prices, and the slope of its smooth likeness."""

    def __init__(self, material: Material, patterns: Patterns, upper: int) -> None:
        """Lay out patterns, loose workloads (as patterns of broken numbers) and layouts."""
        usage, own, first = [], [], [0]
        for w, options in enumerate(material.options):
            begin, end = patterns.first[w], patterns.first[w + 1]
            if patterns.is_complete[w]:
                usage.append(patterns.usage[begin:end].astype(np.float64))
                own.append(patterns.cost[begin:end].astype(np.float64))
            else:
                rows = np.zeros((len(options), len(material.resources)))
                for i, option in enumerate(options):
                    if option.resource >= 0:
                        rows[i, option.resource] = SHARE / option.share
                usage.append(rows)
                own.append(np.array([float(option.cost) for option in options]))
            first.append(first[-1] + len(usage[-1]))
        self.usage, self.own = np.concatenate(usage), np.concatenate(own)
        self.first = np.array(first)
        self.cards = [
            (each.layouts.astype(np.float64), float(each.cost), material.at_most(each, upper))
            for each in material.cards
        ]

    def slope(self, prices: Floats, heat: float) -> tuple[float, Floats]:
        """Return the bound itself, and the slope of the smooth one."""
        priced = self.usage @ prices + self.own
        starts, sizes = self.first[:-1], np.diff(self.first)
        least = np.minimum.reduceat(priced, starts)
        weights = np.exp((np.repeat(least, sizes) - priced) / heat)
        weights /= np.repeat(np.add.reduceat(weights, starts), sizes)
        value, slope = float(least.sum()), self.usage.T @ weights
        for layouts, cost, count in self.cards:
            gain = layouts @ prices - cost
            top = max(0.0, float(gain.max()))
            value -= top * count
            parts = np.exp((gain - top) / heat)
            parts /= parts.sum() + np.exp(-top / heat)
            slope -= count * (parts @ layouts)
        return value, np.asarray(slope)
