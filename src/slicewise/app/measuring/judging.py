"""The commands `check` and `compare`: a prediction, or another case, beside a measurement."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from slicewise.app import options
from slicewise.app.arguments import (
    AsJson,
    BatchAxes,
    Budget,
    CardOption,
    Dims,
    Here,
    Inputs,
    Keep,
    MeasuredPrecision,
    MeasuredRuntime,
    MemoryLimit,
    OneModel,
    Output,
    PredictorOption,
    RuntimeOptions,
    ShareOption,
    Store,
    Threads,
    TimeLimit,
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
    card: CardOption = None,
    predictor: PredictorOption = "learned",
    budget: Budget = None,
    time_limit: TimeLimit = None,
    memory_limit: MemoryLimit = None,
    keep: Keep = True,
    store: Store = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Predict a model, measure it here, and explain the difference by operators."""
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
        runtime_options=options.parse_settings(option or []),
        dims=options.parse_dims(dim or []),
        inputs=options.parse_inputs(inputs or []),
        batch_axes=options.parse_batch_axes(batch_axis or []),
        protocol=options.parse_protocol(budget, None, time_limit, memory_limit),
    )
    with progress_shown(quiet=as_json) as progress:
        found = run_check(
            model,
            device=device,
            batch=batch,
            options=asked,
            card=card,
            predictor=predictor,
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
    batch_axis: BatchAxes = None,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", help="Turns of measuring A and B.")
    ] = 3,
    budget: Budget = None,
    time_limit: TimeLimit = None,
    memory_limit: MemoryLimit = None,
    keep: Keep = True,
    store: Store = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Tell how many times as long B takes as A, with an interval, or that no difference is shown.

    Models are measured now, in turn; numbers are records of `slicewise records list`.
    """
    from slicewise.app.files import check_outputs
    from slicewise.app.measuring.check_report import compare_document, compare_report
    from slicewise.flows.compare import Case
    from slicewise.flows.compare import compare as run_compare
    from slicewise.flows.measure import MeasureOptions

    check_outputs((output,), inputs=[name for name in (a, b) if _record(name) is None])
    numbers = (_record(a), _record(b))
    if None not in numbers:
        _refuse_given(
            {"--device": device, "--runtime": runtime, "--batch": batch, "--precision": precision,
             "--threads": threads, "--share": share, "--option": option, "--input": inputs,
             "--dim": dim, "--batch-axis": batch_axis, "--budget": budget,
             "--time-limit": time_limit, "--memory-limit": memory_limit}
        )  # fmt: skip
    dims = options.parse_dims(dim or [])
    shapes = options.parse_inputs(inputs or [])
    axes = options.parse_batch_axes(batch_axis or [])
    protocol = options.parse_protocol(budget, None, time_limit, memory_limit)
    shares = _sides("--share", None, given=share)
    settings = _settings(option or [])
    cases = [
        Case(
            name if numbers[i] is None else None,
            numbers[i],
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
                batch_axes=axes,
                protocol=protocol,
            ),
        )
        for i, name in enumerate((a, b))
    ]
    with progress_shown(quiet=as_json) as progress:
        found = run_compare(
            cases[0], cases[1], rounds=rounds, keep=keep, store=store, progress=progress
        )
    told = [
        _sides("--runtime", runtime),
        _sides("--batch", batch),
        _sides("--precision", precision),
        _sides("--threads", threads),
        shares,
        *((f"{key}={settings[0][key]}", f"{key}={settings[1][key]}") for key in settings[0]),
    ]
    names = [_name(name, i, told) for i, name in enumerate((a, b))]
    if names[0] == names[1]:
        names = [f"{name} ({side})" for name, side in zip(names, "AB", strict=True)]

    def report() -> None:
        from slicewise.app.report import console

        console().print(compare_report(found, names))

    show(lambda: compare_document(found, names), report, as_json=as_json, output=output)


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
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise UsageError(f"{option} {text!r} is not a positive whole number; write {option} 1,8")
    return int(text)


def _settings(values: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings for A and for B from 'spinning=1,0'."""
    made: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for item in values:
        name, sign, text = item.partition("=")
        if not sign:
            options.parse_settings([item])  # says what is wrong
        for side, value in zip(made, _sides("--option", text), strict=True):
            side.update(options.parse_settings([f"{name}={value or ''}"]))
    return made


def _record(name: str) -> int | None:
    """Return the number of a record, None for a model."""
    return int(name) if re.fullmatch(r"[0-9]{1,18}", name) else None


def _refuse_given(options: Mapping[str, object]) -> None:
    """Raise `UsageError` for an option about measuring, where both sides are records."""
    for name, value in options.items():
        if value:
            raise UsageError(
                f"{name} says how a model is measured, and both sides are records, which are taken"
                " as they are; leave it out, or give models"
            )


def _name(name: str, i: int, told: Sequence[tuple[str | None, str | None]]) -> str:
    """Return what a side is called: the model and what the two differ in."""
    if _record(name) is not None:
        return f"record {name}"
    return ", ".join([name, *(pair[i] or "" for pair in told if pair[0] != pair[1])])
