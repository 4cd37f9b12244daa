"""Turns a device file (TOML) into a `Device`: checks every figure, fills defaults with Notes.

Reads tables only; it runs nothing and follows no path except the board file that `mig` names.
"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slicewise.core.device import Device, Link
from slicewise.core.errors import DeviceError
from slicewise.core.notes import Note
from slicewise.core.precision import DType
from slicewise.hardware.figures import (
    FIGURES,
    GUIDE,
    LINK_BANDWIDTH,
    LINK_LATENCY,
    PEAK,
    Figure,
    Section,
    shown,
)
from slicewise.hardware.slice_file import Slicing, read_slicing, refuse_larger_than_card

_LARGEST_FILE_BYTES = 2**20
KINDS = ("gpu", "cpu")
PEAK_KEYS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8", "int4")
_TEXT_KEYS = ("name", "title", "kind", "vendor", "architecture")
_SLICE_KEYS = ("mig", "memory_slots", "profile")
DEVICE_KEYS = (
    *_TEXT_KEYS, *FIGURES, "peak_flop_per_s", "link", *_SLICE_KEYS, "remarks", "sources",
)  # fmt: skip
BASES = ("recalled", "derived", "estimated")
# the fp32 rate of matrix units that have one, beside the vector rate `fp32`
MATRIX_KEY = "fp32_matrix"
SOURCED = (*FIGURES, *PEAK_KEYS, MATRIX_KEY, "link", "mig")
# No precision asks for fp64, so a note on that rate concerns only a graph with fp64 in it.
_RARE_RATES = ("fp64",)

# `idle_power_w` is the floor of board power while work runs: clocks up, units waiting. A card at
# rest draws far less (its clocks fall), but no inference runs at rest. Median of the fractions of
# the four cards whose floor is known: V100 53.5/300 (fitted idle term of iGniter), H200 127/700,
# GB200 209/1200 and B200 241/1000 W (least power of any kernel, aiconfigurator tables, 2026).
POWER_FLOOR_FRACTION = 0.18


@dataclass(frozen=True, slots=True)
class Default:
    """What stands in for a figure that a file leaves out, for a GPU and for a CPU."""

    code: str
    gpu: float
    cpu: float


# launch_s: that of an A100 (2.5 graph-replay floors of 3.2 us); host_s and the
# clocks are round values for hardware of 2020 to 2026.
DEFAULTS = {
    "clock_hz": Default("clock-assumed", gpu=1.5e9, cpu=2.5e9),
    "launch_s": Default("launch-estimated", gpu=8e-6, cpu=1.5e-6),
    "host_s": Default("host-estimated", gpu=2e-5, cpu=1e-5),
}
# what an `estimated` figure of a file is called in a Note
_ESTIMATE_CODES = {
    "idle_power_w": "idle-power-estimated",
    "launch_s": "launch-estimated",
    "host_s": "host-estimated",
    "clock_hz": "clock-assumed",
    "memory_bytes": "memory-assumed",
    "memory_bandwidth_bytes_per_s": "bandwidth-estimated",
}


def read_toml(content: bytes, where: str) -> Section:
    """Return the top table of a TOML text; `DeviceError` names the line that is wrong."""
    try:
        return Section(where, tomllib.loads(content.decode()))
    except UnicodeDecodeError as err:
        raise DeviceError(
            f"{where}: is not UTF-8 text (byte {err.start}); a device file is TOML text; {GUIDE}"
        ) from err
    except tomllib.TOMLDecodeError as err:
        raise DeviceError(f"{where}: is not TOML: {err}; {GUIDE}") from err
    except RecursionError as err:
        raise DeviceError(f"{where}: is nested too deeply for a device file; {GUIDE}") from err


def read_file(path: Path) -> bytes:
    """Return the bytes of a device file; `DeviceError` for what cannot be one."""
    try:
        if path.is_dir():
            raise DeviceError(f"{path}: is a directory; give a device file, a .toml; {GUIDE}")
        if not path.is_file():
            raise DeviceError(f"{path}: no such device file; give the path of a .toml; {GUIDE}")
        size = path.stat().st_size
        if size > _LARGEST_FILE_BYTES:
            raise DeviceError(
                f"{path}: has {size} bytes; a device file is a page of text, at most"
                f" {_LARGEST_FILE_BYTES}"
            )
        return path.read_bytes()
    except (OSError, ValueError) as err:
        reason = getattr(err, "strerror", None) or err
        raise DeviceError(f"{path}: cannot be read: {reason}; check path and permissions") from err


def read_device(file: Section, *, board_named: Callable[[str, Section], Slicing]) -> Device:
    """Return the device that a file describes.

    `board_named` gives the profiles behind `mig = "…"`. Figures left out take the values of
    `DEFAULTS`, each with a Note; figures listed as recalled, derived or estimated leave one too.
    """
    file.refuse_unknown(DEVICE_KEYS)
    name = _read_name(file)
    kind = file.text("kind")
    if kind not in KINDS:
        raise file.error(f"kind={kind!r} is unknown; allowed are {', '.join(KINDS)}")
    notes: list[Note] = []
    figures = {key: _figure(file, FIGURES[key], kind, notes) for key in FIGURES}
    _refuse_contradictions(file, figures)
    slicing = _read_slices(file, board_named)
    units, memory = int(figures["compute_units"]), int(figures["memory_bytes"])
    refuse_larger_than_card(file, slicing, compute_units=units, memory_bytes=memory)
    return Device(
        name=name,
        kind=kind,
        vendor=file.text("vendor", default=""),
        architecture=file.text("architecture", default=""),
        compute_units=units,
        peak_flop_per_s=_read_peaks(file),
        fp32_matrix_flop_per_s=_read_matrix_rate(file),
        memory_bytes=memory,
        memory_bandwidth_bytes_per_s=figures["memory_bandwidth_bytes_per_s"],
        cache_bytes=int(figures["cache_bytes"]),
        clock_hz=figures["clock_hz"],
        idle_power_w=figures["idle_power_w"],
        max_power_w=figures["max_power_w"],
        launch_s=figures["launch_s"],
        host_s=figures["host_s"],
        link=_read_link(file),
        memory_slots=slicing.memory_slots,
        profiles=slicing.profiles,
        title=file.text("title", default=name),
        notes=(*notes, *_source_notes(file, name), *_remarks(file, name)),
        rate_notes=_rate_notes(file, name),
        sources=_source_texts(file),
    )


def _read_name(file: Section) -> str:
    name = file.text("name").strip()
    # '/', '@' and ',' divide device, part and list on the command line
    if not name or len(name) > 100 or any(mark in name for mark in "/@,"):
        raise file.error(f"name={shown(name)} must have 1 to 100 characters, none of them / @ ,")
    return name


def _figure(file: Section, figure: Figure, kind: str, notes: list[Note]) -> float:
    """Return the figure or its default; a default is noted in `notes`."""
    value = file.number(figure)
    if value is not None:
        return value
    if figure.key == "idle_power_w":
        value = POWER_FLOOR_FRACTION * file.required(FIGURES["max_power_w"])
        notes.append(
            Note(
                "idle-power-estimated",
                f"{file.where} leaves out idle_power_w, the floor of power while work runs:"
                f" {POWER_FLOOR_FRACTION:.0%} of max_power_w taken",
            )
        )
        return value
    default = DEFAULTS.get(figure.key)
    if default is None:
        return file.required(figure)
    value = default.cpu if kind == "cpu" else default.gpu
    notes.append(Note(default.code, f"{file.where} leaves out {figure.key}: {value:g} taken"))
    return value


def _refuse_contradictions(file: Section, figures: dict[str, float]) -> None:
    if figures["idle_power_w"] > figures["max_power_w"]:
        raise file.error(
            f"idle_power_w={figures['idle_power_w']:g} is above"
            f" max_power_w={figures['max_power_w']:g}; the floor of power is at most the limit"
        )
    if figures["cache_bytes"] > figures["memory_bytes"]:
        raise file.error(
            f"cache_bytes={figures['cache_bytes']:.0f} is above"
            f" memory_bytes={figures['memory_bytes']:.0f}; a cache is smaller than the memory"
        )


def _read_peaks(file: Section) -> dict[DType, float]:
    peaks = file.section("peak_flop_per_s")
    if peaks is None:
        raise file.error(
            "lacks the table [peak_flop_per_s]; add it with dense operations/s, at least"
            f" fp32 = 1.95e13; {GUIDE}"
        )
    peaks.refuse_unknown((*PEAK_KEYS, MATRIX_KEY))
    named = {key: _rate(peaks, key) for key in PEAK_KEYS}
    if named["fp32"] is None:
        raise peaks.missing("fp32", "dense fp32 operations/s, the vector rate", "1.95e13")
    return {DType(key): rate for key, rate in named.items() if rate is not None}


def _read_matrix_rate(file: Section) -> float | None:
    """Return the fp32 rate of the matrix units, None where they have none."""
    peaks = file.section("peak_flop_per_s")
    if peaks is None:
        return None
    matrix, vector = _rate(peaks, MATRIX_KEY), _rate(peaks, "fp32")
    if matrix is not None and vector is not None and matrix < vector:
        raise peaks.error(
            f"{peaks.prefix}{MATRIX_KEY}={matrix:g} is below fp32={vector:g}; it is the faster"
            " rate of matrix units that do fp32: correct it or leave it out"
        )
    return matrix


def _rate(peaks: Section, key: str) -> float | None:
    return peaks.number(replace(PEAK, key=key, what=f"dense {key} operations/s"))


def _read_link(file: Section) -> Link | None:
    link = file.section("link")
    if link is None:
        return None
    link.refuse_unknown(("name", "bandwidth_bytes_per_s", "latency_s"))
    latency_s = link.number(LINK_LATENCY)
    return Link(
        name=link.text("name", default="link"),
        bandwidth_bytes_per_s=link.required(LINK_BANDWIDTH),
        # PCIe round figure, as in the shipped files
        latency_s=5e-6 if latency_s is None else latency_s,
    )


def _read_slices(file: Section, board_named: Callable[[str, Section], Slicing]) -> Slicing:
    if "mig" not in file.table:
        return read_slicing(file)
    if "profile" in file.table or "memory_slots" in file.table:
        raise file.error(
            "has both mig and its own profiles; keep mig or memory_slots + [[profile]]"
        )
    return board_named(file.text("mig"), file)


def _source_texts(file: Section) -> dict[str, str]:
    """Return what `[sources]` says of each figure."""
    sources = file.section("sources")
    if sources is None:
        return {}
    sources.refuse_unknown(("figures", *SOURCED, *BASES))
    return {key: sources.text(key) for key in sources.table if key not in BASES}


def _source_notes(file: Section, name: str) -> tuple[Note, ...]:
    """Return a Note for each kind of uncertain figure that `[sources]` lists."""
    sources = file.section("sources")
    if sources is None:
        return ()
    texts = _source_texts(file)
    listed = {basis: sources.strings(basis) for basis in BASES}
    for basis, keys in listed.items():
        for key in keys:
            if key not in SOURCED:
                raise file.error(
                    f"sources.{basis} names {key!r}, which is no figure; allowed are"
                    f" {', '.join(SOURCED)}"
                )
    notes = []
    if recalled := [key for key in listed["recalled"] if key not in _RARE_RATES]:
        notes.append(_recalled_note(name, recalled))
    if derived := listed["derived"]:
        reasons = dict.fromkeys(texts[key] for key in derived if key in texts)
        why = f" ({'; '.join(reasons)})" if reasons else ""
        text = f"{name}: derived, not published: {', '.join(derived)}{why}"
        notes.append(Note("spec-derived", text))
    for key in listed["estimated"]:
        code = _ESTIMATE_CODES.get(key, "spec-estimated")
        notes.append(Note(code, f"{name}: {key} is an {_reason(texts.get(key, 'estimate'))}"))
    return tuple(notes)


def _recalled_note(name: str, keys: Sequence[str]) -> Note:
    return Note(
        "spec-recalled",
        f"{name}: written from general knowledge, not checked against a data sheet:"
        f" {', '.join(keys)}",
    )


def _rate_notes(file: Section, name: str) -> dict[DType, Note]:
    """Return the notes on recalled rates that only a graph of that type needs to hear."""
    sources = file.section("sources")
    recalled = () if sources is None else sources.strings("recalled")
    return {DType(key): _recalled_note(name, [key]) for key in _RARE_RATES if key in recalled}


def _remarks(file: Section, name: str) -> tuple[Note, ...]:
    """Return what the file says of the device beside its figures."""
    return tuple(Note("device-remark", f"{name}: {text}") for text in file.strings("remarks"))


def _reason(text: str) -> str:
    return text if text.startswith("estimate") else f"estimate: {text}"
