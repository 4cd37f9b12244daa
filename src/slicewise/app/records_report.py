"""Records for people: the answer first, then the table; one record with all that is known of it.

Renders text with rich; computes nothing but a histogram of samples.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slicewise.app.columns import Column, columns_for
from slicewise.app.operator_times import operator_times
from slicewise.app.words import clean, counted, grouped_notes, interval, place, short_name
from slicewise.core.measurement import Environment, Measurement, Outcome
from slicewise.core.units import format_capacity, format_ms, format_number
from slicewise.flows.records import RecordList

if TYPE_CHECKING:
    from slicewise.store.records import Record
    from slicewise.store.transfer import Imported

_BLOCKS = "▁▂▃▄▅▆▇█"
_BINS = 32
_BAD_LINES = 10
_REASON = 120  # characters of a reason in the table; `show` has all of it


def spark_line(samples: Sequence[float], *, bins: int = _BINS) -> str:
    """Return a histogram of the samples as one line of blocks, from the least to the greatest.

    A bin that holds a sample is never blank.

    >>> spark_line([1.0, 1.0, 1.0, 2.0], bins=3)
    '█ ▃'
    """
    low, high = min(samples), max(samples)
    if high == low:
        return _BLOCKS[-1]
    counts = [0] * bins
    for sample in samples:
        counts[min(bins - 1, int((sample - low) / (high - low) * bins))] += 1
    most = max(counts)
    return "".join(
        _BLOCKS[-(-count * len(_BLOCKS) // most) - 1] if count else " " for count in counts
    )


_COLUMNS: "tuple[Column[Record], ...]" = (
    Column("id", 0, lambda record: str(record.id)),
    Column("model", 0, lambda record: short_name(record.measurement.model), numeric=False),
    Column("device", 0, lambda record: place(record.measurement), numeric=False),
    Column("runtime", 3, lambda record: clean(record.measurement.runtime), numeric=False),
    Column("precision", 5, lambda record: clean(record.measurement.precision), numeric=False),
    Column("batch", 1, lambda record: str(record.measurement.batch)),
    Column("threads", 6, lambda record: str(record.measurement.threads)),
    Column("latency ms", 0, lambda record: _latency(record.measurement)),
    Column("90 % interval", 4, lambda record: _interval(record.measurement)),
    Column("energy J", 8, lambda record: _number(record.measurement.energy_j)),
    Column("memory", 7, lambda record: _memory(record.measurement)),
    Column("campaign", 9, lambda record: short_name(record.campaign) or "-", numeric=False),
    Column("added (UTC)", 2, lambda record: _minute(record.added_at), numeric=False),
)


def records_report(found: RecordList, *, width: int) -> RenderableType:
    """Return the report of `slicewise records list`, for a terminal of `width` columns."""
    if not found.total:
        return Text(
            f"No record matches in {clean(found.store)}. `slicewise measure` adds records."
        )
    told = ", ".join(f"{count:,} {clean(outcome)}" for outcome, count in found.outcomes.items())
    parts: list[RenderableType] = [
        Text.assemble(
            (counted(found.total, "record"), "bold green"), f" in {clean(found.store)}: {told}."
        )
    ]
    rest = found.total - len(found.records)
    if found.records:
        columns = columns_for(_COLUMNS, found.records, room=width)
        parts.extend((Text(), _table(found.records, columns)))
        hidden = "" if len(columns) == len(_COLUMNS) else " A wider terminal shows more columns."
        parts.append(Text(f"Latency and energy are for the whole batch.{hidden}", style="dim"))
    if rest > 0:
        parts.append(Text(f"{rest:,} more are not shown; --limit N shows more.", style="dim"))
    parts.extend(_failures(found.records))
    return Group(*parts)


def _table(records: "Sequence[Record]", columns: "Sequence[Column[Record]]") -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        folds = column.head in ("model", "device")
        table.add_column(
            column.head,
            justify="right" if column.numeric else "left",
            no_wrap=not folds,
            overflow="fold",
            min_width=8 if folds else None,
        )
    for record in records:
        table.add_row(*(column.cell(record) for column in columns))
    return table


def _failures(records: "Sequence[Record]") -> list[RenderableType]:
    """One line for each record without a latency: its outcome and the reason."""
    failed = [record for record in records if record.measurement.outcome is not Outcome.OK]
    if not failed:
        return []
    lines: list[RenderableType] = [Text(), Text("Without a latency", style="bold")]
    for record in failed:
        taken = record.measurement
        reason = " ".join(clean(taken.error).split())
        cut = reason if len(reason) <= _REASON else f"{reason[: _REASON - 3]}..."
        lines.append(Text(f"  {record.id} {taken.outcome}{f': {cut}' if cut else ''}"))
    return lines


def _latency(taken: Measurement) -> str:
    if taken.latency_ms is None:
        return taken.outcome.value
    return format_number(taken.latency_ms.value)


def _interval(taken: Measurement) -> str:
    made = taken.latency_ms
    return "-" if made is None else interval(made)


def _number(value: float | None) -> str:
    return "-" if value is None else format_number(value)


def _memory(taken: Measurement) -> str:
    return "-" if taken.memory is None else format_capacity(taken.memory.peak_bytes)


def _minute(time: str) -> str:
    return clean(time[:16].replace("T", " "))


def record_report(record: "Record") -> RenderableType:
    """Return the report of `slicewise records show`."""
    taken = record.measurement
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for head, cell in (*_about(record), *_figures(taken), *_surroundings(taken.environment)):
        if cell:
            facts.add_row(head, clean(cell))
    parts: list[RenderableType] = [_answer(taken), Text(), facts]
    parts.extend(_samples(taken))
    if taken.nodes:
        title = Text("Operators, by the runtime's profiler", style="bold")
        parts.extend((Text(), title, operator_times(taken.nodes)))
    groups = grouped_notes(taken.notes)
    if groups:
        parts.extend((Text(), Text("Notes", style="bold")))
        parts.extend(
            Text(f"  {clean(group.code)}: {clean(told.text)}")
            for group in groups
            for told in group.texts
        )
    return Group(*parts)


def _answer(taken: Measurement) -> Text:
    who = (
        f"{clean(taken.model)} on {place(taken)}, batch {taken.batch}, {clean(taken.runtime)}"
        f" {clean(taken.precision)}: "
    )
    made = taken.latency_ms
    if made is None:
        reason = clean(" ".join(taken.error.split()))
        return Text.assemble(who, (taken.outcome.value, "yellow"), f". {reason}" if reason else "")
    return Text.assemble(
        who,
        (format_ms(made.value), "bold green"),
        f" ({format_ms(made.low)} to {format_ms(made.high)}),"
        f" {counted(len(taken.samples_ms), 'sample')}",
    )


def _about(record: "Record") -> Sequence[tuple[str, str]]:
    taken = record.measurement
    point = f", point {record.point}" if record.point else ""
    options = ", ".join(f"{name}={value}" for name, value in sorted(taken.options.items()))
    mechanism = f" ({taken.mechanism})" if taken.mechanism else ""
    return (
        ("record", f"{record.id}, added {record.added_at}"),
        ("campaign", f"{record.campaign}{point}" if record.campaign else ""),
        ("model", f"{taken.location}, digest {taken.digest[:16]}"),
        ("device", f"{place(taken)}{mechanism}, {counted(taken.threads, 'thread')}"),
        ("options", options),
        ("key", taken.key[:16]),
    )


def _figures(taken: Measurement) -> Sequence[tuple[str, str]]:
    memory = taken.memory
    held = ""
    if memory is not None:
        allocator = memory.allocator_bytes
        held = (
            f"{format_capacity(memory.peak_bytes)} at its peak ({memory.source}),"
            f" {format_capacity(memory.runtime_bytes)} for the runtime alone"
        )
        held += "" if allocator is None else f", {format_capacity(allocator)} by the allocator"
    energy = taken.energy_j
    used = taken.utilisation
    return (
        ("memory", held),
        ("energy", "" if energy is None else f"{format_number(energy)} J for the whole batch"),
        ("utilisation", "" if used is None else f"{used:.0%}"),
        ("taken", f"{taken.started_at}, {taken.seconds:.3g} s in all" if taken.started_at else ""),
    )


def _surroundings(found: Environment) -> Sequence[tuple[str, str]]:
    packages = ", ".join(f"{name} {version}" for name, version in sorted(found.packages.items()))
    state = [
        f"clock {found.clock_hz / 1e9:.3g} GHz" if found.clock_hz is not None else "",
        f"load {found.load:.3g}" if found.load is not None else "",
        f"busy loops got {found.core_share:.0%} of the cores"
        if found.core_share is not None
        else "",
        f"waited {found.waited:.1%} of the time" if found.waited is not None else "",
    ]
    python = f"Python {found.python}" if found.python else ""
    return (
        ("processor", ", ".join(filter(None, (found.processor, found.driver)))),
        ("cores", " ".join(map(str, found.cores))),
        ("system", ", ".join(filter(None, (found.system, python)))),
        ("packages", packages),
        ("state", ", ".join(filter(None, state))),
    )


def _samples(taken: Measurement) -> list[RenderableType]:
    if not taken.samples_ms:
        return []
    low, high = min(taken.samples_ms), max(taken.samples_ms)
    runs = f"; each is the mean of {taken.runs_per_sample} runs" * (taken.runs_per_sample > 1)
    return [
        Text(),
        Text(f"Samples{runs}", style="bold"),
        Text(f"  {format_ms(low)} |{spark_line(taken.samples_ms)}| {format_ms(high)}"),
    ]


def import_report(done: "Sequence[tuple[Path, Imported]]", store: str) -> RenderableType:
    """Return the report of `slicewise records import`."""
    added = sum(made.added for _, made in done)
    known = sum(made.known for _, made in done)
    parts: list[RenderableType] = [
        Text.assemble(
            (f"{counted(added, 'record')} added", "bold green"), f" to {clean(store)}",
            f"; {known:,} known already." if known else ".",
        )
    ]  # fmt: skip
    for path, made in done:
        parts.extend(
            Text(f"  {clean(str(path))}, line {bad.number}: {clean(bad.reason)}", style="yellow")
            for bad in made.bad[:_BAD_LINES]
        )
        if len(made.bad) > _BAD_LINES:
            rest = f"  {clean(str(path))}: {len(made.bad) - _BAD_LINES:,} more bad lines"
            parts.append(Text(f"{rest}; --json has all", style="yellow"))
    return Group(*parts)
