"""Measured latencies in place of a model: a curve over batches and parts of one card.

What was measured is given back as it is; other batches and parts follow by the slice rule
(`predict/sweep.py`), and every further slice that was measured sharpens it. Reading the file is
the business of `flows/measured_file.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from slicewise.core.cost import Estimate, MemoryEstimate, Prediction
from slicewise.core.device import Device
from slicewise.core.errors import DeviceError, PredictionError, UsageError
from slicewise.core.notes import Note, unique_notes
from slicewise.core.precision import Precision
from slicewise.predict.energy import ENERGY_SPREAD
from slicewise.predict.memory import memory_notes
from slicewise.predict.sharing import CROWD_SPREAD, crowded_ms
from slicewise.predict.slice import (
    MODEL_COMPUTE_SHARE,
    Busy,
    compute_share,
    fractions_of,
    model_share_of,
    scale,
    stretched,
)
from slicewise.predict.sweep import NOISE, Distances, Known, Point, Sweep, fit_sweep

MEASURED = "measured"
# What PyTorch copies between host and device in a second from and to memory that is not pinned:
# the time of ParvaGPU's models that no slice changes (inputs of CNNs, logits of BERT), on PCIe 4.
PAGEABLE_BYTES_PER_S = 5.9e9
# From and to pinned memory, as engines copy (sharing notes, section 6).
PINNED_BYTES_PER_S = 12e9

_Z90 = 1.645  # a normal distribution has 90 % within so many standard deviations
# Memory between and beyond measured batches: a line through them may be off by as much. Our
# judgement: allocators grow in steps.
_MEMORY_SPREAD = 1.15
# Up to twice the largest measured batch the curve's own spread holds; beyond, the power of the
# batch by which latency grows may be off by this much. Our judgement: caches spill and libraries
# choose other kernels, which no smaller batch shows.
_NEAR, _FAR_EXPONENT = 2.0, 0.25
# A nanosecond and eleven days.
_LEAST_MS, _MOST_MS = 1e-6, 1e9
# Shares on which a share is never to be slower than on more of the card.
_PERCENTS = tuple(range(5, 101, 5))


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One measured latency of a batch, in ms.

    `slice` None is the un-sliced card, else the name of a slice or share ('1g.10gb', '40%').
    `processes` of it ran at once in that part; `memory_bytes` is what all of them took.

    >>> MeasuredRow(batch=8, latency_ms=12.5, slice="1g.10gb").processes
    1
    """

    batch: int
    latency_ms: float
    slice: str | None = None
    memory_bytes: float | None = None
    processes: int = 1

    def __post_init__(self) -> None:
        for name, value in (("batch", self.batch), ("processes", self.processes)):
            if value < 1:
                raise UsageError(f"measured row with {name}={value}: must be at least 1; mend it")
        if not _LEAST_MS <= self.latency_ms <= _MOST_MS:
            raise UsageError(
                f"measured row with latency_ms={self.latency_ms:g}: must lie between {_LEAST_MS:g}"
                f" and {_MOST_MS:g}; mend it or leave the row out"
            )
        if self.memory_bytes is not None and not 0 < self.memory_bytes < math.inf:
            raise UsageError(
                f"measured row with memory_bytes={self.memory_bytes:g}: must be over 0 and finite;"
                " mend it or leave it empty"
            )


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """What measured rows tell about one model on one card and its parts."""

    model: str
    device: Device
    rows: tuple[MeasuredRow, ...]
    precision: str
    sweep: Sweep = field(compare=False, repr=False)
    _alone: Distances = field(compare=False, repr=False)
    _crowded: tuple[tuple[int, Distances], ...] = field(compare=False, repr=False)

    def on(self, part: Device, batch: int, processes: int = 1) -> Prediction:
        """Return latency, throughput, energy and memory on `part`, the card or a part of it.

        `source` is 'measured' where a row is of this part, batch and number of processes; else it
        names the slice rule. `latency_ms` is that of one batch while all processes run,
        `throughput_per_s` the rate of all together. `nodes` are empty, flops 0: nobody knows the
        model. A bigger part that was not measured itself is never slower. Notes say what was
        measured and what is scaled from it. `DeviceError` if `part` is of another card.
        """
        if part.whole.name != self.device.name:
            raise DeviceError(
                f"{part.name} is no part of {self.device.name}, on which {self.model} was"
                f" measured; choose a slice or share of {self.device.name}"
            )
        if batch < 1 or processes < 1:
            raise UsageError(f"{batch=} {processes=} is impossible; give at least 1 of each")
        row = self._row(part, batch, processes)
        if row is None:
            latency_ms, notes = self._scaled(part, batch, processes)
        else:
            spread = math.exp(_Z90 * NOISE)
            value = row.latency_ms
            latency_ms, notes = Estimate(value, value / spread, value * spread, MEASURED), ()
        return self._prediction(part, batch, processes, latency_ms, notes)

    def _row(self, part: Device, batch: int, processes: int) -> MeasuredRow | None:
        """Return what was measured there; of rows that say it twice, one with their median."""
        wanted = (part.slice_name, batch, processes)
        found = [row for row in self.rows if (row.slice, row.batch, row.processes) == wanted]
        if not found:
            return None
        return replace(found[0], latency_ms=float(np.median([row.latency_ms for row in found])))

    def _scaled(
        self, part: Device, batch: int, processes: int
    ) -> tuple[Estimate, tuple[Note, ...]]:
        # A part with the figures of a measured one (a share of 100 %) is not measured itself.
        is_known = any(row.slice == part.slice_name for row in self.rows)
        value = max(
            self._latency_ms(each, batch, processes, goes_through=is_known and each is part)
            for each in self._larger(part)
        )
        compute, bandwidth = fractions_of(part)
        log_spread = math.hypot(self.sweep.spread(batch, compute, bandwidth), self.sweep.misfit)
        log_spread = math.hypot(log_spread * _Z90, self._far(batch))
        if processes > 1:
            log_spread = math.hypot(log_spread, math.log(CROWD_SPREAD))
        spread = math.exp(log_spread)
        estimate = Estimate(value, value / spread, value * spread, "measured, slice rule")
        return estimate, self._scaling_notes(part, batch, processes)

    def _far(self, batch: int) -> float:
        """Return what a batch far above all that were measured adds to the logarithm's spread."""
        largest = max(row.batch for row in self.rows if row.processes == 1)
        return _FAR_EXPONENT * max(0.0, math.log(batch / (_NEAR * largest)))

    def _larger(self, part: Device) -> list[Device]:
        """Return `part` and all parts of its kind that have no less of the card."""
        if part.parent is None:
            return [part]
        if part.share_percent is not None:
            percents = [percent for percent in _PERCENTS if percent > part.share_percent]
            return [part, *(self.device.share(percent) for percent in percents)]
        slices = [self.device.slice(profile.name) for profile in self.device.profiles]
        own = fractions_of(part)
        return [part] + [
            each
            for each in slices
            if all(a >= b for a, b in zip(fractions_of(each), own, strict=True))
        ]

    def _latency_ms(
        self, part: Device, batch: int, processes: int, *, goes_through: bool
    ) -> float:
        """Return the curve's latency, moved toward measured ones near by."""
        where = (batch, *fractions_of(part))
        alone_ms = self.sweep.latency_ms(*where)
        alone_ms *= self._alone.at(*where, goes_through=goes_through)
        if processes == 1:
            return alone_ms
        made = _crowd_ms(self.sweep, alone_ms, Point(batch, alone_ms, *where[1:]), processes)
        if not self._crowded:
            return made
        _, nearest = min(self._crowded, key=lambda each: (abs(each[0] - processes), each[0]))
        return max(alone_ms, made * nearest.at(*where, goes_through=goes_through))

    def _scaling_notes(self, part: Device, batch: int, processes: int) -> tuple[Note, ...]:
        alone = [row for row in self.rows if row.processes == 1]
        parts = list(dict.fromkeys(row.slice or "the whole card" for row in alone))
        batches = sorted({row.batch for row in alone})
        notes = []
        if not any(row.slice == part.slice_name for row in alone):
            text = (
                f"{self.model} was measured on {', '.join(parts)}; the slice rule tells the rest"
            )
            notes.append(Note("slice-scaled", text))
            if self.sweep.known.host_item_ms is None and len(parts) < 2:
                text = "a fifth of what grows with the batch is taken to be copies, which no slice"
                notes.append(Note("copies-assumed", f"{text} slows"))
        if not batches[0] <= batch <= batches[-1]:
            text = f"batch {batch} lies outside of the measured ones ({_span(batches)})"
            wide = ", with a wider interval" if self._far(batch) > 0 else ""
            notes.append(Note("batch-extrapolated", f"{text}; the curve is drawn on{wide}"))
        elif batch not in batches:
            text = f"batch {batch} was not measured; it lies between those that were"
            notes.append(Note("batch-interpolated", f"{text} ({_span(batches)})"))
        if len({row.batch for row in alone if row.slice == alone[0].slice}) < 3 and len(parts) < 2:
            text = "under three batches on one part hardly tell how full the card is"
            notes.append(Note("saturation-assumed", f"{text}; the interval is wide"))
        counts = sorted({row.processes for row in self.rows})
        if processes not in counts:
            text = f"{processes} processes at once were not measured; a rule tells their latency"
            notes.append(Note("processes-scaled", text))
        return tuple(notes)

    def _prediction(
        self, part: Device, batch: int, processes: int, latency_ms: Estimate,
        notes: tuple[Note, ...],
    ) -> Prediction:  # fmt: skip
        compute, bandwidth = fractions_of(part)
        host_ms = min(self.sweep.host_item_ms * batch, latency_ms.value)
        busy_ms = max(latency_ms.value - host_ms, 1e-12)
        full_ms = self.sweep.item_ms * batch * self.sweep.slow(compute, bandwidth)
        saturation = min(1.0, processes * full_ms / busy_ms)
        memory, memory_unknown = self._memory(batch, processes)
        return Prediction(
            model=self.model,
            device=self.device.name,
            slice=part.slice_name,
            batch=batch,
            precision=self.precision,
            runtime=MEASURED,
            macs=0,
            flops=0,
            latency_ms=latency_ms,
            throughput_per_s=processes * batch / latency_ms.value * 1e3,
            energy_j=_energy(part, latency_ms, saturation=saturation, processes=processes),
            memory_bytes=memory,
            compute_utilisation=0.0,
            saturation=saturation,
            source=latency_ms.source,
            host_ms=host_ms,
            notes=unique_notes(
                (
                    *notes,
                    _ENERGY_NOTE,
                    *memory_unknown,
                    *(note for note in part.notes if note.code in _PART_NOTES),
                    *(memory_notes(memory, part) if not memory_unknown else ()),
                )
            ),
        )

    def _memory(self, batch: int, processes: int) -> tuple[MemoryEstimate, tuple[Note, ...]]:
        """Return what all processes take, on the line between measured batches or drawn on."""
        by_batch: dict[int, list[float]] = {}
        for row in self.rows:
            if row.memory_bytes is not None:
                by_batch.setdefault(row.batch, []).append(row.memory_bytes / row.processes)
        if not by_batch:
            note = Note("memory-unmeasured", "no measured row tells memory; it is not judged")
            return MemoryEstimate(0, 0, 0, 0, 0, 0, "unknown"), (note,)
        known = sorted((each, max(bytes_)) for each, bytes_ in by_batch.items())
        one = _on_line(known, batch)
        spread = 1.0 if batch in by_batch else _MEMORY_SPREAD
        value = round(one * processes)
        return (
            MemoryEstimate(
                value=value,
                low=round(value / spread),
                high=round(value * spread),
                weights=0,
                activations=value,
                runtime=0,
                source=MEASURED if batch in by_batch else "measured, line over batches",
            ),
            (),
        )


# Of the notes on a card's figures, those on figures that are used here.
_PART_NOTES = frozenset({"slice-estimated", "idle-power-estimated", "bandwidth-estimated"})
_ENERGY_NOTE = Note(
    "energy-estimated",
    "energy follows from idle power, power limit and how full the part is; it was not measured",
)


def measured_curve(
    rows: Sequence[MeasuredRow],
    device: Device,
    *,
    model: str,
    precision: str = "unknown",
    transfer_bytes_per_item: float | None = None,
    transfer_bytes_per_s: float = PAGEABLE_BYTES_PER_S,
) -> MeasuredCurve:
    """Return the curve that `rows`, measured on `device` or parts of it, tell.

    Rows of one process at three batches or more, up to one that fills the card, tell most; any
    number from one on is taken. `transfer_bytes_per_item` is what one item's inputs and outputs
    move between host and device inside the measured time (0: none was timed; None: not known,
    then about a fifth of the time that grows with the batch is taken to be such).
    `PredictionError` without a row of one process, `DeviceError` for a slice that the device does
    not have, `UsageError` for an unknown precision.
    """
    alone = [row for row in rows if row.processes == 1]
    if not alone:
        raise PredictionError(
            f"{model}: {len(rows)} measured rows, none of one process alone; the curve starts from"
            " such rows, add at least one with processes 1 (or empty)"
        )
    dtype = None if precision == "unknown" else Precision.named(precision).compute
    host_ms = None
    if transfer_bytes_per_item is not None:
        host_ms = transfer_bytes_per_item / transfer_bytes_per_s * 1e3
    known = Known(
        host_item_ms=host_ms,
        compute_share=compute_share(device, dtype, reference=MODEL_COMPUTE_SHARE),
    )
    sweep = fit_sweep([_point(row, device) for row in alone], known)
    distances = sweep.distances()
    crowded: dict[int, list[tuple[Point, float]]] = {}
    for row in rows:
        if row.processes > 1:
            point = _point(row, device)
            where = (row.batch, point.compute, point.bandwidth)
            alone_ms = sweep.latency_ms(*where) * distances.at(*where)
            factor = row.latency_ms / _crowd_ms(sweep, alone_ms, point, row.processes)
            crowded.setdefault(row.processes, []).append((point, factor))
    return MeasuredCurve(
        model,
        device,
        tuple(rows),
        precision,
        sweep,
        distances,
        tuple((count, Distances(found, sweep)) for count, found in sorted(crowded.items())),
    )


def sharpen(prediction: Prediction, rows: Sequence[MeasuredRow], part: Device) -> Prediction:
    """Return the prediction on `part` of a model that was predicted on its whole card and measured
    somewhere: on one slice or share of it, on the card itself, at one batch or several.

    The rows (of one process; others are left to `crowd`) move the prediction's level and how full
    it takes the card to be, each as far as it was unsure of it. Without rows this is `scale`.
    `DeviceError` if the prediction is not of the whole card, or `part` of another card.
    """
    whole = part.whole
    if whole.name != prediction.device or prediction.slice is not None:
        raise DeviceError(f"{part.name} is not a part of {prediction.device}; cannot scale to it")
    points = [_point(row, whole) for row in rows if row.processes == 1]
    latency = prediction.latency_ms
    busy_ms = latency.value - prediction.host_ms
    if not points or busy_ms <= 0:
        return prediction if part.parent is None else scale(prediction, part)
    sweep = fit_sweep(
        points,
        Known(
            host_item_ms=0.0,
            compute_share=model_share_of(prediction, whole),
            host_ms=prediction.host_ms,
            busy=Busy.of(busy_ms, prediction.saturation),
            batch=prediction.batch,
            level_spread=math.log(latency.high / latency.low) / (2 * _Z90),
        ),
    )
    where = (prediction.batch, *fractions_of(part))
    value_ms = sweep.latency_ms(*where) * sweep.distances().at(*where)
    is_measured = any(
        (point.batch, point.compute, point.bandwidth) == where for point in sweep.points
    )
    log_spread = NOISE if is_measured else math.hypot(sweep.spread(*where), sweep.misfit)
    spread = math.exp(_Z90 * log_spread)
    ratio = max(value_ms - prediction.host_ms, 1e-6 * busy_ms) / busy_ms
    compute, bandwidth = fractions_of(part)
    full_ms = sweep.item_ms * prediction.batch * sweep.slow(compute, bandwidth)
    made = stretched(
        prediction,
        part,
        ratio=ratio,
        spread=(spread, spread),
        saturation=min(1.0, full_ms / (ratio * busy_ms)),
        source=MEASURED if is_measured else f"{latency.source}, sharpened by measurements",
    )
    measured_on = dict.fromkeys(row.slice or "the whole card" for row in rows)
    note = Note(
        "measured-sharpened",
        f"the prediction was moved by measurements on {', '.join(measured_on)}",
    )
    return replace(made, notes=unique_notes((*made.notes, note)))


def _point(row: MeasuredRow, device: Device) -> Point:
    return Point(row.batch, row.latency_ms, *fractions_of(_part(row, device)))


def _part(row: MeasuredRow, device: Device) -> Device:
    if row.slice is None:
        return device
    if row.slice.endswith("%"):
        return device.share(float(row.slice[:-1]))
    return device.slice(row.slice)


def _crowd_ms(sweep: Sweep, alone_ms: float, point: Point, processes: int) -> float:
    slow = sweep.slow(point.compute, point.bandwidth)
    return crowded_ms(
        alone_ms,
        processes,
        host_ms=min(sweep.host_item_ms * point.batch, alone_ms),
        tail_ms=sweep.tail_on(point.compute, point.bandwidth),
        work_ms=sweep.item_ms * point.batch * slow,
    )


def _energy(part: Device, latency_ms: Estimate, *, saturation: float, processes: int) -> Estimate:
    """Idle power of the part, and dynamic power as far as it is full, for one of the batches that
    run at once (sharing notes, section 6: P = idle + f u dP)."""
    span_w = part.max_power_w - part.idle_power_w
    value = (part.idle_power_w + span_w * saturation) * latency_ms.value * 1e-3 / processes
    low = math.hypot(math.log(latency_ms.value / latency_ms.low), math.log(ENERGY_SPREAD))
    high = math.hypot(math.log(latency_ms.high / latency_ms.value), math.log(ENERGY_SPREAD))
    return Estimate(value, value / math.exp(low), value * math.exp(high), "idle and dynamic power")


def _on_line(known: Sequence[tuple[int, float]], batch: int) -> float:
    """Return bytes at `batch` on the line through the known ones next to it."""
    if len(known) == 1:
        return known[0][1]
    below = [pair for pair in known if pair[0] <= batch][-1:] or [known[0]]
    place = min(known.index(below[0]), len(known) - 2)
    (x0, y0), (x1, y1) = known[place], known[place + 1]
    return max(y0 + (y1 - y0) * (batch - x0) / (x1 - x0), 0.0)


def _span(batches: Sequence[int]) -> str:
    return str(batches[0]) if len(batches) == 1 else f"{batches[0]} to {batches[-1]}"
