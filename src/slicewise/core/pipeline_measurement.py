"""What running a pipeline of stages gave: the types that travel in and out of it.

`measure/pipeline.py` runs the stages; nothing is run here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from slicewise.core.cost import Estimate
from slicewise.core.graph import Tensor
from slicewise.core.notes import Note


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One stage: the model in the file `model`, run by a process that is bound to `cores`.

    No cores: wherever the system puts it. Tensors go from stage to stage by their names, and have
    known shapes. `threads` work inside an operator.
    """

    name: str
    model: str
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    cores: tuple[int, ...] = ()
    threads: int = 1


@dataclass(frozen=True, slots=True)
class StageTime:
    """Where the time of a stage went while the pipeline was full.

    `service_ms` is what one item keeps the stage from the next: running (`run_ms`, the median) and
    handing on. `busy`, `starved` (waiting for inputs) and `blocked` (waiting for room in the next
    stage's queue) are parts of the time, and their sum is 1.
    """

    stage: str
    cores: tuple[int, ...]
    threads: int
    service_ms: Estimate
    run_ms: float
    busy: float
    starved: float
    blocked: float


@dataclass(frozen=True, slots=True)
class PipelineMeasurement:
    """Throughput and latency of a pipeline in the steady state: filling and draining are left out.

    `latency_ms` is from the first input handed in to the last output handed out, queues included,
    of an item in the full pipeline (median with its 90 % interval); `alone_ms` the same with one
    item in it at a time, None without warm-up. `items` were measured, of `items_in` sent.
    """

    stages: tuple[StageTime, ...]
    throughput_per_s: Estimate
    latency_ms: Estimate
    alone_ms: Estimate | None
    items: int
    items_in: int
    items_out: int
    depth: int
    seconds: float
    notes: tuple[Note, ...] = ()

    @property
    def bottleneck(self) -> StageTime:
        """The stage with the greatest service time; the first of equals."""
        return max(self.stages, key=lambda stage: stage.service_ms.value)
