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
    ("gpu", "torch-eager", "full"): ErrorBand(0.7, 1.5, 1, 1),
}
# Where no open row covers the case: wider than any band above, stated by a Note.
UNCOVERED = ErrorBand(1 / 3, 3.0, 0, 0)


def latency_interval(
    latency_ms: float, *, device: Device, runtime: str, saturation: float, source: str
) -> tuple[Estimate, tuple[Note, ...]]:
    """Return the latency with its 90 % interval, and a Note where no measurement backs it."""
    load = "full" if saturation >= FULL_SATURATION else "small"
    band = ERROR_BANDS.get((device.kind, runtime, load))
    notes: tuple[Note, ...] = ()
    if band is None:
        band = UNCOVERED
        notes = (
            Note(
                "interval-uncovered",
                f"no open measurement covers {runtime} on a {device.kind} at this load;"
                " the interval is a wide guess",
            ),
        )
    # The interval always holds the value itself, also where the roofline is biased.
    low, high = min(band.low, 1.0), max(band.high, 1.0)
    return Estimate(latency_ms, latency_ms * low, latency_ms * high, source), notes
