"""The catalogue of devices: finds one by name, alias, slice, share or file.

Reads only the files that the wanted device needs; imports no numeric library; opens no
connection. Device files are data: nothing in them is executed.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

from slicewise.core.device import Device
from slicewise.core.errors import DeviceError
from slicewise.core.notes import Note
from slicewise.core.plugins import did_you_mean
from slicewise.core.units import format_capacity
from slicewise.hardware.aliases import ALIASES, DEFAULTED, NO_DATA_SHEET, NOTED, REFUSED, fold
from slicewise.hardware.device_file import read_device, read_file, read_toml
from slicewise.hardware.figures import Section, shown
from slicewise.hardware.nearest import names_by_fold, nearest_devices
from slicewise.hardware.slice_file import Slicing, read_board

_FILES = resources.files("slicewise.hardware") / "devices"
_HOW_TO_ADD = (
    "write its figures into a TOML file and give that instead, as in ./mine.toml"
    " (docs/how-to/add-a-device.md)"
)
_TOML = re.compile(r"(?P<whole>.+\.toml)(?P<part>/[^/@]*|@[^/@]*)?", re.IGNORECASE | re.DOTALL)
_NAMED = re.compile(r"(?P<whole>[^/@]*)(?P<part>[/@].*)?", re.DOTALL)
_MIG_REPORT = re.compile(r"(?P<whole>.+?)\s+MIG[ -](?P<profile>\d\S+)", re.IGNORECASE)
_SEVERAL = re.compile(r".+\sx(?!1\b)\d+(\s*\(.*\))?|(?!1\s*x)\d+\s*x\s+.+", re.IGNORECASE)
_PROBED_GPU = re.compile(r"(?:gpu|cuda)(?::(?P<index>\d{1,3}))?", re.IGNORECASE)
_PERCENT = re.compile(r"\d{1,9}(\.\d{1,9})?\s*%?")
# a card's name and its memory: 'L40-48GB', 'rtx 4090 24 GB'
_SIZED = re.compile(r"(?P<card>.+?)[\s_-]+(?P<size>\d{1,4})\s?gi?b", re.IGNORECASE | re.DOTALL)
_VENDORS = ("nvidia", "tesla", "amd", "intel")
_LONGEST_NAME = 300


def device_names() -> tuple[str, ...]:
    """Return the name of every device of the catalogue, in alphabetical order."""
    return tuple(
        sorted(
            entry.name.removesuffix(".toml")
            for entry in _FILES.iterdir()
            if entry.name.endswith(".toml")
        )
    )


def find_device(text: str) -> Device:
    """Return the device that `text` names.

    A name of the catalogue or an alias (case, spaces and dashes do not matter), `cpu` (this
    machine's), `gpu:0`, or the path of a device file ending in `.toml`; each may be followed by
    `/2g.20gb` (a slice) or `@50%` (a share). `DeviceError` names the nearest known devices.
    """
    wanted = text.strip()
    file = _TOML.fullmatch(wanted)
    if not wanted.isprintable() or not wanted or (len(wanted) > _LONGEST_NAME and not file):
        raise DeviceError(
            f"device {shown(text)} is no name; give one that `slicewise devices` lists, cpu,"
            " gpu:0 or a file ./mine.toml"
        )
    if file:
        return _part_of(load_device_file(file["whole"]), file["part"] or "")
    if wanted.startswith((".", "/", "~")):
        raise DeviceError(
            f"device {wanted!r} looks like a path, but a device file ends in .toml; {_HOW_TO_ADD}"
        )
    if _SEVERAL.fullmatch(wanted):
        raise DeviceError(
            f"device {wanted!r} is several devices; slicewise predicts one: name a single one,"
            " without the count"
        )
    if report := _MIG_REPORT.fullmatch(wanted):
        return _find_whole(report["whole"]).slice(report["profile"])
    named = _NAMED.fullmatch(wanted)
    assert named is not None  # the pattern matches any text
    whole = _find_whole(named["whole"])
    return _part_of(whole, named["part"] or "")


def load_device_file(path: str | Path) -> Device:
    """Return the device that a user's TOML file describes; `DeviceError` says what is wrong."""
    try:
        file = Path(path).expanduser()
    except RuntimeError as err:  # '~name' of nobody
        raise DeviceError(f"{path}: has no such home folder; give the path in full") from err
    return read_device(read_toml(read_file(file), str(path)), board_named=_board_named)


def _part_of(device: Device, part: str) -> Device:
    """Return the slice or share that '/2g.20gb' or '@50%' names; '' is the whole."""
    if not part:
        return device
    name = part[1:].strip()
    if "/" in name or "@" in name:
        raise DeviceError(
            f"device part {part!r} of {device.name} names more than one part; give one slice"
            " (/2g.20gb) or one share (@50%)"
        )
    if part.startswith("/") and not name:
        example = device.profiles[0].name if device.profiles else ""
        remedy = f"{device.name}/{example}" if example else f"{device.name}@50% (it has no slices)"
        raise DeviceError(
            f"device {device.name}/ lacks the profile; write {remedy}, or {device.name} for the"
            " whole"
        )
    if part.startswith("/"):
        return device.slice(name)
    if not _PERCENT.fullmatch(name):
        raise DeviceError(
            f"share {name!r} of {device.name} is not a percentage; write {device.name}@50%"
        )
    return device.share(float(name.removesuffix("%")))


def _find_whole(text: str) -> Device:
    """Return the whole device called `text`."""
    name = text.strip()
    if name.casefold() == "cpu":
        from slicewise.hardware.probe import probe_cpu

        return probe_cpu()
    if gpu := _PROBED_GPU.fullmatch(name):
        from slicewise.hardware.probe import probe_gpu

        return probe_gpu(int(gpu["index"] or 0))
    slug = re.sub(r"[\s_]+", "-", name.casefold())
    if re.fullmatch(r"[a-z0-9-]+", slug) and (_FILES / f"{slug}.toml").is_file():
        return _load_shipped(slug)
    folded = fold(name)
    known = ALIASES | {fold(one): one for one in device_names()}
    if folded in known:
        return _load_shipped(known[folded])
    if folded in NOTED:
        taken, other = NOTED[folded]
        return _noted(taken, f"{name!r} is also the name of {other}; {taken} is taken")
    names = DEFAULTED.get(folded) or REFUSED.get(folded)
    if names and (folded in DEFAULTED or name.casefold().startswith(_VENDORS)):
        return _noted(names[0], f"{name!r} may be any of {', '.join(names)}; {names[0]} is taken")
    if names:
        raise _ambiguous(name, names)
    if sized := _SIZED.fullmatch(name):
        return _find_sized(name, sized["card"], int(sized["size"]))
    raise _unknown(name)


def _find_sized(name: str, card: str, size: int) -> Device:
    """Return the device called `card` that has `size` GB of memory."""
    candidates = names_by_fold(device_names()).get(fold(card), ())
    devices = [_load_shipped(one) for one in candidates]
    fitting = [device for device in devices if _has_memory(device, size)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise _ambiguous(name, [device.name for device in fitting])
    if devices:
        sizes = ", ".join(f"{one.name} has {format_capacity(one.memory_bytes)}" for one in devices)
        raise DeviceError(
            f"device {name!r} is unknown: {sizes}; give that name, or for another card"
            f" {_HOW_TO_ADD}"
        )
    raise _unknown(name)


def _has_memory(device: Device, size: int) -> bool:
    """Vendors count in GiB, some in decimal GB; drivers keep a little back."""
    nominal = (device.memory_bytes / 2**30, device.memory_bytes / 1e9)
    return any(abs(size - one) <= 1 for one in nominal)


def _noted(name: str, text: str) -> Device:
    device = _load_shipped(name)
    return replace(device, notes=(Note("device-ambiguous", text), *device.notes))


def _ambiguous(name: str, names: Sequence[str]) -> DeviceError:
    return DeviceError(f"device {name!r} is ambiguous; choose one of {', '.join(names)}")


def _unknown(name: str) -> DeviceError:
    folded = fold(name)
    for beginning, what in NO_DATA_SHEET:
        if folded.startswith(beginning):
            return DeviceError(
                f"device {name!r} is known ({what}), but there is no data sheet of it here;"
                f" {_HOW_TO_ADD}"
            )
    near = nearest_devices(name, device_names())
    hint = f"; did you mean {', '.join(near)}?" if near else ""
    return DeviceError(
        f"device {name!r} is unknown{hint}; `slicewise devices` lists all {len(device_names())};"
        f" for another, {_HOW_TO_ADD}"
    )


def _load_shipped(name: str) -> Device:
    where = f"devices/{name}.toml"
    content = (_FILES / f"{name}.toml").read_bytes()
    return read_device(read_toml(content, where), board_named=_board_named)


def _board_named(name: str, file: Section) -> Slicing:
    """Return the slicing of the shipped board `name`; `file` asked for it."""
    board = _FILES / "mig" / f"{name}.toml"
    if not re.fullmatch(r"[a-z0-9-]+", name) or not board.is_file():
        boards = sorted(entry.name.removesuffix(".toml") for entry in (_FILES / "mig").iterdir())
        raise file.error(
            f"mig={shown(name)} is no board; known are {', '.join(boards)}"
            f"{did_you_mean(name, boards)}"
        )
    return read_board(read_toml(board.read_bytes(), f"devices/mig/{name}.toml"))
