"""The road from a campaign's options to its progress lines and its summary."""

import shutil
import sys
import time
from pathlib import Path

import typer

from slicewise.app.options import store_path
from slicewise.app.show import reason_once, show
from slicewise.app.words import clean, counted
from slicewise.core.errors import MeasureError, UsageError
from slicewise.flows.campaign import (
    CampaignProgress,
    CampaignResult,
    prepare_campaign,
    run_campaign,
)
from slicewise.flows.campaign_spec import read_spec

_SHOWN_FAILURES = 10
_LINE_S = 30.0  # between two lines of progress where there is no terminal


class _Teller:
    """Writes progress to stderr: one line that is renewed on a terminal, else one now and then."""

    def __init__(self) -> None:
        self.last_s = 0.0
        self.seen: CampaignProgress | None = None

    def __call__(self, progress: CampaignProgress) -> None:
        self.seen = progress
        line = progress_line(progress)
        if sys.stderr.isatty():
            # a line that wraps could not be renewed
            width = shutil.get_terminal_size().columns
            sys.stderr.write(f"\r\x1b[K{line[: width - 1]}")
            sys.stderr.flush()
        elif time.monotonic() - self.last_s >= _LINE_S or progress.seconds_left == 0:
            self.last_s = time.monotonic()
            typer.echo(line, err=True)

    def finish(self) -> None:
        if self.seen is not None and sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")


def progress_line(progress: CampaignProgress) -> str:
    """Return '12 of 80 points, 1 failed, 3 min left: resnet50, batch 8'."""
    words = [f"{progress.done:,} of {progress.points:,} points"]
    if progress.failed:
        words.append(f"{progress.failed} failed")
    if progress.seconds_left is not None:
        words.append(f"{duration(progress.seconds_left)} left")
    return f"{', '.join(words)}: {clean(progress.last)}"


def duration(seconds: float) -> str:
    """Return a time for people: '40 s', '12 min', '3 h 5 min'."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def run(
    path: Path,
    *,
    store: Path | None,
    fresh: bool,
    retry: bool,
    limit: int | None,
    executor: str | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Run a campaign, tell how far it is, and show what became of it."""
    from slicewise.execute._base import make_executor

    spec = read_spec(path)
    if workers is not None and workers < 1:
        raise UsageError(f"--workers {workers} is not a positive number; write --workers 2")
    if workers is not None and workers > 1 and executor is None:
        raise UsageError(
            f"--workers {workers} would measure {workers} points at once on the same cores; give"
            " --executor ray for other machines, or --executor local if that is what you want"
        )
    carrier = None if executor is None else make_executor(executor, workers=workers or 1)
    teller = _Teller()
    try:
        result = run_campaign(
            spec,
            executor=carrier,
            store=store,
            fresh=fresh,
            retry=retry,
            limit=limit,
            progress=teller,
        )
    except KeyboardInterrupt:
        teller.finish()
        if teller.seen is not None:
            kept = f"{teller.seen.done:,} of {teller.seen.points:,} points are kept"
            goes_on = (
                "--fresh would measure them anew"
                if fresh
                else "the same command goes on from there"
            )
            typer.echo(f"{kept}; {goes_on}", err=True)
        raise
    teller.finish()
    show(
        lambda: campaign_document(result),
        lambda: _report(result, store),
        as_json=as_json,
        output=None,
    )
    measured = sum(result.outcomes.values())
    if measured and len(result.failures) == measured:
        reason = reason_once(f"the first: {result.failures[0]}", as_json=as_json)
        raise MeasureError(f"no point could be measured; {reason}")


def run_preparation(path: Path, *, as_json: bool) -> None:
    """Read and export the models of a campaign and tell which cannot be."""
    spec = read_spec(path)
    prepared = 0

    def tell(what: str, number: int, count: int) -> None:
        nonlocal prepared
        prepared = count
        typer.echo(f"{number:,} of {count:,}: {clean(what)}", err=True)

    failures = prepare_campaign(spec, progress=tell)
    document: dict[str, object] = {
        "schema": "slicewise.campaign-preparation/1",
        "name": spec.name,
        "prepared": prepared - len(failures),
        "failures": list(failures),
    }
    show(
        lambda: document,
        lambda: typer.echo(_ready_lines(spec.name, failures)),
        as_json=as_json,
        output=None,
    )
    if failures and len(failures) == prepared:
        reason = reason_once(f"the first: {failures[0]}", as_json=as_json)
        raise MeasureError(f"no model can be measured; {reason}")


def _ready_lines(name: str, failures: tuple[str, ...]) -> str:
    if not failures:
        return f"{clean(name)}: every model is ready to be measured"
    lines = [f"{clean(name)}: {counted(len(failures), 'model')} cannot be measured"]
    return "\n".join([*lines, *(f"  {clean(failure)}" for failure in failures)])


def campaign_document(result: CampaignResult) -> dict[str, object]:
    """Return `slicewise.campaign/1`."""
    return {
        "schema": "slicewise.campaign/1",
        "name": result.name,
        "points": result.points,
        "done_before": result.done_before,
        "outcomes": {str(outcome): count for outcome, count in result.outcomes.items()},
        "failures": list(result.failures),
        "seconds": result.seconds,
    }


def _report(result: CampaignResult, store: Path | None) -> None:
    measured = sum(result.outcomes.values())
    told = ", ".join(f"{count} {outcome}" for outcome, count in result.outcomes.items())
    open_points = result.points - result.done_before - measured
    lines = [
        f"{clean(result.name)}: {counted(measured, 'point')} done"
        f"{f' ({told})' if told else ''} in {duration(result.seconds)}"
        f"{f', {result.done_before:,} were there before' if result.done_before else ''}"
        f"{f', {open_points:,} still open' if open_points else ''}",
        f"Kept in {store_path(store)}; `slicewise records list` shows them,"
        " `slicewise calibrate` learns from them.",
    ]
    for failure in result.failures[:_SHOWN_FAILURES]:
        lines.append(f"  failed: {clean(failure)}")
    if len(result.failures) > _SHOWN_FAILURES:
        lines.append(f"  and {len(result.failures) - _SHOWN_FAILURES} more; --json has all")
    typer.echo("\n".join(lines))
