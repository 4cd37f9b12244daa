"""The commands of `slicewise records`: parse, call the flow, show."""

import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Annotated

import typer

from slicewise.app.arguments import AsJson, Store
from slicewise.app.options import store_path
from slicewise.app.show import show
from slicewise.core.errors import StoreError, UsageError

if TYPE_CHECKING:
    from slicewise.core.measurement import Outcome
    from slicewise.store.keys import Conditions

records_app = typer.Typer(
    name="records",
    help="List, show, export, import and remove what was measured.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_SHOWN = 50  # records in a table unless told otherwise; --json and export have all

Model = Annotated[
    str | None,
    typer.Option(metavar="PATTERN", help="Name or place of the model, as in 'resnet*'."),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(metavar="D", help="Device, or a part of it: NAME, NAME@50%, NAME/2g.20gb."),
]
Runtime = Annotated[str | None, typer.Option(metavar="R", help="Runtime.")]
Batch = Annotated[int | None, typer.Option(metavar="N", min=1, help="Batch size.")]
PrecisionOption = Annotated[str | None, typer.Option(metavar="P", help="Precision.")]
OutcomeOption = Annotated[
    str | None,
    typer.Option(metavar="O", help="ok, refused, crashed, out-of-memory or timed-out."),
]
Campaign = Annotated[str | None, typer.Option(metavar="NAME", help="Campaign.")]
Since = Annotated[
    str | None,
    typer.Option(metavar="DATE", help="Added on this day or later (UTC), as in 2026-11-30."),
]
Latest = Annotated[
    bool, typer.Option("--latest", help="Only the last record under the same conditions.")
]
Ids = Annotated[list[int], typer.Argument(metavar="ID...", help="Numbers of records.")]


@records_app.command("list", short_help="List records, the last added last.")
def list_command(
    model: Model = None,
    device: DeviceOption = None,
    runtime: Runtime = None,
    batch: Batch = None,
    precision: PrecisionOption = None,
    outcome: OutcomeOption = None,
    campaign: Campaign = None,
    since: Since = None,
    latest: Latest = False,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="At most the last N. Default: 50; --json: all."),
    ] = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """List the records that meet all conditions given, the last added last."""
    from slicewise.flows.records import list_records

    asked = _conditions(model, device, runtime, batch, precision, outcome, campaign, since, latest)
    asked["limit"] = _SHOWN if limit is None and not as_json else limit
    found = list_records(store, asked)

    def document() -> dict[str, object]:
        from slicewise.app.records_documents import records_document

        return records_document(found)

    def report() -> None:
        from slicewise.app.records_report import records_report
        from slicewise.app.report import console

        shown = console()
        shown.print(records_report(found, width=shown.width))

    show(document, report, as_json=as_json, output=None)


@records_app.command("show", short_help="Show all of one record.")
def show_command(
    number: Annotated[int, typer.Argument(metavar="ID", help="Number of the record.")],
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Show all of one record: samples, memory, operators, environment, notes."""
    from slicewise.flows.records import show_record

    record = show_record(store, number)

    def document() -> dict[str, object]:
        from slicewise.app.records_documents import record_document

        return record_document(record)

    def report() -> None:
        from slicewise.app.records_report import record_report
        from slicewise.app.report import console

        console().print(record_report(record))

    show(document, report, as_json=as_json, output=None)


@records_app.command("export", short_help="Write records to a file (JSON lines, parquet).")
def export_command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where to; - is stdout, .parquet is parquet.")
    ],
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="F", help="jsonl or parquet. Default: by the name."),
    ] = None,
    model: Model = None,
    device: DeviceOption = None,
    runtime: Runtime = None,
    batch: Batch = None,
    precision: PrecisionOption = None,
    outcome: OutcomeOption = None,
    campaign: Campaign = None,
    since: Since = None,
    latest: Latest = False,
    store: Store = None,
) -> None:
    """Write the records that meet all conditions given; another store imports them as they are."""
    from slicewise.app.files import check_writable
    from slicewise.flows.records import export_records

    asked = _conditions(model, device, runtime, batch, precision, outcome, campaign, since, latest)
    chosen = form or ("parquet" if file.suffix.lower() == ".parquet" else "jsonl")
    if str(file) == "-":
        count = export_records(store, sys.stdout.buffer, asked, form=chosen)
        sys.stdout.flush()
        typer.echo(_exported(count, "stdout"), err=True)
        return
    check_writable(file)
    _refuse_store(file, store)
    count = export_records(store, file, asked, form=chosen)
    typer.echo(_exported(count, str(file)))


@records_app.command("import", short_help="Add records that were exported elsewhere.")
def import_command(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Files that `export` wrote; - is stdin."),
    ],
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Add the records of exported files; one that is there already is not added twice."""
    from slicewise.flows.records import import_records

    done = import_records(store, files)

    def document() -> dict[str, object]:
        from slicewise.app.records_documents import import_document

        return import_document(done)

    def report() -> None:
        from slicewise.app.records_report import import_report
        from slicewise.app.report import console

        console().print(import_report(done, str(store_path(store))))

    show(document, report, as_json=as_json, output=None)
    bad = [(path, made.bad[0]) for path, made in done if made.bad]
    if bad:
        path, first = bad[0]
        count = sum(len(made.bad) for _, made in done)
        raise StoreError(
            f"{count:,} line{'s are no records' if count > 1 else ' is no record'}, the first is"
            f" line {first.number} of {str(path)!r}: {first.reason}; all others are kept"
        )


@records_app.command("remove", short_help="Remove records by number.")
def remove_command(numbers: Ids, store: Store = None) -> None:
    """Remove records by number; if one is unknown, none is removed."""
    from slicewise.app.words import counted
    from slicewise.flows.records import remove_records

    removed = remove_records(store, sorted(set(numbers)))
    typer.echo(f"{counted(removed, 'record')} removed")


def _exported(count: int, place: str) -> str:
    from slicewise.app.words import clean, counted

    return f"{counted(count, 'record')} written to {clean(place)}"


def _refuse_store(file: Path, store: Path | None) -> None:
    """Raise `UsageError` if the export would replace the store itself."""
    from slicewise.app.files import resolved

    if resolved(file) == resolved(store_path(store)):
        raise UsageError(f"output {str(file)!r} is the record store itself; give another file")


def _conditions(
    model: str | None,
    device: str | None,
    runtime: str | None,
    batch: int | None,
    precision: str | None,
    outcome: str | None,
    campaign: str | None,
    since: str | None,
    latest: bool,
) -> "Conditions":
    for option, value in (
        ("--model", model), ("--device", device), ("--runtime", runtime),
        ("--precision", precision), ("--campaign", campaign),
    ):  # fmt: skip
        if value is not None and not value.strip():
            raise UsageError(f"{option} is empty (an unset shell variable?); leave it out")
    name, part = _device(device)
    return {
        "model": model,
        "device": name,
        "slice": part,
        "runtime": runtime,
        "batch": batch,
        "precision": precision,
        "outcome": None if outcome is None else _outcome(outcome),
        "campaign": campaign,
        "since": None if since is None else _since(since),
        "latest": latest,
    }


def _device(text: str | None) -> tuple[str | None, str | EllipsisType]:
    """Return the device and its part, as `NAME@50%` and `NAME/2g.20gb` name them."""
    if text is None:
        return None, ...
    match = re.fullmatch(r"(.+?)(?:@([0-9.]+%)|/([^/]+))", text)
    return (text, ...) if match is None else (match[1], match[2] or match[3])


def _outcome(text: str) -> "Outcome":
    from slicewise.core.measurement import Outcome
    from slicewise.core.plugins import did_you_mean

    names = {outcome.value.replace(" ", "-"): outcome for outcome in Outcome}
    wanted = text.strip().lower().replace(" ", "-")
    if wanted not in names:
        raise UsageError(
            f"--outcome {text!r} is unknown; it is one of {', '.join(names)}"
            f"{did_you_mean(wanted, names)}"
        )
    return names[wanted]


def _since(text: str) -> str:
    """Return a day or time as it is kept: UTC, in full."""
    try:
        given = datetime.fromisoformat(text)
        utc = given.replace(tzinfo=UTC) if given.tzinfo is None else given.astimezone(UTC)
    except (ValueError, OverflowError) as err:
        raise UsageError(
            f"--since {text!r} is no date; write --since 2026-11-30 or --since 2026-11-30T08:00"
        ) from err
    return utc.isoformat(timespec="microseconds").replace("+00:00", "Z")
