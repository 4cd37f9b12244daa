"""Runs the stages of a pipeline as processes of their own and measures the steady state.

Each stage is a process bound to its cores; tensors go through rings in shared memory
(`stages/rings.py`). This process feeds and collects, and ends all of them whatever happens. It
makes no stage models and judges no partition.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slicewise.core.errors import UsageError
from slicewise.core.notes import Note
from slicewise.core.pipeline_measurement import PipelineMeasurement, StageSpec, StageTime
from slicewise.measure.runtimes.stage import open_stage as open_onnx
from slicewise.measure.stages.crew import Carried, Crew
from slicewise.measure.stages.plan import FEEDER, Plan, plan_routes
from slicewise.measure.stages.stage import OpenStage
from slicewise.measure.stages.times import (
    Phases,
    Stamps,
    estimate_latency,
    estimate_throughput,
    time_stage,
)

# A first stage that waits for more than this part of the time is not fed fast enough.
_FEEDER_SLOW = 0.1

Values = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class Conduct:
    """How a pipeline is run.

    `warmup` items go one at a time, then the pipeline is filled, `items` are measured, and as many
    follow as keep it full meanwhile. Neighbours have queues of `depth` items. The outputs of the
    first `keep` items are kept. `time_limit_s` is for the whole run, opening included.
    """

    items: int = 100
    warmup: int = 5
    depth: int = 2
    keep: int = 1
    time_limit_s: float = 300.0

    def __post_init__(self) -> None:
        if min(self.items, self.depth) < 1 or min(self.warmup, self.keep) < 0:
            raise UsageError(
                f"a pipeline cannot run {self.items} items, {self.warmup} for warm-up, through"
                f" queues of {self.depth}, keeping {self.keep}; give at least 1, 0, 1 and 0"
            )


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """The measurement, and the outputs of the first items in the order in which they were fed."""

    measurement: PipelineMeasurement
    outputs: tuple[dict[str, NDArray[Any]], ...]


def run_pipeline(
    stages: Sequence[StageSpec],
    inputs: Sequence[Values],
    *,
    conduct: Conduct | None = None,
    outputs: Sequence[str] | None = None,
    open_stage: OpenStage = open_onnx,
) -> PipelineRun:
    """Return what running `stages` as a pipeline gave.

    `inputs` are items, taken in turn and again from the first: the tensors that stages read and
    none gives. `outputs` names what is handed out; None: what no later stage reads. `open_stage`
    is called in each stage's process. `UsageError` for stages or inputs that do not go together;
    `MeasureError` names the stage that refuses its model, dies, fails or hangs.
    """
    began = time.monotonic()
    conduct = conduct or Conduct()
    plan = plan_routes(stages, depth=conduct.depth, outputs=outputs)
    encoded = [_encode(plan, item) for item in inputs]
    if not encoded:
        raise UsageError("a pipeline needs inputs for at least one item, given none")
    fill = len(stages) * (conduct.depth + 1)
    phases = Phases(conduct.warmup, fill, conduct.items, drain=fill)
    crew = Crew(stages, plan, deadline=began + conduct.time_limit_s, limit=conduct.time_limit_s)
    try:
        crew.start(total=phases.total, open_stage=open_stage)
        carried = crew.carry(encoded, phases, keep=conduct.keep)
        stamps = crew.take_stamps()
    finally:
        crew.dismiss()
    seconds = time.monotonic() - began
    measurement = _measurement(
        stages, carried, stamps, phases=phases, depth=conduct.depth, seconds=seconds
    )
    return PipelineRun(measurement, tuple(carried.kept))


def _measurement(
    stages: Sequence[StageSpec],
    carried: Carried,
    stamps: Sequence[Stamps],
    *,
    phases: Phases,
    depth: int,
    seconds: float,
) -> PipelineMeasurement:
    done = [max(stamps[stage][i][4] for stage in carried.last_stages) for i in range(phases.total)]
    window = phases.window
    fed = carried.fed_ns
    # The first item alone also pays for what is lazy.
    alone = range(min(1, phases.alone - 1), phases.alone) if phases.alone else range(0)
    times = tuple(
        time_stage(stage, each, window) for stage, each in zip(stages, stamps, strict=True)
    )
    return PipelineMeasurement(
        stages=times,
        throughput_per_s=estimate_throughput(done[window.start - 1 : window.stop]),
        latency_ms=estimate_latency(
            fed[window.start : window.stop], done[window.start : window.stop]
        ),
        alone_ms=estimate_latency([fed[i] for i in alone], [done[i] for i in alone])
        if alone
        else None,
        items=phases.measured,
        items_in=len(fed),
        items_out=carried.received,
        depth=depth,
        seconds=seconds,
        notes=(*_notes(stages), *_feeding_notes(stages, times)),
    )


def _notes(stages: Sequence[StageSpec]) -> tuple[Note, ...]:
    notes: list[Note] = []
    for i, stage in enumerate(stages):
        if not stage.cores:
            text = "it is bound to no cores: the system moves it, and others run beside it"
            notes.append(Note("stage-unbound", text, node=stage.name))
        elif stage.threads > len(stage.cores):
            text = f"it has {stage.threads} threads on {len(stage.cores)} cores"
            notes.append(Note("stage-crowded", text, node=stage.name))
        for other in stages[:i]:
            if both := sorted(set(stage.cores) & set(other.cores)):
                text = f"it shares cores {both} with stage {other.name}: they slow each other down"
                notes.append(Note("stages-share-cores", text, node=stage.name))
    return tuple(notes)


def _feeding_notes(stages: Sequence[StageSpec], times: Sequence[StageTime]) -> tuple[Note, ...]:
    """Return a note for each stage that only this process feeds and that waited for it."""
    made = {name for stage in stages for name in stage.outputs}
    return tuple(
        Note(
            "feeder-limits",
            f"it waited {100 * told.starved:.0f}% of the time for inputs that come from outside:"
            " the stages could do more items than were measured",
            node=stage.name,
        )
        for stage, told in zip(stages, times, strict=True)
        if not made & set(stage.inputs) and told.starved > _FEEDER_SLOW
    )


def _encode(plan: Plan, item: Values) -> dict[str, bytes]:
    """Return the fed tensors of an item as bytes; `UsageError` for one lacking or unlike."""
    encoded: dict[str, bytes] = {}
    for place in [place for route in plan.out_of(FEEDER) for place in route.places]:
        if place.name not in item:
            raise UsageError(
                f"input {place.name!r} is read, and neither a stage before nor the inputs give it;"
                f" given are {', '.join(map(repr, item)) or 'none'}"
            )
        array = item[place.name]
        if (array.shape, array.dtype) != (place.shape, np.dtype(place.dtype)):
            raise UsageError(
                f"input {place.name!r} is {array.dtype}{list(array.shape)}, and the stages read"
                f" {place.dtype}{list(place.shape)}; make them agree"
            )
        encoded[place.name] = array.tobytes()
    return encoded
