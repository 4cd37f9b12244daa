"""Whether one measurement is faster than another, or nothing of the kind is shown.

Two measurements are compared, nothing is measured. What a run-to-run difference is worth cannot be
seen in the samples of one run; how much of it is allowed for is an argument.
"""

import math

from slicewise.core.comparison import Comparison, Verdict
from slicewise.core.cost import Estimate
from slicewise.core.errors import UsageError
from slicewise.core.measurement import Measurement
from slicewise.core.notes import Note
from slicewise.measure.statistics import SOURCE, summarise

# Two processes that run the same thing differ by a few percent for reasons that no sample of one
# of them shows, such as where its memory lies (Mytkowicz et al., Producing Wrong Data Without
# Doing Anything Obviously Wrong!, ASPLOS 2009); 2 % is the width that a protocol asks for.
BETWEEN_RUNS = 0.02
_MISS = 0.10
_FEW = 5  # below it no two samples bound a median at 90 %

# What makes two measurements unlike beyond what is compared.
_CONDITIONS = ("digest", "device", "slice", "batch", "precision", "threads", "runtime")


def compare(a: Measurement, b: Measurement, *, between_runs: float = BETWEEN_RUNS) -> Comparison:
    """Return `b` against `a`: the ratio of their medians with a 90 % interval, and the verdict.

    The two distribution-free intervals are joined on the logarithmic scale by variance recovery
    (Zou and Donner, Construction of confidence limits about effect measures, Statistics in
    Medicine 27, 2008): each side adds the squared distances of the medians from those limits that
    draw it there, and the square of `between_runs`, the relative difference that two runs of the
    same thing are allowed. With fewer than 5 samples on a side a difference is shown where all
    samples of one lie below all of the other and that is at most 10 % likely by chance.
    `UsageError` if one has no samples.

    Exchanging the two turns the ratio and its interval round; a common factor changes nothing.
    """
    for each in (a, b):
        if each.latency_ms is None or not each.samples_ms:
            raise UsageError(
                f"measurement of {each.model!r} has no samples: its outcome is "
                f"{each.outcome.value}; compare two whose outcome is ok; measure it again"
            )
        if min(each.samples_ms) <= 0:
            raise UsageError(
                f"measurement of {each.model!r} has a sample of {min(each.samples_ms)} ms; "
                "times are above 0; measure it again"
            )
    few = min(len(a.samples_ms), len(b.samples_ms)) < _FEW
    ratio = (
        _separated(a, b, between_runs=between_runs)
        if few
        else _joined(a, b, between_runs=between_runs)
    )
    if few and not _can_be_told(len(a.samples_ms), len(b.samples_ms)):
        verdict = Verdict.NONE
    elif ratio.high < 1.0:
        verdict = Verdict.FASTER
    else:
        verdict = Verdict.SLOWER if ratio.low > 1.0 else Verdict.NONE
    method = "separation of all samples" if few else "joined order-statistic intervals"
    return Comparison(ratio, verdict, method, notes=_differences(a, b))


def _joined(a: Measurement, b: Measurement, *, between_runs: float) -> Estimate:
    first, second = summarise(a.samples_ms), summarise(b.samples_ms)
    middle = math.log(second.value) - math.log(first.value)
    runs = math.log1p(between_runs)
    down = math.hypot(
        math.log(second.value / second.low), math.log(first.high / first.value), runs
    )
    up = math.hypot(math.log(second.high / second.value), math.log(first.value / first.low), runs)
    return Estimate(
        math.exp(middle), low=math.exp(middle - down), high=math.exp(middle + up), source=SOURCE
    )


def _separated(a: Measurement, b: Measurement, *, between_runs: float) -> Estimate:
    """Return the ratio with the interval from the least to the greatest ratio of two samples,
    widened by `between_runs`."""
    first, second = summarise(a.samples_ms), summarise(b.samples_ms)
    return Estimate(
        second.value / first.value,
        low=min(b.samples_ms) / max(a.samples_ms) / (1 + between_runs),
        high=max(b.samples_ms) / min(a.samples_ms) * (1 + between_runs),
        source=SOURCE,
    )


def _can_be_told(n: int, m: int) -> bool:
    """True if complete separation of n and m like samples happens at most 10 % of the time.

    2 of the (n + m choose n) equally likely arrangements (the rank-sum test's extreme).
    """
    return 2 / math.comb(n + m, n) <= _MISS


def _differences(a: Measurement, b: Measurement) -> tuple[Note, ...]:
    unlike = [name for name in _CONDITIONS if getattr(a, name) != getattr(b, name)]
    notes = []
    if len(unlike) > 1:
        text = f"the two differ in more than one thing: {', '.join(unlike)}"
        notes.append(Note("conditions-differ", text))
    if a.environment.digest != b.environment.digest:
        text = "the two were taken with other hardware, drivers or versions of packages"
        notes.append(Note("environments-differ", text))
    return tuple(notes)
