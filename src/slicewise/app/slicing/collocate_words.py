"""Words that tell of two models on one card. Formats only."""

from slicewise.app.words import clean
from slicewise.core.units import format_ms, format_number
from slicewise.flows.collocate import CollocateResult
from slicewise.slices.collocate import Sharing, Side

WORDS = {"mig": "MIG", "mps": "MPS", "time-slicing": "time-slicing"}


def names(made: CollocateResult) -> tuple[str, str]:
    """Return what the two models are called, told apart where both have one name."""
    one, other = (clean(each.name) for each in made.models)
    return (one, other) if one != other else (f"{one} (1)", f"{other} (2)")


def subject(made: CollocateResult) -> str:
    """Return 'resnet50, batch 8, and bert, batch 1, on a100-sxm4-80gb'."""
    told = [
        f"{name}, batch {alone.batch}" for name, alone in zip(names(made), made.alone, strict=True)
    ]
    return f"{told[0]}, and {told[1]}, on {clean(made.device.name)}"


def split(each: Sharing) -> str:
    """Return '4g.40gb + 3g.40gb', '60% + 40%' or 'the card by turns'."""
    parts = [side.prediction.slice for side in each.sides]
    return " + ".join(clean(part) for part in parts if part) or "the card by turns"


def answer(made: CollocateResult) -> tuple[str, str, str]:
    """Return the answer in three pieces; the middle one is the mechanism to take."""
    head = f"{subject(made)}: "
    chosen = made.recommended
    if chosen is None:
        return head, "they do not fit together", f" ({made.reason})."
    return head, f"{WORDS[chosen.mechanism]}, {split(chosen)}", f": {made.reason}."


def slowdown(each: Side) -> str:
    """Return '1.39 (1.03 to 1.88)'."""
    found = each.slowdown
    return (
        f"{format_number(found.value)} ({format_number(found.low)} to {format_number(found.high)})"
    )


def latency(each: Side) -> str:
    """Return '7.05 (2.83 to 38.4) ms', all in the unit that reads best for the first."""
    found = each.latency_ms
    unit = format_ms(found.value).partition(" ")[2]
    in_unit = {"us": 1e3, "ms": 1.0, "s": 1e-3}[unit]
    value, low, high = (
        format_number(part * in_unit) for part in (found.value, found.low, found.high)
    )
    return f"{value} ({low} to {high}) {unit}"


def data(each: Sharing) -> str:
    """Return what stands behind the figures of a mechanism."""
    told = (
        []
        if all(side.prediction.slice is None for side in each.sides)
        else ["each part by the slice rule"]
    )
    told += dict.fromkeys(side.factor.source for side in each.sides if side.factor.source)
    return "; ".join(map(clean, told)) or "-"
