"""What `partition` gives back: the cut, the case that it answers, and what follows from both."""

import math
from dataclasses import dataclass

from slicewise.core.notes import Note
from slicewise.core.pipeline import Objective, Partition
from slicewise.core.ties import least
from slicewise.flows.partitioning.baselines import Baseline
from slicewise.flows.partitioning.pipeline_material import Case, CutTensor

# Throughput that is nearer to the best than this has stopped growing.
KNEE_TOLERANCE = 0.01


@dataclass(frozen=True, slots=True)
class CutTensorAt:
    """A tensor that is sent from a stage to others; `transfer_ms` on the problem's first link."""

    tensor: CutTensor
    source: int
    targets: tuple[int, ...]
    transfer_ms: float


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """A cut into stages: what was asked (`case`), the answer with its bounds, simpler splits.

    `case.graph` is the model (None for a problem file), `case.material.groups` say which of its
    nodes each node of the problem is, `stage_of` is in the order of the model's nodes.

    >>> import slicewise
    >>> quick = slicewise.PartitionOptions(time_limit_s=5)
    >>> made = slicewise.partition(model, stages=2, device="l4", batch=8, options=quick)
    >>> made.partition.bottleneck_ms >= made.partition.bound, len(made.stage_of)
    (True, 176)
    """

    case: Case
    partition: Partition
    baselines: tuple[Baseline, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def stage_of(self) -> tuple[int, ...]:
        """The stage of each node of the model, or of the problem file, in its order."""
        return self.case.stage_of_label(self.partition.assignment.stage_of)

    @property
    def used(self) -> tuple[int, ...]:
        """The stages that have nodes."""
        return tuple(i for i, load in enumerate(self.partition.loads) if load.nodes)

    @property
    def throughput_per_s(self) -> float:
        """Items a second in the steady state; of the limit where energy is made least."""
        ms = self.interval_ms
        return self.case.material.batch / ms * 1e3 if ms > 0 else math.inf

    @property
    def interval_ms(self) -> float:
        """Time between two inferences."""
        problem = self.case.problem
        if problem.objective is Objective.ENERGY:
            return problem.limit_ms
        return self.partition.bottleneck_ms

    @property
    def synchronous_ms(self) -> float:
        """Latency where all stages hand on at once: stages, with replicas, x interval."""
        loads = self.partition.loads
        return sum(loads[stage].replicas for stage in self.used) * self.interval_ms

    @property
    def asynchronous_ms(self) -> float:
        """Latency where each stage hands on when it is done: the sum of loads."""
        return math.fsum(load.load_ms * load.replicas for load in self.partition.loads)

    @property
    def cut_tensors(self) -> tuple[CutTensorAt, ...]:
        """The tensors that go from one stage to others, the largest first."""
        stage_of = self.partition.assignment.stage_of
        made = []
        pairs = zip(self.case.material.tensors, self.case.problem.transfers, strict=True)
        for tensor, transfer in pairs:
            source = stage_of[tensor.producer]
            targets = sorted({stage_of[node] for node in tensor.consumers} - {source})
            if targets:
                made.append(CutTensorAt(tensor, source, tuple(targets), transfer.transfer_ms))
        return tuple(sorted(made, key=lambda each: (-each.transfer_ms, each.tensor.name)))


@dataclass(frozen=True, slots=True)
class PartitionCurve:
    """The best cut for each number of stages, in rising order.

    `infeasible` are the numbers without a cut, each with the reason: limits, or no time left.

    >>> import slicewise
    >>> quick = slicewise.PartitionOptions(time_limit_s=5)
    >>> found = slicewise.partition_curve(model, stages=range(1, 4), device="l4", options=quick)
    >>> [made.case.problem.stages for made in found.results], found.knee.case.problem.stages <= 3
    ([1, 2, 3], True)
    """

    results: tuple[PartitionResult, ...]
    infeasible: tuple[tuple[int, str], ...] = ()

    @property
    def knee(self) -> PartitionResult:
        """The fewest stages whose throughput is within `KNEE_TOLERANCE` of the best."""
        best = max(made.throughput_per_s for made in self.results)
        if self.results[0].case.problem.objective is Objective.ENERGY:
            return least(self.results, lambda made: made.partition.value)
        enough = best * (1 - KNEE_TOLERANCE)
        return next(made for made in self.results if made.throughput_per_s >= enough)
