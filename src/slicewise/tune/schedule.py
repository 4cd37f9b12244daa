"""Which workload is searched next, by whom, and how far: a policy, without any process.

First every workload gets a piece, the heaviest first. Then the next piece goes where it is
expected to save the most per trial. As in the task scheduler of Ansor (Zheng et al., OSDI 2020,
arXiv 2006.06762, Sec. 6) the gain is count x expected improvement of the best latency, blended of
what was seen lately and of an optimism that fades; the formula is our own:

    b(n) = b(1) n^-s         best latency after n trials: each doubling saves the same part
    s    = (N0 S0 + n s_seen) / (N0 + n)      s_seen over the last half of the trials
    gain = count b(n) (1 - (n / (n + k))^s) / k       in ms for each of the next k trials

The distance to the best of all, of n independent draws, is such a power of n (extreme value
theory, Weibull case); guided search is steeper at first, which s_seen follows. Pieces in flight
count as n without gain, so that clients spread over the workloads.
"""

import bisect
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from slicewise.core.tuning import Piece, Trial, Workload

# The optimism: a doubling of trials is taken to save 16 % (2^-0.25), with the weight of 16 trials.
# Neither is critical: halving or doubling them moves the simulated result by no more than two of
# its standard errors (`benchmarks/results/tune_scaling.md`).
PRIOR_EXPONENT = 0.25
PRIOR_TRIALS = 16
# A client stays with its workload while that gains at least this part of the best choice: its
# population, its cost model and its caches are warm there.
_NEAR = 0.8
# The last pieces are cut so that clients end together, yet not below this part of a piece: a small
# piece costs a client as much overhead as a large one.
_LEAST_PART = 0.25


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a workload stands.

    `bests_ms` holds the best latency after each trial, infinite while there is none. `in_flight`
    are candidates handed out and not tried yet, `pieces` those handed out so far, `client` the one
    that had the last. `start_ms` is a latency known before the run (from the store). A workload
    that is `is_closed` gets no piece: exhausted, given up, or known from the store.
    """

    workload: Workload
    bests_ms: tuple[float, ...] = ()
    in_flight: int = 0
    pieces: int = 0
    client: int = -1
    start_ms: float = math.inf
    is_closed: bool = False

    @property
    def trials(self) -> int:
        """Candidates tried so far."""
        return len(self.bests_ms)

    @property
    def best_ms(self) -> float:
        """Best latency known in ms; infinite while there is none."""
        return self.bests_ms[-1] if self.bests_ms else self.start_ms

    @property
    def expected_ms(self) -> float:
        """Best latency known, or the predicted one of a workload that never ran."""
        return self.best_ms if math.isfinite(self.best_ms) else self.workload.mean_ms

    def tried(self, trial: Trial) -> "Progress":
        """Return where it stands after one more trial."""
        value = trial.latency_ms.value if trial.is_ok and trial.latency_ms else math.inf
        return replace(self, bests_ms=(*self.bests_ms, min(self.best_ms, value)))


def exponent(progress: Progress) -> float:
    """Return s: how steeply the best latency falls with the number of trials; at least 0."""
    counted = progress.trials + progress.in_flight
    hoped = PRIOR_TRIALS * PRIOR_EXPONENT
    return (hoped + counted * _seen(progress, counted)) / (PRIOR_TRIALS + counted)


def _seen(progress: Progress, counted: int) -> float:
    """Return the exponent over the last half of the trials, those in flight without gain."""
    if not math.isfinite(progress.best_ms) or not progress.bests_ms:
        return 0.0
    first = 1 + bisect.bisect_left(progress.bests_ms, True, key=math.isfinite)
    since = min(max(counted // 2, first), progress.trials)
    if since >= counted:
        return 0.0
    fall = math.log(progress.bests_ms[since - 1] / progress.best_ms)
    return fall / math.log(counted / since)


def gain_ms(progress: Progress, size: int) -> float:
    """Return the latency of the model in ms that each of `size` further trials is expected to
    save on this workload."""
    counted = max(1, progress.trials + progress.in_flight)
    part = 1.0 - math.pow(counted / (counted + size), exponent(progress))
    return progress.workload.count * progress.expected_ms * part / size


def piece_seed(seed: int, workload: str, round_: int) -> int:
    """Return the seed of a piece: that of the run, the workload and the round decide alone."""
    told = hashlib.sha256(f"{seed} {workload} {round_}".encode()).digest()
    return int.from_bytes(told[:4], "big") >> 1


def next_piece(
    standings: Sequence[Progress],
    *,
    left: int | None,
    piece_size: int,
    clients: int,
    client: int,
    number: int,
    seed: int,
) -> Piece | None:
    """Return the next piece for `client`, or None where nothing is left to hand out.

    `left` candidates may still be handed out (None: no limit) and `clients` share them. Where
    fewer are left than would give each workload a whole first piece, first pieces are smaller: a
    workload without any trial runs untuned. Deterministic: ties go to the earlier workload.
    """
    open_ = [each for each in standings if not each.is_closed]
    if not open_ or (left is not None and left < 1):
        return None
    untouched = [each for each in open_ if each.pieces == 0]
    if untouched:
        chosen = max(untouched, key=lambda each: each.workload.weight_ms)
        fair = piece_size if left is None else max(1, left // len(untouched))
        size = min(piece_size, fair)
    else:
        chosen = _most_gain(open_, piece_size, client)
        size = _cut(left, piece_size, clients)
    if left is not None:
        size = min(size, left)
    workload, round_ = chosen.workload.key, chosen.pieces
    return Piece(number, workload, round_, size, piece_seed(seed, workload, round_))


def _most_gain(open_: Sequence[Progress], size: int, client: int) -> Progress:
    """Return the workload that gains most, or this client's own where that is nearly as much."""
    gains = [gain_ms(each, size) for each in open_]
    most = max(gains)
    own = [
        (gain, -i) for i, gain in enumerate(gains)
        if open_[i].client == client and gain >= _NEAR * most
    ]  # fmt: skip
    return open_[-max(own)[1]] if own else open_[gains.index(most)]


def _cut(left: int | None, piece_size: int, clients: int) -> int:
    """Return the size of a piece: at the end a fair part of what is left.

    As in guided self-scheduling (Polychronopoulos and Kuck, IEEE Trans. Computers 36, 1987).
    """
    if left is None:
        return piece_size
    least = max(1, math.ceil(_LEAST_PART * piece_size))
    return max(least, min(piece_size, math.ceil(left / max(1, clients))))
