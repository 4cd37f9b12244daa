"""Cards drawn in text: memory slots from left to right, slices as boxes with what they serve.

Formats only. A box is as wide as its slots; where a name does not fit it is told below.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from slicewise.app.words import clean, counted
from slicewise.core.device import Device
from slicewise.core.packing import PlacedGpu, PlacedSlice
from slicewise.slices.layouts import Placement, largest_free

_NARROWEST, _WIDEST = 3, 12  # columns of a slot, its left border included
_SLOTS_OF_UNSLICED = 4  # a card without MIG is drawn as wide as this many
_STYLES = ("cyan", "green", "magenta", "yellow", "blue", "red")


@dataclass(frozen=True, slots=True)
class _Lines:
    """Characters of the frame."""

    across: str
    down: str
    top: str  # left, between, right
    bottom: str
    free: str
    cut: str


_FINE = _Lines("─", "│", "┌┬┐", "└┴┘", "·", "…")
_ASCII = _Lines("-", "|", "+++", "+++", ".", "~")


@dataclass(frozen=True, slots=True)
class Box:
    """A run of slots: a slice with lines of text, or, without lines, room that nothing takes."""

    start: int
    size: int
    words: tuple[str, ...] = ()
    style: str = ""


@dataclass(frozen=True, slots=True)
class SlotBar:
    """Boxes over the slots of a card, as wide as the terminal allows."""

    slots: int
    boxes: tuple[Box, ...]
    has_scale: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = _ASCII if options.ascii_only else _FINE
        wide = min(_WIDEST, max(_NARROWEST, (options.max_width - 1) // self.slots))
        yield self._rule(wide, lines, lines.top)
        for row in range(max((len(box.words) for box in self.boxes), default=1)):
            made = Text(no_wrap=True)
            for box in self.boxes:
                inner = box.size * wide - 1
                made.append(lines.down)
                made.append(_fitted(box, row, inner, lines), style=box.style)
            yield made.append(lines.down)
        yield self._rule(wide, lines, lines.bottom)
        if self.has_scale:
            scale = "".join(f" {start}".ljust(wide) for start in range(self.slots))
            yield Text(scale.rstrip(), style="dim", no_wrap=True)
        yield from self._told_below(wide)

    def _rule(self, wide: int, lines: _Lines, corners: str) -> Text:
        made = [lines.across * (box.size * wide - 1) for box in self.boxes]
        return Text(f"{corners[0]}{corners[1].join(made)}{corners[2]}", no_wrap=True)

    def _told_below(self, wide: int) -> Iterator[Text]:
        for box in self.boxes:
            if any(cell_len(words) > box.size * wide - 1 for words in box.words):
                yield Text(f" {box.start}: {', '.join(box.words)}", style=box.style)


def _fitted(box: Box, row: int, inner: int, lines: _Lines) -> str:
    if not box.words:
        return lines.free * inner
    words = box.words[row] if row < len(box.words) else ""
    if cell_len(words) <= inner:
        return set_cell_size(words, inner)
    return f"{set_cell_size(words, inner - 1)}{lines.cut}"


def workload_styles(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each workload, in turn.

    >>> workload_styles(["bert", "vgg", "bert"])
    {'bert': 'cyan', 'vgg': 'green'}
    """
    once = dict.fromkeys(names)
    return {name: _STYLES[i % len(_STYLES)] for i, name in enumerate(once)}


def slice_words(each: PlacedSlice) -> tuple[str, ...]:
    """Return what is told of a slice: what it serves, its profile, how, and how full it is.

    >>> slice_words(PlacedSlice("3g.40gb", 4))
    ('free', '3g.40gb')
    """
    profile = each.profile or "whole card"
    if each.workload is None:
        return "free", profile
    words = [clean(each.workload), f"{profile}{'!' if each.in_use else ''}"]
    if each.offer is not None:
        serving = each.offer.serving
        how = f"b{serving.batch}"
        if serving.processes > 1:
            how += f"x{serving.processes}"
        words.append(f"{how} {load_of(each):.0%}")
    return tuple(words)


def load_of(each: PlacedSlice) -> float:
    """Return the part of what a slice can carry that its requests take, 0 for a free one."""
    if each.offer is None or each.offer.capacity_per_s <= 0:
        return 0.0
    return each.rate_per_s / each.offer.capacity_per_s


def boxes_of(
    device: Device, gpu: PlacedGpu, *, styles: Mapping[str, str] | None = None
) -> tuple[Box, ...]:
    """Return the slices of a card as boxes, and each run of slots between them as one box."""
    slots = slots_drawn(device)
    made: list[Box] = []
    at = 0
    for each in sorted(gpu.slices, key=lambda one: one.start):
        size = slots if each.profile is None else device.profile_named(each.profile).size
        if each.start > at:
            made.append(Box(at, each.start - at))
        style = (styles or {}).get(each.workload or "", "") if each.workload else "dim"
        made.append(Box(each.start, size, slice_words(each), style))
        at = each.start + size
    if at < slots:
        made.append(Box(at, slots - at))
    return tuple(made)


def slots_drawn(device: Device) -> int:
    """Return the number of slots as which a card is drawn."""
    return device.memory_slots or _SLOTS_OF_UNSLICED


def room_words(device: Device, gpu: PlacedGpu) -> str:
    """Return what could still be made on a card, '' where it has no MIG or is used whole.

    A slice that is there and free is told by its box.
    """
    if not device.profiles or any(each.profile is None for each in gpu.slices):
        return ""
    placements = [Placement(each.profile or "", each.start) for each in gpu.slices]
    largest = largest_free(device, placements)
    return "no room for another slice" if largest is None else f"room for a {largest}"


def gpu_drawing(
    device: Device,
    gpu: PlacedGpu,
    *,
    styles: Mapping[str, str] | None = None,
    heading: str | None = None,
) -> RenderableType:
    """Return a card as a bar of its slots: slices with what they serve, free slots dotted.

    `styles` are colours by workload (`workload_styles`); `heading` stands above, by default the
    card and the room left on it.
    """
    if heading is None:
        heading = gpu_heading(device, gpu)
    boxes = boxes_of(device, gpu, styles=styles)
    bar = SlotBar(slots_drawn(device), boxes, has_scale=bool(device.profiles))
    return Group(Text(heading, style="bold"), bar)


def gpu_heading(device: Device, gpu: PlacedGpu, *, numbers: Sequence[int] = ()) -> str:
    """Return 'a100-sxm4-80gb #0, #2: room for a 2g.20gb'."""
    told = ", ".join(f"#{number}" for number in numbers or (gpu.index,))
    room = room_words(device, gpu)
    return f"{clean(device.name)} {told}{': ' if room else ''}{room}"


def fleet_drawing(
    gpus: Sequence[PlacedGpu], device_of: Callable[[str], Device], *, most: int = 16
) -> RenderableType:
    """Return the cards one below the other, each kind of card with its own slots.

    Cards that are cut and used alike are drawn once, with all their numbers; after `most` drawings
    the rest is counted. `device_of` finds the card by its name (`PackProblem.device`).
    """
    names = (each.workload for gpu in gpus for each in gpu.slices if each.workload is not None)
    styles = workload_styles(names)
    groups = alike(gpus)
    parts: list[RenderableType] = []
    for first, numbers in groups[:most]:
        device = device_of(first.device)
        heading = gpu_heading(device, first, numbers=numbers)
        parts.append(gpu_drawing(device, first, styles=styles, heading=heading))
    left = sum(len(numbers) for _, numbers in groups[most:])
    if left:
        parts.append(Text(f"{counted(left, 'more card')}, not drawn; --json has all"))
    parts += [Text(line, style="dim") for line in legend_lines(gpus)]
    return Group(*parts)


def legend_lines(gpus: Sequence[PlacedGpu]) -> tuple[str, ...]:
    """Return what the signs in the boxes of these cards mean, only those that are there.

    >>> legend_lines([PlacedGpu("a30", 0, (PlacedSlice("1g.6gb", 0, "cat", in_use=True),))])
    ('1g.10gb!: in use, is not touched',)
    """
    slices = [each for gpu in gpus for each in gpu.slices]
    told = {
        "b8x2 50%: batch 8, 2 processes, half of the rate that it can carry": any(
            each.offer is not None for each in slices
        ),
        "1g.10gb!: in use, is not touched": any(each.in_use for each in slices),
    }
    return tuple(line for line, is_there in told.items() if is_there)


def alike(gpus: Sequence[PlacedGpu]) -> list[tuple[PlacedGpu, tuple[int, ...]]]:
    """Return the cards that look alike as one with all their numbers, in order of appearance.

    Alike are cards of a kind whose slices start, serve and are filled (to a percent) alike.
    """
    groups: dict[object, tuple[PlacedGpu, list[int]]] = {}
    for gpu in gpus:
        words = tuple((each.start, slice_words(each)) for each in gpu.slices)
        _, numbers = groups.setdefault((gpu.device, words), (gpu, []))
        numbers.append(gpu.index)
    return [(first, tuple(numbers)) for first, numbers in groups.values()]


def layout_bar(device: Device, placements: Sequence[Placement]) -> Text:
    """Return a layout as one line: '|4g.40gb   |3g.40gb   |', free slots dotted.

    >>> import slicewise
    >>> card = slicewise.device("a30")
    >>> layout_bar(card, [Placement("2g.12gb", 0), Placement("1g.6gb", 3)]).plain
    '|2g.12gb      |......|1g.6gb|'
    """
    base = [each for each in device.profiles if not each.attributes]
    wide = max(-(-(len(each.name) + 1) // each.size) for each in base)
    slices = tuple(PlacedSlice(each.profile, each.start) for each in placements)
    boxes = boxes_of(device, PlacedGpu(device.name, 0, slices))
    made = Text("|", no_wrap=True)
    for box in (replace(box, words=box.words[1:]) for box in boxes):
        inner = box.size * wide - 1
        made.append(_fitted(box, 0, inner, _ASCII), style="" if box.words else "dim")
        made.append("|")
    return made
