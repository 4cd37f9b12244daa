"""How busy the device was between two moments: CPU time of this process, NVML's figure of a GPU.

Not the same thing: on a CPU it is the part of the bound cores' time that this process used, on a
GPU the part of the time in which at least one kernel ran, whoever's it was.
"""

import time
from collections.abc import Callable

from slicewise.core.notes import Note
from slicewise.measure.meters._base import Reading, Scope
from slicewise.measure.meters.nvml import NvmlMissing, open_nvml


class ProcessorTime:
    """CPU time of all threads over wall time x cores, at most 1."""

    def __init__(
        self,
        scope: Scope,
        *,
        wall: Callable[[], float] = time.perf_counter,
        own: Callable[[], float] = time.process_time,
    ) -> None:
        """Read nothing yet."""
        self._cores = max(1, len(scope.cores))
        self._wall, self._own = wall, own
        self._before = (0.0, 0.0)

    def loaded(self) -> None:
        """Nothing to do."""

    def start(self) -> None:
        """Read both clocks."""
        self._before = (self._wall(), self._own())

    def stop(self) -> Reading:
        """Return the used part of the cores' time since `start`; none if no time has passed."""
        wall, own = self._wall() - self._before[0], self._own() - self._before[1]
        if wall <= 0:
            text = "the clock did not advance: utilisation is not told"
            return Reading(notes=(Note("utilisation-unmetered", text),))
        return Reading(utilisation=min(1.0, max(0.0, own / (wall * self._cores))))


class GpuUtilisation:
    """NVML's utilisation of the GPU at `stop`, which covers the last 1/6 to 1 s
    (NVML API reference, nvmlUtilization_t)."""

    def __init__(self, scope: Scope) -> None:
        """Connect to the driver."""
        self._nvml = open_nvml(scope.gpu)

    def loaded(self) -> None:
        """Nothing to do."""

    def start(self) -> None:
        """Nothing to do: the driver averages by itself."""

    def stop(self) -> Reading:
        """Return the driver's figure, or a Note where it has none."""
        try:
            if self._nvml is None:
                raise NvmlMissing("the NVIDIA driver library (NVML) is not here")
            return Reading(utilisation=self._nvml.busy_percent() / 100)
        except NvmlMissing as err:
            return Reading(notes=(Note("utilisation-unmetered", str(err)),))
