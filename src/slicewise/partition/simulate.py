"""When each stage of a pipeline works on which item: the exact schedule of a cut, item by item.

A stage takes an item in three parts, receive, work and send, each as long as `StageLoad` says. It
begins an item when the stages that it receives from have sent it and when itself (one of its
replicas, in turn) is done with the one before; with overlapped communication the three parts are
three units of the stage, and each begins when the part before it of the same item, and itself with
the item before, are done. Nothing is random, nothing is measured, and no cut is judged here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slicewise.core.errors import PartitionError
from slicewise.core.pipeline import Assignment, PipelineProblem, StageLoad
from slicewise.partition.evaluate import crossings

PARTS = ("receive", "work", "send")


@dataclass(frozen=True, slots=True)
class Busy:
    """A stage, and which of its replicas, is busy with a part of an item; `part` of `PARTS`."""

    stage: int
    replica: int
    item: int
    part: str
    start_ms: float
    end_ms: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """Every busy span of every stage, by item and then stage, and when each item is done.

    The pipeline fills until `full_ms`, when every stage and replica has begun its first item, and
    drains from `drain_ms`, when one of them is done with its last.
    """

    spans: tuple[Busy, ...]
    done_ms: tuple[float, ...]
    full_ms: float
    drain_ms: float

    @property
    def end_ms(self) -> float:
        """When the last item is done."""
        return self.done_ms[-1]

    @property
    def interval_ms(self) -> float:
        """Mean time between two items in the second half, where the pipeline is full."""
        first = len(self.done_ms) // 2
        if first == len(self.done_ms) - 1:
            return self.done_ms[-1]
        steps = len(self.done_ms) - 1 - first
        return (self.done_ms[-1] - self.done_ms[first]) / steps


def simulate(
    problem: PipelineProblem,
    cut: Assignment,
    loads: Sequence[StageLoad],
    *,
    items: int,
    period_ms: float = 0.0,
) -> Schedule:
    """Return the schedule of `items` items through the stages of a cut, all times in ms from 0.

    `loads` are those of `evaluate.stage_loads`; empty stages do nothing unless tensors hop through
    them. Items are there every `period_ms`: 0 hands all in at once, so that quick stages run
    ahead of slow ones; the bottleneck shows the steady state with the fewest items on the way.
    Law: without replicas, over a chain, the end is sum of loads + (items - 1) x bottleneck.
    Time O(items x stages^2). `PartitionError` for less than one item.
    """
    if items < 1 or not period_ms >= 0:
        raise PartitionError(
            f"a schedule of {items} items every {period_ms} ms; give 1 item or more, 0 ms or more"
        )
    needs = senders(problem, cut)
    running = [index for index, load in enumerate(loads) if load.nodes or any(_parts(load))]
    units = 3 if problem.overlaps else 1
    free = [[[0.0] * units for _ in range(max(1, load.replicas))] for load in loads]
    spans: list[Busy] = []
    done: list[float] = []
    for item in range(items):
        sent = [0.0] * len(loads)
        for stage in running:
            ready = max([item * period_ms, *(sent[other] for other in needs[stage])])
            replica = item % len(free[stage])
            its_units = free[stage][replica]
            for index, (part, length) in enumerate(zip(PARTS, _parts(loads[stage]), strict=True)):
                unit = index % units
                start = max(ready, its_units[unit])
                ready = its_units[unit] = start + length
                if length > 0:
                    spans.append(Busy(stage, replica, item, part, start, ready))
            sent[stage] = ready
        done.append(max(sent))
    return Schedule(tuple(spans), tuple(done), *_phases(spans))


def senders(problem: PipelineProblem, cut: Assignment) -> list[list[int]]:
    """Return for each stage the earlier ones whose tensors it receives.

    With hops a tensor comes from the stage right before, which has it from its producer.
    """
    needs: list[list[int]] = []
    for stage, crossed in enumerate(crossings(problem, cut.stage_of, len(cut.kind_of))):
        received = crossed.received
        if problem.hops:
            needs.append([stage - 1] if received else [])
            continue
        made = {cut.stage_of[problem.transfers[tensor].producer] for tensor in received}
        needs.append(sorted(made))
    return needs


def _parts(load: StageLoad) -> tuple[float, float, float]:
    return load.receive_ms, load.work_ms, load.send_ms


def _phases(spans: Sequence[Busy]) -> tuple[float, float]:
    """Return when the last stage or replica begins, and when the first one is done with all."""
    begin: dict[tuple[int, int], float] = {}
    end: dict[tuple[int, int], float] = {}
    for span in spans:
        lane = (span.stage, span.replica)
        begin[lane] = min(begin.get(lane, span.start_ms), span.start_ms)
        end[lane] = max(end.get(lane, 0.0), span.end_ms)
    full = max(begin.values(), default=0.0)
    return full, max(full, min(end.values(), default=0.0))
