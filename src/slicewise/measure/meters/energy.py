"""Energy between two moments: RAPL of CPU packages, NVML of a GPU; absent where there is none.

A counter counts its whole package or board, other processes included; that is said where only a
share of it is measured. Nothing is estimated from a data sheet here.
"""

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path

from slicewise.core.notes import Note
from slicewise.measure.meters._base import Reading, Scope
from slicewise.measure.meters.nvml import Nvml, NvmlMissing, open_nvml

# Counters tick every 1 ms (RAPL) to 100 ms (NVML): over less time than this they are coarse.
WINDOW_S = {"cpu": 0.1, "gpu": 1.0}
_POWER_PERIOD_S = 0.02


def _unmetered(text: str) -> Note:
    return Note("energy-unmetered", text)


class RaplEnergy:
    """Energy of the CPU packages and their memory, from /sys/class/powercap.

    Packages and the dram zones inside them add up; core and uncore are parts of a package and
    `psys` holds them all, so these are left out. Source: Linux, Documentation/power/powercap/
    powercap.rst; a counter wraps round at max_energy_range_uj.
    """

    def __init__(self, scope: Scope) -> None:
        """Find the zones; none where the machine has none."""
        self._zones = _rapl_zones(scope.root / "sys/class/powercap")
        self._before: dict[Path, int] = {}
        self._refused = ""

    def loaded(self) -> None:
        """Nothing to do: energy begins with the sampling."""

    def start(self) -> None:
        """Read the counters."""
        try:
            self._before = {zone: _microjoules(zone, "energy_uj") for zone in self._zones}
        except PermissionError:
            self._refused = "its counters may be read by root alone: allow it or run as root"
        except (OSError, ValueError) as err:
            self._refused = f"its counters cannot be read: {type(err).__name__}"

    def stop(self) -> Reading:
        """Return the joules since `start`, or a Note that says why there are none."""
        if not self._zones:
            text = "no energy counter (RAPL) on this machine: energy is not told"
            return Reading(notes=(_unmetered(text),))
        if self._refused:
            return Reading(notes=(_unmetered(f"RAPL is there, but {self._refused}"),))
        try:
            used = sum(_used_microjoules(zone, before) for zone, before in self._before.items())
        except (OSError, ValueError) as err:
            text = f"RAPL stopped telling: {type(err).__name__}"
            return Reading(notes=(_unmetered(text),))
        return Reading(energy_j=used / 1e6)


def _rapl_zones(folder: Path) -> tuple[Path, ...]:
    """Return the zones that add up to the packages and their memory."""
    found = []
    for zone in sorted(folder.glob("*rapl:*")):
        # The same package is listed once more by the MMIO interface: 'intel-rapl-mmio:0'.
        if not zone.name.startswith(("intel-rapl:", "amd-rapl:")):
            continue
        try:
            name = (zone / "name").read_text().strip()
        except OSError:
            continue  # a zone without a name is none of those that are counted
        if name.startswith("package") or name == "dram":
            found.append(zone)
    return tuple(found)


def _microjoules(zone: Path, field: str) -> int:
    return int((zone / field).read_text())


def _used_microjoules(zone: Path, before: int) -> int:
    used = _microjoules(zone, "energy_uj") - before
    return used if used >= 0 else used + _microjoules(zone, "max_energy_range_uj")


class NvmlEnergy:
    """Energy of one GPU board: NVML's counter (Volta and later, mJ), else its power, integrated.

    Without the counter a thread reads the power every 20 ms (trapezoids).
    """

    def __init__(self, scope: Scope, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Connect to the driver; nothing is read yet."""
        self._nvml = open_nvml(scope.gpu)
        self._clock = clock
        self._before_mj: int | None = None
        self._power: _PowerLog | None = None

    def loaded(self) -> None:
        """Nothing to do: energy begins with the sampling."""

    def start(self) -> None:
        """Read the counter, or begin to log the power where there is none."""
        if self._nvml is None:
            return
        try:
            self._before_mj = self._nvml.energy_mj()
        except NvmlMissing:
            self._power = _PowerLog(self._nvml, clock=self._clock)
            self._power.start()

    def stop(self) -> Reading:
        """Return the joules since `start`, or a Note that says why there are none."""
        if self._nvml is None:
            return Reading(notes=(_unmetered("the NVIDIA driver library (NVML) is not here"),))
        if self._power is not None:
            return self._power.stop()
        if self._before_mj is None:
            return Reading(notes=(_unmetered("the meter was not started"),))
        return Reading(energy_j=(self._nvml.energy_mj() - self._before_mj) / 1e3)


class _PowerLog:
    """Readings of the power, taken by a thread, and their integral."""

    def __init__(self, nvml: Nvml, *, clock: Callable[[], float]) -> None:
        self._nvml = nvml
        self._clock = clock
        self._readings: list[tuple[float, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="power", daemon=True)

    def start(self) -> None:
        if self._read():
            self._thread.start()

    def stop(self) -> Reading:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if not self._readings or not self._read():
            text = "this GPU tells neither energy nor power"
            return Reading(notes=(_unmetered(text),))
        joules = sum(
            (after[0] - before[0]) * (after[1] + before[1]) / 2
            for before, after in itertools.pairwise(self._readings)
        )
        text = "no energy counter on this GPU: its power was read every 20 ms and integrated"
        return Reading(energy_j=joules, notes=(Note("energy-integrated", text),))

    def _read(self) -> bool:
        try:
            watts = self._nvml.power_mw() / 1e3
        except NvmlMissing:
            return False
        self._readings.append((self._clock(), watts))
        return True

    def _watch(self) -> None:
        while not self._ended.wait(_POWER_PERIOD_S):
            if not self._read():
                return
