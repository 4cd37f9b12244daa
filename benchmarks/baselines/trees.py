"""LightGBM on a few scalars, and on pooled operator features."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

TREES = 250
_OPTIONS: dict[str, Any] = {
    "learning_rate": 0.1, "num_leaves": 31, "min_data_in_leaf": 20, "verbosity": -1,
    "num_threads": 1, "deterministic": True, "force_row_wise": True,
}  # fmt: skip


def boosted(features: NDArray[Any], target: Floats, held_out: Mask, *, seed: int) -> Floats:
    """Return the predicted target of the held-out rows, learned from the others."""
    import lightgbm

    data = lightgbm.Dataset(features[~held_out], target[~held_out])
    model = lightgbm.train({**_OPTIONS, "seed": seed}, data, num_boost_round=TREES)
    return np.asarray(model.predict(features[held_out]), dtype=np.float64)


def boosted_by_file(
    features: NDArray[Any], target: Floats, held_out: Mask, *, file: NDArray[np.str_], seed: int
) -> Floats:
    """Return the same where every file has a model of its own."""
    made = np.zeros(len(target))
    for name in np.unique(file):
        its = np.flatnonzero(file == name)
        out = held_out[its]
        made[its[out]] = boosted(features[its], target[its], out, seed=seed)
    return made[held_out]
