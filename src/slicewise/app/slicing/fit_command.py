"""The command `fit`: options in, the flow called, a report and a page shown."""

from pathlib import Path
from typing import Annotated

import typer

from slicewise.app import options
from slicewise.app.arguments import (
    AsJson,
    BatchAxes,
    CardOption,
    Dims,
    Inputs,
    LayoutOption,
    Output,
    PrecisionOption,
    PredictorOption,
    RuntimeOption,
    Strict,
)
from slicewise.app.partitioning.commands import words_of
from slicewise.app.show import progress as progress_shown
from slicewise.app.show import show
from slicewise.core.errors import UsageError


def fit(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="Model file (.onnx, .pt2) or zoo name, as in timm:resnet50; or --measured.",
        ),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured",
            metavar="FILE",
            help="CSV file of latencies measured on the card or its slices, in place of a model:"
            " columns batch, latency_ms and, if wanted, slice, memory_bytes, processes.",
        ),
    ] = None,
    item_bytes: Annotated[
        str | None,
        typer.Option(
            "--item-bytes",
            metavar="SIZE",
            help="With --measured: what one item moves to and from the card within its latency, as"
            " in 588KiB; 0 if nothing. Default: not known.",
        ),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device",
            metavar="D[,D...]",
            help="Whole cards, as a100-sxm4-80gb, or files (./mine.toml). Default: this machine's"
            " GPU.",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", metavar="N", help="Batch size. Default: the model's own, or 1."),
    ] = None,
    latency_ms: Annotated[
        float | None,
        typer.Option("--latency-ms", metavar="MS", help="Longest latency of a batch."),
    ] = None,
    throughput: Annotated[
        float | None,
        typer.Option("--throughput", metavar="N", help="Least items per second."),
    ] = None,
    safety: Annotated[
        float | None,
        typer.Option(
            "--safety",
            metavar="PART",
            help="What is kept to spare, as in 0.2 for 20 %. Default: 0.1 of what is predicted,"
            " 0.05 of what is scaled from --measured, nothing of a latency measured on that very"
            " slice and batch.",
        ),
    ] = None,
    mechanism: Annotated[
        str,
        typer.Option(
            "--mechanism",
            metavar="mig|mps",
            help="mig judges the slices of a card, mps its percentages.",
        ),
    ] = "mig",
    processes: Annotated[
        int,
        typer.Option(
            "--processes",
            metavar="N",
            show_default=False,
            help="Equal processes in each part, beside one another. Default: 1.",
        ),
    ] = 1,
    largest_batch: Annotated[
        bool,
        typer.Option(
            "--largest-batch", help="Also find the largest batch that keeps latency and memory."
        ),
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="SLICE",
            help="Where --largest-batch looks, as in 2g.20gb. Default: on every part.",
        ),
    ] = None,
    precision: PrecisionOption = None,
    runtime: RuntimeOption = None,
    layout: LayoutOption = "nchw",
    inputs: Inputs = None,
    dim: Dims = None,
    batch_axis: BatchAxes = None,
    card: CardOption = None,
    predictor: PredictorOption = "learned",
    strict: Strict = False,
    as_json: AsJson = False,
    output: Output = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Also write one self-contained page: slots, head-room."
        ),
    ] = None,
) -> None:
    """Judge every slice of a card for one model, and name the smallest that meets the target.

    Nothing is run. Without a target the slice with the best rate for what it takes is named.
    """
    from slicewise.app.files import check_outputs, write_atomically
    from slicewise.core.units import parse_bytes
    from slicewise.flows.fit import FitOptions, fit_many
    from slicewise.flows.predict import PredictOptions

    read = [each for each in (model, None if measured is None else str(measured)) if each]
    if len(read) != 1:
        what = "no model" if not read else f"model {model!r} and --measured {str(measured)!r}"
        raise UsageError(f"fit is given {what}; give a model, or --measured FILE in its place")
    check_outputs((output, html), inputs=read)
    names = options.parse_names("--device", device or [], "a100-sxm4-80gb")
    asked = FitOptions(
        latency_ms=latency_ms,
        throughput_per_s=throughput,
        safety=safety,
        mechanism=mechanism,
        processes=processes,
        largest_batch=largest_batch,
        on=on,
        item_bytes=None if item_bytes is None else parse_bytes(item_bytes),
        predict=PredictOptions(
            precision=precision,
            runtime=runtime,
            dims=options.parse_dims(dim or []),
            inputs=options.parse_inputs(inputs or []),
            batch_axes=options.parse_batch_axes(batch_axis or []),
            strict=strict,
            card=card,
            layout=layout,
            predictor=predictor,
        ),
    )
    with progress_shown(quiet=as_json) as progress:
        found = fit_many(
            model,
            measured=measured,
            devices=names or [None],
            batch=batch,
            options=asked,
            progress=progress,
        )
    if html is not None:
        from slicewise.app.slicing.fit_page import fit_page

        text = fit_page(found, arguments=words_of(context))
        write_atomically(html, text.encode("utf-8", "replace"))

    def document() -> dict[str, object]:
        from slicewise.app.slicing.fit_documents import fit_document, fits_document

        only = found.results[0] if len(found.results) == 1 else None
        return fits_document(found) if only is None else fit_document(only)

    def report() -> None:
        from slicewise.app.report import console
        from slicewise.app.slicing.fit_report import fit_report, fits_report

        shown = console()
        if len(found.results) == 1:
            shown.print(fit_report(found.results[0], width=shown.width))
        else:
            shown.print(fits_report(found, width=shown.width))

    show(document, report, as_json=as_json, output=output)
