"""A fit for people: the part to take and how sure that is, then every part in a table."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slicewise.app.columns import Column, columns_for
from slicewise.app.report import notes_lines
from slicewise.app.slicing.drawing import gpu_drawing, room_words, workload_styles
from slicewise.app.slicing.fit_drawing import placed
from slicewise.app.slicing.fit_words import (
    answer,
    attributes_words,
    best_words,
    elsewhere_words,
    energy_cell,
    kind,
    largest_target,
    largest_words,
    memory_cell,
    next_words,
    part,
    per_slice,
    rate_head,
    safety_words,
    same_as_plain,
    shown,
    sure_cell,
    sureness,
    whole_words,
)
from slicewise.app.words import clean, interval, intervals_sentence, runtime_words
from slicewise.core.packing import Fit
from slicewise.core.units import format_number
from slicewise.flows.fitting.result import FitResult, FitSet

_WHY = 48  # the least width of the column with the reasons


def fit_report(made: FitResult, *, width: int) -> RenderableType:
    """Return the report of one card, for a terminal of `width` columns."""
    return Group(*_parts(made, width), *notes_lines(made.notes))


def fits_report(found: FitSet, *, width: int) -> RenderableType:
    """Return the report of several cards: the best place, then each card."""
    head, middle, tail = best_words(found)
    parts: list[RenderableType] = [_told(head, middle, tail, is_good=found.best is not None)]
    for made in found.results:
        parts += [Text(), *_parts(made, width)]
    notes = [note for made in found.results for note in made.notes]
    return Group(*parts, *notes_lines(notes))


def _told(head: str, middle: str, tail: str, *, is_good: bool) -> Text:
    return Text.assemble(head, (middle, "bold green" if is_good else "bold yellow"), tail)


def _parts(made: FitResult, width: int) -> list[RenderableType]:
    head, middle, tail = answer(made)
    parts = _largest(made)
    parts.append(_told(head, middle, tail, is_good=made.recommended is not None))
    for words in (
        sureness(made),
        " ".join(filter(None, (next_words(made), safety_words(made)))),
        elsewhere_words(made),
        whole_words(made),
    ):
        if words:
            parts.append(Text(words))
    parts += _drawing(made)
    parts += [Text(), *_table(made, width)]
    return parts


def _largest(made: FitResult) -> list[RenderableType]:
    """The largest batches first, where they were asked for: they are the answer then."""
    if len(made.largest) < 2:
        return [Text(largest_words(each)) for each in made.largest]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(kind(made), no_wrap=True)
    for head in ("largest batch", "latency ms", "items/s", "memory"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("one more", overflow="fold")
    same = same_as_plain(made)
    for each in made.largest:
        if each.part in same:
            continue
        cells = ["-", "-", "-"]
        if each.fit is not None:
            prediction = each.fit.prediction
            figures = prediction.latency_ms.value, prediction.throughput_per_s
            cells = [*map(format_number, figures), memory_cell(each.fit, made)]
        name = clean(each.part or "whole card")
        table.add_row(name, f"{each.batch:,}", *cells, clean(each.limit))
    asked = largest_target(made)
    return [
        Text(f"Largest batch of {clean(made.model.name)} {asked}", style="bold"),
        table,
        Text(),
    ]


def _drawing(made: FitResult) -> list[RenderableType]:
    gpu = placed(made)
    if gpu is None:
        return []
    room = room_words(made.device, gpu)
    heading = f"{clean(made.device.name)} with it{f': {room}' if room else ''}"
    styles = workload_styles([clean(made.model.name)])
    return [Text(), gpu_drawing(made.device, gpu, styles=styles, heading=heading)]


def _columns(made: FitResult) -> tuple[Column[Fit], ...]:
    columns: list[Column[Fit]] = [
        Column("latency ms", 0, lambda fit: format_number(fit.prediction.latency_ms.value)),
        Column("90 % interval", 2, lambda fit: interval(fit.prediction.latency_ms)),
        Column("items/s", 1, lambda fit: format_number(fit.prediction.throughput_per_s)),
        Column(rate_head(made), 4, lambda fit: format_number(fit.per_slice_per_s)),
        Column("energy J", 5, energy_cell),
        Column("memory", 1, lambda fit: memory_cell(fit, made)),
        Column("full", 6, lambda fit: f"{fit.prediction.saturation:.0%}"),
        Column("sure", 3, sure_cell),
    ]
    if made.is_measured:
        columns.append(Column("from", 3, lambda fit: clean(fit.prediction.latency_ms.source)))
    return tuple(columns)


def _table(made: FitResult, width: int) -> list[RenderableType]:
    """Every part in a row, and what the columns mean."""
    fits = shown(made)
    names = [f"{'*' if fit is made.recommended else ' '} {part(fit)}" for fit in fits]
    has_reasons = not all(fit.fits for fit in fits)
    room = width - max(map(len, names)) - 6 - (_WHY if has_reasons else 0)
    columns = columns_for(_columns(made), fits, room=room)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"  {kind(made)}", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    for column in columns:
        table.add_column(column.head, justify="right", no_wrap=True)
    if has_reasons:
        table.add_column("why not", overflow="fold")
    for name, fit in zip(names, fits, strict=True):
        cells = [name, "yes" if fit.fits else "no", *(column.cell(fit) for column in columns)]
        if has_reasons:
            cells.append("" if fit.fits else clean(fit.reason))
        table.add_row(*cells, style=None if fit.fits else "dim")
    return [table, Text(_legend(made, [column.head for column in columns]), style="dim")]


def _legend(made: FitResult, heads: Sequence[str]) -> str:
    predictions = [fit.prediction for fit in made.fits]
    told = [f"{predictions[0].precision} with {runtime_words(predictions[0])}."]
    rests = intervals_sentence(predictions)
    if made.is_measured:
        told = [f"Measured: {clean(made.model.source)}."]
        rests = "What no row tells is scaled by the slice rule; nothing was run."
    if made.recommended is not None:
        told.append("*: take this.")
    meanings = {
        rate_head(made): f"items/s for each {per_slice(made)}",
        "full": "saturation, 100 % = no idle units",
        "sure": "chance that target and memory hold, by the intervals",
    }
    told += [f"{head}: {meaning}." for head, meaning in meanings.items() if head in heads]
    hidden = len(heads) < len(_columns(made))
    told += [rests, attributes_words(made), "A wider terminal shows more." if hidden else ""]
    return " ".join(filter(None, told))
