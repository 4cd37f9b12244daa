"""What `run-pipeline` says: stages run as pinned processes, measured beside predicted."""

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slicewise.app.documents import Json
from slicewise.app.partitioning.splitting import differences_table
from slicewise.app.report import notes_lines
from slicewise.app.words import clean, counted, interval
from slicewise.core.units import format_number
from slicewise.flows.run_pipeline import PipelineComparison, StageComparison

SCHEMA = "slicewise.run-pipeline/1"


def run_pipeline_document(made: PipelineComparison) -> Json:
    """Return `slicewise.run-pipeline/1`: measured and predicted, null where nothing is known."""
    pipeline, whole = made.pipeline, made.whole
    return {
        "schema": SCHEMA,
        "directory": str(made.files.directory),
        "model": made.files.model,
        "digest": made.files.digest,
        "throughput_per_s": msgspec.to_builtins(pipeline.throughput_per_s),
        "latency_ms": msgspec.to_builtins(pipeline.latency_ms),
        "alone_ms": msgspec.to_builtins(pipeline.alone_ms),
        "whole_throughput_per_s": msgspec.to_builtins(whole.throughput_per_s),
        "whole_latency_ms": msgspec.to_builtins(whole.alone_ms),
        "speedup": made.speedup,
        "predicted_speedup": made.predicted_speedup,
        "relative_error": made.relative_error,
        "bottleneck": made.bottleneck.index,
        "items": pipeline.items,
        "depth": pipeline.depth,
        "seconds": pipeline.seconds + whole.seconds,
        "stages": [_stage(each) for each in made.stages],
        "outputs": msgspec.to_builtins(made.outputs),
        "notes": msgspec.to_builtins(made.notes),
    }


def _stage(each: StageComparison) -> Json:
    told = each.measured
    return {
        "index": each.index,
        "cores": list(told.cores),
        "threads": told.threads,
        "service_ms": msgspec.to_builtins(told.service_ms),
        "run_ms": told.run_ms,
        "busy": told.busy,
        "starved": told.starved,
        "blocked": told.blocked,
        "share": each.measured_share,
        "predicted_ms": None if each.predicted is None else each.predicted.load_ms,
        "predicted_share": each.predicted_share,
    }


def run_pipeline_report(made: PipelineComparison) -> RenderableType:
    """Return the report: the gain first, then each stage, then how it was taken."""
    parts: list[RenderableType] = [_answer(made), Text(), _table(made)]
    slow = made.bottleneck
    parts.append(Text(f"Slowest is stage {slow.index}; latency is {_latency(made)}."))
    equal = all(each.is_equal for each in made.outputs)
    if equal:
        parts.append(Text("Outputs are those of the whole model, bit for bit."))
    else:
        parts.append(differences_table(made.outputs))
    parts.append(Text(_how(made), style="dim"))
    parts.extend(notes_lines(list(made.notes)))
    return Group(*parts)


def _answer(made: PipelineComparison) -> Text:
    rate = made.pipeline.throughput_per_s
    said = ""
    if made.predicted_speedup is not None and made.relative_error is not None:
        said = f"; predicted {made.predicted_speedup:.3g} times ({made.relative_error:+.0%})"
    return Text.assemble(
        f"{clean(made.files.model)} in {counted(len(made.stages), 'stage')}: ",
        (f"{format_number(rate.value)} inferences/s", "bold green"),
        f" ({interval(rate)}), {made.speedup:.3g} times that of one stage"
        f" ({format_number(made.whole.throughput_per_s.value)}){said}",
    )


def _latency(made: PipelineComparison) -> str:
    full = f"{format_number(made.pipeline.latency_ms.value)} ms in the full pipeline"
    alone = made.pipeline.alone_ms
    return full if alone is None else f"{full}, {format_number(alone.value)} ms alone"


def _table(made: PipelineComparison) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    heads = ("stage", "cores", "service ms", "share", "predicted ms", "share", "busy", "starved",
             "blocked")  # fmt: skip
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for each in made.stages:
        told, predicted = each.measured, each.predicted
        table.add_row(
            str(each.index),
            ",".join(map(str, told.cores)) or "any",
            format_number(told.service_ms.value),
            f"{each.measured_share:.0%}",
            "-" if predicted is None else format_number(predicted.load_ms),
            "-" if each.predicted_share is None else f"{each.predicted_share:.0%}",
            f"{told.busy:.0%}",
            f"{told.starved:.0%}",
            f"{told.blocked:.0%}",
        )
    return table


def _how(made: PipelineComparison) -> str:
    return (
        f"{made.pipeline.items} items with {made.pipeline.depth} between stages, in onnxruntime on"
        " the CPU; a stage is a process. Service is what one item keeps a stage from the next;"
        " share is of the slowest stage."
    )
