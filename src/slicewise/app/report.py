"""Results for people: the answer first, then confidence and limits, then the table.

Renders text with rich; computes nothing but shares and rankings.
"""

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from slicewise.core.cost import Estimate, NodeEstimate, Prediction
from slicewise.core.coverage import Coverage, Support
from slicewise.core.device import Device, Link
from slicewise.core.document import ModelInfo, PredictionSet
from slicewise.core.notes import Note, unique_notes
from slicewise.core.precision import DType
from slicewise.core.units import format_capacity, format_ms, format_number, format_scaled

HEAVIEST = 10
MOST_NOTES = 12
_PLAIN_WIDTH = 2000  # of a pipe or a file, so that nothing is wrapped; tables take what they need


def console(*, stderr: bool = False) -> Console:
    """Return a console that does not guess a narrow width where there is no terminal."""
    made = Console(stderr=stderr, highlight=False)
    return (
        made if made.is_terminal else Console(stderr=stderr, highlight=False, width=_PLAIN_WIDTH)
    )


def predict_report(result: PredictionSet, *, explain: bool) -> RenderableType:
    """Return the report of `slicewise predict`."""
    parts: list[RenderableType] = [_answer(result.predictions), Text()]
    parts.extend(_model_line(model) for model in result.models)
    parts.append(_prediction_table(result.predictions))
    parts.append(
        Text(
            "Intervals hold 90 % of open measurements of this kind; latency and energy are for the"
            " whole batch.",
            style="dim",
        )
    )
    if explain:
        for made in result.predictions:
            parts.extend((Text(), _explanation(made)))
    parts.extend(_notes([note for made in result.predictions for note in made.notes]))
    return Group(*parts)


def _answer(predictions: Sequence[Prediction]) -> Text:
    if len(predictions) == 1:
        made = predictions[0]
        return Text.assemble(
            (f"{made.model} on {_place(made)}, batch {made.batch}: ", ""),
            (format_ms(made.latency_ms.value), "bold green"),
            f" ({_interval(made.latency_ms)} ms), {format_number(made.throughput_per_s)} items/s",
        )
    quickest = min(predictions, key=lambda made: made.latency_ms.value)
    busiest = max(predictions, key=lambda made: made.throughput_per_s)
    return Text.assemble(
        "Lowest latency ",
        (format_ms(quickest.latency_ms.value), "bold green"),
        f": {_subject(quickest)}. Highest throughput ",
        (f"{format_number(busiest.throughput_per_s)} items/s", "bold green"),
        f": {_subject(busiest)}.",
    )


def _subject(made: Prediction) -> str:
    return f"{made.model} on {_place(made)}, batch {made.batch}"


def _place(made: Prediction) -> str:
    if made.slice is None:
        return made.device
    return f"{made.device}{'@' if made.slice.endswith('%') else '/'}{made.slice}"


def _model_line(model: ModelInfo) -> Text:
    buffers = f", {format_scaled(model.buffers)} buffers" if model.buffers else ""
    return Text(
        f"{model.name}: {format_scaled(model.parameters)} parameters{buffers}", style="dim"
    )


def _prediction_table(predictions: Sequence[Prediction]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    several = len({made.model for made in predictions}) > 1
    if several:
        table.add_column("model", overflow="fold")
    table.add_column("device", overflow="fold")
    for head in (
        "batch", "latency ms", "90 % interval", "items/s", "energy J", "memory", "GMAC",
        "of peak", "full",
    ):  # fmt: skip
        table.add_column(head, justify="right", no_wrap=True)
    for made in predictions:
        cells = [
            _place(made),
            str(made.batch),
            format_number(made.latency_ms.value),
            _interval(made.latency_ms),
            format_number(made.throughput_per_s),
            format_number(made.energy_j.value),
            _memory_cell(made),
            format_number(made.macs / 1e9),
            f"{made.compute_utilisation:.0%}",
            f"{made.saturation:.0%}",
        ]
        table.add_row(*([made.model, *cells] if several else cells))
    runs = sorted({f"{made.precision} with {made.runtime}" for made in predictions})
    table.caption = f"{', '.join(runs)}. of peak: share of peak arithmetic. full: saturation."
    table.caption_justify = "left"
    return table


def _memory_cell(made: Prediction) -> str:
    over = any(note.code == "memory-exceeded" for note in made.notes)
    return format_capacity(made.memory_bytes.value) + (" !" if over else "")


def _interval(estimate: Estimate) -> str:
    return f"{format_number(estimate.low)} - {format_number(estimate.high)}"


def _explanation(made: Prediction) -> RenderableType:
    """The heaviest operators with their share and what limits them, then the rest in one line."""
    total_ms = made.latency_ms.value
    ranked = sorted(made.nodes, key=lambda node: -node.latency_ms)
    table = Table(
        box=None, pad_edge=False, header_style="bold", title_justify="left",
        title=f"{_subject(made)}: heaviest operators",
    )  # fmt: skip
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
    return Group(table, _by_limit(made))


def _node_cells(node: NodeEstimate, total_ms: float) -> tuple[str, ...]:
    return (
        node.op_type,
        node.name,
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


def _notes(notes: Sequence[Note]) -> list[RenderableType]:
    """Notes once each; notes of one code and text on many nodes take one line."""
    by_text: dict[tuple[str, str], list[str]] = {}
    for note in unique_notes(notes):
        by_text.setdefault((note.code, note.text), []).append(note.node)
    if not by_text:
        return []
    lines: list[RenderableType] = [Text(), Text("Notes", style="bold")]
    for (code, text), nodes in list(by_text.items())[:MOST_NOTES]:
        lines.append(Text(f"  {code}: {text}{_where([node for node in nodes if node])}"))
    if len(by_text) > MOST_NOTES:
        lines.append(Text(f"  ... and {len(by_text) - MOST_NOTES} more; --json lists them all"))
    return lines


def _where(nodes: Sequence[str]) -> str:
    if not nodes:
        return ""
    return f" [{nodes[0]}{f' and {len(nodes) - 1} more' if len(nodes) > 1 else ''}]"


def support_report(result: Support) -> RenderableType:
    """Return the report of `slicewise support`."""
    missing = [row for row in result.operators if row.coverage is not Coverage.FORMULA]
    if result.covered:
        answer = Text.assemble(
            f"{result.model.name}: ",
            ("every operator has a formula", "bold green"),
            f" ({len(result.operators)} kinds)",
        )
    else:
        names = ", ".join(row.op_type for row in missing)
        answer = Text.assemble(
            f"{result.model.name}: ",
            (f"{len(missing)} of {len(result.operators)} operator kinds by bytes only", "yellow"),
            f": {names}",
        )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("operator", "domain", "kind", "nodes", "priced by"):
        table.add_column(head, justify="right" if head == "nodes" else "left")
    for row in result.operators:
        table.add_row(
            row.op_type, row.domain or "ai.onnx", row.kind, str(row.count), row.coverage.value
        )
    return Group(answer, Text(), table, *_notes(result.notes))


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
    rates = (f"{dtype} {format_scaled(rate, 'op/s')}" for dtype, rate in sorted(
        device.peak_flop_per_s.items()
    ))  # fmt: skip
    for head, cell in (
        ("compute units", f"{device.compute_units} at {device.clock_hz / 1e9:.3g} GHz"),
        ("peak rates", ", ".join(rates)),
        ("memory", format_capacity(device.memory_bytes)),
        ("bandwidth", format_scaled(device.memory_bandwidth_bytes_per_s, "B/s")),
        ("cache", format_capacity(device.cache_bytes)),
        ("power", f"idle {device.idle_power_w:.0f} W, at most {device.max_power_w:.0f} W"),
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
    return Group(*parts, *_notes(notes))


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
