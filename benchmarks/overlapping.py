"""A network whose arithmetic and traffic overlap, beside the one of `training/network.py`.

    time of a kernel = (arithmetic^3 + memory^3 + cache^3)^(1/3) + the rest

Each of the three is a sum of its own costs by cause, every one times its theta, so that what hides
behind something slower costs nothing. In a plain sum each cause takes a part of the time of every
kernel it accompanies: with few devices to learn from, the parts are those of these devices, and
where one is balanced otherwise (an L40S has 3 times the arithmetic for each byte of an A100) the
sum is wrong. The laws of `basis.py` hold: no cost falls as another rises.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor

from slicewise.predict.basis import BASIS, SIDES, TILES
from training import network
from training.network import Settings, Slowdowns, Vocabulary

SHARPNESS = 3
_ARITHMETIC = (
    "matrix", "tiles", "padded", "few outputs", "short sums", "direct", "vector", "depth",
    *(f"wave {m}x{n}" for m, n in TILES),
)  # fmt: skip
_MEMORY = ("read", "written", "weights", "beyond", "unrolled")
_CACHE = (*(f"operands {side}" for side in SIDES), "cached")
_BOTH = ("roof", "hypotenuse", "mean")
_LEAST_US = 1e-4  # keeps the root's slope finite where a kernel has no such cost


class Overlapping(Slowdowns):
    """theta as in `Slowdowns`; the columns that combine both are left to the power mean."""

    def __init__(self, vocabulary: Vocabulary, settings: Settings, contexts: Tensor) -> None:
        super().__init__(vocabulary, settings, contexts)
        # training starts from the roofline here too
        for name in ("tiles", "read", "written", "weights"):
            self.theta.bias.data[BASIS.index(name)] = 0.0

    def kernels_us(self, factors: Tensor, basis_us: Tensor) -> Tensor:
        """Return the time of kernels, given theta and costs: one row of both for each."""
        times = factors * basis_us

        def total(names: tuple[str, ...]) -> Tensor:
            return times[:, [BASIS.index(name) for name in names]].sum(1)

        sums = [total(names) + _LEAST_US for names in (_ARITHMETIC, _MEMORY, _CACHE)]
        together = torch.stack(sums).pow(SHARPNESS).sum(0).pow(1 / SHARPNESS)
        return together + total(_REST)


_OVERLAPPED = frozenset({*_ARITHMETIC, *_MEMORY, *_CACHE, *_BOTH})
_REST = tuple(name for name in BASIS if name not in _OVERLAPPED)


@contextmanager
def overlapping() -> Iterator[None]:
    """Networks fitted inside are of this kind."""
    with patch.object(network, "Slowdowns", Overlapping):
        yield
