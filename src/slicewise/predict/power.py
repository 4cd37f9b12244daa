"""Which part of its data-sheet matrix rate a card can sustain under its power limit.

    sustained = min(1, (reference / (rate / limit)) ^ 0.55)

rate / limit is the 16-bit matrix rate for each watt of the limit; reference is the same figure of
the roomiest card of the generation, which holds its clock. A card that promises twice the rate for
each watt of its sibling does not run at full clock when all matrix units work.
"""

from slicewise.core.device import Device
from slicewise.core.precision import DType

# Exponent between the two cards that open rows show: T4 (2.2 times the rate for each watt of a
# V100) reaches 0.58 of its rate in TensorRT BERT rows, RTX PRO 6000 Max-Q (2.0 times an RTX 5090)
# 0.72 in eager timm rows: exponents 0.69 and 0.47.
EXPONENT = 0.55

# Architecture -> flop/s for each watt of the card that holds its rate. Consumer cards count with
# the full rate of their units (fp16 accumulation), not the halved one that they are sold with.
_REFERENCE_FLOP_PER_S_PER_W = {
    "Volta": 125e12 / 300,  # V100 SXM2
    "Turing": 125e12 / 300,  # V100 SXM2, the same process
    "Ampere GA100": 312e12 / 400,  # A100 SXM4
    "Ampere GA10": 142e12 / 350,  # RTX 3090
    "Ada": 330e12 / 450,  # RTX 4090
    "Hopper": 989e12 / 700,  # H100 SXM5
    "Blackwell GB202": 419e12 / 575,  # RTX 5090
    "Blackwell GB100": 2250e12 / 1000,  # B200
}


def sustained_fraction(device: Device) -> float:
    """Return the part of the matrix rate that `device` sustains; 1 where nothing is known.

    >>> from slicewise.testing.predictors import tiny_gpu
    >>> sustained_fraction(tiny_gpu())
    1.0
    """
    rate = device.peak_flop_per_s.get(DType.FP16)
    known = (
        reference
        for architecture, reference in _REFERENCE_FLOP_PER_S_PER_W.items()
        if device.architecture.startswith(architecture)
    )
    reference = next(known, None)
    if rate is None or reference is None:
        return 1.0
    return float(min(1.0, (reference * device.max_power_w / rate) ** EXPONENT))
