"""The page of `slicewise fit --html`: the answer, the card, the target, head-room, every part."""

from collections.abc import Sequence

from slicewise.app.html.blocks import (
    Column,
    Fact,
    Section,
    facts,
    figure,
    page,
    sentence,
    table,
)
from slicewise.app.html.endings import notes_section, reproduce_section
from slicewise.app.html.markup import Content, Html, element, join
from slicewise.app.html.slots import gpu_slots, workload_classes
from slicewise.app.slicing.drawing import room_words
from slicewise.app.slicing.fit_card import strong_middle
from slicewise.app.slicing.fit_charts import latency_chart, memory_chart
from slicewise.app.slicing.fit_drawing import placed
from slicewise.app.slicing.fit_words import (
    answer,
    attributes_words,
    best_words,
    elsewhere,
    elsewhere_words,
    energy_cell,
    largest_target,
    memory_cell,
    next_words,
    part,
    per_slice,
    rate_head,
    safety_words,
    same_as_plain,
    shown,
    subject,
    sure_cell,
    sureness,
    target_words,
    whole_words,
)
from slicewise.app.words import clean, counted, interval, intervals_sentence
from slicewise.core.notes import unique_notes
from slicewise.core.units import format_capacity, format_ms, format_number
from slicewise.flows.fitting.result import FitResult, FitSet
from slicewise.slices.fit import has_memory, usable_bytes


def fit_page(found: FitSet, *, arguments: Sequence[str]) -> str:
    """Return the page of one card, or of several; `arguments` are the words that made it."""
    first = found.results[0]
    if len(found.results) == 1:
        sections = [*_sections(first, ""), *_endings(found, arguments)]
        return page(subject(first), sections, lead=_lead(first), kicker="Fit on slices")
    sections = [_cards(found)]
    for i, made in enumerate(found.results):
        sections += _sections(made, f"-{i}")
    sections += [*_endings(found, arguments)]
    title = f"{clean(first.model.name)}, batch {first.batch}, on {len(found.results)} cards"
    lead = element("p", *strong_middle(best_words(found)), class_="answer")
    return page(title, sections, lead=lead, kicker="Fit on slices")


def _lead(made: FitResult) -> Html:
    told = [sureness(made), next_words(made), safety_words(made), elsewhere_words(made)]
    under = " ".join(words for words in told if words)
    return join(
        (
            element("p", *strong_middle(answer(made)), class_="answer"),
            element("p", under, class_="under"),
            _facts(made),
        )
    )


def _facts(made: FitResult) -> Html:
    fit = made.best_possible if made.recommended is None else made.recommended
    prediction = fit.prediction
    target = made.target
    usable = usable_bytes(fit.profile, made.device)
    asked_ms = "" if target.latency_ms is None else f", asked {format_ms(target.latency_ms)}"
    asked_rate = (
        ""
        if target.throughput_per_s is None
        else (f"asked {format_number(target.throughput_per_s)}")
    )
    items = [
        Fact(
            f"Latency on {part(fit)}",
            format_ms(prediction.latency_ms.value),
            f"{interval(prediction.latency_ms)} ms{asked_ms}",
        ),
        Fact("Throughput", f"{format_number(prediction.throughput_per_s)} items/s", asked_rate),
    ]  # fmt: skip
    if has_memory(prediction):
        memory = prediction.memory_bytes
        below = f"of {format_capacity(usable)} usable, up to {format_capacity(memory.high)}"
        items.append(Fact("Memory", format_capacity(memory.value), below))
    taken = f"of the card, by SMs or memory, whichever is more; {sure_cell(fit)} sure"
    items.append(Fact("Takes", f"{100 * made.part_of_card(fit):.0f} %", taken))
    return facts(items)


def _sections(made: FitResult, suffix: str) -> list[Section]:
    """Return the sections of one card; `suffix` keeps their anchors apart."""
    several = f"{clean(made.device.name)}: " if suffix else ""
    body: list[Content] = []
    if suffix:
        body += [sentence(join(strong_middle(answer(made))))]
        told = [sureness(made), next_words(made), elsewhere_words(made)]
        body += [sentence(words, style="quiet") for words in told if words]
    body += _card(made)
    body.append(figure("Latency of every part", latency_chart(made), caption=whole_words(made)))
    memory = memory_chart(made)
    if memory is not None:
        body.append(figure("Memory of every part", memory, caption=_needs(made)))
    wanted = target_words(made.target)
    title = f"every part against {wanted}" if wanted else "every part of the card"
    title = f"{several}{title}" if several else _sentence(title)
    sections = [Section(f"parts{suffix}", title, join(body), "Parts of the card")]
    title = f"{several}figures and reasons" if several else "Figures and reasons"
    sections.append(Section(f"figures{suffix}", title, _table(made), "Figures"))
    return [*sections, *_largest(made, suffix), *_elsewhere(made, suffix)]


def _needs(made: FitResult) -> str:
    """Return what is needed, as one sentence; under the slice rule it is the same on all parts."""
    memory = made.fits[-1].prediction.memory_bytes
    told = f"Needs {format_capacity(memory.value)}, up to {format_capacity(memory.high)}."
    if made.mechanism == "mps":
        return f"{told} Every share sees the memory of the whole card."
    return f"{told} A slice can use less than its name says."


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}"


def _card(made: FitResult) -> list[Content]:
    gpu, chosen = placed(made), made.recommended
    if gpu is None or chosen is None:
        return []
    room = _sentence(room_words(made.device, gpu))
    caption = f"{room}."
    if made.part_of_card(made.fits[0]) <= 1 - made.part_of_card(chosen):
        caption = f"{room}: the slice stands where it leaves the largest profile free."
    styles = workload_classes([clean(made.model.name)])
    drawn = gpu_slots(made.device, gpu, styles=styles, heading=clean(made.device.name))
    return [figure("The slice in its card", drawn, caption=caption)]


def _table(made: FitResult) -> Html:
    heads = (
        "latency ms", "90 %", "items/s", rate_head(made), "energy J", "memory", "full", "sure",
    )  # fmt: skip
    columns = [Column("part"), Column("fits"), *(Column(head, numeric=True) for head in heads)]
    rows: list[list[Content]] = []
    for fit in made.fits:
        prediction = fit.prediction
        name = part(fit)
        rows.append(
            [
                element("strong", name) if fit is made.recommended else name,
                "yes" if fit.fits else "no",
                format_number(prediction.latency_ms.value),
                interval(prediction.latency_ms),
                format_number(prediction.throughput_per_s),
                format_number(fit.per_slice_per_s),
                energy_cell(fit),
                memory_cell(fit, made),
                f"{prediction.saturation:.0%}",
                sure_cell(fit),
            ]
        )
    rests = intervals_sentence(fit.prediction for fit in made.fits)
    if made.is_measured:
        rests = "Latencies follow from the measured rows."
    about = (
        f"{rate_head(made)}: items/s for each {per_slice(made)}. Full: saturation. Sure: chance"
        f" that target and memory hold, by the intervals. {rests} {attributes_words(made)}"
    )
    caption = f"Every part of {clean(made.device.name)}, the smallest first"
    reasons: list[list[Content]] = [
        [part(fit), "yes" if fit.fits else "no", clean(fit.reason)] for fit in shown(made)
    ]
    heads_of_reasons = [Column("part"), Column("fits"), Column("because")]
    return join(
        (
            table(columns, rows, caption=caption),
            sentence(about.strip(), style="quiet"),
            table(heads_of_reasons, reasons, caption="Why it fits, or not", sortable=False),
        )
    )


def _largest(made: FitResult, suffix: str) -> list[Section]:
    if not made.largest:
        return []
    same = same_as_plain(made)
    rows: list[list[Content]] = []
    for each in made.largest:
        if each.part in same:
            continue
        cells = ["-", "-", "-"]
        if each.fit is not None:
            prediction = each.fit.prediction
            figures = prediction.latency_ms.value, prediction.throughput_per_s
            cells = [*map(format_number, figures), memory_cell(each.fit, made)]
        name = clean(each.part or "whole card")
        rows.append([name, f"{each.batch:,}", *cells, clean(each.limit)])
    columns = [Column("part")]
    columns += [
        Column(head, numeric=True) for head in ("largest batch", "latency ms", "items/s", "memory")
    ]
    columns.append(Column("one more"))
    body = table(columns, rows, caption=f"Largest batch {largest_target(made)}")
    return [Section(f"largest{suffix}", f"Largest batch {largest_target(made)}", body, "Batches")]


def _elsewhere(made: FitResult, suffix: str) -> list[Section]:
    if not made.elsewhere:
        return []
    rows: list[list[Content]] = [
        [
            clean(each.device.name),
            part(each.fit),
            format_number(each.fit.prediction.latency_ms.value),
            format_number(each.fit.prediction.throughput_per_s),
            memory_cell_of(each.fit.prediction.memory_bytes.value),
            sure_cell(each.fit),
        ]
        for each in made.elsewhere
    ]
    columns = [Column("card"), Column("smallest part")]
    columns += [Column(head, numeric=True) for head in ("latency ms", "items/s", "memory", "sure")]
    count = counted(len(rows), "other card")
    title = f"{count} of the catalogue would do"
    nearest = f"Nearest: {elsewhere(made.elsewhere[0])}."
    body = join((table(columns, rows, caption="Where it would fit"), sentence(nearest)))
    return [Section(f"elsewhere{suffix}", title, body, "Elsewhere")]


def memory_cell_of(size_bytes: int) -> str:
    """Return a capacity, '-' where it is not known."""
    return format_capacity(size_bytes) if size_bytes > 0 else "-"


def _cards(found: FitSet) -> Section:
    rows: list[list[Content]] = []
    for made in found.results:
        fit = made.recommended
        shown_fit = made.best_possible if fit is None else fit
        prediction = shown_fit.prediction
        rows.append(
            [
                clean(made.device.name),
                "nothing fits" if fit is None else part(fit),
                "-" if fit is None else f"{100 * made.part_of_card(fit):.0f} %",
                format_number(prediction.latency_ms.value),
                format_number(prediction.throughput_per_s),
                energy_cell(shown_fit),
                sure_cell(shown_fit),
            ]
        )
    columns = [Column("card"), Column("smallest that fits")]
    heads = ("of the card", "latency ms", "items/s", "energy J", "sure")
    columns += [Column(head, numeric=True) for head in heads]
    body = table(
        columns, rows, caption="What is recommended on each card, or is the best possible"
    )
    return Section("cards", f"{len(rows)} cards side by side", body, "Cards")


def _endings(found: FitSet, arguments: Sequence[str]) -> list[Section]:
    model = found.results[0].model
    return [
        *notes_section(unique_notes(note for made in found.results for note in made.notes)),
        reproduce_section(arguments, name=model.name, source=model.source, digest=model.digest),
    ]
