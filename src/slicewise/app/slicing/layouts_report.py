"""`slicewise devices NAME --layouts`: every way to cut a card, drawn, and as plain values.

Layouts are grouped by what they consist of; where it starts is all that differs within a group.
"""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from slicewise.app.documents import Json
from slicewise.app.slicing.drawing import layout_bar
from slicewise.app.words import clean, counted
from slicewise.core.device import Device
from slicewise.core.errors import DeviceError, UsageError
from slicewise.core.units import format_capacity
from slicewise.slices.layouts import (
    Multiset,
    Placement,
    dominated_multisets,
    maximal_layouts,
    multiset_of,
    multisets,
)


def check_sliceable(devices: Sequence[Device]) -> Device:
    """Return the one card whose layouts are asked; an error if it is none, several, or a part.

    `DeviceError` for a part of a card, or a card without MIG.
    """
    if len(devices) != 1:
        raise UsageError(
            f"--layouts draws one card, {len(devices)} are listed; name one, as in"
            " `slicewise devices a100-sxm4-80gb --layouts`"
        )
    (device,) = devices
    if device.parent is not None:
        raise DeviceError(
            f"{device.name} is a part of a card and is not cut again; name {device.whole.name}"
        )
    maximal_layouts(device)  # raises the error that says what else is possible
    return device


def layouts_report(device: Device) -> RenderableType:
    """Return the layouts of a card as text: counts first, then a group for each multiset."""
    layouts, found = maximal_layouts(device), multisets(device)
    dominated = dominated_multisets(device)
    answer = Text.assemble(
        f"{clean(device.name)}: ",
        (counted(len(layouts), "layout"), "bold green"),
        f" into which no further slice fits, {counted(len(found), 'combination')} of slices",
        f", {len(dominated)} of them dominated" if dominated else "",
    )
    parts: list[RenderableType] = [answer, Text()]
    parts.append(Text(_scale(device, layouts[0]), style="dim"))
    for multiset in found:
        parts.append(_heading(device, multiset, is_dominated=multiset in dominated))
        parts += [
            Text.assemble("  ", layout_bar(device, layout))
            for layout in layouts
            if multiset_of(layout) == multiset
        ]
    return Group(*parts, Text(), Text(_legend(device, bool(dominated)), style="dim"))


def _legend(device: Device, has_dominated: bool) -> str:
    told = "Numbers are memory slots, dots slots left free."
    if has_dominated:
        told += " Dominated: another combination has all of it and more; start slices elsewhere."
    variants = [each.name for each in device.profiles if each.attributes]
    if variants:
        told += f" Not drawn: {', '.join(variants)}; `slicewise devices {device.name}` has them."
    return told


def _scale(device: Device, layout: Sequence[Placement]) -> str:
    """Return the numbers of the slots above their places in the bars."""
    wide = (len(layout_bar(device, layout).plain) - 1) // device.memory_slots
    return "  " + "".join(f" {slot}".ljust(wide) for slot in range(device.memory_slots)).rstrip()


def _heading(device: Device, multiset: Multiset, *, is_dominated: bool) -> Text:
    counts = dict(multiset)
    told = " + ".join(
        each.name if counts[each.name] == 1 else f"{counts[each.name]} x {each.name}"
        for each in reversed(device.profiles)
        if each.name in counts
    )
    units, memory_bytes = _totals(device, multiset)
    figures = f"   {units} of {device.compute_units} units, {format_capacity(memory_bytes)}"
    return Text.assemble(
        (told, "" if is_dominated else "bold"),
        (figures, "dim"),
        (", dominated" if is_dominated else "", "yellow"),
    )


def _totals(device: Device, multiset: Multiset) -> tuple[int, int]:
    """Return the compute units and the usable memory of all slices together."""
    profiles = [(device.profile_named(name), count) for name, count in multiset]
    units = sum(profile.compute_units * count for profile, count in profiles)
    return units, sum(profile.memory_bytes * count for profile, count in profiles)


def with_layouts(document: Json, device: Device) -> Json:
    """Return `slicewise.devices/1` of one card with `layouts` and `multisets` added to it."""
    devices = document["devices"]
    assert isinstance(devices, list)
    (card,) = devices
    dominated = dominated_multisets(device)
    layouts = maximal_layouts(device)
    made = {
        **card,
        "layouts": [
            [{"profile": each.profile, "start": each.start} for each in layout]
            for layout in layouts
        ],
        "multisets": [
            {
                "profiles": dict(multiset),
                "layouts": sum(multiset_of(layout) == multiset for layout in layouts),
                "compute_units": _totals(device, multiset)[0],
                "memory_bytes": _totals(device, multiset)[1],
                "dominated": multiset in dominated,
            }
            for multiset in multisets(device)
        ],
    }
    return {**document, "devices": [made]}
