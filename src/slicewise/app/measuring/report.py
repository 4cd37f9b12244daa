"""Measurements for people: the answer first, then how sure it is, then the table."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slicewise.app.operator_times import operator_times
from slicewise.app.report import notes_lines
from slicewise.app.words import clean, counted, interval, place
from slicewise.core.measurement import Measurement
from slicewise.core.units import format_capacity, format_ms, format_number


def measure_report(measurements: Sequence[Measurement], *, kept: str) -> RenderableType:
    """Return the report of `slicewise measure`; `kept` says where the records are."""
    parts: list[RenderableType] = [_answer(measurements), Text(), _table(measurements)]
    failures = dict.fromkeys(made.error for made in measurements if made.latency_ms is None)
    is_any_made = any(made.latency_ms is not None for made in measurements)
    if not is_any_made:
        del failures[measurements[0].error]  # the answer has said it
    parts.extend(Text(f"failed: {clean(error)}") for error in failures)
    if is_any_made:
        parts.append(Text(_how(measurements), style="dim"))
    if kept:
        parts.append(Text(kept, style="dim"))
    for made in measurements:
        if made.nodes:
            title = f"batch {made.batch}: heaviest operators by the runtime's profiler"
            parts.extend((Text(), Text(title, style="bold"), operator_times(made.nodes)))
    parts.extend(notes_lines([note for made in measurements for note in made.notes]))
    return Group(*parts)


def where(made: Measurement) -> str:
    """Return the device, the part of it and the threads of a measurement."""
    threads = f", {counted(made.threads, 'thread')}" if made.threads else ""
    return f"{place(made)}{threads}"


def _answer(measurements: Sequence[Measurement]) -> Text:
    made = [each for each in measurements if each.latency_ms is not None]
    if not made:
        return Text.assemble(
            (f"{clean(measurements[0].model)}: nothing could be measured", "bold red"),
            f": {measurements[0].outcome}: {clean(measurements[0].error)}",
        )
    best = min(made, key=lambda each: _ms(each) / each.batch)
    if len(measurements) == 1:
        assert best.latency_ms is not None
        return Text.assemble(
            f"{clean(best.model)} on {where(best)}, batch {best.batch}: ",
            (format_ms(best.latency_ms.value), "bold green"),
            f" ({format_ms(best.latency_ms.low)} to {format_ms(best.latency_ms.high)}),"
            f" {format_number(best.batch / _ms(best) * 1e3)} items/s, measured",
        )
    lost = len(measurements) - len(made)
    return Text.assemble(
        "Highest throughput ",
        (f"{format_number(best.batch / _ms(best) * 1e3)} items/s", "bold green"),
        f" at batch {best.batch}, {format_ms(_ms(best))} for it, measured.",
        f" {counted(lost, 'measurement')} failed." if lost else "",
    )


def _ms(made: Measurement) -> float:
    assert made.latency_ms is not None
    return made.latency_ms.value


def _table(measurements: Sequence[Measurement]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("device", overflow="fold")
    for head in ("batch", "latency ms", "90 % interval", "items/s", "energy J", "memory",
                 "busy", "samples"):  # fmt: skip
        table.add_column(head, justify="right", no_wrap=True)
    for made in measurements:
        latency = made.latency_ms
        if latency is None:
            table.add_row(where(made), str(made.batch), "-", made.outcome.value)
            continue
        table.add_row(
            where(made),
            str(made.batch),
            format_number(latency.value),
            interval(latency),
            format_number(made.batch / latency.value * 1e3),
            "-" if made.energy_j is None else format_number(made.energy_j),
            "-" if made.memory is None else format_capacity(made.memory.peak_bytes),
            "-" if made.utilisation is None else f"{made.utilisation:.0%}",
            str(len(made.samples_ms)),
        )
    return table


def _how(measurements: Sequence[Measurement]) -> str:
    """Say how the figures were taken."""
    runs = sorted({f"{made.precision} with {made.runtime}" for made in measurements})
    return (
        f"{', '.join(runs)}. Median of the samples with its 90 % interval, each run in a process"
        " of its own after warm-up; latency and energy are for the whole batch, memory is the peak"
        " of the process."
    )
