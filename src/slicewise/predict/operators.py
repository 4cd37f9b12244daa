"""Times of single operators as rows of a fit, beside the latencies of whole models.

    row: sum over the kernels of an operator of theta[class, f] * x[f]  ~  its profiled time

A profiler disturbs what it times: what it adds to each call is taken off, and the operators of a
model together take no longer than the model did without it. Rows of a model weigh by their parts
of its time, so that cheap operators, of which little is known, decide little. Plain arrays only:
which operator is which kernel is for the caller to know.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from slicewise.predict.kernels import Array, Indices

# Whatever is taken off for the profiler, this part of an operator's time stays.
LEAST_LEFT = 0.1
# Where a row is predicted below this part of what was measured, it is weighted as if it were not.
LEAST_PREDICTED = 0.1


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """What a profiler tells of some kernels together, in ms of one run, over `calls` calls.

    `kernels` are their numbers in the order of `kernels.kernels_of`; none where the time is of
    nothing that is predicted, as of shape arithmetic: it counts in the profiler's sum only.
    """

    kernels: tuple[int, ...]
    latency_ms: float
    calls: float = 1.0


@dataclass(frozen=True, slots=True)
class Profiled:
    """One case: the features [kernels, features] and class of each kernel, what the profiler told
    (nothing where it did not run), and the latency without it in seconds."""

    columns: Array
    classes: Indices
    times: Sequence[OperatorTime]
    latency_s: float


@dataclass(frozen=True, slots=True)
class Block:
    """Rows with the same columns: `design` [rows, columns] and `measured` in seconds, `case` the
    model that each row is of, `part` the part of its latency."""

    columns: Indices
    design: Array
    measured: Array
    case: Indices
    part: Array


@dataclass(frozen=True, slots=True)
class OperatorRows:
    """All rows; most columns are zero in most of them, so that they are kept in blocks."""

    blocks: tuple[Block, ...] = ()

    def of(self, which: NDArray[np.bool_]) -> "OperatorRows":
        """Return the rows of some of the cases, which are numbered anew."""
        number = np.cumsum(which) - 1
        kept = []
        for block in self.blocks:
            its = which[block.case]
            if its.any():
                case = number[block.case[its]]
                kept.append(
                    Block(
                        block.columns, block.design[its], block.measured[its], case,
                        block.part[its],
                    )
                )  # fmt: skip
        return OperatorRows(tuple(kept))

    def grouped(self, place: Indices) -> "OperatorRows":
        """Return the rows with columns added up that `place` gives one number; -1 drops one."""
        made = []
        for block in self.blocks:
            to = place[block.columns]
            columns, at = np.unique(to[to >= 0], return_inverse=True)
            if not len(columns):
                continue
            design = np.zeros((len(block.design), len(columns)))
            for source, target in zip(np.flatnonzero(to >= 0), at.reshape(-1), strict=True):
                design[:, target] += block.design[:, source]
            made.append(replace(block, columns=columns, design=design))
        return OperatorRows(tuple(made))

    def normal(self, solution: Array, weights: Array, *, huber: float) -> tuple[Array, Array]:
        """Return matrix and right side of the normal equations of these rows around `solution`.

        Residuals are relative, as those of the latencies, and weighted down by Huber beyond
        `huber` robust deviations. `weights` are those of the cases.
        """
        gram, right = np.zeros((len(solution), len(solution))), np.zeros(len(solution))
        if not self.blocks:
            return gram, right
        scales, residuals = [], []
        for block in self.blocks:
            predicted = block.design @ solution[block.columns]
            floored = np.maximum(predicted, LEAST_PREDICTED * block.measured)
            scales.append(np.sqrt(floored * block.measured))
            residuals.append((predicted - block.measured) / scales[-1])
        part = np.concatenate([block.part for block in self.blocks])
        size = np.abs(np.concatenate(residuals))
        limit = huber * max(1.4826 * weighted_median(size, part), 0.02)
        for block, scale, residual in zip(self.blocks, scales, residuals, strict=True):
            robust = np.minimum(1.0, limit / np.maximum(np.abs(residual), 1e-12))
            row = np.sqrt(weights[block.case] * block.part * robust) / scale
            scaled = block.design * row[:, None]
            gram[np.ix_(block.columns, block.columns)] += scaled.T @ scaled
            right[block.columns] += scaled.T @ (row * block.measured)
        return gram, right


def operator_rows(cases: Sequence[Profiled]) -> OperatorRows:
    """Return the rows of all cases; operators of a case with the same features are one row."""
    rows: dict[tuple[int, ...], list[tuple[Array, float, int, float]]] = defaultdict(list)
    for number, (case, seconds) in enumerate(zip(cases, settle(cases), strict=True)):
        alike: dict[tuple[tuple[int, ...], bytes], tuple[Array, float]] = {}
        for time, its_s in zip(case.times, seconds.tolist(), strict=True):
            if not time.kernels or its_s <= 0:
                continue
            columns, vector = _sum_features(case, time.kernels)
            key = (columns, np.round(vector, 12).tobytes())
            before, before_s = alike.get(key, (np.zeros_like(vector), 0.0))
            alike[key] = (before + vector, before_s + its_s)
        for (columns, _), (vector, its_s) in alike.items():
            rows[columns].append((vector, its_s, number, its_s / case.latency_s))
    return OperatorRows(
        tuple(
            Block(
                np.array(columns, dtype=np.int64),
                np.array([row[0] for row in rows[columns]]),
                np.array([row[1] for row in rows[columns]]),
                np.array([row[2] for row in rows[columns]], dtype=np.int64),
                np.array([row[3] for row in rows[columns]]),
            )
            for columns in sorted(rows)
        )
    )


def _sum_features(case: Profiled, kernels: Sequence[int]) -> tuple[tuple[int, ...], Array]:
    """Return columns, as places in a flat table [classes, features], and their sums over some
    kernels."""
    index = np.array(kernels, dtype=np.int64)
    classes, place = np.unique(case.classes[index], return_inverse=True)
    features = case.columns.shape[1]
    sums = np.zeros((len(classes), features))
    np.add.at(sums, place.reshape(-1), case.columns[index])
    columns = classes[:, None] * features + np.arange(features)[None, :]
    return tuple(columns.reshape(-1).tolist()), sums.reshape(-1)


def settle(cases: Sequence[Profiled]) -> list[Array]:
    """Return the seconds of each operator of each case without what the profiler changes.

    The cost of a call is the weighted median over cases of (profiled - latency) / calls; where
    operators follow each other with gaps it is negative, and each call bears its gap. What still
    exceeds the latency is a disturbed profile, and scaled down to it.
    """
    told = [np.array([time.latency_ms for time in case.times]) * 1e-3 for case in cases]
    calls = [np.array([time.calls for time in case.times], dtype=np.float64) for case in cases]
    latency = np.array([case.latency_s for case in cases])
    count = np.array([its.sum() for its in calls])
    total = np.array([its.sum() for its in told])
    known = count > 0
    if not known.any():
        return told
    excess = (total[known] - latency[known]) / count[known]
    # where there are many calls in little time, their cost shows best
    per_call = weighted_median(excess, count[known] / latency[known])
    settled = []
    for its, each, whole in zip(told, calls, latency.tolist(), strict=True):
        left = np.maximum(its - per_call * each, LEAST_LEFT * its)
        settled.append(left * min(1.0, whole / max(float(left.sum()), 1e-30)))
    return settled


def weighted_median(values: Array, weights: Array) -> float:
    """Return the least value that half of the weight is at or below."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    place = int(np.searchsorted(below, below[-1] / 2))
    return float(values[order][min(place, len(values) - 1)])
