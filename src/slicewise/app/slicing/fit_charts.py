"""Charts of a fit: intervals of every part against the target, and memory against what is usable.

Values in, markup out; what fits is judged elsewhere.
"""

from collections.abc import Sequence

from slicewise.app.html.charts import legend
from slicewise.app.html.markup import Html, element, join
from slicewise.app.html.plot import label_at, marker, percent, segment
from slicewise.app.html.scale import Axis, binary_axis, linear_axis, log_axis
from slicewise.app.slicing.fit_words import part, shown
from slicewise.app.words import interval
from slicewise.core.packing import Fit
from slicewise.core.units import format_capacity, format_ms, format_number
from slicewise.flows.fitting.result import FitResult
from slicewise.slices.fit import has_memory, usable_bytes

_WIDE_SPAN = 20  # values that span more are shown on a logarithmic axis


def latency_chart(made: FitResult) -> Html:
    """Return the latency of every part with its interval; lines are the target and, dashed, what
    a predicted latency may be with the safety to spare.
    """
    fits = shown(made)
    figures = [bound for fit in fits for bound in _ends(fit)]
    limits = _limits(made)
    values = [*figures, *limits]
    is_log = min(values) > 0 and max(values) > _WIDE_SPAN * min(values)
    axis = log_axis("ms", values) if is_log else linear_axis("ms", values)
    rows = [_latency_row(fit, made, axis, limits) for fit in fits]
    scale = _scale(axis, f"ms{', logarithmic' if is_log else ''}")
    drawn = element("ul", *rows, scale, class_="rows intervals", aria_label="Latency of each part")
    return join((drawn, legend(_entries(made))))


def _entries(made: FitResult) -> list[tuple[str, str, str, str]]:
    entries = [("latency, with its 90 % interval", "", "circle", "accent")]
    if any(not fit.fits for fit in made.fits):
        entries.append(("does not fit", "", "circle", "host"))
    target = made.target
    if target.latency_ms is not None:
        entries.append(("line: target", format_ms(target.latency_ms), "square", ""))
    if target.latency_ms is not None and target.safety:
        told = f"{format_ms(target.latency_allowed_ms)}"
        entries.append(("dashed: with the safety to spare", told, "square", ""))
    return entries


def _ends(fit: Fit) -> tuple[float, float]:
    return fit.prediction.latency_ms.low, fit.prediction.latency_ms.high


def _limits(made: FitResult) -> list[float]:
    target = made.target
    if target.latency_ms is None:
        return []
    allowed = [target.latency_allowed_ms] if target.safety else []
    return [target.latency_ms, *allowed]


def _latency_row(fit: Fit, made: FitResult, axis: Axis, limits: Sequence[float]) -> Html:
    latency = fit.prediction.latency_ms
    told = f"{format_number(latency.value)} ({interval(latency)}) ms"
    marks = [segment(axis.at(t), 0, axis.at(t), 1, style="grid") for t in axis.ticks]
    for i, limit in enumerate(limits):
        style = "roof second" if i else "roof"
        marks.append(segment(axis.at(limit), 0, axis.at(limit), 1, style=style))
    low, high = (axis.at(end) for end in _ends(fit))
    colour = "accent" if fit.fits else "host"
    marks.append(segment(low, 0.5, high, 0.5, style="whisker" if fit.fits else "whisker thin"))
    marks.append(
        marker(axis.at(latency.value), 0.5, f"{part(fit)}: {fit.reason}", shape="circle",
               style=colour, size=5.5)
    )  # fmt: skip
    drawing = element(
        "svg", *marks, width="100%", height=26, role="img", aria_label=f"{part(fit)}: {told}"
    )
    return _row(_name(fit, made), drawing, told, is_best=fit is made.recommended)


def _name(fit: Fit, made: FitResult) -> str:
    return f"{part(fit)}{', take this' if fit is made.recommended else ''}"


def _row(name: str, drawing: Html, told: str, *, is_best: bool) -> Html:
    return element(
        "li",
        element("span", name, class_="name"),
        element("span", drawing, class_="track"),
        element("span", told, class_="value"),
        class_="best" if is_best else None,
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


def memory_chart(made: FitResult) -> Html | None:
    """Return the memory of every part: a bar of what is needed in the room that it has, the end of
    its interval as a line. None where it is not known.
    """
    fits = [fit for fit in shown(made) if has_memory(fit.prediction)]
    if not fits:
        return None
    if made.mechanism == "mps":
        fits = fits[-1:]  # every share sees the same memory, and the model needs as much on each
    tops = [float(usable_bytes(fit.profile, made.device)) for fit in fits]
    tops += [float(fit.prediction.memory_bytes.high) for fit in fits]
    axis = binary_axis("memory", tops, show=format_capacity)
    rows = [_memory_row(fit, made, axis) for fit in fits]
    drawn = element(
        "ul", *rows, _scale(axis, "memory"), class_="rows intervals",
        aria_label="Memory of each part",
    )  # fmt: skip
    entries = (
        ("needed", "", "square", "accent"),
        ("thin line: what may be needed, by the 90 % interval", "", "square", ""),
        ("thick line: what the part can use", "", "square", ""),
    )
    return join((drawn, legend(entries)))


def _memory_row(fit: Fit, made: FitResult, axis: Axis) -> Html:
    usable = usable_bytes(fit.profile, made.device)
    memory = fit.prediction.memory_bytes
    free = max(0.0, 1 - memory.value / usable)
    told = f"{free:.0%} of {format_capacity(usable)} free"
    if memory.value > usable:
        told = f"{format_capacity(memory.value - usable)} too much"
    colour = "accent" if memory.value <= usable else "launch"
    marks = [
        element("rect", class_="grid room", x=0, y=4, width=percent(axis.at(usable)), height=18,
                rx=2, fill="currentColor", fill_opacity="0.12"),
        element("rect", class_=f"bar {colour}", x=0, y=4, width=percent(axis.at(memory.value)),
                height=18, rx=2),
        segment(axis.at(memory.value), 0.5, axis.at(memory.high), 0.5, style="whisker thin"),
        segment(axis.at(usable), 0, axis.at(usable), 1, style="roof"),
    ]  # fmt: skip
    drawing = element(
        "svg", *marks, width="100%", height=26, role="img", aria_label=f"{part(fit)}: {told}"
    )
    return _row(_name(fit, made), drawing, told, is_best=fit is made.recommended)
