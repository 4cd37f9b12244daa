"""Which points of a sweep no other dominates. Ties stay together (`core/ties.py`)."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from slicewise.core.cost import Prediction
from slicewise.core.exploration import Objective
from slicewise.core.ties import places

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix: TypeAlias = NDArray[np.float64]
    Mask: TypeAlias = NDArray[np.bool_]

# What each objective costs: the less the better, so throughput is turned around.
_COSTS: Mapping[Objective, Callable[[Prediction], float]] = {
    Objective.LATENCY: lambda made: made.latency_ms.value,
    Objective.THROUGHPUT: lambda made: -made.throughput_per_s,
    Objective.ENERGY: lambda made: made.energy_j.value / made.batch,
    Objective.MEMORY: lambda made: float(made.memory_bytes.value),
}
_BLOCK = 512


def costs_of(made: Prediction, objectives: Sequence[Objective]) -> tuple[float, ...]:
    """Return what the prediction costs in each objective, the less the better."""
    return tuple(_COSTS[objective](made) for objective in objectives)


def front_of(costs: Sequence[Sequence[float]]) -> list[int]:
    """Return the indices of the rows that no other row dominates, ascending.

    A row dominates another that it equals or betters in every column and betters in one. Figures
    that differ by a part in 10^9 at most are equal; equal rows stand or fall together. Distinct
    rows are ordered by their columns, so that a row is only dominated by earlier ones, which are
    no worse in the first column anyway. Time O(n log n) for up to two columns, else O(n f d):
    n rows, f of them on the front, d columns.

    >>> front_of([(1, 4), (2, 2), (3, 3), (4, 1), (2, 2)])
    [0, 1, 3, 4]
    """
    import numpy as np

    if not costs:
        return []
    columns = [places(column) for column in zip(*costs, strict=True)]
    ranked = np.array(columns, dtype=np.float64).T
    rows, inverse = np.unique(ranked, axis=0, return_inverse=True)
    keeps = _keeps_of_few(rows) if rows.shape[1] <= 2 else _keeps_of_many(rows)
    found: list[int] = np.flatnonzero(keeps[inverse.reshape(-1)]).tolist()
    return found


def _keeps_of_few(rows: "Matrix") -> "Mask":
    """One or two columns: a row stands if its last is less than that of all before it."""
    import numpy as np

    keeps = np.ones(len(rows), dtype=bool)
    last = rows[:, 1] if rows.shape[1] == 2 else np.zeros(len(rows))
    keeps[1:] = last[1:] < np.minimum.accumulate(last)[:-1]
    return keeps


def _keeps_of_many(rows: "Matrix") -> "Mask":
    """Hold blocks of rows against the front so far, then against themselves."""
    import numpy as np

    keeps = np.zeros(len(rows), dtype=bool)
    front = np.empty((0, rows.shape[1]))
    earlier = np.tri(_BLOCK, k=-1, dtype=bool)  # [row, other]: the other comes before the row
    for start in range(0, len(rows), _BLOCK):
        alive = np.arange(start, min(start + _BLOCK, len(rows)))
        for i in range(0, len(front), _BLOCK):
            alive = alive[~_no_worse(front[i : i + _BLOCK], rows[alive]).any(axis=1)]
        block = rows[alive]
        covers = _no_worse(block, block) & earlier[: len(block), : len(block)]
        alive = alive[~covers.any(axis=1)]
        keeps[alive] = True
        front = np.concatenate([front, rows[alive]])
    return keeps


def _no_worse(others: "Matrix", rows: "Matrix") -> "Mask":
    """Say [row, other] whether the other is no worse in any column but the first."""
    import numpy as np

    told = np.ones((len(rows), len(others)), dtype=bool)
    for column in range(1, rows.shape[1]):
        told &= others[None, :, column] <= rows[:, None, column]
    return told
