"""The commands `measure` and `campaign`: options in, a flow called, a report shown."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from slicewise.app.arguments import AsJson, BatchAxes, Batches, Dims, Inputs, OneModel, Output
from slicewise.app.show import progress as progress_shown
from slicewise.app.show import show
from slicewise.core.errors import MeasureError, UsageError
from slicewise.core.measurement import Protocol

Here = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="cpu|gpu:N", help="Device of this machine. Default: GPU 0, or the CPU."
    ),
]
MeasuredRuntime = Annotated[
    str | None,
    typer.Option(
        "--runtime",
        help="onnxruntime, torch-eager, torch-compile or openvino. Default: onnxruntime for ONNX"
        " models, torch-eager for PyTorch.",
    ),
]
MeasuredPrecision = Annotated[
    str | None,
    typer.Option("--precision", help="fp32, tf32, fp16, bf16 or amp. Default: the model's own."),
]
Threads = Annotated[
    int | None,
    typer.Option(metavar="N", help="Threads inside an operator. Default: one for each core."),
]
ShareOption = Annotated[
    str | None,
    typer.Option(
        "--share",
        metavar="S",
        help="Part of the device: 50 (percent), cores:0-1, mps:25, green:25, mig:UUID.",
    ),
]
RuntimeOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="KEY=VALUE", help="Setting of the runtime, as in spinning=0."
    ),
]
Budget = Annotated[
    float | None,
    typer.Option("--budget", metavar="SECONDS", help="Most seconds of sampling. Default: 5."),
]
Samples = Annotated[
    int | None, typer.Option("--samples", metavar="N", help="Most samples. Default: 500.")
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        "--time-limit", metavar="SECONDS", help="End of one measurement, whatever it does."
        " Default: 300."
    ),
]  # fmt: skip
MemoryLimit = Annotated[
    str | None,
    typer.Option("--memory-limit", metavar="SIZE", help="Most resident memory, as in 8GiB."),
]
Store = Annotated[
    Path | None,
    typer.Option(
        "--store", metavar="FILE", help="Record store. Default: $SLICEWISE_HOME/records.sqlite."
    ),
]


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
    keep: Annotated[
        bool, typer.Option("--keep/--no-keep", help="Keep the measurement in the record store.")
    ] = True,
    store: Store = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Run a model on this machine and tell latency, memory and energy, with intervals.

    Each batch runs in a process of its own, after warm-up, until the interval is narrow.
    """
    from slicewise.app import options
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
        runtime_options=parse_settings(option or []),
        dims=options.parse_dims(dim or []),
        inputs=options.parse_inputs(inputs or []),
        batch_axes=options.parse_batch_axes(batch_axis or []),
        protocol=protocol_of(budget, samples, time_limit, memory_limit),
        profile=profile,
    )
    with progress_shown(quiet=as_json or "NO_COLOR" in os.environ) as progress:
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

        kept = (
            f"Kept in {shown_store(store)}; `slicewise records list` shows them." if keep else ""
        )
        console().print(measure_report(made, kept=kept))

    show(lambda: measure_document(made), report, as_json=as_json, output=output)
    if all(each.latency_ms is None for each in made):
        raise MeasureError(
            f"{made[0].model} could not be measured: {made[0].outcome}: {made[0].error}"
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


def protocol_of(
    budget_s: float | None,
    samples: int | None,
    time_limit_s: float | None,
    memory_limit: str | None,
) -> Protocol:
    """Return the protocol that the options ask for; `UsageError` for what cannot be."""
    from slicewise.core.units import parse_bytes

    usual = Protocol()
    for name, value in (("--budget", budget_s), ("--time-limit", time_limit_s)):
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{name} {value:g} is not a positive time; write {name} 10")
    if samples is not None and samples < 1:
        raise UsageError(
            f"--samples {samples} gives nothing to take a median of; write --samples 100"
        )
    most = samples or usual.max_samples
    limit_bytes = None if memory_limit is None else parse_bytes(memory_limit)
    if limit_bytes == 0:
        raise UsageError("--memory-limit 0 leaves no room for a model; write --memory-limit 8GiB")
    return Protocol(
        min_samples=min(usual.min_samples, most),
        max_samples=most,
        budget_s=budget_s or usual.budget_s,
        time_limit_s=time_limit_s or usual.time_limit_s,
        memory_limit_bytes=limit_bytes,
    )


def parse_settings(values: Sequence[str]) -> dict[str, str]:
    """Return settings of a runtime by name from 'KEY=VALUE'.

    >>> parse_settings(["spinning=0,arena=1"])
    {'spinning': '0', 'arena': '1'}
    """
    made: dict[str, str] = {}
    for item in (part.strip() for value in values for part in value.split(",")):
        name, sign, value = (text.strip() for text in item.partition("="))
        if not sign or not name or not value:
            raise UsageError(f"--option {item!r} is not KEY=VALUE; write --option spinning=0")
        if made.setdefault(name, value) != value:
            raise UsageError(f"--option gives {name!r} twice, {made[name]} and {value}; give one")
    return made


def shown_store(store: Path | None) -> str:
    """Return the path of the record store as a person may use it."""
    from slicewise.flows.records import default_store

    return str(store or default_store())
