"""One model on every part of a card: which parts meet the target, and the smallest of them.

Predictions come in, judgements go out; nothing is predicted here and no slice is placed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from slicewise.core.cost import Prediction
from slicewise.core.device import Device, SliceProfile
from slicewise.core.errors import UsageError
from slicewise.core.packing import Fit, Target
from slicewise.core.ties import TIE, least
from slicewise.core.units import format_capacity, format_ms, format_number

# An interval holds 90 %: each of its ends lies so many standard deviations from the value if the
# logarithm of the figure is normally distributed.
_END_IN_DEVIATIONS = 1.6448536269514722
# Two ends of a bisection are tried after at most so many doublings of the batch.
LARGEST_BATCH = 65_536
_SURE = 0.95  # the high end of a 90 % interval


def judge(
    parts: Sequence[tuple[SliceProfile | None, Prediction]],
    target: Target,
    *,
    device: Device,
    safeties: Sequence[float] | None = None,
) -> tuple[Fit, ...]:
    """Return the judgement of each part of `device`, the smallest part first.

    A part is a profile, or None for the whole card or the share that its prediction names. A part
    fits if latency, rate and memory keep to the target and to the usable memory of the part (not
    to that of its name) with the safety to spare; `safeties` are those of the parts where they
    differ from the target's. Laws: a looser target makes no part unfit, so that it never needs a
    larger one; more memory needed makes none fit.
    """
    given = [target.safety] * len(parts) if safeties is None else list(safeties)
    made = [
        _judge(
            profile,
            prediction,
            Target(target.latency_ms, target.throughput_per_s, safety),
            device=device,
        )
        for (profile, prediction), safety in zip(parts, given, strict=True)
    ]
    return tuple(sorted(made, key=lambda fit: size_order(fit, device)))


def recommend(fits: Sequence[Fit], target: Target) -> Fit | None:
    """Return the smallest part that fits; without a target the fitting one with the best rate for
    each slice that it takes. None where nothing fits. `fits` are in the order of `judge`.
    """
    fitting = [fit for fit in fits if fit.fits]
    if not fitting:
        return None
    if target.latency_ms is None and target.throughput_per_s is None:
        return least(fitting, lambda fit: -fit.per_slice_per_s)
    return fitting[0]


def next_larger(fits: Sequence[Fit], chosen: Fit) -> Fit | None:
    """Return the next larger part behind `chosen` that is not another form of it, None if none.

    Profiles with attributes (`+me`) have the figures of the plain one.
    """
    behind = fits[list(fits).index(chosen) + 1 :]
    units = chosen.profile
    return next(
        (
            fit
            for fit in behind
            if fit.profile is None
            or units is None
            or (not fit.profile.attributes and _figures(fit.profile) != _figures(units))
        ),
        None,
    )


def _figures(profile: SliceProfile) -> tuple[int, int, int]:
    return profile.size, profile.compute_slices, profile.compute_units


def size_order(fit: Fit, device: Device) -> tuple[float, int, int, str]:
    """Return what the parts of a card are ordered by: the part of the card taken, its units, then
    profiles before the whole card and plain ones before those with attributes.
    """
    units = device.compute_units
    if fit.profile is not None:
        units = fit.profile.compute_units
    attributes = "" if fit.profile is None else fit.profile.attributes
    return part_of_card(fit, device), units, int(fit.profile is None), attributes


def part_of_card(fit: Fit, device: Device) -> float:
    """Return the fraction of a card that a part takes away from others, over 0 and at most 1.

    Of a profile that of its compute slices or of its memory slots, whichever is the larger: a 1g
    with double memory leaves room for three more of its kind, not for six.
    """
    if fit.profile is not None:
        compute = fit.profile.compute_slices / _compute_slices(device)
        return min(1.0, max(compute, fit.profile.size / device.memory_slots))
    share = fit.prediction.slice
    if share is not None and share.endswith("%"):
        return float(share[:-1]) / 100
    return 1.0


def slices_of(device: Device, *, is_shared: bool) -> int:
    """Return how many slices a card is counted as: compute slices, or tenths where it is shared
    or cannot be sliced.
    """
    if is_shared or not device.profiles:
        return 10
    return _compute_slices(device)


def _compute_slices(device: Device) -> int:
    """Return the most compute slices that stand on a card at once: of cards without a profile of
    the whole card more than the largest profile has."""
    return max(profile.compute_slices * profile.max_instances for profile in device.profiles)


def has_memory(made: Prediction) -> bool:
    """Return True if it is known how much memory is needed: measured files need not tell."""
    return made.memory_bytes.value > 0


def usable_bytes(profile: SliceProfile | None, device: Device) -> int:
    """Return the memory that a part of `device` can use; a share sees that of the whole card."""
    return device.memory_bytes if profile is None else profile.memory_bytes


def holds(fit: Fit, device: Device) -> bool:
    """Return True if the model fits into the part's memory with the fit's safety to spare."""
    needed = fit.prediction.memory_bytes.value * (1 + fit.safety)
    return needed <= usable_bytes(fit.profile, device)


def _judge(
    profile: SliceProfile | None, made: Prediction, target: Target, *, device: Device
) -> Fit:
    usable = usable_bytes(profile, device)
    checks = [_memory(made, usable, target.safety)]
    if target.latency_ms is not None:
        checks.append(_latency(made, target))
    if target.throughput_per_s is not None:
        checks.append(_throughput(made, target))
    fits = all(check.is_met for check in checks)
    told = [check.words for check in checks if fits or not check.is_met]
    # memory last where it is no obstacle
    reason = "; ".join([*told[1:], *told[:1]] if fits else told)
    is_shared = made.slice is not None and made.slice.endswith("%")
    confidence = _confidence(made, usable, target)
    bare = Fit(profile, made, fits, reason, 0.0, confidence, target.safety)
    taken = part_of_card(bare, device) * slices_of(device, is_shared=is_shared)
    doubts = doubt(bare, target, device)
    told_all = f"{reason}; {doubts}" if doubts else reason
    return replace(bare, reason=told_all, per_slice_per_s=made.throughput_per_s / taken)


@dataclass(frozen=True, slots=True)
class _Check:
    is_met: bool
    words: str


def _memory(made: Prediction, usable: int, safety: float) -> _Check:
    needed = made.memory_bytes.value
    have = f"{format_capacity(usable)} usable"
    if not has_memory(made):
        return _Check(True, f"memory is not known, {have}")
    if needed > usable:
        over = format_capacity(needed - usable)
        return _Check(False, f"needs {format_capacity(needed)}, {over} more than {have}")
    if needed * (1 + safety) > usable:
        spare = format_capacity(needed * (1 + safety))
        words = f"needs {format_capacity(needed)}, {spare} {_to_spare(safety)}, of {have}"
        return _Check(False, words)
    return _Check(True, f"{format_capacity(needed)} of {have}")


def _latency(made: Prediction, target: Target) -> _Check:
    value_ms, limit_ms = made.latency_ms.value, target.latency_ms
    assert limit_ms is not None
    value, limit = format_ms(value_ms), format_ms(limit_ms)
    spare_ms = value_ms * (1 + target.safety)
    spare = f"{format_ms(spare_ms)} {_to_spare(target.safety)}"
    if value_ms > limit_ms:
        return _Check(False, f"{value} is {_over(value_ms / limit_ms)} the target of {limit}")
    if value_ms > target.latency_allowed_ms:
        plus = f"{value} plus {_to_spare(target.safety).removeprefix('with ')}"
        return _Check(False, f"{plus} is {_told_apart(spare_ms, limit_ms)}, over {limit}")
    return _Check(True, f"{value}{f', {spare},' if target.safety else ''} is within {limit}")


def _throughput(made: Prediction, target: Target) -> _Check:
    rate, asked = made.throughput_per_s, target.throughput_per_s
    assert asked is not None
    told = f"{format_number(rate)} items/s"
    spare = f"{format_number(target.throughput_needed_per_s)} {_to_spare(target.safety)}"
    if rate < asked:
        percent = 100 * (1 - rate / asked)
        under = f"{percent:.2g} %" if percent < 99.5 else "over 99 %"
        return _Check(False, f"{told}, {under} less than the {format_number(asked)} asked")
    if rate < target.throughput_needed_per_s:
        return _Check(False, f"{told} reaches the {format_number(asked)} asked, but not {spare}")
    asked_words = f"{format_number(asked)} asked"
    return _Check(True, f"{told} of the {asked_words}{f', {spare}' if target.safety else ''}")


def _told_apart(value_ms: float, limit_ms: float) -> str:
    """Return a time that is just over a limit, with as many digits as tell it from the limit."""
    if format_ms(value_ms) != format_ms(limit_ms):
        return format_ms(value_ms)
    digits = next((n for n in range(4, 9) if f"{value_ms:.{n}g}" != f"{limit_ms:.{n}g}"), 9)
    return f"{value_ms:.{digits}g} ms"


def _over(times: float) -> str:
    """Return '22 % over' or '3.11 times'."""
    return f"{100 * (times - 1):.2g} % over" if times < 1.995 else f"{format_number(times)} times"


def _to_spare(safety: float) -> str:
    return f"with {100 * safety:.3g} % to spare"


def _confidence(made: Prediction, usable: int, target: Target) -> float:
    """Return the probability that memory, latency and rate hold, without the safety.

    The figures' logarithms are taken as normally distributed with the interval's 5 % in each tail,
    memory as independent of latency; rate and latency are the same figure.
    """
    memory, latency = made.memory_bytes, made.latency_ms
    fits = probability(memory.value, memory.low, memory.high, usable)
    limit_ms = math.inf if target.latency_ms is None else target.latency_ms
    if target.throughput_per_s is not None:
        # at this latency the rate is just the one asked
        limit_ms = min(limit_ms, latency.value * made.throughput_per_s / target.throughput_per_s)
    return fits * probability(latency.value, latency.low, latency.high, limit_ms)


def probability(value: float, low: float, high: float, limit: float) -> float:
    """Return how probable it is that a figure with this 90 % interval is at most `limit`.

    Its logarithm is taken as normally distributed, each side with the spread of its end.

    >>> probability(10.0, 8.0, 12.5, 10.0), round(probability(10.0, 8.0, 12.5, 12.5), 2)
    (0.5, 0.95)
    """
    end = high if limit >= value else low
    if math.isinf(limit) or value <= 0:
        return 1.0
    spread = abs(math.log(end / value)) / _END_IN_DEVIATIONS if end > 0 else math.inf
    if spread <= TIE:
        return 1.0 if limit >= value * (1 - TIE) else 0.0
    if limit <= 0:
        return 0.0
    return 0.5 * math.erfc(-math.log(limit / value) / spread / math.sqrt(2))


def doubt(fit: Fit, target: Target, device: Device) -> str:
    """Return what the intervals say against a part that fits, and how sure it is that it holds.

    '' where they agree with the judgement, or where the part does not fit.
    """
    made = fit.prediction
    if not fit.fits or fit.confidence >= _SURE:
        return ""
    doubts = []
    high_ms = made.latency_ms.high
    if target.latency_ms is not None and high_ms > target.latency_ms:
        doubts.append(f"high end {format_ms(high_ms)} is over the target")
    if target.throughput_per_s is not None:
        least_per_s = made.throughput_per_s * made.latency_ms.value / high_ms
        if least_per_s < target.throughput_per_s:
            doubts.append(f"low end {format_number(least_per_s)} items/s is under the target")
    if made.memory_bytes.high > usable_bytes(fit.profile, device):
        doubts.append(f"up to {format_capacity(made.memory_bytes.high)} may be needed")
    if not doubts:
        return ""
    return f"{', '.join(doubts)}: holds with about {100 * fit.confidence:.0f} %"


def fullness(fit: Fit, target: Target, device: Device) -> float:
    """Return how far latency and memory go towards what is allowed, the safety included; what is
    just allowed is 1. A rate is left out: it grows with the batch.
    """
    made, spare = fit.prediction, 1 + fit.safety
    memory = made.memory_bytes.value * spare / usable_bytes(fit.profile, device)
    if target.latency_ms is None:
        return memory
    return max(memory, made.latency_ms.value * spare / target.latency_ms)


def largest_batch(full: Callable[[int], float], *, most: int = LARGEST_BATCH) -> int:
    """Return the largest batch up to `most` that keeps a target, 0 where batch 1 does not.

    `full` tells how far a batch goes towards what is allowed; over 1 it does not keep it. It is
    asked at doubled batches, then between the last that keeps and the first that does not, by
    turns where a straight line between these meets 1 and in their middle: O(log batch) calls.
    Where a larger batch keeps the target again, the result is one whose successor does not.

    >>> largest_batch(lambda batch: (3 + batch) / 60)
    57
    """
    if most < 1:
        raise UsageError(f"most batch {most} leaves nothing to look at; give at least 1")
    good, bad = 1, 2
    good_full = full(good)
    if good_full > 1:
        return 0
    bad_full = math.inf
    while bad <= most:
        found = full(bad)
        if found > 1:
            bad_full = found
            break
        good, good_full, bad = bad, found, 2 * bad
    bad = min(bad, most + 1)
    by_line = True
    while bad - good > 1:
        middle = (good + bad) // 2
        if by_line and math.isfinite(bad_full):
            middle = good + math.floor((bad - good) * (1 - good_full) / (bad_full - good_full))
        middle = min(max(middle, good + 1), bad - 1)
        found = full(middle)
        if found > 1:
            bad, bad_full = middle, found
        else:
            good, good_full = middle, found
        by_line = not by_line
    return good
