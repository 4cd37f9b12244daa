"""Where the time of one prediction goes: by kind, by limit, by kernel, on the roofline."""

from collections.abc import Iterable, Sequence

from slicewise.app.html.blocks import Column, figure, table
from slicewise.app.html.charts import Bar, Point, bars, legend, scatter, stack
from slicewise.app.html.markup import TIMES, Content, Html, element, join
from slicewise.app.html.plot import label_at, segment
from slicewise.app.html.predict.kinds import GROUP_OF, GROUPS, LIMIT_MEANING, LIMIT_WORDS, LIMITS
from slicewise.app.html.scale import Axis, log_axis, short
from slicewise.app.kernels import AlikeKernels, LaunchedKernel, alike_kernels
from slicewise.app.words import clean, counted, short_name
from slicewise.core.cost import Kind, Prediction
from slicewise.core.device import Device
from slicewise.core.precision import DType, Precision
from slicewise.core.units import format_ms, format_number, format_scaled

HEAVIEST = 12
_SUBJECTS = {
    Kind.CONV: "Convolution takes",
    Kind.MATMUL: "Matrix products take",
    Kind.OPAQUE: "Operators that are in no table take",
    Kind.MOVEMENT: "Data movement takes",
    Kind.QUANTIZE: "Quantisation takes",
    Kind.ELEMENTWISE: "Elementwise arithmetic takes",
    Kind.NORM: "Normalisation takes",
    Kind.POOL: "Pooling takes",
    Kind.SORT: "Sorting takes",
    Kind.RECURRENT: "Recurrence takes",
    Kind.CONTROL: "Control flow takes",
}
DRAWN_POINTS = 300
_MOST_NAMES, _MOST_LETTERS = 3, 60  # of nodes named in a row
_ROOM = 1.3  # between marks and the ends of the axes, as a factor
# Radii in pixels; a mark of the whole latency would have the last one.
_SMALLEST_MARK, _LARGEST_MARK, _MARK_OF_WHOLE = 3.0, 17.0, 40.0


def share(part: float, whole: float) -> str:
    """Return 'part of whole' as a percentage of three digits at most.

    >>> share(1, 3), share(1, 4000), share(0, 1)
    ('33.3 %', '0.03 %', '0 %')
    """
    value = 100 * part / whole if whole else 0.0
    if value == 0 or value >= 99.95:
        return f"{value:.0f} %"
    return f"{value:.1f} %" if value >= 0.1 else f"{value:.2f} %"


def time_by_kind(made: Prediction, kernels: Sequence[LaunchedKernel]) -> Html:
    """Return the bars of time by kind of operator, the host's part last."""
    total_ms = made.latency_ms.value
    sums: dict[Kind, list[float]] = {}
    for kernel in kernels:
        for node in kernel.nodes:
            if node.latency_ms > 0:
                entry = sums.setdefault(node.kind, [0.0, 0])
                entry[0] += node.latency_ms
                entry[1] += 1
    ranked = sorted(sums.items(), key=lambda item: -item[1][0])
    rows = [
        Bar(
            join((kind.value, element("span", f" {TIMES} {count:.0f}", class_="quiet"))),
            ms / total_ms,
            f"{format_ms(ms)}, {share(ms, total_ms)}",
            GROUP_OF[kind].style,
        )
        for kind, (ms, count) in ranked
    ]
    rows.append(
        Bar(
            "host",
            made.host_ms / total_ms,
            f"{format_ms(made.host_ms)}, {share(made.host_ms, total_ms)}",
            "host",
        )
    )
    if ranked:
        top, (ms, _) = ranked[0]
        subject = _SUBJECTS.get(top, f"{top.value.capitalize()} takes")
        title = f"{subject} {share(ms, total_ms)} of the time"
    else:
        title = "Nothing is launched"
    return figure(title, bars(rows, label="time by kind of operator"))


def time_by_limit(made: Prediction, kernels: Sequence[LaunchedKernel]) -> Html:
    """Return one bar of the whole latency, cut by what limits it."""
    total_ms = made.latency_ms.value
    sums = dict.fromkeys(LIMITS, 0.0)
    for kernel in kernels:
        for node in kernel.nodes:
            if node.limit in sums:
                sums[node.limit] += node.latency_ms
    sums["host"] += made.host_ms
    top = max(sums, key=lambda limit: sums[limit])
    parts = [
        Bar(LIMITS[limit].name, ms / total_ms, share(ms, total_ms), LIMITS[limit].style)
        for limit, ms in sums.items()
        if ms > 0
    ]
    if sums[top] > 0.5 * total_ms:
        title = f"{LIMIT_MEANING[top]}: {share(sums[top], total_ms)}"
    else:
        named = sorted(parts, key=lambda part: -part.part)[:2]
        title = "Nothing alone limits it: " + ", ".join(f"{p.name} {p.shown}" for p in named)
    return figure(
        title,
        stack(parts, label=", ".join(f"{part.name} {part.shown}" for part in parts)),
        caption=LIMIT_WORDS,
    )


def heaviest_kernels(made: Prediction, kernels: Sequence[LaunchedKernel], device: Device) -> Html:
    """Return the table of the kernels that take the most time, alike ones in one row, then the
    rest in one row."""
    total_ms = made.latency_ms.value
    ranked = alike_kernels(kernels)
    shown = ranked[:HEAVIEST]
    rows = [_kernel_cells(alike, made, device) for alike in shown]
    if len(ranked) > HEAVIEST:
        rest_ms = sum(alike.latency_ms for alike in ranked[HEAVIEST:])
        count = sum(len(alike.kernels) for alike in ranked[HEAVIEST:])
        cells = ["lighter kernels", f"{count}", format_number(rest_ms), share(rest_ms, total_ms)]
        rows.append([*cells, "", "", "", "", "", ""])
    made_table = table(
        _KERNEL_COLUMNS,
        rows,
        caption="Heaviest kernels, alike ones in one row; latency for the whole batch",
        sortable=False,
    )
    taken = share(sum(alike.latency_ms for alike in shown), total_ms)
    if not shown:
        return join(())
    if len(shown) == 1:
        title = f"Kernels of one sort take {taken} of the time"
    else:
        title = f"{len(shown)} sorts of kernel take {taken} of the time"
    return figure(title, made_table)


_KERNEL_COLUMNS = (
    Column("kernel and its nodes"),
    Column("launches", numeric=True),
    Column("ms", numeric=True, hint="of all launches"),
    Column("share", numeric=True),
    Column("ms each", numeric=True),
    Column("limit"),
    Column("Gflop", numeric=True, hint="of one launch"),
    Column("MB moved", numeric=True, hint="by one launch"),
    Column("flop/byte", numeric=True),
    Column(
        "of roof",
        numeric=True,
        hint="achieved rate over the roofline at its intensity; over 100 % if the cache serves it",
    ),
)


def _kernel_cells(alike: AlikeKernels, made: Prediction, device: Device) -> list[Content]:
    kernel = alike.one
    return [
        join((clean(kernel.title), element("small", _node_names(alike)))),
        str(len(alike.kernels)),
        format_number(alike.latency_ms),
        share(alike.latency_ms, made.latency_ms.value),
        format_number(kernel.latency_ms),
        kernel.main.limit,
        format_number(kernel.flops / 1e9),
        format_number(kernel.moved_bytes / 1e6),
        format_number(kernel.intensity_flop_per_byte),
        _of_roof(kernel, _roof(made, device, kernel.intensity_flop_per_byte)),
    ]


def _node_names(alike: AlikeKernels) -> str:
    names = [node.name for kernel in alike.kernels for node in kernel.nodes if node.latency_ms > 0]
    names = [short_name(name) for name in names or [alike.one.main.name]]
    shown = names[:_MOST_NAMES]
    while len(shown) > 1 and sum(map(len, shown)) > _MOST_LETTERS:
        shown.pop()
    more = f" and {len(names) - len(shown):,} more" if len(names) > len(shown) else ""
    return clean(", ".join(shown)) + more


def _of_roof(kernel: LaunchedKernel, roof_flop_per_s: float) -> str:
    if not kernel.flops or not kernel.moved_bytes or not kernel.latency_ms:
        return ""
    return f"{kernel.flop_per_s / roof_flop_per_s:.0%}".replace("%", " %")


def _roof(made: Prediction, device: Device, intensity_flop_per_byte: float) -> float:
    peak = device.peak_for(Precision.predicted(made.precision))
    return min(peak, intensity_flop_per_byte * device.memory_bandwidth_bytes_per_s) or peak


def roofline(made: Prediction, kernels: Sequence[LaunchedKernel], device: Device) -> Html:
    """Return the roofline plot: kernels at their intensity and achieved rate, under the roofs.

    Alike kernels are one mark. The heaviest `DRAWN_POINTS` are drawn, the rest as one hollow mark
    for each colour. Method: Williams, Waterman, Patterson, CACM 52(4), 2009.
    """
    placed = [k for k in kernels if k.flops and k.moved_bytes and k.latency_ms > 0]
    if not placed:
        return figure("Roofline: no kernel does arithmetic", element("p", "Nothing to draw."))
    total_ms = made.latency_ms.value
    marks = alike_kernels(placed)
    drawn, rest = marks[:DRAWN_POINTS], marks[DRAWN_POINTS:]
    precision = Precision.predicted(made.precision)
    peak, bandwidth = device.peak_for(precision), device.memory_bandwidth_bytes_per_s
    ridge = peak / bandwidth
    points = [_point(alike, total_ms) for alike in drawn]
    points.extend(_rest_points(rest))
    # a little room, so that no mark lies on an axis
    across = [end for p in points for end in (p.x / _ROOM, p.x * _ROOM)]
    x = log_axis("arithmetic intensity, flop/byte", [*across, ridge / 4, ridge * 4])
    y = log_axis("achieved, flop/s", [*(p.y / _ROOM for p in points), peak, peak / 100])
    chart = scatter(
        points,
        x=x,
        y=y,
        behind=_roofs(device, precision, x, y),
        label=f"Roofline of {made.model} on {device.name}: {len(placed)} kernels",
        height=380,
    )
    below = sum(kernel.latency_ms for kernel in placed if kernel.intensity_flop_per_byte < ridge)
    title = (
        f"Roofline: {share(below, total_ms)} of the time is left of the ridge at"
        f" {format_number(ridge)} flop/byte, where bandwidth is the roof"
    )
    used = {GROUP_OF[kernel.main.kind] for kernel in placed}
    names = legend((look.name, "", look.shape, look.style) for look in GROUPS if look in used)
    return figure(
        title, join((chart, names)), caption=_about_points(made, kernels, placed, len(rest))
    )


def _about_points(
    made: Prediction,
    kernels: Sequence[LaunchedKernel],
    placed: Sequence[LaunchedKernel],
    aggregated: int,
) -> str:
    words = ["Alike kernels are one mark; its area is the time of them all, at least a dot."]
    if aggregated:
        words.append(
            f"The {DRAWN_POINTS} heaviest are drawn, the other {aggregated:,} together as one"
            " hollow mark for each colour."
        )
    if len(placed) < len(kernels):
        absent = len(kernels) - len(placed)
        without_ms = sum(kernel.latency_ms for kernel in kernels) - sum(
            kernel.latency_ms for kernel in placed
        )
        words.append(
            f"Without arithmetic, so without a place here: {counted(absent, 'kernel')},"
            f" {share(without_ms, made.latency_ms.value)} of the time."
        )
    words.append(
        "Marks above the bandwidth line are served by the cache. Rates and bandwidth are"
        " those of the data sheet."
    )
    return " ".join(words)


def _point(alike: AlikeKernels, total_ms: float) -> Point:
    kernel = alike.one
    look = GROUP_OF[kernel.main.kind]
    part = alike.latency_ms / total_ms
    count = f"{len(alike.kernels)} times " if len(alike.kernels) > 1 else ""
    hover = (
        f"{count}{kernel.title} ({_node_names(alike)}): {format_ms(alike.latency_ms)},"
        f" {share(alike.latency_ms, total_ms)};"
        f" {format_number(kernel.intensity_flop_per_byte)} flop/byte,"
        f" {format_scaled(kernel.flop_per_s, 'flop/s')}; limit: {kernel.main.limit}"
    )
    return Point(
        kernel.intensity_flop_per_byte,
        kernel.flop_per_s,
        hover,
        style=look.style,
        shape=look.shape,
        size=max(_SMALLEST_MARK, min(_LARGEST_MARK, _MARK_OF_WHOLE * part**0.5)),
    )


def _rest_points(rest: Iterable[AlikeKernels]) -> Iterable[Point]:
    """Yield one mark for each group of kernels, at their summed work over their summed time."""
    groups: dict[str, list[LaunchedKernel]] = {}
    for alike in rest:
        group = groups.setdefault(GROUP_OF[alike.one.main.kind].name, [])
        group.extend(alike.kernels)
    for members in groups.values():
        look = GROUP_OF[members[0].main.kind]
        flops = sum(kernel.flops for kernel in members)
        ms = sum(kernel.latency_ms for kernel in members)
        yield Point(
            flops / sum(kernel.moved_bytes for kernel in members),
            flops / ms * 1e3,
            f"{len(members):,} smaller kernels ({look.name}) together: {format_ms(ms)}",
            style=f"{look.style} hollow",
            shape=look.shape,
            size=6,
        )


def _roofs(device: Device, precision: Precision, x: Axis, y: Axis) -> list[Html]:
    """Draw the bandwidth line, the peak of the precision, and a lower vector peak."""
    bandwidth, peak = device.memory_bandwidth_bytes_per_s, device.peak_for(precision)
    vector = device.peak_flop_per_s.get(DType.FP32, peak)
    marks = [_roof_line(bandwidth, peak, x, y, "roof")]
    first_x, first_y = max(x.low, y.low / bandwidth), max(y.low, x.low * bandwidth)
    marks.append(
        segment(
            x.at(first_x), 1 - y.at(first_y), x.at(peak / bandwidth), 1 - y.at(peak), style="roof"
        )
    )
    marks.append(_roof_label(1, 1 - y.at(peak), f"{precision.compute} {short(peak)}flop/s", -8))
    if vector < 0.8 * peak:
        marks.append(_roof_line(bandwidth, vector, x, y, "roof second"))
        marks.append(_roof_label(1, 1 - y.at(vector), f"fp32 vector {short(vector)}flop/s", 16))
    middle = (first_y * peak) ** 0.5
    marks.append(
        label_at(
            x.at(middle / bandwidth),
            1 - y.at(middle),
            f"{short(bandwidth)}B/s",
            anchor="end",
            dx=-10,
            dy=-4,
            style="direct",
        )
    )
    return marks


def _roof_line(bandwidth: float, rate: float, x: Axis, y: Axis, style: str) -> Html:
    return segment(x.at(rate / bandwidth), 1 - y.at(rate), 1, 1 - y.at(rate), style=style)


def _roof_label(x: float, y: float, words: str, dy: float) -> Html:
    return label_at(x, y, words, anchor="end", dy=dy, style="direct")
