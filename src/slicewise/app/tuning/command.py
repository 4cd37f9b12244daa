"""The command `tune`: options in, the flow called, a report and a page shown."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slicewise.app import options
from slicewise.app.arguments import (
    AsJson,
    BatchAxes,
    Dims,
    Here,
    Inputs,
    MeasuredPrecision,
    OneModel,
    Output,
    Threads,
)
from slicewise.app.partitioning.commands import words_of
from slicewise.app.show import progress as progress_shown
from slicewise.app.show import show
from slicewise.core.errors import UsageError
from slicewise.core.tuning import TuningStopped

if TYPE_CHECKING:
    from slicewise.flows.tuning.options import TuneOptions
    from slicewise.flows.tuning.result import MatrixResult, TuneResult

_LINE_S = 30.0  # between two lines of progress where there is no terminal
_GPU_SHARES = ("25", "50", "75", "100")


def tune(
    context: typer.Context,
    model: OneModel,
    device: Here = None,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="serving|tvm|triton",
            show_default=False,
            help="What tunes. serving (default): settings of onnxruntime and OpenVINO; tvm:"
            " MetaSchedule's kernels; triton: kernels on a GPU.",
        ),
    ] = "serving",
    share: Annotated[
        str | None,
        typer.Option(
            "--share",
            metavar="S|auto",
            help="Part of the device that it will be served on: 50 (percent), cores:0-1, mps:25,"
            " green:25, mig:UUID; auto finds the smallest that is about as quick as the whole."
            " Default: the whole.",
        ),
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option(
            "--clients",
            metavar="N",
            help="Processes that search and build, a core each. Default: as there are cores.",
        ),
    ] = None,
    servers: Annotated[
        int | None,
        typer.Option(
            "--servers",
            metavar="N",
            help="Processes that measure, each on a share of its own. Default: 1.",
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget",
            metavar="TIME",
            parser=options.parse_budget,
            help="Most time of tuning: seconds, or as in 90s, 30m, 1h. With neither this nor"
            " --trials, serving tries all there is and others go on for 10 minutes.",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option("--trials", metavar="N", help="Most candidates that are tried."),
    ] = None,
    fresh: Annotated[
        bool | None,
        typer.Option(
            "--fresh/--resume",
            show_default=False,
            help="Begin anew and take nothing from the store; or go on with the same run, which"
            " was interrupted or had a smaller budget.",
        ),
    ] = None,
    no_store: Annotated[
        bool,
        typer.Option(
            "--no-store", help="Neither take from nor add to the store of tuned configurations."
        ),
    ] = False,
    matrix: Annotated[
        bool,
        typer.Option(
            "--matrix",
            help="Measure the same candidates at several shares instead: what is tuned at one, run"
            " at another.",
        ),
    ] = False,
    shares: Annotated[
        list[str] | None,
        typer.Option(
            "--shares",
            metavar="S[,S...]",
            help="Shares of --matrix, as in 25,50,100. Default: halves of the cores; quarters of a"
            " GPU.",
        ),
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option(
            "--candidates",
            metavar="N",
            help="Candidates of each workload for --matrix. Default: 24.",
        ),
    ] = None,
    accuracy_data: Annotated[
        Path | None,
        typer.Option(
            "--accuracy-data",
            metavar="DIR|FILE.npz",
            help="Real inputs, an array NAME.npy for each, by which int8 is judged. Default: none,"
            " and no int8.",
        ),
    ] = None,
    least_agreement: Annotated[
        float,
        typer.Option(
            "--least-agreement",
            metavar="PART",
            show_default=False,
            help="Agreement with the outputs before that int8 must reach. Default: 0.99.",
        ),
    ] = 0.99,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="Setting of the engine."),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", metavar="N", help="Batch size. Default: the model's own, or 1."),
    ] = None,
    precision: MeasuredPrecision = None,
    threads: Threads = None,
    inputs: Inputs = None,
    dim: Dims = None,
    batch_axis: BatchAxes = None,
    seed: Annotated[
        int,
        typer.Option(
            "--seed", metavar="N", show_default=False, help="Seed of all chance. Default: 0."
        ),
    ] = 0,
    executor: Annotated[
        str,
        typer.Option(
            "--executor",
            metavar="local|ray|inline",
            show_default=False,
            help="Who carries clients and servers. Default: local, processes of this machine.",
        ),
    ] = "local",
    artifact: Annotated[
        Path | None,
        typer.Option(
            "--artifact",
            metavar="DIR",
            help="Folder that the tuned model is written into. Default: MODEL.tuned here.",
        ),
    ] = None,
    as_json: AsJson = False,
    output: Output = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Also write one self-contained page: gains, curve, where the time went.",
        ),
    ] = None,
) -> None:
    """Find what makes a model fastest on the very share of a device that it will be served on.

    Candidates run on that share, in processes of their own, while others search and build; the
    best are measured again alone. Ends with a model that runs, before and after, and whether the
    outputs are equal. Ctrl-C keeps every trial.
    """
    from slicewise.app.files import check_apart, check_outputs
    from slicewise.flows.tuning.options import TuneOptions

    check_outputs((output, html), inputs=[model])
    _check_together(
        matrix,
        of_matrix={"--shares": shares, "--candidates": candidates},
        of_tuning={
            "--share": share,
            "--clients": clients,
            "--servers": servers,
            "--budget": budget,
            "--trials": trials,
            "--fresh" if fresh else "--resume": fresh,
            "--no-store": no_store or None,
            "--artifact": artifact,
        },
    )
    if artifact is not None:
        _check_artifact(artifact)
        check_apart(artifact, model=model, outputs=(output, html, accuracy_data))
    asked = TuneOptions(
        engine=engine,
        share=share,
        clients=clients,
        servers=1 if servers is None else servers,
        trials=trials,
        seconds=budget,
        seed=seed,
        is_resumed=fresh is False,
        is_fresh=fresh is True,
        precision=precision,
        threads=threads,
        engine_options=options.parse_settings(option or [], has_lists=True),
        dims=options.parse_dims(dim or []),
        inputs=options.parse_inputs(inputs or []),
        batch_axes=options.parse_batch_axes(batch_axis or []),
        accuracy_data=accuracy_data,
        least_agreement=least_agreement,
        artifact=artifact,
        executor=executor,
        use_store=not no_store,
        candidates=TuneOptions().candidates if candidates is None else candidates,
    )
    arguments = words_of(context)
    if matrix:
        _run_matrix(
            model,
            _shares(shares, device),
            device=device,
            batch=batch,
            asked=asked,
            arguments=arguments,
            as_json=as_json,
            output=output,
            html=html,
        )
        return
    made = _run(model, device=device, batch=batch, asked=asked, as_json=as_json)
    _show(made, arguments=arguments, as_json=as_json, output=output, html=html)


def _run(
    model: str, *, device: str | None, batch: int | None, asked: "TuneOptions", as_json: bool
) -> "TuneResult":
    """Return the tuning; where it is interrupted, say what is kept and how to go on."""
    from slicewise.flows.tune import tune as run_tune

    try:
        with _told(quiet=as_json) as progress:
            return run_tune(model, device=device, batch=batch, options=asked, progress=progress)
    except TuningStopped as stopped:
        typer.echo(stopped_line(stopped), err=True)
        raise


def stopped_line(stopped: TuningStopped) -> str:
    """Return what is kept of an interrupted run, and how to go on.

    >>> stopped_line(TuningStopped(41, Path("tune/trials.jsonl")))
    'stopped; 41 trials are kept in tune/trials.jsonl; the same command with --resume goes on'
    """
    from slicewise.app.words import clean, counted

    are = "is" if stopped.trials == 1 else "are"
    kept = f"{counted(stopped.trials, 'trial')} {are} kept in {clean(str(stopped.journal))}"
    return f"stopped; {kept}; the same command with --resume goes on"


def _show(
    made: "TuneResult",
    *,
    arguments: Sequence[str],
    as_json: bool,
    output: Path | None,
    html: Path | None,
) -> None:
    if html is not None:
        from slicewise.app.files import write_atomically
        from slicewise.app.tuning.page import tune_page

        write_atomically(html, tune_page(made, arguments=arguments).encode("utf-8", "replace"))

    def document() -> dict[str, object]:
        from slicewise.app.tuning.documents import tune_document

        return tune_document(made)

    def report() -> None:
        from slicewise.app.report import console
        from slicewise.app.tuning.report import tune_report

        shown = console()
        shown.print(tune_report(made, width=shown.width))

    show(document, report, as_json=as_json, output=output)


def _run_matrix(
    model: str,
    shares: Sequence[str],
    *,
    device: str | None,
    batch: int | None,
    asked: "TuneOptions",
    arguments: Sequence[str],
    as_json: bool,
    output: Path | None,
    html: Path | None,
) -> None:
    """Measure the matrix and show it."""
    from slicewise.flows.tune_matrix import tune_matrix

    with _told(quiet=as_json) as progress:
        made: MatrixResult = tune_matrix(
            model, shares=shares, device=device, batch=batch, options=asked, progress=progress
        )
    if html is not None:
        from slicewise.app.files import write_atomically
        from slicewise.app.tuning.matrix_page import matrix_page

        write_atomically(html, matrix_page(made, arguments=arguments).encode("utf-8", "replace"))

    def document() -> dict[str, object]:
        from slicewise.app.tuning.documents import matrix_document

        return matrix_document(made)

    def report() -> None:
        from slicewise.app.report import console
        from slicewise.app.tuning.matrix_report import matrix_report

        console().print(matrix_report(made))

    show(document, report, as_json=as_json, output=output)


def _check_together(
    is_matrix: bool,
    *,
    of_matrix: dict[str, object],
    of_tuning: dict[str, object],
) -> None:
    """Raise `UsageError` for an option that would say nothing beside `--matrix`, or without."""
    others = of_tuning if is_matrix else of_matrix
    said_nothing = [name for name, value in others.items() if value not in (None, [])]
    if not said_nothing:
        return
    name = said_nothing[0]
    if not is_matrix:
        raise UsageError(f"{name} is of --matrix; give --matrix too, or leave {name} out")
    instead = {
        "--share": "; name the shares with --shares 25,50,100",
        "--trials": "; --candidates 24 says how many of each workload",
        "--budget": "; --candidates 24 says how many of each workload",
    }.get(name, "")
    raise UsageError(
        f"--matrix measures one set of candidates at every share and tunes nothing, so that {name}"
        f" says nothing{instead}; leave {name} out"
    )


def _shares(values: Sequence[str] | None, device: str | None) -> list[str]:
    """Return the shares of a matrix, the default ones where none is named; at least two."""
    named = options.parse_shares(values or [])
    if any(each.lower() == "auto" for each in named):
        raise UsageError("--shares auto is no share of a matrix; write --shares 25,50,100")
    if len({each.rstrip("% ") for each in named}) < len(named):
        raise UsageError(f"--shares {','.join(named)} names a share twice; give each once")
    if len(named) == 1:
        raise UsageError(
            f"--shares {named[0]} is one share, and a matrix compares at least two; write --shares"
            f" {named[0]},100"
        )
    return named or _usual_shares(device)


def _usual_shares(device: str | None) -> list[str]:
    """Return quarters of a GPU; of a CPU one core, twice as many, up to all, in percent."""
    from slicewise.flows.measure import target_here

    target = target_here(device)
    if target.place != "cpu":
        return list(_GPU_SHARES)
    from slicewise.flows.tuning.task import cores_of

    count = len(cores_of(target))
    numbers = [count]
    while numbers[-1] > 1:
        numbers.append(numbers[-1] // 2)
    if len(numbers) < 2:
        raise UsageError(
            "--matrix compares shares of the cores, and this process may use one; give it more, or"
            " another --device"
        )
    return [f"{100 * number / count:.6g}" for number in reversed(numbers)]


def _check_artifact(folder: Path) -> None:
    """Raise `UsageError` for a folder that has no place; what it may replace the flow says."""
    from slicewise.app.files import resolved

    parent = resolved(folder).parent
    if not parent.is_dir():
        raise UsageError(
            f"--artifact {str(folder)!r}: the folder {str(parent)!r} is not there; make it"
        )


@contextmanager
def _told(*, quiet: bool) -> Iterator[Callable[[str], None] | None]:
    """Yield a reporter of what is being done: a spinner, or a line to a log now and then."""
    with progress_shown(quiet=quiet) as shown:
        yield shown if shown is not None or quiet else Lines()


class Lines:
    """Writes to stderr what is being done, one line in half a minute: a run may take hours."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._last_s = now, now()

    def __call__(self, words: str) -> None:
        if self._now() - self._last_s >= _LINE_S:
            self._last_s = self._now()
            sys.stderr.write(f"{words}\n")
            sys.stderr.flush()
