"""The command `calibrate`: records in, a device card out, errors before and after shown."""

import os
from typing import Annotated

import typer

from slicewise.app.arguments import AsJson, Output
from slicewise.app.measuring.commands import Here, Store
from slicewise.app.show import progress as progress_shown
from slicewise.app.show import show


def calibrate(
    device: Here = None,
    campaign: Annotated[
        str | None,
        typer.Option("--campaign", metavar="NAME", help="Learn from this campaign only."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep/--no-keep", help="Keep the card, so that predict uses it.")
    ] = True,
    store: Store = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Learn from the records of this device, so that predict knows it.

    Shows the error of models that were held out, with and without the card.
    """
    from slicewise.app.files import check_outputs
    from slicewise.app.measuring.calibrate_report import calibrate_document, calibrate_report
    from slicewise.flows.calibrate import calibrate as run_calibrate

    check_outputs((output,), inputs=[])
    with progress_shown(quiet=as_json or "NO_COLOR" in os.environ) as progress:
        found = run_calibrate(
            device=device, store=store, campaign=campaign, keep=keep, progress=progress
        )

    def report() -> None:
        from slicewise.app.report import console

        console().print(calibrate_report(found))

    show(lambda: calibrate_document(found), report, as_json=as_json, output=output)
