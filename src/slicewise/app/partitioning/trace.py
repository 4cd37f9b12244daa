"""The schedule of a pipeline as a Chrome trace: open it in https://ui.perfetto.dev.

Format as in `app/trace.py`. One process; a lane for each stage (and replica, and part where
communication overlaps), one for the phases: filling, steady, draining.
"""

import msgspec

from slicewise._version import __version__
from slicewise.app.partitioning.words import PARTS, device, subject
from slicewise.app.trace import Event
from slicewise.flows.partitioning.result import PartitionResult
from slicewise.flows.partitioning.schedule import schedule_of
from slicewise.partition.simulate import Busy, Schedule

_PROCESS, _PHASES = 1, 0
_STEADY_ITEMS = 8


def encode_trace(made: PartitionResult) -> bytes:
    """Return the trace of as many items as fill the pipeline, and 8 more.

    An item enters once in each period, so that the steady state has the fewest on the way.
    """
    schedule = schedule_of(made, more_items=_STEADY_ITEMS)
    events = [*_names(made), *_phases(schedule)]
    lanes = _lanes(made)
    events += [_event(span, lanes) for span in schedule.spans]
    document = {
        "displayTimeUnit": "ms",
        "otherData": {
            "made_by": f"slicewise {__version__}",
            "kind": "schedule by predicted times; nothing was run",
            "period_ms": made.interval_ms,
        },
        "traceEvents": events,
    }
    return msgspec.json.encode(document) + b"\n"


Lane = tuple[int, int, str]


def _lanes(made: PartitionResult) -> dict[Lane, int]:
    """Return the number of the lane of each stage, replica and part ('' for all three)."""
    parts = PARTS if made.case.problem.overlaps else ("",)
    keys = [
        (stage, replica, part)
        for stage, load in enumerate(made.partition.loads)
        for replica in range(max(1, load.replicas))
        for part in parts
    ]
    return {key: index + 1 for index, key in enumerate(keys)}


def _names(made: PartitionResult) -> list[Event]:
    named: list[tuple[str, int, str]] = [
        ("process_name", 0, subject(made)), ("thread_name", _PHASES, "phases"),
    ]  # fmt: skip
    loads = made.partition.loads
    for (stage, replica, part), lane in _lanes(made).items():
        words = f"stage {stage} on {device(made, loads[stage])}"
        words += f", replica {replica}" if loads[stage].replicas > 1 else ""
        words += f", {part}" if part else ""
        named.append(("thread_name", lane, words))
    made_events: list[Event] = [
        {"ph": "M", "name": name, "pid": _PROCESS, "tid": lane, "args": {"name": words}}
        for name, lane, words in named
    ]
    return made_events


def _phases(schedule: Schedule) -> list[Event]:
    ends = (
        ("filling", 0.0, schedule.full_ms),
        ("steady", schedule.full_ms, schedule.drain_ms),
        ("draining", schedule.drain_ms, schedule.end_ms),
    )
    return [
        {
            "ph": "X", "name": name, "cat": "phase", "pid": _PROCESS, "tid": _PHASES,
            "ts": start * 1e3, "dur": (end - start) * 1e3, "args": {},
        }
        for name, start, end in ends
        if end > start
    ]  # fmt: skip


def _event(span: Busy, lanes: dict[Lane, int]) -> Event:
    key = (span.stage, span.replica, span.part)
    lane = lanes.get(key) or lanes[span.stage, span.replica, ""]
    return {
        "ph": "X", "name": f"item {span.item}: {span.part}", "cat": span.part, "pid": _PROCESS,
        "tid": lane, "ts": span.start_ms * 1e3, "dur": (span.end_ms - span.start_ms) * 1e3,
        "args": {"item": span.item, "stage": span.stage},
    }  # fmt: skip
