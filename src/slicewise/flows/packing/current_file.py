"""What stands on the cards now (`--current`), in any of three forms of YAML or JSON.

Lines of text, where ! is in use (never moved) and `whole` a card without slices:

    gpu0: 3g.40gb@0=resnet50! 2g.20gb@4 1g.10gb@6
    a100-sxm4-80gb gpu1: whole=bert

What `slicewise pack --json` prints, or its `gpus` written by hand. A file of mig-parted (`version:
v1`, `mig-configs`) with one configuration: it tells how many slices of each profile there are, not
where they start, so that starts are chosen, and a note says so. Every mistake names file and line.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slicewise.core.cost import Estimate
from slicewise.core.device import Device
from slicewise.core.errors import DeviceError
from slicewise.core.notes import Note
from slicewise.core.packing import Offer, PlacedGpu, PlacedSlice, Serving
from slicewise.core.plugins import did_you_mean
from slicewise.flows.spec_file import Entry, read_entries
from slicewise.slices.layouts import Placement, checked
from slicewise.slices.validate import WrittenSlice, placed_slices, read_gpu_name, read_slices

SCHEMA = "slicewise.pack/1"
_CONFIGS = "mig-configs"
_SLICE_FIELDS = (
    "profile", "start", "workload", "batch", "processes", "service_ms", "throughput_per_s",
    "capacity_per_s", "rate_per_s", "max_delay_ms", "memory_bytes", "energy_j", "in_use",
)  # fmt: skip
_FIELDS = ("devices", "device-filter", "mig-enabled", "mig-devices")
_MOST_INDEX = 1_000_000
_MOST_OF_A_PROFILE = 64


@dataclass(frozen=True, slots=True)
class CurrentLayout:
    """Cards with what stands on them, by kind and index; notes say what was assumed."""

    gpus: tuple[PlacedGpu, ...]
    notes: tuple[Note, ...] = ()


def read_current(path: Path, devices: Sequence[Device]) -> CurrentLayout:
    """Return the cards that a file describes; `devices` are the kinds there are.

    Fields, names and numbers that cannot be are a `UsageError`, slices that a card cannot have or
    that overlap a `DeviceError`, each with file and line.
    """
    file = read_entries(path, what="layout")
    if not isinstance(file.value, dict):
        raise file.mistake(
            "a layout is lines as in gpu0: 3g.40gb@0 2g.20gb@4, a file of `slicewise pack --json`,"
            f" or mig-parted's {_CONFIGS}; this is none of them"
        )
    found = _reader_of(file)(file, devices)
    order = {device.name: place for place, device in enumerate(devices)}
    seen: set[tuple[str, int]] = set()
    for gpu in found.gpus:
        if (gpu.device, gpu.index) in seen:
            raise file.mistake(f"{gpu.device}#{gpu.index} stands twice in it; leave one out")
        seen.add((gpu.device, gpu.index))
    ordered = sorted(found.gpus, key=lambda gpu: (order[gpu.device], gpu.index))
    return CurrentLayout(tuple(ordered), tuple(dict.fromkeys(found.notes)))


def _reader_of(file: Entry) -> Callable[[Entry, Sequence[Device]], CurrentLayout]:
    names = file.value.keys()
    if {"schema", "gpus"} & names:
        return _pack_document
    return _mig_parted if {_CONFIGS, "version"} & names else _lines


def _at(entry: Entry, error: DeviceError) -> DeviceError:
    """Return the error with the place in the file before it."""
    return DeviceError(f"{entry.path}, line {entry.line}: {error}")


def _lines(file: Entry, devices: Sequence[Device]) -> CurrentLayout:
    gpus: list[PlacedGpu] = []
    notes: list[Note] = []
    for name, item in file.value.items():
        text = "" if item.value is None else item.text()
        try:
            kind, index = read_gpu_name(name, devices)
            device = kind or _only_device(devices, name)
            slices, chosen = placed_slices(read_slices(text, device), device)
        except DeviceError as err:
            raise _at(item, err) from err
        gpus.append(PlacedGpu(device.name, index, slices))
        notes += chosen
    return CurrentLayout(tuple(gpus), tuple(notes))


def _only_device(devices: Sequence[Device], name: str) -> Device:
    if len(devices) > 1:
        kinds = ", ".join(device.name for device in devices)
        raise DeviceError(
            f"card {name!r} may be any of {kinds}; write its kind, as in {devices[0].name}#0"
        )
    return devices[0]


def _mig_parted(file: Entry, devices: Sequence[Device]) -> CurrentLayout:
    given = file.fields(("version", _CONFIGS), needed=(_CONFIGS,))
    configs = _mapping(given[_CONFIGS])
    if len(configs) != 1:
        raise given[_CONFIGS].mistake(
            f"{_CONFIGS} holds {', '.join(configs) or 'nothing'}; keep the one that is applied"
        )
    ((name, config),) = configs.items()
    gpus: list[PlacedGpu] = []
    notes: list[Note] = []
    for item in config.items():
        made, chosen = _config_gpus(item, name, devices)
        gpus += made
        notes += chosen
    return CurrentLayout(tuple(gpus), tuple(notes))


def _config_gpus(
    entry: Entry, name: str, devices: Sequence[Device]
) -> tuple[list[PlacedGpu], tuple[Note, ...]]:
    given = entry.fields(_FIELDS, needed=("devices", "mig-enabled"))
    if given["devices"].value == "all":
        raise given["devices"].mistake(
            "devices: all does not tell how many cards there are; write their indices, as in"
            " [0, 1]"
        )
    indices = [_index(item) for item in given["devices"].items()]
    if not isinstance(given["mig-enabled"].value, bool):
        raise given["mig-enabled"].mistake("mig-enabled is neither true nor false; write one")
    counts = _mapping(given["mig-devices"]) if "mig-devices" in given else {}
    if counts and not given["mig-enabled"].value:
        raise given["mig-devices"].mistake(
            "slices are named in mig-devices, but mig-enabled is false; mend one of them"
        )
    try:
        device = _config_device(name, counts, devices)
        written = [
            WrittenSlice(device.profile_named(profile).name)
            for profile, count in counts.items()
            for _ in range(_count(count))
        ]
        slices, notes = placed_slices(written, device)
    except DeviceError as err:
        raise _at(given.get("mig-devices", entry), err) from err
    return [PlacedGpu(device.name, index, slices) for index in indices], notes


def _config_device(name: str, profiles: Mapping[str, Entry], devices: Sequence[Device]) -> Device:
    """Return the kind of card of a configuration: the only one, that of its name, or the only one
    that has its profiles."""
    if len(devices) == 1:
        return devices[0]
    named = [device for device in devices if device.name in name]
    if named:
        return max(named, key=lambda device: len(device.name))
    able = [device for device in devices if all(_has(device, profile) for profile in profiles)]
    if len(able) == 1:
        return able[0]
    kinds = ", ".join(device.name for device in able or devices)
    raise DeviceError(
        f"configuration {name!r} may be for any of {kinds}; put the kind of card into its name"
    )


def _has(device: Device, profile: str) -> bool:
    try:
        device.profile_named(profile)
    except DeviceError:
        return False
    return True


def _pack_document(file: Entry, devices: Sequence[Device]) -> CurrentLayout:
    """Read what `pack --json` prints; with its schema, fields that are not read may stand too."""
    has_schema = "schema" in file.value
    if has_schema and file.value["schema"].value != SCHEMA:
        raise file.value["schema"].mistake(
            f"schema is {file.value['schema'].value!r}; this release reads {SCHEMA!r}"
        )
    given = _fields(file, "layout", ("schema", "gpus"), ("gpus",), is_lenient=has_schema)
    if not isinstance(given["gpus"].value, list):
        raise given["gpus"].mistake(
            "gpus is no list; write - {device: NAME, index: 0, slices: []}"
        )
    return CurrentLayout(
        tuple(_gpu(item, devices, is_lenient=has_schema) for item in given["gpus"].value)
    )


def _fields(
    entry: Entry, what: str, known: Sequence[str], needed: Sequence[str], *, is_lenient: bool
) -> dict[str, Entry]:
    value = entry.value
    if is_lenient and isinstance(value, dict):
        value = {name: item for name, item in value.items() if name in known}
    return Entry(entry.path, entry.line, what, value).fields(known, needed=needed)


def _gpu(entry: Entry, devices: Sequence[Device], *, is_lenient: bool) -> PlacedGpu:
    fields = ("device", "index", "slices")
    given = _fields(entry, "a card", fields, ("device", "index"), is_lenient=is_lenient)
    name = given["device"].text().strip().lower()
    kinds = {device.name: device for device in devices}
    if name not in kinds:
        raise DeviceError(
            f"{entry.path}, line {given['device'].line}: the layout has a {name!r}, which is not"
            f" among the cards {', '.join(kinds)}{did_you_mean(name, kinds)}; name it in --device"
        )
    device, index = kinds[name], _index(given["index"])
    listed = given["slices"].value if "slices" in given else []
    if not isinstance(listed, list):
        raise given["slices"].mistake("slices is no list; write - {profile: 1g.10gb, start: 0}")
    slices = [_slice(item, device, is_lenient=is_lenient) for item in listed]
    cut = [Placement(each.profile, each.start) for each in slices if each.profile is not None]
    if len(slices) > 1 and len(cut) < len(slices):
        raise _at(
            entry, DeviceError(f"{name}#{index} is used whole and cut at once; leave one out")
        )
    try:
        if cut:
            checked(device, cut)
    except DeviceError as err:
        raise _at(entry, err) from err
    return PlacedGpu(name, index, tuple(sorted(slices, key=lambda each: each.start)))


def _slice(entry: Entry, device: Device, *, is_lenient: bool) -> PlacedSlice:
    given = _fields(entry, "a slice", _SLICE_FIELDS, ("profile", "start"), is_lenient=is_lenient)
    profile = None
    if given["profile"].value is not None:
        try:
            profile = device.profile_named(given["profile"].text()).name
        except DeviceError as err:
            raise _at(given["profile"], err) from err
    start = _index(given["start"])
    if profile is None and start:
        raise given["start"].mistake("start of a whole card is 0; write 0")
    if "in_use" in given and not isinstance(given["in_use"].value, bool):
        raise given["in_use"].mistake("in_use is neither true nor false; write one")
    is_in_use = "in_use" in given and bool(given["in_use"].value)
    if "workload" not in given or given["workload"].value is None:
        return PlacedSlice(profile, start, in_use=is_in_use)
    name, offer = given["workload"].text(), _offer(given, device, profile)
    return PlacedSlice(profile, start, name, offer, _number(given, "rate_per_s"), is_in_use)


def _offer(given: Mapping[str, Entry], device: Device, profile: str | None) -> Offer | None:
    """Return how a slice serves; None without a batch. Figures that are not told are 0."""
    if "batch" not in given or given["batch"].value is None:
        return None
    processes = given.get("processes")
    service_ms = _number(given, "service_ms")
    throughput_per_s = _number(given, "throughput_per_s")
    serving = Serving(
        batch=given["batch"].whole(most=2**31 - 1),
        processes=1 if processes is None or processes.value is None else processes.whole(),
        service_ms=Estimate(service_ms, service_ms, service_ms, "layout file"),
        throughput_per_s=throughput_per_s,
        memory_bytes=_number(given, "memory_bytes"),
        energy_j=_number(given, "energy_j"),
        source="layout file",
    )
    capacity = "capacity_per_s" if "capacity_per_s" in given else "throughput_per_s"
    return Offer(
        device.name, profile, serving, _number(given, capacity), _number(given, "max_delay_ms")
    )


def _number(given: Mapping[str, Entry], name: str) -> float:
    """Return a number of at least 0; 0 where it is absent or null."""
    entry = given.get(name)
    if entry is None or entry.value is None or entry.value == 0:
        return 0.0
    value = entry.value
    if isinstance(value, str):  # YAML takes JSON's 5e-6 for a text
        with contextlib.suppress(ValueError):
            value = float(value)
    return Entry(entry.path, entry.line, entry.what, value).number()


def _mapping(entry: Entry) -> Mapping[str, Entry]:
    if entry.value is None:
        return {}
    if not isinstance(entry.value, dict):
        raise entry.mistake(f"{entry.what} is no mapping; write entries NAME: VALUE")
    return dict(entry.value)


def _index(entry: Entry) -> int:
    value = entry.value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST_INDEX:
        raise entry.mistake(f"{entry.what} {value!r} is no index of a card; write 0, 1, ...")
    return value


def _count(entry: Entry) -> int:
    return 0 if entry.value == 0 else entry.whole(most=_MOST_OF_A_PROFILE)
