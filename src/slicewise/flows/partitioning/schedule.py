"""The steady-state schedule of a partition, with its filling and draining."""

from slicewise.flows.partitioning.result import PartitionResult
from slicewise.partition.simulate import Schedule, simulate


def schedule_of(made: PartitionResult, *, more_items: int) -> Schedule:
    """Return the schedule of as many items as fill the pipeline and `more_items`.

    An item enters once in each interval: that of the bottleneck, or the limit for energy.
    """
    loads = made.partition.loads
    items = sum(max(1, loads[stage].replicas) for stage in made.used) + more_items
    cut = made.partition.assignment
    return simulate(made.case.problem, cut, loads, items=items, period_ms=made.interval_ms)
