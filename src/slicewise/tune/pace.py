"""How fast a run goes, and so how long what is under way will take.

A plain mean of what was seen; no worker and no policy.
"""

import math

from slicewise.tune.records import RunSettings

# A finalist takes about so much longer than a first measurement, until one was seen: three times
# the least samples (`CAREFUL` and `QUICK` in `backends/_base.py`).
_CAREFUL = 3.0


class Pace:
    """Times seen so far in s."""

    def __init__(self, settings: RunSettings, *, servers: int) -> None:
        """Nothing seen yet."""
        self._settings, self._servers = settings, max(1, servers)
        self._piece_s: list[float] = []
        self._built = 0
        self._quick = [0.0, 0.0]  # seconds, candidates
        self._alone = [0.0, 0.0]

    def proposed(self, seconds: float, built: int) -> None:
        """Take in a piece, and how long its client had it."""
        self._piece_s.append(seconds)
        self._built += built

    def measured(self, seconds: float, candidates: int, *, is_alone: bool) -> None:
        """Take in a batch."""
        seen = self._alone if is_alone else self._quick
        seen[0] += seconds
        seen[1] += candidates

    @property
    def _each_s(self) -> float:
        """Time to measure a candidate among others; 0 until one was seen."""
        return self._quick[0] / self._quick[1] if self._quick[1] else 0.0

    @property
    def pieces_to_feed(self) -> float:
        """How many clients it takes to keep a server busy; infinite until that was seen."""
        if not self._piece_s or not self._quick[1]:
            return math.inf
        mean_piece = sum(self._piece_s) / len(self._piece_s)
        measure_s = self._each_s * self._built / len(self._piece_s)
        return mean_piece / measure_s if measure_s > 0 else math.inf

    def rest_s(self, waiting: int, finalists: int, devices: int) -> float:
        """Return how long it takes from now until the end, should one more piece begin.

        The piece itself (others in flight end before it), measuring it behind those that wait,
        and the finalists, one after the other on each device. One more workload's worth of
        finalists is added: the piece may bring new ones. 0 while nothing has been seen.
        """
        if not self._piece_s:
            return 0.0
        each = self._each_s
        careful = self._alone[0] / self._alone[1] if self._alone[1] else _CAREFUL * each
        mean_piece = sum(self._piece_s) / len(self._piece_s)
        size = self._built / len(self._piece_s)
        last = finalists + self._settings.finalists
        return mean_piece + each * (waiting / self._servers + size) + careful * last / devices
