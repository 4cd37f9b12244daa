"""Non-negative ridge fits of few measurements, in nested levels chosen by cross-validation.

    measured ~ sum over (class, feature) of theta * design + host factor * host seconds

Levels, each shrunk toward the one before, the first toward the uncalibrated answer:

    factor    one number on everything
    kinds     a factor on the roofline of each kind of kernel
    parts     each kind's arithmetic, bytes and launches apart
    classes   the same for each class within a kind; shrunk toward `parts` or, where held-out
              families like that better, toward `kinds`

Why not one big regression: a card of five measurements must not be worse than none, one of three
hundred should use them. A level is taken only where families held out of the fit are better
predicted with it. Residuals are relative, (predicted - measured) / sqrt(predicted measured), near
to a difference of logarithms, and weighted down where they are outliers (Huber). Times of single
operators, where a profiler told them, are further rows from `kinds` on (`operators.py`); how much
they weigh is chosen with the ridge, and judged by the latencies of whole models alone. Plain
arrays only: what the columns mean is told by `features.py`, what the rows are by `calibrate.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slicewise.predict.correction import LEAST_PART
from slicewise.predict.features import CLASSES, FEATURES, KIND_OF_CLASS, ROOFLINE
from slicewise.predict.kernels import Array, Indices
from slicewise.predict.operators import OperatorRows

LEVELS = ("none", "factor", "kinds", "parts", "classes")
# The ways from the coarse to the fine.
CHAINS = (("factor", "kinds", "parts", "classes"), ("factor", "kinds", "classes"))
# Strengths tried at each level, in units of one measurement's squared relative residual.
RIDGES = (0.001, 0.01, 0.1, 1.0)
# Weights tried of all operators of a model together, over that of its latency, the likelier first:
# to leave them out must lower the held-out error as a further level must. On the CPU zoo the error
# is flat from 1 to 10, and a choice among more of them is mostly noise.
OPERATOR_WEIGHTS = (3.0, 0.0)
# One factor: the roofline's error of a model beside that common to all models of a device, as
# variances. Uncalibrated errors scatter by about 0.25 around a bias of about 0.35 (logarithms).
FACTOR_PRIOR = 0.5
FOLDS = 8
LEAST_FAMILIES = 3
ROUNDS = 5
HUBER = 1.5
# A level must lower the held-out error by this part, and by 1 / families where those are few, or
# the simpler one stays: with five families the choice itself is mostly noise.
LEAST_GAIN = 0.02
_HOST = -1


@dataclass(frozen=True, slots=True)
class Problem:
    """Measurements as rows: `design` [rows, classes, features] and `host` in seconds,
    `measured` in seconds, `family` a number for each row. `operators` are parts of the rows that
    were timed by themselves."""

    design: Array
    host: Array
    measured: Array
    family: Indices
    operators: OperatorRows = field(default_factory=OperatorRows)

    def rows(self, which: NDArray[np.bool_]) -> "Problem":
        """Return the problem of some of the rows."""
        return Problem(
            self.design[which],
            self.host[which],
            self.measured[which],
            self.family[which],
            self.operators.of(which),
        )

    @property
    def families(self) -> int:
        """How many families there are."""
        return len(np.unique(self.family))


@dataclass(frozen=True, slots=True)
class Theta:
    """Coefficients [classes, features], and the factor on the host's part."""

    kernels: Array
    host: float

    def predict(self, problem: Problem) -> Array:
        """Return the seconds of each row; nothing is free, as where a correction is applied."""
        kernels: Array = np.tensordot(problem.design, self.kernels, axes=2)
        plain = problem.design[:, :, ROOFLINE].sum(axis=1)
        host = max(self.host, LEAST_PART) * problem.host
        seconds: Array = np.maximum(kernels, LEAST_PART * plain) + host
        return seconds


def uncalibrated() -> Theta:
    """Return the coefficients of the roofline itself."""
    kernels = np.zeros((len(CLASSES), len(FEATURES)))
    kernels[:, ROOFLINE] = 1.0
    return Theta(kernels, 1.0)


class Step(NamedTuple):
    """A level, its ridge and the weight of the operators in it."""

    level: str
    ridge: float
    operators: float = 0.0


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fit, the levels that led to it, and what each row is predicted as while its family is held
    out (the uncalibrated answer where nothing can be held out)."""

    theta: Theta
    steps: tuple[Step, ...]
    held_out: Array

    @property
    def level(self) -> str:
        """The finest level."""
        return self.steps[-1].level if self.steps else LEVELS[0]


def fit(problem: Problem) -> Fitted:
    """Return the fit of the level that predicts held-out families best; order does not matter."""
    steps = choose(problem)
    held_out = uncalibrated().predict(problem)
    if steps and problem.families > 1:
        for fold in _folds(problem):
            theta = fit_steps(problem.rows(~fold), steps)
            held_out[fold] = theta.predict(problem.rows(fold))
    return Fitted(fit_steps(problem, steps), steps, held_out)


def choose(problem: Problem) -> tuple[Step, ...]:
    """Return the levels to fit, each with its ridge and weight; none where none helps.

    With too few families to hold any out: one factor.
    """
    if problem.families < LEAST_FAMILIES:
        return (Step("factor", FACTOR_PRIOR),)
    parts = [(problem.rows(~fold), problem.rows(fold)) for fold in _folds(problem)]
    best_error, best = _error(parts, [uncalibrated()] * len(parts)), tuple[Step, ...]()
    # What led to a chain of levels: chains share their beginnings.
    known: dict[tuple[float, tuple[str, ...]], tuple[float, tuple[Step, ...], list[Theta]]] = {}
    for weight in OPERATOR_WEIGHTS if problem.operators.blocks else (0.0,):
        for chain in CHAINS:
            steps: tuple[Step, ...] = ()
            thetas = [uncalibrated()] * len(parts)
            for end, level in enumerate(chain, 1):
                key = (weight, chain[:end])
                if key not in known:
                    known[key] = _extend(parts, steps, thetas, level, weight)
                error, steps, thetas = known[key]
                gain = max(LEAST_GAIN, 1 / problem.families) if best else 0.0
                if error < best_error * (1 - gain):
                    best_error, best = error, steps
    return best


def _extend(
    parts: Sequence[tuple[Problem, Problem]],
    steps: tuple[Step, ...],
    thetas: Sequence[Theta],
    level: str,
    weight: float,
) -> tuple[float, tuple[Step, ...], list[Theta]]:
    """Return the held-out error with one more level at its best ridge, its steps and its fits."""
    tried = []
    for ridge in (FACTOR_PRIOR,) if level == "factor" else RIDGES:
        step = Step(level, ridge, weight)
        made = [
            _fit_level(train, step, theta) for (train, _), theta in zip(parts, thetas, strict=True)
        ]
        tried.append((_error(parts, made), -ridge, step, made))
    error, _, step, best = min(tried, key=lambda each: each[:2])
    return error, (*steps, step), best


def fit_steps(problem: Problem, steps: Sequence[Step]) -> Theta:
    """Return the fit of these levels, each shrunk toward the one before."""
    theta = uncalibrated()
    for step in steps:
        theta = _fit_level(problem, step, theta)
    return theta


def _error(parts: Sequence[tuple[Problem, Problem]], thetas: Sequence[Theta]) -> float:
    """Return the mean absolute logarithm of predicted over measured of what is held out."""
    errors = [
        np.abs(np.log(theta.predict(test) / test.measured))
        for (_, test), theta in zip(parts, thetas, strict=True)
    ]
    return float(np.mean(np.concatenate(errors)))


def _folds(problem: Problem) -> list[NDArray[np.bool_]]:
    """Return which rows each fold holds out: whole families, the largest dealt first."""
    families, counts = np.unique(problem.family, return_counts=True)
    order = families[np.lexsort((families, -counts))]
    count = min(FOLDS, len(families))
    return [np.isin(problem.family, order[i::count]) for i in range(count)]


def _weights(problem: Problem) -> Array:
    """Return the weight of each row: a family counts as the root of its number of rows."""
    _, place, counts = np.unique(problem.family, return_inverse=True, return_counts=True)
    return (counts[place.reshape(-1)] ** -0.5).astype(np.float64)


def _fit_factor(problem: Problem, prior: float) -> Theta:
    """Return everything times exp(sum of w log(measured / predicted) / (sum of w + prior))."""
    start = uncalibrated()
    logs = np.log(problem.measured / start.predict(problem))
    weights = _weights(problem)
    common = 0.0
    for _ in range(ROUNDS):
        robust = weights * _huber(logs - common)
        common = float(np.sum(robust * logs) / (np.sum(robust) + prior))
    factor = float(np.exp(common))
    return Theta(start.kernels * factor, factor)


def _fit_level(problem: Problem, step: Step, prior: Theta) -> Theta:
    """Return the non-negative coefficients of one level, shrunk toward `prior`."""
    if step.level == "factor":
        return _fit_factor(problem, step.ridge)
    group = _groups(step.level)
    count = int(group.max()) + 1
    columns = _grouped(problem.design, group, count)
    matrix = np.concatenate([columns, problem.host[:, None]], axis=1)
    used = np.flatnonzero(np.any(matrix > 0, axis=0))
    matrix = matrix[:, used]
    # What a column multiplies the prior by where it stands for a factor, and adds elsewhere.
    start = np.zeros(count + 1)
    start[_HOST] = prior.host
    first = np.full(count, -1)
    flat, place = prior.kernels.reshape(-1), group.reshape(-1)
    for i in np.flatnonzero(place >= 0)[::-1]:
        first[place[i]] = i
    start[:count] = flat[first]
    solution = start[used]
    base = solution.copy()
    weights = _weights(problem)
    operators = _grouped_operators(problem, place, used) if step.operators else OperatorRows()
    for _ in range(ROUNDS):
        predicted = np.maximum(matrix @ solution, 1e-12)
        scale = np.sqrt(predicted * problem.measured)
        residual = (predicted - problem.measured) / scale
        row = np.sqrt(weights * _huber(residual)) / scale
        scaled = matrix * row[:, None]
        gram, right = operators.normal(solution, weights * step.operators, huber=HUBER)
        gram += scaled.T @ scaled + step.ridge * np.eye(len(used))
        right += scaled.T @ (row * problem.measured) + step.ridge * base
        solution = non_negative(gram, right, solution)
    full = start.copy()
    full[used] = solution
    kernels = np.where(group >= 0, full[np.maximum(group, 0)], 0.0)
    return Theta(kernels, float(full[_HOST]))


def _groups(level: str) -> Indices:
    """Return which coefficient of the level each (class, feature) takes, -1 for none."""
    classes, parts = len(CLASSES), len(FEATURES)
    if level == "kinds":
        group = np.full((classes, parts), -1)
        group[:, ROOFLINE] = KIND_OF_CLASS
        return group
    of_class = KIND_OF_CLASS if level == "parts" else np.arange(classes)
    return of_class[:, None] * parts + np.arange(parts)[None, :]


def _grouped(design: Array, group: Indices, count: int) -> Array:
    """Return the design with the columns of each group added up."""
    flat = design.reshape(len(design), -1)
    place = group.reshape(-1)
    summed = np.zeros((len(design), count))
    for i in np.flatnonzero((place >= 0) & np.any(flat > 0, axis=0)):
        summed[:, place[i]] += flat[:, i]
    return summed


def _grouped_operators(problem: Problem, place: Indices, used: Indices) -> OperatorRows:
    """Return the operators with the columns of a level, numbered as in `used`."""
    number = np.full(max(int(place.max()), int(used.max())) + 2, -1)
    number[used] = np.arange(len(used))
    return problem.operators.grouped(np.where(place >= 0, number[place], -1))


def _huber(residual: Array) -> Array:
    """Return Huber's weights: 1 within HUBER robust deviations, falling as 1 / |r| beyond."""
    spread = 1.4826 * float(np.median(np.abs(residual)))
    limit = HUBER * max(spread, 0.02)
    return np.minimum(1.0, limit / np.maximum(np.abs(residual), 1e-12))


def non_negative(gram: Array, right: Array, start: Array) -> Array:
    """Return the x >= 0 that minimises x' gram x / 2 - right' x; `gram` is positive definite.

    Solve on the free variables, then exchange all that break the conditions of Karush, Kuhn and
    Tucker between free and fixed; where that has not helped three times, only the last of them,
    which ends (block principal pivoting: Kim, Park, SIAM J. Sci. Comput. 33(6), 2011, alg. 2).
    Starts from the support of `start`.
    """
    free = start > 0
    tolerance = 1e-10 * max(1.0, float(np.abs(right).max(initial=0.0)))
    solution = np.zeros_like(right)
    patience, fewest = 3, len(right) + 1
    while True:
        solution[:] = 0.0
        if free.any():
            solution[free] = np.linalg.solve(gram[np.ix_(free, free)], right[free])
        slope = gram @ solution - right
        broken = np.flatnonzero(np.where(free, solution < 0, slope < -tolerance))
        if not len(broken):
            return solution
        if len(broken) < fewest:
            patience, fewest = 3, len(broken)
        elif patience:
            patience -= 1
        else:
            broken = broken[-1:]
        free[broken] = ~free[broken]
