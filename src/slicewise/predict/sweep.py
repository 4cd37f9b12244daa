"""The slice rule fitted to measured latencies: one model's curve over batches and parts.

    T(b, f, g) = H b + [ L^p + (t s^e + W b s)^p ]^(1/p)        (`predict/slice.py`)

Six numbers tell a curve: L, t, W for one item, the exponent e of the tail, the compute share c of
s, and the part of each item's time that no slice changes (H / (H + W)). Measured points tell some
of them, what is known beforehand the others: a whole card's latencies say nothing of e and c, and
a single slice sharpens both. So each has a prior, the fit is the most probable curve
(Levenberg-Marquardt on log latencies, outliers weighted down as Huber does), and what the points
leave open widens the interval (Laplace: the curvature at the optimum).

Priors: medians and spreads over the nine models of ParvaGPU (MIT), rounded toward wide ones, so
that models unlike those are not forced into their form. `benchmarks/results/slice_constants.md`
shows what each matters and what is left when a model is held out, `slice_rule.md` the errors on
sources that nothing was fitted to. Plain arrays only; files, devices and predictions are the
business of `predict/measured.py`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slicewise.predict.slice import (
    MODEL_COMPUTE_SHARE,
    TAIL_SHARE,
    Busy,
    joined,
    saturated_slowdown,
)

Array = NDArray[np.float64]
Residuals = Callable[[Array], Array]

# Repeated measurements of one point scatter by as much (logarithm); beyond HUBER times it, a point
# counts by its distance, not its square.
NOISE = 0.042
HUBER = 3.0
# Prior of log(t / L): below the median by its spread, above it by the wider one, because weights
# that stream and kernels too small for the card add to what is read as tail.
TAIL_SPREAD = 0.43
TAIL_SPREAD_ABOVE = 2.6 * TAIL_SPREAD
# Prior of log(t / W): tails are worth a few items of full work.
TAIL_ITEMS = 3.7
TAIL_ITEMS_SPREAD = 0.4
# Prior of e: small where launches hide the tail; where the card's own work shows from the first
# item on, most of what looks like tail is work and slows as such.
HIDDEN_EXPONENT, SHOWN_EXPONENT, EXPONENT_SPREAD = 0.15, 0.7, 0.25
_MOST_SHOWN = 50.0
# Priors of logit(c) and of logit(H / (H + W)) where nobody told H; the latter's median is 0.22.
COMPUTE_SPREAD = 0.5
HOST_LOGIT, HOST_SPREAD = -1.28, 0.5
# L is no longer than the shortest latency, nor much shorter than a twentieth of it.
_EDGE, _LEAST_LAUNCH = 0.02, 3.0
# Of a point's distance to the curve, as much is taken to be the model's at that batch, the rest
# noise.
TRUST = 0.7

# How far L, t and W of a prediction are off beside their common factor: the median error of the
# rule from a predictor's saturation on a quarter of the card, as a standard deviation.
SHAPE_SPREAD = 0.3

_ROUNDS = 80
_STARTS = (0.95, 0.3)
_STEP = 1e-6


@dataclass(frozen=True, slots=True)
class Point:
    """A latency of one process at a batch on the fractions of units and bandwidth of a card."""

    batch: int
    latency_ms: float
    compute: float = 1.0
    bandwidth: float = 1.0


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a curve before its points are.

    `host_item_ms` is H, None where nobody told; `host_ms` a part of every latency that neither
    batch nor slice changes. `compute_share` is the median of c. With `busy`, a prediction's L, t
    and W b at `batch`, these are the medians; their common factor is off by `level_spread`
    (standard deviation of the logarithm), each beside that by `SHAPE_SPREAD`.
    """

    host_item_ms: float | None = None
    compute_share: float = MODEL_COMPUTE_SHARE
    host_ms: float = 0.0
    busy: Busy | None = None
    batch: int = 1
    level_spread: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """A fitted curve.

    `host_ms` is H for one item, `launch_ms` L, `tail_ms` t, `item_ms` W for one item.
    """

    parameters: Array
    covariance: Array
    known: Known
    points: tuple[Point, ...]

    @property
    def launch_ms(self) -> float:
        """L."""
        return float(np.exp(self.parameters[0]))

    @property
    def tail_ms(self) -> float:
        """t."""
        return float(np.exp(self.parameters[1]))

    @property
    def item_ms(self) -> float:
        """W for one item on the whole card."""
        return float(np.exp(self.parameters[2])) * (1 - _host_part(self.parameters, self.known))

    @property
    def host_item_ms(self) -> float:
        """H: what one item takes whatever the part."""
        told = self.known.host_item_ms or 0.0
        return told + float(np.exp(self.parameters[2])) * _host_part(self.parameters, self.known)

    @property
    def compute_share(self) -> float:
        """c."""
        return float(_logistic(self.parameters[4]))

    def slow(self, compute: float, bandwidth: float) -> float:
        """Return s on these fractions of the card."""
        return saturated_slowdown(compute, bandwidth, self.compute_share)

    def tail_on(self, compute: float, bandwidth: float) -> float:
        """Return the tail on these fractions in ms."""
        return float(self.tail_ms * self.slow(compute, bandwidth) ** self.parameters[3])

    def latency_ms(self, batch: int, compute: float = 1.0, bandwidth: float = 1.0) -> float:
        """Return T of the curve alone, without regard to how far points lie from it."""
        return float(
            _latency(
                self.parameters,
                self.known,
                np.array([float(batch)]),
                np.array([compute]),
                np.array([bandwidth]),
            )[0]
        )

    def distances(self) -> "Distances":
        """Return those of the curve's own points."""
        return Distances(
            [
                (p, p.latency_ms / self.latency_ms(p.batch, p.compute, p.bandwidth))
                for p in self.points
            ],
            self,
        )

    @property
    def misfit(self) -> float:
        """Return how far the points lie from the curve (root mean square of log T), at least
        `NOISE`."""
        far = [
            math.log(p.latency_ms / self.latency_ms(p.batch, p.compute, p.bandwidth))
            for p in self.points
        ]
        return max(NOISE, math.sqrt(sum(x * x for x in far) / len(far)))

    def spread(self, batch: int, compute: float = 1.0, bandwidth: float = 1.0) -> float:
        """Return the standard deviation of log T: what points and priors leave open."""
        where = np.array([float(batch)]), np.array([compute]), np.array([bandwidth])
        slope = _slopes(lambda z: np.log(_latency(z, self.known, *where)), self.parameters)[0]
        return math.sqrt(max(0.0, float(slope @ self.covariance @ slope)))


class Distances:
    """How far measured latencies lie from a curve, as factors, and what to make of them elsewhere.

    `found` are points and their factors. On a part that was measured the curve goes through its
    points; elsewhere the part `TRUST` of their distances moves it. Between batches, then between
    parts by their s, both on logarithmic axes; constant beyond the ends.
    """

    def __init__(self, found: Sequence[tuple[Point, float]], sweep: Sweep) -> None:
        by_part: dict[tuple[float, float], dict[float, list[float]]] = {}
        for point, factor in found:
            its = by_part.setdefault((point.compute, point.bandwidth), {})
            its.setdefault(math.log(point.batch), []).append(math.log(factor))
        self._slow = sweep.slow
        self._by_part = {
            part: sorted((where, sum(logs) / len(logs)) for where, logs in its.items())
            for part, its in by_part.items()
        }

    def at(
        self, batch: int, compute: float, bandwidth: float, *, goes_through: bool = True
    ) -> float:
        """Return the factor by which to move the curve there, 1 where nothing was found.

        Without `goes_through` a measured part is treated as any other: its points may be noise.
        """
        if not self._by_part:
            return 1.0
        own = self._by_part.get((compute, bandwidth))
        if own is not None:
            trust = 1.0 if goes_through else TRUST
            return math.exp(trust * _between(own, math.log(batch)))
        over_parts = sorted(
            (math.log(self._slow(*part)), _between(its, math.log(batch)))
            for part, its in self._by_part.items()
        )
        return math.exp(TRUST * _between(over_parts, math.log(self._slow(compute, bandwidth))))


def _between(line: Sequence[tuple[float, float]], where: float) -> float:
    return float(np.interp(where, [x for x, _ in line], [y for _, y in line]))


def fit_sweep(points: Sequence[Point], known: Known) -> Sweep:
    """Return the most probable curve through `points`.

    Deterministic; time O(rounds x points). Any number of points from one on will do, at any
    batches and parts; `ValueError` without any.
    """
    if not points:
        raise ValueError("a curve needs at least one point")
    batch = np.array([float(point.batch) for point in points])
    compute = np.array([point.compute for point in points])
    bandwidth = np.array([point.bandwidth for point in points])
    measured = np.log(np.array([point.latency_ms for point in points], dtype=np.float64))
    shortest = float(np.min(measured))

    def residuals(z: Array) -> Array:
        made = np.log(_latency(z, known, batch, compute, bandwidth))
        return np.concatenate([_huber((made - measured) / NOISE), _prior(z, known, shortest)])

    best, least = None, math.inf
    for start in _starts(points, known, shortest):
        z, cost = _minimise(residuals, start)
        if cost < least:
            best, least = z, cost
    assert best is not None  # there is a start, and every cost is finite
    slopes = _slopes(residuals, best)
    covariance: Array = np.linalg.pinv(slopes.T @ slopes).astype(np.float64)
    return Sweep(best, covariance, known, tuple(points))


def _latency(z: Array, known: Known, batch: Array, compute: Array, bandwidth: Array) -> Array:
    launch, tail, item = (math.exp(min(max(value, -40.0), 40.0)) for value in z[:3].tolist())
    slow: Array = saturated_slowdown(compute, bandwidth, _logistic(z[4]))
    host = _host_part(z, known)
    device = tail * slow ** z[3] + (1 - host) * item * batch * slow
    told = known.host_ms + (known.host_item_ms or 0.0) * batch
    made: Array = told + host * item * batch + joined(np.full_like(device, launch), device)
    return made


def _host_part(z: Array, known: Known) -> float:
    return float(_logistic(z[5])) if known.host_item_ms is None else 0.0


def _logistic(value: float) -> float:
    return float(1 / (1 + np.exp(-np.clip(value, -30.0, 30.0))))


def logit(share: float) -> float:
    """Return log(share / (1 - share)) for a share inside (0, 1)."""
    inside = min(max(share, 1e-6), 1 - 1e-6)
    return math.log(inside / (1 - inside))


def _huber(distance: Array) -> Array:
    """Return residuals whose squares are Huber's loss."""
    far = np.abs(distance) > HUBER
    grown = np.sqrt(np.maximum(2 * HUBER * np.abs(distance) - HUBER**2, 0.0))
    made: Array = np.where(far, np.sign(distance) * grown, distance)
    return made


def _prior(z: Array, known: Known, shortest: float) -> Array:
    launch, tail, item = (float(value) for value in z[:3])
    shown = min(math.exp(min(np.logaddexp(tail, item) - launch, 4.0)), _MOST_SHOWN) ** 2
    exponent = (HIDDEN_EXPONENT + SHOWN_EXPONENT * shown) / (1 + shown)
    terms = [
        (z[3] - exponent) / EXPONENT_SPREAD,
        (z[4] - logit(known.compute_share)) / COMPUTE_SPREAD,
    ]
    if known.host_item_ms is None:
        terms.append((z[5] - HOST_LOGIT) / HOST_SPREAD)
    if known.busy is not None:
        return np.concatenate([terms, _from_prediction(z, known)])
    far = tail - launch - math.log(TAIL_SHARE)
    terms += [
        far / (TAIL_SPREAD if far < 0 else TAIL_SPREAD_ABOVE),
        (tail - item - math.log(TAIL_ITEMS)) / TAIL_ITEMS_SPREAD,
        max(0.0, launch - shortest) / _EDGE,
        max(0.0, shortest - _LEAST_LAUNCH - launch) / _LEAST_LAUNCH,
    ]
    return np.array(terms)


def _medians(known: Known) -> Array:
    """Return log of a prediction's L, t and W for one item, those that are nothing as very
    little."""
    assert known.busy is not None
    busy = known.busy
    least = 1e-6 * (busy.launch_ms + busy.tail_ms + busy.work_ms)
    values = (busy.launch_ms, busy.tail_ms, busy.work_ms / known.batch)
    return np.log([max(value, least) for value in values])


def _from_prediction(z: Array, known: Known) -> Array:
    """Return whitened distances: a common factor and a factor for each, all normal in logs."""
    covariance = np.full((3, 3), known.level_spread**2) + np.eye(3) * SHAPE_SPREAD**2
    made: Array = np.linalg.solve(np.linalg.cholesky(covariance), z[:3] - _medians(known))
    return made


def _starts(points: Sequence[Point], known: Known, shortest: float) -> list[Array]:
    shared = [HIDDEN_EXPONENT, logit(known.compute_share)]
    if known.host_item_ms is None:
        shared.append(HOST_LOGIT)
    if known.busy is not None:
        return [np.concatenate([_medians(known), shared])]
    told = known.host_item_ms or 0.0
    slows = [
        saturated_slowdown(point.compute, point.bandwidth, known.compute_share) for point in points
    ]
    item = min(
        max(point.latency_ms / point.batch - told, 0.1 * point.latency_ms / point.batch) / slow
        for point, slow in zip(points, slows, strict=True)
    )
    return [
        np.array(
            [
                shortest + math.log(part),
                shortest + math.log(part * TAIL_SHARE),
                math.log(item),
                *shared,
            ]
        )
        for part in _STARTS
    ]


def _minimise(residuals: Residuals, start: Array) -> tuple[Array, float]:
    """Return the least-squares optimum near `start` and its cost (Levenberg-Marquardt)."""
    z = start
    at = residuals(z)
    cost, damping = float(at @ at), 1e-2
    for _ in range(_ROUNDS):
        slopes = _slopes(residuals, z)
        normal, gradient = slopes.T @ slopes, slopes.T @ at
        while damping < 1e10:
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), -gradient)
            tried = z + np.clip(step, -1.0, 1.0)
            reached = residuals(tried)
            gained = cost - float(reached @ reached)
            if gained > 0:
                break
            damping *= 4
        else:
            return z, cost
        z, at, cost, damping = tried, reached, cost - gained, max(damping / 8, 1e-9)
        if gained < 1e-10 * (1 + cost):
            break
    return z, cost


def _slopes(function: Residuals, z: Array) -> Array:
    """Return the derivatives of `function` at `z` by central differences."""
    columns = []
    for i in range(len(z)):
        step = np.zeros_like(z)
        step[i] = _STEP
        columns.append((function(z + step) - function(z - step)) / (2 * _STEP))
    made: Array = np.stack(columns, axis=1)
    return made
