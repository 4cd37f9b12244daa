"""What `fit` gives back: every part of a card judged, the one recommended, and what else to do."""

from dataclasses import dataclass

from slicewise.core.device import Device
from slicewise.core.display import as_html
from slicewise.core.document import ModelInfo
from slicewise.core.notes import Note
from slicewise.core.packing import Fit, Target
from slicewise.core.ties import least
from slicewise.slices.fit import holds, next_larger, part_of_card


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Another card of the catalogue that meets the target, and the smallest part of it that does.

    `fit` is that part; `is_slice` False where only the whole card does, or where it has no slices.
    """

    device: Device
    fit: Fit


@dataclass(frozen=True, slots=True)
class LargestBatch:
    """The largest batch that keeps the target on one part of a card.

    `fit` is the judgement at that batch, None where not even batch 1 keeps it; then `limit` is
    the reason why not, else why the next larger batch does not.
    """

    part: str | None
    batch: int
    fit: Fit | None
    limit: str


@dataclass(frozen=True, slots=True)
class FitResult:
    """One model at one batch on every part of one card, the smallest part first.

    `recommended` is one of `fits`, None where nothing fits: then `elsewhere` are other cards of
    the catalogue that would do. `mechanism` is 'mig' (slices) or 'mps' (percentages). `target`
    holds the safety of predicted figures; measured ones have their own (`Fit.safety`).

    >>> import slicewise
    >>> made = slicewise.fit(model, device="a100-sxm4-80gb", batch=8, latency_ms=20)
    >>> made.recommended.prediction.slice, made.recommended.fits, len(made.fits)
    ('2g.20gb', True, 8)
    """

    model: ModelInfo
    device: Device
    batch: int
    target: Target
    mechanism: str
    processes: int
    fits: tuple[Fit, ...]
    recommended: Fit | None
    elsewhere: tuple[Elsewhere, ...] = ()
    largest: tuple[LargestBatch, ...] = ()
    notes: tuple[Note, ...] = ()
    is_measured: bool = False

    @property
    def next_larger(self) -> Fit | None:
        """The next larger part behind the one recommended, None where there is none."""
        return None if self.recommended is None else next_larger(self.fits, self.recommended)

    @property
    def whole(self) -> Fit:
        """The judgement of the whole card, un-sliced; of all its units where it is shared."""
        return self.fits[-1]

    @property
    def best_possible(self) -> Fit:
        """The quickest of the parts that have the memory, or of all where none has."""
        held = [fit for fit in self.fits if holds(fit, self.device)] or self.fits
        return least(held, lambda fit: fit.prediction.latency_ms.value)

    @property
    def has_target(self) -> bool:
        """True where a latency or a rate was asked for."""
        return self.target.latency_ms is not None or self.target.throughput_per_s is not None

    def part_of_card(self, fit: Fit) -> float:
        """Return the fraction of the card that a part takes, by compute or memory slots."""
        return part_of_card(fit, self.device)

    def _repr_html_(self) -> str:
        """Return the card that notebooks show."""
        return as_html("fit", self)


@dataclass(frozen=True, slots=True)
class FitSet:
    """The same model and target on several cards, in the order asked.

    >>> import slicewise
    >>> options = slicewise.FitOptions(latency_ms=50)
    >>> cards = ["a30", "h100-sxm5-80gb"]
    >>> found = slicewise.fit_many(model, devices=cards, batch=1, options=options)
    >>> [made.device.name for made in found.results], found.best.device.name
    (['a30', 'h100-sxm5-80gb'], 'h100-sxm5-80gb')
    """

    results: tuple[FitResult, ...]

    @property
    def best(self) -> FitResult | None:
        """The result whose recommended part is the smallest part of its card; without a target
        the one with the highest rate of a card filled with it. Ties go to less energy for an
        item, then to the first. None where nothing fits anywhere. All cards count alike.
        """
        fitting = [made for made in self.results if made.recommended is not None]
        return min(fitting, key=_cost, default=None)

    def _repr_html_(self) -> str:
        """Return the card that notebooks show."""
        return as_html("fits", self)


def _cost(made: FitResult) -> tuple[float, float]:
    fit = made.recommended
    assert fit is not None
    prediction = fit.prediction
    part = made.part_of_card(fit)
    energy_j = prediction.energy_j.value / prediction.batch
    return (part if made.has_target else -prediction.throughput_per_s / part), energy_j
