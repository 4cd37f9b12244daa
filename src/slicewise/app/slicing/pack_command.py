"""The command `pack`: options in, the flow called, a report, a page or files to apply shown."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slicewise.app import options
from slicewise.app.arguments import (
    AsJson,
    CardOption,
    Output,
    PrecisionOption,
    PredictorOption,
    RuntimeOption,
    Strict,
)
from slicewise.app.partitioning.commands import words_of
from slicewise.app.show import progress as progress_shown
from slicewise.app.show import show
from slicewise.core.errors import Infeasible, UsageError

if TYPE_CHECKING:
    from slicewise.flows.packing.result import PackResult


def pack(
    context: typer.Context,
    workloads: Annotated[
        Path,
        typer.Argument(
            metavar="WORKLOADS.yaml",
            help="YAML file of models or profiles, each with a rate and a latency to keep.",
        ),
    ],
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device",
            metavar="D[,D...]",
            help="Whole cards, as a100-sxm4-80gb, or files (./mine.toml). Default: this machine's"
            " GPU.",
        ),
    ] = None,
    count: Annotated[
        list[str] | None,
        typer.Option(
            "--count",
            metavar="N[,N...]",
            help="How many of each kind of card, or of every kind. Default: as many as needed.",
        ),
    ] = None,
    cost: Annotated[
        list[str] | None,
        typer.Option(
            "--cost", metavar="C[,C...]", help="What one card of each kind costs. Default: 1."
        ),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(
            metavar="gpus|energy",
            show_default=False,
            help="What is made least. Default: gpus, the cards by their cost; energy: the power.",
        ),
    ] = "gpus",
    latency_model: Annotated[
        str,
        typer.Option(
            "--latency-model",
            metavar="service|fill|queue",
            show_default=False,
            help="What counts against the target. service: a batch, within 0.45 of it; fill:"
            " filling a batch, too; queue: waiting, too, at the percentile. Default: service.",
        ),
    ] = "service",
    safety: Annotated[
        float | None,
        typer.Option(
            "--safety",
            metavar="PART",
            help="What is kept to spare, as in 0.2 for 20 %. Default: 0.1 of what is predicted,"
            " nothing of what was measured on that very slice and batch.",
        ),
    ] = None,
    current: Annotated[
        Path | None,
        typer.Option(
            "--current",
            metavar="LAYOUT",
            help="What stands already: a document of this command, mig-parted YAML or lines as"
            " gpu0: 3g.40gb@0. Little is moved, nothing that is in use.",
        ),
    ] = None,
    what_if: Annotated[
        Path | None,
        typer.Option(
            "--what-if",
            metavar="MORE.yaml",
            help="Further workloads, packed on top of the first; of the same name: in its place.",
        ),
    ] = None,
    emit: Annotated[
        str | None,
        typer.Option(
            "--emit",
            metavar="mig-parted|k8s|triton|nvidia-smi|json",
            help="Print what applies the packing, and nothing else.",
        ),
    ] = None,
    emit_dir: Annotated[
        Path | None,
        typer.Option(
            "--emit-dir",
            metavar="DIR",
            help="Write the files of --emit into a new folder instead, beside the report.",
        ),
    ] = None,
    gpus_per_host: Annotated[
        int,
        typer.Option(
            "--gpus-per-host",
            metavar="N",
            show_default=False,
            help="Cards in a machine, for --emit. Default: 8.",
        ),
    ] = 8,
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate",
            help="Also play the requests of every workload; --latency-model queue always does.",
        ),
    ] = False,
    precision: PrecisionOption = None,
    runtime: RuntimeOption = None,
    card: CardOption = None,
    predictor: PredictorOption = "learned",
    time_limit: Annotated[
        float,
        typer.Option(
            "--time-limit",
            metavar="SECONDS",
            show_default=False,
            help="End of the search. Default: 60.",
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
    strict: Strict = False,
    as_json: AsJson = False,
    output: Output = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Also write one self-contained page: cards, targets."
        ),
    ] = None,
) -> None:
    """Pack models onto the slices of as few cards as can be, every latency target kept, and prove
    how few could do.

    Latencies are predicted or taken from profiles, nothing is run. Ctrl-C and the time limit give
    the best packing until then.
    """
    from slicewise.app.files import check_outputs
    from slicewise.flows.pack import pack as solve
    from slicewise.flows.packing.options import PackOptions
    from slicewise.flows.predict import PredictOptions

    read = [str(each) for each in (workloads, current, what_if) if each is not None]
    check_outputs((output, html), inputs=read)
    if gpus_per_host < 1:
        raise UsageError(
            f"--gpus-per-host {gpus_per_host} leaves no card in a machine; give 1 or more"
        )
    _check_emit(emit, emit_dir, as_json=as_json, outputs=(output, html), read=read)
    asked = PackOptions(
        costs=_numbers("--cost", cost, "1,2"),
        objective=objective,
        latency_model=latency_model,
        safety=safety,
        current=current,
        what_if=what_if,
        time_limit_s=time_limit,
        seed=seed,
        workers=workers,
        simulates=simulate,
        strict=strict,
        predict=PredictOptions(
            precision=precision, runtime=runtime, card=card, predictor=predictor
        ),
    )
    names = options.parse_names("--device", device or [], "a100-sxm4-80gb")
    quiet = as_json or (emit is not None and emit_dir is None)
    with progress_shown(quiet=quiet) as progress:
        made = solve(
            workloads,
            devices=names or [None],
            counts=_counts(count),
            options=asked,
            progress=progress,
        )
    _write(
        made,
        emit=emit,
        emit_dir=emit_dir,
        gpus_per_host=gpus_per_host,
        html=html,
        arguments=words_of(context),
    )
    _show(
        made,
        emit=emit if emit_dir is None else None,
        gpus_per_host=gpus_per_host,
        as_json=as_json,
        output=output,
    )
    if made.packing.unserved:
        from slicewise.app.slicing.pack_words import unserved_line

        raise Infeasible(unserved_line(made))


def _show(
    made: "PackResult",
    *,
    emit: str | None,
    gpus_per_host: int,
    as_json: bool,
    output: Path | None,
) -> None:
    """Print the files to apply, the document, or the report; write the document where asked."""

    def document() -> dict[str, object]:
        from slicewise.app.slicing.pack_documents import pack_document

        return pack_document(made)

    def report() -> None:
        if emit is not None:
            from slicewise.slices.emit import emit as text_of

            text = text_of(made.packing, emit, problem=made.to_apply, gpus_per_host=gpus_per_host)
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        from slicewise.app.report import console
        from slicewise.app.slicing.pack_report import pack_report

        shown = console()
        shown.print(pack_report(made, width=shown.width))

    show(document, report, as_json=as_json, output=output)


def _write(
    made: "PackResult",
    *,
    emit: str | None,
    emit_dir: Path | None,
    gpus_per_host: int,
    html: Path | None,
    arguments: Sequence[str],
) -> None:
    """Write the page and the files to apply where they are asked for."""
    if html is not None:
        from slicewise.app.files import write_atomically
        from slicewise.app.slicing.pack_page import pack_page

        write_atomically(html, pack_page(made, arguments=arguments).encode("utf-8", "replace"))
    if emit is not None and emit_dir is not None:
        from slicewise.app.slicing.emitted import write_files
        from slicewise.slices.emit import emit_files

        files = emit_files(made.packing, emit, problem=made.to_apply, gpus_per_host=gpus_per_host)
        write_files(files, emit_dir)
        typer.echo(f"{emit}: {len(files)} files in {emit_dir}", err=True)


def _check_emit(
    emit: str | None,
    emit_dir: Path | None,
    *,
    as_json: bool,
    outputs: Sequence[Path | None],
    read: Sequence[str],
) -> None:
    """Raise `UsageError` for files that cannot be asked for so, before time is spent."""
    if emit is None:
        if emit_dir is not None:
            raise UsageError("--emit-dir holds the files of --emit; give --emit k8s too")
        return
    from slicewise.core.plugins import did_you_mean
    from slicewise.slices.emit import FORMATS

    if emit not in FORMATS:
        raise UsageError(
            f"--emit {emit!r} is unknown; known are {', '.join(FORMATS)}"
            f"{did_you_mean(emit, FORMATS)}"
        )
    if emit_dir is None:
        if as_json:
            raise UsageError(
                "--emit and --json both print on stdout; give --emit-dir DIR, or --output FILE for"
                " the document"
            )
        return
    from slicewise.app.files import check_apart
    from slicewise.app.slicing.emitted import check_new

    check_new(emit_dir)
    for each in read:
        check_apart(emit_dir, model=each, outputs=outputs)


def _counts(values: Sequence[str] | None) -> list[int | None]:
    counts: list[int | None] = []
    for item in options.parse_names("--count", values or [], "8"):
        if not (item.isascii() and item.isdigit() and len(item) <= 10):
            raise UsageError(f"--count {item!r} is no whole number of cards; write --count 8,4")
        counts.append(int(item))
    return counts


def _numbers(option: str, values: Sequence[str] | None, example: str) -> list[float]:
    numbers = []
    for item in options.parse_names(option, values or [], example):
        try:
            numbers.append(float(item))
        except ValueError as err:
            raise UsageError(f"{option} {item!r} is no number; write {option} {example}") from err
    return numbers
