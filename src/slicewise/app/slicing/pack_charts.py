"""Charts of a packing: predicted times against each target, and rates against what is carried.

Values in, markup out. Workloads have unlike targets, so that times are shown as parts of them.
"""

from collections.abc import Sequence

from slicewise.app.html.charts import legend
from slicewise.app.html.markup import Html, element, join
from slicewise.app.html.plot import label_at, marker, percent, segment
from slicewise.app.html.scale import Axis, linear_axis, log_axis
from slicewise.app.slicing.pack_words import Row, head_room, rows
from slicewise.app.words import clean
from slicewise.core.packing import LatencyModel
from slicewise.core.units import format_ms, format_number
from slicewise.flows.packing.result import Outcome, PackResult
from slicewise.slices.latency import SERVICE_PART

MOST_ROWS = 40  # of a chart, those nearest to a limit
_WIDE_SPAN = 20  # values that span more are shown on a logarithmic axis


def target_chart(made: PackResult) -> Html:
    """Return the time of a batch of every way that is used, with its interval, as a part of its
    target, and the simulated percentile as a hollow mark. Lines: the target and, dashed, what a
    batch may take of it.
    """
    found = [row for row in rows(made) if row.offer is not None]
    found = sorted(found, key=lambda row: -_ends(row)[1])[:MOST_ROWS]
    limits = [100.0, *([100 * SERVICE_PART] if _is_service(made) else [])]
    values = [*limits, *(end for row in found for end in _ends(row))]
    values += [100 * each.latency_ms / each.target_ms for each in made.simulated]
    is_log = min(values) > 0 and max(values) > _WIDE_SPAN * min(values)
    name = "% of the target"
    axis = log_axis(name, values) if is_log else linear_axis(name, values)
    drawn = [_target_row(row, axis, limits) for row in found]
    scale = _scale(axis, f"{name}{', logarithmic' if is_log else ''}")
    listed = element(
        "ul", *drawn, scale, class_="rows intervals", aria_label="Times against targets"
    )
    return join((listed, legend(_entries(made))))


def _is_service(made: PackResult) -> bool:
    return made.options.model is LatencyModel.SERVICE


def _ends(row: Row) -> tuple[float, float]:
    assert row.offer is not None
    estimate = row.offer.serving.service_ms
    target_ms = row.outcome.spec.latency_ms
    return 100 * estimate.low / target_ms, 100 * estimate.high / target_ms


def _entries(made: PackResult) -> list[tuple[str, str, str, str]]:
    entries = [("a batch, with its 90 % interval", "", "circle", "accent")]
    if made.simulated:
        entries.append(("simulated percentile", "", "circle", "accent hollow"))
    entries.append(("line: target", "", "square", ""))
    if _is_service(made):
        entries.append(
            (f"dashed: {100 * SERVICE_PART:g} %, what a batch may take", "", "square", "")
        )
    return entries


def _target_row(row: Row, axis: Axis, limits: Sequence[float]) -> Html:
    assert row.offer is not None
    spec, estimate = row.outcome.spec, row.offer.serving.service_ms
    name = f"{clean(spec.name)} on {row.place}"
    told = f"{format_ms(estimate.value)} of {format_ms(spec.latency_ms)}"
    marks = [segment(axis.at(t), 0, axis.at(t), 1, style="grid") for t in axis.ticks]
    for i, limit in enumerate(limits):
        style = "roof second" if i else "roof"
        marks.append(segment(axis.at(limit), 0, axis.at(limit), 1, style=style))
    low, high = (axis.at(end) for end in _ends(row))
    marks.append(segment(low, 0.5, high, 0.5, style="whisker"))
    part = 100 * estimate.value / spec.latency_ms
    marks.append(
        marker(axis.at(part), 0.5, f"{name}: {told}", shape="circle", style="accent", size=5.5)
    )
    played = row.outcome.simulated
    if played is not None and row.is_first:
        hover = f"simulated, {played.percentile:g} % within {format_ms(played.latency_ms)}"
        at = axis.at(100 * played.latency_ms / played.target_ms)
        marks.append(marker(at, 0.5, hover, shape="circle", style="accent hollow", size=5))
    return _row(name, marks, told)


def rate_chart(made: PackResult) -> Html:
    """Return the rate of every workload as a bar in the room of what its slices carry."""
    tightest = sorted(made.outcomes, key=lambda outcome: outcome.head_room)[:MOST_ROWS]
    drawn = [_rate_row(outcome) for outcome in tightest]
    axis = linear_axis("% of what is carried", [0.0, 100.0])
    return element(
        "ul", *drawn, _scale(axis, "% of what the slices carry"), class_="rows intervals",
        aria_label="Rates against capacity",
    )  # fmt: skip


def _rate_row(outcome: Outcome) -> Html:
    rate, capacity = outcome.spec.rate_per_s, outcome.capacity_per_s
    part = min(1.0, rate / capacity) if capacity > 0 else 1.0
    style = "launch" if outcome.unserved_per_s > 0 else "accent"
    marks = [
        element("rect", class_="grid room", x=0, y=4, width="100%", height=18, rx=2,
                fill="currentColor", fill_opacity="0.12"),
        element("rect", class_=f"bar {style}", x=0, y=4, width=percent(part), height=18, rx=2),
    ]  # fmt: skip
    told = f"{format_number(rate)} of {format_number(capacity)}/s, {head_room(outcome)}"
    return _row(clean(outcome.spec.name), marks, told)


def _row(name: str, marks: Sequence[Html], told: str) -> Html:
    drawing = element(
        "svg", *marks, width="100%", height=26, role="img", aria_label=f"{name}: {told}"
    )
    return element(
        "li",
        element("span", name, class_="name"),
        element("span", drawing, class_="track"),
        element("span", told, class_="value"),
    )


def _scale(axis: Axis, label: str) -> Html:
    ticks = [
        label_at(axis.at(tick), 0, axis.show(tick), anchor="middle", dy=13) for tick in axis.ticks
    ]
    drawing = element("svg", *ticks, width="100%", height=18, aria_hidden="true")
    return element(
        "li",
        element("span", label, class_="name"),
        element("span", drawing, class_="track"),
        element("span", class_="value"),
        class_="scale",
    )
