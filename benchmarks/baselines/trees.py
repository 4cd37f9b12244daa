"""LightGBM on a few scalars, and on pooled operator features."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Settings:
    """How many `trees`, which `part` of the columns each sees, and the `objective`."""

    trees: int = 250
    part: float = 0.6
    objective: str = "l1"
    rate: float = 0.05
    seed: int = 0


def boosted(features: NDArray[Any], target: Floats, held_out: Mask, settings: Settings) -> Floats:
    """Return the predicted target of the held-out rows, learned from the others."""
    import lightgbm

    options = {
        "objective": settings.objective, "learning_rate": settings.rate, "num_leaves": 31,
        "feature_fraction": settings.part, "bagging_fraction": 0.7, "bagging_freq": 1,
        "seed": settings.seed, "deterministic": True, "force_row_wise": True, "num_threads": 1,
        "verbosity": -1,
    }  # fmt: skip
    data = lightgbm.Dataset(features[~held_out], target[~held_out])
    model = lightgbm.train(options, data, num_boost_round=settings.trees)
    return np.asarray(model.predict(features[held_out]), dtype=np.float64)


def boosted_by_file(
    features: NDArray[Any],
    target: Floats,
    held_out: Mask,
    settings: Settings,
    *,
    file: NDArray[np.str_],
) -> Floats:
    """Return the same where every file has a model of its own."""
    made = np.zeros(len(target))
    for name in np.unique(file):
        its = np.flatnonzero(file == name)
        out = held_out[its]
        made[its[out]] = boosted(features[its], target[its], out, settings)
    return made[held_out]
