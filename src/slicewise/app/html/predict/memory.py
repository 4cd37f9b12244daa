"""Memory of one prediction: against the device's capacity, and over the time of one inference."""

from collections.abc import Sequence
from dataclasses import dataclass

from slicewise.app.html.blocks import figure, sentence
from slicewise.app.html.charts import Bar, legend, stack
from slicewise.app.html.markup import Html, join
from slicewise.app.html.plot import label_at, marker, outline, plot, segment
from slicewise.app.html.predict.breakdown import share
from slicewise.app.html.scale import Axis, binary_axis, linear_axis
from slicewise.app.kernels import LaunchedKernel
from slicewise.app.words import short_name
from slicewise.core.cost import Prediction
from slicewise.core.device import Device
from slicewise.core.units import format_capacity, format_ms

_COLUMNS = 600  # of the area chart: a longer program is drawn by the peak of each column
# What is held all the time is drawn up to this multiple of the most activations; runtime and
# workspace go first, then weights.
_MOST_STEADY = 6.0
# The device's capacity is a line of the area chart up to this multiple of the peak.
_CAPACITY_IN_SIGHT = 2.5
_Place = tuple[float, float, int, str]  # start ms, end ms, most bytes alive, their node


def memory_against_capacity(made: Prediction, device: Device) -> Html:
    """Return one bar: what the model needs of the device's memory, part by part."""
    memory = made.memory_bytes
    whole = max(device.memory_bytes, memory.high)
    rows = [
        ("weights", memory.weights, "weights"),
        ("activations at the peak", memory.activations, "activations"),
        ("workspace", memory.workspace, "workspace"),
        ("runtime", memory.runtime, "runtime"),
    ]
    parts = [
        Bar(name, size / whole, format_capacity(size), style) for name, size, style in rows if size
    ]
    capacity = format_capacity(device.memory_bytes)
    if memory.value > device.memory_bytes:
        title = f"Memory: {format_capacity(memory.value)} needed, the device has only {capacity}"
    else:
        title = (
            f"Memory: {format_capacity(memory.value)} needed,"
            f" {share(memory.value, device.memory_bytes)} of {capacity}"
        )
    bar = stack(
        parts,
        label=f"{title}: " + ", ".join(f"{part.name} {part.shown}" for part in parts),
        whisker=(memory.low / whole, memory.high / whole),
        limit=device.memory_bytes / whole,
    )
    interval = f"{format_capacity(memory.low)} to {format_capacity(memory.high)}"
    caption = f"The thin line is the 90 % interval, {interval}; the thick one the capacity."
    return figure(title, bar, caption=caption)


def memory_over_time(made: Prediction, kernels: Sequence[LaunchedKernel], device: Device) -> Html:
    """Return the stacked areas of runtime, weights and living activations over one inference.

    Where no living activations are known, a sentence says so.
    """
    if not kernels:
        return join(())
    if not any(node.alive_bytes for node in made.nodes):
        return sentence(
            "This prediction does not tell which activations are alive when, so that memory over"
            " time is not drawn.",
            style="quiet",
        )
    columns = _columns(made, kernels)
    peak = max(columns, key=lambda column: column[2])
    layers = _steady_layers(made, peak[2])
    steady = sum(layer.size for layer in layers)
    top = steady + peak[2]
    left_out = made.memory_bytes.value - made.memory_bytes.activations - steady
    in_sight = not left_out and device.memory_bytes < _CAPACITY_IN_SIGHT * top
    ceiling = device.memory_bytes if in_sight else 0
    y = binary_axis("memory", [top * 1.05, ceiling * 1.05], show=_tick)
    x = linear_axis("time, ms", [made.latency_ms.value], exact=True)
    marks, base = [], 0
    for layer in layers:
        marks.append(_steady_area(base, layer, y))
        base += layer.size
    marks.append(_living_area(columns, base, x, y))
    if in_sight:
        level = 1 - y.at(ceiling)
        words = f"capacity {format_capacity(ceiling)}"
        marks.append(segment(0, level, 1, level, style="roof second"))
        marks.append(label_at(1, level, words, anchor="end", dy=-6, style="direct"))
    marks.extend(_peak_mark(peak, x.at((peak[0] + peak[1]) / 2), 1 - y.at(top)))
    title = (
        f"Activations peak at {format_capacity(peak[2])} in {short_name(peak[3])},"
        f" {share(peak[0], made.latency_ms.value)} into the inference"
    )
    label = f"Memory over {format_ms(made.latency_ms.value)}: {title}"
    names = legend(
        [
            ("living activations", "", "square", "activations"),
            *((at.name, format_capacity(at.size), "square", at.style) for at in layers[::-1]),
        ]
    )
    told = []
    if left_out:
        told.append(
            f"What stays the same and would hide this, {format_capacity(left_out)}, is left out;"
            " the bar above has it."
        )
    if len(kernels) > _COLUMNS:
        told.append(f"{len(kernels):,} kernels are drawn by the peak of each column.")
    return figure(
        title,
        join((plot(marks, x=x, y=y, label=label, height=240), names)),
        caption=" ".join(told) or None,
    )


@dataclass(frozen=True, slots=True)
class _Layer:
    """Bytes that are held all the time."""

    name: str
    size: int
    style: str


def _steady_layers(made: Prediction, peak_bytes: int) -> list[_Layer]:
    """Return what lies under the activations, from the bottom, without what would dwarf them."""
    memory = made.memory_bytes
    layers = [
        _Layer("runtime and workspace", memory.runtime + memory.workspace, "runtime"),
        _Layer("weights", memory.weights, "weights"),
    ]
    while layers and sum(layer.size for layer in layers) > _MOST_STEADY * peak_bytes:
        layers.pop(0)
    return layers


def _peak_mark(peak: _Place, left: float, top: float) -> Sequence[Html]:
    words = f"{format_capacity(peak[2])} of activations"
    end = left > 0.6
    return (
        marker(
            left, top, f"{words} in {short_name(peak[3])}", shape="circle", style="activations"
        ),
        label_at(
            left,
            top,
            words,
            anchor="end" if end else "start",
            dx=-8 if end else 8,
            dy=-6,
            style="direct",
        ),
    )


def _tick(value: float) -> str:
    return format_capacity(value).replace(".00", "").replace(".0 ", " ") if value else "0"


def _columns(made: Prediction, kernels: Sequence[LaunchedKernel]) -> list[_Place]:
    """Return (start ms, end ms, most bytes alive, the node with most), few enough to draw."""
    total_ms = made.latency_ms.value
    columns: list[_Place] = []
    start = made.host_ms
    for kernel in kernels:
        end = start + kernel.latency_ms
        name = max(kernel.nodes, key=lambda node: node.alive_bytes).name
        here = (start, end, kernel.alive_bytes, name)
        start = end
        last = columns[-1] if columns else None
        if len(kernels) > _COLUMNS and last and end - last[0] < total_ms / _COLUMNS:
            worst = max(last, here, key=lambda column: column[2])
            columns[-1] = (last[0], end, worst[2], worst[3])
        else:
            columns.append(here)
    return columns


def _steady_area(base: int, layer: _Layer, y: Axis) -> Html:
    low, high = 1 - y.at(base), 1 - y.at(base + layer.size)
    corners = [(0.0, low), (0.0, high), (1.0, high), (1.0, low)]
    return outline(corners, style=f"area {layer.style}", closed=True)


def _living_area(columns: Sequence[_Place], base: int, x: Axis, y: Axis) -> Html:
    low = 1 - y.at(base)
    corners = [(x.at(columns[0][0]), low)]
    for start, end, alive, _ in columns:
        high = 1 - y.at(base + alive)
        corners.extend(((x.at(start), high), (x.at(end), high)))
    corners.append((x.at(columns[-1][1]), low))
    return outline(corners, style="area activations", closed=True)
