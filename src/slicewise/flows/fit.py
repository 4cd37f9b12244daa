"""`fit`: one model on every slice of a card -> which meet the target, and the smallest of them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import SupportsIndex

from slicewise.core.cost import Prediction
from slicewise.core.device import Device, SliceProfile
from slicewise.core.errors import DeviceError, PredictionError, UsageError
from slicewise.core.notes import Note, unique_notes
from slicewise.core.packing import Fit, Target
from slicewise.core.plugins import did_you_mean
from slicewise.flows.devices import devices as all_devices
from slicewise.flows.figures import is_number, shown
from slicewise.flows.fitting.largest import largest_batches
from slicewise.flows.fitting.result import Elsewhere, FitResult, FitSet, LargestBatch
from slicewise.flows.fitting.sources import Source, measured_source, model_source
from slicewise.flows.load import ModelLike, positive
from slicewise.flows.predict import DeviceLike, PredictOptions, target_named
from slicewise.slices.fit import holds, judge, recommend

MECHANISMS = ("mig", "mps")
PERCENTAGES = tuple(range(10, 101, 10))
# Kept to spare of what is predicted; a latency measured on that very slice and batch needs none.
# On the open measurements 10 % bring the missed targets from 10.8 to 3.4 % of the choices
# (sharing notes, section 6).
SAFETY = 0.1
# Of a latency scaled from measurements on the same card: the errors are a third of those of a
# prediction from nothing, and 5 % miss 1 to 2 % of targets (benchmarks/results/smallest_slice.md).
SCALED_SAFETY = 0.05
_MOST_SAFETY = 10.0
_MOST_PROCESSES = 48  # clients of one MPS daemon (MPS guide, "Limitations")
_MPS_ALONE = Note(
    "share-alone",
    "a percentage limits compute units only: memory and bandwidth stay common, and neighbours slow"
    " each other down; judged as if the rest of the card stood still (see collocate)",
)


@dataclass(frozen=True, slots=True)
class FitOptions:
    """What is asked of a fit beside model, devices and batch.

    `latency_ms` is the longest time of a batch, `throughput_per_s` the least rate of all
    `processes` of a part together; None asks nothing. `safety` None keeps 10 % of predicted
    figures to spare, 5 % of those scaled from measurements on the card, and nothing of a latency
    that was measured on that very slice and batch. `item_bytes` is what one item of a measured
    file moves to and from the card within its latency, None where that is not known.
    `mechanism` 'mig' judges slices, 'mps' percentages. `largest_batch` also looks for the largest
    batch that keeps latency and memory, on the part called `on` or on all.

    >>> import slicewise
    >>> options = slicewise.FitOptions(latency_ms=5.0, mechanism="mps")
    >>> made = slicewise.fit_many(model, devices=["l4"], batch=8, options=options).results[0]
    >>> [fit.prediction.slice for fit in made.fits][:2]
    ['10%', '20%']
    """

    latency_ms: float | None = None
    throughput_per_s: float | None = None
    safety: float | None = None
    mechanism: str = "mig"
    processes: int = 1
    largest_batch: bool = False
    on: str | None = None
    predict: PredictOptions = field(default_factory=PredictOptions)
    item_bytes: float | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("latency_ms", self.latency_ms),
            ("throughput_per_s", self.throughput_per_s),
        ):
            if value is not None and not (is_number(value) and 0 < value < math.inf):
                raise UsageError(f"{name} {shown(value)} is no target; give a number over 0")
        if self.safety is not None and not (
            is_number(self.safety) and 0 <= self.safety <= _MOST_SAFETY
        ):
            raise UsageError(
                f"safety {shown(self.safety)} is impossible; give a part from 0 to"
                f" {_MOST_SAFETY:g}, as 0.1 for 10 % to spare"
            )
        if self.mechanism not in MECHANISMS:
            raise UsageError(
                f"mechanism {self.mechanism!r} is unknown; known are {', '.join(MECHANISMS)}"
                f"{did_you_mean(str(self.mechanism), MECHANISMS)}"
            )
        if positive("processes", self.processes) > _MOST_PROCESSES:
            raise UsageError(
                f"processes {self.processes} is more than one MPS daemon serves; give 1 to"
                f" {_MOST_PROCESSES}"
            )
        if self.item_bytes is not None and not (
            is_number(self.item_bytes) and 0 <= self.item_bytes < math.inf
        ):
            raise UsageError(f"item_bytes {shown(self.item_bytes)} is no size; give 0 or more")
        if self.on is not None and not isinstance(self.on, str):
            raise UsageError(f"on {self.on!r} is no name of a part; give one, as '2g.20gb'")
        if self.on is not None and not self.largest_batch:
            raise UsageError(
                f"on {self.on!r} says where the largest batch is looked for, which was not asked;"
                " ask for largest_batch too, or leave it out"
            )


def fit(
    model: ModelLike | None = None,
    *,
    measured: str | Path | None = None,
    device: DeviceLike | None = None,
    batch: SupportsIndex | None = None,
    latency_ms: float | None = None,
    throughput_per_s: float | None = None,
    safety: float | None = None,
    mechanism: str = "mig",
    processes: int = 1,
    largest_batch: bool = False,
    on: str | None = None,
    item_bytes: float | None = None,
    options: PredictOptions | None = None,
) -> FitResult:
    """Return every slice of `device` judged for a model at a batch, and the smallest that fits.

    `model` is what `load` takes; `measured` in its place is a CSV file of latencies measured on
    the card, or on slices of it (columns batch, latency_ms, and if wanted slice, memory_bytes,
    processes). Without a target the part with the best rate for each slice taken is recommended.
    The whole card, un-sliced, is judged beside its largest slice. `FitOptions` says the rest.
    Where nothing fits `recommended` is None and `elsewhere` names cards that would do.
    `DeviceError` for a device without slices; `PredictionError` under `options.strict` if anything
    was assumed.

    >>> made = fit(model, device="a100-sxm4-80gb", batch=8, latency_ms=20)
    >>> made.recommended.prediction.slice, made.next_larger.prediction.slice
    ('2g.20gb', '3g.40gb')
    >>> made.recommended.prediction.latency_ms.value <= 20 / 1.1
    True
    """
    asked = FitOptions(
        latency_ms, throughput_per_s, safety, mechanism, processes, largest_batch, on,
        options or PredictOptions(), item_bytes,
    )  # fmt: skip
    return fit_many(
        model, measured=measured, devices=[device], batch=batch, options=asked
    ).results[0]


def fit_many(
    model: ModelLike | None = None,
    *,
    measured: str | Path | None = None,
    devices: Sequence[DeviceLike | None],
    batch: SupportsIndex | None = None,
    options: FitOptions | None = None,
    progress: Callable[[str], None] | None = None,
) -> FitSet:
    """Return what `fit` does for each of several cards, and which of them is the best place.

    A card that is named twice is judged once. A measured file is of one card. `progress` is called
    with a few words before each card.

    >>> found = fit_many(model, devices=["a30", "a100-sxm4-80gb"], batch=8)
    >>> [made.recommended.prediction.slice for made in found.results]
    ['1g.6gb', '1g.10gb']
    """
    asked = options or FitOptions()
    listed: object = devices
    if isinstance(listed, str) or not isinstance(listed, Sequence) or not listed:
        raise UsageError(f"devices {devices!r} is no list of devices; give ['a100-sxm4-80gb']")
    cards: list[Device] = []
    for each in devices:
        card = _card(each, asked.mechanism)
        if card not in cards:
            cards.append(card)
    source = _source(model, measured, cards, batch, asked)
    results = []
    for card in cards:
        if progress is not None:
            progress(f"{source.model.name} on {card.name}")
        results.append(_fit_on(card, source, asked, progress))
    return FitSet(tuple(results))


def _card(given: DeviceLike | None, mechanism: str) -> Device:
    """Return the whole card that is asked for; `DeviceError` where it cannot be shared so."""
    card = target_named(given)
    if card.parent is not None:
        raise DeviceError(
            f"{card.name} is a part of a card, and fit judges all parts of one; give"
            f" {card.whole.name}, or ask predict about this part"
        )
    if card.kind != "gpu":
        raise DeviceError(
            f"{card.name} is no GPU, and neither MIG nor MPS shares it; give a GPU, as in --device"
            " a100-sxm4-80gb"
        )
    if mechanism == "mig" and not card.profiles:
        instead = "give a card with slices, as a100-sxm4-80gb"
        if _has_mps(card):
            instead = f"use --mechanism mps for percentages of it, or {instead}"
        raise DeviceError(f"{card.name} cannot be sliced (no MIG profiles); {instead}")
    if mechanism == "mps" and not _has_mps(card):
        raise DeviceError(
            f"{card.name} has no MPS ({card.vendor or 'unknown vendor'}): only NVIDIA GPUs share"
            " by percentage; give one of these"
        )
    return card


def _has_mps(card: Device) -> bool:
    return card.vendor in ("NVIDIA", "")  # '' is a user's own file that does not tell


def _source(
    model: ModelLike | None,
    measured: str | Path | None,
    cards: Sequence[Device],
    batch: SupportsIndex | None,
    options: FitOptions,
) -> Source:
    if (model is None) == (measured is None):
        what = "neither a model nor a measured file" if model is None else "both"
        raise UsageError(f"{what} given to fit; give a model, or a measured file in its place")
    if measured is None:
        if options.item_bytes is not None:
            raise UsageError(
                f"item_bytes {options.item_bytes:g} is that of a measured file; a model tells its"
                " own, leave it out"
            )
        assert model is not None
        return model_source(model, batch=batch, options=options.predict)
    if len(cards) > 1:
        raise UsageError(
            f"{str(measured)!r} was measured on one card, and {len(cards)} are given; give that"
            " card"
        )
    return measured_source(
        Path(measured), device=cards[0], batch=batch, options=options.predict,
        item_bytes=options.item_bytes,
    )  # fmt: skip


def parts_of(card: Device, mechanism: str) -> list[Device]:
    """Return what is judged: every slice and the whole card, or the shares in steps of 10 %."""
    if mechanism == "mps":
        return [card.share(percent=percent) for percent in PERCENTAGES]
    return [*(card.slice(profile.name) for profile in card.profiles), card]


def _fit_on(
    card: Device, source: Source, options: FitOptions, progress: Callable[[str], None] | None
) -> FitResult:
    target = Target(
        options.latency_ms,
        options.throughput_per_s,
        _usual(source) if options.safety is None else options.safety,
    )
    parts = parts_of(card, options.mechanism)

    def judged(batch: int, goal: Target) -> tuple[Fit, ...]:
        made = source.predict(parts, batch, processes=options.processes)
        safeties = [_safety(source, part, batch, options) for part in parts]
        return judge(_known(parts, made), goal, device=card, safeties=safeties)

    fits = judged(source.batch, target)
    chosen = recommend(fits, target)
    largest: tuple[LargestBatch, ...] = ()
    if options.largest_batch:
        largest = largest_batches(judged, parts, target, on=options.on, progress=progress)
    notes = _notes(fits, source, options)
    if options.predict.strict and notes:
        listed = "; ".join(map(str, notes))
        raise PredictionError(
            f"strict: {len(notes)} assumptions were made: {listed}; leave strict out to accept"
        )
    elsewhere: tuple[Elsewhere, ...] = ()
    if chosen is None and not source.is_measured:
        if progress is not None:
            progress("looking for a card that would do")
        elsewhere = _elsewhere(card, source, target, options, held=_any_holds(fits, card))
    return FitResult(
        model=source.model,
        device=card,
        batch=source.batch,
        target=target,
        mechanism=options.mechanism,
        processes=options.processes,
        fits=fits,
        recommended=chosen,
        elsewhere=elsewhere,
        largest=largest,
        notes=notes,
        is_measured=source.is_measured,
    )


def _known(
    parts: Sequence[Device], made: Sequence[Prediction | DeviceError]
) -> list[tuple[SliceProfile | None, Prediction]]:
    known: list[tuple[SliceProfile | None, Prediction]] = []
    for part, each in zip(parts, made, strict=True):
        if isinstance(each, DeviceError):
            raise each
        known.append((part.profile, each))
    return known


def _safety(source: Source, part: Device, batch: int, options: FitOptions) -> float:
    if options.safety is not None:
        return options.safety
    is_measured = source.has_measured(part, batch, processes=options.processes)
    return 0.0 if is_measured else _usual(source)


def _usual(source: Source) -> float:
    return SCALED_SAFETY if source.is_measured else SAFETY


def _notes(fits: Sequence[Fit], source: Source, options: FitOptions) -> tuple[Note, ...]:
    """Return every note once; what does not fit into memory is told by the judgements."""
    own = [_MPS_ALONE] if options.mechanism == "mps" else []
    told = (
        note for fit in fits for note in fit.prediction.notes if note.code != "memory-exceeded"
    )
    return unique_notes((*source.notes, *told, *own))


def _any_holds(fits: Sequence[Fit], card: Device) -> bool:
    return any(holds(fit, card) for fit in fits)


def _elsewhere(
    card: Device, source: Source, target: Target, options: FitOptions, *, held: bool
) -> tuple[Elsewhere, ...]:
    """Return other GPUs that meet the target: where memory was wanting the smallest memory first,
    else the slowest card first, as the one with the least too much.
    """
    others = [each for each in all_devices() if each.kind == "gpu" and each.name != card.name]
    whole = source.predict(others, source.batch, processes=options.processes)
    found: list[tuple[float, str, Elsewhere]] = []
    for other, made in zip(others, whole, strict=True):
        if isinstance(made, DeviceError):
            continue  # it has no arithmetic for this precision: no place to name
        if not judge([(None, made)], target, device=other)[0].fits:
            continue
        parts = parts_of(other, options.mechanism) if _can_be_cut(other, options) else [other]
        on_parts = source.predict(parts, source.batch, processes=options.processes)
        chosen = recommend(judge(_known(parts, on_parts), target, device=other), target)
        if chosen is None:
            continue
        rank = -made.latency_ms.value if held else float(other.memory_bytes)
        found.append((rank, other.name, Elsewhere(other, chosen)))
    return tuple(each for *_, each in sorted(found, key=lambda item: item[:2]))


def _can_be_cut(card: Device, options: FitOptions) -> bool:
    return _has_mps(card) if options.mechanism == "mps" else bool(card.profiles)
