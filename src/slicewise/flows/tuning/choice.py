"""`--share auto`: the smallest share that is about as quick as the whole device.

Latencies are predicted over the shares; a few measurements around the knee confirm it, or move it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from slicewise.core.errors import MeasureError
from slicewise.core.graph import Graph
from slicewise.core.measurement import Protocol
from slicewise.flows.measure import Target, is_usable, run_job, target_here
from slicewise.flows.tuning.options import TuneOptions
from slicewise.flows.tuning.result import ShareChoice, SharePoint
from slicewise.flows.tuning.task import Plan, cores_of, make_plan

# A share this near to the whole device's latency is enough.
TOLERANCE = 0.10
_GPU_PERCENTS = (10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
_CONFIRMED = Protocol(min_samples=10, budget_s=1.0, relative_width=0.03)

Measure = Callable[[Plan], float]


def choose_share(
    graph: Graph,
    whole: Target,
    options: TuneOptions,
    *,
    progress: Callable[[str], None] | None = None,
) -> ShareChoice:
    """Return the share to tune on: the knee of the predicted latencies, confirmed by measuring.

    Measured are the whole device, the knee, and the next smaller share; where the smaller one is
    within the tolerance too, or the knee is not, the knee moves that way and the new neighbour is
    measured, so that 3 to 5 measurements are the rule. `MeasureError` where the model does not
    run here.
    """
    percents = share_percents(whole)
    plans = {percent: _plan(graph, whole, percent, options) for percent in percents}
    points = {percent: _point(percent, plan) for percent, plan in plans.items()}
    start = knee([points[percent] for percent in percents], tolerance=TOLERANCE)

    def measured(percent: float) -> float:
        found = points[percent].measured_ms
        if found is None:
            if progress is not None:
                progress(f"measuring at {percent:g} % of the device")
            taken = run_job(replace(plans[percent].job, protocol=_CONFIRMED))
            if not is_usable(taken) or taken.latency_ms is None:
                raise MeasureError(
                    f"{graph.name} does not run at {percent:g} % of {whole.device.name}:"
                    f" {taken.outcome}: {taken.error}; give --share"
                )
            found = taken.latency_ms
            points[percent] = replace(points[percent], measured_ms=found)
        return found.value

    chosen = confirmed(percents, start, measured, tolerance=TOLERANCE)
    return ShareChoice(tuple(points[percent] for percent in percents), chosen, TOLERANCE)


def share_percents(whole: Target) -> tuple[float, ...]:
    """Return the shares that are looked at, ascending: each number of cores of a CPU (at most 16
    of them, the ends included), tenths of a GPU."""
    if whole.place != "cpu":
        return tuple(map(float, _GPU_PERCENTS))
    count = len(cores_of(whole))
    step = max(1, count // 16)
    numbers = sorted({*range(step, count + 1, step), count})
    return tuple(100.0 * number / count for number in numbers)


def knee(points: Sequence[SharePoint], *, tolerance: float) -> float:
    """Return the smallest share whose predicted latency is within `tolerance` of the last one's.

    >>> from slicewise.core.cost import Estimate
    >>> def at(percent, ms): return SharePoint(percent, Estimate(ms, low=ms, high=ms, source=""))
    >>> knee([at(25, 9.0), at(50, 5.2), at(75, 5.1), at(100, 5.0)], tolerance=0.1)
    50
    """
    limit = points[-1].predicted_ms.value * (1 + tolerance)
    return next(each.percent for each in points if each.predicted_ms.value <= limit)


def confirmed(
    percents: Sequence[float],
    start: float,
    measured: Callable[[float], float],
    *,
    tolerance: float,
) -> float:
    """Return the smallest share that measures within `tolerance` of the whole, walking from
    `start`: down while the next smaller one is, up while the share itself is not.

    >>> times = {25: 9.0, 50: 6.0, 75: 5.2, 100: 5.0}
    >>> confirmed([25, 50, 75, 100], 50, times.__getitem__, tolerance=0.1)
    75
    """
    limit = measured(percents[-1]) * (1 + tolerance)
    place = percents.index(start)
    while measured(percents[place]) > limit and place < len(percents) - 1:
        place += 1
    while place > 0 and measured(percents[place - 1]) <= limit:
        place -= 1
    return percents[place]


def _plan(graph: Graph, whole: Target, percent: float, options: TuneOptions) -> Plan:
    target = whole if percent >= 100 else target_here(whole.place, share=share_text(percent))
    return make_plan(graph, target, options)


def share_text(percent: float) -> str:
    """Return a percentage as shares are written, with what its rounding takes made up for."""
    return f"{percent:.6g}"


def _point(percent: float, plan: Plan) -> SharePoint:
    from slicewise.core.cost import Estimate

    if plan.prediction is None:  # no figure: alike at all shares, and measuring decides
        return SharePoint(percent, Estimate(1.0, low=1.0, high=1.0, source="none"))
    return SharePoint(percent, plan.prediction.latency_ms)
