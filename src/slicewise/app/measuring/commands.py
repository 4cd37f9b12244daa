"""The commands `measure` and `campaign`: options in, a flow called, a report shown."""

from pathlib import Path
from typing import Annotated

import typer

from slicewise.app import options
from slicewise.app.arguments import (
    AsJson,
    BatchAxes,
    Batches,
    Budget,
    Dims,
    Here,
    Inputs,
    Keep,
    MeasuredPrecision,
    MeasuredRuntime,
    MemoryLimit,
    OneModel,
    Output,
    RuntimeOptions,
    Samples,
    ShareOption,
    Store,
    Threads,
    TimeLimit,
)
from slicewise.app.show import progress as progress_shown
from slicewise.app.show import reason_once, show
from slicewise.core.errors import MeasureError, UsageError


def measure(
    model: OneModel,
    device: Here = None,
    runtime: MeasuredRuntime = None,
    batch: Batches = None,
    precision: MeasuredPrecision = None,
    threads: Threads = None,
    share: ShareOption = None,
    inputs: Inputs = None,
    dim: Dims = None,
    batch_axis: BatchAxes = None,
    option: RuntimeOptions = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also time single operators, in runs of their own.")
    ] = False,
    budget: Budget = None,
    samples: Samples = None,
    time_limit: TimeLimit = None,
    memory_limit: MemoryLimit = None,
    keep: Keep = True,
    store: Store = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Run a model on this machine and tell latency, memory and energy, with intervals.

    Each batch runs in a process of its own, after warm-up, until the interval is narrow.
    """
    from slicewise.app.files import check_outputs
    from slicewise.app.measuring.documents import measure_document
    from slicewise.flows.measure import MeasureOptions
    from slicewise.flows.measure import measure as run_measure

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
        protocol=options.parse_protocol(budget, samples, time_limit, memory_limit),
        profile=profile,
    )
    with progress_shown(quiet=as_json) as progress:
        made = run_measure(
            model,
            device=device,
            batches=options.parse_batches(batch or []),
            options=asked,
            keep=keep,
            store=store,
            progress=progress,
        )

    def report() -> None:
        from slicewise.app.measuring.report import measure_report
        from slicewise.app.report import console

        place = options.store_path(store)
        kept = f"Kept in {place}; `slicewise records list` shows them." if keep else ""
        console().print(measure_report(made, kept=kept))

    show(lambda: measure_document(made), report, as_json=as_json, output=output)
    if all(each.latency_ms is None for each in made):
        raise MeasureError(
            f"{made[0].model} could not be measured:"
            f" {reason_once(f'{made[0].outcome}: {made[0].error}', as_json=as_json)}"
        )


def campaign(
    spec: Annotated[
        Path, typer.Argument(metavar="SPEC", help="YAML file: models, batch, runtime, threads ...")
    ],
    store: Store = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh/--resume", help="Measure all anew, or only what is not there yet."),
    ] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Also measure again the points that failed.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", help="End after so many points.")
    ] = None,
    prepare: Annotated[
        bool,
        typer.Option("--prepare", help="Only read and export the models; measure nothing."),
    ] = False,
    executor: Annotated[
        str | None,
        typer.Option(
            "--executor",
            metavar="local|ray",
            help="Who carries the points. Default: this process.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Points at once, for machines that do not share cores (ray). Default: 1.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure models x batches x runtimes x threads x shares, and keep every measurement.

    The order leaves a balanced set wherever it is stopped; the same command goes on from there.
    """
    from slicewise.app.measuring.campaign import run, run_preparation

    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit} is not a positive number of points; write --limit 20")
    if prepare:
        given = {
            "--fresh": fresh or None,
            "--retry": retry or None,
            "--limit": limit,
            "--executor": executor,
            "--workers": workers,
        }
        if ignored := [name for name, value in given.items() if value is not None]:
            raise UsageError(
                f"--prepare measures nothing, so that {ignored[0]} says nothing; leave one out"
            )
        run_preparation(spec, as_json=as_json)
        return
    run(
        spec,
        store=store,
        fresh=fresh,
        retry=retry,
        limit=limit,
        executor=executor,
        workers=workers,
        as_json=as_json,
    )
