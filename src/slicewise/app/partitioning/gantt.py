"""Two charts of a partition: the schedule item by item, and the load of each stage by part."""

from slicewise.app.html.charts import legend
from slicewise.app.html.markup import Content, Html, element, join
from slicewise.app.html.plot import label_at, percent, plot, segment
from slicewise.app.html.scale import Axis, linear_axis
from slicewise.app.partitioning.words import PARTS, device
from slicewise.app.words import counted
from slicewise.core.units import format_ms
from slicewise.flows.partitioning.result import PartitionResult
from slicewise.flows.partitioning.schedule import schedule_of
from slicewise.partition.simulate import Busy, Schedule

# Classes of the style sheet: what is taken in, done, handed on.
_STYLES = {"receive": "memory", "work": "compute", "send": "launch"}
_LANE = 24  # pixels
_MOST_NUMBERED = 14  # items that are numbered in the bars
_MOST_LANES = 64


def parts_legend() -> Html:
    """Return the legend of the three parts."""
    return legend((part, "", "square", _STYLES[part]) for part in PARTS)


def gantt(made: PartitionResult) -> Html:
    """Return the schedule of filling, some steady periods, and draining."""
    schedule = schedule_of(made, more_items=4)
    lanes = _lanes(made)
    shown = lanes[:_MOST_LANES]
    place = {lane: index for index, lane in enumerate(shown)}
    across = linear_axis("ms", [schedule.end_ms], exact=True)
    marks: list[Html] = []
    for span in schedule.spans:
        if (span.stage, span.replica) in place:
            marks.append(_bar(span, across, place, overlaps=made.case.problem.overlaps))
    if not made.case.problem.overlaps:  # bars of a third are too low for numbers
        marks += _numbers(schedule, across, place)
    for x in (schedule.full_ms, schedule.drain_ms):
        marks.append(segment(across.at(x), 0, across.at(x), 1, style="whisker thin"))
    marks += [
        label_at(0, (index + 0.5) / len(shown), _lane_name(made, lane), anchor="end", dx=-8, dy=4)
        for index, lane in enumerate(shown)
    ]
    up = Axis("stage", 0.0, 1.0)
    items = len(schedule.done_ms)
    drawing = plot(
        marks,
        x=across,
        y=up,
        label=f"Schedule of {items} items over {counted(len(made.used), 'stage')}",
        height=max(80, _LANE * len(shown)),
    )
    return join((drawing, parts_legend()))


def _lanes(made: PartitionResult) -> list[tuple[int, int]]:
    return [
        (stage, replica)
        for stage, load in enumerate(made.partition.loads)
        if load.nodes or load.load_ms
        for replica in range(max(1, load.replicas))
    ]


def _lane_name(made: PartitionResult, lane: tuple[int, int]) -> str:
    stage, replica = lane
    return f"{stage}.{replica}" if made.partition.loads[stage].replicas > 1 else str(stage)


def _bar(span: Busy, across: Axis, place: dict[tuple[int, int], int], *, overlaps: bool) -> Html:
    lane = place[span.stage, span.replica]
    count = len(place)
    left, right = across.at(span.start_ms), across.at(span.end_ms)
    top, height = lane / count, 0.8 / count
    if overlaps:  # the three units of a stage work at once, one above the other
        height /= 3
        top += PARTS.index(span.part) * height
    told = f"stage {span.stage}, item {span.item}: {span.part}"
    told += f" {format_ms(span.end_ms - span.start_ms)}"
    return element(
        "rect",
        element("title", told),
        class_=f"bar {_STYLES[span.part]}",
        x=percent(left),
        width=percent(max(0.0, right - left)),
        y=percent(top + 0.1 / count),
        height=percent(height),
        fill_opacity="0.95" if span.item % 2 else "0.6",
    )


def _numbers(schedule: Schedule, across: Axis, place: dict[tuple[int, int], int]) -> list[Html]:
    """Return the number of each item over its work, where few enough to be read."""
    if len(schedule.done_ms) > _MOST_NUMBERED:
        return []
    return [
        label_at(
            (across.at(span.start_ms) + across.at(span.end_ms)) / 2,
            (place[span.stage, span.replica] + 0.5) / len(place),
            str(span.item),
            anchor="middle",
            dy=4,
            style="direct",
        )
        for span in schedule.spans
        if span.part == "work"
        and (span.stage, span.replica) in place
        and across.at(span.end_ms) - across.at(span.start_ms) > 0.02
    ]


def load_bars(made: PartitionResult) -> Html:
    """Return a bar for each stage, cut into its parts, with the interval as a line."""
    longest = max(
        (each.receive_ms + each.work_ms + each.send_ms for each in made.partition.loads),
        default=0.0,
    )
    top = max(longest, made.interval_ms if made.interval_ms < float("inf") else 0.0) or 1.0
    rows = [
        _load_row(made, index, top)
        for index, load in enumerate(made.partition.loads)
        if load.nodes or load.load_ms
    ]
    chart = element("ul", *rows, class_="rows", aria_label="Load of each stage by part")
    return join((chart, parts_legend()))


def _load_row(made: PartitionResult, index: int, top: float) -> Content:
    load = made.partition.loads[index]
    values = {"receive": load.receive_ms, "work": load.work_ms, "send": load.send_ms}
    marks: list[Html] = []
    start = 0.0
    for part, value in values.items():
        marks.append(
            element(
                "rect",
                element("title", f"stage {index}: {part} {format_ms(value)}"),
                class_=f"bar {_STYLES[part]}",
                x=percent(start / top),
                width=percent(value / top),
                y=5,
                height=16,
            )
        )
        start += value
    if not made.case.problem.overlaps:
        limit = made.interval_ms * load.replicas / top
        if limit <= 1:
            marks.append(segment(limit, 0, limit, 1, style="whisker thin"))
    replicas = f", {load.replicas} replicas" if load.replicas > 1 else ""
    return element(
        "li",
        element("span", f"{index}, {device(made, load)}{replicas}", class_="name"),
        element(
            "span",
            element("svg", *marks, width="100%", height=26, aria_hidden="true"),
            class_="track",
        ),
        element("span", format_ms(load.load_ms), class_="value"),
    )
