"""Writes docs/reference/devices.md from the catalogue: `python tools/devices_page.py`."""

import sys
from collections.abc import Iterator
from pathlib import Path

from slicewise.core.device import Device
from slicewise.core.precision import DType
from slicewise.hardware.catalogue import device_names, find_device

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "devices.md"
COLUMNS = (
    DType.FP64, DType.FP32, DType.TF32, DType.FP16, DType.INT8, DType.FP8, DType.FP4,
)  # fmt: skip
UNCERTAIN = {"spec-recalled": "recalled", "spec-derived": "derived"}

HEAD = """# Devices

Every device that `--device` knows by name, from its file in `src/slicewise/hardware/devices/`.
This page is written by `tools/devices_page.py`; change the files, not the page.
`slicewise devices NAME` shows one with all its notes. To add one: [how to add a
device](../how-to/add-a-device.md).

Rates are dense, in Tflop/s (Top/s for int8); `fp32` is the vector rate, and behind a slash that of
the matrix units where they do fp32 faster (AMD CDNA); every other type is that of the matrix units
where they have it. Memory is nominal, in GiB; cache is the last level before memory, in MiB;
bandwidth in GB/s. Power is the limit in W, and before it the floor while work runs: clocks up,
units waiting. A card at rest draws less, but no inference runs at rest.
*recalled*: some figures come from general knowledge and are not checked against a data sheet.
*derived*: some follow from another board of the same die. Every `fp64` is recalled, from data
sheets or by the ratio of the architecture to `fp32`. The device file names each figure, its
source and its date.

"""
SLICES = """
## Slices

Profiles by card, base profiles only: SMs and usable memory in GiB. An asterisk marks figures
that are not published and are estimated from the nearest known board; the notes of the slice say
how. Shares (`name@50%`) exist on every device.

"""


def device_rows() -> Iterator[str]:
    """Yield the lines of the table of devices."""
    head = ("device", "units", *COLUMNS, "memory", "bandwidth", "cache", "power", "figures")
    yield f"| {' | '.join(map(str, head))} |"
    yield f"|{' --- |' * len(head)}"
    for name in device_names():
        yield f"| {' | '.join(cells_of(find_device(name)))} |"


def cells_of(device: Device) -> tuple[str, ...]:
    """Return the cells of one device."""
    codes = {note.code for note in device.notes}
    return (
        f"`{device.name}`",
        str(device.compute_units),
        *(rate_cell(device, dtype) for dtype in COLUMNS),
        f"{device.memory_bytes / 2**30:.4g}",
        f"{device.memory_bandwidth_bytes_per_s / 1e9:.4g}",
        f"{device.cache_bytes / 2**20:.4g}",
        f"{device.idle_power_w:.3g} to {device.max_power_w:.4g}",
        ", ".join(word for code, word in UNCERTAIN.items() if code in codes),
    )


def rate_cell(device: Device, dtype: DType) -> str:
    """Return the rate in Tflop/s; 'vector / matrix' where the two differ, '' without one."""
    rates = (device.peak_flop_per_s.get(dtype), device.matrix_flop_per_s(dtype))
    told = dict.fromkeys(rate for rate in rates if rate is not None)
    return " / ".join(f"{float(f'{rate / 1e12:.4g}'):g}" for rate in told)


def slice_rows() -> Iterator[str]:
    """Yield the lines of the table of slices."""
    yield "| device | profiles |"
    yield "| --- | --- |"
    for name in device_names():
        device = find_device(name)
        if device.profiles:
            profiles = ", ".join(
                f"`{profile.name}` {profile.compute_units} / {profile.memory_bytes / 2**30:.4g}"
                f"{'*' if any('-estimated' in note.code for note in profile.notes) else ''}"
                for profile in device.profiles
                if not profile.attributes
            )
            yield f"| `{name}` | {profiles} |"


def page() -> str:
    """Return the whole page."""
    return HEAD + "\n".join(device_rows()) + "\n" + SLICES + "\n".join(slice_rows()) + "\n"


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page())
    sys.stderr.write(f"{PAGE.name}: {len(device_names())} devices\n")
