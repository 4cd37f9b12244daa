"""`collocate`: two models on one GPU -> what each loses under MIG, MPS and time-slicing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

from slicewise.core.cost import Prediction
from slicewise.core.device import Device
from slicewise.core.document import ModelInfo
from slicewise.core.errors import DeviceError, PredictionError, UsageError
from slicewise.core.graph import Graph
from slicewise.core.notes import Note, unique_notes
from slicewise.flows.load import ModelLike, load
from slicewise.flows.predict import (
    DeviceLike,
    PredictOptions,
    describe,
    predict_graph,
    target_named,
)
from slicewise.slices.collocate import (
    Sharing,
    Side,
    advise,
    best_split,
    legal_pairs,
    sharing,
    side,
)

PERCENTAGES = tuple(range(10, 100, 10))
_TWO = 2


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A mechanism that the card does not have, or under which no two parts stand together."""

    mechanism: str
    reason: str


@dataclass(frozen=True, slots=True)
class CollocateResult:
    """Two models on one GPU: the best split of each mechanism, and the mechanism to take.

    `alone` are the predictions on the whole card. `sharings` stand in the order mig, mps,
    time-slicing; `recommended` is one of them, None where memory does not hold both.

    >>> import slicewise
    >>> made = slicewise.collocate([model, model], device="a100-sxm4-80gb", batches=[8, 1])
    >>> [each.mechanism for each in made.sharings], made.recommended in made.sharings
    (['mig', 'mps', 'time-slicing'], True)
    """

    models: tuple[ModelInfo, ModelInfo]
    device: Device
    alone: tuple[Prediction, Prediction]
    sharings: tuple[Sharing, ...]
    recommended: Sharing | None
    reason: str
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[Note, ...] = ()


def collocate(
    models: Sequence[ModelLike],
    *,
    device: DeviceLike | None = None,
    batches: Sequence[SupportsIndex | None] = (None,),
    options: PredictOptions | None = None,
    progress: Callable[[str], None] | None = None,
) -> CollocateResult:
    """Return how two models on one GPU slow each other down, by mechanism, and what to take.

    Under MIG every legal pair of slices is tried, under MPS every split of 100 % in steps of
    10 %, and time-slicing gives each the whole card by turns; of each mechanism the split with
    the least worst slow-down is kept. A slow-down is the latency beside the other model over that
    alone on the whole card. `batches` are one for each model, or one for both. `UsageError` for
    other than two models, `DeviceError` for no GPU or a part of one.

    >>> made = collocate([model, model], device="a100-sxm4-80gb", batches=[8, 1])
    >>> all(each.worst_slowdown >= 1 for each in made.sharings)
    True
    """
    asked = options or PredictOptions()
    if isinstance(models, str) or len(models) != _TWO:
        raise UsageError(f"collocate takes two models, given {len(list(models))}; name two")
    sizes = list(batches) or [None]
    if len(sizes) not in (1, _TWO):
        raise UsageError(
            f"{len(sizes)} batches are given for two models; give one for each, as 8,1, or one"
        )
    card = _card(device)
    graphs = _graphs(models, sizes * _TWO if len(sizes) == 1 else sizes, asked, progress)
    infos = [describe(graph) for graph in graphs]
    parts = [card, *_slices(card), *_shares(card)]
    made: list[dict[str | None, Prediction]] = []
    for graph in graphs:
        if progress is not None:
            progress(f"{graph.name} on {card.name}")
        predictions = predict_graph(graph, parts, asked)
        made.append({each.slice: each for each in predictions})
    sharings, left_out = _sharings(card, made[0], made[1])
    chosen, reason = advise(sharings)
    alone = made[0][None], made[1][None]
    notes = _notes((*alone, *(side.prediction for each in sharings for side in each.sides)))
    if asked.strict and notes:
        raise PredictionError(
            f"strict: {len(notes)} assumptions were made: {'; '.join(map(str, notes))}; leave"
            " strict out to accept"
        )
    return CollocateResult(
        (infos[0], infos[1]), card, alone, tuple(sharings), chosen, reason, tuple(left_out), notes
    )


def _card(given: DeviceLike | None) -> Device:
    card = target_named(given)
    if card.parent is not None:
        raise DeviceError(
            f"{card.name} is a part of a card, and collocate cuts a whole one in two; give"
            f" {card.whole.name}"
        )
    if card.kind != "gpu":
        raise DeviceError(
            f"{card.name} is no GPU, and neither MIG nor MPS shares it; give a GPU, as in --device"
            " a100-sxm4-80gb"
        )
    return card


def _graphs(
    models: Sequence[ModelLike],
    sizes: Sequence[SupportsIndex | None],
    options: PredictOptions,
    progress: Callable[[str], None] | None,
) -> list[Graph]:
    """Read both models. A dimension that is given need not occur in both, but in one it must."""
    graphs = []
    for model, size in zip(models, sizes, strict=True):
        if progress is not None:
            progress(f"reading {model}" if isinstance(model, str) else "reading a model")
        graphs.append(
            load(
                model,
                batch=size,
                dims=options.dims,
                inputs=options.inputs,
                batch_axes=options.batch_axes,
                optional_dims=frozenset(options.dims),
            )
        )
    unused = set(options.dims).difference(*(graph.binding.dims for graph in graphs))
    if unused:
        raise UsageError(
            f"neither model has a free dimension {', '.join(sorted(unused))}; leave it out"
        )
    return graphs


def _slices(card: Device) -> list[Device]:
    return [card.slice(profile.name) for profile in card.profiles if not profile.attributes]


def _shares(card: Device) -> list[Device]:
    if card.vendor not in ("NVIDIA", ""):
        return []
    return [card.share(percent=percent) for percent in PERCENTAGES]


_Made = dict[str | None, Prediction]


def _sharings(card: Device, first: _Made, second: _Made) -> tuple[list[Sharing], list[LeftOut]]:
    """Return the best split of each mechanism that the card has, and those that it has not."""
    found, left_out = [], []
    by_mig = list(_by_mig(card, first, second)) if card.profiles else []
    if by_mig:
        found.append(best_split(by_mig))
    else:
        why = "no two of its slices stand together" if card.profiles else "it has no MIG profiles"
        left_out.append(LeftOut("mig", f"{card.name}: {why}"))
    if _shares(card):
        splits = ((f"{percent}%", f"{100 - percent}%") for percent in PERCENTAGES)
        found.append(best_split([_shared(card, first, second, "mps", names) for names in splits]))
    else:
        left_out.append(LeftOut("mps", f"{card.name}: only NVIDIA GPUs have MPS"))
    found.append(_shared(card, first, second, "time-slicing", (None, None)))
    return found, left_out


def _by_mig(card: Device, first: _Made, second: _Made) -> list[Sharing]:
    found = []
    for one, other in legal_pairs(card):
        sides = _sides(first, second, "mig", (one.profile, other.profile))
        limits = [card.profile_named(each.profile).memory_bytes for each in (one, other)]
        found.append(sharing("mig", sides, limits=limits, placements=(one, other)))
    return found


def _shared(
    card: Device,
    first: _Made,
    second: _Made,
    mechanism: str,
    names: tuple[str | None, str | None],
) -> Sharing:
    sides = _sides(first, second, mechanism, names)
    return sharing(mechanism, sides, limits=[card.memory_bytes])


def _sides(
    first: _Made, second: _Made, mechanism: str, names: tuple[str | None, str | None]
) -> tuple[Side, Side]:
    from slicewise.predict.sharing import neighbours

    one, other = first[names[0]], second[names[1]]
    factors = neighbours(one, other, mechanism)
    return side(first[None], one, factors[0]), side(second[None], other, factors[1])


def _notes(predictions: Sequence[Prediction]) -> tuple[Note, ...]:
    """Return every note once; memory is told by the sharings."""
    return unique_notes(
        note for made in predictions for note in made.notes if note.code != "memory-exceeded"
    )
