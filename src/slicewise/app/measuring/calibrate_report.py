"""What `calibrate` learned, for people and for scripts."""

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slicewise.app.report import notes_lines
from slicewise.app.words import clean, counted
from slicewise.flows.calibrate import Calibration
from slicewise.predict.correction import Correction, Errors


def calibrate_document(found: Calibration) -> dict[str, object]:
    """Return `slicewise.calibrate/1`: the card with the errors of each correction."""
    return {
        "schema": "slicewise.calibrate/1",
        "card": msgspec.to_builtins(found.card),
        "path": found.path or None,
        "records_used": found.used,
        "records_found": found.found,
        "notes": msgspec.to_builtins(found.notes),
    }


def calibrate_report(found: Calibration) -> RenderableType:
    """Return the report of `slicewise calibrate`."""
    card = found.card
    best = max(card.corrections, key=lambda each: each.measurements)
    answer = Text.assemble(
        f"{card.device}: median error of latency ",
        f"{_percent(best.before.median)} before, ",
        (f"{_percent(best.after.median)} after", "bold green"),
        f" ({best.case}, {counted(best.measurements, 'case')} of {_families(best.families)})",
    )
    parts: list[RenderableType] = [answer]
    told = f"kept in {found.path}; predict uses it" if found.path else "not kept"
    parts.append(Text(f"{clean(card.name)}, {told}", style="dim"))
    parts.extend((Text(), _table(card.corrections), Text(_legend(card.corrections), style="dim")))
    parts.extend(notes_lines(found.notes))
    return Group(*parts)


def _table(corrections: tuple[Correction, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("runtime, precision, part", overflow="fold")
    for head in ("cases", "families", "latency: median", "MAPE", "memory: median", "fitted by"):
        table.add_column(head, justify="right", no_wrap=True)
    for each in corrections:
        memory = each.memory
        table.add_row(
            each.case,
            str(each.measurements),
            str(each.families),
            _change(each.before, each.after),
            f"{_percent(each.before.mean)} > {_percent(each.after.mean)}",
            "-" if memory is None else _change(memory.before, memory.after),
            each.level,
        )
    return table


def _families(count: int) -> str:
    return f"{count} famil{'y' if count == 1 else 'ies'}"


def _change(before: Errors, after: Errors) -> str:
    return f"{_percent(before.median)} > {_percent(after.median)}"


def _percent(part: float) -> str:
    return f"{part:.1%}" if part < 0.1 else f"{part:.0%}"


def _legend(corrections: tuple[Correction, ...]) -> str:
    held_out = "the family of each model was held out of the fit that its error is told of"
    if any(each.families < 3 for each in corrections):
        held_out += "; with few families nothing can be, and errors are those of the fit itself"
    return f"before > after; {held_out}. Parts: 50% is half of the cores, or one thread for each."
