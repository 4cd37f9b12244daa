"""How far the roofline may be off: quantiles of its own error on open measurements.

Rows come from `benchmarks/roofline_error.py`; its result table in git shows the same figures. A
group is a device kind, a runtime and a load: `small` where the device is less than half full
(launches dominate), `full` above.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from slicewise.core.cost import Estimate
from slicewise.core.device import Device
from slicewise.core.notes import Note
from slicewise.predict.correction import OUTSIDE_STRETCH, Correction

FULL_SATURATION = 0.5


@dataclass(frozen=True, slots=True)
class ErrorBand:
    """5 % and 95 % quantiles of measured over predicted; `rows` measurements, `families` kinds
    of model behind them."""

    low: float
    high: float
    rows: int
    families: int


# (device kind, runtime, load) -> band
ERROR_BANDS: Mapping[tuple[str, str, str], ErrorBand] = {
    ("cpu", "torch-compile", "full"): ErrorBand(0.64, 1.47, 1932, 23),
    ("cpu", "torch-compile", "small"): ErrorBand(0.77, 1.66, 65, 8),
    ("gpu", "tensorrt", "full"): ErrorBand(0.61, 3.21, 906, 23),
    ("gpu", "tensorrt", "small"): ErrorBand(0.76, 3.47, 377, 21),
    ("gpu", "torch-compile", "full"): ErrorBand(0.78, 1.27, 3520, 23),
    ("gpu", "torch-eager", "full"): ErrorBand(0.77, 1.38, 6313, 26),
    ("gpu", "torch-eager", "small"): ErrorBand(0.90, 3.23, 55, 8),
}
# The efficiencies were fitted on these very rows. With the row's family held out the error grows
# from 17 to 20 % in the median (benchmarks/results/fit_efficiency_gpu.md), so that for families
# never seen the logarithms of the quantiles are stretched by as much.
UNSEEN_STRETCH = 1.2
# A runtime that no open row covers borrows the widest band of its kind of device and load,
# stretched by this factor each way. Our estimate of what another runtime adds.
BORROWED = 1.25
# Where there is not even that.
UNCOVERED = ErrorBand(1 / 4, 4.0, 0, 0)


def latency_interval(
    latency_ms: float, *, device: Device, runtime: str, saturation: float, source: str
) -> tuple[Estimate, tuple[Note, ...]]:
    """Return the latency with its 90 % interval, and a Note where no measurement backs it."""
    load = "full" if saturation >= FULL_SATURATION else "small"
    band = ERROR_BANDS.get((device.kind, runtime, load))
    notes: tuple[Note, ...] = ()
    if band is None:
        band, origin = _borrowed(device.kind, load)
        text = (
            f"no open measurement covers {runtime} on a {device.kind} at this load;"
            f" the interval is {origin}"
        )
        notes = (Note("interval-uncovered", text),)
    # The interval always holds the value itself, also where the roofline is biased.
    low, high = min(band.low, 1.0) ** UNSEEN_STRETCH, max(band.high, 1.0) ** UNSEEN_STRETCH
    return Estimate(latency_ms, latency_ms * low, latency_ms * high, source), notes


def calibrated_interval(
    latency_ms: float, correction: Correction, *, times_outside: int, source: str
) -> Estimate:
    """Return the latency with the 90 % interval of a correction, wider for each way in which the
    prediction lies outside of what was measured."""
    band = correction.band.stretched(OUTSIDE_STRETCH**times_outside)
    return Estimate(latency_ms, latency_ms * band.low, latency_ms * band.high, source)


def _borrowed(kind: str, load: str) -> tuple[ErrorBand, str]:
    """Return the widest band of that kind and load, stretched, and where it is from."""
    known = {key: band for key, band in ERROR_BANDS.items() if (key[0], key[2]) == (kind, load)}
    if not known:
        return UNCOVERED, "a guess"
    low = min(band.low for band in known.values()) / BORROWED
    high = max(band.high for band in known.values()) * BORROWED
    return ErrorBand(low, high, 0, 0), f"borrowed from {', '.join(key[1] for key in known)}, wider"
