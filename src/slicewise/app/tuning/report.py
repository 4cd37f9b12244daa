"""A tuning for people: how much faster, and where that lies; what changed; where time went."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slicewise.app.columns import Column, columns_for
from slicewise.app.report import notes_lines
from slicewise.app.tuning.words import (
    answer,
    artifact_words,
    by_weight,
    changed,
    curve_words,
    failed,
    failures_words,
    how_lines,
    is_all_known,
    is_good,
    knee_words,
    of_whole,
    outlook_words,
    phases_words,
    spark,
    tried_words,
    unchanged,
    workload_name,
)
from slicewise.app.words import clean, interval
from slicewise.core.cost import Estimate
from slicewise.core.units import format_number
from slicewise.flows.tuning.result import ShareChoice, TunedWorkload, TuneResult

MOST_ROWS = 12


def tune_report(made: TuneResult, *, width: int) -> RenderableType:
    """Return the report of `slicewise tune`, for a terminal of `width` columns."""
    head, middle, tail = answer(made)
    parts: list[RenderableType] = [
        Text.assemble(head, (middle, "bold green" if is_good(made) else "bold yellow"), tail)
    ]
    if told := artifact_words(made):
        parts.append(Text(told))
    parts.extend(Text(f"  {line}") for line in how_lines(made))
    parts += [*_settings(made), *_operators(made, width), *_time(made)]
    if made.choice is not None:
        parts += _choice(made.choice)
    return Group(*parts, *notes_lines(made.notes))


def _settings(made: TuneResult) -> list[RenderableType]:
    rows = changed(made)
    stayed = unchanged(made)
    told: list[RenderableType] = [Text(f"Unchanged: {stayed}.", style="dim")] if stayed else []
    if not rows:
        return [Text(), *told] if told else []
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("setting", "before", "after"):
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return [Text(), table, *told]


def _default(each: TunedWorkload) -> str:
    default = None if each.tuned is None else each.tuned.default_ms
    return "-" if default is None else format_number(default)


def _tuned(each: TunedWorkload) -> str:
    return "-" if each.tuned is None else format_number(each.tuned.latency_ms.value)


def _interval(each: TunedWorkload) -> str:
    return "-" if each.tuned is None else interval(each.tuned.latency_ms)


def _gain(each: TunedWorkload) -> str:
    return "-" if each.gain is None else format_number(each.gain)


def _trials(each: TunedWorkload) -> str:
    is_stored = each.tuned is not None and each.tuned.is_from_store
    return "stored" if is_stored and not each.trials else f"{each.trials:,}"


_COLUMNS: tuple[Column[TunedWorkload], ...] = (
    Column("count", 3, lambda each: f"{each.count:,}"),
    Column("default ms", 1, _default),
    Column("tuned ms", 0, _tuned),
    Column("90 % interval", 2, _interval),
    Column("gain", 0, _gain),
    Column("trials", 1, _trials),
    Column("failed", 2, lambda each: f"{failed(each):,}"),
)


def _operators(made: TuneResult, width: int) -> list[RenderableType]:
    """What each operator gained, the heaviest first, and how many candidates failed how."""
    ranked = by_weight(made)
    shown = ranked[:MOST_ROWS]
    if not shown:
        return []
    names = [workload_name(each) for each in shown]
    room = width - min(max(map(len, names)), width // 2) - 2
    columns = columns_for(_COLUMNS, shown, room=room)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("workload", overflow="fold")
    for column in columns:
        table.add_column(column.head, justify="right", no_wrap=True)
    for name, each in zip(names, shown, strict=True):
        table.add_row(name, *(column.cell(each) for column in columns))
    told = [f"{len(ranked) - len(shown)} more; --json has all."] if len(ranked) > MOST_ROWS else []
    told += [tried_words(made), failures_words(made)]
    if len(ranked) > 1:
        told.append("Latencies are those of one of count; gain: default / tuned.")
    if len(columns) < len(_COLUMNS):
        told.append("A wider terminal shows more.")
    return [Text(), table, Text(" ".join(filter(None, told)), style="dim")]


def _time(made: TuneResult) -> list[RenderableType]:
    """Where the time went, the curve, and what more of it would bring."""
    lines: list[RenderableType] = [Text(), Text(f"Time: {phases_words(made)}")]
    drawn = "" if is_all_known(made) else spark(made.curve)
    if drawn:
        lines.append(Text.assemble("Curve: ", (drawn, "cyan"), f" {curve_words(made.curve)}"))
    if told := outlook_words(made.outlook):
        lines.append(Text(told))
    return lines


def _estimate(estimate: Estimate | None) -> tuple[str, str]:
    if estimate is None:
        return "-", "-"
    return format_number(estimate.value), interval(estimate)


def _choice(choice: ShareChoice) -> list[RenderableType]:
    """The sweep over shares, the knee marked."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("  share", no_wrap=True)
    for head in ("predicted ms", "90 %", "x of largest", "measured ms", "90 %"):
        table.add_column(head, justify="right", no_wrap=True)
    for point in choice.points:
        mark = "*" if point.percent == choice.chosen_percent else " "
        cells: Sequence[str] = (
            *_estimate(point.predicted_ms),
            of_whole(choice, point.percent),
            *_estimate(point.measured_ms),
        )
        table.add_row(f"{mark} {clean(f'{point.percent:g}')} %", *cells)
    return [Text(), Text(knee_words(choice)), table]
