"""The command `collocate`: options in, the flow called, a report shown."""

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
from slicewise.app.show import progress as progress_shown
from slicewise.app.show import show


def collocate(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL MODEL",
            help="Two model files (.onnx, .pt2) or zoo names, as in timm:resnet50.",
        ),
    ],
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="D",
            help="A whole GPU, as a100-sxm4-80gb, or a file (./mine.toml). Default: this"
            " machine's.",
        ),
    ] = None,
    batch: Annotated[
        list[str] | None,
        typer.Option(
            "--batch",
            metavar="N[,N]",
            help="Batch size of each model, or one for both. Default: the models' own, or 1.",
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
) -> None:
    """Predict how two models on one GPU slow each other down: MIG, MPS, time-slicing.

    Nothing is run. Of each mechanism the best split is shown, and which mechanism to take.
    """
    from slicewise.app.files import check_outputs
    from slicewise.flows.collocate import collocate as find
    from slicewise.flows.predict import PredictOptions

    check_outputs((output,), inputs=models)
    asked = PredictOptions(
        precision=precision,
        runtime=runtime,
        dims=options.parse_dims(dim or []),
        inputs=options.parse_inputs(inputs or []),
        batch_axes=options.parse_batch_axes(batch_axis or []),
        strict=strict,
        card=card,
        layout=layout,
        predictor=predictor,
    )
    with progress_shown(quiet=as_json) as progress:
        made = find(
            models,
            device=device,
            batches=options.parse_batches(batch or []),
            options=asked,
            progress=progress,
        )

    def document() -> dict[str, object]:
        from slicewise.app.slicing.collocate_documents import collocate_document

        return collocate_document(made)

    def report() -> None:
        from slicewise.app.report import console
        from slicewise.app.slicing.collocate_report import collocate_report

        console().print(collocate_report(made))

    show(document, report, as_json=as_json, output=output)
