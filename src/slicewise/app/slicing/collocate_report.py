"""Two models on one card for people: the mechanism to take and why, then all side by side."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slicewise.app.report import notes_lines
from slicewise.app.slicing.collocate_words import (
    WORDS,
    answer,
    data,
    latency,
    names,
    slowdown,
)
from slicewise.app.words import clean, intervals_sentence, runtime_words
from slicewise.core.units import format_ms, format_number
from slicewise.flows.collocate import CollocateResult


def collocate_report(made: CollocateResult) -> RenderableType:
    """Return the report of `slicewise collocate`."""
    head, middle, tail = answer(made)
    good = "bold green" if made.recommended is not None else "bold yellow"
    parts: list[RenderableType] = [Text.assemble(head, (middle, good), tail)]
    for name, alone in zip(names(made), made.alone, strict=True):
        parts.append(
            Text(
                f"Alone on the card {name} takes {format_ms(alone.latency_ms.value)}"
                f" ({format_number(alone.throughput_per_s)} items/s)."
            )
        )
    parts += [Text(), _table(made), Text(_legend(made), style="dim"), Text()]
    parts.append(Text("What the slow-downs rest on", style="bold"))
    parts += [Text(f"  {WORDS[each.mechanism]}: {data(each)}") for each in made.sharings]
    parts += [Text(f"  {WORDS[each.mechanism]}: left out, {clean(each.reason)}")
              for each in made.left_out]  # fmt: skip
    return Group(*parts, *notes_lines(made.notes))


def _table(made: CollocateResult) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("  mechanism", no_wrap=True)
    table.add_column("model", overflow="fold")
    table.add_column("part", no_wrap=True)
    for head in ("slow-down", "latency", "items/s", "gain"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("memory", overflow="fold")
    for each in made.sharings:
        mark = "*" if each is made.recommended else " "
        for i, (name, side) in enumerate(zip(names(made), each.sides, strict=True)):
            table.add_row(
                f"{mark} {WORDS[each.mechanism]}" if i == 0 else "",
                name,
                clean(side.prediction.slice or "whole, by turns"),
                slowdown(side),
                latency(side),
                format_number(side.throughput_per_s),
                format_number(each.gain) if i == 0 else "",
                f"{'' if each.fits else 'no: '}{clean(each.reason)}" if i == 0 else "",
                style=None if each.fits else "dim",
            )
    return table


def _legend(made: CollocateResult) -> str:
    runs = dict.fromkeys(f"{alone.precision} with {runtime_words(alone)}" for alone in made.alone)
    return (
        f"{', '.join(runs)}. * recommended; slow-down: latency beside the other over that alone on"
        " the whole card, with its 90 % interval; gain: both rates as parts of those alone, added"
        f" up; turns without overlap give 1. {intervals_sentence(made.alone)}"
    )
