"""The command line: parse, call a flow, show. One place turns errors into lines and exit codes."""

import io
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from slicewise._version import __version__
from slicewise.app.arguments import (
    AsJson,
    BatchAxes,
    Batches,
    CardOption,
    Devices,
    Dims,
    Explain,
    Html,
    Inputs,
    LayoutOption,
    Models,
    OneModel,
    Output,
    PrecisionOption,
    PredictorOption,
    RuntimeOption,
    Strict,
    Trace,
)
from slicewise.app.measuring.calibrating import calibrate
from slicewise.app.measuring.commands import campaign, measure
from slicewise.app.measuring.judging import check, compare
from slicewise.app.partitioning.commands import partition
from slicewise.app.partitioning.run_command import run_pipeline
from slicewise.app.records_command import records_app
from slicewise.app.show import progress as progress_shown
from slicewise.app.show import show
from slicewise.app.slicing.collocate_command import collocate
from slicewise.app.slicing.fit_command import fit
from slicewise.app.slicing.pack_command import pack
from slicewise.app.tuning.command import tune
from slicewise.core.errors import SlicewiseError, UsageError

app = typer.Typer(
    name="slicewise",
    help="Right-size deep-learning inference: ask before you run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"slicewise {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Right-size deep-learning inference: ask before you run."""


@app.command()
def predict(
    models: Models,
    device: Devices = None,
    batch: Batches = None,
    precision: PrecisionOption = None,
    runtime: RuntimeOption = None,
    layout: LayoutOption = "nchw",
    inputs: Inputs = None,
    dim: Dims = None,
    batch_axis: BatchAxes = None,
    card: CardOption = None,
    predictor: PredictorOption = "learned",
    explain: Explain = False,
    strict: Strict = False,
    as_json: AsJson = False,
    output: Output = None,
    html: Html = None,
    trace: Trace = None,
) -> None:
    """Predict latency, energy and memory without running anything.

    Several models, devices and batches make one table.
    """
    from slicewise.app import options
    from slicewise.app.files import check_outputs, write_atomically
    from slicewise.flows.predict import PredictOptions, predict_many

    check_outputs((output, html, trace), inputs=models)
    names = options.parse_names("--device", device or [], "a100-sxm4-80gb")
    with progress_shown(quiet=as_json) as progress:
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
        result = predict_many(
            models,
            devices=names or [None],
            batches=options.parse_batches(batch or []),
            options=asked,
            progress=progress,
        )
        if html is not None:
            from slicewise.app.html.predict.command import encode_page

            written = encode_page(models, names, result, options=asked, progress=progress)
            write_atomically(html, written)
    if trace is not None:
        from slicewise.app.trace import encode_trace

        write_atomically(trace, encode_trace(result))
    from slicewise.app import documents

    def document() -> documents.Json:
        return documents.predict_document(result, nodes=explain)

    def report() -> None:
        from slicewise.app import report

        console = report.console()
        console.print(report.predict_report(result, explain=explain, width=console.width))

    show(document, report, as_json=as_json, output=output)


@app.command(short_help="Sweep models, devices, batches, precisions; find the Pareto front.")
def explore(
    models: Models,
    device: Devices = None,
    batch: Batches = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(metavar="P[,P...]", help="Precisions. Default: the model's own."),
    ] = None,
    runtime: Annotated[
        list[str] | None,
        typer.Option(
            metavar="R[,R...]",
            help="Runtimes, with a version as in torch-eager@2.4, or without. Default: that of the"
            " model's format.",
        ),
    ] = None,
    layout: Annotated[
        list[str] | None,
        typer.Option(
            metavar="L[,L...]",
            help="Memory formats of images: nchw, nhwc (channels last). Default: nchw.",
        ),
    ] = None,
    inputs: Inputs = None,
    dim: Dims = None,
    batch_axis: BatchAxes = None,
    pareto: Annotated[
        list[str] | None,
        typer.Option(
            metavar="O[,O...]",
            help="What the front trades: latency, throughput, energy (per item), memory."
            " Default: all four.",
        ),
    ] = None,
    per_model: Annotated[
        bool, typer.Option("--per-model", help="One front for each model instead of one for all.")
    ] = False,
    latency_ms: Annotated[
        float | None,
        typer.Option(metavar="MS", help="Keep slower points out of the front."),
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Keep larger points out of the front, as in 20GiB."),
    ] = None,
    card: CardOption = None,
    predictor: PredictorOption = "learned",
    csv: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="Write one row for each point here."),
    ] = None,
    as_json: AsJson = False,
    output: Output = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write one self-contained page of charts."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", help="Processes. Default: one for each core, as work allows."),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh/--resume",
            help="Begin anew, or go on from FILE.partial, which an interrupted run left beside"
            " its result.",
        ),
    ] = False,
) -> None:
    """Predict every combination of models, devices, batches, precisions, runtimes and layouts.

    Shows the points that no other beats in all objectives (the Pareto front). A combination that
    cannot be is a row with its reason.
    """
    from slicewise.app.explore_command import ExploreArguments, refuse_if_nothing, run_sweep

    given = ExploreArguments(
        models, device or (), batch or (), precision or (), runtime or (), layout or (),
        inputs or (), dim or (), batch_axis or (), pareto or (), latency_ms, memory_limit,
        per_model, card, predictor, workers, fresh, csv, output, html,
    )  # fmt: skip
    with progress_shown(quiet=as_json) as progress:
        result = run_sweep(given, progress=progress, say=lambda words: typer.echo(words, err=True))

    def document() -> dict[str, object]:
        from slicewise.app import explore_documents

        return explore_documents.explore_document(result)

    def report() -> None:
        from slicewise.app import explore_report
        from slicewise.app.report import console

        shown = console()
        shown.print(explore_report.explore_report(result, width=shown.width))

    if as_json:
        show(document, report, as_json=True, output=None)
    refuse_if_nothing(result)
    if not as_json:
        report()


@app.command(short_help="Say how each operator of a model is priced.")
def support(
    model: OneModel,
    batch: Batches = None,
    inputs: Inputs = None,
    dim: Dims = None,
    batch_axis: BatchAxes = None,
    as_json: AsJson = False,
) -> None:
    """Say how each operator of a model is priced: by a formula, by bytes only, or not at all."""
    from slicewise.app import documents, options
    from slicewise.flows.support import support as find_support

    batches = options.parse_batches(batch or [])
    if len(batches) > 1:
        raise UsageError("support takes one --batch; coverage is the same for all")
    result = find_support(
        model,
        batch=batches[0],
        dims=options.parse_dims(dim or []),
        inputs=options.parse_inputs(inputs or []),
        batch_axes=options.parse_batch_axes(batch_axis or []),
    )

    def report() -> None:
        from slicewise.app import report

        report.console().print(report.support_report(result))

    show(lambda: documents.support_document(result), report, as_json=as_json, output=None)


@app.command(short_help="List the devices, or show one with slices and sources.")
def devices(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One device, slice, share or file.")
    ] = None,
    layouts: Annotated[
        bool, typer.Option("--layouts", help="Draw every way to cut the card into MIG slices.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the devices of the catalogue, or show one with its slices and sources."""
    from slicewise.app import documents
    from slicewise.flows.devices import device, devices

    found = devices() if name is None else (device(name),)
    if layouts:
        from slicewise.app.slicing.layouts_report import check_sliceable

        check_sliceable(found)

    def document() -> documents.Json:
        made = documents.devices_document(found)
        if layouts:
            from slicewise.app.slicing.layouts_report import with_layouts

            made = with_layouts(made, found[0])
        return made

    def report() -> None:
        from slicewise.app import report

        if layouts:
            from slicewise.app.slicing.layouts_report import layouts_report

            made = layouts_report(found[0])
        else:
            made = report.devices_report(found) if name is None else report.device_report(found[0])
        report.console().print(made)

    show(document, report, as_json=as_json, output=None)


app.command(short_help="Find the smallest MIG slice on which a model meets a target.")(fit)
app.command(short_help="Put many models on the fewest GPUs: slices, batches, processes, a bound.")(
    pack
)
app.command(short_help="Compare ways for two models to share one GPU.")(collocate)
app.command(short_help="Cut a model into pipeline stages, with a proof of how good the cut is.")(
    partition
)
app.command(
    name="run-pipeline", short_help="Run split stages as a pipeline, measured beside predicted."
)(run_pipeline)
app.command(short_help="Tune a model on the very share that it will be served on.")(tune)
app.command(short_help="Run a model on this machine: latency, memory, energy.")(measure)
app.command(short_help="Measure many models under many conditions; goes on where it stopped.")(
    campaign
)
app.command(short_help="Learn from the records of this device, so that predict knows it.")(
    calibrate
)
app.command(short_help="Predict, measure, and explain the difference by operators.")(check)
app.command(short_help="Tell which of two cases is faster, if either is.")(compare)
app.add_typer(records_app, name="records")


def main() -> None:
    """Run the command line and exit with the code of the error tree."""
    sys.exit(run(sys.argv[1:]))


_INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def run(arguments: list[str]) -> int:
    """Return the exit code of one command line; a user's mistake prints one line on stderr."""
    if sys.stdout is None:  # closed by the caller (>&-)
        return _fail("stdout is closed; redirect it to a file or to /dev/null", 1)
    _tolerate_any_text()
    try:
        code = app(args=arguments, prog_name="slicewise", standalone_mode=False)
        if code == _INTERRUPTED:  # newer releases of typer turn Ctrl-C into this
            return _fail("interrupted", _INTERRUPTED)
        sys.stdout.flush()
    except SlicewiseError as err:
        return _fail(str(err), err.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted", _INTERRUPTED)
    except BrokenPipeError:
        _silence_stdout()  # the reader (head, less) went away: not an error
        return 0
    except _CLICK_ERRORS as err:
        return _usage(err)
    except OSError as err:
        # What reads and writes files maps its own errors: this is the terminal, pipe or disk that
        # the report goes to.
        _silence_stdout()
        return _fail(f"cannot write the report: {err.strerror or err}; free or redirect stdout", 1)
    return code if isinstance(code, int) else 0


def _tolerate_any_text() -> None:
    """Let names in any encoding be printed, escaped where the terminal cannot show them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _silence_stdout() -> None:
    """Keep the interpreter's own flush at exit from failing again."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return  # not a real file: nothing will be flushed


# Newer releases of typer carry their own copy of click, so its classes are taken from typer.
_CLICK_ERRORS: tuple[type[Exception], ...] = (
    *(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException"),
    typer.Abort,
)


def _usage(err: Exception) -> int:
    if isinstance(err, typer.Abort):
        return _fail("interrupted", _INTERRUPTED)
    show = getattr(err, "format_message", None)
    message = show() if callable(show) else str(err)
    if type(err).__name__ == "NoArgsIsHelpError":
        typer.echo(message)
        return 0
    return _fail(f"{message.rstrip('.')}; `slicewise COMMAND --help` shows what there is", 2)


def _fail(message: str, code: int) -> int:
    line = "".join(c if c.isprintable() else " " for c in " ".join(message.split()))
    if sys.stderr is not None:
        sys.stderr.write(f"error: {line}\n")
    return code
