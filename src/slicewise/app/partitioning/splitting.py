"""What `partition --split DIR` and `--check` say: the files written, and how they were checked."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slicewise.app.documents import Json
from slicewise.app.report import notes_lines
from slicewise.app.words import clean, counted, short_name
from slicewise.core.errors import MeasureError, UsageError
from slicewise.core.units import format_capacity, format_number
from slicewise.flows.partitioning.result import PartitionResult
from slicewise.flows.partitioning.stage_files import (
    StagesCheck,
    WrittenStages,
    check_folder,
    check_stages,
    is_onnx,
    onnx_file,
    write_stages,
)
from slicewise.partition.split.check import OutputDifference


def check_split(directory: Path, model: str) -> None:
    """Raise `UsageError` for a split that cannot be, before time goes into a cut."""
    if model.lower().endswith(".json"):
        raise UsageError(
            f"problem file {model!r} holds numbers and no model, so that there is nothing to"
            " split; leave --split out, or give the model"
        )
    check_folder(directory)


def split_result(
    result: PartitionResult, directory: Path, *, check: bool, seed: int = 0
) -> tuple[WrittenStages, StagesCheck | None]:
    """Return what was written into `directory`, and its check against the whole model.

    The check is None where it is not asked for, and of split points, which are no files that run.
    """
    written = write_stages(result, directory)
    graph = result.case.graph
    if not check or written.files is None or graph is None or not is_onnx(graph):
        return written, None
    return written, check_stages(written.files, source=onnx_file(graph), seed=seed)


def refuse_difference(check: StagesCheck | None) -> None:
    """Raise `MeasureError` where stages give something else than the whole model."""
    bad = [each for each in check.outputs if not each.is_within] if check is not None else []
    if bad:
        raise MeasureError(
            f"output {bad[0].name!r} of the stages differs from the whole model's by"
            f" {bad[0].absolute:g}; at most {_allowed(bad[0])} is from rounding; keep the files"
            " and report it"
        )


def split_document(written: WrittenStages, check: StagesCheck | None) -> Json:
    """Return what `slicewise.partition/1` says of the files: `split`, and `check` within."""
    document: Json = {}
    if written.files is not None:
        files = written.files
        document["directory"] = str(files.directory)
        document["files"] = [stage.file for stage in files.stages]
        document["whole"] = files.whole
        document["cuts"] = [msgspec.to_builtins(cut) for cut in files.cuts]
    if written.points is not None:
        points = written.points
        document["file"] = str(written.file)
        document["pipelining"] = dict.fromkeys(points.begins, "beginning")
        document["layers"] = list(points.counts)
        document["vllm"] = points.vllm
    seen = () if check is None else check.notes
    document["notes"] = msgspec.to_builtins((*written.notes, *seen))
    document["check"] = None if check is None else {
        "seed": check.seed,
        "items": check.items,
        "equal": check.is_equal,
        "within_tolerance": check.is_within,
        "outputs": [msgspec.to_builtins(each) for each in check.outputs],
    }  # fmt: skip
    return document


def split_report(written: WrittenStages, check: StagesCheck | None) -> RenderableType:
    """Return the part of the report that tells of the files."""
    parts: list[RenderableType] = []
    if written.files is not None:
        files = written.files
        said = counted(len(files.stages), "stage file")
        parts.append(
            Text(
                f"{said} with stages.json and the annotated {files.whole} in"
                f" {clean(str(files.directory))}"
            )
        )
        parts.append(_files_table(written))
    if written.points is not None:
        points = written.points
        layers = ",".join(map(str, points.counts))
        parts.append(Text(f"split points in {clean(str(written.file))}: layers {layers}"))
        parts.append(Text(points.pipelining.rstrip(), style="dim"))
        if points.vllm is not None:
            parts.append(Text(f'VLLM_PP_LAYER_PARTITION="{points.vllm}"'))
    if check is not None:
        parts.extend((Text(check_sentence(check)), differences_table(check.outputs)))
    parts.extend(notes_lines([*written.notes, *(() if check is None else check.notes)]))
    return Group(*parts)


def check_sentence(check: StagesCheck) -> str:
    """Return in one sentence whether the stages give what the whole model gives."""
    what = "the stages run one after the other in onnxruntime"
    if check.is_equal:
        return f"Checked: {what} give the whole model's outputs, bit for bit."
    if check.is_within:
        worst = max(check.outputs, key=lambda each: each.relative)
        return (
            f"Checked: {what} give the whole model's outputs to {worst.relative:.1e} of their"
            " largest value; the runtime fuses other operators in cut files."
        )
    bad = [each for each in check.outputs if not each.is_within]
    return f"Checked: {what} differ from the whole model in {counted(len(bad), 'output')}."


def differences_table(outputs: Sequence[OutputDifference]) -> Table:
    """Return a table of the largest differences of each output."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("output", overflow="fold")
    for head in ("type", "largest difference", "relative", "allowed"):
        table.add_column(head, justify="right", no_wrap=True)
    for each in outputs:
        told = "equal" if each.is_equal else format_number(each.absolute)
        table.add_row(
            short_name(each.name), each.dtype, told, f"{each.relative:.1e}", _allowed(each)
        )
    return table


def _allowed(each: OutputDifference) -> str:
    whole = each.dtype.startswith(("int", "uint", "bool"))
    return f"{each.allowed:g}" if whole else f"{each.allowed:g} of the largest value"


def _files_table(written: WrittenStages) -> Table:
    assert written.files is not None
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("file", no_wrap=True)
    for head in ("nodes", "weights", "reads", "gives"):
        table.add_column(head, justify="right", no_wrap=True)
    for stage in written.files.stages:
        table.add_row(
            stage.file + (f", {stage.data}" if stage.data else ""),
            f"{stage.nodes:,}",
            format_capacity(stage.weight_bytes),
            str(len(stage.inputs)),
            str(len(stage.outputs)),
        )
    return table
