"""The commands `check` and `compare`: a prediction, or another case, beside a measurement."""

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from slicewise.app.arguments import AsJson, BatchAxes, Dims, Inputs, OneModel, Output
from slicewise.app.measuring.commands import (
    Budget,
    Here,
    MeasuredPrecision,
    MeasuredRuntime,
    RuntimeOptions,
    ShareOption,
    Store,
    Threads,
    parse_settings,
    protocol_of,
)
from slicewise.app.show import progress as progress_shown
from slicewise.app.show import show
from slicewise.core.errors import UsageError


def check(
    model: OneModel,
    device: Here = None,
    runtime: MeasuredRuntime = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", metavar="N", help="Batch size. Default: the model's own, or 1."),
    ] = None,
    precision: MeasuredPrecision = None,
    threads: Threads = None,
    share: ShareOption = None,
    inputs: Inputs = None,
    dim: Dims = None,
    batch_axis: BatchAxes = None,
    option: RuntimeOptions = None,
    budget: Budget = None,
    keep: Annotated[
        bool, typer.Option("--keep/--no-keep", help="Keep the measurement in the record store.")
    ] = True,
    store: Store = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Predict a model, measure it here, and explain the difference by operators."""
    from slicewise.app import options
    from slicewise.app.files import check_outputs
    from slicewise.app.measuring.check_report import check_document, check_report
    from slicewise.flows.check import check as run_check
    from slicewise.flows.measure import MeasureOptions

    check_outputs((output,), inputs=[model])
    asked = MeasureOptions(
        runtime=runtime,
        precision=precision,
        threads=threads,
        share=share,
        runtime_options=parse_settings(option or []),
        dims=options.parse_dims(dim or []),
        inputs=options.parse_inputs(inputs or []),
        batch_axes=options.parse_batch_axes(batch_axis or []),
        protocol=protocol_of(budget, None, None, None),
    )
    with progress_shown(quiet=as_json or "NO_COLOR" in os.environ) as progress:
        found = run_check(
            model,
            device=device,
            batch=batch,
            options=asked,
            keep=keep,
            store=store,
            progress=progress,
        )

    def report() -> None:
        from slicewise.app.report import console

        console().print(check_report(found))

    show(lambda: check_document(found), report, as_json=as_json, output=output)


Sides = Annotated[
    str | None,
    typer.Option(metavar="A[,B]", help="For both sides, or one for each."),
]


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A model, or the number of a record.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The other one; the ratio is B over A.")],
    device: Here = None,
    runtime: Sides = None,
    batch: Sides = None,
    precision: Sides = None,
    threads: Sides = None,
    share: Annotated[
        list[str] | None,
        typer.Option(
            "--share", metavar="S", help="Part of the device; give it twice for A and B."
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="KEY=A[,B]", help="Setting of the runtime, as in spinning=1,0."
        ),
    ] = None,
    inputs: Inputs = None,
    dim: Dims = None,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", help="Turns of measuring A and B.")
    ] = 3,
    budget: Budget = None,
    keep: Annotated[
        bool, typer.Option("--keep/--no-keep", help="Keep the measurements in the record store.")
    ] = True,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Tell how many times as long B takes as A, with an interval, or that no difference is shown.

    Models are measured now, in turn; numbers are records of `slicewise records list`.
    """
    from slicewise.app import options
    from slicewise.app.measuring.check_report import compare_document, compare_report
    from slicewise.flows.compare import Case
    from slicewise.flows.compare import compare as run_compare
    from slicewise.flows.measure import MeasureOptions

    dims = options.parse_dims(dim or [])
    shapes = options.parse_inputs(inputs or [])
    shares = _sides("--share", None, given=share)
    settings = _settings(option or [])
    cases = [
        Case(
            None if name.isdigit() else name,
            int(name) if name.isdigit() else None,
            device,
            _whole("--batch", _sides("--batch", batch)[i]),
            MeasureOptions(
                runtime=_sides("--runtime", runtime)[i],
                precision=_sides("--precision", precision)[i],
                threads=_whole("--threads", _sides("--threads", threads)[i]),
                share=shares[i],
                runtime_options=settings[i],
                dims=dims,
                inputs=shapes,
                protocol=protocol_of(budget, None, None, None),
            ),
        )
        for i, name in enumerate((a, b))
    ]
    with progress_shown(quiet=as_json or "NO_COLOR" in os.environ) as progress:
        found = run_compare(
            cases[0], cases[1], rounds=rounds, keep=keep, store=store, progress=progress
        )
    names = [_name(name, i, (runtime, batch, precision, threads)) for i, name in enumerate((a, b))]

    def report() -> None:
        from slicewise.app.report import console

        console().print(compare_report(found, names))

    show(lambda: compare_document(found, names), report, as_json=as_json, output=None)


def _sides(
    option: str, text: str | None, *, given: Sequence[str] | None = None
) -> tuple[str | None, str | None]:
    """Return the values for A and B: one for both, or one for each."""
    values = list(given or []) if text is None else [part.strip() for part in text.split(",")]
    if not values:
        return (None, None)
    if len(values) > 2 or not all(values):
        raise UsageError(
            f"{option} {','.join(values)!r} has {len(values)} values; give one for both sides, or"
            " two, A's first"
        )
    return (values[0], values[-1])


def _whole(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text[:10]) < 1:
        raise UsageError(f"{option} {text!r} is not a positive whole number; write {option} 1,8")
    return int(text)


def _settings(values: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings for A and for B from 'spinning=1,0'."""
    made: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for item in values:
        name, sign, text = item.partition("=")
        if not sign:
            parse_settings([item])  # says what is wrong
        for side, value in zip(made, _sides("--option", text), strict=True):
            side.update(parse_settings([f"{name}={value or ''}"]))
    return made


def _name(name: str, i: int, told: Sequence[str | None]) -> str:
    """Return what a side is called: the model and what the two differ in."""
    words = [name if not name.isdigit() else f"record {name}"]
    for text in told:
        values = [] if text is None else [part.strip() for part in text.split(",")]
        if len(values) == 2 and values[0] != values[1]:
            words.append(values[i])
    return ", ".join(words)
