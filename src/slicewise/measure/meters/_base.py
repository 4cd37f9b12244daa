"""What a meter is and which ones exist: memory, energy and utilisation of this process.

A meter brackets the sampling and takes nothing from it: it reads counters at its two ends. What
it cannot tell is absent with a Note, never invented. Drivers are imported inside functions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, cast

from slicewise.core.measurement import MeasuredMemory
from slicewise.core.notes import Note, unique_notes
from slicewise.core.plugins import PluginTable


@dataclass(frozen=True, slots=True)
class Scope:
    """What a meter looks at: 'cpu' or 'gpu:N', the cores that the process is bound to, and where
    /proc and /sys are found."""

    device: str = "cpu"
    cores: tuple[int, ...] = ()
    root: Path = Path("/")

    @property
    def gpu(self) -> int:
        """The index of the GPU, 0 where none is named."""
        _, _, index = self.device.partition(":")
        return int(index) if index.isdigit() else 0


@dataclass(frozen=True, slots=True)
class Reading:
    """What meters tell of the time between `start` and `stop`. `energy_j` is all of it."""

    energy_j: float | None = None
    utilisation: float | None = None
    memory: MeasuredMemory | None = None
    notes: tuple[Note, ...] = ()


class Meter(Protocol):
    """Called in this order, each once: `loaded`, `start`, `stop`."""

    def loaded(self) -> None:
        """The runtime is loaded and no model is open."""

    def start(self) -> None:
        """Sampling begins."""

    def stop(self) -> Reading:
        """Sampling has ended; return what was seen since `start`."""


METERS = PluginTable(
    what="meter",
    rows={
        "cpu-memory": "slicewise.measure.meters.memory:ProcessMemory",
        "cpu-energy": "slicewise.measure.meters.energy:RaplEnergy",
        "cpu-utilisation": "slicewise.measure.meters.utilisation:ProcessorTime",
        "gpu-memory": "slicewise.measure.meters.memory:GpuMemory",
        "gpu-energy": "slicewise.measure.meters.energy:NvmlEnergy",
        "gpu-utilisation": "slicewise.measure.meters.utilisation:GpuUtilisation",
    },
)


def meters_for(scope: Scope) -> tuple[Meter, ...]:
    """Return the meters of the kind of device that `scope` names."""
    kind = "gpu-" if scope.device.startswith("gpu") else "cpu-"
    makers = [METERS.load(name) for name in METERS if name.startswith(kind)]
    return tuple(cast(Callable[[Scope], Meter], make)(scope) for make in makers)


class MeterSet:
    """Meters as one. A meter that fails is left out from there on, with a Note."""

    def __init__(self, meters: Sequence[Meter]) -> None:
        """Start nothing yet."""
        self._working = list(meters)
        self._notes: list[Note] = []

    def loaded(self) -> None:
        """The runtime is loaded and no model is open."""
        self._each(lambda meter: meter.loaded())

    def start(self) -> None:
        """Sampling begins."""
        self._each(lambda meter: meter.start())

    def stop(self) -> Reading:
        """Return what all of them tell together; where two tell the same, the first counts."""
        readings: list[Reading] = []
        self._each(lambda meter: readings.append(meter.stop()))
        together = Reading()
        for reading in readings:
            together = replace(
                together,
                energy_j=_first(together.energy_j, reading.energy_j),
                utilisation=_first(together.utilisation, reading.utilisation),
                memory=together.memory or reading.memory,
                notes=unique_notes((*together.notes, *reading.notes)),
            )
        return replace(together, notes=unique_notes((*together.notes, *self._notes)))

    def _each(self, call: Callable[[Meter], None]) -> None:
        for meter in tuple(self._working):
            try:
                call(meter)
            except Exception as err:  # whatever a driver raises must not cost the measurement
                self._working.remove(meter)
                text = f"{type(meter).__name__} gave up: {type(err).__name__}: {err}"
                self._notes.append(Note("meter-failed", text))


def _first(known: float | None, new: float | None) -> float | None:
    return new if known is None else known
