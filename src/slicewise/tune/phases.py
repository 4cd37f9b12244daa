"""How long the phases of tuning take: parameters of a simulated run, and what a real one shows.

Numbers only; nothing is run here.
"""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from slicewise.tune.records import PieceRecord


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """Mean times in s: for each candidate, each piece beside that, and each start of a worker.

    Spreads are those of the logarithm (lognormal times): of a piece's search, of a candidate's
    build, of a candidate's measurement. `careful` is how many times as long a finalist takes.
    `core_efficiency` is the speed of a client while another core of its host is busy, 1 where
    they do not disturb each other.

    The defaults are those of the first trials with MetaSchedule (bert_small, 8 candidates a
    piece): one client on one core took 206 s for 100 candidates, 64 % of it search, 31 % build and
    5.8 % measurement. Two clients at once, on a core each, took no more for a candidate.
    """

    search_s: float = 1.32
    build_s: float = 0.64
    measure_s: float = 0.12
    piece_s: float = 0.0
    client_start_s: float = 3.0
    server_start_s: float = 3.0
    search_spread: float = 0.3
    build_spread: float = 0.3
    measure_spread: float = 0.3
    careful: float = 3.0
    core_efficiency: float = 1.0

    def draw_search_s(self, size: int, draw: random.Random) -> float:
        """Return the time to search a piece of `size` candidates."""
        return spread(self.piece_s + self.search_s * size, self.search_spread, draw)

    def draw_build_s(self, draw: random.Random) -> float:
        """Return the time to build a candidate."""
        return spread(self.build_s, self.build_spread, draw)

    def draw_measure_s(self, draw: random.Random, *, is_careful: bool) -> float:
        """Return the time to measure a candidate."""
        mean = self.measure_s * (self.careful if is_careful else 1.0)
        return spread(mean, self.measure_spread, draw)


def spread(mean: float, sigma: float, draw: random.Random) -> float:
    """Return a lognormal number with this mean; `sigma` is the spread of its logarithm."""
    return mean * math.exp(draw.gauss(0.0, sigma) - sigma * sigma / 2) if mean > 0 else 0.0


def phase_times(
    pieces: Sequence[PieceRecord],
    *,
    client_start_s: float,
    server_start_s: float,
    core_efficiency: float = 1.0,
    careful: float = 3.0,
) -> PhaseTimes:
    """Return the parameters that these pieces of a real run show.

    Search is split into a part for each piece and one for each candidate by least squares over
    the pieces' sizes, neither below 0; where all sizes are equal it is all for the candidates.
    `core_efficiency` divides out of search and build: they are the times of a core that is alone.
    """
    real = [piece for piece in pieces if piece.size > 0]
    if not real:
        return PhaseTimes(client_start_s=client_start_s, server_start_s=server_start_s)
    candidates = sum(piece.size for piece in real)
    own, each = _line([(piece.size, piece.search_s) for piece in real])
    return PhaseTimes(
        search_s=each * core_efficiency,
        build_s=sum(piece.build_s for piece in real) / candidates * core_efficiency,
        measure_s=sum(piece.measure_s for piece in real) / candidates,
        piece_s=own * core_efficiency,
        client_start_s=client_start_s,
        server_start_s=server_start_s,
        search_spread=_spread([p.search_s / (own + each * p.size) for p in real if p.search_s]),
        build_spread=_spread([p.build_s / p.size for p in real]),
        measure_spread=_spread([p.measure_s / p.size for p in real]),
        careful=careful,
        core_efficiency=core_efficiency,
    )


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return (a, b) of the least squares a + b x, neither below 0."""
    mean_x = statistics.fmean(x for x, _ in points)
    mean_y = statistics.fmean(y for _, y in points)
    wide = sum((x - mean_x) ** 2 for x, _ in points)
    if wide == 0:
        return 0.0, mean_y / mean_x
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / wide
    if slope < 0:
        return mean_y, 0.0
    if mean_y - slope * mean_x < 0:
        return 0.0, sum(x * y for x, y in points) / sum(x * x for x, _ in points)
    return mean_y - slope * mean_x, slope


def _spread(values: Sequence[float]) -> float:
    logs = [math.log(value) for value in values if value > 0]
    return statistics.stdev(logs) if len(logs) > 1 else 0.0


def serial_wall_s(
    times: PhaseTimes,
    *,
    trials: int,
    piece_size: int,
    search_speedup: float = 1.0,
    build_speedup: float = 1.0,
) -> float:
    """Return the wall time of one tuner that searches, builds and measures one after the other.

    That is what stock MetaSchedule does. The speed-ups are those of its threads and of its build
    workers over one core.
    """
    pieces = math.ceil(trials / piece_size)
    search = (pieces * times.piece_s + trials * times.search_s) / search_speedup
    build = trials * times.build_s / build_speedup
    return times.client_start_s + search + build + trials * times.measure_s
