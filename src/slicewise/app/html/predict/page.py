"""The page of `slicewise predict --html`: the answer first, then what it is made of.

Puts sections in order; each chart has its own module. Computes nothing but shares and rankings.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from slicewise._version import __version__
from slicewise.app.html.blocks import Fact, Section, callout, facts, folded, page, sentence
from slicewise.app.html.markup import Content, Html, element, join
from slicewise.app.html.predict.batches import over_batch, throughput
from slicewise.app.html.predict.breakdown import (
    heaviest_kernels,
    roofline,
    share,
    time_by_kind,
    time_by_limit,
)
from slicewise.app.html.predict.comparison import comparison
from slicewise.app.html.predict.listing import (
    FEW_ROWS,
    MOST_ROWS,
    nodes_section,
    nodes_table,
    note_text,
    notes_section,
)
from slicewise.app.html.predict.memory import memory_against_capacity, memory_over_time
from slicewise.app.html.predict.sweep import Sweep
from slicewise.app.kernels import LaunchedKernel, launched_kernels
from slicewise.app.words import (
    NoteGroup,
    clean,
    counted,
    doubt_of_memory,
    eligible,
    grouped_notes,
    intervals_sentence,
    place,
    runtime_words,
    subject,
)
from slicewise.core.cost import Estimate, Prediction
from slicewise.core.device import Device
from slicewise.core.document import ModelInfo, PredictionSet
from slicewise.core.ties import least
from slicewise.core.units import format_capacity, format_ms, format_number, format_scaled

# Beyond these the page would grow slow: the table of all predictions still holds the rest.
MOST_DETAILS = 12

# Notes that change how far the answer can be trusted, the gravest first, and what to call them.
_MATTERS = {
    "memory-exceeded": "Memory:",
    "interval-uncovered": "Wide interval:",
    "work-incomplete": "Work is missing:",
    "shape-unknown": "Shapes are unknown:",
    "op-unknown": "Operators are unknown:",
    "trip-count-unknown": "A loop of unknown length:",
    "shape-upper-bound": "An upper bound:",
    "arithmetic-emulated": "A type that the device lacks:",
    "precision-substituted": "Another precision:",
    "tf32-default": "TF32:",
    "batch-assumed": "The batch:",
    "batch-lost": "The batch:",
    "device-probed": "No data sheet:",
}


@dataclass(frozen=True, slots=True)
class PageInput:
    """All that the page shows: predictions, the device of each, sweeps over the batch, and the
    words of the command line that made it (without the program's name)."""

    result: PredictionSet
    devices: tuple[Device, ...]
    sweeps: tuple[Sweep, ...]
    arguments: tuple[str, ...]


def predict_page(given: PageInput) -> str:
    """Return the whole page; every name in it is escaped, nothing is loaded."""
    predictions = given.result.predictions
    sections: list[Section] = []
    if len(predictions) > 1:
        sections.append(comparison(predictions))
    sections.append(_details(given) if len(predictions) > 1 else _single(given))
    sections.extend(_batch_sections(given))
    sections.extend(notes_section(predictions))
    if len(predictions) == 1:
        sections.append(nodes_section(predictions[0]))
    sections.append(_reproduce(given))
    title = subject(predictions[0]) if len(predictions) == 1 else _several_title(predictions)
    return page(title, sections, lead=_lead(given), kicker="Predicted inference cost")


def _several_title(predictions: Sequence[Prediction]) -> str:
    models = list(dict.fromkeys(clean(made.model) for made in predictions))
    places = list(dict.fromkeys(place(made) for made in predictions))
    batches = list(dict.fromkeys(str(made.batch) for made in predictions))
    where = ", ".join(places) if len(places) < 3 else f"{len(places)} devices"
    which = ", ".join(models) if len(models) < 4 else f"{len(models)} models"
    at = f", batch {', '.join(batches)}" if len(batches) < 6 else f", {len(batches)} batches"
    return f"{which} on {where}{at}"


def _lead(given: PageInput) -> Html:
    predictions = given.result.predictions
    if len(predictions) == 1:
        answer, below = _answer(predictions[0]), _figures(predictions[0], given.devices[0])
    else:
        answer, below = _answer_of_several(predictions), None
    parts: list[Content] = [answer, _models(given.result.models, predictions), below]
    groups = grouped_notes(note for made in predictions for note in made.notes)
    by_code = {group.code: group for group in groups}
    warnings = [
        callout(head, _first_of(by_code[code]))
        for code, head in _MATTERS.items()
        if code in by_code
    ]
    if warnings:
        parts.append(element("div", *warnings, class_="callouts"))
    return join(parts)


def _first_of(group: NoteGroup) -> str:
    more = len(group.texts) - 1
    return note_text(group.texts[0]) + (f" {more} more like it stand below." if more else "")


def _answer(made: Prediction) -> Html:
    latency = made.latency_ms
    return element(
        "p",
        clean(made.model),
        " takes ",
        element("strong", format_ms(latency.value)),
        " ",
        element("span", f"({_bounds_ms(latency)})", class_="interval"),
        f" for a batch of {made.batch} on {place(made)}, in {made.precision} with"
        f" {runtime_words(made)}.",
        class_="answer",
    )


def _answer_of_several(predictions: Sequence[Prediction]) -> Html:
    among, doubt = eligible(predictions), doubt_of_memory(predictions)
    quickest = least(among, lambda made: made.latency_ms.value)
    busiest = least(among, lambda made: -made.throughput_per_s)
    rate = element("strong", f"{format_number(busiest.throughput_per_s)} items/s")
    first = f": {_short_subject(quickest, predictions)}"
    return element(
        "p",
        "Lowest latency ",
        element("strong", format_ms(quickest.latency_ms.value)),
        " ",
        element("span", f"({_bounds_ms(quickest.latency_ms)})", class_="interval"),
        " and highest throughput " if busiest is quickest else f"{first}. Highest throughput ",
        rate,
        f": {_short_subject(busiest, predictions)}.",
        f" {doubt}." if doubt else "",
        class_="answer",
    )


def _short_subject(made: Prediction, among: Sequence[Prediction]) -> str:
    if len({other.model for other in among}) > 1:
        return subject(made)
    return f"{place(made)}, batch {made.batch}"


def _bounds_ms(latency: Estimate) -> str:
    return f"{format_ms(latency.low)} to {format_ms(latency.high)}"


def _models(models: Sequence[ModelInfo], predictions: Sequence[Prediction]) -> Html:
    sizes = "; ".join(
        (f"{clean(model.name)}: " if len(models) > 1 else "")
        + f"{format_scaled(model.parameters)} parameters"
        for model in models[:6]
    )
    runs = " / ".join(dict.fromkeys(f"{m.precision} with {runtime_words(m)}" for m in predictions))
    runs = f"{runs}. " if len(predictions) > 1 else ""
    return sentence(f"{sizes}. {runs}{intervals_sentence(predictions)}", style="under")


def _figures(made: Prediction, device: Device) -> Html:
    rate, memory = throughput(made), made.memory_bytes
    per_item = made.energy_j.value / made.batch
    used = share(memory.value, device.memory_bytes)
    return facts(
        (
            Fact(
                "Throughput",
                f"{format_number(rate.value)} items/s",
                f"{format_number(rate.low)} to {format_number(rate.high)}",
            ),
            Fact(
                "Memory",
                format_capacity(memory.value),
                f"{format_capacity(memory.low)} to {format_capacity(memory.high)};"
                f" {used} of {format_capacity(device.memory_bytes)}",
            ),
            Fact(
                "Energy",
                f"{format_number(made.energy_j.value)} J",
                f"{format_number(made.energy_j.low)} to {format_number(made.energy_j.high)};"
                f" {format_number(per_item)} J an item",
            ),
            Fact(
                "Of peak arithmetic",
                share(made.compute_utilisation, 1),
                f"saturation {share(made.saturation, 1)}",
            ),
            Fact(
                "Work",
                format_scaled(made.macs, "MAC"),
                f"{format_scaled(made.flops, 'flop')} for the batch",
            ),
        )
    )


def _panels(made: Prediction, device: Device) -> Html:
    """Return the charts of one prediction: where time goes, memory, roofline."""
    kernels: Sequence[LaunchedKernel] = launched_kernels(made)
    return join(
        (
            time_by_kind(made, kernels),
            time_by_limit(made, kernels),
            heaviest_kernels(made, kernels, device),
            memory_against_capacity(made, device),
            memory_over_time(made, kernels, device),
            roofline(made, kernels, device),
        )
    )


def _single(given: PageInput) -> Section:
    made, device = given.result.predictions[0], given.devices[0]
    launched = launched_kernels(made)
    title = (
        f"{counted(len(made.nodes), 'node')}, {counted(len(launched), 'kernel')},"
        f" {format_ms(made.latency_ms.value)}"
    )
    return Section("breakdown", title, _panels(made, device), about="Breakdown")


def _details(given: PageInput) -> Section:
    """Return one folded part for each prediction, the first open."""
    predictions = given.result.predictions
    rows_each = MOST_ROWS // max(1, min(len(predictions), MOST_DETAILS))
    parts: list[Content] = []
    for i, made in enumerate(predictions[:MOST_DETAILS]):
        inside = join(
            (
                _figures(made, given.devices[i]),
                _panels(made, given.devices[i]),
                nodes_table(made, most=MOST_ROWS if len(made.nodes) <= rows_each else FEW_ROWS),
            )
        )
        rate = f"{format_number(made.throughput_per_s)} items/s"
        head = join(
            (subject(made), element("span", f"{format_ms(made.latency_ms.value)}, {rate}"))
        )
        parts.append(folded(head, inside, is_open=i == 0, style="prediction"))
    if len(predictions) > MOST_DETAILS:
        parts.append(
            sentence(
                f"The first {MOST_DETAILS} of {len(predictions)} predictions are shown in full;"
                " the table above holds the figures of all, --json every node.",
                style="quiet",
            )
        )
    return Section("predictions", "Each prediction in full", join(parts), about="Breakdown")


def _batch_sections(given: PageInput) -> list[Section]:
    sections = []
    for i, sweep in enumerate(given.sweeps):
        own = [made for made in given.result.predictions if made.model == sweep.model]
        places = list(dict.fromkeys(place(made) for made in own))
        title = "Latency and throughput over the batch"
        if len(given.sweeps) > 1:
            title += f": {clean(sweep.model)}"
        body = over_batch(sweep, places)
        sections.append(Section(f"batch-{i + 1}", title, body, about="Batch"))
    return sections


def _reproduce(given: PageInput) -> Section:
    """Return the command line, the version, and the digests of the models."""
    items: list[Content] = [element("dt", "version"), element("dd", f"slicewise {__version__}")]
    for model in given.result.models:
        items.append(element("dt", clean(model.name)))
        digest = element("code", model.digest)
        items.append(element("dd", clean(model.source), ", digest ", digest))
    sources = dict.fromkeys(made.source for made in given.result.predictions)
    items += [element("dt", "predictor"), element("dd", ", ".join(sources))]
    body = join(
        (
            element("pre", element("code", _command(given.arguments))),
            element("dl", *items, class_="given"),
            sentence(
                "The same version, model and devices give the same figures. The digest is that of"
                " the computation: it changes with operators, shapes and types, not with names.",
                style="quiet",
            ),
        )
    )
    return Section("reproduce", "The command that made this page", body, about="Reproduce")


def _command(arguments: Sequence[str]) -> Html:
    """Return the command line, each option on a line of its own."""
    lines = ["slicewise"]
    for word in arguments:
        if word.startswith("--"):
            lines.append(word)
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return join(lines, Html(" \\\n  "))
