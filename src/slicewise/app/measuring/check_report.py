"""`check` and `compare` for people and for scripts."""

from collections.abc import Sequence
from functools import partial

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slicewise.app.documents import Json, prediction_entry
from slicewise.app.measuring.documents import taken_entry
from slicewise.app.measuring.report import where
from slicewise.app.report import notes_lines
from slicewise.app.words import clean
from slicewise.core.comparison import Comparison
from slicewise.core.units import format_capacity, format_ms, format_number
from slicewise.flows.check import Check

_ROWS = 10


def check_document(found: Check) -> Json:
    """Return `slicewise.check/1`: both sides whole, and their differences."""
    prediction = prediction_entry(found.prediction)
    del prediction["nodes"]
    return {
        "schema": "slicewise.check/1",
        "prediction": prediction,
        "measurement": taken_entry(found.measurement),
        "relative_error": found.relative_error,
        "inside_interval": found.is_inside,
        "kinds": msgspec.to_builtins(found.kinds),
        "operators": msgspec.to_builtins(found.operators),
        "outside_ms": found.outside_ms,
        "notes": msgspec.to_builtins(found.notes),
    }


def check_report(found: Check) -> RenderableType:
    """Return the report of `slicewise check`."""
    predicted, made = found.prediction, found.measurement
    assert made.latency_ms is not None
    error = found.relative_error
    parts: list[RenderableType] = [
        Text.assemble(
            f"{clean(made.model)} on {where(made)}, batch {made.batch}: predicted ",
            (format_ms(predicted.latency_ms.value), "bold"),
            f" ({format_ms(predicted.latency_ms.low)} to {format_ms(predicted.latency_ms.high)}),"
            " measured ",
            (format_ms(made.latency_ms.value), "bold green"),
            f": {_off(error)}, {'inside' if found.is_inside else 'outside'} the interval",
        ),
        Text(f"predicted by {predicted.source}; {_memory(found)}", style="dim"),
        Text(),
        _kind_table(found),
    ]
    if found.operators:
        parts.extend((Text(), _operator_table(found)))
    notes = [*found.notes, *made.notes, *predicted.notes]
    parts.extend(notes_lines(notes))
    return Group(*parts)


def _off(error: float) -> str:
    if abs(error) < 0.005:
        return "equal within half a percent"
    return f"{abs(error):.0%} too {'slow' if error > 0 else 'fast'}"


def _memory(found: Check) -> str:
    memory = found.measurement.memory
    if memory is None:
        return "memory not measured"
    return (
        f"memory predicted {format_capacity(found.prediction.memory_bytes.value)}, measured"
        f" {format_capacity(memory.peak_bytes)}"
    )


def _signed(value: float) -> str:
    return f"{'+' if value >= 0 else '-'}{format_number(abs(value))}"


def _kind_table(found: Check) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("kind")
    for head in ("predicted ms", "measured ms", "difference", "calls"):
        table.add_column(head, justify="right", no_wrap=True)
    add = partial(_add, table)
    for row in found.kinds:
        add(row.kind, row.predicted_ms, row.measured_ms, f"{row.calls:g}")
    rest = "between operators" if found.outside_ms >= 0 else "cost of profiling"
    add(rest, found.prediction.host_ms, found.outside_ms, "")
    return table


def _add(table: Table, name: str, predicted_ms: float, measured_ms: float, calls: str) -> None:
    table.add_row(
        name,
        format_number(predicted_ms),
        _signed(measured_ms) if measured_ms < 0 else format_number(measured_ms),
        _signed(predicted_ms - measured_ms),
        calls,
    )


def _operator_table(found: Check) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("operator")
    table.add_column("node", overflow="fold", max_width=44)
    for head in ("predicted ms", "measured ms", "difference"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in found.operators[:_ROWS]:
        table.add_row(
            clean(row.op_type),
            clean(row.name),
            format_number(row.predicted_ms),
            format_number(row.measured_ms),
            _signed(row.predicted_ms - row.measured_ms),
        )
    return Group(Text("single kernels, largest difference first", style="bold"), table)


def compare_document(found: Comparison, names: Sequence[str]) -> Json:
    """Return `slicewise.compare/1`: `ratio` is latency of b over latency of a."""
    plain: Json = msgspec.to_builtins(found)
    return {"schema": "slicewise.compare/1", "a": names[0], "b": names[1], **plain}


def compare_report(found: Comparison, names: Sequence[str]) -> RenderableType:
    """Return the report of `slicewise compare`."""
    ratio = found.ratio
    a, b = (clean(name) for name in names)
    interval = f"{format_number(ratio.value)} times ({format_number(ratio.low)} to"
    told = f"{interval} {format_number(ratio.high)}) the latency of {a}"
    style = {"faster": "bold green", "slower": "bold red"}.get(found.verdict, "bold")
    parts: list[RenderableType] = [
        Text.assemble(f"{b}: ", (str(found.verdict), style), f", {told}"),
        Text(f"90 % interval by {found.method}", style="dim"),
    ]
    parts.extend(notes_lines(found.notes))
    return Group(*parts)
