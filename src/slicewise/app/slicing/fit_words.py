"""Words that the report and the page of a fit share. Formats only."""

from slicewise.app.words import clean, counted
from slicewise.core.packing import Fit, Target
from slicewise.core.units import format_capacity, format_ms, format_number
from slicewise.flows.fitting.result import Elsewhere, FitResult, FitSet, LargestBatch
from slicewise.slices.fit import doubt, has_memory, slices_of, usable_bytes

_MOST_ELSEWHERE = 3


def subject(made: FitResult) -> str:
    """Return 'resnet50 on a100-sxm4-80gb, batch 8, 2 processes'."""
    crowd = f", {made.processes} processes in each part" if made.processes > 1 else ""
    return f"{clean(made.model.name)} on {clean(made.device.name)}, batch {made.batch}{crowd}"


def part(fit: Fit) -> str:
    """Return '2g.20gb', '40%' or 'whole card'."""
    return clean(fit.prediction.slice or "whole card")


def target_words(target: Target) -> str:
    """Return '20.0 ms and 500 items/s', '' where nothing is asked."""
    told = []
    if target.latency_ms is not None:
        told.append(format_ms(target.latency_ms))
    if target.throughput_per_s is not None:
        told.append(f"{format_number(target.throughput_per_s)} items/s")
    return " and ".join(told)


def kind(made: FitResult) -> str:
    """Return what the parts of the card are called."""
    return "share" if made.mechanism == "mps" else "slice"


def answer(made: FitResult) -> tuple[str, str, str]:
    """Return the answer in three pieces; the middle one is what is recommended."""
    head = f"{subject(made)}: "
    fit = made.recommended
    if fit is None:
        return head, "nothing fits", f"; {best_possible(made)}."
    prediction = fit.prediction
    latency = prediction.latency_ms
    figures = (
        f"{format_ms(latency.value)} ({format_ms(latency.low)} to {format_ms(latency.high)}),"
        f" {format_number(prediction.throughput_per_s)} items/s"
    )
    if not made.has_target:
        rate = f"{format_number(fit.per_slice_per_s)} items/s for each {per_slice(made)}"
        name = "the whole card" if prediction.slice is None else part(fit)
        return head, name, f" gives most for what it takes of the card, {rate}: {figures}."
    figures = f"{figures}; asked {target_words(made.target)}"
    if prediction.slice is None:
        return head, "the whole card", f", no {kind(made)} of it, fits: {figures}."
    return head, part(fit), f" is the smallest {kind(made)} that fits: {figures}."


def per_slice(made: FitResult) -> str:
    """Return what a rate for each slice is counted in."""
    if made.mechanism == "mps":
        return "tenth of the card"
    return f"slice (a card has {slices_of(made.device, is_shared=False)})"


def rate_head(made: FitResult) -> str:
    """Return the head of the column with the rate for each slice."""
    return "/10 %" if made.mechanism == "mps" else "/slice"


def best_possible(made: FitResult) -> str:
    """Return the best that the card can do, and what is wanting."""
    best = made.best_possible
    name = "the whole card" if best.prediction.slice is None else part(best)
    return f"best possible on {name}: {best.reason}"


def safety_words(made: FitResult) -> str:
    """Return what is kept to spare, as one sentence."""
    safeties = sorted({fit.safety for fit in made.fits})
    if safeties == [0.0]:
        return "Nothing is kept to spare: figures are taken at their word."
    told = f"{100 * safeties[-1]:.3g} % of latency, rate and memory are kept to spare"
    if len(safeties) > 1:
        return f"{told} where they are predicted, nothing where they were measured."
    return f"{told}."


def next_words(made: FitResult) -> str:
    """Return the next larger part with its figures, as one sentence; '' where there is none."""
    larger = made.next_larger
    if larger is None:
        return ""
    figures = format_ms(larger.prediction.latency_ms.value)
    return (
        f"Next larger: {part(larger)}, {figures}{'' if larger.fits else ', which does not fit'}."
    )


def sureness(made: FitResult) -> str:
    """Return what the intervals say against the one recommended, as one sentence, or ''."""
    fit = made.recommended
    if fit is None:
        return ""
    doubts = doubt(fit, made.target, made.device)
    return f"How sure: {doubts}." if doubts else ""


def whole_words(made: FitResult) -> str:
    """Return the largest slice against the un-sliced card, as one sentence; '' for shares."""
    if made.mechanism == "mps":
        return ""
    plain = [fit for fit in made.fits if fit.profile is not None and not fit.profile.attributes]
    if not plain:
        return ""
    largest, whole = plain[-1], made.whole
    assert largest.profile is not None
    units, all_units = largest.profile.compute_units, made.device.compute_units
    lost = f"slicing costs {all_units - units} of {all_units} units"
    if units == all_units:
        lost = "slicing costs no units"
    elif largest.profile.size < made.device.memory_slots:
        lost = f"{units} of {all_units} units"  # others may have the rest
    before, after = whole.prediction.latency_ms.value, largest.prediction.latency_ms.value
    return (
        f"{part(largest)} against the un-sliced card: {lost}, {format_ms(after)}"
        f" against {format_ms(before)}."
    )


def elsewhere_words(made: FitResult) -> str:
    """Return where it would fit, as one sentence; '' where that was not looked for."""
    if made.recommended is not None or made.is_measured:
        return ""
    if not made.elsewhere:
        return "No GPU of the catalogue meets this."
    named = [elsewhere(each) for each in made.elsewhere[:_MOST_ELSEWHERE]]
    more = len(made.elsewhere) - _MOST_ELSEWHERE
    tail = f", and {counted(more, 'more card')} (--json has all)" if more > 0 else ""
    return f"It would fit on {', '.join(named)}{tail}."


def elsewhere(each: Elsewhere) -> str:
    """Return 'h100-sxm5-80gb/4g.40gb (5.80 ms)'."""
    made = each.fit.prediction
    sign = "" if made.slice is None else "@" if made.slice.endswith("%") else "/"
    name = f"{each.device.name}{sign}{made.slice or ''}"
    return f"{clean(name)} ({format_ms(made.latency_ms.value)})"


def memory_cell(fit: Fit, made: FitResult) -> str:
    """Return '6.10 of 9.50 GiB' with the units that read best, '-' where it is not known."""
    usable = format_capacity(usable_bytes(fit.profile, made.device))
    if not has_memory(fit.prediction):
        return f"? of {usable}"
    return f"{format_capacity(fit.prediction.memory_bytes.value)} of {usable}"


def energy_cell(fit: Fit) -> str:
    """Return the energy of a batch in J, '-' where it is not known."""
    energy_j = fit.prediction.energy_j.value
    return format_number(energy_j) if energy_j > 0 else "-"


def sure_cell(fit: Fit) -> str:
    """Return the probability that target and memory hold, as '63 %'; no interval is sure of all.

    >>> from dataclasses import replace
    >>> import slicewise
    >>> one = slicewise.fit(model, device="a30").fits[0]
    >>> [sure_cell(replace(one, confidence=part)) for part in (0.631, 0.9999, 0.0)]
    ['63 %', '>99 %', '<1 %']
    """
    percent = 100 * fit.confidence
    return ">99 %" if percent >= 99.5 else "<1 %" if percent < 0.5 else f"{percent:.0f} %"


def same_as_plain(made: FitResult) -> dict[str, str]:
    """Return the plain profile of each one with attributes that has its figures: '1g.10gb+me'."""
    plain = {
        (profile.size, profile.compute_units, profile.memory_bytes): profile.name
        for profile in made.device.profiles
        if not profile.attributes
    }
    return {
        profile.name: plain[key]
        for profile in made.device.profiles
        if profile.attributes
        and (key := (profile.size, profile.compute_units, profile.memory_bytes)) in plain
    }


def shown(made: FitResult) -> list[Fit]:
    """Return the rows of a table: profiles that differ by engines alone stand in one."""
    same = same_as_plain(made)
    return [fit for fit in made.fits if fit.profile is None or fit.profile.name not in same]


def attributes_words(made: FitResult) -> str:
    """Return which profiles are left out of a table and why, as one sentence, or ''."""
    same = same_as_plain(made)
    if not same or made.mechanism == "mps":
        return ""
    names = ", ".join(f"{name} as {plain}" for name, plain in same.items())
    return f"With other engines and the same figures: {names}."


def largest_words(found: LargestBatch) -> str:
    """Return the largest batch of a part as one sentence."""
    name = clean(found.part or "the whole card")
    if found.fit is None:
        return f"No batch keeps the target on {name}: {found.limit}."
    latency = format_ms(found.fit.prediction.latency_ms.value)
    return f"Largest batch on {name}: {found.batch:,} ({latency}); one more: {found.limit}."


def largest_target(made: FitResult) -> str:
    """Return what the largest batches keep to: 'within 20.0 ms and the memory'."""
    if made.target.latency_ms is None:
        return "within the memory"
    return f"within {format_ms(made.target.latency_ms)} and the memory"


def best_words(found: FitSet) -> tuple[str, str, str]:
    """Return the best place over several cards in three pieces, the place in the middle."""
    best = found.best
    cards = counted(len(found.results), "card")
    if best is None or best.recommended is None:
        return f"{clean(found.results[0].model.name)}: ", "nothing fits", f" on any of {cards}."
    fit = best.recommended
    name = f"{clean(best.device.name)}, {part(fit)}"
    taken = f"{100 * best.part_of_card(fit):.0f} % of its card"
    why = (
        f"takes the smallest part of its card, {taken}"
        if best.has_target
        else "gives the highest rate of a card filled with it"
    )
    figure = format_ms(fit.prediction.latency_ms.value)
    head = f"{clean(best.model.name)}, batch {best.batch}, best of {cards}: "
    return head, name, f" {why} ({figure}). Cards count alike, whatever they cost."
