"""A partition for people: the answer and its proof first, then stages, cut tensors, notes."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slicewise.app.partitioning.words import (
    comparison,
    device,
    is_energy,
    knee,
    latency,
    objective,
    percent,
    proof,
    span,
    stage_names,
    strip,
    subject,
    way,
)
from slicewise.app.report import notes_lines
from slicewise.app.words import clean, counted, short_name
from slicewise.core.units import format_capacity, format_ms, format_number
from slicewise.flows.partitioning.result import PartitionCurve, PartitionResult

_MOST_TENSORS = 8
_STRIP_WIDTH = 32


def partition_report(made: PartitionResult) -> RenderableType:
    """Return the report of one number of stages."""
    parts: list[RenderableType] = [_answer(made), Text(_bound_line(made)), Text(latency(made))]
    if told := comparison(made):
        parts.append(Text(told))
    parts += [Text(), _stages(made), Text(_legend(made), style="dim")]
    parts += _tensors(made)
    parts += notes_lines(made.notes)
    return Group(*parts)


def curve_report(found: PartitionCurve) -> RenderableType:
    """Return the report of several numbers of stages."""
    first = found.results[0]
    name = clean(first.case.material.name)
    answer = Text.assemble(f"{name} on {_devices(first)}: ", (knee(found), "bold green"))
    legend = "* fewest stages that are worth it; gap: no cut can lower the value by more."
    notes = [note for made in found.results for note in made.notes]
    left_out = [Text(f"{stages}: {clean(why)}") for stages, why in found.infeasible]
    return Group(
        answer, Text(), _curve(found), Text(legend, style="dim"), *left_out, *notes_lines(notes)
    )


def _devices(made: PartitionResult) -> str:
    return clean(", ".join(dict.fromkeys(made.case.places)))


def _answer(made: PartitionResult) -> Text:
    value = made.partition.value
    what = "an inference" if is_energy(made) else "bottleneck"
    return Text.assemble(
        f"{subject(made)}: {what} ",
        (objective(made, value), "bold green"),
        f" ({format_number(made.throughput_per_s)} items/s), {proof(made)}",
    )


def _bound_line(made: PartitionResult) -> str:
    partition = made.partition
    if not partition.bounds:
        return f"Found by {partition.method} in {partition.seconds:.1f} s, seed {partition.seed}."
    best = max(partition.bounds, key=lambda bound: bound.value)
    return (
        f"Bound {objective(made, best.value)} ({best.method}, {best.trust.value}). Found by"
        f" {partition.method} in {partition.seconds:.1f} s, seed {partition.seed}."
    )


def _stages(made: PartitionResult) -> Table:
    problem, loads = made.case.problem, made.partition.loads
    energy = is_energy(made)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage", justify="right")
    table.add_column("device", overflow="fold")
    heads = ["load ms", "work", "receive", "send"]
    heads += ["J"] if energy else []
    heads += ["replicas"] if problem.replicates else []
    for head in (*heads, "memory", "nodes"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("one period", no_wrap=True)
    table.add_column("from .. to", overflow="fold")
    for index, load in enumerate(loads):
        if not load.nodes and not load.load_ms:
            continue
        names = stage_names(made, index)
        cells = [load.load_ms, load.work_ms, load.receive_ms, load.send_ms]
        cells += [load.energy_j] if energy else []
        table.add_row(
            str(index),
            device(made, load),
            *map(format_number, cells),
            *([str(load.replicas)] if problem.replicates else []),
            format_capacity(load.memory_bytes),
            f"{len(names):,}",
            strip(load, made.interval_ms, width=_STRIP_WIDTH, overlaps=problem.overlaps),
            span(names) if names else "passes tensors on",
        )
    return table


def _legend(made: PartitionResult) -> str:
    load = "the greatest of the three" if made.case.problem.overlaps else "the sum of the three"
    replicas = ", over its replicas" if made.case.problem.replicates else ""
    return (
        f"One period of {format_ms(made.interval_ms)}: < receives, # works, > sends, . waits."
        f" Load: {load}{replicas}, in ms."
    )


def _tensors(made: PartitionResult) -> list[RenderableType]:
    cut = made.cut_tensors
    if not cut:
        return []
    total_ms = sum(each.transfer_ms * len(each.targets) for each in cut)
    title = f"Cut tensors: {counted(len(cut), 'tensor')}, {format_ms(total_ms)} on the way"
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("tensor", overflow="fold")
    for head in ("MB", "ms", "stages"):
        table.add_column(head, justify="right", no_wrap=True)
    for each in cut[:_MOST_TENSORS]:
        size = each.tensor.size_bytes
        shown = "-" if size is None else format_number(size / 1e6)
        name = short_name(each.tensor.name)
        table.add_row(name, shown, format_number(each.transfer_ms), way(each))
    more = len(cut) - _MOST_TENSORS
    parts: list[RenderableType] = [Text(), Text(title, style="bold"), table]
    if more > 0:
        parts.append(Text(f"{more} smaller ones; --json has all", style="dim"))
    return parts


def _curve(found: PartitionCurve) -> Table:
    chosen = found.knee
    energy = is_energy(chosen)
    table = Table(box=None, pad_edge=False, header_style="bold")
    heads: Sequence[str] = (
        "stages", "used", "J" if energy else "bottleneck ms", "bound", "gap", "items/s",
    )  # fmt: skip
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("found by")
    best = max(made.throughput_per_s for made in found.results)
    for made in found.results:
        partition = made.partition
        mark = "*" if made is chosen else ""
        length = round(20 * made.throughput_per_s / best) if best < float("inf") else 0
        table.add_row(
            f"{mark}{made.case.problem.stages}",
            str(len(made.used)),
            format_number(partition.value),
            format_number(partition.bound),
            "0" if partition.is_optimal else percent(partition.gap),
            format_number(made.throughput_per_s),
            "#" * length,
            f"{partition.method}, {partition.seconds:.1f} s",
        )
    return table
