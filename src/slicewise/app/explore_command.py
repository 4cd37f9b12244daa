"""The road from the options of `explore` to its files and its report."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slicewise.app import options
from slicewise.app.files import check_outputs, resolved, write_atomically
from slicewise.app.words import as_argument
from slicewise.core.conditions import USUAL
from slicewise.core.errors import (
    DeviceError,
    ModelError,
    PredictionError,
    SlicewiseError,
    UsageError,
)
from slicewise.core.exploration import Exploration, Objective
from slicewise.core.units import parse_bytes
from slicewise.execute._base import choose_executor
from slicewise.flows.explore import ExploreOptions, Record, explore

Say = Callable[[str], None]
# What a point can fail with; the exit code tells which.
_KINDS = (UsageError, ModelError, DeviceError, PredictionError)


@dataclass(frozen=True, slots=True)
class ExploreArguments:
    """The words of the command line, not looked at yet."""

    models: Sequence[str]
    devices: Sequence[str]
    batches: Sequence[str]
    precisions: Sequence[str]
    runtimes: Sequence[str]
    layouts: Sequence[str]
    inputs: Sequence[str]
    dims: Sequence[str]
    batch_axes: Sequence[str]
    objectives: Sequence[str]
    latency_limit_ms: float | None
    memory_limit: str | None
    per_model: bool
    card: str | None
    predictor: str
    workers: int | None
    fresh: bool
    csv: Path | None
    output: Path | None
    html: Path | None

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that are written, the first one beside the journal."""
        return tuple(path for path in (self.csv, self.output, self.html) if path is not None)


def run_sweep(given: ExploreArguments, *, progress: Say | None, say: Say) -> Exploration:
    """Return the sweep; its files are written and its journal is gone.

    `progress` is told what is being done, `say` what a person should know. A sweep none of whose
    points is possible is written like any other; `refuse_if_nothing` tells.
    """
    record = _record(given, say)
    check_outputs(given.files, inputs=given.models)
    if record is not None:
        _refuse_as_journal(record.path, given)
    done = (0, 0)

    def tell(points: int, all_points: int) -> None:
        nonlocal done
        done = (points, all_points)
        if progress is not None:
            progress(f"{points:,} of {all_points:,} points")

    try:
        result = explore(
            given.models,
            devices=options.parse_names("--device", given.devices, "a100-sxm4-80gb") or [None],
            batches=options.parse_batches(given.batches),
            options=_options(given),
            executor=choose_executor(_workers(given.workers)),
            record=record,
            progress=tell,
        )
    except KeyboardInterrupt:
        if record is not None and done[0]:
            say(
                f"{done[0]:,} of {done[1]:,} points are kept in {str(record.path)!r}; the same"
                " command goes on from there"
            )
        raise
    _write(given, result)
    if record is not None:
        record.discard()
    return result


def refuse_if_nothing(result: Exploration) -> None:
    """Raise the first reason if not one point is possible."""
    first = result.points[0].failure
    if first is None or any(point.failure is None for point in result.points):
        return
    kind = next((cls for cls in _KINDS if cls.exit_code == first.exit_code), SlicewiseError)
    others = len({p.failure.reason for p in result.points if p.failure is not None}) - 1
    more = f" (and {others} more reasons; the rows have them)" if others else ""
    raise kind(
        f"none of the {len(result.points):,} points is possible: {first.reason}{more}"
        if len(result.points) > 1
        else first.reason
    )


def _options(given: ExploreArguments) -> ExploreOptions:
    limit_ms = given.latency_limit_ms
    if limit_ms is not None and not 0 < limit_ms < math.inf:
        raise UsageError(
            f"--latency-ms {limit_ms:g} is not a positive time; write --latency-ms 20"
        )
    limit_bytes = None if given.memory_limit is None else parse_bytes(given.memory_limit)
    if limit_bytes == 0:
        raise UsageError(
            f"--memory-limit {given.memory_limit} leaves nothing; write --memory-limit 20GiB"
        )
    return ExploreOptions(
        precisions=options.parse_names("--precision", given.precisions, "fp16") or [None],
        runtimes=options.parse_names("--runtime", given.runtimes, "tensorrt") or [None],
        dims=options.parse_dims(given.dims),
        inputs=options.parse_inputs(given.inputs),
        batch_axes=options.parse_batch_axes(given.batch_axes),
        objectives=options.parse_names("--pareto", given.objectives, "latency,energy")
        or tuple(Objective),
        latency_limit_ms=limit_ms,
        memory_limit_bytes=limit_bytes,
        per_model=given.per_model,
        card=given.card,
        predictor=given.predictor,
        layouts=options.parse_names("--layout", given.layouts, "nchw,nhwc") or [USUAL.layout],
    )


def _workers(workers: int | None) -> int | None:
    if workers is not None and workers < 1:
        raise UsageError(f"--workers {workers} is not a positive number; write --workers 2")
    return workers


def _record(given: ExploreArguments, say: Say) -> Record | None:
    """Return the journal beside the first file that is written; a pipe or terminal has none."""
    path = next(iter(given.files), None)
    if path is None or (path.exists() and not path.is_file()):
        return None

    def resumed(points: int, all_points: int) -> None:
        say(f"resumed: {points:,} of {all_points:,} points were done")

    return Record(path.with_name(f"{path.name}.partial"), given.fresh, resumed)


def _refuse_as_journal(journal: Path, given: ExploreArguments) -> None:
    """Raise `UsageError` if what is written or read is the journal, which vanishes at the end."""
    for what, names in (("output", given.files), ("model", given.models)):
        for name in names:
            if resolved(Path(name)) == resolved(journal):
                raise UsageError(
                    f"{what} {str(name)!r} is where the sweep keeps what is done beside"
                    f" {str(given.files[0])!r}; give another file name"
                )


def _write(given: ExploreArguments, result: Exploration) -> None:
    """Write what was asked for, each file whole."""
    from slicewise.app import documents, explore_documents

    if given.csv is not None:
        write_atomically(given.csv, explore_documents.explore_csv(result))
    if given.output is not None:
        document = explore_documents.explore_document(result)
        write_atomically(given.output, documents.encode(document))
    if given.html is not None:
        from slicewise.app.html.explore_page import explore_page

        page = explore_page(result, arguments=command_line(given))
        write_atomically(given.html, page.encode("utf-8", "replace"))


def command_line(given: ExploreArguments) -> tuple[str, ...]:
    """Return the words of a command line that makes the same sweep."""
    words = ["explore", *map(as_argument, given.models)]
    for option, values in (
        ("--device", given.devices), ("--batch", given.batches),
        ("--precision", given.precisions), ("--runtime", given.runtimes),
        ("--layout", given.layouts), ("--input", given.inputs), ("--dim", given.dims),
        ("--batch-axis", given.batch_axes), ("--pareto", given.objectives),
    ):  # fmt: skip
        words += [word for value in values for word in (option, value)]
    if given.latency_limit_ms is not None:
        words += ["--latency-ms", f"{given.latency_limit_ms:g}"]
    if given.memory_limit is not None:
        words += ["--memory-limit", given.memory_limit]
    return (*words, "--per-model") if given.per_model else tuple(words)
