"""Reads what people write about slices: one slice, the slices of a card, the name of a card.

`3g.40gb@4=resnet50!` is a slice that starts at memory slot 4, serves resnet50 and is in use;
`whole` is the card without slices. The profile may be spelt as drivers do (`MIG 3g.39gb`), and a
number in front (`3x1g.10gb`) stands for equal slices whose starts are not told. Files are read
elsewhere. What cannot be is a `DeviceError` that names the nearest that can.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slicewise.core.device import Device
from slicewise.core.errors import DeviceError
from slicewise.core.notes import Note
from slicewise.core.packing import PlacedSlice
from slicewise.core.plugins import did_you_mean
from slicewise.slices.layouts import Placement, checked, place

WHOLE = "whole"
_SLICE = re.compile(
    r"(?:(?P<count>\d{1,2})\s*[x*]\s*)?(?P<profile>(?:mig[ -]?)?[^@=!\s]+)"
    r"(?:@(?P<start>\d{1,2}))?(?:=(?P<workload>[^=!]+))?(?P<use>!)?",
    re.IGNORECASE,
)
_HOW = "write slices as in 3g.40gb@0 2g.20gb@4=resnet50, `whole` for a card without slices"
# a hyphen before the index would read as a minus; only behind a kind's name it joins the two
_GPU = re.compile(r"(?:gpu|card)?[\s#:]*(?P<index>\d{1,5})")
_GPU_OF_KIND = re.compile(r"(?:-|[\s#:]+)(?:gpu|card)?[\s#:]*(?P<index>\d{1,5})")


@dataclass(frozen=True, slots=True)
class WrittenSlice:
    """A slice as written; `start` None where it was not told, `profile` None the whole card."""

    profile: str | None
    start: int | None = None
    workload: str | None = None
    is_in_use: bool = False


def read_slices(text: str, device: Device) -> tuple[WrittenSlice, ...]:
    """Return the slices that a text names, in its order; '' and '-' name none.

    Slices are separated by blanks, commas or semicolons. `DeviceError` for a word that is no
    slice, or a profile that the card lacks.

    >>> import slicewise
    >>> card = slicewise.device("a100-sxm4-80gb")
    >>> [one.start for one in read_slices("3g.40gb@4=bert, 2x1g.10gb", card)]
    [4, None, None]
    """
    joined = re.sub(r"\bmig\s+(?=\d)", "mig-", text.strip(), flags=re.IGNORECASE)
    joined = re.sub(r"(\d)\s*[x*]\s*(?=(?:mig-)?\d+g\.)", r"\1x", joined, flags=re.IGNORECASE)
    words = [word for word in re.split(r"[\s,;]+", joined) if word not in ("", "-")]
    return tuple(made for word in words for made in _read_word(word, device))


def _read_word(word: str, device: Device) -> Iterable[WrittenSlice]:
    parsed = _SLICE.fullmatch(word)
    if parsed is None:
        raise DeviceError(f"{word!r} is no slice of {device.name}; {_HOW}")
    count = int(parsed["count"] or 1)
    start = None if parsed["start"] is None else int(parsed["start"])
    if parsed["profile"].lower() == WHOLE:
        if start or count != 1:
            raise DeviceError(f"{word!r}: a card is whole once, from slot 0; {_HOW}")
        name = None
    else:
        name = device.profile_named(parsed["profile"]).name
    if start is not None and count > 1:
        raise DeviceError(
            f"{word!r} has {count} slices at one start; write each with its own, or leave @{start}"
            " out"
        )
    return [WrittenSlice(name, start, parsed["workload"], bool(parsed["use"]))] * count


def placed_slices(
    written: Sequence[WrittenSlice], device: Device
) -> tuple[tuple[PlacedSlice, ...], tuple[Note, ...]]:
    """Return the slices at their places in order of slots, and a note if starts were chosen.

    Slices without a start go where they leave the largest profile free. `DeviceError` says which
    two overlap, at which slots, or that those without a start find no room.

    >>> import slicewise
    >>> card = slicewise.device("a100-sxm4-80gb")
    >>> slices, notes = placed_slices(read_slices("3g.40gb 1g.10gb@6", card), card)
    >>> [(one.profile, one.start) for one in slices], notes[0].code
    ([('3g.40gb', 0), ('1g.10gb', 6)], 'slice-start-chosen')
    """
    if any(each.profile is None for each in written):
        return _whole(written, device), ()
    if not written:
        return (), ()
    fixed = [(Placement(each.profile or "", each.start), each) for each in written
             if each.start is not None]  # fmt: skip
    checked(device, [spot for spot, _ in fixed])
    floating = [each for each in written if each.start is None]
    counts = Counter(each.profile or "" for each in floating)
    chosen = place(device, counts, fixed=[spot for spot, _ in fixed])
    if chosen is None:
        told = " ".join(f"{count}x{name}" for name, count in sorted(counts.items()))
        beside = " ".join(str(spot) for spot, _ in fixed)
        raise DeviceError(
            f"{told} of {device.name} find no room{f' beside {beside}' if beside else ''};"
            f" `slicewise devices {device.name} --layouts` shows what can stand together"
        )
    waiting = {name: [each for each in floating if each.profile == name] for name in counts}
    both = [*fixed, *((spot, waiting[spot.profile].pop(0)) for spot in chosen)]
    slices = tuple(
        PlacedSlice(spot.profile, spot.start, each.workload, in_use=each.is_in_use)
        for spot, each in sorted(both, key=lambda pair: pair[0].start)
    )
    return slices, _start_notes(device, chosen)


def _start_notes(device: Device, chosen: Sequence[Placement]) -> tuple[Note, ...]:
    if not chosen:
        return ()
    told = " ".join(map(str, chosen))
    text = f"{device.name}: starts were not told, {told} taken; `nvidia-smi mig -lgi` lists them"
    return (Note("slice-start-chosen", text),)


def _whole(written: Sequence[WrittenSlice], device: Device) -> tuple[PlacedSlice, ...]:
    if len(written) > 1:
        raise DeviceError(
            f"a card of {device.name} is given {WHOLE} and cut at once; leave one of them out"
        )
    (only,) = written
    return (PlacedSlice(None, 0, only.workload, in_use=only.is_in_use),)


def read_gpu_name(text: str, devices: Sequence[Device]) -> tuple[Device | None, int]:
    """Return which card a text names: its kind (None if not told) and its index.

    `gpu0`, `0`, `a100-sxm4-80gb#0`, `a100-sxm4-80gb gpu0`. `DeviceError` if it is none of these,
    or its kind none of `devices`.

    >>> import slicewise
    >>> card = slicewise.device("a30")
    >>> read_gpu_name("a30#3", [card]) == (card, 3), read_gpu_name("gpu1", [card])
    (True, (None, 1))
    """
    wanted = text.strip().lower()
    for device in sorted(devices, key=lambda each: -len(each.name)):
        kind = device.name.lower()
        if wanted.startswith(kind) and (match := _GPU_OF_KIND.fullmatch(wanted[len(kind) :])):
            return device, int(match["index"])
    if match := _GPU.fullmatch(wanted):
        return None, int(match["index"])
    names = [device.name for device in devices]
    kind = re.split(r"[\s#:]", wanted)[0]
    raise DeviceError(
        f"{text!r} names no card; write gpu0, or with several kinds {names[0]}#0 (kinds given:"
        f" {', '.join(names)}{did_you_mean(kind, names)})"
    )
