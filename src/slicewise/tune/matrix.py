"""Tuned-at-x, run-at-y: figures of one fixed set of candidates at several shares.

Arithmetic over samples only; who takes them is the business of `flows/tune_matrix.py`.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from slicewise.core.cost import Estimate
from slicewise.core.tuning import Matrix, MatrixCell, Workload

Array = NDArray[np.float64]
# Samples of one candidate at one share, in the order taken.
Samples = Sequence[float]
# share -> configuration -> samples
Sweep = Mapping[str, Mapping[str, Samples]]
_RESAMPLES = 1000
_SOURCE = "measured"


def matrix_of(workload: Workload, sweep: Sweep, shares: Sequence[str], *, seed: int) -> Matrix:
    """Return the matrix of one workload: chosen on the even samples, judged on the odd ones.

    A configuration counts where it ran at every share. The interval of a penalty is that of the
    ratio of the two medians by the bootstrap (Efron and Tibshirani, An Introduction to the
    Bootstrap, 1993, ch. 13: percentiles of resampled statistics), over `_RESAMPLES` resamples.
    """
    common = [config for config in sweep[shares[0]] if all(config in sweep[s] for s in shares)]
    chosen = {share: _fastest(sweep[share], common) for share in shares}
    random = np.random.default_rng(seed)
    cells = [
        _cell(tuned_at, run_at, chosen, sweep[run_at], random)
        for tuned_at in shares
        for run_at in shares
    ]
    return Matrix(workload.key, workload.name, tuple(shares), tuple(cells))


def total_of(
    matrices: Sequence[Matrix], counts: Mapping[str, int], shares: Sequence[str]
) -> Matrix:
    """Return the matrix of the sum over workloads, each as often as the model has it.

    The parts' intervals are independent, so that their squared half-widths add up.
    """
    cells = []
    for place, (tuned_at, run_at) in enumerate((a, b) for a in shares for b in shares):
        own = [(each.cells[place], counts[each.key]) for each in matrices]
        here = _summed([(cell.latency_ms, count) for cell, count in own])
        best = sum(count * cell.latency_ms.value / cell.penalty.value for cell, count in own)
        ratios = [
            (_scaled(cell.penalty, cell.latency_ms.value / cell.penalty.value), count)
            for cell, count in own
        ]
        penalty = _scaled(_summed(ratios), 1 / best)
        cells.append(MatrixCell(tuned_at, run_at, "", here, penalty))
    return Matrix("", "all workloads", tuple(shares), tuple(cells))


def _fastest(found: Mapping[str, Samples], configs: Sequence[str]) -> str:
    """Return the configuration with the least median over the samples that choose."""
    return min(configs, key=lambda config: float(np.median(_choosing(found[config]))))


def _choosing(samples: Samples) -> Samples:
    return samples[::2] if len(samples) > 1 else samples


def _judging(samples: Samples) -> Samples:
    return samples[1::2] if len(samples) > 1 else samples


def _cell(
    tuned_at: str,
    run_at: str,
    chosen: Mapping[str, str],
    found: Mapping[str, Samples],
    random: np.random.Generator,
) -> MatrixCell:
    config = chosen[tuned_at]
    here = np.asarray(_judging(found[config]), dtype=np.float64)
    native = np.asarray(_judging(found[chosen[run_at]]), dtype=np.float64)
    medians = _medians(here, random)
    latency = _estimate(float(np.median(here)), medians)
    if config == chosen[run_at]:
        penalty = Estimate(1.0, low=1.0, high=1.0, source=_SOURCE)
    else:
        ratio = float(np.median(here) / np.median(native))
        penalty = _estimate(ratio, medians / _medians(native, random))
    return MatrixCell(tuned_at, run_at, config, latency, penalty)


def _medians(values: Array, random: np.random.Generator) -> Array:
    """Return the medians of resamples of `values`."""
    picked = random.integers(0, len(values), size=(_RESAMPLES, len(values)))
    medians: Array = np.median(values[picked], axis=1)
    return medians


def _estimate(value: float, resampled: Array) -> Estimate:
    low, high = (float(each) for each in np.quantile(resampled, (0.05, 0.95)))
    return Estimate(value, low=min(low, value), high=max(high, value), source=_SOURCE)


def _summed(parts: Sequence[tuple[Estimate, int]]) -> Estimate:
    value = sum(count * each.value for each, count in parts)
    down = math.sqrt(sum((count * (each.value - each.low)) ** 2 for each, count in parts))
    up = math.sqrt(sum((count * (each.high - each.value)) ** 2 for each, count in parts))
    return Estimate(value, low=value - down, high=value + up, source=_SOURCE)


def _scaled(each: Estimate, factor: float) -> Estimate:
    return Estimate(
        each.value * factor, low=each.low * factor, high=each.high * factor, source=_SOURCE
    )
