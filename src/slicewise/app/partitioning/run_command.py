"""The command `run-pipeline`: options in, the flow called, a report shown.

Apart from the report, so that the command line starts without what draws tables.
"""

from pathlib import Path
from typing import Annotated

import typer

from slicewise.app.arguments import AsJson, Output, TimeLimit
from slicewise.app.show import progress as progress_shown
from slicewise.app.show import show
from slicewise.core.errors import MeasureError


def run_pipeline(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder that `slicewise partition --split` wrote."),
    ],
    items: Annotated[
        int | None,
        typer.Option("--items", metavar="N", help="Items that are measured. Default: 100."),
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option("--warmup", metavar="N", help="Items before, one at a time. Default: 5."),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option("--depth", metavar="N", help="Items between two stages. Default: 2."),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", metavar="N", help="Threads and cores of a stage. Default: 1."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", help="Seed of the inputs. Default: 0."),
    ] = None,
    time_limit: TimeLimit = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Run split stages as a pipeline of processes and compare with what was predicted.

    Each stage is bound to its own core; the whole model runs first, as one stage.
    """
    from slicewise.app.files import check_outputs
    from slicewise.app.partitioning.running import run_pipeline_document
    from slicewise.flows.run_pipeline import RunOptions
    from slicewise.flows.run_pipeline import run_pipeline as run

    own = map(str, directory.iterdir()) if directory.is_dir() else ()
    check_outputs((output,), inputs=own)
    usual = RunOptions()
    asked = RunOptions(
        items=usual.items if items is None else items,
        warmup=usual.warmup if warmup is None else warmup,
        depth=usual.depth if depth is None else depth,
        threads=usual.threads if threads is None else threads,
        seed=usual.seed if seed is None else seed,
        time_limit_s=usual.time_limit_s if time_limit is None else time_limit,
    )
    with progress_shown(quiet=as_json) as progress:
        made = run(directory, options=asked, progress=progress)

    def report() -> None:
        from slicewise.app.partitioning.running import run_pipeline_report
        from slicewise.app.report import console

        console().print(run_pipeline_report(made))

    show(lambda: run_pipeline_document(made), report, as_json=as_json, output=output)
    bad = [each.name for each in made.outputs if not each.is_within]
    if bad:
        raise MeasureError(
            f"output {bad[0]!r} of the pipeline differs from the whole model's; check the stages"
            " with `slicewise partition --split DIR --check`"
        )
