"""Results for people: the answer first, then confidence and limits, then the table.

Renders text with rich; computes nothing but shares and rankings.
"""

from collections.abc import Sequence
from functools import partial

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from slicewise.app.columns import Column, columns_for
from slicewise.app.words import (
    clean,
    doubt_of_memory,
    eligible,
    grouped_notes,
    interval,
    intervals_sentence,
    may_not_fit,
    place,
    runtime_words,
    subject,
)
from slicewise.core.cost import NodeEstimate, Prediction
from slicewise.core.coverage import Coverage, Support
from slicewise.core.device import Device, Link
from slicewise.core.document import ModelInfo, PredictionSet
from slicewise.core.notes import Note
from slicewise.core.precision import DType
from slicewise.core.ties import least
from slicewise.core.units import format_capacity, format_ms, format_number, format_scaled

HEAVIEST = 10
_WHOLE_BATCH = "Latency and energy are for the whole batch."
_PLAIN_WIDTH = 2000  # of a pipe or a file, so that nothing is wrapped; tables take what they need


def console(*, stderr: bool = False) -> Console:
    """Return a console that does not guess a narrow width where there is no terminal.

    It takes brackets and colons in names for what they are, not for markup.
    """
    make = partial(Console, stderr=stderr, highlight=False, markup=False, emoji=False)
    made = make()
    return made if made.is_terminal else make(width=_PLAIN_WIDTH)


def predict_report(result: PredictionSet, *, explain: bool, width: int) -> RenderableType:
    """Return the report of `slicewise predict`, for a terminal of `width` columns."""
    parts: list[RenderableType] = [_answer(result.predictions), Text()]
    parts.extend(_model_line(model) for model in result.models)
    parts.append(_prediction_table(result.predictions, width))
    held = intervals_sentence(result.predictions)
    parts.append(Text(f"{held} {_WHOLE_BATCH}", style="dim"))
    if explain:
        for made in result.predictions:
            parts.extend((Text(), _explanation(made)))
    parts.extend(notes_lines([note for made in result.predictions for note in made.notes]))
    return Group(*parts)


def _answer(predictions: Sequence[Prediction]) -> Text:
    doubt = doubt_of_memory(predictions)
    if len(predictions) == 1:
        made = predictions[0]
        return Text.assemble(
            (f"{clean(made.model)} on {place(made)}, batch {made.batch}: ", ""),
            (format_ms(made.latency_ms.value), "bold green"),
            f" ({format_ms(made.latency_ms.low)} to {format_ms(made.latency_ms.high)}),"
            f" {format_number(made.throughput_per_s)} items/s",
            f". {doubt}." if doubt else "",
        )
    among = eligible(predictions)
    quickest = least(among, lambda made: made.latency_ms.value)
    busiest = least(among, lambda made: -made.throughput_per_s)
    return Text.assemble(
        "Lowest latency ",
        (format_ms(quickest.latency_ms.value), "bold green"),
        f": {subject(quickest)}. Highest throughput ",
        (f"{format_number(busiest.throughput_per_s)} items/s", "bold green"),
        f": {subject(busiest)}.",
        f" {doubt}." if doubt else "",
    )


def _model_line(model: ModelInfo) -> Text:
    buffers = f", {format_scaled(model.buffers)} buffers" if model.buffers else ""
    return Text(
        f"{model.name}: {format_scaled(model.parameters)} parameters{buffers}", style="dim"
    )


_COLUMNS: tuple[Column[Prediction], ...] = (
    Column("batch", 0, lambda made: str(made.batch)),
    Column("latency ms", 0, lambda made: format_number(made.latency_ms.value)),
    Column("90 % interval", 1, lambda made: interval(made.latency_ms)),
    Column("items/s", 2, lambda made: format_number(made.throughput_per_s)),
    Column("energy J", 4, lambda made: format_number(made.energy_j.value)),
    Column("memory", 3, lambda made: _memory_cell(made)),
    Column("GMAC", 7, lambda made: format_number(made.macs / 1e9)),
    Column("of peak", 6, lambda made: f"{made.compute_utilisation:.0%}"),
    Column("full", 5, lambda made: f"{made.saturation:.0%}"),
)


def _prediction_table(predictions: Sequence[Prediction], width: int) -> RenderableType:
    several = len({made.model for made in predictions}) > 1
    names = [clean(made.model) for made in predictions] if several else []
    places = [place(made) for made in predictions]
    room = width - max(map(len, places)) - max(map(len, names), default=0)
    columns = columns_for(_COLUMNS, predictions, room=room)
    table = Table(box=None, pad_edge=False, header_style="bold")
    if several:
        table.add_column("model", overflow="fold", min_width=8)
    table.add_column("device", overflow="fold", min_width=12)
    for column in columns:
        table.add_column(column.head, justify="right", no_wrap=True)
    for i, made in enumerate(predictions):
        cells = [places[i], *(column.cell(made) for column in columns)]
        table.add_row(*([names[i], *cells] if several else cells))
    runs = sorted({f"{made.precision} with {runtime_words(made)}" for made in predictions})
    legend = {"of peak": "share of peak arithmetic", "full": "saturation, 100 % = no idle units"}
    shown = [f"{c.head}: {legend[c.head]}." for c in columns if c.head in legend]
    hidden = "" if len(columns) == len(_COLUMNS) else "A wider terminal shows more columns."
    by = dict.fromkeys(made.source for made in predictions)
    named = f"Predicted by {', '.join(by)}."
    about = " ".join(word for word in (f"{', '.join(runs)}.", named, *shown, hidden) if word)
    return Group(table, Text(about, style="dim"))


def _memory_cell(made: Prediction) -> str:
    return format_capacity(made.memory_bytes.value) + (" !" if may_not_fit(made) else "")


def _explanation(made: Prediction) -> RenderableType:
    """The heaviest operators with their share and what limits them, then the rest in one line."""
    total_ms = made.latency_ms.value
    ranked = sorted(made.nodes, key=lambda node: -node.latency_ms)
    title = Text(f"{subject(made)}: heaviest operators", style="bold")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("operator", overflow="fold")
    table.add_column("node", overflow="fold", max_width=44)
    for head in ("ms", "share", "limit", "Gflop", "MB moved"):
        table.add_column(head, justify="right", no_wrap=True)
    for node in ranked[:HEAVIEST]:
        table.add_row(*_node_cells(node, total_ms))
    rest_ms = sum(node.latency_ms for node in ranked[HEAVIEST:])
    if len(ranked) > HEAVIEST:
        rest = f"{len(ranked) - HEAVIEST} more nodes"
        table.add_row(rest, "", format_number(rest_ms), f"{rest_ms / total_ms:.1%}", "", "", "")
    host = f"{made.host_ms / total_ms:.1%}"
    table.add_row("host", "", format_number(made.host_ms), host, "", "", "")
    return Group(title, table, _by_limit(made))


def _node_cells(node: NodeEstimate, total_ms: float) -> tuple[str, ...]:
    return (
        clean(node.op_type),
        clean(node.name),
        format_number(node.latency_ms),
        f"{node.latency_ms / total_ms:.1%}",
        node.limit,
        format_number(node.flops / 1e9),
        format_number(node.moved_bytes / 1e6),
    )


def _by_limit(made: Prediction) -> Text:
    shares: dict[str, float] = {}
    for node in made.nodes:
        shares[node.limit] = shares.get(node.limit, 0.0) + node.latency_ms
    shares.pop("none", None)
    words = [
        f"{limit} {share_ms / made.latency_ms.value:.0%}"
        for limit, share_ms in sorted(shares.items(), key=lambda item: -item[1])
    ]
    return Text("time by what limits it: " + ", ".join(words), style="dim")


def notes_lines(notes: Sequence[Note]) -> list[RenderableType]:
    """One line for each code, those about the model first; further texts are counted."""
    groups = grouped_notes(notes)
    if not groups:
        return []
    lines: list[RenderableType] = [Text(), Text("Notes", style="bold")]
    for group in groups:
        others = len(group.texts) - 1
        more = f" (and {others} more like it; --json has all)" if others else ""
        first = group.texts[0]
        lines.append(Text(f"  {group.code}: {clean(first.text)}{_where(first.nodes)}{more}"))
    return lines


def _where(nodes: Sequence[str]) -> str:
    if not nodes:
        return ""
    return f" [{clean(nodes[0])}{f' and {len(nodes) - 1} more' if len(nodes) > 1 else ''}]"


def support_report(result: Support) -> RenderableType:
    """Return the report of `slicewise support`."""
    missing = [row for row in result.operators if row.coverage is not Coverage.FORMULA]
    if result.covered:
        answer = Text.assemble(
            f"{clean(result.model.name)}: ",
            ("every operator has a formula", "bold green"),
            f" ({len(result.operators)} kinds)",
        )
    else:
        names = clean(", ".join(f"{row.op_type} ({row.coverage})" for row in missing))
        told = f"{len(missing)} of {len(result.operators)} operators are not priced by a formula"
        if not missing:
            told = "every operator has a formula, but some shapes are unknown (see notes)"
        answer = Text.assemble(
            f"{clean(result.model.name)}: ", (told, "yellow"), f": {names}" if names else ""
        )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("operator", "domain", "kind", "nodes", "priced by"):
        table.add_column(head, justify="right" if head == "nodes" else "left")
    for row in result.operators:
        table.add_row(
            clean(row.op_type),
            clean(row.domain) or "ai.onnx",
            row.kind,
            str(row.count),
            row.coverage.value,
        )
    return Group(answer, Text(), table, *notes_lines(result.notes))


def devices_report(devices: Sequence[Device]) -> RenderableType:
    """Return the list of the catalogue."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("device", overflow="fold")
    for head in ("units", "fp32 T/s", "16-bit T/s", "int8 T/s", "memory", "GB/s", "W"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("slices", overflow="fold")
    for device in devices:
        table.add_row(
            device.name,
            str(device.compute_units),
            *(_rate(device, dtypes) for dtypes in _RATE_COLUMNS),
            format_capacity(device.memory_bytes),
            format_number(device.memory_bandwidth_bytes_per_s / 1e9),
            f"{device.max_power_w:.0f}",
            _slice_names(device),
        )
    return Group(
        Text(f"{len(devices)} devices; `slicewise devices NAME` shows one with its sources"),
        Text(),
        table,
    )


_RATE_COLUMNS = ((DType.FP32,), (DType.FP16, DType.BF16), (DType.INT8,))


def _rate(device: Device, dtypes: Sequence[DType]) -> str:
    rates = [device.peak_flop_per_s[dtype] for dtype in dtypes if dtype in device.peak_flop_per_s]
    return format_number(max(rates) / 1e12) if rates else "-"


def _slice_names(device: Device) -> str:
    return " ".join(profile.name for profile in device.profiles if not profile.attributes)


def device_report(device: Device) -> RenderableType:
    """Return one device with every figure, its slices, and what is uncertain about them."""
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_column()
    facts.add_column()
    rates = tuple(
        f"{dtype} {format_scaled(rate, 'op/s')}"
        for dtype, rate in sorted(device.peak_flop_per_s.items())
    )
    if device.fp32_matrix_flop_per_s is not None:
        rates = (*rates, f"fp32 matrix {format_scaled(device.fp32_matrix_flop_per_s, 'op/s')}")
    for head, cell in (
        ("compute units", f"{device.compute_units} at {device.clock_hz / 1e9:.3g} GHz"),
        ("peak rates", ", ".join(rates)),
        ("memory", format_capacity(device.memory_bytes)),
        ("bandwidth", format_scaled(device.memory_bandwidth_bytes_per_s, "B/s")),
        ("cache", format_capacity(device.cache_bytes)),
        ("power", f"floor {device.idle_power_w:.0f} W, limit {device.max_power_w:.0f} W"),
        ("launch, host", f"{device.launch_s * 1e6:.3g} us, {device.host_s * 1e6:.3g} us"),
        ("link", _link(device.link)),
    ):  # fmt: skip
        facts.add_row(head, cell)
    title = f"{device.name}: {device.title or device.vendor}, {device.architecture}"
    parts: list[RenderableType] = [Text(title, style="bold"), facts]
    if device.profiles:
        parts.extend((Text(), _profile_table(device)))
    notes = [*device.notes, *(note for profile in device.profiles for note in profile.notes)]
    sources = [Text(f"  {figure}: {source}") for figure, source in device.sources.items()]
    if sources:
        parts.extend((Text(), Text("Sources", style="bold"), *sources))
    return Group(*parts, *notes_lines(notes))


def _link(link: Link | None) -> str:
    if link is None:
        return "-"
    return f"{link.name}, {format_scaled(link.bandwidth_bytes_per_s, 'B/s')} a way"


def _profile_table(device: Device) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("slice")
    for head in ("units", "usable memory", "bandwidth", "at most", "starts at slots"):
        table.add_column(head, justify="right", no_wrap=True)
    for profile in device.profiles:
        part = profile.memory_slices / device.memory_slots
        table.add_row(
            profile.name,
            str(profile.compute_units),
            format_capacity(profile.memory_bytes),
            format_scaled(device.memory_bandwidth_bytes_per_s * part, "B/s"),
            str(profile.max_instances),
            " ".join(str(start) for start in profile.starts),
        )
    return table
