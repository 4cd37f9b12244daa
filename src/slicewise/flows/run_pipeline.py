"""`run-pipeline`: the stages of a split model run on this machine, measured beside predicted."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slicewise.core.errors import UsageError
from slicewise.core.notes import Note, unique_notes
from slicewise.core.pipeline_measurement import PipelineMeasurement, StageTime
from slicewise.core.share import Mechanism
from slicewise.flows.load import positive
from slicewise.flows.partitioning.stage_files import (
    blind_notes,
    handed_out,
    inputs_of,
    stage_specs,
    whole_spec,
)

if TYPE_CHECKING:
    from slicewise.partition.split.check import OutputDifference
    from slicewise.partition.split.manifest import PredictedLoad, StageFiles


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a pipeline is run: `items` are measured after `warmup`; neighbours have queues of
    `depth`; a stage has `threads`, and as many cores. `time_limit_s` is for each of the two runs.

    >>> RunOptions(items=200).depth
    2
    """

    items: int = 100
    warmup: int = 5
    depth: int = 2
    threads: int = 1
    seed: int = 0
    time_limit_s: float = 300.0


@dataclass(frozen=True, slots=True)
class StageComparison:
    """One stage: measured, and predicted where the cut said it.

    `measured_share` and `predicted_share` are the load over that of the slowest stage, which
    compare where the prediction was for another device.
    """

    index: int
    measured: StageTime
    predicted: "PredictedLoad | None"
    measured_share: float
    predicted_share: float | None


@dataclass(frozen=True, slots=True)
class PipelineComparison:
    """The pipeline and the whole model as one stage, both measured here.

    `predicted_speedup` is the predicted time of the whole over that of the slowest stage.
    `outputs` compare the first item's outputs of the pipeline with those of the whole.
    """

    files: "StageFiles"
    stages: tuple[StageComparison, ...]
    pipeline: PipelineMeasurement
    whole: PipelineMeasurement
    outputs: "tuple[OutputDifference, ...]"
    predicted_speedup: float | None
    notes: tuple[Note, ...] = ()

    @property
    def bottleneck(self) -> StageComparison:
        """The stage with the greatest measured service time; the first of equals."""
        return max(self.stages, key=lambda stage: stage.measured.service_ms.value)

    @property
    def speedup(self) -> float:
        """Throughput of the pipeline over that of the whole model as one stage."""
        return self.pipeline.throughput_per_s.value / self.whole.throughput_per_s.value

    @property
    def relative_error(self) -> float | None:
        """(predicted - measured) / measured speedup; None where nothing was predicted."""
        if self.predicted_speedup is None:
            return None
        return (self.predicted_speedup - self.speedup) / self.speedup


def run_pipeline(
    directory: Path,
    *,
    options: RunOptions | None = None,
    progress: Callable[[str], None] | None = None,
) -> PipelineComparison:
    """Return what running the stages in `directory` as pinned processes gave, beside predicted.

    The whole model runs first, as one stage on the cores of one stage. Other measurements of this
    machine are waited for. `UsageError` for a folder without stages, or tensors that no queue can
    hold; `ModelError` for one that is damaged; `MeasureError` names a stage that fails.
    """
    from slicewise.measure.pipeline import Conduct
    from slicewise.measure.pipeline import run_pipeline as run
    from slicewise.partition.split.check import compare_output
    from slicewise.partition.split.manifest import read_manifest
    from slicewise.store.home import home
    from slicewise.store.turns import turn

    asked = options or RunOptions()
    positive("threads", asked.threads)
    if not 0 < asked.time_limit_s < math.inf:
        raise UsageError(
            f"time limit {asked.time_limit_s:g} s leaves no time to run; give --time-limit 300"
        )
    if not 0 <= asked.seed < 2**31:
        raise UsageError(f"seed {asked.seed} is not between 0 and 2^31 - 1; write --seed 0")
    files = read_manifest(directory)
    cores, notes = place_stages(len(files.stages), asked.threads)
    specs = stage_specs(files, cores, threads=asked.threads)
    single = whole_spec(files, cores[0], threads=asked.threads)
    fed = inputs_of(files, seed=asked.seed, items=1)
    conduct = Conduct(
        items=asked.items, warmup=asked.warmup, depth=asked.depth, keep=1,
        time_limit_s=asked.time_limit_s,
    )  # fmt: skip
    wanted = handed_out(files)
    parts = [f"core-{core}" for core in sorted({core for own in cores for core in own})]

    def tell(words: str) -> None:
        if progress is not None:
            progress(words)

    with turn(parts, folder=home() / "turns", waiting=lambda part: tell(f"waiting for {part}")):
        tell("the whole model as one stage")
        whole = run([single], fed, conduct=conduct, outputs=wanted)
        tell(f"{len(specs)} stages")
        staged = run(specs, fed, conduct=conduct, outputs=wanted)
    outputs = tuple(
        compare_output(name, whole.outputs[0][name], staged.outputs[0][name]) for name in wanted
    )
    return PipelineComparison(
        files,
        _compare(files, staged.measurement),
        staged.measurement,
        whole.measurement,
        outputs,
        predicted_speedup(files),
        unique_notes((*notes, *_notes(files), *blind_notes(outputs), *staged.measurement.notes)),
    )


def predicted_speedup(files: "StageFiles") -> float | None:
    """Return the predicted time of the whole model over the load of the slowest stage."""
    loads = [stage.predicted.load_ms for stage in files.stages if stage.predicted is not None]
    if files.whole_ms is None or len(loads) < len(files.stages) or max(loads) <= 0:
        return None
    return files.whole_ms / max(loads)


def place_stages(
    stages: int, threads: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[Note, ...]]:
    """Return the cores of each stage, whole physical ones first, and what was wanting.

    No cores where this system cannot bind. With fewer cores than stages need, stages share them.
    """
    from slicewise.measure.quiet import bound_cores
    from slicewise.measure.shares._base import load_binder

    cores = bound_cores()
    binder = load_binder(Mechanism.CORES)
    if binder.is_available():
        text = "stages are bound to no cores: " + binder.is_available()
        return ((),) * stages, (Note("stages-unbound", text),)
    wanted = stages * threads
    if threads > len(cores):
        raise UsageError(
            f"threads={threads} are more than the {len(cores)} cores that this process may use;"
            f" give {len(cores)} or fewer"
        )
    if wanted >= len(cores):
        chosen: Sequence[int] = cores
    else:
        chosen = binder.part_of_percent(100 * wanted / len(cores), cores).cores
    places = tuple(
        tuple(sorted({chosen[(i * threads + j) % len(chosen)] for j in range(threads)}))
        for i in range(stages)
    )
    if wanted <= len(cores):
        return places, ()
    text = (
        f"{stages} stages of {threads} threads share {len(cores)} cores: throughput is that of"
        " fewer devices than the cut is for"
    )
    return places, (Note("cores-few", text),)


def _compare(files: "StageFiles", made: PipelineMeasurement) -> tuple[StageComparison, ...]:
    slowest = made.bottleneck.service_ms.value
    loads = [stage.predicted.load_ms for stage in files.stages if stage.predicted is not None]
    most = max(loads, default=0.0)
    return tuple(
        StageComparison(
            stage.index,
            told,
            stage.predicted,
            told.service_ms.value / slowest if slowest > 0 else 1.0,
            stage.predicted.load_ms / most if stage.predicted is not None and most > 0 else None,
        )
        for stage, told in zip(files.stages, made.stages, strict=True)
    )


def _notes(files: "StageFiles") -> tuple[Note, ...]:
    notes: list[Note] = []
    predicted = [stage.predicted for stage in files.stages if stage.predicted is not None]
    if len(predicted) < len(files.stages) or files.whole_ms is None:
        text = "the folder has no predictions for its stages; only what was measured is told"
        notes.append(Note("nothing-predicted", text))
    if any(each.replicas > 1 for each in predicted):
        text = "the cut has replicas of stages; each runs once here"
        notes.append(Note("replicas-not-run", text))
    devices = sorted({each.device for each in predicted if each.device})
    if devices and devices != ["cpu"]:
        text = (
            f"predicted for {', '.join(devices)}, measured on cores of this machine: compare"
            " shares and speed-up, not milliseconds"
        )
        notes.append(Note("predicted-elsewhere", text))
    return tuple(notes)
