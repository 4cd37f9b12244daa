"""What calibration learned of one device: types, and how a correction is applied to kernels.

A card belongs to one device and holds a correction for each runtime, precision and part of the
device that was measured. Applying one replaces the time of each kernel by a sum over its features
(`features.py`) and touches nothing else: what a graph costs in all stays with `roofline.py`.
Fitting is the business of `calibrate.py`, files that of `cards.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from slicewise.core.device import Device
from slicewise.core.notes import Note
from slicewise.predict.features import (
    CLASS_NAMES,
    FEATURES,
    LAUNCH,
    ROOFLINE,
    features,
)
from slicewise.predict.kernels import Array, Indices, KernelTable, KernelTimes, UnitCosts

# However little a fit leaves of a kernel, it keeps this part of its uncalibrated time, and so does
# the host: nothing is free.
LEAST_PART = 0.02
# Outside of what was measured the logarithms of an interval are stretched by this factor, once for
# each way in which it lies outside. Our judgement: held-out families, the nearest that can be
# measured to it, are about twice as far off as those fitted.
OUTSIDE_STRETCH = 1.5
# A latency counts as far outside where it is beyond the measured ones by this factor.
FAR = 2.0
# Kernels of classes never measured are told where they take more than this part of the time.
UNSEEN_PART = 0.02
_NOTHING: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors |predicted / measured - 1|: median, mean (MAPE), 90 % quantile; `bias` is
    the median of predicted / measured - 1; medians by family and by batch."""

    median: float
    mean: float
    p90: float
    bias: float
    by_family: Mapping[str, float] = field(default_factory=dict)
    by_batch: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Band:
    """Factors on a prediction between which 90 % of measurements should lie."""

    low: float
    high: float

    def stretched(self, times: float) -> "Band":
        """Return the band with its logarithms multiplied by `times`."""
        return Band(self.low**times, self.high**times)


@dataclass(frozen=True, slots=True)
class Range:
    """What was measured: batches, latencies in ms, and classes of kernels by name."""

    batches: tuple[int, int]
    latencies_ms: tuple[float, float]
    classes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemoryCorrection:
    """Bytes held by the runtime, factors on the parts of the estimate, and what is left over."""

    runtime_bytes: int
    weights: float
    activations: float
    workspace: float
    band: Band
    before: Errors
    after: Errors


@dataclass(frozen=True, slots=True)
class EnergyCorrection:
    """One factor on the energy, and what is left over."""

    factor: float
    band: Band
    before: Errors
    after: Errors


@dataclass(frozen=True, slots=True)
class Correction:
    """What was learned under one runtime, in one precision, on one part of a device.

    `slice` is None for the whole device, else as devices name it ('50%'). `theta` are the
    coefficients by class and feature, `host` the factor on the host's part. `level` names how
    fine the fit is (`fitting.LEVELS`). `before` and `after` are errors without and with the
    correction; for `after` the family of each measurement was held out of the fit, except where
    there are too few families: then both are of the measurements themselves. `base` names what
    was corrected; it corrects nothing else.
    """

    runtime: str
    precision: str
    slice: str | None
    level: str
    theta: Mapping[str, Mapping[str, float]]
    host: float
    band: Band
    range: Range
    measurements: int
    families: int
    before: Errors
    after: Errors
    memory: MemoryCorrection | None = None
    energy: EnergyCorrection | None = None
    base: str = "roofline"

    @property
    def case(self) -> str:
        """What it is a correction of: 'onnxruntime, fp32, 50%'."""
        part = () if self.slice is None else (self.slice,)
        return ", ".join((self.runtime, self.precision, *part))

    @property
    def is_useful(self) -> bool:
        """False where predictions are further off with it than without."""
        return self.after.mean <= self.before.mean


@dataclass(frozen=True, slots=True)
class Card:
    """The corrections of one device, and what they were learned from."""

    device: str
    device_digest: str
    corrections: tuple[Correction, ...]
    made_at: str = ""  # UTC, ISO 8601
    environment_digest: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def measurements(self) -> int:
        """How many measurements are behind all corrections together."""
        return sum(each.measurements for each in self.corrections)

    @property
    def name(self) -> str:
        """What predictions call it: 'card cpu (160 measurements)'."""
        return f"card {self.device} ({self.measurements} measurements)"

    def find(self, runtime: str, precision: str, *, part: str | None = None) -> Correction | None:
        """Return the correction for these conditions, None where nothing was measured."""
        for each in self.corrections:
            if (each.runtime, each.precision, each.slice) == (runtime, precision, part):
                return each
        return None

    def of_part(self, name: str) -> "Card":
        """Return the card of a part of the device, seen as a device of its own.

        For a part that was measured: predict on `as_whole(part)` with this card, no slice rule.
        """
        its = tuple(replace(each, slice=None) for each in self.corrections if each.slice == name)
        return replace(self, corrections=its)


def as_whole(part: Device) -> Device:
    """Return a slice or share with its own figures and no parent, under its own name.

    >>> from slicewise.testing.predictors import tiny_gpu
    >>> alone = as_whole(tiny_gpu().share(50))
    >>> alone.name, alone.parent, alone.compute_units
    ('tiny-gpu@50%', None, 54)
    """
    return replace(part, parent=None, profile=None, share_percent=None)


def theta_of(correction: Correction) -> Array:
    """Return the coefficients as a table [classes, features]."""
    rows = [correction.theta.get(name, _NOTHING) for name in CLASS_NAMES]
    return np.array([[row.get(feature, 0.0) for feature in FEATURES] for row in rows])


def correct(
    correction: Correction,
    table: KernelTable,
    costs: UnitCosts,
    times: KernelTimes,
    *,
    classes: Indices,
    device: Device,
) -> KernelTimes:
    """Return the times of kernels under a correction.

    What is no launch grows or shrinks with the kernel: arithmetic and bytes keep their ratio, and
    neither alone takes longer than the kernel does.
    """
    columns = features(table, costs, times, device)
    theta = theta_of(correction)[classes]
    charged = np.einsum("kf,kf->k", columns, theta)
    launched = np.maximum(charged, LEAST_PART * times.launched_s)
    work = launched - columns[:, LAUNCH] * theta[:, LAUNCH]
    scale = np.maximum(work, 0.0) / columns[:, ROOFLINE]
    longest = np.maximum(times.compute_s, times.memory_s) * scale
    scale *= np.minimum(1.0, launched / np.where(longest > 0, longest, 1.0))
    return KernelTimes(
        launched,
        times.padded_s * scale,
        times.compute_s * scale,
        times.memory_s * scale,
        times.saturated_s * scale,
    )


def outside(
    correction: Correction,
    *,
    batch: int,
    latency_ms: float,
    classes: Indices,
    kernel_s: Array,
) -> list[str]:
    """Return in words how a prediction lies outside of what the correction was learned from."""
    known, found = correction.range, []
    low, high = known.batches
    if not low <= batch <= high:
        found.append(f"batch {batch} (measured: {low} to {high})")
    fastest, slowest = known.latencies_ms
    if not fastest / FAR <= latency_ms <= slowest * FAR:
        found.append(f"{latency_ms:.3g} ms (measured: {fastest:.3g} to {slowest:.3g} ms)")
    measured = frozenset(known.classes)
    unseen = np.array([name not in measured for name in CLASS_NAMES])[classes]
    part = float(np.sum(kernel_s[unseen])) / max(float(np.sum(kernel_s)), 1e-30)
    if part > UNSEEN_PART:
        names = sorted({CLASS_NAMES[i] for i in classes[unseen].tolist()})
        found.append(f"kernels never measured take {part:.0%} of the time ({', '.join(names)})")
    return found


def absent_note(card: Card, runtime: str, precision: str) -> Note:
    """Return the Note that a card holds nothing for these conditions."""
    have = sorted({f"{each.runtime} in {each.precision}" for each in card.corrections})
    text = (
        f"{card.name} has no correction for {runtime} in {precision}; predicted without"
        f" (it has {', '.join(have) or 'none'})"
    )
    return Note("calibration-absent", text)


def stale_note(card: Card, correction: Correction, base: str) -> Note:
    """Return the Note that a correction is of other figures than those predicted now."""
    text = (
        f"{card.name} corrects {correction.base} for {correction.case}, and {base} predicts now;"
        " predicted without it: run slicewise calibrate again, the measurements are kept"
    )
    return Note("calibration-stale", text)


def outside_note(card: Card, reasons: list[str]) -> Note:
    """Return the Note that a prediction lies outside of what a card was learned from."""
    text = f"outside of what {card.name} was learned from: {'; '.join(reasons)}; interval widened"
    return Note("calibration-extrapolated", text)
