"""Cards drawn on a page: memory slots from left to right, slices as blocks with what they serve.

A block is as wide as its slots; on a narrow page the slots run downwards. Colours are those of the
style sheet, so that a card reads in light and in dark.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from slicewise.app.html.markup import Content, Html, element, join
from slicewise.app.html.plot import percent
from slicewise.app.slicing.drawing import alike, gpu_heading, load_of, slots_drawn
from slicewise.app.words import clean, counted
from slicewise.core.device import Device
from slicewise.core.packing import PlacedGpu, PlacedSlice
from slicewise.core.units import format_ms, format_number

# Classes of the style sheet, far from one another in light and in dark.
_STYLES = ("conv", "norm", "matmul", "attention", "elementwise", "movement")


def workload_classes(names: Iterable[str]) -> dict[str, str]:
    """Return a colour (a class of the style sheet) for each workload, in turn.

    >>> workload_classes(["bert", "vgg", "bert"])
    {'bert': 'conv', 'vgg': 'norm'}
    """
    once = dict.fromkeys(names)
    return {name: _STYLES[i % len(_STYLES)] for i, name in enumerate(once)}


def gpu_slots(
    device: Device,
    gpu: PlacedGpu,
    *,
    styles: Mapping[str, str] | None = None,
    heading: str | None = None,
) -> Html:
    """Return a card as a row of its slots: slices with what they serve and how full they are.

    `styles` are colours by workload (`workload_classes`); `heading` stands above, by default the
    card and the room left on it.
    """
    if styles is None:
        styles = workload_classes(each.workload for each in gpu.slices if each.workload)
    slots = slots_drawn(device)
    blocks: list[Content] = []
    at = 0
    for each in sorted(gpu.slices, key=lambda one: one.start):
        size = slots if each.profile is None else device.profile_named(each.profile).size
        if each.start > at:
            blocks.append(_room(at, each.start - at))
        blocks.append(_block(each, size, styles.get(each.workload or "", _STYLES[0])))
        at = each.start + size
    if at < slots:
        blocks.append(_room(at, slots - at))
    told = heading or gpu_heading(device, gpu)
    bar = element("ol", *blocks, class_="slots", style=f"--slots:{slots}", aria_label=told)
    return element("div", element("p", told, class_="card-name"), bar, class_="gpu")


def _place(start: int, size: int) -> str:
    return f"--start:{start + 1};--size:{size}"


def _room(start: int, size: int) -> Html:
    words = element("span", f"{counted(size, 'slot')} free", class_="how")
    return element("li", words, class_="room", style=_place(start, size))


def _block(each: PlacedSlice, size: int, style: str) -> Html:
    profile = each.profile or "whole card"
    slots = f"slot {each.start}" if size == 1 else f"slots {each.start} to {each.start + size - 1}"
    name = "free" if each.workload is None else clean(each.workload)
    told = [name, profile, "" if each.profile is None else slots, *_told(each)]
    return element(
        "li",
        element("b", name),
        element("span", f"{profile}{', in use' if each.in_use else ''}", class_="how"),
        *_serving(each),
        class_="slice free" if each.workload is None else f"slice {style}",
        style=_place(each.start, size),
        title=", ".join(word for word in told if word),
    )


def _serving(each: PlacedSlice) -> list[Content]:
    """Return how the slice serves, and a bar of how full it is."""
    if each.offer is None:
        return []
    serving = each.offer.serving
    processes = f", {serving.processes} processes" if serving.processes > 1 else ""
    load = load_of(each)
    return [
        element("span", f"batch {serving.batch}{processes}", class_="how"),
        element("span", f"{load:.0%} full", class_="how"),
        element(
            "span", element("i", style=f"width:{percent(min(1.0, load))}"), class_="load",
            aria_hidden="true",
        ),
    ]  # fmt: skip


def _told(each: PlacedSlice) -> list[str]:
    if each.offer is None:
        return []
    serving, offer = each.offer.serving, each.offer
    return [
        f"batch {serving.batch}",
        f"{serving.processes} processes" if serving.processes > 1 else "",
        f"{format_ms(serving.service_ms.value)} a batch",
        f"{format_number(each.rate_per_s)} of {format_number(offer.capacity_per_s)} requests/s",
    ]


def fleet_slots(
    gpus: Sequence[PlacedGpu], device_of: Callable[[str], Device], *, most: int = 64
) -> Html:
    """Return the cards one below the other; cards cut and used alike are drawn once.

    After `most` drawings the rest is counted. `device_of` finds the card by its name
    (`PackProblem.device`).
    """
    styles = workload_classes(
        each.workload for gpu in gpus for each in gpu.slices if each.workload is not None
    )
    groups = alike(gpus)
    parts: list[Content] = []
    for first, numbers in groups[:most]:
        device = device_of(first.device)
        heading = gpu_heading(device, first, numbers=numbers)
        parts.append(gpu_slots(device, first, styles=styles, heading=heading))
    left = sum(len(numbers) for _, numbers in groups[most:])
    if left:
        more = f"{counted(left, 'more card')}, not drawn; --json has all"
        parts.append(element("p", more, class_="quiet"))
    return join(parts)
