"""Words that the report and the page of a packing share. Formats only."""

from collections.abc import Sequence
from dataclasses import dataclass

from slicewise.app.words import clean, counted, interval
from slicewise.core.packing import LatencyModel, Offer, PackObjective, PlacedGpu
from slicewise.core.ties import TIE
from slicewise.core.units import format_ms, format_number
from slicewise.flows.packing.options import USUAL_SAFETY
from slicewise.flows.packing.result import Outcome, PackResult, SliceUse
from slicewise.flows.packing.ways import MEASURED

_MOST = 8  # names that a sentence holds


@dataclass(frozen=True, slots=True)
class Row:
    """Slices of a workload that are alike: a row of a table. `first` bears the workload's name.

    `place` is the slice, with the kind of card before it where there are several.
    """

    outcome: Outcome
    offer: Offer | None
    place: str
    count: int
    rate_per_s: float
    is_first: bool


def rows(made: PackResult) -> list[Row]:
    """Return the rows of all workloads, alike slices of each in one."""
    found: list[Row] = []
    for outcome in made.outcomes:
        groups: dict[tuple[object, ...], list[SliceUse]] = {}
        for use in outcome.uses:
            serving = use.offer.serving
            key = (use.offer.device, use.offer.profile, serving.batch, serving.processes)
            groups.setdefault(key, []).append(use)
        if not groups:
            found.append(Row(outcome, None, "none", 0, 0.0, is_first=True))
        for i, uses in enumerate(groups.values()):
            rate = sum(use.placed.rate_per_s for use in uses)
            offer = uses[0].offer
            found.append(Row(outcome, offer, _place(made, offer), len(uses), rate, i == 0))
    return found


def _place(made: PackResult, offer: Offer) -> str:
    if len(made.problem.stock) == 1:
        return clean(offer.profile or "whole card")
    name = offer.device if offer.profile is None else f"{offer.device}/{offer.profile}"
    return clean(name)


def card_name(made: PackResult, gpu: PlacedGpu) -> str:
    """Return '#0', with the kind of card before it where there are several."""
    kind = "" if len(made.problem.stock) == 1 else f"{clean(gpu.device)} "
    return f"{kind}#{gpu.index}"


def subject(made: PackResult) -> str:
    """Return '3 workloads on a100-sxm4-80gb'."""
    kinds = ", ".join(clean(each.device.name) for each in made.problem.stock)
    return f"{counted(len(made.served), 'workload')} on {kinds}"


def cards_used(made: PackResult) -> str:
    """Return '2 GPUs'."""
    return counted(made.packing.gpus_used, "GPU")


def kinds_used(made: PackResult) -> str:
    """Return ' (2 x a100, 1 x h100)' where there are several kinds of card, or ''."""
    used = [gpu.device for gpu in made.used]
    if len(made.problem.stock) < 2 or not used:
        return ""
    kinds = ", ".join(f"{used.count(name)} x {clean(name)}" for name in dict.fromkeys(used))
    return f" ({kinds})"


def proof(made: PackResult) -> str:
    """Return how good the packing is known to be."""
    packing = made.packing
    early = any(note.code == "search-interrupted" for note in packing.notes)
    tail = " (search ended early)" if early and not packing.is_optimal else ""
    if packing.unserved:
        return f"not everything is served{tail}"
    if packing.is_optimal:
        return "proven optimal"
    if packing.bound <= 0:
        return f"nothing is proven{tail}"
    least = made.lower_bound_gpus
    if least is not None and _is_counted(made):
        verb = "is" if least == 1 else "are"
        return f"at least {counted(least, 'GPU')} {verb} needed{tail}"
    above = 100 * (packing.value / packing.bound - 1)
    digits = f"{above:.2g}" if above < 99.5 else f"{above:,.0f}"
    return f"at most {digits} % above the least possible{tail}"


def _is_counted(made: PackResult) -> bool:
    return all(each.cost == 1 for each in made.problem.stock)


def objective(made: PackResult, value: float) -> str:
    """Return a value of the objective with its unit."""
    if made.problem.objective is PackObjective.ENERGY:
        return f"{format_number(value)} W"
    if _is_counted(made):
        return "1 GPU" if value == 1 else f"{value:.4g} GPUs"
    return f"cost {value:.6g}"


def bound_line(made: PackResult) -> str:
    """Return by what the packing was found and what bounds it."""
    packing = made.packing
    found = f"Found by {clean(packing.method)} in {packing.seconds:.1f} s, seed {packing.seed}."
    best = max(packing.bounds, key=lambda bound: bound.value, default=None)
    value = ""
    if made.problem.objective is PackObjective.ENERGY or not _is_counted(made):
        value = f"{objective(made, packing.value)} in all. "
        value = value[0].upper() + value[1:]
    if best is None:
        return f"{value}{found}"
    trust = "checked exactly" if best.is_exact else "the solver's word"
    return f"{value}Bound {objective(made, best.value)} ({clean(best.method)}, {trust}). {found}"


_MODELS = {
    LatencyModel.SERVICE: "a batch takes at most 0.45 of the target (--latency-model service)",
    LatencyModel.FILL: "filling a batch and the batch stay within the target"
    " (--latency-model fill)",
    LatencyModel.QUEUE: "filling, waiting and the batch stay within the target at the percentile"
    " (--latency-model queue)",
}


def rule_line(made: PackResult) -> str:
    """Return what counts against a target, and what is kept to spare."""
    safety = made.options.safety
    sources = {row.offer.serving.source for row in rows(made) if row.offer is not None}
    if safety == 0 or (safety is None and sources == {MEASURED}):
        spare = "nothing is kept to spare"
    elif safety is not None:
        spare = f"{100 * safety:.3g} % of latencies and rates are kept to spare"
    else:
        measured = ", nothing where they were measured" if MEASURED in sources else ""
        usual = f"{100 * USUAL_SAFETY:g} %"
        spare = f"{usual} of predicted latencies and rates are kept to spare{measured}"
    model = _MODELS[made.options.model]
    return f"{model[0].upper()}{model[1:]}; {spare}."


def doubt_line(made: PackResult) -> str:
    """Return which workloads miss their target at the high end of an interval, or ''."""
    names = list(
        dict.fromkeys(
            clean(row.outcome.spec.name)
            for row in rows(made)
            if row.offer is not None
            and row.offer.serving.service_ms.high > row.outcome.spec.latency_ms
        )
    )
    if not names:
        return ""
    shown = ", ".join(names[:_MOST])
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return (
        f"How sure: at the high end of its interval one batch alone is over the target of {shown}"
        f"{more}; measure a slice (profile:), or raise --safety."
    )


def change_lines(made: PackResult) -> list[str]:
    """Return what changed against the packing without the further workloads, and against what
    stands; empty where neither was given."""
    told = []
    if made.before is not None:
        more = made.packing.gpus_used - made.before.gpus_used
        what = f"{counted(abs(more), 'GPU')} {'more' if more > 0 else 'less'} than"
        what = f"{what if more else 'no GPU more than'} the"
        left = " and not everything is served" if made.packing.unserved else ""
        names = ", ".join(map(clean, made.added))
        told.append(f"With {names}: {what} {made.before.gpus_used} without{left}.")
    if made.problem.current:
        moves = made.packing.moves
        against = "the packing without" if made.before is not None else "the current layout"
        slices = counted(moves, "slice") if moves else "no slice"
        told.append(
            f"Against {against}: {slices} made, removed, or taken from a workload for another."
        )
    return told


def unserved_line(made: PackResult) -> str:
    """Return the workloads that no card is left for and what would do, as one sentence."""
    unserved = made.packing.unserved
    asked = {each.spec.name: each.spec.rate_per_s for each in made.outcomes}
    lacking = [
        f"{clean(each.workload)} lacks {_rate(each.rate_per_s)} of"
        f" {_rate(asked[each.workload])} requests/s"
        for each in unserved
    ]
    more = f" and {len(lacking) - _MOST} more" if len(lacking) > _MOST else ""
    told = f"{counted(len(lacking), 'workload')} {_are(lacking)} not served in full"
    reasons = dict.fromkeys(clean(each.reason) for each in unserved)
    return f"{told}, {', '.join(lacking[:_MOST])}{more}: {'; '.join(reasons)}"


def _rate(per_s: float) -> str:
    """Return '8,250', or three digits where it is small or vast."""
    return f"{per_s:,.0f}" if 100 <= per_s < 1e9 else format_number(per_s)


def _are(things: Sequence[object]) -> str:
    return "is" if len(things) == 1 else "are"


def left_over_lines(made: PackResult) -> list[str]:
    """Return what is free: on used cards, and how many cards are not used at all."""
    told = []
    free = [each for each in made.left_over if each.profiles]
    if made.largest_free:
        cards = counted(len(free), "used card")
        told.append(f"Largest free slice {clean(made.largest_free)}; {cards} {_have(free)} room.")
    elif made.used:
        told.append("No slice is free on the used cards.")
    spare = []
    for each in made.problem.stock:
        used = sum(gpu.device == each.device.name for gpu in made.used)
        if each.count is not None and each.count > used:
            spare.append(f"{each.count - used} of {each.count} {clean(each.device.name)}")
    if spare:
        told.append(f"Not used: {', '.join(spare)}.")
    return told


def _have(things: Sequence[object]) -> str:
    return "has" if len(things) == 1 else "have"


def head_room(outcome: Outcome) -> str:
    """Return the part by which a rate can grow: '+35 %'."""
    return f"{100 * outcome.head_room:+,.0f} %"


def growth_line(made: PackResult) -> str:
    """Return what the same slices would carry with the ways that carry most, or ''."""
    told = [
        f"{clean(each.spec.name)} {format_number(each.capacity_largest_batch_per_s)}/s"
        for each in made.outcomes
        if each.capacity_largest_batch_per_s > each.capacity_per_s * (1 + TIE)
    ]
    if not told:
        return ""
    more = f" and {counted(len(told) - _MOST, 'more workload')}" if len(told) > _MOST else ""
    return (
        "Each slice has the quickest batch that leaves a fifth of it free, if any does; with the"
        f" batch that carries most: {', '.join(told[:_MOST])}{more}."
    )


def simulated_cell(outcome: Outcome) -> str:
    """Return the simulated percentile, marked where it misses its target; '-' where not played."""
    played = outcome.simulated
    if played is None:
        return "-"
    return f"{format_number(played.latency_ms)}{'' if played.is_met else ' (missed)'}"


def service_cell(offer: Offer | None) -> str:
    """Return the time of a batch, ms."""
    return "-" if offer is None else format_number(offer.serving.service_ms.value)


def interval_cell(offer: Offer | None) -> str:
    """Return the interval of the time of a batch, 'measured' where that is what it is."""
    if offer is None:
        return "-"
    estimate = offer.serving.service_ms
    return "measured" if estimate.low == estimate.high else interval(estimate)


def target_words(outcome: Outcome) -> str:
    """Return '50.0 ms at 99 %'."""
    return f"{format_ms(outcome.spec.latency_ms)} at {outcome.spec.percentile:g} %"
