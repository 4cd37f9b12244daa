"""The command `partition`: options in, the flow called, a report and files shown."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slicewise.app import options
from slicewise.app.arguments import (
    AsJson,
    BatchAxes,
    CardOption,
    Dims,
    Inputs,
    Output,
    PrecisionOption,
    PredictorOption,
    RuntimeOption,
    Strict,
)
from slicewise.app.show import progress as progress_shown
from slicewise.app.show import show
from slicewise.app.words import as_argument
from slicewise.core.errors import UsageError
from slicewise.flows.partitioning.result import PartitionCurve, PartitionResult

if TYPE_CHECKING:
    from slicewise.flows.partitioning.options import PartitionOptions
    from slicewise.flows.partitioning.stage_files import StagesCheck, WrittenStages


def partition(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|PROBLEM.json",
            help="Model file or zoo name, or a problem file (pipeline-workload/1).",
        ),
    ],
    stages: Annotated[
        str | None,
        typer.Option(
            "--stages",
            metavar="K|A..B",
            help="Most stages, as in 4; or several numbers for a curve, as in 2..16 or 2,4,8."
            " Default: the number of --devices.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="D",
            help="Device, slice or share of every stage. Default: this machine; of a problem file"
            " accel.",
        ),
    ] = None,
    devices: Annotated[
        list[str] | None,
        typer.Option(
            "--devices", metavar="D,D,E", help="Devices of the stages, one each, in their order."
        ),
    ] = None,
    any_order: Annotated[
        bool, typer.Option("--any-order", help="Put --devices in whatever order is best.")
    ] = False,
    link: Annotated[
        str | None,
        typer.Option(
            "--link",
            metavar="RATE[:LATENCY]",
            help="Way from stage to stage, as in 25GB/s or 25GB/s:5us. Default: the devices' own.",
        ),
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            "--memory-limit",
            metavar="SIZE",
            help="Most memory of a stage, as in 20GiB. Default: the device's.",
        ),
    ] = None,
    constraints: Annotated[
        Path | None,
        typer.Option(
            "--constraints",
            metavar="FILE",
            help="YAML file of further constraints (slicewise.constraints/1).",
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            metavar="bottleneck|energy",
            help="What is made least. Default: bottleneck, the time of the slowest stage.",
        ),
    ] = None,
    limit_ms: Annotated[
        float | None,
        typer.Option(metavar="MS", help="With --objective energy: most time of a stage."),
    ] = None,
    overlap: Annotated[
        bool,
        typer.Option("--overlap", help="Stages receive, work and send at the same time."),
    ] = False,
    hops: Annotated[
        bool,
        typer.Option("--hops", help="Tensors go through every stage between (a chain of links)."),
    ] = False,
    replicate: Annotated[
        bool,
        typer.Option("--replicate", help="A stage may take several of the devices."),
    ] = False,
    honour: Annotated[
        list[str] | None,
        typer.Option(
            "--honour",
            metavar="colocate,limits",
            help="What counts of a problem file besides its costs.",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", metavar="N", help="Batch size. Default: the model's own, or 1."),
    ] = None,
    precision: PrecisionOption = None,
    runtime: RuntimeOption = None,
    inputs: Inputs = None,
    dim: Dims = None,
    batch_axis: BatchAxes = None,
    card: CardOption = None,
    predictor: PredictorOption = "learned",
    between_layers: Annotated[
        bool,
        typer.Option("--between-layers", help="Cut between the repeated layers of a model only."),
    ] = False,
    split: Annotated[
        Path | None,
        typer.Option(
            "--split",
            metavar="DIR",
            help="Also write each stage as an ONNX file (of a PyTorch model: split points).",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Run the files of --split one after the other against the whole model."
        ),
    ] = False,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="M",
            show_default=False,
            help="auto, slicegraph, brkga-100, brkga-10000, lattice or cp-sat. Default: auto,"
            " which takes several.",
        ),
    ] = "auto",
    time_limit: Annotated[
        float,
        typer.Option(
            "--time-limit",
            metavar="SECONDS",
            show_default=False,
            help="End of the search, for all numbers of stages together. Default: 60.",
        ),
    ] = 60.0,
    seed: Annotated[
        int,
        typer.Option(
            "--seed", metavar="N", show_default=False, help="Seed of all chance. Default: 0."
        ),
    ] = 0,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", help="Threads of the solver. Default: one for each core."),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Prove the checked bounds again, in exact arithmetic."),
    ] = False,
    strict: Strict = False,
    as_json: AsJson = False,
    output: Output = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Also write one self-contained page: schedule, loads."
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", metavar="FILE", help="Also write the schedule (Perfetto, Chrome)."
        ),
    ] = None,
) -> None:
    """Cut a model into pipeline stages so that the slowest is as quick as can be, and prove how
    good the cut is.

    Times are predicted, nothing is run. Ctrl-C and the time limit give the best cut until then.
    """
    from slicewise.app.files import check_apart, check_outputs
    from slicewise.core.units import parse_bytes
    from slicewise.flows.partitioning.options import PartitionOptions, parse_stages
    from slicewise.flows.predict import PredictOptions

    read = [model, *([str(constraints)] if constraints is not None else [])]
    check_outputs((output, html, trace), inputs=read)
    numbers = None if stages is None else parse_stages(stages)
    _check_files(model, stages, numbers, trace=trace, split=split, check=check)
    if split is not None:
        check_apart(split, model=model, outputs=(output, html, trace))
    asked = PartitionOptions(
        devices=options.parse_names("--devices", devices or [], "t4,t4,l4"),
        any_order=any_order,
        link=link,
        memory_limit_bytes=None if memory_limit is None else float(parse_bytes(memory_limit)),
        constraints=constraints,
        objective=objective,
        limit_ms=limit_ms,
        overlaps=overlap,
        hops=hops,
        replicates=replicate,
        honour=options.parse_names("--honour", honour or [], "colocate"),
        time_limit_s=time_limit,
        seed=seed,
        workers=workers,
        method=method,
        strict=strict,
        verify=verify,
        between_layers=between_layers,
        predict=PredictOptions(
            precision=precision,
            runtime=runtime,
            dims=options.parse_dims(dim or []),
            inputs=options.parse_inputs(inputs or []),
            batch_axes=options.parse_batch_axes(batch_axis or []),
            card=card,
            predictor=predictor,
        ),
    )
    with progress_shown(quiet=as_json) as progress:
        made = _solve(model, numbers, device=device, batch=batch, asked=asked, progress=progress)
        written = _split(made, split, check=check, seed=seed, progress=progress)
    _write(made, html=html, trace=trace, arguments=words_of(context))

    def document() -> dict[str, object]:
        from slicewise.app.partitioning import documents

        if isinstance(made, PartitionCurve):
            return documents.curve_document(made)
        if written is None:
            return documents.partition_document(made)
        from slicewise.app.partitioning.splitting import split_document

        return {**documents.partition_document(made), "split": split_document(*written)}

    def report() -> None:
        from slicewise.app.partitioning.report import curve_report, partition_report
        from slicewise.app.report import console

        if isinstance(made, PartitionCurve):
            console().print(curve_report(made))
        else:
            console().print(partition_report(made))
        if written is not None:
            from slicewise.app.partitioning.splitting import split_report

            console().print("", split_report(*written), sep="\n")

    show(document, report, as_json=as_json, output=output)
    if written is not None:
        from slicewise.app.partitioning.splitting import refuse_difference

        refuse_difference(written[1])


def _check_files(
    model: str,
    stages: str | None,
    numbers: list[int] | None,
    *,
    trace: Path | None,
    split: Path | None,
    check: bool,
) -> None:
    """Raise `UsageError` for files that cannot be asked for together, before time is spent."""
    if numbers is not None and len(numbers) > 1:
        for option, given in (("--trace", trace), ("--split", split)):
            if given is not None:
                raise UsageError(
                    f"{option} is of one number of stages, given {stages!r}; write --stages 4"
                )
    if check and split is None:
        raise UsageError("--check runs the files of --split; give --split DIR too")
    if split is not None:
        from slicewise.app.partitioning.splitting import check_split

        check_split(split, model)


def _split(
    made: PartitionResult | PartitionCurve,
    directory: Path | None,
    *,
    check: bool,
    seed: int,
    progress: Callable[[str], None] | None,
) -> "tuple[WrittenStages, StagesCheck | None] | None":
    """Write the stages where they are asked for, and check them."""
    if directory is None or isinstance(made, PartitionCurve):
        return None
    from slicewise.app.partitioning.splitting import split_result

    if progress is not None:
        progress(f"writing stages into {directory}")
    return split_result(made, directory, check=check, seed=seed)


def _solve(
    model: str,
    numbers: list[int] | None,
    *,
    device: str | None,
    batch: int | None,
    asked: "PartitionOptions",
    progress: Callable[[str], None] | None,
) -> PartitionResult | PartitionCurve:
    from slicewise.flows.partition import partition as cut
    from slicewise.flows.partition import partition_curve

    if numbers is not None and len(numbers) > 1:
        return partition_curve(
            model, stages=numbers, device=device, batch=batch, options=asked, progress=progress
        )
    only = None if numbers is None else numbers[0]
    return cut(model, stages=only, device=device, batch=batch, options=asked, progress=progress)


def _write(
    made: PartitionResult | PartitionCurve,
    *,
    html: Path | None,
    trace: Path | None,
    arguments: Sequence[str],
) -> None:
    """Write the page and the trace where they are asked for."""
    from slicewise.app.files import write_atomically

    if html is not None:
        from slicewise.app.partitioning.page import curve_page, partition_page

        if isinstance(made, PartitionCurve):
            text = curve_page(made, arguments=arguments)
        else:
            text = partition_page(made, arguments=arguments)
        write_atomically(html, text.encode("utf-8", "replace"))
    if trace is not None and not isinstance(made, PartitionCurve):
        from slicewise.app.partitioning.trace import encode_trace

        write_atomically(trace, encode_trace(made))


def words_of(context: typer.Context) -> list[str]:
    """Return the words of the command line that differ from the defaults, in a settled order."""
    words = [str(context.info_name)]
    for option in context.command.params:
        value = context.params.get(str(option.name))
        if value is None or value == option.default or value in ([], ()):
            continue
        if not option.opts[0].startswith("-"):
            words.append(as_argument(str(value)))
        elif value is True:
            words.append(option.opts[0])
        elif value is False:  # asked against a default of either, as in --fresh/--resume
            words.append(option.secondary_opts[0])
        else:
            for each in value if isinstance(value, list | tuple) else [value]:
                words += [option.opts[0], str(each)]
    return words
