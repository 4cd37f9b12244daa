"""The command `calibrate`: records in, a device card out, errors before and after shown."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slicewise.app.arguments import AsJson, Here, Output, Store
from slicewise.app.show import progress as progress_shown
from slicewise.app.show import show

if TYPE_CHECKING:
    from slicewise.flows.calibrate import FamilyOf


def calibrate(
    device: Here = None,
    campaign: Annotated[
        str | None,
        typer.Option(
            "--campaign",
            metavar="NAME|SPEC",
            help="Learn from this campaign only; a file also tells the families of its models.",
        ),
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
    name, family_of = _campaign(campaign)
    with progress_shown(quiet=as_json) as progress:
        found = run_calibrate(
            device=device,
            store=store,
            campaign=name,
            keep=keep,
            family_of=family_of,
            progress=progress,
        )

    def report() -> None:
        from slicewise.app.report import console

        console().print(calibrate_report(found))

    show(lambda: calibrate_document(found), report, as_json=as_json, output=output)


def _campaign(text: str | None) -> "tuple[str | None, FamilyOf | None]":
    """Return the name of a campaign, and how its file groups models where one is given."""
    if text is None or not Path(text).is_file():
        return text, None
    from slicewise.flows.calibrate import families
    from slicewise.flows.campaign_spec import read_spec

    spec = read_spec(Path(text))
    return spec.name, families({model.location: model.family for model in spec.models})
