"""The baselines by name: each learns from some rows and predicts the others."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines import sage, trees
from benchmarks.baselines.cases import Cases, cases_of, save, saved
from benchmarks.baselines.own_roofline import roofline_s
from slicewise.core.whole_file import whole_file

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

WORK = Path(os.environ.get("SLICEWISE_TRAINING", "build/training")) / "baselines"
_CASES = WORK / "cases.npz"
_OWN = WORK / "own_roofline.npz"


@dataclass(frozen=True, slots=True)
class Options:
    """What a run may change: CPU seconds of a network's fold, and the seed."""

    cpu_seconds: float
    seed: int


class Method(Protocol):
    """A baseline."""

    def predict(self, cases: Cases, held_out: Mask, options: Options) -> Floats:
        """Return the seconds of the rows that are held out, learned from the others."""


@dataclass(frozen=True, slots=True)
class Trees:
    """Trees that learn the logarithm of the time an image, or that of the time over the roofline
    where they see `pooled` operators; `by_file`: each file has its own."""

    settings: trees.Settings
    pooled: bool
    by_file: bool

    def predict(self, cases: Cases, held_out: Mask, options: Options) -> Floats:
        scale = cases.roofline_s if self.pooled else cases.batch
        target = np.log(cases.measured_s / scale)
        more = [cases.pooled.astype(np.float64)] if self.pooled else []
        columns: list[Floats] = [cases.scalars.astype(np.float64), *more]
        settings = replace(self.settings, seed=options.seed)
        if self.by_file:
            features: Floats = np.concatenate(columns, axis=1)
            made = trees.boosted_by_file(
                features, target, held_out, settings, file=cases.source_file
            )
        else:
            features = np.concatenate([*columns, cases.where], axis=1)
            made = trees.boosted(features, target, held_out, settings)
        return np.asarray(np.exp(made) * scale[held_out])


@dataclass(frozen=True, slots=True)
class Chain:
    """DIPPM's network."""

    settings: sage.Settings

    def predict(self, cases: Cases, held_out: Mask, options: Options) -> Floats:
        settings = replace(self.settings, cpu_seconds=options.cpu_seconds, seed=options.seed)
        return sage.predict_held_out(cases, held_out, settings)


@dataclass(frozen=True, slots=True)
class Roofline:
    """The roofline at the data sheet's rates times the median ratio of a file's rows."""

    def predict(self, cases: Cases, held_out: Mask, options: Options) -> Floats:
        made = cases.roofline_s.copy()
        for file in cases.files:
            its = cases.source_file == file
            known = its & ~held_out
            made[its] *= np.median(cases.measured_s[known] / cases.roofline_s[known])
        return made[held_out]


@dataclass(frozen=True, slots=True)
class OwnRoofline:
    """Slicewise's analytic predictor. Nothing is learned, so that it is made once."""

    def predict(self, cases: Cases, held_out: Mask, options: Options) -> Floats:
        if not _OWN.exists():
            from training.gather import samples
            from training.graphs import kept

            made = roofline_s(samples("timm").rows, cases.key.tolist(), kept())
            with whole_file(_OWN) as file:
                np.savez(file, predicted_s=made)
        with np.load(_OWN) as arrays:
            return np.asarray(arrays["predicted_s"][held_out], dtype=np.float64)


# The best of what `choose` tried.
ON_SCALARS = trees.Settings(trees=250, part=0.6)
ON_POOLED = trees.Settings(trees=1000, part=0.2)
NETWORK = sage.Settings(hidden=128, rate=1e-3, graphs=16)

METHODS: Mapping[str, tuple[str, Method]] = {
    "roofline": ("roofline, one constant for each file", Roofline()),
    "slicewise-roofline": ("slicewise's roofline", OwnRoofline()),
    "scalars-by-file": ("trees on scalars, a model for each file",
                        Trees(ON_SCALARS, pooled=False, by_file=True)),
    "scalars": ("trees on scalars, one model", Trees(ON_SCALARS, pooled=False, by_file=False)),
    "pooled-by-file": ("trees on pooled operators, a model for each file",
                       Trees(ON_POOLED, pooled=True, by_file=True)),
    "pooled": ("trees on pooled operators, one model",
               Trees(ON_POOLED, pooled=True, by_file=False)),
    "dippm-ms": ("DIPPM's network, as described", Chain(replace(NETWORK, target="ms"))),
    "dippm": ("DIPPM's network, logarithm of time an image", Chain(NETWORK)),
}  # fmt: skip
"""Name -> how tables call it, and the method."""

TRIED: tuple[tuple[str, Method, tuple[int, ...]], ...] = (
    *(
        (f"{pooled=} {settings}", Trees(settings, pooled=pooled, by_file=False), (1, 2, 3, 4))
        for pooled in (False, True)
        for settings in (
            trees.Settings(250, 1.0, "l2"), trees.Settings(250, 1.0), trees.Settings(250, 0.6),
            trees.Settings(250, 0.2), trees.Settings(1000, 0.6), trees.Settings(1000, 0.2),
        )
    ),
    *(
        (str(settings), Chain(settings), (1,))
        for settings in (
            *(replace(NETWORK, hidden=hidden) for hidden in (64, 128, 256, 512)),
            replace(NETWORK, rate=3e-3), replace(NETWORK, graphs=4),
        )
    ),
)  # fmt: skip
"""Settings to choose among, and the folds to judge them by; the network, which is slow, by one."""


def cases_of_all() -> Cases:
    """Return the cases, made where they were not."""
    if not _CASES.exists():
        from training.gather import samples
        from training.graphs import kept

        save(cases_of(samples("timm"), kept()), _CASES)
    return saved(_CASES)
