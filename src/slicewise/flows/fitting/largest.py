"""The largest batch that keeps a target, on one part of a card or on each."""

from collections.abc import Callable, Sequence
from functools import partial

from slicewise.core.device import Device
from slicewise.core.errors import DeviceError
from slicewise.core.packing import Fit, Target
from slicewise.core.plugins import did_you_mean
from slicewise.flows.fitting.result import LargestBatch
from slicewise.slices.fit import LARGEST_BATCH, fullness, largest_batch

Judged = Callable[[int, Target], tuple[Fit, ...]]


def largest_batches(
    judged: Judged,
    parts: Sequence[Device],
    target: Target,
    *,
    on: str | None,
    progress: Callable[[str], None] | None = None,
) -> tuple[LargestBatch, ...]:
    """Return the largest batch of the part called `on`, or of each part, the smallest part first.

    `judged` judges all parts at a batch; each batch is asked for once. A rate is no limit here: it
    grows with the batch. `DeviceError` for a part that the card does not have.
    """
    goal = Target(latency_ms=target.latency_ms, safety=target.safety)
    known: dict[int, dict[str | None, Fit]] = {}

    def at(batch: int) -> dict[str | None, Fit]:
        if batch not in known:
            if progress is not None:
                progress(f"batch {batch}")
            known[batch] = {fit.prediction.slice: fit for fit in judged(batch, goal)}
        return known[batch]

    names = list(at(1)) if on is None else [_named(on, parts)]
    made = []
    for name in names:
        size = largest_batch(partial(_full, at, name, goal, parts[0].whole))
        if size == 0:
            made.append(LargestBatch(name, 0, None, at(1)[name].reason))
            continue
        limit = f"no larger batch than {LARGEST_BATCH:,} is looked at"
        if size < LARGEST_BATCH:
            limit = at(size + 1)[name].reason
        made.append(LargestBatch(name, size, at(size)[name], limit))
    return tuple(made)


def _full(
    at: Callable[[int], dict[str | None, Fit]],
    name: str | None,
    goal: Target,
    card: Device,
    batch: int,
) -> float:
    return fullness(at(batch)[name], goal, card)


def _named(on: str, parts: Sequence[Device]) -> str | None:
    """Return the part called `on`, as '2g.20gb', '40%' or the card's own name for the whole."""
    card = parts[0].whole
    wanted = on.strip().lower()
    if wanted == card.name:
        return None
    names = [part.slice_name for part in parts if part.slice_name is not None]
    if wanted in names:
        return wanted
    if card.profiles and not wanted.endswith("%") and any(part.profile for part in parts):
        return card.profile_named(on).name
    raise DeviceError(
        f"{card.name} has no part {on!r} here; it has {', '.join(names)}"
        f"{did_you_mean(wanted, names)}"
    )
