"""A model at a batch on a device as one row of figures pooled over its kernels.

The features of the feasibility study's trees (`model_level/FEASIBILITY.md`, sections 3 and 4,
about 150 columns): total of the roofline, what each cause adds to it, share of its time by kind of
operator, counts, launches, alignment and the like as means over the time. Made of the kernels that
ours is trained on, so that no method knows more of a model than another. Nothing is fitted.
"""

import numpy as np
from numpy.typing import NDArray

from slicewise.predict.basis import BASIS
from slicewise.predict.context import CONTEXT
from training.samples import Samples

Floats = NDArray[np.float64]

_KINDS = [i for i, name in enumerate(CONTEXT) if name.startswith("kind ")]
# What is left are columns of a kernel itself, none of its neighbours.
_OWN = [
    i
    for i, name in enumerate(CONTEXT)
    if not name.startswith(("kind ", "before: ", "behind: ", "is first", "is last"))
]
_BINS_US = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)
_LEAST_US = 1e-3
COLUMNS: tuple[str, ...] = (
    "log roofline", "log compute over roofline", "log memory over roofline", "compute bound",
    "largest kernel", "log kernels", "log distinct kernels",
    *(f"log {name} over roofline" for name in BASIS),
    *(f"time of {CONTEXT[i]}" for i in _KINDS),
    *(f"log count of {CONTEXT[i]}" for i in _KINDS),
    *(f"kernels under {bound:g} us" for bound in _BINS_US),
    *(f"mean {CONTEXT[i]}" for i in _OWN),
)  # fmt: skip


def pool(samples: Samples) -> tuple[NDArray[np.float32], Floats]:
    """Return the features of each sample, [samples, len(COLUMNS)], and its roofline in seconds:
    every kernel takes the greater of arithmetic and traffic at the data sheet's rates."""
    features = np.zeros((len(samples.rows), len(COLUMNS)), dtype=np.float32)
    roofline_s = np.zeros(len(samples.rows))
    for i, (start, end) in enumerate(zip(samples.starts, samples.starts[1:], strict=False)):
        its = slice(start, end)
        features[i], roofline_us = _pooled(
            samples.basis[its].astype(np.float64),
            samples.contexts[samples.context[its]].astype(np.float64),
            samples.count[its].astype(np.float64),
        )
        roofline_s[i] = roofline_us * 1e-6
    return features, roofline_s


def _pooled(basis: Floats, context: Floats, count: Floats) -> tuple[Floats, float]:
    compute = _sum(basis, "matrix", "vector")
    memory = _sum(basis, "read", "written", "weights")
    roof = np.maximum(compute, memory)
    total = max(float(roof @ count), _LEAST_US)
    part = roof * count / total
    ratios = np.array([compute @ count, memory @ count, *(count @ basis)]) / total
    logs = np.log(np.maximum(ratios, 1e-6))
    kinds = context[:, _KINDS]
    features = np.concatenate([
        [
            np.log(total), logs[0], logs[1], part @ (compute > memory), part.max(),
            np.log(count.sum()), np.log(len(count)),
        ],
        logs[2:],
        part @ kinds,
        np.log1p(count @ kinds),
        [count @ (roof < bound) / count.sum() for bound in _BINS_US],
        part @ context[:, _OWN],
    ])  # fmt: skip
    return features, total


def _sum(basis: Floats, *names: str) -> Floats:
    return np.asarray(sum(basis[:, BASIS.index(name)] for name in names))
