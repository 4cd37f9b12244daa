"""From the stages' stamps to throughput, latency and where the time went. Runs nothing."""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from slicewise.core.cost import Estimate
from slicewise.core.pipeline_measurement import StageSpec, StageTime
from slicewise.measure.statistics import SOURCE, summarise

# Five times of an item in a stage in ns: it began to wait, had its inputs, had run, had room to
# send, had sent.
Stamp = tuple[int, int, int, int, int]
Stamps = tuple[Stamp, ...]
_NS_PER_MS = 1e6
_NS_PER_S = 1e9
_BLOCKS = 10
# Student's t, 95 % one-sided, by degrees of freedom 1 to 9 (any table of it).
_T95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833)


@dataclass(frozen=True, slots=True)
class Phases:
    """How many items of each phase, in order: one at a time, filling, measured, draining."""

    alone: int
    fill: int
    measured: int
    drain: int

    @property
    def total(self) -> int:
        """All items."""
        return self.alone + self.fill + self.measured + self.drain

    @property
    def window(self) -> range:
        """The measured items."""
        start = self.alone + self.fill
        return range(start, start + self.measured)


def estimate_throughput(completed_ns: Sequence[int]) -> Estimate:
    """Return items per second from when they were done, the first being the one before.

    The interval is that of the mean time of up to ten blocks of items, so that neighbours that
    depend on each other do not make it too narrow; with one block it is the value alone.
    """
    items = len(completed_ns) - 1
    value = items / max(1, completed_ns[-1] - completed_ns[0])
    blocks = min(_BLOCKS, items)
    size = items // blocks
    ends = [completed_ns[i * size] for i in range(blocks + 1)]
    means = [max(1.0, (b - a) / size) for a, b in itertools.pairwise(ends)]
    low, high = value, value
    if blocks > 1:
        mean = statistics.fmean(means)
        half = _T95[blocks - 2] * statistics.stdev(means) / math.sqrt(blocks)
        low = min(value, 1 / (mean + half))
        high = max(value, 1 / max(mean - half, min(means)))
    return Estimate(value * _NS_PER_S, low * _NS_PER_S, high * _NS_PER_S, SOURCE)


def estimate_latency(fed_ns: Sequence[int], completed_ns: Sequence[int]) -> Estimate:
    """Return the median time from fed to completed in ms."""
    return summarise([(b - a) / _NS_PER_MS for a, b in zip(fed_ns, completed_ns, strict=True)])


def time_stage(stage: StageSpec, stamps: Stamps, window: range) -> StageTime:
    """Return where the stage's time went over the items of the window."""
    taken = [stamps[i] for i in window]
    service = [(ran - got) + (sent - room) for _, got, ran, room, sent in taken]
    starved = sum(got - began for began, got, _, _, _ in taken)
    blocked = sum(room - ran for _, _, ran, room, _ in taken)
    # What passes between one item and the next is neither: it counts as service.
    span = max(1, taken[-1][4] - taken[0][0])
    return StageTime(
        stage=stage.name,
        cores=stage.cores,
        threads=stage.threads,
        service_ms=summarise([ns / _NS_PER_MS for ns in service]),
        run_ms=statistics.median(ran - got for _, got, ran, _, _ in taken) / _NS_PER_MS,
        busy=1 - (starved + blocked) / span,
        starved=starved / span,
        blocked=blocked / span,
    )
